//! MACsec (IEEE 802.1AE clause 9).
//!
//! ```text
//!  0       1       2               6
//! +-------+-------+---------------+-------------------------+-----------
//! |VESBEC | short | packet number | S: identifier (8 bytes) | payload …
//! |  + AN | length|               |                         | ICV
//! +-------+-------+---------------+-------------------------+-----------
//! ```
//!
//! With E or C set the payload is ciphertext. Otherwise it is the type and payload of the packet,
//! followed by a 16-byte integrity check value.

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{Reason, be16, ethernet};
use core::fmt;

/// Length of the tag without the identifier.
pub const HEADER_LEN: usize = 6;

/// Bytes of the integrity check value.
const ICV_LEN: usize = 16;

/// A MACsec tag.
#[derive(Clone, Copy)]
pub struct Macsec<'a> {
    head: &'a [u8; HEADER_LEN],
    /// The data after the tag, encrypted or not.
    pub payload: &'a [u8],
}

fn header_len(head: &[u8; HEADER_LEN]) -> usize {
    if head[0] & 0x20 != 0 {
        HEADER_LEN + 8
    } else {
        HEADER_LEN
    }
}

impl<'a> Macsec<'a> {
    /// Splits off the tag; `bytes` start after the tag type.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let head = bytes.first_chunk().ok_or(Reason::Truncated)?;
        let payload = bytes.get(header_len(head)..).ok_or(Reason::Truncated)?;
        Ok(Macsec { head, payload })
    }

    /// Whether the payload is ciphertext.
    pub fn is_encrypted(&self) -> bool {
        self.head[0] & 0x0c != 0
    }

    /// Association number, 2 bits.
    pub fn association(&self) -> u8 {
        self.head[0] & 3
    }

    /// Packet number.
    pub fn packet_number(&self) -> u32 {
        u32::from_be_bytes([self.head[2], self.head[3], self.head[4], self.head[5]])
    }
}

impl fmt::Display for Macsec<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "MACsec, an {}, pn {}",
            self.association(),
            self.packet_number()
        )
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<HEADER_LEN>()?;
    if head[0] & 0x80 != 0 {
        return Err(Reason::BadVersion);
    }
    walk.advance(header_len(head))?;
    // Lengths below 48 are stated, so that padding can be distinguished from the payload.
    if head[1] & 0x3f != 0 {
        walk.limit(usize::from(head[1] & 0x3f) + ICV_LEN);
    }
    if head[0] & 0x0c != 0 {
        return Err(Reason::Encrypted);
    }
    walk.limit(walk.wire_rest.saturating_sub(ICV_LEN));
    let kind = walk.peek::<2>()?;
    walk.advance(2)?;
    ethernet::next_of_type(walk, be16(kind[0], kind[1]))
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "macsec",
    spec: "IEEE 802.1AE",
    ether_types: &[0x88e5],
    // Unencrypted, four bytes of payload, the check value.
    sample: &[
        0x20, 6, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0, 1, 0x88, 0xb5, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6,
        7, 8, 9, 10, 11, 12, 13, 14, 15,
    ],
    step,
    show: |bytes, f| table::show(Macsec::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn sample() {
        let view = Macsec::parse(PROTOCOL.sample).unwrap();
        assert_eq!((view.is_encrypted(), view.payload.len()), (false, 22));
        assert_eq!(format!("{view}"), "MACsec, an 0, pn 9");
    }
}
