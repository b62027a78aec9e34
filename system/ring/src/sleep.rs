//! How a reader that is about to sleep and a writer make sure of each other: either the reader sees
//! what was written, or the writer sees that the reader sleeps.

use crate::sync::{AtomicU32, Ordering, fence};

/// Called by the reader, which looks at its ring once more afterwards, and sleeps if it is empty.
#[inline]
pub(crate) fn prepare(sleeping: &AtomicU32) {
    sleeping.store(1, Ordering::Relaxed);
    // Pairs with the one in `is_needed`.
    fence(Ordering::SeqCst);
}

/// Called by the writer after it has submitted: whether the reader has to be woken.
#[inline]
pub(crate) fn is_needed(sleeping: &AtomicU32) -> bool {
    // Pairs with the one in `prepare`.
    fence(Ordering::SeqCst);
    let is_needed = sleeping.load(Ordering::Relaxed) != 0;
    if is_needed {
        sleeping.store(0, Ordering::Relaxed);
    }
    is_needed
}
