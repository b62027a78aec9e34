//! Receiving: descriptors with one buffer each, written back by the card in place (§7.1).
//!
//! Each descriptor is read once for a decision: what the card writes later changes nothing that was
//! decided by what it wrote before.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::dma::{DmaArray, PoolDma, after_done_flag, before_doorbell};
use super::super::driver::{DriverRx, Health, Refused};
use super::super::registers::Registers;
use super::{Descriptor, Entries, run};
use crate::rx::Filled;
use crate::slot::{Room, Slot, prefetch};

/// What a card's received descriptors say in their second word, and its registers for a queue.
pub(crate) trait RxFormat: Send + 'static {
    /// The descriptor is done.
    const DONE: u64;
    /// The packet ends in it.
    const END: u64;
    /// The card marks the packet as damaged, by any of these.
    const ERRORS: u64;
    /// With one of these, which are rare, [`info`](Self::info) is not true and
    /// [`odd_info`](Self::odd_info) is.
    const ODD: u64;
    /// Where the 16 bits of the length begin; none of the flags above is among them.
    const LEN_SHIFT: u32;
    /// The bits of the word that [`info`](Self::info) takes as they are.
    const INFO: u64;
    /// What is beside `info`, of any packet: the tag protocol, which is nobody's without a tag.
    const ALWAYS: u64;

    /// Bytes in the buffer.
    #[inline(always)]
    fn len(word: u64) -> u32 {
        (word >> Self::LEN_SHIFT) as u32 & LEN_MASK as u32
    }

    /// As `Slot` keeps a hash, from the first word.
    fn hash(first: u64) -> u64;

    /// Flags and tag, as [`Slot::set_info`] has them. `mask` is [`INFO`](Self::INFO).
    fn info(word: u64, mask: u64) -> u64;

    /// The same, of any word.
    fn odd_info(word: u64) -> u64;

    /// The tail register.
    fn tail(&self) -> u32;

    /// Whether the queue is as it was started: one register read.
    fn health<G: Registers>(&self, registers: &G, ring_len: u32) -> Health;

    /// Lets the queue's interrupt through.
    fn arm<G: Registers>(&self, registers: &G);

    /// Masks it.
    fn disarm<G: Registers>(&self, registers: &G);
}

/// The bits of a length, once it is shifted down.
const LEN_MASK: u64 = 0xffff;

/// Which packets are plain: those that end where they began, have no flag that is odd, and a length
/// that is neither 0 nor more than fits.
///
/// One comparison tells all of it. With the length in the lowest bits and the flags above it, what
/// is left when the flags wanted, and 1, are taken away is less than the longest length only where
/// nothing but a length is left.
struct Plain {
    looked_at: u64,
    taken_away: u64,
    /// Below 2^16.
    longest: u64,
}

impl Plain {
    #[inline(always)]
    fn new<F: RxFormat>(longest: u32) -> Self {
        // Constants that the compiler does not know are read from memory by the instruction that
        // needs them. Those that it knows take one more to be made, for each packet.
        let wanted = (F::DONE | F::END).rotate_right(F::LEN_SHIFT);
        let flags = wanted | (F::ERRORS | F::ODD).rotate_right(F::LEN_SHIFT);
        assert!(flags & LEN_MASK == 0 && u64::from(longest) <= LEN_MASK);
        Self {
            looked_at: black_box(flags | LEN_MASK),
            taken_away: black_box(wanted + 1),
            longest: longest.into(),
        }
    }

    /// The length of the packet, if it is one of them.
    #[inline(always)]
    fn len<F: RxFormat>(&self, word: u64) -> Option<u32> {
        let turned = word.rotate_right(F::LEN_SHIFT) & self.looked_at;
        let left = turned.wrapping_sub(self.taken_away);
        (left < self.longest).then(|| left as u32 + 1)
    }
}

/// A receiving queue.
pub(crate) struct RingRx<G, F> {
    ring: Arc<DmaArray<Descriptor>>,
    /// The frame in each descriptor: the card's word for an address is never taken.
    held: Box<[u32]>,
    /// Where the card's next answer is looked for, where the next frame goes, and what the tail
    /// register holds; all only grow.
    head: u32,
    tail: u32,
    shown: u32,
    /// Descriptors up to the next end of a packet are the rest of a refused one.
    skipping: bool,
    /// Descriptors of a packet at `head` that are done, and its end is not.
    incomplete: u32,
    headroom: u32,
    /// Bytes that a buffer holds.
    buffer_len: u32,
    packet_len_max: u32,
    /// Descriptors of the longest packet.
    pieces_max: u32,
    /// Words of the packet at hand, where it is in several descriptors.
    words: Vec<(u64, u64)>,
    frames: Arc<PoolDma>,
    registers: G,
    format: F,
    /// `head` and `shown`, for the watch.
    place: Arc<AtomicU64>,
}

