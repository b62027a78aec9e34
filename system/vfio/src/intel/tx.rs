//! Sending: one descriptor per part of a packet, one completion per batch (§7.2).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ring::slot::Slot;

use super::super::dma::{DmaArray, PoolDma, after_done_flag, before_doorbell};
use super::super::driver::{DriverTx, Health, Lengths, Posted, TxPart};
use super::super::registers::Registers;
use super::{Descriptor, Entries, run};

/// Layout of the second word of a card's transmit descriptors, and its per-queue registers.
pub trait TxFormat: Send + 'static {
    /// The packet ends in this descriptor.
    const END: u64;
    /// Report when done.
    const REPORT: u64;
    /// Reported: done.
    const DONE: u64;

    /// The word for `len` bytes of a packet of `packet_len`.
    fn word(len: u32, packet_len: u32, is_last: bool) -> u64;

    /// The tail register.
    fn tail(&self) -> u32;

    /// Whether the queue is still in the state in which it was started: one register read.
    fn health<G: Registers>(&self, registers: &G, ring_len: u32) -> Health;
}

/// A sending queue.
pub struct RingTx<G, F> {
    ring: DmaArray<Descriptor>,
    /// The frame in each descriptor.
    held: Box<[u32]>,
    /// By the first entry of a batch: the position of its last, which reports for all, since the
    /// card works in order.
    ends: Box<[u32]>,
    /// Oldest entry not reclaimed, next one to write, and the value of the tail register; all only
    /// grow.
    head: u32,
    tail: u32,
    shown: u32,
    /// Second word of the last descriptor written.
    last: u64,
    frames: Arc<PoolDma>,
    registers: G,
    format: F,
}

impl<G: Registers, F: TxFormat> RingTx<G, F> {
    /// Creates an empty ring; the card's registers refer to it already.
    pub fn new(registers: G, format: F, ring: DmaArray<Descriptor>, frames: Arc<PoolDma>) -> Self {
        assert!(matches!(frames.pool().frame_len(), 2048 | 4096));
        Self {
            held: vec![u32::MAX; ring.len()].into(),
            ends: vec![0; ring.len()].into(),
            ring,
            head: 0,
            tail: 0,
            shown: 0,
            last: 0,
            frames,
            registers,
            format,
        }
    }

    #[inline(always)]
    fn entry(&self, position: u32) -> usize {
        position as usize & (self.held.len() - 1)
    }

    /// As [`DriverTx::post_slots`].
    ///
    /// # Safety
    /// As there.
    // Not inlined, so that it has enough registers.
    #[inline(never)]
    unsafe fn post_plain(&mut self, slots: &[Slot], lengths: Lengths) -> Posted {
        let most = slots.len().min(self.room() as usize);
        let pool = self.frames.pool();
        let owners = pool.owners();
        // From addresses in this process to device addresses.
        let base = pool.base().as_ptr().addr() as u64;
        let to_card = self.frames.address(0, 0).wrapping_sub(base);
        // At most a ring of maximum-length packets.
        let (mut count, mut bytes): (usize, u32) = (0, 0);
        while count != most {
            let entries = run(self.tail, self.held.len(), most - count);
            let (ring, held) = (&self.ring[entries.clone()], &mut self.held[entries]);
            let slots = &slots[count..count + ring.len()];
            let entries = Entries {
                ring: ring.as_ptr(),
                held: held.as_mut_ptr(),
                items: slots.as_ptr().cast_mut(),
            };
            let post = |[address, word]: &Descriptor, held: &mut u32, slot: *mut Slot| {
                // SAFETY: one of the slots, which are only read.
                let slot = unsafe { &*slot };
                let (index, len) = (slot.index(), slot.cap_len());
                if !lengths.hold(len) {
                    return false;
                }
                if slot.goes_on() {
                    return false;
                }
                // SAFETY: the caller's word: the slot's frame is one of the pool's, held by its
                // batch, which ends here.
                if !unsafe { owners.give_known_to_device(index) } {
                    return false;
                }
                *held = index;
                let iova = (slot.data().as_ptr().addr() as u64).wrapping_add(to_card);
                address.store(iova, Ordering::Relaxed);
                word.store(F::word(len, len, true), Ordering::Relaxed);
                bytes = bytes.wrapping_add(len);
                true
            };
            // SAFETY: so many of each there are.
            let given = unsafe { entries.each(slots.len(), post) };
            if let Some(last) = given.checked_sub(1) {
                let len = slots[last].cap_len();
                self.last = F::word(len, len, true);
            }
            self.tail = self.tail.wrapping_add(given as u32);
            count += given;
            if given != ring.len() {
                break;
            }
        }
        Posted {
            packets: count,
            bytes: bytes.into(),
        }
    }
}

