//! The first bytes of one direction of a TCP connection, in order (RFC 9293 §3.4).
//!
//! What comes too early is kept: up to [`HELD_MAX`] segments a direction, of up to [`BLOCK_LEN`]
//! bytes each, from a pool that all flows share. When there is no room the bytes before it are
//! given up as a gap. What comes twice counts once, as it came first.

use crate::slab::Slab;

/// Segments of a direction that are kept at one time.
pub(crate) const HELD_MAX: usize = 4;
/// Longest segment that is kept.
pub(crate) const BLOCK_LEN: usize = 1536;
/// A sequence number this far off belongs to something else.
const FAR: u32 = 1 << 20;

/// A segment that came too early.
pub(crate) struct Block {
    sequence: u32,
    len: u16,
    bytes: [u8; BLOCK_LEN],
}

impl Block {
    pub(crate) const EMPTY: Block = Block {
        sequence: 0,
        len: 0,
        bytes: [0; BLOCK_LEN],
    };

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len).min(BLOCK_LEN)]
    }
}

/// Where a direction stands.
#[derive(Clone)]
pub(crate) struct Order {
    next: u32,
    is_started: bool,
    held_count: u8,
    /// Blocks, by sequence number.
    held: [u32; HELD_MAX],
}

/// What to do with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    /// Nothing: all of it is known.
    Old,
    /// Deliver it from this byte on.
    Next(usize),
    /// It was kept.
    Held,
    /// So many bytes are given up; offer it again.
    Gap(u32),
    /// It belongs to something else.
    Far,
}

impl Order {
    pub(crate) const NEW: Order = Order {
        next: 0,
        is_started: false,
        held_count: 0,
        held: [0; HELD_MAX],
    };

    /// A SYN: the first byte has the next number.
    pub(crate) fn syn(&mut self, sequence: u32) {
        if !self.is_started {
            self.is_started = true;
            self.next = sequence.wrapping_add(1);
        }
    }

    /// The first byte has this number, unless a segment with this one can hardly belong to it.
    pub(crate) fn begin(&mut self, begins: u32, sequence: u32) {
        if !self.is_started && sequence.wrapping_sub(begins) <= FAR {
            self.is_started = true;
            self.next = begins;
        }
    }

    fn held(&self) -> &[u32] {
        &self.held[..usize::from(self.held_count).min(HELD_MAX)]
    }

    /// A segment that is not empty. `kept` is how much of it may be kept.
    pub(crate) fn offer(
        &mut self,
        sequence: u32,
        bytes: &[u8],
        blocks: &mut Slab<Block>,
        no_room: &mut u64,
    ) -> Offer {
        if !self.is_started {
            self.is_started = true;
            self.next = sequence;
        }
        let ahead = sequence.wrapping_sub(self.next);
        let behind = self.next.wrapping_sub(sequence);
        if behind < 1 << 31 {
            let is_new = (behind as usize) < bytes.len();
            return match is_new {
                true => Offer::Next(behind as usize),
                false => Offer::Old,
            };
        }
        if ahead > FAR {
            return Offer::Far;
        }
        if self.hold(sequence, bytes, blocks) {
            return Offer::Held;
        }
        *no_room += 1;
        // The first of those held comes before it, perhaps.
        let first = self.held().first().and_then(|index| blocks.get(*index));
        let until = first.map_or(sequence, |block| {
            let is_before = block.sequence.wrapping_sub(sequence) >= 1 << 31;
            if is_before { block.sequence } else { sequence }
        });
        let len = until.wrapping_sub(self.next);
        self.next = until;
        Offer::Gap(len)
    }

    fn hold(&mut self, sequence: u32, bytes: &[u8], blocks: &mut Slab<Block>) -> bool {
        let count = self.held().len();
        if count == HELD_MAX || bytes.len() > BLOCK_LEN {
            return false;
        }
        let at = self.held().partition_point(|index| {
            let held = blocks.get(*index).map_or(0, |block| block.sequence);
            // Of equal ones the first stays before.
            held.wrapping_sub(self.next) <= sequence.wrapping_sub(self.next)
        });
        let Some(index) = blocks.take(|| Block::EMPTY) else {
            return false;
        };
        if let Some(block) = blocks.get_mut(index) {
            block.sequence = sequence;
            block.len = bytes.len() as u16;
            block.bytes[..bytes.len()].copy_from_slice(bytes);
        }
        self.held.copy_within(at..count, at + 1);
        self.held[at] = index;
        self.held_count += 1;
        true
    }

    /// So many bytes were delivered, or given up.
    pub(crate) fn advance(&mut self, len: usize) {
        self.next = self.next.wrapping_add(len as u32);
    }

    /// A held segment whose turn has come: its block, and the byte from which it is new. The block
    /// must be given back.
    pub(crate) fn ready(&mut self, blocks: &mut Slab<Block>) -> Option<(u32, usize)> {
        while let Some(index) = self.held().first().copied() {
            let block = blocks.get(index)?;
            let behind = self.next.wrapping_sub(block.sequence);
            if behind >= 1 << 31 {
                return None;
            }
            let is_new = (behind as usize) < block.bytes().len();
            self.shift();
            if is_new {
                return Some((index, behind as usize));
            }
            blocks.give(index);
        }
        None
    }

    fn shift(&mut self) {
        self.held.copy_within(1.., 0);
        self.held_count = self.held_count.saturating_sub(1);
    }

    /// Gives up what is missing before the first segment held: how many bytes. `None` if none is
    /// held.
    pub(crate) fn skip(&mut self, blocks: &Slab<Block>) -> Option<u32> {
        let block = blocks.get(*self.held().first()?)?;
        let len = block.sequence.wrapping_sub(self.next);
        self.next = block.sequence;
        Some(len)
    }

    /// Gives all blocks back.
    pub(crate) fn release(&mut self, blocks: &mut Slab<Block>) {
        for index in self.held() {
            blocks.give(*index);
        }
        self.held_count = 0;
    }
}
