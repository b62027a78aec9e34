//! Packets from the guest, out of the vring that is its transmit queue.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ring::slot::Slot;
use ring::{Frame, FrameCache, Pool};
use sys::poll::{self, Wanted};
use sys::{Error, ErrorKind, Result};
use vhost::{Broken, Chain, Guard, HEADER_LEN, Server};

use super::control::{NOT_STOPPED, Part};
use super::{HEADROOM, PACKET_LEN_MAX};
use crate::account::RxCounters;
use crate::backend::clock;
use crate::options::{PortOptions, TimestampSource};
use crate::rx::{Filled, Ready, RxBackend};

/// Length of an Ethernet header: the shortest packet.
const PACKET_LEN_MIN: u32 = 14;

pub(super) struct Rx {
    server: Arc<Server>,
    pair: u32,
    cache: FrameCache,
    snaplen: u32,
    is_stamped: bool,
    counters: Arc<RxCounters>,
    /// As [`Part::left`].
    left: Arc<AtomicU32>,
    /// Whether the guest was asked to kick.
    is_armed: bool,
}

impl Rx {
    pub fn new(
        server: Arc<Server>,
        pair: u32,
        pool: &Pool,
        options: &PortOptions,
        part: &Part,
    ) -> Self {
        Self {
            server,
            pair,
            cache: FrameCache::new(pool.clone()),
            snaplen: match options.snaplen {
                0 => u32::MAX,
                snaplen => snaplen,
            },
            is_stamped: options.timestamp != TimestampSource::None,
            counters: part.rx.clone(),
            left: part.left.clone(),
            is_armed: false,
        }
    }
}

/// The result of one chain.
enum Taken {
    /// A packet, with so many captured bytes.
    Packet(u32),
    /// None: too short or too long.
    Refused,
    /// No frame is free: the chain stays.
    NoFrame,
}

/// Where the packets of a batch are copied to.
struct Into<'a> {
    cache: &'a mut FrameCache,
    slots: &'a mut Vec<Slot>,
    counters: &'a RxCounters,
    snaplen: u32,
    /// 0: none.
    time_ns: u64,
}

impl Into<'_> {
    /// Copies the packet of a chain into frames.
    #[inline]
    fn take(&mut self, chain: &Chain<'_>) -> Taken {
        let len = chain.len().saturating_sub(HEADER_LEN as u32);
        if len < PACKET_LEN_MIN {
            self.counters.invalid.add(1);
            return Taken::Refused;
        }
        if len > PACKET_LEN_MAX {
            self.counters.too_long.add(1);
            return Taken::Refused;
        }
        let pool = self.cache.pool().clone();
        let room = pool.frame_len() - HEADROOM;
        let (start, cap_len) = (self.slots.len(), len.min(self.snaplen));
        let mut copied = 0;
        while copied < cap_len {
            let Some(index) = self.cache.take_index() else {
                for slot in self.slots.drain(start..) {
                    // SAFETY: taken below, for a slot that ends here.
                    unsafe { self.cache.give_index(slot.index()) };
                }
                return Taken::NoFrame;
            };
            let now = (cap_len - copied).min(room);
            // SAFETY: the frame was just taken, so nothing else accesses it, and `now` bytes fit
            // behind the headroom. The pool's memory is initialized.
            let mut slot = unsafe {
                let data = pool
                    .base()
                    .add(pool.addr_of(index) as usize + HEADROOM as usize);
                let bytes = std::slice::from_raw_parts_mut(data.as_ptr(), now as usize);
                let is_whole = chain.read(HEADER_LEN as u32 + copied, bytes);
                debug_assert!(is_whole, "the chain was checked");
                Slot::over(data, now, len, index.into())
            };
            copied += now;
            if copied < cap_len {
                slot.set_continues();
            }
            if self.time_ns != 0 {
                slot.set_time(self.time_ns);
            }
            self.slots.push(slot);
        }
        Taken::Packet(cap_len)
    }

    /// Takes up to `max` packets out of the vring.
    fn fill(&mut self, guard: &mut Guard<'_>, max: usize) -> std::result::Result<Filled, Broken> {
        let mut filled = Filled::default();
        let Some((vring, counts)) = guard.running() else {
            return Ok(filled);
        };
        let waiting = vring.waiting()? as usize;
        for _ in 0..waiting.min(max) {
            let (head, chain) = vring.chain()?;
            match self.take(&chain) {
                Taken::Packet(bytes) => {
                    filled.packets += 1;
                    filled.bytes += u64::from(bytes);
                }
                Taken::Refused => {}
                Taken::NoFrame => break,
            }
            vring.done(head, 0);
            counts.taken += 1;
        }
        Ok(filled)
    }
}

