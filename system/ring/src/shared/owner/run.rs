//! Hands over packets of one frame each, a batch at a time: first all are assigned to the ends,
//! then each end's ring is written.

use std::mem::MaybeUninit;
use std::vec::Drain;

use super::{FOLLOWS, OwnerEnd};
use crate::cache::FrameCache;
use crate::descriptor::Descriptor;
use crate::frame::Frame;
use crate::holder::HOLDER_COUNT_MAX;
use crate::holding;
use crate::pool::{Owner, Pool};

/// Maximum number of packets assigned before they are written.
const BATCH: usize = 64;

/// Packets of one frame, assigned to ends.
struct Assigned {
    /// The first `count` are initialized.
    packets: [MaybeUninit<Descriptor>; BATCH],
    count: usize,
    /// The packets of each end, as bits.
    of: [u64; HOLDER_COUNT_MAX as usize],
    /// Room that is left in each of the ends whose bit is in `known`.
    room: [u32; HOLDER_COUNT_MAX as usize],
    known: u64,
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
        let mut assigned = Assigned {
            packets: [const { MaybeUninit::uninit() }; BATCH],
            count: 0,
            of: [0; HOLDER_COUNT_MAX as usize],
            room: [0; HOLDER_COUNT_MAX as usize],
            known: 0,
        };
        for frame in frames {
            let packet = pool.descriptor(&frame);
            if packet.continues() {
                assigned.write(ends);
                return Some((frame, 0));
            }
            let selected = select(&frame);
            if selected == 0 {
                // A frame of this pool is accepted.
                let _ = cache.give(frame);
            } else if !assigned.add(&pool, ends, selected, packet) {
                assigned.write(ends);
                return Some((frame, selected));
            }
            if assigned.count == BATCH {
                assigned.write(ends);
            }
        }
        assigned.write(ends);
        None
    }
}

impl Assigned {
    /// Assigns a packet, whose frame the caller owns and then forgets, to all of the selected ends,
    /// or to none.
    #[inline(always)]
    fn add(
        &mut self,
        pool: &Pool,
        ends: &mut [OwnerEnd],
        selected: u64,
        packet: Descriptor,
    ) -> bool {
        if selected & !self.known != 0 {
            self.look(ends, selected);
        }
        let mut rest = selected;
        while rest != 0 {
            if self.room[rest.trailing_zeros() as usize] == 0 {
                return false;
            }
            rest &= rest - 1;
        }
        let Some(first) = ends.get(selected.trailing_zeros() as usize) else {
            return false;
        };
        let Some(holders) = pool.holdings().get(packet.index as usize) else {
            return false;
        };
        if !pool.pass(packet.index, Owner::User, Owner::Peer) {
            return false;
        }
        // No other thread accesses the entry before the packet is written.
        let is_one = selected & (selected - 1) == 0;
        let count = if is_one { 1 } else { selected.count_ones() };
        holding::begin(holders, first.holder.number().into(), count);
        self.packets[self.count].write(packet);
        rest = selected;
        while rest != 0 {
            let end = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            self.of[end] |= 1 << self.count;
            self.room[end] -= 1;
        }
        self.count += 1;
        true
    }

    /// Finds out how much room these ends have.
    #[cold]
    fn look(&mut self, ends: &mut [OwnerEnd], selected: u64) {
        let mut rest = selected & !self.known;
        self.known |= rest;
        while rest != 0 {
            let at = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            // An end that does not exist has none.
            self.room[at] = ends.get_mut(at).map_or(0, |end| {
                let entries = end.delivered.reserve(end.written + BATCH as u32);
                entries.saturating_sub(end.written).min(end.holder.room())
            });
        }
    }

    /// Writes the packets into the rings.
    #[inline]
    fn write(&mut self, ends: &mut [OwnerEnd]) {
        let mut rest = if self.count == 0 { 0 } else { self.known };
        while rest != 0 {
            let at = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let packets = std::mem::take(&mut self.of[at]);
            if packets != 0
                && let Some(end) = ends.get_mut(at)
            {
                // SAFETY: the bits of an end are below the count, and these are initialized.
                unsafe { end.write_each(&self.packets, packets) };
            }
        }
        (self.count, self.known) = (0, 0);
    }
}

/// The positions of the bits of a word.
#[derive(Clone)]
struct Bits(u64);

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

    #[inline(always)]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = self.0.count_ones() as usize;
        (count, Some(count))
    }
}

impl ExactSizeIterator for Bits {}

impl OwnerEnd {
    /// Writes those packets whose bit is set into the ring, which has room.
    ///
    /// # Safety
    /// These packets are initialized.
    #[inline(always)]
    unsafe fn write_each(&mut self, packets: &[MaybeUninit<Descriptor>; BATCH], bits: u64) {
        let Self {
            delivered,
            holder,
            handed,
            ..
        } = self;
        let (mask, mut at) = (handed.len() - 1, self.head.wrapping_add(self.written));
        let count = bits.count_ones();
        holder.add(count);
        let mut mark = holder.marker();
        let chosen = Bits(bits).map(|bit| {
            // SAFETY: the caller's word.
            let mut packet = unsafe { packets[bit].assume_init() };
            packet.info &= !FOLLOWS;
            if let Some(place) = handed.get_mut(at as usize & mask) {
                *place = packet;
            }
            at = at.wrapping_add(1);
            mark(packet.index);
            packet
        });
        delivered.write_run(self.written, chosen);
        self.written += count;
        self.counts.handed += u64::from(count);
    }
}
