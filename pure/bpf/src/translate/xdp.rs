//! Filters on an XDP context by direct packet access: the verifier requires each load to be
//! preceded by a comparison of the same pointer with the packet's end.
//!
//! Comparisons are made once, for as many bytes as every path ahead needs ([`super::plan`]), and
//! what has been compared on every path so far is tracked, both for the packet's start and for the
//! pointer at X. The verifier follows each path separately, so it always has the same information.
//!
//! Only the first buffer of a multi-buffer packet is directly accessible. With
//! [`XdpOptions::frags`] a second body is therefore emitted that loads from anywhere in the packet
//! through a helper; a failed comparison restarts there if the packet is long enough. That is
//! possible because a filter has no side effects.

use alloc::vec;
use alloc::vec::Vec;

use super::plan::{OFFSET_MAX, Plan, writes_x};
use super::{Access, DirectHook, Out, TranslateError, ebpf_width};
use crate::asm::{Asm, Label};
use crate::cbpf::{self, Ancillary, Place, Program};
use crate::ebpf::Reg::{self, R0, R1, R2, R3, R4, R5, R6, R7, R9, R10};
use crate::ebpf::{Alu, Cond, Width};

/// Options for reading XDP packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpOptions {
    /// The hook.
    pub hook: DirectHook,
    /// Also read beyond the first buffer (XDP: Linux 5.18, program loaded with the frags flag).
    pub frags: bool,
    /// Load at X + k through a helper (Linux 5.18) instead of directly. A pointer plus a variable
    /// is refused to processes without CAP_PERFMON.
    pub indirect_by_helper: bool,
    /// Stack offset below which the filter may use [`super::STACK_LEN`] bytes; a multiple of 8.
    pub stack_top: i16,
}

pub(super) fn emit(
    asm: &mut Asm,
    program: &Program,
    options: &XdpOptions,
    hit: Label,
    miss: Label,
) -> Result<(), TranslateError> {
    let slow = asm.label();
    emit_direct(asm, program, options, (hit, miss), slow)?;
    if asm.is_used(slow) {
        asm.bind(slow);
        emit_by_helper(asm, program, options, hit, miss)?;
    }
    Ok(())
}

/// Goes to `slow` with a packet that has more buffers where the first one is too short.
pub(super) fn emit_direct(
    asm: &mut Asm,
    program: &Program,
    options: &XdpOptions,
    (hit, miss): (Label, Label),
    slow: Label,
) -> Result<(), TranslateError> {
    let plan = Plan::new(program)?;
    let mut direct = Direct::new(&plan, options, slow);
    {
        let mut out = Out::new(asm, &plan, options.stack_top, hit, miss);
        if !plan.is_refused(0) {
            direct.load_pointers(&mut out);
        }
        out.body(&mut direct)?;
    }
    // The first buffer is too short: is the packet too short, or does it have more buffers?
    for (label, need) in direct.short {
        asm.bind(label);
        asm.jump_if(Cond::Lt, R9, need as i32, miss);
        asm.jump(slow);
    }
    Ok(())
}

pub(super) fn emit_by_helper(
    asm: &mut Asm,
    program: &Program,
    options: &XdpOptions,
    hit: Label,
    miss: Label,
) -> Result<(), TranslateError> {
    let plan = Plan::new(program)?;
    let mut out = Out::new(asm, &plan, options.stack_top, hit, miss);
    out.body(&mut ByHelper(options.hook))
}

/// Comparisons already made before an instruction.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Known {
    /// Bytes known to be present from the packet's start.
    abs: u32,
    /// Bytes known to be present from X, for which R5 = packet + X.
    ind: u32,
}

/// Direct access: A = R7, X = R1, R2 = packet, R3 = its end, R5 = packet + X where compared, R0 and
/// R4 for intermediate values, R9 = length.
struct Direct<'a> {
    plan: &'a Plan,
    options: &'a XdpOptions,
    known: Vec<Option<Known>>,
    slow: Label,
    /// Failed comparisons, by the length needed.
    short: Vec<(Label, u32)>,
}

const A: Reg = R7;
const X: Reg = R1;

impl<'a> Direct<'a> {
    fn new(plan: &'a Plan, options: &'a XdpOptions, slow: Label) -> Self {
        Self {
            plan,
            options,
            known: vec![None; plan.ops.len()],
            slow,
            short: Vec::new(),
        }
    }

