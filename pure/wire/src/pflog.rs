//! PFLOG, the log of pf(4) (LINKTYPE_PFLOG), and ENC, packets of enc(4) before or after IPsec
//! (LINKTYPE_ENC).
//!
//! ```text
//! PFLOG: length u8, address family u8, action u8, reason u8, interface 16 bytes,
//!        rule set 16 bytes, rule u32, subrule u32, user and process ids; direction u8,
//!        padding to 4 bytes
//! ENC:   address family u32, security parameter index u32, flags u32
//! ```
//!
//! The length of PFLOG is that before the padding. ENC has the byte order of the capturing host,
//! which its address family shows, except in the security parameter index.

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, LinkType, Reason, null};
use core::fmt;

/// Bytes of the shortest PFLOG header, without its padding.
const PFLOG_LEN_MIN: u8 = 45;

/// Bytes of an ENC header.
pub const ENC_LEN: usize = 12;

/// A PFLOG header.
///
/// The alternate form, `{:#}`, has the rule and what it did, as in a link header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pflog<'a> {
    header: &'a [u8],
    /// The packet, without a link header.
    pub payload: &'a [u8],
}

fn pflog_len(len: u8) -> Result<usize, Reason> {
    match len {
        PFLOG_LEN_MIN.. => Ok(usize::from(len).next_multiple_of(4)),
        _ => Err(Reason::BadHeaderLength),
    }
}

impl<'a> Pflog<'a> {
    /// Splits off the header.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let len = pflog_len(*bytes.first().ok_or(Reason::Truncated)?)?;
        let (header, payload) = bytes.split_at_checked(len).ok_or(Reason::Truncated)?;
        Ok(Pflog { header, payload })
    }

    /// Address family of the logging host's system.
    pub fn family(&self) -> u8 {
        self.byte(1)
    }

    fn byte(&self, at: usize) -> u8 {
        self.header.get(at).copied().unwrap_or(0)
    }

    fn word(&self, at: usize) -> u32 {
        let found = self.header.get(at..).and_then(<[u8]>::first_chunk);
        found.map_or(0, |bytes| u32::from_be_bytes(*bytes))
    }

    /// A name of up to 16 bytes.
    fn show_name(&self, at: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.header.get(at..at + 16).unwrap_or(&[]);
        let mut name = name.iter().take_while(|byte| **byte != 0);
        name.try_for_each(|byte| match byte.is_ascii_graphic() {
            true => write!(f, "{}", char::from(*byte)),
            false => f.write_str("."),
        })
    }

    fn show_rule(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NO_RULE: u32 = u32::MAX;
        write!(f, "rule {}", self.word(36))?;
        if self.word(40) != NO_RULE {
            f.write_str(".")?;
            self.show_name(20, f)?;
            write!(f, ".{}", self.word(40))?;
        }
        f.write_str("/")?;
        let reason = self.byte(3);
        match REASONS.get(usize::from(reason)) {
            Some(name) => write!(f, "{reason}({name}): ")?,
            None => write!(f, "unkn({reason}): ")?,
        }
        show_word(ACTIONS, self.byte(2), f)?;
        f.write_str(" ")?;
        show_word(DIRECTIONS, self.byte(60), f)?;
        f.write_str(" on ")?;
        self.show_name(4, f)
    }
}

/// Why a packet was logged (net/pfvar.h).
const REASONS: &[&str] = &[
    "match",
    "bad-offset",
    "fragment",
    "short",
    "normalize",
    "memory",
    "bad-timestamp",
    "congestion",
    "ip-option",
    "proto-cksum",
    "state-mismatch",
    "state-insert",
    "state-limit",
    "src-limit",
    "synproxy",
];

/// What a rule does to a packet; there is no name for 3.
const ACTIONS: &[&str] = &[
    "pass",
    "block",
    "scrub",
    "",
    "nat",
    "nonat",
    "binat",
    "nobinat",
    "rdr",
    "nordr",
    "synproxy-drop",
];

const DIRECTIONS: &[&str] = &["in/out", "in", "out"];

fn show_word(words: &[&str], number: u8, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match words.get(usize::from(number)) {
        Some(word) if !word.is_empty() => f.write_str(word),
        _ => write!(f, "unkn({number})"),
    }
}

