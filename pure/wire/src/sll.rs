//! Linux cooked capture, versions 1 and 2 (LINKTYPE_LINUX_SLL, LINKTYPE_LINUX_SLL2).
//!
//! ```text
//! 1: packet type u16, ARPHRD u16, address length u16, address 8 bytes, protocol u16
//! 2: protocol u16, 0 u16, interface index u32, ARPHRD u16, packet type u8, address length u8,
//!    address 8 bytes
//! ```
//!
//! Captures from `any` on Linux: the link header is replaced by the contents of the kernel's socket
//! address.

use crate::file::Direction;
use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, LinkType, Reason, be16, ethernet};
use core::fmt;

/// Bytes of the header, version 1.
pub const HEADER_LEN: usize = 16;

/// Bytes of the header, version 2.
pub const V2_HEADER_LEN: usize = 20;

/// A Linux cooked header of either version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sll<'a> {
    /// Packet type: 0 to this host, 1 broadcast, 2 multicast, 3 to another host, 4 from this host.
    pub packet_type: u8,
    /// ARPHRD_ number of the device; 1 is Ethernet, 772 loopback, 824 netlink.
    pub hardware_type: u16,
    /// EtherType of the payload, or a number below 1536 with its own meaning (4 is LLC).
    pub protocol: u16,
    /// Interface index, in version 2 only.
    pub interface: Option<u32>,
    /// Source link address, at most eight bytes of it.
    pub address: &'a [u8],
    /// The payload.
    pub payload: &'a [u8],
}

impl<'a> Sll<'a> {
    /// Splits a packet after a header of version 1.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, payload) = bytes
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Reason::Truncated)?;
        let address_len = usize::from(be16(head[4], head[5])).min(8);
        Ok(Sll {
            packet_type: head[1],
            hardware_type: be16(head[2], head[3]),
            protocol: be16(head[14], head[15]),
            interface: None,
            address: head.get(6..6 + address_len).unwrap_or(&[]),
            payload,
        })
    }

    /// Splits a packet after a header of version 2.
    pub fn parse_v2(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, payload) = bytes
            .split_first_chunk::<V2_HEADER_LEN>()
            .ok_or(Reason::Truncated)?;
        let address_len = usize::from(head[11]).min(8);
        Ok(Sll {
            packet_type: head[10],
            hardware_type: be16(head[8], head[9]),
            protocol: be16(head[0], head[1]),
            interface: Some(u32::from_be_bytes([head[4], head[5], head[6], head[7]])),
            address: head.get(12..12 + address_len).unwrap_or(&[]),
            payload,
        })
    }

    /// Direction of the packet.
    pub fn direction(&self) -> Direction {
        if self.packet_type == 4 {
            Direction::Out
        } else {
            Direction::In
        }
    }
}

impl fmt::Display for Sll<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(index) = self.interface {
            write!(f, "if {index} ")?;
        }
        let kind = match self.packet_type {
            0 => "In",
            1 => "B",
            2 => "M",
            3 => "P",
            4 => "Out",
            _ => "?",
        };
        write!(
            f,
            "{kind} hw {}, type 0x{:04x}",
            self.hardware_type, self.protocol
        )
    }
}

fn next(walk: &mut Walk<'_, '_>, hardware_type: u16, protocol: u16) -> Next {
    match (hardware_type, protocol) {
        // Netlink, 802.11 without and with radio headers: the protocol is not an EtherType.
        (824 | 801..=803, _) => Err(Reason::UnsupportedType),
        (_, 4) => Ok(LayerKind::Llc),
        (_, 0x0600..) => ethernet::next_of_type(walk, protocol),
        _ => Err(Reason::UnsupportedType),
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<HEADER_LEN>()?;
    walk.advance(HEADER_LEN)?;
    next(walk, be16(head[2], head[3]), be16(head[14], head[15]))
}

fn step_v2(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<V2_HEADER_LEN>()?;
    walk.advance(V2_HEADER_LEN)?;
    next(walk, be16(head[8], head[9]), be16(head[0], head[1]))
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "sll",
    spec: "LINKTYPE_LINUX_SLL",
    links: &[LinkType::LINUX_SLL],
    sample: &[
        0, 4, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 0x88, 0xb5, 1, 2, 3, 4,
    ],
    step,
    show: |bytes, f| table::show(Sll::parse(bytes), f),
    ..Protocol::BASE
};

pub(crate) const PROTOCOL_V2: Protocol = Protocol {
    name: "sll2",
    spec: "LINKTYPE_LINUX_SLL2",
    links: &[LinkType::LINUX_SLL2],
    sample: &[
        0x88, 0xb5, 0, 0, 0, 0, 0, 3, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 1, 2, 3, 4,
    ],
    step: step_v2,
    show: |bytes, f| table::show(Sll::parse_v2(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn both_versions() {
        let one = Sll::parse(PROTOCOL.sample).unwrap();
        assert_eq!(
            (one.direction(), one.address),
            (Direction::Out, &[2, 0, 0, 0, 0, 1][..])
        );
        assert_eq!(format!("{one}"), "Out hw 1, type 0x88b5");
        let two = Sll::parse_v2(PROTOCOL_V2.sample).unwrap();
        assert_eq!((two.direction(), two.interface), (Direction::In, Some(3)));
        assert_eq!((two.address, two.payload), (one.address, one.payload));
        assert_eq!(format!("{two}"), "if 3 In hw 1, type 0x88b5");
    }
}
