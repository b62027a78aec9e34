//! Decides when to give up on a guest that does not boot.
//!
//! Not by the clock alone: on a machine that is busy with something else, a boot of ten seconds may
//! take minutes, and still succeed.

use std::time::{Duration, Instant};

/// It is not checked before this; a guest alone on its machine boots in some ten seconds.
const SURE: Duration = Duration::from_secs(150);

/// Processor time after which it must have booted, several times what it takes.
const WORK: Duration = Duration::from_secs(120);

/// A guest that used less than [`PULSE`] for this long waits for something that never comes.
const REST: Duration = Duration::from_secs(90);

/// Less than this in [`REST`] is no work: an emulator whose processors sleep still has its timers.
const PULSE: Duration = Duration::from_secs(3);

/// Limit in any case.
const LAST: Duration = Duration::from_secs(900);

/// Watches a process that is to boot.
pub struct Patience {
    pid: u32,
    started: Instant,
    /// When it was last seen working, and its processor time then.
    worked: (Instant, Duration),
}

impl Patience {
    /// Watches a process that starts now.
    pub fn new(pid: u32) -> Patience {
        Patience {
            pid,
            started: Instant::now(),
            worked: (Instant::now(), Duration::ZERO),
        }
    }

    /// Whether it will not boot any more.
    pub fn is_over(&mut self) -> bool {
        let work = work_of(self.pid).unwrap_or_default();
        if work >= self.worked.1 + PULSE {
            self.worked = (Instant::now(), work);
        }
        over(self.started.elapsed(), work, self.worked.0.elapsed())
    }
}

fn over(age: Duration, work: Duration, rest: Duration) -> bool {
    age >= SURE && (work >= WORK || rest >= REST || age >= LAST)
}

/// Processor time of a process, all its threads together (proc_pid_stat(5): utime and stime, in
/// ticks).
fn work_of(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain spaces and parentheses; field 3 follows it.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    let per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok()??;
    Some(Duration::from_secs_f64(ticks as f64 / per_second as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_machine_gets_time_and_a_stuck_guest_does_not() {
        let seconds = Duration::from_secs;
        // Too early to decide.
        assert!(!over(seconds(149), seconds(290), seconds(149)));
        // Slow, because other programs use the processors.
        assert!(!over(seconds(400), seconds(12), seconds(3)));
        // In a loop, asleep, over the limit.
        assert!(over(seconds(151), seconds(140), seconds(0)));
        assert!(over(seconds(151), seconds(9), seconds(91)));
        assert!(over(seconds(900), seconds(9), seconds(1)));
    }

    #[test]
    fn processor_time_is_read_from_the_kernel() {
        let before = work_of(std::process::id()).unwrap();
        let mut sum = 0_u64;
        let until = before + Duration::from_millis(30);
        while work_of(std::process::id()).unwrap() < until {
            sum = std::hint::black_box(sum + 1);
        }
        assert_eq!(work_of(u32::MAX), None);
    }
}
