//! Detection of floods on the guarded interface, and rules against them.
//!
//! A tap samples the packets that reach the host, after the XDP program. Packets that a derived
//! rule drops do not reach the tap; the rule's drop counter stands in for them, so the end of the
//! flood is detected.
//!
//! What is normal has to be learned first, and a flood that is already there would be learned, too.
//! So packets that cannot be normal are counted apart, from the start on: SYNs that no ACK follows,
//! and impossible TCP flags.

mod act;
mod clients;
mod flood;
mod half_open;
mod key;
mod segment;
mod setup;
mod step;
mod tap;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use ::filter::derive::{self, Limits, Packet};
use ::guard::Verdict;
use ::guard::detect::{Detector, Event, Settings, Subject};
use bpf::cbpf::Program;
use bpf::vm_cbpf;
use port::FilterTarget;

pub(super) use act::Detecting;
use flood::{Flood, State};
use half_open::HalfOpen;
pub use key::Key;
use key::{destination, keys, signature};
pub use segment::FlowChoice;
use segment::Segment;
pub use setup::{Action, DetectSetup};
pub use step::{Found, Learned, Normal, Rates, Step};
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

/// Why there is no rule.
const NOTHING: &str = "nothing distinguishes its packets from normal ones";
const LIKE_CLIENTS: &str = "nothing distinguishes its SYNs from those of usual clients; \
                            --challenge answers them with SYN cookies";

/// Name of a derived rule, before its number.
const RULE_NAME: &str = "detected flood ";

/// Whether detection may give one of its rules this name.
pub(super) fn is_rule_name(name: &str) -> bool {
    let number = name.strip_prefix(RULE_NAME);
    number.is_some_and(|number| number.parse::<u64>().is_ok())
}

/// The state that detection keeps of a derived rule.
struct Rule {
    name: String,
    program: Option<Program>,
    /// The rule's drop counter when last read.
    counted: u64,
}

impl Rule {
    /// Whether it matches a packet. With VLAN tags that is not known, and assumed.
    fn matches(&self, tags: u8, ip: &[u8]) -> bool {
        let program = self.program.as_ref();
        tags != 0 || program.is_some_and(|program| vm_cbpf::run(program, ip, ip.len() as u32) != 0)
    }
}

/// Learns normal rates, detects floods and derives rules. It does no IO: the caller provides
/// packets, time and counters.
pub struct Detection {
    setup: DetectSetup,
    choice: FlowChoice,
    detector: Detector<Key>,
    /// Counts what cannot be normal. There is nothing to be learned first.
    abnormal: Detector<Key>,
    half_open: HalfOpen,
    /// The share of the sampled packets that was lost since the last tick.
    lost_share: f64,
    /// Samples of the last seconds, the latest last.
    recent: VecDeque<Sample>,
    good: Sample,
    /// SYNs of complete connections.
    connected: Sample,
    floods: Vec<Flood>,
    /// Floods of what cannot be normal that are not reported: a rule is against them already.
    unreported: Vec<Key>,
    rules: Vec<Rule>,
    found_count: u32,
    has_learned: bool,
}

impl Detection {
    /// Creates a detection without any knowledge of normal rates; time begins at 0. `choice` is
    /// that of the tap.
    pub fn new(setup: DetectSetup, choice: FlowChoice) -> Self {
        let at_once = Settings {
            warm_up_ns: 0,
            ..setup.settings
        };
        Detection {
            choice,
            detector: Detector::new(setup.settings, 0),
            abnormal: Detector::new(at_once, 0),
            half_open: HalfOpen::new(),
            lost_share: 0.0,
            recent: VecDeque::from([Sample::new(SECOND_MAX)]),
            good: Sample::new(GOOD_MAX),
            connected: Sample::new(GOOD_MAX / 2),
            floods: Vec::new(),
            unreported: Vec::new(),
            rules: Vec::new(),
            found_count: 0,
            has_learned: setup.settings.warm_up_ns == 0,
            setup,
        }
    }

    /// The response to a flood.
    pub fn action(&self) -> Action {
        self.setup.action
    }

