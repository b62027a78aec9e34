//! The thread of a queue: passes packets to the writer, or counts them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use port::{Packet, RxBatch, RxQueue};
use sys::Result;

use super::handover::{Inlet, NO_TIME_NS};
use super::output::Link;
use super::{Event, Options, Totals, Way};
use crate::worker::{self, Ended, Engine, Verdict};

/// How long to wait before checking again when the writer has all bundles.
const PAUSE: Duration = Duration::from_micros(200);

/// The current time, for packets without a timestamp.
fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_nanos() as u64)
}

impl Way {
    #[inline]
    fn wants(self, packet: &Packet<'_>) -> bool {
        match self {
            Way::Both => true,
            Way::In => !packet.is_outgoing(),
            Way::Out => packet.is_outgoing(),
        }
    }
}

/// The time of a packet, [`NO_TIME_NS`] if a file has none. On a live port that is the current
/// time, read once per batch.
#[inline]
fn time_of(packet: &Packet<'_>, is_live: bool, now: &mut u64) -> u64 {
    match packet.time_ns() {
        Some(time_ns) => time_ns.min(NO_TIME_NS - 1),
        None if !is_live => NO_TIME_NS,
        None => {
            if *now == 0 {
                *now = now_ns();
            }
            *now
        }
    }
}

/// Passes packets to the writer.
pub(super) struct Handing {
    pub(super) inlet: Inlet,
    pub(super) options: Arc<Options>,
    pub(super) link: Arc<Link>,
    pub(super) origin: Instant,
    /// Packets left until `--count`; with several queues only the writer counts them.
    pub(super) left: u64,
    /// Packets and bytes that the writer has not seen yet, for live totals.
    pub(super) shown: Arc<[AtomicU64; 2]>,
    pub(super) totals: Totals,
}

impl Handing {
    /// Milliseconds on the capture's own clock.
    fn now_ms(&self) -> u32 {
        self.origin.elapsed().as_millis() as u32
    }

    /// Waits for a bundle with room for a packet. Meanwhile the packets after it wait in the
    /// device's ring (which counts what it loses) or in the file.
    #[cold]
    fn put_later(&mut self, packet: &Packet<'_>, time_ns: u64, stamp_ms: u32) {
        while !self.inlet.put(packet, time_ns, stamp_ms) {
            self.inlet.is_full();
            if self.link.is_abandoned.load(Ordering::Relaxed) {
                self.totals.unwritten += 1;
                return;
            }
            thread::sleep(PAUSE);
        }
    }

    fn show(&self) {
        for (shown, now) in self.shown.iter().zip(self.inlet.waiting()) {
            shown.store(now, Ordering::Relaxed);
        }
    }
}

impl Engine for Handing {
    fn batch(&mut self, batch: &mut RxBatch<'_>) -> Result<Verdict> {
        let mut now = 0;
        let stamp_ms = self.now_ms();
        let (way, is_live) = (self.options.way, self.options.is_live);
        let copies_blocks = self.options.copies_blocks;
        for packet in batch.iter() {
            if copies_blocks && packet.follows_blocks() {
                self.inlet.blocks_come_first();
            }
            if !way.wants(&packet) {
                self.totals.other_way += 1;
            } else if self.left == 0 {
                self.totals.surplus += 1;
            } else {
                self.left -= 1;
                let time_ns = time_of(&packet, is_live, &mut now);
                if !self.inlet.put(&packet, time_ns, stamp_ms) {
                    self.put_later(&packet, time_ns, stamp_ms);
                }
            }
        }
        self.inlet.batch_ended(stamp_ms);
        self.show();
        Ok(match self.left {
            0 => Verdict::Finish,
            _ => Verdict::Continue,
        })
    }

    fn idle(&mut self) -> Result<Verdict> {
        self.inlet.idle(self.now_ms());
        self.show();
        Ok(Verdict::Continue)
    }
}

/// Counts packets.
pub(super) struct Counting {
    pub(super) options: Arc<Options>,
    /// Packets counted by all queues, if there is a limit.
    pub(super) taken: Arc<AtomicU64>,
    /// Packets and bytes, for live totals.
    pub(super) shown: Arc<[AtomicU64; 2]>,
    pub(super) totals: Totals,
}

impl Engine for Counting {
    fn batch(&mut self, batch: &mut RxBatch<'_>) -> Result<Verdict> {
        let (way, totals) = (self.options.way, &mut self.totals);
        let mut left = u64::MAX;
        let mut verdict = Verdict::Continue;
        if let Some(count) = self.options.count {
            let wanted = batch.iter().filter(|packet| way.wants(packet)).count() as u64;
            left = count.saturating_sub(self.taken.fetch_add(wanted, Ordering::Relaxed));
            if left <= wanted {
                verdict = Verdict::Finish;
            }
        }
        let mut now = 0;
        for packet in batch.iter() {
            if !way.wants(&packet) {
                totals.other_way += 1;
            } else if left == 0 {
                totals.surplus += 1;
            } else {
                left -= 1;
                totals.packets += 1;
                totals.bytes += u64::from(packet.cap_len());
                let time_ns = time_of(&packet, self.options.is_live, &mut now);
                if time_ns != NO_TIME_NS {
                    totals.first_ns.get_or_insert(time_ns);
                    totals.last_ns = Some(time_ns);
                }
            }
        }
        self.shown[0].store(totals.packets, Ordering::Relaxed);
        self.shown[1].store(totals.bytes, Ordering::Relaxed);
        Ok(verdict)
    }
}

/// An engine that has totals.
pub(super) trait Totalling: Engine {
    fn totals(&self) -> Totals;
}

impl Totalling for Handing {
    fn totals(&self) -> Totals {
        self.totals
    }
}

impl Totalling for Counting {
    fn totals(&self) -> Totals {
        self.totals
    }
}

/// The thread of a queue.
pub(super) struct Thread {
    pub(super) rx: RxQueue,
    pub(super) options: Arc<Options>,
    pub(super) link: Arc<Link>,
    pub(super) cpu: Option<usize>,
    pub(super) events: Sender<Event>,
    /// Disconnected once the intake has been stopped.
    pub(super) stopped: Receiver<()>,
}

impl Thread {
    /// Runs until the end of the capture, and then drains the queue's ring.
    pub(super) fn run(mut self, mut engine: impl Totalling) {
        let pinned = self.cpu.map_or(Ok(()), sys::affinity::pin_current_thread);
        let pacing = self.options.pacing;
        let result =
            pinned.and_then(|()| worker::run(&mut self.rx, &mut engine, &self.link.halt, pacing));
        let has_more = matches!(result, Ok(Ended::Stopped));
        // The receiver has ended if the capture was abandoned.
        let _ = self.events.send(Event::Received(result));
        let mut drained = Ok(());
        if has_more {
            let _ = self.stopped.recv();
            drained = worker::drain(&mut self.rx, &mut engine);
        }
        let totals = engine.totals();
        // The writer learns that this queue has ended.
        drop((engine, self.rx));
        let _ = self.events.send(Event::Drained(drained, totals));
    }
}
