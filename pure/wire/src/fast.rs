//! The fast path for nearly all packets: Ethernet or no link header, at most one VLAN tag, IPv4
//! without options or IPv6 without extension headers, unfragmented, then TCP or UDP that is not a
//! tunnel.
//!
//! It is an optimization only: anything unusual is left to the walk, and a property test
//! (`laws::fast_equals_walk`) over captures, samples and fuzz inputs checks that both produce the
//! same [`Dissection`]. It is faster because all offsets within a header are constants, the layer
//! stack is written in a few wide stores, and no functions are called.

use crate::table::{self, LayerKind};
use crate::{Dissection, be16, ethernet, tcp};

/// Input of the fast path: the IP header and its position. What precedes it is already in `out`.
struct Start<'a, 'd> {
    /// The packet from the IP header on.
    bytes: &'a [u8],
    /// Offset of the IP header in the packet.
    at: usize,
    /// Length on the wire from there on.
    wire_rest: usize,
    out: &'d mut Dissection,
}

/// Tries a packet that starts with `kind` at offset `at`. `out` must be [`Dissection::EMPTY`]
/// except for fields of the packet as a whole; if this returns false, it must be reset to that.
#[inline(always)]
pub(crate) fn dissect(
    kind: LayerKind,
    bytes: &[u8],
    at: usize,
    wire_rest: usize,
    out: &mut Dissection,
) -> bool {
    match kind {
        LayerKind::Ethernet => from_ethernet(bytes, at, wire_rest, out),
        LayerKind::Ipv4 => from_ipv4::<0>(Start {
            bytes,
            at,
            wire_rest,
            out,
        }),
        LayerKind::Ipv6 => from_ipv6::<0>(Start {
            bytes,
            at,
            wire_rest,
            out,
        }),
        _ => false,
    }
}

#[inline(always)]
fn from_ethernet(bytes: &[u8], at: usize, wire_rest: usize, out: &mut Dissection) -> bool {
    let Some((head, rest)) = bytes.split_first_chunk::<{ ethernet::HEADER_LEN }>() else {
        return false;
    };
    let at = at + ethernet::HEADER_LEN;
    let wire_rest = wire_rest - ethernet::HEADER_LEN;
    match be16(head[12], head[13]) {
        ethernet::ether_type::IPV4 => from_ipv4::<1>(Start {
            bytes: rest,
            at,
            wire_rest,
            out,
        }),
        ethernet::ether_type::IPV6 => from_ipv6::<1>(Start {
            bytes: rest,
            at,
            wire_rest,
            out,
        }),
        ethernet::ether_type::VLAN => from_vlan(rest, at, wire_rest, out),
        _ => false,
    }
}

#[inline(always)]
fn from_vlan(bytes: &[u8], at: usize, wire_rest: usize, out: &mut Dissection) -> bool {
    let Some((tag, rest)) = bytes.split_first_chunk::<4>() else {
        return false;
    };
    out.vlan_outer = be16(tag[0], tag[1]) & 0x0fff;
    out.vlan_count = 1;
    let start = Start {
        bytes: rest,
        at: at + 4,
        wire_rest: wire_rest - 4,
        out,
    };
    match be16(tag[2], tag[3]) {
        ethernet::ether_type::IPV4 => from_ipv4::<2>(start),
        ethernet::ether_type::IPV6 => from_ipv6::<2>(start),
        _ => false,
    }
}

/// The layers of a packet with `before` layers before an IP header of `ip` bytes, then `last`.
const fn kinds(before: usize, ip: usize, last: LayerKind) -> [LayerKind; 4] {
    let ip = if ip == 20 {
        LayerKind::Ipv4
    } else {
        LayerKind::Ipv6
    };
    match before {
        0 => [ip, last, LayerKind::None, LayerKind::None],
        1 => [LayerKind::Ethernet, ip, last, LayerKind::None],
        _ => [LayerKind::Ethernet, LayerKind::Vlan, ip, last],
    }
}

/// The layer mask of such layers.
const fn bits(kinds: [LayerKind; 4]) -> u64 {
    let mut mask = 0;
    let mut i = 0;
    while i < kinds.len() {
        // The filler has no bit.
        if kinds[i] as u8 != 0 {
            mask |= kinds[i].bit();
        }
        i += 1;
    }
    mask
}

/// The offsets of such layers, if the IP header is at `at`.
#[inline(always)]
fn offsets<const N: usize, const IP: usize>(at: usize) -> [u16; 4] {
    let (at, behind) = (at as u16, (at + IP) as u16);
    match N {
        0 => [at, behind, 0, 0],
        1 => [at - 14, at, behind, 0],
        _ => [at - 18, at - 4, at, behind],
    }
}

#[inline(always)]
fn from_ipv4<const N: usize>(start: Start<'_, '_>) -> bool {
    let Start {
        bytes,
        at,
        wire_rest,
        out,
    } = start;
    // The fixed header, and the first eight bytes of TCP or the whole UDP header.
    let Some(head) = bytes.first_chunk::<28>() else {
        return false;
    };
    let total = usize::from(be16(head[2], head[3]));
    let field = be16(head[6], head[7]);
    if head[0] != 0x45 || field & 0x3fff != 0 || total > wire_rest || at > MAX_START {
        return false;
    }
    out.ip_version = 4;
    out.traffic_class = head[1];
    out.ip_total_len = total as u32;
    out.fragment_id = u32::from(be16(head[4], head[5]));
    out.ip_flags = head[6] >> 5;
    out.ttl = head[8];
    out.ip_protocol = head[9];
    out.src[..4].copy_from_slice(&head[12..16]);
    out.dst[..4].copy_from_slice(&head[16..20]);
    let wire_rest = total;
    let start = Start {
        bytes,
        at,
        wire_rest,
        out,
    };
    transport::<N, 20>(start, head[9])
}

