//! Requests that change how a card spreads received packets over its queues: the RSS indirection
//! table, the feature `ntuple`, and the rules of the steering table (Linux
//! `include/uapi/linux/ethtool.h`, `net/ethtool/ioctl.c`).

use super::rule::{Rule, RuleSpec};
use super::{COUNT_MAX, Ethtool, GFLAGS, GRSSH, bytes_of};
use crate::{Error, ErrorKind, Result};

const SFLAGS: u32 = 0x26;
const GRXRINGS: u32 = 0x2d;
const GRXCLSRLCNT: u32 = 0x2e;
const GRXCLSRULE: u32 = 0x2f;
const GRXCLSRLALL: u32 = 0x30;
const SRXCLSRLDEL: u32 = 0x31;
const SRXCLSRLINS: u32 = 0x32;
const SRXFHINDIR: u32 = 0x39;

/// The feature's name in that set.
const NTUPLE_NAME: &str = "rx-ntuple-filter";
/// `ETH_FLAG_NTUPLE`.
const NTUPLE: u32 = 1 << 27;
/// `RX_CLS_LOC_SPECIAL`: the driver chooses locations.
const CHOOSES: u32 = 1 << 31;
/// `RX_CLS_LOC_ANY`.
const ANY: u32 = u32::MAX;

/// Words of `struct ethtool_rxnfc` without the list at its end, and where its parts are.
const NFC_WORDS: usize = 48;
const DATA: usize = 2;
const SPEC: usize = 4;
const COOKIE: usize = 42;
const LOCATION: usize = 44;
/// The number of rules, or the RSS context.
const COUNT: usize = 46;
const LOCATIONS: usize = 47;

/// The feature that allows rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NtupleFeature {
    /// Whether it is on.
    pub is_on: bool,
    /// Whether it can be switched.
    pub is_changeable: bool,
}

/// The steering table of a card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleTable {
    /// The rules in it.
    pub rules: Vec<InstalledRule>,
    /// Number of locations; 0 if unknown.
    pub size: u32,
    /// Whether the driver can choose the location of a new rule.
    pub chooses_location: bool,
}

/// A rule in a card's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstalledRule {
    /// Its location; lower ones come first.
    pub location: u32,
    /// The packets that it selects.
    pub spec: RuleSpec,
    /// The queue; `None` if it drops packets or steers to a virtual function.
    pub queue: Option<u32>,
    /// The RSS context, if it has one: the queue is then added to the entry of its table.
    pub context: Option<u32>,
}

impl Ethtool {
    /// Number of receive rings that RSS and rules can select.
    pub fn rx_ring_count(&self, interface: &str) -> Result<Option<u32>> {
        let mut words = nfc(GRXRINGS);
        Ok(self.ask(interface, &mut words)?.map(|()| words[DATA]))
    }

    /// The indirection table of an RSS context.
    pub fn context_table(&self, interface: &str, context: u32) -> Result<Option<Vec<u32>>> {
        let mut head = [GRSSH, context, 0, 0, 0, 0];
        if self.ask(interface, &mut head)?.is_none() {
            return Ok(None);
        }
        let (len, key_len) = (head[2] as usize, head[3] as usize);
        if len > COUNT_MAX || key_len > COUNT_MAX {
            return Ok(None);
        }
        let mut words = vec![0; 6 + len + key_len.div_ceil(4)];
        words[..4].copy_from_slice(&[GRSSH, context, head[2], head[3]]);
        let asked = self.ask(interface, &mut words)?;
        Ok(asked.map(|()| words[6..6 + len].to_vec()))
    }

    /// Sets the indirection table; an empty one means the kernel's default. Key and hash function
    /// stay as they are.
    ///
    /// # Errors
    /// If the driver refuses it.
    pub fn set_indirection(&self, interface: &str, table: &[u32]) -> Result<()> {
        // struct ethtool_rxfh_indir: cmd, size; then the entries.
        let mut words = vec![SRXFHINDIR, table.len() as u32];
        words.extend(table);
        let what = || format!("set the RSS indirection table of {interface:?}");
        self.change(interface, &mut words, what)
    }

    /// The state of the feature `ntuple`; `None` if the driver has no features.
    pub fn ntuple(&self, interface: &str) -> Result<Option<NtupleFeature>> {
        let Some((names, blocks)) = self.features(interface)? else {
            return Ok(None);
        };
        let index = names.iter().position(|name| name == NTUPLE_NAME);
        Ok(index.map(|index| {
            let block = &blocks[4 * (index / 32)..];
            let bit = 1 << (index % 32);
            NtupleFeature {
                is_on: block[2] & bit != 0,
                is_changeable: block[0] & bit != 0 && block[3] & bit == 0,
            }
        }))
    }

    /// Switches the feature `ntuple`.
    ///
    /// # Errors
    /// If the driver refuses it, or it has not changed.
    pub fn set_ntuple(&self, interface: &str, on: bool) -> Result<()> {
        let word = if on { "on" } else { "off" };
        let what = || format!("switch ntuple filters of {interface:?} {word}");
        let mut words = [GFLAGS, 0];
        self.change(interface, &mut words, what)?;
        let flags = match on {
            true => words[1] | NTUPLE,
            false => words[1] & !NTUPLE,
        };
        self.change(interface, &mut [SFLAGS, flags], what)?;
        let mut words = [GFLAGS, 0];
        self.change(interface, &mut words, what)?;
        if (words[1] & NTUPLE != 0) != on {
            let why = "the driver accepted it and did not do it";
            return Err(Error::new(ErrorKind::Unsupported, what(), why));
        }
        Ok(())
    }