    /// Adds a sampled Ethernet packet; `has_outer_tag` if the kernel has stripped a VLAN tag.
    pub fn packet(&mut self, bytes: &[u8], has_outer_tag: bool) {
        let Some((inner_tags, ip)) = ip_packet(ETHERNET, bytes) else {
            return;
        };
        let tags = inner_tags + u8::from(has_outer_tag);
        // Packets with a tag among their bytes are sampled at random only.
        let segment = Segment::of(ip);
        let followed = segment.filter(|_| inner_tags == 0);
        let is_chosen = followed.is_some_and(|s| self.choice.has_packet(&s, bytes.len()));
        let weight = match is_chosen {
            true => 1,
            false => u64::from(self.choice.one_in()),
        };
        if segment.is_some_and(|segment| segment.is_impossible()) {
            return self.impossible(tags, ip, weight);
        }
        let is_syn = followed.is_some_and(|segment| segment.is_syn());
        if let Some(segment) = followed.filter(|s| self.choice.has(&s.flow)) {
            self.follow(&segment, tags, ip);
        }
        let keys = keys(ip);
        let of_flood = |key: &Key| self.floods.iter().any(|flood| flood.key == *key);
        let is_of_flood = keys.iter().flatten().any(of_flood);
        // Counted as half-open already, and not to be learned as normal.
        if is_syn && !is_of_flood && self.is_half_open(ip) {
            return;
        }
        for key in keys.iter().flatten() {
            self.detector.add(key, weight);
            for flood in self.floods.iter_mut().filter(|flood| flood.key == *key) {
                flood.sample.add(tags, ip);
            }
        }
        // A SYN is normal once its connection is complete.
        if !is_of_flood && !is_syn {
            self.add_recent(tags, ip);
        }
    }

    fn add_recent(&mut self, tags: u8, ip: &[u8]) {
        if let Some(second) = self.recent.back_mut() {
            second.add(tags, ip);
        }
    }

    /// Follows the handshake of a chosen connection.
    fn follow(&mut self, segment: &Segment, tags: u8, ip: &[u8]) {
        if segment.is_syn() {
            self.half_open.syn(segment.flow, tags, ip);
        } else if segment.has_ack()
            && let Some(syn) = self.half_open.ack(&segment.flow)
        {
            self.connected.add(syn.tags, &syn.ip);
            let keys = keys(&syn.ip);
            let is_of = |flood: &Flood| keys.iter().flatten().any(|key| *key == flood.key);
            if !self.floods.iter().any(is_of) {
                self.add_recent(syn.tags, &syn.ip);
            }
        }
    }

    /// Counts a segment that no TCP sends.
    fn impossible(&mut self, tags: u8, ip: &[u8], weight: u64) {
        let Some(key) = destination(ip).map(Key::Impossible) else {
            return;
        };
        self.abnormal.add(&key, weight);
        for flood in self.floods.iter_mut().filter(|flood| flood.key == key) {
            flood.sample.add(tags, ip);
        }
    }

    /// Whether there is a flood of half-open connections to the destination of this packet.
    fn is_half_open(&self, ip: &[u8]) -> bool {
        let half_open = |flood: &Flood| matches!(flood.key, Key::HalfOpen(_));
        if !self.floods.iter().any(half_open) {
            return false;
        }
        let key = destination(ip).map(Key::HalfOpen);
        self.floods
            .iter()
            .any(|flood| Some(&flood.key) == key.as_ref())
    }

    /// Records how many packets were sampled since the last tick, and how many of these were lost:
    /// an ACK that was lost does not make a connection half-open.
    pub fn lost(&mut self, sampled: u64, lost: u64) {
        self.lost_share = lost as f64 / (sampled + lost).max(1) as f64;
    }

    /// Ends an interval; called about once per second. `dropped` returns the number of packets that
    /// a rule has dropped so far.
    pub fn tick(&mut self, now_ns: u64, dropped: impl Fn(&str) -> u64) -> Vec<Step> {
        self.count_dropped(dropped);
        self.count_half_open();
        let mut steps = Vec::new();
        let mut events = self.abnormal.tick(now_ns);
        events.extend(self.detector.tick(now_ns));
        for event in events {
            self.event(event, &mut steps);
        }
        self.settle_recent();
        for at in 0..self.floods.len() {
            self.look_for_rule(at, &mut steps);
        }
        self.remove_unused(&mut steps);
        if !self.has_learned && self.detector.is_warm() {
            self.has_learned = true;
            steps.push(Step::Learned(self.learned()));
        }
        steps
    }

    /// Counts SYNs that no ACK has followed.
    fn count_half_open(&mut self) {
        for (address, count) in self.half_open.tick(self.lost_share) {
            let count = u64::from(count) * u64::from(self.choice.one_in());
            let key = Key::HalfOpen(address);
            self.abnormal.add(&key, count);
            let flood = self.floods.iter_mut().find(|flood| flood.key == key);
            let Some(flood) = flood else {
                continue;
            };
            let rule = self.rules.iter().find(|rule| flood.is_ruled_by(&rule.name));
            let (mut all, mut missed) = (0, 0);
            for (tags, ip) in self.half_open.abandoned(true) {
                if destination(ip) == Some(address) {
                    flood.sample.add(tags, ip);
                    all += 1;
                    missed += u64::from(rule.is_some_and(|rule| !rule.matches(tags, ip)));
                }
            }
            flood.missed(count * missed / all.max(1), &self.setup.settings);
        }
    }

