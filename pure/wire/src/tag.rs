//! Tags between the Ethernet header and the packet that contain no flow key fields: they are
//! skipped, and are separate layers.
//!
//! ```text
//! 802.1BR E-tag, 0x893f:       6 bytes, type u16
//! Cisco VN-tag, 0x8926:        4 bytes, type u16
//! Cisco metadata, 0x8909:      version u8, options u8, option u16, security group u16, type u16
//! ```

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{Reason, be16, ethernet};
use core::fmt;

/// A tag of `N` bytes, including the type of what follows.
#[derive(Clone, Copy)]
pub struct Tag<'a, const N: usize> {
    head: &'a [u8; N],
    /// The payload.
    pub payload: &'a [u8],
}

/// 802.1BR port extender tag.
pub type Etag<'a> = Tag<'a, 8>;

/// Cisco virtual network tag.
pub type Vntag<'a> = Tag<'a, 6>;

/// Cisco metadata, as used for TrustSec security groups.
pub type CiscoMetadata<'a> = Tag<'a, 8>;

impl<'a, const N: usize> Tag<'a, N> {
    /// Splits off the tag; `bytes` start after the tag type.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, payload) = bytes.split_first_chunk().ok_or(Reason::Truncated)?;
        Ok(Tag { head, payload })
    }

    /// The bytes between the two types.
    pub fn body(&self) -> &'a [u8] {
        self.head.get(..N.saturating_sub(2)).unwrap_or(&[])
    }

    /// The type of what follows, as in an Ethernet header.
    pub fn ether_type(&self) -> u16 {
        match self.head.last_chunk::<2>() {
            Some(&[high, low]) => be16(high, low),
            None => 0,
        }
    }
}

impl<const N: usize> fmt::Display for Tag<'_, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tag of {N} bytes, type 0x{:04x}", self.ether_type())
    }
}

fn step<const N: usize>(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<N>()?;
    walk.advance(N)?;
    match head.last_chunk::<2>() {
        Some(&[high, low]) => ethernet::next_of_type(walk, be16(high, low)),
        None => Err(Reason::UnsupportedType),
    }
}

pub(crate) const ETAG: Protocol = Protocol {
    name: "etag",
    spec: "IEEE 802.1BR",
    ether_types: &[0x893f],
    sample: &[0, 0, 0, 1, 0, 0, 0x88, 0xb5, 1, 2],
    step: step::<8>,
    show: |bytes, f| table::show(Etag::parse(bytes), f),
    ..Protocol::BASE
};

pub(crate) const VNTAG: Protocol = Protocol {
    name: "vntag",
    spec: "Cisco VN-tag",
    ether_types: &[0x8926],
    sample: &[0, 0, 0, 1, 0x88, 0xb5, 1, 2],
    step: step::<6>,
    show: |bytes, f| table::show(Vntag::parse(bytes), f),
    ..Protocol::BASE
};

pub(crate) const CISCO_METADATA: Protocol = Protocol {
    name: "cmd",
    spec: "Cisco metadata",
    ether_types: &[0x8909],
    sample: &[1, 1, 0, 1, 0, 9, 0x88, 0xb5, 1, 2],
    step: step::<8>,
    show: |bytes, f| table::show(CiscoMetadata::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples() {
        assert_eq!(Etag::parse(ETAG.sample).unwrap().ether_type(), 0x88b5);
        assert_eq!(Vntag::parse(VNTAG.sample).unwrap().body(), [0, 0, 0, 1]);
        let view = CiscoMetadata::parse(CISCO_METADATA.sample).unwrap();
        assert_eq!((view.ether_type(), view.payload), (0x88b5, &[1, 2][..]));
    }
}
