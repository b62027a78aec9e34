//! The owner table: the owner of each frame, accessed in batches.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::pool::Owner;

/// A pool's owner table, looked up once per batch: a frame then takes a load, a comparison and a
/// store, and nothing but the table is read.
///
/// Every index is checked, in release builds too: one that is out of range, or whose frame has
/// another owner, changes nothing.
#[derive(Clone, Copy)]
pub struct Owners<'p>(&'p [AtomicU8]);

impl<'p> Owners<'p> {
    pub(crate) fn new(table: &'p [AtomicU8]) -> Self {
        Self(table)
    }

    /// Passes frame `index` from one owner to another; returns false and changes nothing if `from`
    /// does not own it, or if there is no such frame.
    ///
    /// A load and a store, not an exchange: both parties are in one thread (a queue's); the table
    /// detects duplicate and invented descriptors, and shows which frames a dead party owned.
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

    /// Like `pass`, for several frames up to the first that `from` does not own; returns how many
    /// were passed.
    #[inline(always)]
    pub(crate) fn pass_run(self, indices: &[u32], from: Owner, to: Owner) -> usize {
        // Four at a time, to share the counting and comparing.
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

    /// Like [`Pool::claim_index`](crate::Pool::claim_index): passes a frame from the device to the
    /// user.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub unsafe fn claim(self, index: u32) -> bool {
        self.pass(index, Owner::Device, Owner::User)
    }

    /// Like [`claim`](Self::claim), for an index known to be within the pool.
    ///
    /// # Safety
    /// As there; and `index` is less than the pool's frame count.
    #[inline(always)]
    pub unsafe fn claim_known(self, index: u32) -> bool {
        // SAFETY: the caller's word.
        unsafe { self.pass_known(index, Owner::Device, Owner::User) }
    }

    /// # Safety
    /// `index` is less than the pool's frame count.
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

    /// Like [`give_to_device`](Self::give_to_device), for an index known to be within the pool.
    ///
    /// # Safety
    /// As there; and `index` is less than the pool's frame count.
    #[inline(always)]
    pub unsafe fn give_known_to_device(self, index: u32) -> bool {
        // SAFETY: the caller's word.
        unsafe { self.pass_known(index, Owner::User, Owner::Device) }
    }

    /// Like [`Pool::give_index_to_device`](crate::Pool::give_index_to_device): passes a frame from
    /// the user to the device.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub unsafe fn give_to_device(self, index: u32) -> bool {
        self.pass(index, Owner::User, Owner::Device)
    }
}
