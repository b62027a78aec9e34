//! IP over InfiniBand (RFC 4391 section 6) and the InfiniBand headers around it (InfiniBand
//! Architecture Specification, volume 1, chapters 7 to 9).
//!
//! ```text
//! IPoIB:          Ethernet type u16, 0 u16
//! LINKTYPE_IPOIB: global routing header (40 bytes, all zero if there was none), IPoIB
//! LINKTYPE_INFINIBAND:
//!   local routing header, 8 bytes:  lane, version; service level, next header (2 bits);
//!                                   destination u16; length / 4 (11 bits); source u16
//!   global routing header, 40 bytes, if the next header is 3
//!   base transport header, 12 bytes: opcode, flags and padding (2 bits), partition key u16,
//!                                   queue pair u32, sequence u32
//!   datagram header, 8 bytes (12 with opcode 0x65): queue key u32, queue pair u32
//!   payload, padding, invariant check sequence (4 bytes), variant one (2 bytes)
//! ```
//!
//! Of InfiniBand's transports only unreliable datagrams are dissected, between queue pairs that are
//! not for management, and only if their payload looks like IPoIB.

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, LinkType, Reason, be16, ethernet};
use core::fmt;

/// Length of a global routing header followed by IPoIB.
pub const HEADER_LEN: usize = GLOBAL_LEN + IPOIB_LEN;

/// Bytes of the local routing header.
pub const LOCAL_LEN: usize = 8;

const GLOBAL_LEN: usize = 40;
const TRANSPORT_LEN: usize = 12;
const IPOIB_LEN: usize = 4;

/// Unreliable datagram, send only; without and with immediate data.
const UD_SEND: u8 = 0x64;
const UD_SEND_IMMEDIATE: u8 = 0x65;

/// An IPoIB header after a global routing header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipoib<'a> {
    head: &'a [u8; HEADER_LEN],
    /// The payload.
    pub payload: &'a [u8],
}

impl<'a> Ipoib<'a> {
    /// Splits a packet after its headers.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, payload) = bytes.split_first_chunk().ok_or(Reason::Truncated)?;
        Ok(Ipoib { head, payload })
    }

    /// Type of the payload.
    pub fn ether_type(&self) -> u16 {
        be16(self.head[GLOBAL_LEN], self.head[GLOBAL_LEN + 1])
    }
}

impl fmt::Display for Ipoib<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IPoIB, type 0x{:04x}", self.ether_type())
    }
}

/// The local routing header of InfiniBand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Infiniband<'a> {
    head: &'a [u8; LOCAL_LEN],
    /// The payload.
    pub payload: &'a [u8],
}

impl<'a> Infiniband<'a> {
    /// Splits a packet after its local routing header.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, payload) = bytes.split_first_chunk().ok_or(Reason::Truncated)?;
        Ok(Infiniband { head, payload })
    }

    /// Local identifier of the sender.
    pub fn src(&self) -> u16 {
        be16(self.head[6], self.head[7])
    }

    /// Local identifier of the receiver.
    pub fn dst(&self) -> u16 {
        be16(self.head[2], self.head[3])
    }

    /// Type of the next header: 0 raw, 1 IPv6, 2 base transport header, 3 global routing header.
    pub fn next_header(&self) -> u8 {
        self.head[1] & 3
    }

    /// Length from this header to the variant check sequence.
    pub fn packet_len(&self) -> usize {
        usize::from(be16(self.head[4], self.head[5]) & 0x07ff) * 4
    }
}

impl fmt::Display for Infiniband<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InfiniBand, LID {} > {}", self.src(), self.dst())
    }
}

