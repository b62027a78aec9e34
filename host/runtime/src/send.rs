//! The send loop: sends each packet of a source on a queue when it is due.
//!
//! Due packets are written into the device's own buffers, as many as it has; the device is started
//! when it has no more buffers or when nothing is due, so that a system call covers a batch at any
//! rate and no packet waits for others.

mod replay;
mod target;

use std::time::Duration;

use port::{TxBatch, TxQueue};
use sys::{Error, ErrorKind, Result};
use traffic::{Generator, Pacer};

use crate::Stop;
use crate::pace::{Clock, SLEEP_MAX_NS};

pub use replay::{OpenReplay, Replay, ReplayOptions, ReplaySummary, survey};
pub use target::{Target, neighbour_mac, next_hop_mac, target};

/// Buffers reserved at once: the maximum and, with a rate, the minimum.
const BATCH_MAX: usize = 256;
const BATCH_MIN: usize = 8;

/// How long the last packets may take to be sent.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// Interval at which a source that holds its packets is asked again.
const HOLD: Duration = Duration::from_millis(20);

/// How long a device may keep all its buffers before it counts as stuck.
const STUCK_NS: u64 = 5_000_000_000;

/// What a source provides next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A packet, to be written by [`Source::put`].
    Packet {
        /// Its length in bytes.
        len: usize,
        /// Its timestamp in the capture.
        time_ns: u64,
        /// Whether it is the first of another round through the capture.
        again: bool,
    },
    /// Nothing yet; [`Source::wait`] waits for more.
    Pending,
    /// The end.
    End,
}

/// Whether sending continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attend {
    /// As it is; the source is asked again within this many nanoseconds.
    GoOn {
        /// As above.
        within_ns: u64,
    },
    /// Nothing is sent now, and the next packet may be another one afterwards.
    Hold,
}

/// A source of packets.
pub trait Source {
    /// Called before each look at what is due: may send packets that the rate does not cover, or
    /// hold the others.
    ///
    /// # Errors
    /// The device's.
    fn attend(&mut self, tx: &mut TxQueue) -> Result<Attend> {
        let _ = tx;
        Ok(Attend::GoOn {
            within_ns: u64::MAX,
        })
    }

    /// Whether sending continues after an error of the device.
    fn survives(&mut self, error: &Error) -> bool {
        let _ = error;
        false
    }

    /// Moves to the next packet.
    ///
    /// # Errors
    /// The error that ended the source early; everything before it was provided.
    fn next(&mut self) -> Result<Next>;

    /// Called before packets are put into a batch.
    fn begin_batch(&mut self) {}

    /// Called before packets are put into a batch: may change the rate.
    fn pace(&mut self, pacer: &mut Pacer) {
        let _ = pacer;
    }

    /// Writes the current packet; false if there was no room for it.
    fn put(&mut self, batch: &mut TxBatch<'_>) -> bool;

    /// Waits for more, at most `timeout`.
    fn wait(&mut self, timeout: Duration) {
        let _ = timeout;
    }

    /// Adds packets that the source itself left out to the report.
    fn account(&self, report: &mut Report) {
        let _ = report;
    }
}

/// An endless source of generated packets.
pub struct Generated {
    generator: Generator,
    scratch: Vec<u8>,
    scratch_len: usize,
}

impl Generated {
    /// Creates a source from a generator.
    pub fn new(generator: Generator) -> Self {
        let scratch = vec![0; generator.packet_len_max()];
        Self {
            generator,
            scratch,
            scratch_len: 0,
        }
    }
}

impl Source for Generated {
    #[inline]
    fn next(&mut self) -> Result<Next> {
        Ok(Next::Packet {
            len: self.generator.packet_len(),
            time_ns: 0,
            again: false,
        })
    }

    #[inline]
    fn put(&mut self, batch: &mut TxBatch<'_>) -> bool {
        if self.scratch_len == 0 {
            let Some(buffer) = batch.buffer() else {
                return false;
            };
            if buffer.len() >= self.generator.packet_len() {
                let len = self.generator.write(buffer);
                batch.advance(len);
                return true;
            }
            // Larger than one buffer: generated in scratch memory, and kept until all its pieces
            // fit.
            self.scratch_len = self.generator.write(&mut self.scratch);
        }
        let done = batch.write(&self.scratch[..self.scratch_len]);
        if done {
            self.scratch_len = 0;
        }
        done
    }
}

/// When to end, in addition to the source's end and the stop flag.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Stop after this many packets.
    pub packet_count: Option<u64>,
    /// Stop after this long.
    pub duration: Option<Duration>,
}

/// Why sending ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendEnded {
    /// The source ended.
    #[default]
    Source,
    /// The number of packets was reached.
    Count,
    /// The duration was reached.
    Duration,
    /// A stop was requested.
    Stopped,
    /// An error occurred.
    Failed,
}

impl SendEnded {
    /// The word in reports and JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Source => "input",
            Self::Count => "count",
            Self::Duration => "duration",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }
}

