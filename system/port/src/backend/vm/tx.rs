//! Packets to the guest, into the vring that is its receive queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring::slot::{Slot, Vlan, segment_count, whole_packets};
use ring::{Frame, FrameCache, Pool};
use sys::poll::{self, Wanted};
use sys::{Error, ErrorKind, Result};
use vhost::{Broken, Sent, Server, Vring};

use super::{HEADROOM, PACKET_LEN_MAX};
use crate::account::TxCounters;
use crate::backend::handover::{Copied, Foreign, reserve_buffers};
use crate::tx::TxBackend;

/// Maximum number of slots reserved at once.
const RESERVE_MAX: usize = 1024;

pub(super) struct Tx {
    server: Arc<Server>,
    pair: u32,
    cache: FrameCache,
    foreign: Foreign,
    /// Submitted packets for which the guest had too few buffers, in frames that this queue owns.
    pending: VecDeque<Slot>,
    /// The start of the vring that they are for.
    starts: u64,
    /// Whether the last packets found no room.
    is_full: bool,
    /// The guest's buffers that were too few for the last packet, and the start of the vring that
    /// they are of.
    too_few: (u64, u32),
    counters: Arc<TxCounters>,
}

/// The bytes of a slot.
///
/// # Safety
/// The slot's memory is owned by the caller and not written meanwhile.
unsafe fn bytes(slot: &Slot) -> &[u8] {
    // SAFETY: the caller's word; slots are made only over ranges that were checked.
    unsafe { std::slice::from_raw_parts(slot.data().as_ptr(), slot.cap_len() as usize) }
}

/// Copies a packet into the guest's buffers, a separate VLAN tag at its place in it. Returns the
/// length, too.
///
/// # Safety
/// As for [`bytes`], for each slot.
unsafe fn copy(vring: &mut Vring, packet: &[Slot]) -> std::result::Result<(Sent, u64), Broken> {
    let len: u32 = packet.iter().map(Slot::cap_len).sum();
    let [first, rest @ ..] = packet else {
        return Ok((Sent::TooLong, 0));
    };
    if len == 0 || len > PACKET_LEN_MAX {
        return Ok((Sent::TooLong, 0));
    }
    // SAFETY: the caller's word.
    let rest = rest.iter().map(|slot| unsafe { bytes(slot) });
    // SAFETY: as above.
    let first_bytes = unsafe { bytes(first) };
    if !first.has(Slot::VLAN) {
        let parts = std::iter::once(first_bytes).chain(rest);
        return Ok((vring.send(len as usize, parts)?, len.into()));
    }
    if first_bytes.len() < Vlan::AT {
        return Ok((Sent::TooLong, 0));
    }
    let (addresses, behind) = first_bytes.split_at(Vlan::AT);
    let tag = first.vlan.bytes();
    let len = len as usize + Vlan::LEN;
    let parts = [addresses, &tag, behind].into_iter().chain(rest);
    Ok((vring.send(len, parts)?, len as u64))
}

/// Packets handed over, and what happened to them.
#[derive(Default)]
struct Handed {
    slots: usize,
    sent: u64,
    bytes: u64,
    failed: u64,
    is_full: bool,
    too_few: (u64, u32),
}

impl Tx {
    pub fn new(server: Arc<Server>, pair: u32, pool: &Pool, counters: Arc<TxCounters>) -> Self {
        Self {
            server,
            pair,
            cache: FrameCache::new(pool.clone()),
            foreign: Foreign::default(),
            pending: VecDeque::with_capacity(RESERVE_MAX),
            starts: 0,
            is_full: false,
            too_few: (0, 0),
            counters,
        }
    }