    fn load_pointers(&self, out: &mut Out<'_>) {
        let hook = self.options.hook;
        out.asm.load(Width::W, R2, R6, hook.data());
        out.asm.load(Width::W, R3, R6, hook.data_end());
    }

    /// What is known on entry to `at`: the minimum of all paths.
    fn known(&self, at: usize) -> Known {
        self.known[at].unwrap_or_default()
    }

    /// Passes what is known on to the successors of `at`.
    fn report(&mut self, at: usize, mut known: Known) {
        if writes_x(self.plan.ops[at]) {
            known.ind = 0;
        }
        for to in self.plan.next(at).into_iter().flatten() {
            let slot = &mut self.known[to];
            *slot = Some(slot.map_or(known, |old| Known {
                abs: old.abs.min(known.abs),
                ind: old.ind.min(known.ind),
            }));
        }
    }

    /// The label that a failed comparison for this many bytes jumps to.
    fn short_label(&mut self, out: &mut Out<'_>, need: u32) -> Label {
        if !self.options.frags {
            return out.miss;
        }
        if let Some(&(label, _)) = self.short.iter().find(|(_, n)| *n == need) {
            return label;
        }
        let label = out.asm.label();
        self.short.push((label, need));
        label
    }

    /// Ensures that `end` bytes from the packet's start are present.
    fn ensure_abs(&mut self, out: &mut Out<'_>, at: usize, known: &mut Known, end: u32) {
        if known.abs >= end {
            return;
        }
        // As many as every path ahead needs.
        known.abs = self.plan.need_abs(at);
        let short = self.short_label(out, known.abs);
        out.asm.mov(R4, R2);
        out.asm.alu(Alu::Add, R4, known.abs as i32);
        out.asm.jump_if(Cond::Gt, R4, R3, short);
    }

    /// `to = *(base + k)`.
    fn load_at(out: &mut Out<'_>, width: cbpf::Width, to: Reg, base: Reg, k: u32) {
        match i16::try_from(k) {
            Ok(off) => out.asm.load(ebpf_width(width), to, base, off),
            Err(_) => {
                out.asm.mov(R4, base);
                out.asm.alu(Alu::Add, R4, k as i32);
                out.asm.load(ebpf_width(width), to, R4, 0);
            }
        }
    }

    /// Ensures that `end` bytes from X are present, with R5 = packet + X.
    fn ensure_ind(&mut self, out: &mut Out<'_>, at: usize, known: &mut Known, end: u32) {
        if known.ind >= end {
            return;
        }
        known.ind = self.plan.need_ind(at);
        // A packet longer than its first buffer may contain the missing bytes.
        let short = if self.options.frags {
            self.slow
        } else {
            out.miss
        };
        out.asm.mov32(R4, X);
        out.asm
            .jump_if(Cond::Gt, R4, (OFFSET_MAX - known.ind) as i32, out.miss);
        out.asm.mov(R5, R2);
        out.asm.alu(Alu::Add, R5, R4);
        out.asm.mov(R4, R5);
        out.asm.alu(Alu::Add, R4, known.ind as i32);
        out.asm.jump_if(Cond::Gt, R4, R3, short);
    }

    /// Loads at X + k through a helper, which invalidates the pointers and what was known about
    /// them.
    fn ind_by_helper(&mut self, out: &mut Out<'_>, width: cbpf::Width, k: u32) {
        // X must survive the call.
        let saved = out.scratch() + 4;
        out.asm.store(Width::W, R10, saved, X);
        load_bytes(out, self.options.hook, width, Some(X), k);
        out.asm.load(ebpf_width(width), A, R10, out.scratch());
        out.swap(A, width);
        out.asm.load(Width::W, X, R10, saved);
        self.load_pointers(out);
    }
}

