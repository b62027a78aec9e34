//! UDP-Lite (RFC 3828 section 3.1): UDP's ports and checksum, with the number of bytes that the
//! checksum covers in place of the length. 0 covers all.

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, Reason, be16, udp};
use core::fmt;

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;

/// A UDP-Lite header.
#[derive(Clone, Copy)]
pub struct UdpLite<'a> {
    head: &'a [u8; HEADER_LEN],
    /// The payload.
    pub payload: &'a [u8],
}

impl<'a> UdpLite<'a> {
    /// Splits a datagram after its header.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, payload) = bytes.split_first_chunk().ok_or(Reason::Truncated)?;
        Ok(UdpLite { head, payload })
    }

    /// Source port.
    #[inline]
    pub fn src_port(&self) -> u16 {
        be16(self.head[0], self.head[1])
    }

    /// Destination port.
    #[inline]
    pub fn dst_port(&self) -> u16 {
        be16(self.head[2], self.head[3])
    }

    /// Number of bytes that the checksum covers, from the start of the header; 0 for all.
    #[inline]
    pub fn coverage(&self) -> u16 {
        be16(self.head[4], self.head[5])
    }

    /// Checksum as sent.
    #[inline]
    pub fn checksum(&self) -> u16 {
        be16(self.head[6], self.head[7])
    }
}

impl fmt::Display for UdpLite<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.payload.len();
        write!(
            f,
            "{} > {}: UDP-Lite, length {len}",
            self.src_port(),
            self.dst_port()
        )
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    udp::ports(walk);
    walk.advance(HEADER_LEN)?;
    Ok(LayerKind::None)
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "udplite",
    spec: "RFC 3828",
    ip_protocols: &[136],
    sample: &[0x14, 0xe9, 0, 9, 0, 8, 0, 0, 1, 2, 3, 4],
    step,
    show: |bytes, f| table::show(UdpLite::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn sample() {
        let view = UdpLite::parse(PROTOCOL.sample).unwrap();
        assert_eq!((view.coverage(), view.checksum()), (8, 0));
        assert_eq!(format!("{view}"), "5353 > 9: UDP-Lite, length 4");
    }
}
