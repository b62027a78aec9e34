//! Analyses a filter before code generation: which instructions are reachable, which always lead to
//! 0, and how much of the packet each needs.
//!
//! A filter has no effect except its result, and a load outside the packet makes that 0. A check of
//! the packet's length may therefore be made early, for as many bytes as every path to a nonzero
//! result will load: the same packets are rejected. [`Plan`] computes those numbers from the end of
//! the program to its beginning; jumps only go forward, so one pass is enough.
//!
//! A load above [`OFFSET_MAX`] counts as always out of bounds.

use alloc::vec;
use alloc::vec::Vec;

use super::TranslateError;
use crate::cbpf::{Op, Place, Program, Reg};

/// The last packet offset that can be read (the verifier's `MAX_PACKET_OFF`).
pub(super) const OFFSET_MAX: u32 = 0xffff;

/// Need of an instruction from which every path ends with 0.
const NEVER: u32 = u32::MAX;

pub(super) struct Plan {
    /// The instructions.
    pub ops: Vec<Op>,
    /// For each instruction, the number of packet bytes that every path to a result needs, from the
    /// packet's start.
    need_abs: Vec<u32>,
    /// The same relative to X, while X is unchanged.
    need_ind: Vec<u32>,
    live: Vec<bool>,
    /// Whether scratch memory must be set to 0 first.
    pub reads_unset_memory: bool,
}

impl Plan {
    pub fn new(program: &Program) -> Result<Self, TranslateError> {
        if let Some(at) = program.backward_jump() {
            return Err(TranslateError::Jump { at });
        }
        let ops: Vec<Op> = program.ops().collect();
        let mut plan = Self {
            need_abs: vec![NEVER; ops.len()],
            need_ind: vec![0; ops.len()],
            live: vec![false; ops.len()],
            ops,
            reads_unset_memory: program.kernel_refusal().is_some(),
        };
        plan.find_needs();
        plan.find_live();
        Ok(plan)
    }

    /// Whether the result can only be 0 from here on.
    pub fn is_refused(&self, at: usize) -> bool {
        self.need_abs.get(at).is_none_or(|&need| need == NEVER)
    }

    /// Whether code must be generated for it.
    pub fn is_live(&self, at: usize) -> bool {
        self.live[at]
    }

    pub fn need_abs(&self, at: usize) -> u32 {
        self.need_abs[at]
    }

    pub fn need_ind(&self, at: usize) -> u32 {
        self.need_ind[at]
    }

    /// The one or two possible next instructions.
    pub fn next(&self, at: usize) -> [Option<usize>; 2] {
        match self.ops[at] {
            Op::Ret(_) | Op::RetA => [None, None],
            Op::Jump(skip) => [Some(at + 1 + skip as usize), None],
            Op::JumpIf(_, _, jt, jf) => [
                Some(at + 1 + usize::from(jt)),
                Some(at + 1 + usize::from(jf)),
            ],
            _ => [Some(at + 1), None],
        }
    }

    fn find_needs(&mut self) {
        for at in (0..self.ops.len()).rev() {
            let op = self.ops[at];
            let (mut abs, mut ind) = (NEVER, NEVER);
            for to in self
                .next(at)
                .into_iter()
                .flatten()
                .filter(|&to| !self.is_refused(to))
            {
                abs = abs.min(self.need_abs[to]);
                ind = ind.min(self.need_ind[to]);
            }
            let reach = |k: u32, bytes: u32| {
                Some(k.saturating_add(bytes))
                    .filter(|&end| end <= OFFSET_MAX)
                    .unwrap_or(NEVER)
            };
            match op {
                Op::Ret(0) => {}
                Op::Ret(_) | Op::RetA => (abs, ind) = (0, 0),
                _ if abs == NEVER => {}
                Op::LoadAbs(width, k) => match Place::of(k) {
                    Place::Packet(k) | Place::Link(k) => {
                        abs = abs.max(reach(k, width.bytes()));
                    }
                    Place::Nothing => abs = NEVER,
                    Place::Network(_) | Place::Ancillary(_) => {}
                },
                Op::LoadInd(width, k) => match reach(k, width.bytes()) {
                    NEVER => abs = NEVER,
                    end => ind = ind.max(end),
                },
                Op::LoadMsh(k) => {
                    abs = abs.max(reach(k, 1));
                    ind = 0;
                }
                _ if writes_x(op) => ind = 0,
                _ => {}
            }
            self.need_abs[at] = abs;
            self.need_ind[at] = ind;
        }
    }

    fn find_live(&mut self) {
        self.live[0] = !self.is_refused(0);
        for at in 0..self.ops.len() {
            if self.live[at] {
                for to in self.next(at).into_iter().flatten() {
                    self.live[to] |= !self.is_refused(to);
                }
            }
        }
    }
}

/// Whether an instruction modifies X.
pub(super) fn writes_x(op: Op) -> bool {
    matches!(
        op,
        Op::Tax
            | Op::LoadMsh(_)
            | Op::LoadImm(Reg::X, _)
            | Op::LoadMem(Reg::X, _)
            | Op::LoadLen(Reg::X)
    )
}
