//! The packets a scan sends: segments of banner connections first, then probes.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ::scan::Prober;
use ::scan::grab::BannerGrabber;
use port::{TxBatch, TxQueue};
use sys::{Error, ErrorKind, Result};
use traffic::{Pacer, Rate};

use super::bare::{Bare, sent_len};
use super::link::{self, Mark, Step, Trail};
use super::record::Tap;
use super::respond::{self, Replies};
use super::run::clock_us;
use super::spacing::Spacing;
use super::talk::BannerReader;
use super::transmit::Live;
use crate::send::{self, Attend, Next};

/// Errors of a device whose link is down that are ignored before the link is reported to be down,
/// and the pause after each.
const ERRORS_MAX: u32 = 500;
const ERROR_PAUSE: Duration = Duration::from_millis(10);
/// Interval between two looks at which targets are resolved.
const RESOLVED: Duration = Duration::from_millis(10);
/// Shortest wait for more to send.
const WAIT_MIN: Duration = Duration::from_millis(1);
/// Makes a rate of a number.
pub type Unit = fn(f64) -> Rate;

/// The packets of a scan.
pub struct ProbeSource<'p> {
    pub prober: Prober<'p>,
    /// Number of its lane.
    lane: usize,
    /// Whether it ends at the prober's end, without waiting for connections.
    is_ending: bool,
    pub from: u128,
    /// When the prober's clock was 0.
    began: Instant,
    pub live: &'p Live,
    pub talking: Option<BannerReader<'p>>,
    /// Where packets are written first whose Ethernet header is not sent.
    bare: Option<Box<Bare>>,
    /// How long to wait for answers to the last probes, and since when.
    wait: Duration,
    /// As above.
    probed: Option<Instant>,
    /// Replies to neighbours that are to be sent on this lane.
    replies: Option<Replies>,
    /// Where the lane was recently, to go back to if the link goes down.
    trail: Trail,
    /// Errors in a row that a link which is down explains.
    error_count: u32,
    /// The rate now, and its unit; `None` if it is constant.
    rate: Option<(f64, Unit)>,
    /// Whether the next packet is a segment rather than a probe.
    is_segment: bool,
    /// Keeps attempts apart; `None` if there is one for each target.
    spacing: Option<Spacing>,
    /// Probes before this one need not wait.
    free_until: u128,
    /// Whether targets may not be resolved yet.
    is_resolving: bool,
    /// Records what is sent.
    tap: Option<Tap>,
}

