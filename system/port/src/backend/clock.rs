//! Converts times of the clocks that programs and devices read to time since the Unix epoch.

use xdp::metadata::TimeClock;

/// How often the offset between the clocks is measured, in ns of packet time. `CLOCK_REALTIME` may
/// be stepped or slewed (by at most 500 ppm, so by 0.5 ms in between) while the others keep
/// running.
const MEASURE_EVERY_NS: u64 = 1_000_000_000;

/// What to add to a clock to get `CLOCK_REALTIME`, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Offsets {
    tai_ns: i64,
    monotonic_ns: i64,
}

/// Converts packet times; measures once per second of packet time, between batches.
#[derive(Debug)]
pub(super) struct Clock {
    offsets: Offsets,
    measured_at_ns: u64,
}

/// Time of a system clock in ns.
pub(super) fn now_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a live struct for the kernel to write; clocks that it lacks leave it 0.
    unsafe { libc::clock_gettime(clock, &mut time) };
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}

impl Offsets {
    fn measure() -> Self {
        // The scheduler may separate the readings: use the closest of a few.
        let tries = (0..4).map(|_| {
            let real = now_ns(libc::CLOCK_REALTIME);
            let tai = now_ns(libc::CLOCK_TAI);
            let monotonic = now_ns(libc::CLOCK_MONOTONIC);
            let took = now_ns(libc::CLOCK_REALTIME).wrapping_sub(real);
            (took, real, tai, monotonic)
        });
        let (_, real, tai, monotonic) = tries.min().unwrap_or_default();
        // TAI differs by whole seconds (37 since 2017, 0 if the kernel was not configured): the
        // rest is the time between the two readings.
        let apart = real.wrapping_sub(tai) as i64;
        let seconds = (apart + apart.signum() * 500_000_000) / 1_000_000_000;
        Self {
            tai_ns: seconds * 1_000_000_000,
            monotonic_ns: real.wrapping_sub(monotonic) as i64,
        }
    }
}

impl Clock {
    pub(super) fn new() -> Self {
        Self {
            offsets: Offsets::measure(),
            measured_at_ns: 0,
        }
    }

    /// Nanoseconds since the Unix epoch.
    #[inline]
    pub(super) fn unix_ns(&mut self, time_ns: u64, clock: TimeClock) -> u64 {
        if time_ns.wrapping_sub(self.measured_at_ns) > MEASURE_EVERY_NS {
            self.offsets = Offsets::measure();
            self.measured_at_ns = time_ns;
        }
        match clock {
            TimeClock::Tai => time_ns.wrapping_add_signed(self.offsets.tai_ns),
            TimeClock::Monotonic => time_ns.wrapping_add_signed(self.offsets.monotonic_ns),
            // The card's clock may have any setting: a PTP daemon is responsible for it.
            TimeClock::Device => time_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_clocks_give_the_same_time() {
        let mut clock = Clock::new();
        let sources = [
            (libc::CLOCK_TAI, TimeClock::Tai),
            (libc::CLOCK_MONOTONIC, TimeClock::Monotonic),
        ];
        for (id, kind) in sources {
            let before = now_ns(libc::CLOCK_REALTIME);
            let converted = clock.unix_ns(now_ns(id), kind);
            let after = now_ns(libc::CLOCK_REALTIME);
            // 10 ms for readings that the scheduler separated.
            let near = before - 10_000_000..after + 10_000_000;
            assert!(near.contains(&converted), "{kind:?}: {converted}, {near:?}");
        }
        assert_eq!(clock.unix_ns(5, TimeClock::Device), 5);
    }
}
