//! Memory as a file descriptor, so that it can be handed to another process or a device.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use crate::mmap::Mapping;
use crate::{Error, Result};

/// Length of the requested huge pages, in bytes: 2 MiB, the size that x86-64 and arm64 kernels
/// reserve.
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

/// A sealed memory file and its mapping.
#[derive(Debug)]
pub struct MemoryFile {
    fd: OwnedFd,
    mapping: Mapping,
    huge: bool,
}

impl MemoryFile {
    /// Makes `len` bytes (rounded up to whole pages) of zeroed memory named `name` in
    /// `/proc/PID/maps`.
    ///
    /// The file is sealed against shrinking and growing: a peer that holds the descriptor cannot
    /// make our accesses fault. Since Linux 4.14 (huge pages in memfd).
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
            let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
            if libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) < 0 {
                return Err(Error::last_os("seal a memory file"));
            }
        }
        let mapping = Mapping::shared(fd.as_fd(), len, 0)?;
        Ok(Self {
            fd,
            mapping,
            huge: flags & libc::MFD_HUGETLB != 0,
        })
    }

    /// The mapping.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// The descriptor, to be shared with another process.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Whether huge pages back it.
    pub fn is_huge(&self) -> bool {
        self.huge
    }
}
