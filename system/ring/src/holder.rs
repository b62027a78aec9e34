//! Other processes that hold frames of a pool: which frames each was handed, and how many hold a
//! frame at the same time.
//!
//! All of it is in the memory of the process that made the pool. What another process returns is an
//! index and no more, and counts only if that process was handed the frame and has not returned it
//! yet. When it dies, what it holds is found in its own bits.

use std::sync::atomic::Ordering;

use sys::{Error, ErrorKind, Result};

use crate::cache::FrameCache;
use crate::holding::{self, SEVERAL};
use crate::pool::{Owner, Pool};

/// Most processes that hold frames of one pool.
pub const HOLDER_COUNT_MAX: u32 = 64;

/// Who outside of this process holds a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The number of the only one; `None` where several were handed the frame, or none holds it.
    pub number: Option<u16>,
    /// How many hold it.
    pub count: u16,
}

impl Pool {
    /// Which other processes hold a frame.
    pub fn holding(&self, index: u32) -> Option<Holding> {
        let entry = self.holdings().get(index as usize)?.load(Ordering::Relaxed);
        let (number, count) = holding::parts(entry);
        let is_one = count != 0 && number != SEVERAL;
        Some(Holding {
            number: is_one.then_some(number as u16),
            count: count as u16,
        })
    }

    /// Hands frame `index` to `count` holders, of which `first` is one: each has to
    /// [`mark`](Holder::mark) it. The frame is theirs until the last one returns it. False, and no
    /// change, if this process does not hold the frame.
    ///
    /// # Safety
    /// The caller holds `index`, as for [`FrameCache::give_index`], and no longer writes the frame.
    #[inline]
    pub(crate) unsafe fn hand_to(&self, index: u32, first: &Holder, count: u32) -> bool {
        if !self.pass(index, Owner::User, Owner::Peer) {
            return false;
        }
        // Nobody else touches the entry of a frame that this process held, before it is marked.
        holding::begin(&self.holdings()[index as usize], first.number, count);
        true
    }
}

/// A process that is handed frames of a pool, or one of several queues to it.
///
/// Dropping it takes back what is still held: the process must be gone by then, or keep to reading.
pub struct Holder {
    pool: Pool,
    number: u32,
    /// A bit for each frame that it holds.
    held: Box<[u64]>,
    count: u32,
    count_max: u32,
}

impl Holder {
    /// One more holder of a pool's frames: of at most `count_max` at the same time, so that one
    /// that returns none cannot use up the pool.
    ///
    /// # Errors
    /// `NoSpace` if the pool has [`HOLDER_COUNT_MAX`] already.
    pub fn new(pool: &Pool, count_max: u32) -> Result<Self> {
        let numbers = pool.holder_numbers();
        let took = numbers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            (used != u64::MAX).then(|| used | (used + 1))
        });
        let Ok(used) = took else {
            let why = format!("{HOLDER_COUNT_MAX} processes hold frames already");
            return Err(Error::new(ErrorKind::NoSpace, "share a frame pool", why));
        };
        let words = (pool.frame_count() as usize).div_ceil(64);
        Ok(Self {
            pool: pool.clone(),
            number: used.trailing_ones() + 1,
            held: vec![0; words].into(),
            count: 0,
            count_max,
        })
    }

    /// Its number among the pool's holders, from 1.
    pub fn number(&self) -> u16 {
        self.number as u16
    }

    /// How many frames it holds.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether it may be handed one more frame.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.count() < self.count_max
    }

    /// Whether it holds this frame.
    pub fn holds(&self, index: u32) -> bool {
        let word = self.held.get(index as usize / 64);
        word.is_some_and(|word| word >> (index % 64) & 1 != 0)
    }

    /// Notes that it was handed a frame.
    #[inline]
    pub(crate) fn mark(&mut self, index: u32) {
        self.held[index as usize / 64] |= 1 << (index % 64);
        self.count += 1;
    }

    /// Ends the holding of a frame: `None` if there is none, else whether it was the last.
    #[inline]
    fn end(&mut self, index: u32) -> Option<bool> {
        let bit = 1 << (index % 64);
        let word = self.held.get_mut(index as usize / 64)?;
        if *word & bit == 0 {
            return None;
        }
        *word &= !bit;
        self.count -= 1;
        holding::end(&self.pool.holdings()[index as usize], self.number)
    }

    /// Takes back a frame that the process returned; the last holder's becomes free. False, and no
    /// change, for an index that is none of the pool's, or of a frame that it does not hold.
    #[inline]
    pub fn take_back(&mut self, index: u32, cache: &mut FrameCache) -> bool {
        let last = self.end(index);
        if last == Some(true) {
            cache.take_from_peer(index);
        }
        last.is_some()
    }

    /// Takes back all that it holds, except for frames that are to be kept; how many.
    pub fn take_all_back(&mut self, cache: &mut FrameCache, keep: impl Fn(u32) -> bool) -> u32 {
        let mut count = 0;
        for at in 0..self.held.len() {
            let mut bits = self.held[at];
            while bits != 0 {
                let index = at as u32 * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                count += u32::from(!keep(index) && self.take_back(index, cache));
            }
        }
        count
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let mut cache = FrameCache::new(self.pool.clone());
        self.take_all_back(&mut cache, |_| false);
        let free = !(1 << (self.number - 1));
        self.pool
            .holder_numbers()
            .fetch_and(free, Ordering::Relaxed);
    }
}
