//! Headers that drivers put before 802.11 frames prior to radiotap: that of Prism cards
//! (LINKTYPE_IEEE802_11_PRISM) and that of AVS (LINKTYPE_IEEE802_11_AVS).
//!
//! ```text
//! Prism: message code u32, message length u32, device name 16 bytes, ten values of 12 bytes each
//! AVS:   version u32 (0x80211001 or 0x80211002), header length u32, values; big-endian
//! ```
//!
//! Files of the first link type contain headers of either kind, distinguished by the first word.

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, LinkType, Reason};
use core::fmt;

/// Bytes of a Prism header.
pub const HEADER_LEN: usize = 144;

/// Bytes of version and length.
const START_LEN: usize = 8;

/// A Prism or AVS header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prism<'a> {
    header: &'a [u8],
    /// The 802.11 frame.
    pub payload: &'a [u8],
}

fn header_len(start: &[u8; START_LEN]) -> Result<usize, Reason> {
    let [0x80, 0x21, 0x10, _, a, b, c, d] = *start else {
        return Ok(HEADER_LEN);
    };
    match u32::from_be_bytes([a, b, c, d]) {
        len @ 8..=0xffff => Ok(len as usize),
        _ => Err(Reason::BadHeaderLength),
    }
}

impl<'a> Prism<'a> {
    /// Splits off the header.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let start = bytes.first_chunk::<START_LEN>().ok_or(Reason::Truncated)?;
        let (header, payload) = bytes
            .split_at_checked(header_len(start)?)
            .ok_or(Reason::Truncated)?;
        Ok(Prism { header, payload })
    }

    /// Whether it is an AVS header.
    pub fn is_avs(&self) -> bool {
        self.header.starts_with(&[0x80, 0x21, 0x10])
    }

    /// Bytes of the header.
    pub fn header_len(&self) -> usize {
        self.header.len()
    }
}

impl fmt::Display for Prism<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.is_avs() { "AVS" } else { "Prism" };
        write!(f, "{name}, {} bytes", self.header_len())
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    let len = header_len(walk.peek::<START_LEN>()?)?;
    walk.advance(len)?;
    Ok(LayerKind::Ieee80211)
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "prism",
    spec: "LINKTYPE_IEEE802_11_PRISM",
    links: &[LinkType::PRISM_HEADER, LinkType::IEEE802_11_RADIO_AVS],
    // AVS without values; an acknowledgment.
    sample: &[
        0x80, 0x21, 0x10, 1, 0, 0, 0, 8, 0xd4, 0, 0, 0, 2, 0, 0, 0, 0, 1,
    ],
    step,
    show: |bytes, f| table::show(Prism::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_gives_the_kind() {
        let avs = Prism::parse(PROTOCOL.sample).unwrap();
        assert_eq!((avs.is_avs(), avs.payload.len()), (true, 10));
        let mut bytes = [0; HEADER_LEN + 2];
        bytes[0] = 0x44;
        let prism = Prism::parse(&bytes).unwrap();
        assert_eq!((prism.is_avs(), prism.payload.len()), (false, 2));
        let short = [0x80, 0x21, 0x10, 1, 0, 0, 0, 7];
        assert_eq!(Prism::parse(&short), Err(Reason::BadHeaderLength));
    }
}
