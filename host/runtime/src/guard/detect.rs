//! Detection of floods on the guarded interface, and rules against them.
//!
//! A tap samples the packets that reach the host, after the XDP program. Packets that a detected
//! rule drops do not reach the tap; the rule's own count stands for them, so the end of the flood
//! is seen there.

mod act;
mod setup;
mod tap;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;

use ::filter::derive::{self, Limits};
use ::filter::p0f::{Handshake, raw_signature};
use ::guard::Verdict;
use ::guard::detect::{Detector, Event, Subject};
use bpf::cbpf::Program;
use bpf::vm_cbpf;
use port::FilterTarget;

pub(super) use act::Detecting;
pub use setup::{Action, DetectSetup};
pub use tap::{Tap, TapCounts};

use super::RuleSpec;
use crate::filter::Expression;
use crate::filter::derive::{Sample, ip_packet};

/// Link type of packets that begin with their IP header.
const RAW: u16 = 101;
const ETHERNET: u16 = 1;

/// Normal packets that a rule must not match, at most.
const GOOD_MAX: usize = 2_000;
/// Packets sampled of one second, before it is known whether they are normal.
const SECOND_MAX: usize = 200;
/// Packets of a flood that a rule is derived from, at most.
const FLOOD_MAX: usize = 1_000;
/// With this many packets of a flood the rule is derived at once.
const ENOUGH: usize = 200;
/// After [`PATIENCE`] ticks, this many will do.
const LEAST: usize = 20;
const PATIENCE: u32 = 5;
/// Floods at a time; more are reported, and get no rule.
const FLOODS_MAX: usize = 16;
/// Groups of packets in one rule, and the least share of each in thousandths: what is rarer in
/// the flood's packets is likely to be other traffic.
const LIMITS: Limits = Limits {
    group_count_max: 4,
    share_least_permille: 100,
};
/// Share of a flood's packets, in percent, from which on a rule covers it.
const COVERED_PERCENT: usize = 90;

/// What a flood is of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// Packets to an address.
    Destination(IpAddr),
    /// SYNs with a signature, as p0f prints it, at no distance.
    Signature(String),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Destination(address) => write!(f, "packets to {address}"),
            Self::Signature(signature) => write!(f, "SYNs {signature}"),
        }
    }
}

/// The keys that a packet counts for.
fn keys(ip: &[u8]) -> [Option<Key>; 2] {
    let destination = match ip.first().map(|byte| byte >> 4) {
        Some(4) => ip
            .get(16..20)
            .and_then(|b| <[u8; 4]>::try_from(b).ok())
            .map(IpAddr::from),
        Some(6) => ip
            .get(24..40)
            .and_then(|b| <[u8; 16]>::try_from(b).ok())
            .map(IpAddr::from),
        _ => None,
    };
    let syn = raw_signature(ip).filter(|raw| raw.handshake == Handshake::Syn);
    let signature = syn.map(|mut raw| {
        raw.ttl = raw.initial_ttl();
        raw.to_string()
    });
    [
        destination.map(Key::Destination),
        signature.map(Key::Signature),
    ]
}

/// What detection reports, in this order for one flood.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// A flood begins.
    Begins(Rates),
    /// A rule that matches the flood and no normal packet.
    Rule(Found),
    /// There is no rule against a flood.
    NoRule {
        /// The flood.
        of: String,
        /// Why.
        why: String,
    },
    /// A flood is over.
    Over(Rates),
    /// All floods that the rule of this name is against are over.
    Remove(String),
}

/// Of what a flood is, with its rate.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// Of what.
    pub of: String,
    /// The rate, in packets a second.
    pub rate_pps: f64,
    /// What is normal.
    pub normal_pps: f64,
}

/// A rule that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The flood that it is against.
    pub of: String,
    /// The rule.
    pub spec: RuleSpec,
    /// Packets of the flood that were looked at.
    pub sampled: usize,
    /// How many of these it matches.
    pub matched: usize,
}

/// A flood that is not over.
struct Flood {
    key: Key,
    sample: Sample,
    state: State,
}

