//! Reduces a filter by the facts about a packet: removes the tests whose result is known, and the
//! instructions that only they needed.

use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;

use super::facts::Facts;
use super::walk::{OFFSET_MAX, Seen, is_xor, walk};
use super::{Base, Field};
use crate::cbpf::{Alu, Insn, MEMORY_WORDS, Op, Operand, Place, Program, Reg, Width};

/// A reduced filter.
#[derive(Clone, Debug)]
pub(super) struct Reduced {
    /// The program before all reductions.
    original: Rc<Program>,
    pub insns: Vec<Insn>,
    ops: Vec<Op>,
    /// Facts about the packets that it matches: one entry for each way to match.
    pub ways: Vec<Facts>,
    /// Whether it matches every packet with these facts.
    pub is_certain: bool,
}

impl Reduced {
    /// Reduces further; `None` if it matches no packet with these facts.
    pub fn reduced(&self, facts: &Facts) -> Option<Self> {
        if self.original.backward_jump().is_some() {
            return Some(self.clone());
        }
        reduce_ops(&self.original, (&self.insns, &self.ops), facts)
    }

    /// The reduced program.
    pub fn program(&self) -> Program {
        Program::new(self.insns.clone()).unwrap_or_else(|_| (*self.original).clone())
    }

    /// Whether it may load bytes of a field.
    pub fn reads(&self, field: &Field) -> bool {
        let end = field.off + field.width.bytes();
        let overlaps = |off: u32, width: Width| {
            field.base == Base::Start && off < end && field.off < off.saturating_add(width.bytes())
        };
        self.ops.iter().any(|op| match *op {
            Op::LoadAbs(width, k) => match Place::of(k) {
                Place::Packet(off) | Place::Link(off) => overlaps(off, width),
                _ => true,
            },
            Op::LoadMsh(off) => overlaps(off, Width::B),
            Op::LoadInd(..) => true,
            _ => false,
        })
    }
}

/// Reduces a filter; `None` if it matches no packet with these facts.
pub(super) fn reduce(program: &Program, facts: &Facts) -> Option<Reduced> {
    let original = Rc::new(program.clone());
    let ops: Vec<Op> = program.ops().collect();
    if program.backward_jump().is_some() {
        return Some(Reduced {
            insns: program.insns().to_vec(),
            original,
            ops,
            ways: vec![facts.clone()],
            is_certain: false,
        });
    }
    reduce_ops(&original, (program.insns(), &ops), facts)
}

fn reduce_ops(
    original: &Rc<Program>,
    (insns, ops): (&[Insn], &[Op]),
    facts: &Facts,
) -> Option<Reduced> {
    let walk = walk(ops, facts);
    if walk.matches.is_empty() {
        return None;
    }
    let (insns, ops) = Rest::new(insns, ops, &walk.seen)
        .link()
        .unwrap_or_else(|| (insns.to_vec(), ops.to_vec()));
    let is_certain = matches!(ops[..], [Op::Ret(1..)]);
    Some(Reduced {
        original: original.clone(),
        insns,
        ops,
        ways: walk.matches,
        is_certain,
    })
}

/// Set of registers and memory words, one bit each.
type Live = u32;

const A: Live = 1;
const X: Live = 2;

fn register(reg: Reg) -> Live {
    match reg {
        Reg::A => A,
        Reg::X => X,
    }
}

fn memory(word: u32) -> Live {
    4 << (word as usize % MEMORY_WORDS)
}

struct Rest<'a> {
    insns: &'a [Insn],
    ops: Vec<Op>,
    seen: &'a [Seen],
    /// Whether the instruction can lead to a match.
    matches: Vec<bool>,
    is_kept: Vec<bool>,
    /// The first instruction that is kept, from each one on; [`NONE`] for the end with result 0.
    targets: Vec<u32>,
}

const NONE: u32 = u32::MAX;

impl<'a> Rest<'a> {
    fn new(insns: &'a [Insn], ops: &[Op], seen: &'a [Seen]) -> Self {
        let rewritten = ops.iter().zip(seen).map(|(op, seen)| rewrite(*op, seen));
        let mut rest = Self {
            insns,
            ops: rewritten.collect(),
            seen,
            matches: vec![false; ops.len()],
            is_kept: vec![false; ops.len()],
            targets: vec![NONE; ops.len()],
        };
        rest.find_matches();
        rest.find_kept();
        rest
    }

