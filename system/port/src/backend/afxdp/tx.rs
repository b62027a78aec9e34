//! The sending end of a queue.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ring::slot::{Slot, segment_count, whole_packets};
use ring::{Consumer, Frame, FrameCache, Pool, Producer};
use sys::xsk::{Descriptor, PACKET_CONTINUES, PACKET_HEADROOM, RingMap};
use sys::{Error, ErrorKind, Result};

use super::super::handover::{Copied, Foreign, reserve_buffers, take_over};
use super::borrowed::Borrowed;
use super::socket::{Shared, TxParts, indices, packet_at, packets_between};
use crate::account::TxCounters;
use crate::tx::TxBackend;

/// Minimum packet length: an Ethernet header. The kernel drops shorter ones silently, or without
/// returning the frame.
const PACKET_LEN_MIN: u32 = 14;
/// Maximum number of segments of a packet: what fits into a socket buffer besides its head
/// (`MAX_SKB_FRAGS`).
const SEGMENTS_MAX: usize = 17;
/// Maximum number of system calls per flush; the rest is sent by the next.
const KICKS_MAX: u32 = 256;
/// Room before a packet, as in a received one.
const HEADROOM: u32 = PACKET_HEADROOM;
/// Interval between checks of the completion ring while waiting.
const NAP: Duration = Duration::from_micros(50);
/// Interval between two queries whether an interface that is down still exists.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// In copy mode, maximum number of packets reserved and not yet sent. The kernel copies them during
/// the call, so that more in a batch save little, and their frames would no longer be in the
/// processor's cache.
const COPY_BATCH: u32 = 128;
/// How long closing waits for submitted packets.
const CLOSE_WAIT: Duration = Duration::from_millis(100);

pub(super) struct Tx {
    // The rings first: they unmap before the socket closes.
    tx: Producer<Descriptor>,
    completion: Consumer<u64>,
    view: Arc<RingMap>,
    cache: FrameCache,
    borrowed: Borrowed,
    /// Descriptors written and not yet visible to the kernel.
    staged: u32,
    /// Whether descriptors became visible since the last kick.
    unkicked: bool,
    /// In copy mode: the ring's index up to which the kernel is known to have taken packets. It
    /// reports refused packets only when it sends the next one.
    taken: u32,
    foreign: Foreign,
    /// When the kernel was last asked whether the interface exists; `None` while it is up.
    asked_at: Option<Instant>,
    busy_poll: bool,
    shared: Arc<Shared>,
    counters: Arc<TxCounters>,
}

impl Tx {
    pub(super) fn new(
        parts: TxParts,
        shared: Arc<Shared>,
        pool: Pool,
        busy_poll: bool,
        counters: Arc<TxCounters>,
    ) -> Self {
        let TxParts {
            tx,
            completion,
            borrowed,
            view,
        } = parts;
        Self {
            taken: indices(&view).1,
            tx,
            completion,
            view,
            cache: FrameCache::new(pool),
            borrowed,
            staged: 0,
            unkicked: false,
            foreign: Foreign::default(),
            asked_at: None,
            busy_poll,
            shared,
            counters,
        }
    }

    /// Reclaims the frames that have been sent.
    #[inline]
    fn reclaim(&mut self) {
        let count = self.completion.peek(u32::MAX);
        for at in 0..count {
            let addr = self.completion.read(at);
            // An invalid address is ignored.
            if let Some((index, _)) = self.cache.pool().locate(addr)
                && self.borrowed.remove(index)
            {
                // SAFETY: the kernel completed it: it is done with the frame.
                unsafe { self.cache.reclaim(index) };
            }
        }
        if count != 0 {
            self.completion.release(count);
        }
    }

    /// Number of free entries in the ring besides those staged, at most `want`.
    #[inline]
    fn room(&mut self, want: u32) -> u32 {
        let want = want.min(self.tx.entry_count());
        let room = self.tx.reserve(self.staged + want) - self.staged;
        // The completion ring has the same length: the kernel holds back what would not fit.
        room.min(want)
    }

    /// Makes the written descriptors visible to the kernel.
    #[inline]
    fn publish(&mut self) {
        if self.staged != 0 {
            self.tx.submit(self.staged);
            self.staged = 0;
            self.unkicked = true;
        }
    }

