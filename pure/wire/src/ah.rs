//! IP authentication header (RFC 4302 section 2).
//!
//! ```text
//!  0       1       2               4               8               12
//! +-------+-------+---------------+---------------+---------------+--------
//! | next  | len   | 0             | SPI           | sequence      | ICV
//! +-------+-------+---------------+---------------+---------------+--------
//! ```
//!
//! The length counts words of four bytes less two, unlike that of other IPv6 extension headers. RFC
//! 1826 had no sequence number, so a header may end after the SPI.

use crate::ipv6_ext::bit;
use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{Reason, ipv6};
use core::fmt;

/// Length of the fixed part in bytes.
pub const HEADER_LEN: usize = 8;

/// An authentication header.
#[derive(Clone, Copy)]
pub struct Ah<'a> {
    head: &'a [u8; HEADER_LEN],
    /// Sequence number and integrity check value.
    rest: &'a [u8],
    /// The unencrypted payload.
    pub payload: &'a [u8],
}

impl<'a> Ah<'a> {
    /// Splits a packet after the header.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, rest) = bytes
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Reason::Truncated)?;
        let rest_len = header_len(head[1]) - HEADER_LEN;
        let (rest, payload) = rest.split_at_checked(rest_len).ok_or(Reason::Truncated)?;
        Ok(Ah {
            head,
            rest,
            payload,
        })
    }

    /// Protocol of the payload.
    pub fn next_header(&self) -> u8 {
        self.head[0]
    }

    /// Security parameters index.
    pub fn spi(&self) -> u32 {
        u32::from_be_bytes([self.head[4], self.head[5], self.head[6], self.head[7]])
    }

    /// Sequence number; 0 if the header ends before it.
    pub fn seq(&self) -> u32 {
        self.rest
            .first_chunk()
            .map_or(0, |bytes| u32::from_be_bytes(*bytes))
    }

    /// Integrity check value.
    pub fn icv(&self) -> &'a [u8] {
        self.rest.get(4..).unwrap_or(&[])
    }
}

impl fmt::Display for Ah<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AH(spi=0x{:08x},seq=0x{:x})", self.spi(), self.seq())
    }
}

fn header_len(field: u8) -> usize {
    (usize::from(field) + 2) * 4
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<2>()?;
    if let Some(spi) = walk.rest.get(4..).and_then(|rest| rest.first_chunk()) {
        walk.out.tunnel_id = u32::from_be_bytes(*spi);
    }
    if walk.out.ip_version == 6 {
        walk.out.ip_options |= bit::AH;
    }
    ipv6::next_behind(walk, header_len(head[1]), head[0])
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "ah",
    spec: "RFC 4302",
    ip_protocols: &[51],
    sample: &[59, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0xaa, 0xbb, 0xcc, 0xdd],
    step,
    show: |bytes, f| table::show(Ah::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn sample() {
        let view = Ah::parse(PROTOCOL.sample).unwrap();
        assert_eq!(view.icv(), [0xaa, 0xbb, 0xcc, 0xdd]);
        assert_eq!((view.next_header(), view.payload.len()), (59, 0));
        assert_eq!(format!("{view}"), "AH(spi=0x00000100,seq=0x1)");
    }
}
