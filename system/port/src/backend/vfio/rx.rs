//! The receiving end of a queue, for any driver.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ring::slot::Slot;
use ring::{Frame, FrameCache, Pool};
use sys::{Error, ErrorKind, Result};
use vfio::{Core, Driver, DriverRx, Interrupt, Refused, before_sleep_check};

use super::super::clock::now_ns;
use crate::account::RxCounters;
use crate::rx::{Filled, Ready, RxBackend};

/// Number of empty calls after which the card's state is checked.
const CHECK_EVERY: u32 = 4096;

/// Maximum time to poll for packets before sleeping: about the cost of a sleep with its interrupt.
const SPIN_MAX: Duration = Duration::from_micros(50);

/// Sleep between polls without interrupts, and longest sleep before the card's state is checked.
const NAP: Duration = Duration::from_micros(100);
const SLEEP_MAX: Duration = Duration::from_millis(500);

/// Longest sleep while the card lacks frames.
const STARVED_SLEEP: Duration = Duration::from_millis(1);
/// Maximum timeout.
const WAIT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Settings of a queue.
pub(super) struct RxSettings {
    pub snaplen: u32,
    /// Whether to read the clock once per batch.
    pub stamp: bool,
}

/// How long to poll for packets before sleeping, learned from recent sleeps: a sleep shorter than
/// the maximum poll would have been better spent polling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Patience(Duration);

impl Patience {
    /// Minimum useful polling time.
    const MIN: Duration = Duration::from_micros(1);

    /// Updates it after a sleep of this length, which ended with a packet or without.
    fn learn(&mut self, slept: Duration, packet: bool) {
        self.0 = match (slept < SPIN_MAX, packet) {
            (true, true) => (self.0 * 2).clamp(Self::MIN, SPIN_MAX),
            // The given timeout was shorter, or a signal arrived: nothing is learned.
            (true, false) => self.0,
            (false, _) if self.0 <= Self::MIN => Duration::ZERO,
            (false, _) => self.0 / 2,
        };
    }
}

pub(super) struct Rx<D: Driver> {
    /// `Some` until the queue is dropped.
    queue: Option<D::Rx>,
    cache: FrameCache,
    /// Frames of refused packets, between harvest and the next offer.
    back: Vec<u32>,
    /// Whether slots of the current batch may be without a frame: detached, or passed to another
    /// queue.
    has_gone: bool,
    snaplen: u32,
    stamp: bool,
    idle_calls: u32,
    patience: Patience,
    interrupt: Option<Interrupt>,
    counters: Arc<RxCounters>,
    /// Set at the end: packets in the ring, or arriving later, are no longer read.
    closed: Arc<AtomicBool>,
    core: Arc<Core<D>>,
}

impl<D: Driver> Rx<D> {
    pub(super) fn new(
        queue: D::Rx,
        core: Arc<Core<D>>,
        interrupt: Option<Interrupt>,
        settings: RxSettings,
        counters: Arc<RxCounters>,
        closed: Arc<AtomicBool>,
    ) -> Self {
        let mut rx = Self {
            queue: Some(queue),
            cache: FrameCache::new(core.frames().pool().clone()),
            back: Vec::new(),
            has_gone: false,
            snaplen: match settings.snaplen {
                0 => u32::MAX,
                len => len,
            },
            stamp: settings.stamp,
            idle_calls: 0,
            patience: Patience::default(),
            interrupt,
            counters,
            closed,
            core,
        };
        rx.refill();
        rx
    }

    #[inline(always)]
    fn queue(&mut self) -> &mut D::Rx {
        self.queue.as_mut().expect("taken out on drop only")
    }

    /// Offers free frames for all vacant entries.
    fn refill(&mut self) {
        let Some(queue) = &mut self.queue else { return };
        let mut vacant = queue.vacant() as usize;
        while vacant != 0 {
            let run = self.cache.take_run_for_device(vacant);
            if run.is_empty() {
                break;
            }
            queue.offer_run(run);
            vacant -= run.len();
        }
        queue.publish();
    }

