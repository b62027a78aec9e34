//! The receiving end of the ring.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ring::slot::{Room, Slot};
use ring::{Consumer, Descriptor, Frame, FrameCache, Pool, sleep};
use sys::{Error, ErrorKind, Result};

use super::{Ends, LOOK_EVERY, SEGMENT_COUNT_MAX, drain};
use crate::account::RxCounters;
use crate::rx::{Filled, Ready, RxBackend};

pub(super) struct Rx {
    pub(super) snaplen: u32,
    pub(super) segment_max: usize,
    /// Whether the start of the next packet in the ring was refused.
    pub(super) skipping: bool,
    pub(super) consumer: ManuallyDrop<Consumer<Descriptor>>,
    pub(super) pool: Pool,
    pub(super) cache: FrameCache,
    pub(super) ends: Arc<Ends>,
    pub(super) counters: Arc<RxCounters>,
}

/// Returns the frames of a packet with a refused segment: those read so far, and the one in the
/// descriptor.
#[cold]
fn refuse(cache: &mut FrameCache, read: std::vec::Drain<'_, Slot>, descriptor: Descriptor) {
    for slot in read {
        // SAFETY: the slot's frame is held by this batch, and the slot ends here.
        unsafe { cache.give_index(slot.token() as u32) };
    }
    // SAFETY: the sender submitted the frame and no longer touches it; a frame that it does not
    // hold stays whose it is.
    unsafe { cache.reclaim(descriptor.index) };
}

/// The slot of a part of a packet that has `len` bytes in its frame.
///
/// # Safety
/// The descriptor's index is within the pool and claimed; its offset and `len` stay within the
/// frame.
#[inline(always)]
unsafe fn slot_of(pool: &Pool, d: Descriptor, len: u32) -> Slot {
    let place = pool.addr_of(d.index) + u64::from(d.offset);
    // SAFETY: the caller's word.
    let mut slot = unsafe {
        let data = pool.base().add(place as usize);
        Slot::over(data, len, d.wire_len, d.index.into())
    };
    slot.time_ns = d.time_ns;
    slot.hash = d.hash;
    slot.set_info(d.info);
    slot
}

impl Rx {
    /// Puts back a packet whose last segment is not present yet, for the next batch.
    #[inline]
    fn put_back(&self, unfinished: std::vec::Drain<'_, Slot>) {
        for slot in unfinished {
            // SAFETY: the slot's frame is held by this batch, and the slot ends here.
            unsafe { self.pool.give_index_to_device(slot.token() as u32) };
        }
    }

    /// Receives single-segment packets at their normal positions, until there is another kind or
    /// `count` are taken.
    #[inline]
    fn fill_plain(&self, slots: &mut Vec<Slot>, count: u32) -> Filled {
        let mut room = Room::new(slots, count as usize);
        let pool = &self.pool;
        let owners = pool.owners();
        let (first, frame_len) = (pool.base().as_ptr(), pool.frame_len());
        let (shift, snaplen) = (frame_len.trailing_zeros(), self.snaplen);
        let mut bytes = 0;
        for at in 0..count {
            let d = self.consumer.read(at);
            let is_plain = !d.continues()
                && d.offset <= frame_len
                && d.cap_len <= (frame_len - d.offset).min(snaplen)
                && d.wire_len == d.cap_len;
            // SAFETY: the sender submitted the frame and no longer touches it.
            if !is_plain || !unsafe { owners.claim(d.index) } {
                break;
            }
            let place = ((d.index as usize) << shift) + d.offset as usize;
            // SAFETY: room was made for `count`. The index is one of the pool's (claimed), offset
            // and length stay within its frame.
            unsafe {
                room.push(
                    first.wrapping_add(place),
                    d.cap_len,
                    d.index,
                    d.time_ns,
                    d.hash,
                    d.info,
                )
            };
            bytes += u64::from(d.cap_len);
        }
        Filled {
            packets: room.finish(),
            bytes,
        }
    }
}

