//! Hands over packets of one frame each, a batch at a time: first all are assigned to the ends,
//! then each end's ring is written.

use std::mem::MaybeUninit;
use std::vec::Drain;

use super::{Kept, OwnerEnd};
use crate::cache::FrameCache;
use crate::descriptor::Descriptor;
use crate::frame::Frame;
use crate::holder::HOLDER_COUNT_MAX;
use crate::holding;
use crate::pool::{Owner, Pool};

/// Maximum number of packets assigned before they are written.
const BATCH: usize = 64;

/// The bits of the holders behind ends.
#[derive(Clone, Copy)]
struct Holders {
    /// The number of the first end's holder, from 0; the others follow in order.
    first: u32,
    is_ordered: bool,
}

impl Holders {
    fn of(ends: &[OwnerEnd]) -> Self {
        let first = ends
            .first()
            .map_or(0, |end| end.holder.bit().trailing_zeros());
        let bits = ends.iter().map(|end| end.holder.bit());
        let is_ordered = bits.enumerate().all(|(at, bit)| {
            let number = (first as usize).checked_add(at);
            number.is_some_and(|number| number < 64 && bit == 1 << number)
        });
        Self { first, is_ordered }
    }

    /// The bits of the holders of the selected ends.
    #[inline(always)]
    fn select(self, ends: &[OwnerEnd], selected: u64) -> u64 {
        match self.is_ordered {
            true => selected << (self.first & 63),
            false => Self::look_up(ends, selected),
        }
    }

    #[cold]
    fn look_up(ends: &[OwnerEnd], selected: u64) -> u64 {
        let bit = |at| ends.get(at).map_or(0, |end: &OwnerEnd| end.holder.bit());
        Bits(selected).map(bit).fold(0, |all, bit| all | bit)
    }
}

/// Some of the frames, and what is known of them. Each step is a loop of its own, whose state fits
/// into registers.
struct Block<'f> {
    frames: &'f [Frame],
    /// The ends of each.
    selections: &'f [u64],
    /// The ends of any, and of every frame.
    any: u64,
    every: u64,
}

impl Block<'_> {
    /// Writes the packets into the rings of their ends, and passes the frames to the holders.
    #[inline(never)]
    fn hand(&self, ends: &mut [OwnerEnd], cache: &mut FrameCache, pool: &Pool, holders: Holders) {
        if self.any != self.every || self.any == 0 {
            return self.hand_each(ends, cache, pool, holders);
        }
        let count = self.frames.len().min(BATCH);
        let mut packets = [const { MaybeUninit::uninit() }; BATCH];
        for (place, frame) in packets.iter_mut().zip(self.frames) {
            place.write(pool.descriptor_to_hand(frame));
        }
        // SAFETY: these are initialized, and have the layout of descriptors.
        let packets = unsafe { &*(&raw const packets[..count] as *const [Descriptor]) };
        self.pass_all(pool, holders.select(ends, self.any));
        for at in Bits(self.any) {
            if let Some(end) = ends.get_mut(at) {
                end.write_all(packets);
            }
        }
    }

    /// The same for packets that go to different ends.
    #[inline(never)]
    fn hand_each(
        &self,
        ends: &mut [OwnerEnd],
        cache: &mut FrameCache,
        pool: &Pool,
        holders: Holders,
    ) {
        // The packets of each end, as bits.
        let mut of = [0_u64; HOLDER_COUNT_MAX as usize];
        for (at, &selected) in self.selections.iter().enumerate() {
            for end in Bits(selected) {
                of[end] |= 1 << at;
            }
        }
        // While these lines come from the readers' processors, the frames are passed.
        for at in Bits(self.any) {
            if let Some(end) = ends.get(at) {
                end.delivered.prefetch(end.written, of[at].count_ones());
            }
        }
        self.pass_each(ends, cache, pool, holders);
        for at in Bits(self.any) {
            if let Some(end) = ends.get_mut(at) {
                end.write_each(pool, self.frames, of[at]);
            }
        }
    }

    /// Passes the frames to these holders.
    #[inline(always)]
    fn pass_all(&self, pool: &Pool, to: u64) {
        let (owners, holdings) = (pool.owners(), pool.holdings());
        for frame in self.frames {
            let passed = owners.pass(frame.index, Owner::User, Owner::Peer);
            debug_assert!(passed, "an owned frame is marked as the user's");
            if let Some(entry) = holdings.get(frame.index as usize) {
                // No other thread accesses the entry before the packet is submitted.
                holding::begin(entry, to);
            }
        }
    }

    /// Passes each frame to its holders; frees those without one.
    #[inline(always)]
    fn pass_each(&self, ends: &[OwnerEnd], cache: &mut FrameCache, pool: &Pool, holders: Holders) {
        let (owners, holdings) = (pool.owners(), pool.holdings());
        for (frame, &selected) in self.frames.iter().zip(self.selections) {
            if selected == 0 {
                // SAFETY: the frame is owned, and forgotten by the caller.
                unsafe { cache.give_index(frame.index) };
                continue;
            }
            let passed = owners.pass(frame.index, Owner::User, Owner::Peer);
            debug_assert!(passed, "an owned frame is marked as the user's");
            if let Some(entry) = holdings.get(frame.index as usize) {
                // As above.
                holding::begin(entry, holders.select(ends, selected));
            }
        }
    }
}

