//! Detects a writer blocked by its output, once a capture is to end.

use std::time::{Duration, Instant};

/// How long the writer may stay in one call at the end: for a file, whose disk or server may be
/// slow; less for a pipe or a terminal, whose reader may have stopped.
pub(super) const STALL: Duration = Duration::from_secs(2);
pub(super) const STALL_READER: Duration = crate::output::STALL;

/// How long it may take to complete its file after that.
pub(super) const GRACE: Duration = Duration::from_secs(1);
pub(super) const GRACE_READER: Duration = Duration::from_millis(200);

/// The writer's last step that may block, and when it was first seen there.
#[derive(Debug)]
pub(super) struct Watch {
    /// The step, the amount of output accepted, and since when both are unchanged.
    last: Option<(u64, u64, Instant)>,
    /// How long a call may take.
    stall: Duration,
    /// How long completing the output may take after that.
    pub(super) grace: Duration,
}

impl Watch {
    pub(super) fn new(is_read: bool) -> Watch {
        let (stall, grace) = match is_read {
            true => (STALL_READER, GRACE_READER),
            false => (STALL, GRACE),
        };
        Watch {
            last: None,
            stall,
            grace,
        }
    }

    /// Whether the writer has been in the same call for too long without any output accepted. Time
    /// counts, not the number of calls: events of the queues come in bursts.
    pub(super) fn is_stalled(&mut self, step: u64, handed: u64, now: Instant) -> bool {
        self.last = match self.last {
            // An even number: it waits for packets, not for the output.
            _ if step.is_multiple_of(2) => None,
            Some(last @ (before, taken, _)) if (before, taken) == (step, handed) => Some(last),
            _ => Some((step, handed, now)),
        };
        let last = self.last;
        last.is_some_and(|(_, _, since)| now - since >= self.stall)
    }
}
