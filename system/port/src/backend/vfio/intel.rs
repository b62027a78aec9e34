//! Descriptor rings of Intel's Ethernet cards: two words a descriptor, a tail register that is
//! ours, a done flag that is the card's.
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
