//! AF_XDP sockets: memory, rings, binding (`include/uapi/linux/if_xdp.h`,
//! `Documentation/networking/af_xdp.rst`).
//!
//! # Since Linux
//! 4.18; need_wakeup 5.4, memory shared between devices and queues 5.10, busy polling 5.11,
//! several buffers a packet 6.6.

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::mmap::Mapping;
use crate::{Error, Result};

/// A descriptor of the RX and TX rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Descriptor {
    /// Offset of the packet's first byte in the memory.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// [`PACKET_CONTINUES`] and other flags.
    pub options: u32,
}

/// Option of a descriptor: the packet continues in the next one (XDP_PKT_CONTD, Since Linux 6.6).
pub const PACKET_CONTINUES: u32 = 1 << 0;

/// Bytes that the kernel leaves free before a received packet (XDP_PACKET_HEADROOM).
pub const PACKET_HEADROOM: u32 = 256;

/// Packets sent per call in copy mode, unless changed by [`XskSocket::set_tx_budget`].
pub const TX_BUDGET_DEFAULT: u32 = 32;

/// Flag of [`Bind`]: the memory belongs to another socket (XDP_SHARED_UMEM).
const SHARED_UMEM: u16 = 1 << 0;
const COPY: u16 = 1 << 1;
const ZERO_COPY: u16 = 1 << 2;
const USE_NEED_WAKEUP: u16 = 1 << 3;
const USE_SG: u16 = 1 << 4;

/// `XDP_MAX_TX_SKB_BUDGET`, Since Linux 6.17.
const OPTION_TX_BUDGET: i32 = 9;

/// The four rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingKind {
    /// Received packets, from the kernel.
    Rx,
    /// Packets to be sent.
    Tx,
    /// Empty frames for the kernel to receive into.
    Fill,
    /// Frames that have been sent.
    Completion,
}

impl RingKind {
    /// The option that sets the number of entries; the ring's offset in the file; bytes per entry.
    fn parts(self) -> (i32, i64, usize) {
        match self {
            Self::Rx => (libc::XDP_RX_RING, libc::XDP_PGOFF_RX_RING, 16),
            Self::Tx => (libc::XDP_TX_RING, libc::XDP_PGOFF_TX_RING, 16),
            Self::Fill => (
                libc::XDP_UMEM_FILL_RING,
                libc::XDP_UMEM_PGOFF_FILL_RING as i64,
                8,
            ),
            Self::Completion => (
                libc::XDP_UMEM_COMPLETION_RING,
                libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64,
                8,
            ),
        }
    }
}

/// A ring's memory, mapped. Sockets stay bound as long as one of these lives.
#[derive(Debug)]
pub struct RingMap {
    mapping: Mapping,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    entry_count: u32,
}

impl RingMap {
    fn at(&self, offset: usize) -> *const u8 {
        self.mapping
            .base()
            .as_ptr()
            .wrapping_add(offset)
            .cast_const()
    }

    /// Address of the producer's index.
    pub fn producer(&self) -> *const u32 {
        self.at(self.producer).cast()
    }

    /// Address of the consumer's index.
    pub fn consumer(&self) -> *const u32 {
        self.at(self.consumer).cast()
    }

    /// Address of the flags.
    pub fn flags(&self) -> *const u32 {
        self.at(self.flags).cast()
    }

    /// Address of the first entry: [`Descriptor`] for RX and TX, addresses (`u64`) for the others.
    pub fn entries<T>(&self) -> *const T {
        self.at(self.entries).cast()
    }

    /// Number of entries.
    pub fn entry_count(&self) -> u32 {
        self.entry_count
    }
}

/// The parameters of binding a socket.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bind<'a> {
    /// The interface.
    pub ifindex: u32,
    /// The queue of it.
    pub queue_index: u32,
    /// True: zero-copy, or fail. False: copy. With `shared` the other socket decides.
    pub zero_copy: bool,
    /// The kernel sets a flag when it needs to be woken.
    pub need_wakeup: bool,
    /// Packets may have several buffers.
    pub multi_buffer: bool,
    /// A bound socket whose registered memory is to be used.
    pub shared: Option<BorrowedFd<'a>>,
}

