//! IPv6 (RFC 8200 section 3).
//!
//! ```text
//!  0                   1                   2                   3
//! +-------+---------------+---------------------------------------+
//! |version| traffic class | flow label                            |
//! +-------+---------------+-------+---------------+---------------+
//! | payload length                | next header   | hop limit     |
//! +-------------------------------+---------------+---------------+
//! | source (16 bytes), destination (16 bytes)                     |
//! ```

use crate::table::{self, LayerKind, Protocol};
use crate::walk::{Next, Walk};
use crate::{LinkType, Reason, be16, ipv4, ipv6_ext};
use core::fmt;
use core::net::Ipv6Addr;

/// Bytes of the fixed header.
pub const HEADER_LEN: usize = 40;

/// An IPv6 header.
#[derive(Clone, Copy)]
pub struct Ipv6<'a> {
    head: &'a [u8; HEADER_LEN],
    /// The payload, extension headers first, limited to the payload length.
    pub payload: &'a [u8],
}

impl<'a> Ipv6<'a> {
    /// Splits a packet after the fixed header. The payload may be truncated by the capture.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, rest) = bytes
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Reason::Truncated)?;
        if head[0] >> 4 != 6 {
            return Err(Reason::BadVersion);
        }
        let payload = match usize::from(be16(head[4], head[5])) {
            0 => rest,
            len => rest.get(..len).unwrap_or(rest),
        };
        Ok(Ipv6 { head, payload })
    }

    /// DSCP (upper six bits) and ECN.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        self.head[0] << 4 | self.head[1] >> 4
    }

    /// Flow label, 20 bits.
    #[inline]
    pub fn flow_label(&self) -> u32 {
        let [a, b, c, d, ..] = *self.head;
        u32::from_be_bytes([a, b, c, d]) & 0x000f_ffff
    }

    /// Payload length as sent, in bytes; 0 for a jumbogram.
    #[inline]
    pub fn payload_len(&self) -> u16 {
        be16(self.head[4], self.head[5])
    }

    /// Type of the header that follows.
    #[inline]
    pub fn next_header(&self) -> u8 {
        self.head[6]
    }

    /// Hop limit.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.head[7]
    }

    /// Source address.
    #[inline]
    pub fn src(&self) -> Ipv6Addr {
        address(self.head, 8)
    }

    /// Destination address.
    #[inline]
    pub fn dst(&self) -> Ipv6Addr {
        address(self.head, 24)
    }
}

#[inline]
fn address(head: &[u8; HEADER_LEN], at: usize) -> Ipv6Addr {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&head[at..at + 16]);
    Ipv6Addr::from(bytes)
}

impl fmt::Display for Ipv6<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} > {}, hlim {}",
            self.src(),
            self.dst(),
            self.hop_limit()
        )?;
        write!(
            f,
            ", next-header {}, payload length {}",
            self.next_header(),
            self.payload_len()
        )
    }
}

/// Fields of a fixed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// Type of the header that follows.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Length after the fixed header; more than 65535 bytes give payload length 0.
    pub payload_len: usize,
}

impl Header {
    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; HEADER_LEN]) {
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0x000f_ffff;
        let len = u16::try_from(self.payload_len).unwrap_or(0);
        out[..4].copy_from_slice(&first.to_be_bytes());
        out[4..6].copy_from_slice(&len.to_be_bytes());
        out[6] = self.next_header;
        out[7] = self.hop_limit;
        out[8..24].copy_from_slice(&self.src.octets());
        out[24..].copy_from_slice(&self.dst.octets());
    }
}

/// No Next Header (RFC 8200 section 4.7).
const NO_NEXT_HEADER: u8 = 59;

/// Moves past an extension header or AH of `len` bytes, to the layer selected by its next header
/// value. If the capture truncated it, that is still the protocol.
pub(crate) fn next_behind(walk: &mut Walk<'_, '_>, len: usize, next_header: u8) -> Next {
    if walk.rest.len() < len {
        let reason = walk.missing(len);
        if reason == Reason::Truncated {
            walk.out.ip_protocol = next_header;
        }
        return Err(reason);
    }
    walk.advance(len)?;
    next_of_header(walk, next_header)
}

