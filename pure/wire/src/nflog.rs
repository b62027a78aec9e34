//! NFLOG, netfilter's log messages to user space (LINKTYPE_NFLOG).
//!
//! ```text
//! address family u8, version u8 (0), resource u16
//! attributes: length u16 (these four bytes included), type u16, value, padding to four bytes
//! ```
//!
//! Attribute 9 is the packet, attribute 1 begins with its EtherType. Lengths and types have the
//! byte order of the capturing machine, which the file does not record. The upper two bits of a
//! type are flags, for nested attributes and for values in network byte order. The number below
//! them is less than 64, so without flags the first byte of a type is zero only in big-endian
//! order.

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, LinkType, Reason, be16, ethernet};
use core::fmt;

/// Bytes of the header before the attributes.
pub const HEADER_LEN: usize = 4;

/// Bytes of an attribute's header.
const ATTRIBUTE_LEN: usize = 4;

/// Maximum number of attributes read before the packet; the kernel writes some twenty.
const MAX_ATTRIBUTES: usize = 64;

/// Attribute types.
pub mod attribute {
    /// Ethernet type u16, netfilter hook u8; in network byte order.
    pub const PACKET_HEADER: u16 = 1;
    /// The packet.
    pub const PAYLOAD: u16 = 9;
    /// The rule's prefix, with a zero byte after it.
    pub const PREFIX: u16 = 10;
}

/// An NFLOG header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nflog<'a> {
    head: &'a [u8; HEADER_LEN],
    attributes: &'a [u8],
    /// The packet, without a link header.
    pub payload: &'a [u8],
}

/// The number of an attribute in its type: without `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
const NUMBER_MASK: u16 = 0x3fff;

/// Length of an attribute, and its type without flags.
fn attribute(head: &[u8; ATTRIBUTE_LEN]) -> (usize, u16) {
    let order = match head[2] & (NUMBER_MASK >> 8) as u8 {
        0 => u16::from_be_bytes,
        _ => u16::from_le_bytes,
    };
    let len = order([head[0], head[1]]);
    (usize::from(len), order([head[2], head[3]]) & NUMBER_MASK)
}

impl<'a> Nflog<'a> {
    /// Splits off the packet.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, rest) = bytes.split_first_chunk().ok_or(Reason::Truncated)?;
        let view = Nflog {
            head,
            attributes: rest,
            payload: &[],
        };
        let payload = view.attribute(attribute::PAYLOAD).unwrap_or(&[]);
        Ok(Nflog { payload, ..view })
    }

    /// Address family: 2 IPv4, 10 IPv6, others not IP.
    pub fn family(&self) -> u8 {
        self.head[0]
    }

    /// Version, 0.
    pub fn version(&self) -> u8 {
        self.head[1]
    }

    /// The group that the rule logs to.
    pub fn resource(&self) -> u16 {
        be16(self.head[2], self.head[3])
    }

    /// The value of the first attribute of a type, as far as it is present.
    pub fn attribute(&self, wanted: u16) -> Option<&'a [u8]> {
        let mut rest = self.attributes;
        for _ in 0..MAX_ATTRIBUTES {
            let (head, value) = rest.split_first_chunk::<ATTRIBUTE_LEN>()?;
            let (len, kind) = attribute(head);
            let value_len = len.checked_sub(ATTRIBUTE_LEN)?;
            if kind == wanted {
                return Some(value.get(..value_len).unwrap_or(value));
            }
            rest = rest.get(len.next_multiple_of(4)..)?;
        }
        None
    }

    /// The log prefix of the rule.
    pub fn prefix(&self) -> Option<&'a [u8]> {
        let value = self.attribute(attribute::PREFIX)?;
        value.split(|byte| *byte == 0).next()
    }
}

