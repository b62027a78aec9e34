//! Per-thread cache of free frames.

use crate::frame::Frame;
use crate::free;
use crate::pool::{Owner, Pool};

/// Frames moved between a cache of the default length and the pool's shared list at a time.
const BATCH: usize = 64;

/// Frames whose owners are changed at a time.
const PIECE: usize = 64;

/// Free frames of a pool held by one thread. They return to the shared list in batches, and all of
/// them on drop.
///
/// A queue that receives and releases as many frames as it fills is served from its cache alone,
/// and touches no memory that another thread writes.
#[derive(Debug)]
pub struct FrameCache {
    pool: Pool,
    /// The first `count` entries are valid. Three batches, and up to two entries more.
    free: Box<[u32]>,
    count: usize,
}

impl FrameCache {
    /// Maximum number of frames in a cache made by [`new`](Self::new). Per queue a pool needs this
    /// many in addition to those in its rings; otherwise one thread may wait for frames in another
    /// thread's cache.
    pub const LEN_MAX: usize = 3 * BATCH;

    /// Creates an empty cache for `pool`.
    pub fn new(pool: Pool) -> Self {
        Self::with_len(pool, Self::LEN_MAX)
    }

    /// Like [`new`](Self::new), for up to `len_max` frames: for a thread that owns all frames of a
    /// pool, and to which more than [`LEN_MAX`](Self::LEN_MAX) return at once. The shared list
    /// costs a dependent look-up for each frame, which cannot be prefetched.
    ///
    /// # Panics
    /// If it is less than [`LEN_MAX`](Self::LEN_MAX).
    pub fn with_len(pool: Pool, len_max: usize) -> Self {
        assert!(len_max >= Self::LEN_MAX, "a cache of {len_max} frames");
        Self {
            pool,
            free: vec![0; len_max].into(),
            count: 0,
        }
    }

    /// Frames moved between this cache and the shared list at a time.
    fn batch(&self) -> usize {
        self.free.len() / 3
    }

    /// The pool.
    #[inline]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Fetches a batch from the shared list; called only when the cache is empty.
    #[cold]
    fn fetch(&mut self) {
        let batch = self.batch();
        let (head, next) = (self.pool.head(), self.pool.next());
        // In pieces: a pop starts again whenever another thread has changed the list.
        while self.count < batch {
            let end = batch.min(self.count + BATCH);
            let popped = free::pop(head, next, &mut self.free[self.count..end]);
            if popped == 0 {
                break;
            }
            self.count += popped;
        }
    }

    #[inline]
    fn next_free(&mut self, to: Owner) -> Option<u32> {
        // One round, unless the list is damaged.
        for _ in 0..self.pool.frame_count() {
            if self.count == 0 {
                self.fetch();
            }
            self.count = self.count.checked_sub(1)?;
            let index = self.free[self.count];
            // A corrupt shared list may make frames unreachable, but never gives one frame two
            // owners: the owner table prevents it.
            if self.pool.pass(index, Owner::Free, to) {
                return Some(index);
            }
        }
        None
    }

    /// Like [`next_free`](Self::next_free), for up to `max` frames at once; empty if no frame is
    /// free.
    #[inline]
    fn next_run(&mut self, max: usize, to: Owner) -> &[u32] {
        if max == 0 {
            return &[];
        }
        for _ in 0..self.pool.frame_count() {
            if self.count == 0 {
                self.fetch();
            }
            let (end, start) = (self.count, self.count.saturating_sub(max));
            if start == end {
                break;
            }
            let run = &self.free[start..end];
            let passed = self.pool.owners().pass_run(run, Owner::Free, to);
            if passed == run.len() {
                self.count = start;
                return &self.free[start..end];
            }
            // As above. Frames after the wrong one stay, those before it are returned.
            self.free[start..end].rotate_left(passed + 1);
            self.count = end - passed - 1;
            if passed != 0 {
                return &self.free[self.count..end - 1];
            }
        }
        &[]
    }

    /// Moves two batches to the shared list.
    #[cold]
    fn spill(pool: &Pool, free: &[u32], count: usize) -> usize {
        let keep = count.saturating_sub(free.len() / 3 * 2);
        free::push(pool.head(), pool.next(), &free[keep..count]);
        keep
    }

    #[inline]
    fn keep(&mut self, index: u32) {
        if self.count >= self.free.len() {
            self.count = Self::spill(&self.pool, &self.free, self.count);
        }
        self.free[self.count] = index;
        self.count += 1;
    }

    /// Keeps those of `indices` that `from` owns.
    #[inline]
    fn keep_run(&mut self, mut indices: &[u32], from: Owner) {
        while !indices.is_empty() {
            let most = indices.len().min(PIECE);
            let passed = self
                .pool
                .owners()
                .pass_run(&indices[..most], from, Owner::Free);
            if self.count + passed > self.free.len() {
                self.count = Self::spill(&self.pool, &self.free, self.count);
            }
            self.free[self.count..self.count + passed].copy_from_slice(&indices[..passed]);
            self.count += passed;
            // Continue after one that `from` does not own.
            indices = &indices[most.min(passed + 1)..];
        }
    }

