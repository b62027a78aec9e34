//! Descriptor rings of Intel's Ethernet cards: two words per descriptor, a tail register written by
//! the driver, a done flag written by the card.
//!
//! The e1000 family and the 82576 differ in where the bits are and in what else a word holds; how a
//! ring is filled, emptied and watched is the same and is here. A card's own part is an
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

/// Two words: where the buffer is, and what is to be done with it or has been.
pub(super) type Descriptor = [AtomicU64; 2];

/// Where entry `position` of a ring begins, and how many of `count` follow before the ring does.
#[inline(always)]
fn run(position: u32, ring_len: usize, count: usize) -> std::ops::Range<usize> {
    let first = position as usize & (ring_len - 1);
    first..first + count.min(ring_len - first)
}

/// Entries of a ring in a row, the frames in them, and what goes with each: three pointers that
/// move together.
struct Entries<T> {
    ring: *const Descriptor,
    held: *mut u32,
    items: *mut T,
}

impl<T> Entries<T> {
    /// Calls `step` for the first `count`, in order, until it returns false; returns how often it
    /// returned true. Four at a time, so that they share the pointer increments; the count is
    /// computed only if it ends early.
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

/// How many entries there are from `first` on to the one `AHEAD` of `ring`. A function by itself,
/// and one for each `AHEAD`, so that the loop keeps nothing ready for its end.
///
/// # Safety
/// `ring` is `first` or after it, in the same array.
#[cold]
#[inline(never)]
unsafe fn ended<const AHEAD: usize>(first: *const Descriptor, ring: *const Descriptor) -> usize {
    // SAFETY: the caller's word.
    unsafe { ring.offset_from_unsigned(first) + AHEAD }
}
