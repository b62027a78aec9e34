//! VLAN tags: IEEE 802.1Q (clause 9.6), also as service tags (802.1ad).
//!
//! ```text
//!  0                   1                   2                   3
//! +-----+-+-----------------------+-------------------------------+
//! | PCP |D| VLAN id               | type of what follows          |
//! +-----+-+-----------------------+-------------------------------+
//! ```
//!
//! The type of a tag is in the preceding header: 0x8100, 0x88a8, or 0x9100 and similar ones from
//! before 802.1ad. In a stack of tags the first is the outer one.

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{Dissection, Reason, be16, dissect_inner, ethernet};
use core::fmt;

/// Bytes of a tag.
pub const HEADER_LEN: usize = 4;

/// A VLAN tag.
#[derive(Clone, Copy)]
pub struct Vlan<'a> {
    head: &'a [u8; HEADER_LEN],
    /// The payload.
    pub payload: &'a [u8],
}

impl<'a> Vlan<'a> {
    /// Splits off the tag; `bytes` start after the tag type.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, payload) = bytes.split_first_chunk().ok_or(Reason::Truncated)?;
        Ok(Vlan { head, payload })
    }

    /// The whole tag control information.
    #[inline]
    pub fn tci(&self) -> u16 {
        be16(self.head[0], self.head[1])
    }

    /// VLAN id, 12 bits; 0 means that the tag has only a priority.
    #[inline]
    pub fn id(&self) -> u16 {
        self.tci() & 0x0fff
    }

    /// Priority, 0 to 7.
    #[inline]
    pub fn priority(&self) -> u8 {
        self.head[0] >> 5
    }

    /// Drop eligible.
    #[inline]
    pub fn drop_eligible(&self) -> bool {
        self.head[0] & 0x10 != 0
    }

    /// The type of what follows, as in an Ethernet header.
    #[inline]
    pub fn ether_type(&self) -> u16 {
        be16(self.head[2], self.head[3])
    }
}

impl fmt::Display for Vlan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vlan {}, p {}", self.id(), self.priority())?;
        if self.drop_eligible() {
            f.write_str(", DEI")
        } else {
            Ok(())
        }
    }
}

/// Writes a tag with the given control information and following type.
pub fn emit(out: &mut [u8; HEADER_LEN], tci: u16, ether_type: u16) {
    out[..2].copy_from_slice(&tci.to_be_bytes());
    out[2..].copy_from_slice(&ether_type.to_be_bytes());
}

/// The VLAN ids in front of the packet's first IP header, and their number (at most 2): those of
/// the first level, then those of Ethernet in MPLS, FabricPath or 802.1ah.
pub fn tags(packet: &[u8], first: &Dissection) -> ([u16; 2], usize) {
    let mut tags = [first.vlan_outer, first.vlan_inner];
    let mut count = usize::from(first.vlan_count).min(2);
    if first.ip_version == 0 && count < 2 {
        let (mut level, mut inner) = (*first, Dissection::EMPTY);
        while level.ip_version == 0
            && !level.inner_is_quote
            && dissect_inner(packet, &level, &mut inner)
        {
            level = inner;
            for tag in [level.vlan_outer, level.vlan_inner]
                .into_iter()
                .take(level.vlan_count.into())
            {
                if let Some(free) = tags.get_mut(count) {
                    *free = tag;
                    count += 1;
                }
            }
        }
    }
    (tags, count)
}

pub(crate) fn step(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<HEADER_LEN>()?;
    let id = be16(head[0], head[1]) & 0x0fff;
    match walk.out.vlan_count {
        0 => walk.out.vlan_outer = id,
        1 => walk.out.vlan_inner = id,
        _ => {}
    }
    walk.out.vlan_count += 1; // at most MAX_LAYERS
    walk.advance(HEADER_LEN)?;
    ethernet::next_of_type(walk, be16(head[2], head[3]))
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "vlan",
    spec: "IEEE 802.1Q",
    ether_types: &[0x8100, 0x88a8, 0x9100, 0x9200, 0x9300],
    sample: &[0x60, 0x07, 0x88, 0xb5, 1, 2, 3, 4],
    step,
    show: |bytes, f| table::show(Vlan::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn emit_then_parse() {
        let mut bytes = [0; HEADER_LEN];
        emit(&mut bytes, 0xb064, 0x0800);
        let view = Vlan::parse(&bytes).unwrap();
        assert_eq!(
            (view.id(), view.priority(), view.drop_eligible()),
            (100, 5, true)
        );
        assert_eq!(view.ether_type(), 0x0800);
        assert_eq!(format!("{view}"), "vlan 100, p 5, DEI");
    }
}
