//! Evaluates short runs of tests without a jump for each.
//!
//! Whether a packet is IPv4, or TCP, varies from packet to packet, and a jump that depends on it is
//! often predicted wrongly, which costs more than all other instructions of a short filter. A run
//! of tests that each end the filter or continue is therefore evaluated as a whole, by conditional
//! moves, if the packet is long enough for all of its loads. Shorter packets take the code for one
//! instruction after the other, which follows.

use alloc::vec::Vec;

use super::encode::{Code, Jump};
use crate::cbpf::{Alu, Cond, Op, Operand, Reg, Width};

/// Maximum number of tests of a run: most packets need only the first ones.
const TESTS_MAX: usize = 5;
/// Loads at this index and above are left to the other code.
const INDEX_MAX: u32 = 0xffff;

/// What a test compares.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// Register A as it is at the start.
    A,
    /// The length on the wire.
    Len,
    Field(Width, u32),
    /// A field at X and an index.
    Indirect(Width, u32),
}

struct Test {
    source: Source,
    mask: u32,
    cond: Cond,
    k: u32,
    /// The result if the test holds, and if not: whether the packet matches. `None` continues.
    results: [Option<bool>; 2],
}

/// A run of tests, after which the filter has returned.
pub(super) struct Chain {
    tests: Vec<Test>,
    /// Where X is set to the length of an IPv4 header, if it is.
    header: Option<u32>,
    /// The result of the filter for packets that match.
    result: u32,
    /// Number of bytes that the loads at constant indices need.
    pub len: u32,
    /// The instructions that it replaces.
    pub ops: Vec<usize>,
}

/// Finds the run of tests that begins at an instruction.
pub(super) fn find(ops: &[Op], start: usize) -> Option<Chain> {
    let mut chain = Chain {
        tests: Vec::new(),
        header: None,
        result: 0,
        len: 0,
        ops: Vec::new(),
    };
    let (mut at, mut source, mut mask) = (start, Source::A, u32::MAX);
    // Whether a load at X has not been compared yet: it may be outside the packet.
    let mut is_pending = false;
    loop {
        chain.ops.push(at);
        let mut next = at + 1;
        let op = *ops.get(at)?;
        if is_pending && matches!(op, Op::LoadAbs(..) | Op::LoadInd(..) | Op::LoadLen(_)) {
            return None;
        }
        match op {
            Op::LoadAbs(width, index) if index < INDEX_MAX => {
                (source, mask) = (Source::Field(width, index), u32::MAX);
                chain.len = chain.len.max(index + width.bytes());
            }
            Op::LoadInd(width, index) if index < INDEX_MAX => {
                (source, mask) = (Source::Indirect(width, index), u32::MAX);
                is_pending = true;
            }
            // X is set before all tests, so nothing may have read another one.
            Op::LoadMsh(index) if index < INDEX_MAX && !is_pending && !chain.reads_x() => {
                chain.header = match chain.header {
                    Some(other) if other != index => return None,
                    _ => Some(index),
                };
                chain.len = chain.len.max(index + 1);
            }
            Op::LoadLen(Reg::A) => (source, mask) = (Source::Len, u32::MAX),
            Op::Alu(Alu::And, Operand::K(k)) => mask &= k,
            Op::Jump(skip) => next += skip as usize,
            Op::JumpIf(cond, Operand::K(k), jt, jf) if chain.tests.len() < TESTS_MAX => {
                let ways = [jt, jf].map(|skip| at + 1 + usize::from(skip));
                let results = ways.map(|to| match ops.get(to) {
                    Some(Op::Ret(k)) => Some(*k),
                    _ => None,
                });
                let test = Test {
                    source,
                    mask,
                    cond,
                    k,
                    results: results.map(|result| result.map(|k| k != 0)),
                };
                chain.add(test, results)?;
                is_pending = false;
                match results {
                    [Some(_), Some(_)] => return chain.finish(),
                    [Some(_), None] => next = ways[1],
                    [None, Some(_)] => next = ways[0],
                    [None, None] => return None,
                }
            }
            _ => return None,
        }
        at = next;
    }
}

impl Chain {
    fn reads_x(&self) -> bool {
        let is_indirect = |test: &Test| matches!(test.source, Source::Indirect(..));
        self.tests.iter().any(is_indirect)
    }

    /// Adds a test; `None` if the code for runs does not support it.
    fn add(&mut self, test: Test, results: [Option<u32>; 2]) -> Option<()> {
        for result in results.into_iter().flatten().filter(|result| *result != 0) {
            if self.result != 0 && self.result != result {
                return None;
            }
            self.result = result;
        }
        match test.source {
            Source::Field(width, _) | Source::Indirect(width, _) if test.k > width_mask(width) => {
                return None;
            }
            _ => {}
        }
        self.tests.push(test);
        Some(())
    }

