//! Perf rings into which programs output bytes and packets (`bpf_perf_event_output`;
//! `include/uapi/linux/perf_event.h`): one ring a processor, written by the kernel.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use super::map::page_len;
use super::{Map, MapSpec, MapType, UpdateMode, possible_cpu_count};
use crate::mmap::Mapping;
use crate::{Error, ErrorKind, Result};

/// `PERF_TYPE_SOFTWARE`, `PERF_COUNT_SW_BPF_OUTPUT`, `PERF_SAMPLE_RAW`.
const TYPE_SOFTWARE: u32 = 1;
const COUNT_BPF_OUTPUT: u64 = 10;
const SAMPLE_RAW: u64 = 1 << 10;
/// `watermark` of the bit fields: the last field counts bytes instead of events.
const WATERMARK: u64 = 1 << 14;
/// `PERF_FLAG_FD_CLOEXEC`.
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;

/// Offsets in `struct perf_event_mmap_page`, the page before the ring.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;
/// Length of `struct perf_event_header`: type, bit fields, length of the whole record.
const HEADER_LEN: usize = 8;
/// `PERF_RECORD_SAMPLE`. Records of another type are skipped: they report lost outputs, which the
/// program counts itself.
const RECORD_SAMPLE: u32 = 9;

/// `struct perf_event_attr` in its first version.
#[repr(C)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    bits: u64,
    wakeup_watermark: u32,
    breakpoint_type: u32,
    breakpoint_address: u64,
}

/// A map of perf rings with the rings of all processors. A ring that is full refuses outputs; the
/// program learns of that.
///
/// # Since Linux
/// 4.4; packets of XDP and tc programs: 4.8.
#[derive(Debug)]
pub struct Events {
    map: Map,
    rings: Vec<Ring>,
    /// The record being read, which may be at the end and the beginning of its ring.
    record: Vec<u8>,
}

impl Events {
    /// Creates the map and a ring of at least this many bytes for each processor that is online.
    ///
    /// # Errors
    /// `Permission` without CAP_BPF and CAP_PERFMON; `NoSpace` if locked memory is limited.
    pub fn create(name: &str, ring_len_min: usize) -> Result<Self> {
        let cpu_count = possible_cpu_count()?;
        let map = Map::create(&MapSpec {
            kind: MapType::PerfEventArray,
            name,
            key_size: 4,
            value_size: 4,
            max_entries: cpu_count as u32,
            mappable: false,
        })?;
        let mut rings = Vec::new();
        for cpu in 0..cpu_count as u32 {
            let Some(ring) = Ring::open(cpu, ring_len_min)? else {
                continue;
            };
            let fd = ring.fd.as_raw_fd();
            map.update(&cpu.to_ne_bytes(), &fd.to_ne_bytes(), UpdateMode::Any)?;
            rings.push(ring);
        }
        Ok(Self {
            map,
            rings,
            record: Vec::new(),
        })
    }

