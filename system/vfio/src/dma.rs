//! Memory that a card reads and writes directly (DMA): descriptor rings and the frame pool.
//!
//! A device address (IOVA) is chosen here and translated by the IOMMU. Nothing else is mapped, so a
//! card with a wrong address, from the driver or its own, cannot access other memory.
//!
//! # Memory ordering
//! Both sides access the same memory concurrently. Two rules make this sound (Intel 82576 datasheet
//! §7.1.5 and §7.2.2.3; virtio 1.2, §2.7.13.2; Linux `Documentation/memory-barriers.txt`):
//!
//! - *Descriptors before the doorbell*: writes to descriptors and frames are visible before the
//!   card is notified: [`before_doorbell`], then the write to the tail register.
//! - *The flag before the rest*: the flag with which the card returns a descriptor is read before
//!   the data it covers: [`after_done_flag`] between the two reads.
//!
//! A third applies if both sides check for work before they sleep (virtio's event suppression,
//! interrupts): writes are visible before reading what the card wrote: [`before_sleep_check`].

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{
    AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, compiler_fence, fence,
};
use std::sync::{Arc, Mutex, PoisonError};

use ring::Pool;
use sys::memfd::{HugePages, MemoryFile};
use sys::{Error, ErrorKind, Result};

/// Makes stores to DMA memory visible to the card before any subsequent register write.
#[inline(always)]
pub fn before_doorbell() {
    // x86 keeps stores to memory and to uncached registers in order (Intel SDM 3A §10.2.2); the
    // fence keeps the compiler from moving them. Elsewhere it becomes a barrier; a device may be
    // outside the inner domain that Rust's fences cover, so arm64 needs the outer one.
    fence(Ordering::Release);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier touches no register and no memory.
    unsafe {
        std::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
}

/// Orders subsequent loads from DMA memory after the load of the flag.
#[inline(always)]
pub fn after_done_flag() {
    fence(Ordering::Acquire);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier touches no register and no memory.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
}

/// Makes stores visible to the card before subsequent loads: the only fence that costs anything on
/// x86 (a load may pass an older store). For batch boundaries.
#[inline]
pub fn before_sleep_check() {
    fence(Ordering::SeqCst);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier touches no register and no memory.
    unsafe {
        std::arch::asm!("dmb osh", options(nostack, preserves_flags));
    }
    compiler_fence(Ordering::SeqCst);
}

/// Makes memory accessible to a card: VFIO, or a device model's table.
pub trait Mapper: Send + Sync {
    /// Maps `len` bytes at `base` to `iova`; all three are multiples of a page.
    fn map(&self, base: NonNull<u8>, len: usize, iova: u64) -> Result<()>;

    /// Removes a mapping: after this returns the card cannot access it.
    fn unmap(&self, iova: u64, len: usize);

    /// Ranges of device addresses that can be mapped, first and last, in order.
    fn ranges(&self) -> Vec<(u64, u64)>;
}

/// First device address: above 4 GiB there are no windows of other devices, and a truncated address
/// is unmapped.
const IOVA_FIRST: u64 = 1 << 32;
/// Device addresses are allocated in steps of 2 MiB, so that huge pages can be mapped as such, with
/// the same distance left free in between: accesses beyond the end of one range are unmapped.
const IOVA_STEP: u64 = 2 << 20;

/// The device addresses of one card (or of several in one IOMMU domain).
pub struct DmaSpace {
    mapper: Box<dyn Mapper>,
    next: Mutex<u64>,
    /// Offset added to the reported addresses of pools.
    #[cfg(feature = "testing")]
    wrong_by: AtomicU64,
}

impl DmaSpace {
    /// Creates a space that `mapper` maps into.
    pub fn new(mapper: Box<dyn Mapper>) -> Arc<Self> {
        Arc::new(Self {
            mapper,
            next: Mutex::new(IOVA_FIRST),
            #[cfg(feature = "testing")]
            wrong_by: AtomicU64::new(0),
        })
    }

    /// Reports every frame of subsequently mapped pools to the card at an address that is `bytes`
    /// too high. Nothing is mapped there: this demonstrates the effect of an IOMMU.
    #[cfg(feature = "testing")]
    pub fn set_wrong_by(&self, bytes: u64) {
        self.wrong_by.store(bytes, Ordering::Relaxed);
    }

    /// Offset added to the addresses of pools.
    fn pool_offset(&self) -> u64 {
        #[cfg(feature = "testing")]
        return self.wrong_by.load(Ordering::Relaxed);
        #[cfg(not(feature = "testing"))]
        0
    }

    /// Allocates an address for `len` bytes. Addresses are never reused within a space.
    fn choose(&self, len: usize) -> Result<u64> {
        let len = len as u64;
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        for (first, last) in self.mapper.ranges() {
            let iova = first.max(*next).next_multiple_of(IOVA_STEP);
            if iova.checked_add(len - 1).is_some_and(|end| end <= last) {
                *next = (iova + len).next_multiple_of(IOVA_STEP) + IOVA_STEP;
                return Ok(iova);
            }
        }
        Err(Error::new(
            ErrorKind::NoSpace,
            format!("map {len} bytes for the card"),
            "no range of device addresses is long enough",
        )
        .with_hint("use a smaller pool: fewer queues= or a shorter ring="))
    }

    /// Maps memory for the lifetime of the result.
    ///
    /// # Safety
    /// The memory must stay mapped in this process until the result is dropped, and readers must
    /// expect that the card writes it at any time.
    pub unsafe fn map(self: &Arc<Self>, base: NonNull<u8>, len: usize) -> Result<DmaMapping> {
        let len = len.next_multiple_of(4096);
        let iova = self.choose(len)?;
        self.mapper.map(base, len, iova)?;
        Ok(DmaMapping {
            space: self.clone(),
            iova,
            len,
        })
    }

    /// Allocates zeroed memory of at least `len` bytes for descriptors, page-aligned on both sides.
    pub fn allocate(self: &Arc<Self>, len: usize) -> Result<DmaArea> {
        let memory = MemoryFile::new(c"barewire-rings", len.max(1), HugePages::Never)?;
        let (base, len) = (memory.mapping().base(), memory.mapping().len());
        // SAFETY: the memory lives in the area alongside the mapping and goes after it; it is only
        // reached as atomics.
        let mapping = unsafe { self.map(base, len)? };
        Ok(DmaArea { mapping, memory })
    }

    /// Maps the frames of a pool (not its tables).
    ///
    /// # Errors
    /// `InvalidInput` for a pool whose frames end within a page; errors of the kernel.
    pub fn map_pool(self: &Arc<Self>, pool: &Pool) -> Result<Arc<PoolDma>> {
        if !pool.frames_len().is_multiple_of(4096) {
            // The rest of the last page is the pool's own tables.
            let why = "its frames end within a page";
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "map a frame pool for the card",
                why,
            )
            .with_hint("use an even number of frames"));
        }
        // SAFETY: the pool lives in the result alongside the mapping and goes after it; the card
        // writes only into frames that it has been given, which are not read before it is done.
        let mapping = unsafe { self.map(pool.base(), pool.frames_len())? };
        Ok(Arc::new(PoolDma {
            iova: mapping.iova + self.pool_offset(),
            mapping,
            pool: pool.clone(),
        }))
    }
}

