//! A request to stop, from Ctrl-C, `SIGTERM`, a deadline or another thread; requests to reload the
//! configuration and to print the totals so far.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use sys::{Error, Result};

/// A flag that all loops look at once per batch. Clones are the same flag.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    /// When it was set, unless by a signal.
    set_at: Arc<OnceLock<Instant>>,
    parent: Option<Arc<Stop>>,
}

/// The flag that signals set.
static SIGNALS: OnceLock<Stop> = OnceLock::new();

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
        let stop = SIGNALS.get_or_init(|| Self {
            flag,
            ..Self::default()
        });
        Ok(stop.clone())
    }

    /// A flag that is set with this one, and can be set alone.
    pub fn child(&self) -> Self {
        Self {
            parent: Some(Arc::new(self.clone())),
            ..Self::default()
        }
    }

    /// Requests the end.
    pub fn set(&self) {
        self.set_at.get_or_init(Instant::now);
        self.flag.store(true, Ordering::Relaxed);
    }

    /// Requests the end after this long, independently of other waits.
    ///
    /// # Errors
    /// When the thread that waits for it cannot be started.
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

    /// Whether the end has been requested.
    #[inline]
    pub fn is_set(&self) -> bool {
        let parent = self.parent.as_ref();
        self.flag.load(Ordering::Relaxed) || parent.is_some_and(|parent| parent.is_set())
    }

    /// When the end was requested, if it was: the time of the signal, not of the first check. What
    /// waits at the end counts from here, so that waits one after the other do not add up.
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

/// A request to read the configuration again, from `SIGHUP`.
#[derive(Clone, Debug)]
pub struct Reload(Arc<AtomicBool>);

impl Reload {
    /// From now on `SIGHUP` requests this and no longer the end, under `nohup` as well. After
    /// [`Stop::on_signals`].
    ///
    /// # Errors
    /// If the handler cannot be installed.
    pub fn on_hangup() -> Result<Self> {
        sys::signal::reload_flag().map(Self)
    }

    /// Whether it was requested since the last call.
    pub fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// A request to print the totals so far, from `SIGUSR1`, as dd and tcpdump answer it. Clones are
/// the same.
#[derive(Clone, Debug, Default)]
pub struct TotalsRequest(Arc<AtomicBool>);

impl TotalsRequest {
    /// From now on `SIGUSR1` requests this, and no longer kills the process.
    ///
    /// # Errors
    /// If the handler cannot be installed.
    pub fn on_signal() -> Result<Self> {
        sys::signal::totals_flag().map(Self)
    }

    /// Whether it is waiting for an answer.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether it was requested since the last call.
    pub fn take(&self) -> bool {
        self.is_waiting() && self.0.swap(false, Ordering::Relaxed)
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

    #[test]
    fn the_time_is_that_of_the_first_request() {
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
