//! A flood in progress.

use std::collections::BTreeMap;

use ::filter::derive::Packet;
use ::guard::detect::Settings;

use super::key::{Key, signature};
use crate::filter::derive::Sample;

/// Number of ticks after which a rule that no longer matches is replaced.
const MISSED_TICKS: u32 = 3;
/// Minimum share of half-open connections, in percent, of a signature that belongs to the flood.
const SIGNATURE_PERCENT: usize = 5;

/// A flood in progress.
pub(super) struct Flood {
    pub(super) key: Key,
    pub(super) sample: Sample,
    pub(super) state: State,
    /// Number of ticks in which too many of its packets did not match its rule.
    pub(super) missed_ticks: u32,
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

    /// Records how many of its packets passed its rule since the last tick. If they are too many
    /// for some time, another rule is derived, from the packets known so far and those that passed:
    /// what they do not have in common is not tested again.
    pub(super) fn missed(&mut self, packets: u64, settings: &Settings) {
        self.missed_ticks = match packets as f64 > settings.rate_least_pps {
            true => self.missed_ticks + 1,
            false => 0,
        };
        if self.missed_ticks >= MISSED_TICKS {
            self.missed_ticks = 0;
            self.state = State::Sampling(0);
        }
    }

    pub(super) fn is_ruled_by(&self, rule: &str) -> bool {
        matches!(&self.state, State::Ruled(name) if name == rule)
    }
}
