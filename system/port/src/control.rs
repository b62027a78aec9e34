//! The control side of a port: its description, its events, its account. Never on the packet path.

use std::fmt;

use bpf::cbpf::Program;
use sys::{Error, ErrorKind, Result};

use crate::account::PortAccount;
use crate::port::Port;
use crate::rx::RxQueue;

/// Capabilities of a port besides moving packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// `detach` moves a frame instead of copying it.
    pub detach_moves: bool,
    /// Packets have timestamps of the card or kernel.
    pub timestamps: bool,
    /// Packets have the card's RSS hash.
    pub rss_hash: bool,
    /// VLAN tags may be reported alongside the packet.
    pub vlan: bool,
    /// Packets are taken from the host (a bypass), not copied (a tap).
    pub takes_traffic: bool,
    /// The filter runs before a packet costs user space anything.
    pub kernel_filter: bool,
    /// Packets larger than a frame arrive in several segments.
    pub multi_buffer: bool,
    /// Maximum packet length in bytes; 0 for no limit.
    pub packet_len_max: u32,
}

/// What happens to packets that are not received from a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Intake {
    /// They are lost when a ring is full.
    #[default]
    Live,
    /// Their sender waits.
    Waiting,
    /// They stay in the file.
    File,
}

/// Description of an opened port in words, for users and JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortDescription {
    /// The scheme that opened it.
    pub scheme: &'static str,
    /// Interface or file.
    pub target: String,
    /// Link type of its packets (as in capture files), for the first interface.
    pub link_type: u16,
    /// What happens to packets that are not received.
    pub intake: Intake,
    /// Names and values: attach mode, bind mode, timestamp source, where the filter runs, ring
    /// sizes.
    pub facts: Vec<(&'static str, String)>,
    /// Memory reserved for packets in bytes.
    pub memory_len: usize,
    /// For files, and for several ports opened as one: link type and name of each interface, by
    /// `Packet::interface_index`.
    pub interfaces: Vec<(u16, String)>,
}

/// An event of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortEvent {
    /// The link or interface went down; packets resume when it is back.
    LinkDown,
    /// The link or interface is back.
    LinkUp,
    /// The MTU changed to this many bytes.
    MtuChanged(u32),
    /// The interface is gone for good; the port is unusable.
    DeviceGone,
    /// Another process had detached the port's XDP program from the interface, and it is attached
    /// again. Packets in between went to the host and are counted only by the interface.
    Reattached,
    /// Another process detached or replaced the port's XDP program; the text is why it is not
    /// attached again. A receiving port is then no longer usable.
    Detached(String),
    /// No virtual machine is connected; the text is where the port waits for one.
    Waiting(String),
    /// The front-end (QEMU) of a virtual machine has connected. The link comes up with the guest's
    /// driver.
    Connected,
    /// A virtual machine was disconnected because of what its front-end sent, or a vring is no
    /// longer used because of what its guest wrote; the text is what.
    Misbehaved(String),
    /// An event of one of several ports that were opened as one, with its interface.
    Of(String, Box<PortEvent>),
}

impl fmt::Display for PortEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LinkDown => f.write_str("the link is down; packets resume when it is back"),
            Self::LinkUp => f.write_str("the link is up again"),
            Self::MtuChanged(mtu) => write!(f, "the MTU is now {mtu} bytes"),
            Self::DeviceGone => f.write_str("the interface is gone"),
            Self::Reattached => f.write_str(
                "the XDP program was detached by another process and has been attached again; \
                 packets in between went to the host",
            ),
            Self::Detached(why) => {
                write!(f, "the XDP program was detached by another process: {why}")
            }
            Self::Waiting(place) => {
                write!(
                    f,
                    "no virtual machine is connected; waiting for one on {place}"
                )
            }
            Self::Connected => f.write_str("a virtual machine has connected"),
            Self::Misbehaved(what) => f.write_str(what),
            Self::Of(interface, event) => write!(f, "{interface}: {event}"),
        }
    }
}

/// The control side of an open port.
pub trait PortControl: Send {
    /// Reads all counters, including the kernel's.
    fn account(&mut self) -> Result<PortAccount>;

    /// Returns one event that occurred since the last call, if any. Never blocks.
    fn event(&mut self) -> Option<PortEvent>;

    /// Whether the link is up, if the port reads this from the card itself.
    fn link_is_up(&mut self) -> Option<bool> {
        None
    }

    /// The MAC address of a card that no kernel interface has, in transmission order.
    fn mac(&self) -> Option<[u8; 6]> {
        None
    }

    /// Describes the opened port. The description may grow while a file is read (interfaces found
    /// on the way).
    fn describe(&self) -> PortDescription;

    /// The interfaces of [`PortDescription`] from number `known` on: those added since the last
    /// call. A file may have tens of thousands, so a caller need not get all of them each time.
    fn interfaces(&self, known: usize) -> Vec<(u16, String)> {
        let all = self.describe().interfaces;
        all.into_iter().skip(known).collect()
    }

    /// Takes the blocks of a capture file that are not packets
    /// ([`PortOptions::copies_blocks`](crate::PortOptions::copies_blocks)), in order: those
    /// up to this group. Group n comes before the nth packet whose
    /// [`follows_blocks`](crate::Packet::follows_blocks) is true.
    fn blocks(&self, group: u64) -> Vec<Box<[u8]>> {
        let _ = group;
        Vec::new()
    }

    /// Number of blocks to copy that were left out: longer than
    /// [`MAX_BLOCK_LEN`](wire::file::MAX_BLOCK_LEN), or too many between two packets.
    fn blocks_left_out(&self) -> u64 {
        0
    }

    /// Replaces or removes the filter that runs in the kernel. Returns false for a port whose
    /// queues filter, in user space.
    ///
    /// # Errors
    /// `Unsupported` if it cannot be replaced; the kernel's errors. The old filter then stays.
    fn set_filter(&mut self, filter: Option<&Program>) -> Result<bool> {
        let _ = filter;
        Ok(false)
    }

    /// Replaces one of several ports that were joined ([`join`](crate::join)), by its number, with
    /// `port`: the same one, opened again after its device was gone. Its queues are returned, and
    /// those of the old one, which have been dropped, stay in the account.
    ///
    /// # Errors
    /// `Unsupported` for a port that is not joined from several, or if the new one differs in its
    /// link type or has several interfaces, or the counts of the old one cannot be read.
    fn rejoin(&mut self, number: u16, port: Port) -> Result<Vec<RxQueue>> {
        let _ = (number, port);
        let why = "it is not one of several ports";
        Err(Error::new(ErrorKind::Unsupported, "open a port again", why))
    }

    /// Stops the intake: no new packets enter the rings, those in them can still be received.
    /// Called before the last batches are read, so that the account is exact.
    fn stop(&mut self) -> Result<()>;
}
