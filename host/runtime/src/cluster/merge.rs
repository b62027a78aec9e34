//! Puts the packets of several inputs in the order of their times: each packet waits for a fixed
//! time, in which earlier ones of other inputs may arrive.
//!
//! The time is measured by the clock of the timestamps, so a packet waits from its arrival on, not
//! from when it was read. Times in the future, of cards whose clock is ahead, count as now: no
//! packet waits for longer than the window.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ring::Frame;

/// Longest time that packets may wait.
pub const WINDOW_MAX: Duration = Duration::from_secs(10);

/// Maximum number of frames that wait; when there are more, the earliest packets are released.
pub(super) const FRAME_COUNT_MAX: u32 = 1 << 14;

/// A packet that waits.
struct Waiting {
    time_ns: u64,
    /// Of packets with the same time, the one that arrived first is the earlier one.
    number: u64,
    first: Frame,
    /// The other frames of its packet: rarely any.
    rest: Vec<Frame>,
}

impl Ord for Waiting {
    /// The earliest is the greatest, which the heap returns first.
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |it: &Self| (it.time_ns, it.number);
        key(other).cmp(&key(self))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Waiting {}

/// The packets that wait.
pub(super) struct Merge {
    window_ns: u64,
    waiting: BinaryHeap<Waiting>,
    frames: u32,
    next_number: u64,
    now_ns: u64,
    /// All packets up to this time are released.
    released_ns: u64,
    /// Packets that arrived after a later one had been released.
    late: u64,
}

/// Time of the system's clock, in nanoseconds since 1970: that of the packets' timestamps.
pub(super) fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// Parses the window, a number of milliseconds.
///
/// # Errors
/// What was expected.
pub fn parse(text: &str) -> Result<Duration, String> {
    let ms = text.parse().ok().map(Duration::from_millis);
    let is_valid = |window: &Duration| !window.is_zero() && *window <= WINDOW_MAX;
    ms.filter(is_valid).ok_or_else(|| {
        let max = WINDOW_MAX.as_millis();
        format!("expected milliseconds from 1 to {max}")
    })
}

impl Merge {
    /// Packets wait for `window`.
    pub fn new(window: Duration) -> Self {
        Self {
            window_ns: window.as_nanos() as u64,
            // Nothing is allocated later.
            waiting: BinaryHeap::with_capacity(FRAME_COUNT_MAX as usize + 1),
            frames: 0,
            next_number: 0,
            now_ns: 0,
            released_ns: 0,
            late: 0,
        }
    }

    /// Packets that arrived too late to be put in order.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Sets the time, once a batch.
    pub fn set_now(&mut self, now_ns: u64) {
        if now_ns < self.now_ns {
            self.set_back(now_ns);
        }
        self.now_ns = now_ns;
    }

    /// The clock was set back: nothing waits for it to reach the old time again.
    #[cold]
    fn set_back(&mut self, now_ns: u64) {
        let mut all = std::mem::take(&mut self.waiting).into_vec();
        for packet in &mut all {
            packet.time_ns = packet.time_ns.min(now_ns);
        }
        self.waiting = all.into();
        self.released_ns = self.released_ns.min(now_ns);
    }

    /// Adds a packet: its first frame, and the others.
    pub fn add(&mut self, time_ns: u64, first: Frame, rest: Vec<Frame>) {
        let time_ns = time_ns.min(self.now_ns);
        self.late += u64::from(time_ns < self.released_ns);
        self.frames += 1 + rest.len() as u32;
        let number = self.next_number;
        self.next_number += 1;
        self.waiting.push(Waiting {
            time_ns,
            number,
            first,
            rest,
        });
    }

    /// The earliest packet that has waited long enough; with `is_end`, the earliest one.
    pub fn next(&mut self, is_end: bool) -> Option<(Frame, Vec<Frame>)> {
        let earliest = self.waiting.peek()?;
        let is_due = earliest.time_ns.saturating_add(self.window_ns) <= self.now_ns;
        if !is_due && !is_end && self.frames <= FRAME_COUNT_MAX {
            return None;
        }
        let packet = self.waiting.pop()?;
        self.released_ns = self.released_ns.max(packet.time_ns);
        self.frames -= 1 + packet.rest.len() as u32;
        Some((packet.first, packet.rest))
    }
}

#[cfg(test)]
mod tests {
    use ring::{FrameCache, Pool, PoolConfig};

