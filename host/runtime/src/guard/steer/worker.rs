//! A worker: receives the steered packets of one queue, asks for decisions, and returns what is not
//! dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use port::{Counter, RxBatch, RxQueue};
use sys::{Error, Result};

use super::give::Giver;
use super::{Decision, SteerWorker};

/// Packets per batch.
pub const BATCH_MAX: usize = 64;
/// Longest sleep on the socket, so that the end is noticed.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// Sleep of an ending worker before the last look.
const LAST_WAIT: Duration = Duration::from_millis(20);

/// Full batches in a row, and their time, after which packets are returned and counts published:
/// fewer runs return more packets per second, but a packet must not wait as long as a flood lasts.
const FULL_BATCHES_MAX: u32 = 8;
const FULL_TIME_MAX: Duration = Duration::from_millis(1);

/// Calls in a row that return no packet because of an error, after which the worker ends.
const FAILURES_MAX: u32 = 8;

/// Counts of a worker, published once a batch.
#[derive(Debug, Default)]
pub struct WorkerCounts {
    /// Packets returned to the host.
    pub given_back: Counter,
    /// Packets dropped by decision.
    pub dropped: Counter,
    /// Packets that could not be returned.
    pub failed: Counter,
}

/// A running worker.
#[derive(Debug)]
pub struct Running {
    pub queue_index: u32,
    pub counts: Arc<WorkerCounts>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Running {
    /// Starts a worker, which ends once `stop` is set and its queue is empty.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        rx: RxQueue,
        giver: Giver,
        decide: Box<dyn SteerWorker>,
        stop: Arc<AtomicBool>,
    ) -> Result<Self> {
        let counts = Arc::new(WorkerCounts::default());
        let queue_index = rx.queue_index();
        let worker = Worker {
            rx,
            giver,
            decide,
            stop,
            counts: counts.clone(),
            decisions: [Decision::GiveBack; BATCH_MAX],
            joined: Vec::new(),
            failures: 0,
            full: FullBatches::default(),
        };
        let thread = thread::Builder::new()
            .name(format!("steer-{queue_index}"))
            .spawn(move || worker.run())
            .map_err(|error| Error::from_io("start a worker", error))?;
        Ok(Self {
            queue_index,
            counts,
            thread: Some(thread),
        })
    }

    /// Whether its thread runs.
    pub fn is_running(&self) -> bool {
        self.thread
            .as_ref()
            .is_some_and(|thread| !thread.is_finished())
    }

    /// Whether it has ended, and why; only once.
    pub fn ended(&mut self) -> Option<Result<()>> {
        let thread = self.thread.take_if(|thread| thread.is_finished())?;
        Some(join(thread))
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// Its error, unless [`Running::ended`] has returned it.
    pub fn join(&mut self) -> Result<()> {
        self.thread.take().map_or(Ok(()), join)
    }
}

fn join(thread: JoinHandle<Result<()>>) -> Result<()> {
    let panicked = |_| {
        let why = "it panicked";
        Err(Error::new(sys::ErrorKind::Io, "decide about packets", why))
    };
    thread.join().unwrap_or_else(panicked)
}

struct Worker {
    rx: RxQueue,
    giver: Giver,
    decide: Box<dyn SteerWorker>,
    stop: Arc<AtomicBool>,
    counts: Arc<WorkerCounts>,
    decisions: [Decision; BATCH_MAX],
    /// Bytes of packets in several segments.
    joined: Vec<u8>,
    /// Calls in a row that returned no packet because of an error.
    failures: u32,
    full: FullBatches,
}

/// Full batches since the last call of [`Worker::flush`].
#[derive(Debug, Default)]
struct FullBatches {
    count: u32,
    since: Option<Instant>,
}

impl FullBatches {
    /// Records a batch that arrived at `began` and is handled now; whether a flush is due.
    fn is_flush_due(&mut self, len: usize, began: Instant, now: Instant) -> bool {
        let since = *self.since.get_or_insert(began);
        self.count += 1;
        // More packets are waiting, so a longer run costs them no time.
        let is_due = len < BATCH_MAX
            || self.count >= FULL_BATCHES_MAX
            || now.saturating_duration_since(since) >= FULL_TIME_MAX;
        if is_due {
            *self = Self::default();
        }
        is_due
    }
}

impl Worker {
    fn run(mut self) -> Result<()> {
        let mut is_last_look = false;
        loop {
            let is_ending = self.stop.load(Ordering::Acquire);
            let batch = self.rx.receive()?;
            if !batch.is_empty() {
                is_last_look = false;
                let (len, began) = (batch.len(), Instant::now());
                let dropped = handle(
                    &batch,
                    &mut self.joined,
                    (&mut *self.decide, &mut self.decisions),
                    &mut self.giver,
                );
                drop(batch);
                self.counts.dropped.add(dropped);
                if self.full.is_flush_due(len, began, Instant::now()) {
                    self.flush()?;
                }
                continue;
            }
            drop(batch);
            self.flush()?;
            self.decide.idle();
            if is_ending && is_last_look {
                return Ok(());
            }
            if is_ending {
                // A processor may still be running the program.
                is_last_look = true;
                thread::sleep(LAST_WAIT);
                continue;
            }
            self.rx.wait(WAIT_MAX)?;
        }
    }

