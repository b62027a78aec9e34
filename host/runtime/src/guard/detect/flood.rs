//! A flood in progress.

use std::collections::BTreeMap;

use ::filter::derive::Packet;

use super::key::{Key, signature};
use crate::filter::derive::Sample;

/// Minimum share of half-open connections, in percent, of a signature that belongs to the flood.
const SIGNATURE_PERCENT: usize = 5;

/// A flood in progress.
pub(super) struct Flood {
    pub(super) key: Key,
    pub(super) sample: Sample,
    pub(super) state: State,
}

pub(super) enum State {
    /// Packets have been collected for this number of ticks.
    Sampling(u32),
    /// This rule is directed against it.
    Ruled(String),
    /// No rule is possible.
    GivenUp,
}

impl Flood {
    /// Its packets. Among half-open connections there are always some of clients: SYNs with a
    /// signature that is rare among them do not count.
    pub(super) fn packets(&self) -> Vec<Packet<'_>> {
        let mut packets = self.sample.packets();
        if let Key::HalfOpen(_) = self.key {
            let mut counts: BTreeMap<Option<Key>, usize> = BTreeMap::new();
            for packet in &packets {
                *counts.entry(signature(packet.bytes)).or_default() += 1;
            }
            let all = packets.len();
            let is_rare = |count: &usize| count * 100 < all * SIGNATURE_PERCENT;
            if !counts.values().all(is_rare) {
                packets.retain(|packet| !is_rare(&counts[&signature(packet.bytes)]));
            }
        }
        packets
    }

    pub(super) fn is_ruled_by(&self, rule: &str) -> bool {
        matches!(&self.state, State::Ruled(name) if name == rule)
    }
}
