//! The receive loop: passes batches of a queue to an engine, and waits when there are none.
//!
//! A sleeping reader costs the sender: each packet that arrives meanwhile wakes it. A spinning
//! reader costs a core. In between, [`Pacing::Gather`] sleeps on the clock (not on the socket)
//! while packets arrive steadily, just long enough for a large batch to accumulate, and on the
//! socket when they do not. [`Pacing::Prompt`] does the same with a bound that the receiver of a
//! forwarded packet does not notice.

use std::time::{Duration, Instant};

use port::{Ready, RxBatch, RxQueue};
use sys::poll::{self, Wanted};
use sys::{Error, Result};

use crate::Stop;

/// The result of an engine after a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Continue.
    Continue,
    /// The engine has finished.
    Finish,
}

/// A state machine over batches of packets.
pub trait Engine {
    /// Handles a batch, which is never empty.
    fn batch(&mut self, batch: &mut RxBatch<'_>) -> Result<Verdict>;

    /// Called when there are no packets, and at least about ten times a second: the place for
    /// timeouts.
    fn idle(&mut self) -> Result<Verdict> {
        Ok(Verdict::Continue)
    }

    /// Called when one of several queues fails. Returns the error, which ends the loop, or nothing:
    /// it continues with the others.
    fn failed(&mut self, queue: &RxQueue, error: Error) -> Result<()> {
        let _ = queue;
        Err(error)
    }
}

/// Why a loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// A stop was requested.
    Stopped,
    /// The input has ended.
    Input,
    /// The engine has finished.
    Finished,
}

/// How to wait for packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pacing {
    /// Sleep on the socket: lowest latency while idle, a wake-up every few packets under load.
    Wait,
    /// Spin: lowest latency, at the cost of a core per queue.
    Spin,
    /// Under steady load sleep on the clock until a batch has accumulated, at most four
    /// milliseconds; otherwise wait.
    #[default]
    Gather,
    /// Like `Gather`, but at most a tenth of a millisecond: for packets that are sent on, whose
    /// receiver waits for them.
    Prompt,
}

impl Pacing {
    /// The same for packets that are sent on: `Gather` becomes `Prompt`.
    pub fn prompt(self) -> Self {
        match self {
            Self::Gather => Self::Prompt,
            other => other,
        }
    }
}

/// Longest sleep on the socket, so that stop requests and timeouts are seen.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// Maximum number of packets that `Gather` lets accumulate: enough to make a wake-up cheap.
const GATHER_PACKETS: u64 = 512;
/// Bounds of a sleep on the clock.
const GATHER_NS: std::ops::RangeInclusive<u64> = 50_000..=4_000_000;
/// Length of a `Prompt` sleep, and the shortest interval of packets at which it is not worth while:
/// with fewer than four packets in a sleep, waking for each of them costs no more.
const PROMPT_SLEEP: Duration = Duration::from_micros(100);
const PROMPT_INTERVAL_NS: u64 = PROMPT_SLEEP.as_nanos() as u64 / 4;
/// How late the kernel may end a `Prompt` sleep so that it coincides with other timers. The default
/// is half of the sleep itself.
const PROMPT_SLACK: Duration = Duration::from_micros(5);
/// The time slice of a thread with `Prompt` sleeps, the least that the kernel accepts. With the
/// usual one of about 3 ms, each wake-up may wait that long for another thread of its processor.
const PROMPT_SLICE: Duration = Duration::from_micros(100);

/// How long `drain` waits for a block that the kernel has begun; several times the usual timeout.
const DRAIN_WAIT: Duration = Duration::from_millis(50);

/// Sleep of a thread with several queues while all are empty.
const NAP: Duration = Duration::from_micros(200);

/// Runs until the stop flag is set, the input ends, or the engine finishes.
///
/// # Errors
/// Errors of the queue or the engine; what was received before has been handled.
pub fn run(
    rx: &mut RxQueue,
    engine: &mut impl Engine,
    stop: &Stop,
    pacing: Pacing,
) -> Result<Ended> {
    let mut load = Load::new();
    let mut idle_at = Instant::now();
    prepare_thread(pacing);
    while !stop.is_set() {
        let mut batch = rx.receive()?;
        let count = batch.len();
        if count != 0 {
            load.add(count as u64);
            if engine.batch(&mut batch)? == Verdict::Finish {
                return Ok(Ended::Finished);
            }
            drop(batch);
            if !load.batches.is_multiple_of(64) {
                continue;
            }
        } else {
            drop(batch);
        }
        if count == 0 || idle_at.elapsed() >= WAIT_MAX {
            idle_at = Instant::now();
            if engine.idle()? == Verdict::Finish {
                return Ok(Ended::Finished);
            }
        }
        if count == 0 && rest(rx, &mut load, pacing)? == Ready::End {
            return Ok(Ended::Input);
        }
    }
    Ok(Ended::Stopped)
}

