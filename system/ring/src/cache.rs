//! A thread's own stock of free frames.

use crate::frame::Frame;
use crate::free;
use crate::pool::{Owner, Pool};

/// Frames moved between a cache and the pool's shared list at a time.
const BATCH: usize = 64;

/// Free frames of a pool held by one thread; goes back to the shared list in batches, and all of it
/// on drop.
///
/// A queue that receives and releases as many frames as it fills never leaves its cache, so it
/// touches no memory that another thread writes.
#[derive(Debug)]
pub struct FrameCache {
    pool: Pool,
    free: Vec<u32>,
}

impl FrameCache {
    /// Most frames that a cache keeps: a pool needs so many beyond what its rings hold for each
    /// queue, or what one thread keeps another one waits for.
    pub const LEN_MAX: usize = 3 * BATCH;

    /// An empty cache over `pool`.
    pub fn new(pool: Pool) -> Self {
        Self {
            pool,
            free: Vec::with_capacity(Self::LEN_MAX),
        }
    }

    /// The pool.
    #[inline]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    #[inline]
    fn next_free(&mut self, to: Owner) -> Option<u32> {
        // One round, unless the list is damaged.
        for _ in 0..self.pool.frame_count() {
            if self.free.is_empty() {
                free::pop(self.pool.head(), self.pool.next(), BATCH, &mut self.free);
            }
            let index = self.free.pop()?;
            // Whoever writes the shared list wrongly makes frames unreachable, never two owners of
            // one frame: the table has the last word.
            if self.pool.pass(index, Owner::Free, to) {
                return Some(index);
            }
        }
        None
    }

    #[inline]
    fn keep(&mut self, index: u32) {
        if self.free.len() >= Self::LEN_MAX {
            let keep = self.free.len() - 2 * BATCH;
            free::push(self.pool.head(), self.pool.next(), &self.free[keep..]);
            self.free.truncate(keep);
        }
        self.free.push(index);
    }

    /// Takes a free frame, empty (`offset` and `len` 0); `None` when the pool has none left.
    #[inline]
    pub fn take(&mut self) -> Option<Frame> {
        let index = self.next_free(Owner::User)?;
        Some(self.pool.issue(index))
    }

    /// Takes a free frame straight into a device's hands: the index for a fill ring.
    #[inline]
    pub fn take_for_device(&mut self) -> Option<u32> {
        self.next_free(Owner::Device)
    }

    /// Gives a frame back; a frame of another pool comes back as the error.
    #[inline]
    pub fn give(&mut self, frame: Frame) -> Result<(), Frame> {
        if frame.tag != self.pool.tag() {
            return Err(frame);
        }
        let passed = self.pool.pass(frame.index, Owner::User, Owner::Free);
        debug_assert!(passed, "an owned frame is marked as the user's");
        if passed {
            self.keep(frame.index);
        }
        Ok(())
    }

    /// Takes a free frame by its index, for a batch: this process holds it until it lends it or
    /// gives it back.
    #[inline]
    pub fn take_index(&mut self) -> Option<u32> {
        self.next_free(Owner::User)
    }

    /// Gives frame `index`, held by a batch, back to the free list; false (and no change) if this
    /// process does not hold it.
    ///
    /// # Safety
    /// The caller holds `index` (it came from [`FrameCache::take_index`] or
    /// [`Pool::claim_index`]) and no longer touches the frame: a [`Frame`] or batch elsewhere
    /// would otherwise share its bytes with whoever takes it next.
    #[inline]
    pub unsafe fn give_index(&mut self, index: u32) -> bool {
        let passed = self.pool.pass(index, Owner::User, Owner::Free);
        if passed {
            self.keep(index);
        }
        passed
    }

    /// Takes frame `index` from a device's hands to the free list (a completion, or a fill ring
    /// being emptied); false if the device did not hold it: the descriptor is a lie or a
    /// double, and nothing changes.
    ///
    /// # Safety
    /// As for [`Pool::claim`]: the device must be done with the frame.
    #[inline]
    pub unsafe fn reclaim(&mut self, index: u32) -> bool {
        let passed = self.pool.pass(index, Owner::Device, Owner::Free);
        if passed {
            self.keep(index);
        }
        passed
    }
}

impl Drop for FrameCache {
    fn drop(&mut self) {
        free::push(self.pool.head(), self.pool.next(), &self.free);
    }
}