    /// Keeps each of `indices` that `from` owns.
    #[inline(always)]
    fn keep_each(&mut self, indices: impl Iterator<Item = u32>, from: Owner) {
        let Self { pool, free, count } = self;
        let owners = pool.owners();
        let mut at = *count;
        for index in indices {
            if !owners.pass(index, from, Owner::Free) {
                continue;
            }
            if at >= free.len() {
                at = Self::spill(pool, free, at);
            }
            free[at] = index;
            at += 1;
        }
        *count = at;
    }

    /// Takes a free frame, empty (`offset` and `len` 0); `None` if the pool has none left.
    #[inline]
    pub fn take(&mut self) -> Option<Frame> {
        let index = self.next_free(Owner::User)?;
        Some(self.pool.issue(index))
    }

    /// Like [`take`](Self::take), for up to `count` frames, which are appended; returns how many.
    #[inline]
    pub fn take_frames(&mut self, count: usize, frames: &mut Vec<Frame>) -> usize {
        let start = frames.len();
        frames.reserve(count);
        loop {
            let left = count - (frames.len() - start);
            let tag = self.pool.tag();
            let run = self.next_run(left, Owner::User);
            if run.is_empty() {
                return frames.len() - start;
            }
            frames.extend(run.iter().map(|&index| Frame::empty(index, tag)));
        }
    }

    /// Takes a free frame and gives it to a device; returns the index for a fill ring.
    #[inline]
    pub fn take_for_device(&mut self) -> Option<u32> {
        self.next_free(Owner::Device)
    }

    /// Like [`take_for_device`](Self::take_for_device), for some of up to `max` frames at once: at
    /// most a cache's worth; empty if the pool has none left.
    #[inline]
    pub fn take_run_for_device(&mut self, max: usize) -> &[u32] {
        self.next_run(max, Owner::Device)
    }

    /// Moves all cached frames to the shared list if they exceed an eighth of the pool. For a
    /// thread that only returns frames: others would wait for the frames in its cache.
    #[inline]
    pub fn keep_an_eighth(&mut self) {
        if self.count > self.pool.frame_count() as usize / 8 {
            let (head, next) = (self.pool.head(), self.pool.next());
            free::push(head, next, &self.free[..self.count]);
            self.count = 0;
        }
    }

    /// Returns a frame to the cache; a frame of another pool is returned as the error.
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

    /// Takes a free frame by its index, for a batch: this process owns it until it gives it to a
    /// device or frees it.
    #[inline]
    pub fn take_index(&mut self) -> Option<u32> {
        self.next_free(Owner::User)
    }

    /// Like [`take_index`](Self::take_index), for some of up to `max` frames at once: at most a
    /// cache's worth; empty if the pool has none left.
    #[inline]
    pub fn take_run(&mut self, max: usize) -> &[u32] {
        self.next_run(max, Owner::User)
    }

    /// Frees frame `index`, owned by a batch; returns false and changes nothing if this process
    /// does not own it.
    ///
    /// # Safety
    /// The caller owns `index` (from [`FrameCache::take_index`] or [`Pool::claim_index`]) and no
    /// longer accesses the frame: otherwise a [`Frame`] or batch elsewhere would share its bytes
    /// with the next owner.
    #[inline]
    pub unsafe fn give_index(&mut self, index: u32) -> bool {
        let passed = self.pool.pass(index, Owner::User, Owner::Free);
        if passed {
            self.keep(index);
        }
        passed
    }

    /// Like [`give_index`](Self::give_index), for each of `indices`; those that this process does
    /// not own, or that are out of range, are left unchanged.
    ///
    /// # Safety
    /// As there, for each.
    #[inline]
    pub unsafe fn give_each(&mut self, indices: impl Iterator<Item = u32>) {
        self.keep_each(indices, Owner::User);
    }

    /// Frees frame `index`, owned by a device (a completion, or a fill ring being emptied); returns
    /// false and changes nothing if the device did not own it, because the descriptor is wrong or a
    /// duplicate.
    ///
    /// # Safety
    /// As for [`Pool::claim`]: the device must have finished with the frame.
    #[inline]
    pub unsafe fn reclaim(&mut self, index: u32) -> bool {
        let passed = self.pool.pass(index, Owner::Device, Owner::Free);
        if passed {
            self.keep(index);
        }
        passed
    }

    /// Takes frame `index` from other processes, of which none holds it any more.
    #[inline]
    pub(crate) fn take_from_peer(&mut self, index: u32) {
        if self.pool.pass(index, Owner::Peer, Owner::Free) {
            self.keep(index);
        }
    }

    /// Like [`take_from_peer`](Self::take_from_peer), for each of `indices`.
    #[inline(always)]
    pub(crate) fn take_each_from_peer(&mut self, indices: impl Iterator<Item = u32>) {
        self.keep_each(indices, Owner::Peer);
    }

    /// Like [`reclaim`](Self::reclaim), for each of `indices`.
    ///
    /// # Safety
    /// As there, for each.
    #[inline]
    pub unsafe fn reclaim_run(&mut self, indices: &[u32]) {
        self.keep_run(indices, Owner::Device);
    }
}

impl Drop for FrameCache {
    fn drop(&mut self) {
        let (head, next) = (self.pool.head(), self.pool.next());
        free::push(head, next, &self.free[..self.count]);
    }
}
