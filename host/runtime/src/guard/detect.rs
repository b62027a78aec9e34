//! Detection of floods on the guarded interface, and rules against them.
//!
//! A tap samples the packets that reach the host, after the XDP program. Packets that a derived
//! rule drops do not reach the tap; the rule's drop counter stands in for them, so the end of the
//! flood is detected. What reaches the tap although there is a rule has passed: if it is too much,
//! the flood has changed, and another rule is derived (`watch`). At tc's ingress, in a dry run and
//! where rules are only proposed, the tap gets what rules drop, and the rules are applied to it.
//!
//! Packets are counted by destination: each address, its network, and the whole interface. A flood
//! is one of the narrowest of these that explains it. `choose` has the verdicts.
//!
//! What is normal has to be learned first, and a flood that is already there would be learned, too.
//! So packets that cannot be normal are counted apart, from the start on: SYNs that no ACK follows,
//! and impossible TCP flags.

mod act;
mod choose;
mod clients;
mod flood;
mod flows;
mod half_open;
mod key;
mod listeners;
mod segment;
mod setup;
mod step;
mod tap;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::VecDeque;
use std::net::IpAddr;

use ::guard::Counters;
use ::guard::detect::{Detector, Event, Settings, Subject};

pub(super) use act::Detecting;
use flood::{FLOOD_MAX, Flood, Rule, Sampled};
use half_open::HalfOpen;
pub use key::{Key, Place};
use key::{destination, signature};
pub use segment::FlowChoice;
use segment::Segment;
pub use setup::{Action, DetectSetup};
pub use step::{FloodTotals, Found, Learned, Normal, Rates, Reason, Step};
pub use tap::{Tap, TapCounts};
use watch::Change;

use crate::filter::derive::{Sample, ip_packet};

const ETHERNET: u16 = 1;

/// Maximum number of normal packets kept; derived rules must not match them.
const GOOD_MAX: usize = 2_000;
/// Maximum number of packets kept per second until they are known to be normal.
const SECOND_MAX: usize = 200;
/// Number of a flood's packets from which a rule is derived at once.
const ENOUGH: usize = 200;
/// Number of a flood's packets that suffices after [`ENOUGH_TICKS`] ticks.
const LEAST: usize = 20;
const ENOUGH_TICKS: u32 = 5;
/// Maximum number of concurrent floods with a rule; further ones are only reported.
const FLOODS_MAX: usize = 16;
/// Name of a derived rule, before its number.
const RULE_NAME: &str = "detected flood ";

