//! One line per packet, as `tcpdump -n` prints it.
//!
//! ```text
//! IP 10.0.0.1.443 > 10.0.0.2.5555: Flags [S.], seq 1, ack 1, win 65535, length 0
//! vlan 7, IP6 2001:db8::1 > ff02::1: ICMP6, neighbor solicitation, who has …, length 32
//! IP 192.0.2.1 > 192.0.2.2: GREv0, proto 0x0800, length 84: IP 10.0.0.1 > 10.0.0.2: ICMP echo …
//! ```
//!
//! All levels of a tunnelled packet are on the line, separated by a colon. A line has no line break
//! and a bounded length, for any packet.

mod icmp;
mod ip;
mod links;
mod routing;
mod tcp;

use crate::table::Header;
use crate::{Dissection, Fragment, LayerKind, LinkType, Reason, dissect_inner, ethernet, llc, ppp};
use core::fmt;

use icmp::{show_icmpv4, show_icmpv6};
use tcp::show_tcp;

/// A packet as one line, without its time.
///
/// The alternate form, `{:#}`, is for a line that begins with the link header: as in `tcpdump -e`,
/// "IP" and "IP6" are omitted if that header names the protocol.
#[derive(Clone, Copy, Debug)]
pub struct Summary<'a> {
    /// The outermost level, from [`dissect`](crate::dissect).
    pub dissection: &'a Dissection,
    /// The packet that was dissected.
    pub bytes: &'a [u8],
}

/// Numbers to subtract from those of a TCP segment, so that they are relative to the start of the
/// connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceBase {
    /// Subtracted from the sequence number.
    pub seq: u32,
    /// Subtracted from the acknowledgment number.
    pub ack: u32,
    /// Subtracted from the edges of selective acknowledgments.
    pub sack: u32,
}

/// A [`Summary`] with more details, or with relative numbers.
#[derive(Clone, Copy, Debug)]
pub struct Detailed<'a> {
    /// The packet.
    pub summary: Summary<'a>,
    /// Base of its first TCP segment, on any level.
    pub base: SequenceBase,
    /// Whether to print the fields of each IP header as well, as `tcpdump -v` does.
    pub is_verbose: bool,
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let detailed = Detailed {
            summary: *self,
            base: SequenceBase::default(),
            is_verbose: false,
        };
        detailed.fmt(f)
    }
}

impl fmt::Display for Detailed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { dissection, bytes } = self.summary;
        let mut level = *dissection;
        show_level(&level, bytes, self, f)?;
        let mut inner = Dissection::EMPTY;
        while !level.inner_is_quote && dissect_inner(bytes, &level, &mut inner) {
            f.write_str(": ")?;
            show_level(&inner, bytes, self, f)?;
            level = inner;
        }
        Ok(())
    }
}

/// Prints tags, labels and other headers in front of the network header, and returns the last
/// header.
fn show_link(
    d: &Dissection,
    bytes: &[u8],
    f: &mut fmt::Formatter<'_>,
) -> Result<(LayerKind, usize), fmt::Error> {
    let from = |offset: usize| bytes.get(offset..).unwrap_or(&[]);
    let mut last = (LayerKind::None, 0);
    for (kind, offset) in d.layers() {
        let before = last.0;
        last = (kind, offset);
        let header = Header {
            kind,
            bytes: from(offset),
        };
        if before == LayerKind::Mpls && kind != LayerKind::Mpls {
            f.write_str(" ")?;
        }
        match kind {
            LayerKind::Vlan => write!(f, "{header}, ")?,
            LayerKind::Arista => write!(
                f,
                "ethertype Arista Vendor Specific Protocol (0xd28b), length {}: {header}: ",
                d.wire_len
            )?,
            LayerKind::Mpls if before == LayerKind::Mpls => write!(f, " {header}")?,
            LayerKind::Mpls => write!(f, "MPLS {header}")?,
            LayerKind::Pppoe if d.layer_count as usize > 1 && d.has(LayerKind::Ppp) => {
                write!(f, "{header} ")?;
            }
            _ => links::show_tag(kind, header.bytes, f)?,
        }
    }
    Ok(last)
}

