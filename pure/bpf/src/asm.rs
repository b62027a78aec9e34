//! An assembler for eBPF: instructions by name, jumps by label, references resolved at the end.
//!
//! ```
//! use barewire_bpf::asm::Asm;
//! use barewire_bpf::ebpf::{Cond, Reg::*, Width};
//! let mut a = Asm::new();
//! let out = a.label();
//! a.load(Width::W, R0, R1, 0);
//! a.jump_if(Cond::Eq, R0, 7, out);
//! a.mov(R0, 1);
//! a.bind(out);
//! a.exit();
//! assert_eq!(a.finish().unwrap().len(), 4);
//! ```

use alloc::vec::Vec;
use core::fmt;

use crate::ebpf::{
    ATOMIC_COMPARE_EXCHANGE, Alu, CLASS_ALU32, CLASS_ALU64, CLASS_JMP, CLASS_JMP32, CLASS_LD,
    CLASS_LDX, CLASS_ST, CLASS_STX, Cond, Helper, Insn, MODE_ABS, MODE_ATOMIC, MODE_IMM, MODE_IND,
    MODE_MEM, PSEUDO_CALL, PSEUDO_KFUNC_CALL, PSEUDO_MAP_FD, PSEUDO_MAP_VALUE, Reg, SOURCE_X, Src,
    Width,
};

/// A position in the program that jumps can refer to before it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(u32);

/// Why a program could not be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsmError {
    /// A jump refers to a label that was never bound.
    UnboundLabel {
        /// Index of the jump.
        at: u32,
    },
    /// A jump is longer than a 16-bit offset allows.
    JumpTooFar {
        /// Index of the jump.
        at: u32,
        /// Distance in instructions.
        distance: i64,
    },
}

impl fmt::Display for AsmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnboundLabel { at } => write!(f, "jump at {at} to a label without a place"),
            Self::JumpTooFar { at, distance } => write!(
                f,
                "the program is too long: jump at {at} over {distance} instructions, at most 32767"
            ),
        }
    }
}

impl core::error::Error for AsmError {}

const UNBOUND: u32 = u32::MAX;

/// A program under construction.
#[derive(Clone, Debug, Default)]
pub struct Asm {
    insns: Vec<Insn>,
    labels: Vec<u32>,
    /// Of each label, whether a jump names it.
    used: Vec<bool>,
    fixups: Vec<(u32, Label)>,
    /// Calls of functions in the program.
    calls: Vec<(u32, Label)>,
}

impl Asm {
    /// Creates an empty program.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of instructions so far.
    pub fn len(&self) -> usize {
        self.insns.len()
    }

    /// Whether there are no instructions yet.
    pub fn is_empty(&self) -> bool {
        self.insns.is_empty()
    }

    /// Creates an unbound label.
    pub fn label(&mut self) -> Label {
        self.labels.push(UNBOUND);
        self.used.push(false);
        Label(self.labels.len() as u32 - 1)
    }

    /// Binds the label to the current position. Binding it again moves it.
    pub fn bind(&mut self, label: Label) {
        self.labels[label.0 as usize] = self.insns.len() as u32;
    }

    /// Whether any jump so far refers to the label. The verifier refuses unreachable code.
    pub fn is_used(&self, label: Label) -> bool {
        self.used[label.0 as usize]
    }

    /// Appends an instruction unchanged.
    pub fn raw(&mut self, insn: Insn) {
        self.insns.push(insn);
    }

    fn op(&mut self, code: u8, dst: Reg, src: Src, off: i16) {
        let (code, src, imm) = match src {
            Src::Reg(reg) => (code | SOURCE_X, reg as u8, 0),
            Src::Imm(imm) => (code, 0, imm),
        };
        self.raw(Insn {
            code,
            dst: dst as u8,
            src,
            off,
            imm,
        });
    }

    /// `dst = src`, 64 bits; a constant is sign-extended.
    pub fn mov(&mut self, dst: Reg, src: impl Into<Src>) {
        self.alu(Alu::Mov, dst, src);
    }

    /// `dst = src`, 32 bits; the upper half becomes 0.
    pub fn mov32(&mut self, dst: Reg, src: impl Into<Src>) {
        self.alu32(Alu::Mov, dst, src);
    }

    /// `dst = dst OP src`, 64 bits.
    pub fn alu(&mut self, op: Alu, dst: Reg, src: impl Into<Src>) {
        self.op(CLASS_ALU64 | op as u8, dst, src.into(), 0);
    }

    /// `dst = dst OP src`, 32 bits; the upper half becomes 0.
    pub fn alu32(&mut self, op: Alu, dst: Reg, src: impl Into<Src>) {
        self.op(CLASS_ALU32 | op as u8, dst, src.into(), 0);
    }

