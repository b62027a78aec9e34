//! IPv4 (RFC 791 section 3.1).
//!
//! ```text
//!  0                   1                   2                   3
//! +-------+-------+---------------+-------------------------------+
//! |version| IHL   | DSCP, ECN     | total length                  |
//! +-------+-------+---------------+-----+-------------------------+
//! | identification                |0 D M| fragment offset / 8     |
//! +---------------+---------------+-----+-------------------------+
//! | time to live  | protocol      | header checksum               |
//! +---------------+---------------+-------------------------------+
//! | source, destination, options up to IHL * 4 bytes …            |
//! ```

use crate::checksum;
use crate::dissection::Fragment;
use crate::table::{self, LayerKind, Protocol};
use crate::walk::{Next, Walk};
use crate::{LinkType, Reason, be16};
use core::fmt;
use core::net::Ipv4Addr;

/// Bytes of the header without options.
pub const HEADER_LEN: usize = 20;

/// An IPv4 header with its options.
#[derive(Clone, Copy)]
pub struct Ipv4<'a> {
    head: &'a [u8; HEADER_LEN],
    /// The options, padding included: 0 to 40 bytes.
    pub options: &'a [u8],
    /// The payload, limited to the total length, without link padding.
    pub payload: &'a [u8],
}

impl<'a> Ipv4<'a> {
    /// Splits a datagram after its header. The payload may be truncated by the capture.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, rest) = bytes
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Reason::Truncated)?;
        if head[0] >> 4 != 4 {
            return Err(Reason::BadVersion);
        }
        let header_len = usize::from(head[0] & 15) * 4;
        let options_len = header_len
            .checked_sub(HEADER_LEN)
            .ok_or(Reason::BadHeaderLength)?;
        let (options, rest) = rest
            .split_at_checked(options_len)
            .ok_or(Reason::Truncated)?;
        let payload = match usize::from(be16(head[2], head[3])) {
            0 => rest,
            total => {
                let len = total.checked_sub(header_len).ok_or(Reason::BadLength)?;
                rest.get(..len).unwrap_or(rest)
            }
        };
        Ok(Ipv4 {
            head,
            options,
            payload,
        })
    }

    /// Bytes of the header, options included: 20 to 60.
    #[inline]
    pub fn header_len(&self) -> usize {
        HEADER_LEN + self.options.len()
    }

    /// DSCP (upper six bits) and ECN.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        self.head[1]
    }

    /// Total length as sent, in bytes; 0 if the sender leaves it to segmentation offload.
    #[inline]
    pub fn total_len(&self) -> u16 {
        be16(self.head[2], self.head[3])
    }

    /// Identification, common to all fragments of a datagram.
    #[inline]
    pub fn id(&self) -> u16 {
        be16(self.head[4], self.head[5])
    }

    /// Whether fragmentation is forbidden.
    #[inline]
    pub fn dont_fragment(&self) -> bool {
        self.head[6] & 0x40 != 0
    }

    /// Whether further fragments follow.
    #[inline]
    pub fn more_fragments(&self) -> bool {
        self.head[6] & 0x20 != 0
    }

    /// Offset of this fragment in bytes.
    #[inline]
    pub fn fragment_offset(&self) -> u16 {
        be16(self.head[6], self.head[7]) << 3
    }

    /// Time to live.
    #[inline]
    pub fn ttl(&self) -> u8 {
        self.head[8]
    }

    /// Protocol of the payload.
    #[inline]
    pub fn protocol(&self) -> u8 {
        self.head[9]
    }

    /// Header checksum as sent.
    #[inline]
    pub fn checksum(&self) -> u16 {
        be16(self.head[10], self.head[11])
    }

    /// Whether the header checksum is right.
    pub fn checksum_ok(&self) -> bool {
        checksum::Sum::new()
            .add_bytes(self.head)
            .add_bytes(self.options)
            .finish()
            == 0
    }

    /// Source address.
    #[inline]
    pub fn src(&self) -> Ipv4Addr {
        Ipv4Addr::new(self.head[12], self.head[13], self.head[14], self.head[15])
    }

    /// Destination address.
    #[inline]
    pub fn dst(&self) -> Ipv4Addr {
        Ipv4Addr::new(self.head[16], self.head[17], self.head[18], self.head[19])
    }

    /// The options one by one.
    pub fn options(&self) -> Options<'a> {
        Options { rest: self.options }
    }
}

