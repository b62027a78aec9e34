//! Frame Relay with multiprotocol encapsulation (ITU-T Q.922 annex A, RFC 2427), and Cisco's.
//!
//! ```text
//! address: 2 to 4 bytes, the last with its lowest bit set
//! RFC 2427: control u8 (3), [ padding u8 (0) ], protocol (NLPID) u8, packet
//!           0xcc IPv4, 0x8e IPv6, 0xcf PPP, 0x80 SNAP: organization 3 bytes, type u16
//! Cisco:    Ethernet type u16, packet
//! ```
//!
//! If the byte after the address is not a control field, it is Cisco's encapsulation, except on
//! connection 0, which is for signalling. Fragments (FRF.12) are identified by their number.

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, LinkType, Reason, be16, ethernet};
use core::fmt;

/// Minimum length of an address.
pub const MIN_HEADER_LEN: usize = 2;

/// Control field of unnumbered information.
const UI: u8 = 3;

/// Protocol numbers (ISO/IEC TR 9577).
pub mod nlpid {
    /// Signalling (Q.933).
    pub const Q933: u8 = 0x08;
    /// SNAP follows.
    pub const SNAP: u8 = 0x80;
    /// IPv6.
    pub const IPV6: u8 = 0x8e;
    /// IPv4.
    pub const IPV4: u8 = 0xcc;
    /// PPP (RFC 1973).
    pub const PPP: u8 = 0xcf;
}

/// A Frame Relay header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRelay<'a> {
    address: &'a [u8],
    /// The data after the address: a control field or an EtherType, and the packet.
    pub payload: &'a [u8],
}

/// Length of the address; `None` if its end is not present.
fn address_len(bytes: &[u8]) -> Result<Option<usize>, Reason> {
    match bytes.iter().take(4).position(|byte| byte & 1 != 0) {
        Some(0) => Err(Reason::BadHeaderLength),
        Some(last) => Ok(Some(last + 1)),
        None if bytes.len() >= 4 => Err(Reason::BadHeaderLength),
        None => Ok(None),
    }
}

/// The data link connection identifier: 10 to 23 bits.
fn dlci(address: &[u8]) -> u32 {
    let high = |byte: &u8, bits: u32| u32::from(*byte) >> (8 - bits);
    let short = |a, b| high(a, 6) << 4 | high(b, 4);
    match address {
        [a, b, c] => lowest(short(a, b), c),
        [a, b, c, d] => lowest(short(a, b) << 7 | high(c, 7), d),
        [a, b, ..] => short(a, b),
        _ => 0,
    }
}

/// Appends the six bits of the last byte, unless its second bit marks them as control bits.
fn lowest(dlci: u32, last: &u8) -> u32 {
    match last & 2 {
        0 => dlci << 6 | u32::from(last >> 2),
        _ => dlci,
    }
}

/// Whether an EtherType follows the address.
fn is_cisco(address: &[u8], control: u8) -> bool {
    control != UI && dlci(address) != 0
}

impl<'a> FrameRelay<'a> {
    /// Splits off the address.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let len = address_len(bytes)?.ok_or(Reason::Truncated)?;
        let (address, payload) = bytes.split_at_checked(len).ok_or(Reason::Truncated)?;
        Ok(FrameRelay { address, payload })
    }

    /// Data link connection identifier: 10 to 23 bits.
    pub fn dlci(&self) -> u32 {
        dlci(self.address)
    }

    /// The protocol number of RFC 2427's encapsulation.
    pub fn nlpid(&self) -> Option<u8> {
        match self.payload {
            [UI, 0, value, ..] | [UI, value, ..] => Some(*value),
            _ => None,
        }
    }

    /// The Ethernet type of Cisco's encapsulation.
    pub fn ether_type(&self) -> Option<u16> {
        match self.payload {
            [high, low, ..] if is_cisco(self.address, *high) => Some(be16(*high, *low)),
            _ => None,
        }
    }
}

