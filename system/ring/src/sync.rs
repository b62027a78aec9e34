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
