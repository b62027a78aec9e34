//! The list of free frames that all threads share: a lock-free stack of indices.
//!
//! A Treiber stack: `head` contains the top index and a tag that changes with every success, which
//! detects a top that was removed and pushed again (ABA). A batch moves with one compare-and-swap.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// End of the list: no frame.
pub(crate) const NIL: u32 = u32::MAX;

#[inline]
fn pack(tag: u32, index: u32) -> u64 {
    u64::from(tag) << 32 | u64::from(index)
}

#[inline]
fn unpack(head: u64) -> (u32, u32) {
    ((head >> 32) as u32, head as u32)
}

/// Pushes `indices` onto the stack. Indices out of range are ignored: they can only come from a
/// damaged table.
pub(crate) fn push(head: &AtomicU64, next: &[AtomicU32], indices: &[u32]) {
    let mut first = NIL;
    let mut last = NIL;
    for &index in indices {
        let Some(cell) = next.get(index as usize) else {
            continue;
        };
        cell.store(first, Ordering::Relaxed);
        if last == NIL {
            last = index;
        }
        first = index;
    }
    if first == NIL {
        return;
    }
    let mut seen = head.load(Ordering::Relaxed);
    loop {
        let (tag, top) = unpack(seen);
        next[last as usize].store(top, Ordering::Relaxed);
        let new = pack(tag.wrapping_add(1), first);
        // Release: the links written above are visible to the thread that pops (pairs with the
        // Acquire load in `pop`).
        match head.compare_exchange_weak(seen, new, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

/// Pops up to `out.len()` indices; returns how many.
pub(crate) fn pop(head: &AtomicU64, next: &[AtomicU32], out: &mut [u32]) -> usize {
    // Acquire: pairs with the Release in `push`.
    let mut seen = head.load(Ordering::Acquire);
    loop {
        let (tag, mut at) = unpack(seen);
        let mut count = 0;
        // Links read here may be stale when another thread pops at the same time; then the tag has
        // changed and the exchange fails. The bound prevents endless loops even in a damaged list.
        for place in out.iter_mut() {
            let Some(cell) = next.get(at as usize) else {
                break;
            };
            *place = at;
            count += 1;
            at = cell.load(Ordering::Relaxed);
        }
        if count == 0 {
            return 0;
        }
        let new = pack(tag.wrapping_add(1), at);
        match head.compare_exchange_weak(seen, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return count,
            Err(now) => seen = now,
        }
    }
}

/// The head of an empty stack.
pub(crate) fn empty() -> u64 {
    pack(0, NIL)
}
