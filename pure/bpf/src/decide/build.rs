//! Builds the tree: the leaf with the most ways to match is split first.

use alloc::collections::{BTreeMap, BTreeSet, BinaryHeap};
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Ordering;

use super::choose::{Choice, Fields};
use super::facts::{Bits, Facts};
use super::group::{Division, Group, divide};
use super::reduce::{Reduced, reduce};
use super::{Base, Candidate, Field, Node, Options, Part, Rule, Switch, Tree};
use crate::cbpf::Insn;

/// Maximum number of fields that are compared on the path to a leaf.
const DEPTH_MAX: u32 = 24;
/// Cost of a filter in addition to its instructions.
const RULE_COST: usize = 8;
/// Fewer ways to match are not divided by fields.
const WAYS_MIN: usize = 16;
/// How many times fewer ways a division must leave than a split, whose arms may be split further.
const GAIN_MIN: usize = 2;

/// A filter that may match the packets of a leaf.
#[derive(Clone)]
struct Remaining {
    index: usize,
    decides: bool,
    /// `None` matches every packet.
    rest: Option<Rc<Reduced>>,
}

impl Remaining {
    fn is_certain(&self) -> bool {
        self.rest.as_ref().is_none_or(|rest| rest.is_certain)
    }

    fn way_count(&self) -> usize {
        self.rest.as_ref().map_or(0, |rest| rest.ways.len())
    }

    fn cost(&self) -> usize {
        let insns = self.rest.as_ref().map_or(0, |rest| rest.insns.len());
        insns + RULE_COST
    }

    /// The filter reduced by additional facts; `None` if it cannot match. `about` is the field that
    /// all these facts are about, except for the packet's length.
    fn reduced(&self, facts: &Facts, about: Option<&Field>) -> Option<Self> {
        let rest = match &self.rest {
            None => None,
            Some(rest) if about.is_some_and(|field| !rest.reads(field)) => Some(rest.clone()),
            Some(rest) => Some(Rc::new(rest.reduced(facts)?)),
        };
        Some(Self { rest, ..*self })
    }

    fn required(&self, field: &Field) -> Required {
        let bits = |way: &Facts| {
            let bits = way.bits(field.base, field.off, field.width);
            Bits {
                mask: bits.mask & field.mask,
                value: bits.value & field.mask,
            }
        };
        Some(self.rest.as_ref()?.ways.iter().map(bits).collect())
    }
}

/// A leaf that may be split.
struct Open {
    node: usize,
    depth: u32,
    facts: Facts,
    remaining: Vec<Remaining>,
    way_count: usize,
    part: Option<Part>,
}

impl Open {
    fn order(&self) -> (usize, core::cmp::Reverse<usize>) {
        (self.way_count, core::cmp::Reverse(self.node))
    }
}

