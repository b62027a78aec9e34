//! The short cut from bytes to an observation, for what nearly all packets are: Ethernet, at most
//! one VLAN tag, IPv4 without options or IPv6 without extension headers, whole, then TCP or UDP
//! that is no tunnel.
//!
//! It decides nothing on its own: whatever is not plainly regular is left to the dissection, and a
//! law ([`crate::conservation::law`]) says that both lead to the same records. Its gain is that
//! nothing is written which the table does not read, and that the key is hashed while it is in
//! registers.

use wire::ethernet::{self, ether_type};
use wire::{table, tcp};

use crate::hash::HashKey;
use crate::key::{FlowKey, Ports, Side};
use crate::meter::Input;
use crate::record::SYN;
use crate::table::{Headers, Observed};

/// What of a meter's configuration matters here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    /// The two directions are flows of their own.
    pub(crate) uniflow: bool,
    /// Bytes are those of whole packets.
    pub(crate) is_layer2: bool,
}

/// What the IP header says.
struct Ip {
    /// Source and destination, as numbers in the order of memory.
    ends: Ends,
    protocol: u8,
    /// Length of the datagram, in bytes.
    total_len: u32,
    /// Bytes of the packet on the wire.
    wire_len: u32,
    /// Where the IP header starts.
    at: u32,
    ttl: u8,
    traffic_class: u8,
    ip_flags: u8,
}

enum Ends {
    Four(u32, u32),
    Six(u128, u128),
}

/// Observes a packet into `out`, all but [`Observed::input_index`] and [`Observed::key_extra`];
/// false, and something in `out`, if it is not for the short cut.
#[inline(always)]
pub(crate) fn observe(input: &Input<'_>, how: How, key: &HashKey, out: &mut Observed) -> bool {
    let bytes = input.bytes;
    let wire_len = bytes.len().max(input.wire_len as usize);
    // More could not be told from less in 32 bits; no capture has it.
    let wire_len = wire_len as u32;
    let Some((head, rest)) = bytes.split_first_chunk::<{ ethernet::HEADER_LEN }>() else {
        return false;
    };
    let (kind, at, rest) = match u16::from_be_bytes([head[12], head[13]]) {
        ether_type::VLAN => {
            let Some((tag, rest)) = rest.split_first_chunk::<4>() else {
                return false;
            };
            (u16::from_be_bytes([tag[2], tag[3]]), 18, rest)
        }
        kind => (kind, 14, rest),
    };
    match kind {
        ether_type::IPV4 => ipv4(rest, at, wire_len, input.time_ns, how, key, out),
        ether_type::IPV6 => ipv6(rest, at, wire_len, input.time_ns, how, key, out),
        _ => false,
    }
}

#[inline(always)]
fn ipv4(
    bytes: &[u8],
    at: u32,
    wire_len: u32,
    time_ns: u64,
    how: How,
    key: &HashKey,
    out: &mut Observed,
) -> bool {
    // The fixed header and the first eight bytes of TCP or all of UDP's header.
    let Some(head) = bytes.first_chunk::<28>() else {
        return false;
    };
    let [a, b, c, d, e, f, g, h, ..] = *head;
    let first = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    // Version and length of the header; more fragments, and the offset.
    const REGULAR: u64 = 0xff3f_0000_0000_00ff;
    let total_len = u32::from(u16::from_be_bytes([c, d]));
    if first & REGULAR != 0x45 || total_len > wire_len - at {
        return false;
    }
    let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let ip = Ip {
        ends: Ends::Four(word(12), word(16)),
        protocol: head[9],
        total_len,
        wire_len,
        at,
        ttl: head[8],
        traffic_class: b,
        ip_flags: g >> 5,
    };
    transport::<20>(bytes, ip, time_ns, how, key, out)
}

