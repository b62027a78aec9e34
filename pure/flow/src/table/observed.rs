//! A packet as the table's input.

use wire::{Dissection, LayerKind};

use crate::key::{FlowKey, KeyExtra, Side};
use crate::record;

/// Header fields that a record uses, from the level that defines the flow. Deliberately small: a
/// whole [`Dissection`] would be written and read again for each packet in four cache lines, this
/// takes half of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Headers {
    /// Set of TCP options: bit n for kind n below 64.
    pub tcp_options: u64,
    /// Offset of the payload from the start of the packet, after the transport header.
    pub payload_offset: u32,
    /// Length of the payload on the wire; 0 if the header is too truncated to know it.
    pub payload_len: u32,
    /// TCP sequence number.
    pub tcp_seq: u32,
    /// Set of IPv4 options, or of IPv6 extension headers, as in a [`Dissection`].
    pub ip_options: u32,
    /// The low 12 bits of bytes 12 and 13 of the TCP header; 0 for other protocols.
    pub tcp_flags: u16,
    /// TCP window, unscaled.
    pub tcp_window: u16,
    /// Time to live or hop limit.
    pub ttl: u8,
    /// Type of service or traffic class.
    pub traffic_class: u8,
    /// Flags of the IPv4 header.
    pub ip_flags: u8,
    /// Whether there is a TCP header, or the start of one.
    pub is_tcp: bool,
}

const _: () = assert!(size_of::<Headers>() == 32);

impl Headers {
    /// All fields zero.
    pub const EMPTY: Headers = Headers {
        tcp_options: 0,
        payload_offset: 0,
        payload_len: 0,
        tcp_seq: 0,
        ip_options: 0,
        tcp_flags: 0,
        tcp_window: 0,
        ttl: 0,
        traffic_class: 0,
        ip_flags: 0,
        is_tcp: false,
    };

    /// Extracts the fields of a level.
    #[inline]
    pub fn of(level: &Dissection) -> Headers {
        let (payload_offset, payload_len) = level.transport_payload().unwrap_or((0, 0));
        Headers {
            tcp_options: level.tcp_options,
            payload_offset,
            payload_len,
            tcp_seq: level.tcp_seq,
            ip_options: level.ip_options,
            tcp_flags: level.tcp_flags,
            tcp_window: level.tcp_window,
            ttl: level.ttl,
            traffic_class: level.traffic_class,
            ip_flags: level.ip_flags,
            is_tcp: level.has(LayerKind::Tcp),
        }
    }
}

/// A packet as needed by a flow: two cache lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Observed {
    /// Key of the flow.
    pub key: FlowKey,
    /// The sender.
    pub side: Side,
    /// Whether it is a reply, so that its receiver is the initiator (ICMP replies). TCP uses its
    /// flags.
    pub is_answer: bool,
    /// Flags: 8 for a fragment, 16 if its first did not arrive, 32 if it is not the first, 64 if
    /// the packet has no time, 128 if it was in fragments and has been put together.
    pub marks: u8,
    /// Index among the packets that were passed together.
    pub input_index: u8,
    /// Hash of the key.
    pub hash: u64,
    /// Time of arrival in nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Header fields of the level that defines the flow.
    pub level: Headers,
    /// Number of bytes to count.
    pub bytes: u32,
    /// Maximum segment size announced by a SYN, otherwise 0.
    pub tcp_mss: u16,
    /// Rarely used parts of the key; all zero if disabled.
    pub key_extra: KeyExtra,
}

const _: () = assert!(size_of::<Observed>() == 128);

impl Observed {
    /// No packet.
    pub(crate) const NONE: Observed = Observed {
        key: FlowKey::NONE,
        side: Side::A,
        is_answer: false,
        marks: 0,
        input_index: 0,
        hash: 0,
        time_ns: 0,
        level: Headers::EMPTY,
        bytes: 0,
        tcp_mss: 0,
        key_extra: KeyExtra::NONE,
    };

    /// Whether it looks like a segment sent by a server in the middle of a connection: from a port
    /// below 1024 to one that is not.
    pub(super) fn is_of_server(&self) -> bool {
        let (from, to) = (self.key.port(self.side), self.key.port(self.side.other()));
        self.key.protocol() == 6
            && self.level.tcp_flags & record::SYN == 0
            && from < 1024
            && to >= 1024
            && from != 0
    }
}