    /// The offset of an indirect load is computed in rax.
    fn finish(self) -> Option<Chain> {
        let reads_a = self.tests.iter().any(|test| test.source == Source::A);
        (!reads_a || !self.reads_x()).then_some(self)
    }

    /// Emits the tests, from the last to the first, so that the first result counts. Jumps to
    /// `short` if a load is outside the packet.
    pub(super) fn emit(&self, code: &mut Code, short: usize) {
        if let Some(index) = self.header {
            load_header_len(code, index);
        }
        code.put_with(&[0xba], self.result); // mov edx, result
        code.put(&[0x45, 0x31, 0xd2]); // xor r10d, r10d
        for test in self.tests.iter().rev() {
            let flags = test.compare(code, short);
            match test.results {
                [Some(true), Some(_)] => code.put(&[0x89, 0xd1]), // mov ecx, edx
                [Some(false), Some(_)] => code.put(&[0x44, 0x89, 0xd1]), // mov ecx, r10d
                _ => {}
            }
            match test.results {
                [_, Some(matches)] => code.move_if(flags.not(), matches),
                [Some(matches), None] => code.move_if(flags, matches),
                [None, None] => {}
            }
        }
        code.put(&[0x89, 0xc8, 0xc3]); // mov eax, ecx; ret
    }
}

/// Loads the length of an IPv4 header into X, without a comparison with the captured length.
pub(super) fn load_header_len(code: &mut Code, index: u32) {
    // movzx r9d, byte [rdi + index]; and r9d, 15; shl r9d, 2
    code.put_with(&[0x44, 0x0f, 0xb6, 0x8f], index);
    code.put(&[0x41, 0x83, 0xe1, 0x0f, 0x41, 0xc1, 0xe1, 0x02]);
}

impl Test {
    /// Emits a comparison, with the field in r11d; returns the condition that holds. Equality is
    /// tested in network byte order, with the constant swapped.
    fn compare(&self, code: &mut Code, short: usize) -> Jump {
        let (mut k, mut mask) = (self.k, self.mask);
        match self.source {
            Source::A => code.put(&[0x41, 0x89, 0xc3]), // mov r11d, eax
            Source::Len => code.put(&[0x45, 0x89, 0xc3]), // mov r11d, r8d
            Source::Field(width, index) => match width {
                Width::W => code.put_with(&[0x44, 0x8b, 0x9f], index), // mov r11d, [rdi + index]
                Width::H => code.put_with(&[0x44, 0x0f, 0xb7, 0x9f], index),
                Width::B => code.put_with(&[0x44, 0x0f, 0xb6, 0x9f], index),
            },
            Source::Indirect(width, index) => {
                // lea rax, [r9 + end]; cmp rax, rsi; ja short; mov r11d, [rdi + rax - width]
                code.put_with(&[0x49, 0x8d, 0x81], index + width.bytes());
                code.put(&[0x48, 0x39, 0xf0]);
                code.jump(Jump::Above, short);
                let back = (width.bytes() as u8).wrapping_neg();
                match width {
                    Width::W => code.put(&[0x44, 0x8b, 0x5c, 0x07, back]),
                    Width::H => code.put(&[0x44, 0x0f, 0xb7, 0x5c, 0x07, back]),
                    Width::B => code.put(&[0x44, 0x0f, 0xb6, 0x5c, 0x07, back]),
                }
            }
        }
        if let Source::Field(width, _) | Source::Indirect(width, _) = self.source {
            match (width, self.cond) {
                (Width::W, Cond::Gt | Cond::Ge) => code.put(&[0x41, 0x0f, 0xcb]), // bswap r11d
                (Width::H, Cond::Gt | Cond::Ge) => code.put(&[0x66, 0x41, 0xc1, 0xc3, 0x08]),
                (Width::W, _) => (k, mask) = (k.swap_bytes(), mask.swap_bytes()),
                (Width::H, _) => [k, mask] = [k, mask].map(|k| (k << 16).swap_bytes()),
                (Width::B, _) => {}
            }
            if mask & width_mask(width) == width_mask(width) {
                mask = u32::MAX;
            }
        }
        if mask != u32::MAX {
            code.put_with(&[0x41, 0x81, 0xe3], mask); // and r11d, mask
        }
        match self.cond {
            Cond::Set => code.put_with(&[0x41, 0xf7, 0xc3], k), // test r11d, k
            _ => code.put_with(&[0x41, 0x81, 0xfb], k),         // cmp r11d, k
        }
        match self.cond {
            Cond::Eq => Jump::Equal,
            Cond::Gt => Jump::Above,
            Cond::Ge => Jump::NotBelow,
            Cond::Set => Jump::NotEqual,
        }
    }
}

fn width_mask(width: Width) -> u32 {
    u32::MAX >> (32 - 8 * width.bytes())
}
