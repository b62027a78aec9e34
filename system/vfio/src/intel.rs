//! Descriptor rings of Intel's Ethernet cards: two words per descriptor, a tail register written by
//! the driver, a done flag written by the card.
//!
//! The e1000 family and the 82576 differ in the positions of the bits and in the rest of a word;
//! filling, emptying and watching a ring is the same and is here. The card-specific parts are an
//! [`RxFormat`] and a [`TxFormat`].
//!
//! Sections are those of the 82576 datasheet (revision 2.87); those of the e1000 manual are named
//! in `e1000/rx.rs` and `e1000/tx.rs`.

mod rx;
mod tx;

use std::sync::atomic::AtomicU64;

#[cfg(test)]
pub(super) use self::rx::plain_is_plain;
pub(super) use self::rx::{RingRx, RxFormat, RxParts};
pub(super) use self::tx::{RingTx, TxFormat};

/// Two words: the address of the buffer, and the command or the result.
pub(super) type Descriptor = [AtomicU64; 2];

/// Index of entry `position`, and how many of `count` follow before the ring wraps.
#[inline(always)]
fn run(position: u32, ring_len: usize, count: usize) -> std::ops::Range<usize> {
    let first = position as usize & (ring_len - 1);
    first..first + count.min(ring_len - first)
}

/// Consecutive entries of a ring, their frames, and an item for each: three pointers that advance
/// together.
struct Entries<T> {
    ring: *const Descriptor,
    held: *mut u32,
    items: *mut T,
}

impl<T> Entries<T> {
    /// Calls `step` for the first `count`, in order, until it returns false; returns how often it
    /// returned true. Four at a time, to share the pointer increments; the count is computed only
    /// if it ends early.
    ///
    /// # Safety
    /// There are `count` of each, and nothing else changes `held` and `items` meanwhile.
    #[inline(always)]
    unsafe fn each(
        self,
        count: usize,
        mut step: impl FnMut(&Descriptor, &mut u32, *mut T) -> bool,
    ) -> usize {
        let Self {
            mut ring,
            mut held,
            mut items,
        } = self;
        let first = ring;
        // SAFETY: the caller's word: `count` of each, which are passed once.
        unsafe {
            for _ in 0..count / 4 {
                if !step(&*ring, &mut *held, items) {
                    return ended::<0>(first, ring);
                }
                if !step(&*ring.add(1), &mut *held.add(1), items.add(1)) {
                    return ended::<1>(first, ring);
                }
                if !step(&*ring.add(2), &mut *held.add(2), items.add(2)) {
                    return ended::<2>(first, ring);
                }
                if !step(&*ring.add(3), &mut *held.add(3), items.add(3)) {
                    return ended::<3>(first, ring);
                }
                (ring, held, items) = (ring.add(4), held.add(4), items.add(4));
            }
            for at in 0..count % 4 {
                if !step(&*ring.add(at), &mut *held.add(at), items.add(at)) {
                    return count / 4 * 4 + at;
                }
            }
        }
        count
    }
}

/// Number of entries from `first` to the one `AHEAD` of `ring`. A separate function for each
/// `AHEAD`, so that the loop keeps nothing in registers for its end.
///
/// # Safety
/// `ring` is `first` or after it, in the same array.
#[cold]
#[inline(never)]
unsafe fn ended<const AHEAD: usize>(first: *const Descriptor, ring: *const Descriptor) -> usize {
    // SAFETY: the caller's word.
    unsafe { ring.offset_from_unsigned(first) + AHEAD }
}
