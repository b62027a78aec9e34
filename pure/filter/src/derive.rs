//! From packets to a filter: the tightest expression, and the p0f signatures, that cover a flood
//! and none of the good packets.
//!
//! Packets are grouped by what carries them (VLAN tags, IP version, protocol, TCP flags). What all
//! packets of a group share becomes its tests: equal values, few values, address prefixes, ranges
//! of TTL and length, equal bytes of options and payload. Where the tests still match a good
//! packet, values are excluded that only good packets have, the group is split by another field,
//! or, as the last resort, fields are tested that change from run to run: such a group
//! [is fragile](Group::is_fragile). Packets that none of this separates are
//! [reported as inseparable](Inseparable).
//!
//! Times and numbers that count up (sequence numbers, identifications, timestamps) are no property
//! of a flood unless they are constant, so that the result also fits its next packets.

mod group;
mod packet;
mod signature;
mod test;
#[cfg(test)]
mod tests;

pub use group::{Group, Inseparable};
pub use signature::{DerivedSignature, InseparableSignature};
pub use test::Test;

/// A packet of a sample.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// VLAN tags before its IP header.
    pub tags: u8,
    /// Its bytes from the IP header on, as far as they were captured.
    pub bytes: &'a [u8],
}

/// Bounds of a derivation.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Groups and signatures at most.
    pub group_count_max: usize,
    /// Least share of the flood that is a group of its own, in thousandths; what is less is not
    /// covered, but counted.
    pub share_least_permille: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            group_count_max: 16,
            share_least_permille: 10,
        }
    }
}

/// What covers a flood.
#[derive(Clone, Debug)]
pub struct Derived {
    /// Packets of the flood that were looked at.
    pub flood_count: usize,
    /// Groups of the flood, each without a good packet; together they are the expression.
    pub groups: Vec<Group>,
    /// Packets that good packets look like.
    pub inseparable: Vec<Inseparable>,
    /// Packets that are covered by nothing: not IP, or too few of a kind.
    pub other_count: usize,
    /// SYNs of the flood.
    pub syn_count: usize,
    /// Signatures of the SYNs, none of which a good packet has.
    pub signatures: Vec<DerivedSignature>,
    /// Signatures that good packets have, too.
    pub inseparable_signatures: Vec<InseparableSignature>,
}

impl Derived {
    /// The expression that matches the packets of all groups and no good packet, for any link type
    /// with IP; `None` if there is no such group.
    pub fn expression(&self) -> Option<String> {
        group::expression(&self.groups, |group| &group.tests)
    }

    /// As [`Derived::expression`], but with no more tests than distinguish it from good packets.
    pub fn short_expression(&self) -> Option<String> {
        group::expression(&self.groups, |group| &group.telling)
    }

    /// Packets that the groups cover.
    pub fn covered_count(&self) -> usize {
        self.groups.iter().map(|group| group.packet_count).sum()
    }
}

/// Finds what covers the flood and none of the good packets.
///
/// Each packet is read a few hundred times, so pass samples of ten thousand packets at
/// most. Both may be empty.
pub fn derive(flood: &[Packet<'_>], good: &[Packet<'_>], limits: &Limits) -> Derived {
    let least = flood.len() * limits.share_least_permille as usize / 1000;
    let mut derived = Derived {
        flood_count: flood.len(),
        groups: Vec::new(),
        inseparable: Vec::new(),
        other_count: 0,
        syn_count: 0,
        signatures: Vec::new(),
        inseparable_signatures: Vec::new(),
    };
    let count_max = limits.group_count_max;
    group::derive(flood, good, least, count_max, &mut derived);
    signature::derive(flood, good, least, count_max, &mut derived);
    derived
}
