//! Juniper's link types (LINKTYPE_JUNIPER_*): a header, a cookie of the card, and a packet.
//!
//! ```text
//! "MGC", flags u8, with flag 0x80: length u16 and extensions
//! with flag 0x02 (no link header): 4 bytes, IP
//! cookie: by the link type; 2 bytes more if it begins with 0x54, 8 bytes if with 0x47
//! ```
//!
//! A cookie of 8 bytes has the protocol in its sixth byte: 0 IPv4, 1 IPv6, 2 MPLS, in the upper
//! half. Without a protocol field the version of the IP header tells.

use crate::table::Protocol;
use crate::walk::{Next, Walk};
use crate::{LayerKind, LinkType, Reason, be16, ethernet, frame_relay};

/// Start of every header.
const MAGIC: [u8; 3] = *b"MGC";
/// Extensions follow.
const EXTENDED: u8 = 0x80;
/// The link header was removed.
const NO_LINK: u8 = 0x02;
/// The packet was received.
const RECEIVED: u8 = 0x01;

/// First byte of a cookie of a link services card, and of an adaptive services card.
const LINK_SERVICES: u8 = 0x54;
const ADAPTIVE_SERVICES: u8 = 0x47;

/// What is in front of the packet.
enum Start {
    /// Nothing: it begins with an IP header.
    Ip(LayerKind),
    /// The header of the link type, after these flags.
    Link(u8),
}

fn start(walk: &mut Walk<'_, '_>) -> Result<Start, Reason> {
    let &[a, b, c, flags] = walk.peek::<4>()?;
    if [a, b, c] != MAGIC {
        return Err(Reason::UnsupportedType);
    }
    walk.advance(4)?;
    if flags & EXTENDED != 0 {
        let [high, low] = *walk.peek::<2>()?;
        walk.advance(2 + usize::from(be16(high, low)))?;
    }
    if flags & NO_LINK == 0 {
        return Ok(Start::Link(flags));
    }
    walk.peek::<4>()?;
    walk.advance(4)?;
    ip(walk).map(Start::Ip)
}

/// IP by its version.
fn ip(walk: &Walk<'_, '_>) -> Next {
    match walk.peek::<1>()?[0] >> 4 {
        4 => Ok(LayerKind::Ipv4),
        6 => Ok(LayerKind::Ipv6),
        _ => Err(Reason::UnsupportedType),
    }
}

/// The first bytes of a cookie.
struct Cookie {
    /// Its bytes, and zeros.
    bytes: [u8; 10],
    /// The card that wrote it, by its first byte: link services, adaptive services or 0.
    card: u8,
}

/// Steps over a cookie of `len` bytes, or what a services card has in its place.
fn cookie(walk: &mut Walk<'_, '_>, len: usize) -> Result<Cookie, Reason> {
    let first = walk.peek::<1>()?[0];
    let (card, len) = match first {
        LINK_SERVICES => (first, len + 2),
        ADAPTIVE_SERVICES => (first, 8),
        _ => (0, len),
    };
    let mut bytes = [0; 10];
    match walk.rest.get(..len) {
        Some(found) => bytes
            .iter_mut()
            .zip(found)
            .for_each(|(to, from)| *to = *from),
        None => return Err(walk.missing(len)),
    }
    walk.advance(len)?;
    Ok(Cookie { bytes, card })
}

/// The protocol in the cookie of an adaptive services card.
fn services_protocol(cookie: &Cookie) -> Next {
    const FROM_ROUTING_ENGINE: u8 = 3;
    match (cookie.bytes[5] >> 4 & 7, cookie.bytes[4]) {
        (0, FROM_ROUTING_ENGINE) => Ok(LayerKind::Ppp),
        (0, _) => Ok(LayerKind::Ipv4),
        (1, _) => Ok(LayerKind::Ipv6),
        (2, _) => Ok(LayerKind::Mpls),
        _ => Err(Reason::UnsupportedType),
    }
}

/// A control field, which may be missing, and the number of a protocol (RFC 2427).
fn nlpid(walk: &mut Walk<'_, '_>) -> Next {
    let [control, protocol] = *walk.peek::<2>()?;
    if control != 3 {
        return Err(Reason::UnsupportedType);
    }
    walk.advance(2)?;
    match protocol {
        frame_relay::nlpid::IPV4 => Ok(LayerKind::Ipv4),
        frame_relay::nlpid::IPV6 => Ok(LayerKind::Ipv6),
        frame_relay::nlpid::PPP => Ok(LayerKind::Ppp),
        _ => Err(Reason::UnsupportedType),
    }
}

fn mlppp(walk: &mut Walk<'_, '_>, _: u8) -> Next {
    let cookie = cookie(walk, 2)?;
    match cookie.card {
        ADAPTIVE_SERVICES => services_protocol(&cookie),
        _ => Ok(LayerKind::Ppp),
    }
}

fn mlfr(walk: &mut Walk<'_, '_>, _: u8) -> Next {
    let cookie = cookie(walk, 2)?;
    match cookie.card {
        ADAPTIVE_SERVICES => services_protocol(&cookie),
        _ => nlpid(walk),
    }
}

fn mfr(walk: &mut Walk<'_, '_>, _: u8) -> Next {
    // A member of the bundle has no cookie: these are fragments (FRF.16).
    const WHOLE: u8 = 0xc0;
    if walk.peek::<1>()?[0] & WHOLE == WHOLE {
        return Err(Reason::UnsupportedType);
    }
    let cookie = cookie(walk, 4)?;
    match cookie.card {
        ADAPTIVE_SERVICES => services_protocol(&cookie),
        _ => nlpid(walk),
    }
}

