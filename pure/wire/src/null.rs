//! BSD loopback (LINKTYPE_NULL, LINKTYPE_LOOP): four bytes of address family, then the packet.
//!
//! NULL has the number in the byte order of the capturing host, LOOP in network byte order. All
//! families are small, so a large number has the other byte order. AF_INET is 2 everywhere;
//! AF_INET6 is 10, 23, 24, 28 or 30. Some writers use an EtherType instead.

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, LinkType, Reason, ethernet};
use core::fmt;

/// Bytes of the header.
pub const HEADER_LEN: usize = 4;

/// A loopback header.
#[derive(Clone, Copy)]
pub struct Null<'a> {
    head: &'a [u8; HEADER_LEN],
    /// The payload.
    pub payload: &'a [u8],
}

impl<'a> Null<'a> {
    /// Splits a packet after its header.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, payload) = bytes.split_first_chunk().ok_or(Reason::Truncated)?;
        Ok(Null { head, payload })
    }

    /// Address family of the capturing host's system.
    #[inline]
    pub fn family(&self) -> u32 {
        family(*self.head)
    }
}

impl fmt::Display for Null<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AF {}", self.family())
    }
}

pub(crate) fn family(bytes: [u8; 4]) -> u32 {
    match u32::from_be_bytes(bytes) {
        value @ 0..=0xffff => value,
        value => value.swap_bytes(),
    }
}

pub(crate) fn step(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<HEADER_LEN>()?;
    walk.advance(HEADER_LEN)?;
    match family(*head) {
        2 => Ok(LayerKind::Ipv4),
        10 | 23 | 24 | 28 | 30 => Ok(LayerKind::Ipv6),
        value @ 0x0600..=0xffff => ethernet::next_of_ether_type(value as u16),
        _ => Err(Reason::UnsupportedType),
    }
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "null",
    spec: "LINKTYPE_NULL",
    links: &[LinkType::NULL, LinkType::LOOP],
    sample: &[7, 0, 0, 0, 1, 2, 3, 4],
    step,
    show: |bytes, f| table::show(Null::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn either_order() {
        for bytes in [[30, 0, 0, 0], [0, 0, 0, 30]] {
            assert_eq!(format!("{}", Null::parse(&bytes).unwrap()), "AF 30");
        }
    }
}
