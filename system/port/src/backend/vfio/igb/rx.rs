//! Receiving (§7.1): advanced descriptors with one buffer, written back by the card in place.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sys::Result;

use super::registers as reg;
use super::{enable_queue, queue_health};
use crate::backend::vfio::dma::{DmaArray, PoolDma, after_done_flag, before_doorbell};
use crate::backend::vfio::driver::{DriverRx, Function, Health, Refused, Settings};
use crate::backend::vfio::registers::Registers;
use crate::slot::{Slot, Vlan};

/// Two words: address and zero as we write it, metadata as the card does.
type Descriptor = [AtomicU64; 2];

/// Left free before the packet in a frame of 4096 bytes, as AF_XDP does. Buffers are whole KiB
/// (§8.10.2), so a frame of 2048 bytes has no such room.
const HEADROOM: u32 = 256;

/// The tag protocol that the card looks for (VET, §8.2.7, as reset leaves it).
const VLAN_TPID: u16 = 0x8100;

/// Where the queue is, for those who look on.
#[derive(Default)]
struct Place {
    head: AtomicU32,
    tail: AtomicU32,
}

/// A receiving queue.
pub(crate) struct IgbRx<R> {
    ring: DmaArray<Descriptor>,
    /// Which frame is in which entry.
    indices: Box<[u32]>,
    /// Next entry to be done by the card, next to be given a frame, and told to the card.
    head: u32,
    tail: u32,
    published: u32,
    /// Bytes that a frame holds.
    room: u32,
    headroom: u32,
    /// Entries of the longest packet.
    pieces_max: u32,
    /// Within a packet that was refused for its length, until its end.
    skipping: bool,
    frames: Arc<PoolDma>,
    regs: R,
    queue: u32,
    vector: Option<u32>,
    place: Arc<Place>,
    /// For `watch`, which gets a view of its own.
    view: Arc<DmaArray<Descriptor>>,
}

impl<R: Registers> IgbRx<R> {
    /// §4.5.9, a queue's part: memory, length, kind of descriptors, on.
    pub(super) fn start<F: Function<Registers = R>>(
        regs: &R,
        function: &F,
        queue: u32,
        vector: Option<u32>,
        settings: &Settings,
        frames: &Arc<PoolDma>,
    ) -> Result<Self> {
        let count = settings.ring_len as usize;
        let area = Arc::new(function.dma().allocate(count * size_of::<Descriptor>())?);
        let ring: DmaArray<Descriptor> = area.array(0, count);
        let headroom = if settings.frame_len >= 4096 {
            HEADROOM
        } else {
            0
        };
        let room_kib = (settings.frame_len - headroom) / 1024;
        let at = |register| reg::rx(queue, register);
        regs.write32(at(reg::RXDCTL), 0);
        regs.write32(at(reg::RDBAL), ring.iova() as u32);
        regs.write32(at(reg::RDBAH), (ring.iova() >> 32) as u32);
        regs.write32(at(reg::RDLEN), (count * size_of::<Descriptor>()) as u32);
        // A queue that nobody reads must not hold up the others (§7.1.4.3), and what it loses is
        // counted by queue.
        let kind = reg::SRRCTL_ONE_BUFFER | reg::SRRCTL_DROP;
        regs.write32(at(reg::SRRCTL), room_kib | kind);
        regs.write32(at(reg::RDH), 0);
        regs.write32(at(reg::RDT), 0);
        // The tail only moves when the queue is on.
        enable_queue(regs, at(reg::RXDCTL), reg::RXDCTL_THRESHOLDS)?;
        let room = room_kib * 1024;
        Ok(Self {
            indices: vec![0; count].into(),
            head: 0,
            tail: 0,
            published: 0,
            room,
            headroom,
            pieces_max: (settings.packet_len_max.div_ceil(room) + 1).min(settings.ring_len - 1),
            skipping: false,
            frames: frames.clone(),
            regs: regs.clone(),
            queue,
            vector,
            place: Arc::default(),
            view: Arc::new(area.array(0, count)),
            ring,
        })
    }

    #[inline(always)]
    fn index_at(&self, position: u32) -> u32 {
        self.indices[position as usize & (self.indices.len() - 1)]
    }

    /// A slot over what entry `position` received, if what it says can be true.
    #[inline(always)]
    fn claim(&self, position: u32, status: u64) -> Option<Slot> {
        let index = self.index_at(position);
        let len = (status >> 32) as u32 & 0xffff;
        let pool = self.frames.pool();
        // SAFETY: the card has given the entry back, so it is done with the frame.
        if !unsafe { pool.claim_index(index) } {
            return None;
        }
        let place = pool.addr_of(index) + u64::from(self.headroom);
        // SAFETY: the index is one of the pool's (claimed), and the headroom within its frame.
        let data = unsafe { pool.base().add(place as usize) };
        // A length that cannot be is the caller's to refuse: the frame is ours by now.
        Some(Slot::new(data, len, len, index.into()))
    }

