//! `struct pfring_pkthdr` (`pf_ring.h` of PF_RING 7.8 and later, packed, 209 bytes).

use crate::rules::{Link, Seen};

/// Length of the part that is always filled: libpcap's header, and what is known without parsing
/// the packet.
pub const SHORT_LEN: usize = 48;
/// Length of the whole header, filled with `PF_RING_LONG_HEADER`.
pub const LONG_LEN: usize = 209;

/// Position of the timestamp in nanoseconds.
const TIMESTAMP_NS: usize = 24;
/// Position of the flags.
const FLAGS: usize = 32;
/// Position of the direction: 1 for a received packet, 0 for a sent one.
const DIRECTION: usize = 36;
/// Position of the interface's index.
const IF_INDEX: usize = 40;
/// Position of the hash.
const HASH: usize = 44;
/// Position of what the packet was parsed into (`pkt_parsing_info`): up to [`PARSED_LEN`] the
/// stations, EtherType, VLANs, addresses, ports and type of ICMP.
const PARSED: usize = 68;
const PARSED_LEN: usize = 59;
/// Position of the offsets of headers, the last fields of the structure.
const OFFSETS: usize = LONG_LEN - 10;

/// `PKT_FLAGS_FLOW_OFFLOAD_PACKET`: the hash is the number of the flow.
pub const FLOW_PACKET: u32 = 1 << 7;

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
    /// The card's or kernel's hash of the flow, 0 if unknown; with [`FLOW_PACKET`], the number of
    /// the flow.
    pub hash: u32,
    /// `PKT_FLAGS_…`.
    pub flags: u32,
    /// Its headers, if it was parsed.
    pub parsed: Option<Parsed>,
}

/// The headers of a packet as in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed {
    fields: [u8; PARSED_LEN],
    offsets: [u8; 10],
    /// The topmost layer: 2 to 4.
    pub level: u8,
}

impl Parsed {
    /// Parses the headers of a packet up to layer `level`. IPv4 addresses and numbers are in host
    /// byte order.
    pub fn new(link_type: u16, bytes: &[u8], wire_len: u32, level: u8) -> Self {
        let seen = Seen::new(link_type, bytes, wire_len, None);
        let (it, link) = (&seen.headers, Link::new(link_type, bytes, 0));
        let mut fields = [0; PARSED_LEN];
        let mut put = |at: usize, value: &[u8]| fields[at..at + value.len()].copy_from_slice(value);
        put(0, &link.stations[1]);
        put(6, &link.stations[0]);
        put(12, &link.ether_type.to_ne_bytes());
        put(14, &seen.vlans[0].to_ne_bytes());
        put(16, &seen.vlans[1].to_ne_bytes());
        let mut offsets = [0_u16; 5];
        offsets[1] = if it.vlan_count == 0 { 0 } else { 14 };
        let mut top = 2;
        if it.ip_version != 0 {
            offsets[2] = it.ip_offset;
        }
        if level >= 3 && it.ip_version != 0 {
            put(18, &[it.ip_version, it.ip_protocol, it.traffic_class]);
            for (at, address) in [(21, it.src), (37, it.dst)] {
                match it.ip_version {
                    4 => put(at, &host_order(address)),
                    _ => put(at, &address),
                }
            }
            (offsets[3], top) = (it.transport_offset, 3);
        }
        if level >= 4 && top == 3 {
            put(53, &it.src_port.to_ne_bytes());
            put(55, &it.dst_port.to_ne_bytes());
            put(57, &[it.icmp_type, it.icmp_code]);
            offsets[4] = it.payload_offset as u16;
            if it.ports_read {
                top = 4;
            }
        }
        let offsets = offsets.map(u16::to_ne_bytes);
        Self {
            fields,
            offsets: std::array::from_fn(|at| offsets[at / 2][at % 2]),
            level: top,
        }
    }

    /// A hash that is the same for both directions: the sum of what identifies the flow.
    pub fn hash(&self) -> u32 {
        let half =
            |at: usize| u32::from(u16::from_ne_bytes([self.fields[at], self.fields[at + 1]]));
        let (words, _) = self.fields[21..53].as_chunks::<4>();
        let words = words.iter().map(|word| u32::from_ne_bytes(*word));
        let addresses = words.fold(0, u32::wrapping_add);
        let others = half(14) + u32::from(self.fields[19]) + half(53) + half(55);
        addresses.wrapping_add(others)
    }

