//! The timestamp tag of Arista's switches (Ethernet type 0xd28b).
//!
//! ```text
//! subtype u16 (1 time), time scale u8 (0 TAI, 1 UTC), format (4 bits), hardware (4 bits),
//! time, type u16 of what follows
//! format 1: seconds u32, nanoseconds u32
//! format 2: seconds u16, nanoseconds u32
//! ```

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{Reason, Timestamp, be16, ethernet};
use core::fmt;

/// Length of subtype, time scale and format in bytes.
const HEADER_LEN: usize = 4;

/// Subtype of timestamps.
const SUBTYPE_TIME: u16 = 1;

/// An Arista tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arista<'a> {
    head: &'a [u8; HEADER_LEN],
    time: &'a [u8],
    ether_type: u16,
    /// The payload.
    pub payload: &'a [u8],
}

/// Length of the time in bytes.
fn time_len(head: &[u8; HEADER_LEN]) -> Result<usize, Reason> {
    match (be16(head[0], head[1]), head[2], head[3] >> 4) {
        (SUBTYPE_TIME, 0 | 1, 1) => Ok(8),
        (SUBTYPE_TIME, 0 | 1, 2) => Ok(6),
        _ => Err(Reason::UnsupportedType),
    }
}

impl<'a> Arista<'a> {
    /// Splits off the tag; `bytes` start after its type.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, rest) = bytes.split_first_chunk().ok_or(Reason::Truncated)?;
        let (time, rest) = rest
            .split_at_checked(time_len(head)?)
            .ok_or(Reason::Truncated)?;
        let ([high, low], payload) = rest.split_first_chunk().ok_or(Reason::Truncated)?;
        Ok(Arista {
            head,
            time,
            ether_type: be16(*high, *low),
            payload,
        })
    }

    /// Whether the time is UTC; otherwise it is TAI.
    pub fn is_utc(&self) -> bool {
        self.head[2] == 1
    }

    /// Seconds, modulo 65,536 if [`Arista::bits`] is 48, and nanoseconds.
    pub fn time(&self) -> (u32, u32) {
        let number = |bytes: &[u8]| bytes.iter().fold(0, |n, b| n << 8 | u32::from(*b));
        let (seconds, nanoseconds) = self.time.split_at(self.time.len().saturating_sub(4));
        (number(seconds), number(nanoseconds))
    }

    /// Width of the time in bits: 64 or 48.
    pub fn bits(&self) -> usize {
        self.time.len() * 8
    }

    /// The type of what follows, as in an Ethernet header.
    pub fn ether_type(&self) -> u16 {
        self.ether_type
    }
}

impl fmt::Display for Arista<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scale = if self.is_utc() { "UTC" } else { "TAI" };
        let (format, hardware) = (self.head[3] >> 4, self.head[3] & 15);
        let name = match hardware {
            0 => "R/R2",
            1 => "R3",
            _ => "Unknown",
        };
        write!(
            f,
            "SubType Timestamp (0x0001), Timescale {scale} ({}), Format {}-bit ({format}), \
             HwInfo {name} ({hardware}), Timestamp ",
            self.head[2],
            self.bits(),
        )?;
        let (seconds, nanoseconds) = self.time();
        if self.bits() == 48 {
            return write!(f, "{seconds}.{nanoseconds:09}");
        }
        let time = Timestamp::from_parts(seconds.into(), 0);
        let (year, month, day) = time.date();
        write!(f, "{year:04}-{month:02}-{day:02} ")?;
        write!(f, "{}.{nanoseconds:09}", time.clock(0, 0))
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    let time_len = time_len(walk.peek::<HEADER_LEN>()?)?;
    walk.advance(HEADER_LEN + time_len)?;
    let [high, low] = *walk.peek::<2>()?;
    walk.advance(2)?;
    ethernet::next_of_type(walk, be16(high, low))
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "arista",
    spec: "Arista timestamp tag",
    ether_types: &[0xd28b],
    sample: &[
        0, 1, 0x01, 0x20, 0x12, 0x34, 0, 0, 0, 5, 0x88, 0xb5, 1, 2, 3, 4,
    ],
    step,
    show: |bytes, f| table::show(Arista::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn times_of_both_sizes() {
        let view = Arista::parse(PROTOCOL.sample).unwrap();
        assert_eq!(
            (view.is_utc(), view.bits(), view.time()),
            (true, 48, (0x1234, 5))
        );
        assert_eq!(
            (view.ether_type(), view.payload),
            (0x88b5, &[1, 2, 3, 4][..])
        );
        let long = [0, 1, 0, 0x10, 0x65, 0, 0, 1, 0x3b, 0x9a, 0xc9, 0xff, 8, 0];
        let view = Arista::parse(&long).unwrap();
        assert_eq!((view.is_utc(), view.bits()), (false, 64));
        assert_eq!(view.time(), (0x6500_0001, 999_999_999));
        assert_eq!(
            format!("{view}"),
            "SubType Timestamp (0x0001), Timescale TAI (0), Format 64-bit (1), \
             HwInfo R/R2 (0), Timestamp 2023-09-12 06:06:57.999999999"
        );
        let other = [0, 2, 0, 0x10, 0, 0];
        assert_eq!(Arista::parse(&other), Err(Reason::UnsupportedType));
    }
}