impl Access for Direct<'_> {
    fn a(&self) -> Reg {
        A
    }

    fn x(&self) -> Reg {
        X
    }

    fn passed(&mut self, at: usize) {
        self.report(at, self.known(at));
    }

    fn load_abs(
        &mut self,
        out: &mut Out<'_>,
        at: usize,
        width: cbpf::Width,
        k: u32,
    ) -> Result<(), TranslateError> {
        let mut known = self.known(at);
        match Place::of(k) {
            Place::Packet(k) | Place::Link(k) => {
                self.ensure_abs(out, at, &mut known, k + width.bytes());
                Self::load_at(out, width, A, R2, k);
                out.swap(A, width);
            }
            place => ancillary(out, self.options.hook, (at, place), A, X)?,
        }
        self.report(at, known);
        Ok(())
    }

    fn load_ind(&mut self, out: &mut Out<'_>, at: usize, width: cbpf::Width, k: u32) {
        let mut known = self.known(at);
        if self.options.indirect_by_helper {
            self.ind_by_helper(out, width, k);
            known = Known::default();
        } else {
            self.ensure_ind(out, at, &mut known, k + width.bytes());
            Self::load_at(out, width, A, R5, k);
            out.swap(A, width);
        }
        self.report(at, known);
    }

    fn load_msh(&mut self, out: &mut Out<'_>, at: usize, k: u32) {
        let mut known = self.known(at);
        self.ensure_abs(out, at, &mut known, k + 1);
        Self::load_at(out, cbpf::Width::B, X, R2, k);
        out.asm.alu32(Alu::And, X, 0xf);
        out.asm.alu32(Alu::Lsh, X, 2);
        self.report(at, known);
    }

    fn load_len(&mut self, out: &mut Out<'_>, to: Reg) {
        out.asm.mov32(to, R9);
    }
}

/// All loads through a helper, from anywhere in the packet: A = R7, X = R9.
struct ByHelper(DirectHook);

/// `stack[scratch] = packet[index + k]`, or miss. Clobbers R0 to R5.
fn load_bytes(out: &mut Out<'_>, hook: DirectHook, width: cbpf::Width, index: Option<Reg>, k: u32) {
    match index {
        Some(x) => {
            out.asm.mov32(R2, x);
            out.asm.jump_if(Cond::Gt, R2, OFFSET_MAX as i32, out.miss);
            out.asm.alu32(Alu::Add, R2, k as i32);
        }
        None => out.asm.mov32(R2, k as i32),
    }
    out.asm.mov(R1, R6);
    out.asm.mov(R3, R10);
    out.asm.alu(Alu::Add, R3, i32::from(out.scratch()));
    out.asm.mov(R4, width.bytes() as i32);
    out.asm.call(hook.load_bytes());
    out.asm.jump_if(Cond::Ne, R0, 0, out.miss);
}

impl Access for ByHelper {
    fn a(&self) -> Reg {
        R7
    }

    fn x(&self) -> Reg {
        R9
    }

    fn load_abs(
        &mut self,
        out: &mut Out<'_>,
        at: usize,
        width: cbpf::Width,
        k: u32,
    ) -> Result<(), TranslateError> {
        match Place::of(k) {
            Place::Packet(k) | Place::Link(k) => {
                load_bytes(out, self.0, width, None, k);
                out.asm.load(ebpf_width(width), R7, R10, out.scratch());
                out.swap(R7, width);
                Ok(())
            }
            place => ancillary(out, self.0, (at, place), R7, R9),
        }
    }

    fn load_ind(&mut self, out: &mut Out<'_>, _: usize, width: cbpf::Width, k: u32) {
        load_bytes(out, self.0, width, Some(R9), k);
        out.asm.load(ebpf_width(width), R7, R10, out.scratch());
        out.swap(R7, width);
    }

    fn load_msh(&mut self, out: &mut Out<'_>, _: usize, k: u32) {
        load_bytes(out, self.0, cbpf::Width::B, None, k);
        out.asm.load(Width::B, R9, R10, out.scratch());
        out.asm.alu32(Alu::And, R9, 0xf);
        out.asm.alu32(Alu::Lsh, R9, 2);
    }

    fn load_len(&mut self, out: &mut Out<'_>, to: Reg) {
        self.0.load_len(out.asm, to);
    }
}

/// Loads metadata that is available at the hook.
fn ancillary(
    out: &mut Out<'_>,
    hook: DirectHook,
    (at, place): (usize, Place),
    a: Reg,
    x: Reg,
) -> Result<(), TranslateError> {
    match place {
        Place::Ancillary(Ancillary::Ifindex) => {
            out.asm.load(Width::W, a, R6, hook.ifindex());
        }
        Place::Ancillary(Ancillary::Queue) => out.asm.load(Width::W, a, R6, hook.queue_index()),
        Place::Ancillary(Ancillary::XorX) => out.asm.alu32(Alu::Xor, a, x),
        Place::Ancillary(what) => return Err(TranslateError::Ancillary { at, what }),
        Place::Network(_) | Place::Packet(_) | Place::Link(_) | Place::Nothing => {
            return Err(TranslateError::NetworkOffset { at });
        }
    }
    Ok(())
}
