//! Detection of floods on the guarded interface, and rules against them.
//!
//! A tap samples the packets that reach the host, after the XDP program. Packets that a derived
//! rule drops do not reach the tap; the rule's drop counter stands in for them, so the end of the
//! flood is detected.

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

/// Maximum number of normal packets kept; derived rules must not match them.
const GOOD_MAX: usize = 2_000;
/// Maximum number of packets kept per second until they are known to be normal.
const SECOND_MAX: usize = 200;
/// Maximum number of a flood's packets that a rule is derived from.
const FLOOD_MAX: usize = 1_000;
/// Number of a flood's packets from which a rule is derived at once.
const ENOUGH: usize = 200;
/// Number of a flood's packets that suffices after [`ENOUGH_TICKS`] ticks.
const LEAST: usize = 20;
const ENOUGH_TICKS: u32 = 5;
/// Maximum number of concurrent floods with a rule; further ones are only reported.
const FLOODS_MAX: usize = 16;
/// Maximum number of packet groups in one rule, and the minimum share of a group in thousandths:
/// rarer packets in the sample are probably other traffic.
const LIMITS: Limits = Limits {
    group_count_max: 4,
    share_least_permille: 100,
};
/// Minimum share of a flood's packets, in percent, that an existing rule must match to cover it.
const COVERED_PERCENT: usize = 90;

/// Name of a derived rule, before its number.
const RULE_NAME: &str = "detected flood ";

/// Whether detection may give one of its rules this name.
pub(super) fn is_rule_name(name: &str) -> bool {
    let number = name.strip_prefix(RULE_NAME);
    number.is_some_and(|number| number.parse::<u64>().is_ok())
}

/// What the packets of a flood have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// Packets to an address.
    Destination(IpAddr),
    /// SYNs with this p0f signature, its TTL rounded up to the initial TTL.
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

/// The keys under which a packet is counted.
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

/// An event of detection, in this order for one flood.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// A flood begins.
    Begins(Rates),
    /// A rule that matches the flood and no normal packet.
    Rule(Box<Found>),
    /// No rule could be derived against a flood.
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

/// A flood and its rate.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// The flood, as text.
    pub of: String,
    /// The rate, in packets per second.
    pub rate_pps: f64,
    /// The normal rate, in packets per second.
    pub normal_pps: f64,
}

/// A derived rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The flood it is directed against.
    pub of: String,
    /// The rule.
    pub spec: RuleSpec,
    /// Sampled packets of the flood.
    pub sampled: usize,
    /// Number of these that the rule matches.
    pub matched: usize,
}

/// A flood in progress.
struct Flood {
    key: Key,
    sample: Sample,
    state: State,
}

enum State {
    /// Packets have been collected for this number of ticks.
    Sampling(u32),
    /// This rule is directed against it.
    Ruled(String),
    /// No rule is possible.
    GivenUp,
}

impl Flood {
    fn is_ruled_by(&self, rule: &str) -> bool {
        matches!(&self.state, State::Ruled(name) if name == rule)
    }
}

/// The state that detection keeps of a derived rule.
struct Rule {
    name: String,
    program: Option<Program>,
    /// The rule's drop counter when last read.
    counted: u64,
}

/// Learns normal rates, detects floods and derives rules. It does no IO: the caller provides
/// packets, time and counters.
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
    /// Creates a detection without any knowledge of normal rates; time begins at 0.
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

    /// The response to a flood.
    pub fn action(&self) -> Action {
        self.setup.action
    }

    /// Adds a sampled Ethernet packet; `has_outer_tag` if the kernel has stripped a VLAN tag.
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

    /// Ends an interval; called about once per second. `dropped` returns the number of packets that
    /// a rule has dropped so far.
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

    /// Counts the packets that rules have dropped for the floods they are directed against.
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
            return steps.push(no_rule("they have no common destination".into()));
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

    /// Accepts packets as normal once no flood has begun for longer than detection takes.
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

    /// Derives a rule against a flood that has none, once there are enough packets.
    fn look_for_rule(&mut self, at: usize, steps: &mut Vec<Step>) {
        let flood = &mut self.floods[at];
        let State::Sampling(ticks) = &mut flood.state else {
            return;
        };
        *ticks += 1;
        let packets = flood.sample.packets();
        if packets.len() < ENOUGH && (*ticks < ENOUGH_TICKS || packets.len() < LEAST) {
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
            let why = "nothing distinguishes its packets from normal ones".into();
            return steps.push(Step::NoRule { of, why });
        };
        self.found_count += 1;
        let name = format!("{RULE_NAME}{}", self.found_count);
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
        steps.push(Step::Rule(Box::new(Found {
            of,
            spec,
            sampled,
            matched,
        })));
    }

    fn remove_unused(&mut self, steps: &mut Vec<Step>) {
        let floods = &self.floods;
        let is_used = |rule: &Rule| floods.iter().any(|flood| flood.is_ruled_by(&rule.name));
        let unused = self.rules.extract_if(.., |rule| !is_used(rule));
        steps.extend(unused.map(|rule| Step::Remove(rule.name)));
    }

    /// Records that a rule has expired; while its floods last, another one is derived.
    pub fn expired(&mut self, rule: &str) {
        self.leave(rule, || State::Sampling(0));
    }

    /// Records that a rule could not be installed.
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
