//! Translates cBPF to eBPF for two hooks: before the network stack (XDP, [`emit_xdp`]) and on a
//! socket ([`emit_skb`]).
//!
//! Both have the semantics of [`crate::vm_cbpf`], with one deviation: a packet index above 65535 is
//! always out of bounds, whatever the packet's length, because the verifier limits packet offsets
//! to that.
//!
//! The code is emitted into a larger program: it ends with a jump to one of two labels, `hit` with
//! the filter's result in R0, or `miss`. [`xdp_program`] and [`skb_program`] emit complete programs
//! that return the filter's result.

use alloc::vec::Vec;
use core::fmt;

use crate::asm::{Asm, AsmError, Label};
use crate::cbpf::{self, Ancillary, MEMORY_WORDS, Op, Operand, Program};
use crate::decide::Tree;
use crate::ebpf::Reg::{R0, R1, R6, R9, R10};
use crate::ebpf::{Alu, Cond, Helper, Insn, Reg, Width};

mod plan;
mod skb;
mod tree;
mod xdp;

use plan::Plan;
pub use xdp::XdpOptions;

/// Hook of a program with direct packet access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectHook {
    /// Before the network stack (`struct xdp_md`).
    #[default]
    Xdp,
    /// Traffic control (`struct __sk_buff`). The first buffer is the linear part of the packet.
    Tc,
}

impl DirectHook {
    /// Context offset of the address of the packet.
    pub const fn data(self) -> i16 {
        match self {
            Self::Xdp => 0,
            Self::Tc => 76,
        }
    }

    /// Context offset of the address after the first buffer.
    pub const fn data_end(self) -> i16 {
        self.data() + 4
    }

    const fn ifindex(self) -> i16 {
        match self {
            Self::Xdp => 12,
            Self::Tc => 40,
        }
    }

    const fn queue_index(self) -> i16 {
        match self {
            Self::Xdp => 16,
            Self::Tc => 12,
        }
    }

    /// The helper that copies bytes from anywhere in the packet: context, offset, memory, length;
    /// the result is 0 if they are there.
    pub const fn load_bytes(self) -> Helper {
        match self {
            Self::Xdp => Helper::XdpLoadBytes,
            Self::Tc => Helper::SkbLoadBytes,
        }
    }

    /// Sets `to` to the length of the whole packet; needs the context in R6, clobbers R0 to R5.
    pub fn load_len(self, asm: &mut Asm, to: Reg) {
        match self {
            Self::Xdp => {
                asm.mov(R1, R6);
                asm.call(Helper::XdpGetBuffLen);
                asm.mov32(to, R0);
            }
            Self::Tc => asm.load(Width::W, to, R6, 0),
        }
    }
}

/// Why a filter cannot run at a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TranslateError {
    /// It needs metadata that is unavailable there.
    Ancillary {
        /// Index of the instruction.
        at: usize,
        /// The metadata.
        what: Ancillary,
    },
    /// It uses an offset from the network header, which is unknown there.
    NetworkOffset {
        /// Index of the instruction.
        at: usize,
    },
    /// It jumps backwards.
    Jump {
        /// Index of the instruction.
        at: usize,
    },
    /// The eBPF program could not be built.
    Asm(AsmError),
}

