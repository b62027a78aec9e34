//! Finds rules that have no effect: those that no packet can match, those in the shadow of earlier
//! rules, and challenges of packets that are never TCP.
//!
//! A finding is certain: each program is followed on all paths ([`paths`]), over Ethernet packets
//! whose IP header is not cut off. What takes too many steps, and what the analysis cannot see, is
//! not found.

mod facts;
mod paths;
#[cfg(test)]
mod tests;
mod values;

use bpf::cbpf::{Program, Width};

use crate::names::NameTest;
use crate::prefix::{List, Prefix};
use crate::rule::{Rule, Verdict};
use facts::{ETHER_TYPE, NETWORK};
use paths::{Goal, Known, Paths, Stop};

/// Maximum number of instructions followed for all rules, for one rule, and for a pair of rules.
const STEPS_MAX: usize = 3_000_000;
const RULE_STEPS_MAX: usize = 30_000;
const PAIR_STEPS_MAX: usize = 10_000;

/// Something about a rule that makes it useless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The index of the rule.
    pub rule: usize,
    /// What is wrong.
    pub kind: FindingKind,
}

/// What is wrong with a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FindingKind {
    /// No packet matches it.
    Impossible,
    /// It is a challenge, and no TCP packet matches it: it passes its packets.
    NeverTcp,
    /// These earlier rules decide all packets that it matches.
    Shadowed(Vec<usize>),
}

/// Finds rules without effect, in rules that are in the order of evaluation. `outlives(a, b)`:
/// whether rule `a` is there for as long as rule `b`.
pub fn check(rules: &[Rule], outlives: impl Fn(usize, usize) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut steps = 0;
    for (index, rule) in rules.iter().enumerate() {
        if is_impossible(rule, &mut steps) {
            let kind = FindingKind::Impossible;
            findings.push(Finding { rule: index, kind });
            continue;
        }
        if rule.verdict == Verdict::Challenge && is_never_tcp(rule, &mut steps) {
            let kind = FindingKind::NeverTcp;
            findings.push(Finding { rule: index, kind });
        }
        let before = (0..index).filter(|&other| {
            let earlier = &rules[other];
            earlier.verdict.decides() && outlives(other, index) && may_cover(earlier, rule)
        });
        let before: Vec<usize> = before.collect();
        if let Some(by) = shadow(rules, index, &before, &mut steps) {
            let kind = FindingKind::Shadowed(by);
            findings.push(Finding { rule: index, kind });
        }
    }
    findings
}

/// The most steps that may have been taken after a search.
fn until(steps: usize, most: usize) -> usize {
    STEPS_MAX.min(steps + most)
}

/// The goal that no path reaches: there is none.
struct Nothing;

impl Goal for Nothing {
    fn programs(&self) -> &[Option<&Program>] {
        &[]
    }

    fn is_reached(&mut self, _: usize, _: &mut Known) -> bool {
        false
    }
}

/// The goal of packets that are not TCP.
struct NotTcp;

impl Goal for NotTcp {
    fn programs(&self) -> &[Option<&Program>] {
        &[None]
    }

    fn is_reached(&mut self, _: usize, known: &mut Known) -> bool {
        known.excludes_tcp()
    }
}

fn is_impossible(rule: &Rule, steps: &mut usize) -> bool {
    let is_empty = |list: &Option<List>| list.as_ref().is_some_and(|list| list.is_empty());
    let most = until(*steps, RULE_STEPS_MAX);
    is_empty(&rule.sources)
        || is_empty(&rule.destinations)
        || rule
            .names
            .as_ref()
            .is_some_and(|names| names.list.is_empty())
        || rule.matcher.as_ref().is_some_and(|program| {
            Paths::all_reach(Some(program), &mut Nothing, steps, most).unwrap_or(false)
        })
}

fn is_never_tcp(rule: &Rule, steps: &mut usize) -> bool {
    // Queries are UDP.
    let most = until(*steps, RULE_STEPS_MAX);
    rule.names.is_some()
        || Paths::all_reach(rule.matcher.as_ref(), &mut NotTcp, steps, most).unwrap_or(false)
}

/// Whether an earlier rule can cover another: what is no question of the filters.
fn may_cover(earlier: &Rule, rule: &Rule) -> bool {
    earlier.names.as_ref().is_none_or(|outer| {
        rule.names
            .as_ref()
            .is_some_and(|inner| covers_names(outer, inner))
    })
}

/// Whether each query of `inner` is one of `outer`.
fn covers_names(outer: &NameTest, inner: &NameTest) -> bool {
    let has_types = outer.types.is_empty()
        || !inner.types.is_empty() && inner.types.iter().all(|kind| outer.types.contains(kind));
    let has = |name| outer.list.iter().any(|other| other == name);
    let is_same = std::sync::Arc::ptr_eq(&outer.list, &inner.list) || outer.list == inner.list;
    has_types && (is_same || inner.list.len() <= NAMES_MAX && inner.list.iter().all(has))
}

