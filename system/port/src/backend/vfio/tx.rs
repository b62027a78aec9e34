//! The sending end of a queue, for any driver.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ring::slot::{Slot, segment_count, whole_packets};
use ring::{Frame, FrameCache, Pool};
use sys::Result;
use vfio::{Core, Driver, DriverTx, Health, Lengths, Limits, TxPart};

use super::super::handover::{Buffers, Copied, Foreign, Part, reserve_buffers, take_over};
use crate::account::TxCounters;
use crate::tx::TxBackend;

/// Room before a packet, as in AF_XDP: for headers to be prepended, also by drivers.
const HEADROOM: u32 = 256;
/// Interval between checks of completions while waiting.
const NAP: Duration = Duration::from_micros(50);
/// How long closing waits for submitted packets.
const CLOSE_WAIT: Duration = Duration::from_millis(100);
/// Completions are checked if fewer entries than for this many packets are free.
const RECLAIM_BELOW: u32 = 256;

/// Maximum number of frames kept out of the free list: a batch.
const SPARE_MAX: usize = 64;

pub(super) struct Tx<D: Driver> {
    /// `Some` until the queue is dropped.
    queue: Option<D::Tx>,
    cache: FrameCache,
    foreign: Foreign,
    /// Frames that were returned: the next to be borrowed, bypassing the free list. Until then they
    /// stay marked as the device's, which reserves them.
    spare: Vec<u32>,
    lengths: Lengths,
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
            foreign: Foreign::default(),
            spare: Vec::with_capacity(SPARE_MAX),
            lengths: Lengths::new(limits.packet_len_min, limits.packet_len_max),
            segments_max: limits.segments_max,
            counters,
            core,
        }
    }

    /// Reclaims the frames that have been sent.
    #[inline]
    fn reclaim(&mut self) {
        let (cache, spare) = (&mut self.cache, &mut self.spare);
        let queue = self.queue.as_mut().expect("taken out on drop only");
        queue.reclaim(|frames| {
            let most = frames.len().min(SPARE_MAX.saturating_sub(spare.len()));
            let (kept, rest) = frames.split_at(most);
            spare.extend_from_slice(kept);
            if !rest.is_empty() {
                // SAFETY: the card has completed them: it is done with the frames.
                unsafe { cache.reclaim_run(rest) };
            }
        });
    }

    /// Lets the card finish, for a limited time: the link may be down. The rest then counts as
    /// failed.
    fn finish(&mut self) {
        let end = Instant::now() + CLOSE_WAIT;
        self.queue().publish();
        loop {
            // A card that the kernel requests back works until it is closed.
            let works = self.queue().health() == Health::Running;
            self.reclaim();
            if self.queue().pending() == 0 || !works || Instant::now() >= end {
                return;
            }
            thread::sleep(NAP);
        }
    }

    /// Whether there is a free frame.
    fn has_frame(&mut self) -> bool {
        !self.spare.is_empty() || {
            let index = self.cache.take_index();
            // SAFETY: just taken, and nothing was made of it.
            index.is_some_and(|index| unsafe { self.cache.give_index(index) })
        }
    }

    #[inline]
    fn copied(&mut self, frame: Frame) -> Result<Copied> {
        // The copy's frame comes from the cache; the only free one may be in `spare`.
        if let Some(index) = self.spare.pop() {
            // SAFETY: the card has completed it, and nothing was made of it since.
            unsafe { self.cache.reclaim(index) };
        }
        self.foreign
            .copy(frame, HEADROOM, &mut self.cache, &self.counters)
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

    /// Moves a packet other than a plain one from slots to the ring and returns its length; `None`
    /// if it cannot be sent at all, and its frames are free again.
    #[cold]
    fn post_pieces(&mut self, slots: &[Slot]) -> Option<u32> {
        let packet_len: u32 = slots.iter().map(|slot| slot.cap_len()).sum();
        let sendable = self.lengths.hold(packet_len)
            && slots.len() <= self.segments_max as usize
            && slots.iter().all(|slot| slot.cap_len() != 0);
        let indices = slots.iter().map(|slot| slot.token() as u32);
        if !sendable {
            // SAFETY: the slots' frames are held by this batch, and the slots end here.
            unsafe { self.cache.give_each(indices) };
            return None;
        }
        let owners = self.cache.pool().owners();
        // SAFETY: as above.
        let borrowed = indices
            .clone()
            .take_while(|&index| unsafe { owners.give_to_device(index) });
        let borrowed = borrowed.count();
        if borrowed != slots.len() {
            for index in indices.clone().take(borrowed) {
                // SAFETY: borrowed just now, and no device has been reported.
                unsafe { self.cache.reclaim(index) };
            }
            // SAFETY: the slots' frames are held by this batch, but for the one that was not, and
            // the slots end here.
            unsafe { self.cache.give_each(indices.skip(borrowed + 1)) };
            return None;
        }
        for (at, (slot, index)) in slots.iter().zip(indices).enumerate() {
            self.queue().post(TxPart {
                index,
                offset: HEADROOM,
                len: slot.cap_len(),
                packet_len,
                is_first: at == 0,
                is_last: at + 1 == slots.len(),
            });
        }
        Some(packet_len)
    }

    /// Posts a packet of another queue and returns its length; `None` if it cannot be sent at all,
    /// and its frames stay where they are.
    #[inline]
    fn take_over(&mut self, packet: &mut [Slot]) -> Option<u32> {
        let (lengths, most) = (self.lengths, self.segments_max as usize);
        let (count, mut is_first) = (packet.len(), true);
        let packet_len = packet.iter().map(|slot| slot.cap_len()).sum();
        let queue = self.queue.as_mut().expect("taken out on drop only");
        take_over(
            self.cache.pool(),
            packet,
            |len| lengths.hold(len) && count <= most,
            |part: Part| {
                queue.post(TxPart {
                    index: part.index,
                    offset: part.offset,
                    len: part.len,
                    packet_len,
                    is_first: std::mem::take(&mut is_first),
                    is_last: part.is_last,
                });
            },
        )
    }
}