/// Like [`run`], for one or several queues in this thread: a batch of each in turn. While all of
/// several are empty it naps; with [`Pacing::Wait`] and [`Pacing::Prompt`] it sleeps on their
/// descriptors, if each has one.
///
/// # Errors
/// As [`run`].
pub fn run_all(
    queues: &mut [RxQueue],
    engine: &mut impl Engine,
    stop: &Stop,
    pacing: Pacing,
) -> Result<Ended> {
    match queues {
        [rx] => run(rx, engine, stop, pacing),
        several => {
            let sleeps = matches!(pacing, Pacing::Wait | Pacing::Prompt);
            run_several(several, engine, stop, pacing, sleeps)
        }
    }
}

/// Like [`run_all`], but naps with one queue, too: for an engine that has other things to look for.
///
/// # Errors
/// As [`run`].
pub fn run_napping(
    queues: &mut [RxQueue],
    engine: &mut impl Engine,
    stop: &Stop,
    pacing: Pacing,
) -> Result<Ended> {
    run_several(queues, engine, stop, pacing, false)
}

/// Several queues in turn; if `sleeps`, sleeps on their descriptors while all are empty.
fn run_several(
    queues: &mut [RxQueue],
    engine: &mut impl Engine,
    stop: &Stop,
    pacing: Pacing,
    sleeps: bool,
) -> Result<Ended> {
    let mut open: Vec<&mut RxQueue> = queues.iter_mut().collect();
    let mut load = Load::new();
    prepare_thread(pacing);
    while !stop.is_set() {
        let mut is_idle = true;
        let mut at = 0;
        while let Some(rx) = open.get_mut(at) {
            let error = match rx.receive() {
                Ok(mut batch) => {
                    if !batch.is_empty() {
                        is_idle = false;
                        load.add(batch.len() as u64);
                        if engine.batch(&mut batch)? == Verdict::Finish {
                            return Ok(Ended::Finished);
                        }
                    }
                    at += 1;
                    continue;
                }
                Err(error) => error,
            };
            engine.failed(open.remove(at), error)?;
        }
        if !is_idle {
            continue;
        }
        if engine.idle()? == Verdict::Finish {
            return Ok(Ended::Finished);
        }
        let mut at = 0;
        while let Some(rx) = open.get_mut(at) {
            match rx.wait(Duration::ZERO) {
                Ok(Ready::End) => drop(open.remove(at)),
                Ok(_) => at += 1,
                Err(error) => engine.failed(open.remove(at), error)?,
            }
        }
        if open.is_empty() {
            return Ok(Ended::Input);
        }
        match pacing {
            Pacing::Spin => std::hint::spin_loop(),
            Pacing::Prompt if load.is_steady() => std::thread::sleep(PROMPT_SLEEP),
            _ if sleeps && sleep_on_all(&mut open)? => {}
            _ => std::thread::sleep(NAP),
        }
    }
    Ok(Ended::Stopped)
}

/// Sleeps until one of the queues may have packets, at most [`WAIT_MAX`]; returns false at once if
/// one of them has no descriptor.
fn sleep_on_all(queues: &mut [&mut RxQueue]) -> Result<bool> {
    let mut is_silent = true;
    for rx in &mut *queues {
        if rx.poll_fd().is_none() {
            return Ok(false);
        }
        is_silent &= rx.arm()?;
    }
    if is_silent {
        let fds: Vec<_> = queues.iter().filter_map(|rx| rx.poll_fd()).collect();
        let mut wanted: Vec<_> = fds.iter().map(Wanted::readable).collect();
        poll::wait(&mut wanted, WAIT_MAX)?;
    }
    Ok(true)
}

/// Lets short sleeps of this thread end in time.
fn prepare_thread(pacing: Pacing) {
    if pacing == Pacing::Prompt {
        // Packets wait a little longer if that is not permitted.
        let _ = sys::affinity::set_timer_slack(PROMPT_SLACK);
        let _ = sys::affinity::set_time_slice(PROMPT_SLICE);
    }
}

