//! The entry of a frame held by other processes: a holder's number and the number of holders, in
//! one atomic word.
//!
//! The thread that hands the frame over writes the entry while no other thread can access it.
//! Afterwards the thread of each holder removes that holder once; several may do so at the same
//! time, and exactly one of them finds that it was the last.

use crate::sync::{AtomicU32, Ordering};

/// Replaces the holder's number if the frame was handed to several.
pub(crate) const SEVERAL: u32 = 0xffff;

/// Packs an entry: the number in the high half, the count in the low half; 0 if there is no holder.
pub(crate) fn entry(number: u32, count: u32) -> u32 {
    number << 16 | count
}

/// Unpacks an entry.
pub(crate) fn parts(entry: u32) -> (u32, u32) {
    (entry >> 16, entry & 0xffff)
}

/// Records `count` holders, including `number`.
#[inline]
pub(crate) fn begin(held: &AtomicU32, number: u32, count: u32) {
    let number = if count == 1 { number } else { SEVERAL };
    held.store(entry(number, count), Ordering::Relaxed);
}

/// Like [`end`], for a thread that all holders of the frame belong to: a load and a store.
#[inline]
pub(crate) fn end_alone(held: &AtomicU32) -> Option<bool> {
    let left = parts(held.load(Ordering::Relaxed)).1.checked_sub(1)?;
    let new = match left {
        0 => 0,
        _ => entry(SEVERAL, left),
    };
    held.store(new, Ordering::Relaxed);
    Some(left == 0)
}

/// Removes holder `number`, which must be one of the holders; returns whether it was the last.
/// `None` if the frame has no holder.
#[inline]
pub(crate) fn end(held: &AtomicU32, number: u32) -> Option<bool> {
    let mut seen = held.load(Ordering::Relaxed);
    if seen == entry(number, 1) {
        // The only holder: no other thread accesses the entry.
        held.store(0, Ordering::Relaxed);
        return Some(true);
    }
    loop {
        let left = parts(seen).1.checked_sub(1)?;
        let new = match left {
            0 => 0,
            _ => entry(SEVERAL, left),
        };
        // AcqRel: the other holders' reads of the frame happen before it becomes free.
        match held.compare_exchange_weak(seen, new, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return Some(left == 0),
            Err(now) => seen = now,
        }
    }
}
