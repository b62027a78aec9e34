//! Emits rules as a decision tree: only those rules are tested for a packet that its fields allow,
//! each without the tests already answered.
//!
//! ```text
//!   fields ─> leaf: rule 3, rule 17 ─> verdict, emitted once for each rule
//!         └─> leaf: none            ─> the next part
//! ```
//!
//! Where rules test different fields, a tree has a part for each field (`bpf::decide::Node::All`),
//! and the packet's first rule may be in any part. A match is then noted on the stack ([`BEST`])
//! and the other parts are walked, until no earlier rule can match.
//!
//! Consecutive rules that need the same look-ups share a tree. If a packet has several buffers, and
//! the first is too short for a field, the rules are evaluated one after the other by code at the
//! end of the program ([`Slow`]); if rules have already counted the packet, that code starts with
//! the rule at which the tree stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bpf::asm::{Asm, Label};
use bpf::decide::{self, Part, Tree};
use bpf::ebpf::Reg::{R1, R9, R10};
use bpf::ebpf::{Cond, Width};
use bpf::translate::{self, TreeTargets};

use super::{EmitError, Emitter, KEY, Known, PACKET_LEN, refused};
use crate::rule::{Rule, Verdict};

/// Minimum number of rules with filters for a tree; fewer are tested one after the other.
const RULES_MIN: usize = 3;
/// Stack offset of the first rule of the tree that matches so far. The key is not needed any more.
const BEST: i16 = KEY;
/// Cost of a rule in addition to its filter.
const RULE_COST: usize = 8;
/// After this many instructions, jumps to the end of the program go through an intermediate jump.
/// The longest possible jump is over 32,767 instructions.
const RELAY_LEN: usize = 20_000;

/// The rules from `from` on that can share a tree.
pub(super) fn part(rules: &[Rule], from: usize, known: &Known, insns_max: usize) -> Range<usize> {
    let mut end = from;
    let mut insns = 0;
    for rule in &rules[from..] {
        let mut needed = *known;
        needed.add(rule);
        insns += cost(rule);
        // Rules with prefix lists but without a filter need no tree; usually they come first and
        // let packets pass.
        let is_other = rules[from].matcher.is_none() && rule.matcher.is_some();
        if end > from && (needed != *known || insns > insns_max || is_other) {
            break;
        }
        end += 1;
    }
    from..end
}

fn cost(rule: &Rule) -> usize {
    let insns = rule.matcher.as_ref().map_or(0, |m| m.insns().len());
    insns + RULE_COST
}

/// Whether a tree makes these rules faster.
pub(super) fn is_worthwhile(rules: &[Rule]) -> bool {
    rules.iter().filter(|rule| rule.matcher.is_some()).count() >= RULES_MIN
}

/// For each rule, the label to which packets with more buffers go.
pub(super) struct Slow {
    entries: Vec<Label>,
    relayed_at: usize,
}

impl Slow {
    pub fn new(a: &mut Asm, rule_count: usize) -> Self {
        Self {
            entries: (0..rule_count).map(|_| a.label()).collect(),
            relayed_at: 0,
        }
    }

    /// The label of the rule.
    pub fn entry(&self, index: usize) -> Label {
        self.entries[index]
    }

    /// Adds intermediate jumps if the distance requires it.
    fn relay(&mut self, a: &mut Asm) {
        if a.len() < self.relayed_at + RELAY_LEN {
            return;
        }
        for entry in &mut self.entries {
            if a.is_used(*entry) {
                a.bind(*entry);
                *entry = a.label();
                a.jump(*entry);
            }
        }
        self.relayed_at = a.len();
    }
}

/// Emits rules as a tree; returns whether any packet gets past them.
pub(super) fn emit(
    emitter: &Emitter<'_>,
    a: &mut Asm,
    part: Range<usize>,
    slow: &mut Slow,
) -> Result<bool, EmitError> {
    let rules = &emitter.rules[part.clone()];
    let tree = tree_of(rules, emitter.features.indirect);
    let labels: Vec<Label> = tree.leaves.iter().map(|_| a.label()).collect();
    let mut leaves = Leaves {
        emitter,
        tree: &tree,
        first: part.start,
        hits: rules.iter().map(|_| a.label()).collect(),
        notes: BTreeMap::new(),
        best: a.label(),
        nodes: Vec::new(),
        counts_before: part.end,
        past: a.label(),
        slow,
    };
    let first_count = rules.iter().position(|rule| rule.verdict == Verdict::Count);
    leaves.counts_before = first_count.map_or(part.end, |at| part.start + at);
    a.load(Width::D, R9, R10, PACKET_LEN);
    let to = TreeTargets {
        leaves: &labels,
        slow: leaves.slow.entry(part.start),
        best: BEST,
    };
    leaves.nodes = translate::emit_xdp_tree(a, &tree, &emitter.options(), &to);
    for (leaf, label) in labels.iter().enumerate() {
        // The root may be the only leaf, and an empty leaf needs no code.
        if a.is_used(*label) {
            leaves.slow.relay(a);
            a.bind(*label);
            leaves.leaf(a, leaf)?;
        }
    }
    leaves.notes(a);
    leaves.acts(a)?;
    let is_open = a.is_used(leaves.past);
    a.bind(leaves.past);
    Ok(is_open)
}

