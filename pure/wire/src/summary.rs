//! One line a packet, in the manner of tcpdump with `-n`.
//!
//! ```text
//! IP 10.0.0.1.443 > 10.0.0.2.5555: Flags [S.], seq 1, ack 1, win 65535, length 0
//! vlan 7, IP6 2001:db8::1 > ff02::1: ICMP6, neighbor solicitation, who has …, length 32
//! IP 192.0.2.1 > 192.0.2.2: GREv0, proto 0x0800, length 84: IP 10.0.0.1 > 10.0.0.2: ICMP echo …
//! ```
//!
//! All levels of a tunnelled packet are on the line, joined by a colon. A line has no line break
//! and a bounded length, whatever the packet holds.

use crate::table::Header;
use crate::tcp::{self, TcpOption};
use crate::{
    Dissection, Fragment, LayerKind, Reason, be16, dissect_inner, ethernet, icmpv4, icmpv6, llc,
    ppp,
};
use core::fmt;
use core::net::{IpAddr, Ipv6Addr};

/// A packet as one line, without its time.
///
/// The alternate form, `{:#}`, is for a line that shows the link header in front: as in
/// `tcpdump -e`, "IP" and "IP6" are left out where that header names the protocol.
#[derive(Clone, Copy, Debug)]
pub struct Summary<'a> {
    /// The outermost level, from [`dissect`](crate::dissect).
    pub dissection: &'a Dissection,
    /// The packet that it was made from.
    pub bytes: &'a [u8],
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut level = *self.dissection;
        show_level(&level, self.bytes, f)?;
        let mut inner = Dissection::EMPTY;
        while !level.inner_is_quote && dissect_inner(self.bytes, &level, &mut inner) {
            f.write_str(": ")?;
            show_level(&inner, self.bytes, f)?;
            level = inner;
        }
        Ok(())
    }
}

fn show_level(d: &Dissection, bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let from = |offset: usize| bytes.get(offset..).unwrap_or(&[]);
    let mut last = (LayerKind::None, 0);
    for (kind, offset) in d.layers() {
        let before = last.0;
        last = (kind, offset);
        let header = Header {
            kind,
            bytes: from(offset),
        };
        match kind {
            LayerKind::Vlan => write!(f, "{header}, ")?,
            LayerKind::Arista => write!(
                f,
                "ethertype Arista Vendor Specific Protocol (0xd28b), length {}: {header}: ",
                d.wire_len
            )?,
            LayerKind::Mpls if before == LayerKind::Mpls => write!(f, "{header} ")?,
            LayerKind::Mpls => write!(f, "MPLS {header} ")?,
            LayerKind::Pppoe if d.layer_count as usize > 1 && d.has(LayerKind::Ppp) => {
                write!(f, "{header} ")?;
            }
            _ => {}
        }
    }
    let (kind, offset) = last;
    if d.ip_version != 0 {
        return show_ip(d, kind, bytes, f);
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
        (Reason::UnsupportedLink | Reason::TooDeep, _) | (_, LayerKind::None) => {
            write!(f, "[{}], length {}", d.reason, d.wire_len)
        }
        (Reason::UnsupportedType, _) => show_unknown_type(d, header, f),
        (Reason::Complete, LayerKind::Arp) => {
            write!(f, "{header}, length {}", header.bytes.len())
        }
        (Reason::Complete, _) if d.inner != LayerKind::None => write!(f, "{header}"),
        (Reason::Complete | Reason::Encrypted, LayerKind::Ieee80211) => write!(f, "{header}"),
        (Reason::Complete, _) => write!(f, "{header}, length {}", d.payload_len),
        (reason, _) => write!(f, "{} [{reason}], length {}", kind.name(), d.wire_len),
    }
}

