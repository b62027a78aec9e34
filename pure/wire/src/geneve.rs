//! GENEVE (RFC 8926 section 3.4).
//!
//! ```text
//!  0                   1                   2                   3
//! +---+-----------+-+-+-----------+-------------------------------+
//! |ver| opt len/4 |O|C| reserved  | protocol (an Ethernet type)   |
//! +---+-----------+-+-+-----------+---------------+---------------+
//! | network identifier (VNI)                      | reserved      |
//! +-----------------------------------------------+---------------+
//! | options: class u16, type u8, length / 4 u8, value             |
//! ```

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{Reason, be16, ethernet};
use core::fmt;

/// Bytes of the header without options.
pub const HEADER_LEN: usize = 8;

/// The UDP port of GENEVE.
pub const PORT: u16 = 6081;

/// A GENEVE header.
#[derive(Clone, Copy)]
pub struct Geneve<'a> {
    head: &'a [u8; HEADER_LEN],
    /// The options: 0 to 252 bytes.
    pub options: &'a [u8],
    /// The inner packet.
    pub payload: &'a [u8],
}

impl<'a> Geneve<'a> {
    /// Splits off the header.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, rest) = bytes
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Reason::Truncated)?;
        if head[0] >> 6 != 0 {
            return Err(Reason::BadVersion);
        }
        let (options, payload) = rest
            .split_at_checked(usize::from(head[0] & 63) * 4)
            .ok_or(Reason::Truncated)?;
        Ok(Geneve {
            head,
            options,
            payload,
        })
    }

    /// What the payload is: an Ethernet type, 0x6558 for Ethernet.
    #[inline]
    pub fn protocol(&self) -> u16 {
        be16(self.head[2], self.head[3])
    }

    /// Network identifier, 24 bits.
    #[inline]
    pub fn vni(&self) -> u32 {
        vni(self.head)
    }

    /// Whether the packet is for the tunnel's endpoints, not forwarded by them.
    #[inline]
    pub fn is_control(&self) -> bool {
        self.head[1] & 0x80 != 0
    }

    /// Iterates over (class, type, value) of the options; ends at the first malformed one.
    pub fn options(&self) -> impl Iterator<Item = (u16, u8, &'a [u8])> + 'a {
        let mut rest = self.options;
        core::iter::from_fn(move || {
            let (head, behind) = rest.split_first_chunk::<4>()?;
            let (value, behind) = behind.split_at_checked(usize::from(head[3] & 31) * 4)?;
            rest = behind;
            Some((be16(head[0], head[1]), head[2], value))
        })
    }
}

impl fmt::Display for Geneve<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Geneve, vni 0x{:x}, proto 0x{:04x}",
            self.vni(),
            self.protocol()
        )
    }
}

/// Writes a header without options.
pub fn emit(out: &mut [u8; HEADER_LEN], vni: u32, protocol: u16) {
    out[..2].fill(0);
    out[2..4].copy_from_slice(&protocol.to_be_bytes());
    out[4..].copy_from_slice(&(vni << 8).to_be_bytes());
}

fn vni(head: &[u8; HEADER_LEN]) -> u32 {
    u32::from_be_bytes([0, head[4], head[5], head[6]])
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<HEADER_LEN>()?;
    if head[0] >> 6 != 0 {
        return Err(Reason::BadVersion);
    }
    walk.out.tunnel_id = vni(head);
    walk.advance(HEADER_LEN + usize::from(head[0] & 63) * 4)?;
    ethernet::inner_of_ether_type(walk, be16(head[2], head[3]))
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "geneve",
    spec: "RFC 8926",
    udp_ports: &[PORT],
    sample: &[
        0x02, 0, 0x65, 0x58, 0, 0, 7, 0, 0x01, 0x02, 0x80, 1, 9, 9, 9, 9, 2, 0, 0, 0, 0, 1, 2, 0,
        0, 0, 0, 2, 0x88, 0xb5, 1, 2,
    ],
    step,
    show: |bytes, f| table::show(Geneve::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::{format, vec::Vec};

    #[test]
    fn sample() {
        let view = Geneve::parse(PROTOCOL.sample).unwrap();
        assert_eq!(
            view.options().collect::<Vec<_>>(),
            [(0x0102, 0x80, &[9, 9, 9, 9][..])]
        );
        assert_eq!(
            (view.vni(), view.is_control(), view.payload.len()),
            (7, false, 16)
        );
        assert_eq!(format!("{view}"), "Geneve, vni 0x7, proto 0x6558");
    }

    #[test]
    fn emit_then_parse() {
        let mut bytes = [0xff; HEADER_LEN];
        emit(&mut bytes, 0xabcdef, 0x0800);
        let view = Geneve::parse(&bytes).unwrap();
        assert_eq!(
            (view.vni(), view.protocol(), view.options.len()),
            (0xabcdef, 0x0800, 0)
        );
    }
}
