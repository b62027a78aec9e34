//! ARCNET (LINKTYPE_ARCNET_BSD, LINKTYPE_ARCNET_LINUX).
//!
//! ```text
//! source u8, destination u8, [ Linux: offset u16 ], type u8
//! RFC 1201: split flag u8, sequence u16, packet; with flag 0xff these twice
//! RFC 1051: packet
//! ```
//!
//! The type tells one encapsulation from the other. A packet may be split into fragments: with an
//! odd flag it is the first one, and an even flag above zero is a later one, without headers.

use crate::table::Protocol;
use crate::walk::{Next, Walk};
use crate::{LayerKind, LinkType, Reason};

/// System codes.
mod code {
    /// IPv6.
    pub(super) const IPV6: u8 = 196;
    /// IP of RFC 1201.
    pub(super) const IP: u8 = 212;
    /// ARP of RFC 1201.
    pub(super) const ARP: u8 = 213;
    /// IP of RFC 1051.
    pub(super) const OLD_IP: u8 = 240;
    /// ARP of RFC 1051.
    pub(super) const OLD_ARP: u8 = 241;
    /// Reverse ARP of RFC 1201.
    pub(super) const RARP: u8 = 214;
}

/// The flag before a short fragment that had to be padded.
const EXCEPTION: u8 = 0xff;

fn after_addresses(walk: &mut Walk<'_, '_>) -> Next {
    let kind = walk.peek::<1>()?[0];
    walk.advance(1)?;
    let next = match kind {
        code::OLD_IP => return Ok(LayerKind::Ipv4),
        code::OLD_ARP => return Ok(LayerKind::Arp),
        code::IP => LayerKind::Ipv4,
        code::IPV6 => LayerKind::Ipv6,
        code::ARP | code::RARP => LayerKind::Arp,
        _ => return Err(Reason::UnsupportedType),
    };
    let mut flag = walk.peek::<3>()?[0];
    walk.advance(3)?;
    if flag == EXCEPTION {
        flag = walk.peek::<4>()?[0];
        walk.advance(4)?;
    }
    match flag != 0 && flag & 1 == 0 {
        true => Err(Reason::UnsupportedType),
        false => Ok(next),
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    walk.peek::<2>()?;
    walk.advance(2)?;
    after_addresses(walk)
}

fn step_linux(walk: &mut Walk<'_, '_>) -> Next {
    walk.peek::<4>()?;
    walk.advance(4)?;
    after_addresses(walk)
}

pub(crate) const BSD: Protocol = Protocol {
    name: "arcnet",
    spec: "RFC 1201",
    links: &[LinkType::ARCNET],
    sample: &[1, 2, 0xdd, 0, 0, 0, 1, 2],
    step,
    show: |_, f| f.write_str("ARCNET"),
    ..Protocol::BASE
};

pub(crate) const LINUX: Protocol = Protocol {
    name: "arcnet-linux",
    spec: "RFC 1201",
    links: &[LinkType::ARCNET_LINUX],
    sample: &[1, 2, 0, 0, 0xdd, 0, 0, 0, 1, 2],
    step: step_linux,
    show: |_, f| f.write_str("ARCNET"),
    ..Protocol::BASE
};
