//! Maps: arrays and tables shared by programs and user space.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{
    MAP_CREATE, MAP_DELETE_ELEM, MAP_LOOKUP_ELEM, MAP_UPDATE_ELEM, bpf, bpf_fd, name_text, object,
    object_name,
};
use crate::mmap::Mapping;
use crate::{Error, ErrorKind, Result};

/// Kinds of map that we use; the value is the kernel's `enum bpf_map_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[non_exhaustive]
pub enum MapType {
    /// Key to value by hashing.
    Hash = 1,
    /// Index to value.
    Array = 2,
    /// Processor to perf ring (Linux 4.3).
    PerfEventArray = 4,
    /// Index to one value a processor.
    PercpuArray = 6,
    /// Key to value by hashing; a new key replaces the least recently used one (Linux 4.10).
    LruHash = 9,
    /// Prefix to value: a look-up gives the longest prefix that covers the key (Linux 4.11).
    LpmTrie = 11,
    /// Index to network device (Linux 4.14).
    Devmap = 14,
    /// Index to AF_XDP socket (Linux 4.18).
    Xskmap = 17,
}

/// The parameters of a new map.
#[derive(Clone, Copy, Debug)]
pub struct MapSpec<'a> {
    /// Its kind.
    pub kind: MapType,
    /// Its name as shown to users: at most 15 bytes, the rest is cut off.
    pub name: &'a str,
    /// Bytes per key; 4 for every array.
    pub key_size: u32,
    /// Bytes per value, for one processor.
    pub value_size: u32,
    /// Maximum number of entries.
    pub max_entries: u32,
    /// User space can map the values as memory (`BPF_F_MMAPABLE`, arrays only, Linux 5.5).
    pub mappable: bool,
}

const F_NO_PREALLOC: u32 = 1;
const F_MMAPABLE: u32 = 1 << 10;

#[repr(C)]
#[derive(Default)]
struct CreateAttr {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: [u8; 16],
}

#[repr(C)]
#[derive(Default)]
struct ElemAttr {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// `struct bpf_map_info` up to the name; the kernel fills as much as we request.
#[repr(C)]
#[derive(Default)]
struct InfoRaw {
    kind: u32,
    id: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    name: [u8; 16],
}

// SAFETY: repr(C), integers only.
unsafe impl object::Copyable for InfoRaw {}

/// What an update does if the entry exists or does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum UpdateMode {
    /// Create it or replace it.
    Any = 0,
    /// Create it; fail if it exists.
    New = 1,
    /// Replace it; fail if it does not exist.
    Existing = 2,
}

/// How many processors the kernel reserves per-processor values for
/// (`/sys/devices/system/cpu/possible`), which may be more than are present.
pub fn possible_cpu_count() -> Result<usize> {
    static COUNT: OnceLock<usize> = OnceLock::new();
    if let Some(&count) = COUNT.get() {
        return Ok(count);
    }
    let path = "/sys/devices/system/cpu/possible";
    let text = std::fs::read_to_string(path)
        .map_err(|e| Error::from_io("count the processors", e).with_hint("is /sys mounted?"))?;
    // "0-3,8": the kernel lays the values out by index, so the last number decides.
    let last = text
        .trim()
        .rsplit([',', '-'])
        .next()
        .and_then(|n| n.parse::<usize>().ok());
    let count = last.ok_or_else(|| {
        Error::new(
            ErrorKind::Damaged,
            "count the processors",
            format!("{path} says {text:?}"),
        )
    })? + 1;
    Ok(*COUNT.get_or_init(|| count))
}

/// A map, held open; it exists as long as a process holds it or a program uses it.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    id: u32,
    name: String,
    key_size: usize,
    /// Bytes that the kernel copies for one value: those of all processors, for per-processor
    /// kinds.
    value_len: usize,
    value_size: usize,
    max_entries: u32,
}

