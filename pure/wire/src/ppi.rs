//! PPI, per-packet information (LINKTYPE_PPI, CACE Technologies 1.0.7). All numbers are
//! little-endian.
//!
//! ```text
//! version u8 (0), flags u8, length of the header u16, link type of the packet (DLT_) u32
//! fields: type u16, length u16 of the value, value; padded to four bytes if flags bit 0 is set
//! ```
//!
//! Only the field 802.11-Common (2) is used: it has the flag for a frame check sequence at the end.

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LinkType, Reason};
use core::fmt;

/// Bytes of the header before the fields.
pub const HEADER_LEN: usize = 8;

/// Bytes of a field's header.
const FIELD_LEN: usize = 4;

/// Maximum number of fields read.
const MAX_FIELDS: usize = 64;

/// The field 802.11-Common: time u64, flags u16 of which bit 0 is the check sequence, and more.
const WLAN_COMMON: u16 = 2;

/// A PPI header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ppi<'a> {
    header: &'a [u8],
    /// The packet, from its own link header on.
    pub payload: &'a [u8],
}

fn header_len(head: &[u8; HEADER_LEN]) -> Result<usize, Reason> {
    if head[0] != 0 {
        return Err(Reason::BadVersion);
    }
    match usize::from(u16::from_le_bytes([head[2], head[3]])) {
        len @ HEADER_LEN.. => Ok(len),
        _ => Err(Reason::BadHeaderLength),
    }
}

/// The value of the first field of a type in a complete header.
fn field(header: &[u8], wanted: u16) -> Option<&[u8]> {
    let is_padded = header.get(1)? & 1 != 0;
    let mut rest = header.get(HEADER_LEN..)?;
    for _ in 0..MAX_FIELDS {
        let (head, value) = rest.split_first_chunk::<FIELD_LEN>()?;
        let len = usize::from(u16::from_le_bytes([head[2], head[3]]));
        if u16::from_le_bytes([head[0], head[1]]) == wanted {
            return value.get(..len);
        }
        let padded = if is_padded {
            len.next_multiple_of(4)
        } else {
            len
        };
        rest = value.get(padded..)?;
    }
    None
}

fn has_fcs(header: &[u8]) -> bool {
    field(header, WLAN_COMMON)
        .and_then(|value| value.get(8))
        .is_some_and(|flags| flags & 1 != 0)
}

impl<'a> Ppi<'a> {
    /// Splits off the header.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let head = bytes.first_chunk::<HEADER_LEN>().ok_or(Reason::Truncated)?;
        let (header, payload) = bytes
            .split_at_checked(header_len(head)?)
            .ok_or(Reason::Truncated)?;
        Ok(Ppi { header, payload })
    }

    /// Bytes of the header.
    pub fn header_len(&self) -> usize {
        self.header.len()
    }

    /// Link type of the packet, a DLT_ number.
    pub fn dlt(&self) -> u32 {
        match self.header.get(4..).and_then(|bytes| bytes.first_chunk()) {
            Some(bytes) => u32::from_le_bytes(*bytes),
            None => 0,
        }
    }

    /// The value of the first field of a type.
    pub fn field(&self, wanted: u16) -> Option<&'a [u8]> {
        field(self.header, wanted)
    }

    /// Whether the frame ends with its check sequence.
    pub fn has_fcs(&self) -> bool {
        has_fcs(self.header)
    }
}

impl fmt::Display for Ppi<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PPI, DLT {}", self.dlt())
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<HEADER_LEN>()?;
    let len = header_len(head)?;
    let header = walk.rest.get(..len);
    let dlt = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
    walk.advance(len)?;
    let is_wlan = dlt == u32::from(LinkType::IEEE802_11.0);
    if is_wlan && header.is_some_and(has_fcs) {
        walk.limit(walk.wire_rest.saturating_sub(4));
    }
    walk.link(dlt)
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "ppi",
    spec: "LINKTYPE_PPI",
    links: &[LinkType::PPI],
    // A field of three bytes, padded, then 802.11-Common with a check sequence; an acknowledgment.
    sample: &[
        0, 1, 44, 0, 105, 0, 0, 0, 9, 0, 3, 0, 1, 2, 3, 0, 2, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
        0, 2, 0, 0x6c, 0x09, 0xa0, 0, 0, 0, 0xc4, 0xa6, 0, 0, 0, 0, 0xd4, 0, 0, 0, 2, 0, 0, 0, 0,
        1, 0xf, 0xc, 0x5, 0,
    ],
    step,
    show: |bytes, f| table::show(Ppi::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dissection, LayerKind, dissect};

    #[test]
    fn sample() {
        let view = Ppi::parse(PROTOCOL.sample).unwrap();
        assert_eq!(
            (view.dlt(), view.header_len(), view.has_fcs()),
            (105, 44, true)
        );
        assert_eq!(view.field(9), Some(&[1, 2, 3][..]));
        let mut d = Dissection::EMPTY;
        let len = PROTOCOL.sample.len() as u32;
        dissect(LinkType::PPI, PROTOCOL.sample, len, &mut d);
        assert_eq!((d.reason, d.payload_len), (Reason::Complete, 0));
        assert!(d.has(LayerKind::Ieee80211));
    }

    #[test]
    fn nested_headers_are_bounded() {
        let one = [0, 0, 8, 0, 192, 0, 0, 0];
        let bytes = one.repeat(40);
        let mut d = Dissection::EMPTY;
        dissect(LinkType::PPI, &bytes, bytes.len() as u32, &mut d);
        assert_eq!(d.reason, Reason::TooDeep);
    }
}
