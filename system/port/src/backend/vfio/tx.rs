//! The sending end of a queue, for any driver.

use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ring::{Frame, FrameCache, Pool};
use sys::{Error, ErrorKind, Result};

use super::core::Core;
use super::driver::{Driver, DriverTx, Limits, TxPart};
use crate::account::TxCounters;
use crate::slot::{Slot, segment_count, whole_packets};
use crate::tx::TxBackend;

/// Room left before a packet, as AF_XDP leaves it: for headers to be put in front, also by drivers.
const HEADROOM: u32 = 256;
/// Sleep between looks at the completions while waiting.
const NAP: Duration = Duration::from_micros(50);
/// How long closing waits for what was submitted.
const CLOSE_WAIT: Duration = Duration::from_millis(100);
/// Fewer entries free than this many packets' worth: completions are looked at.
const RECLAIM_BELOW: u32 = 256;

/// Frames kept back from the free list: a batch's worth.
const SPARE_MAX: usize = 64;

pub(super) struct Tx<D: Driver> {
    /// Always there until the queue is dropped.
    queue: Option<D::Tx>,
    cache: FrameCache,
    /// The pool of foreign frames met last.
    foreign: Option<FrameCache>,
    /// Frames that came back and are still ours: the next to be lent, without a way through the
    /// free list.
    spare: Vec<u32>,
    /// Shortest packet, and how much longer the longest is.
    len_min: u32,
    len_span: u32,
    segments_max: u32,
    counters: Arc<TxCounters>,
    core: Arc<Core<D>>,
}

impl<D: Driver> Tx<D> {
    pub(super) fn new(
        queue: D::Tx,
        core: Arc<Core<D>>,
        limits: &Limits,
        counters: Arc<TxCounters>,
    ) -> Self {
        Self {
            queue: Some(queue),
            cache: FrameCache::new(core.frames().pool().clone()),
            foreign: None,
            spare: Vec::with_capacity(SPARE_MAX),
            len_min: limits.packet_len_min,
            len_span: limits.packet_len_max - limits.packet_len_min,
            segments_max: limits.segments_max,
            counters,
            core,
        }
    }

    /// Takes back the frames that have been sent.
    #[inline]
    fn reclaim(&mut self) {
        let (cache, spare) = (&mut self.cache, &mut self.spare);
        let queue = self.queue.as_mut().expect("taken out on drop only");
        queue.reclaim(|index| {
            if spare.len() == SPARE_MAX {
                // SAFETY: the card has completed it: it is done with the frame.
                unsafe { cache.reclaim(index) };
                return;
            }
            // SAFETY: as above.
            if unsafe { cache.pool().claim_index(index) } {
                spare.push(index);
            }
        });
    }

    /// Whether a packet of this length can be sent.
    #[inline(always)]
    fn fits(&self, len: u32) -> bool {
        len.wrapping_sub(self.len_min) <= self.len_span
    }

    /// A frame of our own.
    #[inline(always)]
    fn take(&mut self) -> Option<u32> {
        self.spare.pop().or_else(|| self.cache.take_index())
    }

    #[inline(always)]
    fn queue(&mut self) -> &mut D::Tx {
        self.queue.as_mut().expect("taken out on drop only")
    }

    fn check(&mut self) -> Result<()> {
        let health = self.queue().health();
        match self.core.notice(health) {
            true => Err(self.core.failure("send packets")),
            false => Ok(()),
        }
    }

    /// Moves the segments of a packet from slots to the ring and returns its length; `None` if it
    /// cannot be sent at all, and its frames are free again.
    fn post_pieces(&mut self, slots: &[Slot]) -> Option<u32> {
        let packet_len: u32 = slots.iter().map(|slot| slot.cap_len).sum();
        let sendable = self.fits(packet_len)
            && slots.len() <= self.segments_max as usize
            && slots.iter().all(|slot| slot.cap_len != 0);
        for (at, slot) in slots.iter().enumerate() {
            let index = slot.token as u32;
            if !sendable {
                // SAFETY: the slot's frame is held by this batch, and the slot ends here.
                unsafe { self.cache.give_index(index) };
                continue;
            }
            // SAFETY: as above.
            unsafe { self.cache.pool().lend_index(index) };
            self.queue().post(TxPart {
                index,
                offset: HEADROOM,
                len: slot.cap_len,
                packet_len,
                is_first: at == 0,
                is_last: at + 1 == slots.len(),
            });
        }
        sendable.then_some(packet_len)
    }