impl Map {
    /// Creates a map.
    ///
    /// # Errors
    /// `Permission` without CAP_BPF, `NoSpace` when locked memory is limited (before Linux 5.11
    /// maps count against RLIMIT_MEMLOCK, and the kernel then returns EPERM).
    pub fn create(spec: &MapSpec<'_>) -> Result<Self> {
        let mut attr = CreateAttr {
            map_type: spec.kind as u32,
            key_size: spec.key_size,
            value_size: spec.value_size,
            max_entries: spec.max_entries,
            map_flags: match spec.kind {
                MapType::LpmTrie => F_NO_PREALLOC,
                _ if spec.mappable => F_MMAPABLE,
                _ => 0,
            },
            map_name: object_name(spec.name),
            ..CreateAttr::default()
        };
        // SAFETY: the attribute holds no address.
        let fd = unsafe { bpf_fd(MAP_CREATE, &mut attr) }.map_err(|e| {
            let denied = e.raw_os_error() == Some(libc::EPERM);
            let error = Error::from_io(format!("create the BPF map {}", spec.name), e);
            if denied {
                error.with_hint(
                    "run as root or with CAP_BPF, CAP_NET_ADMIN and, for afxdp:, CAP_NET_RAW; \
                     before Linux 5.11 also raise `ulimit -l`",
                )
            } else {
                error
            }
        })?;
        Self::from_fd(fd)
    }

    /// Adopts a descriptor and queries the kernel for its properties.
    pub fn from_fd(fd: OwnedFd) -> Result<Self> {
        let info: InfoRaw = object::info(fd.as_fd(), InfoRaw::default())
            .map_err(|e| Error::from_io("query a BPF map", e))?;
        // The per-processor kinds of `enum bpf_map_type`: hash, array, LRU hash, cgroup storage.
        let per_cpu = matches!(info.kind, 5 | 6 | 10 | 21);
        let value_len = if per_cpu {
            info.value_size.next_multiple_of(8) as usize * possible_cpu_count()?
        } else {
            info.value_size as usize
        };
        Ok(Self {
            fd,
            id: info.id,
            name: name_text(&info.name),
            key_size: info.key_size as usize,
            value_len,
            value_size: info.value_size as usize,
            max_entries: info.max_entries,
        })
    }

    /// The kernel's number for it.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many entries it can hold.
    pub fn max_entries(&self) -> u32 {
        self.max_entries
    }

    /// Bytes of one value as [`Map::lookup`] gives it: of all processors for per-processor kinds,
    /// each rounded up to 8.
    pub fn value_len(&self) -> usize {
        self.value_len
    }

