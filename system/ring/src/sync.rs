//! Atomics and cells. The model tests (`tests/loom.rs`) compile this crate's modules with those of
//! loom, which tries every interleaving.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A cell with loom's interface.
#[repr(transparent)]
pub(crate) struct Cell<T>(std::cell::UnsafeCell<T>);

impl<T> Cell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Writes values into cells that lie in memory one after the other.
///
/// # Safety
/// There are as many cells from `first` on, which nothing else accesses.
#[inline(always)]
pub(crate) unsafe fn write_cells<T: Copy>(first: *const Cell<T>, values: &[T]) {
    let to = std::cell::UnsafeCell::raw_get(first.cast::<std::cell::UnsafeCell<T>>());
    // SAFETY: the caller's word; a cell has the layout of its value.
    unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len()) };
}