    /// Writes a frame's descriptor after those staged; the kernel owns the frame from here on.
    #[inline]
    fn stage(&mut self, index: u32, offset: u32, len: u32, continues: bool) {
        self.borrowed.insert(index);
        let descriptor = Descriptor {
            addr: self.cache.pool().addr_of(index) + u64::from(offset),
            len,
            options: if continues { PACKET_CONTINUES } else { 0 },
        };
        self.tx.write(self.staged, descriptor);
        self.staged += 1;
    }

    /// Makes the kernel send. In copy mode a call sends up to the socket's budget.
    fn kick(&mut self) -> Result<()> {
        self.unkicked = false;
        for _ in 0..KICKS_MAX {
            self.counters.kicks.add(1);
            let before = self.tx.pending();
            self.catch_up();
            let Err(error) = self.shared.socket.kick_tx() else {
                self.asked_at = None;
                return Ok(());
            };
            match error.raw_os_error() {
                // The budget is used up, the completion ring full, or too much in flight.
                Some(libc::EAGAIN) => {
                    self.reclaim();
                    let now = self.tx.pending();
                    if now == 0 {
                        return Ok(());
                    }
                    if now == before {
                        break;
                    }
                }
                // In copy mode: the device dropped a packet. In zero-copy: the driver is busy.
                Some(libc::EBUSY) if !self.shared.zero_copy => {
                    let len = self.refused_len();
                    self.uncount(1, len);
                    self.reclaim();
                    if self.tx.pending() == 0 {
                        return Ok(());
                    }
                }
                Some(libc::EBUSY | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => break,
                Some(libc::ENXIO | libc::ENODEV) => {
                    self.shared.set_gone();
                    return Err(self.shared.gone_error("send packets"));
                }
                Some(libc::ENETDOWN) => {
                    self.unkicked = true;
                    if self.shared.check_gone() || self.is_removed() {
                        return Err(self.shared.gone_error("send packets"));
                    }
                    let why = "the interface is down";
                    return Err(Error::new(ErrorKind::Down, "send packets", why)
                        .with_hint("submitted packets are sent when it is up again"));
                }
                _ => {
                    // Whatever the error was, the entries in the ring can still be sent.
                    self.unkicked = true;
                    return Err(Error::from_io("send packets", error));
                }
            }
        }
        // The rest is sent by the next flush or wait.
        self.unkicked = true;
        Ok(())
    }

    /// Whether an interface that is down is known to have been removed. A separate thread queries
    /// the kernel when the interface has gone down, and then periodically: a flush does not wait
    /// for it.
    fn is_removed(&mut self) -> bool {
        if self.asked_at.is_none_or(|at| at.elapsed() >= ASK_EVERY) {
            self.shared.ask_whether_removed();
            self.asked_at = Some(Instant::now());
        }
        self.shared.is_gone()
    }

    /// Like `flush`, for a caller that can wait until `end`: an interface that is being removed is
    /// then not mistaken for one that is down.
    fn flush_until(&mut self, end: Instant) -> Result<()> {
        let Err(error) = self.flush() else {
            return Ok(());
        };
        while self.shared.is_asking() && Instant::now() < end {
            thread::sleep(NAP);
        }
        match self.shared.is_gone() {
            true => Err(self.shared.gone_error("send packets")),
            false => Err(error),
        }
    }

    /// Advances `taken` to the kernel's index, if that is further.
    fn catch_up(&mut self) {
        let (_, consumer) = indices(&self.view);
        if is_after(consumer, self.taken) {
            self.taken = consumer;
        }
    }

    /// Length of the packet that the last call took and did not send (`NET_XMIT_DROP` in
    /// `__xsk_generic_xmit`, `net/xdp/xsk.c`): the last one before the consumer's index if packets
    /// were sent before it; otherwise the index is unchanged, and it is the first that was not
    /// taken yet.
    fn refused_len(&mut self) -> u64 {
        let (_, consumer) = indices(&self.view);
        let mut len = 0;
        for _ in 0..self.tx.entry_count() {
            (len, self.taken) = packet_at(&self.view, self.taken);
            if !is_after(consumer, self.taken) {
                break;
            }
        }
        len
    }

    /// Packets that were counted as sent failed after all.
    fn uncount(&self, packets: u64, bytes: u64) {
        self.counters.sent.add(packets.wrapping_neg());
        self.counters.sent_bytes.add(bytes.wrapping_neg());
        self.counters.failed.add(packets);
    }

    /// Moves the segments of a packet from slots to the ring and returns its length; `None` if it
    /// cannot be sent at all, and its frames are free again.
    fn stage_pieces(&mut self, slots: &[Slot]) -> Option<u32> {
        let len: u32 = slots.iter().map(|slot| slot.cap_len()).sum();
        let sendable = len >= PACKET_LEN_MIN
            && self.shared.spec.multi_buffer
            && slots.len() <= SEGMENTS_MAX
            && slots.iter().all(|slot| slot.cap_len() != 0);
        for (at, slot) in slots.iter().enumerate() {
            let index = slot.token() as u32;
            if !sendable {
                // SAFETY: the slot's frame is held by this batch, and the slot ends here.
                unsafe { self.cache.give_index(index) };
                continue;
            }
            // SAFETY: as above.
            unsafe { self.cache.pool().give_index_to_device(index) };
            self.stage(index, HEADROOM, slot.cap_len(), at + 1 < slots.len());
        }
        sendable.then_some(len)
    }

    /// Moves a packet of another queue into the ring and returns its length; `None` if it cannot be
    /// sent at all, and its frames stay where they are.
    #[inline]
    fn take_over(&mut self, packet: &mut [Slot]) -> Option<u32> {
        let count = packet.len();
        let several = self.shared.spec.multi_buffer && count <= SEGMENTS_MAX;
        let (pool, borrowed) = (self.cache.pool(), &mut self.borrowed);
        let (tx, staged) = (&mut self.tx, &mut self.staged);
        take_over(
            pool,
            packet,
            |len| len >= PACKET_LEN_MIN && (count == 1 || several),
            |part| {
                borrowed.insert(part.index);
                let descriptor = Descriptor {
                    addr: pool.addr_of(part.index) + u64::from(part.offset),
                    len: part.len,
                    options: if part.is_last { 0 } else { PACKET_CONTINUES },
                };
                tx.write(*staged, descriptor);
                *staged += 1;
            },
        )
    }

    /// Sends a copy of a frame from another pool; `Some` returns the frame.
    fn copy_frame(&mut self, frame: Frame) -> Result<Option<Frame>> {
        let (cache, counters) = (&mut self.cache, &self.counters);
        match self.foreign.copy(frame, HEADROOM, cache, counters)? {
            Copied::Frame(copy) => {
                self.stage_frame(copy);
                Ok(None)
            }
            Copied::NoRoom(frame) => Ok(Some(frame)),
        }
    }

    #[inline]
    fn stage_frame(&mut self, frame: Frame) {
        let (offset, len) = (frame.offset(), frame.len());
        if len < PACKET_LEN_MIN {
            let _ = self.cache.give(frame);
            self.counters.failed.add(1);
            return;
        }
        let index = self.cache.pool().give_to_device(frame);
        self.stage(index, offset, len, false);
        self.counters.sent.add(1);
        self.counters.sent_bytes.add(len.into());
    }

    /// Whether there is work that needs a system call.
    #[inline]
    fn wants_kick(&self) -> bool {
        self.unkicked && (self.tx.need_wakeup() || self.busy_poll || !self.shared.spec.need_wakeup)
    }
}

/// Whether a ring's index is after another; they wrap.
fn is_after(index: u32, other: u32) -> bool {
    index.wrapping_sub(other).cast_signed() > 0
}

impl TxBackend for Tx {
    #[inline]
    fn reserve(&mut self, slots: &mut Vec<Slot>, max: usize) -> Result<()> {
        self.reclaim();
        let mut want = u32::try_from(max).unwrap_or(u32::MAX);
        if !self.shared.zero_copy {
            want = want.min(COPY_BATCH.saturating_sub(self.staged));
        }
        let room = self.room(want);
        reserve_buffers(&mut self.cache, slots, room as usize, HEADROOM);
        Ok(())
    }

