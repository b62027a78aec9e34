//! Ethernet II and IEEE 802.3 (IEEE 802.3 clause 3.2).
//!
//! ```text
//!  0                   6                   12      14
//! +-------------------+-------------------+-------+----------
//! | destination       | source            | type  | payload
//! +-------------------+-------------------+-------+----------
//! ```
//!
//! A value up to 1500 in the type field is a length, and an LLC header follows; from 1536 on it is
//! an EtherType. Values in between are undefined.

use crate::table::{self, LayerKind, Protocol};
use crate::walk::{Next, Walk};
use crate::{LinkType, Mac, Reason, be16};
use core::fmt;

/// Bytes of the header.
pub const HEADER_LEN: usize = 14;

/// Ethernet types.
pub mod ether_type {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// 802.1Q tag.
    pub const VLAN: u16 = 0x8100;
    /// 802.1ad tag.
    pub const QINQ: u16 = 0x88a8;
    /// Ethernet as the payload of a tunnel (RFC 1701).
    pub const TRANSPARENT_BRIDGING: u16 = 0x6558;
    /// PPP as the payload of a tunnel (RFC 2637).
    pub const PPP: u16 = 0x880b;
}

/// An Ethernet header.
#[derive(Clone, Copy)]
pub struct Ethernet<'a> {
    head: &'a [u8; HEADER_LEN],
    /// The payload, including padding.
    pub payload: &'a [u8],
}

impl<'a> Ethernet<'a> {
    /// Splits a packet after its Ethernet header.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, payload) = bytes.split_first_chunk().ok_or(Reason::Truncated)?;
        Ok(Ethernet { head, payload })
    }

    /// Destination address.
    #[inline]
    pub fn dst(&self) -> Mac {
        let [a, b, c, d, e, f, ..] = *self.head;
        Mac([a, b, c, d, e, f])
    }

    /// Source address.
    #[inline]
    pub fn src(&self) -> Mac {
        let [_, _, _, _, _, _, a, b, c, d, e, f, _, _] = *self.head;
        Mac([a, b, c, d, e, f])
    }

    /// The type field: an EtherType from 1536 on, a length up to 1500.
    #[inline]
    pub fn ether_type(&self) -> u16 {
        be16(self.head[12], self.head[13])
    }
}

impl fmt::Display for Ethernet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} > {}, type 0x{:04x}",
            self.src(),
            self.dst(),
            self.ether_type()
        )
    }
}

/// Writes a header into `out` and returns it.
pub fn emit(out: &mut [u8; HEADER_LEN], dst: Mac, src: Mac, ether_type: u16) {
    out[..6].copy_from_slice(&dst.0);
    out[6..12].copy_from_slice(&src.0);
    out[12..].copy_from_slice(&ether_type.to_be_bytes());
}

/// The layer selected by a type or length field; the cursor is after the field.
#[inline]
pub(crate) fn next_of_type(walk: &mut Walk<'_, '_>, value: u16) -> Next {
    match value {
        // A length: what follows it is padding or a trailer.
        0..=1500 => {
            walk.limit(usize::from(value));
            Ok(LayerKind::Llc)
        }
        _ => next_of_ether_type(value),
    }
}

/// The layer selected by an EtherType.
#[inline]
pub(crate) fn next_of_ether_type(value: u16) -> Next {
    match table::of_ether_type(value) {
        LayerKind::None => Err(Reason::UnsupportedType),
        kind => Ok(kind),
    }
}

/// The layer selected by an EtherType in a tunnel's header.
pub(crate) fn inner_of_ether_type(walk: &mut Walk<'_, '_>, value: u16) -> Next {
    match value {
        ether_type::TRANSPARENT_BRIDGING => walk.inner(LayerKind::Ethernet),
        ether_type::PPP => walk.inner(LayerKind::Ppp),
        _ => match table::of_ether_type(value) {
            LayerKind::None => Err(Reason::UnsupportedTunnel),
            kind => walk.inner(kind),
        },
    }
}

pub(crate) fn step(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<HEADER_LEN>()?;
    walk.advance(HEADER_LEN)?;
    next_of_type(walk, be16(head[12], head[13]))
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "eth",
    spec: "IEEE 802.3",
    links: &[LinkType::ETHERNET],
    // SRv6 L2 (RFC 8986); EtherIP has its own header.
    tunnelled_by_ip: &[143],
    sample: &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5, 1, 2, 3, 4],
    step,
    show: |bytes, f| table::show(Ethernet::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn emit_then_parse() {
        let (dst, src) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
        let mut bytes = [0; HEADER_LEN];
        emit(&mut bytes, dst, src, 0x86dd);
        let view = Ethernet::parse(&bytes).unwrap();
        assert_eq!(
            (view.dst(), view.src(), view.ether_type()),
            (dst, src, 0x86dd)
        );
        assert_eq!(
            format!("{view}"),
            "02:00:00:00:00:02 > 02:00:00:00:00:01, type 0x86dd"
        );
        assert!(Ethernet::parse(&bytes[..13]).is_err());
    }
}
