//! Packet sockets: packet(7), `include/uapi/linux/if_packet.h`, `net/packet/af_packet.c`.
//!
//! The memory of a ring is returned as a [`Mapping`](crate::mmap::Mapping); its reader (the
//! AF_PACKET backend) checks what it reads there. Everything else that the kernel offers for such
//! sockets has a typed function here.

mod rings;
mod time;

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::bpf::{ClassicInsn, attach_classic, set_program};
use crate::{Error, ErrorKind, KernelVersion, Result};

pub use rings::{FrameRing, RxRing, TxRing};

const SOL_PACKET: c_int = 263;
const PACKET_ADD_MEMBERSHIP: c_int = 1;
const PACKET_STATISTICS: c_int = 6;
const PACKET_FANOUT: c_int = 18;
const PACKET_QDISC_BYPASS: c_int = 20;
const PACKET_FANOUT_DATA: c_int = 22;
const PACKET_IGNORE_OUTGOING: c_int = 23;

const PACKET_MR_PROMISC: u16 = 1;

const FANOUT_FLAG_ROLLOVER: u32 = 0x1000;
const FANOUT_FLAG_UNIQUE_ID: u32 = 0x2000;
/// Since Linux 6.2; older kernels ignore the bit.
const FANOUT_FLAG_IGNORE_OUTGOING: u32 = 0x4000;
const FANOUT_FLAG_DEFRAG: u32 = 0x8000;
/// First kernel that knows `struct fanout_args`.
const FANOUT_ARGUMENTS: KernelVersion = KernelVersion::new(5, 11);

/// How packets are distributed over the sockets of a group (`PACKET_FANOUT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum FanoutMode {
    /// By a hash of the flow that is the same for both directions.
    Hash = 0,
    /// Round robin.
    RoundRobin = 1,
    /// By the processor on which the packet arrived.
    Cpu = 2,
    /// To the first socket with room.
    Rollover = 3,
    /// By the receive queue of the card on which it arrived (Since Linux 3.14).
    Queue = 5,
    /// By the number that a cBPF program returns, modulo the number of sockets; without a program,
    /// to the first socket ([`PacketSocket::set_fanout_program`], since Linux 4.3).
    Program = 6,
}

/// A group of sockets that share the packets of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fanout {
    /// How packets are distributed.
    pub mode: FanoutMode,
    /// Reassemble the fragments of IPv4 packets first, so that all of a datagram counts as one
    /// packet of its flow.
    pub defragment: bool,
    /// Give a packet whose socket is full to another socket.
    pub rollover: bool,
    /// Skip packets that the host sends (Since Linux 6.2; ignored before).
    pub ignore_outgoing: bool,
    /// Maximum number of sockets, which must be that of the sockets already in the group; 0 for the
    /// kernel's maximum of 256 in a new group, or for that of the group (Since Linux 5.11; ignored
    /// before).
    pub socket_count_max: u32,
}

/// Counters since the last call (`struct tpacket_stats_v3`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Packets that passed the filter, including dropped ones.
    pub packets: u32,
    /// How many of them were dropped because the ring was full.
    pub drops: u32,
    /// How many times the ring stopped because its next block was not free.
    pub freezes: u32,
}

/// The result of a poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollResult {
    /// Something can be read.
    pub readable: bool,
    /// Something can be written.
    pub writable: bool,
    /// The socket has an error: see [`PacketSocket::take_error`].
    pub error: bool,
    /// A signal ended the wait.
    pub interrupted: bool,
}

/// A raw packet socket. It is not bound at first, so that ring and filter can be set up before the
/// first packet.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
}

