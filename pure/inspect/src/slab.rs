//! Equal slots reserved at startup, addressed by index.

use alloc::vec::Vec;

/// A fixed number of reserved `T`.
pub(crate) struct Slab<T> {
    slots: Vec<T>,
    /// Slots that were freed.
    free: Vec<u32>,
    max: usize,
}

impl<T> Slab<T> {
    /// Reserves room for `max` slots. Slots are created when they are first used.
    pub(crate) fn new(max: u32) -> Slab<T> {
        Slab {
            slots: Vec::with_capacity(max as usize),
            free: Vec::with_capacity(max as usize),
            max: max as usize,
        }
    }

    /// Memory of `max` slots in bytes.
    pub(crate) const fn memory_len(max: u32) -> usize {
        max as usize * (size_of::<T>() + size_of::<u32>())
    }

    /// Allocates a slot, if one is left. `make` is called for a slot that was never used; a reused
    /// one keeps its contents.
    pub(crate) fn take(&mut self, make: impl FnOnce() -> T) -> Option<u32> {
        if let Some(index) = self.free.pop() {
            return Some(index);
        }
        if self.slots.len() == self.max {
            return None;
        }
        self.slots.push(make());
        Some((self.slots.len() - 1) as u32)
    }

    /// Frees a slot. Each must be freed once.
    pub(crate) fn give(&mut self, index: u32) {
        debug_assert!(!self.free.contains(&index) && (index as usize) < self.slots.len());
        if self.free.len() < self.slots.len() {
            self.free.push(index);
        }
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)
    }

    /// Number of slots in use.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused_and_run_out() {
        let mut slab = Slab::new(2);
        let (a, b) = (slab.take(|| 1), slab.take(|| 2));
        assert_eq!((a, b, slab.take(|| 3)), (Some(0), Some(1), None));
        slab.give(0);
        assert_eq!(slab.len(), 1);
        assert_eq!(slab.take(|| 3), Some(0));
        assert_eq!(slab.get(0), Some(&1));
    }
}
