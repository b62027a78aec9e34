//! The control side of a port: what it is, what happened to it, its account. Never on the packet
//! path.

use sys::Result;

use crate::account::PortAccount;

/// What a port can do, beyond moving packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// `detach` moves a frame instead of copying it.
    pub detach_moves: bool,
    /// Packets carry the card's or kernel's time.
    pub timestamps: bool,
    /// Packets carry the card's RSS hash.
    pub rss_hash: bool,
    /// VLAN tags may be reported beside the packet.
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

/// What was obtained, in words, for people and JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortDescription {
    /// The scheme that opened it.
    pub scheme: &'static str,
    /// Interface or file.
    pub target: String,
    /// Link type of its packets (as in capture files), of the first interface.
    pub link_type: u16,
    /// Pairs of what and value: attach mode, bind mode, time source, where the filter runs, ring
    /// sizes.
    pub facts: Vec<(&'static str, String)>,
    /// Bytes of memory reserved for packets.
    pub memory_len: usize,
    /// For files of several interfaces: link type and name of each, by `Packet::interface_index`.
    pub interfaces: Vec<(u16, String)>,
}

/// Something that happened to the device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortEvent {
    /// The link or interface went down; packets resume when it comes back.
    LinkDown,
    /// It came back.
    LinkUp,
    /// The MTU is now this many bytes.
    MtuChanged(u32),
    /// The interface is gone for good; the port is of no more use.
    DeviceGone,
}

/// The control side of an open port.
pub trait PortControl: Send {
    /// Reads all counters, the kernel's included.
    fn account(&mut self) -> Result<PortAccount>;

    /// Takes one event that happened since the last call, if there was one. Never blocks.
    fn event(&mut self) -> Option<PortEvent>;

    /// Whether the link is up, where the port asks the card itself.
    fn link_is_up(&mut self) -> Option<bool> {
        None
    }

    /// What was obtained. May grow while a file is read (interfaces met on the way).
    fn describe(&self) -> PortDescription;

    /// The interfaces of [`PortDescription`] from number `known` on: what is new to who knows so
    /// many. A file may have tens of thousands; who meets one at a time must not be given all.
    fn interfaces(&self, known: usize) -> Vec<(u16, String)> {
        let all = self.describe().interfaces;
        all.into_iter().skip(known).collect()
    }

    /// Stops the intake: no new packets enter the rings, those in them can still be received.
    /// Called before the last batches are read, so that the account closes exactly.
    fn stop(&mut self) -> Result<()>;
}
