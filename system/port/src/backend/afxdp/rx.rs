//! The receiving end of a queue.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use ring::slot::{Slot, Vlan, prefetch};
use ring::{Consumer, Frame, FrameCache, Pool, Producer};
use sys::xsk::{Descriptor, PACKET_CONTINUES};
use sys::{Error, ErrorKind, Result};
use xdp::XskMap;
use xdp::metadata::{FLAG_HASH, FLAG_TIME, FLAG_VLAN, MAGIC, METADATA_LEN, RawMetadata};

use super::super::clock::{Clock, now_ns};
use super::attach::Attachment;
use super::borrowed::{Borrowed, Claim};
use super::socket::{RxParts, Shared, top_up};
use crate::account::RxCounters;
use crate::rx::{Filled, Ready, RxBackend};

/// Maximum number of segments of a packet: what the kernel puts into one (`MAX_SKB_FRAGS` + 1, at
/// most 46 by its configuration).
const SEGMENTS_MAX: u32 = 64;

/// Number of empty calls after which the port checks whether the device still exists.
const CHECK_EVERY: u32 = 4096;

/// Source of packet times.
pub(super) enum Times {
    /// No timestamps.
    None,
    /// The system clock, once per batch.
    Batch,
    /// The time that the program wrote before the packet.
    Program(Clock),
}

pub(super) struct Rx {
    // The rings first: they unmap before the socket closes.
    rx: Consumer<Descriptor>,
    fill: Producer<u64>,
    cache: FrameCache,
    borrowed: Borrowed,
    fill_count: u32,
    snaplen: u32,
    times: Times,
    metadata: bool,
    busy_poll: bool,
    idle_calls: u32,
    shared: Arc<Shared>,
    attachment: Option<Arc<Attachment>>,
    sockets: Option<Arc<XskMap>>,
    counters: Arc<RxCounters>,
}

/// Settings of a queue.
pub(super) struct RxSettings {
    pub snaplen: u32,
    pub times: Times,
    /// Whether the program writes metadata before each packet.
    pub metadata: bool,
    pub busy_poll: bool,
    /// The map of the caller's program.
    pub sockets: Option<Arc<XskMap>>,
}

impl Rx {
    pub(super) fn new(
        parts: RxParts,
        shared: Arc<Shared>,
        attachment: Option<Arc<Attachment>>,
        pool: Pool,
        settings: RxSettings,
        counters: Arc<RxCounters>,
    ) -> Self {
        let RxParts { rx, fill, borrowed } = parts;
        Self {
            rx,
            fill,
            cache: FrameCache::new(pool),
            borrowed,
            fill_count: shared.spec.fill_count,
            snaplen: match settings.snaplen {
                0 => u32::MAX,
                len => len,
            },
            times: settings.times,
            metadata: settings.metadata,
            busy_poll: settings.busy_poll,
            idle_calls: 0,
            shared,
            attachment,
            sockets: settings.sockets,
            counters,
        }
    }

    /// Called without packets: gives returned frames to the kernel, drives the queue when polling,
    /// checks the device.
    #[cold]
    fn idle(&mut self) -> Result<()> {
        self.refill();
        if self.busy_poll {
            // Errors are found by the check below.
            let _ = self.shared.socket.kick_rx();
        }
        self.idle_calls = self.idle_calls.wrapping_add(1);
        let check = self.idle_calls.is_multiple_of(CHECK_EVERY) || self.shared.is_gone();
        if check && self.shared.check_gone() {
            return Err(self.shared.gone_error("receive packets"));
        }
        Ok(())
    }

    /// Gives frames to the kernel until it has as many as at the start, and wakes it if it waits
    /// for them.
    #[inline]
    fn refill(&mut self) {
        top_up(
            &mut self.fill,
            &mut self.cache,
            &mut self.borrowed,
            self.fill_count,
        );
        if self.fill.need_wakeup() {
            let _ = self.shared.socket.kick_rx();
        }
    }

    /// Claims the frame of one descriptor from the kernel: returns its index, or `None` if the
    /// packet is invalid.
    #[inline(always)]
    fn claim(&mut self, d: Descriptor) -> Option<u32> {
        match self.borrowed.claim(self.cache.pool(), d) {
            Claim::Packet(index) => Some(index),
            Claim::TooLong(index) => {
                // SAFETY: claimed just now, and no slot was made of it.
                unsafe { self.cache.give_index(index) };
                None
            }
            Claim::Foreign => None,
        }
    }