impl fmt::Display for TranslateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ancillary { at, what } => {
                let name = cbpf::ANCILLARIES
                    .iter()
                    .find(|row| row.0 == *what)
                    .map_or("", |r| r.1);
                write!(
                    f,
                    "instruction ({at:03}) asks for [{name}], which is not known there"
                )
            }
            Self::NetworkOffset { at } => write!(
                f,
                "instruction ({at:03}) counts from the network header, which is not known there"
            ),
            Self::Jump { at } => write!(
                f,
                "instruction ({at:03}) jumps backward, which the kernel does not run"
            ),
            Self::Asm(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for TranslateError {}

impl From<AsmError> for TranslateError {
    fn from(error: AsmError) -> Self {
        Self::Asm(error)
    }
}

/// Stack space that a translated filter needs below its `stack_top`, in bytes: scratch memory and
/// one word to load into.
pub const STACK_LEN: i16 = MEMORY_WORDS as i16 * 4 + 8;

/// Appends a filter on an XDP context.
///
/// Expects the context in R6, and the whole packet's length in R9 if [`XdpOptions::frags`] or
/// [`Program::uses_len`]. Keeps R6 and R8, clobbers all others.
///
/// # Errors
/// `Ancillary` for all metadata but the interface, the queue and xor.
pub fn emit_xdp(
    asm: &mut Asm,
    program: &Program,
    options: &XdpOptions,
    hit: Label,
    miss: Label,
) -> Result<(), TranslateError> {
    xdp::emit(asm, program, options, hit, miss)
}

/// As [`emit_xdp`], without the code for packets of several buffers: those whose first buffer is
/// too short go to `slow`, where [`emit_xdp_by_helper`] can decide them. A filter has no effects,
/// so that it may be started over.
///
/// # Errors
/// As [`emit_xdp`].
pub fn emit_xdp_direct(
    asm: &mut Asm,
    program: &Program,
    options: &XdpOptions,
    (hit, miss): (Label, Label),
    slow: Label,
) -> Result<(), TranslateError> {
    xdp::emit_direct(asm, program, options, (hit, miss), slow)
}

/// As [`emit_xdp`], by loads that reach every buffer and cost more. Needs R6 = the context.
///
/// # Errors
/// As [`emit_xdp`].
pub fn emit_xdp_by_helper(
    asm: &mut Asm,
    program: &Program,
    options: &XdpOptions,
    hit: Label,
    miss: Label,
) -> Result<(), TranslateError> {
    xdp::emit_by_helper(asm, program, options, hit, miss)
}

/// Where the code of a decision tree goes.
#[derive(Clone, Copy, Debug)]
pub struct TreeTargets<'a> {
    /// The label of each leaf.
    pub leaves: &'a [Label],
    /// For packets with more buffers, whose first buffer is too short for a field.
    pub slow: Label,
    /// Stack offset of a word that [`Node::All`](crate::decide::Node::All) sets to [`NO_MATCH`]:
    /// for the lowest index of a filter that matches in one of its trees.
    ///
    /// It should be no multiple of 8. The verifier then does not track the word's value, which it
    /// would otherwise do on each path through every later tree.
    pub best: i16,
}

/// Above the index of any filter.
pub const NO_MATCH: i32 = i32::MAX;

/// Appends the way to the leaves of a decision tree, on an XDP context. Returns the label of each
/// node: code of a leaf continues at that of [`Tree::after`].
///
/// Needs R6 = the context, and R9 = the whole packet's length if [`XdpOptions::frags`]. Keeps R6,
/// R8 and R9, as must the code of leaves.
pub fn emit_xdp_tree(
    asm: &mut Asm,
    tree: &Tree,
    options: &XdpOptions,
    to: &TreeTargets<'_>,
) -> Vec<Label> {
    tree::emit(asm, tree, options, to)
}

/// Appends a filter on a socket's packet.
///
/// Expects the context in R6. Keeps R6 and R9, clobbers all others; uses [`STACK_LEN`] bytes of
/// stack below `stack_top`. A load outside the packet does not jump to `miss`: it ends the whole
/// program with result 0.
///
/// # Errors
/// `Ancillary` for netlink loads, the hardware type and the payload's offset.
pub fn emit_skb(
    asm: &mut Asm,
    program: &Program,
    stack_top: i16,
    hit: Label,
    miss: Label,
) -> Result<(), TranslateError> {
    skb::emit(asm, program, stack_top, hit, miss)
}

/// Builds a complete XDP program that returns the filter's result.
///
/// # Errors
/// As [`emit_xdp`].
pub fn xdp_program(program: &Program, options: &XdpOptions) -> Result<Vec<Insn>, TranslateError> {
    whole(None, |asm, hit, miss| {
        start_xdp(asm, program, options, hit, miss)
    })
}

