//! Waiting for packets, in parts: a thread that the program has cancelled ends between two of them.

use std::time::{Duration, Instant};

use port::Ready;
use runtime::in_place::Reader;

/// Longest part of a wait, after which the thread can be cancelled.
const PART: Duration = Duration::from_millis(100);
/// Longest wait if there is no timeout.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// The result of a part of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// No packet yet, and time is left.
    Partly,
    /// There may be packets, the time is over, or a signal arrived.
    Over,
    /// There will be no more packets.
    End,
}

/// The timeout of a handle, and when the current wait began.
pub struct Wait {
    timeout: Duration,
    since: Option<Instant>,
}

impl Wait {
    /// With the timeout of `pcap_set_timeout` in milliseconds; without one if it is not positive.
    pub fn new(timeout_ms: i32) -> Self {
        let timeout = match timeout_ms {
            1.. => Duration::from_millis(timeout_ms.cast_unsigned().into()),
            _ => WAIT_MAX,
        };
        Self {
            timeout,
            since: None,
        }
    }

    /// Begins a wait or continues one that was [`Partly`](Waited::Partly) done.
    ///
    /// # Errors
    /// As [`Reader::wait`].
    pub fn part(&mut self, reader: &mut Reader) -> sys::Result<Waited> {
        let start = Instant::now();
        let since = *self.since.get_or_insert(start);
        let left = self.timeout.saturating_sub(start.duration_since(since));
        let part = left.min(PART);
        let ready = reader.wait(part)?;
        // The caller looks for a break; without one, it was reported before this wait.
        if ready == Ready::Woken {
            return Ok(Waited::Partly);
        }
        // A wait that ended earlier was interrupted by a signal, which the program handles.
        if ready == Ready::Timeout && part < left && start.elapsed() >= part {
            return Ok(Waited::Partly);
        }
        self.since = None;
        Ok(match ready {
            Ready::End => Waited::End,
            _ => Waited::Over,
        })
    }

    /// Ends the wait, if the program's call ends before the wait is over.
    pub fn end(&mut self) {
        self.since = None;
    }
}
