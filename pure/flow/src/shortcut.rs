//! The fast path from bytes to an observation, for nearly all packets: Ethernet, at most one VLAN
//! tag, IPv4 without options or IPv6 without extension headers, unfragmented, then TCP or UDP that
//! is not a tunnel.
//!
//! It is an optimization only: anything unusual is left to the dissection, and a property test
//! ([`crate::conservation::law`]) checks that both produce the same records. It is faster because
//! it writes only what the table reads.
//!
//! It has two passes. [`read`] parses one packet and stores each value at once, so that little is
//! kept in registers. [`turn`] sorts the ends of each key in a batch. Both avoid unpredictable
//! branches: which end is lower, TCP or UDP.

use wire::ethernet::{self, ether_type};
use wire::{LayerKind, table, tcp};

use crate::hash::HashKey;
use crate::record::SYN;
use crate::table::{Headers, Observed, Table};

/// Flag in [`Observed::marks`]: the key has the packet's order, source first, and no hash yet.
const RAW: u8 = 1 << 0;

/// An EtherType as two bytes are read from memory.
const fn in_memory(kind: u16) -> u16 {
    u16::from_ne_bytes(kind.to_be_bytes())
}

/// Reads a packet into `out`, except its time, [`Observed::input_index`] and
/// [`Observed::key_extra`]; returns false, with `out` unspecified, if the shortcut does not support
/// it. [`turn`] completes what is read.
#[inline(never)]
pub(crate) fn read(bytes: &[u8], wire_len: u32, is_layer2: bool, out: &mut Observed) -> bool {
    // Never less than the captured bytes.
    let wire_len = wire_len.max(bytes.len() as u32);
    let Some(head) = bytes.first_chunk::<{ ethernet::HEADER_LEN }>() else {
        return false;
    };
    const IPV4: u16 = in_memory(ether_type::IPV4);
    const IPV6: u16 = in_memory(ether_type::IPV6);
    const VLAN: u16 = in_memory(ether_type::VLAN);
    let found = match u16::from_ne_bytes([head[12], head[13]]) {
        IPV4 => ipv4::<14>(bytes, wire_len, out),
        IPV6 => ipv6::<14>(bytes, wire_len, out),
        VLAN => match bytes.get(16..18) {
            Some(&[a, b]) if u16::from_ne_bytes([a, b]) == IPV4 => ipv4::<18>(bytes, wire_len, out),
            Some(&[a, b]) if u16::from_ne_bytes([a, b]) == IPV6 => ipv6::<18>(bytes, wire_len, out),
            _ => false,
        },
        _ => false,
    };
    if is_layer2 {
        out.bytes = wire_len;
    }
    found
}

/// Reads IPv4 at offset `AT`.
#[inline(always)]
fn ipv4<const AT: usize>(bytes: &[u8], wire_len: u32, out: &mut Observed) -> bool {
    let Some(head) = bytes.get(AT..).and_then(|rest| rest.first_chunk::<20>()) else {
        return false;
    };
    let total_len = u32::from(u16::from_be_bytes([head[2], head[3]]));
    let field = u16::from_be_bytes([head[6], head[7]]);
    // Version and length of the header; more fragments, and the offset.
    let is_irregular = u32::from(head[0] ^ 0x45) | u32::from(field & 0x3fff);
    if is_irregular != 0 || total_len > wire_len - AT as u32 {
        return false;
    }
    let number = |at: usize| [head[at], head[at + 1], head[at + 2], head[at + 3]];
    out.key.set_raw_ipv4(number(12), number(16), head[9]);
    out.bytes = total_len;
    out.level = Headers {
        ttl: head[8],
        traffic_class: head[1],
        ip_flags: head[6] >> 5,
        ..Headers::EMPTY
    };
    transport::<AT, 20>(bytes, total_len, head[9], out)
}

/// Reads IPv6 at offset `AT`.
#[inline(always)]
fn ipv6<const AT: usize>(bytes: &[u8], wire_len: u32, out: &mut Observed) -> bool {
    let Some(head) = bytes.get(AT..).and_then(|rest| rest.first_chunk::<40>()) else {
        return false;
    };
    let first = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
    let len = u32::from(u16::from_be_bytes([head[4], head[5]]));
    let total_len = len + 40;
    if first >> 28 != 6 || len == 0 || total_len > wire_len - AT as u32 {
        return false;
    }
    let (_, ends) = head.split_at(8);
    let (ends, _) = ends.as_chunks::<16>();
    let &[src, dst] = ends else {
        return false;
    };
    out.key.set_raw_ipv6(src, dst, head[6]);
    out.bytes = total_len;
    out.level = Headers {
        ttl: head[7],
        traffic_class: (first >> 20) as u8,
        ..Headers::EMPTY
    };
    transport::<AT, 40>(bytes, total_len, head[6], out)
}

