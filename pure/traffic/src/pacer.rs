//! The pacer: when each packet is due, in nanoseconds since the start.
//!
//! Due times are added up in units of 2^-32 ns, so that a rate does not drift: at 10 Mpps the error
//! after a day is below 0.2 ms. A sender that falls behind catches up, but only so far: a burst of
//! any length after a pause is what overruns the buffers on the way. The rest is not made up, but
//! counted ([`Pacer::slipped_ns`]).

use crate::rate::{Pace, Rate};
use crate::{PACKET_LEN_MIN, WIRE_OVERHEAD};

/// Fractional bits of a nanosecond.
const FRACTION_BITS: u32 = 32;
const ONE: f64 = (1u64 << FRACTION_BITS) as f64;

/// How far a sender may be after and still catch up.
const LAG_MAX_NS: u64 = 100_000_000;

#[derive(Clone, Copy, Debug)]
enum Step {
    None,
    Packet { fixed: u128 },
    Byte { fixed: u128, on_wire: bool },
    Gap { inverse: f64, gap_max_ns: u64 },
}

/// Returns when the next packet is due.
#[derive(Clone, Debug)]
pub struct Pacer {
    step: Step,
    due: u128,
    last_time_ns: Option<u64>,
    /// For the gap between the last packet of a round and the first of the next.
    gap_count: u64,
    gap_sum: u128,
    slipped_ns: u64,
    lag_max_ns: u64,
}

impl Pacer {
    /// The first packet is due at 0.
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

    /// As it is, but a sender that falls behind by more than this does not catch up.
    #[must_use]
    pub fn with_lag_max(mut self, lag_max_ns: u64) -> Self {
        self.lag_max_ns = lag_max_ns;
        self
    }

    /// Whether packets are never waited for.
    pub fn is_max(&self) -> bool {
        matches!(self.step, Step::None)
    }

    /// Whether due times follow the times of a capture.
    pub fn follows_capture(&self) -> bool {
        matches!(self.step, Step::Gap { .. })
    }

    /// The next packet's time in the capture, once for each packet before [`Pacer::due_ns`].
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
            // Captures of several queues are not always in order: such packets go at once.
            let gap = time_ns.saturating_sub(last).min(gap_max_ns);
            let scaled = (gap as f64 * inverse * ONE) as u128;
            self.due += scaled;
            self.gap_sum += scaled;
            self.gap_count += 1;
        }
        self.last_time_ns = Some(self.last_time_ns.map_or(time_ns, |last| last.max(time_ns)));
    }

    /// The capture starts again: its first packet follows the last one at the mean gap.
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

    /// A packet of this length was given to the device: the next one's due time moves on.
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

    /// Drops the delay that cannot be made up at `now_ns`.
    #[inline]
    pub fn slip(&mut self, now_ns: u64) {
        let lag = now_ns.saturating_sub(self.due_ns());
        if lag > self.lag_max_ns && !self.is_max() {
            let slip = lag - self.lag_max_ns;
            self.slipped_ns += slip;
            self.due += u128::from(slip) << FRACTION_BITS;
        }
    }

    /// Nanoseconds by which the plan was moved because the sender could not keep up.
    pub fn slipped_ns(&self) -> u64 {
        self.slipped_ns
    }
}

#[cfg(test)]
mod tests;
