//! Receiving: the legacy descriptors of section 3.2.3, one packet in one or (larger than a buffer)
//! in several.
//!
//! ```text
//!         63        48 47    40 39    32 31             16 15        0
//!  word 0 |                  buffer address                          |
//!  word 1 | special   | errors | status | packet checksum | length   |
//! ```
//!
//! We own the tail, the card the head (3.2.6); what is done is told by a descriptor's DD bit and
//! never by reading the head register, which 13.4.28 warns of.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::dma::{DmaArray, PoolDma, after_done_flag, before_doorbell};
use super::super::driver::{DriverRx, Health, Refused};
use super::super::registers::Registers;
use super::registers as reg;
use crate::slot::{Slot, Vlan};

/// Status (3.2.3.1): the descriptor is done.
pub(super) const DD: u64 = 1 << 32;
/// The packet ends in it.
pub(super) const EOP: u64 = 1 << 33;
/// The checksum bits mean nothing.
pub(super) const IXSM: u64 = 1 << 34;
/// It had a VLAN tag, which is in `special` now.
pub(super) const VP: u64 = 1 << 35;
/// The TCP or UDP checksum was checked.
pub(super) const TCPCS: u64 = 1 << 37;
/// Errors (3.2.3.2): the checksum is wrong, of TCP or UDP and of IP.
pub(super) const TCPE: u64 = 1 << 45;
/// See above.
pub(super) const IPE: u64 = 1 << 46;
/// Errors of the frame: CRC or alignment, symbol, sequence, carrier extension, data.
pub(super) const FRAME_ERRORS: u64 = (1 << 0 | 1 << 1 | 1 << 2 | 1 << 4 | 1 << 7) << 40;
/// Where `special` begins.
pub(super) const SPECIAL_SHIFT: u32 = 48;

/// Bytes of a buffer (13.4.22: BSIZE 0, BSEX 0).
pub(super) const BUFFER_LEN: u32 = 2048;

/// Where in a frame of this length the card begins to write: frames of 4096 have room in front.
pub(super) fn headroom(frame_len: u32) -> u32 {
    (frame_len - BUFFER_LEN).min(256)
}

/// The receiving queue.
pub(crate) struct E1000Rx<G> {
    registers: G,
    ring: Arc<DmaArray<[AtomicU64; 2]>>,
    /// The frame in each descriptor: the card's word for an address is never taken.
    held: Box<[u32]>,
    /// Where the card's next answer is looked for, and where the next frame goes; both only grow.
    head: u32,
    tail: u32,
    /// What the tail register holds.
    shown: u32,
    /// Descriptors up to the next end of a packet are the rest of a refused one.
    skipping: bool,
    /// Descriptors of a packet at `head` that are done, and its end is not.
    incomplete: u32,
    headroom: u32,
    packet_len_max: u32,
    frames: Arc<PoolDma>,
    /// `head` and `tail`, for the watch.
    place: Arc<AtomicU64>,
}

/// The next packet in the ring.
enum Next {
    /// Its last descriptor is not there yet, only this many.
    Incomplete(u32),
    /// This many descriptors and bytes.
    Whole(u32, u32),
    /// This many descriptors, which are no packet; whether its end is among them.
    Endless(u32),
}

impl<G: Registers> E1000Rx<G> {
    pub(super) fn new(
        registers: G,
        ring: DmaArray<[AtomicU64; 2]>,
        frames: Arc<PoolDma>,
        packet_len_max: u32,
    ) -> Self {
        Self {
            registers,
            held: vec![u32::MAX; ring.len()].into(),
            ring: Arc::new(ring),
            head: 0,
            tail: 0,
            shown: 0,
            skipping: false,
            incomplete: 0,
            headroom: headroom(frames.pool().frame_len()),
            packet_len_max,
            frames,
            place: Arc::default(),
        }
    }

    #[inline(always)]
    fn entry(&self, position: u32) -> usize {
        position as usize & (self.held.len() - 1)
    }

    /// The second word of a descriptor, if the card has filled it.
    #[inline(always)]
    fn done(&self, position: u32) -> Option<u64> {
        let word = self.ring.ring_at(position)[1].load(Ordering::Relaxed);
        if word & DD == 0 {
            return None;
        }
        // 3.2.4, DD: the card writes it after all else; length and flags come in one word with it,
        // the packet is read after.
        after_done_flag();
        Some(word)
    }

    /// Takes the frame of descriptor `head` back and goes on.
    #[inline(always)]
    fn take(&mut self) -> Option<u32> {
        let entry = self.entry(self.head);
        self.head = self.head.wrapping_add(1);
        let index = self.held[entry];
        // SAFETY: the descriptor is done: the card is done with the frame.
        unsafe { self.frames.pool().claim_index(index) }.then_some(index)
    }

