//! What the compilers of this crate share: instructions with labels ([`emit`]).

pub(crate) mod emit;

use std::ops::Range;

/// What some instructions of a program test, in words: `filter explain` prints it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Note {
    /// The instructions, by index.
    pub insns: Range<usize>,
    /// What they test, a clause an entry.
    pub what: Vec<String>,
}

/// A program and what its instructions test.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Explained {
    /// The program.
    pub program: bpf::cbpf::Program,
    /// What its instructions test, in their order. The returns at the end have no note.
    pub notes: Vec<Note>,
}