fn tree_of(rules: &[Rule], indirect: bool) -> Tree {
    let insns: usize = rules.iter().map(cost).sum();
    let options = decide::Options {
        indirect,
        insn_count_max: 2 * insns + 4_000,
    };
    let rules: Vec<_> = rules
        .iter()
        .map(|rule| decide::Rule {
            program: rule.matcher.as_ref(),
            decides: rule.verdict.decides() && !rule.has_lists(),
        })
        .collect();
    Tree::new(&rules, &options)
}

struct Leaves<'a, 'b> {
    emitter: &'a Emitter<'a>,
    tree: &'a Tree,
    /// Index of the first rule of the tree.
    first: usize,
    /// For each rule that decides, the label of its verdict.
    hits: Vec<Label>,
    /// Matches in a part of the tree that are not yet the packet's verdict.
    notes: BTreeMap<(Part, usize), Label>,
    /// Where the verdict of the first rule that matches is looked up, after all parts.
    best: Label,
    /// The labels of the tree's nodes.
    nodes: Vec<Label>,
    /// The first rule that counts without deciding.
    counts_before: usize,
    past: Label,
    slow: &'b mut Slow,
}

impl Leaves<'_, '_> {
    fn leaf(&mut self, a: &mut Asm, at: usize) -> Result<(), EmitError> {
        let part = self.tree.parts[at];
        for candidate in &self.tree.leaves[at] {
            let index = self.first + candidate.index;
            let rule = &self.emitter.rules[index];
            let miss = a.label();
            let is_count = rule.verdict == Verdict::Count;
            let hit = match part {
                _ if is_count => a.label(),
                None => self.hits[candidate.index],
                Some(part) => self.hit_in_part(a, part, candidate.index),
            };
            self.emitter.test_lists(a, rule, miss);
            match &candidate.program {
                None if is_count => {}
                None => a.jump(hit),
                Some(program) => {
                    // In parts, and before the first counting rule, no rule has counted this
                    // packet.
                    let slow = match part.is_some() || index <= self.counts_before {
                        true => self.first,
                        false => index,
                    };
                    let slow = self.slow.entry(slow);
                    let options = self.emitter.options();
                    translate::emit_xdp_direct(a, program, &options, (hit, miss), slow)
                        .map_err(|why| refused(rule, why))?;
                }
            }
            if is_count && (candidate.program.is_none() || a.is_used(hit)) {
                a.bind(hit);
                self.emitter.act(a, index)?;
            } else if !a.is_used(miss) {
                return Ok(());
            }
            a.bind(miss);
        }
        a.jump(self.after(part));
        Ok(())
    }

    /// Where a packet goes that no rule of a leaf matches.
    fn after(&self, part: Option<Part>) -> Label {
        let Some(part) = part else {
            return self.past;
        };
        match self.tree.roots(part.all).get(part.at + 1) {
            Some(root) => self.nodes[*root],
            None => self.best,
        }
    }

    /// Where a packet goes that a rule matches in a part of the tree.
    fn hit_in_part(&mut self, a: &mut Asm, part: Part, index: usize) -> Label {
        let note = self.notes.entry((part, index));
        *note.or_insert_with(|| a.label())
    }

    /// Notes matches in parts of the tree, and looks up the first rule's verdict.
    fn notes(&mut self, a: &mut Asm) {
        let firsts = self.tree.first_of_parts();
        let mut noted = BTreeSet::new();
        for (&(part, index), label) in &self.notes {
            if !a.is_used(*label) {
                continue;
            }
            a.bind(*label);
            let others = firsts.iter().filter(|(other, _)| other.all == part.all);
            // No rule of these parts comes before this one.
            let is_before = |at: Range<usize>| {
                others
                    .clone()
                    .all(|(other, first)| !at.contains(&other.at) || index < *first)
            };
            let is_last = is_before(part.at + 1..usize::MAX);
            let after = match is_last {
                true => self.best,
                false => self.after(Some(part)),
            };
            if is_last && is_before(0..part.at) {
                a.jump(self.hits[index]);
                continue;
            }
            let is_later = a.label();
            a.load(Width::W, R1, R10, BEST);
            a.jump32_if(Cond::Le, R1, index as i32, is_later);
            a.store(Width::W, R10, BEST, index as i32);
            a.bind(is_later);
            a.jump(after);
            noted.insert(index);
        }
        if a.is_used(self.best) {
            a.bind(self.best);
            a.load(Width::W, R1, R10, BEST);
            let noted: Vec<_> = noted.into_iter().collect();
            self.verdict(a, &noted);
        }
    }

    /// Goes to the verdict of the rule in R1, by binary search; past the tree if it is none.
    fn verdict(&self, a: &mut Asm, noted: &[usize]) {
        if noted.len() > 4 {
            let (low, high) = noted.split_at(noted.len() / 2);
            let upper = a.label();
            a.jump32_if(Cond::Ge, R1, high[0] as i32, upper);
            self.verdict(a, low);
            a.bind(upper);
            return self.verdict(a, high);
        }
        for index in noted {
            a.jump32_if(Cond::Eq, R1, *index as i32, self.hits[*index]);
        }
        a.jump(self.past);
    }

    fn acts(&mut self, a: &mut Asm) -> Result<(), EmitError> {
        for (at, hit) in self.hits.iter().enumerate() {
            if a.is_used(*hit) {
                a.bind(*hit);
                self.emitter.act(a, self.first + at)?;
            }
        }
        Ok(())
    }
}
