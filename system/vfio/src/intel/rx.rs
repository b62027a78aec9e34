//! Receiving: descriptors with one buffer each, written back by the card in place (§7.1).
//!
//! Each descriptor is read once for a decision: later writes of the card cannot change what was
//! decided.

mod format;
mod odd;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ring::slot::{Filled, Room, Slot, prefetch};

use super::super::dma::{DmaArray, PoolDma, after_done_flag, before_doorbell};
use super::super::driver::{DriverRx, Health, Refused};
use super::super::registers::Registers;
use super::{Descriptor, Entries, run};

pub use self::format::RxFormat;
#[cfg(test)]
pub use self::format::plain_is_plain;
use self::format::{LEN_MASK, Plain};

/// A receiving queue.
pub struct RingRx<G, F> {
    ring: Arc<DmaArray<Descriptor>>,
    /// The frame in each descriptor: addresses from the card are never used.
    held: Box<[u32]>,
    /// Position of the card's next answer, position for the next frame, and the value of the tail
    /// register; all only grow.
    head: u32,
    tail: u32,
    shown: u32,
    /// Whether descriptors up to the next end of a packet are the rest of a refused one.
    skipping: bool,
    /// Number of done descriptors of a packet at `head` whose end is not done yet.
    incomplete: u32,
    headroom: u32,
    /// Length of a buffer.
    buffer_len: u32,
    packet_len_max: u32,
    /// Number of descriptors of the longest packet.
    pieces_max: u32,
    /// Words of the current packet, if it is in several descriptors.
    words: Vec<(u64, u64)>,
    frames: Arc<PoolDma>,
    registers: G,
    format: F,
    /// `head` and `shown`, for the watch.
    place: Arc<AtomicU64>,
}

/// Parts of a queue.
pub struct RxParts<G, F> {
    pub registers: G,
    pub format: F,
    pub ring: DmaArray<Descriptor>,
    pub frames: Arc<PoolDma>,
    /// Offset at which the card writes in a frame.
    pub headroom: u32,
    pub buffer_len: u32,
    /// Maximum length of an accepted packet.
    pub packet_len_max: u32,
}