    /// Counts the packets that rules have dropped for the floods they are directed against.
    fn count_dropped(&mut self, dropped: impl Fn(&str) -> u64) {
        for rule in &mut self.rules {
            let now = dropped(&rule.name);
            let more = now.saturating_sub(rule.counted);
            rule.counted = now;
            for flood in self.floods.iter().filter(|f| f.is_ruled_by(&rule.name)) {
                let detector = match flood.key.abnormal() {
                    Some(_) => &mut self.abnormal,
                    None => &mut self.detector,
                };
                detector.add(&flood.key, more);
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
        if let Subject::Key(key) = &event.subject
            && self.is_unreported(key, event.begins)
        {
            return;
        }
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
        let sample = self.first_sample(&key);
        self.floods.push(Flood {
            key,
            sample,
            state: State::Sampling(0),
            missed_ticks: 0,
        });
    }

    /// Whether the flood is one of packets that cannot be normal, and was reported as one of all
    /// packets to its destination before: a rule is against it already.
    fn is_unreported(&mut self, key: &Key, begins: bool) -> bool {
        if !begins {
            let unreported = self.unreported.extract_if(.., |other| other == key);
            return unreported.count() > 0;
        }
        let of_all = key.abnormal().map(Key::Destination);
        let is_ruled = |flood: &Flood| {
            Some(&flood.key) == of_all.as_ref() && matches!(flood.state, State::Ruled(_))
        };
        let is_covered = self.floods.iter().any(is_ruled);
        if is_covered {
            self.unreported.push(key.clone());
        }
        is_covered
    }

    /// The packets of a flood that are known when it begins. What was learned from them is
    /// forgotten.
    fn first_sample(&mut self, key: &Key) -> Sample {
        let mut sample = Sample::new(FLOOD_MAX);
        let Key::HalfOpen(address) = key else {
            return sample;
        };
        for (tags, ip) in self.half_open.abandoned(false) {
            if destination(ip) == Some(*address) {
                sample.add(tags, ip);
            }
        }
        if !self.detector.is_warm() {
            self.detector.forget_key(&Key::Destination(*address));
            for (_, ip) in sample.iter() {
                if let Some(key) = signature(ip) {
                    self.detector.forget_key(&key);
                }
            }
        }
        sample
    }

    fn learned(&self) -> Learned {
        let is_destination = |key: &Key| matches!(key, Key::Destination(_));
        let (destinations, signatures): (Vec<_>, Vec<_>) = self
            .detector
            .normals()
            .partition(|(key, ..)| is_destination(key));
        let highest = destinations.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        Learned {
            destinations: destinations.len(),
            signatures: signatures.len(),
            highest: highest.map(|(key, normal_pps, flood_pps)| Normal {
                of: key.to_string(),
                normal_pps: *normal_pps,
                flood_pps: *flood_pps,
            }),
        }
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
        let count = flood.sample.len();
        if count < ENOUGH && (*ticks < ENOUGH_TICKS || count < LEAST) {
            return;
        }
        let flood = &self.floods[at];
        let packets = flood.packets();
        let covers = |rule: &&Rule| {
            let matches =
                |packet: &&Packet<'_>| packet.tags == 0 && rule.matches(packet.tags, packet.bytes);
            packets.iter().filter(matches).count() * 100 >= packets.len() * COVERED_PERCENT
        };
        if let Some(rule) = self.rules.iter().find(covers) {
            self.floods[at].state = State::Ruled(rule.name.clone());
            return;
        }
        let of = flood.key.to_string();
        let mut derived = self.derive(flood, &packets);
        derived.groups.retain(|group| !group.is_fragile);
        let Some(expression) = derived.expression() else {
            let why = match flood.key {
                Key::HalfOpen(_) => LIKE_CLIENTS,
                _ => NOTHING,
            };
            self.floods[at].state = State::GivenUp;
            let why = why.into();
            return steps.push(Step::NoRule { of, why });
        };
        self.found_count += 1;
        let name = format!("{RULE_NAME}{}", self.found_count);
        let matched = derived.covered_count();
        let sampled = packets.len();
        self.floods[at].state = State::Ruled(name.clone());
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

    /// Derives a filter that matches a flood and no normal packet.
    fn derive(&self, flood: &Flood, packets: &[Packet<'_>]) -> derive::Derived {
        let mut good = self.good.packets();
        let made = match flood.key {
            Key::HalfOpen(_) => clients::usual(packets),
            Key::Impossible(_) => clients::possible(packets),
            Key::Destination(_) | Key::Signature(_) => Vec::new(),
        };
        if let Key::HalfOpen(_) = flood.key {
            good.extend(self.connected.packets());
        }
        good.extend(
            made.iter()
                .map(|(tags, bytes)| Packet { tags: *tags, bytes }),
        );
        derive::derive(packets, &good, &LIMITS)
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
