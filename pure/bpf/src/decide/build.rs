//! Builds the tree: the leaf with the most ways to match is split first.

use alloc::collections::{BTreeMap, BinaryHeap};
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Ordering;

use super::choose::choose;
use super::facts::{Bits, Facts};
use super::reduce::{Reduced, reduce};
use super::{Base, Candidate, Field, Node, Options, Rule, Switch, Tree};
use crate::cbpf::Insn;

/// Maximum number of fields that are compared on the path to a leaf.
const DEPTH_MAX: u32 = 24;
/// Cost of a filter in addition to its instructions.
const RULE_COST: usize = 8;

/// A filter that may match the packets of a leaf.
#[derive(Clone)]
struct Left {
    index: usize,
    decides: bool,
    /// `None` matches every packet.
    rest: Option<Rc<Reduced>>,
}

impl Left {
    fn is_certain(&self) -> bool {
        self.rest.as_ref().is_none_or(|rest| rest.is_certain)
    }

    fn way_count(&self) -> usize {
        self.rest.as_ref().map_or(0, |rest| rest.ways.len())
    }

    fn cost(&self) -> usize {
        let insns = self
            .rest
            .as_ref()
            .map_or(0, |rest| rest.program.insns().len());
        insns + RULE_COST
    }

    /// The filter reduced by additional facts; `None` if it cannot match.
    fn reduced(&self, facts: &Facts) -> Option<Self> {
        let rest = match &self.rest {
            None => None,
            Some(rest) => Some(Rc::new(reduce(&rest.program, facts)?)),
        };
        Some(Self { rest, ..*self })
    }