impl PacketSocket {
    /// Creates a socket that receives nothing yet. It stays in the network namespace of the calling
    /// thread.
    ///
    /// # Errors
    /// `Permission` without CAP_NET_RAW.
    pub fn new() -> Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: a plain system call.
        let raw = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if raw < 0 {
            let error = Error::last_os("open a packet socket");
            return Err(match error.kind() {
                ErrorKind::Permission => error
                    .with_why("this needs CAP_NET_RAW")
                    .with_hint("run as root, or: setcap cap_net_raw=ep BINARY"),
                _ => error,
            });
        }
        // SAFETY: the descriptor was just returned to us and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        Ok(Self { fd })
    }

    fn set<T>(&self, level: c_int, option: c_int, value: &T, what: &str) -> Result<()> {
        // SAFETY: `value` is live and `size_of::<T>()` bytes long; every caller passes the type of
        // the option.
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                option,
                std::ptr::from_ref(value).cast(),
                size_of::<T>() as libc::socklen_t,
            )
        };
        if result < 0 {
            return Err(Error::last_os(what));
        }
        Ok(())
    }

    /// Reads a socket option made of integers.
    fn get<T: Default>(&self, level: c_int, option: c_int) -> io::Result<T> {
        let mut value = T::default();
        let mut len = size_of::<T>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes; every `T` used is made of integers.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                level,
                option,
                std::ptr::from_mut(&mut value).cast(),
                &mut len,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(value)
    }

    /// MTU in bytes of an interface in the socket's namespace (whichever namespace the calling
    /// thread is in).
    pub fn mtu(&self, name: &str) -> Result<u32> {
        let what = "query an interface's MTU";
        let mut request = Self::request(name);
        // SAFETY: the request names an interface, and the kernel fills in its MTU.
        unsafe {
            if libc::ioctl(self.fd.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) < 0 {
                return Err(Error::last_os(what));
            }
            Ok(u32::try_from(request.ifr_ifru.ifru_mtu).unwrap_or(0))
        }
    }

    /// A request about an interface by name; names are at most 15 bytes.
    fn request(name: &str) -> libc::ifreq {
        // SAFETY: `ifreq` is plain data for which zero is valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name[..15].iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request
    }

    /// Starts receiving all protocols (or, without `receive`, none) on an interface.
    pub fn bind(&self, interface_index: u32, receive: bool) -> Result<()> {
        let all = libc::ETH_P_ALL as u16;
        self.bind_protocol(interface_index, if receive { all } else { 0 })
    }

    /// Starts receiving packets of an EtherType on an interface: those that it receives, not those
    /// that the host sends, unless it is `ETH_P_ALL` (3).
    pub fn bind_protocol(&self, interface_index: u32, ethertype: u16) -> Result<()> {
        // SAFETY: `sockaddr_ll` is plain data for which zero is valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = interface_index as i32;
        address.sll_protocol = ethertype.to_be();
        // SAFETY: the address is live and of the stated length.
        let result = unsafe {
            libc::bind(
                self.fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if result < 0 {
            return Err(Error::last_os("bind a packet socket"));
        }
        Ok(())
    }

    /// The interface that the socket is bound to; `None` once that has been deleted.
    pub fn bound_interface(&self) -> Option<u32> {
        // SAFETY: as in `bind`; the kernel writes at most `len` bytes.
        let (result, address) = unsafe {
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            let place = (&raw mut address).cast();
            let result = libc::getsockname(self.fd.as_raw_fd(), place, &raw mut len);
            (result, address)
        };
        let index = u32::try_from(address.sll_ifindex).ok()?;
        (result == 0 && index > 0).then_some(index)
    }

    /// Skips packets that the host sends. Returns false if the kernel cannot (Since Linux 4.20).
    pub fn ignore_outgoing(&self) -> Result<bool> {
        let what = "skip outgoing packets";
        match self.set(SOL_PACKET, PACKET_IGNORE_OUTGOING, &1_i32, what) {
            Ok(()) => Ok(true),
            Err(error) if error.os_code() == Some(libc::ENOPROTOOPT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes the interface receive packets for other stations too, as long as this socket exists.
    pub fn promiscuous(&self, interface_index: u32) -> Result<()> {
        /// `struct packet_mreq`.
        #[repr(C)]
        struct Request {
            ifindex: c_int,
            kind: u16,
            address_len: u16,
            address: [u8; 8],
        }
        let request = Request {
            ifindex: interface_index as c_int,
            kind: PACKET_MR_PROMISC,
            address_len: 0,
            address: [0; 8],
        };
        let what = "set promiscuous mode";
        self.set(SOL_PACKET, PACKET_ADD_MEMBERSHIP, &request, what)
    }

    /// Replaces the filter. It runs on each packet before the packet is copied; its result is the
    /// number of bytes to keep.
    ///
    /// # Errors
    /// `InvalidInput` for a program that the kernel's checker refuses.
    pub fn attach_filter(&self, instructions: &[ClassicInsn]) -> Result<()> {
        attach_classic(self.fd.as_fd(), instructions)
    }

    /// Replaces the filter by a loaded eBPF program of the socket filter type.
    pub fn attach_program(&self, program: BorrowedFd<'_>) -> Result<()> {
        let what = "attach an eBPF program to a socket";
        let fd = program.as_raw_fd();
        self.set(libc::SOL_SOCKET, libc::SO_ATTACH_BPF, &fd, what)
    }

    /// Removes the filter.
    pub fn detach_filter(&self) -> Result<()> {
        let what = "detach a socket filter";
        self.set(libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0_i32, what)
    }

    /// Joins a group of sockets that share the packets of the interface to which this one is bound;
    /// without `group`, a new group. Returns the group's number. (A new group that no other socket
    /// uses: Since Linux 4.13)
    pub fn join_fanout(&self, fanout: &Fanout, group: Option<u16>) -> Result<u16> {
        let mut flags = fanout.mode as u32;
        for (wanted, flag) in [
            (fanout.defragment, FANOUT_FLAG_DEFRAG),
            (fanout.rollover, FANOUT_FLAG_ROLLOVER),
            (fanout.ignore_outgoing, FANOUT_FLAG_IGNORE_OUTGOING),
            (group.is_none(), FANOUT_FLAG_UNIQUE_ID),
        ] {
            flags |= if wanted { flag } else { 0 };
        }
        let what = "join a fan-out group";
        let value = flags << 16 | u32::from(group.unwrap_or(0));
        let joined = match fanout.socket_count_max {
            // `struct fanout_args`.
            max if max != 0 && KernelVersion::running() >= Some(FANOUT_ARGUMENTS) => {
                self.set(SOL_PACKET, PACKET_FANOUT, &[value, max], what)
            }
            _ => self.set(SOL_PACKET, PACKET_FANOUT, &value, what),
        };
        joined.map_err(|error| match (error.os_code(), group) {
            (Some(libc::EINVAL), Some(group)) => error
                .with_why(format!(
                    "the kernel refuses it as a member of group {group}"
                ))
                .with_hint(
                    "all members need the same fanout, interface, protocol and direction; older \
                     kernels also require that the interface is up",
                ),
            _ => error,
        })?;
        let value: u32 = self
            .get(SOL_PACKET, PACKET_FANOUT)
            .map_err(|e| Error::from_io(what, e))?;
        Ok(value as u16)
    }

    /// Sets the program of the socket's group, which must be of the mode [`FanoutMode::Program`];
    /// it replaces that of other members.
    ///
    /// Offsets count from the network header for received packets, and from the link header for
    /// sent ones.
    ///
    /// # Errors
    /// `InvalidInput` for a program that the kernel's checker refuses, or without such a group.
    pub fn set_fanout_program(&self, insns: &[ClassicInsn]) -> Result<()> {
        let what = "set the program of a fan-out group";
        set_program(
            self.fd.as_fd(),
            (SOL_PACKET, PACKET_FANOUT_DATA),
            insns,
            what,
        )
    }

    /// Reads the counters and resets them.
    pub fn statistics(&self) -> Result<Statistics> {
        let [packets, drops, freezes]: [u32; 3] = self
            .get(SOL_PACKET, PACKET_STATISTICS)
            .map_err(|e| Error::from_io("read a packet socket's counters", e))?;
        Ok(Statistics {
            packets,
            drops,
            freezes,
        })
    }

    /// Takes the socket's pending error (an errno), for example ENETDOWN after the link went down.
    pub fn take_error(&self) -> Option<i32> {
        let code: i32 = self.get(libc::SOL_SOCKET, libc::SO_ERROR).ok()?;
        (code != 0).then_some(code)
    }

    /// Bypasses the interface's traffic control when sending: no queueing, so less cost and no
    /// shaping. (Since Linux 3.14)
    pub fn bypass_qdisc(&self) -> Result<()> {
        let what = "bypass the queueing discipline";
        self.set(SOL_PACKET, PACKET_QDISC_BYPASS, &1_i32, what)
    }

    /// Sets how many bytes of packets may be queued for sending; without CAP_NET_ADMIN the limit is
    /// `net.core.wmem_max`.
    pub fn send_buffer(&self, bytes: u32) -> Result<()> {
        let what = "set the send buffer";
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        self.set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes, what)
            .or_else(|_| self.set(libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes, what))
    }

    /// Makes the kernel send the packets in the ring; returns the bytes sent.
    ///
    /// # Errors
    /// The bare errno, because the caller continues with most of them.
    pub fn kick(&self) -> io::Result<usize> {
        // SAFETY: no buffer is passed; the packets come from the ring.
        let result = unsafe {
            libc::sendto(
                self.fd.as_raw_fd(),
                std::ptr::null::<c_void>(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null(),
                0,
            )
        };
        usize::try_from(result).map_err(|_| io::Error::last_os_error())
    }

    /// As [`kick`](Self::kick), with the EtherType of all packets in the ring, for devices without
    /// a link header: the kernel reads the protocol from the header otherwise, and PPP discards
    /// packets of an unknown one.
    ///
    /// # Errors
    /// The bare errno, because the caller continues with most of them.
    pub fn kick_as(&self, interface_index: u32, ethertype: u16) -> io::Result<usize> {
        // SAFETY: `sockaddr_ll` is plain data for which zero is valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = ethertype.to_be();
        address.sll_ifindex = interface_index as i32;
        // SAFETY: no buffer is passed; the kernel reads the address, of this length, in the call.
        let result = unsafe {
            libc::sendto(
                self.fd.as_raw_fd(),
                std::ptr::null::<c_void>(),
                0,
                libc::MSG_DONTWAIT,
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        usize::try_from(result).map_err(|_| io::Error::last_os_error())
    }

    /// Discards the packets in the socket's queue (not those in its ring).
    pub fn discard(&self) {
        // Limited, because packets could arrive faster than this if the socket has no filter.
        for _ in 0..64 {
            // SAFETY: a buffer of no length is not written to; what does not fit is cut off.
            let result = unsafe {
                libc::recv(
                    self.fd.as_raw_fd(),
                    std::ptr::null_mut(),
                    0,
                    libc::MSG_DONTWAIT | libc::MSG_TRUNC,
                )
            };
            if result < 0 {
                return;
            }
        }
    }

    /// Sleeps until the ring can be read (or, with `write`, has space for packets), at most
    /// `timeout`.
    pub fn poll(&self, write: bool, timeout: Duration) -> Result<PollResult> {
        let mut poll = libc::pollfd {
            fd: self.fd.as_raw_fd(),
            events: if write { libc::POLLOUT } else { libc::POLLIN },
            revents: 0,
        };
        let time = libc::timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // SAFETY: one live entry, a live timeout, no signal mask.
        let result = unsafe { libc::ppoll(&raw mut poll, 1, &raw const time, std::ptr::null()) };
        if result < 0 {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                return Ok(PollResult {
                    interrupted: true,
                    ..PollResult::default()
                });
            }
            return Err(Error::from_io("wait for packets", error));
        }
        Ok(PollResult {
            readable: poll.revents & libc::POLLIN != 0,
            writable: poll.revents & libc::POLLOUT != 0,
            error: poll.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0,
            interrupted: false,
        })
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Waits until no processor runs kernel code that began before the call: a filter replaced earlier
/// is no longer in use then. membarrier(2), `MEMBARRIER_CMD_GLOBAL` (Since Linux 4.3).
pub fn wait_for_readers() {
    const MEMBARRIER_CMD_GLOBAL: c_int = 1;
    // SAFETY: a plain system call. A failure (a kernel with isolated processors) leaves a window of
    // microseconds.
    unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
}
