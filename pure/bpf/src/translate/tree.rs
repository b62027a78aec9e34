//! Emits a decision tree for an XDP context: each field is loaded from the packet and compared with
//! its values, by binary search if there are many.
//!
//! Fields are compared without swapping their bytes: the constants are swapped instead.

use alloc::vec;
use alloc::vec::Vec;

use super::xdp::XdpOptions;
use super::{NO_MATCH, TreeTargets, ebpf_width};
use crate::asm::{Asm, Label};
use crate::cbpf;
use crate::decide::{Base, Field, Node, Switch, Tree};
use crate::ebpf::Reg::{R1, R2, R3, R4, R5, R6, R7, R9, R10};
use crate::ebpf::{Alu, Cond, Reg, Width};

/// Maximum number of values that are compared one after the other.
const IN_A_ROW: usize = 4;

/// Registers: R2 = packet, R3 = its end, R7 = the field; R1, R4 and R5 hold intermediate values.
struct Ways<'a> {
    asm: &'a mut Asm,
    tree: &'a Tree,
    options: &'a XdpOptions,
    slow: Label,
    /// The label of each node.
    labels: Vec<Label>,
    /// Whether the node comes after another tree, whose leaves may have changed R2.
    is_later: Vec<bool>,
}

pub(super) fn emit(
    asm: &mut Asm,
    tree: &Tree,
    options: &XdpOptions,
    to: &TreeTargets<'_>,
) -> Vec<Label> {
    let label = |node: &Node| match node {
        Node::Leaf(leaf) => to.leaves[*leaf],
        Node::Switch(_) | Node::All(_) => asm.label(),
    };
    let mut labels: Vec<_> = tree.nodes.iter().map(label).collect();
    let mut is_later = vec![false; tree.nodes.len()];
    for (at, node) in tree.nodes.iter().enumerate() {
        match node {
            Node::All(roots) => roots[1..].iter().for_each(|root| is_later[*root] = true),
            // Nothing to test: straight to the next tree.
            Node::Leaf(leaf) if tree.leaves[*leaf].is_empty() => {
                if let Some(next) = tree.after(*leaf) {
                    labels[at] = labels[next];
                }
            }
            _ => {}
        }
    }
    let mut ways = Ways {
        asm,
        tree,
        options,
        slow: to.slow,
        labels,
        is_later,
    };
    match &tree.nodes[0] {
        Node::Leaf(leaf) => ways.asm.jump(to.leaves[*leaf]),
        Node::Switch(_) | Node::All(_) => {
            ways.load_pointers();
            ways.nodes(to.best);
        }
    }
    ways.labels
}

impl Ways<'_> {
    fn load_pointers(&mut self) {
        let hook = self.options.hook;
        self.asm.load(Width::W, R2, R6, hook.data());
        self.asm.load(Width::W, R3, R6, hook.data_end());
    }

    fn nodes(&mut self, best: i16) {
        let tree = self.tree;
        for (at, node) in tree.nodes.iter().enumerate() {
            match node {
                Node::Leaf(_) => {}
                Node::Switch(switch) => {
                    self.asm.bind(self.labels[at]);
                    if self.is_later[at] {
                        // The verifier has to see the length checked again, too.
                        self.load_pointers();
                    }
                    self.switch(switch, self.is_later[at]);
                }
                Node::All(roots) => {
                    self.asm.bind(self.labels[at]);
                    self.asm.store(Width::W, R10, best, NO_MATCH);
                    self.asm.jump(self.labels[roots[0]]);
                }
            }
        }
    }

    fn switch(&mut self, switch: &Switch, is_later: bool) {
        let field = &switch.field;
        let short = self.labels[switch.short];
        let end = field.off + field.width.bytes();
        let known = if is_later { 0 } else { switch.known_len };
        let least = if is_later { switch.known_len } else { 0 };
        let mut shorts = Vec::new();
        let base = match field.base {
            Base::Start => {
                self.need((switch, known), None, end.max(least), &mut shorts);
                R2
            }
            Base::Header(at) => {
                self.need((switch, known), None, (at + 1).max(least), &mut shorts);
                self.asm.load(Width::B, R1, R2, at as i16);
                self.asm.alu32(Alu::And, R1, 0xf);
                self.asm.alu32(Alu::Lsh, R1, 2);
                self.asm.mov(R5, R2);
                self.asm.alu(Alu::Add, R5, R1);
                self.need((switch, known), Some(R1), end, &mut shorts);
                R5
            }
        };
        let off = field.off as i16;
        self.asm.load(ebpf_width(field.width), R7, base, off);
        if field.mask != full(field.width) {
            let mask = in_memory(field, field.mask);
            self.asm.alu32(Alu::And, R7, mask as i32);
        }
        let arms = switch.arms.iter();
        let mut arms: Vec<_> = arms
            .map(|(value, node)| (in_memory(field, *value), self.labels[*node]))
            .collect();
        arms.sort_unstable_by_key(|(value, _)| *value);
        self.arms(&arms, self.labels[switch.other]);
        // Distinguishes packets that are too short from those with more buffers.
        for (label, x, end) in shorts {
            self.asm.bind(label);
            match x {
                None => self.asm.jump_if(Cond::Lt, R9, end as i32, short),
                Some(x) => {
                    self.asm.alu(Alu::Add, x, end as i32);
                    self.asm.jump_if(Cond::Lt, R9, x, short);
                }
            }
            self.asm.jump(self.slow);
        }
    }

    /// Checks that the packet has this many bytes, counted from R5 if X is given, unless as many
    /// are known to be present.
    fn need(
        &mut self,
        (switch, known): (&Switch, u32),
        x: Option<Reg>,
        end: u32,
        shorts: &mut Vec<Short>,
    ) {
        if x.is_none() && end <= known {
            return;
        }
        let to = match self.options.frags {
            false => self.labels[switch.short],
            true => {
                let label = self.asm.label();
                shorts.push((label, x, end));
                label
            }
        };
        self.asm.mov(R4, if x.is_some() { R5 } else { R2 });
        self.asm.alu(Alu::Add, R4, end as i32);
        self.asm.jump_if(Cond::Gt, R4, R3, to);
    }

    fn arms(&mut self, arms: &[(u32, Label)], other: Label) {
        if arms.len() > IN_A_ROW {
            let (low, high) = arms.split_at(arms.len() / 2);
            let upper = self.asm.label();
            self.asm.jump32_if(Cond::Ge, R7, high[0].0 as i32, upper);
            self.arms(low, other);
            self.asm.bind(upper);
            return self.arms(high, other);
        }
        for &(value, label) in arms {
            self.asm.jump32_if(Cond::Eq, R7, value as i32, label);
        }
        self.asm.jump(other);
    }
}

/// A failed length check: its label, X, and the required number of bytes.
type Short = (Label, Option<Reg>, u32);

fn full(width: cbpf::Width) -> u32 {
    u32::MAX >> (32 - 8 * width.bytes())
}

/// A constant as it is loaded without swapping.
fn in_memory(field: &Field, value: u32) -> u32 {
    match field.width {
        cbpf::Width::W => value.to_be(),
        cbpf::Width::H => (value as u16).to_be().into(),
        cbpf::Width::B => value,
    }
}
