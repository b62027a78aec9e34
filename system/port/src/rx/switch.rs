//! Replaces the filter while the port is open.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bpf::cbpf::Program;
use sys::Result;

use super::RxQueue;
use crate::control::PortControl;
use crate::matcher::Matcher;
use crate::port::Port;

/// The next filter of a queue, for the thread that owns the queue.
#[derive(Debug, Default)]
pub(super) struct NextFilter {
    is_new: AtomicBool,
    filter: Mutex<Option<Program>>,
}

impl NextFilter {
    /// Whether there is one; called once per batch.
    #[inline]
    pub(super) fn is_new(&self) -> bool {
        self.is_new.load(Ordering::Relaxed)
    }

    fn set(&self, filter: Option<&Program>) {
        *self.filter.lock().unwrap_or_else(PoisonError::into_inner) = filter.cloned();
        self.is_new.store(true, Ordering::Relaxed);
    }

    /// Takes it.
    fn take(&self) -> Option<Program> {
        // Before the lock: one that is set meanwhile is taken now or next time.
        self.is_new.store(false, Ordering::Relaxed);
        let filter = self.filter.lock().unwrap_or_else(PoisonError::into_inner);
        filter.clone()
    }
}

impl RxQueue {
    #[cold]
    pub(super) fn take_filter(&mut self) {
        self.filter = self.next_filter.take().map(Matcher::new);
        self.backend.end_filter();
    }
}

/// Replaces the filter of a port, whose queues may be on other threads by now.
#[derive(Clone, Debug)]
pub struct FilterSwitch {
    queues: Vec<Arc<NextFilter>>,
}

impl Port {
    /// Returns the switch of this port's filter; call it while the port has its queues.
    pub fn filter_switch(&self) -> FilterSwitch {
        let next = |queue: &RxQueue| queue.next_filter.clone();
        FilterSwitch {
            queues: self.rx.iter().map(next).collect(),
        }
    }
}

impl FilterSwitch {
    /// Replaces or removes the filter. At once in the kernel if the port filters there; otherwise
    /// from each queue's next batch on. Packets that wait in a ring of the kernel were selected by
    /// the old filter.
    ///
    /// # Errors
    /// `Unsupported` if the port cannot replace its filter; the kernel's errors. The old filter
    /// then stays.
    pub fn set(&self, control: &mut dyn PortControl, filter: Option<&Program>) -> Result<()> {
        if !control.set_filter(filter)? {
            self.queues.iter().for_each(|queue| queue.set(filter));
        }
        Ok(())
    }
}