    /// Converts between network byte order and this machine's: the low 16, 32 or 64 bits; the rest
    /// becomes 0.
    pub fn swap_be(&mut self, dst: Reg, bits: i32) {
        // BPF_END with BPF_TO_BE: no operation on a big-endian machine, a swap elsewhere.
        let code = CLASS_ALU32 | 0xd0 | SOURCE_X;
        self.raw(Insn {
            code,
            dst: dst as u8,
            src: 0,
            off: 0,
            imm: bits,
        });
    }

    /// `dst = *(width *)(base + off)`, not sign-extended.
    pub fn load(&mut self, width: Width, dst: Reg, base: Reg, off: i16) {
        let code = CLASS_LDX | MODE_MEM | width as u8;
        self.raw(Insn {
            code,
            dst: dst as u8,
            src: base as u8,
            off,
            imm: 0,
        });
    }

    /// `*(width *)(base + off) = src`.
    pub fn store(&mut self, width: Width, base: Reg, off: i16, src: impl Into<Src>) {
        let (class, src, imm) = match src.into() {
            Src::Reg(reg) => (CLASS_STX, reg as u8, 0),
            Src::Imm(imm) => (CLASS_ST, 0, imm),
        };
        let code = class | MODE_MEM | width as u8;
        self.raw(Insn {
            code,
            dst: base as u8,
            src,
            off,
            imm,
        });
    }

    /// `if *(u64 *)(base + off) == r0 { *(u64 *)(base + off) = src }`, atomically; R0 is then the
    /// previous value (Linux 5.12).
    pub fn compare_exchange(&mut self, base: Reg, off: i16, src: Reg) {
        self.raw(Insn {
            code: CLASS_STX | MODE_ATOMIC | Width::D as u8,
            dst: base as u8,
            src: src as u8,
            off,
            imm: ATOMIC_COMPARE_EXCHANGE,
        });
    }

    /// The next instruction jumps there.
    fn fix(&mut self, to: Label) {
        self.used[to.0 as usize] = true;
        self.fixups.push((self.insns.len() as u32, to));
    }

    /// Jumps always.
    pub fn jump(&mut self, to: Label) {
        self.fix(to);
        self.raw(Insn {
            code: CLASS_JMP,
            ..Insn::default()
        });
    }

    /// Jumps if `dst COND src`, comparing 64 bits.
    pub fn jump_if(&mut self, cond: Cond, dst: Reg, src: impl Into<Src>, to: Label) {
        self.fix(to);
        self.op(CLASS_JMP | cond as u8, dst, src.into(), 0);
    }

    /// Jumps if `dst COND src`, comparing the low 32 bits (Linux 5.1).
    pub fn jump32_if(&mut self, cond: Cond, dst: Reg, src: impl Into<Src>, to: Label) {
        self.fix(to);
        self.op(CLASS_JMP32 | cond as u8, dst, src.into(), 0);
    }

    /// `dst = value`, all 64 bits; two instructions long.
    pub fn load_imm64(&mut self, dst: Reg, value: u64) {
        self.wide(dst, 0, value as u32 as i32, (value >> 32) as u32 as i32);
    }

    /// `dst = the map of this file descriptor`; two instructions long.
    pub fn load_map(&mut self, dst: Reg, map_fd: i32) {
        self.wide(dst, PSEUDO_MAP_FD, map_fd, 0);
    }

    /// `dst = the address of a byte in the value of a map` with a single entry (an array, Linux
    /// 5.2); two instructions long.
    pub fn load_map_value(&mut self, dst: Reg, map_fd: i32, offset: u32) {
        self.wide(dst, PSEUDO_MAP_VALUE, map_fd, offset as i32);
    }

    fn wide(&mut self, dst: Reg, src: u8, low: i32, high: i32) {
        let code = CLASS_LD | MODE_IMM | Width::D as u8;
        self.raw(Insn {
            code,
            dst: dst as u8,
            src,
            off: 0,
            imm: low,
        });
        self.raw(Insn {
            imm: high,
            ..Insn::default()
        });
    }

    /// Socket filters only: `r0 = packet[index]` in host byte order; needs the context in R6,
    /// clobbers R1 to R5, and ends the program with 0 if the packet is too short.
    pub fn load_abs(&mut self, width: Width, index: i32) {
        let code = CLASS_LD | MODE_ABS | width as u8;
        self.raw(Insn {
            code,
            imm: index,
            ..Insn::default()
        });
    }

    /// Socket filters only: like [`Asm::load_abs`], at `base + index`.
    pub fn load_ind(&mut self, width: Width, base: Reg, index: i32) {
        let code = CLASS_LD | MODE_IND | width as u8;
        self.raw(Insn {
            code,
            src: base as u8,
            imm: index,
            ..Insn::default()
        });
    }

    /// Calls a helper: arguments R1 to R5, result R0.
    pub fn call(&mut self, helper: Helper) {
        let code = CLASS_JMP | 0x80;
        self.raw(Insn {
            code,
            imm: helper as i32,
            ..Insn::default()
        });
    }