    #[inline]
    fn submit(&mut self, slots: &mut Vec<Slot>, filled: usize) -> Result<()> {
        let (mut sent, mut bytes, mut failed) = (0, 0, 0);
        let mut at = 0;
        while at < filled {
            let slot = &slots[at];
            let (index, len) = (slot.token() as u32, slot.cap_len());
            if slot.has(Slot::CONTINUES) {
                let packet = &slots[at..at + segment_count(&slots[at..filled])];
                at += packet.len();
                match self.stage_pieces(packet) {
                    Some(len) => (sent, bytes) = (sent + 1, bytes + u64::from(len)),
                    None => failed += 1,
                }
                continue;
            }
            at += 1;
            if len < PACKET_LEN_MIN {
                // SAFETY: the slot's frame is held by this batch, and the slot ends here.
                unsafe { self.cache.give_index(index) };
                failed += 1;
                continue;
            }
            // SAFETY: as above.
            unsafe { self.cache.pool().give_index_to_device(index) };
            self.stage(index, HEADROOM, len, false);
            (sent, bytes) = (sent + 1, bytes + u64::from(len));
        }
        // SAFETY: the slots' frames are held by this batch, and the slots end here.
        unsafe {
            self.cache
                .give_each(slots[filled..].iter().map(|slot| slot.token() as u32))
        };
        slots.clear();
        // In copy mode nothing is sent before a call anyway, and packets made visible early could
        // be sent by a receiver that polls the same socket: the receiver would then get the error
        // and could not count it.
        if self.shared.zero_copy {
            self.publish();
        }
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
        if self.room(1) == 0 {
            return Ok(Some(frame));
        }
        if frame.pool_tag() != self.cache.pool().tag() {
            if self.borrowed.count() >= self.tx.entry_count() / 2 {
                self.reclaim();
            }
            return self.copy_frame(frame);
        }
        self.stage_frame(frame);
        Ok(None)
    }

