//! Derives filters from packets: the tightest expression, and the p0f signatures, that match a
//! flood and none of the good packets.
//!
//! Packets are grouped by encapsulation (VLAN tags, IP version, protocol, TCP flags). What all
//! packets of a group have in common becomes its tests: equal values, few values, address prefixes,
//! ranges of TTL and length, equal bytes of options and payload.
//!
//! A sample of a flood contains good packets as well, up to one in five, like those given as good
//! or of other clients. So if the tests of a group match a good packet, the fields are searched for
//! those that separate most of the flood from the good packets, alone or a few together (`search`);
//! what they leave out is looked at again (`cover`). Packets that are not more frequent than good
//! ones in the sample would be, and differ from good ones by addresses, ports, lengths or TTL only,
//! are [uncertain](Derived::uncertain) and not covered. As a last resort, fields that change from
//! run to run are tested, and addresses of good packets are excluded: such a group [is
//! fragile](Group::is_fragile). Packets that none of this separates are [reported as
//! inseparable](Inseparable).
//!
//! Times and counters (sequence numbers, identifications, timestamps) do not characterize a flood
//! unless they are constant, so the result also matches the flood's next packets.

mod bytes;
mod cover;
mod group;
mod packet;
mod prefixes;
mod propose;
mod search;
mod signature;
mod table;
mod test;
#[cfg(test)]
mod tests;
mod trim;

pub use group::{Group, Inseparable};
pub use signature::{DerivedSignature, InseparableSignature};
pub use test::Test;

/// A sample packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Number of VLAN tags before the IP header.
    pub tags: u8,
    /// Captured bytes, from the IP header on.
    pub bytes: &'a [u8],
}

/// Limits of a derivation.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of groups, and of signatures.
    pub group_count_max: usize,
    /// Minimum share of the flood for a group, in thousandths; packets of smaller groups are
    /// counted but not covered.
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

/// Result of a derivation.
#[derive(Clone, Debug)]
pub struct Derived {
    /// Number of flood packets examined.
    pub flood_count: usize,
    /// Groups of the flood that match no good packet; joined, they are the expression.
    pub groups: Vec<Group>,
    /// Flood packets that cannot be distinguished from good ones.
    pub inseparable: Vec<Inseparable>,
    /// Groups that may be good packets in the sample of the flood: the expression does not match
    /// them.
    pub uncertain: Vec<Group>,
    /// Packets that nothing covers: not IP, or too few of a kind.
    pub other_count: usize,
    /// SYNs in the flood.
    pub syn_count: usize,
    /// Signatures of the SYNs that no good packet has.
    pub signatures: Vec<DerivedSignature>,
    /// Signatures that good packets have as well.
    pub inseparable_signatures: Vec<InseparableSignature>,
}

impl Derived {
    /// The expression that matches the packets of all groups and no good packet, for any link type
    /// with IP; `None` without such a group.
    pub fn expression(&self) -> Option<String> {
        group::expression(&self.groups, |group| &group.tests)
    }

    /// Like [`Derived::expression`], with only as many tests as needed to exclude good packets.
    pub fn short_expression(&self) -> Option<String> {
        group::expression(&self.groups, |group| &group.telling)
    }

    /// Number of packets that the groups cover.
    pub fn covered_count(&self) -> usize {
        self.groups.iter().map(|group| group.packet_count).sum()
    }

    /// Share of the flood that the groups cover, from 0 to 1.
    pub fn covered_share(&self) -> f64 {
        self.covered_count() as f64 / self.flood_count.max(1) as f64
    }

    /// By how many fields at least each good packet differs from the packets of every group; `None`
    /// if there are no good packets of the same protocols. See [`Group::nearest_good`].
    pub fn nearest_good(&self) -> Option<usize> {
        self.groups
            .iter()
            .filter_map(|group| group.nearest_good)
            .min()
    }
}

/// Derives filters that match the flood and none of the good packets.
///
/// Each packet is read some thousand times, and takes a few kilobytes meanwhile: pass samples of at
/// most ten thousand packets. Both may be empty.
pub fn derive(flood: &[Packet<'_>], good: &[Packet<'_>], limits: &Limits) -> Derived {
    let least = flood.len() * limits.share_least_permille as usize / 1000;
    let mut derived = Derived {
        flood_count: flood.len(),
        groups: Vec::new(),
        inseparable: Vec::new(),
        uncertain: Vec::new(),
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