/// The kernel's counters for a socket, since it was created (`struct xdp_statistics`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XskStatistics {
    /// Packets dropped, in copy mode also because the fill ring had no frame.
    pub rx_dropped: u64,
    /// Invalid entries of the fill ring.
    pub rx_invalid_descriptors: u64,
    /// Invalid entries of the TX ring.
    pub tx_invalid_descriptors: u64,
    /// Packets dropped because the RX ring was full (Since Linux 5.9).
    pub rx_ring_full: u64,
    /// How many times the fill ring was empty (Since Linux 5.9).
    pub rx_fill_ring_empty: u64,
    /// How many times the TX ring was empty (Since Linux 5.9).
    pub tx_ring_empty: u64,
}

/// An AF_XDP socket, of the network namespace in which it was opened.
#[derive(Debug)]
pub struct XskSocket {
    fd: OwnedFd,
}

impl XskSocket {
    /// Opens a socket.
    ///
    /// # Errors
    /// `Permission` without CAP_NET_RAW, `Unsupported` in a kernel without XDP_SOCKETS.
    pub fn open() -> Result<Self> {
        let what = "open an AF_XDP socket";
        // SAFETY: no pointers; a new descriptor or an error.
        let raw = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if raw < 0 {
            let error = Error::last_os(what);
            return Err(match error.os_code() {
                Some(libc::EPERM | libc::EACCES) => error
                    .with_why("the process lacks the permission to open raw sockets")
                    .with_hint("run as root, or with CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF"),
                Some(libc::EAFNOSUPPORT) => error
                    .with_why("this kernel has no AF_XDP (CONFIG_XDP_SOCKETS)")
                    .with_hint("the afpacket: backend works with every kernel"),
                _ => error,
            });
        }
        // SAFETY: the descriptor is new and ours alone.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        Ok(Self { fd })
    }