/// The result of sending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Packets handed to the device and not refused by it.
    pub packets: u64,
    /// Their bytes, without frame check sequences.
    pub bytes: u64,
    /// Packets that the device or the kernel refused.
    pub failed: u64,
    /// Time from the start until the last packet was sent, in nanoseconds.
    pub elapsed_ns: u64,
    /// The time that the packets cover: `elapsed_ns`, or until one more would have been due.
    /// Without the last packet's interval, two packets at 1 pps would make 2 pps.
    pub span_ns: u64,
    /// As `span_ns`, without the time in which the source had no packet after its last one.
    pub covered_ns: u64,
    /// How far the schedule was moved because the device or the source could not keep up, in
    /// nanoseconds.
    pub slipped_ns: u64,
    /// Rounds through the capture begun.
    pub rounds: u64,
    /// Packets of the capture left out because they are longer than the interface allows.
    pub too_long: u64,
    /// Packets of the capture left out because they contain no Ethernet packet.
    pub not_sendable: u64,
    /// Packets sent shorter because the capture truncated them.
    pub cut: u64,
    /// Why it ended.
    pub ended: SendEnded,
}

impl Report {
    /// Packets per second.
    pub fn pps(&self) -> f64 {
        self.packets as f64 / self.seconds()
    }

    /// Bits per second, without frame check sequences.
    pub fn bps(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.seconds()
    }

    fn seconds(&self) -> f64 {
        self.span_ns.max(1) as f64 / 1e9
    }
}

/// Sends until the source ends, a limit is reached, or `stop` is set; calls `progress` about once a
/// second. The report is valid in any case; the result has the error that ended it, if any.
pub fn send<S: Source>(
    tx: &mut TxQueue,
    source: &mut S,
    pacer: &mut Pacer,
    limits: &Limits,
    stop: &Stop,
    progress: &mut dyn FnMut(&Report),
) -> (Report, Result<()>) {
    let mut sending = Sending {
        before: Counted::of(tx),
        want: if pacer.is_max() { BATCH_MAX } else { BATCH_MIN },
        clock: Clock::start(),
        now_ns: 0,
        due_at_end_ns: 0,
        submitted_ns: 0,
        put: 0,
        report: Report::default(),
    };
    let result = loop {
        match sending.run(tx, source, pacer, limits, stop, progress) {
            Err(error) if source.survives(&error) => {}
            ended => break ended,
        }
    };
    // What was submitted before an error may still be sent.
    let drained = match tx.flush() {
        Err(error) if error.kind() == ErrorKind::Gone => Err(error),
        // Waiting also detects that an interface that is down is being removed.
        _ => tx.wait(true, DRAIN_MAX),
    };
    sending.close(tx, source, pacer);
    let mut report = sending.report;
    let result = match (result, drained) {
        (Ok(ended), Ok(true)) => {
            report.ended = ended;
            Ok(())
        }
        (Ok(ended), Ok(false)) => {
            report.ended = ended;
            Err(stuck())
        }
        (Err(_), Err(error)) if error.kind() == ErrorKind::Gone => {
            report.ended = SendEnded::Failed;
            Err(error)
        }
        (Err(error), _) | (_, Err(error)) => {
            report.ended = SendEnded::Failed;
            Err(error)
        }
    };
    (report, result)
}

fn stuck() -> Error {
    let why = "the device does not complete transmissions";
    Error::new(ErrorKind::Io, "send", why)
        .with_hint("check that the link is up at both ends; `barewire devices` shows its state")
}

/// Counters of a queue.
struct Counted {
    sent: u64,
    sent_bytes: u64,
    failed: u64,
}

impl Counted {
    fn of(tx: &TxQueue) -> Self {
        let counters = tx.counters();
        Self {
            sent: counters.sent.get(),
            sent_bytes: counters.sent_bytes.get(),
            failed: counters.failed.get(),
        }
    }
}

struct Sending {
    before: Counted,
    /// Buffers to reserve: with a rate only as many as were used recently.
    want: usize,
    clock: Clock,
    now_ns: u64,
    /// When a packet after the last would have been due: the end of the last one's interval.
    due_at_end_ns: u64,
    /// When the last packets were handed over.
    submitted_ns: u64,
    /// Packets handed to the device.
    put: u64,
    report: Report,
}

