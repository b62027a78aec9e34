//! Packets of Linux' vsockmon interface (LINKTYPE_VSOCK). All numbers are little-endian.
//!
//! ```text
//! source cid u64, destination cid u64, source port u32, destination port u32,
//! operation u16, transport u16, length of the transport's header u16, reserved u16
//! ```

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, LinkType, Reason};
use core::fmt;

/// Bytes of the header.
pub const HEADER_LEN: usize = 32;

/// A vsock header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vsock<'a> {
    head: &'a [u8; HEADER_LEN],
    len: usize,
}

impl<'a> Vsock<'a> {
    /// Parses the header of a packet.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let head = bytes.first_chunk().ok_or(Reason::Truncated)?;
        let len = bytes.len();
        Ok(Vsock { head, len })
    }

    fn number<const N: usize>(&self, at: usize) -> [u8; N] {
        let found = self.head.get(at..).and_then(<[u8]>::first_chunk);
        found.copied().unwrap_or([0; N])
    }

    /// Context id and port of the sender (0) or of the receiver (1).
    pub fn end(&self, index: usize) -> (u64, u32) {
        let index = index.min(1);
        let cid = u64::from_le_bytes(self.number(index * 8));
        (cid, u32::from_le_bytes(self.number(16 + index * 4)))
    }

    /// Operation.
    pub fn operation(&self) -> u16 {
        u16::from_le_bytes(self.number(24))
    }

    /// Transport.
    pub fn transport(&self) -> u16 {
        u16::from_le_bytes(self.number(26))
    }
}

impl fmt::Display for Vsock<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.transport() {
            0 => f.write_str("UNKNOWN")?,
            1 => f.write_str("NO_INFO")?,
            2 => f.write_str("VIRTIO")?,
            other => write!(f, "Invalid transport ({other})")?,
        }
        let ((source, source_port), (to, to_port)) = (self.end(0), self.end(1));
        write!(f, " {source}.{source_port} > {to}.{to_port} ")?;
        match self.operation() {
            0 => f.write_str("UNKNOWN")?,
            1 => f.write_str("CONNECT")?,
            2 => f.write_str("DISCONNECT")?,
            3 => f.write_str("CONTROL")?,
            4 => f.write_str("PAYLOAD")?,
            other => write!(f, " invalid op ({other})")?,
        }
        write!(f, ", length {}", self.len)
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    walk.peek::<HEADER_LEN>()?;
    walk.advance(HEADER_LEN)?;
    Ok(LayerKind::None)
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "vsock",
    spec: "LINKTYPE_VSOCK",
    links: &[LinkType::VSOCK],
    sample: &[
        2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 1, 4, 0, 0, 4, 0, 1, 0, 0, 0,
        0, 0, b'h', b'i',
    ],
    step,
    show: |bytes, f| table::show(Vsock::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn sample() {
        let view = Vsock::parse(PROTOCOL.sample).unwrap();
        let text = "NO_INFO 2.1024 > 3.1025 PAYLOAD, length 34";
        assert_eq!(format!("{view}"), text);
    }
}
