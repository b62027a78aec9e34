//! The flows of what floods: good traffic has peaks too.
//!
//! Packets of connections are followed: a handshake that completes, sequence and acknowledgment
//! numbers that advance from segment to segment. Floods of segments with random numbers have none
//! of that. It is no proof: only packets that the host receives are seen, so a forged SYN and a
//! forged ACK whose numbers fit look like a connection. Beside connections there are streams,
//! single flows with a large share of the packets (a backup, a tunnel, a call): forged packets
//! usually come from many addresses and ports. Neither is dropped, and both are limited.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ::filter::derive::Packet;

use super::key::destination;
use super::segment::Segment;

/// Maximum number of flows of each kind that are followed.
const FLOWS_MAX: usize = 2_048;
/// A stream has at least one in this many of the packets, and this many sampled packets.
const STREAM_ONE_IN: u64 = 20;
const STREAM_LEAST: u32 = 8;
/// Number of sampled packets of chosen connections from which their share is known.
const CHOSEN_LEAST: u64 = 20;
/// How far numbers may advance from one sampled segment of a connection to the next, and how far
/// back retransmissions and segments out of order may be: random ones are in there one time in
/// 60, and both of a segment one time in 4,000.
const ADVANCE_MAX: u32 = 1 << 26;
const BACK_MAX: u32 = 1 << 20;
/// Maximum number of sources of a scan.
const SCANNERS_MAX: usize = 4;

const TCP: u8 = 6;

/// Addresses, protocol and ports.
type FlowKey = (IpAddr, IpAddr, u8, u32);

/// A flow.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// Packets that the sampled ones stand for.
    weight: u64,
    /// Sampled packets.
    packets: u32,
    /// Sequence and acknowledgment number of the last segment.
    last: Option<(u32, u32)>,
    /// The sequence number of the SYN.
    syn: Option<u32>,
    /// Whether the handshake was completed.
    is_complete: bool,
    /// Segments after another one, and those of them that follow from it.
    pairs: u32,
    consistent: u32,
    /// Whether any number has changed.
    has_moved: bool,
}

impl Flow {
    fn segment(&mut self, segment: &Segment) {
        if segment.is_syn() {
            self.syn = Some(segment.sequence);
            return;
        }
        if let Some(syn) = self.syn {
            self.is_complete |= segment.has_ack() && is_next(syn, segment.sequence);
        }
        let now = (segment.sequence, segment.acknowledged);
        if let Some(last) = self.last.replace(now) {
            self.pairs += 1;
            self.consistent += u32::from(is_next(last.0, now.0) && is_next(last.1, now.1));
            self.has_moved |= last != now;
        }
    }

    /// Whether its segments are those of a connection.
    fn is_connection(&self) -> bool {
        let is_consistent = self.consistent * 5 >= self.pairs * 4;
        match self.is_complete {
            true => is_consistent,
            false => self.pairs >= 2 && is_consistent && self.has_moved,
        }
    }
}

/// Whether a number comes soon after another one.
fn is_next(last: u32, now: u32) -> bool {
    now.wrapping_sub(last).wrapping_add(BACK_MAX) < ADVANCE_MAX
}

/// The flows of the packets of a flood.
#[derive(Debug, Default)]
pub(super) struct Flows {
    /// Those whose connection is chosen: all their SYNs and ACKs are sampled.
    chosen: BTreeMap<FlowKey, Flow>,
    others: BTreeMap<FlowKey, Flow>,
    /// Packets that the sampled ones stand for: all, and TCP segments.
    weight: u64,
    tcp_weight: u64,
    /// Sampled segments of chosen connections that are followed.
    chosen_packets: u64,
}

/// The share of the packets of a flood, from 0 to 1, that good traffic may have.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Shares {
    /// Packets of TCP connections.
    pub connections: f64,
    /// Packets of other streams.
    pub streams: f64,
}

impl Flows {
    /// Adds a packet that stands for `weight` packets.
    pub(super) fn add(&mut self, ip: &[u8], weight: u64, is_chosen: bool) {
        let segment = Segment::of(ip);
        self.weight += weight;
        if segment.is_some() {
            self.tcp_weight += weight;
        }
        let Some(key) = key(ip, segment.as_ref()) else {
            return;
        };
        let flows = match is_chosen {
            true => &mut self.chosen,
            false => &mut self.others,
        };
        if flows.len() >= FLOWS_MAX && !flows.contains_key(&key) {
            return;
        }
        self.chosen_packets += u64::from(is_chosen && segment.is_some());
        let flow = flows.entry(key).or_default();
        flow.weight += weight;
        flow.packets += 1;
        if let Some(segment) = &segment {
            flow.segment(segment);
        }
    }

    fn all(&self) -> impl Iterator<Item = (&FlowKey, &Flow)> {
        self.chosen.iter().chain(&self.others)
    }

