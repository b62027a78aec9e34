//! The choice of a rule against a flood: what it matches, and what happens to those packets.
//!
//! Packets are dropped if nothing good looks like them: no packet of normal times, no SYN that a
//! client would send, no packet of a connection or a large stream in the flood itself. If without
//! these connections and streams it would not be a flood, it gets a limit that they keep below. If
//! nothing distinguishes the flood, SYNs are challenged where the host can do that, and other
//! packets get the rate from which on it is a flood.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ::filter::derive::{self, Derived, Limits, Packet};
use ::guard::{Limit, RATE_PPS_MAX, Verdict};
use bpf::cbpf::Program;
use bpf::vm_cbpf;
use port::FilterTarget;

use super::flood::{Flood, Rule};
use super::flows::{Shares, is_scan};
use super::key::{Key, Place};
use super::segment::Segment;
use super::step::Reason;
use super::{Detection, clients};
use crate::filter::Expression;

/// Link type of packets that begin with their IP header.
const RAW: u16 = 101;
/// Maximum number of packet groups in one rule, and the minimum share of a group in thousandths:
/// rarer packets in the sample are probably other traffic.
const LIMITS: Limits = Limits {
    group_count_max: 4,
    share_least_permille: 100,
};
/// Minimum share of a flood's packets, in percent, that a rule must match to cover it.
const COVERED_PERCENT: usize = 90;
/// Good traffic gets a limit of its rate times this,
const ROOM: f64 = 2.0;
/// but, unless it is one of connections, at most the rate of a flood times this.
const UNPROVED_MAX: f64 = 10.0;
/// The share of good packets from which on the others may be errors of sampling.
const GOOD_SHARE: f64 = 0.9;
/// Maximum number of ports that are challenged.
const PORTS_MAX: usize = 4;

/// What matches SYNs over IPv4, and over IPv6.
const IPV4_SYN: &str = "tcp[tcpflags] & (tcp-syn|tcp-ack) = tcp-syn";
const IPV6_SYN: &str = "ip6[6] = 6 and ip6[53] & 0x17 = 0x02";

/// A rule before it has a name.
pub(super) struct Chosen {
    pub(super) expression: String,
    pub(super) verdict: Verdict,
    pub(super) reason: Reason,
    pub(super) sampled: usize,
    pub(super) matched: usize,
    /// The rule to prefer if this host answers SYNs for these services.
    pub(super) challenge: Option<(String, Vec<(IpAddr, u16)>)>,
}

/// Compiles an expression for packets that begin with their IP header.
pub(super) fn program(expression: &str) -> Option<Program> {
    let target = FilterTarget {
        link_type: RAW,
        tap: None,
    };
    Expression::new(expression).compile(target).ok().flatten()
}

/// The verdict that lets this many packets a second pass.
fn limit(rate_pps: f64) -> Verdict {
    let rate_pps = (rate_pps.ceil() as u32).clamp(1, RATE_PPS_MAX);
    Limit::new(rate_pps, Limit::burst_of(rate_pps)).map_or(Verdict::Drop, Verdict::Limit)
}

fn is_syn(packet: &Packet<'_>) -> bool {
    Segment::of(packet.bytes).is_some_and(|segment| segment.is_syn())
}

fn count(program: Option<&Program>, packets: &[Packet<'_>]) -> usize {
    let matches = |packet: &&Packet<'_>| {
        let len = packet.bytes.len() as u32;
        packet.tags == 0 && program.is_some_and(|p| vm_cbpf::run(p, packet.bytes, len) != 0)
    };
    packets.iter().filter(matches).count()
}

impl Detection {
    /// The rate from which on the packets of a key are a flood.
    pub(super) fn threshold_pps(&self, key: &Key) -> f64 {
        let subject = super::Subject::Key(key.clone());
        let detector = match key.abnormal() {
            Some(_) => &self.abnormal,
            None => &self.detector,
        };
        let flood_pps = detector.flood_pps(&subject);
        flood_pps.unwrap_or(self.setup.settings.rate_least_pps)
    }

    /// Another flood's rule that matches the packets of a flood.
    pub(super) fn covering(&self, flood: &Flood) -> Option<&Rule> {
        let packets = flood.packets();
        let covers = |rule: &&Rule| {
            let matched = count(rule.program.as_ref(), &packets);
            !flood.is_ruled_by(&rule.name) && matched * 100 >= packets.len() * COVERED_PERCENT
        };
        self.rules.iter().find(covers)
    }

