//! A pool: equal frames in one memory file that other processes can map, and private tables with
//! one owner byte per frame.

mod attach;
mod header;
mod record;
mod tables;

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32 as StdAtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sys::memfd::{HugePages, MemoryFile};
use sys::{Error, ErrorKind, Result};

use self::attach::ATTACH;
use self::header::Geometry;
use self::tables::Tables;
use crate::frame::Frame;
use crate::owners::Owners;
use crate::sync::{AtomicU32, AtomicU64};

/// Owner of a frame, stored as one byte per frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Owner {
    /// Free: on the free list or in a thread's cache.
    Free = 0,
    /// Owned by a [`Frame`] or a batch in this process.
    User = 1,
    /// Owned by a device or the kernel: on a fill ring, being written, or queued for sending.
    Device = 2,
    /// Owned by another process.
    Peer = 3,
}

/// Number of frames per owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerCounts {
    /// Frames on the free list or in caches.
    pub free: u32,
    /// Frames owned by this process.
    pub user: u32,
    /// Frames owned by a device.
    pub device: u32,
    /// Frames owned by another process.
    pub peer: u32,
}

/// Configuration of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolConfig {
    /// Number of frames: at least 1, at most 2^24.
    pub frame_count: u32,
    /// Length of a frame in bytes: a power of two from 2048 to 4096 (AF_XDP supports no other
    /// without unaligned chunks).
    pub frame_len: u32,
    /// Whether to use huge pages.
    pub huge_pages: HugePages,
}

impl Default for PoolConfig {
    /// 4096 frames of 4096 bytes: 16 MiB.
    fn default() -> Self {
        Self {
            frame_count: 4096,
            frame_len: 4096,
            huge_pages: HugePages::Try,
        }
    }
}

/// A pool of frames. Clones are cheap and share the same pool.
#[derive(Clone)]
pub struct Pool(Arc<Shared>);

struct Shared {
    memory: MemoryFile,
    tables: Tables,
    /// Address of the first frame in `memory`, computed once.
    base: NonNull<u8>,
    frame_count: u32,
    frame_len_log2: u32,
    tag: u32,
    /// Whether this process may write the frames.
    is_writable: bool,
    /// A bit for each holder's number in use.
    holder_numbers: AtomicU64,
    users: Mutex<Vec<Weak<dyn Any + Send + Sync>>>,
}

// SAFETY: the pointer leads into `memory`, which lives as long; the tables are only accessed
// atomically, the frames only by their owners.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// The live pools, for code that holds a frame but not its pool. Accessed when a pool is created
/// and when a queue first sends a frame of a pool it has not seen yet.
static POOLS: Mutex<Vec<(u32, Weak<Shared>)>> = Mutex::new(Vec::new());

/// Next tag; tags distinguish the pools of this process.
static NEXT_TAG: StdAtomicU32 = StdAtomicU32::new(1);

impl Pool {
    /// Creates a pool; its memory is allocated (and its size sealed) on return.
    ///
    /// # Errors
    /// `InvalidInput` for a count or length out of bounds, `NoSpace` if memory is short.
    pub fn new(config: PoolConfig) -> Result<Self> {
        let PoolConfig {
            frame_count,
            frame_len,
            huge_pages,
        } = config;
        let refuse = |why| Error::new(ErrorKind::InvalidInput, "create a frame pool", why);
        let geometry = Geometry::new(frame_count, frame_len).map_err(refuse)?;
        let memory = MemoryFile::new(c"barewire-pool", geometry.file_len(), huge_pages)?;
        let header = header::encode(geometry);
        let mapping = memory.mapping();
        // SAFETY: the last bytes of the mapping, which is longer than the frames by a header at
        // least; nothing else uses it yet.
        unsafe {
            let at = mapping.base().add(mapping.len() - header.len());
            at.cast().write_unaligned(header);
        }
        let tables = Tables::new(frame_count, Owner::Free)?;
        tables.free_all();
        Ok(Self::over(memory, tables, geometry, true))
    }

