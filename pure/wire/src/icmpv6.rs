//! ICMPv6 (RFC 4443; neighbour discovery RFC 4861; MLD RFC 2710 and 3810).
//!
//! ```text
//!  0       1       2               4
//! +-------+-------+---------------+---------------
//! | type  | code  | checksum      | body
//! +-------+-------+---------------+---------------
//! ```

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, Reason, be16, icmpv4};
use core::fmt;

/// Length of the header: four common bytes and four that depend on the type.
pub const HEADER_LEN: usize = 8;

/// Message types.
pub mod kind {
    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 1;
    /// Packet too big.
    pub const TOO_BIG: u8 = 2;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 3;
    /// Parameter problem.
    pub const PARAMETER_PROBLEM: u8 = 4;
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 128;
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 129;
    /// Router solicitation.
    pub const ROUTER_SOLICITATION: u8 = 133;
    /// Router advertisement.
    pub const ROUTER_ADVERTISEMENT: u8 = 134;
    /// Neighbour solicitation.
    pub const NEIGHBOR_SOLICITATION: u8 = 135;
    /// Neighbour advertisement.
    pub const NEIGHBOR_ADVERTISEMENT: u8 = 136;
}

/// An ICMPv6 message.
#[derive(Clone, Copy)]
pub struct Icmpv6<'a> {
    head: &'a [u8; HEADER_LEN],
    /// The data after the first eight bytes.
    pub payload: &'a [u8],
}

impl<'a> Icmpv6<'a> {
    /// Splits a message after its first eight bytes.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, payload) = bytes.split_first_chunk().ok_or(Reason::Truncated)?;
        Ok(Icmpv6 { head, payload })
    }

    /// Type.
    #[inline]
    pub fn icmp_type(&self) -> u8 {
        self.head[0]
    }

    /// Code.
    #[inline]
    pub fn code(&self) -> u8 {
        self.head[1]
    }

    /// Checksum as sent; it covers a pseudo header, see [`checksum`](crate::checksum).
    #[inline]
    pub fn checksum(&self) -> u16 {
        be16(self.head[2], self.head[3])
    }

    /// Identifier of an echo message.
    #[inline]
    pub fn id(&self) -> u16 {
        be16(self.head[4], self.head[5])
    }

    /// Sequence number of an echo message.
    #[inline]
    pub fn seq(&self) -> u16 {
        be16(self.head[6], self.head[7])
    }

    /// Whether the payload quotes the packet that caused the message.
    #[inline]
    pub fn is_error(&self) -> bool {
        is_error(self.head[0])
    }
}

/// Whether messages of this type quote a packet.
#[inline]
pub(crate) fn is_error(icmp_type: u8) -> bool {
    (kind::UNREACHABLE..=kind::PARAMETER_PROBLEM).contains(&icmp_type)
}

impl fmt::Display for Icmpv6<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.payload.len() + HEADER_LEN;
        match self.icmp_type() {
            kind::ECHO_REQUEST | kind::ECHO_REPLY => {
                let what = if self.icmp_type() == kind::ECHO_REPLY {
                    "reply"
                } else {
                    "request"
                };
                write!(
                    f,
                    "ICMP6, echo {what}, id {}, seq {}, length {len}",
                    self.id(),
                    self.seq()
                )
            }
            other => write!(f, "ICMP6, type {other}, code {}, length {len}", self.code()),
        }
    }
}

/// Writes an echo request or reply header with checksum 0.
pub fn emit_echo(out: &mut [u8; HEADER_LEN], icmp_type: u8, id: u16, seq: u16) {
    icmpv4::emit_echo(out, icmp_type, id, seq);
}

pub(crate) fn step(walk: &mut Walk<'_, '_>) -> Next {
    icmpv4::type_and_code(walk);
    if is_error(walk.out.icmp_type) {
        walk.advance(HEADER_LEN)?;
        walk.out.inner_is_quote = true;
        return walk.inner(LayerKind::Ipv6);
    }
    // RFC 4443 section 2.1 gives four bytes to all types.
    let len = match walk.wire_rest.clamp(4, HEADER_LEN) {
        HEADER_LEN => HEADER_LEN,
        // An error message would be longer; the type is missing.
        _ if walk.rest.is_empty() => return Err(walk.missing(1)),
        len => len,
    };
    walk.advance(len)?;
    Ok(LayerKind::None)
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "icmp6",
    spec: "RFC 4443",
    ip_protocols: &[58],
    sample: &[128, 0, 0, 0, 0, 1, 0, 2, 1, 2, 3, 4],
    step,
    show: |bytes, f| table::show(Icmpv6::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn emit_then_parse() {
        let mut bytes = [0; HEADER_LEN];
        emit_echo(&mut bytes, kind::ECHO_REPLY, 7, 9);
        let view = Icmpv6::parse(&bytes).unwrap();
        assert!(!view.is_error());
        assert_eq!(
            format!("{view}"),
            "ICMP6, echo reply, id 7, seq 9, length 8"
        );
    }
}