/// Builds a complete XDP program that returns one of two XDP actions: one for packets that the
/// filter matches, and one for all others.
///
/// # Errors
/// As [`emit_xdp`].
pub fn xdp_verdict(
    program: &Program,
    options: &XdpOptions,
    taken: i32,
    other: i32,
) -> Result<Vec<Insn>, TranslateError> {
    whole(Some((taken, other)), |asm, hit, miss| {
        start_xdp(asm, program, options, hit, miss)
    })
}

fn start_xdp(
    asm: &mut Asm,
    program: &Program,
    options: &XdpOptions,
    hit: Label,
    miss: Label,
) -> Result<(), TranslateError> {
    asm.mov(R6, R1);
    match options.hook {
        DirectHook::Xdp if options.frags => {
            asm.call(Helper::XdpGetBuffLen);
            asm.mov(R9, R0);
        }
        // Without several buffers, and as kernels before 5.18 can.
        DirectHook::Xdp if program.uses_len() => {
            asm.load(Width::W, R9, R6, options.hook.data_end());
            asm.load(Width::W, R0, R6, options.hook.data());
            asm.alu(Alu::Sub, R9, R0);
        }
        DirectHook::Xdp => {}
        DirectHook::Tc => options.hook.load_len(asm, R9),
    }
    emit_xdp(asm, program, options, hit, miss)
}

/// Builds a complete socket filter that returns the filter's result.
///
/// # Errors
/// As [`emit_skb`].
pub fn skb_program(program: &Program) -> Result<Vec<Insn>, TranslateError> {
    whole(None, |asm, hit, miss| {
        asm.mov(R6, R1);
        emit_skb(asm, program, 0, hit, miss)
    })
}

/// A whole tc program that returns a tc action for packets that the filter takes, and
/// `TC_ACT_OK` (0) for all others: a load outside the packet always ends with 0.
///
/// # Errors
/// As [`emit_skb`].
pub fn skb_verdict(program: &Program, taken: i32) -> Result<Vec<Insn>, TranslateError> {
    whole(Some((taken, 0)), |asm, hit, miss| {
        asm.mov(R6, R1);
        emit_skb(asm, program, 0, hit, miss)
    })
}

/// A program around a filter: its result, or one of two numbers for what it takes and the rest.
fn whole(
    verdict: Option<(i32, i32)>,
    body: impl FnOnce(&mut Asm, Label, Label) -> Result<(), TranslateError>,
) -> Result<Vec<Insn>, TranslateError> {
    let mut asm = Asm::new();
    let (hit, miss) = (asm.label(), asm.label());
    body(&mut asm, hit, miss)?;
    let taken = verdict.map(|verdict| verdict.0);
    if asm.is_used(miss) {
        asm.bind(miss);
        asm.mov(R0, verdict.map_or(0, |verdict| verdict.1));
        if taken.is_some() && asm.is_used(hit) {
            asm.exit();
        }
    }
    if asm.is_used(hit) {
        asm.bind(hit);
        if let Some(taken) = taken {
            asm.mov(R0, taken);
        }
    }
    asm.exit();
    Ok(asm.finish()?)
}

