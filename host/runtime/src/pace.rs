//! Waits until a packet is due: sleeps while there is time, then polls the clock.
//!
//! A sleep ends late, by the timer slack (50 µs unless set otherwise, see prctl(2)) and scheduling
//! delays. So the last part of a wait is spun, and shorter waits are spun completely: rates above
//! some ten thousand packets a second take a whole core, lower ones next to nothing.

use std::time::{Duration, Instant};

use crate::Stop;

/// How long before the due time a sleep ends.
const SPIN_NS: u64 = 100_000;

/// Longest sleep, so that stop requests are seen and progress is reported.
pub const SLEEP_MAX_NS: u64 = 100_000_000;

/// A clock that starts at 0, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Starts the clock now.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Nanoseconds since the start.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }

    /// Waits until `due_ns`, for at most [`SLEEP_MAX_NS`] or until `stop` is set. Returns the time
    /// then.
    pub fn wait_until(&self, due_ns: u64, stop: &Stop) -> u64 {
        let mut now_ns = self.now_ns();
        let end_ns = due_ns.min(now_ns + SLEEP_MAX_NS);
        if end_ns > now_ns + SPIN_NS {
            std::thread::sleep(Duration::from_nanos(end_ns - now_ns - SPIN_NS));
            now_ns = self.now_ns();
        }
        while now_ns < end_ns && !stop.is_set() {
            for _ in 0..16 {
                std::hint::spin_loop();
            }
            now_ns = self.now_ns();
        }
        now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_never_early_and_end_on_stop() {
        let (clock, stop) = (Clock::start(), Stop::new());
        for gap_ns in [0, 1_000, 150_000, 2_000_000] {
            let due_ns = clock.now_ns() + gap_ns;
            assert!(clock.wait_until(due_ns, &stop) >= due_ns);
        }
        // Far longer than the longest sleep: returns before the packet is due.
        let due_ns = clock.now_ns() + 3_600_000_000_000;
        assert!(clock.wait_until(due_ns, &stop) < due_ns);
        stop.set();
        assert!(clock.wait_until(due_ns, &stop) < due_ns);
    }
}