impl<D: Driver> TxBackend for Tx<D> {
    #[inline]
    fn reserve(&mut self, slots: &mut Vec<Slot>, max: usize) -> Result<()> {
        let want = u32::try_from(max).unwrap_or(u32::MAX);
        if self.queue().room() < want.saturating_add(RECLAIM_BELOW) {
            self.reclaim();
        }
        let room = self.queue().room().min(want) as usize;
        let kept = self.spare.len().saturating_sub(room);
        let spare = &self.spare[kept..];
        let left = room - spare.len();
        let mut buffers = Buffers::new(self.cache.pool(), slots, spare.len(), HEADROOM);
        // SAFETY: frames that were posted, indices of the pool's; the card has completed them, and
        // they are forgotten here.
        unsafe { buffers.claim(self.cache.pool().owners(), spare) };
        buffers.finish();
        self.spare.truncate(kept);
        reserve_buffers(&mut self.cache, slots, left, HEADROOM);
        Ok(())
    }

    #[inline]
    fn submit(&mut self, slots: &mut Vec<Slot>, filled: usize) -> Result<()> {
        let (mut sent, mut bytes, mut failed) = (0, 0, 0);
        let (mut rest, unused) = slots.split_at(filled);
        let lengths = self.lengths;
        while !rest.is_empty() {
            // SAFETY: `reserve` made the slots, and tokens are never changed.
            let posted = unsafe { self.queue().post_slots(rest, HEADROOM, lengths) };
            sent += posted.packets as u64;
            bytes += posted.bytes;
            rest = &rest[posted.packets..];
            if !rest.is_empty() {
                let (packet, behind) = rest.split_at(segment_count(rest));
                rest = behind;
                match self.post_pieces(packet) {
                    Some(len) => (sent, bytes) = (sent + 1, bytes + u64::from(len)),
                    None => failed += 1,
                }
            }
        }
        if !unused.is_empty() {
            let unused = unused.iter().map(|slot| slot.token() as u32);
            // SAFETY: the slots' frames are held by this batch, and the slots end here.
            unsafe { self.cache.give_each(unused) };
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
            // The card must know of the posted packets before it can complete them.
            self.queue().publish();
            self.reclaim();
            if self.queue().room() == 0 {
                return Ok(Some(frame));
            }
        }
        let frame = match frame.pool_tag() == self.cache.pool().tag() {
            true => frame,
            false => match self.copied(frame)? {
                Copied::Frame(copy) => copy,
                Copied::NoRoom(frame) => {
                    self.queue().publish();
                    self.reclaim();
                    return Ok(Some(frame));
                }
            },
        };
        let (offset, len) = (frame.offset(), frame.len());
        if !self.lengths.hold(len) {
            let _ = self.cache.give(frame);
            self.counters.failed.add(1);
            return Ok(None);
        }
        let index = self.cache.pool().give_to_device(frame);
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
        // Also for a lost card: the frames it had sent are in memory.
        self.reclaim();
        self.foreign.age();
        match self.core.has_failed() {
            true => Err(self.core.failure("send packets")),
            false => Ok(()),
        }
    }

    fn wait(&mut self, all: bool, timeout: Duration) -> Result<bool> {
        // A year stands for no timeout.
        let end = Instant::now() + timeout.min(Duration::from_secs(365 * 24 * 3600));
        loop {
            self.flush()?;
            let done = if all {
                self.queue().pending() == 0
            } else {
                self.queue().room() != 0 && self.has_frame()
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
        self.finish();
        // SAFETY: the card has completed them, and nothing was made of them since.
        unsafe { self.cache.reclaim_run(&self.spare) };
        self.spare.clear();
        if let Some(queue) = self.queue.take() {
            let left = queue.left();
            let counters = &self.counters;
            let packets = (left.packets as u64).min(counters.sent.get());
            let bytes = left.bytes.min(counters.sent_bytes.get());
            if packets != 0 {
                counters.sent.add(packets.wrapping_neg());
                counters.sent_bytes.add(bytes.wrapping_neg());
                counters.failed.add(packets);
            }
            self.core.leave_tx(queue);
        }
    }
}
