//! Takes back what peers have returned.

use std::sync::atomic::Ordering;

use super::{Collected, OwnerEnd};
use crate::cache::FrameCache;
use crate::holder::REFUSED;

/// Frames that are freed at a time.
const CHUNK: usize = 64;

impl OwnerEnd {
    /// Takes back the frames that the peer has returned so far, at most one ring of them.
    #[inline]
    pub fn collect(&mut self, cache: &mut FrameCache) -> Collected {
        self.take_returned(cache, false)
    }

    /// Like [`collect`](Self::collect), for each of the ends. If these are all holders of their
    /// pool's frames, as in a process with one thread for all queues, frames that several of them
    /// hold cost no atomic operation.
    #[inline]
    pub fn collect_all(ends: &mut [OwnerEnd], cache: &mut FrameCache) -> Collected {
        let mut all = Collected::default();
        let Some(first) = ends.first() else {
            return all;
        };
        // Each end has a holder of its own, and all are borrowed: no other thread has one that was
        // handed a frame together with one of these.
        let numbers = first.pool.holder_numbers().load(Ordering::Relaxed);
        let tag = first.pool.tag();
        let is_alone = numbers.count_ones() as usize == ends.len()
            && ends.iter().all(|end| end.pool.tag() == tag);
        for end in ends {
            let collected = end.take_returned(cache, is_alone);
            all.frames += collected.frames;
            all.refused += collected.refused;
        }
        all
    }

    #[inline(always)]
    fn take_returned(&mut self, cache: &mut FrameCache, is_alone: bool) -> Collected {
        let count = self.returned.peek(2 * self.memory.entry_count);
        let mut collected = Collected::default();
        let (mut indices, mut free) = ([0; CHUNK], [0; CHUNK]);
        let mut packets = 0;
        for at in (0..count).step_by(CHUNK) {
            let len = (count - at).min(CHUNK as u32) as usize;
            let indices = &mut indices[..len];
            self.returned.read_run(at, indices);
            let (ended, free_count) = match is_alone {
                true => self.holder.end_run::<true>(indices, &mut free),
                false => self.holder.end_run::<false>(indices, &mut free),
            };
            collected.frames += ended;
            collected.refused += len as u32 - ended;
            packets += u64::from(ended);
            if self.followers.count != 0 {
                let of_packets = indices.iter().filter(|index| **index != REFUSED);
                let follows = of_packets.filter(|index| self.followers.remove(**index));
                packets -= follows.count() as u64;
            }
            cache.take_run_from_peer(&free[..free_count.min(CHUNK)]);
        }
        if count == 0 {
            return collected;
        }
        self.returned.release(count);
        self.counts.returned += packets;
        self.counts.refused += u64::from(collected.refused);
        collected
    }
}
