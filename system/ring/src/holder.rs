//! Other processes that hold frames of a pool: the frames handed to each process, and the number of
//! processes that hold a frame at the same time.
//!
//! All of this is in the memory of the process that created the pool. Another process returns only
//! an index, which is accepted only if that process was handed the frame and has not returned it
//! yet. If the process dies, its bits show which frames it held.

use std::sync::atomic::Ordering;

use sys::{Error, ErrorKind, Result};

use crate::cache::FrameCache;
use crate::holding::{self, SEVERAL};
use crate::pool::{Owner, Pool};

/// Maximum number of processes that hold frames of one pool.
pub const HOLDER_COUNT_MAX: u32 = 64;

/// Replaces an index that a process returned without holding the frame.
pub(crate) const REFUSED: u32 = u32::MAX;

/// The other processes that hold a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The number of the only holder; `None` if the frame was handed to several, or none holds it.
    pub number: Option<u16>,
    /// The number of holders.
    pub count: u16,
}

impl Pool {
    /// Returns which other processes hold a frame.
    pub fn holding(&self, index: u32) -> Option<Holding> {
        let entry = self.holdings().get(index as usize)?.load(Ordering::Relaxed);
        let (number, count) = holding::parts(entry);
        let is_one = count != 0 && number != SEVERAL;
        Some(Holding {
            number: is_one.then_some(number as u16),
            count: count as u16,
        })
    }

    /// Hands frame `index` to `count` holders, including `first`: each must [`mark`](Holder::mark)
    /// it. They hold the frame until the last one returns it. Returns false and changes nothing if
    /// this process does not hold the frame.
    ///
    /// # Safety
    /// The caller holds `index`, as for [`FrameCache::give_index`], and no longer writes the frame.
    #[inline]
    pub(crate) unsafe fn hand_to(&self, index: u32, first: &Holder, count: u32) -> bool {
        let Some(entry) = self.holdings().get(index as usize) else {
            return false;
        };
        if !self.pass(index, Owner::User, Owner::Peer) {
            return false;
        }
        // No other thread accesses the entry of a frame that this process held until it is marked.
        holding::begin(entry, first.number, count);
        true
    }
}

/// A process that frames of a pool are handed to, or one of several queues to it.
///
/// Dropping it takes back all frames that are still held: by then the process must have exited.
pub struct Holder {
    pool: Pool,
    number: u32,
    /// For each frame, whether this holder holds it. Not bits: frames that follow each other would
    /// be in one word, and each would wait for the one before it.
    held: Box<[bool]>,
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
        Ok(Self {
            pool: pool.clone(),
            number: used.trailing_ones() + 1,
            held: vec![false; pool.frame_count() as usize].into(),
            count: 0,
            count_max,
            is_abandoned: false,
        })
    }

    /// The holder's number in the pool, from 1.
    pub fn number(&self) -> u16 {
        self.number as u16
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
        self.held.get(index as usize) == Some(&true)
    }

    /// Records that a frame was handed to it.
    #[inline]
    pub(crate) fn mark(&mut self, index: u32) {
        self.held[index as usize] = true;
        self.count += 1;
    }

    /// Records that it no longer holds a frame: `None` if it did not hold it, otherwise whether it
    /// was the last holder.
    #[inline]
    pub(crate) fn end(&mut self, index: u32) -> Option<bool> {
        let is_held = self.held.get_mut(index as usize)?;
        if !std::mem::take(is_held) {
            return None;
        }
        self.count -= 1;
        holding::end(&self.pool.holdings()[index as usize], self.number)
    }

    /// Like `end`, for several frames. Those that it did not hold become [`REFUSED`]; the others of
    /// which it was the last holder are written to `free`, which is as long. Returns the number of
    /// frames that it held, and of those in `free`. With `ALONE`, no other thread has holders of
    /// the pool's frames.
    #[inline(always)]
    pub(crate) fn end_run<const ALONE: bool>(
        &mut self,
        indices: &mut [u32],
        free: &mut [u32],
    ) -> (u32, usize) {
        let (held, holdings) = (&mut *self.held, self.pool.holdings());
        let only = holding::entry(self.number, 1);
        let (mut ended, mut free_count) = (0, 0);
        for index in indices {
            let entry = holdings.get(*index as usize);
            let (Some(is_held), Some(entry)) = (held.get_mut(*index as usize), entry) else {
                *index = REFUSED;
                continue;
            };
            if !*is_held {
                *index = REFUSED;
                continue;
            }
            *is_held = false;
            ended += 1;
            // The first case is one of each of the others.
            let is_last = if entry.load(Ordering::Relaxed) == only {
                entry.store(0, Ordering::Relaxed);
                Some(true)
            } else if ALONE {
                holding::end_alone(entry)
            } else {
                holding::end(entry, self.number)
            };
            if let Some(place) = free.get_mut(free_count) {
                *place = *index;
            }
            free_count += usize::from(is_last == Some(true));
        }
        self.count -= ended;
        (ended, free_count)
    }

    /// Records that frames were handed to it, one with each call; [`add`](Self::add) counts them.
    #[inline(always)]
    pub(crate) fn marker(&mut self) -> impl FnMut(u32) {
        let held = &mut *self.held;
        move |index| {
            if let Some(is_held) = held.get_mut(index as usize) {
                *is_held = true;
            }
        }
    }

    /// Counts marked frames.
    #[inline(always)]
    pub(crate) fn add(&mut self, count: u32) {
        self.count += count;
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
        for index in 0..self.held.len() as u32 {
            let is_held = self.held[index as usize];
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
        let free = !(1 << (self.number - 1));
        self.pool
            .holder_numbers()
            .fetch_and(free, Ordering::Relaxed);
    }
}
