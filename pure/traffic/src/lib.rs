//! Packet streams: contents, sizes and timing.
//!
//! This crate does no IO and reads no clock: packets are written into buffers provided by the
//! caller, and times are arguments.
//!
//! - [`Template`] describes generated packets (UDP, TCP, ICMP echo over IPv4 or IPv6) whose fields
//!   may be [`Range`]s; its [`Generator`] writes the packets, each for a copy of the template and a
//!   few additions for the checksums.
//! - [`Rewriter`] changes captured packets for another network: MAC and IP addresses, ports, VLAN
//!   tags and TTL; checksums are updated.
//! - [`Rate`] and [`Pacer`] determine when the next packet is due: with the original gaps, at a
//!   rate in packets or bits per second, or at once.
//!
//! Lengths are those of a capture file: the Ethernet header and VLAN tags are counted, the frame
//! check sequence (4 bytes) is not.
#![forbid(unsafe_code)]

mod generator;
mod map;
mod pacer;
mod range;
mod rate;
mod rewrite;
mod rng;
mod size;
mod template;
mod vlan;

pub use generator::Generator;
pub use map::{AddrMap, PortMap};
pub use pacer::Pacer;
pub use range::{Order, Range, Walk};
pub use rate::{Pace, Rate};
pub use rewrite::{Refused, Rewriter};
pub use rng::Rng;
pub use size::Sizes;
pub use template::{Addresses, Icmp, L4, Tcp, Template, Udp, parse_payload, parse_tcp_flags};
pub use vlan::Tag;

/// Minimum Ethernet packet length without the frame check sequence (IEEE 802.3 §4.4.2: 64 with it).
pub const PACKET_LEN_MIN: usize = 60;

/// Overhead of a packet on the wire in bytes: preamble and start delimiter (8), frame check
/// sequence (4), inter-packet gap (12) (IEEE 802.3 §4.4.2).
pub const WIRE_OVERHEAD: usize = 24;

/// An invalid text or combination: what is wrong, and perhaps what would be valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The error, without a full stop.
    pub why: String,
    /// What to write instead.
    pub hint: Option<String>,
}

impl Error {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        let why = why.into();
        Self { why, hint: None }
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Error {}

/// Result of parsing and planning.
pub type Result<T> = std::result::Result<T, Error>;
