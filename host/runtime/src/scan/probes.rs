//! The packets a scan sends: segments of banner connections first, then probes.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel};
use std::time::{Duration, Instant};

use ::scan::Prober;
use ::scan::grab::{Banner, BannerGrabber, GrabCounts};
use port::{TxBatch, TxQueue};
use sys::{Error, ErrorKind, Result};
use traffic::{Pacer, Rate};

use super::link::{self, Mark, Step, Trail};
use super::now;
use super::respond::{self, Replies};
use super::run::{Event, clock_us};
use super::transmit::Live;
use crate::send::{self, Attend, Next};

/// Errors of a device whose link is down that are ignored before the link is reported to be down,
/// and the pause after each.
const ERRORS_MAX: u32 = 500;
const ERROR_PAUSE: Duration = Duration::from_millis(10);
/// Shortest wait for more to send.
const WAIT_MIN: Duration = Duration::from_millis(1);
/// Maximum number of batches of received segments handled before the next packet is sent.
const INBOX_MAX: usize = 64;

/// Received segments, each preceded by its length in 16 bits.
#[derive(Default)]
pub struct Segments(Vec<u8>);

impl Segments {
    /// Adds a packet; skips one longer than any Ethernet frame.
    pub fn push(&mut self, packet: &[u8]) {
        if let Ok(len) = u16::try_from(packet.len()) {
            self.0.extend(len.to_ne_bytes());
            self.0.extend(packet);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.0.as_slice();
        std::iter::from_fn(move || {
            let (len, behind) = rest.split_first_chunk::<2>()?;
            let (packet, behind) = behind.split_at_checked(u16::from_ne_bytes(*len).into())?;
            rest = behind;
            Some(packet)
        })
    }
}

/// The connections that read banners.
pub struct BannerReader<'p> {
    grabber: BannerGrabber<'p>,
    inbox: Receiver<Segments>,
    events: SyncSender<Event>,
    live: &'p Live,
    began: Instant,
    /// Time without a link, which does not count, and when the link went down.
    paused: Duration,
    /// As above.
    paused_at: Option<Instant>,
}

impl<'p> BannerReader<'p> {
    pub fn new(
        grabber: BannerGrabber<'p>,
        inbox: Receiver<Segments>,
        (events, live): (SyncSender<Event>, &'p Live),
    ) -> Self {
        Self {
            grabber,
            inbox,
            events,
            live,
            began: Instant::now(),
            paused: Duration::ZERO,
            paused_at: None,
        }
    }

    pub fn counted(&self) -> GrabCounts {
        *self.grabber.counted()
    }

    fn now_ns(&self) -> u64 {
        let now = self.paused_at.unwrap_or_else(Instant::now);
        (now.duration_since(self.began).saturating_sub(self.paused)).as_nanos() as u64
    }

    /// Stops or restarts the clock of the connections: no timer expires without a link.
    fn pause(&mut self, is_paused: bool) {
        if is_paused {
            self.paused_at.get_or_insert_with(Instant::now);
        } else if let Some(since) = self.paused_at.take() {
            self.paused += since.elapsed();
        }
    }

    /// Handles received segments and expired timers.
    fn work(&mut self) {
        for _ in 0..INBOX_MAX {
            match self.inbox.try_recv() {
                Ok(segments) => self.take(&segments),
                Err(_) => break,
            }
        }
        let now_ns = self.now_ns();
        let report = &mut reporter(&self.events);
        self.grabber.tick(now_ns, report);
    }

    fn take(&mut self, segments: &Segments) {
        let now_ns = self.now_ns();
        let report = &mut reporter(&self.events);
        for packet in segments.iter() {
            self.grabber.receive(packet, now_ns, report);
        }
        let received = self.grabber.counted().received;
        self.live.talked.store(received, Ordering::Relaxed);
    }

    /// Takes no more segments: receivers that wait for room in the inbox, or would, go on.
    fn hang_up(&mut self) {
        self.inbox = channel().1;
    }

    /// Whether all connections are closed.
    fn is_over(&self) -> bool {
        self.grabber.open_count() == 0
    }

    /// Waits for segments, or until a timer expires.
    fn wait(&mut self, timeout: Duration) {
        let due_ns = self.grabber.due_ns().unwrap_or(u64::MAX);
        let until_due = Duration::from_nanos(due_ns.saturating_sub(self.now_ns()));
        match self.inbox.recv_timeout(timeout.min(until_due)) {
            Ok(segments) => self.take(&segments),
            Err(RecvTimeoutError::Timeout) => {}
            // All receivers have ended; timeouts still count.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(timeout.min(until_due)),
        }
    }
}

/// Passes banners to the thread that reports them; drops them if it has ended.
fn reporter(events: &SyncSender<Event>) -> impl FnMut(Banner) {
    |banner| {
        let event = Event::Banner(Box::new(banner), now());
        let _ = events.send(event);
    }
}

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
}

