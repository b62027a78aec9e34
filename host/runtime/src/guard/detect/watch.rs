//! Watches what passes the rules against floods, and replaces rules that no longer match.

use ::guard::{Counters, Verdict};

use super::choose::{Chosen, program};
use super::flood::{Flood, Rule, State};
use super::key::Key;
use super::step::{Found, Rates, Reason, Step};
use super::{Detection, ENOUGH, ENOUGH_TICKS, LEAST, RULE_NAME};
use crate::guard::RuleSpec;

/// Maximum number of rules against one flood.
const RULES_MAX: usize = 4;
/// Number of ticks after which another attempt is made to derive a rule.
const REST_TICKS: u32 = 5;
/// Number of ticks between two reviews of a limit that drops packets.
const REVIEW_TICKS: u32 = 2;
/// How much of one interval counts: the caller may have been held up.
const COUNTED_NS_MAX: u64 = 1_500_000_000;

/// Why there is no other rule.
const IN_VAIN: &str = "its packets pass although the rule matches them; a tag that the card \
                       removes is not seen by rules";

impl Detection {
    /// Reads the counters of rules, and counts what they have dropped for the floods that they are
    /// directed against.
    pub(super) fn count_rules(
        &mut self,
        counters: impl Fn(&str) -> Option<Counters>,
        elapsed_ns: u64,
    ) {
        for rule in &mut self.rules {
            // What the tap gets is counted there, but not which packets are over a limit.
            let is_counted = !self.sees_dropped || rule.is_lenient();
            let now = counters(&rule.name).filter(|_| is_counted);
            rule.count(now, elapsed_ns);
            for flood in self.floods.iter_mut().filter(|f| f.is_ruled_by(&rule.name)) {
                if self.sees_dropped {
                    let tally = &mut flood.tally;
                    tally.limited = tally.limited.saturating_sub(rule.dropped);
                    tally.dropped += rule.dropped;
                    continue;
                }
                let detector = match flood.key.abnormal() {
                    Some(_) => &mut self.abnormal,
                    None => &mut self.detector,
                };
                detector.add(&flood.key, rule.dropped);
                flood.tally.dropped += rule.dropped;
            }
        }
    }

    /// Watches a flood for an interval: derives its first rule once there are enough packets, and
    /// others when too much of it passes.
    pub(super) fn watch(&mut self, at: usize, elapsed_ns: u64, steps: &mut Vec<Step>) {
        let threshold_pps = self.threshold_pps(&self.floods[at].key);
        let begin_ns = self.setup.settings.begin_ns;
        let flood = &mut self.floods[at];
        flood.settle(elapsed_ns);
        let count = flood.sample.len();
        match &mut flood.state {
            State::Sampling(ticks) => {
                *ticks += 1;
                if count >= ENOUGH || (*ticks >= ENOUGH_TICKS && count >= LEAST) {
                    self.look_for_rule(at, steps);
                }
            }
            State::Resting(ticks) => {
                *ticks = ticks.saturating_sub(1);
                if *ticks == 0 {
                    flood.state = State::Sampling(0);
                    flood.forget_sample();
                }
            }
            State::Watching(ticks) => {
                *ticks += 1;
                let is_review = *ticks % REVIEW_TICKS == 0;
                if flood.passed_pps <= threshold_pps {
                    flood.missed_ns = 0;
                    let is_limited = self.review(at, is_review, steps);
                    if !is_limited {
                        self.floods[at].forget_sample();
                    }
                    return;
                }
                let is_first = flood.missed_ns == 0;
                flood.missed_ns += elapsed_ns.min(COUNTED_NS_MAX);
                // A burst of one second is no change; half-open connections come late already.
                let is_enough = flood.missed_ns * 2 >= begin_ns || flood.key.abnormal().is_some();
                let is_over = flood.missed_ns >= begin_ns && count >= LEAST;
                if is_first {
                    let rates = self.passing(at);
                    steps.push(Step::Passes(rates));
                }
                if (is_enough && count >= ENOUGH) || is_over {
                    self.look_for_rule(at, steps);
                }
            }
        }
    }

    fn passing(&self, at: usize) -> Rates {
        let flood = &self.floods[at];
        Rates {
            of: flood.key.to_string(),
            rate_pps: flood.passed_pps,
            normal_pps: self.normal_pps(&flood.key),
        }
    }

