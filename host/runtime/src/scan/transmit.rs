//! The sending threads of a scan: one for each queue, and each with its lane of the probes.
//!
//! A lane has every n-th block of consecutive probes. When the scan is ended early, all lanes go on
//! to the same index, so that its state is one number: all probes before it were sent, and none
//! after it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use ::scan::grab::GrabCounts;
use ::scan::{Lane, Skipped};
use port::TxQueue;
use sys::{Error, ErrorKind, Result};
use traffic::{Pace, Pacer, Rate};

use super::Scan;
use super::link::LinkState;
use super::probes::ProbeSource;
use super::talk::BannerReader;
use crate::Stop;
use crate::send::{self, Limits, SendEnded};

/// How far sending may catch up after a pause, which bounds the burst.
const LAG_MAX_NS: u64 = 5_000_000;
/// Limits on the resets of connections that are closed early.
const LAST: Limits = Limits {
    packet_count: None,
    duration: Some(Duration::from_millis(500)),
};
/// How long lanes may take to arrive at the index where they end: somebody waits for it.
const BOUNDARY: Limits = Limits {
    packet_count: None,
    duration: Some(Duration::from_secs(60)),
};
/// Packets a second for which one more queue is used, unless a number is given.
const QUEUE_PPS: f64 = 500_000.0;
/// Part of a second that a block of a lane takes at most.
const BLOCKS_PER_SECOND: f64 = 50.0;
const BLOCK_MAX: u32 = 1024;
/// Length of a TX ring that keeps a device busy between two batches.
pub(super) const TX_LEN: u32 = 1024;
/// Part of a second for which an RX ring holds as many answers as probes are sent, and limits of
/// its length.
const RX_PER_SECOND: f64 = 50.0;
const RX_LEN: std::ops::RangeInclusive<u32> = 1024..=8192;
/// Shortest probe with its preamble and gap, and the longest one, in bits.
const PROBE_BITS: f64 = 84.0 * 8.0;
const PROBE_BITS_MAX: f64 = 1514.0 * 8.0;

/// Probes a second at a rate, if each has this many bits.
fn pps(rate: Rate, probe_bits: f64) -> f64 {
    match rate {
        Rate::Packets(pps) => pps,
        Rate::Bits(bps) => bps / probe_bits,
    }
}

/// Probes a second at a rate, if each is as short as possible.
pub(super) fn pps_max(rate: Rate) -> f64 {
    pps(rate, PROBE_BITS)
}

impl Scan {
    /// Length that an RX ring need not exceed; 0 if it is unknown. Memory for more takes longer to
    /// prepare than a small scan takes.
    pub(super) fn rx_len_max(&self) -> u32 {
        let setup = self.setup();
        if setup.grab.is_some() {
            // What services send does not depend on the rate.
            return 0;
        }
        let answers = pps_max(setup.rate) / RX_PER_SECOND;
        (answers as u32).clamp(*RX_LEN.start(), *RX_LEN.end())
    }

    /// The lanes of the probes, at most one for each of this many queues.
    pub(super) fn lanes(&self, queue_count: usize) -> Vec<Lane> {
        let setup = self.setup();
        let pps_max = pps_max(setup.rate);
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let wanted = match setup.queues {
            Some(count) => count as usize,
            None => ((pps_max / QUEUE_PPS) as usize).min(cores),
        };
        let count = wanted.clamp(1, queue_count.max(1)) as u32;
        // Lanes end at the end of a block, also at the lowest rate.
        let lowest = setup.rate_min.map(setup.unit());
        let pps_min = lowest.map_or(pps_max, |rate| pps(rate, PROBE_BITS_MAX));
        let block = pps_min / f64::from(count) / BLOCKS_PER_SECOND;
        let block_len = (block as u32).clamp(1, BLOCK_MAX).next_power_of_two();
        let lane = |index| Lane {
            index,
            count,
            block_len,
        };
        match count {
            1 => vec![Lane::WHOLE],
            _ => (0..count).map(lane).collect(),
        }
    }
}

/// Live figures of the sending threads.
pub struct Live {
    lanes: Vec<Sending>,
    /// Lanes that have probes left.
    probing: AtomicUsize,
    pub received: AtomicU64,
    /// Packets that are segments of connections, and their bytes.
    pub segments: AtomicU64,
    /// As above.
    pub segment_bytes: AtomicU64,
    /// Segments received for connections so far.
    pub talked: AtomicU64,
    /// The rate of all lanes now, as the bits of a number.
    rate: AtomicU64,
    /// How long it took to send all probes, in nanoseconds.
    pub probed_ns: AtomicU64,
    /// The link of the port.
    pub link: LinkState,
    /// The targets of the probes of this run before this number are resolved, if they answer.
    resolved: AtomicU64,
    /// Replies to neighbours, and their bytes.
    pub replies: AtomicU64,
    /// As above.
    pub reply_bytes: AtomicU64,
}

