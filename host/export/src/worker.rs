//! The thread of one destination: takes batches from its queue, encodes, sends, reconnects.

mod session;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use flow::encode::{Encode, Refusal, Sum};
use flow::{EndReason, OwnedExtra, Record};

use crate::account::{Account, DropReason};
use crate::end::Patience;
use crate::exporters::Observed;
use crate::sink::{Names, Sink};
use crate::target::Target;

/// A batch of records for one or several destinations.
pub(crate) type Batch = Arc<Records>;

/// Records, and their extra fields.
#[derive(Default)]
pub(crate) struct Records {
    pub(crate) records: Vec<(Record, EndReason)>,
    /// One for each record up to the last one that has any.
    pub(crate) extras: Vec<OwnedExtra>,
}

/// First pause before a reconnect; it doubles up to the second constant.
const BACKOFF_MIN: Duration = Duration::from_millis(250);
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// How long a record waits for others in its message.
const FLUSH: Duration = Duration::from_millis(500);
/// How long a record waits if the file is compressed, or appears only when complete.
const FLUSH_PACKED: Duration = Duration::from_secs(10);
/// Default interval at which templates and statistics are repeated: a compromise between the 600
/// seconds of RFC 6728 and a collector that was restarted.
const REFRESH: Duration = Duration::from_secs(60);
/// Maximum interval between checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Default wait at the end for a collector that is unreachable.
const WAIT: Duration = Duration::from_secs(5);
/// Default wait at the end for a destination that acknowledges later: a restarting broker takes
/// some time.
const WAIT_DEFERRED: Duration = Duration::from_secs(60);
/// Maximum duration of the end in total, also with a slow collector or a rate, unless the wait
/// alone may take longer.
const END_MAX: Duration = Duration::from_secs(60);

/// State shared by the thread and its owner; locked once per message or batch.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) account: Mutex<Account>,
    pub(crate) observed: Mutex<Observed>,
    pub(crate) progress: Progress,
    /// When a stop was requested, for a thread that is waiting.
    pub(crate) asked_at: OnceLock<Instant>,
}

/// The progress of a destination, for a thread that waits for it.
#[derive(Default)]
pub(crate) struct Progress {
    steps: AtomicU64,
    is_pausing: AtomicBool,
}

impl Progress {
    /// Records a step.
    pub(crate) fn step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of steps so far.
    pub(crate) fn count(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Whether the thread pauses to keep to its rate.
    pub(crate) fn is_pausing(&self) -> bool {
        self.is_pausing.load(Ordering::Relaxed)
    }

    fn set_pausing(&self, is_pausing: bool) {
        self.is_pausing.store(is_pausing, Ordering::Relaxed);
    }
}

/// Locks; a poisoned lock means that a thread panicked, and its data is still the best available.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread's state.
pub(crate) struct Worker {
    pub(crate) encoder: Box<dyn Encode>,
    pub(crate) sink: Box<dyn Sink>,
    pub(crate) batches: Receiver<Batch>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) refresh: Duration,
    pub(crate) rate: Option<u32>,
    pub(crate) is_reliable: bool,
    /// The reason for records that could not be sent: lost here, or on a disk.
    pub(crate) lost_as: DropReason,
    /// How long a record waits for others in its message.
    pub(crate) flush: Duration,
    /// How long the end waits for a stalled destination.
    pub(crate) patience: Patience,
}

impl Worker {
    /// Creates the worker of a target.
    pub(crate) fn new(
        target: &Target,
        encoder: Box<dyn Encode>,
        sink: Box<dyn Sink>,
        batches: Receiver<Batch>,
        shared: Arc<Shared>,
    ) -> Worker {
        let wait = match sink.is_deferred() {
            true => WAIT_DEFERRED,
            false => WAIT,
        };
        Worker {
            encoder,
            sink,
            batches,
            shared,
            patience: Patience {
                unasked: target.options.wait.unwrap_or(wait),
                asked: target.options.wait,
            },
            refresh: target.options.refresh.unwrap_or(REFRESH),
            rate: target.options.rate,
            is_reliable: target.sink.is_reliable,
            flush: if target.is_packed() || target.options.rotation.is_some() {
                FLUSH_PACKED
            } else {
                FLUSH
            },
            lost_as: if target.sink.names == Names::File {
                DropReason::WriteFailed
            } else {
                DropReason::SendFailed
            },
        }
    }

