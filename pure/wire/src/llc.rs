//! IEEE 802.2 LLC, and SNAP (IEEE 802, clause 9; RFC 1042).
//!
//! ```text
//!  0       1       2         3                   6           8
//! +-------+-------+---------+-------------------+-----------+------
//! | DSAP  | SSAP  | control | [ organization    | type ]    |
//! +-------+-------+---------+-------------------+-----------+------
//! ```
//!
//! The control field has one byte in unnumbered frames and two in all others. SNAP is the service
//! 0xaa.

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, LinkType, Reason, be16, ethernet};
use core::fmt;

/// Minimum length of an LLC header.
pub const MIN_HEADER_LEN: usize = 3;

/// Bytes of an LLC header with SNAP.
pub const SNAP_LEN: usize = 8;

/// Service access points.
pub mod sap {
    /// IP (RFC 948), in practice only on token ring and ARCNET.
    pub const IP: u8 = 0x06;
    /// Spanning tree.
    pub const STP: u8 = 0x42;
    /// SNAP.
    pub const SNAP: u8 = 0xaa;
    /// ISO network layer: IS-IS, ES-IS.
    pub const ISO: u8 = 0xfe;
    /// Novell IPX.
    pub const IPX: u8 = 0xe0;
    /// Not an LLC header but raw IPX, whose checksum field is always 0xffff.
    pub const RAW_IPX: u8 = 0xff;
}

/// An LLC header, with SNAP if present.
#[derive(Clone, Copy)]
pub struct Llc<'a> {
    head: &'a [u8; MIN_HEADER_LEN],
    snap: Option<&'a [u8; 5]>,
    /// The payload.
    pub payload: &'a [u8],
}

impl<'a> Llc<'a> {
    /// Splits a packet after LLC and SNAP.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, rest) = bytes
            .split_first_chunk::<MIN_HEADER_LEN>()
            .ok_or(Reason::Truncated)?;
        if is_snap(head) {
            let (snap, payload) = rest.split_first_chunk().ok_or(Reason::Truncated)?;
            return Ok(Llc {
                head,
                snap: Some(snap),
                payload,
            });
        }
        let payload = rest
            .get(header_len(head) - MIN_HEADER_LEN..)
            .ok_or(Reason::Truncated)?;
        Ok(Llc {
            head,
            snap: None,
            payload,
        })
    }

    /// Destination service.
    pub fn dsap(&self) -> u8 {
        self.head[0]
    }

    /// Source service; the lowest bit distinguishes commands and responses.
    pub fn ssap(&self) -> u8 {
        self.head[1]
    }

    /// First byte of the control field.
    pub fn control(&self) -> u8 {
        self.head[2]
    }

    /// Organization and type of SNAP.
    pub fn snap(&self) -> Option<([u8; 3], u16)> {
        self.snap.map(|s| ([s[0], s[1], s[2]], be16(s[3], s[4])))
    }
}

impl fmt::Display for Llc<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.snap(), self.dsap()) {
            (Some(([a, b, c], kind)), _) => {
                write!(f, "SNAP, oui {a:02x}:{b:02x}:{c:02x}, type 0x{kind:04x}")
            }
            (_, sap::STP) => f.write_str("STP"),
            (_, sap::ISO) => f.write_str("ISO network layer"),
            (_, sap::IPX | sap::RAW_IPX) => f.write_str("IPX"),
            _ => {
                let (dsap, ssap) = (self.dsap(), self.ssap());
                write!(
                    f,
                    "LLC, dsap 0x{dsap:02x}, ssap 0x{ssap:02x}, ctrl 0x{:02x}",
                    self.control()
                )
            }
        }
    }
}

fn is_snap(head: &[u8; MIN_HEADER_LEN]) -> bool {
    matches!(*head, [sap::SNAP, 0xaa | 0xab, 0x03])
}

fn header_len(head: &[u8; MIN_HEADER_LEN]) -> usize {
    if head[2] & 3 == 3 {
        MIN_HEADER_LEN
    } else {
        MIN_HEADER_LEN + 1
    }
}

pub(crate) fn step(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<MIN_HEADER_LEN>()?;
    if is_snap(head) {
        let head = walk.peek::<SNAP_LEN>()?;
        walk.advance(SNAP_LEN)?;
        let kind = be16(head[6], head[7]);
        return match head[3..6] {
            // RFC 1042, and 802.1H for protocols that clash with it.
            [0, 0, 0] | [0, 0, 0xf8] => ethernet::next_of_ether_type(kind),
            // 802.1: bridged Ethernet, with and without its frame check sequence (RFC 2684).
            [0, 0x80, 0xc2] if matches!(kind, 0x0001 | 0x0007) => walk.inner(LayerKind::Ethernet),
            _ => Err(Reason::UnsupportedType),
        };
    }
    walk.advance(header_len(head))?;
    match (head[0], head[2]) {
        (sap::IP, 0x03) => Ok(LayerKind::Ipv4),
        _ => Err(Reason::UnsupportedType),
    }
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "llc",
    spec: "IEEE 802.2",
    links: &[LinkType::ATM_RFC1483, LinkType::ATM_CLIP],
    sample: &[0xaa, 0xaa, 0x03, 0, 0, 0, 0x88, 0xb5, 1, 2, 3, 4],
    step,
    show: |bytes, f| table::show(Llc::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn with_and_without_snap() {
        let view = Llc::parse(PROTOCOL.sample).unwrap();
        assert_eq!(view.snap(), Some(([0, 0, 0], 0x88b5)));
        assert_eq!(format!("{view}"), "SNAP, oui 00:00:00, type 0x88b5");
        let view = Llc::parse(&[0x42, 0x42, 0x03, 9]).unwrap();
        assert_eq!((view.snap(), view.payload), (None, &[9][..]));
        assert_eq!(format!("{view}"), "STP");
        let view = Llc::parse(&[0xf0, 0xf1, 0x00, 0x02, 9]).unwrap();
        assert_eq!(
            view.payload,
            [9],
            "two bytes of control in a numbered frame"
        );
    }
}