    /// Posts a packet of another queue's and returns its length; `None` if it cannot be sent at
    /// all, and its frames stay where they are.
    #[inline]
    fn take_over(&mut self, packet: &mut [Slot]) -> Option<u32> {
        let packet_len: u32 = packet.iter().map(|slot| slot.cap_len).sum();
        let sendable = self.fits(packet_len)
            && packet.len() <= self.segments_max as usize
            && packet
                .iter()
                .all(|slot| slot.cap_len != 0 && slot.place_in(self.cache.pool()).is_some());
        if !sendable {
            return None;
        }
        let count = packet.len();
        for (at, slot) in packet.iter_mut().enumerate() {
            let (index, offset) = slot.place_in(self.cache.pool())?;
            // SAFETY: the receiving queue holds the frame and hands it over: the slot forgets it.
            unsafe { self.cache.pool().lend_index(index) };
            slot.token = Slot::DETACHED;
            let len = slot.cap_len;
            self.queue().post(TxPart {
                index,
                offset,
                len,
                packet_len,
                is_first: at == 0,
                is_last: at + 1 == count,
            });
        }
        Some(packet_len)
    }

    /// A frame of this queue's pool with the same packet; gives the foreign one back to its pool.
    /// `Err` is the frame again: no room now.
    fn copied(&mut self, frame: Frame) -> Result<std::result::Result<Frame, Frame>> {
        let tag = frame.pool_tag();
        let known = self.foreign.as_ref().map(|cache| cache.pool().tag());
        if known != Some(tag) {
            let pool = Pool::find(tag).ok_or_else(|| {
                let why = "its pool is gone";
                Error::new(ErrorKind::InvalidInput, "send a frame", why)
            })?;
            self.foreign = Some(FrameCache::new(pool));
        }
        let Some(foreign) = &mut self.foreign else {
            return Ok(Err(frame));
        };
        let Some(mut copy) = self.cache.take() else {
            return Ok(Err(frame));
        };
        let (pool, len) = (self.cache.pool(), frame.len());
        if len > pool.frame_len() - HEADROOM {
            let why = format!("{len} bytes do not fit this queue's frames");
            let _ = foreign.give(frame);
            let _ = self.cache.give(copy);
            self.counters.failed.add(1);
            return Err(Error::new(ErrorKind::InvalidInput, "send a frame", why));
        }
        pool.set_range(&mut copy, HEADROOM, len);
        pool.bytes_mut(&mut copy)
            .copy_from_slice(foreign.pool().bytes(&frame));
        let _ = foreign.give(frame);
        self.counters.copied.add(1);
        Ok(Ok(copy))
    }
}

impl<D: Driver> TxBackend for Tx<D> {
    #[inline]
    fn reserve(&mut self, slots: &mut Vec<Slot>, max: usize) -> Result<()> {
        let want = u32::try_from(max).unwrap_or(u32::MAX);
        if self.queue().room() < want.saturating_add(RECLAIM_BELOW) {
            self.reclaim();
        }
        let room = self.queue().room().min(want);
        slots.reserve(room as usize);
        let pool = self.cache.pool();
        let len = pool.frame_len() - HEADROOM;
        let first = pool.base().as_ptr().wrapping_add(HEADROOM as usize);
        let shift = pool.frame_len().trailing_zeros();
        for _ in 0..room {
            let Some(index) = self.take() else {
                break;
            };
            let place = first.wrapping_add((index as usize) << shift);
            // SAFETY: within the pool's mapping, which is not at 0: the index is one of the pool's,
            // and the headroom is within its frame.
            let data = unsafe { NonNull::new_unchecked(place) };
            slots.push(Slot::new(data, len, len, index.into()));
        }
        Ok(())
    }

    #[inline]
    fn submit(&mut self, slots: &mut Vec<Slot>, filled: usize) -> Result<()> {
        let (mut sent, mut bytes, mut failed) = (0, 0, 0);
        let mut at = 0;
        while at < filled {
            let slot = &slots[at];
            let (index, len) = (slot.token as u32, slot.cap_len);
            if slot.has(Slot::CONTINUES) {
                let packet = &slots[at..at + segment_count(&slots[at..filled])];
                at += packet.len();
                match self.post_pieces(packet) {
                    Some(len) => (sent, bytes) = (sent + 1, bytes + u64::from(len)),
                    None => failed += 1,
                }
                continue;
            }
            at += 1;
            if !self.fits(len) {
                // SAFETY: the slot's frame is held by this batch, and the slot ends here.
                unsafe { self.cache.give_index(index) };
                failed += 1;
                continue;
            }
            // SAFETY: as above.
            unsafe { self.cache.pool().lend_index(index) };
            self.queue().post(TxPart {
                index,
                offset: HEADROOM,
                len,
                packet_len: len,
                is_first: true,
                is_last: true,
            });
            (sent, bytes) = (sent + 1, bytes + u64::from(len));
        }
        for slot in &slots[filled..] {
            // SAFETY: the slot's frame is held by this batch, and the slot ends here.
            unsafe { self.cache.give_index(slot.token as u32) };
        }
        slots.clear();
        self.queue().publish();
        if sent != 0 {
            self.counters.sent.add(sent);
            self.counters.sent_bytes.add(bytes);
        }
        if failed != 0 {
            self.counters.failed.add(failed);
        }
        Ok(())
    }

