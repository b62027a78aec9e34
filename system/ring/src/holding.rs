//! The entry of a frame that other processes hold: a holder's number and how many hold it, in one
//! atomic word.
//!
//! It is written by whoever hands the frame over, while nobody else can touch it. Then each
//! holder's thread ends its own holding once; several may do so at the same time, and one of them
//! finds that it was the last.

use crate::sync::{AtomicU32, Ordering};

/// In place of a number, where several were handed the frame.
pub(crate) const SEVERAL: u32 = 0xffff;

/// The number above, the count below; 0 if nobody holds the frame.
pub(crate) fn entry(number: u32, count: u32) -> u32 {
    number << 16 | count
}

/// Takes the entry apart.
pub(crate) fn parts(entry: u32) -> (u32, u32) {
    (entry >> 16, entry & 0xffff)
}

/// Begins the holding of `count` holders, of which `number` is one.
#[inline]
pub(crate) fn begin(held: &AtomicU32, number: u32, count: u32) {
    let number = if count == 1 { number } else { SEVERAL };
    held.store(entry(number, count), Ordering::Relaxed);
}

/// Ends that of holder `number`, which has to be one of them: whether it was the last. `None` if
/// nobody holds the frame.
#[inline]
pub(crate) fn end(held: &AtomicU32, number: u32) -> Option<bool> {
    let mut seen = held.load(Ordering::Relaxed);
    if seen == entry(number, 1) {
        // The only one: nobody else touches the entry.
        held.store(0, Ordering::Relaxed);
        return Some(true);
    }
    loop {
        let left = parts(seen).1.checked_sub(1)?;
        let new = match left {
            0 => 0,
            _ => entry(SEVERAL, left),
        };
        // AcqRel: what the others read of the frame, they read before it is free.
        match held.compare_exchange_weak(seen, new, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return Some(left == 0),
            Err(now) => seen = now,
        }
    }
}
