//! GRE (RFC 2784, RFC 2890; routing of RFC 1701), PPTP's version 1 (RFC 2637 section 4.1), and
//! NVGRE (RFC 7637), which is version 0 with a network identifier in the key. RFC 8086 puts it into
//! UDP as well.
//!
//! ```text
//!  0                   1                   2                   3
//! +-+-+-+-+-+-----+-+-------+-----+-------------------------------+
//! |C|R|K|S|s|rec. |A| 0     | ver | protocol (an Ethernet type)   |
//! +-+-+-+-+-+-----+-+-------+-----+-------------------------------+
//! | C or R: checksum, offset                                      |
//! | K: key; in version 1 payload length and call id               |
//! | S: sequence number                                            |
//! | A (version 1): acknowledgement number                         |
//! | R: source routes up to an empty one                           |
//! ```

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, Reason, be16, ethernet};
use core::fmt;

/// Bytes of the fixed part.
pub const HEADER_LEN: usize = 4;

/// A GRE header.
#[derive(Clone, Copy)]
pub struct Gre<'a> {
    head: &'a [u8; HEADER_LEN],
    /// The optional fields.
    optional: &'a [u8],
    /// The payload.
    pub payload: &'a [u8],
}

/// Length of the optional fields without source routes, and whether those follow.
fn optional_len(head: &[u8; HEADER_LEN]) -> (usize, bool) {
    let has = |bit: u8| usize::from(head[0] & bit != 0);
    let is_v1 = head[1] & 7 == 1;
    let routed = head[0] & 0x40 != 0 && !is_v1;
    let checksum = (has(0x80) | has(0x40)) * usize::from(!is_v1);
    let ack = usize::from(is_v1 && head[1] & 0x80 != 0);
    (4 * (checksum + has(0x20) + has(0x10) + ack), routed)
}

/// Offset of the key in the optional fields.
fn key_offset(head: &[u8; HEADER_LEN]) -> Option<usize> {
    let is_v1 = head[1] & 7 == 1;
    (head[0] & 0x20 != 0).then_some(if head[0] & 0xc0 != 0 && !is_v1 { 4 } else { 0 })
}

/// Length of the source routes at the start of `bytes`, including the empty one.
fn routes_len(bytes: &[u8]) -> Option<usize> {
    let mut len = 0;
    loop {
        // Address family u16, offset u8, length u8, then that many bytes.
        let head = bytes.get(len..)?.first_chunk::<4>()?;
        len += 4 + usize::from(head[3]);
        if head[..2] == [0, 0] && head[3] == 0 {
            return Some(len);
        }
    }
}

impl<'a> Gre<'a> {
    /// Splits a packet after the header with all its optional fields.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, rest) = bytes
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Reason::Truncated)?;
        if head[1] & 7 > 1 {
            return Err(Reason::BadVersion);
        }
        let (mut len, routed) = optional_len(head);
        if routed {
            let routes = rest
                .get(len..)
                .and_then(routes_len)
                .ok_or(Reason::Truncated)?;
            len += routes;
        }
        let (optional, payload) = rest.split_at_checked(len).ok_or(Reason::Truncated)?;
        Ok(Gre {
            head,
            optional,
            payload,
        })
    }

    /// GRE version: 0, or 1 for PPTP.
    pub fn version(&self) -> u8 {
        self.head[1] & 7
    }

    /// What the payload is: an Ethernet type, 0x6558 for Ethernet, 0x880b for PPP.
    pub fn protocol(&self) -> u16 {
        be16(self.head[2], self.head[3])
    }

    /// The key field.
    pub fn key(&self) -> Option<u32> {
        let at = key_offset(self.head)?;
        self.optional
            .get(at..)?
            .first_chunk()
            .map(|k| u32::from_be_bytes(*k))
    }

    /// The key in NVGRE: virtual subnet id (24 bits), flow id.
    pub fn nvgre(&self) -> Option<(u32, u8)> {
        self.key().map(|key| (key >> 8, key as u8))
    }

    /// The key in PPTP: payload length, call id.
    pub fn pptp(&self) -> Option<(u16, u16)> {
        if self.version() != 1 {
            return None;
        }
        self.key().map(|key| ((key >> 16) as u16, key as u16))
    }

    /// The sequence number.
    pub fn seq(&self) -> Option<u32> {
        if self.head[0] & 0x10 == 0 {
            return None;
        }
        let at = key_offset(self.head).map_or_else(
            || {
                if self.head[0] & 0xc0 != 0 && self.version() == 0 {
                    4
                } else {
                    0
                }
            },
            |key| key + 4,
        );
        self.optional
            .get(at..)?
            .first_chunk()
            .map(|k| u32::from_be_bytes(*k))
    }
}