/// Figures of a lane, in a cache line of their own.
#[derive(Default)]
#[repr(align(64))]
struct Sending {
    /// Probes handed to the device, and their bytes.
    sent: AtomicU64,
    /// As above.
    sent_bytes: AtomicU64,
    /// Packets that the device refused, updated about once a second.
    failed: AtomicU64,
    /// Of these, packets that were sent again.
    forgiven: AtomicU64,
    /// Probes sent again, unless the device refused them the first time.
    resent: AtomicU64,
    /// Probes skipped because of their next hops, and those to this host, once there are no probes
    /// left.
    unreachable: AtomicU64,
    /// As above.
    own: AtomicU64,
    /// How far it is, counted from the first probe of this run.
    done: AtomicU64,
    /// How far it was some time ago, counted likewise from 1 on: what comes before may be sent
    /// again. 0: nothing may.
    settled: AtomicU64,
    /// Whether it has no probes left.
    is_over: AtomicBool,
}

/// Probes sent so far.
#[derive(Default)]
pub struct LiveSent {
    pub packets: u64,
    pub bytes: u64,
    pub failed: u64,
    pub resent: u64,
}

impl Live {
    pub fn new(lane_count: usize) -> Self {
        Self {
            lanes: (0..lane_count).map(|_| Sending::default()).collect(),
            probing: AtomicUsize::new(lane_count),
            received: AtomicU64::default(),
            segments: AtomicU64::default(),
            segment_bytes: AtomicU64::default(),
            talked: AtomicU64::default(),
            rate: AtomicU64::default(),
            probed_ns: AtomicU64::default(),
            link: LinkState::default(),
            resolved: AtomicU64::new(u64::MAX),
            replies: AtomicU64::default(),
            reply_bytes: AtomicU64::default(),
        }
    }

    /// The rate of each lane now, in the unit of the setup's rate.
    pub fn rate(&self) -> f64 {
        f64::from_bits(self.rate.load(Ordering::Relaxed)) / self.lanes.len().max(1) as f64
    }

    pub fn set_rate(&self, rate: f64) {
        self.rate.store(rate.to_bits(), Ordering::Relaxed);
    }

    /// Probes of all lanes.
    pub fn sent(&self) -> LiveSent {
        let mut all = LiveSent::default();
        for lane in &self.lanes {
            let failed = lane.failed.load(Ordering::Relaxed);
            let put = lane.sent.load(Ordering::Relaxed);
            all.packets += put.saturating_sub(failed);
            all.bytes += lane.sent_bytes.load(Ordering::Relaxed);
            all.failed += failed.saturating_sub(lane.forgiven.load(Ordering::Relaxed));
            all.resent += lane.resent.load(Ordering::Relaxed);
        }
        all
    }

    /// Probes handed to the device by a lane, also those that it refused.
    pub fn put(&self, lane: usize) -> u64 {
        let lane = self.lanes.get(lane);
        lane.map_or(0, |lane| lane.sent.load(Ordering::Relaxed))
    }

    /// Probes skipped by the lanes that have none left.
    pub fn skipped(&self) -> Skipped {
        let of_lane = |lane: &Sending| Skipped {
            unreachable: lane.unreachable.load(Ordering::Relaxed).into(),
            own: lane.own.load(Ordering::Relaxed).into(),
        };
        let lanes = self.lanes.iter().map(of_lane);
        lanes.fold(Skipped::default(), |all, one| all + one)
    }

    /// Whether all probes were sent.
    pub fn is_probed(&self) -> bool {
        self.probing.load(Ordering::Acquire) == 0
    }

    /// Probes of this run that were sent or skipped: all up to this number.
    pub fn done(&self) -> u64 {
        let left = self
            .lanes
            .iter()
            .filter(|lane| !lane.is_over.load(Ordering::Acquire));
        let done = left.map(|lane| lane.done.load(Ordering::Relaxed));
        done.min().unwrap_or_else(|| {
            let done = self
                .lanes
                .iter()
                .map(|lane| lane.done.load(Ordering::Relaxed));
            done.max().unwrap_or(0)
        })
    }

    /// Records that the targets of the probes before a number are resolved; of all of them if it is
    /// the highest.
    pub fn resolve(&self, before: u64) {
        self.resolved.store(before, Ordering::Release);
    }

    /// The targets of the probes of this run before this number are resolved; `None`: of all.
    #[inline]
    pub fn resolved(&self) -> Option<u64> {
        let before = self.resolved.load(Ordering::Acquire);
        (before != u64::MAX).then_some(before)
    }