fn show_level(
    d: &Dissection,
    bytes: &[u8],
    how: &Detailed<'_>,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let from = |offset: usize| bytes.get(offset..).unwrap_or(&[]);
    let (kind, offset) = show_link(d, bytes, f)?;
    if d.ip_version != 0 {
        return show_ip(d, kind, bytes, how, f);
    }
    if links::show_whole(d, kind, from(offset), f)? {
        return Ok(());
    }
    // The part of the packet that belongs to this header, so that padding is not counted.
    let end = (d.payload_offset as usize).saturating_add(d.payload_len as usize);
    let header = bytes
        .get(offset..end.min(bytes.len()))
        .unwrap_or(from(offset));
    let header = Header {
        kind,
        bytes: header,
    };
    match (d.reason, kind) {
        // The stack is on the line already.
        (Reason::Complete, LayerKind::Mpls) if d.inner != LayerKind::None => Ok(()),
        (Reason::Complete | Reason::UnsupportedTunnel, LayerKind::Mpls) => {
            write!(f, ", length {}", d.payload_len)
        }
        // Either the label is not whole, which is on the line, or nothing follows the last one.
        (_, LayerKind::Mpls) if d.payload_offset as usize == offset => {
            write!(f, ", length {}", d.wire_len)
        }
        (reason, LayerKind::Mpls) => write!(f, " [{reason}], length {}", d.wire_len),
        (Reason::UnsupportedLink, _) => {
            let number = d.flow_label;
            let name = u16::try_from(number).ok().and_then(|n| LinkType(n).name());
            let name = name.unwrap_or("unknown");
            write!(
                f,
                "[unsupported link type {name} ({number})], length {}",
                d.wire_len
            )
        }
        (Reason::TooDeep, _) | (_, LayerKind::None) => {
            write!(f, "[{}], length {}", d.reason, d.wire_len)
        }
        (Reason::UnsupportedType, _) => show_unknown_type(d, header, bytes, f),
        (Reason::Complete, LayerKind::Arp) => {
            let len = header.bytes.len();
            match f.alternate() && !d.has(LayerKind::Vlan) {
                true => write!(f, "{header:#}, length {len}"),
                false => write!(f, "{header}, length {len}"),
            }
        }
        (Reason::Complete, _) if d.inner != LayerKind::None => write!(f, "{header}"),
        (Reason::Complete | Reason::Encrypted, LayerKind::Ieee80211) => write!(f, "{header}"),
        (Reason::Complete, _) => write!(f, "{header}, length {}", d.payload_len),
        (reason, _) => write!(f, "{} [{reason}], length {}", kind.name(), d.wire_len),
    }
}

/// Prints the protocol number of a payload that is not dissected.
fn show_unknown_type(
    d: &Dissection,
    header: Header<'_>,
    bytes: &[u8],
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let name = match header.kind {
        LayerKind::Ethernet => ethernet::Ethernet::parse(header.bytes)
            .ok()
            .and_then(|e| type_name(e.ether_type())),
        LayerKind::Llc => {
            return match llc::Llc::parse(header.bytes) {
                Ok(view) => {
                    let snap = view
                        .snap()
                        .filter(|(organization, _)| *organization == [0; 3]);
                    match snap.and_then(|(_, value)| type_name(value)) {
                        Some(name) => write!(f, "{name}, length {}", d.payload_len),
                        None => write!(f, "{view}, length {}", d.payload_len),
                    }
                }
                Err(_) => write!(f, "LLC, length {}", d.payload_len),
            };
        }
        LayerKind::Ppp | LayerKind::PppDirected => {
            let bytes = match header.kind {
                LayerKind::Ppp => header.bytes,
                _ => ppp::directed(header.bytes).1,
            };
            return match ppp::Ppp::parse(bytes) {
                Ok(view) if ppp::show_control(&view, d.payload_len, f)? => Ok(()),
                Ok(view) => write!(f, "{view}, length {}", d.payload_len),
                Err(_) => write!(f, "PPP, length {}", d.payload_len),
            };
        }
        _ => None,
    };
    match name {
        Some("LLDP") => routing::show_lldp(d, rest(d, bytes), f),
        Some(name) => write!(f, "{name}, length {}", d.payload_len),
        None => write!(f, "{header}, length {}", d.payload_len),
    }
}

fn type_name(ether_type: u16) -> Option<&'static str> {
    Some(match ether_type {
        0x88cc => "LLDP",
        0x888e => "EAPOL",
        0x8809 => "slow protocols (LACP)",
        0x88f7 => "PTP",
        0x9000 => "loopback",
        _ => return None,
    })
}

