//! The kernel's checks of a cBPF program (`bpf_check_classic`, `check_load_and_stores` in
//! `net/core/filter.c`). Constructs that libpcap generates and its own interpreter accepts are only
//! reported: a read of unset scratch memory, a backward jump (`protochain`), a load at a
//! meaningless negative offset (`ip` after BACnet MS/TP).

use alloc::vec;
use core::fmt;

use super::{Alu, INSN_COUNT_MAX, Insn, MEMORY_WORDS, Op, Operand, Place};

/// Why a program is refused; `at` is the index of the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Invalid {
    /// No instruction, or more than [`INSN_COUNT_MAX`].
    Length(usize),
    /// An unknown instruction code.
    Code {
        /// Index of the instruction.
        at: usize,
        /// The code.
        code: u16,
    },
    /// A division by a constant 0.
    DivisionByZero {
        /// Index of the instruction.
        at: usize,
    },
    /// A shift by a constant of 32 or more.
    Shift {
        /// Index of the instruction.
        at: usize,
        /// The shift count.
        by: u32,
    },
    /// A scratch word that does not exist.
    Memory {
        /// Index of the instruction.
        at: usize,
        /// Index of the word.
        word: u32,
    },
    /// A scratch word that may be read before it is written.
    MemoryUnset {
        /// Index of the instruction.
        at: usize,
        /// Index of the word.
        word: u32,
    },
    /// A jump out of the program or backwards.
    Jump {
        /// Index of the instruction.
        at: usize,
    },
    /// An ancillary load that the kernel does not support.
    Ancillary {
        /// Index of the instruction.
        at: usize,
        /// The index.
        index: u32,
    },
    /// The last instruction is not a return.
    NoReturn,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Length(len) => write!(f, "{len} instructions, must be 1 to {INSN_COUNT_MAX}"),
            Self::Code { at, code } => write!(f, "({at:03}) {code:#x} is no instruction"),
            Self::DivisionByZero { at } => write!(f, "({at:03}) divides by 0"),
            Self::Shift { at, by } => write!(f, "({at:03}) shifts by {by} bits, at most 31"),
            Self::Memory { at, word } => {
                write!(
                    f,
                    "({at:03}) uses M[{word}], the last is M[{}]",
                    MEMORY_WORDS - 1
                )
            }
            Self::MemoryUnset { at, word } => {
                write!(f, "({at:03}) may read M[{word}] before it is written")
            }
            Self::Jump { at } => write!(f, "({at:03}) jumps backward or out of the program"),
            Self::Ancillary { at, index } => {
                write!(f, "({at:03}) loads at {index:#x}, which names nothing")
            }
            Self::NoReturn => f.write_str("the last instruction is not a return"),
        }
    }
}

impl core::error::Error for Invalid {}

/// What the kernel would refuse, but the interpreter accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Refusal {
    /// The first reason.
    pub(super) first: Option<Invalid>,
    /// The first backward jump.
    pub(super) jump: Option<usize>,
}

/// Makes all checks; returns what only the kernel refuses.
pub(super) fn check(insns: &[Insn], count_max: usize) -> Result<Refusal, Invalid> {
    if insns.is_empty() || insns.len() > count_max {
        return Err(Invalid::Length(insns.len()));
    }
    // Scratch words written on every path to each instruction, as the kernel tracks them.
    let mut written_at = vec![u16::MAX; insns.len()];
    let mut written = 0u16;
    let mut refusal = Refusal::default();
    for (at, &insn) in insns.iter().enumerate() {
        let op = insn.decode().ok_or(Invalid::Code {
            at,
            code: insn.code,
        })?;
        check_constant(at, op)?;
        written &= written_at[at];
        if let Op::LoadAbs(_, index) = op
            && Place::of(index) == Place::Nothing
        {
            let refused = Invalid::Ancillary { at, index };
            refusal.first = refusal.first.or(Some(refused));
        }
        let mut flows_to = |skip: u32| {
            let target = usize::try_from(skip)
                .ok()
                .and_then(|skip| skip.checked_add(at + 1));
            let slot = target
                .and_then(|t| written_at.get_mut(t))
                .ok_or(Invalid::Jump { at })?;
            *slot &= written;
            Ok(())
        };
        match op {
            Op::Store(_, word) => written |= 1 << word,
            Op::LoadMem(_, word) if written >> word & 1 == 0 => {
                let refused = Invalid::MemoryUnset { at, word };
                refusal.first = refusal.first.or(Some(refused));
            }
            Op::Jump(skip) if is_backward(at, skip) => {
                refusal.first = refusal.first.or(Some(Invalid::Jump { at }));
                refusal.jump = refusal.jump.or(Some(at));
                written = u16::MAX;
            }
            Op::Jump(skip) => {
                flows_to(skip)?;
                written = u16::MAX;
            }
            Op::JumpIf(_, _, jt, jf) => {
                flows_to(jt.into())?;
                flows_to(jf.into())?;
                written = u16::MAX;
            }
            _ => {}
        }
    }
    match insns.last().and_then(|insn| insn.decode()) {
        Some(Op::Ret(_) | Op::RetA) => Ok(refusal),
        _ => Err(Invalid::NoReturn),
    }
}

