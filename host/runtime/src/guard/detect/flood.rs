//! A flood in progress, and the rules against it.

use std::collections::BTreeMap;

use ::filter::derive::Packet;
use ::guard::{Counters, Verdict};
use bpf::cbpf::Program;
use bpf::vm_cbpf;

use super::flows::Flows;
use super::key::{Key, signature};
use super::step::{FloodTotals, Reason};
use crate::filter::derive::Sample;

/// Maximum number of a flood's packets that a rule is derived from, and of those that earlier rules
/// were derived from.
pub(super) const FLOOD_MAX: usize = 1_000;
const KNOWN_MAX: usize = 400;
/// Minimum share of half-open connections, in percent, of a signature that belongs to the flood.
const SIGNATURE_PERCENT: usize = 5;
/// Number of ticks in which packets may arrive that passed before a new rule was in force.
const GRACE_TICKS: u32 = 2;

/// A rule that detection has derived.
pub(super) struct Rule {
    pub(super) name: String,
    pub(super) expression: String,
    pub(super) program: Option<Program>,
    pub(super) verdict: Verdict,
    pub(super) reason: Reason,
    /// Its counters when last read.
    pub(super) counted: Counters,
    /// Packets that it matched and dropped in the last interval.
    pub(super) hits: u64,
    pub(super) dropped: u64,
    pub(super) dropped_pps: f64,
    /// For how long it has matched nothing.
    pub(super) idle_ns: u64,
    /// Number of ticks since it was derived.
    pub(super) age: u32,
}

impl Rule {
    /// Whether it matches a packet. With VLAN tags that is not known, and assumed.
    pub(super) fn matches(&self, tags: u8, ip: &[u8]) -> bool {
        let program = self.program.as_ref();
        tags != 0 || program.is_some_and(|program| vm_cbpf::run(program, ip, ip.len() as u32) != 0)
    }

    /// Whether packets that match pass to a degree: a limit, or SYNs that the host takes itself.
    pub(super) fn is_lenient(&self) -> bool {
        self.verdict != Verdict::Drop
    }

    /// Whether packets that match may have passed before it was in force.
    fn is_new(&self) -> bool {
        self.age <= GRACE_TICKS
    }

    /// Takes over its counters after an interval; `None` if it is not installed.
    pub(super) fn count(&mut self, now: Option<Counters>, elapsed_ns: u64) {
        if let Some(now) = now {
            let more = |now: u64, before: u64| now.saturating_sub(before);
            self.hits = more(now.packets, self.counted.packets);
            self.dropped = more(
                now.dropped + now.answered,
                self.counted.dropped + self.counted.answered,
            );
            self.dropped_pps = self.dropped as f64 * 1e9 / elapsed_ns.max(1) as f64;
            self.counted = now;
        }
        self.age = self.age.saturating_add(1);
        self.idle_ns = match self.hits {
            0 => self.idle_ns.saturating_add(elapsed_ns),
            _ => 0,
        };
    }
}

/// Packets of an interval.
#[derive(Clone, Copy, Default)]
pub(super) struct Tally {
    /// Those that no rule against the flood matched.
    pub(super) passed: u64,
    /// Those that passed within a limit.
    pub(super) limited: u64,
    /// Those that were dropped or answered.
    pub(super) dropped: u64,
}

/// A flood in progress.
pub(super) struct Flood {
    pub(super) key: Key,
    /// The rate when it began.
    pub(super) first_pps: f64,
    /// Packets that passed; in a flood that its rules cover, those of the last interval.
    pub(super) sample: Sample,
    pub(super) flows: Flows,
    /// Packets that earlier rules were derived from.
    pub(super) known: Sample,
    pub(super) state: State,
    /// Names of the rules against it.
    pub(super) rules: Vec<String>,
    /// SYNs of chosen connections, and those of them that were completed.
    pub(super) chosen: u64,
    pub(super) completed: u64,
    pub(super) tally: Tally,
    /// The last interval, in packets per second.
    pub(super) passed_pps: f64,
    pub(super) limited_pps: f64,
    pub(super) dropped_pps: f64,
    /// How long too much of it has passed.
    pub(super) missed_ns: u64,
    /// Whether that there is no rule was reported.
    pub(super) is_lost: bool,
}

pub(super) enum State {
    /// Packets have been collected for this number of ticks.
    Sampling(u32),
    /// There are rules, and what passes is watched, for this number of ticks.
    Watching(u32),
    /// No rule is possible; another attempt follows after this number of ticks.
    Resting(u32),
}

