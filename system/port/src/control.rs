//! The control side of a port: its description, its events, its account. Never on the packet path.

use std::fmt;

use bpf::cbpf::Program;
use sys::Result;

use crate::account::PortAccount;

/// What a port can do besides moving packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// `detach` moves a frame instead of copying it.
    pub detach_moves: bool,
    /// Packets carry the card's or kernel's time.
    pub timestamps: bool,
    /// Packets carry the card's RSS hash.
    pub rss_hash: bool,
    /// VLAN tags may be reported alongside the packet.
    pub vlan: bool,
    /// Packets are taken from the host (a bypass), not copied (a tap).
    pub takes_traffic: bool,
    /// The filter runs before a packet costs us anything.
    pub kernel_filter: bool,
    /// Packets larger than a frame arrive in several segments.
    pub multi_buffer: bool,
    /// Largest packet in bytes; 0 is no limit.
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

/// What was obtained, in words, for users and JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortDescription {
    /// The scheme that opened it.
    pub scheme: &'static str,
    /// Interface or file.
    pub target: String,
    /// Link type of its packets (as in capture files), of the first interface.
    pub link_type: u16,
    /// What happens to packets that are not received.
    pub intake: Intake,
    /// Pairs of what and value: attach mode, bind mode, time source, where the filter runs, ring
    /// sizes.
    pub facts: Vec<(&'static str, String)>,
    /// Bytes of memory reserved for packets.
    pub memory_len: usize,
    /// Of files, and of several ports opened as one: link type and name of each interface, by
    /// `Packet::interface_index`.
    pub interfaces: Vec<(u16, String)>,
}

/// Something that happened to the device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortEvent {
    /// The link or interface went down; packets resume when it is back.
    LinkDown,
    /// It came back.
    LinkUp,
    /// The MTU is now this many bytes.
    MtuChanged(u32),
    /// The interface is gone for good; the port is of no more use.
    DeviceGone,
    /// Another process had detached the port's XDP program from the interface, and it is attached
    /// again. Packets in between went to the host and are in no account but the interface's.
    Reattached,
    /// Another process detached or replaced the port's XDP program, and this is why it is not
    /// attached again; a receiving port is then no longer usable.
    Detached(String),
    /// What happened to one of several ports that were opened as one, and its interface.
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
            Self::Of(interface, event) => write!(f, "{interface}: {event}"),
        }
    }
}

/// The control side of an open port.
pub trait PortControl: Send {
    /// Reads all counters, the kernel's included.
    fn account(&mut self) -> Result<PortAccount>;

    /// Takes one event that happened since the last call, if there was one. Never blocks.
    fn event(&mut self) -> Option<PortEvent>;

    /// Whether the link is up, if the port reads it from the card itself.
    fn link_is_up(&mut self) -> Option<bool> {
        None
    }

    /// What was obtained. May grow while a file is read (interfaces met on the way).
    fn describe(&self) -> PortDescription;

    /// The interfaces of [`PortDescription`] from number `known` on: those added since a caller
    /// last looked. A file may have tens of thousands, so callers that meet them one at a time do
    /// not get all.
    fn interfaces(&self, known: usize) -> Vec<(u16, String)> {
        let all = self.describe().interfaces;
        all.into_iter().skip(known).collect()
    }

    /// Puts another filter, or none, in the place of the one that runs in the kernel. False for a
    /// port that has its queues filter, in user space.
    ///
    /// # Errors
    /// `Unsupported` if it cannot be replaced; the kernel's. The old filter then stays.
    fn set_filter(&mut self, filter: Option<&Program>) -> Result<bool> {
        let _ = filter;
        Ok(false)
    }

    /// Stops the intake: no new packets enter the rings, those in them can still be received.
    /// Called before the last batches are read, so that the account closes exactly.
    fn stop(&mut self) -> Result<()>;
}
