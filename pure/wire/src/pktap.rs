//! PKTAP, the packet tap of Darwin (LINKTYPE_PKTAP; Apple's programs write it as link type 149).
//! All numbers are little-endian.
//!
//! ```text
//!   0 length of the header u32, 108 or more
//!   4 type u32: 0 no packet, 1 packet
//!   8 link type of the packet (DLT_) u32
//!  12 interface name, 24 bytes
//!  36 flags, protocol family, bytes of link header and of trailer, process id: u32 each
//!  56 command name, 20 bytes
//!  76 service class u32, interface type u16 and unit u16, effective process id u32
//!  88 command name of the effective process, 20 bytes
//! ```

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LinkType, Reason};
use core::fmt;

/// Minimum header length.
pub const HEADER_LEN: usize = 108;

/// A greater value is not a length but other data: link type 149 is free for private use.
const MAX_HEADER_LEN: usize = 4096;

/// A PKTAP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pktap<'a> {
    header: &'a [u8],
    /// The packet, from its own link header on.
    pub payload: &'a [u8],
}

fn word(header: &[u8], at: usize) -> u32 {
    header
        .get(at..)
        .and_then(|bytes| bytes.first_chunk())
        .map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn header_len(start: &[u8; 4]) -> Result<usize, Reason> {
    match u32::from_le_bytes(*start) as usize {
        len @ HEADER_LEN..=MAX_HEADER_LEN => Ok(len),
        _ => Err(Reason::BadHeaderLength),
    }
}

/// A name that ends at a zero byte or at the end of its field.
fn name(header: &[u8], at: usize, len: usize) -> &[u8] {
    let field = header.get(at..at + len).unwrap_or(&[]);
    field.split(|byte| *byte == 0).next().unwrap_or(field)
}

impl<'a> Pktap<'a> {
    /// Splits off the header.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let start = bytes.first_chunk::<4>().ok_or(Reason::Truncated)?;
        let (header, payload) = bytes
            .split_at_checked(header_len(start)?)
            .ok_or(Reason::Truncated)?;
        Ok(Pktap { header, payload })
    }

    /// Bytes of the header.
    pub fn header_len(&self) -> usize {
        self.header.len()
    }

    /// Whether a packet follows.
    pub fn has_packet(&self) -> bool {
        word(self.header, 4) == 1
    }

    /// Link type of the packet, a DLT_ number.
    pub fn dlt(&self) -> u32 {
        word(self.header, 8)
    }

    /// Name of the interface.
    pub fn interface(&self) -> &'a [u8] {
        name(self.header, 12, 24)
    }

    /// Id of the process that the packet belongs to.
    pub fn process_id(&self) -> u32 {
        word(self.header, 52)
    }

    /// Name of its command.
    pub fn command(&self) -> &'a [u8] {
        name(self.header, 56, 20)
    }
}

impl fmt::Display for Pktap<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PKTAP, DLT {}", self.dlt())
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    let len = header_len(walk.peek::<4>()?)?;
    let header = walk.rest;
    walk.advance(len)?;
    if word(header, 4) != 1 {
        return Err(Reason::UnsupportedType);
    }
    walk.link(word(header, 8))
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "pktap",
    spec: "LINKTYPE_PKTAP",
    links: &[LinkType::PKTAP, LinkType::USER2],
    // en0, process 77 called "curl"; a loopback header of IPv6 whose packet is empty.
    sample: &{
        let mut bytes = [0; HEADER_LEN + 4];
        (bytes[0], bytes[4]) = (HEADER_LEN as u8, 1);
        (bytes[12], bytes[13], bytes[14]) = (b'e', b'n', b'0');
        (bytes[40], bytes[44], bytes[52]) = (30, 4, 77);
        (bytes[56], bytes[57], bytes[58], bytes[59]) = (b'c', b'u', b'r', b'l');
        bytes[HEADER_LEN] = 7;
        bytes
    },
    step,
    show: |bytes, f| table::show(Pktap::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dissection, LayerKind, dissect};
    use std::vec::Vec;

    #[test]
    fn sample() {
        let view = Pktap::parse(PROTOCOL.sample).unwrap();
        assert_eq!((view.has_packet(), view.dlt()), (true, 0));
        assert_eq!(
            (view.interface(), view.command()),
            (&b"en0"[..], &b"curl"[..])
        );
        assert_eq!((view.process_id(), view.payload.len()), (77, 4));
        let other = [&[0x45; 4][..], PROTOCOL.sample].concat();
        assert_eq!(Pktap::parse(&other), Err(Reason::BadHeaderLength));
    }

    #[test]
    fn any_link_type_may_follow() {
        let layers = |dlt: u32, payload: &[u8]| -> (Vec<LayerKind>, Reason) {
            let mut bytes = [&PROTOCOL.sample[..HEADER_LEN], payload].concat();
            bytes[8..12].copy_from_slice(&dlt.to_le_bytes());
            let mut d = Dissection::EMPTY;
            dissect(LinkType::PKTAP, &bytes, bytes.len() as u32, &mut d);
            (d.layers().skip(1).map(|(kind, _)| kind).collect(), d.reason)
        };
        // DLT_RAW is 12 on Darwin.
        let (kinds, _) = layers(12, &[0x60; 40]);
        assert_eq!(kinds, [LayerKind::Ipv6]);
        assert_eq!(layers(12, &[]), ([].into(), Reason::Short));
        let (kinds, _) = layers(1, crate::ethernet::PROTOCOL.sample);
        assert_eq!(kinds, [LayerKind::Ethernet]);
        for unknown in [9999, 65_537] {
            assert_eq!(
                layers(unknown, &[0; 9]),
                ([].into(), Reason::UnsupportedLink)
            );
        }
    }
}