    /// The slot over a claimed frame.
    #[inline(always)]
    fn slot(&self, index: u32, len: u32, wire_len: u32) -> Slot {
        let pool = self.frames.pool();
        let at = pool.addr_of(index) as usize + self.headroom as usize;
        // SAFETY: the index is of a frame that we offered, and the headroom is within it.
        let data = unsafe { pool.base().add(at) };
        Slot::new(data, len, wire_len, index.into())
    }

    /// Looks for the end of the packet that begins at `head` (3.2.4: all descriptors of a packet
    /// but the last lack EOP). No register is read and nothing changes.
    #[cold]
    fn find_end(&self) -> Next {
        let (mut count, mut len) = (0, 0);
        let offered = self.tail.wrapping_sub(self.head);
        while count < offered {
            let Some(word) = self.done(self.head.wrapping_add(count)) else {
                break;
            };
            count += 1;
            len += word as u32 & 0xffff;
            if word & EOP != 0 {
                return Next::Whole(count, len);
            }
            // Longer than any packet, or all that the card has: it will not end.
            if len > self.packet_len_max + BUFFER_LEN {
                return Next::Endless(count);
            }
        }
        match count != 0 && count == offered {
            true => Next::Endless(count),
            false => Next::Incomplete(count),
        }
    }

    /// Takes a packet of several descriptors, or refuses it. False if it is to wait for its end or
    /// for the next batch.
    #[cold]
    fn gather(
        &mut self,
        slots: &mut Vec<Slot>,
        room: usize,
        taken: bool,
        back: &mut Vec<u32>,
        refused: &mut Refused,
    ) -> bool {
        let (count, len, ends) = match self.find_end() {
            Next::Incomplete(count) => {
                self.incomplete = count;
                return false;
            }
            Next::Endless(count) => (count, 0, false),
            Next::Whole(count, _) if count as usize > room && taken => return false,
            Next::Whole(count, len) => (count, len, true),
        };
        let first = slots.len();
        let mut sound = ends;
        let mut last_word = 0;
        for _ in 0..count {
            // Read again: the card may have changed its word.
            let word = self.done(self.head).unwrap_or(0);
            let part = word as u32 & 0xffff;
            let Some(index) = self.take() else {
                sound = false;
                continue;
            };
            let fits = part != 0 && part <= BUFFER_LEN;
            sound &= fits;
            let mut slot = self.slot(index, if fits { part } else { 0 }, len);
            slot.flags = Slot::CONTINUES;
            slots.push(slot);
            last_word = word;
        }
        let errors = last_word & FRAME_ERRORS != 0;
        let told: u32 = slots[first..].iter().map(|slot| slot.cap_len).sum();
        sound &= told == len;
        if sound && !errors && len <= self.packet_len_max {
            if let Some(last) = slots.last_mut() {
                last.flags = 0;
            }
            describe(&mut slots[first], last_word);
            return true;
        }
        back.extend(slots.drain(first..).map(|slot| slot.token as u32));
        self.skipping = !ends;
        match (sound, errors) {
            (false, _) => refused.invalid += 1,
            (true, true) => refused.errors += 1,
            (true, false) => refused.too_long += 1,
        }
        true
    }

    /// Takes back what belongs to a packet that was refused before its end.
    #[cold]
    fn skip(&mut self, back: &mut Vec<u32>) {
        while self.skipping && self.head != self.tail {
            let Some(word) = self.done(self.head) else {
                return;
            };
            back.extend(self.take());
            self.skipping = word & EOP == 0;
        }
    }

    fn mark(&self) {
        let place = u64::from(self.tail) << 32 | u64::from(self.head);
        self.place.store(place, Ordering::Relaxed);
    }
}

/// Puts what the last descriptor says of the packet into its first slot.
#[inline(always)]
fn describe(slot: &mut Slot, word: u64) {
    if word & VP != 0 {
        // 9.2.1: the tag as it was, behind the Ethertype that VET holds.
        let tci = (word >> SPECIAL_SHIFT) as u16;
        slot.vlan = Vlan { tpid: 0x8100, tci };
        slot.flags |= Slot::VLAN;
    }
    if word & (IXSM | TCPCS) == TCPCS {
        slot.flags |= match word & (TCPE | IPE) {
            0 => Slot::CHECKSUM_GOOD,
            _ => Slot::CHECKSUM_BAD,
        };
    }
}

impl<G: Registers> DriverRx for E1000Rx<G> {
    fn ring_len(&self) -> u32 {
        self.held.len() as u32
    }