    /// The bits of a field that each way to match requires; `None` if any packet matches.
    fn required(&self, field: &Field) -> Option<Vec<Bits>> {
        let bits = |way: &Facts| {
            let bits = way.bits(field.base, field.off, field.width);
            Bits {
                mask: bits.mask & field.mask,
                ..bits
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
    left: Vec<Left>,
    way_count: usize,
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

/// Identifies equal lists of filters: index and instructions of each.
type LeafKey = Vec<(usize, Vec<(u16, u8, u8, u32)>)>;

struct Builder {
    options: Options,
    nodes: Vec<Node>,
    leaves: Vec<Vec<Candidate>>,
    leaf_of: BTreeMap<LeafKey, usize>,
    open: BinaryHeap<Open>,
    cost: usize,
}

pub(super) fn build(rules: &[Rule<'_>], options: &Options) -> Tree {
    let facts = Facts::default();
    let left = rules.iter().enumerate().filter_map(|(index, rule)| {
        let rest = match rule.program {
            None => None,
            Some(program) => Some(Rc::new(reduce(program, &facts)?)),
        };
        let decides = rule.decides;
        Some(Left {
            index,
            decides,
            rest,
        })
    });
    let left = up_to_certain(left);
    let mut builder = Builder {
        options: *options,
        nodes: Vec::new(),
        leaves: Vec::new(),
        leaf_of: BTreeMap::new(),
        open: BinaryHeap::new(),
        cost: left.iter().map(Left::cost).sum(),
    };
    builder.add(facts, left, 0);
    while let Some(open) = builder.open.pop() {
        if !builder.split(&open) {
            builder.close(open.node, &open.left);
        }
    }
    Tree {
        nodes: builder.nodes,
        leaves: builder.leaves,
    }
}

/// Removes all filters after one that matches every packet and decides.
fn up_to_certain(left: impl Iterator<Item = Left>) -> Vec<Left> {
    let mut list = Vec::new();
    for left in left {
        let is_last = left.decides && left.is_certain();
        list.push(left);
        if is_last {
            break;
        }
    }
    list
}

impl Builder {
    fn close(&mut self, node: usize, left: &[Left]) {
        let words = |insn: &Insn| (insn.code, insn.jt, insn.jf, insn.k);
        let key = left.iter().map(|left| match &left.rest {
            Some(rest) if !rest.is_certain => {
                (left.index, rest.program.insns().iter().map(words).collect())
            }
            _ => (left.index, Vec::new()),
        });
        let leaves = &mut self.leaves;
        let leaf = *self.leaf_of.entry(key.collect()).or_insert_with(|| {
            let candidates = left.iter().map(|left| Candidate {
                index: left.index,
                program: match &left.rest {
                    Some(rest) if !rest.is_certain => Some(rest.program.clone()),
                    _ => None,
                },
            });
            leaves.push(candidates.collect());
            leaves.len() - 1
        });
        self.nodes[node] = Node::Leaf(leaf);
    }

    /// Adds a leaf with these filters; returns its index.
    fn add(&mut self, facts: Facts, left: Vec<Left>, depth: u32) -> usize {
        let node = self.nodes.len();
        self.nodes.push(Node::Leaf(0));
        let testing = left.iter().filter(|left| !left.is_certain()).count();
        if testing <= 1 || depth >= DEPTH_MAX {
            self.close(node, &left);
        } else {
            let way_count = left.iter().map(Left::way_count).sum();
            self.open.push(Open {
                node,
                depth,
                facts,
                left,
                way_count,
            });
        }
        node
    }

    /// Splits a leaf by a field. Returns `false` if no field helps, or the tree would become too
    /// large.
    fn split(&mut self, open: &Open) -> bool {
        let own: usize = open.left.iter().map(Left::cost).sum();
        let room = self.options.insn_count_max.saturating_sub(self.cost) + own;
        // The number of ways that fit; fewer do if they are longer than average.
        let mut ways_max = room * open.way_count / own.max(1);
        while ways_max >= open.way_count {
            if self.split_within(open, own, ways_max) {
                return true;
            }
            ways_max /= 2;
        }
        false
    }

    fn split_within(&mut self, open: &Open, own: usize, ways_max: usize) -> bool {
        let rest = open.left.iter().filter_map(|left| left.rest.as_deref());
        let Some((field, values)) = choose(rest, &open.facts, &self.options, ways_max) else {
            return false;
        };
        let required: Vec<_> = open.left.iter().map(|left| left.required(&field)).collect();
        let mut arms = Vec::new();
        for &value in &values {
            arms.extend(arm(open, &field, value, &required).map(|arm| (value, arm)));
        }
        let other = rest_arm(open, &field, &values);
        let short = short_arm(open, &field);
        let all = arms.iter().map(|(_, arm)| arm).chain([&other, &short]);
        let added: usize = all.flat_map(|(_, left)| left).map(Left::cost).sum();
        let cost = self.cost - own + added;
        if cost > self.options.insn_count_max {
            return false;
        }
        self.cost = cost;
        let depth = open.depth + 1;
        let mut add = |(facts, left)| self.add(facts, left, depth);
        let arms = arms
            .into_iter()
            .map(|(value, arm)| (value, add(arm)))
            .collect();
        let (other, short) = (add(other), add(short));
        self.nodes[open.node] = Node::Switch(Switch {
            field,
            known_len: open.facts.least(Base::Start),
            arms,
            other,
            short,
        });
        true
    }
}

type Arm = (Facts, Vec<Left>);

fn left_with(open: &Open, facts: &Facts, allows: impl Fn(usize) -> bool) -> Vec<Left> {
    let allowed = open.left.iter().enumerate().filter(|(at, _)| allows(*at));
    up_to_certain(allowed.filter_map(|(_, left)| left.reduced(facts)))
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

fn arm(open: &Open, field: &Field, value: u32, required: &[Option<Vec<Bits>>]) -> Option<Arm> {
    let mut facts = present(open, field)?;
    let mask = field.mask;
    let is_possible = facts.learn(field.base, field.off, field.width, Bits { mask, value });
    let fits = |bits: &Bits| bits.mask & (bits.value ^ value) == 0;
    let allows = |at: usize| {
        required[at]
            .as_ref()
            .is_none_or(|ways| ways.iter().any(fits))
    };
    let left = left_with(open, &facts, allows);
    is_possible.then_some((facts, left))
}

fn rest_arm(open: &Open, field: &Field, values: &[u32]) -> Arm {
    let Some(mut facts) = present(open, field) else {
        return (Facts::default(), vec![]);
    };
    let is_possible = facts.exclude(*field, values.into());
    let left = left_with(open, &facts, |_| is_possible);
    (facts, left)
}

fn short_arm(open: &Open, field: &Field) -> Arm {
    let mut facts = open.facts.clone();
    let is_possible = facts.absent(field.base, field.off + field.width.bytes());
    let left = left_with(open, &facts, |_| is_possible);
    (facts, left)
}
