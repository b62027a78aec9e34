//! The guest's memory, mapped into this process, by the guest's addresses and by the front-end's.
//!
//! The guest may write any of it at any time. So there are no references to it: bytes are copied
//! into and out of it, and each copy is checked to lie within one or several mapped regions.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};

use sys::memfd;
use sys::mmap::Mapping;
use sys::{Error, ErrorKind, Result};

use crate::message::Region;

const MAP: &str = "map the memory of a virtual machine";

/// The unit in which files are mapped.
const PAGE: u64 = 4096;

/// A mapped region.
#[derive(Debug)]
struct Mapped {
    guest_addr: u64,
    user_addr: u64,
    len: u64,
    /// The first byte; the mapping may begin before it.
    first: NonNull<u8>,
    _mapping: Mapping,
}

/// The guest's memory.
#[derive(Debug)]
pub struct Memory {
    /// Sorted by address in the guest; none overlap.
    regions: Vec<Mapped>,
}

// SAFETY: the pointers lead into the mappings, which live as long. The memory is shared with
// another process anyway; it is accessed by copies and atomically only.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

fn refuse(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, MAP, why)
}

impl Memory {
    /// Maps the regions of a memory table, each from its file.
    ///
    /// # Errors
    /// `InvalidInput` for a region that is empty, beyond the address space or its file, or overlaps
    /// another in the guest; for a file that is not a memory file sealed against shrinking, or has
    /// huge pages; if all regions together are longer than this machine's memory. Any error of the
    /// system.
    pub fn map(table: &[Region], files: Vec<OwnedFd>) -> Result<Self> {
        Self::map_within(memfd::machine_memory(), table, files)
    }

    /// As [`map`](Self::map), with this maximum length of all regions in bytes.
    fn map_within(len_max: u64, table: &[Region], files: Vec<OwnedFd>) -> Result<Self> {
        if table.len() != files.len() {
            return Err(refuse("a region has no file"));
        }
        // What is touched here counts as this process's memory, too.
        let lens = table.iter().map(|region| region.len);
        let len = lens.fold(0, u64::saturating_add);
        if len > len_max {
            let why = format!("{len} bytes are more than this machine has ({len_max})");
            return Err(refuse(why));
        }
        let mut regions = Vec::with_capacity(table.len());
        for (region, file) in table.iter().zip(&files) {
            regions.push(map_one(region, file)?);
        }
        regions.sort_by_key(|region| region.guest_addr);
        let overlaps = |pair: &[Mapped]| pair[1].guest_addr - pair[0].guest_addr < pair[0].len;
        if regions.windows(2).any(overlaps) {
            return Err(refuse("two regions overlap"));
        }
        Ok(Self { regions })
    }

    /// Length of all regions in bytes.
    pub fn len(&self) -> u64 {
        self.regions.iter().map(|region| region.len).sum()
    }

    /// Whether there is no region.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// The place of a guest address, and how many bytes of its region there are from it on.
    #[inline]
    fn place(&self, addr: u64) -> Option<(*mut u8, u64)> {
        self.regions.iter().find_map(|region| {
            let offset = addr.checked_sub(region.guest_addr)?;
            let left = region.len.checked_sub(offset).filter(|left| *left != 0)?;
            // Within the mapping: the offset is below the region's length.
            Some((region.first.as_ptr().wrapping_add(offset as usize), left))
        })
    }

    /// Calls `part` with the pieces of a range, in order: first byte, and length. Returns false,
    /// perhaps after some pieces, if not all of the range is mapped.
    #[inline]
    fn each(&self, mut addr: u64, len: usize, mut part: impl FnMut(*mut u8, usize)) -> bool {
        let mut rest = len;
        while rest != 0 {
            let Some((at, left)) = self.place(addr) else {
                return false;
            };
            let now = rest.min(usize::try_from(left).unwrap_or(usize::MAX));
            part(at, now);
            rest -= now;
            let Some(next) = addr.checked_add(now as u64) else {
                return rest == 0;
            };
            addr = next;
        }
        true
    }

    /// Whether a range of guest addresses is mapped, perhaps in several regions.
    #[inline]
    pub fn contains(&self, addr: u64, len: usize) -> bool {
        self.each(addr, len, |_, _| {})
    }

    /// Copies guest memory into `to`. Returns false if not all of it is mapped; `to` is then
    /// undefined.
    #[inline]
    pub fn read(&self, addr: u64, to: &mut [u8]) -> bool {
        let mut into = to.as_mut_ptr();
        self.each(addr, to.len(), |at, len| {
            // SAFETY: `each` passes pieces of mapped regions, together as long as `to`. The guest
            // may write meanwhile: any bytes are valid, and they are checked after the copy.
            unsafe {
                ptr::copy_nonoverlapping(at, into, len);
                into = into.add(len);
            }
        })
    }

    /// Copies `from` into guest memory. Returns false if not all of it is mapped; a part may have
    /// been written.
    #[inline]
    pub fn write(&self, addr: u64, from: &[u8]) -> bool {
        let mut source = from.as_ptr();
        self.each(addr, from.len(), |at, len| {
            // SAFETY: `each` passes pieces of mapped regions, together as long as `from`, which is
            // no guest memory.
            unsafe {
                ptr::copy_nonoverlapping(source, at, len);
                source = source.add(len);
            }
        })
    }

    /// The place of a range of the front-end's addresses, within one region; `None` if it is not
    /// mapped, or not aligned to `align` here.
    pub(crate) fn user(&self, addr: u64, len: usize, align: usize) -> Option<NonNull<u8>> {
        let place = self.regions.iter().find_map(|region| {
            let offset = addr.checked_sub(region.user_addr)?;
            let left = region.len.checked_sub(offset)?;
            // Within the mapping, as in `place`.
            let at = region.first.as_ptr().wrapping_add(offset as usize);
            (len as u64 <= left && len != 0).then_some(at)
        })?;
        NonNull::new(place).filter(|at| at.addr().get().is_multiple_of(align))
    }
}

fn map_one(region: &Region, file: &OwnedFd) -> Result<Mapped> {
    let Region {
        guest_addr,
        len,
        user_addr,
        file_offset,
    } = *region;
    let ends = [guest_addr, user_addr, file_offset].map(|start| start.checked_add(len));
    let [Some(_), Some(_), Some(file_end)] = ends else {
        return Err(refuse("a region is beyond the end of the address space"));
    };
    if len == 0 {
        return Err(refuse("a region is empty"));
    }
    let hint = "start QEMU with -object memory-backend-memfd,share=on";
    let measured = memfd::measure(file.as_fd()).map_err(|error| {
        let why = format!("a region's file: {}", error.why());
        refuse(why).with_hint(hint)
    })?;
    if measured.page_len as u64 != PAGE {
        // A page that another process removes may then not come back: the access ends this process.
        return Err(refuse("a region's file has huge pages").with_hint("leave out hugetlb=on"));
    }
    if file_end > measured.len as u64 {
        return Err(refuse("a region is beyond the end of its file"));
    }
    let before = file_offset % PAGE;
    let start = i64::try_from(file_offset - before);
    let start = start.map_err(|_| refuse("a region is beyond the end of its file"))?;
    let mapped_len = usize::try_from(before + len).unwrap_or(usize::MAX);
    let mapping = Mapping::shared_sparse(file.as_fd(), mapped_len, start)?;
    // SAFETY: less than a page into the mapping, which is longer.
    let first = unsafe { mapping.base().add(before as usize) };
    Ok(Mapped {
        guest_addr,
        user_addr,
        len,
        first,
        _mapping: mapping,
    })
}

#[cfg(test)]
mod tests;
