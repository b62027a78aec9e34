//! Compiles cBPF to x86-64 machine code, for filters that run in user space on many packets.
//!
//! The code has the semantics of [`vm_cbpf`](crate::vm_cbpf). It is a function of the System V
//! calling convention (System V ABI, AMD64 supplement, section 3.2):
//!
//! ```text
//! rdi  first byte of the packet
//! rsi  bytes present, fewer than 2^31
//! edx  length on the wire
//! eax  the result: bytes to keep, 0 for none
//! ```
//!
//! Register A is eax, X is r9d, and the length on the wire is r8d. Scratch memory is below the
//! stack pointer, in the 128 bytes that a leaf function may use.
//!
//! A load is preceded by a comparison with the captured length, unless every path to it has already
//! compared at least as many bytes. Short runs of tests are evaluated without jumps (`chain`), in
//! ecx, edx, r10d and r11d.

use alloc::vec;
use alloc::vec::Vec;

use crate::cbpf::{Alu, Cond, LINK_BASE, MEMORY_WORDS, Op, Operand, Program, Reg, Width};

mod chain;
mod encode;

use chain::Chain;
use encode::{Code, Jump};

/// Machine code of a program; `None` if only the interpreter can run it: backward jumps and loads
/// of metadata.
pub fn x86_64(program: &Program) -> Option<Vec<u8>> {
    if program.backward_jump().is_some() {
        return None;
    }
    let ops: Option<Vec<Op>> = program.insns().iter().map(|insn| insn.decode()).collect();
    let ops = ops?;
    if ops
        .iter()
        .any(|op| matches!(op, Op::LoadAbs(_, at) if *at >= LINK_BASE))
    {
        return None;
    }
    let mut compiler = Compiler::new(&ops);
    compiler.prologue();
    for (at, op) in ops.iter().enumerate() {
        compiler.code.bind(at);
        // Unreachable instructions are omitted.
        if let Some(known) = compiler.known[at] {
            if !compiler.is_replaced[at]
                && let Some(chain) = chain::find(&ops, at)
            {
                compiler.chain(at, &chain, known);
            }
            compiler.op(at, *op, known);
        }
    }
    compiler.code.bind(ops.len());
    compiler.code.put(&[0x31, 0xc0, 0xc3]); // xor eax, eax; ret
    Some(compiler.code.finish())
}

/// Loads at this index and above are outside every packet.
const OUTSIDE: u32 = i32::MAX as u32 - 4;

struct Compiler<'a> {
    ops: &'a [Op],
    /// Number of bytes known to be present when an instruction is reached; `None` if it is
    /// unreachable.
    known: Vec<Option<u32>>,
    /// Whether an instruction is one of a run of tests that is evaluated as a whole.
    is_replaced: Vec<bool>,
    code: Code,
}

impl<'a> Compiler<'a> {
    fn new(ops: &'a [Op]) -> Self {
        let mut known = vec![None; ops.len()];
        known[0] = Some(0);
        Compiler {
            ops,
            known,
            is_replaced: vec![false; ops.len()],
            // Two labels for each instruction: itself, and the code for short packets if a run of
            // tests begins there; and one for the rejection after the last.
            code: Code::new(2 * ops.len() + 1),
        }
    }

    fn refusal(&self) -> usize {
        self.ops.len()
    }

    /// Sets A and X to 0, and scratch memory where it is read; keeps the length on the wire.
    fn prologue(&mut self) {
        if self.ops.iter().any(|op| matches!(op, Op::LoadLen(_))) {
            self.code.put(&[0x41, 0x89, 0xd0]); // mov r8d, edx
        }
        let [a, x] = reads_unset(self.ops);
        if a {
            self.code.put(&[0x31, 0xc0]); // xor eax, eax
        }
        if x {
            self.code.put(&[0x45, 0x31, 0xc9]); // xor r9d, r9d
        }
        if self.ops.iter().any(|op| matches!(op, Op::LoadMem(..))) {
            for word in 0..MEMORY_WORDS as u32 {
                // mov dword [rsp + place], 0
                self.code.put(&[0xc7, 0x44, 0x24, place(word)]);
                self.code.put(&0u32.to_le_bytes());
            }
        }
    }

    /// Evaluates a run of tests, if the packet is long enough; the code for others follows.
    fn chain(&mut self, at: usize, chain: &Chain, known: u32) {
        for &at in &chain.ops {
            self.is_replaced[at] = true;
        }
        let short = self.ops.len() + 1 + at;
        if chain.len > known {
            self.code.put_with(&[0x48, 0x81, 0xfe], chain.len); // cmp rsi, len
            self.code.jump(Jump::Below, short);
        }
        chain.emit(&mut self.code, short);
        self.code.bind(short);
    }

