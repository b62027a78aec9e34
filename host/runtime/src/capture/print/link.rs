//! The link header at the start of a line, as `tcpdump -e` prints it.

use std::fmt::{self, Write};

use wire::chdlc::Chdlc;
use wire::dsa::{DsaTag, Form};
use wire::ethernet::Ethernet;
use wire::ipnet::Ipnet;
use wire::null::Null;
use wire::pflog::Pflog;
use wire::ppp::{Ppp, directed as directed_ppp};
use wire::slip::Slip;
use wire::sll::Sll;
use wire::{LinkType, Mac, Reason};

use super::cooked::way;

/// Prints the link header; for unknown link types only the length.
pub(super) fn link_header(
    out: &mut impl Write,
    link: LinkType,
    bytes: &[u8],
    wire_len: u32,
) -> fmt::Result {
    // A packet cut within its link header has none to print.
    match link {
        LinkType::ETHERNET => ethernet(out, bytes)?,
        LinkType::LINUX_SLL => cooked(out, Sll::parse(bytes))?,
        LinkType::LINUX_SLL2 => cooked(out, Sll::parse_v2(bytes))?,
        LinkType::NULL | LinkType::LOOP => loopback(out, bytes)?,
        LinkType::C_HDLC => hdlc(out, bytes)?,
        // These have no link header, and tcpdump prints no length either.
        LinkType::RAW | LinkType::IPV4 | LinkType::IPV6 => return write!(out, "ip: "),
        LinkType::PPP => ppp(out, bytes)?,
        LinkType::PPP_HDLC => match bytes {
            [0xff, 0x03, ..] => return ppp_in_hdlc(out, bytes, wire_len),
            [0x0f | 0x8f, ..] => hdlc(out, bytes)?,
            _ => {}
        },
        LinkType::DSA_TAG_BRCM => tagged(out, bytes, Form::Broadcom)?,
        LinkType::DSA_TAG_BRCM_PREPEND => return prepended(out, bytes, wire_len),
        LinkType::DSA_TAG_DSA => tagged(out, bytes, Form::Marvell)?,
        LinkType::DSA_TAG_EDSA => tagged(out, bytes, Form::MarvellTyped)?,
        LinkType::PPP_PPPD => directed(out, bytes)?,
        LinkType::SLIP => return slip(out, bytes, wire_len),
        LinkType::PFLOG => {
            return match Pflog::parse(bytes) {
                Ok(header) => write!(out, "{header:#}: "),
                Err(_) => Ok(()),
            };
        }
        LinkType::IPNET => ipnet(out, bytes)?,
        LinkType::NETANALYZER => return behind(out, bytes, 4, wire_len),
        LinkType::NETANALYZER_TRANSPARENT => return behind(out, bytes, 12, wire_len),
        LinkType::ENC => return Ok(()),
        // What is known of these is on the line.
        LinkType::VSOCK | LinkType::USB_LINUX | LinkType::USB_LINUX_MMAPPED => return Ok(()),
        LinkType::IEEE802_15_4 | LinkType::IEEE802_15_4_NOFCS | LinkType::IEEE802_15_4_TAP => {
            return Ok(());
        }
        _ => {}
    }
    write!(out, "length {wire_len}: ")
}

/// Prints an Ethernet header behind another one, and the length of its packet.
fn behind(out: &mut impl Write, bytes: &[u8], offset: u32, wire_len: u32) -> fmt::Result {
    ethernet(out, bytes.get(offset as usize..).unwrap_or(&[]))?;
    write!(out, "length {}: ", wire_len.saturating_sub(offset))
}

/// Prints the zones of a packet of Solaris.
fn ipnet(out: &mut impl Write, bytes: &[u8]) -> fmt::Result {
    let Ok(header) = Ipnet::parse(bytes) else {
        return Ok(());
    };
    let family = header.family();
    let name = match family {
        2 => "IPv4",
        26 => "IPv6",
        _ => "Unknown",
    };
    write!(
        out,
        "{} > {}, family {name} ({family}), ",
        header.zone(0),
        header.zone(1)
    )
}

/// Prints an Ethernet header with the tag of a switch.
fn tagged(out: &mut impl Write, bytes: &[u8], form: Form) -> fmt::Result {
    let (Ok(ethernet), Ok((tag, kind))) = (Ethernet::parse(bytes), DsaTag::parse(bytes, form))
    else {
        return Ok(());
    };
    write!(out, "{} > {}, {tag:#}, ", ethernet.src(), ethernet.dst())?;
    match kind {
        0..=1535 => write!(out, "802.3, "),
        kind => ether_type(out, kind),
    }
}

/// Prints the tag of a switch, and the Ethernet header after it.
fn prepended(out: &mut impl Write, bytes: &[u8], wire_len: u32) -> fmt::Result {
    if let Ok(tag) = DsaTag::prepended(bytes) {
        write!(out, "{tag:#}, ")?;
    }
    behind(out, bytes, 4, wire_len)
}

/// Prints PPP with a direction in place of its address.
fn directed(out: &mut impl Write, bytes: &[u8]) -> fmt::Result {
    let (way, rest) = directed_ppp(bytes);
    match way {
        Some(0) => write!(out, "In  ")?,
        Some(_) => write!(out, "Out ")?,
        None => {}
    }
    ppp(out, rest)
}