#[inline(always)]
fn from_ipv6<const N: usize>(start: Start<'_, '_>) -> bool {
    let Start {
        bytes,
        at,
        wire_rest,
        out,
    } = start;
    let Some(head) = bytes.first_chunk::<48>() else {
        return false;
    };
    let first = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
    let len = usize::from(be16(head[4], head[5]));
    let total = len + 40;
    if first >> 28 != 6 || len == 0 || total > wire_rest || at > MAX_START {
        return false;
    }
    out.ip_version = 6;
    out.traffic_class = (first >> 20) as u8;
    out.flow_label = first & 0x000f_ffff;
    out.ip_total_len = total as u32;
    out.ip_protocol = head[6];
    out.ttl = head[7];
    out.src.copy_from_slice(&head[8..24]);
    out.dst.copy_from_slice(&head[24..40]);
    let wire_rest = total;
    let start = Start {
        bytes,
        at,
        wire_rest,
        out,
    };
    transport::<N, 40>(start, head[6])
}

/// Reads what follows an IP header of `IP` bytes at `start`, after `N` other layers.
#[inline(always)]
fn transport<const N: usize, const IP: usize>(start: Start<'_, '_>, protocol: u8) -> bool {
    match protocol {
        6 => from_tcp::<N, IP>(start),
        17 => from_udp::<N, IP>(start),
        _ => false,
    }
}

#[inline(always)]
fn set_layers<const N: usize, const IP: usize>(out: &mut Dissection, at: usize, k: [LayerKind; 4]) {
    let [a, b, c, d, ..] = &mut out.layer_kinds;
    [*a, *b, *c, *d] = k;
    let [a, b, c, d, ..] = &mut out.layer_offsets;
    [*a, *b, *c, *d] = offsets::<N, IP>(at);
    out.layer_count = N as u8 + 2;
    out.layer_mask = bits(k);
    out.ip_offset = at as u16;
    out.transport_offset = (at + IP) as u16;
}

#[inline(always)]
fn set_ports(out: &mut Dissection, [a, b, c, d, ..]: &[u8; 8]) -> (u16, u16) {
    let both = u32::from_be_bytes([*a, *b, *c, *d]);
    out.src_port = (both >> 16) as u16;
    out.dst_port = both as u16;
    out.ports_read = true;
    (out.src_port, out.dst_port)
}

#[inline(always)]
fn from_tcp<const N: usize, const IP: usize>(start: Start<'_, '_>) -> bool {
    let Start {
        bytes,
        at,
        wire_rest: total,
        out,
    } = start;
    let bytes = bytes.get(IP..).unwrap_or(&[]);
    let Some(head) = bytes.first_chunk::<{ tcp::HEADER_LEN }>() else {
        return false;
    };
    let header_len = usize::from(head[12] >> 4) * 4;
    if header_len < tcp::HEADER_LEN || IP + header_len > total {
        return false;
    }
    let Some(options) = bytes.get(tcp::HEADER_LEN..header_len) else {
        return false;
    };
    let [
        h0,
        h1,
        h2,
        h3,
        h4,
        h5,
        h6,
        h7,
        h8,
        h9,
        h10,
        h11,
        h12,
        h13,
        h14,
        h15,
        ..,
    ] = *head;
    set_layers::<N, IP>(out, at, const { kinds(N, IP, LayerKind::Tcp) });
    set_ports(out, &[h0, h1, h2, h3, h4, h5, h6, h7]);
    let numbers = u64::from_be_bytes([h4, h5, h6, h7, h8, h9, h10, h11]);
    out.tcp_seq = (numbers >> 32) as u32;
    out.tcp_ack = numbers as u32;
    let word = u32::from_be_bytes([h12, h13, h14, h15]) & 0x0fff_ffff;
    out.tcp_flags = (word >> 16) as u16;
    out.tcp_window = word as u16;
    if !options.is_empty() {
        out.tcp_options = tcp::option_set(options);
    }
    out.payload_offset = (at + IP + header_len) as u32;
    out.payload_len = (total - IP - header_len) as u32;
    true
}

#[inline(always)]
fn from_udp<const N: usize, const IP: usize>(start: Start<'_, '_>) -> bool {
    let Start {
        bytes,
        at,
        wire_rest: total,
        out,
    } = start;
    let bytes = bytes.get(IP..).unwrap_or(&[]);
    let Some(head) = bytes.first_chunk::<8>() else {
        return false;
    };
    let len = usize::from(be16(head[4], head[5]));
    let (src_port, dst_port) = set_ports(out, head);
    if len < 8 || IP + len > total || table::of_udp_ports(src_port, dst_port) != LayerKind::None {
        return false;
    }
    set_layers::<N, IP>(out, at, const { kinds(N, IP, LayerKind::Udp) });
    out.payload_offset = (at + IP + 8) as u32;
    out.payload_len = (len - 8) as u32;
    true
}

/// Leaves enough room below the maximum 16-bit offset for all headers that follow.
const MAX_START: usize = 65_000;