    /// Counts refused packets and returns their frames.
    #[cold]
    fn refuse(&mut self, refused: Refused) {
        // SAFETY: `harvest` claimed them and made no slots of them.
        unsafe { self.cache.give_each(self.back.drain(..)) };
        self.counters.invalid.add(refused.errors + refused.invalid);
        self.counters.too_long.add(refused.too_long);
        self.refill();
    }

    /// Called without packets: offers returned frames, checks the card.
    #[cold]
    fn idle(&mut self) -> Result<()> {
        self.refill();
        self.idle_calls = self.idle_calls.wrapping_add(1);
        match self.idle_calls.is_multiple_of(CHECK_EVERY) || self.core.has_failed() {
            true => self.check("receive packets"),
            false => Ok(()),
        }
    }

    fn check(&mut self, what: &str) -> Result<()> {
        let health = self.queue().health();
        match self.core.notice(health) {
            true => Err(self.core.failure(what)),
            false => Ok(()),
        }
    }

    /// Polls for a packet for as long as that pays off, but not past `end`.
    fn look(&mut self, end: Instant) -> bool {
        let until = end.min(Instant::now() + self.patience.0);
        loop {
            if self.queue().is_ready() {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            std::hint::spin_loop();
        }
    }

    /// Sleeps until the card interrupts, at most `timeout`.
    fn sleep(&mut self, timeout: Duration) -> Result<()> {
        let Some(interrupt) = &self.interrupt else {
            thread::sleep(timeout.min(NAP));
            return Ok(());
        };
        let queue = self.queue.as_mut().expect("taken out on drop only");
        interrupt.event.take();
        if let Some(unmask) = &interrupt.unmask {
            unmask()?;
        }
        queue.arm();
        before_sleep_check();
        // A packet that arrived between the last poll and arming has raised no interrupt.
        let result = match queue.is_ready() {
            true => Ok(true),
            false => interrupt.event.wait(timeout),
        };
        queue.disarm();
        result.map(drop)
    }
}

/// Sets the packet's total length in all its segments, and truncates them together to the snaplen.
fn cut(slots: &mut [Slot], snaplen: u32) {
    let mut room = snaplen;
    for slot in slots {
        slot.cut_to(room);
        room = match slot.has(Slot::CONTINUES) {
            true => room - slot.cap_len(),
            false => snaplen,
        };
    }
}

impl<D: Driver> RxBackend for Rx<D> {
    #[inline]
    fn fill(&mut self, slots: &mut Vec<Slot>, max: usize) -> Result<Filled> {
        let start = slots.len();
        let mut refused = Refused::default();
        let queue = self.queue.as_mut().expect("taken out on drop only");
        // The clock is read once per batch, and not for an empty one.
        let time_ns = match self.stamp && queue.is_ready() {
            true => now_ns(libc::CLOCK_REALTIME),
            false => 0,
        };
        let mut filled = queue.harvest(slots, max, time_ns, &mut self.back, &mut refused);
        if !self.back.is_empty() || refused != Refused::default() {
            self.refuse(refused);
        }
        if slots.len() == start {
            self.idle()?;
        } else if self.snaplen != u32::MAX {
            cut(&mut slots[start..], self.snaplen);
            filled = Filled::of(&slots[start..]);
        }
        Ok(filled)
    }

    #[inline]
    fn release(&mut self, slots: &mut Vec<Slot>) {
        if std::mem::take(&mut self.has_gone) {
            // A frame that was passed on is no longer owned here, and is left alone.
            slots.retain(|slot| slot.token() != Slot::DETACHED);
        }
        // Straight back to the card: no shared state but the ring is accessed.
        let queue = self.queue.as_mut().expect("taken out on drop only");
        // SAFETY: `harvest` gave the slots their tokens, indices of the pool's; they do not change
        // except for `DETACHED`, which is reported before (`detach`, `before_transfer`).
        let mut rest = &slots[unsafe { queue.offer_slots(slots) }..];
        while !rest.is_empty() {
            let full = queue.vacant() == 0;
            let count = if full { rest.len() } else { 1 };
            let (kept, behind) = rest.split_at(count);
            // SAFETY: the slots' frames are held by this batch, and the slots end here.
            unsafe {
                self.cache
                    .give_each(kept.iter().map(|slot| slot.token() as u32))
            };
            // SAFETY: as above.
            rest = &behind[unsafe { queue.offer_slots(behind) }..];
        }
        slots.clear();
        match queue.vacant() {
            0 => queue.publish(),
            // Some frames were kept, or there were too few before.
            _ => self.refill(),
        }
    }

