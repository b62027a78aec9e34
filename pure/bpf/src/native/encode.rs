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
            Jump::Below => self.put(&[0x0f, 0x82]),
            Jump::NotBelow => self.put(&[0x0f, 0x83]),
            Jump::Equal => self.put(&[0x0f, 0x84]),
            Jump::NotEqual => self.put(&[0x0f, 0x85]),
            Jump::NotAbove => self.put(&[0x0f, 0x86]),
            Jump::Above => self.put(&[0x0f, 0x87]),
        }
        self.jumps.push((self.bytes.len(), to));
        self.put(&[0; 4]);
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