impl Sending {
    fn run<S: Source>(
        &mut self,
        tx: &mut TxQueue,
        source: &mut S,
        pacer: &mut Pacer,
        limits: &Limits,
        stop: &Stop,
        progress: &mut dyn FnMut(&Report),
    ) -> Result<SendEnded> {
        let duration_ns = limits
            .duration
            .map_or(u64::MAX, |d| (d.as_nanos() as u64).max(1));
        let packet_max = limits.packet_count.unwrap_or(u64::MAX);
        let (mut reported_ns, mut room_ns, mut pending) = (0, 0, None);
        loop {
            self.now_ns = self.clock.now_ns();
            pacer.slip(self.now_ns);
            if stop.is_set() {
                return Ok(SendEnded::Stopped);
            }
            if self.now_ns >= duration_ns && self.is_over(pacer, duration_ns) {
                return Ok(SendEnded::Duration);
            }
            if self.put >= packet_max {
                return Ok(SendEnded::Count);
            }
            if self.now_ns - reported_ns >= 1_000_000_000 {
                reported_ns = self.now_ns;
                self.close(tx, source, pacer);
                progress(&self.report);
            }
            let within_ns = match source.attend(tx)? {
                Attend::GoOn { within_ns } => within_ns,
                Attend::Hold => {
                    (pending, room_ns) = (None, self.now_ns);
                    std::thread::sleep(HOLD);
                    continue;
                }
            };
            let Some(_) = self.look(source, pacer, &mut pending)? else {
                return Ok(SendEnded::Source);
            };
            if pending == Some(Next::Pending) {
                tx.flush()?;
                source.wait(Duration::from_millis(100));
                pending = None;
                continue;
            }
            if pacer.due_ns() > self.now_ns {
                tx.flush()?;
                let until_ns = self.now_ns.saturating_add(within_ns).min(pacer.due_ns());
                self.clock.wait_until(until_ns.min(duration_ns), stop);
                continue;
            }
            let batch = tx.reserve(self.want)?;
            if batch.room() == 0 {
                drop(batch);
                tx.flush()?;
                if tx.wait(false, Duration::from_millis(100))? {
                    room_ns = self.now_ns;
                } else if self.now_ns - room_ns > STUCK_NS {
                    return Err(stuck());
                }
                continue;
            }
            room_ns = self.now_ns;
            // Packets due after the end are not sent, even by a late sender.
            self.now_ns = self.now_ns.min(duration_ns - 1);
            self.fill(batch, source, pacer, packet_max, &mut pending)?;
        }
    }

    /// Whether everything due before the end was sent, or it is too late for it.
    fn is_over(&self, pacer: &Pacer, duration_ns: u64) -> bool {
        pacer.is_max()
            || pacer.due_ns() >= duration_ns
            || self.now_ns >= duration_ns.saturating_add(SLEEP_MAX_NS)
    }

    /// Gets the next packet, once. `None` at the end.
    #[inline]
    fn look<S: Source>(
        &mut self,
        source: &mut S,
        pacer: &mut Pacer,
        pending: &mut Option<Next>,
    ) -> Result<Option<()>> {
        if pending.is_none() {
            let next = source.next()?;
            match next {
                Next::Packet { time_ns, again, .. } => {
                    if again {
                        pacer.rewind();
                    }
                    pacer.next_time(time_ns);
                }
                Next::Pending => {}
                Next::End => return Ok(None),
            }
            *pending = Some(next);
        }
        Ok(Some(()))
    }

    /// Fills a batch with due packets.
    fn fill<S: Source>(
        &mut self,
        mut batch: TxBatch<'_>,
        source: &mut S,
        pacer: &mut Pacer,
        packet_max: u64,
        pending: &mut Option<Next>,
    ) -> Result<()> {
        let room = batch.room();
        source.begin_batch();
        source.pace(pacer);
        let mut filled = 0;
        let mut result = Ok(());
        while let Some(Next::Packet { len, .. }) = *pending {
            if self.put >= packet_max || pacer.due_ns() > self.now_ns {
                break;
            }
            if !source.put(&mut batch) {
                if batch.room() == room && self.want >= BATCH_MAX {
                    // It does not even fit into all buffers of the device.
                    let why = format!("a packet of {len} bytes does not fit into {room} buffers");
                    result = Err(Error::new(ErrorKind::InvalidInput, "send", why));
                }
                filled = room;
                break;
            }
            pacer.sent(len);
            self.put += 1;
            filled += 1;
            *pending = None;
            match self.look(source, pacer, pending) {
                Ok(Some(())) => {}
                Ok(None) => break,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        if filled >= room {
            self.want = (self.want * 2).min(BATCH_MAX);
        } else if !pacer.is_max() {
            self.want = (2 * filled).clamp(BATCH_MIN, BATCH_MAX);
        }
        self.due_at_end_ns = pacer.due_ns();
        batch.submit()?;
        self.submitted_ns = self.clock.now_ns();
        result
    }

    /// Updates the report.
    fn close<S: Source>(&mut self, tx: &TxQueue, source: &S, pacer: &Pacer) {
        let report = &mut self.report;
        let now = Counted::of(tx);
        report.packets = now.sent - self.before.sent;
        report.bytes = now.sent_bytes - self.before.sent_bytes;
        report.failed = now.failed - self.before.failed;
        report.elapsed_ns = self.clock.now_ns();
        (report.span_ns, report.covered_ns) = (report.elapsed_ns, self.submitted_ns);
        if !pacer.is_max() && !pacer.follows_capture() {
            report.span_ns = report.elapsed_ns.max(self.due_at_end_ns);
            report.covered_ns = self.submitted_ns.max(self.due_at_end_ns);
        }
        report.slipped_ns = pacer.slipped_ns();
        report.rounds = 1;
        source.account(report);
    }
}

#[cfg(test)]
mod tests;
