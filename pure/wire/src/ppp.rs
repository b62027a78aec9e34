//! PPP (RFC 1661 section 2), bare or in HDLC-like framing (RFC 1662 section 3).
//!
//! ```text
//! [ address 0xff, control 0x03 ] protocol (1 or 2 bytes), payload
//! ```
//!
//! Address and control may be omitted, and a protocol below 256 may be sent as one byte: all
//! protocol numbers have an odd last byte and an even first one, so both can be distinguished.
//!
//! LINKTYPE_PPP_PPPD has a direction in place of the address: 0 received, 1 sent.

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, LinkType, Reason, be16};
use core::fmt;

/// A PPP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ppp<'a> {
    protocol: u16,
    header_len: usize,
    /// The payload.
    pub payload: &'a [u8],
}

/// Protocol number and length of the header.
#[inline]
fn header(bytes: &[u8]) -> Option<(u16, usize)> {
    let (skipped, rest) = match bytes {
        [0xff, 0x03, rest @ ..] => (2, rest),
        _ => (0, bytes),
    };
    match rest {
        // The first of the address and control bytes, as far as can be seen.
        [0xff] if skipped == 0 => None,
        [short, ..] if short & 1 != 0 => Some((u16::from(*short), skipped + 1)),
        [high, low, ..] => Some((be16(*high, *low), skipped + 2)),
        _ => None,
    }
}

impl<'a> Ppp<'a> {
    /// Splits a packet after its protocol number.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (protocol, header_len) = header(bytes).ok_or(Reason::Truncated)?;
        let payload = bytes.get(header_len..).unwrap_or(&[]);
        Ok(Ppp {
            protocol,
            header_len,
            payload,
        })
    }

    /// Protocol number: 0x0021 IPv4, 0x0057 IPv6, 0xc021 LCP, …
    #[inline]
    pub fn protocol(&self) -> u16 {
        self.protocol
    }

    /// Length of the header: 1 to 4 bytes.
    #[inline]
    pub fn header_len(&self) -> usize {
        self.header_len
    }
}

impl fmt::Display for Ppp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            0xc021 => f.write_str("PPP LCP"),
            0x8021 => f.write_str("PPP IPCP"),
            0x8057 => f.write_str("PPP IP6CP"),
            0xc023 => f.write_str("PPP PAP"),
            0xc223 => f.write_str("PPP CHAP"),
            other => write!(f, "PPP protocol 0x{other:04x}"),
        }
    }
}

pub(crate) fn step(walk: &mut Walk<'_, '_>) -> Next {
    let Some((protocol, header_len)) = header(walk.rest) else {
        // One more byte may be enough, as far as can be seen.
        return Err(walk.missing(walk.rest.len() + 1));
    };
    walk.advance(header_len)?;
    match table::of_ppp_protocol(protocol) {
        LayerKind::None => Err(Reason::UnsupportedType),
        kind => Ok(kind),
    }
}

/// Bytes of direction and control.
const DIRECTION_LEN: usize = 2;

/// The direction in place of the address, 0 received or 1 sent, if there is one, and the PPP header
/// without address and control.
pub fn directed(bytes: &[u8]) -> (Option<u8>, &[u8]) {
    match bytes {
        [way @ (0 | 1), 0x03, rest @ ..] => (Some(*way), rest),
        _ => (None, bytes),
    }
}

fn step_directed(walk: &mut Walk<'_, '_>) -> Next {
    // The first byte alone may be half of a protocol number, or a direction.
    if matches!(walk.rest, [0 | 1]) {
        return Err(walk.missing(DIRECTION_LEN));
    }
    if directed(walk.rest).0.is_some() {
        walk.advance(DIRECTION_LEN)?;
    }
    step(walk)
}

/// Names of the messages of control protocols (RFC 1661 section 5).
const CODES: [&str; 12] = [
    "Vend-Ext",
    "Conf-Request",
    "Conf-Ack",
    "Conf-Nack",
    "Conf-Reject",
    "Term-Request",
    "Term-Ack",
    "Code-Reject",
    "Prot-Reject",
    "Echo-Request",
    "Echo-Reply",
    "Discard-Request",
];

/// Prints the message of a control protocol; false if it is another protocol or it is not whole.
pub(crate) fn show_control(
    header: &Ppp<'_>,
    wire_len: u32,
    f: &mut fmt::Formatter<'_>,
) -> Result<bool, fmt::Error> {
    let name = match header.protocol {
        0xc021 => "LCP",
        0x8021 => "IPCP",
        0x8023 => "OSICP",
        0x8057 => "IP6CP",
        0x80fd => "CCP",
        0x8281 => "MPLSCP",
        _ => return Ok(false),
    };
    let &[code, id, _, _, ..] = header.payload else {
        return Ok(false);
    };
    let word = CODES.get(usize::from(code)).unwrap_or(&"Unknown Opcode");
    // The protocol number is counted.
    let len = wire_len.saturating_add(2);
    write!(f, "{name}, {word} (0x{code:02x}), id {id}, length {len}")?;
    Ok(true)
}

pub(crate) const DIRECTED: Protocol = Protocol {
    name: "ppp-pppd",
    spec: "LINKTYPE_PPP_PPPD",
    links: &[LinkType::PPP_PPPD],
    sample: &[0x01, 0x03, 0xc0, 0x21, 1, 2, 0, 4],
    step: step_directed,
    show: |bytes, f| table::show(Ppp::parse(directed(bytes).1), f),
    ..Protocol::BASE
};

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "ppp",
    spec: "RFC 1661",
    links: &[LinkType::PPP, LinkType::PPP_HDLC],
    sample: &[0xff, 0x03, 0xc0, 0x21, 1, 2, 3, 4],
    step,
    show: |bytes, f| table::show(Ppp::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn all_four_forms() {
        for bytes in [
            &[0xff, 3, 0, 0x21, 9][..],
            &[0xff, 3, 0x21, 9],
            &[0, 0x21, 9],
            &[0x21, 9],
        ] {
            let view = Ppp::parse(bytes).unwrap();
            assert_eq!(
                (view.protocol(), view.payload),
                (0x21, &[9][..]),
                "{bytes:?}"
            );
            assert_eq!(view.header_len() + 1, bytes.len());
        }
        for bytes in [&[][..], &[0xff, 3], &[0], &[0xff, 3, 0]] {
            assert_eq!(Ppp::parse(bytes), Err(Reason::Truncated), "{bytes:?}");
        }
        assert_eq!(
            format!("{}", Ppp::parse(PROTOCOL.sample).unwrap()),
            "PPP LCP"
        );
    }
}
