//! IPv6 extension headers (RFC 8200 section 4), mobility (RFC 6275), HIP (RFC 7401), shim6
//! (RFC 5533).
//!
//! ```text
//! all but fragment: next header u8, length / 8 - 1 u8, body
//! fragment:         next header u8, 0 u8, offset / 8, 2 bits, M (together u16), identification u32
//! ```
//!
//! Each is a separate layer, so the limit on layers bounds the chain.

use crate::dissection::Fragment;
use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{Reason, be16, ipv6};
use core::fmt;

/// Bits of [`Dissection::ip_options`](crate::Dissection::ip_options) over IPv6, as in IPFIX element
/// 64 (RFC 5102 section 5.8.9 with its errata).
pub mod bit {
    /// Destination options.
    pub const DESTINATION_OPTIONS: u32 = 1 << 0;
    /// Hop-by-hop options.
    pub const HOP_BY_HOP: u32 = 1 << 1;
    /// Fragment header of the first fragment.
    pub const FIRST_FRAGMENT: u32 = 1 << 4;
    /// Routing header.
    pub const ROUTING: u32 = 1 << 5;
    /// Fragment header of a later fragment.
    pub const LATER_FRAGMENT: u32 = 1 << 6;
    /// Mobility header.
    pub const MOBILITY: u32 = 1 << 12;
    /// Encapsulating security payload.
    pub const ESP: u32 = 1 << 13;
    /// Authentication header.
    pub const AH: u32 = 1 << 14;
    /// HIP, for which IPFIX has no bit.
    pub const HIP: u32 = 1 << 16;
    /// Shim6, for which IPFIX has no bit.
    pub const SHIM6: u32 = 1 << 17;
}

/// An extension header that is not a fragment header.
#[derive(Clone, Copy)]
pub struct Extension<'a> {
    next_header: u8,
    /// The header's bytes after the length byte.
    pub body: &'a [u8],
    /// The payload.
    pub payload: &'a [u8],
}

impl<'a> Extension<'a> {
    /// Splits a packet after the header.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let head: &[u8; 2] = bytes.first_chunk().ok_or(Reason::Truncated)?;
        let (all, payload) = bytes
            .split_at_checked(ext_len(head[1]))
            .ok_or(Reason::Truncated)?;
        Ok(Extension {
            next_header: head[0],
            body: all.get(2..).unwrap_or(&[]),
            payload,
        })
    }

    /// Type of the header that follows.
    pub fn next_header(&self) -> u8 {
        self.next_header
    }

    /// The options of a hop-by-hop or destination options header.
    pub fn options(&self) -> Options<'a> {
        Options { rest: self.body }
    }
}

impl fmt::Display for Extension<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "extension header of {} bytes, next-header {}",
            self.body.len() + 2,
            self.next_header
        )
    }
}

/// Iterator over (type, data) of IPv6 options, padding included; ends at the first malformed one.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Options<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&kind, rest) = self.rest.split_first()?;
        if kind == 0 {
            self.rest = rest;
            return Some((0, &[]));
        }
        let (&len, rest) = rest.split_first()?;
        let (data, rest) = rest.split_at_checked(usize::from(len))?;
        self.rest = rest;
        Some((kind, data))
    }
}

/// A fragment header.
#[derive(Clone, Copy)]
pub struct FragmentHeader<'a> {
    head: &'a [u8; 8],
    /// The payload.
    pub payload: &'a [u8],
}

impl<'a> FragmentHeader<'a> {
    /// Splits a packet after the header.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, payload) = bytes.split_first_chunk().ok_or(Reason::Truncated)?;
        Ok(FragmentHeader { head, payload })
    }

    /// Type of the first header in the fragmented part.
    #[inline]
    pub fn next_header(&self) -> u8 {
        self.head[0]
    }

    /// Offset of this fragment in bytes.
    #[inline]
    pub fn offset(&self) -> u16 {
        be16(self.head[2], self.head[3]) & 0xfff8
    }

    /// Whether further fragments follow.
    #[inline]
    pub fn more_fragments(&self) -> bool {
        self.head[3] & 1 != 0
    }

    /// Identification, common to all fragments.
    #[inline]
    pub fn id(&self) -> u32 {
        u32::from_be_bytes([self.head[4], self.head[5], self.head[6], self.head[7]])
    }
}

impl fmt::Display for FragmentHeader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = if self.more_fragments() { "+" } else { "" };
        write!(f, "frag 0x{:08x}:{}{more}", self.id(), self.offset())
    }
}

fn ext_len(field: u8) -> usize {
    (usize::from(field) + 1) * 8
}

/// Steps over a header of the common form.
fn step_common(walk: &mut Walk<'_, '_>, bit: u32) -> Next {
    let head = walk.peek::<2>()?;
    walk.out.ip_options |= bit;
    ipv6::next_behind(walk, ext_len(head[1]), head[0])
}

fn step_fragment(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<8>()?;
    let field = be16(head[2], head[3]);
    let offset = field & 0xfff8;
    walk.out.fragment_id = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
    walk.out.fragment_offset = offset;
    walk.out.fragment = match (offset, field & 1 != 0) {
        (0, false) => Fragment::Whole,
        (0, true) => Fragment::First,
        (_, true) => Fragment::Middle,
        (_, false) => Fragment::Last,
    };
    let later = walk.out.fragment.is_later();
    walk.out.ip_options |= if later {
        bit::LATER_FRAGMENT
    } else {
        bit::FIRST_FRAGMENT
    };
    walk.advance(8)?;
    if later {
        walk.out.ip_protocol = head[0];
        walk.out.transport_offset = 0;
        return Err(Reason::LaterFragment);
    }
    ipv6::next_of_header(walk, head[0])
}

