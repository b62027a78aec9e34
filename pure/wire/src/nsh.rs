//! Network service header (RFC 8300 section 2).
//!
//! ```text
//!  0                   1                   2                   3
//! +---+-+-+-----------+-----------+-------+-------+---------------+
//! |ver|O|0| TTL       | length/4  | rsvd  |MD type| next protocol |
//! +---+-+-+-----------+-----------+-------+-------+---------------+
//! | service path identifier                       | service index |
//! +-----------------------------------------------+---------------+
//! | context headers …                                             |
//! ```

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, Reason};
use core::fmt;

/// Bytes of the base and service path headers.
pub const HEADER_LEN: usize = 8;

/// A network service header.
#[derive(Clone, Copy)]
pub struct Nsh<'a> {
    head: &'a [u8; HEADER_LEN],
    /// The context headers.
    pub context: &'a [u8],
    /// The payload.
    pub payload: &'a [u8],
}

impl<'a> Nsh<'a> {
    /// Splits off the header.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, rest) = bytes
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Reason::Truncated)?;
        let context_len = header_len(head)? - HEADER_LEN;
        let (context, payload) = rest
            .split_at_checked(context_len)
            .ok_or(Reason::Truncated)?;
        Ok(Nsh {
            head,
            context,
            payload,
        })
    }

    /// Type of the next header: 1 IPv4, 2 IPv6, 3 Ethernet, 4 NSH, 5 MPLS.
    pub fn next_protocol(&self) -> u8 {
        self.head[3]
    }

    /// Service path identifier, 24 bits.
    pub fn path_id(&self) -> u32 {
        u32::from_be_bytes([0, self.head[4], self.head[5], self.head[6]])
    }

    /// Service index.
    pub fn index(&self) -> u8 {
        self.head[7]
    }
}

impl fmt::Display for Nsh<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "NSH, service path {}, index {}",
            self.path_id(),
            self.index()
        )
    }
}

fn header_len(head: &[u8; HEADER_LEN]) -> Result<usize, Reason> {
    if head[0] >> 6 != 0 {
        return Err(Reason::BadVersion);
    }
    match usize::from(head[1] & 63) * 4 {
        len if len >= HEADER_LEN => Ok(len),
        _ => Err(Reason::BadHeaderLength),
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<HEADER_LEN>()?;
    walk.out.tunnel_id = u32::from_be_bytes([0, head[4], head[5], head[6]]);
    walk.advance(header_len(head)?)?;
    match head[3] {
        1 => walk.inner(LayerKind::Ipv4),
        2 => walk.inner(LayerKind::Ipv6),
        3 => walk.inner(LayerKind::Ethernet),
        4 => walk.inner(LayerKind::Nsh),
        5 => walk.inner(LayerKind::Mpls),
        _ => Err(Reason::UnsupportedTunnel),
    }
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "nsh",
    spec: "RFC 8300",
    ether_types: &[0x894f],
    sample: &[
        0x0f, 0xc3, 2, 3, 0, 0, 9, 255, 1, 2, 3, 4, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5,
    ],
    step,
    show: |bytes, f| table::show(Nsh::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn sample() {
        let view = Nsh::parse(PROTOCOL.sample).unwrap();
        assert_eq!((view.next_protocol(), view.context), (3, &[1, 2, 3, 4][..]));
        assert_eq!(format!("{view}"), "NSH, service path 9, index 255");
        let mut short = [0; HEADER_LEN];
        short[1] = 1;
        assert!(matches!(Nsh::parse(&short), Err(Reason::BadHeaderLength)));
    }
}