    /// Whether it has so many of the packets that it is a stream.
    fn is_large(&self, flow: &Flow) -> bool {
        flow.packets >= STREAM_LEAST && flow.weight * STREAM_ONE_IN >= self.weight
    }

    /// Whether the packets of this flow may be good.
    fn is_good(&self, key: &FlowKey, flow: &Flow) -> bool {
        match key.2 {
            TCP => flow.is_connection(),
            _ => self.is_large(flow),
        }
    }

    /// The shares of good traffic.
    pub(super) fn shares(&self) -> Shares {
        let (mut streams, mut large, mut large_good) = (0, 0, 0);
        // Large connections are known as they are; of the others, the chosen ones are a sample.
        let (mut chosen, mut chosen_good) = (self.chosen_packets, 0);
        for (key, flow) in self.all() {
            if key.2 != TCP {
                streams += if self.is_large(flow) { flow.weight } else { 0 };
            } else if self.is_large(flow) {
                large += flow.weight;
                large_good += if flow.is_connection() { flow.weight } else { 0 };
            }
        }
        for (key, flow) in &self.chosen {
            let packets = u64::from(flow.packets);
            if key.2 == TCP && self.is_large(flow) {
                chosen = chosen.saturating_sub(packets);
            } else if key.2 == TCP && flow.is_connection() {
                chosen_good += packets;
            }
        }
        let all = self.weight.max(1) as f64;
        let rest = self.tcp_weight.saturating_sub(large) as f64;
        let rest_good = match chosen >= CHOSEN_LEAST {
            true => rest * chosen_good as f64 / chosen as f64,
            false => 0.0,
        };
        Shares {
            connections: (large_good as f64 + rest_good) / all,
            streams: streams as f64 / all,
        }
    }

    /// Divides packets into those of flows that may be good, and the others.
    pub(super) fn divide<'a>(&self, packets: &[Packet<'a>]) -> [Vec<Packet<'a>>; 2] {
        let is_good = |packet: &&Packet<'_>| {
            let segment = Segment::of(packet.bytes);
            let key = key(packet.bytes, segment.as_ref());
            let flow = key.and_then(|key| {
                let flow = self.chosen.get(&key).or(self.others.get(&key))?;
                Some((key, flow))
            });
            flow.is_some_and(|(key, flow)| self.is_good(&key, flow))
        };
        let (good, others): (Vec<_>, Vec<_>) = packets.iter().partition(is_good);
        [good, others]
    }
}

/// The key of the flow of a packet: without ports for what is not TCP or UDP, and for fragments.
fn key(ip: &[u8], segment: Option<&Segment>) -> Option<FlowKey> {
    if let Some(segment) = segment {
        let flow = &segment.flow;
        return Some((flow.source, flow.destination, TCP, flow.ports));
    }
    let (source, protocol, at) = match ip.first()? >> 4 {
        4 => {
            let is_fragment = ip.get(6)? & 0x3f != 0 || *ip.get(7)? != 0;
            let at = (!is_fragment).then_some(usize::from(ip[0] & 0xf) * 4);
            (IpAddr::from(*ip.get(12..)?.first_chunk::<4>()?), ip[9], at)
        }
        _ => {
            let source = IpAddr::from(*ip.get(8..)?.first_chunk::<16>()?);
            (source, ip[6], Some(40))
        }
    };
    // UDP, DCCP, SCTP and UDP-Lite.
    let at = at.filter(|_| matches!(protocol, 17 | 33 | 132 | 136));
    let word = |at: usize| Some(u32::from_be_bytes(*ip.get(at..)?.first_chunk()?));
    let ports = at.and_then(word).unwrap_or_default();
    Some((source, destination(ip)?, protocol, ports))
}

/// Whether most of these packets are SYNs of a few sources, to ports or addresses that hardly one
/// of them has in common with another: those of a scan.
pub(super) fn is_scan(packets: &[Packet<'_>]) -> bool {
    let segments = packets.iter().filter_map(|p| Segment::of(p.bytes));
    let syns: Vec<Segment> = segments.filter(Segment::is_syn).collect();
    let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for syn in &syns {
        *counts.entry(syn.flow.source).or_default() += 1;
    }
    let mut counts: Vec<(IpAddr, usize)> = counts.into_iter().collect();
    counts.sort_unstable_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts.truncate(SCANNERS_MAX);
    let of_few: usize = counts.iter().map(|(_, count)| count).sum();
    let is_of_few = |syn: &&Segment| counts.iter().any(|(source, _)| *source == syn.flow.source);
    let targets: BTreeSet<(IpAddr, u16)> = syns
        .iter()
        .filter(is_of_few)
        .map(|syn| (syn.flow.destination, syn.flow.ports as u16))
        .collect();
    !syns.is_empty() && of_few * 10 >= packets.len() * 9 && targets.len() * 2 >= of_few
}

#[cfg(test)]
mod tests;