    /// Whether the packets that were collected would be no flood without those that may be good, or
    /// nearly all may be.
    pub(super) fn is_good(&self, flood: &Flood) -> bool {
        let shares = shares(flood);
        let good_share = shares.connections + shares.streams;
        let others_pps = self.offered_pps(flood) * (1.0 - good_share);
        let is_explained = good_share > 0.0 && others_pps <= self.threshold_pps(&flood.key);
        is_explained || good_share >= GOOD_SHARE
    }

    /// Chooses a rule against a flood, from the packets that were collected of it.
    pub(super) fn choose(&self, flood: &Flood) -> Chosen {
        let packets = flood.packets();
        let threshold_pps = self.threshold_pps(&flood.key);
        let offered_pps = self.offered_pps(flood);
        let shares = shares(flood);
        let [good, others] = flood.flows.divide(&packets);
        let room_pps = (ROOM * offered_pps).min(UNPROVED_MAX * threshold_pps);
        if self.is_good(flood) {
            let is_proved = shares.connections >= shares.streams;
            let (verdict, reason) = match is_proved {
                // The tap counts merged segments (GRO), the limit those on the wire.
                true => (
                    limit(ROOM * offered_pps.max(self.wire_pps)),
                    Reason::Connections,
                ),
                false => (limit(room_pps), Reason::Streams),
            };
            let good = if is_proved { packets } else { good };
            return self.spare(flood, &good, verdict, reason);
        }
        let others = if others.is_empty() { packets } else { others };
        if is_scan(&others) {
            let syns: Vec<Packet<'_>> = others.into_iter().filter(is_syn).collect();
            return self.spare(flood, &syns, limit(room_pps), Reason::Scan);
        }
        self.stop(flood, &others, &good, threshold_pps)
    }

    /// Packets of a flood that may be dropped by limits, or pass, per second.
    fn offered_pps(&self, flood: &Flood) -> f64 {
        let own = |rule: &&Rule| flood.is_ruled_by(&rule.name) && rule.is_lenient();
        let dropped_pps: f64 = self.rules.iter().filter(own).map(|r| r.dropped_pps).sum();
        let offered_pps = flood.passed_pps + flood.limited_pps + dropped_pps;
        match flood.rules.is_empty() {
            true => offered_pps.max(flood.first_pps),
            false => offered_pps,
        }
    }