#[inline(always)]
fn ipv6(
    bytes: &[u8],
    at: u32,
    wire_len: u32,
    time_ns: u64,
    how: How,
    key: &HashKey,
    out: &mut Observed,
) -> bool {
    let Some(head) = bytes.first_chunk::<48>() else {
        return false;
    };
    let first = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
    let len = u32::from(u16::from_be_bytes([head[4], head[5]]));
    let total_len = len + 40;
    if first >> 28 != 6 || len == 0 || total_len > wire_len - at {
        return false;
    }
    let number = |at: usize| {
        let half = head[at..].first_chunk::<16>();
        u128::from_ne_bytes(half.copied().unwrap_or_default())
    };
    let ip = Ip {
        ends: Ends::Six(number(8), number(24)),
        protocol: head[6],
        total_len,
        wire_len,
        at,
        ttl: head[7],
        traffic_class: (first >> 20) as u8,
        ip_flags: 0,
    };
    transport::<40>(bytes, ip, time_ns, how, key, out)
}

/// What follows an IP header of `IP` bytes.
#[inline(always)]
fn transport<const IP: usize>(
    bytes: &[u8],
    ip: Ip,
    time_ns: u64,
    how: How,
    key: &HashKey,
    out: &mut Observed,
) -> bool {
    let rest = bytes.get(IP..).unwrap_or(&[]);
    let payload_at = ip.at + IP as u32;
    match ip.protocol {
        6 => {
            let Some(head) = rest.first_chunk::<{ tcp::HEADER_LEN }>() else {
                return false;
            };
            let header_len = u32::from(head[12] >> 4) * 4;
            let headers_len = IP as u32 + header_len;
            let Some(options) = rest.get(tcp::HEADER_LEN..header_len as usize) else {
                return false;
            };
            if headers_len > ip.total_len {
                return false;
            }
            let tcp_flags = u16::from_be_bytes([head[12], head[13]]) & 0x0fff;
            let mut tcp_options = 0;
            if !options.is_empty() {
                // What a SYN announces is read elsewhere.
                if tcp_flags & SYN != 0 {
                    return false;
                }
                tcp_options = tcp::option_set(options);
            }
            out.level = Headers {
                tcp_options,
                payload_offset: payload_at + header_len,
                payload_len: ip.total_len - headers_len,
                tcp_seq: u32::from_be_bytes([head[4], head[5], head[6], head[7]]),
                ip_options: 0,
                tcp_flags,
                tcp_window: u16::from_be_bytes([head[14], head[15]]),
                ttl: ip.ttl,
                traffic_class: ip.traffic_class,
                ip_flags: ip.ip_flags,
                is_tcp: true,
            };
            ends(
                &ip,
                [head[0], head[1], head[2], head[3]],
                time_ns,
                how,
                key,
                out,
            );
            true
        }
        17 => {
            let Some(head) = rest.first_chunk::<8>() else {
                return false;
            };
            let len = u32::from(u16::from_be_bytes([head[4], head[5]]));
            let ports = [head[0], head[1], head[2], head[3]];
            let src_port = u16::from_be_bytes([head[0], head[1]]);
            let dst_port = u16::from_be_bytes([head[2], head[3]]);
            if len < 8
                || IP as u32 + len > ip.total_len
                || table::may_be_tunnel(src_port, dst_port)
            {
                return false;
            }
            out.level = Headers {
                payload_offset: payload_at + 8,
                payload_len: len - 8,
                ttl: ip.ttl,
                traffic_class: ip.traffic_class,
                ip_flags: ip.ip_flags,
                ..Headers::EMPTY
            };
            ends(&ip, ports, time_ns, how, key, out);
            true
        }
        _ => false,
    }
}

/// The key and its hash, and what is left.
#[inline(always)]
fn ends(ip: &Ip, ports: [u8; 4], time_ns: u64, how: How, key: &HashKey, out: &mut Observed) {
    let [a, b, c, d] = ports;
    let ports = Ports {
        src: u16::from_be_bytes([a, b]),
        dst: u16::from_be_bytes([c, d]),
        is_answer: false,
    };
    let (flow_key, side): (FlowKey, Side) = match ip.ends {
        Ends::Four(src, dst) => FlowKey::of_ipv4(src, dst, ports, ip.protocol, how.uniflow),
        Ends::Six(src, dst) => FlowKey::of_numbers(src, dst, ports, ip.protocol, 6, how.uniflow),
    };
    out.hash = key.hash(&flow_key.words());
    out.key = flow_key;
    out.side = side;
    out.is_answer = false;
    out.marks = 0;
    out.time_ns = time_ns;
    out.bytes = if how.is_layer2 {
        ip.wire_len
    } else {
        ip.total_len
    };
    out.tcp_mss = 0;
}