impl<'p> ProbeSource<'p> {
    pub fn new(
        (prober, lane): (Prober<'p>, usize),
        (from, began): (u128, Instant),
        live: &'p Live,
        (talking, is_bare): (Option<BannerReader<'p>>, bool),
        wait: Duration,
    ) -> Self {
        Self {
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

    /// Where the lane is.
    fn mark(&self, tx: &TxQueue) -> Mark {
        Mark {
            at_ms: link::millis(self.began.elapsed()),
            index: self.prober.next_index(),
            unreachable: self.prober.unreachable(),
            put: self.live.put(self.lane),
            failed: tx.counters().failed.get(),
        }
    }

    /// Goes back to a mark; `resends` unless the probes from there on are left to a later scan.
    fn go_back(&mut self, to: Mark, now: Mark, resends: bool) {
        self.prober.go_back(to.index, to.unreachable);
        let failed = now.failed - to.failed;
        let again = if resends { now.put - to.put } else { 0 };
        let done = (self.prober.next_index() - self.from) as u64;
        self.live.go_back(self.lane, done, (again, failed));
    }

    /// At the end of the lane: goes back if the link is down, or was just now. Whether it did.
    pub fn end_held(&mut self, tx: &TxQueue) -> bool {
        let now = self.mark(tx);
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
        let (packets, bytes) = replies.send(tx)?;
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
        talking.grabber.close_all(&mut reporter(&talking.events));
        Some(Closing(&mut talking.grabber, self.bare.as_deref_mut()))
    }
}

/// Length of an Ethernet header.
pub const ETHERNET_LEN: usize = 14;
/// Maximum length of a packet of a scan.
const PACKET_MAX: usize = 2048;

/// A packet on a device without Ethernet headers: it is written with one, which is not sent.
pub struct Bare([u8; PACKET_MAX]);

impl Bare {
    const NEW: Self = Self([0; PACKET_MAX]);

    /// Writes a packet to a buffer, without its Ethernet header if there is a `bare`; returns the
    /// length of what is sent.
    #[inline]
    fn put(
        bare: Option<&mut Self>,
        out: &mut [u8],
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Option<usize> {
        let Some(Self(room)) = bare else {
            return write(out);
        };
        let len = write(room)?;
        let packet = room.get(ETHERNET_LEN..len)?;
        out.get_mut(..packet.len())?.copy_from_slice(packet);
        Some(packet.len())
    }
}

/// Puts an Ethernet header before an IP packet: without addresses, and with the type of its
/// version.
pub fn with_header<'a>(packet: &[u8], room: &'a mut Vec<u8>) -> &'a [u8] {
    let ethertype: [u8; 2] = match packet.first().map(|byte| byte >> 4) {
        Some(6) => [0x86, 0xdd],
        _ => [8, 0],
    };
    room.clear();
    room.extend([0; 12]);
    room.extend(ethertype);
    room.extend(packet);
    room
}

/// Length of a packet as it is sent.
fn sent_len(len: usize, is_bare: bool) -> usize {
    match is_bare {
        true => len.saturating_sub(ETHERNET_LEN),
        false => len,
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
        let now = self.mark(tx);
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
        if let Some(len) = self.prober.next_len() {
            return Ok(packet(sent_len(len, is_bare)));
        }
        if self.is_ending {
            self.is_segment = false;
            return Ok(Next::End);
        }
        let unreachable = self.prober.unreachable();
        self.live.end(self.lane, self.began.elapsed(), unreachable);
        Ok(match self.is_over() {
            true => Next::End,
            false => Next::Pending,
        })
    }

    fn begin_batch(&mut self) {
        self.prober.set_clock(clock_us(self.began));
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
pub struct Closing<'t, 'p>(&'t mut BannerGrabber<'p>, Option<&'t mut Bare>);

impl send::Source for Closing<'_, '_> {
    fn next(&mut self) -> Result<Next> {
        let is_bare = self.1.is_some();
        let len = self.0.next_len();
        Ok(len.map_or(Next::End, |len| packet(sent_len(len, is_bare))))
    }

    fn put(&mut self, batch: &mut TxBatch<'_>) -> bool {
        let write = |out: &mut [u8]| self.0.write(out);
        let buffer = batch.buffer();
        let written = buffer.and_then(|buffer| Bare::put(self.1.as_deref_mut(), buffer, write));
        if let Some(len) = written {
            batch.advance(len);
        }
        written.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use ::scan::grab::{GrabOptions, Identity};
    use ::scan::{Cookies, NextHops, Order, Plan, Ports, Shard, Source, Targets, parse_range};
    use wire::Mac;

    use super::*;

    #[test]
    fn receivers_do_not_wait_for_a_reader_that_has_ended() {
        let source = Source {
            ipv4: Some([198, 51, 100, 7].into()),
            ipv6: None,
            ports: (61_000, 10),
        };
        let order = Order {
            seed: 1,
            shard: Shard::WHOLE,
            attempts: 1,
            block: 1,
        };
        let targets = Targets::new(vec![parse_range("192.0.2.0/24").unwrap()], Vec::new());
        let ports = Ports::tcp("80").unwrap();
        let plan = Plan::new(targets.unwrap(), ports, source, order).unwrap();
        let (cookies, hops) = (Cookies::new([3; 16], source), NextHops::default());
        let options = GrabOptions {
            connection_count_max: 1,
            timeout_ns: 1,
            identity: Identity {
                random: [7; 32],
                user_agent: Identity::USER_AGENT.into(),
                contact: None,
            },
            keeps_certificates: false,
        };
        let grabber = BannerGrabber::new(&plan, &cookies, &hops, (Mac([2; 6]), 64), options);
        let (give, inbox) = sync_channel(1);
        let (events, _answers) = sync_channel(1);
        let live = Live::new(1);
        let mut reader = BannerReader::new(grabber, inbox, (events, &live));
        give.send(Segments::default()).unwrap();
        let (done, result) = channel();
        // The inbox is full: it waits.
        std::thread::spawn(move || {
            let _ = done.send(give.send(Segments::default()).is_err());
        });
        reader.hang_up();
        assert_eq!(result.recv_timeout(Duration::from_secs(60)), Ok(true));
    }
}