    /// Creates this process's view of a pool over initialized memory.
    fn over(memory: MemoryFile, tables: Tables, geometry: Geometry, is_writable: bool) -> Self {
        let tag = NEXT_TAG.fetch_add(1, Ordering::Relaxed);
        let pool = Self(Arc::new(Shared {
            base: memory.mapping().base(),
            memory,
            tables,
            frame_count: geometry.frame_count,
            frame_len_log2: geometry.frame_len_log2,
            tag,
            is_writable,
            holder_numbers: AtomicU64::new(0),
            users: Mutex::new(Vec::new()),
        }));
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|(_, pool)| pool.strong_count() != 0);
        pools.push((tag, Arc::downgrade(&pool.0)));
        drop(pools);
        pool
    }

    /// The pool with this tag, if it is still alive.
    pub fn find(tag: u32) -> Option<Self> {
        let pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, pool) = pools.iter().find(|&&(t, _)| t == tag)?;
        pool.upgrade().map(Self)
    }

    /// Remembers a user of this memory as a whole (a device's registration of it) for the user's
    /// lifetime, so that the next device can join it.
    pub fn add_user(&self, user: Weak<dyn Any + Send + Sync>) {
        let mut users = self.0.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.retain(|user| user.strong_count() != 0);
        users.push(user);
    }

    /// The remembered users that are still alive.
    pub fn users(&self) -> Vec<Arc<dyn Any + Send + Sync>> {
        let users = self.0.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.iter().filter_map(Weak::upgrade).collect()
    }

    /// Number of frames in the pool.
    pub fn frame_count(&self) -> u32 {
        self.0.frame_count
    }

    /// Length of a frame in bytes.
    pub fn frame_len(&self) -> u32 {
        1 << self.0.frame_len_log2
    }

    /// Number that identifies this pool's frames.
    pub fn tag(&self) -> u32 {
        self.0.tag
    }

    /// Whether it uses huge pages.
    pub fn is_huge(&self) -> bool {
        self.0.memory.is_huge()
    }

    /// Address of the first frame.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.0.base
    }

    /// Length of all frames in bytes (the range of an AF_XDP UMEM or a DMA mapping; the header
    /// follows).
    pub fn frames_len(&self) -> usize {
        (self.0.frame_count as usize) << self.0.frame_len_log2
    }

    /// Length of the whole memory in bytes.
    pub fn memory_len(&self) -> usize {
        self.0.memory.mapping().len() + self.0.tables.memory_len()
    }

    pub(crate) fn head(&self) -> &AtomicU64 {
        self.0.tables.head()
    }

    pub(crate) fn next(&self) -> &[AtomicU32] {
        self.0.tables.next()
    }

    #[inline(always)]
    pub(crate) fn holdings(&self) -> &[AtomicU64] {
        self.0.tables.holdings()
    }

    pub(crate) fn holder_numbers(&self) -> &AtomicU64 {
        &self.0.holder_numbers
    }

    /// The owner table, for a batch.
    #[inline(always)]
    pub fn owners(&self) -> Owners<'_> {
        Owners::new(self.0.tables.owners())
    }

    /// Number of frames per owner: a scan of the table, for tests and statistics.
    pub fn counts(&self) -> OwnerCounts {
        let mut counts = OwnerCounts::default();
        for owner in self.0.tables.owners() {
            match owner.load(Ordering::Relaxed) {
                0 => counts.free += 1,
                1 => counts.user += 1,
                2 => counts.device += 1,
                _ => counts.peer += 1,
            }
        }
        counts
    }

    /// As [`Owners::pass`], for one frame.
    #[inline]
    pub(crate) fn pass(&self, index: u32, from: Owner, to: Owner) -> bool {
        self.owners().pass(index, from, to)
    }

    /// Whether this process holds the frame.
    #[inline]
    pub(crate) fn is_held(&self, index: u32) -> bool {
        let owner = self.0.tables.owners().get(index as usize);
        owner.is_some_and(|owner| owner.load(Ordering::Relaxed) == Owner::User as u8)
    }

    pub(crate) fn issue(&self, index: u32) -> Frame {
        Frame::empty(index, self.0.tag)
    }

    /// Gives a frame to a device: transfers ownership, and returns the index for a descriptor.
    ///
    /// # Panics
    /// If the frame belongs to another pool: a bug of the caller, which must compare tags first.
    #[inline]
    pub fn give_to_device(&self, frame: Frame) -> u32 {
        assert_eq!(frame.tag, self.0.tag, "a frame of another pool");
        let passed = self.pass(frame.index, Owner::User, Owner::Device);
        debug_assert!(passed, "an owned frame is marked as the user's");
        frame.index
    }

    /// Takes back a frame that a device returned: `None` for an index out of range or a frame that
    /// the device does not own (returned twice, or never given to it).
    ///
    /// # Safety
    /// The device must have finished with the frame: the table detects duplicates, not a device
    /// that continues to write.
    #[inline]
    pub unsafe fn claim(&self, index: u32) -> Option<Frame> {
        self.pass(index, Owner::Device, Owner::User)
            .then(|| self.issue(index))
    }

    /// Like [`claim`](Self::claim), for a batch that keeps indices instead of frames: the user
    /// becomes the owner; false if the device does not own the frame.
    ///
    /// # Safety
    /// As for `claim`; and the caller must return a claimed index exactly once.
    #[inline]
    pub unsafe fn claim_index(&self, index: u32) -> bool {
        self.pass(index, Owner::Device, Owner::User)
    }

    /// Gives frame `index`, owned by a batch, to a device; false if this process does not own it.
    ///
    /// # Safety
    /// The caller owns `index`, as for [`FrameCache::give_index`](crate::FrameCache::give_index),
    /// and no longer accesses the frame.
    #[inline]
    pub unsafe fn give_index_to_device(&self, index: u32) -> bool {
        self.pass(index, Owner::User, Owner::Device)
    }

    /// Turns an index owned by a batch into a frame.
    ///
    /// # Safety
    /// The caller owns `index` (from [`claim_index`](Self::claim_index) or
    /// [`FrameCache::take_index`](crate::FrameCache::take_index)) and no longer uses it: the frame
    /// is its owner now.
    #[inline]
    pub unsafe fn adopt(&self, index: u32) -> Frame {
        debug_assert!(index < self.0.frame_count, "an index of this pool");
        self.issue(index)
    }

    /// Splits a byte address within the frames (as in AF_XDP descriptors) into frame index and
    /// offset.
    #[inline]
    pub fn locate(&self, addr: u64) -> Option<(u32, u32)> {
        let index = addr >> self.0.frame_len_log2;
        let offset = (addr & u64::from(self.frame_len() - 1)) as u32;
        (index < u64::from(self.0.frame_count)).then_some((index as u32, offset))
    }

    /// Byte offset of a frame's first byte from the pool's base.
    #[inline]
    pub fn addr_of(&self, index: u32) -> u64 {
        u64::from(index) << self.0.frame_len_log2
    }

    /// Sets the packet's position in the frame.
    ///
    /// # Panics
    /// If the range exceeds the frame, or the frame belongs to another pool.
    #[inline]
    pub fn set_range(&self, frame: &mut Frame, offset: u32, len: u32) {
        assert_eq!(frame.tag, self.0.tag, "a frame of another pool");
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.frame_len()),
            "range beyond the frame"
        );
        frame.offset = offset;
        frame.len = len;
    }

    #[inline]
    fn address(&self, frame: &Frame) -> *mut u8 {
        assert_eq!(frame.tag, self.0.tag, "a frame of another pool");
        let offset = self.addr_of(frame.index) as usize + frame.offset as usize;
        // SAFETY: index and range were checked when the frame was issued and its range set.
        unsafe { self.base().as_ptr().add(offset) }
    }

    /// The packet's bytes.
    ///
    /// # Panics
    /// If the frame belongs to another pool.
    #[inline]
    pub fn bytes<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        // SAFETY: holding the frame is owning the bytes; nothing else writes them meanwhile (see
        // the threat model for hostile peers), and the range lies within the frame.
        unsafe { std::slice::from_raw_parts(self.address(frame), frame.len as usize) }
    }

    /// The packet's bytes, mutable.
    ///
    /// # Panics
    /// If the frame belongs to another pool, or this process may only read the pool.
    #[inline]
    pub fn bytes_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        assert!(self.0.is_writable, "the pool is read-only in this process");
        // SAFETY: as in `bytes`, and the frame is borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.address(frame), frame.len as usize) }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("frame_count", &self.frame_count())
            .field("frame_len", &self.frame_len())
            .field("huge", &self.is_huge())
            .field("tag", &self.tag())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_found_while_it_is_alive() {
        let config = PoolConfig {
            frame_count: 4,
            ..PoolConfig::default()
        };
        let (pool, other) = (Pool::new(config).unwrap(), Pool::new(config).unwrap());
        let tag = pool.tag();
        assert_eq!(Pool::find(tag).unwrap().base(), pool.base());
        assert_ne!(Pool::find(other.tag()).unwrap().base(), pool.base());
        let clone = pool.clone();
        drop(pool);
        assert!(Pool::find(tag).is_some(), "a clone is the pool");
        drop(clone);
        assert!(Pool::find(tag).is_none());
    }

    #[test]
    fn users_are_remembered_while_they_are_alive() {
        let pool = Pool::new(PoolConfig {
            frame_count: 4,
            ..PoolConfig::default()
        })
        .unwrap();
        let user: Arc<dyn Any + Send + Sync> = Arc::new(7u32);
        pool.add_user(Arc::downgrade(&user));
        assert_eq!(pool.users()[0].downcast_ref::<u32>(), Some(&7));
        drop(user);
        assert!(pool.users().is_empty());
    }
}