    /// The slot of a claimed frame.
    #[inline(always)]
    fn slot(&self, d: Descriptor, index: u32) -> Slot {
        // SAFETY: the frame was claimed, so the address is inside the pool's frames.
        let data = unsafe { self.cache.pool().base().add(d.addr as usize) };
        prefetch(data.as_ptr());
        if self.metadata {
            prefetch(data.as_ptr().wrapping_sub(METADATA_LEN));
        }
        // SAFETY: as above: claiming checked that the range lies within the frame.
        unsafe { Slot::over(data, d.len.min(self.snaplen), d.len, index.into()) }
    }

    /// Moves the descriptors from `at` to `count`, one or several per packet, into `slots`; returns
    /// how many were moved, up to the end of a packet, and how many packets were refused.
    fn take_pieces(
        &mut self,
        slots: &mut Vec<Slot>,
        mut at: u32,
        mut count: u32,
        max: u32,
    ) -> (u32, u64) {
        // Descriptors and slots up to the end of the last whole packet; whether the current one is
        // valid.
        let (mut whole, mut keep, mut sound) = (at, slots.len(), true);
        let mut refused = 0;
        loop {
            if at == count {
                // A packet longer than the batch is returned alone.
                if whole != 0 || count < max {
                    break;
                }
                count = self.rx.peek(max.saturating_add(SEGMENTS_MAX));
                if at == count {
                    break;
                }
            }
            let d = self.rx.read(at);
            at += 1;
            let continues = d.options & PACKET_CONTINUES != 0;
            match self.claim(d) {
                Some(index) => {
                    let mut slot = self.slot(d, index);
                    slot.flags = if continues { Slot::CONTINUES } else { 0 };
                    slots.push(slot);
                }
                None => sound = false,
            }
            if continues {
                continue;
            }
            if sound {
                self.join(&mut slots[keep..]);
            } else {
                refused += 1;
                for slot in slots.drain(keep..) {
                    // SAFETY: the slot's frame is held by this batch, and the slot ends here.
                    unsafe { self.cache.give_index(slot.token() as u32) };
                }
                sound = true;
            }
            (whole, keep) = (at, slots.len());
            if at >= max {
                break;
            }
        }
        // A packet split by the end of the batch stays in the ring for the next one.
        for slot in slots.drain(keep..) {
            // SAFETY: the slot's frame is held by this batch, and the slot ends here.
            unsafe { self.cache.pool().give_index_to_device(slot.token() as u32) };
            self.borrowed.insert(slot.token() as u32);
        }
        (whole, refused)
    }

    /// Sets the packet's total length in all its segments, and truncates them together to the
    /// snaplen.
    fn join(&self, segments: &mut [Slot]) {
        let wire_len = segments.iter().map(|slot| slot.wire_len).sum();
        let mut room = self.snaplen;
        for slot in segments {
            slot.wire_len = wire_len;
            slot.cut_to(room);
            room -= slot.cap_len();
        }
    }

    /// Copies the metadata before each packet into its first slot.
    #[inline]
    fn read_metadata(&mut self, slots: &mut [Slot]) {
        let frame_mask = self.cache.pool().frame_len() as usize - 1;
        let base = self.cache.pool().base().as_ptr() as usize;
        let mut first = true;
        for slot in slots {
            let is_first = std::mem::replace(&mut first, !slot.has(Slot::CONTINUES));
            let data = slot.data().as_ptr();
            if !is_first || (data as usize - base) & frame_mask < METADATA_LEN {
                continue;
            }
            // SAFETY: the bytes lie in the same frame, before the packet; we own the frame, and any
            // bytes are a value.
            let found = unsafe {
                data.sub(METADATA_LEN)
                    .cast::<RawMetadata>()
                    .read_unaligned()
            };
            if found.magic != MAGIC {
                continue;
            }
            if found.flags & FLAG_TIME != 0
                && found.time_ns != 0
                && let Times::Program(clock) = &mut self.times
            {
                slot.time_ns = clock.unix_ns(found.time_ns, found.clock());
                slot.flags |= Slot::TIME;
            }
            if found.flags & FLAG_HASH != 0 {
                slot.set_rss_hash(found.hash);
            }
            if found.flags & FLAG_VLAN != 0 {
                let (tpid, tci) = (found.vlan_proto, found.vlan_tci);
                slot.vlan = Vlan { tpid, tci };
                slot.flags |= Slot::VLAN;
            }
        }
    }
}

