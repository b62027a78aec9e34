//! A uniform sample of the packets of files.

use ::filter::derive::Packet;
use ::filter::p0f::Signature;
use traffic::Rng;

use super::{Count, has_one};

/// Bytes kept of a packet: the longest headers, and the bytes compared after them.
const BYTES_MAX: usize = 256;
/// The seed: the same files give the same filter.
const SEED: u64 = 0xba5e_11e5;

/// A uniform sample of all packets added.
pub(crate) struct Sample {
    max: usize,
    /// Number of packets added.
    pub(super) seen: u64,
    /// Only SYNs with one of these signatures are added.
    pub(super) only: Option<Vec<Signature>>,
    packets: Vec<(u8, Vec<u8>)>,
    rng: Rng,
}

impl Sample {
    pub(crate) fn new(max: usize) -> Self {
        Sample {
            max,
            seen: 0,
            only: None,
            packets: Vec::new(),
            rng: Rng::new(SEED),
        }
    }

    /// Adds a packet that starts with its IP header; empty if it is not IP.
    pub(crate) fn add(&mut self, tags: u8, ip: &[u8]) {
        if self.only.as_ref().is_some_and(|only| !has_one(only, ip)) {
            return;
        }
        let kept = &ip[..ip.len().min(BYTES_MAX)];
        self.seen += 1;
        if self.packets.len() < self.max {
            return self.packets.push((tags, kept.to_vec()));
        }
        let at = self.rng.up_to(u128::from(self.seen - 1)) as usize;
        if let Some(packet) = self.packets.get_mut(at) {
            *packet = (tags, kept.to_vec());
        }
    }

    /// Adds all packets of another sample, without a limit.
    pub(super) fn join(&mut self, other: Sample) {
        self.packets.extend(other.packets);
    }

    /// Number of packets kept.
    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Whether the sample has all packets.
    pub(super) fn is_whole(&self) -> bool {
        self.seen <= self.packets.len() as u64
    }

    pub(crate) fn packets(&self) -> Vec<Packet<'_>> {
        let packet = |(tags, bytes)| Packet { tags, bytes };
        self.iter().map(packet).collect()
    }

    /// The packets, each with the number of its VLAN tags.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u8, &[u8])> {
        self.packets.iter().map(|(tags, bytes)| (*tags, &bytes[..]))
    }

    pub(super) fn count(&self) -> Count {
        Count {
            packets: self.seen,
            sampled: self.packets.len() as u64,
            matched: None,
        }
    }
}