/// A sampled packet.
#[derive(Clone, Copy)]
pub(super) struct Sampled<'a> {
    pub(super) tags: u8,
    pub(super) ip: &'a [u8],
    /// Number of packets that it stands for.
    pub(super) weight: u64,
    /// Whether all SYNs and ACKs of its connection are sampled.
    pub(super) is_chosen: bool,
}

impl Flood {
    pub(super) fn new(key: Key, rate_pps: f64, sample: Sample) -> Self {
        Flood {
            key,
            first_pps: rate_pps,
            sample,
            flows: Flows::default(),
            known: Sample::new(KNOWN_MAX),
            state: State::Sampling(0),
            rules: Vec::new(),
            chosen: 0,
            completed: 0,
            tally: Tally::default(),
            passed_pps: rate_pps,
            limited_pps: 0.0,
            dropped_pps: 0.0,
            missed_ns: 0,
            is_lost: false,
        }
    }

    /// Adds a packet that has reached the tap, which also gets what rules drop if `sees_dropped`.
    pub(super) fn add(&mut self, packet: &Sampled<'_>, rules: &mut [Rule], sees_dropped: bool) {
        let Sampled {
            tags,
            ip,
            weight,
            is_chosen,
        } = *packet;
        let names = &self.rules;
        let is_hit = |rule: &&mut Rule| names.contains(&rule.name) && rule.matches(tags, ip);
        match rules.iter_mut().find(is_hit) {
            Some(rule) if rule.is_lenient() => {
                rule.hits += if sees_dropped { weight } else { 0 };
                self.tally.limited += weight;
            }
            Some(rule) if sees_dropped => {
                rule.hits += weight;
                self.tally.dropped += weight;
                return;
            }
            Some(rule) if rule.is_new() => return,
            _ => self.tally.passed += weight,
        }
        self.chosen += u64::from(is_chosen);
        self.sample.add(tags, ip);
        self.flows.add(ip, weight, is_chosen);
    }

    /// Adds a SYN that no ACK has followed: it has passed some time ago, maybe before a rule that
    /// matches it was in force.
    pub(super) fn add_late(&mut self, packet: &Sampled<'_>, rules: &[Rule]) {
        let names = &self.rules;
        let is_hit =
            |rule: &&Rule| names.contains(&rule.name) && rule.matches(packet.tags, packet.ip);
        match rules.iter().find(is_hit) {
            Some(rule) if rule.is_lenient() => self.tally.limited += packet.weight,
            Some(_) => return,
            None => self.tally.passed += packet.weight,
        }
        self.sample.add(packet.tags, packet.ip);
    }

    /// Ends an interval.
    pub(super) fn settle(&mut self, elapsed_ns: u64) {
        let tally = std::mem::take(&mut self.tally);
        let per_second = |packets: u64| packets as f64 * 1e9 / elapsed_ns.max(1) as f64;
        self.passed_pps = per_second(tally.passed);
        self.limited_pps = per_second(tally.limited);
        self.dropped_pps = per_second(tally.dropped);
    }

    /// Starts to collect packets anew.
    pub(super) fn forget_sample(&mut self) {
        self.sample = Sample::new(FLOOD_MAX);
        self.flows = Flows::default();
        (self.chosen, self.completed) = (0, 0);
    }

    /// The packets collected. Among half-open connections there are always some of clients: SYNs
    /// with a signature that is rare among them do not count.
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
        self.rules.iter().any(|name| name == rule)
    }

    /// Its rates, and the share of it that its rules stop.
    pub(super) fn totals(&self, normal_pps: f64, rules: &[Rule]) -> FloodTotals {
        let rate_pps = self.passed_pps + self.limited_pps + self.dropped_pps;
        let flood_pps = (rate_pps - normal_pps).max(self.dropped_pps);
        let covered = match flood_pps > 0.0 {
            true => self.dropped_pps / flood_pps,
            false => 0.0,
        };
        let own = rules.iter().filter(|rule| self.is_ruled_by(&rule.name));
        FloodTotals {
            of: self.key.to_string(),
            rate_pps: rate_pps as u64,
            passed_pps: (self.passed_pps + self.limited_pps) as u64,
            dropped_pps: self.dropped_pps as u64,
            covered_percent: (covered * 100.0).round() as u64,
            rules: own.map(|rule| (rule.name.clone(), rule.verdict)).collect(),
        }
    }
}
