//! EtherIP (RFC 3378 section 3): version 3 in the upper four bits, twelve zero bits, an Ethernet
//! packet.

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, Reason};
use core::fmt;

/// Bytes of the header.
pub const HEADER_LEN: usize = 2;

/// An EtherIP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Etherip<'a> {
    /// The Ethernet packet inside.
    pub payload: &'a [u8],
}

impl<'a> Etherip<'a> {
    /// Splits off the header.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        match bytes
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Reason::Truncated)?
        {
            (head, payload) if head[0] >> 4 == 3 => Ok(Etherip { payload }),
            _ => Err(Reason::BadVersion),
        }
    }
}

impl fmt::Display for Etherip<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtherIP, length {}", self.payload.len())
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    if walk.peek::<HEADER_LEN>()?[0] >> 4 != 3 {
        return Err(Reason::BadVersion);
    }
    walk.advance(HEADER_LEN)?;
    walk.inner(LayerKind::Ethernet)
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "etherip",
    spec: "RFC 3378",
    ip_protocols: &[97],
    sample: &[
        0x30, 0, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5, 1, 2,
    ],
    step,
    show: |bytes, f| table::show(Etherip::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample() {
        assert_eq!(Etherip::parse(PROTOCOL.sample).unwrap().payload.len(), 16);
        assert_eq!(Etherip::parse(&[0x20, 0]), Err(Reason::BadVersion));
        assert_eq!(Etherip::parse(&[0x30]), Err(Reason::Truncated));
    }
}