fn ggsn(walk: &mut Walk<'_, '_>, _: u8) -> Next {
    match cookie(walk, 8)?.bytes[2] {
        2 => Ok(LayerKind::Ipv4),
        6 => Ok(LayerKind::Ipv6),
        _ => Err(Reason::UnsupportedType),
    }
}

fn guessed(walk: &mut Walk<'_, '_>, _: u8) -> Next {
    cookie(walk, 8)?;
    ip(walk)
}

/// LLC, or the protocol of a packet without it.
fn llc(walk: &mut Walk<'_, '_>) -> Next {
    match walk.peek::<3>()? {
        [0xfe, 0xfe, 3] | [0xaa, 0xaa, 3] => Ok(LayerKind::Llc),
        [3, ..] => nlpid(walk),
        _ => ip(walk),
    }
}

fn atm1(walk: &mut Walk<'_, '_>, _: u8) -> Next {
    const CELL: u8 = 0x80;
    match cookie(walk, 4)?.bytes[0] {
        CELL => Err(Reason::UnsupportedType),
        _ => llc(walk),
    }
}

fn atm2(walk: &mut Walk<'_, '_>, flags: u8) -> Next {
    const CELL_KIND: u8 = 0x70;
    const GAPS: u8 = 0x3f;
    let cookie = cookie(walk, 8)?;
    if cookie.bytes[7] & CELL_KIND != 0 {
        return Err(Reason::UnsupportedType);
    }
    let head = walk.peek::<3>()?;
    match *head {
        [0xfe, 0xfe, 3] | [0xaa, 0xaa, 3] => Ok(LayerKind::Llc),
        // Bridged Ethernet.
        _ if flags & RECEIVED == 0 && cookie.bytes[3] & GAPS != 0 => Ok(LayerKind::Ethernet),
        [3, ..] => nlpid(walk),
        [0 | 0x80 | 0xc0 | 0xc2, 0x21 | 0x23 | 0x57, _] => Ok(LayerKind::Ppp),
        _ => ip(walk),
    }
}

fn pppoe_atm(walk: &mut Walk<'_, '_>, _: u8) -> Next {
    let [high, low] = *walk.peek::<2>()?;
    walk.advance(2)?;
    ethernet::next_of_ether_type(be16(high, low))
}

fn step(walk: &mut Walk<'_, '_>, link: fn(&mut Walk<'_, '_>, u8) -> Next) -> Next {
    match start(walk)? {
        Start::Ip(kind) => Ok(kind),
        Start::Link(flags) => link(walk, flags),
    }
}

macro_rules! rows {
    ($($row:ident $name:literal $link:ident $step:expr, [$($byte:expr),*];)*) => {
        $(pub(crate) const $row: Protocol = Protocol {
            name: $name,
            spec: concat!("LINKTYPE_", stringify!($link)),
            links: &[LinkType::$link],
            sample: &[b'M', b'G', b'C', 1, $($byte),*],
            step: |walk| step(walk, $step),
            show: |_, f| f.write_str("Juniper"),
            ..Protocol::BASE
        };)*
    };
}

rows! {
    MLPPP "juniper-mlppp" JUNIPER_MLPPP mlppp, [0, 1, 0xc0, 0x21, 1, 2];
    MLFR "juniper-mlfr" JUNIPER_MLFR mlfr, [0, 1, 3, 0xb0, 1, 2];
    GGSN "juniper-ggsn" JUNIPER_GGSN ggsn, [1, 0, 9, 0, 0, 5, 0, 0, 1, 2];
    MFR "juniper-mfr" JUNIPER_MFR mfr, [1, 2, 3, 4, 3, 0xb0, 1, 2];
    ATM2 "juniper-atm2" JUNIPER_ATM2 atm2, [0, 0, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9];
    SERVICES "juniper-services" JUNIPER_SERVICES guessed, [0, 0, 0, 0, 0, 0, 0, 0, 9, 9];
    ATM1 "juniper-atm1" JUNIPER_ATM1 atm1, [0, 0, 0, 0, 9, 9, 9, 9];
    MONITOR "juniper-monitor" JUNIPER_MONITOR guessed, [0, 0, 0, 0, 0, 0, 0, 0, 9, 9];
    PPPOE "juniper-pppoe" JUNIPER_PPPOE |_, _| Ok(LayerKind::Ethernet),
        [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5, 1, 2];
    PPPOE_ATM "juniper-pppoe-atm" JUNIPER_PPPOE_ATM pppoe_atm, [0x88, 0xb5, 1, 2];
    ETHER "juniper-ether" JUNIPER_ETHER |_, _| Ok(LayerKind::Ethernet),
        [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5, 1, 2];
    PPP "juniper-ppp" JUNIPER_PPP |_, _| Ok(LayerKind::Ppp), [0xc0, 0x21, 1, 2];
    FRELAY "juniper-frelay" JUNIPER_FRELAY |_, _| Ok(LayerKind::FrameRelay),
        [0x18, 0x41, 3, 0xb0, 1, 2];
    CHDLC "juniper-chdlc" JUNIPER_CHDLC |_, _| Ok(LayerKind::Chdlc), [0x0f, 0, 0x88, 0xb5, 1, 2];
}
