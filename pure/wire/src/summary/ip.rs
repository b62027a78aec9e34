//! Prints the fields of an IP header, as `tcpdump -v` does, but on the same line.

use core::fmt;

use crate::Dissection;

/// Prints the header of this level in parentheses.
pub(super) fn show_header(d: &Dissection, bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match d.ip_version {
        4 => show_v4(d, bytes, f),
        _ => show_v6(d, bytes, f),
    }
}

fn show_v4(d: &Dissection, bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(
        f,
        "(tos 0x{:x}, ttl {}, id {}, offset {}, flags [",
        d.traffic_class, d.ttl, d.fragment_id, d.fragment_offset
    )?;
    let flags = [(1, "+"), (2, "DF"), (4, "rsvd")];
    let mut comma = "";
    for (_, word) in flags.into_iter().filter(|(bit, _)| d.ip_flags & bit != 0) {
        write!(f, "{comma}{word}")?;
        comma = ", ";
    }
    if comma.is_empty() {
        f.write_str("none")?;
    }
    let protocol = named_in(d, bytes, 9);
    let name = protocol_name(protocol);
    write!(
        f,
        "], proto {name} ({protocol}), length {}) ",
        d.ip_total_len
    )
}

fn show_v6(d: &Dissection, bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("(")?;
    if d.traffic_class != 0 {
        write!(f, "class 0x{:02x}, ", d.traffic_class)?;
    }
    if d.flow_label != 0 {
        write!(f, "flowlabel 0x{:05x}, ", d.flow_label)?;
    }
    let next = named_in(d, bytes, 6);
    let (name, len) = (protocol_name(next), d.ip_total_len.saturating_sub(40));
    write!(
        f,
        "hlim {}, next-header {name} ({next}) payload length: {len}) ",
        d.ttl
    )
}

/// The protocol that the header itself names at this offset; the dissection has the one after all
/// extension headers.
fn named_in(d: &Dissection, bytes: &[u8], offset: usize) -> u8 {
    let at = usize::from(d.ip_offset) + offset;
    bytes.get(at).copied().unwrap_or(d.ip_protocol)
}

/// tcpdump's name of an IP protocol.
fn protocol_name(number: u8) -> &'static str {
    match number {
        0 => "Options",
        1 => "ICMP",
        2 => "IGMP",
        4 => "IPIP",
        6 => "TCP",
        8 => "EGP",
        9 => "IGRP",
        17 => "UDP",
        33 => "DCCP",
        41 => "IPv6",
        43 => "Routing",
        44 => "Fragment",
        46 => "RSVP",
        47 => "GRE",
        50 => "ESP",
        51 => "AH",
        55 => "Mobile IP",
        58 => "ICMPv6",
        62 => "Mobile IP (old)",
        88 => "EIGRP",
        89 => "OSPF",
        103 => "PIM",
        108 => "Compressed IP",
        112 => "VRRP",
        113 => "PGM",
        132 => "SCTP",
        135 => "Mobility",
        143 => "Ethernet",
        _ => "unknown",
    }
}
