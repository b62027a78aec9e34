//! Memory as a file descriptor, so that it can be handed to another process or a device.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::mmap::Mapping;
use crate::{Error, ErrorKind, Result};

/// Size of the huge pages that are requested, in bytes: 2 MiB, which x86-64 and arm64 kernels
/// support.
pub const HUGE_PAGE_LEN: usize = 2 << 20;

/// Whether to back memory with huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Use them when the machine has some free, else 4 KiB pages.
    #[default]
    Try,
    /// Never.
    Never,
    /// Fail without them.
    Require,
}

/// How another process may map a memory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// For reading only.
    Read,
    /// For reading and writing.
    Write,
}

/// A sealed memory file and its mapping.
#[derive(Debug)]
pub struct MemoryFile {
    fd: OwnedFd,
    mapping: Mapping,
    huge: bool,
}

impl MemoryFile {
    /// Creates zeroed memory of `len` bytes (rounded up to whole pages), shown as `name` in
    /// `/proc/PID/maps`.
    ///
    /// The file is sealed against shrinking and growing: a peer that holds the descriptor cannot
    /// make our accesses fault. Only this user may open it anew. Since Linux 4.14 (huge pages in
    /// memfd).
    pub fn new(name: &CStr, len: usize, huge: HugePages) -> Result<Self> {
        if huge != HugePages::Never {
            match Self::create(name, len.next_multiple_of(HUGE_PAGE_LEN), libc::MFD_HUGETLB) {
                Ok(file) => return Ok(file),
                Err(error) if huge == HugePages::Require => {
                    let pages = len.div_ceil(HUGE_PAGE_LEN);
                    return Err(error.with_hint(format!(
                        "reserve {pages} huge pages: sysctl vm.nr_hugepages={pages}"
                    )));
                }
                Err(_) => {}
            }
        }
        let mut file = Self::create(name, len.next_multiple_of(4096), 0)?;
        file.huge = huge != HugePages::Never && file.mapping.collapse();
        Ok(file)
    }

    fn create(name: &CStr, len: usize, flags: u32) -> Result<Self> {
        let flags = flags | libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: `name` is a valid C string for the call's duration.
        let raw = unsafe { libc::memfd_create(name.as_ptr(), flags) };
        if raw < 0 {
            return Err(Error::last_os("create a memory file"));
        }
        // SAFETY: the descriptor was just returned to us and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        let what = || format!("reserve {len} bytes of memory");
        let size = i64::try_from(len).map_err(|_| {
            Error::new(
                crate::ErrorKind::InvalidInput,
                what(),
                "larger than any memory",
            )
        })?;
        // SAFETY: plain system calls on a descriptor we own.
        unsafe {
            if libc::ftruncate(fd.as_raw_fd(), size) < 0 {
                return Err(Error::last_os(what()));
            }
            if libc::fchmod(fd.as_raw_fd(), 0o600) < 0 {
                return Err(Error::last_os("set the mode of a memory file"));
            }
        }
        add_seals(fd.as_fd(), FIXED_LEN)?;
        let mapping = Mapping::shared(fd.as_fd(), len, 0)?;
        Ok(Self {
            fd,
            mapping,
            huge: flags & libc::MFD_HUGETLB != 0,
        })
    }

    /// Maps a memory file that another process made, once [`measure`] has accepted it.
    ///
    /// # Errors
    /// `Permission` for `Access::Write` to a file that may only be read, `InvalidInput` for another
    /// length than the file's.
    pub fn open(fd: OwnedFd, len: usize, access: Access) -> Result<Self> {
        let measured = measure(fd.as_fd())?;
        if measured.len != len {
            let why = format!("it has {} bytes, not {len}", measured.len);
            return Err(Error::new(ErrorKind::InvalidInput, MAP_FILE, why));
        }
        let mapping = match access {
            Access::Read => Mapping::shared_for_reading(fd.as_fd(), len)?,
            Access::Write => Mapping::shared(fd.as_fd(), len, 0)?,
        };
        let huge = measured.page_len >= HUGE_PAGE_LEN;
        Ok(Self { fd, mapping, huge })
    }

