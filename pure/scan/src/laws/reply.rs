//! Genuine answers to probes, made from the probes.

use std::net::IpAddr;

/// Ethernet and IP headers without options.
const IPV4_END: usize = 34;
const IPV6_END: usize = 54;

fn transport_at(probe: &[u8]) -> usize {
    if probe[12] == 8 { IPV4_END } else { IPV6_END }
}

/// The target's answer: SYN+ACK or reset, INIT ACK or ABORT, echo or timestamp reply, or the
/// datagram that was sent.
pub(super) fn answer(probe: &[u8], kind: u8) -> Vec<u8> {
    let mut out = probe.to_vec();
    let at = transport_at(probe);
    let (src, dst, protocol) = match at {
        IPV4_END => (26..30, 30..34, probe[23]),
        _ => (22..38, 38..54, probe[20]),
    };
    out[src.clone()].copy_from_slice(&probe[dst.clone()]);
    out[dst].copy_from_slice(&probe[src]);
    if matches!(protocol, 6 | 17 | 132) {
        out[at..at + 2].copy_from_slice(&probe[at + 2..at + 4]);
        out[at + 2..at + 4].copy_from_slice(&probe[at..at + 2]);
    }
    match protocol {
        6 => segment(probe, at, kind, &mut out),
        132 => {
            out[at + 4..at + 8].copy_from_slice(&probe[at + 16..at + 20]);
            out[at + 12] = if kind & 4 == 0 { 2 } else { 6 };
        }
        1 | 58 => {
            out[at] = match probe[at] {
                8 => 0,
                13 => 14,
                other => other + 1,
            };
        }
        _ => {}
    }
    out
}

/// The answer to a TCP segment: SYN+ACK to a SYN if the kind says so, otherwise a reset.
fn segment(probe: &[u8], at: usize, kind: u8, out: &mut [u8]) {
    let flags = probe[at + 13];
    let mut seq = [0; 4];
    seq.copy_from_slice(&probe[at + 4..at + 8]);
    let seq = u32::from_be_bytes(seq).wrapping_add(u32::from(flags & 3 != 0));
    out[at + 8..at + 12].copy_from_slice(&seq.to_be_bytes());
    out[at + 4..at + 8].copy_from_slice(&probe[at + 8..at + 12]);
    out[at + 13] = if flags == 2 && kind & 4 == 0 {
        0x12
    } else {
        0x14
    };
}

/// An ICMP error about a probe, from the target or from a router.
pub(super) fn error(probe: &[u8], (code, from): (u8, u8), target: IpAddr) -> Vec<u8> {
    let at = transport_at(probe);
    let quote = &probe[14..probe.len().min(at + 8)];
    let icmp_len = (8 + quote.len()) as u16;
    let mut out = probe[..14].to_vec();
    let is_router = from & 1 != 0;
    match target {
        IpAddr::V4(addr) => {
            let from = if is_router {
                [203, 0, 113, 1]
            } else {
                addr.octets()
            };
            out.extend([0x45, 0]);
            out.extend((20 + icmp_len).to_be_bytes());
            out.extend([0, 0, 0, 0, 250, 1, 0, 0]);
            out.extend(from);
            out.extend(&probe[26..30]);
            out.extend([3, code % 14, 0, 0, 0, 0, 0, 0]);
        }
        IpAddr::V6(addr) => {
            let mut from = addr.octets();
            from[3] ^= u8::from(is_router);
            out.extend([0x60, 0, 0, 0]);
            out.extend(icmp_len.to_be_bytes());
            out.extend([58, 250]);
            out.extend(from);
            out.extend(&probe[22..38]);
            out.extend([1, code % 5, 0, 0, 0, 0, 0, 0]);
        }
    }
    out.extend(quote);
    out
}