    /// Runs until the queue has no sender any more and is empty.
    pub(crate) fn run(self) {
        Running {
            is_connected: false,
            backoff: BACKOFF_MIN,
            next_attempt: Instant::now(),
            next_refresh: Instant::now() + self.refresh,
            next_flush: None,
            may_send: Instant::now(),
            refused: *self.encoder.refused(),
            staged: Sum::default(),
            is_resting: self.sink.is_staged(),
            last_step: Instant::now(),
            over_since: None,
            worker: self,
        }
        .run();
    }
}

struct Running {
    worker: Worker,
    is_connected: bool,
    backoff: Duration,
    next_attempt: Instant,
    next_refresh: Instant,
    /// When the encoder's contents are sent in any case.
    next_flush: Option<Instant>,
    /// Earliest time of the next send, to keep the rate.
    may_send: Instant,
    /// Refusals already in the account.
    refused: [Sum; Refusal::COUNT],
    /// Records written that count once the session has ended successfully ([`Sink::is_staged`]).
    staged: Sum,
    /// No session starts before there is something to send.
    is_resting: bool,
    /// When data was last accepted.
    last_step: Instant,
    /// When the end was detected.
    over_since: Option<Instant>,
}

pub(crate) fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_nanos() as u64)
}

impl Running {
    fn run(&mut self) {
        let mut left: Option<(Batch, usize)> = None;
        loop {
            if self.over_since.is_none() && self.is_over() {
                self.over_since = Some(Instant::now());
            }
            if self.must_end() || self.worker.sink.over().is_some() {
                break;
            }
            if let Some(limit) = self.rest(&mut left) {
                if limit {
                    break;
                }
                continue;
            }
            if !self.is_connected && !self.connect() {
                // Meanwhile the queue fills. Only receiving shows whether its sender has gone, so
                // one batch is held.
                if left.is_none() {
                    match self.worker.batches.recv_timeout(CHECK_INTERVAL) {
                        Ok(batch) => left = Some((batch, 0)),
                        Err(RecvTimeoutError::Timeout) => {}
                        Err(RecvTimeoutError::Disconnected) => {
                            if self.worker.encoder.held().flows == 0 {
                                break;
                            }
                            self.pause();
                        }
                    }
                } else {
                    self.pause();
                }
                if self.has_waited() {
                    break;
                }
                continue;
            }
            if let Some((batch, at)) = left.take() {
                let taken = self.give(&batch, at);
                if at + taken < batch.records.len() {
                    left = Some((batch, at + taken));
                }
                continue;
            }
            match self.worker.batches.recv_timeout(self.patience()) {
                Ok(batch) => left = Some((batch, 0)),
                Err(RecvTimeoutError::Timeout) => self.due(),
                Err(RecvTimeoutError::Disconnected) => {
                    if self.send() {
                        break;
                    }
                    // The connection is lost: try again.
                }
            }
        }
        self.finish(left);
    }

    /// Waits for a batch while no file is open. None if there is something to do; otherwise whether
    /// everything has ended.
    fn rest(&mut self, left: &mut Option<(Batch, usize)>) -> Option<bool> {
        if self.is_connected || !self.is_resting {
            return None;
        }
        if left.is_none() {
            match self.worker.batches.recv_timeout(CHECK_INTERVAL) {
                Ok(batch) => *left = Some((batch, 0)),
                Err(RecvTimeoutError::Timeout) => return Some(false),
                Err(RecvTimeoutError::Disconnected) => return Some(true),
            }
        }
        self.is_resting = false;
        None
    }

    /// Whether the owner has signalled the end.
    fn is_over(&self) -> bool {
        lock(&self.worker.shared.observed).is_over
    }

    /// Whether the end has reached its time limit. It waits for late acknowledgments as long as any
    /// arrive.
    fn must_end(&self) -> bool {
        let max = END_MAX.max(self.worker.patience.unasked);
        match self.over_since {
            Some(since) if !self.worker.sink.is_deferred() => since.elapsed() >= max,
            Some(_) => self.has_waited(),
            None => false,
        }
    }

    /// Whether the end has waited long enough without progress.
    fn has_waited(&self) -> bool {
        self.wait_left().is_some_and(|left| left.is_zero())
    }

    /// The remaining wait for the next step.
    fn wait_left(&self) -> Option<Duration> {
        let since = self.over_since?.max(self.last_step);
        let asked_at = self.worker.shared.asked_at.get().copied();
        let patience = &self.worker.patience;
        Some(patience.left(asked_at, since, Instant::now()))
    }

    /// Sleeps until the next check, or the end of the wait.
    fn pause(&self) {
        std::thread::sleep(
            self.wait_left()
                .map_or(CHECK_INTERVAL, |left| left.min(CHECK_INTERVAL)),
        );
    }

    fn step(&mut self) {
        self.last_step = Instant::now();
        self.worker.shared.progress.step();
    }