/// Receives what is still in the rings after the intake was stopped, for at most a second.
///
/// # Errors
/// As [`run`].
pub fn drain(rx: &mut RxQueue, engine: &mut impl Engine) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(1);
    while Instant::now() < end {
        let mut batch = rx.receive()?;
        if batch.is_empty() {
            drop(batch);
            // What the kernel is still collecting arrives when its block is full or times out.
            if rx.gathers() && rx.wait(DRAIN_WAIT)? == Ready::Packets {
                continue;
            }
            return Ok(());
        }
        if engine.batch(&mut batch)? == Verdict::Finish {
            return Ok(());
        }
    }
    Ok(())
}

fn rest(rx: &mut RxQueue, load: &mut Load, pacing: Pacing) -> Result<Ready> {
    match pacing {
        Pacing::Spin => {
            std::hint::spin_loop();
            // A file's end is only reported by `wait`, which with a timeout of zero is one check.
            rx.wait(Duration::ZERO)
        }
        Pacing::Wait => rx.wait(WAIT_MAX),
        Pacing::Prompt if load.is_steady() => {
            std::thread::sleep(PROMPT_SLEEP);
            Ok(Ready::Packets)
        }
        Pacing::Prompt => rx.wait(WAIT_MAX),
        Pacing::Gather if rx.gathers() => rx.wait(WAIT_MAX),
        Pacing::Gather => match load.gather_ns(rx.ring_len()) {
            Some(0) => {
                std::hint::spin_loop();
                Ok(Ready::Packets)
            }
            Some(ns) => {
                std::thread::sleep(Duration::from_nanos(ns));
                Ok(Ready::Packets)
            }
            None => rx.wait(WAIT_MAX),
        },
    }
}

/// Load of the queue: packets over the last few milliseconds.
struct Load {
    since: Instant,
    packets: u64,
    batches: u64,
}

impl Load {
    /// Packets are counted over windows of this length.
    const WINDOW_NS: u64 = 5_000_000;

    fn new() -> Self {
        Self {
            since: Instant::now(),
            packets: 0,
            batches: 0,
        }
    }

    fn add(&mut self, packets: u64) {
        self.packets += packets;
        self.batches += 1;
    }

    /// How long to sleep until a batch accumulates, at most an eighth of the ring; `None` if
    /// packets arrive too rarely to measure it.
    fn gather_ns(&mut self, ring_len: Option<u32>) -> Option<u64> {
        let elapsed_ns = (self.since.elapsed().as_nanos() as u64).max(1);
        let packets = ring_len.map_or(GATHER_PACKETS, |len| GATHER_PACKETS.min(u64::from(len) / 8));
        let ns_for_a_batch = packets.saturating_mul(elapsed_ns) / self.packets.max(1);
        self.turn_window(elapsed_ns);
        // Below 64 packets a millisecond, a wake-up every few packets costs less than the delay.
        let thin = self.packets < 64 || ns_for_a_batch > 2 * GATHER_NS.end();
        // A sleep shorter than the timer's slack would overrun it: then check again at once.
        let ns = if ns_for_a_batch < GATHER_NS.start() / 4 {
            0
        } else {
            ns_for_a_batch.clamp(*GATHER_NS.start(), *GATHER_NS.end())
        };
        (!thin).then_some(ns)
    }

    /// Whether packets arrive so often that a `Prompt` sleep saves wake-ups.
    fn is_steady(&mut self) -> bool {
        let elapsed_ns = (self.since.elapsed().as_nanos() as u64).max(1);
        let interval_ns = elapsed_ns / self.packets.max(1);
        let is_steady = self.packets >= 64 && interval_ns < PROMPT_INTERVAL_NS;
        self.turn_window(elapsed_ns);
        is_steady
    }

    /// Keeps half of the past window once it is over.
    fn turn_window(&mut self, elapsed_ns: u64) {
        if elapsed_ns > Self::WINDOW_NS {
            self.since = Instant::now() - Duration::from_nanos(Self::WINDOW_NS / 2);
            self.packets = self.packets * (Self::WINDOW_NS / 2) / elapsed_ns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A load of this many packets in the last four milliseconds.
    fn load(packets: u64) -> Load {
        let since = Instant::now() - Duration::from_millis(4);
        Load {
            since,
            packets,
            batches: 1,
        }
    }

    #[test]
    fn a_prompt_reader_sleeps_on_the_clock_only_where_packets_arrive_steadily() {
        // Far from the limit: the machine may do something else between two readings of the clock.
        assert!(!load(0).is_steady());
        assert!(!load(63).is_steady());
        assert!(load(1_000_000).is_steady());
    }

    #[test]
    fn forwarding_bounds_the_default_pause_only() {
        assert_eq!(Pacing::default().prompt(), Pacing::Prompt);
        for requested in [Pacing::Wait, Pacing::Spin, Pacing::Prompt] {
            assert_eq!(requested.prompt(), requested);
        }
    }
}