/// What follows is not dissected: say what it is by its number.
fn show_unknown_type(
    d: &Dissection,
    header: Header<'_>,
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
        LayerKind::Ppp => {
            return match ppp::Ppp::parse(header.bytes) {
                Ok(view) => write!(f, "{view}, length {}", d.payload_len),
                Err(_) => write!(f, "PPP, length {}", d.payload_len),
            };
        }
        _ => None,
    };
    match name {
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
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let (Some(src), Some(dst)) = (d.src_addr(), d.dst_addr()) else {
        return Ok(());
    };
    let is_named = !d.has(LayerKind::Vlan) && !d.has(LayerKind::Pppoe);
    if !(f.alternate() && is_named) {
        f.write_str(if d.ip_version == 4 { "IP " } else { "IP6 " })?;
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
            // The header of the tunnel; where IP carries IP there is none.
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
        Reason::Complete => show_transport(d, kind, transport, bytes, f)?,
        Reason::Encrypted => write!(
            f,
            "{}",
            Header {
                kind,
                bytes: transport
            }
        )?,
        Reason::UnsupportedProtocol => {
            show_protocol(d.ip_protocol, d.ip_version, f)?;
            write!(f, ", length {}", d.payload_len)?;
        }
        Reason::Truncated if kind == LayerKind::Tcp => show_tcp(d, transport, f)?,
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

fn end_of_payload(d: &Dissection) -> usize {
    (d.payload_offset as usize).saturating_add(d.payload_len as usize)
}

/// Which fragment it is, if it is one.
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

/// The name of an IP protocol, or its number.
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
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    match kind {
        LayerKind::Tcp => show_tcp(d, transport, f),
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

/// The line as far as the header was captured; where its end is missing, " [|tcp]" follows.
fn show_tcp(d: &Dissection, transport: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Some(head) = transport.first_chunk::<{ tcp::HEADER_LEN }>() else {
        return f.write_str(if d.has_ports() { " [|tcp]" } else { "[|tcp]" });
    };
    let starts = tcp::flag::SYN | tcp::flag::FIN | tcp::flag::RST;
    write!(f, "Flags [{}]", tcp::Flags(d.tcp_flags))?;
    if d.payload_len > 0 {
        let end = d.tcp_seq.wrapping_add(d.payload_len);
        write!(f, ", seq {}:{end}", d.tcp_seq)?;
    } else if d.tcp_flags & starts != 0 {
        write!(f, ", seq {}", d.tcp_seq)?;
    }
    if d.tcp_flags & tcp::flag::ACK != 0 {
        write!(f, ", ack {}", d.tcp_ack)?;
    }
    write!(f, ", win {}", d.tcp_window)?;
    if d.tcp_flags & tcp::flag::URG != 0 {
        write!(f, ", urg {}", be16(head[18], head[19]))?;
    }
    let options_len = (usize::from(head[12] >> 4) * 4).saturating_sub(tcp::HEADER_LEN);
    if options_len > 0 {
        f.write_str(", options [")?;
        let options = tcp::captured_options(transport);
        if show_tcp_options(options, options_len, f)? == Shown::Cut {
            return f.write_str(" [|tcp]");
        }
        f.write_str("]")?;
    }
    write!(f, ", length {}", d.payload_len)
}

/// How much of something was there to be printed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    All,
    Cut,
}

/// Prints the options that were captured of those that have `len` bytes on the wire.
fn show_tcp_options(
    mut options: tcp::Options<'_>,
    len: usize,
    f: &mut fmt::Formatter<'_>,
) -> Result<Shown, fmt::Error> {
    let captured_len = options.rest().len();
    let mut comma = "";
    for option in options.by_ref() {
        f.write_str(comma)?;
        show_tcp_option(option, f)?;
        comma = ",";
    }
    let rest = options.rest();
    let left = len.saturating_sub(captured_len - rest.len());
    match *rest {
        [] if left == 0 => return Ok(Shown::All),
        [0, ..] => write!(f, "{comma}eol")?,
        [] => {
            f.write_str(comma)?;
            return Ok(Shown::Cut);
        }
        [_] if left > 1 => {
            f.write_str(comma)?;
            return Ok(Shown::Cut);
        }
        [kind, option_len, ref data @ ..]
            if usize::from(option_len) > rest.len() && usize::from(option_len) <= left =>
        {
            f.write_str(comma)?;
            show_cut_option(kind, option_len, data, f)?;
            return Ok(Shown::Cut);
        }
        _ => f.write_str(" [bad options]")?,
    }
    Ok(Shown::All)
}

fn show_tcp_option(option: TcpOption<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match option {
        TcpOption::NoOperation => f.write_str("nop"),
        TcpOption::MaxSegmentSize(bytes) => write!(f, "mss {bytes}"),
        TcpOption::WindowScale(shift) => write!(f, "wscale {shift}"),
        TcpOption::SackPermitted => f.write_str("sackOK"),
        TcpOption::Timestamps(value, echo) => write!(f, "TS val {value} ecr {echo}"),
        TcpOption::Sack(blocks) => show_sack(blocks.len(), blocks, f),
        TcpOption::Other(34, cookie) => show_cookie("tfo ", cookie, f),
        // The experiment that fast open came from (RFC 6994, magic number 0xf989).
        TcpOption::Other(254, [0xf9, 0x89, cookie @ ..]) => show_cookie("exp-tfo", cookie, f),
        TcpOption::Other(30, data) => {
            let kind = data.first().map_or("", |b| mptcp_name(b >> 4));
            write!(f, "mptcp {} {kind}", data.len() + 2)
        }
        TcpOption::Other(19, _) => f.write_str("md5"),
        TcpOption::Other(kind, data) => show_unknown_option(kind, !data.is_empty(), data, f),
    }
}

/// An option of which only the first bytes of its data were captured.
fn show_cut_option(kind: u8, len: u8, data: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match kind {
        2 => f.write_str("mss"),
        3 => f.write_str("wscale"),
        4 => f.write_str("sackOK"),
        5 => show_sack(usize::from(len - 2) / 8, data.as_chunks().0, f),
        8 => f.write_str("TS"),
        19 => f.write_str("md5"),
        30 => f.write_str("mptcp"),
        34 => f.write_str("tfo"),
        254 => f.write_str("exp"),
        _ => show_unknown_option(kind, true, data, f),
    }
}

fn show_sack(count: usize, blocks: &[[u8; 8]], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "sack {count} ")?;
    for [a, b, c, d, e, g, h, i] in blocks {
        let left = u32::from_be_bytes([*a, *b, *c, *d]);
        let right = u32::from_be_bytes([*e, *g, *h, *i]);
        write!(f, "{{{left}:{right}}}")?;
    }
    Ok(())
}

fn show_unknown_option(
    kind: u8,
    has_data: bool,
    data: &[u8],
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    write!(f, "unknown-{kind}{}", if has_data { " 0x" } else { "" })?;
    data.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// A fast open cookie, or the request for one (RFC 7413 section 4.1).
fn show_cookie(name: &str, cookie: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if cookie.is_empty() {
        return write!(f, "{name} cookiereq");
    }
    write!(f, "{name} cookie ")?;
    cookie.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// The subtypes of multipath TCP (RFC 8684 section 3).
fn mptcp_name(subtype: u8) -> &'static str {
    match subtype {
        0 => "capable",
        1 => "join",
        2 => "dss",
        3 => "add-addr",
        4 => "rem-addr",
        5 => "prio",
        6 => "fail",
        7 => "fast-close",
        _ => "unknown",
    }
}

/// The packet that an ICMP error quotes.
fn quoted(d: &Dissection, packet: &[u8]) -> Option<Dissection> {
    let mut quote = Dissection::EMPTY;
    let found = d.inner_is_quote && dissect_inner(packet, d, &mut quote);
    (found && quote.ip_version != 0).then_some(quote)
}

fn show_icmpv4(
    d: &Dissection,
    transport: &[u8],
    packet: &[u8],
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let Ok(view) = icmpv4::Icmpv4::parse(transport) else {
        return Ok(());
    };
    let len = d.payload_len as usize + icmpv4::HEADER_LEN;
    let Some(quote) = quoted(d, packet) else {
        return match view.icmp_type() {
            icmpv4::kind::ECHO_REQUEST | icmpv4::kind::ECHO_REPLY => {
                let what = if view.icmp_type() == 0 {
                    "reply"
                } else {
                    "request"
                };
                write!(
                    f,
                    "ICMP echo {what}, id {}, seq {}, length {len}",
                    view.id(),
                    view.seq()
                )
            }
            kind => write!(f, "ICMP type {kind}, code {}, length {len}", view.code()),
        };
    };
    let dst = quote
        .dst_addr()
        .unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    f.write_str("ICMP ")?;
    match (view.icmp_type(), view.code()) {
        (icmpv4::kind::UNREACHABLE, 0) => write!(f, "net {dst} unreachable")?,
        (icmpv4::kind::UNREACHABLE, 1) => write!(f, "host {dst} unreachable")?,
        (icmpv4::kind::UNREACHABLE, 2) => {
            write!(f, "{dst} protocol {} unreachable", quote.ip_protocol)?;
        }
        (icmpv4::kind::UNREACHABLE, 3) => {
            write!(f, "{dst} ")?;
            show_protocol(quote.ip_protocol, 4, f)?;
            write!(f, " port {} unreachable", quote.dst_port)?;
        }
        (icmpv4::kind::UNREACHABLE, 4) => {
            write!(f, "{dst} unreachable - need to frag (mtu {})", view.seq())?;
        }
        (icmpv4::kind::UNREACHABLE, code) => write!(f, "{dst} unreachable - code {code}")?,
        (icmpv4::kind::TIME_EXCEEDED, 0) => f.write_str("time exceeded in-transit")?,
        (icmpv4::kind::TIME_EXCEEDED, _) => f.write_str("ip reassembly time exceeded")?,
        (icmpv4::kind::REDIRECT, _) => {
            let [a, b, c, e] = (u32::from(view.id()) << 16 | u32::from(view.seq())).to_be_bytes();
            write!(f, "redirect {dst} to {a}.{b}.{c}.{e}")?;
        }
        (kind, code) => write!(f, "type {kind}, code {code}, about {dst}")?,
    }
    write!(f, ", length {len}")
}

fn show_icmpv6(
    d: &Dissection,
    transport: &[u8],
    packet: &[u8],
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    use icmpv6::kind;
    let len = transport.len();
    f.write_str("ICMP6, ")?;
    let Ok(view) = icmpv6::Icmpv6::parse(transport) else {
        return write!(
            f,
            "type {}, code {}, length {len}",
            d.icmp_type, d.icmp_code
        );
    };
    let len = d.payload_len as usize + icmpv6::HEADER_LEN;
    let target = view
        .payload
        .first_chunk::<16>()
        .map(|bytes| Ipv6Addr::from(*bytes));
    match (view.icmp_type(), target, quoted(d, packet)) {
        (kind::ECHO_REQUEST, ..) => {
            write!(f, "echo request, id {}, seq {}", view.id(), view.seq())?
        }
        (kind::ECHO_REPLY, ..) => write!(f, "echo reply, id {}, seq {}", view.id(), view.seq())?,
        (kind::ROUTER_SOLICITATION, ..) => f.write_str("router solicitation")?,
        (kind::ROUTER_ADVERTISEMENT, ..) => f.write_str("router advertisement")?,
        (kind::NEIGHBOR_SOLICITATION, Some(target), _) => {
            write!(f, "neighbor solicitation, who has {target}")?;
        }
        (kind::NEIGHBOR_ADVERTISEMENT, Some(target), _) => {
            write!(f, "neighbor advertisement, tgt is {target}")?;
        }
        (kind::UNREACHABLE, _, Some(quote)) => {
            let dst = quote
                .dst_addr()
                .unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
            match view.code() {
                4 => {
                    write!(f, "destination unreachable, {dst} ")?;
                    show_protocol(quote.ip_protocol, 6, f)?;
                    write!(f, " port {}", quote.dst_port)?;
                }
                code => write!(f, "destination unreachable, {dst}, code {code}")?,
            }
        }
        (kind::TOO_BIG, ..) => {
            write!(
                f,
                "packet too big, mtu {}",
                u32::from(view.id()) << 16 | u32::from(view.seq())
            )?;
        }
        (kind::TIME_EXCEEDED, ..) => f.write_str("time exceeded")?,
        (kind::PARAMETER_PROBLEM, ..) => write!(f, "parameter problem, code {}", view.code())?,
        (143, ..) => f.write_str("multicast listener report v2")?,
        (130..=132, ..) => f.write_str("multicast listener message")?,
        (other, ..) => write!(f, "type {other}, code {}", view.code())?,
    }
    write!(f, ", length {len}")
}

#[cfg(test)]
mod tests;