    /// Looks again at what a limit matches. If it drops packets, they may be good ones that have
    /// become more, and then it is raised; if a flood is among packets that were good, or another
    /// sample distinguishes it, a rule may be possible that spares the good ones. Returns whether
    /// there is such a limit.
    fn review(&mut self, at: usize, is_due: bool, steps: &mut Vec<Step>) -> bool {
        let flood = &self.floods[at];
        let limits =
            |rule: &&Rule| flood.is_ruled_by(&rule.name) && rule.hits > 0 && rule.is_lenient();
        let Some(rule) = self.rules.iter().find(limits) else {
            return false;
        };
        if !is_due || flood.sample.len() < ENOUGH {
            return true;
        }
        let is_good = self.is_good(flood);
        if rule.dropped == 0 && (is_good || !is_spared(rule.reason)) {
            self.floods[at].forget_sample();
            return true;
        }
        let chosen = self.choose(flood);
        let is_better = match (chosen.verdict, rule.verdict) {
            (Verdict::Drop, _) => chosen.expression != rule.expression,
            (Verdict::Limit(new), Verdict::Limit(old)) => {
                let is_raised = u64::from(new.rate_pps()) * 4 > u64::from(old.rate_pps()) * 5;
                is_raised && is_spared(chosen.reason)
            }
            _ => false,
        };
        if is_better {
            let old = rule.name.clone();
            let new = self.rule(at, chosen, steps);
            for flood in self.floods.iter_mut().filter(|f| f.is_ruled_by(&old)) {
                flood.rules.retain(|name| *name != old && *name != new);
                flood.rules.push(new.clone());
                self.changes.push(Change {
                    flood: flood.key.clone(),
                    old: old.clone(),
                    new: new.clone(),
                });
            }
        }
        true
    }

    /// Derives a rule from the packets collected, or finds one that covers them.
    fn look_for_rule(&mut self, at: usize, steps: &mut Vec<Step>) {
        let flood = &self.floods[at];
        if let Some(rule) = self.covering(flood) {
            let name = rule.name.clone();
            let flood = &mut self.floods[at];
            flood.rules.push(name);
            flood.state = State::Watching(0);
            flood.missed_ns = 0;
            return flood.forget_sample();
        }
        let chosen = self.choose(flood);
        let is_same = |rule: &Rule| {
            flood.is_ruled_by(&rule.name)
                && rule.expression == chosen.expression
                && rule.verdict == chosen.verdict
        };
        if self.rules.iter().any(is_same) {
            return self.give_up(at, IN_VAIN.to_owned(), steps);
        }
        let dropped = self.drop_unused_of(at);
        let new = self.rule(at, chosen, steps);
        let flood = self.floods[at].key.clone();
        self.changes.extend(dropped.into_iter().map(|old| Change {
            flood: flood.clone(),
            old,
            new: new.clone(),
        }));
    }

    /// Reports once that there is no rule, and tries again later.
    fn give_up(&mut self, at: usize, why: String, steps: &mut Vec<Step>) {
        let flood = &mut self.floods[at];
        flood.state = State::Resting(REST_TICKS);
        if !std::mem::replace(&mut flood.is_lost, true) {
            let of = flood.key.to_string();
            steps.push(Step::NoRule { of, why });
        }
    }

    /// Forgets rules of a flood that no longer match it, and the least useful of too many. Returns
    /// their names.
    fn drop_unused_of(&mut self, at: usize) -> Vec<String> {
        let rules = &self.rules;
        let hits = |name: &String| {
            let rule = rules.iter().find(|rule| rule.name == *name);
            rule.map_or(0, |rule| if rule.age > 1 { rule.hits } else { 1 })
        };
        let own = &mut self.floods[at].rules;
        let mut dropped: Vec<String> = own.extract_if(.., |name| hits(name) == 0).collect();
        if own.len() >= RULES_MAX
            && let Some(least) = own.iter().min_by_key(|name| hits(name)).cloned()
        {
            own.retain(|name| *name != least);
            dropped.push(least);
        }
        dropped
    }

