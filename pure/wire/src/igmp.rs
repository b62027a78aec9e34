//! IGMP (RFC 2236 section 2, RFC 3376 section 4): type u8, response time u8, checksum u16, group.

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, Reason, be16, checksum};
use core::fmt;
use core::net::Ipv4Addr;

/// Bytes of the common header.
pub const HEADER_LEN: usize = 8;

/// An IGMP message.
#[derive(Clone, Copy)]
pub struct Igmp<'a> {
    head: &'a [u8; HEADER_LEN],
    /// The data after the first eight bytes; empty before version 3.
    pub payload: &'a [u8],
}

impl<'a> Igmp<'a> {
    /// Splits a message after its first eight bytes.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, payload) = bytes.split_first_chunk().ok_or(Reason::Truncated)?;
        Ok(Igmp { head, payload })
    }

    /// Type: 0x11 query, 0x12, 0x16 and 0x22 reports of versions 1 to 3, 0x17 leave.
    #[inline]
    pub fn igmp_type(&self) -> u8 {
        self.head[0]
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

    /// The group queried or reported; unused in version 3 reports.
    #[inline]
    pub fn group(&self) -> Ipv4Addr {
        Ipv4Addr::new(self.head[4], self.head[5], self.head[6], self.head[7])
    }
}

impl Igmp<'_> {
    /// Prints a query as tcpdump does: the version by its length and response time, and both if
    /// unusual.
    fn show_query(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (code, group) = (self.head[1], self.group());
        let Some(&[_, _, high, low]) = self.payload.first_chunk::<4>() else {
            match code {
                0 => f.write_str("igmp query v1")?,
                100 => f.write_str("igmp query v2")?,
                tenths => write!(f, "igmp query v2 [max resp time {tenths}]")?,
            }
            return match group.is_unspecified() {
                true => Ok(()),
                false => write!(f, " [gaddr {group}]"),
            };
        };
        f.write_str("igmp query v3")?;
        if code != 100 {
            let tenths = response_time(code);
            write!(f, " [max resp time {}.{}s]", tenths / 10, tenths % 10)?;
        }
        match (group.is_unspecified(), be16(high, low)) {
            (true, _) => Ok(()),
            (false, 0) => write!(f, " [gaddr {group}]"),
            (false, count) => write!(f, " [gaddr {group}, {count} source(s)]"),
        }
    }
}

/// Response time in tenths of a second for a code (RFC 3376 section 4.1.1).
fn response_time(code: u8) -> u32 {
    match code {
        0..128 => code.into(),
        _ => (u32::from(code & 15) | 16) << ((code >> 4 & 7) + 3),
    }
}

impl fmt::Display for Igmp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.igmp_type() {
            0x11 => self.show_query(f),
            0x12 => write!(f, "igmp v1 report {}", self.group()),
            0x16 => write!(f, "igmp v2 report {}", self.group()),
            0x17 => write!(f, "igmp leave {}", self.group()),
            0x22 => write!(
                f,
                "igmp v3 report, {} group record(s)",
                be16(self.head[6], self.head[7])
            ),
            other => write!(f, "igmp-{other}"),
        }
    }
}

fn step(walk: &mut Walk<'_, '_>) -> Next {
    walk.out.icmp_type = walk.rest.first().copied().unwrap_or(0);
    walk.advance(HEADER_LEN)?;
    Ok(LayerKind::None)
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "igmp",
    spec: "RFC 3376",
    ip_protocols: &[2],
    sample: &[0x16, 0, 0x09, 0x04, 224, 0, 0, 251],
    step,
    show: |bytes, f| table::show(Igmp::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn sample() {
        let view = Igmp::parse(PROTOCOL.sample).unwrap();
        assert!(view.checksum_ok(), "{:x}", view.checksum());
        assert_eq!(format!("{view}"), "igmp v2 report 224.0.0.251");
    }
}