    /// Records that the probes of a lane before a number, counted from 1 on, may be repeated.
    pub fn settle(&self, lane: usize, settled: u64) {
        if let Some(lane) = self.lanes.get(lane) {
            lane.settled.store(settled, Ordering::Relaxed);
        }
    }

    /// Probes of this run before this number, counted from 1 on, may be repeated, on whatever lane
    /// they were sent; 0 if none may.
    pub fn settled(&self) -> u64 {
        let lanes = self.lanes.iter();
        let settled = lanes.map(|lane| lane.settled.load(Ordering::Relaxed));
        settled.min().unwrap_or(0)
    }

    fn set_failed(&self, lane: usize, packets: u64) {
        if let Some(lane) = self.lanes.get(lane) {
            lane.failed.store(packets, Ordering::Relaxed);
        }
    }

    /// Records a probe of `len` bytes, after which the lane is at `done`. A lane has one thread,
    /// so nothing is lost between load and store.
    #[inline]
    pub fn note_probe(&self, lane: usize, len: usize, done: u64) {
        if let Some(lane) = self.lanes.get(lane) {
            let add = |count: &AtomicU64, more| {
                count.store(count.load(Ordering::Relaxed) + more, Ordering::Relaxed);
            };
            add(&lane.sent, 1);
            add(&lane.sent_bytes, len as u64);
            lane.done.store(done, Ordering::Relaxed);
        }
    }

    /// Records that a lane has no probes left, and how many it has skipped.
    pub fn end(&self, lane: usize, elapsed: Duration, skipped: Skipped) {
        let Some(lane) = self
            .lanes
            .get(lane)
            .filter(|lane| !lane.is_over.load(Ordering::Acquire))
        else {
            return;
        };
        let narrow = |count| u64::try_from(count).unwrap_or(u64::MAX);
        lane.unreachable
            .store(narrow(skipped.unreachable), Ordering::Relaxed);
        lane.own.store(narrow(skipped.own), Ordering::Relaxed);
        let elapsed_ns = elapsed.as_nanos() as u64;
        self.probed_ns.fetch_max(elapsed_ns, Ordering::Relaxed);
        lane.is_over.store(true, Ordering::Release);
        self.probing.fetch_sub(1, Ordering::AcqRel);
    }

