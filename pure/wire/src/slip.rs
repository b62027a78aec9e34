//! SLIP (RFC 1055) behind the header of BPF: LINKTYPE_SLIP, and LINKTYPE_SLIP_BSDOS; and
//! LINKTYPE_PPP_BSDOS.
//!
//! ```text
//! SLIP:        direction u8 (0 in, 1 out), compressed header 15 bytes, IP
//! BSD/OS:      24 bytes, IP
//! BSD/OS, PPP: 3 bytes, address u8, control u8, protocol u16, to 24 bytes; IP
//! ```
//!
//! IP headers were decompressed before they were captured (RFC 1144).

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, LinkType, Reason, be16};
use core::fmt;

/// Bytes of the header.
pub const HEADER_LEN: usize = 16;

/// Bytes of the headers of BSD/OS.
const BSDOS_LEN: usize = 24;

/// A SLIP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slip<'a> {
    head: &'a [u8; HEADER_LEN],
    version: u8,
}

impl<'a> Slip<'a> {
    /// Parses the header, and the version of the IP packet.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, rest) = bytes.split_first_chunk().ok_or(Reason::Truncated)?;
        let version = rest.first().ok_or(Reason::Truncated)? >> 4;
        Ok(Slip { head, version })
    }

    /// Direction: 0 received, 1 sent.
    pub fn direction(&self) -> u8 {
        self.head[0]
    }

    /// The bytes that were sent in place of the IP and TCP header.
    pub fn compressed(&self) -> &'a [u8] {
        self.head.get(1..).unwrap_or(&[])
    }
}

impl fmt::Display for Slip<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ip v{}", self.version)
    }
}

fn ip(walk: &Walk<'_, '_>) -> Next {
    match walk.peek::<1>()?[0] >> 4 {
        4 => Ok(LayerKind::Ipv4),
        6 => Ok(LayerKind::Ipv6),
        _ => Err(Reason::UnsupportedType),
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    walk.peek::<HEADER_LEN>()?;
    walk.advance(HEADER_LEN)?;
    ip(walk)
}

fn step_bsdos(walk: &mut Walk<'_, '_>) -> Next {
    walk.peek::<BSDOS_LEN>()?;
    walk.advance(BSDOS_LEN)?;
    ip(walk)
}

fn step_ppp_bsdos(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<BSDOS_LEN>()?;
    walk.advance(BSDOS_LEN)?;
    match be16(head[5], head[6]) {
        // IP with a compressed and an uncompressed TCP header.
        0x002d | 0x002f => Ok(LayerKind::Ipv4),
        protocol => match table::of_ppp_protocol(protocol) {
            LayerKind::None => Err(Reason::UnsupportedType),
            kind => Ok(kind),
        },
    }
}

pub(crate) const SLIP: Protocol = Protocol {
    name: "slip",
    spec: "RFC 1055",
    links: &[LinkType::SLIP],
    sample: &[0, 0x45, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20],
    step,
    show: |bytes, f| table::show(Slip::parse(bytes), f),
    ..Protocol::BASE
};

pub(crate) const SLIP_BSDOS: Protocol = Protocol {
    name: "slip-bsdos",
    spec: "LINKTYPE_SLIP_BSDOS",
    links: &[LinkType::SLIP_BSDOS],
    sample: &{
        let mut sample = [0; 25];
        sample[24] = 0x20;
        sample
    },
    step: step_bsdos,
    show: |_, f| f.write_str("SLIP"),
    ..Protocol::BASE
};

pub(crate) const PPP_BSDOS: Protocol = Protocol {
    name: "ppp-bsdos",
    spec: "LINKTYPE_PPP_BSDOS",
    links: &[LinkType::PPP_BSDOS],
    sample: &{
        let mut sample = [0; 26];
        (sample[3], sample[4], sample[5], sample[6]) = (0xff, 3, 0xc0, 0x21);
        sample
    },
    step: step_ppp_bsdos,
    show: |_, f| f.write_str("PPP"),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn sample() {
        let view = Slip::parse(SLIP.sample).unwrap();
        assert_eq!((view.direction(), view.compressed()[0]), (0, 0x45));
        assert_eq!(format!("{view}"), "ip v2");
        assert_eq!(Slip::parse(&[0; 16]), Err(Reason::Truncated));
    }
}