/// Prints SLIP's header: the direction, and what was sent in place of the IP header (RFC 1144).
fn slip(out: &mut impl Write, bytes: &[u8], wire_len: u32) -> fmt::Result {
    let Ok(header) = Slip::parse(bytes) else {
        return Ok(());
    };
    match header.direction() {
        0 => write!(out, "I ")?,
        1 => write!(out, "O ")?,
        other => write!(out, "Invalid direction {other} ")?,
    }
    let sent = header.compressed();
    match sent.first().copied().unwrap_or(0) {
        first if first & 0xf0 == 0x40 => write!(out, "ip {wire_len}: "),
        // The connection is in place of the protocol.
        first if first & 0xf0 == 0x70 => {
            write!(out, "utcp {}: ", sent.get(9).copied().unwrap_or(0))
        }
        first if first & 0x80 != 0 => write!(out, "ctcp: "),
        first => write!(out, "slip-{first}!: "),
    }
}

fn ethernet(out: &mut impl Write, bytes: &[u8]) -> fmt::Result {
    let Ok(ethernet) = Ethernet::parse(bytes) else {
        return Ok(());
    };
    write!(out, "{} > {}, ", ethernet.src(), ethernet.dst())?;
    match ethernet.ether_type() {
        0..=1535 => write!(out, "802.3, "),
        kind => ether_type(out, kind),
    }
}

/// Prints either version of a Linux cooked header. In the second, the interface and the direction
/// precede the line, with or without link headers.
fn cooked(out: &mut impl Write, header: Result<Sll<'_>, Reason>) -> fmt::Result {
    let Ok(header) = header else {
        return Ok(());
    };
    match header.interface {
        Some(index) => write!(out, "ifindex {index} ")?,
        None => write!(out, "{:>3} ", way(header.packet_type))?,
    }
    if let Ok(address) = header.address.try_into() {
        write!(out, "{} ", Mac(address))?;
    }
    ether_type(out, header.protocol)
}

fn loopback(out: &mut impl Write, bytes: &[u8]) -> fmt::Result {
    let Ok(header) = Null::parse(bytes) else {
        return Ok(());
    };
    let family = header.family();
    let name = match family {
        2 => "IPv4",
        10 | 24 | 28 | 30 => "IPv6",
        7 => "ISO",
        16 => "AppleTalk",
        23 => "IPX",
        _ => "Unknown",
    };
    write!(out, "AF {name} ({family}), ")
}

fn hdlc(out: &mut impl Write, bytes: &[u8]) -> fmt::Result {
    let Ok(header) = Chdlc::parse(bytes) else {
        return Ok(());
    };
    match header.address() {
        0x0f => write!(out, "unicast, ")?,
        0x8f => write!(out, "bcast, ")?,
        other => write!(out, "0x{other:02x}, ")?,
    }
    ether_type(out, header.ether_type())
}

fn ppp(out: &mut impl Write, bytes: &[u8]) -> fmt::Result {
    let Ok(header) = Ppp::parse(bytes) else {
        return Ok(());
    };
    let protocol = header.protocol();
    write!(out, "{} (0x{protocol:04x}), ", ppp_name(protocol))
}

/// Prints PPP after address and control, the link type of serial lines.
fn ppp_in_hdlc(out: &mut impl Write, bytes: &[u8], wire_len: u32) -> fmt::Result {
    write!(out, "ff 03 {wire_len} ")?;
    match Ppp::parse(bytes) {
        Ok(header) => write!(out, "{}: ", ppp_name(header.protocol())),
        Err(_) => Ok(()),
    }
}

/// tcpdump's name of a PPP protocol (registry "PPP DLL Protocol Numbers").
fn ppp_name(protocol: u16) -> &'static str {
    match protocol {
        0x0021 => "IP",
        0x0023 => "OSI",
        0x0029 => "APPLE",
        0x002b => "IPX",
        0x002d => "VJC IP",
        0x002f => "VJNC IP",
        0x0031 => "BRPDU",
        0x003d => "MLPPP",
        0x0057 => "IP6",
        0x00fd => "Compressed",
        0x0281 | 0x0283 => "MPLS",
        0x8021 => "IPCP",
        0x8023 => "OSICP",
        0x8029 => "APPLECP",
        0x802b => "IPXCP",
        0x8057 => "IP6CP",
        0x80fd => "CCP",
        0x8281 => "MPLSCP",
        0xc021 => "LCP",
        0xc023 => "PAP",
        0xc025 => "LQM",
        0xc223 => "CHAP",
        0xc227 => "EAP",
        _ => "unknown",
    }
}

fn ether_type(out: &mut impl Write, kind: u16) -> fmt::Result {
    write!(out, "ethertype {} (0x{kind:04x}), ", ether_type_name(kind))
}

fn ether_type_name(kind: u16) -> &'static str {
    match kind {
        0x0800 => "IPv4",
        0x0806 => "ARP",
        0x8035 => "Reverse ARP",
        0x86dd => "IPv6",
        0x8100 => "802.1Q",
        0x88a8 => "802.1Q-QinQ",
        0x8847 => "MPLS unicast",
        0x8863 => "PPPoE D",
        0x8864 => "PPPoE S",
        0x88cc => "LLDP",
        0x888e => "EAPOL",
        _ => "Unknown",
    }
}