/// The layer selected by a next header value in the fixed header, an extension header or AH.
pub(crate) fn next_of_header(walk: &mut Walk<'_, '_>, next_header: u8) -> Next {
    walk.out.transport_offset = 0;
    if next_header == NO_NEXT_HEADER {
        walk.out.ip_protocol = next_header;
        return Ok(LayerKind::None);
    }
    if walk.out.ip_version == 6 {
        let kind = table::of_ipv6_next_header(next_header);
        if kind != LayerKind::None {
            walk.out.ip_protocol = next_header;
            walk.out.transport_offset = walk.at as u16;
            return Ok(kind);
        }
    }
    ipv4::next_of_protocol(walk, next_header)
}

/// The jumbo payload option (RFC 2675 section 2) at the start of hop-by-hop options.
fn jumbo_len(bytes: &[u8]) -> Option<usize> {
    let extension = ipv6_ext::Extension::parse(bytes).ok()?;
    extension
        .options()
        .find_map(|(kind, data)| match (kind, data) {
            (0xc2, &[a, b, c, d]) => Some(u32::from_be_bytes([a, b, c, d]) as usize),
            _ => None,
        })
}

pub(crate) fn step(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<HEADER_LEN>()?;
    if head[0] >> 4 != 6 {
        return Err(Reason::BadVersion);
    }
    let [a, b, c, d, ..] = *head;
    let first = u32::from_be_bytes([a, b, c, d]);
    let out = &mut *walk.out;
    out.ip_version = 6;
    out.ip_offset = walk.at as u16;
    out.traffic_class = (first >> 20) as u8;
    out.flow_label = first & 0x000f_ffff;
    out.ttl = head[7];
    out.src.copy_from_slice(&head[8..24]);
    out.dst.copy_from_slice(&head[24..40]);
    walk.advance(HEADER_LEN)?;
    let len = match (usize::from(be16(head[4], head[5])), head[6]) {
        (0, NO_NEXT_HEADER) => 0,
        (0, 0) => jumbo_len(walk.rest).unwrap_or(walk.wire_rest),
        // The card will segment, and each segment will get its own length.
        (0, _) => walk.wire_rest,
        (len, _) => len,
    };
    walk.out.ip_total_len = HEADER_LEN.saturating_add(len).min(u32::MAX as usize) as u32;
    walk.limit(len);
    next_of_header(walk, head[6])
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "ip6",
    spec: "RFC 8200",
    links: &[LinkType::IPV6],
    ether_types: &[0x86dd],
    ppp_protocols: &[0x0057],
    tunnelled_by_ip: &[41],
    // 2001:db8::1 > 2001:db8::2, next header 253 (experiments, RFC 3692).
    sample: &[
        0x60, 0, 0, 0, 0, 4, 253, 64, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0x20,
        1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 2, 3, 4,
    ],
    step,
    show: |bytes, f| table::show(Ipv6::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emit_then_parse() {
        let header = Header {
            src: "2001:db8::1".parse().unwrap(),
            dst: "2001:db8::2".parse().unwrap(),
            next_header: 58,
            hop_limit: 255,
            traffic_class: 0xb9,
            flow_label: 0xabcde,
            payload_len: 3,
        };
        let mut bytes = [0; HEADER_LEN + 5];
        header.emit(bytes.first_chunk_mut().unwrap());
        let view = Ipv6::parse(&bytes).unwrap();
        assert_eq!((view.src(), view.dst()), (header.src, header.dst));
        assert_eq!((view.next_header(), view.hop_limit()), (58, 255));
        assert_eq!((view.traffic_class(), view.flow_label()), (0xb9, 0xabcde));
        assert_eq!(view.payload.len(), 3);
    }
}
