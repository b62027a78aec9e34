//! ICMP (RFC 792, extended by RFC 1256, 4884, 8335).
//!
//! ```text
//!  0       1       2               4
//! +-------+-------+---------------+---------------+---------------
//! | type  | code  | checksum      | rest of the header, payload
//! +-------+-------+---------------+---------------+---------------
//! ```

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, Reason, be16, checksum};
use core::fmt;

/// Length of the header: four common bytes and four that depend on the type.
pub const HEADER_LEN: usize = 8;

/// Message types.
pub mod kind {
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 0;
    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 3;
    /// Source quench, deprecated.
    pub const SOURCE_QUENCH: u8 = 4;
    /// Redirect.
    pub const REDIRECT: u8 = 5;
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 8;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 11;
    /// Parameter problem.
    pub const PARAMETER_PROBLEM: u8 = 12;
}

/// An ICMP message.
#[derive(Clone, Copy)]
pub struct Icmpv4<'a> {
    head: &'a [u8; HEADER_LEN],
    /// The data after the first eight bytes.
    pub payload: &'a [u8],
}

impl<'a> Icmpv4<'a> {
    /// Splits a message after its first eight bytes.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, payload) = bytes.split_first_chunk().ok_or(Reason::Truncated)?;
        Ok(Icmpv4 { head, payload })
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

    /// Checksum as sent.
    #[inline]
    pub fn checksum(&self) -> u16 {
        be16(self.head[2], self.head[3])
    }

    /// Whether the checksum is right; the whole message must be present.
    pub fn checksum_ok(&self) -> bool {
        checksum::Sum::new()
            .add_bytes(self.head)
            .add_bytes(self.payload)
            .finish()
            == 0
    }

    /// Identifier of an echo, time stamp or address mask message.
    #[inline]
    pub fn id(&self) -> u16 {
        be16(self.head[4], self.head[5])
    }

    /// Sequence number of such a message.
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
    matches!(
        icmp_type,
        kind::UNREACHABLE
            | kind::SOURCE_QUENCH
            | kind::REDIRECT
            | kind::TIME_EXCEEDED
            | kind::PARAMETER_PROBLEM
    )
}

impl fmt::Display for Icmpv4<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.payload.len() + HEADER_LEN;
        match self.icmp_type() {
            kind::ECHO_REQUEST | kind::ECHO_REPLY => {
                let what = if self.icmp_type() == 0 {
                    "reply"
                } else {
                    "request"
                };
                write!(
                    f,
                    "ICMP echo {what}, id {}, seq {}, length {len}",
                    self.id(),
                    self.seq()
                )
            }
            other => write!(f, "ICMP type {other}, code {}, length {len}", self.code()),
        }
    }
}

/// Writes an echo request or reply header with checksum 0.
pub fn emit_echo(out: &mut [u8; HEADER_LEN], icmp_type: u8, id: u16, seq: u16) {
    out[..4].copy_from_slice(&[icmp_type, 0, 0, 0]);
    out[4..6].copy_from_slice(&id.to_be_bytes());
    out[6..].copy_from_slice(&seq.to_be_bytes());
}

/// Reads type and code, as far as they are present.
pub(crate) fn type_and_code(walk: &mut Walk<'_, '_>) {
    if let Some(&icmp_type) = walk.rest.first() {
        walk.out.icmp_type = icmp_type;
        walk.out.icmp_type_read = true;
    }
    if let Some(&code) = walk.rest.get(1) {
        walk.out.icmp_code = code;
        walk.out.icmp_code_read = true;
    }
}

pub(crate) fn step(walk: &mut Walk<'_, '_>) -> Next {
    type_and_code(walk);
    walk.advance(HEADER_LEN)?;
    if is_error(walk.out.icmp_type) {
        walk.out.inner_is_quote = true;
        return walk.inner(LayerKind::Ipv4);
    }
    Ok(LayerKind::None)
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "icmp",
    spec: "RFC 792",
    ip_protocols: &[1],
    sample: &[8, 0, 0xf3, 0xf6, 0, 1, 0, 2, 1, 2, 3, 4],
    step,
    show: |bytes, f| table::show(Icmpv4::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn emit_then_parse() {
        let mut bytes = [0; HEADER_LEN];
        emit_echo(&mut bytes, kind::ECHO_REQUEST, 7, 9);
        let sum = checksum::checksum(&bytes);
        bytes[2..4].copy_from_slice(&sum.to_be_bytes());
        let view = Icmpv4::parse(&bytes).unwrap();
        assert!(view.checksum_ok() && !view.is_error());
        assert_eq!(
            format!("{view}"),
            "ICMP echo request, id 7, seq 9, length 8"
        );
        assert!(Icmpv4::parse(PROTOCOL.sample).unwrap().checksum_ok());
    }
}
