//! Packets that are not plain: in several descriptors, damaged, incomplete, or with impossible
//! values.

use std::sync::atomic::Ordering;

use ring::slot::{Filled, Slot};

use super::{RingRx, RxFormat, time_flag};
use crate::driver::Refused;
use crate::registers::Registers;

/// Next item at the head of the ring.
enum Next {
    /// This many descriptors of a packet that is incomplete.
    Incomplete(u32),
    /// A packet, in `words`.
    Whole,
    /// Descriptors without an end among them, in `words`: not a packet.
    Endless,
}

impl<G: Registers, F: RxFormat> RingRx<G, F> {
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

    /// Harvests the next packet of any kind: in several descriptors, damaged, invalid, or plain.
    /// Returns false if it must wait for its end or for the next batch.
    #[cold]
    pub(super) fn harvest_odd(
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
            // One in more pieces than a batch is returned alone.
            Next::Whole if self.words.len() > room && !is_first => return false,
            Next::Whole => {}
        }
        let start = slots.len();
        let pieces = self.words.len();
        let (len, sound, said) = self.take_pieces(slots, time_ns);
        let damaged = said & F::ERRORS != 0;
        if !sound || damaged || len > self.packet_len_max {
            match (sound, damaged) {
                (false, _) => refused.invalid += 1,
                (true, true) => refused.errors += 1,
                (true, false) => refused.too_long += 1,
            }
            back.extend(slots.drain(start..).map(|slot| slot.token() as u32));
            return true;
        }
        if let (Some(first), Some(&(low, word))) = (slots.get_mut(start), self.words.last()) {
            // A packet's metadata is in its last descriptor.
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

    /// Creates slots for the packet in `words`: returns its length, whether every segment fits its
    /// frame, and the metadata of its descriptors.
    fn take_pieces(&mut self, slots: &mut Vec<Slot>, time_ns: u64) -> (u32, bool, u64) {
        let (mut len, mut sound, mut said) = (0, true, 0);
        for at in 0..self.words.len() {
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
            // What fits the buffer is within the frame, which this slot has from here on.
            let mut slot = unsafe {
                let data = pool.base().add(place as usize);
                Slot::over(data, if fits { part } else { 0 }, 0, index.into())
            };
            slot.time_ns = time_ns;
            slots.push(slot);
        }
        (len, sound, said)
    }

    /// Reclaims descriptors of a packet that was refused before its end; false if the end is not
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
}