impl PartialEq for Open {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Open {}

impl PartialOrd for Open {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Open {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

/// Identifies equal lists of filters: the part, and index and instructions of each.
type LeafKey = (Option<Part>, Vec<(usize, Vec<(u16, u8, u8, u32)>)>);

struct Builder {
    options: Options,
    nodes: Vec<Node>,
    leaves: Vec<Vec<Candidate>>,
    parts: Vec<Option<Part>>,
    leaf_of: BTreeMap<LeafKey, usize>,
    open: BinaryHeap<Open>,
    cost: usize,
}

pub(super) fn build(rules: &[Rule<'_>], options: &Options) -> Tree {
    let facts = Facts::default();
    let remaining = rules.iter().enumerate().filter_map(|(index, rule)| {
        let rest = match rule.program {
            None => None,
            Some(program) => Some(Rc::new(reduce(program, &facts)?)),
        };
        let decides = rule.decides;
        Some(Remaining {
            index,
            decides,
            rest,
        })
    });
    let remaining = up_to_certain(remaining);
    let mut builder = Builder {
        options: *options,
        nodes: Vec::new(),
        leaves: Vec::new(),
        parts: Vec::new(),
        leaf_of: BTreeMap::new(),
        open: BinaryHeap::new(),
        cost: remaining.iter().map(Remaining::cost).sum(),
    };
    builder.add((facts, remaining), 0, None);
    while let Some(open) = builder.open.pop() {
        if !builder.split(&open) {
            builder.close(open.node, &open.remaining, open.part);
        }
    }
    Tree {
        nodes: builder.nodes,
        leaves: builder.leaves,
        parts: builder.parts,
    }
}

/// Removes all filters after one that matches every packet and decides.
fn up_to_certain(remaining: impl Iterator<Item = Remaining>) -> Vec<Remaining> {
    let mut list = Vec::new();
    for remaining in remaining {
        let is_last = remaining.decides && remaining.is_certain();
        list.push(remaining);
        if is_last {
            break;
        }
    }
    list
}

impl Builder {
    fn close(&mut self, node: usize, remaining: &[Remaining], part: Option<Part>) {
        let words = |insn: &Insn| (insn.code, insn.jt, insn.jf, insn.k);
        let key = remaining.iter().map(|remaining| match &remaining.rest {
            Some(rest) if !rest.is_certain => {
                (remaining.index, rest.insns.iter().map(words).collect())
            }
            _ => (remaining.index, Vec::new()),
        });
        let (leaves, parts) = (&mut self.leaves, &mut self.parts);
        let key = (part, key.collect());
        let leaf = *self.leaf_of.entry(key).or_insert_with(|| {
            let candidates = remaining.iter().map(|remaining| Candidate {
                index: remaining.index,
                program: match &remaining.rest {
                    Some(rest) if !rest.is_certain => Some(rest.program()),
                    _ => None,
                },
            });
            leaves.push(candidates.collect());
            parts.push(part);
            leaves.len() - 1
        });
        self.nodes[node] = Node::Leaf(leaf);
    }

    /// Adds a leaf with these filters; returns its index.
    fn add(&mut self, (facts, remaining): Arm, depth: u32, part: Option<Part>) -> usize {
        let node = self.nodes.len();
        self.nodes.push(Node::Leaf(0));
        let testing = remaining
            .iter()
            .filter(|remaining| !remaining.is_certain())
            .count();
        if testing <= 1 || depth >= DEPTH_MAX {
            self.close(node, &remaining, part);
        } else {
            let way_count = remaining.iter().map(Remaining::way_count).sum();
            self.open.push(Open {
                node,
                depth,
                facts,
                remaining,
                way_count,
                part,
            });
        }
        node
    }

    /// Splits a leaf. Returns `false` if no field helps, or the tree would become too large.
    fn split(&mut self, open: &Open) -> bool {
        let own: usize = open.remaining.iter().map(Remaining::cost).sum();
        let room = self.options.insn_count_max.saturating_sub(self.cost) + own;
        // The number of ways that fit; fewer do if they are longer than average.
        let mut ways_max = room * open.way_count / own.max(1);
        let mut may_divide = open.part.is_none()
            && open.way_count >= WAYS_MIN
            && open.remaining.iter().all(|remaining| remaining.decides);
        if ways_max < open.way_count && !may_divide {
            return false;
        }
        let rest = open.remaining.iter().filter_map(|r| r.rest.as_deref());
        let fields = Fields::new(rest, &open.facts, &self.options);
        while ways_max >= open.way_count || may_divide {
            let choice = fields.choose(ways_max);
            if core::mem::take(&mut may_divide) {
                // A field that few filters do not test comes first: its split copies only those.
                let few = fields.choose(ways_max.min(open.way_count + open.way_count / 2));
                let few = few.filter(|few| few.worst < open.way_count);
                if match few {
                    Some(few) => self.split_by(open, own, few.field, &few.values),
                    None => self.divide(open, own, choice.as_ref()),
                } {
                    return true;
                }
            }
            let Some(choice) = choice else {
                return false;
            };
            if self.split_by(open, own, choice.field, &choice.values) {
                return true;
            }
            // The same field would be too large again.
            ways_max = (ways_max / 2).min(choice.way_count.saturating_sub(1));
        }
        false
    }

    /// Replaces a leaf by a tree for each of several fields, if that leaves fewer ways to test than
    /// the choice of one field.
    fn divide(&mut self, open: &Open, own: usize, choice: Option<&Choice>) -> bool {
        let rest: Vec<_> = open.remaining.iter().map(|r| r.rest.as_deref()).collect();
        let Some(division) = divide(&rest, &open.facts, &self.options) else {
            return false;
        };
        let worst = choice.map_or(open.way_count, |choice| choice.worst);
        if division.worst() * GAIN_MIN > worst {
            return false;
        }
        let groups: Vec<_> = division
            .groups
            .iter()
            .map(|group| (group, group_arms(open, group)))
            .collect();
        let Division { rest, .. } = &division;
        let rest: Vec<_> = rest.iter().map(|at| open.remaining[*at].clone()).collect();
        let arms = groups.iter().flat_map(|(_, arms)| arms);
        let cost = arms.flat_map(|(_, arm)| &arm.1).chain(&rest);
        let cost = self.cost - own + cost.map(Remaining::cost).sum::<usize>();
        if cost > self.options.insn_count_max {
            return false;
        }
        self.cost = cost;
        let mut roots = Vec::new();
        for (group, arms) in groups {
            let part = Some(Part {
                all: open.node,
                at: roots.len(),
            });
            let node = self.nodes.len();
            self.nodes.push(Node::Leaf(0));
            let none = || (Facts::default(), Vec::new());
            let depth = open.depth + 2;
            self.switch(
                open,
                node,
                group.field,
                (arms, none(), none()),
                (depth, part),
            );
            roots.push(node);
        }
        if !rest.is_empty() {
            let part = Some(Part {
                all: open.node,
                at: roots.len(),
            });
            roots.push(self.add((open.facts.clone(), rest), open.depth + 1, part));
        }
        self.nodes[open.node] = Node::All(roots);
        true
    }

    /// Splits a leaf by a field. Returns `false` if the tree would become too large.
    fn split_by(&mut self, open: &Open, own: usize, field: Field, values: &[u32]) -> bool {
        let most = self.options.insn_count_max.saturating_add(own);
        let Some(mut room) = most.checked_sub(self.cost) else {
            return false;
        };
        let mut fits = |arm: &[Remaining]| {
            let cost = arm.iter().map(Remaining::cost).sum();
            let left = room.checked_sub(cost);
            room = left.unwrap_or(0);
            left.is_some()
        };
        let required: Vec<_> = open
            .remaining
            .iter()
            .map(|remaining| remaining.required(&field))
            .collect();
        let mut arms = Vec::new();
        for &value in values {
            let Some(arm) = arm(open, &field, value, &required) else {
                continue;
            };
            if !fits(&arm.1) {
                return false;
            }
            arms.push((value, arm));
        }
        let other = rest_arm(open, &field, values, &required);
        let short = short_arm(open, &field, &required);
        if !fits(&other.1) || !fits(&short.1) {
            return false;
        }
        self.cost = self.options.insn_count_max - room;
        let below = (open.depth + 1, open.part);
        self.switch(open, open.node, field, (arms, other, short), below);
        true
    }

    /// Makes a node a switch, with leaves of this depth and part.
    fn switch(
        &mut self,
        open: &Open,
        node: usize,
        field: Field,
        (arms, other, short): (Vec<(u32, Arm)>, Arm, Arm),
        (depth, part): (u32, Option<Part>),
    ) {
        let mut add = |arm| self.add(arm, depth, part);
        let arms = arms
            .into_iter()
            .map(|(value, arm)| (value, add(arm)))
            .collect();
        let (other, short) = (add(other), add(short));
        self.nodes[node] = Node::Switch(Switch {
            field,
            known_len: open.facts.least(Base::Start),
            arms,
            other,
            short,
        });
    }
}

/// The filters of a group by value. All other packets are none of its filters' matches.
fn group_arms(open: &Open, group: &Group) -> Vec<(u32, Arm)> {
    let arm = |(&value, filters): (&u32, &BTreeSet<usize>)| {
        let field = &group.field;
        let mut facts = present(open, field)?;
        let mask = field.mask;
        let is_possible = facts.learn(field.base, field.off, field.width, Bits { mask, value });
        let remaining = reduced_by(open, &facts, Some(field), |at| filters.contains(&at));
        is_possible.then_some((value, (facts, remaining)))
    };
    group.values.iter().filter_map(arm).collect()
}

type Arm = (Facts, Vec<Remaining>);

fn reduced_by(
    open: &Open,
    facts: &Facts,
    about: Option<&Field>,
    allows: impl Fn(usize) -> bool,
) -> Vec<Remaining> {
    let allowed = open
        .remaining
        .iter()
        .enumerate()
        .filter(|(at, _)| allows(*at));
    up_to_certain(allowed.filter_map(|(_, remaining)| remaining.reduced(facts, about)))
}

/// The facts if the packet contains the field; `None` if it cannot.
fn present(open: &Open, field: &Field) -> Option<Facts> {
    let mut facts = open.facts.clone();
    let is_possible = match field.base {
        Base::Start => true,
        Base::Header(at) => facts.present(Base::Start, at + 1),
    };
    let end = field.off + field.width.bytes();
    (facts.present(field.base, end) && is_possible).then_some(facts)
}

/// The bits of a field that each way to match requires; `None` if any packet matches.
type Required = Option<Vec<Bits>>;

/// Whether a filter may match, if only such ways can.
fn may(required: &Required, fits: impl Fn(&Bits) -> bool) -> bool {
    required.as_ref().is_none_or(|ways| ways.iter().any(fits))
}

fn arm(open: &Open, field: &Field, value: u32, required: &[Required]) -> Option<Arm> {
    let mut facts = present(open, field)?;
    let mask = field.mask;
    let is_possible = facts.learn(field.base, field.off, field.width, Bits { mask, value });
    let fits = |bits: &Bits| bits.mask & (bits.value ^ value) == 0;
    let allows = |at: usize| may(&required[at], fits);
    let remaining = reduced_by(open, &facts, Some(field), allows);
    is_possible.then_some((facts, remaining))
}

fn rest_arm(open: &Open, field: &Field, values: &[u32], required: &[Required]) -> Arm {
    let Some(mut facts) = present(open, field) else {
        return (Facts::default(), vec![]);
    };
    let is_possible = facts.exclude(*field, values.into());
    let fits = |bits: &Bits| bits.mask != field.mask || values.binary_search(&bits.value).is_err();
    let allows = |at: usize| is_possible && may(&required[at], fits);
    let remaining = reduced_by(open, &facts, Some(field), allows);
    (facts, remaining)
}

fn short_arm(open: &Open, field: &Field, required: &[Required]) -> Arm {
    let mut facts = open.facts.clone();
    let is_possible = facts.absent(field.base, field.off + field.width.bytes());
    // Known bits of the last byte are those of a byte that the packet has.
    let fits = |bits: &Bits| bits.mask & 0xff == 0;
    let allows = |at: usize| is_possible && may(&required[at], fits);
    let remaining = reduced_by(open, &facts, None, allows);
    (facts, remaining)
}