    #[inline]
    fn send(&mut self, frame: Frame) -> Result<Option<Frame>> {
        if self.queue().room() == 0 {
            // Before the card can complete it must know of what was posted.
            self.queue().publish();
            self.reclaim();
            if self.queue().room() == 0 {
                return Ok(Some(frame));
            }
        }
        let frame = match frame.pool_tag() == self.cache.pool().tag() {
            true => frame,
            false => match self.copied(frame)? {
                Ok(copy) => copy,
                Err(frame) => {
                    self.queue().publish();
                    self.reclaim();
                    return Ok(Some(frame));
                }
            },
        };
        let (offset, len) = (frame.offset(), frame.len());
        if !self.fits(len) {
            let _ = self.cache.give(frame);
            self.counters.failed.add(1);
            return Ok(None);
        }
        let index = self.cache.pool().lend(frame);
        self.queue().post(TxPart {
            index,
            offset,
            len,
            packet_len: len,
            is_first: true,
            is_last: true,
        });
        self.counters.sent.add(1);
        self.counters.sent_bytes.add(len.into());
        Ok(None)
    }

    fn transfer(&mut self, slots: &mut [Slot]) -> Result<Option<usize>> {
        if (self.queue().room() as usize) < slots.len() + RECLAIM_BELOW as usize {
            self.reclaim();
        }
        let taken = whole_packets(slots, self.queue().room() as usize);
        let (mut sent, mut bytes, mut failed) = (0, 0, 0);
        let mut rest = &mut slots[..taken];
        while !rest.is_empty() {
            let (packet, tail) = rest.split_at_mut(segment_count(rest));
            rest = tail;
            match self.take_over(packet) {
                Some(len) => (sent, bytes) = (sent + 1, bytes + u64::from(len)),
                None => failed += 1,
            }
        }
        self.counters.sent.add(sent);
        self.counters.sent_bytes.add(bytes);
        self.counters.failed.add(failed);
        Ok(Some(taken))
    }

    #[inline]
    fn flush(&mut self) -> Result<()> {
        self.queue().publish();
        if self.core.has_failed() {
            return Err(self.core.failure("send packets"));
        }
        self.reclaim();
        Ok(())
    }

    fn wait(&mut self, all: bool, timeout: Duration) -> Result<bool> {
        // A year is for ever.
        let end = Instant::now() + timeout.min(Duration::from_secs(365 * 24 * 3600));
        loop {
            self.flush()?;
            let done = if all {
                self.queue().pending() == 0
            } else {
                self.queue().room() != 0 && {
                    let index = self.take();
                    // SAFETY: just taken, and nothing was made of it.
                    index.is_some_and(|index| unsafe { self.cache.give_index(index) })
                }
            };
            if done {
                return Ok(true);
            }
            self.check()?;
            if Instant::now() >= end {
                return Ok(false);
            }
            thread::sleep(NAP);
        }
    }

    fn pool(&self) -> Option<&Pool> {
        Some(self.cache.pool())
    }
}

impl<D: Driver> Drop for Tx<D> {
    fn drop(&mut self) {
        if self.queue().pending() != 0 && !self.core.has_failed() {
            // The link may be down; then what is left counts as failed.
            let _ = self.wait(true, CLOSE_WAIT);
        }
        for index in self.spare.drain(..) {
            // SAFETY: ours since it was claimed, and nothing was made of it.
            unsafe { self.cache.give_index(index) };
        }
        if let Some(queue) = self.queue.take() {
            let left = u64::from(queue.pending()).min(self.counters.sent.get());
            if left != 0 {
                self.counters.sent.add(left.wrapping_neg());
                self.counters.failed.add(left);
            }
            self.core.leave_tx(queue);
        }
    }
}