    #[inline(always)]
    fn vacant(&self) -> u32 {
        // 3.2.6: head and tail are equal when the ring is empty, so one descriptor stays ours.
        self.held.len() as u32 - 1 - self.tail.wrapping_sub(self.head)
    }

    fn headroom(&self) -> u32 {
        self.headroom
    }

    #[inline(always)]
    fn offer(&mut self, index: u32) {
        debug_assert!(self.vacant() != 0, "the caller looks for room");
        let entry = self.entry(self.tail);
        self.held[entry] = index;
        let [address, word] = self.ring.ring_at(self.tail);
        address.store(self.frames.address(index, self.headroom), Ordering::Relaxed);
        // DD is cleared, so that an answer is a new one.
        word.store(0, Ordering::Relaxed);
        self.tail = self.tail.wrapping_add(1);
    }

    #[inline]
    fn publish(&mut self) {
        if self.shown == self.tail {
            return;
        }
        self.shown = self.tail;
        self.mark();
        // 3.2.6: descriptors up to the tail are the card's, so they come before it.
        before_doorbell();
        let entry = self.entry(self.tail) as u32;
        self.registers.write32(reg::RDT, entry);
    }

    #[inline]
    fn harvest(
        &mut self,
        slots: &mut Vec<Slot>,
        max: usize,
        back: &mut Vec<u32>,
        refused: &mut Refused,
    ) {
        if self.skipping {
            self.skip(back);
        }
        self.incomplete = 0;
        let start = slots.len();
        let end = start.saturating_add(max);
        while slots.len() < end && self.head != self.tail && !self.skipping {
            let Some(word) = self.done(self.head) else {
                break;
            };
            if word & EOP == 0 {
                let (room, taken) = (end - slots.len(), slots.len() != start);
                if !self.gather(slots, room, taken, back, refused) {
                    break;
                }
                continue;
            }
            let len = word as u32 & 0xffff;
            let Some(index) = self.take() else {
                refused.invalid += 1;
                continue;
            };
            let sound = len.wrapping_sub(1) < BUFFER_LEN;
            if !sound || word & FRAME_ERRORS != 0 || len > self.packet_len_max {
                back.push(index);
                match (sound, word & FRAME_ERRORS) {
                    (false, _) => refused.invalid += 1,
                    (true, 0) => refused.too_long += 1,
                    (true, _) => refused.errors += 1,
                }
                continue;
            }
            let mut slot = self.slot(index, len, len);
            describe(&mut slot, word);
            slots.push(slot);
        }
        self.mark();
    }

    #[inline]
    fn is_ready(&self) -> bool {
        // Where a packet waits for its end, the next of its descriptors counts.
        let at = self.head.wrapping_add(self.incomplete);
        at != self.tail && self.done(at).is_some()
    }

    fn watch(&self) -> Box<dyn Fn() -> u32 + Send + Sync> {
        let (ring, place) = (self.ring.clone(), self.place.clone());
        Box::new(move || {
            let place = place.load(Ordering::Relaxed);
            let (head, tail) = (place as u32, (place >> 32) as u32);
            let offered = tail.wrapping_sub(head).min(ring.len() as u32);
            let words = (0..offered).map(|at| {
                let [_, word] = ring.ring_at(head.wrapping_add(at));
                word.load(Ordering::Relaxed)
            });
            let done = words.take_while(|word| word & DD != 0);
            done.filter(|word| word & EOP != 0).count() as u32
        })
    }

    fn health(&mut self) -> Health {
        super::health(&self.registers, reg::RDLEN, self.ring_len())
    }

    fn arm(&mut self) {
        // 13.4.17: what happened before is forgotten; a packet that came with it is found by the
        // look that the caller takes after this.
        self.registers.read32(reg::ICR);
        let causes = reg::INT_RXT0 | reg::INT_RXO | reg::INT_RXDMT0;
        self.registers.write32(reg::IMS, causes);
    }

    fn disarm(&mut self) {
        self.registers.write32(reg::IMC, u32::MAX);
    }

    fn drain(&mut self, frame: &mut dyn FnMut(u32)) {
        while self.head != self.tail {
            frame(self.held[self.entry(self.head)]);
            self.head = self.head.wrapping_add(1);
        }
        self.mark();
    }
}

#[cfg(test)]
impl<G> E1000Rx<G> {
    /// Counters of positions, which wrap after 2^32 packets, begin here instead of at 0.
    pub(super) fn begin_at(&mut self, position: u32) {
        assert_eq!(position as usize % self.held.len(), 0);
        (self.head, self.tail, self.shown) = (position, position, position);
    }
}