impl<G: Registers, F: TxFormat> DriverTx for RingTx<G, F> {
    fn ring_len(&self) -> u32 {
        self.held.len() as u32
    }

    #[inline(always)]
    fn room(&self) -> u32 {
        // As for receiving, head and tail are equal when the ring is empty.
        self.held.len() as u32 - 1 - self.pending()
    }

    #[inline(always)]
    fn pending(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    #[inline(always)]
    fn post(&mut self, part: TxPart) {
        debug_assert!(self.room() != 0, "the caller looks for room");
        let entry = self.entry(self.tail);
        self.held[entry] = part.index;
        let [address, word] = self.ring.ring_at(self.tail);
        let at = self.frames.address(part.index, part.offset);
        address.store(at, Ordering::Relaxed);
        self.last = F::word(part.len, part.packet_len, part.is_last);
        word.store(self.last, Ordering::Relaxed);
        self.tail = self.tail.wrapping_add(1);
    }

    #[inline]
    unsafe fn post_slots(&mut self, slots: &[Slot], offset: u32, lengths: Lengths) -> Posted {
        let pool = self.frames.pool();
        let is_placed = |slot: &Slot| slot.place_in(pool) == Some((slot.index(), offset));
        debug_assert!(slots.iter().all(is_placed), "the caller's word");
        // SAFETY: the caller's word.
        unsafe { self.post_plain(slots, lengths) }
    }

    #[inline]
    fn publish(&mut self) {
        if self.shown == self.tail {
            return;
        }
        // §7.2.2.3: the last descriptor reports, which implies that all before it are done.
        let last = self.tail.wrapping_sub(1);
        let [_, word] = self.ring.ring_at(last);
        word.store(self.last | F::REPORT, Ordering::Relaxed);
        let first = self.entry(self.shown);
        self.ends[first] = last;
        self.shown = self.tail;
        // §7.2.2: descriptors and packets before the tail that gives them to the card.
        before_doorbell();
        let entry = self.entry(self.tail) as u32;
        self.registers.write32(self.format.tail(), entry);
    }

    #[inline]
    fn reclaim(&mut self, mut frames: impl FnMut(&[u32])) {
        while self.head != self.shown {
            let last = self.ends[self.entry(self.head)];
            let [_, word] = self.ring.ring_at(last);
            if word.load(Ordering::Relaxed) & F::DONE == 0 {
                break;
            }
            // The frames are rewritten after this, not before the card has read them.
            after_done_flag();
            let end = last.wrapping_add(1);
            while self.head != end {
                let left = end.wrapping_sub(self.head) as usize;
                let entries = run(self.head, self.held.len(), left);
                let held = &self.held[entries];
                frames(held);
                self.head = self.head.wrapping_add(held.len() as u32);
            }
        }
    }

    fn left(&self) -> Posted {
        let mut left = Posted::default();
        for at in 0..self.pending() {
            // As the driver wrote them: the card only writes reports of descriptors that are then
            // reclaimed.
            let [_, word] = self.ring.ring_at(self.head.wrapping_add(at));
            let word = word.load(Ordering::Relaxed);
            left.packets += usize::from(word & F::END != 0);
            left.bytes += word & 0xffff;
        }
        left
    }

    fn health(&mut self) -> Health {
        self.format.health(&self.registers, self.held.len() as u32)
    }

    fn drain(&mut self, frame: &mut dyn FnMut(u32)) {
        while self.head != self.tail {
            frame(self.held[self.entry(self.head)]);
            self.head = self.head.wrapping_add(1);
        }
        self.shown = self.tail;
    }
}

#[cfg(test)]
impl<G, F> RingTx<G, F> {
    /// As on the receiving side.
    pub fn begin_at(&mut self, position: u32) {
        assert_eq!(position as usize % self.held.len(), 0);
        (self.head, self.tail, self.shown) = (position, position, position);
    }
}