    /// Records that a lane sends probes again, from `done` on; `failed` of them had been refused.
    pub fn go_back(&self, lane: usize, done: u64, (resent, failed): (u64, u64)) {
        let Some(lane) = self.lanes.get(lane) else {
            return;
        };
        lane.done.store(done, Ordering::Relaxed);
        lane.forgiven.fetch_add(failed, Ordering::Relaxed);
        let resent = resent.saturating_sub(failed);
        lane.resent.fetch_add(resent, Ordering::Relaxed);
        if lane.is_over.swap(false, Ordering::AcqRel) {
            self.probing.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Refused packets of a lane that were sent again.
    fn forgiven(&self, lane: usize) -> u64 {
        let lane = self.lanes.get(lane);
        lane.map_or(0, |lane| lane.forgiven.load(Ordering::Relaxed))
    }
}

/// The result of the sending threads.
pub struct Sent {
    pub report: send::Report,
    pub result: Result<()>,
    pub skipped: Skipped,
    /// The next probe that would have been sent.
    pub next: u128,
    pub grabbed: GrabCounts,
}

/// Sends all packets: `rate` is that of each source.
pub fn transmit(
    tx: &mut [TxQueue],
    sources: Vec<ProbeSource<'_>>,
    rate: Rate,
    live: &Live,
    stop: &Stop,
) -> Sent {
    let meeting = Meeting {
        barrier: Barrier::new(sources.len()),
        indices: Mutex::default(),
    };
    thread::scope(|scope| {
        let threads: Vec<_> = tx
            .iter_mut()
            .zip(sources)
            .map(|(tx, source)| {
                let meeting = &meeting;
                scope.spawn(move || lane(tx, source, rate, (live, stop), meeting))
            })
            .collect();
        let ended = threads.into_iter().map(|thread| {
            let result = thread.join();
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        ended.reduce(merged).unwrap_or_else(|| Sent {
            report: send::Report::default(),
            result: Ok(()),
            skipped: Skipped::default(),
            next: 0,
            grabbed: GrabCounts::default(),
        })
    })
}

/// The results of two lanes as one.
fn merged(one: Sent, other: Sent) -> Sent {
    let mut report = one.report;
    report.packets += other.report.packets;
    report.bytes += other.report.bytes;
    report.failed += other.report.failed;
    report.span_ns = report.span_ns.max(other.report.span_ns);
    report.covered_ns = report.covered_ns.max(other.report.covered_ns);
    if other.report.ended != SendEnded::Source {
        report.ended = other.report.ended;
    }
    Sent {
        report,
        result: one.result.and(other.result),
        skipped: one.skipped + other.skipped,
        next: one.next.min(other.next),
        // Connections are on the first lane.
        grabbed: one.grabbed,
    }
}

/// Where the lanes wait for each other at the end.
struct Meeting {
    barrier: Barrier,
    /// Each lane's next probe; `None` after an error.
    indices: Mutex<Vec<Option<u128>>>,
}

impl Meeting {
    /// Waits for all lanes. Returns the index at which they end; `None` if there are no others, or
    /// one of them has failed.
    fn boundary(&self, source: &ProbeSource<'_>, has_failed: bool) -> Option<u128> {
        let index = source.prober.next_index();
        let mut indices = self.indices.lock().unwrap_or_else(PoisonError::into_inner);
        indices.push((!has_failed).then_some(index));
        drop(indices);
        self.barrier.wait();
        let indices = self.indices.lock().unwrap_or_else(PoisonError::into_inner);
        let all: Option<Vec<u128>> = indices.iter().copied().collect();
        let all = all.filter(|all| all.len() > 1)?;
        Some(source.prober.lane().boundary(&all))
    }
}

/// A pacer for one call of [`send::send`], whose clock begins at 0.
fn pacer(rate: Rate) -> Pacer {
    let on_wire = false;
    Pacer::new(Pace::Rate { rate, on_wire }).with_lag_max(LAG_MAX_NS)
}

/// One sending thread.
fn lane(
    tx: &mut TxQueue,
    mut source: ProbeSource<'_>,
    rate: Rate,
    (live, stop): (&Live, &Stop),
    meeting: &Meeting,
) -> Sent {
    let number = source.lane();
    let mut progress = |report: &send::Report| live.set_failed(number, report.failed);
    let limits = Limits::default();
    let (mut report, mut result) = send::send(
        tx,
        &mut source,
        &mut pacer(rate),
        &limits,
        stop,
        &mut progress,
    );
    source.hang_up();
    // What is lost without a link is sent when the scan is resumed.
    let is_held = source.end_held(tx);
    // Cards that keep packets without a link look stuck.
    let is_excused = |error: &Error| matches!(error.kind(), ErrorKind::Down | ErrorKind::Io);
    if is_held && result.as_ref().err().is_none_or(is_excused) {
        (result, report.ended) = (Ok(()), SendEnded::Stopped);
    }
    if result.is_err() {
        stop.set();
    }
    let rate = source.rate().unwrap_or(rate);
    let boundary = meeting.boundary(&source, result.is_err() || is_held);
    if let Some(index) = boundary.filter(|_| report.ended == SendEnded::Stopped) {
        source.stop_at(index);
        let go_on = Stop::new();
        let mut pacer = pacer(rate);
        let (rest, ended) = send::send(tx, &mut source, &mut pacer, &BOUNDARY, &go_on, &mut |_| {});
        report.packets += rest.packets;
        report.bytes += rest.bytes;
        report.failed += rest.failed;
        if rest.packets != 0 {
            report.covered_ns = report.elapsed_ns + rest.covered_ns;
        }
        report.span_ns += rest.span_ns;
        result = ended;
    }
    // As in the live figures, these are not failed for good.
    live.set_failed(number, report.failed);
    report.failed = report.failed.saturating_sub(live.forgiven(number));
    let result = result.and(match report.failed {
        0 => Ok(()),
        failed => Err(refused(failed)),
    });
    if report.ended == SendEnded::Stopped {
        match is_held {
            // Their banners are reported, but nothing can be sent.
            true => drop(source.close_all()),
            false => close(tx, &mut source, rate),
        }
    }
    Sent {
        grabbed: source
            .talking
            .as_ref()
            .map(BannerReader::counted)
            .unwrap_or_default(),
        report,
        result,
        skipped: source.prober.skipped(),
        next: source.prober.next_index(),
    }
}

/// Sends the resets of connections that are closed early. They are not in the report, which covers
/// what was sent until the end.
fn close(tx: &mut TxQueue, source: &mut ProbeSource<'_>, rate: Rate) {
    if let Some(mut closing) = source.close_all() {
        let (go_on, mut pacer) = (Stop::new(), pacer(rate));
        let _ = send::send(tx, &mut closing, &mut pacer, &LAST, &go_on, &mut |_| {});
    }
}

fn refused(failed: u64) -> Error {
    let why = format!("{failed} were refused by the interface");
    Error::new(ErrorKind::Io, "send all probes", why).with_hint("scan again, at a lower --rate")
}
