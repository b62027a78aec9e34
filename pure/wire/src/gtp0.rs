//! GTP, version 0 (3GPP TS 09.60 section 6): user packets and signalling of GPRS on one port.
//!
//! ```text
//!  0                   1                   2                   3
//! +-----+-+-----+-+---------------+-------------------------------+
//! | ver |T|1 1 1|S| message type  | length after these 20 bytes  |
//! +-----+-+-----+-+---------------+-------------------------------+
//! | sequence number               | flow label                    |
//! +---------------+---------------+-------------------------------+
//! | N-PDU number  | 0xff 0xff 0xff                                |
//! +---------------+-----------------------------------------------+
//! | tunnel identifier: IMSI and NSAPI, 8 bytes                    |
//! ```
//!
//! With T = 0 it is GTP', which carries charging records (TS 32.295): it is named, but not
//! dissected.

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, Reason, be16};
use core::fmt;

/// Bytes of the header.
pub const HEADER_LEN: usize = 20;

/// The UDP port of GTP, version 0.
pub const PORT: u16 = 3386;

/// The message type of a user packet.
pub const T_PDU: u8 = 255;

/// Bytes up to the length field.
const START_LEN: usize = 4;

/// A GTP header, version 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gtp0<'a> {
    head: &'a [u8; HEADER_LEN],
    /// The payload, limited to the length field.
    pub payload: &'a [u8],
}

impl<'a> Gtp0<'a> {
    /// Splits off the header. GTP' has different ones.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, rest) = bytes
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Reason::Truncated)?;
        if head[0] >> 5 != 0 {
            return Err(Reason::BadVersion);
        }
        let len = usize::from(be16(head[2], head[3]));
        let payload = rest.get(..len).unwrap_or(rest);
        Ok(Gtp0 { head, payload })
    }

    /// Message type: 255 is a user packet, 1 and 2 echo, 16 and 17 create a context, …
    #[inline]
    pub fn message_type(&self) -> u8 {
        self.head[1]
    }

    /// Flow label.
    #[inline]
    pub fn flow_label(&self) -> u16 {
        be16(self.head[6], self.head[7])
    }

    /// Tunnel identifier.
    pub fn tid(&self) -> u64 {
        match self.head.last_chunk() {
            Some(bytes) => u64::from_be_bytes(*bytes),
            None => 0,
        }
    }
}

impl fmt::Display for Gtp0<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "GTPv0, type {}, flow {}, TID {:016x}",
            self.message_type(),
            self.flow_label(),
            self.tid()
        )
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    let start = walk.peek::<START_LEN>()?;
    match (start[0] >> 5, start[0] & 0x10) {
        (0, 0x10) => {}
        // GTP' has versions 0 to 2.
        (0..=2, 0) => return Ok(LayerKind::None),
        _ => return Err(Reason::BadVersion),
    }
    let head = walk.peek::<HEADER_LEN>()?;
    walk.out.tunnel_id = u32::from(be16(head[6], head[7]));
    walk.limit(HEADER_LEN + usize::from(be16(head[2], head[3])));
    walk.advance(HEADER_LEN)?;
    if head[1] != T_PDU {
        return Ok(LayerKind::None);
    }
    match walk.peek::<1>()?[0] >> 4 {
        4 => walk.inner(LayerKind::Ipv4),
        6 => walk.inner(LayerKind::Ipv6),
        _ => Err(Reason::UnsupportedTunnel),
    }
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "gtp0",
    spec: "3GPP TS 09.60",
    udp_ports: &[PORT],
    // A user packet that is not IP.
    sample: &[
        0x1e, 255, 0, 4, 0, 9, 0, 5, 0xff, 0xff, 0xff, 0xff, 0x42, 1, 0, 0, 0, 0, 0, 0x50, 0x70, 2,
        3, 4,
    ],
    step,
    show: |bytes, f| table::show(Gtp0::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn sample() {
        let view = Gtp0::parse(PROTOCOL.sample).unwrap();
        assert_eq!((view.flow_label(), view.payload), (5, &[0x70, 2, 3, 4][..]));
        assert_eq!(
            format!("{view}"),
            "GTPv0, type 255, flow 5, TID 4201000000000050"
        );
        let mut other = [0; HEADER_LEN];
        other[0] = 0x3e;
        assert_eq!(Gtp0::parse(&other), Err(Reason::BadVersion));
    }
}
