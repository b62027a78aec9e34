//! Blocks of pcapng files that are not packets, on their way from the reader to a writer that
//! copies them.
//!
//! They travel beside the packets. The blocks between two packets that were delivered are a group,
//! and the packet after them is marked ([`Slot::AFTER_BLOCKS`](ring::slot::Slot::AFTER_BLOCKS)).
//! Whoever counts the marks knows the groups that come before a packet.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of bytes of all groups that wait.
const BYTES_MAX: usize = 64 << 20;

/// Blocks that wait for the writer. Locked when one is read, never for a packet.
#[derive(Default)]
pub(super) struct Blocks {
    waiting: Mutex<Waiting>,
    /// Blocks that were not copied because they are too long, or too many between two packets.
    left_out: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    /// The number of its group, from 1, and the block.
    blocks: VecDeque<(u64, Box<[u8]>)>,
    bytes: usize,
}

impl Blocks {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a block to a group; false if it was left out for lack of room.
    pub(super) fn add(&self, group: u64, block: &[u8]) -> bool {
        let mut waiting = self.lock();
        if waiting.bytes + block.len() > BYTES_MAX {
            self.leave_out();
            return false;
        }
        waiting.bytes += block.len();
        waiting.blocks.push_back((group, block.into()));
        true
    }

    /// Counts a block that is not copied.
    pub(super) fn leave_out(&self) {
        self.left_out.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of blocks that were not copied.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }

    /// Whether the reader should wait for the writer: there is little room, and groups before
    /// `open` are complete, which the writer takes.
    pub(super) fn must_wait(&self, open: u64) -> bool {
        let waiting = self.lock();
        let first = waiting.blocks.front().map(|(group, _)| *group);
        waiting.bytes > BYTES_MAX / 2 && first.is_some_and(|first| first < open)
    }

    /// Takes the blocks of all groups up to this one.
    pub(super) fn take(&self, group: u64) -> Vec<Box<[u8]>> {
        let mut waiting = self.lock();
        let count = waiting
            .blocks
            .iter()
            .take_while(|(of, _)| *of <= group)
            .count();
        let taken: Vec<_> = waiting
            .blocks
            .drain(..count)
            .map(|(_, block)| block)
            .collect();
        waiting.bytes -= taken.iter().map(|block| block.len()).sum::<usize>();
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_taken_in_order_and_bounded() {
        let blocks = Blocks::default();
        for (group, byte) in [(1, 1), (1, 2), (2, 3), (4, 4)] {
            assert!(blocks.add(group, &[byte]));
        }
        let taken = |group| -> Vec<u8> { blocks.take(group).iter().map(|b| b[0]).collect() };
        assert_eq!(taken(0), [0; 0]);
        assert_eq!(taken(1), [1, 2]);
        assert_eq!(taken(3), [3]);
        assert_eq!(taken(u64::MAX), [4]);
        let large = vec![0; BYTES_MAX / 2];
        assert!(blocks.add(5, &large) && blocks.add(5, &large[1..]) && blocks.add(5, &[0]));
        assert!(!blocks.must_wait(5) && blocks.must_wait(6));
        assert!(!blocks.add(5, &[0]));
        assert_eq!((blocks.left_out(), blocks.take(5).len()), (1, 3));
        assert!(blocks.add(6, &large) && !blocks.must_wait(7));
    }
}
