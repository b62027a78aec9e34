//! ERSPAN types II and III (draft-foschiano-erspan): a mirrored Ethernet packet inside GRE.
//!
//! ```text
//!  0                   1                   2                   3
//! +-------+-----------------------+-----+---+-+-------------------+
//! | ver   | VLAN                  | COS |En |T| session id        |
//! +-------+-----------------------+-----+---+-+-------------------+
//! | II: reserved, index           | III: time stamp (4 bytes)     |
//! | III: group tag, …, O flag     | III: if O, 8 more bytes       |
//! ```

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, Reason, be16};
use core::fmt;

/// An ERSPAN header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Erspan<'a> {
    /// 1 for type II, 2 for type III.
    pub version: u8,
    /// VLAN id of the mirrored packet.
    pub vlan: u16,
    /// Session id, 10 bits.
    pub session_id: u16,
    /// The mirrored packet.
    pub payload: &'a [u8],
}

impl<'a> Erspan<'a> {
    /// Splits off the header.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let head: &[u8; 8] = bytes.first_chunk().ok_or(Reason::Truncated)?;
        let len = header_len(bytes)?.ok_or(Reason::Truncated)?;
        Ok(Erspan {
            version: head[0] >> 4,
            vlan: be16(head[0], head[1]) & 0x0fff,
            session_id: be16(head[2], head[3]) & 0x03ff,
            payload: bytes.get(len..).ok_or(Reason::Truncated)?,
        })
    }
}

impl fmt::Display for Erspan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.version == 1 { "II" } else { "III" };
        write!(
            f,
            "ERSPAN type {kind}, session {}, vlan {}",
            self.session_id, self.vlan
        )
    }
}

/// Length of the header in bytes; `None` if it cannot be determined.
fn header_len(bytes: &[u8]) -> Result<Option<usize>, Reason> {
    match bytes.first().map(|b| b >> 4) {
        None => Ok(None),
        Some(1) => Ok(Some(8)),
        Some(2) => Ok(bytes
            .get(11)
            .map(|last| if last & 1 != 0 { 20 } else { 12 })),
        Some(_) => Err(Reason::BadVersion),
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    let Some(len) = header_len(walk.rest)? else {
        return Err(walk.missing(walk.rest.len() + 1));
    };
    let head = walk.peek::<4>()?;
    walk.out.tunnel_id = u32::from(be16(head[2], head[3]) & 0x03ff);
    walk.advance(len)?;
    walk.inner(LayerKind::Ethernet)
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "erspan",
    spec: "draft-foschiano-erspan",
    sample: &[
        0x10, 0x07, 0, 0x05, 0, 0, 0, 1, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5, 1, 2,
    ],
    step,
    show: |bytes, f| table::show(Erspan::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn types() {
        let view = Erspan::parse(PROTOCOL.sample).unwrap();
        assert_eq!(format!("{view}"), "ERSPAN type II, session 5, vlan 7");
        let mut three = [0; 21];
        three[0] = 0x20;
        assert_eq!(Erspan::parse(&three).unwrap().payload.len(), 9);
        three[11] = 1;
        assert_eq!(Erspan::parse(&three).unwrap().payload.len(), 1);
        assert_eq!(Erspan::parse(&[0x30; 21]), Err(Reason::BadVersion));
    }
}
