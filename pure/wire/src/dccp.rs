//! DCCP (RFC 4340 section 5.1).
//!
//! ```text
//!  0               2               4       5       6               8
//! +---------------+---------------+-------+---+---+---------------+
//! | source port   | destination   | data  | CC| Cs| checksum      |
//! |               |               | offset|Val|Cov|               |
//! +-----+-------+-+---------------+-------+---+---+---------------+
//! | res | type  |X| sequence number: 24 bits, or with X 8 bits    |
//! |     |       | | reserved and 48 bits                          |
//! ```
//!
//! The data offset counts words of four bytes up to the payload, options included.

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, Reason, be16, udp};
use core::fmt;

/// Bytes of the generic header with a short sequence number.
pub const HEADER_LEN: usize = 12;

/// Bytes of the generic header with a long sequence number.
pub const EXTENDED_LEN: usize = 16;

/// Length of the header up to the byte with the X bit.
const START_LEN: usize = 9;

/// A DCCP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dccp<'a> {
    head: &'a [u8; HEADER_LEN],
    /// The whole header, with the fields of its type and options.
    header: &'a [u8],
    /// The payload.
    pub payload: &'a [u8],
}

/// The header length according to the first bytes.
fn header_len(start: &[u8; START_LEN]) -> Result<usize, Reason> {
    let least = if start[8] & 1 == 0 {
        HEADER_LEN
    } else {
        EXTENDED_LEN
    };
    match usize::from(start[4]) * 4 {
        len if len >= least => Ok(len),
        _ => Err(Reason::BadHeaderLength),
    }
}

impl<'a> Dccp<'a> {
    /// Splits off the header.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let head = bytes.first_chunk().ok_or(Reason::Truncated)?;
        let start = bytes.first_chunk().ok_or(Reason::Truncated)?;
        let (header, payload) = bytes
            .split_at_checked(header_len(start)?)
            .ok_or(Reason::Truncated)?;
        Ok(Dccp {
            head,
            header,
            payload,
        })
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

    /// Type: 0 Request, 1 Response, 2 Data, 3 Ack, 4 DataAck, 5 CloseReq, 6 Close, 7 Reset, …
    #[inline]
    pub fn packet_type(&self) -> u8 {
        self.head[8] >> 1 & 15
    }

    /// Congestion control value and checksum coverage.
    #[inline]
    pub fn control(&self) -> (u8, u8) {
        (self.head[5] >> 4, self.head[5] & 15)
    }

    /// Sequence number: 48 bits, or the low 24 of them.
    pub fn seq(&self) -> u64 {
        let bytes = match self.head[8] & 1 {
            0 => self.header.get(9..12),
            _ => self.header.get(10..16),
        };
        number_of(bytes.unwrap_or(&[]))
    }

    /// The part of the header after the sequence number: acknowledgment, service, options.
    fn rest(&self) -> &'a [u8] {
        let at = match self.head[8] & 1 {
            0 => HEADER_LEN,
            _ => EXTENDED_LEN,
        };
        self.header.get(at..).unwrap_or(&[])
    }

    /// Acknowledgment number: 48 bits, or the low 24 of them.
    pub fn ack(&self) -> Option<u64> {
        // Requests and plain data have no acknowledgment.
        match (self.packet_type(), self.head[8] & 1, self.rest()) {
            (0 | 2 | 10.., ..) => None,
            (_, 0, [_, number @ ..]) => Some(number_of(number.get(..3)?)),
            (_, _, [_, _, number @ ..]) => Some(number_of(number.get(..6)?)),
            _ => None,
        }
    }

    /// Service code of a request or a response.
    pub fn service(&self) -> Option<u32> {
        let at = match (self.packet_type(), self.head[8] & 1) {
            (0, 1) => 0,
            // The acknowledgment number precedes it.
            (1, 1) => 8,
            _ => return None,
        };
        let bytes = self.rest().get(at..)?.first_chunk()?;
        Some(u32::from_be_bytes(*bytes))
    }

    /// Why a Reset was sent.
    pub fn reset_code(&self) -> Option<u8> {
        match (self.packet_type(), self.head[8] & 1) {
            (7, 1) => self.rest().get(8).copied(),
            _ => None,
        }
    }
}

fn number_of(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The name of a packet type.
const fn type_name(kind: u8) -> Option<&'static str> {
    Some(match kind {
        0 => "DCCP-Request",
        1 => "DCCP-Response",
        2 => "DCCP-Data",
        3 => "DCCP-Ack",
        4 => "DCCP-DataAck",
        5 => "DCCP-CloseReq",
        6 => "DCCP-Close",
        7 => "DCCP-Reset",
        8 => "DCCP-Sync",
        9 => "DCCP-SyncAck",
        _ => return None,
    })
}

/// The name of a reset code (section 5.6), as in tcpdump.
const fn reset_name(code: u8) -> &'static str {
    match code {
        0 => "unspecified",
        1 => "closed",
        2 => "aborted",
        3 => "no_connection",
        4 => "packet_error",
        5 => "option_error",
        6 => "mandatory_error",
        7 => "connection_refused",
        8 => "bad_service_code",
        9 => "too_busy",
        10 => "bad_init_cookie",
        11 => "aggression_penalty",
        _ => "reserved",
    }
}

impl fmt::Display for Dccp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match type_name(self.packet_type()) {
            Some(name) => write!(f, "DCCP {name}")?,
            None => write!(f, "DCCP unknown packet type {}", self.packet_type())?,
        }
        if let Some(service) = self.service() {
            write!(f, " (service={service})")?;
        }
        if let Some(code) = self.reset_code() {
            write!(f, " (code={})", reset_name(code))?;
        }
        match self.ack() {
            Some(ack) => write!(f, " (ack={ack})"),
            None => Ok(()),
        }
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    udp::ports(walk);
    let len = header_len(walk.peek::<START_LEN>()?)?;
    walk.advance(len)?;
    Ok(LayerKind::None)
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "dccp",
    spec: "RFC 4340",
    ip_protocols: &[33],
    // A request for service 42 with a padding option.
    sample: &[
        0x99, 0xfc, 0x13, 0x89, 6, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 42, 0, 0, 0, 0, 1, 2,
    ],
    step,
    show: |bytes, f| table::show(Dccp::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn long_and_short_sequence_numbers() {
        let view = Dccp::parse(PROTOCOL.sample).unwrap();
        assert_eq!((view.src_port(), view.dst_port()), (39420, 5001));
        assert_eq!((view.seq(), view.payload), (8, &[1, 2][..]));
        assert_eq!(format!("{view}"), "DCCP DCCP-Request (service=42)");
        let short = [0, 1, 0, 2, 3, 0x21, 0, 0, 4, 1, 0, 5, 9];
        let view = Dccp::parse(&short).unwrap();
        assert_eq!((view.seq(), view.control()), (65541, (2, 1)));
        assert_eq!(format!("{view}"), "DCCP DCCP-Data");
        let ack = [0, 1, 0, 2, 4, 0, 0, 0, 6, 1, 0, 5, 0, 0, 1, 2];
        let view = Dccp::parse(&ack).unwrap();
        assert_eq!(format!("{view}"), "DCCP DCCP-Ack (ack=258)");
        for (at, value) in [(4, 2), (8, 5)] {
            let mut bad = short;
            bad[at] = value;
            assert_eq!(Dccp::parse(&bad), Err(Reason::BadHeaderLength));
        }
    }
}