    fn flush(&mut self) -> Result<()> {
        let (given, error) = self.giver.flush();
        self.counts.given_back.add(given.given_back);
        self.counts.failed.add(given.failed);
        match error {
            Some(error) if given.given_back == 0 => {
                self.failures += 1;
                // Without the worker, packets are handled as configured for its failure.
                match self.failures < FAILURES_MAX {
                    true => Ok(()),
                    false => Err(error),
                }
            }
            // Nothing may have been waiting.
            _ if given.given_back == 0 => Ok(()),
            _ => {
                self.failures = 0;
                Ok(())
            }
        }
    }
}

/// Decides about a batch, and returns what is not dropped; the number of dropped packets.
fn handle(
    batch: &RxBatch<'_>,
    joined: &mut Vec<u8>,
    (decide, decisions): (&mut dyn SteerWorker, &mut [Decision; BATCH_MAX]),
    giver: &mut Giver,
) -> u64 {
    joined.clear();
    for packet in batch.iter().filter(|packet| !packet.is_whole()) {
        packet
            .segments()
            .for_each(|part| joined.extend_from_slice(part));
    }
    let mut dropped = 0;
    let mut packets: [&[u8]; BATCH_MAX] = [&[]; BATCH_MAX];
    let mut rest: &[u8] = joined;
    let mut count = 0;
    for packet in batch.iter().take(BATCH_MAX) {
        packets[count] = match packet.is_whole() {
            true => packet.bytes(),
            false => {
                let (bytes, after) = rest.split_at(packet.cap_len() as usize);
                rest = after;
                bytes
            }
        };
        count += 1;
    }
    let (packets, decisions) = (&packets[..count], &mut decisions[..count]);
    decisions.fill(Decision::GiveBack);
    decide.decide(packets, decisions);
    for (packet, decision) in packets.iter().zip(decisions) {
        match decision {
            Decision::GiveBack => giver.give(packet),
            Decision::Drop => dropped += 1,
        }
    }
    dropped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_full_batches_is_flushed_all_the_same() {
        let now = Instant::now();
        let mut full = FullBatches::default();
        let due = (0..32).map(|_| full.is_flush_due(BATCH_MAX, now, now));
        assert_eq!(due.filter(|due| *due).count(), 4);
        // Slow decisions.
        let mut full = FullBatches::default();
        assert!(!full.is_flush_due(BATCH_MAX, now, now));
        assert!(full.is_flush_due(BATCH_MAX, now + FULL_TIME_MAX, now + FULL_TIME_MAX));
        // The time counts from the first batch after a flush.
        let later = now + FULL_TIME_MAX;
        assert!(!full.is_flush_due(BATCH_MAX, later, later));
        assert!(full.is_flush_due(BATCH_MAX - 1, later, later));
    }
}