enum State {
    /// Packets are gathered, for so many ticks.
    Sampling(u32),
    /// The rule of this name is against it.
    Ruled(String),
    /// It gets no rule.
    GivenUp,
}

impl Flood {
    fn is_ruled_by(&self, rule: &str) -> bool {
        matches!(&self.state, State::Ruled(name) if name == rule)
    }
}

/// A rule that was found, as far as it concerns detection.
struct Rule {
    name: String,
    program: Option<Program>,
    /// Packets that it has dropped, as last read.
    counted: u64,
}

/// Learns, detects and derives. It does no IO: packets, time and counts are the caller's.
pub struct Detection {
    setup: DetectSetup,
    detector: Detector<Key>,
    /// Samples of the last seconds, the latest last.
    recent: VecDeque<Sample>,
    good: Sample,
    floods: Vec<Flood>,
    rules: Vec<Rule>,
    found_count: u32,
}

impl Detection {
    /// Nothing is known yet; time begins at 0.
    pub fn new(setup: DetectSetup) -> Self {
        Detection {
            detector: Detector::new(setup.settings, 0),
            recent: VecDeque::from([Sample::new(SECOND_MAX)]),
            good: Sample::new(GOOD_MAX),
            floods: Vec::new(),
            rules: Vec::new(),
            found_count: 0,
            setup,
        }
    }

    /// What is done about floods.
    pub fn action(&self) -> Action {
        self.setup.action
    }

    /// Takes a sampled Ethernet packet, with a tag that the kernel has taken out of it or not.
    pub fn packet(&mut self, bytes: &[u8], has_outer_tag: bool) {
        let Some((tags, ip)) = ip_packet(ETHERNET, bytes) else {
            return;
        };
        let tags = tags + u8::from(has_outer_tag);
        let keys = keys(ip);
        let mut is_of_flood = false;
        for key in keys.iter().flatten() {
            self.detector.add(key, self.setup.sample.into());
            for flood in self.floods.iter_mut().filter(|flood| flood.key == *key) {
                flood.sample.add(tags, ip);
                is_of_flood = true;
            }
        }
        if !is_of_flood && let Some(second) = self.recent.back_mut() {
            second.add(tags, ip);
        }
    }

    /// Ends a second: to be called about once in one. `dropped` has the packets that a rule has
    /// dropped so far.
    pub fn tick(&mut self, now_ns: u64, dropped: impl Fn(&str) -> u64) -> Vec<Step> {
        self.count_dropped(dropped);
        let mut steps = Vec::new();
        for event in self.detector.tick(now_ns) {
            self.event(event, &mut steps);
        }
        self.settle_recent();
        for at in 0..self.floods.len() {
            self.look_for_rule(at, &mut steps);
        }
        self.remove_unused(&mut steps);
        steps
    }

    /// Counts what rules have dropped for the floods that they are against.
    fn count_dropped(&mut self, dropped: impl Fn(&str) -> u64) {
        for rule in &mut self.rules {
            let now = dropped(&rule.name);
            let more = now.saturating_sub(rule.counted);
            rule.counted = now;
            for flood in self.floods.iter().filter(|f| f.is_ruled_by(&rule.name)) {
                self.detector.add(&flood.key, more);
            }
        }
    }

    fn event(&mut self, event: Event<Key>, steps: &mut Vec<Step>) {
        let rates = Rates {
            of: match &event.subject {
                Subject::Key(key) => key.to_string(),
                Subject::Rest => "packets to other destinations".to_owned(),
            },
            rate_pps: event.rate_pps,
            normal_pps: event.normal_pps,
        };
        let of = rates.of.clone();
        if !event.begins {
            steps.push(Step::Over(rates));
            if let Subject::Key(key) = event.subject {
                self.floods.retain(|flood| flood.key != key);
            }
            return;
        }
        steps.push(Step::Begins(rates));
        let no_rule = |why: String| Step::NoRule {
            of: of.clone(),
            why,
        };
        let Subject::Key(key) = event.subject else {
            return steps.push(no_rule("they have no destination in common".into()));
        };
        if self.floods.len() == FLOODS_MAX {
            return steps.push(no_rule(format!("there are {FLOODS_MAX} floods already")));
        }
        self.floods.push(Flood {
            key,
            sample: Sample::new(FLOOD_MAX),
            state: State::Sampling(0),
        });
    }