impl<G: Registers, F: RxFormat> RingRx<G, F> {
    /// Creates an empty ring; the card's registers refer to it already.
    pub fn new(parts: RxParts<G, F>) -> Self {
        let ring_len = parts.ring.len();
        let pieces = parts.packet_len_max.div_ceil(parts.buffer_len) + 1;
        let pieces_max = pieces.min(ring_len as u32 - 1);
        let room = parts.frames.pool().frame_len() - parts.headroom;
        assert!(parts.buffer_len <= room, "a buffer is within its frame");
        assert!(u64::from(parts.buffer_len) <= LEN_MASK);
        assert!(matches!(parts.frames.pool().frame_len(), 2048 | 4096));
        Self {
            held: vec![u32::MAX; ring_len].into(),
            ring: Arc::new(parts.ring),
            head: 0,
            tail: 0,
            shown: 0,
            skipping: false,
            incomplete: 0,
            headroom: parts.headroom,
            buffer_len: parts.buffer_len,
            packet_len_max: parts.packet_len_max,
            pieces_max,
            words: Vec::with_capacity(pieces_max as usize),
            frames: parts.frames,
            registers: parts.registers,
            format: parts.format,
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
        if word & F::DONE == 0 {
            return None;
        }
        // §7.1.5.2: the flag is in the word that the card writes last.
        after_done_flag();
        Some(word)
    }

    /// Takes the frame of descriptor `head` and advances.
    fn take(&mut self) -> Option<u32> {
        let index = self.held[self.entry(self.head)];
        self.head = self.head.wrapping_add(1);
        // SAFETY: the descriptor is done: the card is done with the frame.
        unsafe { self.frames.pool().claim_index(index) }.then_some(index)
    }

    /// Harvests packets of one valid descriptor each, until there is another kind or `max` are
    /// taken.
    // Not inlined, so that it has enough registers.
    #[inline(never)]
    fn harvest_plain<const SHIFT: u32>(
        &mut self,
        slots: &mut Vec<Slot>,
        max: usize,
        time_ns: u64,
    ) -> Filled {
        // Not past the descriptors given to the card: the rest is stale.
        let there = self.shown.wrapping_sub(self.head) as usize;
        let mut left = max.min(there);
        let mut room = Room::new(slots, left);
        // Constants are kept in registers: the compiler must assume that every store to a slot
        // could change them.
        let pool = self.frames.pool();
        let owners = pool.owners();
        let first = pool.base().as_ptr().wrapping_add(self.headroom as usize);
        let plain = Plain::new::<F>(self.buffer_len.min(self.packet_len_max));
        let mask = black_box(F::INFO);
        let always = black_box(u64::from(time_flag(time_ns)) | F::ALWAYS);
        // At most a ring of maximum-length packets.
        let mut bytes: u32 = 0;
        while left != 0 {
            let entries = run(self.head, self.held.len(), left);
            let (ring, held) = (&self.ring[entries.clone()], &mut self.held[entries]);
            let count = ring.len();
            let entries = Entries {
                ring: ring.as_ptr(),
                held: held.as_mut_ptr(),
                items: room.place(),
            };
            let take = |[low, high]: &Descriptor, held: &mut u32, slot: *mut Slot| {
                let (word, index) = (high.load(Ordering::Relaxed), *held);
                // Longer than the buffer, or empty, is not plain either.
                let Some(len) = plain.len::<F>(word) else {
                    return false;
                };
                // §7.1.5.2: as in `done`.
                after_done_flag();
                // SAFETY: the card has given the entry back, so it is done with the frame; an entry
                // holds an index of the pool's.
                if !unsafe { owners.claim_known(index) } {
                    return false;
                }
                let data = first.wrapping_add((index as usize) << SHIFT);
                let hash = F::hash(low.load(Ordering::Relaxed));
                let info = F::info(word, mask) | always;
                // SAFETY: room was made for `left` of them. The index is one of the pool's
                // (claimed), and headroom and length lie within its frame (see `new`).
                unsafe { Slot::write(slot, data, len, index, time_ns, hash, info) };
                prefetch(data);
                bytes = bytes.wrapping_add(len);
                true
            };
            // SAFETY: so many of each there are, and room for so many slots; those taken were
            // written.
            let taken = unsafe {
                let taken = entries.each(count, take);
                room.advance(taken);
                taken
            };
            self.head = self.head.wrapping_add(taken as u32);
            left -= taken;
            if taken != count {
                break;
            }
        }
        Filled {
            packets: room.finish(),
            bytes: bytes.into(),
        }
    }

    /// Gives the next descriptors the frames of `items`, as far as there are vacant ones and
    /// `frame_of` returns a frame; returns how many.
    #[inline(always)]
    fn offer_each<const SHIFT: u32, T>(
        &mut self,
        items: &[T],
        frame_of: impl Fn(ring::Owners<'_>, &T) -> Option<u32>,
    ) -> usize {
        let most = items.len().min(self.vacant() as usize);
        let pool = self.frames.pool();
        let owners = pool.owners();
        let first = self.frames.address(0, self.headroom);
        let mut done = 0;
        while done != most {
            let entries = run(self.tail, self.held.len(), most - done);
            let (ring, held) = (&self.ring[entries.clone()], &mut self.held[entries]);
            let count = ring.len();
            let entries = Entries {
                ring: ring.as_ptr(),
                held: held.as_mut_ptr(),
                items: items[done..done + count].as_ptr().cast_mut(),
            };
            let give = |[address, word]: &Descriptor, held: &mut u32, item: *mut T| {
                // SAFETY: one of the items, which are only read.
                let Some(index) = frame_of(owners, unsafe { &*item }) else {
                    return false;
                };
                *held = index;
                let iova = first + (u64::from(index) << SHIFT);
                address.store(iova, Ordering::Relaxed);
                // Clears the done flag, so that an answer is a new one.
                word.store(0, Ordering::Relaxed);
                true
            };
            // SAFETY: so many of each there are.
            let given = unsafe { entries.each(count, give) };
            self.tail = self.tail.wrapping_add(given as u32);
            done += given;
            if given != count {
                break;
            }
        }
        done
    }

    /// The same for either frame length.
    #[inline(always)]
    fn offer<T>(
        &mut self,
        items: &[T],
        frame_of: impl Fn(ring::Owners<'_>, &T) -> Option<u32>,
    ) -> usize {
        match self.frames.pool().frame_len() {
            4096 => self.offer_each::<12, T>(items, frame_of),
            _ => self.offer_each::<11, T>(items, frame_of),
        }
    }

    #[inline(always)]
    fn mark(&self) {
        let place = u64::from(self.shown) << 32 | u64::from(self.head);
        self.place.store(place, Ordering::Relaxed);
    }
}

/// The flag for a valid timestamp.
#[inline(always)]
fn time_flag(time_ns: u64) -> u16 {
    u16::from(time_ns != 0) * Slot::TIME
}

impl<G: Registers, F: RxFormat> DriverRx for RingRx<G, F> {
    fn ring_len(&self) -> u32 {
        self.held.len() as u32
    }

    #[inline(always)]
    fn vacant(&self) -> u32 {
        // §7.1.7: head and tail are equal when the card has none; so one entry stays empty.
        self.held.len() as u32 - 1 - self.tail.wrapping_sub(self.head)
    }

    fn headroom(&self) -> u32 {
        self.headroom
    }

    #[inline]
    fn offer_run(&mut self, indices: &[u32]) {
        let offered = self.offer(indices, |_, &index| Some(index));
        debug_assert!(offered == indices.len(), "the caller looks for room");
    }

    #[inline]
    unsafe fn offer_slots(&mut self, slots: &[Slot]) -> usize {
        self.offer(slots, |owners, slot| {
            let index = slot.index();
            // SAFETY: the caller's word: the slot's frame is one of the pool's, held by its batch,
            // which ends here.
            unsafe { owners.give_known_to_device(index) }.then_some(index)
        })
    }

    #[inline]
    fn publish(&mut self) {
        if self.shown == self.tail {
            return;
        }
        self.shown = self.tail;
        self.mark();
        // §7.1.5: descriptors before the tail that gives them to the card.
        before_doorbell();
        let entry = self.entry(self.tail) as u32;
        self.registers.write32(self.format.tail(), entry);
    }

    #[inline]
    fn harvest(
        &mut self,
        slots: &mut Vec<Slot>,
        max: usize,
        time_ns: u64,
        back: &mut Vec<u32>,
        refused: &mut Refused,
    ) -> Filled {
        self.incomplete = 0;
        let start = slots.len();
        let mut filled = Filled::default();
        loop {
            let taken = slots.len() - start;
            if !self.skipping {
                let max = max.saturating_sub(taken);
                // The two frame lengths, as constants.
                let plain = match self.frames.pool().frame_len() {
                    4096 => self.harvest_plain::<12>(slots, max, time_ns),
                    _ => self.harvest_plain::<11>(slots, max, time_ns),
                };
                filled.packets += plain.packets;
                filled.bytes += plain.bytes;
            }
            let taken = slots.len() - start;
            let room = max.saturating_sub(taken);
            if room == 0 || !self.is_ready() {
                break;
            }
            let counts = (&mut *refused, &mut filled);
            if !self.harvest_odd(slots, (room, taken == 0), time_ns, back, counts) {
                break;
            }
        }
        self.mark();
        filled
    }

    #[inline]
    fn is_ready(&self) -> bool {
        // If a packet is incomplete, the next of its descriptors counts.
        let at = self.head.wrapping_add(self.incomplete);
        at != self.shown && self.done(at).is_some()
    }

    fn watch(&self) -> Box<dyn Fn() -> u32 + Send + Sync> {
        let (ring, place) = (self.ring.clone(), self.place.clone());
        Box::new(move || {
            let place = place.load(Ordering::Relaxed);
            let (head, shown) = (place as u32, (place >> 32) as u32);
            // Bounded by the ring for any values.
            let offered = shown.wrapping_sub(head).min(ring.len() as u32);
            let words = (0..offered).map(|at| {
                let [_, word] = ring.ring_at(head.wrapping_add(at));
                word.load(Ordering::Relaxed)
            });
            let done = words.take_while(|word| word & F::DONE != 0);
            done.filter(|word| word & F::END != 0).count() as u32
        })
    }

    fn health(&mut self) -> Health {
        self.format.health(&self.registers, self.held.len() as u32)
    }

    fn arm(&mut self) {
        self.format.arm(&self.registers);
    }

    fn disarm(&mut self) {
        self.format.disarm(&self.registers);
    }

    fn drain(&mut self, frame: &mut dyn FnMut(u32)) {
        while self.head != self.tail {
            frame(self.held[self.entry(self.head)]);
            self.head = self.head.wrapping_add(1);
        }
        self.shown = self.tail;
        self.mark();
    }
}

#[cfg(test)]
impl<G, F> RingRx<G, F> {
    /// Starts the position counters, which wrap after 2^32 packets, here instead of at 0.
    pub fn begin_at(&mut self, position: u32) {
        assert_eq!(position as usize % self.held.len(), 0);
        (self.head, self.tail, self.shown) = (position, position, position);
    }
}