    /// The steering table; `None` if the driver has none.
    pub fn rule_table(&self, interface: &str) -> Result<Option<RuleTable>> {
        let mut words = nfc(GRXCLSRLCNT);
        if self.ask(interface, &mut words)?.is_none() {
            return Ok(None);
        }
        let (count, flags) = (words[COUNT] as usize, words[DATA]);
        if count > COUNT_MAX {
            return Ok(None);
        }
        let mut words = vec![0; LOCATIONS + count + 1];
        (words[0], words[COUNT]) = (GRXCLSRLALL, count as u32);
        if self.ask(interface, &mut words)?.is_none() {
            return Ok(None);
        }
        let found = (words[COUNT] as usize).min(count);
        let locations = words[LOCATIONS..LOCATIONS + found].to_vec();
        let mut rules = Vec::new();
        for location in locations {
            // One that was deleted in the meantime is not in the table.
            rules.extend(self.rule(interface, location)?);
        }
        Ok(Some(RuleTable {
            rules,
            size: words[DATA] & !CHOOSES,
            chooses_location: flags & CHOOSES != 0,
        }))
    }

    fn rule(&self, interface: &str, location: u32) -> Result<Option<InstalledRule>> {
        let mut words = nfc(GRXCLSRULE);
        words[LOCATION] = location;
        if self.ask(interface, &mut words)?.is_none() {
            return Ok(None);
        }
        let bytes = bytes_of(&words[SPEC..]);
        let Some(bytes) = bytes.first_chunk::<{ RuleSpec::LEN }>() else {
            return Ok(None);
        };
        let spec = RuleSpec::of_bytes(bytes);
        // Bits 32 and above number a virtual function; all bits are set to drop.
        let queue = (words[COOKIE + 1] == 0).then_some(words[COOKIE]);
        Ok(Some(InstalledRule {
            location,
            spec,
            queue,
            context: spec.has_context().then_some(words[COUNT]),
        }))
    }

    /// Adds a rule that steers packets to a queue, at a location or at one that the driver chooses;
    /// returns the location.
    ///
    /// # Errors
    /// If the driver refuses it.
    pub fn insert_rule(
        &self,
        interface: &str,
        rule: &Rule,
        queue: u32,
        location: Option<u32>,
    ) -> Result<u32> {
        let mut words = nfc(SRXCLSRLINS);
        for (word, bytes) in words[SPEC..].iter_mut().zip(rule.spec().bytes().chunks(4)) {
            *word = bytes.try_into().map_or(0, u32::from_ne_bytes);
        }
        words[COOKIE] = queue;
        words[LOCATION] = location.unwrap_or(ANY);
        let what = || format!("add the rule \"{rule}\" to {interface:?}");
        self.change(interface, &mut words, what)?;
        Ok(words[LOCATION])
    }

    /// Deletes the rule at a location.
    ///
    /// # Errors
    /// If the driver refuses it.
    pub fn delete_rule(&self, interface: &str, location: u32) -> Result<()> {
        let mut words = nfc(SRXCLSRLDEL);
        words[LOCATION] = location;
        let what = || format!("delete rule {location} of {interface:?}");
        self.change(interface, &mut words, what)
    }

    /// Sends a request that must succeed.
    fn change(&self, interface: &str, words: &mut [u32], what: impl Fn() -> String) -> Result<()> {
        let Err(error) = self.request(interface, words)? else {
            return Ok(());
        };
        let error = Error::from_io(what(), error);
        Err(match error.kind() {
            ErrorKind::Permission => error.with_hint("run as root"),
            ErrorKind::Unsupported => error.with_why("the driver does not support it"),
            ErrorKind::InvalidInput => error.with_why("the driver refuses it as invalid"),
            ErrorKind::NoSpace => error.with_why("the card has no space for it"),
            _ => error,
        })
    }
}

/// An empty request in `struct ethtool_rxnfc`.
fn nfc(command: u32) -> [u32; NFC_WORDS] {
    let mut words = [0; NFC_WORDS];
    words[0] = command;
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_refuses_each_change_by_name() {
        let ethtool = Ethtool::open().unwrap();
        let errors = [
            ethtool.set_indirection("lo", &[0, 0]).unwrap_err(),
            ethtool.set_ntuple("lo", true).unwrap_err(),
            ethtool.delete_rule("lo", 0).unwrap_err(),
        ];
        for (error, what) in errors.iter().zip(["indirection", "ntuple", "rule 0"]) {
            assert!(error.to_string().contains(what), "{error}");
            assert!(error.to_string().contains("\"lo\""), "{error}");
        }
        assert_eq!(ethtool.rule_table("lo").unwrap(), None);
        assert!(ethtool.set_ntuple("no-such-if", true).is_err());
    }
}