impl fmt::Display for FrameRelay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame Relay, DLCI {}", self.dlci())?;
        match (self.nlpid(), self.ether_type()) {
            (Some(nlpid::Q933), _) => f.write_str(", Q.933"),
            (Some(value), _) => write!(f, ", NLPID 0x{value:02x}"),
            (None, Some(value)) => write!(f, ", type 0x{value:04x}"),
            (None, None) => Ok(()),
        }
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    let Some(len) = address_len(walk.rest)? else {
        return Err(walk.missing(walk.rest.len() + 1));
    };
    let address = walk.rest.get(..len).unwrap_or(&[]);
    walk.advance(len)?;
    let control = walk.peek::<1>()?[0];
    if is_cisco(address, control) {
        let [high, low] = *walk.peek::<2>()?;
        walk.advance(2)?;
        return ethernet::next_of_ether_type(be16(high, low));
    }
    if control != UI {
        return Err(Reason::UnsupportedType);
    }
    walk.advance(1)?;
    if walk.peek::<1>()?[0] == 0 {
        walk.advance(1)?;
    }
    let protocol = walk.peek::<1>()?[0];
    if protocol == nlpid::SNAP {
        let [_, a, b, c, high, low] = *walk.peek::<6>()?;
        walk.advance(6)?;
        return match ([a, b, c], be16(high, low)) {
            ([0, 0, 0], value) => ethernet::next_of_ether_type(value),
            // Bridged Ethernet, with and without its frame check sequence.
            ([0, 0x80, 0xc2], 0x0001 | 0x0007) => walk.inner(LayerKind::Ethernet),
            _ => Err(Reason::UnsupportedType),
        };
    }
    walk.advance(1)?;
    match protocol {
        nlpid::IPV4 => Ok(LayerKind::Ipv4),
        nlpid::IPV6 => Ok(LayerKind::Ipv6),
        nlpid::PPP => Ok(LayerKind::Ppp),
        _ => Err(Reason::UnsupportedType),
    }
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "fr",
    spec: "RFC 2427",
    links: &[LinkType::FRELAY],
    sample: &[0x18, 0x41, 3, 0, 0x80, 0, 0, 0, 0x88, 0xb5, 1, 2, 3, 4],
    step,
    show: |bytes, f| table::show(FrameRelay::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dissection, dissect};
    use std::format;

    #[test]
    fn addresses_of_all_lengths() {
        for (address, expected) in [
            (&[0x18, 0x41][..], 100),
            (&[0x18, 0x40, 0x09], 100 << 6 | 2),
            (&[0x18, 0x40, 0x0b], 100),
            (&[0x18, 0x40, 0x02, 0x09], 100 << 13 | 1 << 6 | 2),
        ] {
            let bytes = [address, &[3, nlpid::IPV4]].concat();
            let view = FrameRelay::parse(&bytes).unwrap();
            assert_eq!((view.dlci(), view.nlpid()), (expected, Some(nlpid::IPV4)));
        }
        for bad in [&[0x19][..], &[0, 0, 0, 0]] {
            assert_eq!(FrameRelay::parse(bad), Err(Reason::BadHeaderLength));
        }
    }

    #[test]
    fn what_follows() {
        let follows = |behind: &[u8]| {
            let bytes = [&[0x18, 0x41][..], behind, &[0x45; 40]].concat();
            let mut d = Dissection::EMPTY;
            dissect(LinkType::FRELAY, &bytes, bytes.len() as u32, &mut d);
            let kind = d.layer_kinds[1];
            if kind == LayerKind::None {
                d.inner
            } else {
                kind
            }
        };
        assert_eq!(follows(&[3, 0xcc]), LayerKind::Ipv4);
        assert_eq!(follows(&[3, 0, 0x8e]), LayerKind::Ipv6);
        assert_eq!(follows(&[3, 0xcf]), LayerKind::Ppp);
        assert_eq!(follows(&[8, 0]), LayerKind::Ipv4);
        assert_eq!(follows(&[3, 0x80, 0, 0, 0, 8, 6]), LayerKind::Arp);
        assert_eq!(
            follows(&[3, 0, 0x80, 0, 0x80, 0xc2, 0, 7]),
            LayerKind::Ethernet
        );
        assert_eq!(follows(&[3, 0xb1]), LayerKind::None);
        let view = FrameRelay::parse(&[0, 1, 3, 8]).unwrap();
        assert_eq!(format!("{view}"), "Frame Relay, DLCI 0, Q.933");
    }
}