/// What a queue is made of.
pub(crate) struct RxParts<G, F> {
    pub registers: G,
    pub format: F,
    pub ring: DmaArray<Descriptor>,
    pub frames: Arc<PoolDma>,
    /// Where in a frame the card begins to write, and how much it may.
    pub headroom: u32,
    pub buffer_len: u32,
    /// Longest packet that is taken.
    pub packet_len_max: u32,
}

/// What is at the head of the ring.
enum Next {
    /// So many descriptors of a packet whose end is not there yet.
    Incomplete(u32),
    /// A packet, in `words`.
    Whole,
    /// Descriptors that are no packet: in `words`, and no end among them.
    Endless,
}

impl<G: Registers, F: RxFormat> RingRx<G, F> {
    /// An empty ring; the card's registers name it already.
    pub(crate) fn new(parts: RxParts<G, F>) -> Self {
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

    /// Takes the frame of descriptor `head` back and goes on.
    fn take(&mut self) -> Option<u32> {
        let index = self.held[self.entry(self.head)];
        self.head = self.head.wrapping_add(1);
        // SAFETY: the descriptor is done: the card is done with the frame.
        unsafe { self.frames.pool().claim_index(index) }.then_some(index)
    }

    /// Packets of one sound descriptor each, until there is another or `max` are taken.
    // By itself it has the registers that it needs.
    #[inline(never)]
    fn harvest_plain<const SHIFT: u32>(
        &mut self,
        slots: &mut Vec<Slot>,
        max: usize,
        time_ns: u64,
    ) -> Filled {
        // Not beyond what the card knows of: the rest is as we wrote it, or as it was.
        let there = self.shown.wrapping_sub(self.head) as usize;
        let mut left = max.min(there);
        let mut room = Room::new(slots, left);
        // What does not change is kept in registers: the compiler must think that every store into
        // a slot could change it.
        let pool = self.frames.pool();
        let owners = pool.owners();
        let first = pool.base().as_ptr().wrapping_add(self.headroom as usize);
        let plain = Plain::new::<F>(self.buffer_len.min(self.packet_len_max));
        let mask = black_box(F::INFO);
        let always = black_box(u64::from(time_flag(time_ns)) | F::ALWAYS);
        // No more than a ring of the longest packets.
        let mut bytes: u32 = 0;
        while left != 0 {
            let entries = run(self.head, self.held.len(), left);
            let (ring, held) = (&self.ring[entries.clone()], &mut self.held[entries]);
            let count = ring.len();
            let entries = Entries {
                ring: ring.as_ptr(),
                held: held.as_mut_ptr(),
                items: room.next(),
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

    /// Reads the packet at `head` into `words`.
    fn read_packet(&mut self) -> Next {
        self.words.clear();
        let offered = self.shown.wrapping_sub(self.head);
        loop {
            let count = self.words.len() as u32;
            // Longer than any packet, or all that the card has: it will not end.
            if count != 0 && (count == offered || count == self.pieces_max) {
                return Next::Endless;
            }
            let position = self.head.wrapping_add(count);
            let word = match count == offered {
                true => None,
                false => self.done(position),
            };
            let Some(word) = word else {
                return Next::Incomplete(count);
            };
            let first = self.ring.ring_at(position)[0].load(Ordering::Relaxed);
            self.words.push((first, word));
            if word & F::END != 0 {
                return Next::Whole;
            }
        }
    }

    /// Takes the next packet whatever it is: in several descriptors, damaged, a lie, or plain.
    /// False if it is to wait for its end or for the next batch.
    #[cold]
    fn harvest_odd(
        &mut self,
        slots: &mut Vec<Slot>,
        (room, is_first): (usize, bool),
        time_ns: u64,
        back: &mut Vec<u32>,
        (refused, filled): (&mut Refused, &mut Filled),
    ) -> bool {
        if self.skipping {
            return self.skip(back);
        }
        match self.read_packet() {
            Next::Incomplete(count) => {
                self.incomplete = count;
                return false;
            }
            Next::Endless => {
                for _ in 0..self.words.len() {
                    back.extend(self.take());
                }
                self.skipping = true;
                refused.invalid += 1;
                return true;
            }
            // One of more pieces than a batch is taken alone.
            Next::Whole if self.words.len() > room && !is_first => return false,
            Next::Whole => {}
        }
        let start = slots.len();
        let (mut len, mut sound, mut said) = (0, true, 0);
        let pieces = self.words.len();
        for at in 0..pieces {
            let (_, word) = self.words[at];
            said |= word;
            let part = F::len(word);
            let fits = part != 0 && part <= self.buffer_len;
            sound &= fits;
            let Some(index) = self.take() else {
                sound = false;
                continue;
            };
            len += part;
            let pool = self.frames.pool();
            let place = pool.addr_of(index) + u64::from(self.headroom);
            // SAFETY: the index is one of the pool's (claimed), and the headroom within its frame.
            let data = unsafe { pool.base().add(place as usize) };
            let mut slot = Slot::new(data, if fits { part } else { 0 }, 0, index.into());
            slot.time_ns = time_ns;
            slots.push(slot);
        }
        let damaged = said & F::ERRORS != 0;
        if !sound || damaged || len > self.packet_len_max {
            match (sound, damaged) {
                (false, _) => refused.invalid += 1,
                (true, true) => refused.errors += 1,
                (true, false) => refused.too_long += 1,
            }
            back.extend(slots.drain(start..).map(|slot| slot.token as u32));
            return true;
        }
        if let (Some(first), Some(&(low, word))) = (slots.get_mut(start), self.words.last()) {
            // What is said of a packet is said in its last descriptor.
            first.hash = F::hash(low);
            first.set_info(F::odd_info(word) | F::ALWAYS);
        }
        for (at, slot) in slots[start..].iter_mut().enumerate() {
            slot.wire_len = len;
            let continues = u16::from(at + 1 != pieces) * Slot::CONTINUES;
            slot.flags |= time_flag(time_ns) | continues;
        }
        filled.packets += 1;
        filled.bytes += u64::from(len);
        true
    }

    /// Takes back what belongs to a packet that was refused before its end; false if that is not
    /// there yet.
    fn skip(&mut self, back: &mut Vec<u32>) -> bool {
        while self.skipping {
            if self.head == self.shown {
                return false;
            }
            let Some(word) = self.done(self.head) else {
                return false;
            };
            back.extend(self.take());
            self.skipping = word & F::END == 0;
        }
        true
    }

    /// Gives the next descriptors the frames of `items`, as far as there are vacant ones and
    /// `frame_of` names a frame; how many.
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
                // Takes the done flag away, so that an answer is a new one.
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

    /// The same, for whichever length frames have.
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

/// The flag that says whether there is a time.
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
            unsafe { owners.lend_known(index) }.then_some(index)
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
                // The two lengths that frames have, as constants.
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
        // Where a packet waits for its end, the next of its descriptors counts.
        let at = self.head.wrapping_add(self.incomplete);
        at != self.shown && self.done(at).is_some()
    }

    fn watch(&self) -> Box<dyn Fn() -> u32 + Send + Sync> {
        let (ring, place) = (self.ring.clone(), self.place.clone());
        Box::new(move || {
            let place = place.load(Ordering::Relaxed);
            let (head, shown) = (place as u32, (place >> 32) as u32);
            // Bounded by the ring, whatever the two say.
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
    /// Counters of positions, which wrap after 2^32 packets, begin here instead of at 0.
    pub(crate) fn begin_at(&mut self, position: u32) {
        assert_eq!(position as usize % self.held.len(), 0);
        (self.head, self.tail, self.shown) = (position, position, position);
    }
}

/// What is plain by one comparison is so by looking at each flag, and at the length.
#[cfg(test)]
pub(crate) fn plain_is_plain<F: RxFormat>() {
    let (wanted, unwanted) = (F::DONE | F::END, F::ERRORS | F::ODD);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let (mut plain, mut others) = (0, 0);
    for longest in [1, 60, 1518, 2048, 0xffff] {
        let test = Plain::new::<F>(longest);
        for round in 0..20_000 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let lens = [
                0,
                1,
                longest - 1,
                longest,
                longest + 1,
                0xffff,
                random as u32,
            ];
            let len = u64::from(lens[round % lens.len()]) & LEN_MASK;
            let noise = random.rotate_left(23);
            let flags = match round % 5 {
                0 => noise,
                1 => noise & !unwanted | wanted,
                2 => noise & !unwanted & !wanted | wanted & random.rotate_left(11),
                3 => noise | wanted,
                _ => !unwanted & !(1 << (round / 5 % 64)),
            };
            let word = flags & !(LEN_MASK << F::LEN_SHIFT) | len << F::LEN_SHIFT;
            let is_plain =
                word & (wanted | unwanted) == wanted && (1..=u64::from(longest)).contains(&len);
            let expected = is_plain.then_some(len as u32);
            assert_eq!(test.len::<F>(word), expected, "{word:#x}, {longest}");
            assert_eq!(u64::from(F::len(word)), len);
            plain += u32::from(is_plain);
            others += u32::from(!is_plain);
        }
    }
    assert!(plain > 1000 && others > 1000, "{plain} {others}");
}
