//! Takes back what peers have returned.

use std::sync::atomic::Ordering;

use super::{Collected, OwnerEnd};
use crate::cache::FrameCache;
use crate::holding;

/// Number of returned indices that are fetched at once: 16 cache lines. The processor recognizes
/// the sequence then, as it does at once with the few lines of a short batch.
const PREFETCHED: u32 = 256;
/// Longest batch that is not worth it.
const SHORT: u32 = 64;

impl OwnerEnd {
    /// Takes back the frames that the peer has returned so far, at most one ring of them.
    #[inline]
    pub fn collect(&mut self, cache: &mut FrameCache) -> Collected {
        self.take_returned::<false>(cache)
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
        // All at once: each of them was written on another processor.
        ends.iter().for_each(|end| end.returned.prefetch_index());
        for end in ends {
            let collected = match is_alone {
                true => end.take_returned::<true>(cache),
                false => end.take_returned::<false>(cache),
            };
            all.frames += collected.frames;
            all.refused += collected.refused;
        }
        all
    }

    /// With `ALONE`, no other thread has holders of the pool's frames.
    #[inline]
    fn take_returned<const ALONE: bool>(&mut self, cache: &mut FrameCache) -> Collected {
        let count = self.returned.peek(2 * self.memory.entry_count);
        if count == 0 {
            return Collected::default();
        }
        if count > SHORT {
            self.returned.prefetch(count.min(PREFETCHED));
        }
        let Self {
            pool,
            returned,
            holder,
            followers,
            ..
        } = self;
        let (holdings, bit) = (pool.holdings(), holder.bit());
        let has_followers = followers.count != 0;
        let (mut refused, mut follows) = (0, 0);
        let mut is_free = |index: u32| {
            let entry = holdings.get(index as usize);
            let is_last = entry.and_then(|entry| match ALONE {
                true => holding::end_alone(entry, bit),
                false => holding::end(entry, bit),
            });
            if is_last.is_none() {
                refused += 1;
            } else if has_followers {
                follows += u32::from(followers.remove(index));
            }
            is_last == Some(true)
        };
        for cells in returned.peeked(count) {
            // SAFETY: as in `Consumer::read`.
            let indices = cells
                .iter()
                .map(|cell| cell.with(|p| unsafe { p.read_volatile() }));
            cache.take_each_from_peer(indices.filter(|index| is_free(*index)));
        }
        let ended = count - refused;
        self.holder.subtract(ended);
        self.returned.release(count);
        self.counts.returned += u64::from(ended - follows);
        self.counts.refused += u64::from(refused);
        Collected {
            frames: ended,
            refused,
        }
    }
}