/// A mapped range; dropping it removes the mapping.
pub struct DmaMapping {
    space: Arc<DmaSpace>,
    iova: u64,
    len: usize,
}

impl DmaMapping {
    /// The device address of its first byte.
    pub fn iova(&self) -> u64 {
        self.iova
    }
}

impl Drop for DmaMapping {
    fn drop(&mut self) {
        self.space.mapper.unmap(self.iova, self.len);
    }
}

/// A type that a card may write at any time: only atomics, and arrays of them.
///
/// # Safety
/// Any bytes are a valid value, and all accesses are atomic.
pub unsafe trait Shared: Sync {}
// SAFETY: atomics over plain integers.
unsafe impl Shared for AtomicU8 {}
// SAFETY: as above.
unsafe impl Shared for AtomicU16 {}
// SAFETY: as above.
unsafe impl Shared for AtomicU32 {}
// SAFETY: as above.
unsafe impl Shared for AtomicU64 {}
// SAFETY: as their elements.
unsafe impl<T: Shared, const N: usize> Shared for [T; N] {}

/// Memory for descriptors, shared with the card.
pub struct DmaArea {
    // First: the mapping is removed before the memory is freed.
    mapping: DmaMapping,
    memory: MemoryFile,
}

impl DmaArea {
    /// The device address of byte `offset`.
    pub fn iova(&self, offset: usize) -> u64 {
        self.mapping.iova() + offset as u64
    }

    /// `count` elements from byte `offset` on; several views of the same bytes may exist.
    ///
    /// # Panics
    /// If they are not within the area or not aligned: a bug of the driver.
    pub fn array<T: Shared>(self: &Arc<Self>, offset: usize, count: usize) -> DmaArray<T> {
        let len = self.memory.mapping().len();
        let end = count
            .checked_mul(size_of::<T>())
            .and_then(|l| l.checked_add(offset));
        assert!(count != 0, "no element");
        assert!(end.is_some_and(|end| end <= len), "beyond the area");
        assert!(offset.is_multiple_of(align_of::<T>()), "not aligned");
        // SAFETY: checked above.
        let first = unsafe { self.memory.mapping().base().add(offset) }.cast();
        DmaArray {
            first,
            count,
            iova: self.iova(offset),
            area: self.clone(),
        }
    }
}