impl OwnerEnd {
    /// Hands each of the frames to the ends that `select` chooses for it (bit 0 is the first one),
    /// as [`hand_frame`](Self::hand_frame) does, until one of these ends has no room: returns that
    /// frame with the selected ends, none of which received it. Frames for which nothing is
    /// selected are free.
    ///
    /// A frame that [continues](crate::Pool::continues) in the next one is returned before `select`
    /// is called, with 0.
    ///
    /// # Panics
    /// If an end or a frame belongs to another pool than the cache.
    #[inline]
    pub fn hand_run(
        ends: &mut [OwnerEnd],
        cache: &mut FrameCache,
        frames: &mut Drain<'_, Frame>,
        mut select: impl FnMut(&Frame) -> u64,
    ) -> Option<(Frame, u64)> {
        let pool = cache.pool().clone();
        let is_of = |end: &OwnerEnd| end.pool.tag() == pool.tag();
        assert!(ends.iter().all(is_of), "an end of another pool");
        let holders = Holders::of(ends);
        let mut selections = [0; BATCH];
        // Frames are looked at where they are, and leave the vector together.
        let waiting = frames.as_slice();
        let (mut stopped, mut at) = (None, 0);
        while at < waiting.len() && stopped.is_none() {
            let (room, ready) = Self::room(ends);
            let (mut any, mut every) = (0, u64::MAX);
            let rest = &waiting[at..];
            let rest = &rest[..rest.len().min(room)];
            let mut count = 0;
            for (frame, choice) in rest.iter().zip(&mut selections) {
                assert_eq!(frame.tag, pool.tag(), "a frame of another pool");
                if frame.has_record && pool.continues(frame) {
                    stopped = Some(0);
                    break;
                }
                let selected = select(frame);
                if selected & !ready != 0 {
                    stopped = Some(selected);
                    break;
                }
                *choice = selected;
                any |= selected;
                every &= selected;
                count += 1;
            }
            at += count;
            let block = Block {
                frames: &rest[..count],
                selections: &selections[..count],
                any,
                every,
            };
            if count != 0 {
                block.hand(ends, cache, &pool, holders);
            }
        }
        // Forgets those before.
        let last = frames.nth(at);
        last.zip(stopped)
    }

    /// The ends that have room, as bits, and the number of packets for which each of them has, at
    /// most [`BATCH`].
    fn room(ends: &mut [OwnerEnd]) -> (usize, u64) {
        let (mut room, mut ready) = (BATCH as u32, 0);
        for (at, end) in ends.iter_mut().enumerate().take(HOLDER_COUNT_MAX as usize) {
            let entries = end.delivered.reserve(end.written + BATCH as u32);
            let here = entries.saturating_sub(end.written).min(end.holder.room());
            if here != 0 {
                room = room.min(here);
                ready |= 1 << at;
            }
        }
        (room as usize, ready)
    }
}

/// The positions of the bits of a word.
#[derive(Clone)]
pub(super) struct Bits(pub u64);

impl Iterator for Bits {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let at = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(at)
    }
}

impl OwnerEnd {
    /// Writes packets into the ring, which has room.
    #[inline]
    fn write_all(&mut self, packets: &[Descriptor]) {
        let start = self.head.wrapping_add(self.written) as usize & (self.handed.len() - 1);
        let (before, behind) = packets.split_at(packets.len().min(self.handed.len() - start));
        for (place, packet) in self.handed[start..].iter_mut().zip(before) {
            *place = Kept::new(packet.index, false);
        }
        if !behind.is_empty() {
            for (place, packet) in self.handed.iter_mut().zip(behind) {
                *place = Kept::new(packet.index, false);
            }
        }
        self.delivered.write_slice(self.written, packets);
        self.count_written(packets.len() as u32);
    }

    /// Writes the packets of those frames whose bit is set into the ring, which has room.
    #[inline]
    fn write_each(&mut self, pool: &Pool, frames: &[Frame], bits: u64) {
        let mut at = self.head.wrapping_add(self.written) as usize;
        let mask = self.handed.len() - 1;
        let kept = &mut *self.handed;
        let chosen = Bits(bits).filter_map(|bit| frames.get(bit));
        let packets = chosen.map(|frame| {
            if let Some(place) = kept.get_mut(at & mask) {
                *place = Kept::new(frame.index, false);
            }
            at = at.wrapping_add(1);
            pool.descriptor_to_hand(frame)
        });
        let count = self.delivered.write_each(self.written, packets);
        self.count_written(count);
    }

    #[inline(always)]
    fn count_written(&mut self, count: u32) {
        self.holder.add(count);
        self.written += count;
        self.counts.handed += u64::from(count);
    }
}