/// Reads what follows an IP header of `IP` bytes at `AT`.
#[inline(always)]
fn transport<const AT: usize, const IP: usize>(
    bytes: &[u8],
    total_len: u32,
    protocol: u8,
    out: &mut Observed,
) -> bool {
    const UDP_LEN: u32 = 8;
    let rest = bytes.get(AT + IP..).unwrap_or(&[]);
    let ip_len = IP as u32;
    out.is_answer = false;
    out.marks = RAW;
    out.tcp_mss = 0;
    let Some(head) = rest.first_chunk::<{ tcp::HEADER_LEN }>() else {
        // Shorter than a TCP header: perhaps UDP with a short payload.
        let Some(head) = rest.first_chunk::<8>().filter(|_| protocol == 17) else {
            return false;
        };
        let len = u32::from(u16::from_be_bytes([head[4], head[5]]));
        out.level.payload_offset = (AT + IP) as u32 + UDP_LEN;
        out.level.payload_len = len.wrapping_sub(UDP_LEN);
        return len >= UDP_LEN
            && ip_len + len <= total_len
            && is_no_tunnel(&[head[0], head[1], head[2], head[3]], out);
    };
    let is_tcp = protocol == 6;
    // All bits or none: both protocols are read alike.
    let if_tcp = 0_u32.wrapping_sub(is_tcp.into());
    let udp_len = u32::from(u16::from_be_bytes([head[4], head[5]]));
    let tcp_len = u32::from(head[12] >> 4) * 4;
    let (header_len, datagram_len, least) = if is_tcp {
        (
            tcp_len,
            total_len - ip_len.min(total_len),
            tcp::HEADER_LEN as u32,
        )
    } else {
        (UDP_LEN, udp_len, UDP_LEN)
    };
    if header_len < least || header_len > datagram_len || ip_len + datagram_len > total_len {
        return false;
    }
    let word = u32::from_be_bytes([head[12], head[13], head[14], head[15]]) & 0x0fff_ffff & if_tcp;
    let seq = u32::from_be_bytes([head[4], head[5], head[6], head[7]]) & if_tcp;
    out.level.tcp_seq = seq;
    out.level.tcp_flags = (word >> 16) as u16;
    out.level.tcp_window = word as u16;
    out.level.is_tcp = is_tcp;
    out.level.payload_offset = (AT + IP) as u32 + header_len;
    out.level.payload_len = datagram_len - header_len;
    let ports = [head[0], head[1], head[2], head[3]];
    if header_len > tcp::HEADER_LEN as u32 {
        let Some(options) = rest.get(tcp::HEADER_LEN..header_len as usize) else {
            return false;
        };
        // The options of a SYN are read elsewhere.
        if out.level.tcp_flags & SYN != 0 {
            return false;
        }
        out.level.tcp_options = tcp::option_set(options);
    }
    match is_tcp {
        true => {
            out.key.set_raw_ports(ports);
            true
        }
        false => protocol == 17 && is_no_tunnel(&ports, out),
    }
}

/// Sets the UDP ports; returns false for those of a tunnel.
#[inline(always)]
fn is_no_tunnel(ports: &[u8; 4], out: &mut Observed) -> bool {
    out.key.set_raw_ports(*ports);
    let [a, b, c, d] = *ports;
    let (src, dst) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    table::of_udp_ports(src, dst) == LayerKind::None
}

/// Number of packets whose home lines are loaded together, while the next ones are hashed.
const LOAD_COUNT: usize = 8;

/// Completes what [`read`] has read: sorts the ends and hashes the key. Loads the home lines.
#[inline(never)]
pub(crate) fn turn(batch: &mut [Observed], key: &HashKey, uniflow: bool, table: &Table) {
    for part in batch.chunks_mut(LOAD_COUNT) {
        for observed in part.iter_mut().filter(|observed| observed.marks & RAW != 0) {
            observed.marks = 0;
            let (side, words) = observed.key.turn(uniflow);
            observed.side = side;
            observed.hash = key.hash(&words);
        }
        table.load_homes(part);
    }
}