    /// Puts what the card says of a packet into its first slot.
    #[inline(always)]
    fn describe(slot: &mut Slot, low: u64, status: u64) {
        // Bits that are at other places here: the card's VLAN, checked, transport or IP checksum
        // wrong, kind of hash other than none.
        const { assert!(Slot::VLAN == 1 << 2 && Slot::CHECKSUM_GOOD == 1 << 5) };
        const { assert!(Slot::CHECKSUM_BAD == 1 << 6 && Slot::HASH == 1 << 1) };
        let wrong = (status >> 29 | status >> 30) & 1;
        let flags = (status & reg::RX_VLAN) >> 1 | status & reg::RX_TRANSPORT_CHECKED | wrong << 6;
        slot.flags |= flags as u16 | u16::from(low & 0xf != 0) << 1;
        slot.rss_hash = (low >> 32) as u32;
        slot.vlan = Vlan {
            tpid: VLAN_TPID,
            tci: (status >> 48) as u16,
        };
    }

    /// Takes what is no packet of one sound descriptor: one in pieces, damaged, or a lie. False if
    /// it is not all there yet.
    #[cold]
    fn harvest_odd(
        &mut self,
        slots: &mut Vec<Slot>,
        max: usize,
        back: &mut Vec<u32>,
        refused: &mut Refused,
    ) -> bool {
        let (mut end, mut status) = (self.head, 0);
        // Up to the end of the packet, if it is there.
        loop {
            if end == self.published {
                return false;
            }
            let this = self.ring.ring_at(end)[1].load(Ordering::Relaxed);
            status |= this;
            if this & reg::RX_DONE == 0 {
                return false;
            }
            end = end.wrapping_add(1);
            if this & reg::RX_END != 0 {
                break;
            }
            if self.skipping || end.wrapping_sub(self.head) >= self.pieces_max {
                // Longer than any packet: what came so far goes, and the rest as it comes.
                self.give_up(end, back);
                if !std::mem::replace(&mut self.skipping, true) {
                    refused.too_long += 1;
                }
                return true;
            }
        }
        after_done_flag();
        if std::mem::take(&mut self.skipping) {
            self.give_up(end, back);
            return true;
        }
        if status & reg::RX_ERROR != 0 {
            self.give_up(end, back);
            refused.errors += 1;
            return true;
        }
        let pieces = end.wrapping_sub(self.head) as usize;
        if pieces > max {
            return false;
        }
        let start = slots.len();
        let (mut wire_len, mut sound) = (0, true);
        while self.head != end {
            let [low, high] = self.ring.ring_at(self.head);
            let (low, high) = (low.load(Ordering::Relaxed), high.load(Ordering::Relaxed));
            if let Some(mut slot) = self.claim(self.head, high) {
                // Not by the flag, which the card could have changed since.
                let is_last = self.head.wrapping_add(1) == end;
                // All but the last are full; the first of one piece is not empty.
                sound &= slot.cap_len <= self.room && slot.cap_len != 0;
                wire_len += slot.cap_len;
                slot.flags = u16::from(!is_last) * Slot::CONTINUES;
                if is_last && let Some(first) = slots.get_mut(start) {
                    Self::describe(first, low, high);
                } else if is_last {
                    Self::describe(&mut slot, low, high);
                }
                slots.push(slot);
            } else {
                sound = false;
            }
            self.head = self.head.wrapping_add(1);
        }
        if sound {
            for slot in &mut slots[start..] {
                slot.wire_len = wire_len;
            }
        } else {
            refused.invalid += 1;
            back.extend(slots.drain(start..).map(|slot| slot.token as u32));
        }
        true
    }

    /// Takes the entries up to `end` back without making packets of them.
    fn give_up(&mut self, end: u32, back: &mut Vec<u32>) {
        while self.head != end {
            let index = self.index_at(self.head);
            // SAFETY: the card has given the entry back, so it is done with the frame.
            if unsafe { self.frames.pool().claim_index(index) } {
                back.push(index);
            }
            self.head = self.head.wrapping_add(1);
        }
    }
}

impl<R: Registers> DriverRx for IgbRx<R> {
    fn ring_len(&self) -> u32 {
        self.indices.len() as u32
    }

    #[inline]
    fn vacant(&self) -> u32 {
        // §7.1.7: head and tail are equal when the card has none; so one entry stays empty.
        self.indices.len() as u32 - 1 - self.tail.wrapping_sub(self.head)
    }

    fn headroom(&self) -> u32 {
        self.headroom
    }

    #[inline(always)]
    fn offer(&mut self, index: u32) {
        debug_assert!(self.vacant() != 0);
        let at = self.tail as usize & (self.indices.len() - 1);
        self.indices[at] = index;
        let [address, rest] = self.ring.ring_at(self.tail);
        address.store(self.frames.address(index, self.headroom), Ordering::Relaxed);
        // Takes the done flag away, with the address of a header buffer that there is none of.
        rest.store(0, Ordering::Relaxed);
        self.tail = self.tail.wrapping_add(1);
    }