    /// Calls `each` with each output: the bytes, the start of the packet, and up to seven bytes of
    /// padding. Outputs of different processors are not in order of time. Outputs that arrive
    /// meanwhile are left for the next call.
    pub fn read(&mut self, mut each: impl FnMut(&[u8])) {
        for ring in &mut self.rings {
            // Acquire: the kernel writes a record before it advances the head.
            let head = ring.word(DATA_HEAD).load(Ordering::Acquire);
            while ring.next(head, &mut self.record) {
                if let Some(bytes) = raw(&self.record) {
                    each(bytes);
                }
            }
        }
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

/// The raw bytes of a sample record: their length, then the bytes.
fn raw(record: &[u8]) -> Option<&[u8]> {
    let (header, rest) = record.split_first_chunk::<HEADER_LEN>()?;
    let (kind, _) = header.split_first_chunk::<4>()?;
    let (len, bytes) = rest.split_first_chunk::<4>()?;
    let bytes = bytes.get(..u32::from_ne_bytes(*len) as usize)?;
    (u32::from_ne_bytes(*kind) == RECORD_SAMPLE).then_some(bytes)
}

/// The ring of one processor.
#[derive(Debug)]
struct Ring {
    fd: OwnedFd,
    memory: Mapping,
    /// Page length, and length of the ring behind the first page: a power of two.
    page_len: usize,
    len: usize,
    tail: u64,
}

impl Ring {
    /// Opens it; `None` if the processor is offline.
    fn open(cpu: u32, len_min: usize) -> Result<Option<Self>> {
        let page_len = page_len();
        let len = len_min.max(page_len).next_power_of_two();
        let attr = Attr {
            kind: TYPE_SOFTWARE,
            size: size_of::<Attr>() as u32,
            config: COUNT_BPF_OUTPUT,
            sample_period: 1,
            sample_type: SAMPLE_RAW,
            read_format: 0,
            // The descriptor is not polled: no wake-up is needed.
            bits: WATERMARK,
            wakeup_watermark: len as u32,
            breakpoint_type: 0,
            breakpoint_address: 0,
        };
        // SAFETY: the kernel reads `size` bytes of the attribute, which is live.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &attr,
                -1,
                cpu as libc::c_int,
                -1,
                CLOSE_ON_EXEC,
            )
        };
        if fd < 0 {
            return refused(io::Error::last_os_error());
        }
        // SAFETY: the kernel just made this descriptor for us; nothing else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let memory = Mapping::shared(fd.as_fd(), page_len + len, 0).map_err(|error| {
            error.with_hint("kernel.perf_event_mlock_kb limits this memory without CAP_IPC_LOCK")
        })?;
        Ok(Some(Self {
            fd,
            memory,
            page_len,
            len,
            tail: 0,
        }))
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: both offsets are aligned and in the first page, which the mapping contains; it
        // lives as long as `self`. Atomics allow for the kernel's accesses.
        unsafe { AtomicU64::from_ptr(self.memory.base().as_ptr().add(offset).cast()) }
    }

    /// Takes the next record before this head out of the ring; false if there is none.
    fn next(&mut self, head: u64, record: &mut Vec<u8>) -> bool {
        let filled = head.wrapping_sub(self.tail);
        let mut header = [0; HEADER_LEN];
        // A head that is too far ahead, or a record longer than the ring is filled, would be a
        // kernel's error: its contents are skipped.
        let mut len = filled;
        if (HEADER_LEN as u64..=self.len as u64).contains(&filled) {
            self.copy(&mut header);
            let record_len = u16::from_ne_bytes([header[6], header[7]]);
            if usize::from(record_len) >= HEADER_LEN && u64::from(record_len) <= filled {
                len = record_len.into();
            }
        }
        if len == 0 {
            return false;
        }
        record.clear();
        record.resize(len.min(self.len as u64) as usize, 0);
        self.copy(record);
        self.tail = self.tail.wrapping_add(len);
        // Release: the record was read before the kernel may overwrite it.
        self.word(DATA_TAIL).store(self.tail, Ordering::Release);
        true
    }

    /// Copies bytes from the tail on; `to` is at most as long as the ring.
    fn copy(&self, to: &mut [u8]) {
        let at = (self.tail % self.len as u64) as usize;
        let first = to.len().min(self.len - at);
        let ring = self.page_len;
        // SAFETY: both ranges are in the ring, behind the first page: `at + first` and the rest
        // are at most `len`, which the assertion ensures. No safe slice of the mapping exists, and
        // the kernel does not write between tail and head.
        unsafe {
            assert!(to.len() <= self.len);
            let base = self.memory.base().as_ptr().add(ring);
            std::ptr::copy_nonoverlapping(base.add(at), to.as_mut_ptr(), first);
            let rest = to.len() - first;
            std::ptr::copy_nonoverlapping(base, to.as_mut_ptr().add(first), rest);
        }
    }
}

/// Explains why there is no ring.
fn refused(error: io::Error) -> Result<Option<Ring>> {
    let what = "open a perf ring";
    match error.raw_os_error() {
        Some(libc::ENODEV) => Ok(None),
        Some(libc::EACCES | libc::EPERM) => Err(Error::from_io(what, error)
            .with_kind(ErrorKind::Permission)
            .with_hint("run as root, or with CAP_PERFMON")),
        Some(libc::ENOSYS) => Err(Error::from_io(what, error)
            .with_kind(ErrorKind::Unsupported)
            .with_why("this kernel has no perf events (CONFIG_PERF_EVENTS)")),
        _ => Err(Error::from_io(what, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, len: u32, bytes: &[u8]) -> Vec<u8> {
        let parts = [&kind.to_ne_bytes()[..], &[0; 4], &len.to_ne_bytes(), bytes];
        parts.concat()
    }

    #[test]
    fn only_whole_samples_are_read() {
        assert_eq!(raw(&record(9, 3, b"abcd")), Some(&b"abc"[..]));
        assert_eq!(raw(&record(9, 5, b"abcd")), None);
        assert_eq!(raw(&record(2, 3, b"abcd")), None);
        assert_eq!(raw(&[9, 0, 0, 0]), None);
    }
}
