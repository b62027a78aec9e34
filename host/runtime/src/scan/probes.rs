//! The packets a scan sends: segments of banner connections first, then probes.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use ::scan::Prober;
use ::scan::grab::{Banner, BannerGrabber, GrabCounts};
use port::TxBatch;
use sys::Result;
use traffic::{Pacer, Rate};

use super::now;
use super::run::{Event, Live, clock_us};
use crate::send::{self, Next};

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
    began: Instant,
    /// How long to wait for answers to the last probes.
    wait: Duration,
    /// When the last probe was sent.
    probed: Option<Instant>,
}

impl<'p> BannerReader<'p> {
    pub fn new(
        grabber: BannerGrabber<'p>,
        inbox: Receiver<Segments>,
        events: SyncSender<Event>,
        wait: Duration,
    ) -> Self {
        Self {
            grabber,
            inbox,
            events,
            began: Instant::now(),
            wait,
            probed: None,
        }
    }

    pub fn counted(&self) -> GrabCounts {
        *self.grabber.counted()
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
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
    }

    /// Whether the wait for the last answers is over and all connections are closed.
    fn is_over(&mut self) -> bool {
        let probed = *self.probed.get_or_insert_with(Instant::now);
        self.grabber.open_count() == 0 && probed.elapsed() >= self.wait
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
    pub from: u128,
    /// When the prober's clock was 0.
    began: Instant,
    pub live: &'p Live,
    pub talking: Option<BannerReader<'p>>,
    /// The rate now, and its unit; `None` if it is constant.
    rate: Option<(f64, Unit)>,
    /// Whether the next packet is a segment rather than a probe.
    is_segment: bool,
}

impl<'p> ProbeSource<'p> {
    pub fn new(
        prober: Prober<'p>,
        (from, began): (u128, Instant),
        live: &'p Live,
        talking: Option<BannerReader<'p>>,
    ) -> Self {
        Self {
            prober,
            from,
            began,
            live,
            talking,
            rate: None,
            is_segment: false,
        }
    }

    /// Follows the rate of [`Live`], which is in this unit.
    pub fn follow(&mut self, unit: Unit) {
        self.rate = Some((self.live.rate(), unit));
    }

    /// Closes all connections early; only their resets remain to be sent.
    pub fn close_all(&mut self) -> Option<Closing<'_, 'p>> {
        let talking = self.talking.as_mut()?;
        talking.grabber.close_all(&mut reporter(&talking.events));
        Some(Closing(&mut talking.grabber))
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
    #[inline]
    fn next(&mut self) -> Result<Next> {
        if let Some(talking) = &mut self.talking {
            talking.work();
            let len = talking.grabber.next_len();
            self.is_segment = len.is_some();
            if let Some(len) = len {
                return Ok(packet(len));
            }
        }
        if let Some(len) = self.prober.next_len() {
            return Ok(packet(len));
        }
        if !self.live.is_probed.swap(true, Ordering::Release) {
            let probed_ns = self.began.elapsed().as_nanos() as u64;
            self.live.probed_ns.store(probed_ns, Ordering::Relaxed);
        }
        let is_over = self.talking.as_mut().is_none_or(BannerReader::is_over);
        Ok(if is_over { Next::End } else { Next::Pending })
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
        let written = match (&mut self.talking, self.is_segment) {
            (Some(talking), true) => talking.grabber.write(buffer),
            _ => self.prober.write(buffer),
        };
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
            self.live.done.store(done as u64, Ordering::Relaxed);
        }
        true
    }

    fn wait(&mut self, timeout: Duration) {
        if let Some(talking) = &mut self.talking {
            talking.wait(timeout);
        }
    }
}

/// The last segments of connections closed early.
pub struct Closing<'t, 'p>(&'t mut BannerGrabber<'p>);

impl send::Source for Closing<'_, '_> {
    fn next(&mut self) -> Result<Next> {
        Ok(self.0.next_len().map_or(Next::End, packet))
    }

    fn put(&mut self, batch: &mut TxBatch<'_>) -> bool {
        let written = batch.buffer().and_then(|buffer| self.0.write(buffer));
        if let Some(len) = written {
            batch.advance(len);
        }
        written.is_some()
    }
}
