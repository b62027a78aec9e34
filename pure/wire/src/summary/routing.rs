//! Prints routing and discovery protocols as tcpdump does: VRRP (RFC 5798), OSPF (RFC 2328, RFC
//! 5340) and LLDP (IEEE 802.1AB). They are not dissected: no headers follow them.

use core::fmt;

use crate::{Dissection, be16};

const OSPF: u8 = 89;
const VRRP: u8 = 112;

/// Bytes of the fixed part of VRRP.
const VRRP_LEN: usize = 8;

/// Whether this IP protocol can be printed.
pub(super) fn is_known(protocol: u8) -> bool {
    matches!(protocol, OSPF | VRRP)
}

/// Prints the captured packet after the IP header.
pub(super) fn show(d: &Dissection, bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match d.ip_protocol {
        OSPF => show_ospf(d, bytes, f),
        _ => show_vrrp(d, bytes, f),
    }
}

fn show_ospf(d: &Dissection, bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let &[version, kind, _, _, ..] = bytes else {
        return f.write_str("OSPF [|ospf]");
    };
    write!(f, "OSPFv{version}, ")?;
    match kind {
        1 => f.write_str("Hello")?,
        2 => f.write_str("Database Description")?,
        3 => f.write_str("LS-Request")?,
        4 => f.write_str("LS-Update")?,
        5 => f.write_str("LS-Ack")?,
        other if version == 2 => write!(f, "unknown LS-type {other}")?,
        other => write!(f, "unknown packet type ({other})")?,
    }
    write!(f, ", length {}", d.payload_len)
}

fn show_vrrp(d: &Dissection, bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Some(&first) = bytes.first() else {
        return f.write_str("VRRP [|vrrp]");
    };
    let (version, kind) = (first >> 4, first & 0xf);
    write!(f, "VRRPv{version}, ")?;
    match kind {
        1 => f.write_str("Advertisement")?,
        other => write!(f, "unknown type ({other})")?,
    }
    if d.ttl != 255 {
        write!(f, ", (ttl {})", d.ttl)?;
    }
    if kind != 1 || !matches!(version, 2 | 3) {
        return Ok(());
    }
    let Some(head) = bytes.first_chunk::<VRRP_LEN>() else {
        return f.write_str(" [|vrrp]");
    };
    write!(f, ", vrid {}, prio {}", head[1], head[2])?;
    if version == 3 {
        let interval = be16(head[4], head[5]) & 0xfff;
        return write!(f, ", intvl {interval}cs, length {}", d.payload_len);
    }
    match head[4] {
        0 => f.write_str(", authtype none")?,
        1 => f.write_str(", authtype simple")?,
        2 => f.write_str(", authtype ah")?,
        other => write!(f, ", authtype #{other}")?,
    }
    write!(f, ", intvl {}s, length {}", head[5], d.payload_len)
}

/// Prints LLDP: the length, and the system's name if the packet has one.
pub(super) fn show_lldp(d: &Dissection, bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "LLDP, length {}", d.payload_len)?;
    let mut rest = bytes;
    // Each step takes at least two bytes.
    while let [a, b, tail @ ..] = rest {
        let head = be16(*a, *b);
        let (kind, len) = (head >> 9, usize::from(head & 0x1ff));
        let Some((value, tail)) = tail.split_at_checked(len) else {
            return f.write_str(" [|lldp]");
        };
        match kind {
            0 => return Ok(()),
            5 => write!(f, ": {}", value.escape_ascii())?,
            _ => {}
        }
        rest = tail;
    }
    f.write_str(" [|lldp]")
}