    /// The possible next instructions.
    fn next(&self, at: usize) -> [Option<usize>; 2] {
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

    fn find_matches(&mut self) {
        for at in (0..self.ops.len()).rev() {
            self.matches[at] = self.seen[at].is_reached
                && match self.ops[at] {
                    Op::Ret(k) => k != 0,
                    Op::RetA => true,
                    _ => self
                        .next(at)
                        .into_iter()
                        .flatten()
                        .any(|to| self.matches[to]),
                };
        }
    }

    /// Finds the instructions whose result is used later, or that can end the program.
    fn find_kept(&mut self) {
        let mut live: Vec<Live> = vec![0; self.ops.len()];
        for at in (0..self.ops.len()).rev() {
            if !self.matches[at] {
                continue;
            }
            let after = self.next(at).into_iter().flatten();
            let after = after.fold(0, |all, to| all | live[to]);
            let (reads, writes) = effects(self.ops[at]);
            let is_kept = match self.ops[at] {
                Op::Jump(_) => false,
                Op::Ret(_) | Op::RetA => true,
                Op::JumpIf(..) => {
                    let [yes, no] = self.next(at);
                    yes.map(|to| self.matches[to]) != Some(true)
                        || no.map(|to| self.matches[to]) != Some(true)
                        || self.target(yes) != self.target(no)
                }
                _ => writes & after != 0 || self.may_refuse(at),
            };
            self.is_kept[at] = is_kept;
            self.targets[at] = match (is_kept, self.ops[at]) {
                (true, _) => at as u32,
                // Both branches lead to the same instruction.
                (false, Op::JumpIf(_, _, jt, _)) => self.targets[at + 1 + usize::from(jt)],
                _ => self.next(at)[0].map_or(NONE, |to| self.targets[to]),
            };
            live[at] = match is_kept {
                true => after & !writes | reads,
                false => after,
            };
        }
    }

    /// Whether the instruction ends the program for some packets.
    fn may_refuse(&self, at: usize) -> bool {
        match self.ops[at] {
            Op::LoadAbs(_, k) if is_xor(k) => false,
            Op::LoadAbs(_, k) if !matches!(Place::of(k), Place::Packet(_) | Place::Link(_)) => true,
            Op::LoadAbs(..) | Op::LoadInd(..) | Op::LoadMsh(_) => !self.seen[at].is_inside,
            Op::Alu(Alu::Div | Alu::Mod, Operand::X) => true,
            _ => false,
        }
    }

    /// The next instruction that is kept; `None` for the end with result 0.
    fn target(&self, to: Option<usize>) -> Option<usize> {
        let target = self.targets[to?];
        (target != NONE).then_some(target as usize)
    }

    /// Builds the program; `None` if a jump has become too long.
    fn link(&self) -> Option<(Vec<Insn>, Vec<Op>)> {
        let mut kept = Vec::with_capacity(self.ops.len());
        kept.extend((0..self.ops.len()).filter(|at| self.is_kept[*at]));
        // The new index of each instruction; some need a jump after them.
        let mut places = vec![0; self.ops.len()];
        let mut at = 0;
        let jumps = |index: usize, from: usize| {
            let follows = !matches!(self.ops[from], Op::JumpIf(..) | Op::Ret(_) | Op::RetA);
            follows && self.target(self.next(from)[0]) != kept.get(index + 1).copied()
        };
        for (index, &from) in kept.iter().enumerate() {
            places[from] = at;
            at += 1 + usize::from(jumps(index, from));
        }
        let end = at;
        let place = |to: Option<usize>| to.map_or(end, |to| places[to]);
        let mut insns = Vec::with_capacity(end + 1);
        let mut ops = Vec::with_capacity(end + 1);
        let mut uses_end = false;
        for (index, &from) in kept.iter().enumerate() {
            let after = insns.len() + 1;
            let mut insn = self.insn(from);
            let mut op = self.ops[from];
            if let Op::JumpIf(_, _, jt, jf) = &mut op {
                let [yes, no] = self.next(from).map(|to| self.target(to));
                uses_end |= yes.is_none() || no.is_none();
                insn.jt = u8::try_from(place(yes) - after).ok()?;
                insn.jf = u8::try_from(place(no) - after).ok()?;
                (*jt, *jf) = (insn.jt, insn.jf);
            }
            insns.push(insn);
            ops.push(op);
            if jumps(index, from) {
                let to = self.target(self.next(from)[0]);
                uses_end |= to.is_none();
                let skip = (place(to) - after - 1) as u32;
                insns.push(Insn::new(0x05, 0, 0, skip));
                ops.push(Op::Jump(skip));
            }
        }
        if uses_end {
            insns.push(Insn::new(0x06, 0, 0, 0));
            ops.push(Op::Ret(0));
        }
        Some((insns, ops))
    }

    fn insn(&self, at: usize) -> Insn {
        let insn = self.insns[at];
        match self.ops[at] {
            // Replaces a load at X + k by one at a known offset.
            Op::LoadAbs(_, k) => Insn::new(insn.code & !0x60 | 0x20, 0, 0, k),
            Op::Ret(k) => Insn::new(0x06, 0, 0, k),
            _ => insn,
        }
    }
}

/// The instruction with known values inserted.
fn rewrite(op: Op, seen: &Seen) -> Op {
    match op {
        Op::LoadAbs(..) | Op::LoadInd(..) | Op::LoadMsh(_) if seen.is_outside => Op::Ret(0),
        Op::LoadInd(width, _) => match seen.at {
            Some(at) if at + width.bytes() <= OFFSET_MAX => Op::LoadAbs(width, at),
            _ => op,
        },
        Op::JumpIf(_, _, jt, jf) => match (seen.yes, seen.no) {
            (true, false) => Op::Jump(jt.into()),
            (false, true) => Op::Jump(jf.into()),
            (false, false) => Op::Ret(0),
            (true, true) => op,
        },
        Op::RetA => seen.a.map_or(op, Op::Ret),
        _ => op,
    }
}

/// The registers and words that an instruction reads and writes.
fn effects(op: Op) -> (Live, Live) {
    match op {
        Op::LoadAbs(_, k) if is_xor(k) => (A | X, A),
        Op::LoadAbs(..) => (0, A),
        Op::LoadInd(..) => (X, A),
        Op::LoadMsh(_) => (0, X),
        Op::LoadLen(reg) | Op::LoadImm(reg, _) => (0, register(reg)),
        Op::LoadMem(reg, word) => (memory(word), register(reg)),
        Op::Store(reg, word) => (register(reg), memory(word)),
        Op::Alu(_, Operand::X) => (A | X, A),
        Op::Alu(_, Operand::K(_)) => (A, A),
        Op::JumpIf(_, Operand::X, ..) => (A | X, 0),
        Op::JumpIf(..) | Op::RetA => (A, 0),
        Op::Tax => (A, X),
        Op::Txa => (X, A),
        Op::Jump(_) | Op::Ret(_) => (0, 0),
    }
}