    #[inline]
    fn publish(&mut self) {
        if self.published == self.tail {
            return;
        }
        self.published = self.tail;
        self.place.tail.store(self.tail, Ordering::Relaxed);
        // §7.1.5: descriptors before the tail that gives them to the card.
        before_doorbell();
        let tail = self.tail & (self.indices.len() as u32 - 1);
        self.regs.write32(reg::rx(self.queue, reg::RDT), tail);
    }

    #[inline]
    fn harvest(
        &mut self,
        slots: &mut Vec<Slot>,
        max: usize,
        back: &mut Vec<u32>,
        refused: &mut Refused,
    ) {
        let start = slots.len();
        // Not beyond what the card knows of: the rest is as we wrote it, or as it was.
        let there = self.published.wrapping_sub(self.head) as usize;
        slots.reserve(max.min(there));
        loop {
            let taken = slots.len() - start;
            let there = self.published.wrapping_sub(self.head) as usize;
            let mut left = max.saturating_sub(taken).min(there);
            // Whole packets, one descriptor each, until there is another. What does not change is
            // kept in registers: the compiler must think that every store could change it.
            let pool = self.frames.pool();
            let first = pool.base().as_ptr().wrapping_add(self.headroom as usize);
            let shift = pool.frame_len().trailing_zeros();
            let (room, mut head) = (self.room, self.head);
            let mask = self.indices.len() - 1;
            while left != 0 {
                let [low, high] = self.ring.ring_at(head);
                let status = high.load(Ordering::Relaxed);
                let wanted = reg::RX_DONE | reg::RX_END | reg::RX_ERROR;
                if status & wanted != reg::RX_DONE | reg::RX_END || self.skipping {
                    break;
                }
                // §7.1.5.2: the flag is in the word written last.
                after_done_flag();
                let low = low.load(Ordering::Relaxed);
                let len = (status >> 32) as u32 & 0xffff;
                // Longer than the frame, or empty; or a frame that is not the card's.
                if len.wrapping_sub(1) >= room {
                    break;
                }
                let index = self.indices[head as usize & mask];
                // SAFETY: the card has given the entry back, so it is done with the frame.
                if !unsafe { pool.claim_index(index) } {
                    break;
                }
                let place = first.wrapping_add((index as usize) << shift);
                // SAFETY: within the pool's mapping, which is not at 0: the index is one of the
                // pool's (claimed), and the headroom lies within its frame.
                let data = unsafe { NonNull::new_unchecked(place) };
                let mut slot = Slot::new(data, len, len, index.into());
                Self::describe(&mut slot, low, status);
                slots.push(slot);
                head = head.wrapping_add(1);
                left -= 1;
            }
            self.head = head;
            let taken = slots.len() - start;
            let room = match taken {
                // A packet of more pieces than that is taken alone.
                0 => usize::MAX,
                _ => max.saturating_sub(taken),
            };
            if room == 0 || !self.is_ready() || !self.harvest_odd(slots, room, back, refused) {
                break;
            }
        }
        self.place.head.store(self.head, Ordering::Relaxed);
    }

    #[inline]
    fn is_ready(&self) -> bool {
        self.head != self.published
            && self.ring.ring_at(self.head)[1].load(Ordering::Relaxed) & reg::RX_DONE != 0
    }

    fn watch(&self) -> Box<dyn Fn() -> u32 + Send + Sync> {
        let (view, place) = (self.view.clone(), self.place.clone());
        Box::new(move || {
            let mut at = place.head.load(Ordering::Relaxed);
            let tail = place.tail.load(Ordering::Relaxed);
            let mut packets = 0;
            // Bounded by the ring, whatever the two say.
            for _ in 0..view.len() {
                let status = view.ring_at(at)[1].load(Ordering::Relaxed);
                if at == tail || status & reg::RX_DONE == 0 {
                    break;
                }
                packets += u32::from(status & reg::RX_END != 0);
                at = at.wrapping_add(1);
            }
            packets
        })
    }

    fn health(&mut self) -> Health {
        queue_health(self.regs.read32(reg::rx(self.queue, reg::RDLEN)))
    }

    fn arm(&mut self) {
        let Some(vector) = self.vector else { return };
        // An old cause goes, then the mask; the read comes back when both are done, and behind
        // whatever the card has written to memory before (§7.3.4).
        self.regs.write32(reg::EICR, 1 << vector);
        self.regs.write32(reg::EIMS, 1 << vector);
        self.regs.read32(reg::EIMS);
    }

    fn disarm(&mut self) {
        if let Some(vector) = self.vector {
            self.regs.write32(reg::EIMC, 1 << vector);
        }
    }

    fn drain(&mut self, frame: &mut dyn FnMut(u32)) {
        while self.head != self.tail {
            frame(self.index_at(self.head));
            self.head = self.head.wrapping_add(1);
        }
    }
}