/// Packet access of a hook, in which XDP and sockets differ. Each load leaves its value in A (or X
/// for MSH) in host byte order, or rejects the packet. Indices that are always out of bounds are
/// handled before.
trait Access {
    fn a(&self) -> Reg;
    fn x(&self) -> Reg;
    /// Called after an instruction other than a packet load was emitted.
    fn passed(&mut self, _at: usize) {}
    fn load_abs(
        &mut self,
        out: &mut Out<'_>,
        at: usize,
        width: cbpf::Width,
        k: u32,
    ) -> Result<(), TranslateError>;
    fn load_ind(&mut self, out: &mut Out<'_>, at: usize, width: cbpf::Width, k: u32);
    fn load_msh(&mut self, out: &mut Out<'_>, at: usize, k: u32);
    fn load_len(&mut self, out: &mut Out<'_>, to: Reg);
}

/// Output program, and the state that all hooks share.
struct Out<'a> {
    asm: &'a mut Asm,
    plan: &'a Plan,
    /// One label per emitted instruction.
    labels: Vec<Label>,
    stack_top: i16,
    hit: Label,
    miss: Label,
}

fn ebpf_width(width: cbpf::Width) -> Width {
    match width {
        cbpf::Width::W => Width::W,
        cbpf::Width::H => Width::H,
        cbpf::Width::B => Width::B,
    }
}

impl<'a> Out<'a> {
    fn new(asm: &'a mut Asm, plan: &'a Plan, stack_top: i16, hit: Label, miss: Label) -> Self {
        let labels = (0..plan.ops.len()).map(|_| asm.label()).collect();
        Self {
            asm,
            plan,
            labels,
            stack_top,
            hit,
            miss,
        }
    }

    /// The label to jump to for this instruction.
    fn target(&self, at: usize) -> Label {
        if self.plan.is_refused(at) {
            self.miss
        } else {
            self.labels[at]
        }
    }

    /// Converts from network to host byte order.
    fn swap(&mut self, reg: Reg, width: cbpf::Width) {
        if width != cbpf::Width::B {
            self.asm.swap_be(reg, width.bytes() as i32 * 8);
        }
    }

    fn memory(&self, word: u32) -> i16 {
        self.stack_top - MEMORY_WORDS as i16 * 4 + word as i16 * 4
    }

    /// Stack offset of the word that helpers load into.
    fn scratch(&self) -> i16 {
        self.stack_top - STACK_LEN
    }

    /// Emits the whole filter.
    fn body(&mut self, access: &mut impl Access) -> Result<(), TranslateError> {
        let plan = self.plan;
        if plan.is_refused(0) {
            self.asm.jump(self.miss);
            return Ok(());
        }
        self.asm.mov32(access.a(), 0);
        self.asm.mov32(access.x(), 0);
        if plan.reads_unset_memory {
            for pair in 0..MEMORY_WORDS as u32 / 2 {
                self.asm.store(Width::D, R10, self.memory(pair * 2), 0);
            }
        }
        for (at, &op) in plan.ops.iter().enumerate() {
            if !plan.is_live(at) {
                continue;
            }
            self.asm.bind(self.labels[at]);
            self.op(access, at, op)?;
            // All further paths reject the packet: return, since there is no next instruction.
            let falls = !matches!(op, Op::Jump(_) | Op::JumpIf(..) | Op::Ret(_) | Op::RetA);
            if falls && plan.is_refused(at + 1) {
                self.asm.jump(self.miss);
            }
        }
        Ok(())
    }

    fn op(&mut self, access: &mut impl Access, at: usize, op: Op) -> Result<(), TranslateError> {
        let (a, x) = (access.a(), access.x());
        let register = |reg| if reg == cbpf::Reg::A { a } else { x };
        match op {
            Op::LoadAbs(width, k) => return access.load_abs(self, at, width, k),
            Op::LoadInd(width, k) => {
                access.load_ind(self, at, width, k);
                return Ok(());
            }
            Op::LoadMsh(k) => {
                access.load_msh(self, at, k);
                return Ok(());
            }
            Op::LoadLen(reg) => access.load_len(self, register(reg)),
            Op::LoadImm(reg, k) => self.asm.mov32(register(reg), k as i32),
            Op::LoadMem(reg, word) => {
                self.asm
                    .load(Width::W, register(reg), R10, self.memory(word));
            }
            Op::Store(reg, word) => {
                self.asm
                    .store(Width::W, R10, self.memory(word), register(reg));
            }
            Op::Alu(alu, operand) => self.alu(alu, operand, a, x),
            Op::Tax => self.asm.mov32(x, a),
            Op::Txa => self.asm.mov32(a, x),
            Op::Jump(skip) => self.go(at, at + 1 + skip as usize),
            Op::JumpIf(cond, operand, jt, jf) => {
                let operand = match operand {
                    Operand::K(k) => (k as i32).into(),
                    Operand::X => x.into(),
                };
                self.jump_if(
                    at,
                    cond,
                    a,
                    operand,
                    (at + 1 + jt as usize, at + 1 + jf as usize),
                );
            }
            Op::Ret(k) => {
                // The plan treats `ret #0` as a rejection; it is never emitted.
                self.asm.mov32(R0, k as i32);
                self.asm.jump(self.hit);
            }
            Op::RetA => {
                self.asm.jump32_if(Cond::Eq, a, 0, self.miss);
                if a != R0 {
                    self.asm.mov32(R0, a);
                }
                self.asm.jump(self.hit);
            }
        }
        access.passed(at);
        Ok(())
    }

    /// Continues at `to`; no jump is needed if that comes next.
    fn go(&mut self, at: usize, to: usize) {
        if !self.comes_next(at, to) {
            self.asm.jump(self.target(to));
        }
    }

    /// Whether the code of `to` directly follows that of `at`.
    fn comes_next(&self, at: usize, to: usize) -> bool {
        self.plan.is_live(to) && (at + 1..to).all(|between| !self.plan.is_live(between))
    }

    fn jump_if(
        &mut self,
        at: usize,
        cond: cbpf::Cond,
        a: Reg,
        operand: crate::ebpf::Src,
        (yes, no): (usize, usize),
    ) {
        let (taken, not_taken) = (self.target(yes), self.target(no));
        if taken == not_taken {
            self.go(at, yes);
            return;
        }
        let (cond, inverse) = match cond {
            cbpf::Cond::Eq => (Cond::Eq, Some(Cond::Ne)),
            cbpf::Cond::Gt => (Cond::Gt, Some(Cond::Le)),
            cbpf::Cond::Ge => (Cond::Ge, Some(Cond::Lt)),
            cbpf::Cond::Set => (Cond::Set, None),
        };
        // Fall through to whichever comes next, if the condition can be inverted.
        match inverse {
            Some(inverse) if self.comes_next(at, yes) => {
                self.asm.jump32_if(inverse, a, operand, not_taken);
            }
            _ => {
                self.asm.jump32_if(cond, a, operand, taken);
                self.go(at, no);
            }
        }
    }

    fn alu(&mut self, alu: cbpf::Alu, operand: Operand, a: Reg, x: Reg) {
        let src = match operand {
            Operand::K(k) => (k as i32).into(),
            Operand::X => crate::ebpf::Src::Reg(x),
        };
        let by_x = operand == Operand::X;
        let op = match alu {
            cbpf::Alu::Add => Alu::Add,
            cbpf::Alu::Sub => Alu::Sub,
            cbpf::Alu::Mul => Alu::Mul,
            cbpf::Alu::Div => Alu::Div,
            cbpf::Alu::Mod => Alu::Mod,
            cbpf::Alu::And => Alu::And,
            cbpf::Alu::Or => Alu::Or,
            cbpf::Alu::Xor => Alu::Xor,
            cbpf::Alu::Lsh => Alu::Lsh,
            cbpf::Alu::Rsh => Alu::Rsh,
            cbpf::Alu::Neg => {
                self.asm.alu32(Alu::Neg, a, 0);
                return;
            }
        };
        match op {
            // cBPF rejects the packet where eBPF continues with 0.
            Alu::Div | Alu::Mod if by_x => {
                self.asm.jump32_if(Cond::Eq, x, 0, self.miss);
                self.asm.alu32(op, a, src);
            }
            // eBPF takes the count modulo 32; in cBPF the result is 0.
            Alu::Lsh | Alu::Rsh if by_x => {
                let (small, done) = (self.asm.label(), self.asm.label());
                self.asm.jump32_if(Cond::Le, x, 31, small);
                self.asm.mov32(a, 0);
                self.asm.jump(done);
                self.asm.bind(small);
                self.asm.alu32(op, a, src);
                self.asm.bind(done);
            }
            _ => self.asm.alu32(op, a, src),
        }
    }
}

#[cfg(test)]
mod tests;