impl RxBackend for Rx {
    fn fill(&mut self, slots: &mut Vec<Slot>, max: usize) -> Result<Filled> {
        self.server.start()?;
        let mut guard = self.server.queues().from_guest(self.pair).lock();
        // It changes only under the lock.
        let left = self.left.load(Ordering::Relaxed);
        let max = max.min(left as usize);
        let Some((vring, counts)) = guard.running() else {
            if guard.started().is_some() {
                guard.discard();
            }
            return Ok(Filled::default());
        };
        if vring.waiting() == Ok(0) {
            return Ok(Filled::default());
        }
        if std::mem::take(&mut self.is_armed) {
            vring.request_no_kick();
        }
        let start = slots.len();
        let taken_before = counts.taken;
        let mut into = Into {
            cache: &mut self.cache,
            slots,
            counters: &self.counters,
            snaplen: self.snaplen,
            time_ns: match self.is_stamped {
                true => clock::now_ns(libc::CLOCK_REALTIME),
                false => 0,
            },
        };
        let filled = match into.fill(&mut guard, max) {
            Ok(filled) => {
                guard.publish();
                filled
            }
            Err(why) => {
                guard.fail(why);
                // Packets before the invalid one are delivered.
                Filled::of(&slots[start..])
            }
        };
        if left != NOT_STOPPED {
            // Refused packets waited at the stop, too.
            let taken = guard.counts().taken - taken_before;
            let left = left.saturating_sub(u32::try_from(taken).unwrap_or(left));
            self.left.store(left, Ordering::Relaxed);
        }
        Ok(filled)
    }

    #[inline]
    fn release(&mut self, slots: &mut Vec<Slot>) {
        // A detached slot refers to no frame, and is skipped.
        // SAFETY: this batch owns the slots' frames, and the slots end here.
        unsafe { self.cache.give_each(slots.iter().map(Slot::index)) };
        slots.clear();
    }

    fn detach(&mut self, slot: &mut Slot) -> Result<Frame> {
        let pool = self.cache.pool();
        let Some((index, offset)) = slot.place_in(pool) else {
            let (what, why) = ("detach a packet", "already detached");
            return Err(Error::new(ErrorKind::InvalidInput, what, why));
        };
        // SAFETY: `fill` took the index for this slot, which forgets it below.
        let mut frame = unsafe { pool.adopt(index) };
        pool.set_range(&mut frame, offset, slot.cap_len());
        slot.set_detached();
        Ok(frame)
    }

    fn wait(&mut self, timeout: Duration) -> Result<Ready> {
        let end = Instant::now() + timeout;
        loop {
            if !self.arm()? {
                return Ok(Ready::Packets);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Ready::Timeout);
            }
            let fd = self.server.queues().from_guest(self.pair).poll_fd();
            let mut wanted = [Wanted::readable(&fd)];
            poll::wait(&mut wanted, left)?;
            if !wanted[0].is_ready() {
                // The time is over, or a signal arrived, which the caller handles.
                return Ok(Ready::Timeout);
            }
        }
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.server.queues().from_guest(self.pair).poll_fd())
    }

    fn arm(&mut self) -> Result<bool> {
        self.server.start()?;
        let queue = self.server.queues().from_guest(self.pair);
        queue.take_kicks();
        let mut guard = queue.lock();
        let Some((vring, _)) = guard.running() else {
            // A disabled vring has packets to discard.
            if guard.started().is_some() {
                guard.discard();
            }
            return Ok(true);
        };
        self.is_armed = true;
        if vring.request_kick(0) {
            return Ok(true);
        }
        match vring.waiting() {
            Ok(_) => Ok(false),
            Err(why) => {
                guard.fail(why);
                Ok(true)
            }
        }
    }

    fn pool(&self) -> Option<&Pool> {
        Some(self.cache.pool())
    }

    fn has_pool_frames(&self) -> bool {
        true
    }
}
