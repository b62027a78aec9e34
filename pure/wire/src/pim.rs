//! PIM (RFC 7761 section 4.9): version and type u8, 0 u8, checksum u16, then by type. A Register
//! message (section 4.9.3) carries the IP packet of a multicast source to the rendezvous point.

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, Reason, be16};
use core::fmt;

/// Bytes of the common header.
pub const HEADER_LEN: usize = 4;

/// The type of a Register message.
const REGISTER: u8 = 1;

/// A PIM message.
#[derive(Clone, Copy)]
pub struct Pim<'a> {
    head: &'a [u8; HEADER_LEN],
    /// The bytes after the common header.
    pub payload: &'a [u8],
}

impl<'a> Pim<'a> {
    /// Splits a message after the common header.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, payload) = bytes.split_first_chunk().ok_or(Reason::Truncated)?;
        Ok(Pim { head, payload })
    }

    /// Version; 2 is in use.
    pub fn version(&self) -> u8 {
        self.head[0] >> 4
    }

    /// Type: 0 hello, 1 register, 2 register-stop, 3 join/prune, 4 bootstrap, 5 assert, …
    pub fn pim_type(&self) -> u8 {
        self.head[0] & 15
    }

    /// Checksum as sent.
    pub fn checksum(&self) -> u16 {
        be16(self.head[2], self.head[3])
    }
}

impl fmt::Display for Pim<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.pim_type() {
            0 => "hello",
            REGISTER => "register",
            2 => "register-stop",
            3 => "join/prune",
            4 => "bootstrap",
            5 => "assert",
            8 => "candidate RP",
            other => return write!(f, "PIMv{}, type {other}", self.version()),
        };
        write!(f, "PIMv{}, {name}", self.version())
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<HEADER_LEN>()?;
    if head[0] != 0x20 | REGISTER {
        walk.advance(HEADER_LEN)?;
        return Ok(LayerKind::None);
    }
    // With the border and null-register bits.
    walk.advance(HEADER_LEN + 4)?;
    match walk.rest.first().map(|b| b >> 4) {
        Some(4) => walk.inner(LayerKind::Ipv4),
        Some(6) => walk.inner(LayerKind::Ipv6),
        Some(_) => Err(Reason::UnsupportedTunnel),
        None if walk.wire_rest == 0 => Ok(LayerKind::None),
        None => Err(Reason::Truncated),
    }
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "pim",
    spec: "RFC 7761",
    ip_protocols: &[103],
    sample: &[0x20, 0, 0, 0, 0, 1, 0, 2, 0, 105],
    step,
    show: |bytes, f| table::show(Pim::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn sample() {
        let view = Pim::parse(PROTOCOL.sample).unwrap();
        assert_eq!(
            (view.version(), view.pim_type(), view.payload.len()),
            (2, 0, 6)
        );
        assert_eq!(format!("{view}"), "PIMv2, hello");
    }
}