/// Maximum number of names and prefixes that are looked for one by one.
const NAMES_MAX: usize = 64;

/// Whether each prefix of `inner` is covered by one of `outer`.
fn covers_prefixes(outer: &List, inner: &List) -> bool {
    let has = |prefix: &Prefix| outer.iter().any(|other| other.covers(prefix));
    std::sync::Arc::ptr_eq(outer, inner)
        || outer == inner
        || inner.len() <= NAMES_MAX && inner.iter().all(has)
}

/// The packets of a rule, each decided by an earlier one.
struct Shadow<'a> {
    rules: &'a [Rule],
    rule: usize,
    /// The earlier rules, and their filters.
    before: &'a [usize],
    programs: Vec<Option<&'a Program>>,
    /// Which of them decided any.
    used: Vec<usize>,
}

impl Goal for Shadow<'_> {
    fn programs(&self) -> &[Option<&Program>] {
        &self.programs
    }

    fn is_reached(&mut self, index: usize, known: &mut Known) -> bool {
        let at = self.before[index];
        let (earlier, rule) = (&self.rules[at], &self.rules[self.rule]);
        let sources = (&earlier.sources, &rule.sources, false);
        let destinations = (&earlier.destinations, &rule.destinations, true);
        let holds = [sources, destinations]
            .into_iter()
            .all(|(outer, inner, is_destination)| {
                let Some(outer) = outer else { return true };
                inner
                    .as_ref()
                    .is_some_and(|inner| covers_prefixes(outer, inner))
                    || is_in(outer, is_destination, known)
            });
        if holds && !self.used.contains(&at) {
            self.used.push(at);
        }
        holds
    }
}

/// Whether the source or destination address of the packets of a path is in a list.
fn is_in(list: &List, is_destination: bool, known: &mut Known) -> bool {
    let families = [(false, 0x0800, 12, 1), (true, 0x86dd, 8, 4)];
    let family = families.into_iter().find(|&(_, kind, ..)| {
        let id = known.bytes(Width::H, ETHER_TYPE);
        known.facts.range(&known.values, id) == (kind, kind)
    });
    let Some((is_v6, _, at, words)) = family else {
        return false;
    };
    let at = NETWORK + at + if is_destination { 4 * words } else { 0 };
    let (mut bits, mut mask) = (0_u128, 0_u128);
    for word in 0..words {
        let id = known.bytes(Width::W, at + 4 * word);
        let found = known.facts.known(&known.values, id);
        let shift = 96 - 32 * word;
        mask |= u128::from(found.mask) << shift;
        bits |= u128::from(found.value) << shift;
    }
    let len = mask.leading_ones() as u8;
    Prefix::from_bits(is_v6, bits, len)
        .is_some_and(|prefix| list.iter().any(|other| other.covers(&prefix)))
}

/// The earlier rules that decide all packets of a rule: one, if one alone does.
fn shadow(rules: &[Rule], rule: usize, before: &[usize], steps: &mut usize) -> Option<Vec<usize>> {
    let alone = |at: &&usize, steps: &mut usize| {
        let by = deciders(rules, rule, &[**at], (steps, PAIR_STEPS_MAX));
        matches!(by, Ok(Some(_)))
    };
    match deciders(rules, rule, before, (steps, RULE_STEPS_MAX)) {
        Ok(by) => {
            let by = by?;
            let one = by.iter().find(|at| alone(at, steps)).copied();
            Some(one.map_or(by, |one| vec![one]))
        }
        // Together they take too many steps.
        Err(Stop) => {
            let one = before.iter().find(|at| alone(at, steps));
            one.map(|one| vec![*one])
        }
    }
}

/// Those of the earlier rules that decide the packets of a rule, if they decide all. Takes a number
/// of steps at most.
fn deciders(
    rules: &[Rule],
    rule: usize,
    before: &[usize],
    (steps, most): (&mut usize, usize),
) -> Result<Option<Vec<usize>>, Stop> {
    let programs = before.iter().map(|&at| rules[at].matcher.as_ref());
    let mut goal = Shadow {
        rules,
        rule,
        before,
        programs: programs.collect(),
        used: Vec::new(),
    };
    let most = until(*steps, most);
    let all = Paths::all_reach(rules[rule].matcher.as_ref(), &mut goal, steps, most)?;
    goal.used.sort_unstable();
    // Without any, no packet was followed to its end.
    Ok((all && !goal.used.is_empty()).then_some(goal.used))
}