    /// Records a path to an instruction with this many bytes known to be present.
    fn reaches(&mut self, at: usize, known: u32) {
        if let Some(there) = self.known.get_mut(at) {
            *there = Some(there.map_or(known, |other| other.min(known)));
        }
    }

    fn op(&mut self, at: usize, op: Op, mut known: u32) {
        match op {
            Op::LoadAbs(width, index) => self.load_abs(width, index, &mut known),
            Op::LoadInd(width, index) => self.load_ind(width, index),
            Op::LoadMsh(index) => {
                self.present(index, 1, &mut known);
                chain::load_header_len(&mut self.code, index);
            }
            Op::LoadLen(Reg::A) => self.code.put(&[0x44, 0x89, 0xc0]),
            Op::LoadLen(Reg::X) => self.code.put(&[0x45, 0x89, 0xc1]),
            Op::LoadImm(Reg::A, k) => self.code.put_with(&[0xb8], k),
            Op::LoadImm(Reg::X, k) => self.code.put_with(&[0x41, 0xb9], k),
            Op::LoadMem(Reg::A, k) => self.code.put(&[0x8b, 0x44, 0x24, place(k)]),
            Op::LoadMem(Reg::X, k) => self.code.put(&[0x44, 0x8b, 0x4c, 0x24, place(k)]),
            Op::Store(Reg::A, k) => self.code.put(&[0x89, 0x44, 0x24, place(k)]),
            Op::Store(Reg::X, k) => self.code.put(&[0x44, 0x89, 0x4c, 0x24, place(k)]),
            Op::Tax => self.code.put(&[0x41, 0x89, 0xc1]),
            Op::Txa => self.code.put(&[0x44, 0x89, 0xc8]),
            Op::Alu(alu, Operand::K(k)) => self.alu_constant(alu, k),
            Op::Alu(alu, Operand::X) => self.alu_x(alu),
            Op::Jump(skip) => return self.jump(at, at + 1 + skip as usize, known),
            Op::JumpIf(cond, operand, jt, jf) => {
                let ways = [jt, jf].map(|skip| at + 1 + usize::from(skip));
                return self.jump_if(at, cond, operand, ways, known);
            }
            Op::Ret(k) => {
                self.code.put_with(&[0xb8], k);
                return self.code.put(&[0xc3]);
            }
            Op::RetA => return self.code.put(&[0xc3]),
        }
        self.reaches(at + 1, known);
    }

    /// Rejects the packet unless this many bytes are present at an index.
    fn present(&mut self, index: u32, len: u32, known: &mut u32) {
        let refusal = self.refusal();
        if index >= OUTSIDE {
            self.code.jump(Jump::Always, refusal);
        } else if index + len > *known {
            *known = index + len;
            self.code.put_with(&[0x48, 0x81, 0xfe], *known); // cmp rsi, known
            self.code.jump(Jump::Below, refusal);
        }
    }

    fn load_abs(&mut self, width: Width, index: u32, known: &mut u32) {
        self.present(index, width.bytes(), known);
        match width {
            Width::W => self.code.put_with(&[0x8b, 0x87], index), // mov eax, [rdi + index]
            Width::H => self.code.put_with(&[0x0f, 0xb7, 0x87], index), // movzx eax, word
            Width::B => self.code.put_with(&[0x0f, 0xb6, 0x87], index), // movzx eax, byte
        }
        self.swap(width);
    }

    fn load_ind(&mut self, width: Width, index: u32) {
        let refusal = self.refusal();
        if index >= OUTSIDE {
            return self.code.jump(Jump::Always, refusal);
        }
        // lea r10, [r9 + index]: X is in the low half, the sum needs 33 bits. The end of the load
        // is compared: lea r11, [r10 + width]; cmp r11, rsi; ja.
        self.code.put_with(&[0x4d, 0x8d, 0x91], index);
        self.code.put(&[0x4d, 0x8d, 0x5a, width.bytes() as u8]);
        self.code.put(&[0x49, 0x39, 0xf3]);
        self.code.jump(Jump::Above, refusal);
        match width {
            Width::W => self.code.put(&[0x42, 0x8b, 0x04, 0x17]), // mov eax, [rdi + r10]
            Width::H => self.code.put(&[0x42, 0x0f, 0xb7, 0x04, 0x17]),
            Width::B => self.code.put(&[0x42, 0x0f, 0xb6, 0x04, 0x17]),
        }
        self.swap(width);
    }

    /// Converts from network byte order.
    fn swap(&mut self, width: Width) {
        match width {
            Width::W => self.code.put(&[0x0f, 0xc8]), // bswap eax
            Width::H => self.code.put(&[0x66, 0xc1, 0xc0, 0x08]), // rol ax, 8
            Width::B => {}
        }
    }