impl RxBackend for Rx {
    #[inline]
    fn fill(&mut self, slots: &mut Vec<Slot>, max: usize) -> Result<Filled> {
        let max = u32::try_from(max).unwrap_or(u32::MAX);
        let count = self.consumer.peek(max.saturating_add(SEGMENT_COUNT_MAX));
        let start = slots.len();
        let mut filled = match self.skipping {
            true => Filled::default(),
            false => self.fill_plain(slots, count.min(max)),
        };
        let plain = filled.packets as u32;
        let (mut whole, mut keep) = (plain, slots.len());
        let (mut taken, mut refused) = (u64::from(plain), 0);
        // Bytes of the packet whose segments are being read, and what snaplen leaves of it.
        let mut bytes = 0;
        let mut rest = self.snaplen;
        let pool = &self.pool;
        let owners = pool.owners();
        for at in plain..count {
            // Exceeds the batch size only while no packet is complete.
            if at >= max && keep > start {
                break;
            }
            let d = self.consumer.read(at);
            // The index comes from shared memory: the owner table decides.
            let continues = d.continues();
            if self.skipping
                || d.offset > pool.frame_len()
                || continues && slots.len() - keep + 1 >= self.segment_max
                // SAFETY: the sender submitted the frame and no longer touches it.
                || !unsafe { owners.claim(d.index) }
            {
                // None of it is delivered: the next packet must not look like its end.
                refuse(&mut self.cache, slots.drain(keep..), d);
                self.skipping = continues;
                bytes = 0;
                taken += u64::from(!continues);
                refused += u64::from(!continues);
                rest = self.snaplen;
                whole = at + 1;
                continue;
            }
            let len = d.cap_len.min(pool.frame_len() - d.offset).min(rest);
            rest = if continues { rest - len } else { self.snaplen };
            // SAFETY: the index is one of the pool's (claimed), offset and length stay within its
            // frame.
            slots.push(unsafe { slot_of(pool, d, len) });
            bytes += u64::from(len);
            if !continues {
                (whole, keep) = (at + 1, slots.len());
                taken += 1;
                filled.packets += 1;
                filled.bytes += std::mem::take(&mut bytes);
            }
        }
        self.put_back(slots.drain(keep..));
        self.consumer.release(whole);
        self.ends.released();
        if taken != 0 {
            self.ends.taken.0.add(taken);
        }
        if refused != 0 {
            self.counters.invalid.add(refused);
        }
        Ok(filled)
    }

    #[inline]
    fn release(&mut self, slots: &mut Vec<Slot>) {
        // A detached slot refers to no frame, and is skipped.
        // SAFETY: this batch owns the slots' frames, and the slots end here.
        unsafe {
            self.cache
                .give_each(slots.iter().map(|slot| slot.token() as u32))
        };
        slots.clear();
    }

    fn detach(&mut self, slot: &mut Slot) -> Result<Frame> {
        let pool = self.cache.pool();
        let gone = || {
            Error::new(
                ErrorKind::InvalidInput,
                "detach a packet",
                "already detached",
            )
        };
        let index = u32::try_from(slot.token()).map_err(|_| gone())?;
        // SAFETY: `fill` claimed the index for this slot, which forgets it below.
        let mut frame = unsafe { pool.adopt(index) };
        let offset = slot.data().as_ptr() as usize - pool.base().as_ptr() as usize;
        let offset = offset as u64 - pool.addr_of(index);
        pool.set_range(&mut frame, offset as u32, slot.cap_len());
        slot.set_detached();
        Ok(frame)
    }

    fn wait(&mut self, timeout: Duration) -> Result<Ready> {
        let end = Instant::now() + timeout;
        loop {
            // Read before the ring: packets sent before the end are received before it is reported.
            let closed = self.ends.tx_closed.load(Ordering::Acquire);
            if self.consumer.peek(1) != 0 {
                return Ok(Ready::Packets);
            }
            if closed {
                return Ok(Ready::End);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Ready::Timeout);
            }
            if self.arm()? && self.ends.bell.wait_beside(None, left.min(LOOK_EVERY))? {
                // A signal arrived: return, so that the caller can handle it.
                return Ok(Ready::Timeout);
            }
        }
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ends.bell.as_fd())
    }

    fn arm(&mut self) -> Result<bool> {
        self.ends.bell.take();
        sleep::prepare(&self.ends.is_sleeping);
        Ok(self.consumer.peek(1) == 0 && !self.ends.tx_closed.load(Ordering::Acquire))
    }

    fn pool(&self) -> Option<&Pool> {
        Some(self.cache.pool())
    }

    fn has_pool_frames(&self) -> bool {
        true
    }
}

impl Drop for Rx {
    fn drop(&mut self) {
        self.ends.rx_closed.store(true, Ordering::Release);
        self.ends.room.signal();
        let mut rest = self.ends.rest();
        let packets = drain(&mut self.consumer, &mut self.cache);
        self.ends.closed.fetch_add(packets, Ordering::Relaxed);
        // SAFETY: taken only here, and `self` is not used again.
        *rest = Some(unsafe { ManuallyDrop::take(&mut self.consumer) });
    }
}