    /// Copies packets to the guest until there is no room.
    ///
    /// # Safety
    /// As for [`bytes`], for each slot.
    unsafe fn hand_over(&mut self, slots: &[Slot]) -> Handed {
        let mut handed = Handed::default();
        let mut guard = self.server.queues().to_guest(self.pair).lock();
        while handed.slots < slots.len() {
            let Some((vring, _)) = guard.running() else {
                handed.is_full = true;
                break;
            };
            let count = segment_count(&slots[handed.slots..]);
            // SAFETY: the caller's word.
            match unsafe { copy(vring, &slots[handed.slots..handed.slots + count]) } {
                Ok((Sent::Done, len)) => {
                    handed.sent += 1;
                    handed.bytes += len;
                }
                Ok((Sent::TooLong, _)) => handed.failed += 1,
                Ok((Sent::NoRoom, _)) => {
                    handed.is_full = true;
                    let tried = vring.tried();
                    handed.too_few = (guard.starts(), tried);
                    break;
                }
                Err(why) => {
                    guard.fail(why);
                    handed.is_full = true;
                    break;
                }
            }
            handed.slots += count;
        }
        guard.publish();
        drop(guard);
        self.is_full = handed.is_full;
        self.too_few = handed.too_few;
        self.counters.sent.add(handed.sent);
        self.counters.sent_bytes.add(handed.bytes);
        if handed.failed != 0 {
            self.counters.failed.add(handed.failed);
        }
        handed
    }

    /// Frees the first `count` slots of the pending ones.
    fn free(&mut self, count: usize) {
        let slots = self.pending.drain(..count);
        // SAFETY: this queue owns their frames, and the slots end here.
        unsafe { self.cache.give_each(slots.map(|slot| slot.index())) };
    }

    /// Copies pending packets to the guest. Those for a guest that is gone, or was restarted, are
    /// dropped.
    fn push(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let starts = self.server.queues().to_guest(self.pair).lock().starts();
        if starts != self.starts {
            let slots = self.pending.make_contiguous();
            let packets = slots.iter().filter(|slot| !slot.continues()).count();
            self.counters.failed.add(packets as u64);
            self.free(self.pending.len());
            return;
        }
        let pending = std::mem::take(&mut self.pending);
        let (slots, _) = pending.as_slices();
        // SAFETY: their frames are this queue's.
        let handed = unsafe { self.hand_over(slots) };
        self.pending = pending;
        self.free(handed.slots);
    }

    /// Keeps packets for later.
    fn keep(&mut self, slots: impl Iterator<Item = Slot>) {
        if self.pending.is_empty() {
            self.starts = self.server.queues().to_guest(self.pair).lock().starts();
        }
        self.pending.extend(slots);
        self.pending.make_contiguous();
    }

    /// Number of packets for which the guest has a buffer each.
    fn room(&self) -> usize {
        let mut guard = self.server.queues().to_guest(self.pair).lock();
        let Some((vring, _)) = guard.running() else {
            return 0;
        };
        match vring.waiting() {
            Ok(count) => count as usize,
            Err(why) => {
                guard.fail(why);
                0
            }
        }
    }

    /// Whether there are more buffers than those that were too few for the last packet.
    fn has_room(&self) -> bool {
        let starts = self.server.queues().to_guest(self.pair).lock().starts();
        let too_few = match self.too_few {
            (start, count) if start == starts => count,
            _ => 0,
        };
        self.room() > too_few as usize
    }

    /// Requests a kick when the guest adds buffers; false if there are some already.
    fn arm(&self) -> bool {
        let queue = self.server.queues().to_guest(self.pair);
        queue.take_kicks();
        let mut guard = queue.lock();
        guard.running().is_none_or(|(vring, _)| {
            // The buffers that are there may be too few for the next packet.
            vring.waiting().is_ok_and(|count| vring.request_kick(count))
        })
    }
}

impl TxBackend for Tx {
    fn reserve(&mut self, slots: &mut Vec<Slot>, max: usize) -> Result<()> {
        self.server.start()?;
        self.push();
        if self.pending.is_empty() {
            let room = self.room();
            self.is_full = room == 0;
            // A packet may take several slots, and none of the guest's buffers is known to be too
            // short.
            let count = if room == 0 { 0 } else { max.min(RESERVE_MAX) };
            reserve_buffers(&mut self.cache, slots, count, HEADROOM);
        }
        Ok(())
    }

