//! Pacing of live runs: each takes an identifier that the kernel returns only a moment later.

use std::time::{Duration, Instant};

use sys::Result;

/// No free identifier.
const ENOSPC: i32 = 28;

/// Minimum average interval between the runs of all transmitters. Each call creates a page pool,
/// which takes one of 65,533 identifiers and returns it only an RCU grace period after the call
/// (`net/core/xdp.c`, `__mem_id_cyclic_get`, `__xdp_mem_allocator_rcu_free`). Grace periods of
/// seconds occur on a busy machine: at 54,000 calls per second the identifiers ran out.
const CALL_GAP: Duration = Duration::from_micros(100);
/// Number of calls that may directly follow each other after a pause.
const CALL_BURST: u32 = 16;

/// How long a call that found no identifier is retried, and how often.
const FULL_WAIT_MAX: Duration = Duration::from_secs(2);
const FULL_RETRY: Duration = Duration::from_millis(10);

/// Paces the runs of one transmitter: on average one per gap.
#[derive(Clone, Copy, Debug)]
pub struct Turns {
    next: Instant,
    gap: Duration,
}

impl Turns {
    /// Minimum average interval between the runs of all transmitters of the machine.
    pub const GAP: Duration = CALL_GAP;

    /// Creates the pacing of a transmitter with this average interval.
    pub fn new(now: Instant, gap: Duration) -> Self {
        Self { next: now, gap }
    }

    /// Takes a turn; returns how long to wait for it.
    pub fn take(&mut self, now: Instant) -> Duration {
        if let Some(oldest) = now.checked_sub(self.gap * CALL_BURST) {
            self.next = self.next.max(oldest);
        }
        let wait = self.next.saturating_duration_since(now);
        self.next += self.gap;
        wait
    }
}

/// Calls `run` until it finds an identifier for its page pool (see `CALL_GAP`). A call that found
/// none has sent nothing.
///
/// # Errors
/// Those of `run`; for `ENOSPC`, after 2 s.
pub fn with_identifier(
    mut run: impl FnMut() -> Result<u64>,
    mut sleep: impl FnMut(Duration),
) -> Result<u64> {
    let mut left = FULL_WAIT_MAX;
    loop {
        let error = match run() {
            Err(error) if error.os_code() == Some(ENOSPC) => error,
            result => return result,
        };
        if left.is_zero() {
            return Err(error
                .with_why(
                    "the kernel has no free page pool identifier, and each call needs one: other \
                     programs use them, or the kernel releases them slowly",
                )
                .with_hint("end them, or use a way without live frames"));
        }
        sleep(FULL_RETRY);
        left = left.saturating_sub(FULL_RETRY);
    }
}

#[cfg(test)]
mod tests {
    use sys::Error;

    use super::*;

    const ENODEV: i32 = 19;

    #[test]
    fn turns_are_a_gap_apart_after_a_burst() {
        let start = Instant::now();
        let mut turns = Turns::new(start, Turns::GAP);
        // A second without a call: a burst at once, then one per gap.
        let now = start + Duration::from_secs(1);
        let waits: Vec<Duration> = (0..100).map(|_| turns.take(now)).collect();
        let at_once = CALL_BURST as usize + 1;
        assert!(waits[..at_once].iter().all(Duration::is_zero), "{waits:?}");
        for (later, wait) in waits[at_once..].iter().enumerate() {
            assert_eq!(*wait, CALL_GAP * (later as u32 + 1));
        }
        // Callers below that rate never wait.
        let later = now + Duration::from_secs(1);
        for call in 0..100 {
            assert!(turns.take(later + CALL_GAP * call).is_zero());
        }
    }

    #[test]
    fn a_call_without_an_identifier_is_tried_again_for_a_while() {
        let no_identifier = || Error::from_io("run", std::io::Error::from_raw_os_error(ENOSPC));
        let mut slept = Duration::ZERO;
        let mut tries = 0;
        let run = || {
            tries += 1;
            if tries < 5 {
                Err(no_identifier())
            } else {
                Ok(7)
            }
        };
        assert_eq!(with_identifier(run, |time| slept += time).unwrap(), 7);
        assert_eq!((tries, slept), (5, FULL_RETRY * 4));

        let mut slept = Duration::ZERO;
        let error = with_identifier(|| Err(no_identifier()), |time| slept += time).unwrap_err();
        assert_eq!(slept, FULL_WAIT_MAX);
        assert!(error.to_string().contains("page pool"), "{error}");
        assert!(error.hint().is_some());

        let other = || {
            Err(Error::from_io(
                "run",
                std::io::Error::from_raw_os_error(ENODEV),
            ))
        };
        let error = with_identifier(other, |_| panic!("no reason to wait")).unwrap_err();
        assert_eq!(error.os_code(), Some(ENODEV));
    }
}