/// Whether a jump goes back to an earlier instruction or to itself.
fn is_backward(at: usize, skip: u32) -> bool {
    let skip = skip as i32;
    skip < 0 && skip.unsigned_abs() as usize <= at + 1
}

fn check_constant(at: usize, op: Op) -> Result<(), Invalid> {
    match op {
        Op::Alu(Alu::Div | Alu::Mod, Operand::K(0)) => Err(Invalid::DivisionByZero { at }),
        Op::Alu(Alu::Lsh | Alu::Rsh, Operand::K(by)) if by > 31 => Err(Invalid::Shift { at, by }),
        Op::LoadMem(_, word) | Op::Store(_, word) if word as usize >= MEMORY_WORDS => {
            Err(Invalid::Memory { at, word })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cbpf::{OPS, Program};
    use std::vec::Vec;

    const RET: Insn = Insn::new(0x06, 0, 0, 1);

    fn outcome(insns: &[Insn]) -> Result<(), Invalid> {
        Program::new(insns.to_vec())?
            .kernel_refusal()
            .map_or(Ok(()), Err)
    }

    #[test]
    fn the_table_is_sorted_for_binary_search() {
        assert!(OPS.is_sorted_by_key(|info| info.code));
    }

    #[test]
    fn every_refusal_has_a_case() {
        let i = Insn::new;
        let cases: [(&[Insn], Invalid); 14] = [
            (&[], Invalid::Length(0)),
            (&[RET; 4097], Invalid::Length(4097)),
            (
                &[i(0xff, 0, 0, 0), RET],
                Invalid::Code { at: 0, code: 0xff },
            ),
            (
                &[i(0x106, 0, 0, 0), RET],
                Invalid::Code { at: 0, code: 0x106 },
            ),
            (&[i(0x34, 0, 0, 0), RET], Invalid::DivisionByZero { at: 0 }),
            (&[i(0x94, 0, 0, 0), RET], Invalid::DivisionByZero { at: 0 }),
            (&[i(0x64, 0, 0, 32), RET], Invalid::Shift { at: 0, by: 32 }),
            (
                &[i(0x02, 0, 0, 16), RET],
                Invalid::Memory { at: 0, word: 16 },
            ),
            (
                &[i(0x61, 0, 0, 3), RET],
                Invalid::MemoryUnset { at: 0, word: 3 },
            ),
            (&[i(0x05, 0, 0, 1), RET], Invalid::Jump { at: 0 }),
            (&[i(0x05, 0, 0, u32::MAX), RET], Invalid::Jump { at: 0 }),
            (&[i(0x15, 0, 1, 0), RET], Invalid::Jump { at: 0 }),
            (
                &[i(0x20, 0, 0, u32::MAX), RET],
                Invalid::Ancillary {
                    at: 0,
                    index: u32::MAX,
                },
            ),
            (&[RET, i(0x00, 0, 0, 0)], Invalid::NoReturn),
        ];
        for (insns, expected) in cases {
            assert_eq!(outcome(insns), Err(expected));
        }
    }

    #[test]
    fn a_word_written_on_one_branch_only_is_unset() {
        let i = Insn::new;
        let mut insns: Vec<Insn> = std::vec![
            i(0x15, 0, 1, 7), // jeq #7: next, else skip the store
            i(0x02, 0, 0, 0), // st M[0]
            i(0x60, 0, 0, 0), // ld M[0]
            RET,
        ];
        assert_eq!(
            outcome(&insns),
            Err(Invalid::MemoryUnset { at: 2, word: 0 })
        );
        insns[0] = i(0x15, 0, 0, 7);
        assert_eq!(outcome(&insns), Ok(()));
    }
}
