//! Gaps between the packets of one direction, and their lengths: extremes, mean, deviation,
//! histograms.

use crate::record::Counters;
use crate::table::Observed;

/// Number of bins in a histogram.
pub const BIN_COUNT: usize = 8;

/// Index of a number's bin: below 16, below 32, and so on by powers of two; the last one from 1024
/// on.
fn bin(value: u64) -> usize {
    let bits = (64 - value.leading_zeros()) as usize;
    bits.saturating_sub(4).min(BIN_COUNT - 1)
}

/// Index of the bin for a gap in nanoseconds: below 16 ms, below 32 ms, …, from 1024 ms on.
pub fn gap_bin(gap_ns: u64) -> usize {
    bin(gap_ns / 1_000_000)
}

/// Index of the bin for a payload length: below 16, below 32, …, from 1024 on.
pub fn len_bin(len: u32) -> usize {
    bin(len.into())
}

/// Gaps and lengths of one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Timing {
    /// Shortest gap in nanoseconds; `u64::MAX` if there is none.
    pub gap_min_ns: u64,
    /// Longest gap.
    pub gap_max_ns: u64,
    /// Sum of the gaps.
    pub gap_sum_ns: u64,
    /// Sum of the squared gaps, in nanoseconds squared.
    pub gap_square_sum: f64,
    /// Sum of the squared packet lengths.
    pub len_square_sum: f64,
    /// Histogram of gaps ([`gap_bin`]).
    pub gap_bins: [u32; BIN_COUNT],
    /// Histogram of payload lengths ([`len_bin`]).
    pub len_bins: [u32; BIN_COUNT],
}

impl Timing {
    /// Timing without packets.
    pub const EMPTY: Timing = Timing {
        gap_min_ns: u64::MAX,
        gap_max_ns: 0,
        gap_sum_ns: 0,
        gap_square_sum: 0.0,
        len_square_sum: 0.0,
        gap_bins: [0; BIN_COUNT],
        len_bins: [0; BIN_COUNT],
    };

    /// Adds a packet to a side that has sent `before`. A packet with a time before the latest one
    /// has a gap of 0.
    pub(super) fn add(&mut self, before: &Counters, packet: &Observed) {
        let len = f64::from(packet.bytes);
        self.len_square_sum += len * len;
        let bin = &mut self.len_bins[len_bin(packet.level.payload_len)];
        *bin = bin.saturating_add(1);
        if before.packets == 0 {
            return;
        }
        let gap_ns = packet.time_ns.saturating_sub(before.last_ns);
        self.gap_min_ns = self.gap_min_ns.min(gap_ns);
        self.gap_max_ns = self.gap_max_ns.max(gap_ns);
        self.gap_sum_ns = self.gap_sum_ns.saturating_add(gap_ns);
        self.gap_square_sum += gap_ns as f64 * gap_ns as f64;
        let bin = &mut self.gap_bins[gap_bin(gap_ns)];
        *bin = bin.saturating_add(1);
    }

    /// Number of gaps.
    pub fn gap_count(&self) -> u64 {
        self.gap_bins.iter().map(|count| u64::from(*count)).sum()
    }

    /// Mean gap and standard deviation (of the population, not of a sample), in nanoseconds.
    pub fn gap_mean_deviation_ns(&self) -> (f64, f64) {
        moments(
            self.gap_count() as f64,
            self.gap_sum_ns as f64,
            self.gap_square_sum,
        )
    }

    /// Mean packet length and standard deviation, in bytes. `sent` are the counters of the side's
    /// record.
    pub fn len_mean_deviation(&self, sent: &Counters) -> (f64, f64) {
        moments(sent.packets as f64, sent.bytes as f64, self.len_square_sum)
    }

    /// Merges the timing of the same side from another table.
    pub(super) fn merge(&mut self, other: &Timing) {
        self.gap_min_ns = self.gap_min_ns.min(other.gap_min_ns);
        self.gap_max_ns = self.gap_max_ns.max(other.gap_max_ns);
        self.gap_sum_ns = self.gap_sum_ns.saturating_add(other.gap_sum_ns);
        self.gap_square_sum += other.gap_square_sum;
        self.len_square_sum += other.len_square_sum;
        let bins = self.gap_bins.iter_mut().zip(&other.gap_bins);
        for (bin, more) in bins.chain(self.len_bins.iter_mut().zip(&other.len_bins)) {
            *bin = bin.saturating_add(*more);
        }
    }
}

fn moments(count: f64, sum: f64, square_sum: f64) -> (f64, f64) {
    if count == 0.0 {
        return (0.0, 0.0);
    }
    let mean = sum / count;
    // Rounding can make the difference negative.
    let variance = (square_sum / count - mean * mean).max(0.0);
    (mean, variance.sqrt())
}
