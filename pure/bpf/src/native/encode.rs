//! Encodes machine code, with forward jumps that are resolved later.

use alloc::vec;
use alloc::vec::Vec;

/// Condition of a jump, by the flags of the last (unsigned) comparison.
#[derive(Clone, Copy)]
pub(super) enum Jump {
    Always,
    Below,
    NotBelow,
    Equal,
    NotEqual,
    NotAbove,
    Above,
}

impl Jump {
    /// The opposite condition.
    pub(super) fn not(self) -> Jump {
        match self {
            Jump::Always => Jump::Always,
            Jump::Below => Jump::NotBelow,
            Jump::NotBelow => Jump::Below,
            Jump::Equal => Jump::NotEqual,
            Jump::NotEqual => Jump::Equal,
            Jump::NotAbove => Jump::Above,
            Jump::Above => Jump::NotAbove,
        }
    }

    /// The low four bits of the opcode.
    fn code(self) -> u8 {
        match self {
            Jump::Always => 0,
            Jump::Below => 2,
            Jump::NotBelow => 3,
            Jump::Equal => 4,
            Jump::NotEqual => 5,
            Jump::NotAbove => 6,
            Jump::Above => 7,
        }
    }
}

/// Code under construction.
pub(super) struct Code {
    bytes: Vec<u8>,
    /// Offset of each label.
    labels: Vec<usize>,
    /// Offset of each jump's distance, and its target label.
    jumps: Vec<(usize, usize)>,
}

impl Code {
    pub(super) fn new(labels: usize) -> Self {
        Code {
            bytes: Vec::new(),
            labels: vec![0; labels],
            jumps: Vec::new(),
        }
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Emits an instruction that ends in a 32-bit constant.
    pub(super) fn put_with(&mut self, bytes: &[u8], constant: u32) {
        self.put(bytes);
        self.put(&constant.to_le_bytes());
    }

    /// Binds the label here.
    pub(super) fn bind(&mut self, label: usize) {
        self.labels[label] = self.bytes.len();
    }

    /// Emits a jump with a 32-bit distance: cBPF has at most 4,096 instructions.
    pub(super) fn jump(&mut self, jump: Jump, to: usize) {
        match jump {
            Jump::Always => self.put(&[0xe9]),
            _ => self.put(&[0x0f, 0x80 | jump.code()]),
        }
        self.jumps.push((self.bytes.len(), to));
        self.put(&[0; 4]);
    }

    /// Emits a conditional move to ecx: from edx, or from r10d, which is 0.
    pub(super) fn move_if(&mut self, jump: Jump, from_edx: bool) {
        let code = 0x40 | jump.code();
        match from_edx {
            true => self.put(&[0x0f, code, 0xca]),
            false => self.put(&[0x41, 0x0f, code, 0xca]),
        }
    }

    /// Returns the code with all distances filled in.
    pub(super) fn finish(mut self) -> Vec<u8> {
        for (at, label) in self.jumps {
            // Relative to the end of the jump.
            let distance = self.labels[label] as i64 - (at as i64 + 4);
            self.bytes[at..at + 4].copy_from_slice(&(distance as i32).to_le_bytes());
        }
        self.bytes
    }
}