    /// Writes the headers to their places in a header.
    pub fn write(&self, header: &mut [u8; LONG_LEN]) {
        header[PARSED..].fill(0);
        header[PARSED..PARSED + PARSED_LEN].copy_from_slice(&self.fields);
        header[OFFSETS..].copy_from_slice(&self.offsets);
    }
}

/// An IPv4 address as a number.
fn host_order(address: [u8; 16]) -> [u8; 4] {
    let [a, b, c, d, ..] = address;
    u32::from_be_bytes([a, b, c, d]).to_ne_bytes()
}

impl Header {
    /// The short header as in memory.
    pub fn short(&self) -> [u8; SHORT_LEN] {
        let mut bytes = [0; SHORT_LEN];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &(self.time_ns / 1_000_000_000).to_ne_bytes());
        put(8, &(self.time_ns % 1_000_000_000 / 1000).to_ne_bytes());
        put(16, &self.cap_len.to_ne_bytes());
        put(20, &self.wire_len.to_ne_bytes());
        put(TIMESTAMP_NS, &self.time_ns.to_ne_bytes());
        put(FLAGS, &self.flags.to_ne_bytes());
        put(DIRECTION, &[u8::from(!self.is_outgoing)]);
        put(IF_INDEX, &self.if_index.to_ne_bytes());
        put(HASH, &self.hash.to_ne_bytes());
        bytes
    }

    /// The long header as in memory.
    pub fn long(&self) -> [u8; LONG_LEN] {
        let mut bytes = [0; LONG_LEN];
        bytes[..SHORT_LEN].copy_from_slice(&self.short());
        if let Some(parsed) = &self.parsed {
            parsed.write(&mut bytes);
        }
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
            if_index: 7,
            hash: 0x0102_0304,
            flags: FLOW_PACKET,
            ..Header::default()
        };
        let bytes = header.long();
        assert_eq!(bytes[..SHORT_LEN], header.short());
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!([word(0), word(4), word(8), word(12)], [3, 0, 2, 0]);
        assert_eq!([word(16), word(20), word(32)], [60, 1514, 128]);
        assert_eq!((bytes[36], word(40), word(44)), (1, 7, 0x0102_0304));
        assert!(bytes[48..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn headers_are_parsed_up_to_a_layer() {
        let mut packet = vec![1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0x81, 0, 0x20, 5];
        packet.extend([8, 0, 0x45, 8, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
        packet.extend([10, 0, 0, 1, 10, 0, 0, 2, 0, 7, 0, 9, 0, 8, 0, 0]);
        let parse = |level| {
            let parsed = Parsed::new(1, &packet, 46, level);
            let mut header = [0xff; LONG_LEN];
            parsed.write(&mut header);
            (parsed.level, header)
        };
        let (level, header) = parse(4);
        let half = |at: usize| u16::from_ne_bytes(header[at..at + 2].try_into().unwrap());
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!(
            (level, &header[68..74], &header[74..80]),
            (4, &[1; 6][..], &[2; 6][..])
        );
        assert_eq!([half(80), half(82), half(84)], [0x0800, 5, 0]);
        assert_eq!(header[86..89], [4, 17, 8]);
        assert_eq!([word(89), word(105)], [0x0a00_0001, 0x0a00_0002]);
        assert_eq!([half(121), half(123)], [7, 9]);
        let offsets = [half(199), half(201), half(203), half(205), half(207)];
        assert_eq!(offsets, [0, 14, 18, 38, 46]);
        let (level, header) = parse(3);
        assert_eq!(
            (level, header[87], &header[121..199]),
            (3, 17, &[0; 78][..])
        );
        let (level, header) = parse(2);
        assert_eq!((level, header[82], header[203]), (2, 5, 18));
        assert!(header[86..201].iter().all(|byte| *byte == 0));
        for len in 0..packet.len() {
            Parsed::new(1, &packet[..len], 46, 4);
        }
        let back = Parsed::new(1, &packet, 46, 4).hash();
        packet[30..38].rotate_left(4);
        packet[38..42].rotate_left(2);
        assert_eq!(Parsed::new(1, &packet, 46, 4).hash(), back);
    }
}
