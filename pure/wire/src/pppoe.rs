//! PPP over Ethernet (RFC 2516 section 4).
//!
//! ```text
//!  0       1       2               4               6
//! +-------+-------+---------------+---------------+----------
//! |ver|typ| code  | session id    | length        | payload
//! +-------+-------+---------------+---------------+----------
//! ```
//!
//! Code 0 is session data, a PPP packet; all other codes are discovery.

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, LinkType, Reason, be16};
use core::fmt;

/// Bytes of the header.
pub const HEADER_LEN: usize = 6;

/// A PPPoE header.
#[derive(Clone, Copy)]
pub struct Pppoe<'a> {
    head: &'a [u8; HEADER_LEN],
    /// The payload, limited to the length field.
    pub payload: &'a [u8],
}

impl<'a> Pppoe<'a> {
    /// Splits a packet after its header.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, rest) = bytes
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Reason::Truncated)?;
        if head[0] != 0x11 {
            return Err(Reason::BadVersion);
        }
        let payload = rest
            .get(..usize::from(be16(head[4], head[5])))
            .unwrap_or(rest);
        Ok(Pppoe { head, payload })
    }

    /// Code: 0 session data, 9 PADI, 7 PADO, 0x19 PADR, 0x65 PADS, 0xa7 PADT.
    #[inline]
    pub fn code(&self) -> u8 {
        self.head[1]
    }

    /// Session id.
    #[inline]
    pub fn session_id(&self) -> u16 {
        be16(self.head[2], self.head[3])
    }

    /// Length of the payload as sent.
    #[inline]
    pub fn len(&self) -> u16 {
        be16(self.head[4], self.head[5])
    }

    /// Whether the length field is 0.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Display for Pppoe<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.code() {
            0 => "",
            0x09 => " PADI",
            0x07 => " PADO",
            0x19 => " PADR",
            0x65 => " PADS",
            0xa7 => " PADT",
            other => {
                return write!(
                    f,
                    "PPPoE code 0x{other:02x} [ses 0x{:x}]",
                    self.session_id()
                );
            }
        };
        write!(f, "PPPoE{kind} [ses 0x{:x}]", self.session_id())
    }
}

/// Writes a header.
pub fn emit(out: &mut [u8; HEADER_LEN], code: u8, session_id: u16, payload_len: u16) {
    out[0] = 0x11;
    out[1] = code;
    out[2..4].copy_from_slice(&session_id.to_be_bytes());
    out[4..].copy_from_slice(&payload_len.to_be_bytes());
}

pub(crate) fn step(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<HEADER_LEN>()?;
    if head[0] != 0x11 {
        return Err(Reason::BadVersion);
    }
    walk.advance(HEADER_LEN)?;
    walk.limit(usize::from(be16(head[4], head[5])));
    Ok(if head[1] == 0 {
        LayerKind::Ppp
    } else {
        LayerKind::None
    })
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "pppoe",
    spec: "RFC 2516",
    links: &[LinkType::PPP_ETHER],
    ether_types: &[0x8863, 0x8864],
    sample: &[0x11, 0, 0, 7, 0, 4, 0xc0, 0x21, 1, 2],
    step,
    show: |bytes, f| table::show(Pppoe::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn emit_then_parse() {
        let mut bytes = [0; HEADER_LEN + 3];
        emit(bytes.first_chunk_mut().unwrap(), 0xa7, 0x1f, 2);
        let view = Pppoe::parse(&bytes).unwrap();
        assert_eq!(
            (view.code(), view.session_id(), view.len()),
            (0xa7, 0x1f, 2)
        );
        assert_eq!(view.payload.len(), 2);
        assert_eq!(format!("{view}"), "PPPoE PADT [ses 0x1f]");
        bytes[0] = 0x21;
        assert!(matches!(Pppoe::parse(&bytes), Err(Reason::BadVersion)));
    }
}