/// Whether detection may give one of its rules this name.
pub(super) fn is_rule_name(name: &str) -> bool {
    let number = name.strip_prefix(RULE_NAME);
    number.is_some_and(|number| number.parse::<u64>().is_ok())
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
    /// Packets that passed the program in the last interval, as on the wire, per second.
    wire_pps: f64,
    /// Whether the tap gets packets that rules drop.
    sees_dropped: bool,
    at_ns: u64,
    /// Samples of the last seconds, the latest last.
    recent: VecDeque<Sample>,
    good: Sample,
    /// SYNs of complete connections.
    connected: Sample,
    floods: Vec<Flood>,
    /// Floods of what cannot be normal that are not reported: a rule is against them already.
    unreported: Vec<Key>,
    is_rest_unreported: bool,
    rules: Vec<Rule>,
    /// Rules that the last tick removed, and which rules were to take the place of which.
    removed: Vec<Rule>,
    changes: Vec<Change>,
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
            wire_pps: 0.0,
            sees_dropped: setup.action == Action::Propose,
            at_ns: 0,
            recent: VecDeque::from([Sample::new(SECOND_MAX)]),
            good: Sample::new(GOOD_MAX),
            connected: Sample::new(GOOD_MAX / 2),
            floods: Vec::new(),
            unreported: Vec::new(),
            is_rest_unreported: false,
            rules: Vec::new(),
            removed: Vec::new(),
            changes: Vec::new(),
            found_count: 0,
            has_learned: setup.settings.warm_up_ns == 0,
            setup,
        }
    }

    /// The response to a flood.
    pub fn action(&self) -> Action {
        self.setup.action
    }

    /// Sets that the tap gets what rules drop: at tc's ingress, and in a dry run.
    pub fn sees_dropped(&mut self) {
        self.sees_dropped = true;
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
        let packet = Sampled {
            tags,
            ip,
            weight,
            is_chosen: followed.is_some_and(|s| self.choice.has(&s.flow)),
        };
        if segment.is_some_and(|segment| segment.is_impossible()) {
            return self.impossible(&packet);
        }
        let is_syn = followed.is_some_and(|segment| segment.is_syn());
        if let Some(segment) = followed.filter(|_| packet.is_chosen) {
            self.follow(&segment, tags, ip);
        }
        let Some(address) = destination(ip) else {
            return;
        };
        let kind = Key::Destination(Place::Interface);
        let own = self.flooded(&kind, address);
        let signature = signature(ip);
        let is_of_flood = own.is_some()
            || self
                .floods
                .iter()
                .any(|flood| Some(&flood.key) == signature.as_ref());
        // Counted as half-open already, and not to be learned as normal.
        if is_syn && !is_of_flood && self.is_half_open(address) {
            return;
        }
        self.count(&kind, address, &packet);
        if let Some(key) = signature {
            // Without a place in the table the packet is counted by its destination.
            self.detector.add_key(&key, weight);
            let floods = self.floods.iter_mut().filter(|flood| flood.key == key);
            floods.for_each(|flood| flood.add(&packet, &mut self.rules, self.sees_dropped));
        }
        // A SYN is normal once its connection is complete.
        if !is_of_flood && !is_syn {
            self.add_recent(tags, ip);
        }
    }

    /// The narrowest flood of this kind that packets to an address belong to.
    fn flooded(&self, kind: &Key, address: IpAddr) -> Option<usize> {
        let at = |place| {
            let key = kind.at(place);
            self.floods.iter().position(|flood| flood.key == key)
        };
        // The usual case.
        match self.floods.is_empty() {
            true => None,
            false => Place::all_of(address).into_iter().find_map(at),
        }
    }

    /// Counts a packet under its address, network and interface, but not under what is wider than
    /// the flood that it belongs to; and adds it to that flood.
    fn count(&mut self, kind: &Key, address: IpAddr, packet: &Sampled<'_>) {
        let own = self.flooded(kind, address);
        let widest = own.and_then(|own| self.floods[own].key.place());
        let detector = match kind.abnormal() {
            Some(_) => &mut self.abnormal,
            None => &mut self.detector,
        };
        let mut has_places = true;
        for place in Place::all_of(address) {
            has_places &= detector.add_key(&kind.at(place), packet.weight);
            if Some(place) == widest {
                break;
            }
        }
        if !has_places {
            detector.add_rest(packet.weight);
        }
        if let Some(own) = own {
            self.floods[own].add(packet, &mut self.rules, self.sees_dropped);
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
            self.half_open.syn(segment, tags, ip);
        } else if segment.has_ack()
            && let Some(syn) = self.half_open.ack(segment)
        {
            self.connected.add(syn.tags, &syn.ip);
            let signature = signature(&syn.ip);
            let is_of = |flood: &&mut Flood| Some(&flood.key) == signature.as_ref();
            for flood in self.floods.iter_mut().filter(is_of) {
                flood.completed += 1;
            }
            let kind = Key::Destination(Place::Interface);
            let is_flooded = self.flooded(&kind, segment.flow.destination).is_some()
                || self
                    .floods
                    .iter()
                    .any(|flood| Some(&flood.key) == signature.as_ref());
            if !is_flooded {
                self.add_recent(syn.tags, &syn.ip);
            }
        }
    }

    /// Counts a segment that no TCP sends.
    fn impossible(&mut self, packet: &Sampled<'_>) {
        if let Some(address) = destination(packet.ip) {
            self.count(&Key::Impossible(Place::Interface), address, packet);
        }
    }

    /// Whether there is a flood of half-open connections to this address.
    fn is_half_open(&self, address: IpAddr) -> bool {
        let is_of = |flood: &Flood| match flood.key {
            Key::HalfOpen(place) => place.has(address),
            _ => false,
        };
        self.floods.iter().any(is_of)
    }

    /// Records how many packets were sampled since the last tick, and how many of these were lost:
    /// an ACK that was lost does not make a connection half-open.
    pub fn lost(&mut self, sampled: u64, lost: u64) {
        self.lost_share = lost as f64 / (sampled + lost).max(1) as f64;
    }

    /// Records how many packets have passed the program since the last tick, per second.
    pub fn passed(&mut self, wire_pps: f64) {
        self.wire_pps = wire_pps;
    }

    /// Ends an interval; called about once per second. `counters` returns those of an installed
    /// rule.
    pub fn tick(&mut self, now_ns: u64, counters: impl Fn(&str) -> Option<Counters>) -> Vec<Step> {
        let elapsed_ns = now_ns.saturating_sub(self.at_ns);
        self.at_ns = now_ns;
        self.changes.clear();
        self.count_rules(counters, elapsed_ns);
        self.count_half_open();
        let mut steps = Vec::new();
        let floods = &self.floods;
        let is_held = |key: &Key| {
            let overlaps = |flood: &Flood| flood.key.is_wider(key) || key.is_wider(&flood.key);
            floods.iter().any(overlaps)
        };
        let mut events = self.abnormal.tick_holding(now_ns, is_held);
        events.extend(self.detector.tick_holding(now_ns, is_held));
        self.take_back(&mut events);
        for event in events {
            self.event(event, &mut steps);
        }
        self.settle_recent();
        for at in 0..self.floods.len() {
            self.watch(at, elapsed_ns, &mut steps);
        }
        self.remove_unused(&mut steps);
        if !self.has_learned && self.detector.is_warm() {
            self.has_learned = true;
            steps.push(Step::Learned(self.learned()));
        }
        steps
    }

    /// Takes back floods of a network or the interface that begin because of a narrower one.
    fn take_back(&mut self, events: &mut Vec<Event<Key>>) {
        let mut begun: Vec<(Key, f64)> = Vec::new();
        events.retain(|event| {
            let Subject::Key(key) = &event.subject else {
                return true;
            };
            if !event.begins {
                return true;
            }
            // Those inside another one of these are part of it.
            let is_inner = |other: &Key| {
                let between = |(wide, _): &(Key, f64)| wide.is_wider(other);
                key.is_wider(other) && !begun.iter().any(between)
            };
            let inside = begun.iter().filter(|(other, _)| is_inner(other));
            let inside_pps: f64 = inside.map(|(_, rate_pps)| rate_pps).sum();
            let detector = match key.abnormal() {
                Some(_) => &mut self.abnormal,
                None => &mut self.detector,
            };
            let threshold_pps = detector.flood_pps(&event.subject).unwrap_or_default();
            let is_explained = inside_pps > 0.0 && event.rate_pps - inside_pps <= threshold_pps;
            match is_explained {
                true => detector.retract(key),
                false => begun.push((key.clone(), event.rate_pps)),
            }
            !is_explained
        });
    }

    /// Counts SYNs that no ACK has followed.
    fn count_half_open(&mut self) {
        let place_of = |flood: &Flood| match flood.key {
            Key::HalfOpen(place) => Some(place),
            _ => None,
        };
        let flooded: Vec<Place> = self.floods.iter().filter_map(place_of).collect();
        for (place, count) in self.half_open.tick(self.lost_share, &flooded) {
            let count = u64::from(count) * u64::from(self.choice.one_in());
            let has_place = self.abnormal.add_key(&Key::HalfOpen(place), count);
            // Those of a network and the interface are the same connections.
            if !has_place && matches!(place, Place::Host(_)) {
                self.abnormal.add_rest(count);
            }
        }
        for flood in &mut self.floods {
            let Key::HalfOpen(place) = flood.key else {
                continue;
            };
            for (tags, ip) in self.half_open.abandoned(true) {
                if destination(ip).is_some_and(|address| place.has(address)) {
                    let packet = Sampled {
                        tags,
                        ip,
                        weight: u64::from(self.choice.one_in()),
                        is_chosen: true,
                    };
                    flood.add_late(&packet, &self.rules);
                }
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
        if self.is_unreported(&event) {
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
        self.floods.push(Flood::new(key, event.rate_pps, sample));
    }

    /// Whether the event is one of a flood that was reported before in another way: packets that
    /// cannot be normal in a flood of all packets to their destination, against which there is a
    /// rule; packets to destinations without a count of their own in a flood of the interface.
    fn is_unreported(&mut self, event: &Event<Key>) -> bool {
        let Subject::Key(key) = &event.subject else {
            let all = Key::Destination(Place::Interface);
            let is_covered = self.floods.iter().any(|flood| flood.key == all);
            return match event.begins {
                true => {
                    self.is_rest_unreported = is_covered;
                    is_covered
                }
                false => std::mem::take(&mut self.is_rest_unreported),
            };
        };
        if !event.begins {
            let unreported = self.unreported.extract_if(.., |other| other == key);
            return unreported.count() > 0;
        }
        let Some(of_all) = key.abnormal().map(Key::Destination) else {
            return false;
        };
        let is_ruled = |flood: &Flood| {
            !flood.rules.is_empty() && (flood.key == of_all || flood.key.is_wider(&of_all))
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
        let Key::HalfOpen(place) = key else {
            return sample;
        };
        for (tags, ip) in self.half_open.abandoned(false) {
            if destination(ip).is_some_and(|address| place.has(address)) {
                sample.add(tags, ip);
            }
        }
        if !self.detector.is_warm() {
            let addresses = sample.iter().filter_map(|(_, ip)| destination(ip));
            let mut places: Vec<Place> = addresses.flat_map(Place::all_of).collect();
            places.sort_unstable();
            places.dedup();
            for place in places {
                self.detector.forget_key(&Key::Destination(place));
            }
            for (_, ip) in sample.iter() {
                if let Some(key) = signature(ip) {
                    self.detector.forget_key(&key);
                }
            }
        }
        sample
    }

    fn learned(&self) -> Learned {
        let is_host = |key: &Key| matches!(key, Key::Destination(Place::Host(_)));
        let is_signature = |key: &Key| matches!(key, Key::Signature(_));
        let normals = || self.detector.normals();
        let destinations: Vec<_> = normals().filter(|(key, ..)| is_host(key)).collect();
        let signatures: Vec<_> = normals().filter(|(key, ..)| is_signature(key)).collect();
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

    /// The normal rate of a key, in packets per second.
    fn normal_pps(&self, key: &Key) -> f64 {
        let subject = Subject::Key(key.clone());
        let normal_pps = match key.abnormal() {
            // Nothing of it is normal.
            Some(_) => None,
            None => self.detector.normal_pps(&subject),
        };
        normal_pps.unwrap_or_default()
    }

    /// The floods in progress, in the last interval.
    pub fn floods(&self) -> Vec<FloodTotals> {
        let floods = self.floods.iter();
        let totals = |flood: &Flood| flood.totals(self.normal_pps(&flood.key), &self.rules);
        floods.map(totals).collect()
    }
}
