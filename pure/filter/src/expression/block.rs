//! Conditions on a packet, and their graph of basic blocks.

use std::collections::HashMap;

use bpf::cbpf::Insn;

use super::arith::{LDX_MEM, ST};
use super::extended::LD_MEM;

pub(super) const JEQ: u16 = 0x15;
pub(super) const JGT: u16 = 0x25;
pub(super) const JGE: u16 = 0x35;
pub(super) const JSET: u16 = 0x45;
/// Added to the code of a jump or operation to compare with X.
pub(super) const WITH_X: u16 = 8;
pub(super) const LD_IMM: u16 = 0x00;
pub(super) const LDX_MSH: u16 = 0xb1;

/// Instructions that compute A (and X), and a test of A. They only read the packet, so equal
/// instructions give equal values, except in a step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Test {
    pub(super) load: Vec<Insn>,
    pub(super) jump: u16,
    pub(super) k: u32,
    /// Whether this is a step of a walk through the packet, which reads or writes scratch memory
    /// that other tests also use. Steps are never skipped, and no facts are derived from them.
    pub(super) is_step: bool,
}

impl Test {
    /// Creates a test. It is a step if it reads scratch memory that it has not written.
    pub(super) fn new(load: Vec<Insn>, jump: u16, k: u32) -> Test {
        let is_step = load.iter().enumerate().any(|(at, insn)| {
            let is_written = |before: &Insn| before.code == ST && before.k == insn.k;
            matches!(insn.code, LD_MEM | LDX_MEM) && !load[..at].iter().any(is_written)
        });
        Test {
            load,
            jump,
            k,
            is_step,
        }
    }
}

/// A condition; tests run from left to right.
#[derive(Clone, Debug)]
pub(super) enum Cond {
    All(Vec<Cond>),
    Any(Vec<Cond>),
    Not(Box<Cond>),
    Test(Test),
    Const(bool),
    /// The first condition if the test is true, otherwise the second.
    Choice(Test, Box<Cond>, Box<Cond>),
    /// Whether one of these conditions is true, evaluated from the last to the first. A condition
    /// is evaluated only if its own test and the tests of all earlier ones are true. Same result as
    /// `Any`, without repeating the tests.
    Last(Vec<(Test, Cond)>),
    /// The first VLAN tag on a live socket: the test for a tag outside the packet, and the tests
    /// for one in it.
    Tag(Box<Cond>, Box<Cond>),
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

/// Start or continuation of a condition, for each of the two positions of a VLAN tag.
type Pair = [usize; 2];

/// The blocks that reject and accept the packet.
pub(super) const REFUSE: usize = 0;
pub(super) const TAKE: usize = 1;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Block {
    pub(super) test: Test,
    pub(super) yes: usize,
    pub(super) no: usize,
}

/// Blocks by number; a block's successors have lower numbers. The first two are the returns.
pub(super) struct Graph {
    pub(super) blocks: Vec<Block>,
    known: HashMap<Block, usize>,
}

impl Graph {
    pub(super) fn new() -> Self {
        let test = Test::new(Vec::new(), JEQ, 0);
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

    /// Adds a condition that continues at `yes` or `no`; returns its first block.
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
            Cond::Choice(test, first, second) => {
                let test = test.clone();
                let (yes, no) = (self.add(first, yes, no), self.add(second, yes, no));
                self.insert(Block { test, yes, no })
            }
            Cond::Last(list) => {
                let (mut start, mut tried) = (no, no);
                for (test, cond) in list {
                    tried = self.add(cond, yes, tried);
                    start = self.insert(Block {
                        test: test.clone(),
                        yes: tried,
                        no: start,
                    });
                }
                start
            }
            Cond::Tag(_, in_packet) => self.add(in_packet, yes, no),
        }
    }

    /// Adds an expression parsed for packets with their VLAN tag outside and for packets with the
    /// tag among their bytes: two conditions of the same shape. Offsets are those of the first
    /// until the `vlan` test has examined the packet, as in libpcap's programs, which track them in
    /// memory words.
    pub(super) fn add_both(&mut self, outside: &Cond, in_packet: &Cond) -> usize {
        self.add_pair(outside, in_packet, [TAKE; 2], [REFUSE; 2])[0]
    }

    fn add_pair(&mut self, a: &Cond, b: &Cond, yes: Pair, no: Pair) -> Pair {
        match (a, b) {
            (Cond::Not(a), Cond::Not(b)) => self.add_pair(a, b, no, yes),
            (Cond::All(a), Cond::All(b)) => {
                let both = a.iter().zip(b).rev();
                both.fold(yes, |yes, (a, b)| self.add_pair(a, b, yes, no))
            }
            (Cond::Any(a), Cond::Any(b)) => {
                let both = a.iter().zip(b).rev();
                both.fold(no, |no, (a, b)| self.add_pair(a, b, yes, no))
            }
            (Cond::Tag(present, _), Cond::Tag(_, tags)) => {
                let looked = self.add(tags, yes[1], no[1]);
                [self.add(present, yes[0], looked), looked]
            }
            _ => [self.add(a, yes[0], no[0]), self.add(b, yes[1], no[1])],
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
