//! What one direction of a flow has in common in all formats, as a person reads it, and a capture
//! in which no two directions are alike.

use serde_json::Value;

/// One direction of a flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Side {
    pub source: String,
    pub destination: String,
    /// 0 for ICMP.
    pub ports: [u16; 2],
    /// Type and code, 0 for others.
    pub icmp: [u8; 2],
    pub protocol: u8,
    /// Milliseconds since midnight.
    pub start_ms: u64,
    pub end_ms: u64,
    pub packets: u64,
    pub bytes: u64,
    pub flags: u8,
    pub tos: u8,
    pub ttl: u8,
    pub vlan: u16,
}

/// The time of day in `2023-11-14 22:13:20.500`, or with any letter in between.
pub fn time_ms(text: &str) -> u64 {
    let part = |from: usize, to: usize| text[from..to].parse::<u64>().unwrap();
    ((part(11, 13) * 60 + part(14, 16)) * 60 + part(17, 19)) * 1000 + part(20, 23)
}

impl Side {
    /// A record of `--json --uniflow`.
    pub fn of(flow: &Value) -> Side {
        let number = |name: &str| flow[name].as_u64().unwrap_or(0);
        let text = |name: &str| flow[name].as_str().unwrap().to_owned();
        Side {
            source: text("src"),
            destination: text("dst"),
            ports: ["src_port", "dst_port"].map(|name| number(name) as u16),
            icmp: ["icmp_type", "icmp_code"].map(|name| number(name) as u8),
            protocol: number("protocol") as u8,
            start_ms: time_ms(&text("start")),
            end_ms: time_ms(&text("end")),
            packets: number("packets"),
            bytes: number("bytes"),
            flags: number("tcp_flags") as u8,
            tos: number("tos") as u8,
            ttl: number("ttl_min") as u8,
            vlan: number("vlan") as u16,
        }
    }
}

/// A packet of the capture: from the first end or back, IP header fields, then the payload.
struct Packet<'p> {
    at_ms: u64,
    is_back: bool,
    is_six: bool,
    vlan: Option<u16>,
    tos: u8,
    ttl: u8,
    protocol: u8,
    payload: &'p [u8],
}

impl Packet<'_> {
    fn bytes(&self) -> Vec<u8> {
        let mut out = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        if let Some(vlan) = self.vlan {
            out.extend([0x81, 0]);
            out.extend(vlan.to_be_bytes());
        }
        let len = self.payload.len() as u16;
        let mut ends: [Vec<u8>; 2] = match self.is_six {
            true => [1, 2].map(|last| [&[0xfd, 0x77][..], &[0; 13], &[last]].concat()),
            false => [1, 2].map(|last| vec![10, 77, 0, last]),
        };
        if self.is_back {
            ends.reverse();
        }
        if self.is_six {
            out.extend([0x86, 0xdd, 0x60 | self.tos >> 4, self.tos << 4, 0, 0]);
            out.extend(len.to_be_bytes());
            out.extend([self.protocol, self.ttl]);
        } else {
            out.extend([8, 0, 0x45, self.tos]);
            out.extend((20 + len).to_be_bytes());
            out.extend([0, 1, 0, 0, self.ttl, self.protocol, 0, 0]);
        }
        out.extend(ends.concat());
        out.extend(self.payload);
        out
    }
}

/// A TCP header from one port to another.
fn tcp(is_back: bool, flags: u8) -> Vec<u8> {
    let ports: [u16; 2] = if is_back { [80, 40_000] } else { [40_000, 80] };
    let mut out: Vec<u8> = ports.iter().flat_map(|port| port.to_be_bytes()).collect();
    out.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0x20, 0, 0, 0, 0, 0]);
    out
}

/// A UDP datagram of this length between two ports.
fn udp(is_back: bool, len: u16) -> Vec<u8> {
    let ports: [u16; 2] = if is_back { [53, 50_000] } else { [50_000, 53] };
    let words = [ports[0], ports[1], len, 0];
    let mut out: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    out.resize(len.into(), 0);
    out
}

/// A capture of TCP, UDP and ICMP over both versions of IP, one- and two-way: the directions of a
/// flow differ in times, flags, TTL and type of service, and each may start first or end last.
pub fn capture() -> Vec<u8> {
    let mut packets: Vec<(u64, Vec<u8>)> = Vec::new();
    let mut add = |packet: Packet<'_>| packets.push((packet.at_ms, packet.bytes()));
    for (is_six, vlan, shift) in [(false, Some(77), 0), (true, None, 5000)] {
        // The responder's direction is inside the initiator's; over IPv6 it ends later.
        for (at_ms, is_back, flags) in [
            (0, false, 2),
            (500, true, 0x12),
            (1000, false, 0x10),
            (1700, false, 0x18),
            (2500 + shift, true, 0x11),
            (3000, false, 0x11),
        ] {
            let [tos, ttl] = if is_back { [0x28, 57] } else { [0x10, 64] };
            add(Packet {
                at_ms,
                is_back,
                is_six,
                vlan,
                tos,
                ttl,
                protocol: 6,
                payload: &tcp(is_back, flags),
            });
        }
        for (at_ms, is_back) in [(20, false), (40, true), (60, true)] {
            let [tos, ttl] = if is_back { [0, 250] } else { [0xb8, 63] };
            add(Packet {
                at_ms,
                is_back,
                is_six,
                vlan,
                tos,
                ttl,
                protocol: 17,
                payload: &udp(is_back, if is_back { 90 } else { 40 }),
            });
        }
        let protocol = if is_six { 58 } else { 1 };
        let [request, reply, unreachable] = if is_six { [128, 129, 1] } else { [8, 0, 3] };
        for (at_ms, is_back, kind, code) in [
            (100, false, request, 0),
            (130, true, reply, 0),
            (1100, false, request, 0),
            (1200, true, unreachable, 3),
        ] {
            add(Packet {
                at_ms,
                is_back,
                is_six,
                vlan,
                tos: 0,
                ttl: if is_back { 60 } else { 64 },
                protocol,
                payload: &[kind, code, 0, 0, 0, 9, 0, 1, 1, 2, 3, 4],
            });
        }
    }
    packets.sort();
    file(packets)
}

/// A pcap file of packets with their times in milliseconds.
fn file(packets: Vec<(u64, Vec<u8>)>) -> Vec<u8> {
    let mut out = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65535, 1] {
        out.extend(word.to_le_bytes());
    }
    for (at_ms, bytes) in packets {
        let len = bytes.len() as u32;
        let at = [
            1_700_000_000 + (at_ms / 1000) as u32,
            (at_ms % 1000) as u32 * 1000,
        ];
        out.extend(
            [at[0], at[1], len, len]
                .iter()
                .flat_map(|word| word.to_le_bytes()),
        );
        out.extend(bytes);
    }
    out
}
