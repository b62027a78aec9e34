//! Many filters as one decision tree.
//!
//! Each node loads one field of the packet and continues by its value; a leaf is a list of filters
//! in the order given, reduced to what the way there has left open. A packet comes to one leaf,
//! and its filters match the packet exactly when the filters with these indices do, of all that
//! were given; those that the leaf does not have do not match it. A packet that ends before a
//! field has an arm of its own, so that only the filters that need the field are done with.
//!
//! How it is made: [`walk`] runs a filter on what is known about a packet, [`reduce`] takes out
//! what is certain, [`choose`] picks the field whose values leave the fewest ways to match. The
//! leaf with the most is split first, until nothing helps or the instructions of all leaves reach
//! [`Options::insn_count_max`]. Nothing depends on the choice but the size and the speed.

use alloc::vec::Vec;

use crate::cbpf::{Program, Width};

mod build;
mod choose;
mod facts;
mod reduce;
mod value;
mod walk;

/// What the offset of a field is counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Base {
    /// The packet's first byte.
    Start,
    /// 4 times the low four bits of the byte at this offset: the length of an IPv4 header that
    /// begins there.
    Header(u32),
}

impl Base {
    /// Its place in this packet.
    fn of(self, bytes: &[u8]) -> Option<u32> {
        match self {
            Self::Start => Some(0),
            Self::Header(at) => Some(u32::from(bytes.get(at as usize)? & 0xf) << 2),
        }
    }
}

/// Bits of a number in the packet, in network byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Field {
    /// What the offset is counted from.
    pub base: Base,
    /// Where it begins.
    pub off: u32,
    /// How long it is.
    pub width: Width,
    /// Which of its bits count.
    pub mask: u32,
}

impl Field {
    /// Its value in this packet; `None` if the packet ends before.
    pub fn of(&self, bytes: &[u8]) -> Option<u32> {
        let at = self.base.of(bytes)?.checked_add(self.off)? as usize;
        let bytes = bytes.get(at..at.checked_add(self.width.bytes() as usize)?)?;
        let value = bytes
            .iter()
            .fold(0, |all, byte| all << 8 | u32::from(*byte));
        Some(value & self.mask)
    }
}

/// A filter to decide about.
#[derive(Clone, Copy, Debug)]
pub struct Rule<'a> {
    /// The filter; none matches every packet.
    pub program: Option<&'a Program>,
    /// No later filter matters for a packet that it matches.
    pub decides: bool,
}

/// Bounds of a tree.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Fields behind headers of variable length may be compared ([`Base::Header`]).
    pub indirect: bool,
    /// Most instructions in all leaves together. No leaf is split any more beyond, so the filters
    /// themselves may be longer.
    pub insn_count_max: usize,
}

/// A filter in a leaf.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    /// Its index among the filters given.
    pub index: usize,
    /// What of it is to be tested; none matches every packet that comes here.
    pub program: Option<Program>,
}

/// A place in the tree.
#[derive(Clone, Debug)]
pub enum Node {
    /// Branches by a field.
    Switch(Switch),
    /// The filters to run, by index in [`Tree::leaves`].
    Leaf(usize),
}

/// Indices in [`Tree::nodes`] by the value of a field.
#[derive(Clone, Debug)]
pub struct Switch {
    /// The field.
    pub field: Field,
    /// How many bytes from the packet's beginning are known to be there, whichever way leads here.
    pub known_len: u32,
    /// By value, which are sorted.
    pub arms: Vec<(u32, usize)>,
    /// For all other values.
    pub other: usize,
    /// For packets that end before the field does.
    pub short: usize,
}

/// A decision tree.
#[derive(Clone, Debug)]
pub struct Tree {
    /// The first is the root.
    pub nodes: Vec<Node>,
    /// Lists of filters, all different.
    pub leaves: Vec<Vec<Candidate>>,
}

impl Tree {
    /// The tree for these filters.
    pub fn new(rules: &[Rule<'_>], options: &Options) -> Self {
        build::build(rules, options)
    }

    /// The filters to run on this packet.
    pub fn leaf(&self, bytes: &[u8]) -> &[Candidate] {
        let mut at = 0;
        loop {
            match &self.nodes[at] {
                Node::Leaf(leaf) => return &self.leaves[*leaf],
                Node::Switch(switch) => {
                    at = match switch.field.of(bytes) {
                        None => switch.short,
                        Some(value) => switch
                            .arms
                            .binary_search_by_key(&value, |(value, _)| *value)
                            .map_or(switch.other, |arm| switch.arms[arm].1),
                    };
                }
            }
        }
    }
}
