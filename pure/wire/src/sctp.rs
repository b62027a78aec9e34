//! SCTP (RFC 9260 section 3).
//!
//! ```text
//! common header: source port u16, destination port u16, verification tag u32, checksum u32
//! chunk:         type u8, flags u8, length u16 (this header included), value, padding to 4 bytes
//! ```

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, Reason, be16, udp};
use core::fmt;

/// Bytes of the common header.
pub const HEADER_LEN: usize = 12;

/// An SCTP common header.
#[derive(Clone, Copy)]
pub struct Sctp<'a> {
    head: &'a [u8; HEADER_LEN],
    /// The chunks.
    pub payload: &'a [u8],
}

impl<'a> Sctp<'a> {
    /// Splits a packet after the common header.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, payload) = bytes.split_first_chunk().ok_or(Reason::Truncated)?;
        Ok(Sctp { head, payload })
    }

    /// Source port.
    #[inline]
    pub fn src_port(&self) -> u16 {
        be16(self.head[0], self.head[1])
    }

    /// Destination port.
    #[inline]
    pub fn dst_port(&self) -> u16 {
        be16(self.head[2], self.head[3])
    }

    /// Verification tag.
    #[inline]
    pub fn tag(&self) -> u32 {
        u32::from_be_bytes([self.head[4], self.head[5], self.head[6], self.head[7]])
    }

    /// CRC32c as sent, in wire order.
    #[inline]
    pub fn checksum(&self) -> u32 {
        u32::from_be_bytes([self.head[8], self.head[9], self.head[10], self.head[11]])
    }

    /// The chunks one by one.
    pub fn chunks(&self) -> Chunks<'a> {
        Chunks { rest: self.payload }
    }
}

/// A chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// Type: 0 DATA, 1 INIT, 2 INIT ACK, 3 SACK, 6 ABORT, 7 SHUTDOWN, …
    pub kind: u8,
    /// Flags, by type.
    pub flags: u8,
    /// The value, as far as it is present.
    pub value: &'a [u8],
}

/// Iterator over chunks; ends at the first malformed one. The last may be truncated by the capture.
#[derive(Clone, Copy, Debug)]
pub struct Chunks<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Chunks<'a> {
    type Item = Chunk<'a>;

    fn next(&mut self) -> Option<Chunk<'a>> {
        let (head, rest) = self.rest.split_first_chunk::<4>()?;
        let len = usize::from(be16(head[2], head[3])).checked_sub(4)?;
        let value = rest.get(..len).unwrap_or(rest);
        self.rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some(Chunk {
            kind: head[0],
            flags: head[1],
            value,
        })
    }
}

/// The name of a chunk type.
pub(crate) const fn chunk_name(kind: u8) -> Option<&'static str> {
    Some(match kind {
        0 => "DATA",
        1 => "INIT",
        2 => "INIT ACK",
        3 => "SACK",
        4 => "HB REQ",
        5 => "HB ACK",
        6 => "ABORT",
        7 => "SHUTDOWN",
        8 => "SHUTDOWN ACK",
        9 => "ERROR",
        10 => "COOKIE ECHO",
        11 => "COOKIE ACK",
        14 => "SHUTDOWN COMPLETE",
        _ => return None,
    })
}

impl fmt::Display for Sctp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} > {}: sctp", self.src_port(), self.dst_port())?;
        self.show_chunks(f)
    }
}

impl Sctp<'_> {
    /// Prints the types of the first chunks.
    pub(crate) fn show_chunks(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A packet can contain hundreds of small chunks; a line cannot.
        for (i, chunk) in self.chunks().take(8).enumerate() {
            match chunk_name(chunk.kind) {
                Some(name) => write!(f, " ({}) [{name}]", i + 1)?,
                None => write!(f, " ({}) [type {}]", i + 1, chunk.kind)?,
            }
        }
        Ok(())
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    udp::ports(walk);
    walk.advance(HEADER_LEN)?;
    Ok(LayerKind::None)
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "sctp",
    spec: "RFC 9260",
    ip_protocols: &[132],
    sample: &[
        0x0b, 0x59, 0x0b, 0x59, 0, 0, 0, 1, 0, 0, 0, 0, 10, 0, 0, 5, 9, 0, 0, 0, 11, 0, 0, 4,
    ],
    step,
    show: |bytes, f| table::show(Sctp::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::{format, vec::Vec};

    #[test]
    fn sample() {
        let view = Sctp::parse(PROTOCOL.sample).unwrap();
        let chunks: Vec<_> = view.chunks().collect();
        assert_eq!(chunks.len(), 2);
        assert_eq!(
            chunks[0],
            Chunk {
                kind: 10,
                flags: 0,
                value: &[9]
            }
        );
        assert_eq!(
            format!("{view}"),
            "2905 > 2905: sctp (1) [COOKIE ECHO] (2) [COOKIE ACK]"
        );
        assert_eq!(
            Chunks {
                rest: &[0, 0, 0, 3, 0, 0, 0, 4]
            }
            .count(),
            0,
            "length below 4"
        );
    }
}
