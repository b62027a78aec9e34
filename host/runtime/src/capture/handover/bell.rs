//! Wakes the writer thread.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering, fence};
use std::thread::{self, Thread};
use std::time::Duration;

/// The writer is running, and checks the rings before it sleeps.
const AWAKE: u8 = 0;
/// The writer sleeps briefly while packets accumulate.
const NAPPING: u8 = 1;
/// The writer sleeps until a packet arrives.
const ASLEEP: u8 = 2;

/// Wakes the writer.
#[derive(Default)]
pub(in crate::capture) struct Bell {
    writer: OnceLock<Thread>,
    state: AtomicU8,
}

impl Bell {
    /// Makes the calling thread the writer.
    pub(in crate::capture) fn belongs_here(&self) {
        // Called only once.
        let _ = self.writer.set(thread::current());
    }

    /// Wakes the writer if it sleeps; from a short sleep only if `urgent`.
    pub(super) fn ring(&self, urgent: bool) {
        // Pairs with the fence in `sleep`: either the writer sees what was submitted before this,
        // or this thread sees that it sleeps.
        fence(Ordering::SeqCst);
        let state = self.state.load(Ordering::Relaxed);
        if (state == ASLEEP || urgent && state == NAPPING)
            && let Some(writer) = self.writer.get()
        {
            writer.unpark();
        }
    }

    /// Sleeps until rung, at most `timeout`; returns at once if there is work.
    pub(in crate::capture) fn sleep(&self, timeout: Duration, has_work: impl FnOnce() -> bool) {
        self.rest(ASLEEP, timeout, has_work);
    }

    /// Sleeps while packets accumulate, at most `timeout`, so that a busy queue causes one wake-up
    /// in many batches; returns at once if there is work.
    pub(in crate::capture) fn nap(&self, timeout: Duration, has_work: impl FnOnce() -> bool) {
        self.rest(NAPPING, timeout, has_work);
    }

    fn rest(&self, state: u8, timeout: Duration, has_work: impl FnOnce() -> bool) {
        self.state.store(state, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !has_work() {
            thread::park_timeout(timeout);
        }
        self.state.store(AWAKE, Ordering::Relaxed);
    }
}