impl fmt::Display for Nflog<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (family, resource) = (self.family(), self.resource());
        write!(f, "NFLOG, family {family}, resource {resource}")
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<HEADER_LEN>()?;
    let (family, version) = (head[0], head[1]);
    if version != 0 {
        return Err(Reason::BadVersion);
    }
    walk.advance(HEADER_LEN)?;
    let mut ether_type = None;
    for _ in 0..MAX_ATTRIBUTES {
        if walk.wire_rest == 0 {
            // Only attributes: a rule may log without the packet.
            return Ok(LayerKind::None);
        }
        let head = walk.peek::<ATTRIBUTE_LEN>()?;
        let (len, kind) = attribute(head);
        let value_len = len.checked_sub(ATTRIBUTE_LEN).ok_or(Reason::BadLength)?;
        if kind == attribute::PACKET_HEADER && value_len >= 2 {
            let [_, _, _, _, a, b] = walk.peek::<6>()?;
            ether_type = Some(be16(*a, *b));
        }
        if kind == attribute::PAYLOAD {
            walk.advance(ATTRIBUTE_LEN)?;
            walk.limit(value_len);
            return match (family, ether_type) {
                (2, _) => Ok(LayerKind::Ipv4),
                (10, _) => Ok(LayerKind::Ipv6),
                (_, Some(value)) => ethernet::next_of_ether_type(value),
                _ => Err(Reason::UnsupportedType),
            };
        }
        // The last attribute may lack its padding.
        walk.advance(len)?;
        let padding = (len.next_multiple_of(4) - len).min(walk.wire_rest);
        walk.advance(padding)?;
    }
    Err(Reason::TooDeep)
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "nflog",
    spec: "LINKTYPE_NFLOG",
    links: &[LinkType::NFLOG],
    // A bridge's packet of local experiments to group 5, logged as "drop".
    sample: &[
        7, 0, 0, 5, 8, 0, 1, 0, 0x88, 0xb5, 3, 0, 9, 0, 10, 0, b'd', b'r', b'o', b'p', 0, 0, 0, 0,
        8, 0, 9, 0, 1, 2, 3, 4,
    ],
    step,
    show: |bytes, f| table::show(Nflog::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dissection, dissect};

    #[test]
    fn sample() {
        let view = Nflog::parse(PROTOCOL.sample).unwrap();
        assert_eq!((view.family(), view.version(), view.resource()), (7, 0, 5));
        assert_eq!(view.prefix(), Some(&b"drop"[..]));
        assert_eq!(view.payload, [1, 2, 3, 4]);
    }

    #[test]
    fn either_byte_order() {
        let ip = [
            0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        for attributes in [
            [5, 0, 10, 0, 0, 0, 0, 0, 24, 0, 9, 0],
            [0, 5, 0, 10, 0, 0, 0, 0, 0, 24, 0, 9],
        ] {
            let bytes = [&[2, 0, 0, 0][..], &attributes, &ip].concat();
            let mut d = Dissection::EMPTY;
            dissect(LinkType::NFLOG, &bytes, bytes.len() as u32, &mut d);
            assert_eq!((d.ip_version, d.ip_protocol), (4, 59), "{attributes:?}");
            assert_eq!(Nflog::parse(&bytes).unwrap().payload, ip);
        }
    }

    #[test]
    fn nested_attributes_in_either_byte_order() {
        let ip = [
            0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        // Bridge family, as Linux 5.2 and later log a tagged frame: NFULA_PACKET_HDR, then
        // NFULA_VLAN with NLA_F_NESTED, which holds protocol and TCI, then the packet.
        let (hook, vlan) = ([8, 0, 0, 0], [0x81, 0]);
        for (order, name) in [
            (u16::to_be_bytes as fn(u16) -> [u8; 2], "big-endian"),
            (u16::to_le_bytes, "little-endian"),
        ] {
            let head = |len, kind| [order(len), order(kind)].concat();
            let bytes = [
                &[7, 0, 0, 5][..],
                &head(8, 1),
                &hook,
                &head(20, 0x8000 | 19),
                &head(6, 1),
                &vlan,
                &[0; 2],
                &head(6, 2),
                &[0, 7, 0, 0],
                &head(24, 9),
                &ip,
            ]
            .concat();
            let mut d = Dissection::EMPTY;
            dissect(LinkType::NFLOG, &bytes, bytes.len() as u32, &mut d);
            assert_eq!((d.ip_version, d.ip_protocol), (4, 59), "{name}: {d:?}");
            let view = Nflog::parse(&bytes).unwrap();
            assert_eq!(view.payload, ip, "{name}");
            let nested = view.attribute(19).unwrap_or(&[]);
            assert_eq!(nested.len(), 16, "{name}");
        }
    }

    #[test]
    fn attributes_have_a_length_and_a_bound() {
        let reason = |bytes: &[u8]| {
            let mut d = Dissection::EMPTY;
            dissect(LinkType::NFLOG, bytes, bytes.len() as u32, &mut d);
            d.reason
        };
        assert_eq!(reason(&[2, 0, 0, 0, 3, 0, 10, 0]), Reason::BadLength);
        assert_eq!(reason(&[2, 0, 0, 0, 5, 0, 10, 0, 7]), Reason::Complete);
        assert_eq!(reason(&[2, 1, 0, 0]), Reason::BadVersion);
        let many = [&[2, 0, 0, 0][..], &[4, 0, 10, 0].repeat(1000)].concat();
        assert_eq!(reason(&many), Reason::TooDeep);
    }
}
