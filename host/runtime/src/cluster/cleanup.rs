//! Cleans up the traffic of an application before it is handed over: packets that its program need
//! not see are left out, and tunnel headers are removed.
//!
//! In this order: the application's filter, which tests packets as they were received; duplicates;
//! shunting; the choice of the queue.

use std::time::Duration;

use flow::cleanup::{Duplicates, ShuntLimits, Shunter, WINDOW_MAX_NS};
use ring::slot::Slot;
use wire::LinkType;

use super::balance::{Hasher, Seen};
use crate::flows::secret;

/// The window of [`Cleanup::deduplicate`] if none is given.
pub const DEDUPLICATE_DEFAULT: Duration = Duration::from_millis(10);

/// What is removed from the packets of an application. Nothing by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleanup {
    /// Hand over only the start of each flow.
    pub shunt: Option<ShuntLimits>,
    /// Leave out copies of packets that were received at most this long ago.
    pub deduplicate: Option<Duration>,
    /// Remove tunnel headers.
    pub detunnel: Option<Detunnel>,
}

/// Which headers are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detunnel {
    /// Those of tunnels, labels and PPPoE, with everything around them.
    Tunnels,
    /// VLAN tags as well.
    Tags,
}

impl Detunnel {
    /// Both, in the order of [`Selector::detunnelled`](super::select::Selector::detunnelled).
    pub(super) const ALL: [Self; 2] = [Self::Tunnels, Self::Tags];

    /// The word for it in output and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tunnels => "tunnels",
            Self::Tags => "tags",
        }
    }

    /// Parses `tunnels` or `tags`.
    ///
    /// # Errors
    /// What was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|it| it.name() == text)
            .ok_or_else(|| "use tunnels, or tags to remove VLAN tags as well".into())
    }
}

/// Parses the window in which packets are compared, a number of milliseconds.
///
/// # Errors
/// What was expected.
pub fn parse_deduplicate(text: &str) -> Result<Duration, String> {
    let max = WINDOW_MAX_NS / 1_000_000;
    let ms = text.parse::<u64>().ok().filter(|ms| (1..=max).contains(ms));
    ms.map(Duration::from_millis)
        .ok_or_else(|| format!("expected milliseconds, 1 to {max}, not {text:?}"))
}

impl Cleanup {
    /// Whether it does nothing.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Checks that packets of a link type can be cleaned up like this.
    ///
    /// # Errors
    /// The reason.
    pub(super) fn check(&self, link_type: LinkType) -> Result<(), String> {
        match self.detunnel {
            Some(_) if link_type != LinkType::ETHERNET => Err(format!(
                "the packets are {link_type}; tunnel headers are removed from Ethernet only"
            )),
            _ => Ok(()),
        }
    }
}

/// Why a packet is not handed to an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// No queue was to receive it.
    Filtered,
    /// A copy.
    Duplicate,
    /// Behind the start of its flow.
    Shunted,
}

/// Leaves packets of one application out.
pub(super) struct Cleaner {
    shunter: Option<Shunter>,
    duplicates: Option<Duplicates>,
    is_detunnelled: bool,
}

impl Cleaner {
    /// `None` if no packet is left out.
    pub fn new(cleanup: &Cleanup) -> Option<Self> {
        let window = cleanup.deduplicate.map(|window| window.as_nanos() as u64);
        let cleaner = Self {
            shunter: cleanup.shunt.map(|limits| Shunter::new(secret(), limits)),
            duplicates: window.map(|window| Duplicates::new(secret(), window)),
            is_detunnelled: cleanup.detunnel.is_some(),
        };
        let is_needed = cleaner.shunter.is_some() || cleaner.duplicates.is_some();
        is_needed.then_some(cleaner)
    }

    /// Whether and why the packet is left out, of which `rest` has the bytes behind the first
    /// frame. `now_ns` is its time if it has none of its own.
    #[inline]
    pub fn leaves_out<'a>(
        &mut self,
        seen: &Seen<'a>,
        rest: impl Iterator<Item = &'a [u8]> + Clone,
        hasher: &mut Hasher,
        now_ns: u64,
    ) -> Option<Left> {
        let time_ns = if seen.has(Slot::TIME) {
            seen.time_ns
        } else {
            now_ns
        };
        if let Some(duplicates) = &mut self.duplicates {
            let is_inner = self.is_detunnelled && hasher.carried(seen).ip_version != 0;
            let level = match is_inner {
                true => hasher.carried(seen),
                false => hasher.outer(seen),
            };
            if duplicates.is_copy(seen.bytes, rest, level, time_ns) {
                return Some(Left::Duplicate);
            }
        }
        if let Some(shunter) = &mut self.shunter {
            let level = hasher.carried(seen);
            if shunter.is_shunted(seen.bytes, level, seen.wire_len, time_ns) {
                return Some(Left::Shunted);
            }
        }
        None
    }

    /// Packets that passed because the table of flows was full.
    pub fn untracked(&self) -> u64 {
        self.shunter.as_ref().map_or(0, Shunter::untracked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_and_tunnels_are_parsed() {
        assert_eq!(parse_deduplicate("10"), Ok(DEDUPLICATE_DEFAULT));
        for text in ["", "0", "1001", "x", "-1"] {
            assert!(parse_deduplicate(text).is_err(), "{text}");
        }
        for kind in Detunnel::ALL {
            assert_eq!(Detunnel::parse(kind.name()), Ok(kind));
        }
        assert!(Detunnel::parse("gre").is_err());
    }
}
