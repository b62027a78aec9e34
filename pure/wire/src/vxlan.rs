//! VXLAN (RFC 7348 section 5), and its generic protocol extension (draft-ietf-nvo3-vxlan-gpe).
//!
//! ```text
//!  0                   1                   2                   3
//! +-+-+-+-+-+-+-+-+-------------------------------+---------------+
//! |R R V V I P B O| reserved                      | GPE: next     |
//! +-----------------------------------------------+---------------+
//! | network identifier (VNI)                      | reserved      |
//! +-----------------------------------------------+---------------+
//! ```

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, Reason};
use core::fmt;

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;

/// The UDP port of VXLAN.
pub const PORT: u16 = 4789;

/// The UDP port of VXLAN-GPE.
pub const GPE_PORT: u16 = 4790;

/// A VXLAN header.
#[derive(Clone, Copy)]
pub struct Vxlan<'a> {
    head: &'a [u8; HEADER_LEN],
    /// The inner packet.
    pub payload: &'a [u8],
}

impl<'a> Vxlan<'a> {
    /// Splits off the header.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, payload) = bytes.split_first_chunk().ok_or(Reason::Truncated)?;
        Ok(Vxlan { head, payload })
    }

    /// The flags byte; 0x08 marks the identifier as valid.
    #[inline]
    pub fn flags(&self) -> u8 {
        self.head[0]
    }

    /// Network identifier, 24 bits.
    #[inline]
    pub fn vni(&self) -> u32 {
        vni(self.head)
    }

    /// What the payload is, in GPE: 1 IPv4, 2 IPv6, 3 Ethernet, 4 NSH.
    #[inline]
    pub fn next_protocol(&self) -> u8 {
        self.head[3]
    }
}

impl fmt::Display for Vxlan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VXLAN, flags 0x{:02x}, vni {}", self.flags(), self.vni())
    }
}

/// Writes a header with a valid network identifier.
pub fn emit(out: &mut [u8; HEADER_LEN], vni: u32) {
    *out = [0x08, 0, 0, 0, 0, 0, 0, 0];
    out[4..].copy_from_slice(&(vni << 8).to_be_bytes());
}

fn vni(head: &[u8; HEADER_LEN]) -> u32 {
    u32::from_be_bytes([0, head[4], head[5], head[6]])
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<HEADER_LEN>()?;
    walk.out.tunnel_id = vni(head);
    walk.advance(HEADER_LEN)?;
    walk.inner(LayerKind::Ethernet)
}

fn step_gpe(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<HEADER_LEN>()?;
    walk.out.tunnel_id = vni(head);
    walk.advance(HEADER_LEN)?;
    match head[3] {
        1 => walk.inner(LayerKind::Ipv4),
        2 => walk.inner(LayerKind::Ipv6),
        3 => walk.inner(LayerKind::Ethernet),
        4 => walk.inner(LayerKind::Nsh),
        _ => Err(Reason::UnsupportedTunnel),
    }
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "vxlan",
    spec: "RFC 7348",
    udp_ports: &[PORT],
    sample: &[
        8, 0, 0, 0, 0, 0x30, 0x39, 0, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5, 1, 2,
    ],
    step,
    show: |bytes, f| table::show(Vxlan::parse(bytes), f),
    ..Protocol::BASE
};

pub(crate) const PROTOCOL_GPE: Protocol = Protocol {
    name: "vxlan-gpe",
    spec: "draft-ietf-nvo3-vxlan-gpe",
    udp_ports: &[GPE_PORT],
    sample: &[
        0x0c, 0, 0, 3, 0, 0x30, 0x39, 0, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5, 1, 2,
    ],
    step: step_gpe,
    show: |bytes, f| table::show(Vxlan::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn emit_then_parse() {
        let mut bytes = [0; HEADER_LEN];
        emit(&mut bytes, 0xabcdef);
        let view = Vxlan::parse(&bytes).unwrap();
        assert_eq!((view.vni(), view.next_protocol()), (0xabcdef, 0));
        assert_eq!(format!("{view}"), "VXLAN, flags 0x08, vni 11259375");
    }
}