    use super::*;

    const WINDOW: Duration = Duration::from_nanos(100);

    struct Bed {
        cache: FrameCache,
        merge: Merge,
        out: Vec<u64>,
    }

    impl Bed {
        fn new() -> Self {
            let config = PoolConfig {
                frame_count: 2 * FRAME_COUNT_MAX,
                frame_len: 2048,
                ..PoolConfig::default()
            };
            Self {
                cache: FrameCache::new(Pool::new(config).unwrap()),
                merge: Merge::new(WINDOW),
                out: Vec::new(),
            }
        }

        /// A packet of `1 + more` frames, whose number is the offset of its first byte.
        fn add(&mut self, time_ns: u64, number: u32, more: usize) {
            let mut first = self.cache.take().unwrap();
            self.cache.pool().set_range(&mut first, number, 1);
            let rest = (0..more).map(|_| self.cache.take().unwrap()).collect();
            self.merge.add(time_ns, first, rest);
        }

        fn release(&mut self, is_end: bool) -> Vec<u32> {
            let mut numbers = Vec::new();
            while let Some((first, rest)) = self.merge.next(is_end) {
                numbers.push(first.offset());
                for frame in rest.into_iter().chain([first]) {
                    self.cache.give(frame).unwrap();
                }
            }
            self.out
                .extend(numbers.iter().map(|number| u64::from(*number)));
            numbers
        }
    }

    /// Packets of four inputs, each in order and at most a window behind, come out sorted.
    #[test]
    fn packets_within_the_window_are_put_in_order() {
        let mut bed = Bed::new();
        let mut seed = 7_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        let mut count = 0;
        // The number of a packet is its time, less 900.
        for now in (1_000..2_900).step_by(20) {
            bed.merge.set_now(now);
            for _ in 0..random(4) {
                let age = random(100);
                bed.add(now - age, (now - age - 900) as u32, random(3) as usize);
                count += 1;
            }
            bed.release(false);
        }
        bed.release(true);
        assert_eq!((bed.out.len(), bed.merge.late()), (count, 0));
        assert!(bed.out.is_sorted());
        assert_eq!(bed.cache.pool().counts().user, 0);
    }

    #[test]
    fn a_packet_waits_for_the_window_and_no_longer() {
        let mut bed = Bed::new();
        bed.merge.set_now(1_000);
        bed.add(1_000, 1, 0);
        // A card whose clock is ahead.
        bed.add(u64::MAX, 2, 0);
        bed.add(990, 3, 1);
        bed.merge.set_now(1_089);
        assert_eq!(bed.release(false), []);
        bed.merge.set_now(1_090);
        assert_eq!(bed.release(false), [3]);
        bed.merge.set_now(1_100);
        assert_eq!(bed.release(false), [1, 2]);
        assert_eq!(bed.merge.late(), 0);
        // Later than the window: handed over at once, and counted.
        bed.add(999, 4, 0);
        assert_eq!((bed.release(false), bed.merge.late()), (vec![4], 1));
    }

    #[test]
    fn a_clock_that_is_set_back_delays_no_packet() {
        let mut bed = Bed::new();
        bed.merge.set_now(1_000_000);
        bed.add(1_000_000, 1, 0);
        bed.merge.set_now(5_000);
        bed.add(4_990, 2, 0);
        bed.merge.set_now(5_100);
        assert_eq!(bed.release(false), [2, 1]);
        assert_eq!(bed.merge.late(), 0);
    }

    #[test]
    fn more_packets_than_fit_are_released_early() {
        let mut bed = Bed::new();
        bed.merge.set_now(1_000);
        for number in 0..FRAME_COUNT_MAX {
            bed.add(1_000, number % 2_000, 0);
        }
        assert_eq!(bed.release(false), []);
        bed.add(1_000, 0, 1);
        assert_eq!(bed.release(false), [0, 1]);
        assert_eq!(bed.release(true).len() as u32, FRAME_COUNT_MAX - 1);
    }
}