    /// Waits for the results of messages sent.
    fn await_reports(&mut self) {
        self.over_since.get_or_insert_with(Instant::now);
        while self.settle() != 0 && !self.has_waited() {
            self.pause();
        }
    }

    /// Passes records to the encoder and sends full messages. Returns how many were taken.
    fn give(&mut self, batch: &Records, at: usize) -> usize {
        let records = &batch.records[at..];
        let extras = batch.extras.get(at..).unwrap_or_default();
        let mut taken = 0;
        while taken < records.len() {
            let encoder = &mut self.worker.encoder;
            taken += if extras.is_empty() {
                encoder.take(&records[taken..])
            } else {
                encoder.take_with(&records[taken..], extras.get(taken..).unwrap_or_default())
            };
            if taken < records.len() && !self.send() {
                break;
            }
        }
        self.count_refused();
        if self.worker.encoder.held().flows != 0 {
            self.next_flush
                .get_or_insert(Instant::now() + self.worker.flush);
        }
        self.settle();
        if self.worker.sink.is_due(now_ns()) {
            self.rotate();
        }
        if Instant::now() >= self.next_refresh {
            self.due();
        }
        taken
    }

    /// The time until something is due.
    fn patience(&self) -> Duration {
        let next = self
            .next_flush
            .map_or(self.next_refresh, |f| f.min(self.next_refresh));
        next.saturating_duration_since(Instant::now())
            .min(CHECK_INTERVAL)
    }

    /// Does what is due by the clock.
    fn due(&mut self) {
        let now = Instant::now();
        self.settle();
        if self.worker.sink.is_due(now_ns()) {
            return self.rotate();
        }
        if self.next_flush.is_some_and(|at| now >= at) && !self.send() {
            return;
        }
        if now >= self.next_refresh {
            self.next_refresh = now + self.worker.refresh;
            if self.send() {
                let statistics = self.statistics();
                let messages = self.worker.encoder.refresh(now_ns(), &statistics);
                self.send_control(messages);
            }
        }
    }

    /// Waits until this many records may be sent.
    fn keep_rate(&mut self, flows: u64) {
        let Some(rate) = self.worker.rate else { return };
        let start = Instant::now();
        let (mut now, until) = (start, start + END_MAX);
        self.worker.shared.progress.set_pausing(true);
        while self.may_send > now && now < until {
            std::thread::sleep((self.may_send - now).min(CHECK_INTERVAL));
            now = Instant::now();
        }
        self.worker.shared.progress.set_pausing(false);
        let takes = Duration::from_secs_f64(flows as f64 / f64::from(rate));
        // The pause was made by the worker: it counts neither as progress nor as a stall.
        self.last_step += now - start;
        // A pause is not caught up.
        self.may_send = self.may_send.max(now) + takes;
    }

    fn count_refused(&mut self) {
        let refused = *self.worker.encoder.refused();
        if refused == self.refused {
            return;
        }
        let mut account = lock(&self.worker.shared.account);
        for (at, sum) in refused.iter().enumerate() {
            account.dropped[at] = *sum;
        }
        self.refused = refused;
    }

    /// Closes the session, and counts records that could not be sent.
    fn finish(&mut self, mut left: Option<(Batch, usize)>) {
        self.count_refused();
        let over = self.worker.sink.over();
        if let Some(kind) = over {
            let mut account = lock(&self.worker.shared.account);
            account.is_over = true;
            account.has_reader_left = kind == std::io::ErrorKind::BrokenPipe;
        }
        // Results of what was sent are waited for, even if nothing more can be sent.
        if self.worker.sink.is_deferred() {
            self.await_reports();
        }
        if self.is_connected || self.worker.sink.is_deferred() {
            self.end_session();
        }
        self.lose_staged();
        let mut lost = self.worker.encoder.held();
        loop {
            if let Some((batch, at)) = left.take() {
                for (record, _) in &batch.records[at..] {
                    lost.count(record);
                }
            }
            // Records that arrive until the owner learns of it are lost, too.
            let next = match over {
                Some(_) => self.worker.batches.recv().ok(),
                None => self.worker.batches.try_recv().ok(),
            };
            match next {
                Some(batch) => left = Some((batch, 0)),
                None => break,
            }
        }
        let mut account = lock(&self.worker.shared.account);
        let reason = match self.worker.lost_as {
            DropReason::WriteFailed => DropReason::WriteFailed,
            _ => DropReason::Unreachable,
        };
        account.dropped[reason as usize].add(&lost);
        account.is_connected = false;
    }
}

#[cfg(test)]
mod tests;
