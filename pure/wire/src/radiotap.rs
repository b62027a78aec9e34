//! Radiotap (radiotap.org, LINKTYPE_IEEE802_11_RADIOTAP): the receiver's measurements, before an
//! 802.11 frame. All numbers are little-endian.
//!
//! ```text
//!  0               1               2                               4
//! +---------------+---------------+-------------------------------+
//! | version 0     | 0             | length of the header          |
//! +---------------+---------------+-------------------------------+
//! | which fields are present, u32; bit 31: another such word follows
//! | fields in the order of their bits, each aligned to its size
//! ```
//!
//! Only the flags are used: whether a frame check sequence ends the frame, and whether the card
//! padded the 802.11 header.

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, LinkType, Reason};
use core::fmt;

/// Bytes of the fixed part.
pub const HEADER_LEN: usize = 8;

/// Bytes of the frame check sequence after a frame.
const FCS_LEN: usize = 4;

/// Bits of the flags field.
pub mod flag {
    /// The frame ends with its check sequence.
    pub const FCS: u8 = 0x10;
    /// There is padding between the 802.11 header and the body, up to a multiple of four bytes.
    pub const PADDED: u8 = 0x20;
    /// The check sequence was wrong.
    pub const BAD_FCS: u8 = 0x40;
}

/// A radiotap header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Radiotap<'a> {
    header: &'a [u8],
    /// The 802.11 frame.
    pub payload: &'a [u8],
}

impl<'a> Radiotap<'a> {
    /// Splits off the header.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let head = bytes.first_chunk::<HEADER_LEN>().ok_or(Reason::Truncated)?;
        let (header, payload) = bytes
            .split_at_checked(header_len(head)?)
            .ok_or(Reason::Truncated)?;
        Ok(Radiotap { header, payload })
    }

    /// Bytes of the header.
    pub fn header_len(&self) -> usize {
        self.header.len()
    }

    /// [`flag`]s; 0 if the field is absent.
    pub fn flags(&self) -> u8 {
        flags(self.header).unwrap_or(0)
    }
}

fn header_len(head: &[u8; HEADER_LEN]) -> Result<usize, Reason> {
    if head[0] != 0 {
        return Err(Reason::BadVersion);
    }
    let len = usize::from(u16::from_le_bytes([head[2], head[3]]));
    if len < HEADER_LEN {
        return Err(Reason::BadHeaderLength);
    }
    Ok(len)
}

/// The flags field of a header, which is the second field, if present.
fn flags(header: &[u8]) -> Option<u8> {
    let words = header.get(4..)?.chunks_exact(4);
    // If bit 31 is set, another word follows.
    let count = words.take_while(|word| word[3] & 0x80 != 0).count() + 1;
    let present = header.get(4)?;
    if present & 2 == 0 {
        return None;
    }
    let mut at = 4 + 4 * count;
    if present & 1 != 0 {
        // The time, in microseconds: eight bytes.
        at = at.next_multiple_of(8) + 8;
    }
    header.get(at).copied()
}

impl fmt::Display for Radiotap<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "radiotap, {} bytes", self.header_len())
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    let len = header_len(walk.peek::<HEADER_LEN>()?)?;
    let header = walk.rest.get(..len);
    walk.advance(len)?;
    let flags = header.and_then(flags).unwrap_or(0);
    if flags & flag::FCS != 0 {
        walk.limit(walk.wire_rest.saturating_sub(FCS_LEN));
    }
    walk.is_padded = flags & flag::PADDED != 0;
    Ok(LayerKind::Ieee80211)
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "radiotap",
    spec: "radiotap.org",
    links: &[LinkType::IEEE802_11_RADIO],
    // Time and flags (check sequence, padding), after two words of presence; QoS data.
    sample: &[
        0, 0, 25, 0, 3, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0x30, 0x88, 1,
        0, 0, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 3, 0x10, 0, 5, 0, 0, 0, 0xaa,
        0xaa, 3, 0, 0, 0, 0x88, 0xb5, 1, 2, 3, 4, 0xf, 0xc, 0x5, 0,
    ],
    step,
    show: |bytes, f| table::show(Radiotap::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dissection, dissect};

    #[test]
    fn flags_follow_all_presence_words_and_the_timestamp() {
        let view = Radiotap::parse(PROTOCOL.sample).unwrap();
        assert_eq!((view.header_len(), view.flags()), (25, 0x30));
        let short = [0, 0, 9, 0, 2, 0, 0, 0, 0x10, 7];
        assert_eq!(Radiotap::parse(&short).unwrap().flags(), 0x10);
        let absent = [0, 0, 8, 0, 1, 0, 0, 0, 0xff];
        assert_eq!(Radiotap::parse(&absent).unwrap().flags(), 0);
        assert_eq!(
            Radiotap::parse(&[0, 0, 7, 0, 0, 0, 0, 0]),
            Err(Reason::BadHeaderLength)
        );
    }

    #[test]
    fn padding_and_check_sequence_are_not_payload() {
        let mut d = Dissection::EMPTY;
        let len = PROTOCOL.sample.len() as u32;
        dissect(LinkType::IEEE802_11_RADIO, PROTOCOL.sample, len, &mut d);
        assert!(d.has(LayerKind::Llc));
        assert_eq!(d.payload(PROTOCOL.sample), [1, 2, 3, 4]);
    }
}