impl fmt::Display for Pflog<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match f.alternate() {
            true => self.show_rule(f),
            false => write!(f, "PFLOG, family {}", self.family()),
        }
    }
}

fn of_family(family: u32) -> Next {
    match family {
        2 => Ok(LayerKind::Ipv4),
        // Linux, and the BSDs.
        10 | 24 | 28 | 30 => Ok(LayerKind::Ipv6),
        _ => Err(Reason::UnsupportedType),
    }
}

fn step_pflog(walk: &mut Walk<'_, '_>) -> Next {
    let [len, family] = *walk.peek::<2>()?;
    walk.advance(pflog_len(len)?)?;
    of_family(family.into())
}

/// An ENC header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enc<'a> {
    head: &'a [u8; ENC_LEN],
    /// The packet, without a link header.
    pub payload: &'a [u8],
}

/// The packet was authenticated.
const AUTHENTIC: u32 = 0x0800;
/// The packet was encrypted.
const CONFIDENTIAL: u32 = 0x0400;

impl<'a> Enc<'a> {
    /// Splits off the header.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, payload) = bytes.split_first_chunk().ok_or(Reason::Truncated)?;
        Ok(Enc { head, payload })
    }

    fn word(&self, at: usize) -> [u8; 4] {
        let found = self.head.get(at..).and_then(<[u8]>::first_chunk);
        found.copied().unwrap_or_default()
    }

    /// Address family of the capturing host's system.
    pub fn family(&self) -> u32 {
        null::family(self.word(0))
    }

    /// Security parameter index.
    pub fn spi(&self) -> u32 {
        u32::from_be_bytes(self.word(4))
    }

    /// Flags: what IPsec did or will do to the packet.
    pub fn flags(&self) -> u32 {
        match self.word(0) {
            [0, 0, ..] => u32::from_be_bytes(self.word(8)),
            _ => u32::from_le_bytes(self.word(8)),
        }
    }
}

impl fmt::Display for Enc<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (is_authentic, is_confidential) = (
            self.flags() & AUTHENTIC != 0,
            self.flags() & CONFIDENTIAL != 0,
        );
        f.write_str(match (is_authentic, is_confidential) {
            (false, false) => "(unprotected)",
            (true, false) => "(authentic)",
            (false, true) => "(confidential)",
            (true, true) => "(authentic,confidential)",
        })?;
        write!(f, ": SPI 0x{:08x}", self.spi())
    }
}

fn step_enc(walk: &mut Walk<'_, '_>) -> Next {
    let [a, b, c, d, ..] = *walk.peek::<ENC_LEN>()?;
    walk.advance(ENC_LEN)?;
    of_family(null::family([a, b, c, d]))
}

pub(crate) const PFLOG: Protocol = Protocol {
    name: "pflog",
    spec: "LINKTYPE_PFLOG",
    links: &[LinkType::PFLOG],
    sample: &{
        let mut sample = [0; 68];
        // An address family that is not IP.
        (sample[0], sample[1], sample[60]) = (61, 9, 1);
        sample
    },
    step: step_pflog,
    show: |bytes, f| table::show(Pflog::parse(bytes), f),
    ..Protocol::BASE
};

pub(crate) const ENC: Protocol = Protocol {
    name: "enc",
    spec: "LINKTYPE_ENC",
    links: &[LinkType::ENC],
    sample: &[7, 0, 0, 0, 0, 0, 0x12, 0x34, 0, 0x0c, 0, 0, 1, 2, 3, 4],
    step: step_enc,
    show: |bytes, f| table::show(Enc::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn samples() {
        let view = Pflog::parse(PFLOG.sample).unwrap();
        assert_eq!((view.family(), view.payload.len()), (9, 4));
        assert_eq!(Pflog::parse(&[44; 64]), Err(Reason::BadHeaderLength));
        let view = Enc::parse(ENC.sample).unwrap();
        assert_eq!((view.family(), view.spi()), (7, 0x1234));
        let text = "(authentic,confidential): SPI 0x00001234";
        assert_eq!(format!("{view}"), text);
        let big = [0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 8, 0];
        let text = "(authentic): SPI 0x00000001";
        assert_eq!(format!("{}", Enc::parse(&big).unwrap()), text);
    }
}
