//! Encodes machine code, with forward jumps that are resolved later.

use alloc::vec;
use alloc::vec::Vec;

/// When a jump is taken, by the flags of the last comparison (unsigned).
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

/// Code in the making.
pub(super) struct Code {
    bytes: Vec<u8>,
    /// Where each label is.
    labels: Vec<usize>,
    /// Where the distance of a jump is to be written, and to which label it leads.
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

    /// An instruction that ends in a constant of 32 bits.
    pub(super) fn put_with(&mut self, bytes: &[u8], constant: u32) {
        self.put(bytes);
        self.put(&constant.to_le_bytes());
    }

    /// The label is here.
    pub(super) fn bind(&mut self, label: usize) {
        self.labels[label] = self.bytes.len();
    }

    /// A jump with a distance of 32 bits: cBPF has at most 4,096 instructions.
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

    /// The code, with all distances written.
    pub(super) fn finish(mut self) -> Vec<u8> {
        for (at, label) in self.jumps {
            // From the end of the jump.
            let distance = self.labels[label] as i64 - (at as i64 + 4);
            self.bytes[at..at + 4].copy_from_slice(&(distance as i32).to_le_bytes());
        }
        self.bytes
    }
}
