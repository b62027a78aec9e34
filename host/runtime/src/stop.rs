//! A request to end, from Ctrl-C, `SIGTERM`, a deadline or a colleague; a request to read the
//! configuration again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sys::Result;

/// A flag that all loops look at once a batch. Clones are the same flag.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    parent: Option<Arc<Stop>>,
}

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
        let flag = sys::signal::stop_flag()?;
        Ok(Self { flag, parent: None })
    }

    /// A flag that is set with this one, and can be set alone.
    pub fn child(&self) -> Self {
        Self {
            flag: Arc::default(),
            parent: Some(Arc::new(self.clone())),
        }
    }

    /// Asks everybody to end.
    pub fn set(&self) {
        self.flag.store(true, Ordering::Relaxed);
    }

    /// Whether the end has been asked for.
    #[inline]
    pub fn is_set(&self) -> bool {
        let parent = self.parent.as_ref();
        self.flag.load(Ordering::Relaxed) || parent.is_some_and(|parent| parent.is_set())
    }
}

/// A request to read the configuration again, from `SIGHUP`.
#[derive(Clone, Debug)]
pub struct Reload(Arc<AtomicBool>);

impl Reload {
    /// From now on `SIGHUP` asks for this, and for the end no more, under `nohup` as well. After
    /// [`Stop::on_signals`].
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_set_with_all_above_it_and_sets_none_of_them() {
        let first = Stop::new();
        let second = first.child();
        let third = second.child();
        third.set();
        assert!(!first.is_set() && !second.is_set() && third.is_set());
        let third = second.child();
        first.set();
        assert!(second.is_set() && third.is_set());
    }
}