    fn alu_constant(&mut self, alu: Alu, k: u32) {
        match alu {
            Alu::Add => self.code.put_with(&[0x05], k),
            Alu::Sub => self.code.put_with(&[0x2d], k),
            Alu::Mul => self.code.put_with(&[0x69, 0xc0], k),
            Alu::And => self.code.put_with(&[0x25], k),
            Alu::Or => self.code.put_with(&[0x0d], k),
            Alu::Xor => self.code.put_with(&[0x35], k),
            Alu::Lsh => self.code.put(&[0xc1, 0xe0, k as u8]),
            Alu::Rsh => self.code.put(&[0xc1, 0xe8, k as u8]),
            Alu::Neg => self.code.put(&[0xf7, 0xd8]),
            Alu::Div | Alu::Mod => {
                // mov ecx, k; xor edx, edx; div ecx. A checked program never divides by a constant
                // 0.
                self.code.put_with(&[0xb9], k);
                self.code.put(&[0x31, 0xd2, 0xf7, 0xf1]);
                self.remainder(alu);
            }
        }
    }

    fn alu_x(&mut self, alu: Alu) {
        match alu {
            Alu::Add => self.code.put(&[0x44, 0x01, 0xc8]),
            Alu::Sub => self.code.put(&[0x44, 0x29, 0xc8]),
            Alu::Mul => self.code.put(&[0x41, 0x0f, 0xaf, 0xc1]),
            Alu::And => self.code.put(&[0x44, 0x21, 0xc8]),
            Alu::Or => self.code.put(&[0x44, 0x09, 0xc8]),
            Alu::Xor => self.code.put(&[0x44, 0x31, 0xc8]),
            Alu::Lsh => self.shift(0xe0),
            Alu::Rsh => self.shift(0xe8),
            Alu::Neg => self.code.put(&[0xf7, 0xd8]),
            Alu::Div | Alu::Mod => {
                let refusal = self.refusal();
                self.code.put(&[0x45, 0x85, 0xc9]); // test r9d, r9d
                self.code.jump(Jump::Equal, refusal);
                self.code.put(&[0x31, 0xd2, 0x41, 0xf7, 0xf1]); // xor edx, edx; div r9d
                self.remainder(alu);
            }
        }
    }

    /// Shifts A by X: by 32 or more gives 0, where the processor would take the count modulo 32.
    fn shift(&mut self, operation: u8) {
        self.code.put(&[0x44, 0x89, 0xc9]); // mov ecx, r9d
        self.code.put(&[0xd3, operation]);
        self.code.put(&[0x83, 0xf9, 0x20]); // cmp ecx, 32
        self.code.put(&[0x72, 0x02, 0x31, 0xc0]); // jb over; xor eax, eax
    }

    fn remainder(&mut self, alu: Alu) {
        if alu == Alu::Mod {
            self.code.put(&[0x89, 0xd0]); // mov eax, edx
        }
    }

    fn jump(&mut self, at: usize, to: usize, known: u32) {
        if to != at + 1 {
            self.code.jump(Jump::Always, to);
        }
        self.reaches(to, known);
    }

    fn jump_if(&mut self, at: usize, cond: Cond, operand: Operand, ways: [usize; 2], known: u32) {
        match (cond, operand) {
            (Cond::Set, Operand::K(k)) => self.code.put_with(&[0xa9], k), // test eax, k
            (Cond::Set, Operand::X) => self.code.put(&[0x44, 0x85, 0xc8]),
            (_, Operand::K(k)) => self.code.put_with(&[0x3d], k), // cmp eax, k
            (_, Operand::X) => self.code.put(&[0x44, 0x39, 0xc8]),
        }
        let (holds, fails) = match cond {
            Cond::Eq => (Jump::Equal, Jump::NotEqual),
            Cond::Gt => (Jump::Above, Jump::NotAbove),
            Cond::Ge => (Jump::NotBelow, Jump::Below),
            Cond::Set => (Jump::NotEqual, Jump::Equal),
        };
        let [yes, no] = ways;
        if yes == at + 1 {
            self.code.jump(fails, no);
        } else {
            self.code.jump(holds, yes);
            if no != at + 1 {
                self.code.jump(Jump::Always, no);
            }
        }
        self.reaches(yes, known);
        self.reaches(no, known);
    }
}

/// Whether some path reads A, or X, before it sets it. A third of a short program's instructions
/// would set registers that it overwrites.
fn reads_unset(ops: &[Op]) -> [bool; 2] {
    let mut reads_unset = [false; 2];
    // Whether all paths to an instruction have set A and X; `None` if it is unreachable.
    let mut set: Vec<Option<[bool; 2]>> = vec![None; ops.len()];
    set[0] = Some([false; 2]);
    for (at, &op) in ops.iter().enumerate() {
        let Some(mut now) = set[at] else { continue };
        let (reads, writes) = registers(op);
        for register in 0..2 {
            reads_unset[register] |= reads[register] && !now[register];
            now[register] |= writes[register];
        }
        let next = match op {
            Op::Ret(_) | Op::RetA => [None, None],
            Op::Jump(skip) => [Some(skip as usize), None],
            Op::JumpIf(_, _, jt, jf) => [jt, jf].map(|skip| Some(skip.into())),
            _ => [Some(0), None],
        };
        for skip in next.into_iter().flatten() {
            if let Some(there) = set.get_mut(at + 1 + skip) {
                let [a, x] = there.unwrap_or(now);
                *there = Some([a && now[0], x && now[1]]);
            }
        }
    }
    reads_unset
}

