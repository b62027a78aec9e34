//! A request to end, from Ctrl-C, `SIGTERM`, a deadline or a colleague; a request to read the
//! configuration again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sys::Result;

/// A flag that all loops look at once a batch. Clones are the same flag.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// A flag of its own, without signals.
    pub fn new() -> Self {
        Self::default()
    }

    /// A flag set by `SIGINT`, `SIGTERM` or `SIGHUP`. A signal that comes a second or more after
    /// the first one ends the process at once, so that a person is never locked in.
    ///
    /// # Errors
    /// If handlers cannot be installed.
    pub fn on_signals() -> Result<Self> {
        sys::signal::stop_flag().map(Self)
    }

    /// Asks everybody to end.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the end has been asked for.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A request to read the configuration again, from `SIGHUP`.
#[derive(Clone, Debug)]
pub struct Reload(Arc<AtomicBool>);

impl Reload {
    /// From now on `SIGHUP` asks for this, and for the end no more. After [`Stop::on_signals`].
    ///
    /// # Errors
    /// If the handler cannot be installed.
    pub fn on_hangup() -> Result<Self> {
        sys::signal::reload_flag().map(Self)
    }

    /// Whether it was asked for since the last time.
    pub fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}
