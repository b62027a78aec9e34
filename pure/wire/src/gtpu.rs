//! GTP-U, version 1 (3GPP TS 29.281 section 5).
//!
//! ```text
//!  0                   1                   2                   3
//! +-----+-+-+-+-+-+---------------+-------------------------------+
//! | ver |P|0|E|S|N| message type  | length after these 8 bytes   |
//! +-----+-+-+-+-+-+---------------+-------------------------------+
//! | tunnel endpoint identifier (TEID)                             |
//! +-------------------------------+---------------+---------------+
//! | E, S or N: sequence number    | N-PDU number  | next extension|
//! | extension: length / 4 u8, content, next extension u8          |
//! ```

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, Reason, be16};
use core::fmt;

/// Bytes of the header without optional fields.
pub const HEADER_LEN: usize = 8;

/// The UDP port of GTP-U.
pub const PORT: u16 = 2152;

/// The message type of a user packet.
pub const G_PDU: u8 = 255;

/// A GTP-U header.
#[derive(Clone, Copy)]
pub struct Gtpu<'a> {
    head: &'a [u8; HEADER_LEN],
    /// The bytes after the header and its extensions, limited to the length field.
    pub payload: &'a [u8],
}

/// Length of the header with optional fields and extensions; `None` if it is incomplete.
fn header_len(bytes: &[u8]) -> Result<Option<usize>, Reason> {
    let Some(head) = bytes.first_chunk::<HEADER_LEN>() else {
        return Ok(None);
    };
    if head[0] & 7 == 0 {
        return Ok(Some(HEADER_LEN));
    }
    let mut len = HEADER_LEN + 4;
    if head[0] & 4 == 0 {
        return Ok(Some(len));
    }
    // Each extension has at least four bytes, so this ends with the slice.
    loop {
        match bytes.get(len - 1) {
            None => return Ok(None),
            Some(0) => return Ok(Some(len)),
            Some(_) => match bytes.get(len) {
                None => return Ok(None),
                Some(0) => return Err(Reason::BadHeaderLength),
                Some(words) => len += usize::from(*words) * 4,
            },
        }
    }
}

impl<'a> Gtpu<'a> {
    /// Splits off the header.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let head = bytes.first_chunk::<HEADER_LEN>().ok_or(Reason::Truncated)?;
        if head[0] >> 5 != 1 {
            return Err(Reason::BadVersion);
        }
        let end = HEADER_LEN + usize::from(be16(head[2], head[3]));
        let bytes = bytes.get(..end).unwrap_or(bytes);
        let len = header_len(bytes)?.ok_or(Reason::Truncated)?;
        let payload = bytes.get(len..).ok_or(Reason::Truncated)?;
        Ok(Gtpu { head, payload })
    }

    /// Message type: 255 is a user packet, 1 and 2 echo, 26 error indication, 254 end marker.
    #[inline]
    pub fn message_type(&self) -> u8 {
        self.head[1]
    }

    /// Length after the first eight bytes, as sent.
    #[inline]
    pub fn len(&self) -> u16 {
        be16(self.head[2], self.head[3])
    }

    /// Whether nothing follows the first eight bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tunnel endpoint identifier.
    #[inline]
    pub fn teid(&self) -> u32 {
        u32::from_be_bytes([self.head[4], self.head[5], self.head[6], self.head[7]])
    }
}

impl fmt::Display for Gtpu<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "GTP-U, type {}, TEID 0x{:08x}",
            self.message_type(),
            self.teid()
        )
    }
}

/// Writes the header of a user packet.
pub fn emit(out: &mut [u8; HEADER_LEN], teid: u32, payload_len: u16) {
    out[..2].copy_from_slice(&[0x30, G_PDU]);
    out[2..4].copy_from_slice(&payload_len.to_be_bytes());
    out[4..].copy_from_slice(&teid.to_be_bytes());
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<HEADER_LEN>()?;
    if head[0] >> 5 != 1 {
        return Err(Reason::BadVersion);
    }
    walk.out.tunnel_id = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
    walk.limit(HEADER_LEN + usize::from(be16(head[2], head[3])));
    let Some(len) = header_len(walk.rest)? else {
        return Err(walk.missing(walk.rest.len() + 1));
    };
    walk.advance(len)?;
    if head[1] != G_PDU {
        return Ok(LayerKind::None);
    }
    match walk.peek::<1>()?[0] >> 4 {
        4 => walk.inner(LayerKind::Ipv4),
        6 => walk.inner(LayerKind::Ipv6),
        _ => Err(Reason::UnsupportedTunnel),
    }
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "gtpu",
    spec: "3GPP TS 29.281",
    udp_ports: &[PORT],
    // A user packet with a sequence number and one extension; its payload is not IP.
    sample: &[
        0x36, 255, 0, 12, 0, 0, 0, 5, 0, 1, 0, 0x85, 1, 0, 9, 0, 0x70, 2, 3, 4,
    ],
    step,
    show: |bytes, f| table::show(Gtpu::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn sample() {
        let view = Gtpu::parse(PROTOCOL.sample).unwrap();
        assert_eq!((view.teid(), view.payload), (5, &[0x70, 2, 3, 4][..]));
        assert_eq!(format!("{view}"), "GTP-U, type 255, TEID 0x00000005");
        let mut bad = [0; 20];
        bad.copy_from_slice(PROTOCOL.sample);
        bad[12] = 0;
        assert!(matches!(Gtpu::parse(&bad), Err(Reason::BadHeaderLength)));
    }

    #[test]
    fn emit_then_parse() {
        let mut bytes = [0; HEADER_LEN + 2];
        emit(bytes.first_chunk_mut().unwrap(), 0xdeadbeef, 1);
        let view = Gtpu::parse(&bytes).unwrap();
        assert_eq!(
            (view.teid(), view.len(), view.payload.len()),
            (0xdeadbeef, 1, 1)
        );
    }
}
