//! Encapsulating security payload (RFC 4303 section 2): SPI u32, sequence number u32, then
//! ciphertext up to the end of the datagram.

use crate::Reason;
use crate::ipv6_ext::bit;
use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use core::fmt;

/// Length of the unencrypted header in bytes.
pub const HEADER_LEN: usize = 8;

/// An ESP header.
#[derive(Clone, Copy)]
pub struct Esp<'a> {
    head: &'a [u8; HEADER_LEN],
    /// Initialization vector, ciphertext, trailer and integrity check value.
    pub payload: &'a [u8],
}

impl<'a> Esp<'a> {
    /// Splits a packet after the header.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, payload) = bytes.split_first_chunk().ok_or(Reason::Truncated)?;
        Ok(Esp { head, payload })
    }

    /// Security parameters index.
    #[inline]
    pub fn spi(&self) -> u32 {
        u32::from_be_bytes([self.head[0], self.head[1], self.head[2], self.head[3]])
    }

    /// Sequence number.
    #[inline]
    pub fn seq(&self) -> u32 {
        u32::from_be_bytes([self.head[4], self.head[5], self.head[6], self.head[7]])
    }
}

impl fmt::Display for Esp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ESP(spi=0x{:08x},seq=0x{:x}), length {}",
            self.spi(),
            self.seq(),
            self.payload.len()
        )
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    if let Some(spi) = walk.rest.first_chunk::<4>() {
        walk.out.tunnel_id = u32::from_be_bytes(*spi);
    }
    if walk.out.ip_version == 6 {
        walk.out.ip_options |= bit::ESP;
    }
    walk.advance(HEADER_LEN)?;
    Err(Reason::Encrypted)
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "esp",
    spec: "RFC 4303",
    ip_protocols: &[50],
    sample: &[0, 0, 1, 0, 0, 0, 0, 1, 0xde, 0xad, 0xbe, 0xef],
    step,
    show: |bytes, f| table::show(Esp::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn sample() {
        let view = Esp::parse(PROTOCOL.sample).unwrap();
        assert_eq!(format!("{view}"), "ESP(spi=0x00000100,seq=0x1), length 4");
    }
}