    /// A limit for traffic that may be good.
    fn spare(
        &self,
        flood: &Flood,
        packets: &[Packet<'_>],
        verdict: Verdict,
        reason: Reason,
    ) -> Chosen {
        let derived = match reason {
            // All packets to the destination: a narrower rule would miss the next connections.
            Reason::Connections if flood.key.place().is_some() => None,
            _ => Some(derive::derive(packets, &self.good.packets(), &LIMITS)),
        };
        let derived = derived.map(lasting);
        let expression = derived.as_ref().and_then(|derived| {
            let found = derived.expression();
            found.or_else(|| largest(derived, packets.len()))
        });
        let expression = expression.unwrap_or_else(|| whole(&flood.key, false));
        Chosen {
            matched: count(program(&expression).as_ref(), packets),
            expression,
            verdict,
            reason,
            sampled: flood.sample.len(),
            challenge: None,
        }
    }

    /// A rule against packets of a flood that spares the good ones, if anything distinguishes them.
    fn stop(
        &self,
        flood: &Flood,
        packets: &[Packet<'_>],
        good: &[Packet<'_>],
        threshold_pps: f64,
    ) -> Chosen {
        let syn_count = packets.iter().filter(|packet| is_syn(packet)).count();
        let are_syns = syn_count * 10 >= packets.len() * 9;
        let made = match flood.key {
            Key::HalfOpen(_) => clients::usual(packets),
            Key::Impossible(_) => clients::possible(packets),
            _ if are_syns => clients::usual(packets),
            _ => Vec::new(),
        };
        let mut all = self.good.packets();
        all.extend(self.connected.packets());
        all.extend_from_slice(good);
        let made = made.iter();
        all.extend(made.map(|(tags, bytes)| Packet { tags: *tags, bytes }));
        let sampled = flood.sample.len();
        let apart = |expression: String, matched| Chosen {
            expression,
            verdict: Verdict::Drop,
            reason: Reason::Apart,
            sampled,
            matched,
            challenge: None,
        };
        let derived = lasting(derive::derive(packets, &all, &LIMITS));
        if let Some(expression) = derived.expression() {
            return match joined(flood, packets, &all, &expression) {
                Some((expression, matched)) => apart(expression, matched),
                None => apart(expression, derived.covered_count()),
            };
        }
        let expression = largest(&derived, packets.len());
        let expression = expression.unwrap_or_else(|| whole(&flood.key, are_syns));
        Chosen {
            matched: count(program(&expression).as_ref(), packets),
            expression,
            verdict: limit(threshold_pps),
            reason: match are_syns {
                true => Reason::LikeClients,
                false => Reason::Alike,
            },
            sampled,
            challenge: are_syns.then(|| challenge(packets)).flatten(),
        }
    }
}

/// The shares of good packets in a flood. That of a signature has only SYNs: those count that were
/// completed.
fn shares(flood: &Flood) -> Shares {
    match flood.key {
        Key::Signature(_) if flood.chosen >= 20 => Shares {
            connections: (flood.completed as f64 / flood.chosen as f64).min(1.0),
            streams: 0.0,
        },
        _ => flood.flows.shares(),
    }
}

/// Without groups that only fields which change from run to run distinguish.
fn lasting(mut derived: Derived) -> Derived {
    derived.groups.retain(|group| !group.is_fragile);
    derived
}

/// A rule for the packets of a flood and those that earlier rules were derived from: what has
/// changed in between is not tested. If the sources have changed, those in between are others', and
/// there is none.
fn joined(
    flood: &Flood,
    packets: &[Packet<'_>],
    good: &[Packet<'_>],
    alone: &str,
) -> Option<(String, usize)> {
    let mut all = flood.known.packets();
    if all.is_empty() {
        return None;
    }
    all.extend_from_slice(packets);
    let derived = lasting(derive::derive(&all, good, &LIMITS));
    let expression = derived.expression()?;
    let matched = count(program(&expression).as_ref(), packets);
    let joined = sources(&expression);
    let is_same = joined.is_empty() || joined == sources(alone);
    let is_found = is_same && matched * 100 >= packets.len() * COVERED_PERCENT;
    is_found.then_some((expression, matched))
}

/// The sources that an expression tests.
fn sources(expression: &str) -> BTreeSet<&str> {
    let words = expression.split_whitespace();
    let mut after = words.clone().skip(2);
    let found = words.clone().zip(words.skip(1)).map(|pair| {
        let is_source = matches!(pair, ("src", "net" | "host"));
        after.next().filter(|_| is_source)
    });
    found.flatten().collect()
}

/// What most packets have in common, which good packets have as well.
fn largest(derived: &Derived, packet_count: usize) -> Option<String> {
    let largest = derived.inseparable.iter().max_by_key(|i| i.packet_count)?;
    (largest.packet_count * 2 >= packet_count).then(|| largest.expression())
}

/// An expression for all packets of a key, or all SYNs.
pub(super) fn whole(key: &Key, are_syns: bool) -> String {
    let place = key.place().unwrap_or(Place::Interface);
    let is_v6 = match (key, place) {
        (_, Place::Host(address) | Place::Network(address)) => Some(address.is_ipv6()),
        (Key::Signature(signature), Place::Interface) => Some(signature.starts_with('6')),
        _ => None,
    };
    let place = place.expression();
    match (are_syns || matches!(key, Key::Signature(_)), is_v6) {
        (false, _) => place,
        (true, Some(false)) => format!("({place}) and {IPV4_SYN}"),
        (true, Some(true)) => format!("({place}) and {IPV6_SYN}"),
        (true, None) => format!("({IPV4_SYN}) or ({IPV6_SYN})"),
    }
}

/// The expression of a challenge for the services that SYNs are directed to, if they are few ports
/// of one address.
fn challenge(packets: &[Packet<'_>]) -> Option<(String, Vec<(IpAddr, u16)>)> {
    let flows = packets
        .iter()
        .filter_map(|packet| Segment::of(packet.bytes));
    let services: BTreeSet<(IpAddr, u16)> = flows
        .map(|segment| (segment.flow.destination, segment.flow.ports as u16))
        .take(PORTS_MAX * 1_000)
        .collect();
    let (address, _) = *services.first()?;
    let is_one = services.iter().all(|service| service.0 == address);
    if !is_one || services.len() > PORTS_MAX || packets.iter().any(|packet| packet.tags != 0) {
        return None;
    }
    let ports: Vec<String> = services
        .iter()
        .map(|(_, port)| format!("dst port {port}"))
        .collect();
    let expression = format!("tcp and dst host {address} and ({})", ports.join(" or "));
    Some((expression, services.into_iter().collect()))
}
