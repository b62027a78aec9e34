//! `struct pfring_pkthdr` (`pf_ring.h` of PF_RING 7 and 8, packed, 209 bytes).

/// Length of the part that is like libpcap's header; always filled.
pub const SHORT_LEN: usize = 24;
/// Length of the whole header, filled with `PF_RING_LONG_HEADER`. What the packet was parsed into
/// is zero: programs then parse it themselves.
pub const LONG_LEN: usize = 209;

/// Position of the timestamp in nanoseconds.
const TIMESTAMP_NS: usize = 24;
/// Position of the direction: 1 for a received packet, 0 for a sent one.
const DIRECTION: usize = 36;
/// Position of the interface's index.
const IF_INDEX: usize = 40;
/// Position of the hash.
const HASH: usize = 44;

/// What is known of a received packet besides its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Arrival, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Bytes present.
    pub cap_len: u32,
    /// Bytes on the wire.
    pub wire_len: u32,
    /// Whether the packet was sent by this host.
    pub is_outgoing: bool,
    /// Index of the interface, 0 if unknown.
    pub if_index: u32,
    /// The card's or kernel's hash of the flow, 0 if unknown.
    pub hash: u32,
}

impl Header {
    /// The short header as in memory.
    pub fn short(&self) -> [u8; SHORT_LEN] {
        let mut bytes = [0; SHORT_LEN];
        bytes[..8].copy_from_slice(&(self.time_ns / 1_000_000_000).to_ne_bytes());
        bytes[8..16].copy_from_slice(&(self.time_ns % 1_000_000_000 / 1000).to_ne_bytes());
        bytes[16..20].copy_from_slice(&self.cap_len.to_ne_bytes());
        bytes[20..].copy_from_slice(&self.wire_len.to_ne_bytes());
        bytes
    }

    /// The long header as in memory.
    pub fn long(&self) -> [u8; LONG_LEN] {
        let mut bytes = [0; LONG_LEN];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &self.short());
        put(TIMESTAMP_NS, &self.time_ns.to_ne_bytes());
        put(DIRECTION, &[u8::from(!self.is_outgoing)]);
        put(IF_INDEX, &self.if_index.to_ne_bytes());
        put(HASH, &self.hash.to_ne_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_pf_ring_has_them() {
        let header = Header {
            time_ns: 3_000_002_500,
            cap_len: 60,
            wire_len: 1514,
            is_outgoing: false,
            if_index: 7,
            hash: 0x0102_0304,
        };
        let bytes = header.long();
        assert_eq!(bytes[..SHORT_LEN], header.short());
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!([word(0), word(4), word(8), word(12)], [3, 0, 2, 0]);
        assert_eq!([word(16), word(20)], [60, 1514]);
        assert_eq!((bytes[36], word(40), word(44)), (1, 7, 0x0102_0304));
        assert!(bytes[48..].iter().all(|byte| *byte == 0));
    }
}