    fn submit(&mut self, slots: &mut Vec<Slot>, filled: usize) -> Result<()> {
        let handed = match filled {
            0 => Handed::default(),
            // SAFETY: the batch owns its frames, and hands them over.
            _ => unsafe { self.hand_over(&slots[..filled]) },
        };
        let done = slots[..handed.slots].iter().chain(&slots[filled..]);
        // SAFETY: as above; the slots end here.
        unsafe { self.cache.give_each(done.map(Slot::index)) };
        if handed.slots < filled {
            // The guest has too few buffers for these now.
            self.keep(slots.drain(handed.slots..filled));
        }
        slots.clear();
        Ok(())
    }

    fn send(&mut self, frame: Frame) -> Result<Option<Frame>> {
        self.server.start()?;
        self.push();
        if !self.pending.is_empty() || self.room() == 0 {
            self.is_full = true;
            return Ok(Some(frame));
        }
        let mut frame = frame;
        if frame.pool_tag() != self.cache.pool().tag() {
            let copied = self
                .foreign
                .copy(frame, HEADROOM, &mut self.cache, &self.counters)?;
            match copied {
                Copied::Frame(copy) => frame = copy,
                Copied::NoRoom(frame) => return Ok(Some(frame)),
            }
        }
        let pool = self.cache.pool().clone();
        let len = frame.len();
        let at = pool.addr_of(frame.index()) as usize + frame.offset() as usize;
        // SAFETY: the frame's range was checked when it was set, and its owner lends it here.
        let handed = unsafe {
            let slot = Slot::over(pool.base().add(at), len, len, frame.index().into());
            self.hand_over(std::slice::from_ref(&slot))
        };
        if handed.slots == 0 {
            return Ok(Some(frame));
        }
        let _ = self.cache.give(frame);
        match handed.failed {
            0 => Ok(None),
            _ => {
                let why = format!("{len} bytes do not fit into the guest's buffers");
                Err(Error::new(ErrorKind::InvalidInput, "send a frame", why))
            }
        }
    }

    fn transfer(&mut self, slots: &mut [Slot]) -> Result<Option<usize>> {
        self.server.start()?;
        self.push();
        if !self.pending.is_empty() {
            return Ok(Some(0));
        }
        let whole = whole_packets(slots, slots.len());
        // SAFETY: the receiving queue owns the slots, and is not used meanwhile.
        let handed = unsafe { self.hand_over(&slots[..whole]) };
        Ok(Some(handed.slots))
    }

    fn copies_slots(&self) -> bool {
        true
    }

    fn flush(&mut self) -> Result<()> {
        // A front-end waits for answers, also while there is nothing to send.
        self.server.start()?;
        self.push();
        self.foreign.age();
        Ok(())
    }

    fn wait(&mut self, all: bool, timeout: Duration) -> Result<bool> {
        self.server.start()?;
        let end = Instant::now() + timeout;
        loop {
            self.push();
            let is_ready = match all {
                // A guest without buffers is behind, even if nothing waits for it here.
                true => self.pending.is_empty() && (!self.is_full || self.has_room()),
                false => self.pending.is_empty() && self.has_room(),
            };
            if is_ready {
                return Ok(true);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            // Checked again once armed: buffers that the guest added between the check above and
            // arming cause no kick.
            if self.arm() && !self.has_room() {
                let fd = self.server.queues().to_guest(self.pair).poll_fd();
                let mut wanted = [Wanted::readable(&fd)];
                poll::wait(&mut wanted, left)?;
                if !wanted[0].is_ready() && end > Instant::now() {
                    // A signal arrived, which the caller handles.
                    return Ok(false);
                }
            }
        }
    }

    fn pool(&self) -> Option<&Pool> {
        Some(self.cache.pool())
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        self.push();
        let packets = self.pending.iter().filter(|slot| !slot.continues());
        self.counters.failed.add(packets.count() as u64);
        self.free(self.pending.len());
    }
}