pub(crate) const HOP_BY_HOP: Protocol = Protocol {
    name: "hopopts",
    spec: "RFC 8200 section 4.3",
    ipv6_next_headers: &[0],
    // Router alert, padding; no next header.
    sample: &[59, 0, 5, 2, 0, 0, 1, 0],
    step: |walk| step_common(walk, bit::HOP_BY_HOP),
    show: |bytes, f| table::show(Extension::parse(bytes), f),
    ..Protocol::BASE
};

pub(crate) const ROUTING: Protocol = Protocol {
    name: "routing",
    spec: "RFC 8200 section 4.4",
    ipv6_next_headers: &[43],
    sample: &[
        59, 2, 2, 0, 0, 0, 0, 0, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3,
    ],
    step: |walk| step_common(walk, bit::ROUTING),
    show: |bytes, f| table::show(Extension::parse(bytes), f),
    ..Protocol::BASE
};

pub(crate) const FRAGMENT: Protocol = Protocol {
    name: "fragment",
    spec: "RFC 8200 section 4.5",
    ipv6_next_headers: &[44],
    sample: &[59, 0, 0, 1, 0, 0, 0, 7, 1, 2, 3, 4, 5, 6, 7, 8],
    step: step_fragment,
    show: |bytes, f| table::show(FragmentHeader::parse(bytes), f),
    ..Protocol::BASE
};

pub(crate) const DESTINATION_OPTIONS: Protocol = Protocol {
    name: "dstopts",
    spec: "RFC 8200 section 4.6",
    ipv6_next_headers: &[60],
    sample: &[59, 0, 1, 4, 0, 0, 0, 0],
    step: |walk| step_common(walk, bit::DESTINATION_OPTIONS),
    show: |bytes, f| table::show(Extension::parse(bytes), f),
    ..Protocol::BASE
};

pub(crate) const MOBILITY: Protocol = Protocol {
    name: "mobility",
    spec: "RFC 6275 section 6.1",
    ipv6_next_headers: &[135],
    sample: &[59, 0, 0, 0, 0, 0, 0, 0],
    step: |walk| step_common(walk, bit::MOBILITY),
    show: |bytes, f| table::show(Extension::parse(bytes), f),
    ..Protocol::BASE
};

pub(crate) const HIP: Protocol = Protocol {
    name: "hip",
    spec: "RFC 7401 section 5.1",
    ipv6_next_headers: &[139],
    sample: &[
        59, 4, 1, 0x21, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2,
        2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2,
    ],
    step: |walk| step_common(walk, bit::HIP),
    show: |bytes, f| table::show(Extension::parse(bytes), f),
    ..Protocol::BASE
};

pub(crate) const SHIM6: Protocol = Protocol {
    name: "shim6",
    spec: "RFC 5533 section 5",
    ipv6_next_headers: &[140],
    sample: &[59, 0, 0x80, 0, 0, 0, 0, 1],
    step: |walk| step_common(walk, bit::SHIM6),
    show: |bytes, f| table::show(Extension::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dissection, LayerKind, LinkType};
    use std::vec::Vec;

    /// The layers of this file, all of them IPv6 extension headers.
    const KINDS: [LayerKind; 7] = [
        LayerKind::HopByHop,
        LayerKind::Routing,
        LayerKind::Fragment,
        LayerKind::DestinationOptions,
        LayerKind::Mobility,
        LayerKind::Hip,
        LayerKind::Shim6,
    ];

    #[test]
    fn a_chain_of_all() {
        let mut chain = Vec::new();
        for (i, kind) in KINDS.iter().enumerate() {
            let row = kind.protocol().unwrap();
            let next = KINDS
                .get(i + 1)
                .map_or(17, |k| k.protocol().unwrap().ipv6_next_headers[0]);
            let len = if *kind == LayerKind::Fragment {
                8
            } else {
                row.sample.len()
            };
            let start = chain.len();
            chain.extend(&row.sample[..len]);
            chain[start] = next;
            // A zero reserved byte and no next fragment, otherwise the chain would end there.
            if *kind == LayerKind::Fragment {
                chain[start + 3] = 0;
            }
        }
        chain.extend(crate::udp::PROTOCOL.sample);
        let mut packet = Vec::from(&ipv6::PROTOCOL.sample[..40]);
        packet[5] = chain.len() as u8;
        packet[6] = 0;
        packet.extend(chain);
        let mut out = Dissection::EMPTY;
        crate::dissect(LinkType::IPV6, &packet, packet.len() as u32, &mut out);
        assert_eq!(out.reason, Reason::Complete);
        assert_eq!(out.layer_count, 9);
        assert!(KINDS.iter().all(|k| out.has(*k)));
        assert_eq!(
            (out.src_port, out.dst_port, out.ip_protocol),
            (0x14e9, 9, 17)
        );
        assert_eq!((out.fragment, out.fragment_id), (Fragment::Whole, 7));
        assert_eq!(usize::from(out.transport_offset), packet.len() - 12);
    }

    #[test]
    fn views() {
        let view = Extension::parse(HOP_BY_HOP.sample).unwrap();
        assert_eq!(view.next_header(), 59);
        assert_eq!(
            view.options().collect::<Vec<_>>(),
            [(5, &[0, 0][..]), (1, &[][..])]
        );
        let view = FragmentHeader::parse(FRAGMENT.sample).unwrap();
        assert_eq!(std::format!("{view}"), "frag 0x00000007:0+");
        let last = FragmentHeader::parse(&[17, 0, 0, 16, 0, 0, 0, 7]).unwrap();
        assert_eq!(std::format!("{last}"), "frag 0x00000007:16");
    }
}