/// Elements in memory shared with the card, such as a descriptor ring as `[[AtomicU64; 2]]`. All
/// accesses are relaxed; the named fences of this module provide the ordering.
pub struct DmaArray<T> {
    first: NonNull<T>,
    count: usize,
    iova: u64,
    /// Keeps the memory alive.
    #[allow(dead_code, reason = "it works by being there")]
    area: Arc<DmaArea>,
}

// SAFETY: a shared array of atomics that keeps its memory alive.
unsafe impl<T: Shared> Send for DmaArray<T> {}
// SAFETY: as above.
unsafe impl<T: Shared> Sync for DmaArray<T> {}

impl<T: Shared> DmaArray<T> {
    /// The device address of the first element.
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Element `position & (count - 1)` of a ring whose count is a power of two, for a position
    /// that only grows.
    #[inline(always)]
    pub fn ring_at(&self, position: u32) -> &T {
        debug_assert!(self.count.is_power_of_two());
        let index = position as usize & (self.count - 1);
        // SAFETY: count is not 0 (see `DmaArea::array`), so masking with count - 1 gives an index
        // below it.
        unsafe { self.first.add(index).as_ref() }
    }
}

impl<T: Shared> Deref for DmaArray<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: the range was checked when the array was made, lives as long as `area`, and is
        // only accessed atomically.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

/// The frames of a pool, mapped for a card.
///
/// A card never returns an address: a driver remembers which frame it put into which descriptor and
/// takes that one, once. What the card reports about a packet (its length, with virtio also an id
/// and a number of buffers) is checked against what was offered.
pub struct PoolDma {
    // First: the mapping is removed before the pool can be freed.
    #[allow(dead_code, reason = "it works by being there")]
    mapping: DmaMapping,
    iova: u64,
    pool: Pool,
}

impl PoolDma {
    /// The pool.
    #[inline(always)]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The device address of byte `offset` in frame `index`.
    #[inline(always)]
    pub fn address(&self, index: u32, offset: u32) -> u64 {
        self.iova + self.pool.addr_of(index) + u64::from(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelMemory;
    use ring::PoolConfig;

    #[test]
    fn memory_is_mapped_while_it_is_alive() {
        let memory = ModelMemory::default();
        let space = DmaSpace::new(Box::new(memory.clone()));
        let area = Arc::new(space.allocate(100).unwrap());
        let words: DmaArray<[AtomicU64; 2]> = area.array(0, 4);
        words[3][1].store(77, Ordering::Relaxed);
        assert_eq!(memory.load64(words.iova() + 3 * 16 + 8), 77);
        assert!(memory.store64(area.iova(16), 78));
        assert_eq!(words.ring_at(1 + 4 * 9)[0].load(Ordering::Relaxed), 78);
        let pool = Pool::new(PoolConfig {
            frame_count: 8,
            ..PoolConfig::default()
        })
        .unwrap();
        let frames = space.map_pool(&pool).unwrap();
        // Far apart, so that accesses beyond one range do not hit another.
        assert!(frames.address(0, 0) >= words.iova() + IOVA_STEP);
        assert!(frames.address(0, 0).is_multiple_of(IOVA_STEP));
        assert!(memory.write(frames.address(7, 4000), &[1; 96]));
        assert_eq!(memory.faults(), 0);
        assert!(!memory.write(frames.address(7, 4000), &[1; 97]));
        assert!(!memory.write(frames.address(0, 0) - 1, &[1]));
        assert_eq!(memory.faults(), 2);
        drop(frames);
        drop(area);
        assert!(!memory.is_empty(), "a view keeps its memory");
        drop(words);
        assert!(memory.is_empty());
    }

    #[test]
    fn a_pools_tables_are_never_mapped() {
        let space = DmaSpace::new(Box::new(ModelMemory::default()));
        let config = PoolConfig {
            frame_count: 7,
            frame_len: 2048,
            ..PoolConfig::default()
        };
        let pool = Pool::new(config).unwrap();
        let error = space.map_pool(&pool).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }

    #[test]
    #[should_panic(expected = "beyond the area")]
    fn a_view_is_bounded_by_its_area() {
        let space = DmaSpace::new(Box::new(ModelMemory::default()));
        let area = Arc::new(space.allocate(4096).unwrap());
        let _: DmaArray<[AtomicU64; 2]> = area.array(16, 256);
    }
}
