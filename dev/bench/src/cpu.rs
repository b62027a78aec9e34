//! Processor time: of programs, and of the whole machine if the kernel does the work.

use std::time::Instant;

use anyhow::{Context, Result};
use nix::sys::resource::{UsageWho, getrusage};

/// `USER_HZ`: times in `/proc` are in hundredths of a second on all current architectures of Linux.
const TICKS_A_SECOND: f64 = 100.0;

/// Processor time of all programs that this one has started and waited for, in seconds.
pub fn of_children() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("getrusage")?;
    let seconds =
        |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// Processor time of the calling thread, in seconds.
pub fn of_thread() -> Result<f64> {
    // Otherwise the time since the last timer interrupt is missing (`update_curr`).
    std::thread::yield_now();
    let path = "/proc/thread-self/schedstat";
    let text = std::fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    let first = text
        .split_whitespace()
        .next()
        .context("schedstat is empty")?;
    Ok(first.parse::<u64>()? as f64 / 1e9)
}

/// A reading of `/proc/stat`: it includes the work of all processes and the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    at: Instant,
    /// Idle time of all processors together, in seconds.
    idle_s: f64,
    cpus: usize,
}

impl Reading {
    /// Takes a reading.
    pub fn take() -> Result<Self> {
        let text = std::fs::read_to_string("/proc/stat").context("read /proc/stat")?;
        let line = text.lines().next().context("/proc/stat is empty")?;
        let fields: Vec<f64> = line
            .split_whitespace()
            .skip(1)
            .filter_map(|word| word.parse().ok())
            .collect();
        // user nice system idle iowait irq softirq steal: idle time is exact (tickless kernels),
        // the others are sampled, so busy is what is not idle.
        let idle_s = (fields.get(3).context("no idle time")? + fields.get(4).unwrap_or(&0.0))
            / TICKS_A_SECOND;
        let cpus = text.lines().filter(|l| l.starts_with("cpu")).count() - 1;
        Ok(Self {
            at: Instant::now(),
            idle_s,
            cpus,
        })
    }

    /// Processor time spent since an earlier reading, in seconds over all processors.
    pub fn busy_since(&self, earlier: &Self) -> f64 {
        let elapsed = self.at.duration_since(earlier.at).as_secs_f64();
        elapsed * self.cpus as f64 - (self.idle_s - earlier.idle_s)
    }
}
