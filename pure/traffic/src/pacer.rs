//! Computes when each packet is due, in nanoseconds since the start.
//!
//! Due times are summed in units of 2^-32 ns, so that a rate does not drift: at 10 Mpps the error
//! after a day is below 0.2 ms. A sender that falls behind catches up only to a limit, because a
//! long burst after a pause would overrun buffers on the path. The rest is skipped and counted
//! ([`Pacer::slipped_ns`]).

use crate::rate::{Pace, Rate};
use crate::{PACKET_LEN_MIN, WIRE_OVERHEAD};

/// Fractional bits of a nanosecond.
const FRACTION_BITS: u32 = 32;
const ONE: f64 = (1u64 << FRACTION_BITS) as f64;

/// Maximum delay that a sender catches up.
const LAG_MAX_NS: u64 = 100_000_000;

#[derive(Clone, Copy, Debug)]
enum Step {
    None,
    Packet { fixed: u128 },
    Byte { fixed: u128, on_wire: bool },
    Gap { inverse: f64, gap_max_ns: u64 },
}

/// Schedules packets.
#[derive(Clone, Debug)]
pub struct Pacer {
    step: Step,
    due: u128,
    last_time_ns: Option<u64>,
    /// Number of gaps, for the gap between the last packet of a round and the first of the next.
    gap_count: u64,
    gap_sum: u128,
    slipped_ns: u64,
    lag_max_ns: u64,
}

impl Pacer {
    /// Creates a pacer whose first packet is due at 0.
    pub fn new(pace: Pace) -> Self {
        let fixed = |ns: f64| (ns * ONE) as u128;
        let step = match pace {
            Pace::Max => Step::None,
            Pace::Rate {
                rate: Rate::Packets(pps),
                ..
            } => Step::Packet {
                fixed: fixed(1e9 / pps),
            },
            Pace::Rate {
                rate: Rate::Bits(bps),
                on_wire,
            } => Step::Byte {
                fixed: fixed(8e9 / bps),
                on_wire,
            },
            Pace::Original {
                multiplier,
                gap_max_ns,
            } => Step::Gap {
                inverse: 1.0 / multiplier,
                gap_max_ns,
            },
        };
        Self {
            step,
            due: 0,
            last_time_ns: None,
            gap_count: 0,
            gap_sum: 0,
            slipped_ns: 0,
            lag_max_ns: LAG_MAX_NS,
        }
    }

    /// Sets the maximum delay that the sender catches up.
    #[must_use]
    pub fn with_lag_max(mut self, lag_max_ns: u64) -> Self {
        self.lag_max_ns = lag_max_ns;
        self
    }

    /// Changes the rate, from the next packet on.
    pub fn set_rate(&mut self, rate: Rate, on_wire: bool) {
        self.step = Self::new(Pace::Rate { rate, on_wire }).step;
    }

    /// Whether packets are always due at once.
    pub fn is_max(&self) -> bool {
        matches!(self.step, Step::None)
    }

    /// Whether due times follow the timestamps of a capture.
    pub fn follows_capture(&self) -> bool {
        matches!(self.step, Step::Gap { .. })
    }

    /// Sets the next packet's timestamp in the capture; called once per packet before
    /// [`Pacer::due_ns`].
    #[inline]
    pub fn next_time(&mut self, time_ns: u64) {
        let Step::Gap {
            inverse,
            gap_max_ns,
        } = self.step
        else {
            return;
        };
        if let Some(last) = self.last_time_ns {
            // Captures of several queues are not always in order: late packets are sent at once.
            let gap = time_ns.saturating_sub(last).min(gap_max_ns);
            let scaled = (gap as f64 * inverse * ONE) as u128;
            self.due += scaled;
            self.gap_sum += scaled;
            self.gap_count += 1;
        }
        self.last_time_ns = Some(self.last_time_ns.map_or(time_ns, |last| last.max(time_ns)));
    }

    /// Restarts the capture: its first packet follows the last one at the mean gap.
    pub fn rewind(&mut self) {
        if let Some(mean) = self.gap_sum.checked_div(self.gap_count.into()) {
            self.due += mean;
        }
        self.last_time_ns = None;
    }

    /// When the next packet is due, in nanoseconds since the start.
    #[inline]
    pub fn due_ns(&self) -> u64 {
        (self.due >> FRACTION_BITS) as u64
    }

    /// Records that a packet of this length was given to the device, and advances the due time.
    #[inline]
    pub fn sent(&mut self, packet_len: usize) {
        match self.step {
            Step::None | Step::Gap { .. } => {}
            Step::Packet { fixed } => self.due += fixed,
            Step::Byte { fixed, on_wire } => {
                let len = if on_wire {
                    packet_len.max(PACKET_LEN_MIN) + WIRE_OVERHEAD
                } else {
                    packet_len
                };
                self.due += fixed * len as u128;
            }
        }
    }

    /// Skips the delay at `now_ns` that exceeds the limit.
    #[inline]
    pub fn slip(&mut self, now_ns: u64) {
        let lag = now_ns.saturating_sub(self.due_ns());
        if lag > self.lag_max_ns && !self.is_max() {
            let slip = lag - self.lag_max_ns;
            self.slipped_ns += slip;
            self.due += u128::from(slip) << FRACTION_BITS;
        }
    }

    /// Nanoseconds skipped because the sender could not keep up.
    pub fn slipped_ns(&self) -> u64 {
        self.slipped_ns
    }
}

#[cfg(test)]
mod tests;