fn show_ip(
    d: &Dissection,
    kind: LayerKind,
    bytes: &[u8],
    how: &Detailed<'_>,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let (Some(src), Some(dst)) = (d.src_addr(), d.dst_addr()) else {
        return Ok(());
    };
    let is_named = !d.has(LayerKind::Vlan) && !d.has(LayerKind::Pppoe);
    if !(f.alternate() && is_named) {
        f.write_str(if d.ip_version == 4 { "IP " } else { "IP6 " })?;
    }
    if how.is_verbose {
        ip::show_header(d, bytes, f)?;
    }
    let start = d.layers().next().map_or(0, |(_, offset)| offset);
    let room = (start + d.wire_len as usize).saturating_sub(usize::from(d.ip_offset));
    if let Some(missing) = (d.ip_total_len as usize)
        .checked_sub(room)
        .filter(|n| *n > 0)
    {
        write!(f, "truncated-ip - {missing} bytes missing! ")?;
    }
    if d.has_ports() {
        write!(f, "{src}.{} > {dst}.{}: ", d.src_port, d.dst_port)?;
    } else {
        write!(f, "{src} > {dst}: ")?;
    }
    let transport = transport(d, bytes);
    match d.reason {
        Reason::Complete if d.inner != LayerKind::None && !d.inner_is_quote => {
            // The header of the tunnel; IP in IP has none.
            match kind {
                LayerKind::Ipv4 | LayerKind::Ipv6 => f.write_str("IP in IP")?,
                _ => {
                    let at = usize::from(d.layers().last().map_or(0, |(_, offset)| offset as u16));
                    let end = end_of_payload(d);
                    let bytes = bytes.get(at..end.min(bytes.len())).unwrap_or(&[]);
                    write!(f, "{}", Header { kind, bytes })?;
                }
            }
            return Ok(());
        }
        Reason::LaterFragment => {
            show_protocol(d.ip_protocol, d.ip_version, f)?;
        }
        Reason::Complete => show_transport(d, kind, transport, bytes, how, f)?,
        Reason::Encrypted => write!(
            f,
            "{}",
            Header {
                kind,
                bytes: transport
            }
        )?,
        Reason::UnsupportedProtocol if routing::is_known(d.ip_protocol) => {
            routing::show(d, rest(d, bytes), f)?;
        }
        Reason::UnsupportedProtocol => {
            show_protocol(d.ip_protocol, d.ip_version, f)?;
            write!(f, ", length {}", d.payload_len)?;
        }
        Reason::Truncated if kind == LayerKind::Tcp => show_tcp(d, transport, how.base, f)?,
        Reason::Truncated | Reason::Short => write!(f, "[|{}] [{}]", kind.name(), d.reason)?,
        reason => write!(f, "{} [{reason}], length {}", kind.name(), d.payload_len)?,
    }
    show_fragment(d, f)
}

/// The bytes from the transport header on, without link padding.
fn transport<'a>(d: &Dissection, bytes: &'a [u8]) -> &'a [u8] {
    let offset = usize::from(d.transport_offset);
    let transport = if offset == 0 {
        &[][..]
    } else {
        bytes.get(offset..).unwrap_or(&[])
    };
    let end = end_of_payload(d);
    transport
        .get(..end.saturating_sub(offset))
        .unwrap_or(transport)
}

/// The captured payload, without link padding.
fn rest<'a>(d: &Dissection, bytes: &'a [u8]) -> &'a [u8] {
    let start = d.payload_offset as usize;
    let end = end_of_payload(d).min(bytes.len());
    bytes.get(start..end).unwrap_or(&[])
}

fn end_of_payload(d: &Dissection) -> usize {
    (d.payload_offset as usize).saturating_add(d.payload_len as usize)
}

/// Prints the position of a fragment.
fn show_fragment(d: &Dissection, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let more = match d.fragment {
        Fragment::Whole => return Ok(()),
        Fragment::Last => "",
        _ => "+",
    };
    write!(
        f,
        ", frag {}:{}@{}{more}",
        d.fragment_id, d.payload_len, d.fragment_offset
    )
}

/// Prints the name of an IP protocol, or its number.
fn show_protocol(number: u8, version: u8, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let name = match number {
        88 => "EIGRP",
        89 => "OSPF",
        112 => "VRRP",
        _ => {
            let kind = match version {
                4 => crate::table::of_ipv4_protocol(number),
                _ => crate::table::of_ipv6_next_header(number),
            };
            if kind == LayerKind::None {
                return write!(f, "ip-proto-{number}");
            }
            kind.name()
        }
    };
    f.write_str(name)
}

fn show_transport(
    d: &Dissection,
    kind: LayerKind,
    transport: &[u8],
    packet: &[u8],
    how: &Detailed<'_>,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    match kind {
        LayerKind::Tcp => show_tcp(d, transport, how.base, f),
        LayerKind::Udp => write!(f, "UDP, length {}", d.payload_len),
        LayerKind::UdpLite => write!(f, "UDP-Lite, length {}", d.payload_len),
        LayerKind::Icmpv4 => show_icmpv4(d, transport, packet, f),
        LayerKind::Icmpv6 => show_icmpv6(d, transport, packet, f),
        LayerKind::Sctp => match crate::sctp::Sctp::parse(transport) {
            Ok(view) => {
                f.write_str("sctp")?;
                view.show_chunks(f)
            }
            Err(_) => Ok(()),
        },
        _ if d.transport_offset == 0 => f.write_str("no next header"),
        _ => write!(
            f,
            "{}",
            Header {
                kind,
                bytes: transport
            }
        ),
    }
}

#[cfg(test)]
mod tests;
