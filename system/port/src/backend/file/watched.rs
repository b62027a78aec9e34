//! An address range that a signal handler reads while threads change it.
//!
//! Base and length are two words, and the handler must never combine the length of one mapping with
//! the base of another: it would map zeros over memory behind the mapping. So the range has a
//! version (a sequence lock): odd while a thread changes the words, and greater after each change.
//! The handler uses the words only if it finds the same even version before and after it has read
//! them. It does not try again, because it may have interrupted the thread that changes them.
//! (`tests/loom_watched.rs` tries every interleaving.)

use super::atomics::{AtomicUsize, Ordering, fence};

/// A range; length 0 if there is none.
#[derive(Debug)]
pub(super) struct WatchedRange {
    pub(super) version: AtomicUsize,
    pub(super) base: AtomicUsize,
    pub(super) len: AtomicUsize,
}

impl WatchedRange {
    /// Changes the range. Only one thread at a time may do that.
    pub(super) fn set(&self, base: usize, len: usize) {
        let version = self.version.load(Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(1), Ordering::Relaxed);
        // A reader that sees one of the words below also sees the odd version.
        fence(Ordering::Release);
        self.base.store(base, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(2), Ordering::Release);
    }

    /// Base and length of one range; `None` while it is being changed.
    pub(super) fn get(&self) -> Option<(usize, usize)> {
        let before = self.version.load(Ordering::Acquire);
        let range = (
            self.base.load(Ordering::Relaxed),
            self.len.load(Ordering::Relaxed),
        );
        fence(Ordering::Acquire);
        let after = self.version.load(Ordering::Relaxed);
        (before == after && before.is_multiple_of(2)).then_some(range)
    }
}
