//! Cisco HDLC: an address byte (0x0f unicast, 0x8f broadcast), a zero byte, an Ethernet type.

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LinkType, Reason, be16, ethernet};
use core::fmt;

/// Bytes of the header.
pub const HEADER_LEN: usize = 4;

/// A Cisco HDLC header.
#[derive(Clone, Copy)]
pub struct Chdlc<'a> {
    head: &'a [u8; HEADER_LEN],
    /// The payload.
    pub payload: &'a [u8],
}

impl<'a> Chdlc<'a> {
    /// Splits a packet after its header.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, payload) = bytes.split_first_chunk().ok_or(Reason::Truncated)?;
        Ok(Chdlc { head, payload })
    }

    /// Address: 0x0f unicast, 0x8f broadcast.
    #[inline]
    pub fn address(&self) -> u8 {
        self.head[0]
    }

    /// Type of the payload: an Ethernet type, or 0x8035 for SLARP.
    #[inline]
    pub fn ether_type(&self) -> u16 {
        be16(self.head[2], self.head[3])
    }
}

impl fmt::Display for Chdlc<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "C-HDLC 0x{:02x}, type 0x{:04x}",
            self.address(),
            self.ether_type()
        )
    }
}

pub(crate) fn step(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<HEADER_LEN>()?;
    walk.advance(HEADER_LEN)?;
    match be16(head[2], head[3]) {
        value @ (0x0800 | 0x86dd | 0x8847 | 0x8848) => ethernet::next_of_ether_type(value),
        // SLARP uses RARP's EtherType, and Cisco has others of its own.
        _ => Err(Reason::UnsupportedType),
    }
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "chdlc",
    spec: "Cisco HDLC",
    links: &[LinkType::C_HDLC],
    sample: &[0x0f, 0, 0x88, 0xb5, 1, 2, 3, 4],
    step,
    show: |bytes, f| table::show(Chdlc::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn sample() {
        let view = Chdlc::parse(PROTOCOL.sample).unwrap();
        assert_eq!(format!("{view}"), "C-HDLC 0x0f, type 0x88b5");
        assert_eq!(view.payload.len(), 4);
    }
}