impl fmt::Display for Gre<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GREv{}", self.version())?;
        match (self.pptp(), self.key()) {
            (Some((_, call)), _) => write!(f, ", call {call}")?,
            (None, Some(key)) => write!(f, ", key=0x{key:x}")?,
            _ => {}
        }
        if let Some(seq) = self.seq() {
            write!(f, ", seq {seq}")?;
        }
        write!(
            f,
            ", proto 0x{:04x}, length {}",
            self.protocol(),
            self.payload.len()
        )
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<HEADER_LEN>()?;
    let version = head[1] & 7;
    if version > 1 {
        return Err(Reason::BadVersion);
    }
    let protocol = be16(head[2], head[3]);
    let (optional, routed) = optional_len(head);
    let mut header_len = HEADER_LEN + optional;
    let key = key_offset(head).and_then(|at| walk.rest.get(HEADER_LEN + at..)?.first_chunk::<4>());
    if let Some(key) = key {
        let key = u32::from_be_bytes(*key);
        walk.out.tunnel_id = if version == 1 { key & 0xffff } else { key };
        // The rest of PPTP's key is the length of the payload.
        if version == 1 {
            walk.limit(header_len + (key >> 16) as usize);
        }
    }
    // Without its routes the length of the header is unknown; without PPTP's key that of the
    // payload.
    let routes = walk.rest.get(header_len..).and_then(routes_len);
    let is_cut_key = version == 1 && key_offset(head).is_some() && key.is_none();
    if routed && routes.is_none() || is_cut_key {
        return Err(walk.missing(walk.rest.len() + 1));
    }
    header_len += routes.filter(|_| routed).unwrap_or(0);
    walk.advance(header_len)?;
    // PPTP without a payload length: an acknowledgement only.
    let is_ack = version == 1 && key.is_none();
    if walk.wire_rest == 0 || is_ack {
        return Ok(LayerKind::None);
    }
    match protocol {
        // ERSPAN type I has neither a header nor a sequence number; type II has both.
        ERSPAN if head[0] & 0x10 == 0 => walk.inner(LayerKind::Ethernet),
        ERSPAN | ERSPAN_III => Ok(LayerKind::Erspan),
        _ => ethernet::inner_of_ether_type(walk, protocol),
    }
}

const ERSPAN: u16 = 0x88be;
const ERSPAN_III: u16 = 0x22eb;

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "gre",
    spec: "RFC 2784",
    ip_protocols: &[47],
    // RFC 8086.
    udp_ports: &[4754],
    // Checksum, key and sequence number; the payload is Ethernet for local experiments.
    sample: &[
        0xb0, 0, 0x88, 0xb5, 0, 0, 0, 0, 0, 0, 0x12, 0x34, 0, 0, 0, 7, 1, 2, 3, 4,
    ],
    step,
    show: |bytes, f| table::show(Gre::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn optional_fields() {
        let view = Gre::parse(PROTOCOL.sample).unwrap();
        assert_eq!(
            (view.key(), view.seq(), view.nvgre()),
            (Some(0x1234), Some(7), Some((0x12, 0x34)))
        );
        assert_eq!(
            format!("{view}"),
            "GREv0, key=0x1234, seq 7, proto 0x88b5, length 4"
        );
        let view = Gre::parse(&[0, 0, 8, 0, 9]).unwrap();
        assert_eq!(
            (view.key(), view.seq(), view.payload),
            (None, None, &[9][..])
        );
        let view = Gre::parse(&[0x10, 0, 8, 0, 0, 0, 0, 3]).unwrap();
        assert_eq!(view.seq(), Some(3));
    }

    #[test]
    fn pptp() {
        let bytes = [
            0x30, 0x81, 0x88, 0x0b, 0, 2, 0, 5, 0, 0, 0, 1, 0, 0, 0, 2, 0xc0, 0x21,
        ];
        let view = Gre::parse(&bytes).unwrap();
        assert_eq!(
            (view.pptp(), view.seq(), view.payload.len()),
            (Some((2, 5)), Some(1), 2)
        );
        assert_eq!(
            format!("{view}"),
            "GREv1, call 5, seq 1, proto 0x880b, length 2"
        );
    }

    #[test]
    fn source_routes() {
        let bytes = [
            0x40, 0, 8, 0, 0, 0, 0, 0, 8, 0, 0, 4, 10, 0, 0, 1, 0, 0, 0, 0, 9,
        ];
        assert_eq!(Gre::parse(&bytes).unwrap().payload, [9]);
        assert!(Gre::parse(&bytes[..18]).is_err());
    }
}
