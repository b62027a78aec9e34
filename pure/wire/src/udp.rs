//! UDP (RFC 768).
//!
//! ```text
//!  0               2               4               6
//! +---------------+---------------+---------------+---------------+
//! | source port   | destination   | length        | checksum      |
//! +---------------+---------------+---------------+---------------+
//! ```

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{Reason, be16};
use core::fmt;

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;

/// A UDP header.
#[derive(Clone, Copy)]
pub struct Udp<'a> {
    head: &'a [u8; HEADER_LEN],
    /// The payload, limited to the length field if that is plausible.
    pub payload: &'a [u8],
}

impl<'a> Udp<'a> {
    /// Splits a datagram after its header.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, rest) = bytes
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Reason::Truncated)?;
        let payload = match usize::from(be16(head[4], head[5])).checked_sub(HEADER_LEN) {
            Some(len) => rest.get(..len).unwrap_or(rest),
            None => rest,
        };
        Ok(Udp { head, payload })
    }

    /// Source port; 0 if no reply is expected.
    #[inline]
    pub fn src_port(&self) -> u16 {
        be16(self.head[0], self.head[1])
    }

    /// Destination port.
    #[inline]
    pub fn dst_port(&self) -> u16 {
        be16(self.head[2], self.head[3])
    }

    /// Length of header and payload as sent, in bytes; 0 in a jumbogram (RFC 2675).
    #[inline]
    pub fn len(&self) -> u16 {
        be16(self.head[4], self.head[5])
    }

    /// Whether the payload is empty according to the length field.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == HEADER_LEN as u16
    }

    /// Checksum as sent; 0 over IPv4 means none was computed.
    #[inline]
    pub fn checksum(&self) -> u16 {
        be16(self.head[6], self.head[7])
    }
}

impl fmt::Display for Udp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.payload.len();
        write!(
            f,
            "{} > {}: UDP, length {len}",
            self.src_port(),
            self.dst_port()
        )
    }
}

/// Writes a header with checksum 0; more than 65527 bytes of payload give length 0.
pub fn emit(out: &mut [u8; HEADER_LEN], src_port: u16, dst_port: u16, payload_len: usize) {
    let len = u16::try_from(payload_len + HEADER_LEN).unwrap_or(0);
    out[..2].copy_from_slice(&src_port.to_be_bytes());
    out[2..4].copy_from_slice(&dst_port.to_be_bytes());
    out[4..6].copy_from_slice(&len.to_be_bytes());
    out[6..].fill(0);
}

/// Reads the ports at the start of TCP, UDP, UDP-Lite and SCTP: a packet truncated after them still
/// has them.
#[inline]
pub(crate) fn ports(walk: &mut Walk<'_, '_>) {
    if let Some([a, b, c, d]) = walk.rest.first_chunk::<4>() {
        walk.out.src_port = be16(*a, *b);
        walk.out.dst_port = be16(*c, *d);
        walk.out.ports_read = true;
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    ports(walk);
    // The checksum may be missing.
    let head = walk.peek::<6>()?;
    let len = usize::from(be16(head[4], head[5]));
    if len >= HEADER_LEN {
        walk.limit(len);
    } else if len != 0 {
        return Err(Reason::BadLength);
    }
    walk.advance(HEADER_LEN)?;
    Ok(table::of_udp_ports(walk.out.src_port, walk.out.dst_port))
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "udp",
    spec: "RFC 768",
    ip_protocols: &[17],
    sample: &[0x14, 0xe9, 0, 9, 0, 12, 0, 0, 1, 2, 3, 4],
    step,
    show: |bytes, f| table::show(Udp::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn emit_then_parse() {
        let mut bytes = [0; HEADER_LEN + 4];
        emit(bytes.first_chunk_mut().unwrap(), 5353, 53, 3);
        let view = Udp::parse(&bytes).unwrap();
        assert_eq!(
            (view.src_port(), view.dst_port(), view.len()),
            (5353, 53, 11)
        );
        assert_eq!(view.payload.len(), 3, "the fourth byte is padding");
        assert_eq!(format!("{view}"), "5353 > 53: UDP, length 3");
    }
}