    /// A descriptor for another process, which may map the file as `access` says.
    ///
    /// The first call decides: after `Access::Read` no process can write any more, except through
    /// mappings that exist (`F_SEAL_FUTURE_WRITE`, since Linux 5.1). After `Access::Write` readers
    /// of the same user are kept from writing only as long as they do not open the file anew.
    ///
    /// # Errors
    /// `Permission` for `Access::Write` after `Access::Read`.
    pub fn share(&self, access: Access) -> Result<OwnedFd> {
        let seals = seals(self.fd.as_fd())?;
        if access == Access::Write && seals & libc::F_SEAL_FUTURE_WRITE != 0 {
            let why = "it was shared for reading only";
            return Err(Error::new(ErrorKind::Permission, SHARE_FILE, why));
        }
        if seals & libc::F_SEAL_SEAL == 0 {
            let write = match access {
                Access::Read => libc::F_SEAL_FUTURE_WRITE,
                Access::Write => 0,
            };
            add_seals(self.fd.as_fd(), write | libc::F_SEAL_SEAL)?;
        }
        let from_io = |error| Error::from_io(SHARE_FILE, error);
        match access {
            Access::Write => self.fd.try_clone().map_err(from_io),
            // A descriptor of its own, which is open for reading only.
            Access::Read => File::open(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
                .map(OwnedFd::from)
                .map_err(from_io),
        }
    }

    /// The mapping.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// The descriptor, for sharing with another process.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Whether huge pages back it.
    pub fn is_huge(&self) -> bool {
        self.huge
    }
}

const MAP_FILE: &str = "map a memory file of another process";
const SHARE_FILE: &str = "share a memory file";

/// The seals that keep a file's length.
const FIXED_LEN: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

fn add_seals(fd: BorrowedFd<'_>, seals: i32) -> Result<()> {
    // SAFETY: a plain system call on an open descriptor.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
        return Err(Error::last_os("seal a memory file"));
    }
    Ok(())
}

fn seals(fd: BorrowedFd<'_>) -> Result<i32> {
    // SAFETY: a plain system call on an open descriptor.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 {
        let why = "the descriptor is not one of a memory file";
        return Err(Error::new(ErrorKind::InvalidInput, MAP_FILE, why));
    }
    Ok(seals)
}

/// Size of a memory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Bytes of the whole file.
    pub len: usize,
    /// Bytes of each of its pages.
    pub page_len: usize,
    /// Its number, as in the maps of processes that have mapped it.
    pub inode: u64,
}

/// Measures a memory file that another process made.
///
/// # Errors
/// `InvalidInput` for anything else than a memory file whose length is sealed: it could become
/// shorter, and accesses to the missing pages would end this process.
pub fn measure(fd: BorrowedFd<'_>) -> Result<Measured> {
    if seals(fd)? & FIXED_LEN != FIXED_LEN {
        let why = "its length is not sealed";
        return Err(Error::new(ErrorKind::InvalidInput, MAP_FILE, why));
    }
    // SAFETY: all-zero is a valid value, which the call fills in.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor and a live value.
    if unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) } < 0 {
        return Err(Error::last_os(MAP_FILE));
    }
    // Not `st_blksize`, which is the length of a huge page where they are only possible.
    // SAFETY: all-zero is a valid value, which the call fills in.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor and a live value.
    if unsafe { libc::fstatfs(fd.as_raw_fd(), &raw mut system) } < 0 {
        return Err(Error::last_os(MAP_FILE));
    }
    let to_len = |number: i64| usize::try_from(number).unwrap_or(0);
    Ok(Measured {
        len: to_len(stat.st_size),
        page_len: to_len(system.f_bsize),
        inode: stat.st_ino,
    })
}

/// This machine's memory in bytes, without swap; all of the address space if that is unknown.
pub fn machine_memory() -> u64 {
    // SAFETY: all-zero is a valid value, which the call fills in.
    let mut info: libc::sysinfo = unsafe { std::mem::zeroed() };
    // SAFETY: a live value.
    match unsafe { libc::sysinfo(&raw mut info) } {
        0 => info.totalram.saturating_mul(info.mem_unit.into()),
        _ => u64::MAX,
    }
}

#[cfg(test)]
mod tests;
