//! MPLS label stack entries (RFC 3032 section 2.1; RFC 4385 and RFC 4448 for Ethernet in MPLS).
//!
//! ```text
//!  0                   1                   2                   3
//! +---------------------------------------+-----+-+---------------+
//! | label                                 | TC  |S| TTL           |
//! +---------------------------------------+-----+-+---------------+
//! ```
//!
//! The entry with S set does not identify the next protocol. As routers and other dissectors do,
//! the first nibble is checked (RFC 4928): 4 and 6 are IP, 0 is a pseudowire control word followed
//! by Ethernet.

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, Reason};
use core::fmt;

/// Bytes of an entry.
pub const HEADER_LEN: usize = 4;

/// Bytes of a pseudowire control word.
const CONTROL_WORD_LEN: usize = 4;

/// An entry of the label stack.
#[derive(Clone, Copy)]
pub struct Mpls<'a> {
    head: &'a [u8; HEADER_LEN],
    /// The data after this entry: the next entry, or after the last one the packet.
    pub payload: &'a [u8],
}

impl<'a> Mpls<'a> {
    /// Splits off one entry.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, payload) = bytes.split_first_chunk().ok_or(Reason::Truncated)?;
        Ok(Mpls { head, payload })
    }

    /// Label, 20 bits.
    #[inline]
    pub fn label(&self) -> u32 {
        u32::from_be_bytes(*self.head) >> 12
    }

    /// Traffic class, 3 bits.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        self.head[2] >> 1 & 7
    }

    /// Whether this is the last entry of the stack.
    #[inline]
    pub fn is_bottom(&self) -> bool {
        self.head[2] & 1 != 0
    }

    /// Time to live.
    #[inline]
    pub fn ttl(&self) -> u8 {
        self.head[3]
    }
}

impl fmt::Display for Mpls<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "(label {}, tc {}", self.label(), self.traffic_class())?;
        write!(
            f,
            "{}, ttl {})",
            if self.is_bottom() { ", [S]" } else { "" },
            self.ttl()
        )
    }
}

/// Writes an entry.
pub fn emit(out: &mut [u8; HEADER_LEN], label: u32, traffic_class: u8, is_bottom: bool, ttl: u8) {
    let word = label << 12
        | u32::from(traffic_class & 7) << 9
        | u32::from(is_bottom) << 8
        | u32::from(ttl);
    *out = word.to_be_bytes();
}

pub(crate) fn step(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<HEADER_LEN>()?;
    if walk.out.mpls_count == 0 {
        walk.out.mpls_label = u32::from_be_bytes(*head) >> 12;
    }
    walk.out.mpls_count += 1; // at most MAX_LAYERS
    walk.advance(HEADER_LEN)?;
    if head[2] & 1 == 0 {
        return Ok(LayerKind::Mpls);
    }
    match walk.peek::<1>()?[0] >> 4 {
        4 => Ok(LayerKind::Ipv4),
        6 => Ok(LayerKind::Ipv6),
        0 => {
            walk.advance(CONTROL_WORD_LEN)?;
            walk.inner(LayerKind::Ethernet)
        }
        _ => Err(Reason::UnsupportedTunnel),
    }
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "mpls",
    spec: "RFC 3032",
    ether_types: &[0x8847, 0x8848],
    ppp_protocols: &[0x0281, 0x0283],
    tunnelled_by_ip: &[137],
    sample: &[0, 1, 0x01, 64, 0x70, 1, 2, 3],
    step,
    show: |bytes, f| table::show(Mpls::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn emit_then_parse() {
        let mut bytes = [0; HEADER_LEN];
        emit(&mut bytes, 0xabcde, 5, true, 9);
        let view = Mpls::parse(&bytes).unwrap();
        assert_eq!(
            (view.label(), view.traffic_class(), view.ttl()),
            (0xabcde, 5, 9)
        );
        assert!(view.is_bottom());
        assert_eq!(format!("{view}"), "(label 703710, tc 5, [S], ttl 9)");
    }
}
