//! The reporting thread's part when the link goes down: it reports that, and keeps the state file
//! at what is certain to have been sent.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, Instant};

use ::scan::LinkChange;
use ::scan::grab::Banner;
use port::PortEvent;
use sys::Result;

use super::super::Notice;
use super::super::link::LOST_MS;
use super::{Collector, Incoming};

/// Interval between two checks of the link.
const WATCH: Duration = Duration::from_millis(20);
/// Maximum number of events handled by a check.
const EVENTS_MAX: usize = 64;
/// Maximum number of services whose banners are remembered, so that each is reported once.
const SERVICES_MAX: usize = 1 << 20;

/// What is known of the link and of the probes sent.
pub(super) struct Watch {
    looked: Instant,
    down_since: Option<Instant>,
    /// The next probe as of the last ticks, the most recent first. The last is from before anything
    /// that may be lost when the link is reported to be down.
    done: [u128; 4],
    /// Whether lanes may not have gone back yet.
    is_unsettled: bool,
    /// Services of which a banner with data was reported, as hashes of address, port and name, and
    /// how many further banners there were: those of ports that were probed again.
    services: HashSet<u64>,
    hasher: RandomState,
    pub(super) again: u64,
}

impl Watch {
    pub(super) fn new(from: u128) -> Self {
        Self {
            looked: Instant::now(),
            down_since: None,
            done: [from; 4],
            is_unsettled: false,
            services: HashSet::new(),
            hasher: RandomState::new(),
            again: 0,
        }
    }

    /// Whether a banner is the first of its service, or the first with data. Each name of an
    /// address is a service of its own.
    pub(super) fn is_new(&mut self, banner: &Banner) -> bool {
        let target = &banner.target;
        let key = (target.addr, target.port, &banner.name);
        let key = self.hasher.hash_one(key);
        if self.services.contains(&key) {
            self.again += 1;
            return false;
        }
        if banner.byte_count != 0 && self.services.len() < SERVICES_MAX {
            self.services.insert(key);
        }
        true
    }
}

impl Collector<'_> {
    /// Checks before the first probe whether the link is up: some cards take it down while an XDP
    /// program is attached.
    pub(super) fn look_first(
        &mut self,
        notice: &mut impl FnMut(Notice<'_>) -> Result<()>,
    ) -> Result<()> {
        match self.scan.local.is_running() {
            true => Ok(()),
            false => match self.link_down(self.began) {
                Some(change) => notice(Notice::Link(change, super::super::now())),
                None => Ok(()),
            },
        }
    }

    /// Checks whether the link has changed.
    pub(super) fn watch(
        &mut self,
        now: Instant,
        incoming: &mut Incoming<'_>,
        notice: &mut impl FnMut(Notice<'_>) -> Result<()>,
    ) -> Result<()> {
        if now < self.watch.looked + WATCH {
            return Ok(());
        }
        // What is reported now may have happened any time since the last look: the reader of the
        // results may have stopped this thread for long.
        let before = std::mem::replace(&mut self.watch.looked, now);
        for _ in 0..EVENTS_MAX {
            let change = match incoming.control.event() {
                Some(PortEvent::LinkDown) => self.link_down(before),
                Some(PortEvent::LinkUp) => self.link_up(),
                Some(_) => None,
                None => break,
            };
            if let Some(change) = change {
                notice(Notice::Link(change, super::super::now()))?;
            }
        }
        Ok(())
    }

    /// Records that the link is down, since some time after `since`.
    fn link_down(&mut self, since: Instant) -> Option<LinkChange> {
        if self.watch.down_since.is_some() {
            return None;
        }
        self.watch.down_since = Some(Instant::now());
        let at = since.saturating_duration_since(self.began);
        self.live.link.set_down(at);
        Some(LinkChange::Down)
    }

    fn link_up(&mut self) -> Option<LinkChange> {
        let since = self.watch.down_since.take()?;
        self.watch.is_unsettled = true;
        if let Some(adaptive) = &mut self.adaptive {
            // Until then, probes are answered that had been answered before.
            let again_ns = LOST_MS * 1_000_000;
            adaptive.settle(self.began.elapsed().as_nanos() as u64 + again_ns);
        }
        self.live.link.set_up();
        Some(LinkChange::Up(since.elapsed()))
    }

    /// Records the state of a second ago; without a link that of before it went down.
    pub(super) fn note(&mut self) -> Result<()> {
        let now = self.scan.setup().from + u128::from(self.live.done());
        let done = &mut self.watch.done;
        if self.watch.down_since.is_some() || self.watch.is_unsettled {
            self.watch.is_unsettled = self.watch.down_since.is_some();
            *done = [done[3]; 4];
        } else {
            *done = [now, done[0], done[1], done[2]];
        }
        let before = done[1];
        self.state
            .as_mut()
            .map_or(Ok(()), |state| state.note(before))
    }
}

#[cfg(test)]
mod tests {
    use ::scan::grab::Ending;
    use ::scan::{Probe, ProbeTarget};

    use super::*;

    #[test]
    fn a_service_is_reported_once_under_each_name() {
        let target = ProbeTarget {
            addr: [192, 0, 2, 1].into(),
            probe: Probe::Syn,
            port: 80,
        };
        let banner = |name: Option<&str>, start: &[u8]| Banner {
            name: name.map(Into::into),
            ..Banner::new(target, start, Ending::Closed)
        };
        let mut watch = Watch::new(0);
        for (name, start, is_new) in [
            (Some("a.example"), &b""[..], true),
            (Some("a.example"), b"HTTP/1.1 200 OK", true),
            (Some("b.example"), b"HTTP/1.1 200 OK", true),
            (Some("a.example"), b"HTTP/1.1 200 OK", false),
            (Some("b.example"), b"HTTP/1.1 404 Not Found", false),
            (None, b"HTTP/1.1 200 OK", true),
        ] {
            assert_eq!(watch.is_new(&banner(name, start)), is_new, "{name:?}");
        }
        assert_eq!(watch.again, 2);
    }
}