/// Which of A and X an instruction reads, and which it writes.
fn registers(op: Op) -> ([bool; 2], [bool; 2]) {
    const NONE: [bool; 2] = [false, false];
    const A: [bool; 2] = [true, false];
    const X: [bool; 2] = [false, true];
    const BOTH: [bool; 2] = [true, true];
    let one = |register| if register == Reg::A { A } else { X };
    match op {
        Op::LoadAbs(..) => (NONE, A),
        Op::LoadInd(..) | Op::Txa => (X, A),
        Op::LoadMsh(_) => (NONE, X),
        Op::LoadLen(register) | Op::LoadImm(register, _) | Op::LoadMem(register, _) => {
            (NONE, one(register))
        }
        Op::Store(register, _) => (one(register), NONE),
        Op::Tax => (A, X),
        Op::Alu(_, Operand::X) => (BOTH, A),
        Op::Alu(_, Operand::K(_)) => (A, A),
        Op::JumpIf(_, Operand::X, ..) => (BOTH, NONE),
        Op::JumpIf(..) | Op::RetA => (A, NONE),
        Op::Jump(_) | Op::Ret(_) => (NONE, NONE),
    }
}

/// Offset of a scratch memory word from the stack pointer: a signed byte.
fn place(word: u32) -> u8 {
    (word as u8).wrapping_mul(4).wrapping_sub(64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cbpf::Insn;

    fn bytes(insns: &[(u16, u8, u8, u32)]) -> Option<Vec<u8>> {
        let insns = insns
            .iter()
            .map(|&(code, jt, jf, k)| Insn::new(code, jt, jf, k));
        x86_64(&Program::new(insns.collect()).unwrap())
    }

    #[test]
    fn the_captured_length_is_compared_once() {
        let cmp = [0x48, 0x81, 0xfe];
        let count = |code: &[u8]| code.windows(3).filter(|three| *three == cmp).count();
        let once = bytes(&[
            (0x28, 0, 0, 12),
            (0x15, 0, 1, 0x800),
            (0x30, 0, 0, 9),
            (0x16, 0, 0, 0),
        ]);
        assert_eq!(count(&once.unwrap()), 1);
        let twice = bytes(&[
            (0x30, 0, 0, 9),
            (0x15, 0, 1, 6),
            (0x28, 0, 0, 12),
            (0x16, 0, 0, 0),
        ]);
        assert_eq!(count(&twice.unwrap()), 2);
    }

    #[test]
    fn registers_are_cleared_where_a_path_reads_them_unset() {
        let (xor_a, xor_x) = ([0x31, 0xc0].as_slice(), [0x45, 0x31, 0xc9].as_slice());
        let clears = |insns: &[(u16, u8, u8, u32)]| {
            let code = bytes(insns).unwrap();
            let head = &code[..code.len().min(5)];
            [xor_a, xor_x].map(|xor| head.windows(xor.len()).any(|w| w == xor))
        };
        let loads = [
            (0x28, 0, 0, 12),
            (0x15, 0, 1, 1),
            (0x06, 0, 0, 9),
            (0x06, 0, 0, 0),
        ];
        assert_eq!(clears(&loads), [false, false]);
        assert_eq!(clears(&[(0x16, 0, 0, 0)]), [true, false]);
        // One of two paths sets X before both read it.
        let one_path = [
            (0x30, 0, 0, 9),
            (0x15, 0, 1, 6),
            (0xb1, 0, 0, 14),
            (0x50, 0, 0, 14),
            (0x16, 0, 0, 0),
        ];
        assert_eq!(clears(&one_path), [false, true]);
        let both = [(0xb1, 0, 0, 14), (0x50, 0, 0, 14), (0x16, 0, 0, 0)];
        assert_eq!(clears(&both), [false, false]);
    }

    #[test]
    fn programs_that_need_the_interpreter_are_not_compiled() {
        let tag = crate::cbpf::ANCILLARY_BASE + 44;
        assert_eq!(bytes(&[(0x30, 0, 0, tag), (0x16, 0, 0, 0)]), None);
        let backward = [(0x05, 0, 0, u32::MAX), (0x16, 0, 0, 0)];
        assert_eq!(bytes(&backward), None);
    }
}