impl fmt::Display for Ipv4<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} > {}, ttl {}, id {}",
            self.src(),
            self.dst(),
            self.ttl(),
            self.id()
        )?;
        write!(
            f,
            ", proto {}, length {}",
            self.protocol(),
            self.total_len()
        )
    }
}

/// One IPv4 option (RFC 791 section 3.1, registry "IP Option Numbers").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Option<'a> {
    /// The type byte: copied flag, class, number.
    pub kind: u8,
    /// The bytes after the length byte; empty for no-operation.
    pub data: &'a [u8],
}

/// Iterator over IPv4 options; ends at the end-of-list option, or at the first malformed one.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Options<'a> {
    type Item = Ipv4Option<'a>;

    fn next(&mut self) -> Option<Ipv4Option<'a>> {
        let (&kind, rest) = self.rest.split_first()?;
        match kind {
            0 => None,
            1 => {
                self.rest = rest;
                Some(Ipv4Option { kind, data: &[] })
            }
            _ => {
                let len = usize::from(*rest.first()?);
                let (option, rest) = self.rest.split_at_checked(len)?;
                let data = option.get(2..)?;
                self.rest = rest;
                Some(Ipv4Option { kind, data })
            }
        }
    }
}

/// Fields of a header without options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Time to live.
    pub ttl: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Identification.
    pub id: u16,
    /// Length after the header; more than 65515 bytes cannot be represented and give total length
    /// 0.
    pub payload_len: usize,
}