impl<'p> ProbeSource<'p> {
    pub fn new(
        (prober, lane): (Prober<'p>, usize),
        (from, began): (u128, Instant),
        live: &'p Live,
        (talking, is_bare): (Option<BannerReader<'p>>, bool),
        wait: Duration,
    ) -> Self {
        let has_attempts = prober.plan().order().attempts > 1;
        Self {
            spacing: has_attempts.then(|| Spacing::new(from)),
            free_until: if has_attempts { 0 } else { u128::MAX },
            is_resolving: true,
            tap: None,
            prober,
            lane,
            is_ending: false,
            from,
            began,
            live,
            talking,
            bare: is_bare.then(|| Box::new(Bare::NEW)),
            wait,
            probed: None,
            replies: None,
            trail: Trail::default(),
            error_count: 0,
            rate: None,
            is_segment: false,
        }
    }

    /// Sends these replies, too.
    pub fn reply(&mut self, replies: Replies) {
        self.replies = Some(replies);
    }

    /// Records what is sent.
    pub fn record(&mut self, tap: Option<Tap>) {
        self.tap = tap;
    }

    /// Where the lane is, at a time since the beginning.
    fn mark(&self, tx: &TxQueue, elapsed: Duration) -> Mark {
        Mark {
            at_ms: link::millis(elapsed),
            index: self.prober.next_index(),
            skipped: self.prober.skipped(),
            put: self.live.put(self.lane),
            failed: tx.counters().failed.get(),
        }
    }

    /// Goes back to a mark; `resends` unless the probes from there on are left to a later scan.
    fn go_back(&mut self, to: Mark, now: Mark, resends: bool) {
        self.prober.go_back(to.index, to.skipped);
        let failed = now.failed - to.failed;
        let again = if resends { now.put - to.put } else { 0 };
        let done = (self.prober.next_index() - self.from) as u64;
        self.live.go_back(self.lane, done, (again, failed));
        if let Some(spacing) = &mut self.spacing {
            spacing.go_back(self.prober.next_index());
            self.free_until = 0;
        }
    }

    /// Publishes which probes may be repeated now.
    fn settle(&mut self, elapsed: Duration) {
        if let Some(spacing) = &mut self.spacing {
            let settled = spacing.note(elapsed.as_nanos() as u64, self.prober.next_index());
            // 0: not even what earlier runs have sent.
            let settled = (settled + 1).saturating_sub(self.from) as u64;
            self.live.settle(self.lane, settled);
        }
    }

    /// Whether the next probe is due: the previous one to the same target must have been sent some
    /// time ago, on whatever lane.
    #[inline]
    fn is_due(&mut self) -> bool {
        self.prober.taken() < self.free_until || self.is_ending || self.is_due_again()
    }

    /// The length of the next probe, whose target must be resolved.
    #[inline]
    fn next_probe(&mut self) -> Option<usize> {
        if self.is_resolving {
            let resolved = self.live.resolved();
            self.is_resolving = resolved.is_some();
            let held_at = resolved.map(|count| self.from + u128::from(count));
            self.prober.hold_at(held_at.unwrap_or(u128::MAX));
        }
        self.prober.next_len()
    }

    #[cold]
    fn is_due_again(&mut self) -> bool {
        let next = self.prober.taken();
        let attempt = self.prober.plan().attempt(next);
        self.free_until = match attempt.before {
            None => attempt.end,
            Some(before) => {
                let settled = match self.live.settled() {
                    0 => 0,
                    settled => self.from + u128::from(settled - 1),
                };
                attempt.end.min(settled + (next - before))
            }
        };
        next < self.free_until
    }

    /// At the end of the lane: goes back if the link is down, or was just now. Whether it did.
    pub fn end_held(&mut self, tx: &TxQueue) -> bool {
        let now = self.mark(tx, self.began.elapsed());
        let back = self.trail.last_step(&self.live.link, now);
        if let Some(to) = back {
            self.go_back(to, now, false);
        }
        back.is_some()
    }

    /// Sends the replies that are queued.
    fn send_replies(&mut self, tx: &mut TxQueue) -> Result<u64> {
        let Some(replies) = &self.replies else {
            return Ok(u64::MAX);
        };
        let (packets, bytes) = replies.send(tx, self.tap.as_mut())?;
        self.live.replies.fetch_add(packets, Ordering::Relaxed);
        self.live.reply_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(respond::WITHIN_NS)
    }

    /// Whether all is sent, and answers were waited for.
    fn is_over(&mut self) -> bool {
        if !self.live.is_probed() {
            self.probed = None;
            return false;
        }
        let probed = *self.probed.get_or_insert_with(Instant::now);
        let is_closed = self.talking.as_ref().is_none_or(BannerReader::is_over);
        is_closed && probed.elapsed() >= self.wait
    }

    /// Follows the rate of [`Live`], which is in this unit.
    pub fn follow(&mut self, unit: Unit) {
        self.rate = Some((self.live.rate(), unit));
    }

    /// The rate now; `None` if it is constant.
    pub fn rate(&self) -> Option<Rate> {
        self.rate.map(|(rate, unit)| unit(rate))
    }

    /// Reads no more from the connections. Their receivers would wait while the lanes end, and the
    /// rings overflow.
    pub fn hang_up(&mut self) {
        if let Some(talking) = &mut self.talking {
            talking.hang_up();
        }
    }

    /// Number of its lane.
    pub fn lane(&self) -> usize {
        self.lane
    }

    /// Ends before a probe; connections are left as they are.
    pub fn stop_at(&mut self, index: u128) {
        self.is_ending = true;
        self.prober.stop_at(index);
    }

    /// Closes all connections early; only their resets remain to be sent.
    pub fn close_all(&mut self) -> Option<Closing<'_, 'p>> {
        let talking = self.talking.as_mut()?;
        talking.close_all();
        Some(Closing {
            grabber: &mut talking.grabber,
            bare: self.bare.as_deref_mut(),
            tap: self.tap.as_mut(),
        })
    }
}

fn packet(len: usize) -> Next {
    Next::Packet {
        len,
        time_ns: 0,
        again: false,
    }
}

impl send::Source for ProbeSource<'_> {
    fn attend(&mut self, tx: &mut TxQueue) -> Result<Attend> {
        if self.is_ending {
            return Ok(Attend::GoOn {
                within_ns: u64::MAX,
            });
        }
        if let Some(tap) = &mut self.tap {
            tap.flush();
        }
        let elapsed = self.began.elapsed();
        let now = self.mark(tx, elapsed);
        let step = self.trail.step(&self.live.link, now);
        if let Some(talking) = &mut self.talking {
            talking.pause(step != Step::GoOn);
        }
        match step {
            Step::GoOn => {}
            Step::Hold => {
                self.error_count = 0;
                return Ok(Attend::Hold);
            }
            Step::Back(to) => {
                self.go_back(to, now, true);
                return Ok(Attend::Hold);
            }
        }
        self.settle(elapsed);
        let within_ns = self.send_replies(tx)?;
        Ok(Attend::GoOn { within_ns })
    }

    fn survives(&mut self, error: &Error) -> bool {
        if error.kind() != ErrorKind::Down || self.is_ending || self.error_count == ERRORS_MAX {
            return false;
        }
        // The reporting thread will know soon.
        self.error_count += 1;
        std::thread::sleep(ERROR_PAUSE);
        true
    }

    #[inline]
    fn next(&mut self) -> Result<Next> {
        let is_bare = self.bare.is_some();
        if let Some(talking) = self.talking.as_mut().filter(|_| !self.is_ending) {
            talking.work();
            let len = talking.grabber.next_len();
            self.is_segment = len.is_some();
            if let Some(len) = len {
                return Ok(packet(sent_len(len, is_bare)));
            }
        }
        if let Some(len) = self.next_probe() {
            return Ok(match self.is_due() {
                true => packet(sent_len(len, is_bare)),
                false => Next::Pending,
            });
        }
        if self.prober.is_held() && !self.is_ending {
            return Ok(Next::Pending);
        }
        if self.is_ending {
            self.is_segment = false;
            return Ok(Next::End);
        }
        let skipped = self.prober.skipped();
        self.live.end(self.lane, self.began.elapsed(), skipped);
        Ok(match self.is_over() {
            true => Next::End,
            false => Next::Pending,
        })
    }

    fn begin_batch(&mut self) {
        self.prober.set_clock(clock_us(self.began));
        if let Some(tap) = &mut self.tap {
            tap.begin();
        }
    }

    fn pace(&mut self, pacer: &mut Pacer) {
        let wanted = self.live.rate();
        if let Some((rate, unit)) = &mut self.rate
            && *rate != wanted
        {
            *rate = wanted;
            pacer.set_rate(unit(wanted), false);
        }
    }

    #[inline]
    fn put(&mut self, batch: &mut TxBatch<'_>) -> bool {
        let Some(buffer) = batch.buffer() else {
            return false;
        };
        let write = |out: &mut [u8]| match (&mut self.talking, self.is_segment) {
            (Some(talking), true) => talking.grabber.write(out),
            _ => self.prober.write(out),
        };
        let written = Bare::put(self.bare.as_deref_mut(), buffer, write);
        let Some(len) = written else {
            return false;
        };
        if let Some(tap) = &mut self.tap {
            tap.put(&buffer[..len]);
        }
        batch.advance(len);
        if self.is_segment {
            self.live.segments.fetch_add(1, Ordering::Relaxed);
            self.live
                .segment_bytes
                .fetch_add(len as u64, Ordering::Relaxed);
        } else {
            let done = self.prober.taken() - self.from;
            self.live.note_probe(self.lane, len, done as u64);
        }
        true
    }

    fn wait(&mut self, timeout: Duration) {
        let mut timeout = timeout;
        if let Some(probed) = self.probed {
            let left = self.wait.saturating_sub(probed.elapsed());
            timeout = timeout.min(left.max(WAIT_MIN));
        }
        if let Some(spacing) = self.spacing.as_ref().filter(|_| self.probed.is_none()) {
            let now_ns = self.began.elapsed().as_nanos() as u64;
            timeout = timeout.min(spacing.wait(now_ns).max(WAIT_MIN));
        }
        if self.prober.is_held() {
            timeout = timeout.min(RESOLVED);
        }
        if self.replies.is_some() {
            timeout = timeout.min(Duration::from_nanos(respond::WITHIN_NS));
        }
        match &mut self.talking {
            Some(talking) => talking.wait(timeout),
            None => std::thread::sleep(timeout),
        }
    }
}

/// The last segments of connections closed early.
pub struct Closing<'t, 'p> {
    grabber: &'t mut BannerGrabber<'p>,
    bare: Option<&'t mut Bare>,
    tap: Option<&'t mut Tap>,
}

impl send::Source for Closing<'_, '_> {
    fn next(&mut self) -> Result<Next> {
        let is_bare = self.bare.is_some();
        let len = self.grabber.next_len();
        Ok(len.map_or(Next::End, |len| packet(sent_len(len, is_bare))))
    }

    fn begin_batch(&mut self) {
        if let Some(tap) = &mut self.tap {
            tap.begin();
        }
    }

    fn put(&mut self, batch: &mut TxBatch<'_>) -> bool {
        let Some(buffer) = batch.buffer() else {
            return false;
        };
        let write = |out: &mut [u8]| self.grabber.write(out);
        let Some(len) = Bare::put(self.bare.as_deref_mut(), buffer, write) else {
            return false;
        };
        if let Some(tap) = &mut self.tap {
            tap.put(&buffer[..len]);
        }
        batch.advance(len);
        true
    }
}