    fn check(&self, key: &[u8], value_len: Option<usize>) -> io::Result<()> {
        let fits = key.len() == self.key_size && value_len.is_none_or(|n| n == self.value_len);
        if fits {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "key of {} bytes, value of {} bytes",
                self.key_size, self.value_len
            ),
        ))
    }

    fn error(&self, verb: &str, source: io::Error) -> Error {
        Error::from_io(format!("{verb} the BPF map {}", self.name), source)
    }

    /// Reads one entry into `value`, whose length must be [`Map::value_len`]; `false` if there is
    /// no such entry.
    pub fn lookup(&self, key: &[u8], value: &mut [u8]) -> Result<bool> {
        self.check(key, Some(value.len()))
            .map_err(|e| self.error("read", e))?;
        let mut attr = ElemAttr {
            map_fd: self.fd.as_raw_fd() as u32,
            key: key.as_ptr() as u64,
            value: value.as_mut_ptr() as u64,
            ..ElemAttr::default()
        };
        // SAFETY: the kernel reads `key_size` bytes at key and writes `value_len` bytes at value;
        // `check` compared both with the slices, and the sizes come from the kernel itself.
        match unsafe { bpf(MAP_LOOKUP_ELEM, &mut attr) } {
            Ok(_) => Ok(true),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(e) => Err(self.error("read", e)),
        }
    }

    /// Writes one entry. For a socket map the value is the socket's descriptor.
    pub fn update(&self, key: &[u8], value: &[u8], mode: UpdateMode) -> Result<()> {
        self.check(key, Some(value.len()))
            .map_err(|e| self.error("write", e))?;
        let mut attr = ElemAttr {
            map_fd: self.fd.as_raw_fd() as u32,
            key: key.as_ptr() as u64,
            value: value.as_ptr() as u64,
            flags: mode as u64,
            ..ElemAttr::default()
        };
        // SAFETY: as in `lookup`; both slices are only read.
        unsafe { bpf(MAP_UPDATE_ELEM, &mut attr) }.map_err(|e| self.error("write", e))?;
        Ok(())
    }

    /// Removes one entry; `false` if there was none.
    pub fn delete(&self, key: &[u8]) -> Result<bool> {
        self.check(key, None)
            .map_err(|e| self.error("delete from", e))?;
        let mut attr = ElemAttr {
            map_fd: self.fd.as_raw_fd() as u32,
            key: key.as_ptr() as u64,
            ..ElemAttr::default()
        };
        // SAFETY: the kernel reads `key_size` bytes, checked above.
        match unsafe { bpf(MAP_DELETE_ELEM, &mut attr) } {
            Ok(_) => Ok(true),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(e) => Err(self.error("delete from", e)),
        }
    }

    /// Maps all values of an array made with `mappable` into memory (Linux 5.5).
    pub fn memory(&self) -> Result<MapMemory> {
        let stride = self.value_size.next_multiple_of(8);
        let len = (stride * self.max_entries as usize).next_multiple_of(page_len());
        Ok(MapMemory {
            mapping: Mapping::shared(self.fd.as_fd(), len, 0)?,
            stride,
        })
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

pub(super) fn page_len() -> usize {
    // SAFETY: sysconf has no precondition.
    let len = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(len).unwrap_or(4096)
}

/// The values of an array map as memory, shared with the programs that use it.
///
/// Programs may read and write at the same time: words are accessed atomically, byte ranges are
/// copied. Callers that need a stronger order must add a protocol of their own.
#[derive(Debug)]
pub struct MapMemory {
    mapping: Mapping,
    stride: usize,
}

impl MapMemory {
    /// Bytes from one value to the next: the value's size rounded up to 8.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Length in bytes, rounded up to pages.
    #[allow(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// The address of a byte, for writing in place. Programs may read the byte at any time.
    ///
    /// # Panics
    /// If the offset is not inside the memory.
    #[inline]
    pub fn address(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.mapping.len());
        // SAFETY: inside the mapping, checked above.
        unsafe { self.mapping.base().add(offset) }
    }

    /// The word at this byte offset, for atomic access.
    ///
    /// # Panics
    /// If the offset is not a multiple of 8 inside the memory.
    #[inline]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.mapping.len());
        // SAFETY: in range and aligned (a mapping begins at a page), checked above; the memory
        // lives as long as `self`; atomics allow for other writers.
        unsafe { AtomicU64::from_ptr(self.mapping.base().as_ptr().add(offset).cast()) }
    }

    /// Copies bytes into the memory at an offset.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset <= self.mapping.len() && bytes.len() <= self.mapping.len() - offset);
        // SAFETY: the range is inside the mapping, checked above, and cannot overlap `bytes`: no
        // safe slice of the mapping exists.
        unsafe {
            let to = self.mapping.base().as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    /// Copies bytes out of the memory from an offset.
    ///
    /// # Panics
    /// If there are not as many.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        assert!(offset <= self.mapping.len() && bytes.len() <= self.mapping.len() - offset);
        // SAFETY: as in `write`. A program writing meanwhile gives torn bytes, not a fault.
        unsafe {
            let from = self.mapping.base().as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len());
        }
    }

    /// Orders our earlier writes before what follows; pairs with the system call that runs the
    /// program.
    pub fn publish(&self) {
        std::sync::atomic::fence(Ordering::Release);
    }
}