fn step_ipoib(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<HEADER_LEN>()?;
    walk.advance(HEADER_LEN)?;
    ethernet::next_of_ether_type(be16(head[GLOBAL_LEN], head[GLOBAL_LEN + 1]))
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    let local = Infiniband {
        head: walk.peek::<LOCAL_LEN>()?,
        payload: &[],
    };
    let end = local.packet_len();
    if end < LOCAL_LEN {
        return Err(Reason::BadLength);
    }
    walk.limit(end);
    walk.advance(LOCAL_LEN)?;
    match local.next_header() {
        1 => return Ok(LayerKind::Ipv6),
        2 => {}
        3 => walk.advance(GLOBAL_LEN)?,
        _ => return Err(Reason::UnsupportedType),
    }
    let transport = walk.peek::<TRANSPORT_LEN>()?;
    walk.advance(TRANSPORT_LEN)?;
    // Padding and the invariant check sequence end the payload.
    let trailer = usize::from(transport[1] >> 4 & 3) + 4;
    let Some(len) = walk.wire_rest.checked_sub(trailer) else {
        return Err(Reason::Short);
    };
    walk.limit(len);
    let datagram = match transport[0] {
        UD_SEND => 8,
        UD_SEND_IMMEDIATE => 12,
        _ => return Err(Reason::UnsupportedProtocol),
    };
    walk.advance(datagram)?;
    // Queue pairs 0 and 1 are for management.
    if transport[5..7] == [0, 0] && transport[7] <= 1 {
        return Err(Reason::UnsupportedProtocol);
    }
    match *walk.peek::<IPOIB_LEN>()? {
        [high, low, 0, 0] => {
            walk.advance(IPOIB_LEN)?;
            ethernet::next_of_ether_type(be16(high, low))
        }
        _ => Err(Reason::UnsupportedType),
    }
}

pub(crate) const IPOIB: Protocol = Protocol {
    name: "ipoib",
    spec: "RFC 4391",
    links: &[LinkType::IPOIB],
    sample: &[
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x88, 0xb5, 0, 0, 1, 2, 3, 4,
    ],
    step: step_ipoib,
    show: |bytes, f| table::show(Ipoib::parse(bytes), f),
    ..Protocol::BASE
};

pub(crate) const INFINIBAND: Protocol = Protocol {
    name: "infiniband",
    spec: "InfiniBand Architecture",
    links: &[LinkType::INFINIBAND],
    // Two bytes of payload after IPoIB, two of padding, both check sequences.
    sample: &[
        0, 2, 0, 7, 0, 10, 0, 9, 0x64, 0x20, 0xff, 0xff, 0, 0, 0, 0x48, 0, 0, 0, 1, 0, 0, 0, 1, 0,
        0, 0, 0x49, 0x88, 0xb5, 0, 0, 1, 2, 0, 0, 0xa, 0xb, 0xc, 0xd, 0xe, 0xf,
    ],
    step,
    show: |bytes, f| table::show(Infiniband::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dissection, dissect};
    use std::vec::Vec;

    fn dissected(link: LinkType, bytes: &[u8]) -> Dissection {
        let mut d = Dissection::EMPTY;
        dissect(link, bytes, bytes.len() as u32, &mut d);
        d
    }

    #[test]
    fn samples() {
        let view = Ipoib::parse(IPOIB.sample).unwrap();
        assert_eq!(
            (view.ether_type(), view.payload),
            (0x88b5, &[1, 2, 3, 4][..])
        );
        let view = Infiniband::parse(INFINIBAND.sample).unwrap();
        assert_eq!((view.src(), view.dst(), view.next_header()), (9, 7, 2));
        assert_eq!(view.packet_len() + 2, INFINIBAND.sample.len());
        let d = dissected(LinkType::INFINIBAND, INFINIBAND.sample);
        assert_eq!(d.reason, Reason::UnsupportedType);
        assert_eq!(
            d.payload(INFINIBAND.sample),
            [1, 2],
            "no padding, no check sequence"
        );
    }

    #[test]
    fn unsupported_packets_are_refused_with_reasons() {
        let with = |at: usize, value: u8| {
            let mut bytes: Vec<u8> = INFINIBAND.sample.into();
            bytes[at] = value;
            dissected(LinkType::INFINIBAND, &bytes).reason
        };
        assert_eq!(
            with(8, 0x04),
            Reason::UnsupportedProtocol,
            "reliable connection"
        );
        assert_eq!(with(15, 1), Reason::UnsupportedProtocol, "management");
        assert_eq!(with(30, 1), Reason::UnsupportedType, "not IPoIB");
        assert_eq!(with(1, 0), Reason::UnsupportedType, "raw");
        assert_eq!(with(5, 1), Reason::BadLength);
        assert_eq!(with(5, 5), Reason::Short);
    }
}