    /// Adds a rule against a flood, and returns its name.
    fn rule(&mut self, at: usize, chosen: Chosen, steps: &mut Vec<Step>) -> String {
        self.found_count += 1;
        let name = format!("{RULE_NAME}{}", self.found_count);
        let flood = &mut self.floods[at];
        for (tags, ip) in flood.sample.iter() {
            flood.known.add(tags, ip);
        }
        let of = flood.key.to_string();
        flood.rules.push(name.clone());
        flood.state = State::Watching(0);
        flood.missed_ns = 0;
        flood.forget_sample();
        let expires_after = Some(self.setup.expires_after);
        let spec = |expression: &str, verdict| RuleSpec {
            name: name.clone(),
            expires_after,
            ..RuleSpec::new(expression, verdict)
        };
        let plain = spec(&chosen.expression, chosen.verdict);
        let (spec, otherwise) = match &chosen.challenge {
            Some((expression, services)) => (
                spec(expression, Verdict::Challenge),
                Some((plain, services.clone())),
            ),
            None => (plain, None),
        };
        self.rules.push(new_rule(&spec, chosen.reason));
        steps.push(Step::Rule(Box::new(Found {
            of,
            spec,
            reason: chosen.reason,
            otherwise,
            sampled: chosen.sampled,
            matched: chosen.matched,
        })));
        name
    }

    /// Records that this rule took the place of the one of the same name.
    pub fn replaced(&mut self, spec: &RuleSpec) {
        for rule in self.rules.iter_mut().filter(|rule| rule.name == spec.name) {
            *rule = new_rule(spec, rule.reason);
        }
    }

    /// Removes rules that no flood has any more, or that match nothing while other rules do.
    pub(super) fn remove_unused(&mut self, steps: &mut Vec<Step>) {
        let end_ns = self.setup.settings.end_ns;
        for flood in &mut self.floods {
            let own = |rule: &&Rule| flood.rules.contains(&rule.name);
            let is_used = self.rules.iter().filter(own).any(|rule| rule.hits > 0);
            let is_idle = |rule: &Rule| is_used && rule.idle_ns > end_ns;
            let idle: Vec<&String> = self
                .rules
                .iter()
                .filter(|rule| is_idle(rule))
                .map(|rule| &rule.name)
                .collect();
            flood.rules.retain(|name| !idle.contains(&name));
        }
        let floods = &self.floods;
        let is_used = |rule: &Rule| floods.iter().any(|flood| flood.is_ruled_by(&rule.name));
        self.removed = self.rules.extract_if(.., |rule| !is_used(rule)).collect();
        let names = self.removed.iter().map(|rule| rule.name.clone());
        steps.extend(names.map(Step::Remove));
        if self.sees_dropped {
            for rule in &mut self.rules {
                rule.hits = 0;
            }
        }
    }

    /// Records that a rule has expired; while its floods last, another one is derived.
    pub fn expired(&mut self, rule: &str) {
        self.leave(rule, |flood| {
            if flood.rules.is_empty() {
                flood.state = State::Sampling(0);
            }
        });
    }

    /// Records that a rule of the last tick could not be installed. Those that it was to take the
    /// place of stay in force: they are not to be removed, although that was a step.
    pub fn refused(&mut self, rule: &str) {
        self.leave(rule, |flood| {
            flood.is_lost = true;
            flood.state = State::Resting(REST_TICKS);
        });
        let changes = self.changes.extract_if(.., |change| change.new == rule);
        for change in changes {
            let flood = self.floods.iter_mut().find(|f| f.key == change.flood);
            let Some(flood) = flood.filter(|f| !f.is_ruled_by(&change.old)) else {
                continue;
            };
            let is_old = |rule: &Rule| rule.name == change.old;
            if let Some(at) = self.removed.iter().position(is_old) {
                self.rules.push(self.removed.swap_remove(at));
            }
            if self.rules.iter().any(is_old) {
                flood.rules.push(change.old);
            }
        }
    }

    /// Whether a rule is against any flood, as far as detection knows.
    pub fn has_rule(&self, name: &str) -> bool {
        self.rules.iter().any(|rule| rule.name == name)
    }

    fn leave(&mut self, rule: &str, then: impl Fn(&mut Flood)) {
        self.rules.retain(|other| other.name != rule);
        for flood in &mut self.floods {
            if !flood.is_ruled_by(rule) {
                continue;
            }
            flood.rules.retain(|name| name != rule);
            flood.forget_sample();
            then(flood);
        }
    }
}

/// That a rule was to take the place of another one against a flood.
pub(super) struct Change {
    flood: Key,
    old: String,
    new: String,
}

fn is_spared(reason: Reason) -> bool {
    matches!(reason, Reason::Connections | Reason::Streams | Reason::Scan)
}

fn new_rule(spec: &RuleSpec, reason: Reason) -> Rule {
    Rule {
        name: spec.name.clone(),
        expression: spec.expression.clone(),
        program: program(&spec.expression),
        verdict: spec.verdict,
        reason,
        counted: Counters::default(),
        hits: 0,
        dropped: 0,
        dropped_pps: 0.0,
        idle_ns: 0,
        age: 0,
    }
}