    fn detach(&mut self, slot: &mut Slot) -> Result<Frame> {
        let pool = self.cache.pool();
        let index = u32::try_from(slot.token()).map_err(|_| {
            let what = "detach a packet";
            Error::new(ErrorKind::InvalidInput, what, "it was already detached")
                .with_hint("detach a packet once")
        })?;
        self.has_gone = true;
        // SAFETY: `fill` claimed the index for this slot, which forgets it below.
        let mut frame = unsafe { pool.adopt(index) };
        let offset = slot.data().as_ptr() as usize - pool.base().as_ptr() as usize;
        let offset = offset as u64 - pool.addr_of(index);
        pool.set_range(&mut frame, offset as u32, slot.cap_len());
        slot.set_detached();
        Ok(frame)
    }

    fn before_transfer(&mut self) {
        self.has_gone = true;
    }

    fn wait(&mut self, timeout: Duration) -> Result<Ready> {
        let end = Instant::now() + timeout.min(WAIT_MAX);
        if self.queue().is_ready() || self.look(end) {
            return Ok(Ready::Packets);
        }
        loop {
            // Frames may be returned by other threads meanwhile; without any, no interrupt arrives.
            self.refill();
            let starved = self.queue().vacant() != 0;
            let longest = if starved { STARVED_SLEEP } else { SLEEP_MAX };
            let start = Instant::now();
            let left = end.saturating_duration_since(start);
            if left.is_zero() {
                return Ok(Ready::Timeout);
            }
            self.sleep(left.min(longest))?;
            let is_ready = self.queue().is_ready();
            // A sleep with a deliberately short timeout is not informative.
            if !starved && self.interrupt.is_some() {
                self.patience.learn(start.elapsed(), is_ready);
            }
            if is_ready {
                return Ok(Ready::Packets);
            }
            self.check("wait for packets")?;
        }
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.interrupt
            .as_ref()
            .map(|interrupt| interrupt.event.as_fd())
    }

    fn arm(&mut self) -> Result<bool> {
        // Without frames no interrupt arrives.
        self.refill();
        if let Some(interrupt) = &self.interrupt {
            interrupt.event.take();
            if let Some(unmask) = &interrupt.unmask {
                unmask()?;
            }
            self.queue.as_mut().expect("taken out on drop only").arm();
        }
        Ok(!self.queue().is_ready())
    }

    fn pool(&self) -> Option<&Pool> {
        Some(self.cache.pool())
    }

    fn has_pool_frames(&self) -> bool {
        true
    }

    fn ring_len(&self) -> Option<u32> {
        self.queue.as_ref().map(DriverRx::ring_len)
    }
}

impl<D: Driver> Drop for Rx<D> {
    fn drop(&mut self) {
        if let Some(mut queue) = self.queue.take() {
            queue.disarm();
            self.closed.store(true, Ordering::Release);
            self.core.leave_rx(queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_sleeps_increase_polling_and_long_ones_reduce_it() {
        let mut patience = Patience::default();
        let short = Duration::from_micros(20);
        for _ in 0..3 {
            patience.learn(short, true);
        }
        assert_eq!(patience.0, Duration::from_micros(4));
        // A wait with timeout zero, or one that ended before any packet, is not informative.
        for slept in [Duration::ZERO, short] {
            patience.learn(slept, false);
            assert_eq!(patience.0, Duration::from_micros(4));
        }
        for _ in 0..10 {
            patience.learn(short, true);
        }
        assert_eq!(patience.0, SPIN_MAX, "no longer than that");
        for packet in [true, false] {
            let before = patience.0;
            patience.learn(Duration::from_millis(1), packet);
            assert_eq!(patience.0, before / 2);
        }
        for _ in 0..10 {
            patience.learn(Duration::from_millis(500), false);
        }
        assert_eq!(patience.0, Duration::ZERO, "not forever, either");
        patience.learn(short, true);
        assert_eq!(patience.0, Patience::MIN);
    }
}
