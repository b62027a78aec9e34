//! NTP (RFC 5905 §7.3): the fields of both sides. Control messages (mode 6, RFC 9327) and private
//! ones (mode 7) are named, but not decoded.

use core::net::Ipv4Addr;

use super::{Context, Decode, First, Match, Progress, Reason};
use crate::field::{Field, FieldSink, Protocol, Value};
use crate::identify::{Byte, Pattern};

const PORT: u16 = 123;
const HEADER_LEN: usize = 48;

/// Versions 1 to 4 with each leap indicator.
pub(super) const STARTS: &[Pattern] = &[
    Pattern::Bytes(&[Byte::In(0x09, 0x27)]),
    Pattern::Bytes(&[Byte::In(0x49, 0x67)]),
    Pattern::Bytes(&[Byte::In(0x89, 0xa7)]),
    Pattern::Bytes(&[Byte::In(0xc9, 0xe7)]),
];

pub(super) fn first(first: &First<'_>) -> Match {
    let Some(byte) = first.bytes.first() else {
        return Match::No;
    };
    let (version, mode) = (byte >> 3 & 7, byte & 7);
    let len = first.bytes.len();
    // Nothing in it is specific to NTP, so the port is required as well.
    let fits = match mode {
        1..=5 => len >= HEADER_LEN,
        6 => len >= 12,
        7 => len >= 8,
        _ => false,
    };
    match first.has_port(PORT) && (1..=4).contains(&version) && fits {
        true => Match::Yes,
        false => Match::No,
    }
}

/// State of a flow.
pub(crate) struct Ntp {
    has_client: bool,
}

impl Decode for Ntp {
    fn new() -> Ntp {
        Ntp { has_client: false }
    }

    fn feed(
        &mut self,
        _context: &mut Context<'_>,
        bytes: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        let Some(byte) = bytes.first() else {
            return Progress::Reject(Reason::BadLength);
        };
        let (version, mode) = (byte >> 3 & 7, byte & 7);
        out.named(Protocol::Ntp);
        out.field(Field::NtpVersion, Value::Number(version.into()));
        out.field(Field::NtpMode, Value::Number(mode.into()));
        let Some(head) = bytes.first_chunk::<16>() else {
            return Progress::Done;
        };
        match mode {
            // Symmetric peers and clients do not report their reference source yet.
            1 | 3 if !self.has_client => {
                self.has_client = true;
                Progress::Need(HEADER_LEN)
            }
            2 | 4 | 5 => {
                let stratum = head[1];
                out.field(Field::NtpStratum, Value::Number(stratum.into()));
                let id = [head[12], head[13], head[14], head[15]];
                // RFC 5905 §7.3: four letters up to stratum 1, then an address or a hash of one.
                if stratum <= 1 {
                    let len = id.iter().position(|byte| *byte == 0).unwrap_or(4);
                    if len != 0 {
                        out.field(Field::NtpReference, Value::text(&id[..len]));
                    }
                } else {
                    let addr = Ipv4Addr::from(id);
                    out.field(Field::NtpReference, Value::Address(addr.into()));
                }
                Progress::Done
            }
            _ => Progress::Done,
        }
    }
}
