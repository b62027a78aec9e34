//! Emits rules as a decision tree: only those rules are tested for a packet that its fields allow,
//! each without the tests already answered.
//!
//! ```text
//!   fields ─> leaf: rule 3, rule 17 ─> verdict, emitted once for each rule
//!         └─> leaf: none            ─> the next part
//! ```
//!
//! Consecutive rules that need the same look-ups share a tree. If a packet has several buffers, and
//! the first is too short for a field, the rules are evaluated one after the other by code at the
//! end of the program ([`Slow`]); if rules have already counted the packet, that code starts with
//! the rule at which the tree stopped.

use std::ops::Range;

use bpf::asm::{Asm, Label};
use bpf::decide::{self, Candidate, Tree};
use bpf::ebpf::Reg::{R9, R10};
use bpf::ebpf::Width;
use bpf::translate;

use super::{EmitError, Emitter, Known, PACKET_LEN, refused};
use crate::rule::{Rule, Verdict};

/// Minimum number of rules with filters for a tree; fewer are tested one after the other.
const RULES_MIN: usize = 3;
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
        first: part.start,
        hits: rules.iter().map(|_| a.label()).collect(),
        counts_before: part.end,
        past: a.label(),
        slow,
    };
    let first_count = rules.iter().position(|rule| rule.verdict == Verdict::Count);
    leaves.counts_before = first_count.map_or(part.end, |at| part.start + at);
    a.load(Width::D, R9, R10, PACKET_LEN);
    let begin = leaves.slow.entry(part.start);
    translate::emit_xdp_tree(a, &tree, &emitter.options(), &labels, begin);
    for (leaf, label) in tree.leaves.iter().zip(&labels) {
        // The root may be the only leaf, and an empty leaf needs no code.
        if a.is_used(*label) {
            leaves.slow.relay(a);
            a.bind(*label);
            leaves.leaf(a, leaf)?;
        }
    }
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
            decides: rule.verdict.decides()
                && rule.sources.is_none()
                && rule.destinations.is_none(),
        })
        .collect();
    Tree::new(&rules, &options)
}

struct Leaves<'a, 'b> {
    emitter: &'a Emitter<'a>,
    /// Index of the first rule of the tree.
    first: usize,
    /// For each rule that decides, the label of its verdict.
    hits: Vec<Label>,
    /// The first rule that counts without deciding.
    counts_before: usize,
    past: Label,
    slow: &'b mut Slow,
}

impl Leaves<'_, '_> {
    fn leaf(&mut self, a: &mut Asm, leaf: &[Candidate]) -> Result<(), EmitError> {
        for candidate in leaf {
            let index = self.first + candidate.index;
            let rule = &self.emitter.rules[index];
            let miss = a.label();
            let is_count = rule.verdict == Verdict::Count;
            let hit = match is_count {
                true => a.label(),
                false => self.hits[candidate.index],
            };
            self.emitter.test_lists(a, rule, miss);
            match &candidate.program {
                None if is_count => {}
                None => a.jump(hit),
                Some(program) => {
                    // No rule before the first counting one has counted this packet.
                    let slow = match index <= self.counts_before {
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
        a.jump(self.past);
        Ok(())
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
