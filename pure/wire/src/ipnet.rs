//! Packets of Solaris' IP observability devices (LINKTYPE_IPNET).
//!
//! ```text
//! version u8 (1), address family u8 (2 IPv4, 26 IPv6), type u16, packet length u32,
//! interface u32, group interface u32, source zone u32, destination zone u32
//! ```

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, LinkType, Reason};
use core::fmt;

/// Bytes of the header.
pub const HEADER_LEN: usize = 24;

/// An IPNET header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipnet<'a> {
    head: &'a [u8; HEADER_LEN],
    /// The packet, without a link header.
    pub payload: &'a [u8],
}

impl<'a> Ipnet<'a> {
    /// Splits off the header.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, payload) = bytes.split_first_chunk().ok_or(Reason::Truncated)?;
        Ok(Ipnet { head, payload })
    }

    /// Solaris' address family.
    pub fn family(&self) -> u8 {
        self.head[1]
    }

    /// Source zone (0) or destination zone (1).
    pub fn zone(&self, index: usize) -> u32 {
        let found = self.head.get(16 + index.min(1) * 4..);
        let found = found.and_then(<[u8]>::first_chunk);
        found.map_or(0, |bytes| u32::from_be_bytes(*bytes))
    }
}

impl fmt::Display for Ipnet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ipnet, family {}", self.family())
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    let family = walk.peek::<HEADER_LEN>()?[1];
    walk.advance(HEADER_LEN)?;
    match family {
        2 => Ok(LayerKind::Ipv4),
        26 => Ok(LayerKind::Ipv6),
        _ => Err(Reason::UnsupportedType),
    }
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "ipnet",
    spec: "LINKTYPE_IPNET",
    links: &[LinkType::IPNET],
    sample: &[
        1, 9, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2,
    ],
    step,
    show: |bytes, f| table::show(Ipnet::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample() {
        let view = Ipnet::parse(PROTOCOL.sample).unwrap();
        assert_eq!((view.family(), view.payload), (9, &[1, 2][..]));
    }
}
