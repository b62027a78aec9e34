//! A packet as the table takes it.

use crate::key::{FlowKey, KeyExtra, Side};
use crate::record;

/// A packet, as far as a flow cares.
#[derive(Clone, Copy, Debug)]
pub struct Observed {
    /// Which flow.
    pub key: FlowKey,
    /// Who sent it.
    pub side: Side,
    /// Whether it answers something, so that the receiver began the flow (ICMP replies). TCP tells
    /// by its flags.
    pub is_answer: bool,
    /// TCP flags: the lower 12 bits of bytes 12 and 13 of the header; 0 of other protocols.
    pub tcp_flags: u16,
    /// Hash of the key.
    pub hash: u64,
    /// When, in nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Bytes to count.
    pub bytes: u32,
    /// Bytes of them that are payload.
    pub payload_bytes: u32,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Type of service or traffic class.
    pub traffic_class: u8,
    /// 8 for a fragment, 16 for one whose first did not come, 32 for one that is not the first.
    pub marks: u8,
    /// Flags of the IPv4 header (4 reserved, 2 don't fragment, 1 more fragments), shifted left by
    /// 13.
    pub ip_flags: u16,
    /// `bytes`, 65535 at most.
    pub len: u16,
    /// TCP window as sent.
    pub tcp_window: u16,
    /// Maximum segment size announced, 0 without.
    pub tcp_mss: u16,
    /// TCP sequence number.
    pub tcp_seq: u32,
    /// How far it moves the sequence number: payload, SYN and FIN; 0 of other protocols.
    pub tcp_seq_len: u32,
    /// TCP options: bit n for kind n below 31, bit 31 for kind 34.
    pub tcp_options: u32,
    /// IPv4 options or IPv6 extension headers.
    pub ip_options: u32,
    /// Where the payload starts in the packet.
    pub payload_offset: u32,
    /// Which of the packets that were given together this is.
    pub input_index: u8,
    /// Parts of the key that are rarely asked for; all zero where they were not.
    pub key_extra: KeyExtra,
}

impl Observed {
    /// No packet at all.
    pub(crate) const NONE: Observed = Observed {
        key: FlowKey::NONE,
        side: Side::A,
        is_answer: false,
        tcp_flags: 0,
        hash: 0,
        time_ns: 0,
        bytes: 0,
        payload_bytes: 0,
        ttl: 0,
        traffic_class: 0,
        marks: 0,
        ip_flags: 0,
        len: 0,
        tcp_window: 0,
        tcp_mss: 0,
        tcp_seq: 0,
        tcp_seq_len: 0,
        tcp_options: 0,
        ip_options: 0,
        payload_offset: 0,
        input_index: 0,
        key_extra: KeyExtra::NONE,
    };

    /// Whether it looks like a segment that a server sends, in the middle of a connection: from a
    /// port below 1024 to one that is not.
    pub(super) fn is_of_server(&self) -> bool {
        let (from, to) = (self.key.port(self.side), self.key.port(self.side.other()));
        self.key.protocol() == 6
            && self.tcp_flags & record::SYN == 0
            && from < 1024
            && to >= 1024
            && from != 0
    }
}
