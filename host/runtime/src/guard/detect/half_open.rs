//! Half-open connections: SYNs of the chosen connections that no ACK follows.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ::guard::detect::Handshakes;

use super::key::Place;
use super::segment::{Flow, Segment};
use crate::filter::derive::Sample;

/// Maximum number of SYNs that wait for their ACK.
const WAITING_MAX: usize = 65_536;
/// Maximum number of abandoned SYNs kept of an interval.
const KEPT_MAX: usize = 1_000;
/// Number of intervals of which abandoned SYNs are kept.
const INTERVALS: usize = 4;
/// The share of SYNs that are abandoned in normal times is less than this: refused and scanned
/// ports, clients that have gone.
const NORMAL_SHARE: f64 = 0.125;

/// The SYN of a connection.
pub(super) struct Syn {
    /// The sequence number after it.
    next: u32,
    destination: IpAddr,
    pub(super) tags: u8,
    pub(super) ip: Vec<u8>,
}

/// SYNs of an interval to one destination.
#[derive(Clone, Copy, Default)]
struct Tally {
    abandoned: u32,
    completed: u32,
}

/// How many bytes a client may have sent by the first of its segments that was sampled.
const SENT_MAX: u32 = 1 << 20;

/// Follows handshakes.
pub(super) struct HalfOpen {
    handshakes: Handshakes<Flow, Syn>,
    tallies: BTreeMap<IpAddr, Tally>,
    /// Abandoned SYNs of the last intervals, the latest last.
    kept: Vec<Sample>,
}

impl HalfOpen {
    pub(super) fn new() -> Self {
        HalfOpen {
            handshakes: Handshakes::new(WAITING_MAX),
            tallies: BTreeMap::new(),
            kept: Vec::new(),
        }
    }

    pub(super) fn syn(&mut self, segment: &Segment, tags: u8, ip: &[u8]) {
        self.handshakes.syn(segment.flow, || Syn {
            next: segment.sequence.wrapping_add(1),
            destination: segment.flow.destination,
            tags,
            ip: ip.to_vec(),
        });
    }

    /// Returns the SYN of a connection that is now complete.
    ///
    /// Its numbers continue those of the SYN (RFC 9293, section 3.5): a host also acknowledges,
    /// with the numbers of a connection that it has closed, what answers a forged SYN from one of
    /// its ports.
    pub(super) fn ack(&mut self, segment: &Segment) -> Option<Syn> {
        let syn = self.handshakes.ack(&segment.flow)?;
        if segment.sequence.wrapping_sub(syn.next) > SENT_MAX {
            self.handshakes.syn(segment.flow, || syn);
            return None;
        }
        self.tallies.entry(syn.destination).or_default().completed += 1;
        Some(syn)
    }

    /// Ends an interval in which this share of the sampled packets was lost, and with them ACKs.
    /// Returns the number of abandoned SYNs for each address, network and all addresses, where they
    /// are more than normal. What belongs to one of the `flooded` places does not count for a wider
    /// one.
    pub(super) fn tick(&mut self, lost_share: f64, flooded: &[Place]) -> Vec<(Place, u32)> {
        let mut kept = Sample::new(KEPT_MAX);
        for syn in self.handshakes.tick() {
            self.tallies.entry(syn.destination).or_default().abandoned += 1;
            kept.add(syn.tags, &syn.ip);
        }
        self.kept.push(kept);
        let excess_count = self.kept.len().saturating_sub(INTERVALS);
        self.kept.drain(..excess_count);
        let share_min = NORMAL_SHARE + lost_share;
        let mut places: BTreeMap<Place, Tally> = BTreeMap::new();
        for (address, tally) in std::mem::take(&mut self.tallies) {
            for place in Place::all_of(address) {
                let sum = places.entry(place).or_default();
                sum.abandoned += tally.abandoned;
                sum.completed += tally.completed;
                if flooded.contains(&place) {
                    break;
                }
            }
        }
        let is_excess = |tally: &Tally| {
            let all = f64::from(tally.abandoned) + f64::from(tally.completed);
            f64::from(tally.abandoned) > all * share_min
        };
        let excess = places.into_iter().filter(|(_, tally)| is_excess(tally));
        excess
            .map(|(place, tally)| (place, tally.abandoned))
            .collect()
    }

    /// Abandoned SYNs of the last interval, or of all that are kept.
    pub(super) fn abandoned(&self, is_last: bool) -> impl Iterator<Item = (u8, &[u8])> {
        let first = match is_last {
            true => self.kept.len().saturating_sub(1),
            false => 0,
        };
        self.kept[first..].iter().flat_map(Sample::iter)
    }
}