impl Header {
    /// Writes the header, checksum included, with the don't-fragment bit set.
    pub fn emit(&self, out: &mut [u8; HEADER_LEN]) {
        let total = u16::try_from(self.payload_len + HEADER_LEN).unwrap_or(0);
        out[0] = 0x45;
        out[1] = self.traffic_class;
        out[2..4].copy_from_slice(&total.to_be_bytes());
        out[4..6].copy_from_slice(&self.id.to_be_bytes());
        out[6..8].copy_from_slice(&[0x40, 0]);
        out[8] = self.ttl;
        out[9] = self.protocol;
        out[10..12].copy_from_slice(&[0, 0]);
        out[12..16].copy_from_slice(&self.src.octets());
        out[16..].copy_from_slice(&self.dst.octets());
        let sum = checksum::checksum(out);
        out[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Reads a fragment field that is not all zero.
#[cold]
fn fragment(walk: &mut Walk<'_, '_>, field: u16) {
    let offset = (field & 0x1fff) << 3;
    walk.out.fragment_offset = offset;
    walk.out.fragment = match (offset, field & 0x2000 != 0) {
        (0, true) => Fragment::First,
        (_, true) => Fragment::Middle,
        (_, false) => Fragment::Last,
    };
}

/// The set of option numbers present.
#[cold]
fn option_set(bytes: &[u8]) -> u32 {
    Options { rest: bytes }.fold(0, |set, option| set | 1 << (option.kind & 31))
}

/// The layer selected by an IP protocol number that is not an IPv6 extension header.
pub(crate) fn next_of_protocol(walk: &mut Walk<'_, '_>, number: u8) -> Next {
    walk.out.ip_protocol = number;
    match (
        table::of_ipv4_protocol(number),
        table::tunnelled_by_ip(number),
    ) {
        (LayerKind::None, LayerKind::None) => {
            walk.out.transport_offset = walk.at as u16;
            Err(Reason::UnsupportedProtocol)
        }
        (LayerKind::None, tunnelled) => walk.inner(tunnelled),
        (kind, _) => {
            walk.out.transport_offset = walk.at as u16;
            Ok(kind)
        }
    }
}

pub(crate) fn step(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<HEADER_LEN>()?;
    if head[0] >> 4 != 4 {
        return Err(Reason::BadVersion);
    }
    let header_len = usize::from(head[0] & 15) * 4;
    if header_len < HEADER_LEN {
        return Err(Reason::BadHeaderLength);
    }
    // 0: the card will segment, and each segment will get its own length.
    let total = match usize::from(be16(head[2], head[3])) {
        0 => walk.wire_rest,
        total => total,
    };
    if total < header_len {
        return Err(Reason::BadLength);
    }
    let out = &mut *walk.out;
    out.ip_version = 4;
    out.ip_offset = walk.at as u16;
    out.traffic_class = head[1];
    out.ip_total_len = total as u32;
    out.fragment_id = u32::from(be16(head[4], head[5]));
    out.ip_flags = head[6] >> 5;
    out.ttl = head[8];
    out.ip_protocol = head[9];
    out.src[..4].copy_from_slice(&head[12..16]);
    out.dst[..4].copy_from_slice(&head[16..20]);
    walk.limit(total);
    let field = be16(head[6], head[7]);
    if field & 0x3fff != 0 {
        fragment(walk, field);
    }
    if header_len > HEADER_LEN {
        // The captured part of truncated options.
        let len = header_len.min(walk.rest.len());
        let options = walk.rest.get(HEADER_LEN..len);
        walk.out.ip_options = options.map_or(0, option_set);
    }
    walk.advance(header_len)?;
    if walk.out.fragment.is_later() {
        return Err(Reason::LaterFragment);
    }
    next_of_protocol(walk, head[9])
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "ip",
    spec: "RFC 791",
    links: &[LinkType::IPV4],
    ether_types: &[0x0800],
    ppp_protocols: &[0x0021],
    tunnelled_by_ip: &[4],
    // 10.0.0.1 > 10.0.0.2, router alert, protocol 253 (experiments, RFC 3692).
    sample: &[
        0x46, 0, 0, 28, 0, 1, 0x40, 0, 64, 253, 0x90, 0xdd, 10, 0, 0, 1, 10, 0, 0, 2, 148, 4, 0, 0,
        1, 2, 3, 4,
    ],
    step,
    show: |bytes, f| table::show(Ipv4::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn sample_has_a_right_checksum_and_an_option() {
        let view = Ipv4::parse(PROTOCOL.sample).unwrap();
        assert!(view.checksum_ok(), "{:04x}", view.checksum());
        let options: Vec<_> = view.options().collect();
        assert_eq!(
            options,
            [Ipv4Option {
                kind: 148,
                data: &[0, 0]
            }]
        );
        assert_eq!(view.payload, [1, 2, 3, 4]);
    }

    #[test]
    fn emit_then_parse() {
        let header = Header {
            src: Ipv4Addr::new(192, 0, 2, 1),
            dst: Ipv4Addr::new(198, 51, 100, 7),
            protocol: 17,
            ttl: 3,
            traffic_class: 0xb8,
            id: 0xbeef,
            payload_len: 4,
        };
        let mut bytes = [0; HEADER_LEN + 6];
        header.emit(bytes.first_chunk_mut().unwrap());
        let view = Ipv4::parse(&bytes).unwrap();
        assert!(view.checksum_ok() && view.dont_fragment() && !view.more_fragments());
        assert_eq!((view.src(), view.dst()), (header.src, header.dst));
        assert_eq!((view.protocol(), view.ttl(), view.id()), (17, 3, 0xbeef));
        assert_eq!(
            view.payload.len(),
            4,
            "two bytes of padding are not payload"
        );
    }

    #[test]
    fn options_end_at_a_malformed_one() {
        for (bytes, count) in [
            (&[1u8, 1, 7, 3, 4, 0, 9][..], 3),
            (&[7, 0], 0),
            (&[7, 1], 0),
            (&[7, 5, 4], 0),
            (&[7], 0),
        ] {
            assert_eq!(Options { rest: bytes }.count(), count, "{bytes:?}");
        }
    }
}