    fn transfer(&mut self, slots: &mut [Slot]) -> Result<Option<usize>> {
        let mut room = self.room(slots.len() as u32) as usize;
        if room < slots.len() {
            self.reclaim();
            room = self.room(slots.len() as u32) as usize;
        }
        let taken = whole_packets(slots, room);
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
        if self.shared.zero_copy {
            self.publish();
        }
        self.counters.sent.add(sent);
        self.counters.sent_bytes.add(bytes);
        self.counters.failed.add(failed);
        Ok(Some(taken))
    }

    #[inline]
    fn flush(&mut self) -> Result<()> {
        self.publish();
        if self.wants_kick() {
            self.kick()?;
        }
        self.reclaim();
        self.foreign.age();
        Ok(())
    }

    fn wait(&mut self, all: bool, timeout: Duration) -> Result<bool> {
        let end = Instant::now() + timeout;
        loop {
            self.flush_until(end)?;
            let done = if all {
                self.borrowed.count() == 0
            } else {
                self.room(1) != 0 && {
                    let index = self.cache.take_index();
                    // SAFETY: just taken, and nothing was made of it.
                    index.is_some_and(|index| unsafe { self.cache.give_index(index) })
                }
            };
            if done {
                return Ok(true);
            }
            if self.shared.check_gone() {
                return Err(self.shared.gone_error("send packets"));
            }
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

impl Drop for Tx {
    fn drop(&mut self) {
        // The device may be down or gone; the rest then counts as failed.
        if self.staged != 0 || self.borrowed.count() != 0 {
            let _ = self.wait(true, CLOSE_WAIT);
        }
        match self.shared.zero_copy {
            // Only the index has the information, and may have wrapped meanwhile.
            true => self.taken = indices(&self.view).1,
            false => self.catch_up(),
        }
        let (left, bytes) = packets_between(&self.view, self.taken, indices(&self.view).0);
        if left != 0 {
            self.uncount(left, bytes);
        }
        let empty = Borrowed::new(0);
        self.shared
            .leave(std::mem::replace(&mut self.borrowed, empty));
    }
}

#[cfg(test)]
mod tests;
