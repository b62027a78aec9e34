//! Code shared by the compilers of this crate: instructions with labels ([`emit`]).

pub(crate) mod emit;

use std::ops::Range;

/// Description of what some instructions of a program test; `filter explain` prints it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Note {
    /// Range of instruction indices.
    pub insns: Range<usize>,
    /// What they test, one clause per entry.
    pub what: Vec<String>,
}

/// A program with a description of its instructions.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Explained {
    /// The program.
    pub program: bpf::cbpf::Program,
    /// Notes in the order of the instructions. The returns at the end have none.
    pub notes: Vec<Note>,
}