    /// Packets become normal ones when no flood began for longer than one takes to be recognized.
    fn settle_recent(&mut self) {
        let hold = self.setup.settings.begin_ns.div_ceil(1_000_000_000) as usize + 2;
        if !self.floods.is_empty() {
            self.recent.clear();
        }
        while self.recent.len() > hold {
            let second = self.recent.pop_front();
            for packet in second.iter().flat_map(Sample::packets) {
                self.good.add(packet.tags, packet.bytes);
            }
        }
        self.recent.push_back(Sample::new(SECOND_MAX));
    }

    /// Derives a rule against a flood that has none, once there are packets enough.
    fn look_for_rule(&mut self, at: usize, steps: &mut Vec<Step>) {
        let flood = &mut self.floods[at];
        let State::Sampling(ticks) = &mut flood.state else {
            return;
        };
        *ticks += 1;
        let packets = flood.sample.packets();
        if packets.len() < ENOUGH && (*ticks < PATIENCE || packets.len() < LEAST) {
            return;
        }
        let covers = |rule: &&Rule| {
            let program = rule.program.as_ref();
            let matches = |packet: &&derive::Packet<'_>| {
                let run = |program| vm_cbpf::run(program, packet.bytes, packet.bytes.len() as u32);
                packet.tags == 0 && program.is_some_and(|program| run(program) != 0)
            };
            packets.iter().filter(matches).count() * 100 >= packets.len() * COVERED_PERCENT
        };
        if let Some(rule) = self.rules.iter().find(covers) {
            flood.state = State::Ruled(rule.name.clone());
            return;
        }
        let of = flood.key.to_string();
        let mut derived = derive::derive(&packets, &self.good.packets(), &LIMITS);
        derived.groups.retain(|group| !group.is_fragile);
        let Some(expression) = derived.expression() else {
            flood.state = State::GivenUp;
            let why = "nothing separates them from normal packets".into();
            return steps.push(Step::NoRule { of, why });
        };
        self.found_count += 1;
        let name = format!("detected flood {}", self.found_count);
        flood.state = State::Ruled(name.clone());
        let matched = derived.covered_count();
        let sampled = packets.len();
        let target = FilterTarget {
            link_type: RAW,
            tap: None,
        };
        self.rules.push(Rule {
            name: name.clone(),
            program: Expression::new(&expression).compile(target).ok().flatten(),
            counted: 0,
        });
        let spec = RuleSpec {
            name,
            expires_after: Some(self.setup.expires_after),
            ..RuleSpec::new(&expression, Verdict::Drop)
        };
        steps.push(Step::Rule(Found {
            of,
            spec,
            sampled,
            matched,
        }));
    }

    fn remove_unused(&mut self, steps: &mut Vec<Step>) {
        let floods = &self.floods;
        let is_used = |rule: &Rule| floods.iter().any(|flood| flood.is_ruled_by(&rule.name));
        let unused = self.rules.extract_if(.., |rule| !is_used(rule));
        steps.extend(unused.map(|rule| Step::Remove(rule.name)));
    }

    /// A rule has expired: while its floods last, another one is looked for.
    pub fn expired(&mut self, rule: &str) {
        self.leave(rule, || State::Sampling(0));
    }

    /// A rule could not be installed.
    pub fn refused(&mut self, rule: &str) {
        self.leave(rule, || State::GivenUp);
    }

    fn leave(&mut self, rule: &str, state: impl Fn() -> State) {
        self.rules.retain(|other| other.name != rule);
        for flood in self
            .floods
            .iter_mut()
            .filter(|flood| flood.is_ruled_by(rule))
        {
            flood.state = state();
            flood.sample = Sample::new(FLOOD_MAX);
        }
    }
}