    /// Calls a function of this program, which begins at the label and ends with [`Asm::exit`]:
    /// arguments R1 to R5, result R0. It has its own stack frame, and R6 to R9 are saved. The
    /// distance is not limited as that of a jump.
    pub fn call_local(&mut self, function: Label) {
        self.used[function.0 as usize] = true;
        self.calls.push((self.insns.len() as u32, function));
        let code = CLASS_JMP | 0x80;
        self.raw(Insn {
            code,
            src: PSEUDO_CALL,
            ..Insn::default()
        });
    }

    /// Calls a kernel function by its BTF id in vmlinux: arguments R1 to R5, result R0.
    pub fn call_kfunc(&mut self, btf_id: u32) {
        let code = CLASS_JMP | 0x80;
        self.raw(Insn {
            code,
            src: PSEUDO_KFUNC_CALL,
            imm: btf_id as i32,
            ..Insn::default()
        });
    }

    /// Ends the program with R0 as its result.
    pub fn exit(&mut self) {
        self.raw(Insn {
            code: CLASS_JMP | 0x90,
            ..Insn::default()
        });
    }

    /// Returns the program with its jumps resolved.
    pub fn finish(mut self) -> Result<Vec<Insn>, AsmError> {
        for &(at, label) in &self.fixups {
            let to = self.labels[label.0 as usize];
            if to == UNBOUND {
                return Err(AsmError::UnboundLabel { at });
            }
            let distance = i64::from(to) - i64::from(at) - 1;
            self.insns[at as usize].off =
                i16::try_from(distance).map_err(|_| AsmError::JumpTooFar { at, distance })?;
        }
        for &(at, label) in &self.calls {
            let to = self.labels[label.0 as usize];
            if to == UNBOUND {
                return Err(AsmError::UnboundLabel { at });
            }
            // Programs are shorter than 2^31 instructions.
            self.insns[at as usize].imm = to.wrapping_sub(at + 1) as i32;
        }
        Ok(self.insns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ebpf::Reg::{R0, R1, R2, R10};

    #[test]
    fn jumps_reach_both_ways() {
        let mut a = Asm::new();
        let (top, end) = (a.label(), a.label());
        a.bind(top);
        a.mov(R0, 0);
        a.jump_if(Cond::Ne, R1, R2, end);
        a.jump(top);
        a.bind(end);
        a.exit();
        let insns = a.finish().unwrap();
        assert_eq!((insns[1].off, insns[2].off), (1, -3));
        assert_eq!(insns[1].code, 0x5d);
    }

    #[test]
    fn encodings_are_those_of_the_kernel() {
        let mut a = Asm::new();
        a.load_map(R1, 5);
        a.store(Width::W, R10, -4, 0);
        a.load(Width::B, R0, R1, 3);
        a.swap_be(R0, 16);
        a.call_kfunc(77);
        a.load_ind(Width::H, R1, 2);
        a.load_abs(Width::B, 9);
        a.compare_exchange(R1, 8, R2);
        let codes: std::vec::Vec<_> = a
            .finish()
            .unwrap()
            .iter()
            .map(|i| (i.code, i.src, i.imm))
            .collect();
        assert_eq!(
            codes,
            [
                (0x18, 1, 5),
                (0x00, 0, 0),
                (0x62, 0, 0),
                (0x71, 1, 0),
                (0xdc, 0, 16),
                (0x85, 2, 77),
                (0x48, 1, 2),
                (0x30, 0, 9),
                (0xdb, 2, 0xf1),
            ]
        );
    }

    #[test]
    fn calls_reach_functions_at_any_distance() {
        let mut a = Asm::new();
        let function = a.label();
        a.call_local(function);
        a.exit();
        for _ in 0..40_000 {
            a.mov(R0, 0);
        }
        a.bind(function);
        a.exit();
        let call = a.finish().unwrap()[0];
        assert_eq!((call.src, call.imm), (1, 40_001));
        let mut a = Asm::new();
        let nowhere = a.label();
        a.call_local(nowhere);
        assert_eq!(a.finish(), Err(AsmError::UnboundLabel { at: 0 }));
    }

    #[test]
    fn errors_are_reported() {
        let mut a = Asm::new();
        let nowhere = a.label();
        a.jump(nowhere);
        assert_eq!(a.finish(), Err(AsmError::UnboundLabel { at: 0 }));

        let mut a = Asm::new();
        let far = a.label();
        a.jump(far);
        for _ in 0..40_000 {
            a.mov(R0, 0);
        }
        a.bind(far);
        a.exit();
        assert_eq!(
            a.finish(),
            Err(AsmError::JumpTooFar {
                at: 0,
                distance: 40_000
            })
        );
    }
}
