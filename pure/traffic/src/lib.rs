//! Packet streams: contents, sizes and timing.
//!
//! Nothing here does IO or reads a clock: packets are written into buffers given by the caller, and
//! times come in as values.
//!
//! - [`Template`] describes generated packets (UDP, TCP, ICMP echo over IPv4 or IPv6) whose fields
//!   may be [`Range`]s; a [`Generator`] made from it writes one packet after the other, each for a
//!   copy of the template and a few additions for the checksums.
//! - [`Rewriter`] changes captured packets on their way to another network: MAC and IP addresses,
//!   ports, VLAN tags, TTL; checksums follow.
//! - [`Rate`] and [`Pacer`] determine when the next packet is due: at the original gaps, at packets
//!   or bits a second, or at once.
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

/// Shortest Ethernet packet without its frame check sequence (IEEE 802.3 §4.4.2: 64 with it).
pub const PACKET_LEN_MIN: usize = 60;

/// Bytes that a packet takes on the wire in addition to its own: preamble and start (8), frame
/// check sequence (4), gap (12) (IEEE 802.3 §4.4.2).
pub const WIRE_OVERHEAD: usize = 24;

/// A text or combination that makes no sense: what is wrong, and perhaps what would be right.
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

/// What parsing and planning return.
pub type Result<T> = std::result::Result<T, Error>;