    fn set<T>(&self, level: i32, option: i32, value: &T) -> io::Result<()> {
        let len = mem::size_of::<T>() as u32;
        // SAFETY: the value is live and as long as stated; the kernel only reads it.
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                option,
                std::ptr::from_ref(value).cast(),
                len,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Reads an option; bytes that the kernel does not write are 0.
    ///
    /// # Safety
    /// Any bytes must be a value of `T`.
    unsafe fn get<T>(&self, level: i32, option: i32) -> io::Result<T> {
        let mut value = MaybeUninit::<T>::zeroed();
        let mut len = mem::size_of::<T>() as u32;
        // SAFETY: the value is writable for `len` bytes.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                level,
                option,
                value.as_mut_ptr().cast(),
                &mut len,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: zeroed before, and any bytes are a value by the caller's promise.
        Ok(unsafe { value.assume_init() })
    }

    /// Registers memory for packets: `len` bytes from `base`, cut into chunks of `chunk_len`.
    ///
    /// # Errors
    /// `NoSpace` if it exceeds the locked memory allowed (RLIMIT_MEMLOCK) without CAP_IPC_LOCK: the
    /// kernel then returns "no buffer space".
    ///
    /// # Safety
    /// The memory must stay mapped as long as any socket uses it, and be accessed as shared with
    /// the kernel and the device.
    pub unsafe fn register_memory(&self, base: *mut u8, len: usize, chunk_len: u32) -> Result<()> {
        // SAFETY: a struct of plain integers; all zero is a value.
        let mut registration: libc::xdp_umem_reg = unsafe { mem::zeroed() };
        registration.addr = base as u64;
        registration.len = len as u64;
        registration.chunk_size = chunk_len;
        self.set(libc::SOL_XDP, libc::XDP_UMEM_REG, &registration)
            .map_err(|e| {
                let code = e.raw_os_error();
                let error = Error::from_io(format!("register {len} bytes of packet memory"), e);
                if code == Some(libc::ENOBUFS) {
                    let limit = locked_memory_max();
                    return error
                        .with_why(format!("the limit for locked memory is {limit} bytes"))
                        .with_hint(
                            "raise it (ulimit -l unlimited, or LimitMEMLOCK= of the service), \
                             grant CAP_IPC_LOCK, or use shorter rings",
                        );
                }
                error
            })
    }

    /// Creates and maps a ring of `entry_count` entries (a power of two).
    pub fn ring(&self, kind: RingKind, entry_count: u32) -> Result<RingMap> {
        let what = || format!("create the {kind:?} ring of {entry_count} entries");
        let (option, place, entry_len) = kind.parts();
        self.set(libc::SOL_XDP, option, &entry_count)
            .map_err(|e| Error::from_io(what(), e))?;
        // SAFETY: integers only.
        let offsets: libc::xdp_mmap_offsets =
            unsafe { self.get(libc::SOL_XDP, libc::XDP_MMAP_OFFSETS) }
                .map_err(|e| Error::from_io(what(), e))?;
        let o = match kind {
            RingKind::Rx => offsets.rx,
            RingKind::Tx => offsets.tx,
            RingKind::Fill => offsets.fr,
            RingKind::Completion => offsets.cr,
        };
        let entries = o.desc as usize;
        let len = entries + entry_count as usize * entry_len;
        let mapping = Mapping::shared(self.fd.as_fd(), len, place)?;
        let ring = RingMap {
            mapping,
            producer: o.producer as usize,
            consumer: o.consumer as usize,
            flags: o.flags as usize,
            entries,
            entry_count,
        };
        // The pointers handed out are inside and aligned, unless the kernel is broken.
        let inside = |at: usize| at.is_multiple_of(4) && at + 4 <= len;
        assert!(inside(ring.producer) && inside(ring.consumer) && inside(ring.flags));
        assert!(entries.is_multiple_of(8));
        Ok(ring)
    }

    /// Binds to a queue.
    pub fn bind(&self, bind: Bind<'_>) -> io::Result<()> {
        let mut flags = 0;
        if bind.shared.is_some() {
            // The kernel refuses any other flag here: the other socket has determined the rest.
            flags |= SHARED_UMEM;
        } else {
            flags |= if bind.zero_copy { ZERO_COPY } else { COPY };
            flags |= if bind.need_wakeup { USE_NEED_WAKEUP } else { 0 };
            flags |= if bind.multi_buffer { USE_SG } else { 0 };
        }
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags,
            sxdp_ifindex: bind.ifindex,
            sxdp_queue_id: bind.queue_index,
            sxdp_shared_umem_fd: bind.shared.map_or(0, |fd| fd.as_raw_fd() as u32),
        };
        // SAFETY: the address is live and as long as stated.
        let result = unsafe {
            libc::bind(
                self.fd.as_raw_fd(),
                std::ptr::from_ref(&address).cast(),
                mem::size_of::<libc::sockaddr_xdp>() as u32,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Whether the kernel bound it in zero-copy mode (XDP_OPTIONS, Since Linux 5.3).
    pub fn is_zero_copy(&self) -> Result<bool> {
        // SAFETY: integers only.
        let options: libc::xdp_options = unsafe { self.get(libc::SOL_XDP, libc::XDP_OPTIONS) }
            .map_err(|e| Error::from_io("query the bind mode of an AF_XDP socket", e))?;
        Ok(options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
    }

    /// The kernel's counters. Needs no privileges; fields that an older kernel lacks are 0.
    pub fn statistics(&self) -> Result<XskStatistics> {
        // SAFETY: integers only.
        let raw: libc::xdp_statistics = unsafe { self.get(libc::SOL_XDP, libc::XDP_STATISTICS) }
            .map_err(|e| Error::from_io("read the counters of an AF_XDP socket", e))?;
        Ok(XskStatistics {
            rx_dropped: raw.rx_dropped,
            rx_invalid_descriptors: raw.rx_invalid_descs,
            tx_invalid_descriptors: raw.tx_invalid_descs,
            rx_ring_full: raw.rx_ring_full,
            rx_fill_ring_empty: raw.rx_fill_ring_empty_descs,
            tx_ring_empty: raw.tx_ring_empty_descs,
        })
    }

    /// Allows one call to send up to `count` packets in copy mode; returns false if this kernel
    /// supports only [`TX_BUDGET_DEFAULT`] (before Linux 6.17).
    pub fn set_tx_budget(&self, count: u32) -> bool {
        self.set(libc::SOL_XDP, OPTION_TX_BUDGET, &count).is_ok()
    }

    /// Sets how many bytes of packets may be queued in the kernel in copy mode. The system's limit
    /// applies unless the process has CAP_NET_ADMIN.
    pub fn set_send_buffer(&self, len: u32) {
        if self
            .set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &len)
            .is_err()
        {
            let _ = self.set(libc::SOL_SOCKET, libc::SO_SNDBUF, &len);
        }
    }

    /// Makes our calls serve the queue instead of interrupts: for up to `time_us` and `budget`
    /// packets per call (Since Linux 5.11).
    pub fn set_busy_poll(&self, time_us: u32, budget: u16) -> Result<()> {
        let settings = [
            (libc::SO_PREFER_BUSY_POLL, 1),
            (libc::SO_BUSY_POLL, time_us),
            (libc::SO_BUSY_POLL_BUDGET, u32::from(budget)),
        ];
        for (option, value) in settings {
            self.set(libc::SOL_SOCKET, option, &value)
                .map_err(|e| Error::from_io("set busy polling", e))?;
        }
        Ok(())
    }

    /// Makes the driver send; in copy mode, the packets are sent within this call. Never blocks.
    #[inline]
    pub fn kick_tx(&self) -> io::Result<()> {
        // SAFETY: no buffer and no address.
        let result = unsafe {
            libc::sendto(
                self.fd.as_raw_fd(),
                std::ptr::null(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null(),
                0,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Wakes the receiving side, or serves the queue when busy polling. Never blocks.
    #[inline]
    pub fn kick_rx(&self) -> io::Result<()> {
        // SAFETY: no buffer and no address.
        let result = unsafe {
            libc::recvfrom(
                self.fd.as_raw_fd(),
                std::ptr::null_mut(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Sleeps until there is something to receive (or space for sending), at most `timeout_ms`.
    /// Returns whether there is; a signal ends the sleep early, with false.
    pub fn poll(&self, to_send: bool, timeout_ms: i32) -> Result<bool> {
        let mut poll = libc::pollfd {
            fd: self.fd.as_raw_fd(),
            events: if to_send { libc::POLLOUT } else { libc::POLLIN },
            revents: 0,
        };
        // SAFETY: one live pollfd.
        let count = unsafe { libc::poll(&mut poll, 1, timeout_ms) };
        if count < 0 {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                return Ok(false);
            }
            return Err(Error::from_io("wait for an AF_XDP socket", error));
        }
        Ok(poll.revents & poll.events != 0)
    }

    /// Takes the pending error; ENETDOWN when the device was removed, which `poll` does not report.
    pub fn take_error(&self) -> Option<io::Error> {
        // SAFETY: an integer.
        let code: i32 = unsafe { self.get(libc::SOL_SOCKET, libc::SO_ERROR) }.ok()?;
        (code != 0).then(|| io::Error::from_raw_os_error(code))
    }
}

impl AsFd for XskSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// RLIMIT_MEMLOCK in bytes, as text.
fn locked_memory_max() -> String {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a live struct for the kernel to write.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    match (result, limit.rlim_cur) {
        (0, libc::RLIM_INFINITY) => "unlimited".into(),
        (0, current) => current.to_string(),
        _ => "unknown".into(),
    }
}

const _: () = assert!(size_of::<Descriptor>() == 16);
