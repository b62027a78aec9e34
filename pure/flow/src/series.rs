//! Packets and bytes over time, in a fixed number of bins whose width grows with the time span.

/// Number of bins; a power of two.
pub const BIN_COUNT: usize = 256;
/// Minimum width of a bin.
const WIDTH_MIN_NS: u64 = 1_000_000;

/// Traffic over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// Start of the first bin, a multiple of the width. There are no packets before it.
    start_ns: u64,
    width_ns: u64,
    is_empty: bool,
    bins: [Bin; BIN_COUNT],
}

/// Traffic in a bin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bin {
    /// Packets.
    pub packets: u64,
    /// Bytes on the wire.
    pub bytes: u64,
}

impl Default for Series {
    fn default() -> Series {
        Series {
            start_ns: 0,
            width_ns: WIDTH_MIN_NS,
            is_empty: true,
            bins: [Bin::default(); BIN_COUNT],
        }
    }
}

impl Series {
    /// Adds a packet.
    #[inline]
    pub fn add(&mut self, time_ns: u64, bytes: u32) {
        let at = time_ns.wrapping_sub(self.start_ns) / self.width_ns;
        if self.is_empty || at >= BIN_COUNT as u64 {
            return self.add_far(time_ns, 1, bytes.into());
        }
        let bin = &mut self.bins[at as usize];
        bin.packets += 1;
        bin.bytes += u64::from(bytes);
    }

    #[cold]
    fn add_far(&mut self, time_ns: u64, packets: u64, bytes: u64) {
        if self.is_empty {
            self.is_empty = false;
            self.start_ns = time_ns - time_ns % self.width_ns;
        }
        // Double the width as often as needed: at most 64 times.
        loop {
            let end_ns = self
                .start_ns
                .saturating_add(self.width_ns * BIN_COUNT as u64);
            if (self.start_ns..end_ns).contains(&time_ns) {
                break;
            }
            if self.width_ns >= 1 << 55 || !self.widen(time_ns < self.start_ns) {
                // Times after the end are counted in the last bin.
                self.put(BIN_COUNT - 1, packets, bytes);
                return;
            }
        }
        let at = (time_ns - self.start_ns) / self.width_ns;
        self.put(at as usize, packets, bytes);
    }

    fn put(&mut self, at: usize, packets: u64, bytes: u64) {
        self.bins[at].packets += packets;
        self.bins[at].bytes += bytes;
    }

    /// Doubles the width, with the free bins before or after the existing ones.
    fn widen(&mut self, is_before: bool) -> bool {
        let Some(width_ns) = self.width_ns.checked_mul(2) else {
            return false;
        };
        let span_ns = width_ns.saturating_mul(BIN_COUNT as u64);
        let room_ns = if is_before { span_ns / 2 } else { 0 };
        let start_ns = self.start_ns.saturating_sub(room_ns);
        let start_ns = start_ns - start_ns % width_ns;
        let mut bins = [Bin::default(); BIN_COUNT];
        for (at, bin) in self.bins.iter().enumerate() {
            let time_ns = self.start_ns.saturating_add(at as u64 * self.width_ns);
            let to = ((time_ns - start_ns) / width_ns).min(BIN_COUNT as u64 - 1);
            bins[to as usize].packets += bin.packets;
            bins[to as usize].bytes += bin.bytes;
        }
        (self.start_ns, self.width_ns, self.bins) = (start_ns, width_ns, bins);
        true
    }

    /// Adds another series: each bin at its start time.
    pub fn merge(&mut self, other: &Series) {
        if other.is_empty {
            return;
        }
        while self.width_ns < other.width_ns && !self.is_empty {
            if !self.widen(false) {
                break;
            }
        }
        for (at, bin) in other.bins.iter().enumerate() {
            if bin.packets != 0 {
                let time_ns = other.start_ns.saturating_add(at as u64 * other.width_ns);
                self.add_far(time_ns, bin.packets, bin.bytes);
            }
        }
    }

    /// Width of a bin in nanoseconds.
    pub fn width_ns(&self) -> u64 {
        self.width_ns
    }

    /// Start of the first bin with a packet, and the bins from it to the last one with a packet.
    pub fn used(&self) -> (u64, &[Bin]) {
        let has = |bin: &Bin| bin.packets != 0;
        let first = self.bins.iter().position(has).unwrap_or(0);
        let last = self.bins.iter().rposition(has).map_or(0, |at| at + 1);
        let start_ns = self.start_ns.saturating_add(first as u64 * self.width_ns);
        (start_ns, &self.bins[first..last])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn no_packet_is_lost_whatever_the_timestamps() {
        let times = [
            100 * S,
            100 * S + 1,
            90 * S,
            5000 * S,
            1,
            u64::MAX,
            101 * S,
            0,
        ];
        let mut series = Series::default();
        assert!(series.used().1.is_empty());
        for (at, time_ns) in times.into_iter().enumerate() {
            series.add(time_ns, 10);
            let (_, bins) = series.used();
            let sum = |f: fn(&Bin) -> u64| bins.iter().map(f).sum::<u64>();
            assert_eq!(sum(|b| b.packets), at as u64 + 1, "{time_ns}");
            assert_eq!(sum(|b| b.bytes), 10 * (at as u64 + 1));
        }
    }

    #[test]
    fn a_steady_stream_is_even() {
        let mut series = Series::default();
        for n in 0..10_000_u64 {
            series.add(1_700_000_000 * S + n * 10_000_000, 100);
        }
        let (start_ns, bins) = series.used();
        assert!(start_ns <= 1_700_000_000 * S && start_ns + series.width_ns() > 1_700_000_000 * S);
        assert!(bins.len() > BIN_COUNT / 3 && series.width_ns() == 512_000_000);
        let inner = &bins[1..bins.len() - 1];
        assert!(inner.iter().all(|bin| (51..=52).contains(&bin.packets)));
    }

    #[test]
    fn two_series_are_merged() {
        let (mut one, mut other, mut both) = Default::default();
        let all: [&mut Series; 3] = [&mut one, &mut other, &mut both];
        let [one, other, both] = all;
        for n in 0..5000_u64 {
            let time_ns = 7 * S + n * 3_000_000;
            if n % 3 == 0 { &mut *one } else { &mut *other }.add(time_ns, 1);
            both.add(time_ns, 1);
        }
        one.merge(other);
        one.merge(&Series::default());
        let packets = |s: &Series| s.used().1.iter().map(|b| b.packets).sum::<u64>();
        assert_eq!(
            (packets(one), one.width_ns()),
            (packets(both), both.width_ns())
        );
        let mut empty = Series::default();
        empty.merge(one);
        assert_eq!(packets(&empty), 5000);
    }
}
