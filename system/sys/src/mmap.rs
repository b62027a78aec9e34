//! A memory mapping that unmaps itself: shared (pools, rings) or private and read-only (capture
//! files).

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use crate::memfd::HUGE_PAGE_LEN;
use crate::{Error, Result};

/// A mapped memory range, unmapped on drop.
///
/// The kernel, a device or a peer process may write to shared mappings at any time, so there is no
/// safe slice over the whole range: the code that gives out parts of it (pool, ring) must prevent
/// aliasing.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory without thread affinity; access goes through raw pointers
// whose users state their own aliasing argument.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` only yields addresses.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn map(
        fd: Option<BorrowedFd<'_>>,
        len: usize,
        offset: i64,
        prot: i32,
        flags: i32,
    ) -> Result<Self> {
        Self::map_near(std::ptr::null_mut(), fd, len, offset, prot, flags)
    }

    fn map_near(
        hint: *mut libc::c_void,
        fd: Option<BorrowedFd<'_>>,
        len: usize,
        offset: i64,
        prot: i32,
        flags: i32,
    ) -> Result<Self> {
        let raw = fd.map_or(-1, |fd| fd.as_raw_fd());
        // SAFETY: an address is only a hint, the kernel chooses the place; no existing mapping is
        // replaced (no MAP_FIXED).
        let base = unsafe { libc::mmap(hint, len, prot, flags, raw, offset) };
        if base == libc::MAP_FAILED {
            return Err(Error::last_os(format!("map {len} bytes")));
        }
        let base = NonNull::new(base.cast()).expect("mmap never returns null without MAP_FIXED");
        Ok(Self { base, len })
    }

    /// Maps `len` bytes of `fd` from `offset`, shared and writable. Page tables are filled at once,
    /// so that the packet path takes no page faults. Mappings of at least a huge page are aligned
    /// to one, so that [`Mapping::collapse`] can work.
    pub fn shared(fd: BorrowedFd<'_>, len: usize, offset: i64) -> Result<Self> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        Self::map_near(aligned(len), Some(fd), len, offset, prot, flags)
    }

    /// Asks the kernel to back this mapping with huge pages, which saves address translations; none
    /// need to be reserved. Returns true if the kernel did so (since Linux 6.1, `MADV_COLLAPSE`)
    /// for everything but a last part shorter than a huge page.
    pub fn collapse(&self) -> bool {
        /// `MADV_COLLAPSE` in `include/uapi/asm-generic/mman-common.h`.
        const COLLAPSE: i32 = 25;
        let len = self.len / HUGE_PAGE_LEN * HUGE_PAGE_LEN;
        let start = self.base.as_ptr();
        // SAFETY: the range is within the mapping; what it holds stays the same.
        len != 0 && unsafe { libc::madvise(start.cast(), len, COLLAPSE) == 0 }
    }

    /// Maps `len` bytes of a device's registers from `offset`, shared and writable. Registers are
    /// not memory: use only single accesses of the widths that the device supports.
    pub fn device(fd: BorrowedFd<'_>, len: usize, offset: i64) -> Result<Self> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        Self::map(Some(fd), len, offset, prot, libc::MAP_SHARED)
    }

    /// Maps `len` bytes of a memory file, shared with those that write it, page tables filled at
    /// once; aligned as by [`shared`](Self::shared), so that huge pages of the file are mapped as
    /// such.
    pub fn shared_for_reading(fd: BorrowedFd<'_>, len: usize) -> Result<Self> {
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        Self::map_near(aligned(len), Some(fd), len, 0, libc::PROT_READ, flags)
    }

    /// Maps `len` bytes of a memory file of another process from `offset`, a multiple of the page
    /// length, shared and writable. Pages that the file does not have yet are not allocated.
    ///
    /// # Errors
    /// Any error of the system.
    pub fn shared_sparse(fd: BorrowedFd<'_>, len: usize, offset: i64) -> Result<Self> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        Self::map(Some(fd), len, offset, prot, flags)
    }

    /// Maps `len` bytes of a file for reading.
    pub fn read_only(fd: BorrowedFd<'_>, len: usize) -> Result<Self> {
        let mapping = Self::map(Some(fd), len, 0, libc::PROT_READ, libc::MAP_PRIVATE)?;
        // SAFETY: the range is the mapping just made; the advice has no effect on its contents.
        unsafe { libc::madvise(mapping.base.as_ptr().cast(), len, libc::MADV_SEQUENTIAL) };
        Ok(mapping)
    }

    /// Anonymous private memory, zeroed.
    pub fn anonymous(len: usize) -> Result<Self> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        Self::map(None, len, 0, prot, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS)
    }

    /// Like [`anonymous`](Self::anonymous), for tables that are looked up at random: from half a
    /// huge page on, in whole huge pages where the kernel has some, which saves address
    /// translations.
    pub fn anonymous_for_tables(len: usize) -> Result<Self> {
        if len < HUGE_PAGE_LEN / 2 {
            return Self::anonymous(len);
        }
        let len = len.next_multiple_of(HUGE_PAGE_LEN);
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let mapping = Self::map_near(aligned(len), None, len, 0, prot, flags)?;
        crate::advice::large_pages(mapping.base.as_ptr().addr(), len);
        Ok(mapping)
    }

    /// Anonymous memory, zeroed, that processes made by fork(2) share.
    pub fn anonymous_shared(len: usize) -> Result<Self> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        Self::map(None, len, 0, prot, libc::MAP_SHARED | libc::MAP_ANONYMOUS)
    }

    /// First address.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Length in bytes.
    #[allow(
        clippy::len_without_is_empty,
        reason = "a mapping is never empty: mmap refuses length 0"
    )]
    pub fn len(&self) -> usize {
        self.len
    }
}

/// A free address for a mapping of `len` bytes, at the beginning of a huge page if it has at least
/// one, else null, as where the limit of memory leaves no room to search. Another thread may map
/// something there first: it is only a hint.
fn aligned(len: usize) -> *mut libc::c_void {
    if len < HUGE_PAGE_LEN {
        return std::ptr::null_mut();
    }
    // Found by briefly mapping more than needed.
    let room = Mapping::map(
        None,
        len + HUGE_PAGE_LEN,
        0,
        libc::PROT_NONE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    );
    let Ok(room) = room else {
        return std::ptr::null_mut();
    };
    let start = room.base.as_ptr();
    start.wrapping_add(start.align_offset(HUGE_PAGE_LEN)).cast()
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map` and is unmapped only here.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
