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

/// What is known while packets are assigned to ends.
#[derive(Clone, Copy)]
struct Progress {
    /// The ends of any, and of every packet.
    any: u64,
    every: u64,
    /// The ends whose room is known.
    known: u64,
    /// The least room of these ends when it was looked up.
    room: usize,
}

impl Progress {
    const NONE: Self = Self {
        any: 0,
        every: u64::MAX,
        known: 0,
        room: BATCH,
    };

    fn find_room(&mut self, ends: &mut [OwnerEnd], which: u64) {
        self.known |= which;
        for at in Bits(which) {
            // An end that does not exist has none.
            let room = ends.get_mut(at).map_or(0, |end| {
                let entries = end.delivered.reserve(end.written + BATCH as u32);
                entries.saturating_sub(end.written).min(end.holder.room())
            });
            self.room = self.room.min(room as usize);
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
        let (owners, tag) = (pool.owners(), pool.tag());
        // The ends of each packet from `start` on, which are not written yet.
        let mut selections = [0_u64; BATCH];
        let mut progress = Progress::NONE;
        let (mut stopped, mut start, mut at) = (None, 0, 0);
        // Frames are looked at where they are, and leave the vector together.
        let waiting = frames.as_slice();
        while let Some(frame) = waiting.get(at) {
            assert_eq!(frame.tag, tag, "a frame of another pool");
            if frame.has_record && pool.continues(frame) {
                stopped = Some(0);
                break;
            }
            let selected = select(frame);
            if selected & !progress.known != 0 || at - start >= progress.room {
                progress.find_room(ends, selected & !progress.known);
                if at - start >= progress.room {
                    // Not all of the packets were for the end with the least room.
                    write(ends, &pool, &waiting[start..at], &selections, progress);
                    (start, progress) = (at, Progress::NONE);
                    progress.find_room(ends, selected);
                }
            }
            let place = selections.get_mut(at - start);
            let (true, Some(place)) = (progress.room != 0, place) else {
                stopped = Some(selected);
                break;
            };
            if selected == 0 {
                // SAFETY: the frame is owned, and forgotten below.
                unsafe { cache.give_index(frame.index) };
            } else if !owners.pass(frame.index, Owner::User, Owner::Peer) {
                stopped = Some(selected);
                break;
            }
            *place = selected;
            progress.any |= selected;
            progress.every &= selected;
            at += 1;
        }
        write(ends, &pool, &waiting[start..at], &selections, progress);
        // Forgets those before.
        let last = frames.nth(at);
        last.zip(stopped)
    }
}

/// Writes packets, whose frames are passed on already, into the rings of their ends.
#[inline(never)]
fn write(
    ends: &mut [OwnerEnd],
    pool: &Pool,
    frames: &[Frame],
    selections: &[u64; BATCH],
    progress: Progress,
) {
    let mut packets = [const { MaybeUninit::uninit() }; BATCH];
    let count = frames.len().min(BATCH);
    if count == 0 || progress.any == 0 {
        return;
    }
    let is_uniform = progress.any == progress.every;
    let holdings = pool.holdings();
    let mut entry = holders(ends, progress.any);
    for ((place, frame), &selected) in packets.iter_mut().zip(frames).zip(selections) {
        let mut packet = pool.descriptor(frame);
        packet.info &= !FOLLOWS;
        place.write(packet);
        if !is_uniform {
            if selected == 0 {
                continue;
            }
            entry = holders(ends, selected);
        }
        // No other thread accesses the entry before the packet is submitted.
        if let Some(held) = holdings.get(frame.index as usize) {
            holding::begin(held, entry.0, entry.1);
        }
    }
    // SAFETY: the first `count` are initialized, and have the layout of descriptors.
    let packets = unsafe { &*(&raw const packets[..count] as *const [Descriptor]) };
    if is_uniform {
        for at in Bits(progress.any) {
            if let Some(end) = ends.get_mut(at) {
                end.write_all(packets);
            }
        }
        return;
    }
    // The packets of each end, as bits.
    let mut of = [0_u64; HOLDER_COUNT_MAX as usize];
    for (at, &selected) in selections[..count].iter().enumerate() {
        for end in Bits(selected) {
            of[end] |= 1 << at;
        }
    }
    for at in Bits(progress.any) {
        if let Some(end) = ends.get_mut(at) {
            end.write_each(packets, of[at]);
        }
    }
}

/// The number of the first of these ends' holders, and how many they are.
#[inline(always)]
fn holders(ends: &[OwnerEnd], selected: u64) -> (u32, u32) {
    let first = ends.get(selected.trailing_zeros() as usize);
    let number = first.map_or(0, |end| end.holder.number().into());
    let is_one = selected & selected.wrapping_sub(1) == 0;
    (number, if is_one { 1 } else { selected.count_ones() })
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
    /// Writes packets into the ring, which has room.
    #[inline(always)]
    fn write_all(&mut self, packets: &[Descriptor]) {
        let count = packets.len();
        let start = self.head.wrapping_add(self.written) as usize & (self.handed.len() - 1);
        let (before, behind) = packets.split_at(count.min(self.handed.len() - start));
        self.handed[start..start + before.len()].copy_from_slice(before);
        self.handed[..behind.len()].copy_from_slice(behind);
        self.holder.add(count as u32);
        let mut mark = self.holder.marker();
        packets.iter().for_each(|packet| mark(packet.index));
        self.delivered.write_slice(self.written, packets);
        self.written += count as u32;
        self.counts.handed += count as u64;
    }

    /// Writes those packets whose bit is set into the ring, which has room.
    #[inline(always)]
    fn write_each(&mut self, packets: &[Descriptor], bits: u64) {
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
            let packet = packets[bit];
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
