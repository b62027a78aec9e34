//! Prevents lost wake-ups between a reader that is about to sleep and a writer: either the reader
//! sees the new entries, or the writer sees that the reader sleeps.
//!
//! Used by the queues between processes and by rings between threads.

use crate::sync::{AtomicU32, Ordering, fence};

/// Announces that the reader is about to sleep. The reader checks its ring again after this call,
/// and sleeps if it is empty.
#[inline]
pub fn prepare(sleeping: &AtomicU32) {
    sleeping.store(1, Ordering::Relaxed);
    // Pairs with the fence in `barrier`.
    fence(Ordering::SeqCst);
}

/// Whether the writer has to wake the reader. Called after submitting.
#[inline]
pub fn is_needed(sleeping: &AtomicU32) -> bool {
    barrier();
    is_announced(sleeping)
}

/// The first half of [`is_needed`]: orders what was submitted to any number of readers before the
/// look at each one's flag.
#[inline]
pub fn barrier() {
    // Pairs with the fence in `prepare`.
    fence(Ordering::SeqCst);
}

/// The other half, for each of the readers.
#[inline]
pub fn is_announced(sleeping: &AtomicU32) -> bool {
    let is_needed = sleeping.load(Ordering::Relaxed) != 0;
    if is_needed {
        sleeping.store(0, Ordering::Relaxed);
    }
    is_needed
}
