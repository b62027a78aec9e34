//! Combines many filters into one decision tree.
//!
//! Each node loads one field of the packet and branches on its value. A leaf is a list of filters
//! in their original order, without the tests that the path to the leaf has already answered. Every
//! packet reaches exactly one leaf. A filter in the leaf matches the packet exactly if the original
//! filter with the same index does; filters that are not in the leaf do not match. Each node has a
//! separate branch for packets that end before the field, so that only the filters which need the
//! field are excluded there.
//!
//! How the tree is built: `walk` runs a filter on what is known about a packet, `reduce` removes
//! the tests whose result is known, and `choose` selects the field whose values leave the fewest
//! ways to match. The leaf with the most ways is split first, until no field helps or the
//! instructions of all leaves reach [`Options::insn_count_max`]. Filters that test different fields
//! are separated by `group`, if every match ends the evaluation: a tree for each field, all of them
//! walked one after the other. The choice of fields affects only size and speed.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use crate::cbpf::{Program, Width};

mod build;
mod choose;
mod facts;
mod group;
mod reduce;
mod value;
mod walk;

/// The origin of a field's offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Base {
    /// The packet's first byte.
    Start,
    /// 4 times the low four bits of the byte at this offset: the length of an IPv4 header that
    /// begins there.
    Header(u32),
}

impl Base {
    /// The offset of this base in a packet.
    fn of(self, bytes: &[u8]) -> Option<u32> {
        match self {
            Self::Start => Some(0),
            Self::Header(at) => Some(u32::from(bytes.get(at as usize)? & 0xf) << 2),
        }
    }
}

/// A number in the packet, in network byte order, and the bits of it that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Field {
    /// The origin of the offset.
    pub base: Base,
    /// The offset of the first byte.
    pub off: u32,
    /// Its width.
    pub width: Width,
    /// The bits that are compared.
    pub mask: u32,
}

impl Field {
    /// Its value in a packet; `None` if the packet ends before it.
    pub fn of(&self, bytes: &[u8]) -> Option<u32> {
        let at = self.base.of(bytes)?.checked_add(self.off)? as usize;
        let bytes = bytes.get(at..at.checked_add(self.width.bytes() as usize)?)?;
        let value = bytes
            .iter()
            .fold(0, |all, byte| all << 8 | u32::from(*byte));
        Some(value & self.mask)
    }
}

/// A filter as input of a decision tree.
#[derive(Clone, Copy, Debug)]
pub struct Rule<'a> {
    /// The filter; `None` matches every packet.
    pub program: Option<&'a Program>,
    /// Whether a match ends the evaluation: later filters do not matter then.
    pub decides: bool,
}

/// Limits of a tree.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether fields behind headers of variable length may be compared ([`Base::Header`]).
    pub indirect: bool,
    /// Limit for the instructions of all leaves together. Beyond it no leaf is split; the filters
    /// themselves may be longer.
    pub insn_count_max: usize,
}

/// A filter in a leaf.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    /// Its index in the input.
    pub index: usize,
    /// The tests that remain; `None` matches every packet that reaches the leaf.
    pub program: Option<Program>,
}

/// A node of the tree.
#[derive(Clone, Debug)]
pub enum Node {
    /// Branches on a field.
    Switch(Switch),
    /// A leaf: its index in [`Tree::leaves`].
    Leaf(usize),
    /// Trees that are all walked, by their roots in [`Tree::nodes`]: any of their leaves may
    /// contain the packet's first match. All filters in them decide; a filter may be in several.
    All(Vec<usize>),
}

/// The tree of a [`Node::All`] that a leaf belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// The index of the [`Node::All`] in [`Tree::nodes`].
    pub all: usize,
    /// The number of the tree in it.
    pub at: usize,
}

/// A branch on the value of a field, with indices in [`Tree::nodes`].
#[derive(Clone, Debug)]
pub struct Switch {
    /// The field.
    pub field: Field,
    /// Minimum length, in bytes, of every packet that reaches this node.
    pub known_len: u32,
    /// The nodes by value, in ascending order.
    pub arms: Vec<(u32, usize)>,
    /// The node for all other values.
    pub other: usize,
    /// The node for packets that end before the end of the field.
    pub short: usize,
}

/// A decision tree.
#[derive(Clone, Debug)]
pub struct Tree {
    /// The nodes; the first is the root.
    pub nodes: Vec<Node>,
    /// The lists of filters, without duplicates in the same part.
    pub leaves: Vec<Vec<Candidate>>,
    /// For each leaf, the part it belongs to.
    pub parts: Vec<Option<Part>>,
}

impl Tree {
    /// Builds the tree for these filters.
    pub fn new(rules: &[Rule<'_>], options: &Options) -> Self {
        build::build(rules, options)
    }

    /// The filters to run on a packet, in their original order.
    pub fn leaf(&self, bytes: &[u8]) -> Vec<&Candidate> {
        let mut found = Vec::new();
        let mut open = vec![0];
        while let Some(at) = open.pop() {
            match &self.nodes[at] {
                Node::Leaf(leaf) => found.extend(&self.leaves[*leaf]),
                Node::All(roots) => open.extend(roots),
                Node::Switch(switch) => open.push(match switch.field.of(bytes) {
                    None => switch.short,
                    Some(value) => switch
                        .arms
                        .binary_search_by_key(&value, |(value, _)| *value)
                        .map_or(switch.other, |arm| switch.arms[arm].1),
                }),
            }
        }
        found.sort_by_key(|candidate| candidate.index);
        found
    }

    /// The roots of the trees of a [`Node::All`].
    pub fn roots(&self, all: usize) -> &[usize] {
        match &self.nodes[all] {
            Node::All(roots) => roots,
            _ => &[],
        }
    }

    /// The root of the tree that is walked after a leaf; `None` if the leaf ends the walk.
    pub fn after(&self, leaf: usize) -> Option<usize> {
        let part = self.parts[leaf]?;
        self.roots(part.all).get(part.at + 1).copied()
    }

    /// The lowest index of a filter in each part.
    pub fn first_of_parts(&self) -> BTreeMap<Part, usize> {
        let mut firsts = BTreeMap::new();
        for (leaf, part) in self.leaves.iter().zip(&self.parts) {
            let indices = leaf.iter().map(|candidate| candidate.index);
            if let (Some(part), Some(first)) = (*part, indices.min()) {
                let known = firsts.entry(part).or_insert(first);
                *known = first.min(*known);
            }
        }
        firsts
    }
}
