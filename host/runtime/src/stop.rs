//! A request to stop, from Ctrl-C, `SIGTERM`, a deadline or another thread; requests to reload the
//! configuration and to print the totals so far.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use sys::{Error, Result};

/// A flag that all loops check once per batch. Clones share the flag.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    /// When it was set, unless by a signal.
    set_at: Arc<OnceLock<Instant>>,
    parent: Option<Arc<Stop>>,
}

/// The flag set by signals.
static SIGNALS: OnceLock<Stop> = OnceLock::new();

impl Stop {
    /// Creates a separate flag, not set by signals.
    pub fn new() -> Self {
        Self::default()
    }

    /// The flag set by `SIGINT`, `SIGTERM` or `SIGHUP`. A signal a second or more after the first
    /// one ends the process at once, so that it can always be stopped.
    ///
    /// # Errors
    /// If the handlers cannot be installed.
    pub fn on_signals() -> Result<Self> {
        let flag = sys::signal::stop_flag()?;
        let stop = SIGNALS.get_or_init(|| Self {
            flag,
            ..Self::default()
        });
        Ok(stop.clone())
    }

    /// A flag that is set with this one, and can also be set alone.
    pub fn child(&self) -> Self {
        Self {
            parent: Some(Arc::new(self.clone())),
            ..Self::default()
        }
    }

    /// Requests a stop.
    pub fn set(&self) {
        self.set_at.get_or_init(Instant::now);
        self.flag.store(true, Ordering::Relaxed);
    }

    /// Requests a stop after `delay`, independently of other waits.
    ///
    /// # Errors
    /// If the thread that waits cannot be started.
    pub fn set_after(&self, delay: Duration) -> Result<()> {
        let stop = self.clone();
        let wait = move || {
            std::thread::sleep(delay);
            stop.set();
        };
        std::thread::Builder::new()
            .name("deadline".into())
            .spawn(wait)
            .map(drop)
            .map_err(|e| Error::from_io("start the deadline thread", e))
    }

    /// Whether a stop was requested.
    #[inline]
    pub fn is_set(&self) -> bool {
        let parent = self.parent.as_ref();
        self.flag.load(Ordering::Relaxed) || parent.is_some_and(|parent| parent.is_set())
    }

    /// When the stop was requested, if it was: the time of the signal, not of the first check.
    /// Waits at the end count from here, so that consecutive ones do not add up.
    pub fn since(&self) -> Option<Instant> {
        let above = self.parent.as_ref().and_then(|parent| parent.since());
        let own = self.flag.load(Ordering::Relaxed).then(|| {
            let set_at = self.set_at.get().copied();
            let by_signal = SIGNALS
                .get()
                .filter(|signals| Arc::ptr_eq(&signals.flag, &self.flag))
                .and_then(|_| sys::signal::first_at());
            let first = set_at.into_iter().chain(by_signal).min();
            // Nothing else sets it.
            first.unwrap_or_else(Instant::now)
        });
        own.into_iter().chain(above).min()
    }
}

/// A request to reload the configuration, from `SIGHUP`.
#[derive(Clone, Debug)]
pub struct Reload(Arc<AtomicBool>);

impl Reload {
    /// Makes `SIGHUP` a reload request instead of a stop request, under `nohup` as well. Call it
    /// after [`Stop::on_signals`].
    ///
    /// # Errors
    /// If the handler cannot be installed.
    pub fn on_hangup() -> Result<Self> {
        sys::signal::reload_flag().map(Self)
    }

    /// Whether a reload was requested since the last call.
    pub fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// A request to print the totals so far, from `SIGUSR1`, as in dd and tcpdump. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct TotalsRequest(Arc<AtomicBool>);

impl TotalsRequest {
    /// Makes `SIGUSR1` request the totals instead of killing the process.
    ///
    /// # Errors
    /// If the handler cannot be installed.
    pub fn on_signal() -> Result<Self> {
        sys::signal::totals_flag().map(Self)
    }

    /// Whether a request is pending.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether the totals were requested since the last call.
    pub fn take(&self) -> bool {
        self.is_waiting() && self.0.swap(false, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_set_with_its_parents_but_does_not_set_them() {
        let first = Stop::new();
        let second = first.child();
        let third = second.child();
        third.set();
        assert!(!first.is_set() && !second.is_set() && third.is_set());
        let third = second.child();
        first.set();
        assert!(second.is_set() && third.is_set());
    }

    #[test]
    fn since_is_the_time_of_the_first_request() {
        let first = Stop::new();
        let second = first.child();
        assert_eq!((first.since(), second.since()), (None, None));
        let before = Instant::now();
        first.set();
        let at = first.since().unwrap();
        assert!(before <= at && at <= Instant::now());
        second.set();
        first.set();
        assert_eq!((first.since(), second.since()), (Some(at), Some(at)));
    }
}
