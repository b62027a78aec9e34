//! The owner table: the owner of each frame, accessed for a batch of frames.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::pool::Owner;

/// A pool's owner table, looked up once for a batch: a frame then costs a load, a comparison and a
/// store, and nothing but the table is read.
///
/// Every index is checked, in release builds too: one that is none of the pool's, or whose frame
/// another holds, changes nothing.
#[derive(Clone, Copy)]
pub struct Owners<'p>(&'p [AtomicU8]);

impl<'p> Owners<'p> {
    pub(crate) fn new(table: &'p [AtomicU8]) -> Self {
        Self(table)
    }

    /// Hands frame `index` from one owner to another; false (and no change) if `from` does not hold
    /// it, or if there is no such frame.
    ///
    /// Load and store, not an exchange: both parties of a hand-over are in one thread (a queue's);
    /// the table is there to catch double and made-up descriptors, and to find what a dead
    /// party held.
    #[inline(always)]
    pub(crate) fn pass(self, index: u32, from: Owner, to: Owner) -> bool {
        match self.0.get(index as usize) {
            Some(owner) if owner.load(Ordering::Relaxed) == from as u8 => {
                owner.store(to as u8, Ordering::Relaxed);
                true
            }
            _ => false,
        }
    }

    /// The same for the first of several frames up to one that `from` does not hold; how many.
    #[inline(always)]
    pub(crate) fn pass_run(self, indices: &[u32], from: Owner, to: Owner) -> usize {
        // Four at a time, so that counting and comparing are shared by them.
        let (fours, rest) = indices.as_chunks::<4>();
        let mut passed = 0;
        for four in fours {
            for (ahead, &index) in four.iter().enumerate() {
                if !self.pass(index, from, to) {
                    return passed + ahead;
                }
            }
            passed += 4;
        }
        let refused = rest.iter().position(|&index| !self.pass(index, from, to));
        passed + refused.unwrap_or(rest.len())
    }

    /// As [`Pool::claim_index`](crate::Pool::claim_index): the device's frame becomes the user's.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub unsafe fn claim(self, index: u32) -> bool {
        self.pass(index, Owner::Device, Owner::User)
    }

    /// [`claim`](Self::claim) for an index that is known to be one of the pool's.
    ///
    /// # Safety
    /// As there; and `index` is below the pool's count of frames.
    #[inline(always)]
    pub unsafe fn claim_known(self, index: u32) -> bool {
        // SAFETY: the caller's word.
        unsafe { self.pass_known(index, Owner::Device, Owner::User) }
    }

    /// # Safety
    /// `index` is below the pool's count of frames.
    #[inline(always)]
    unsafe fn pass_known(self, index: u32, from: Owner, to: Owner) -> bool {
        debug_assert!((index as usize) < self.0.len());
        // SAFETY: the caller's word.
        let owner = unsafe { self.0.get_unchecked(index as usize) };
        let is_held = owner.load(Ordering::Relaxed) == from as u8;
        if is_held {
            owner.store(to as u8, Ordering::Relaxed);
        }
        is_held
    }

    /// [`give_to_device`](Self::give_to_device) for an index that is known to be one of the pool's.
    ///
    /// # Safety
    /// As there; and `index` is below the pool's count of frames.
    #[inline(always)]
    pub unsafe fn give_known_to_device(self, index: u32) -> bool {
        // SAFETY: the caller's word.
        unsafe { self.pass_known(index, Owner::User, Owner::Device) }
    }

    /// As [`Pool::give_index_to_device`](crate::Pool::give_index_to_device): the user's frame
    /// becomes the device's.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub unsafe fn give_to_device(self, index: u32) -> bool {
        self.pass(index, Owner::User, Owner::Device)
    }
}
