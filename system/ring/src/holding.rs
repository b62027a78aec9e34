//! The entry of a frame held by other processes: one bit for each of its holders, in one atomic
//! word.
//!
//! The thread that hands the frame over writes the entry while no other thread can access it.
//! Afterwards the thread of each holder removes that holder's bit once; several may do so at the
//! same time, and exactly one of them finds that it was the last.

use crate::sync::{AtomicU64, Ordering};

/// The bit of a holder's number, which is from 1 to 64.
#[inline(always)]
pub(crate) fn bit(number: u32) -> u64 {
    1 << (number.wrapping_sub(1) % u64::BITS)
}

/// Records the holders of a frame that has none.
#[inline(always)]
pub(crate) fn begin(held: &AtomicU64, holders: u64) {
    held.store(holders, Ordering::Relaxed);
}

/// Removes a holder; returns whether it was the last. `None` if it does not hold the frame.
#[inline(always)]
pub(crate) fn end(held: &AtomicU64, holder: u64) -> Option<bool> {
    // Acquire: the other holders' reads of the frame happen before it becomes free.
    let seen = held.load(Ordering::Acquire);
    if seen == holder {
        // The only one: no other thread changes the entry.
        held.store(0, Ordering::Relaxed);
        return Some(true);
    }
    if seen & holder == 0 {
        return None;
    }
    // AcqRel: as above. No other thread removes this holder.
    Some(held.fetch_and(!holder, Ordering::AcqRel) == holder)
}

/// Like [`end`], for a thread that all holders of the frame belong to: a load and a store.
#[inline(always)]
pub(crate) fn end_alone(held: &AtomicU64, holder: u64) -> Option<bool> {
    let seen = held.load(Ordering::Relaxed);
    if seen & holder == 0 {
        return None;
    }
    held.store(seen & !holder, Ordering::Relaxed);
    Some(seen == holder)
}