impl RxBackend for Rx {
    #[inline]
    fn fill(&mut self, slots: &mut Vec<Slot>, max: usize) -> Result<Filled> {
        let max = u32::try_from(max).unwrap_or(u32::MAX);
        let count = self.rx.peek(max);
        if count == 0 {
            self.idle()?;
            return Ok(Filled::default());
        }
        let (start, mut refused, mut at) = (slots.len(), 0, 0);
        slots.reserve(count as usize);
        // Single-buffer packets, until there is another kind.
        while at < count {
            let d = self.rx.read(at);
            if d.options & PACKET_CONTINUES != 0 {
                break;
            }
            match self.claim(d) {
                Some(index) => {
                    let slot = self.slot(d, index);
                    slots.push(slot);
                }
                None => refused += 1,
            }
            at += 1;
        }
        if at < count {
            let (taken, wrong) = self.take_pieces(slots, at, count, max);
            at = taken;
            refused += wrong;
        }
        self.rx.release(at);
        if self.metadata {
            self.read_metadata(&mut slots[start..]);
        }
        if let Times::Batch = self.times {
            let time_ns = now_ns(libc::CLOCK_REALTIME);
            for slot in &mut slots[start..] {
                slot.time_ns = time_ns;
                slot.flags |= Slot::TIME;
            }
        }
        if refused != 0 {
            self.counters.invalid.add(refused);
        }
        Ok(Filled::of(&slots[start..]))
    }

    #[inline]
    fn release(&mut self, slots: &mut Vec<Slot>) {
        // Straight back to the kernel: no shared state but the ring is accessed.
        let room = self.fill.reserve(slots.len() as u32);
        let mut count = 0;
        for slot in slots.iter() {
            if slot.token() == Slot::DETACHED {
                continue;
            }
            let index = slot.token() as u32;
            if count < room {
                // SAFETY: the slot's frame is held by this batch, and the slot ends here.
                unsafe { self.cache.pool().give_index_to_device(index) };
                self.borrowed.insert(index);
                self.fill.write(count, self.cache.pool().addr_of(index));
                count += 1;
            } else {
                // SAFETY: as above.
                unsafe { self.cache.give_index(index) };
            }
        }
        slots.clear();
        self.fill.submit(count);
        self.refill();
    }

    fn detach(&mut self, slot: &mut Slot) -> Result<Frame> {
        let pool = self.cache.pool();
        let index = u32::try_from(slot.token()).map_err(|_| {
            let what = "detach a packet";
            Error::new(ErrorKind::InvalidInput, what, "it was already detached")
        })?;
        // SAFETY: `fill` claimed the index for this slot, which forgets it below.
        let mut frame = unsafe { pool.adopt(index) };
        let offset = slot.data().as_ptr() as usize - pool.base().as_ptr() as usize;
        let offset = offset as u64 - pool.addr_of(index);
        pool.set_range(&mut frame, offset as u32, slot.cap_len());
        slot.set_detached();
        Ok(frame)
    }

    fn wait(&mut self, timeout: Duration) -> Result<Ready> {
        if self.rx.peek(1) != 0 {
            return Ok(Ready::Packets);
        }
        self.refill();
        // Rounded up: a short wait must not become a busy loop.
        let ms = timeout.as_micros().div_ceil(1000).min(i32::MAX as u128);
        let ready = self.shared.socket.poll(false, ms as i32)?;
        if ready || self.rx.peek(1) != 0 {
            return Ok(Ready::Packets);
        }
        // poll() does not report that the device is gone.
        if self.shared.check_gone() {
            return Err(self.shared.gone_error("wait for packets"));
        }
        Ok(Ready::Timeout)
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.socket.as_fd())
    }

    fn pool(&self) -> Option<&Pool> {
        Some(self.cache.pool())
    }

    fn has_pool_frames(&self) -> bool {
        true
    }

    fn ring_len(&self) -> Option<u32> {
        Some(self.rx.entry_count())
    }
}

impl Drop for Rx {
    fn drop(&mut self) {
        // First the program stops using the socket (packets continue to the host), then it closes:
        // closing a socket that packets are still redirected to has crashed kernels.
        let queue_index = self.shared.spec.queue_index;
        if let Some(sockets) = &self.sockets {
            // The kernel removes a closed socket, too.
            let _ = sockets.clear(queue_index);
        }
        if let Some(attachment) = &self.attachment {
            attachment.forget(queue_index);
        }
        if self.sockets.is_some() || self.attachment.is_some() {
            thread::sleep(Duration::from_millis(1));
        }
        let left = self.shared.rx_waiting();
        self.shared.closed.fetch_add(left, Ordering::Relaxed);
        let empty = Borrowed::new(0);
        self.shared
            .leave(std::mem::replace(&mut self.borrowed, empty));
    }
}

#[cfg(test)]
mod tests;
