//! Other processes that hold frames of a pool: the frames handed to each process, and the number of
//! processes that hold a frame at the same time.
//!
//! All of this is in the memory of the process that created the pool. Another process returns only
//! an index, which is accepted only if that process was handed the frame and has not returned it
//! yet. If the process dies, its bits show which frames it held.

use std::sync::atomic::Ordering;

use sys::{Error, ErrorKind, Result};

use crate::cache::FrameCache;
use crate::holding;
use crate::pool::{Owner, Pool};

/// Maximum number of processes that hold frames of one pool.
pub const HOLDER_COUNT_MAX: u32 = 64;

/// The other processes that hold a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The number of the only holder; `None` if several hold it, or none.
    pub number: Option<u16>,
    /// The number of holders.
    pub count: u16,
}

impl Pool {
    /// Returns which other processes hold a frame.
    pub fn holding(&self, index: u32) -> Option<Holding> {
        let entry = self.holdings().get(index as usize)?.load(Ordering::Relaxed);
        let count = entry.count_ones() as u16;
        let number = entry.trailing_zeros() as u16 + 1;
        Some(Holding {
            number: (count == 1).then_some(number),
            count,
        })
    }

    /// Hands frame `index` to `holders`, as bits: each must [count](Holder::add) it. They hold the
    /// frame until the last one returns it. Returns false and changes nothing if this process does
    /// not hold the frame.
    ///
    /// # Safety
    /// The caller holds `index`, as for [`FrameCache::give_index`], and no longer writes the frame.
    #[inline]
    pub(crate) unsafe fn hand_to(&self, index: u32, holders: u64) -> bool {
        let Some(entry) = self.holdings().get(index as usize) else {
            return false;
        };
        if !self.pass(index, Owner::User, Owner::Peer) {
            return false;
        }
        // No other thread accesses the entry of a frame that this process held until the packet is
        // submitted.
        holding::begin(entry, holders);
        true
    }
}

/// A process that frames of a pool are handed to, or one of several queues to it.
///
/// Dropping it takes back all frames that are still held: by then the process must have exited.
pub struct Holder {
    pool: Pool,
    number: u32,
    /// Its bit in the entries of the frames that it holds.
    bit: u64,
    count: u32,
    count_max: u32,
    /// Whether its frames stay with it when it is dropped.
    is_abandoned: bool,
}

impl Holder {
    /// Adds a holder of a pool's frames. It holds at most `count_max` frames at the same time, so
    /// that a process that returns none cannot exhaust the pool.
    ///
    /// # Errors
    /// `NoSpace` if the pool already has [`HOLDER_COUNT_MAX`] holders.
    pub fn new(pool: &Pool, count_max: u32) -> Result<Self> {
        let numbers = pool.holder_numbers();
        let took = numbers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            (used != u64::MAX).then(|| used | (used + 1))
        });
        let Ok(used) = took else {
            let why = format!("{HOLDER_COUNT_MAX} processes hold frames already");
            return Err(Error::new(ErrorKind::NoSpace, "share a frame pool", why));
        };
        let number = used.trailing_ones() + 1;
        Ok(Self {
            pool: pool.clone(),
            number,
            bit: holding::bit(number),
            count: 0,
            count_max,
            is_abandoned: false,
        })
    }

    /// The holder's number in the pool, from 1.
    pub fn number(&self) -> u16 {
        self.number as u16
    }

    /// Its bit in the entries of frames.
    #[inline(always)]
    pub(crate) fn bit(&self) -> u64 {
        self.bit
    }

    /// The number of frames that it holds.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// How many more frames it may hold.
    #[inline(always)]
    pub(crate) fn room(&self) -> u32 {
        self.count_max.saturating_sub(self.count)
    }

    /// Whether it may hold `more` frames in addition.
    #[inline]
    pub fn has_room(&self, more: u32) -> bool {
        self.count_max.saturating_sub(self.count) >= more
    }

    /// Whether it holds this frame.
    pub fn holds(&self, index: u32) -> bool {
        let entry = self.pool.holdings().get(index as usize);
        entry.is_some_and(|entry| entry.load(Ordering::Relaxed) & self.bit != 0)
    }

    /// Counts frames that were handed to it.
    #[inline(always)]
    pub(crate) fn add(&mut self, count: u32) {
        self.count += count;
    }

    /// Counts frames that it held, and that [`holding::end`] has removed it from.
    #[inline(always)]
    pub(crate) fn subtract(&mut self, count: u32) {
        self.count -= count;
    }

    /// Records that it no longer holds a frame: `None` if it did not hold it, otherwise whether it
    /// was the last holder.
    #[inline]
    pub(crate) fn end(&mut self, index: u32) -> Option<bool> {
        let entry = self.pool.holdings().get(index as usize)?;
        let is_last = holding::end(entry, self.bit)?;
        self.count -= 1;
        Some(is_last)
    }

    /// Takes back a frame that the process returned; the frame becomes free when its last holder
    /// returns it. Returns false and changes nothing if the index is out of range, or the process
    /// does not hold the frame.
    #[inline]
    pub fn take_back(&mut self, index: u32, cache: &mut FrameCache) -> bool {
        let last = self.end(index);
        if last == Some(true) {
            cache.take_from_peer(index);
        }
        last.is_some()
    }

    /// Drops the holder of a process that still reads its frames: they are not used again, and the
    /// number is not given to another holder.
    pub(crate) fn abandon(&mut self) {
        self.is_abandoned = true;
    }

    /// Takes back all frames that it holds, except those to keep; returns their number.
    pub fn take_all_back(
        &mut self,
        cache: &mut FrameCache,
        mut keep: impl FnMut(u32) -> bool,
    ) -> u32 {
        let mut count = 0;
        for index in 0..self.pool.frame_count() {
            let is_held = self.holds(index);
            count += u32::from(is_held && !keep(index) && self.take_back(index, cache));
        }
        count
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        if self.is_abandoned {
            return;
        }
        let mut cache = FrameCache::new(self.pool.clone());
        self.take_all_back(&mut cache, |_| false);
        self.pool
            .holder_numbers()
            .fetch_and(!self.bit, Ordering::Relaxed);
    }
}
