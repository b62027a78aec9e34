//! Conditions on a packet, and the graph of basic blocks that they become.

use std::collections::HashMap;

use bpf::cbpf::Insn;

pub(super) const JEQ: u16 = 0x15;
pub(super) const JGT: u16 = 0x25;
pub(super) const JGE: u16 = 0x35;
pub(super) const JSET: u16 = 0x45;
/// Added to a jump or an operation that compares with X.
pub(super) const WITH_X: u16 = 8;
pub(super) const LD_IMM: u16 = 0x00;
pub(super) const LDX_MSH: u16 = 0xb1;

/// Instructions that compute A (and X), and a test of A. They read the packet only, so that equal
/// instructions give equal values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Test {
    pub(super) load: Vec<Insn>,
    pub(super) jump: u16,
    pub(super) k: u32,
}

/// A condition; tests run from left to right.
#[derive(Clone, Debug)]
pub(super) enum Cond {
    All(Vec<Cond>),
    Any(Vec<Cond>),
    Not(Box<Cond>),
    Test(Test),
    Const(bool),
}

impl Cond {
    pub(super) fn and(self, next: Cond) -> Cond {
        match self {
            Cond::All(mut list) => {
                list.push(next);
                Cond::All(list)
            }
            first => Cond::All(vec![first, next]),
        }
    }

    pub(super) fn or(self, next: Cond) -> Cond {
        match self {
            Cond::Any(mut list) => {
                list.push(next);
                Cond::Any(list)
            }
            first => Cond::Any(vec![first, next]),
        }
    }

    pub(super) fn negate(self) -> Cond {
        match self {
            Cond::Not(inner) => *inner,
            other => Cond::Not(Box::new(other)),
        }
    }
}

/// The block that refuses the packet, and the one that takes it.
pub(super) const REFUSE: usize = 0;
pub(super) const TAKE: usize = 1;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Block {
    pub(super) test: Test,
    pub(super) yes: usize,
    pub(super) no: usize,
}

/// Blocks by number; a block's successors have lower numbers. The first two are the ends.
pub(super) struct Graph {
    pub(super) blocks: Vec<Block>,
    known: HashMap<Block, usize>,
}

impl Graph {
    pub(super) fn new() -> Self {
        let load = Vec::new();
        let test = Test {
            load,
            jump: JEQ,
            k: 0,
        };
        let end = Block {
            test,
            yes: 0,
            no: 0,
        };
        Graph {
            blocks: vec![end.clone(), end],
            known: HashMap::new(),
        }
    }

    /// Adds a condition that goes on at `yes` or `no`; returns where it begins.
    pub(super) fn add(&mut self, cond: &Cond, yes: usize, no: usize) -> usize {
        match cond {
            Cond::Const(value) => [no, yes][usize::from(*value)],
            Cond::Not(inner) => self.add(inner, no, yes),
            Cond::All(list) => list.iter().rev().fold(yes, |yes, c| self.add(c, yes, no)),
            Cond::Any(list) => list.iter().rev().fold(no, |no, c| self.add(c, yes, no)),
            Cond::Test(test) => self.insert(Block {
                test: test.clone(),
                yes,
                no,
            }),
        }
    }

    fn insert(&mut self, block: Block) -> usize {
        let next = self.blocks.len();
        let at = *self.known.entry(block.clone()).or_insert(next);
        if at == next {
            self.blocks.push(block);
        }
        at
    }
}
