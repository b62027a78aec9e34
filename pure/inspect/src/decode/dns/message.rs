//! DNS messages (RFC 1035 §4): header, names, questions, records, and the fields reported about
//! them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Reason;
use crate::field::{Field, FieldSink, Value};
use crate::text::Text;

pub(super) const HEADER_LEN: usize = 12;
/// Maximum number of compression pointers in a name.
const POINTER_MAX: usize = 32;
/// Maximum number of answers reported, and read.
const TOLD_MAX: usize = 8;
const ANSWER_MAX: u16 = 32;
pub(super) type Name = Text<255>;

/// The fixed header (RFC 1035 §4.1.1).
#[derive(Clone, Copy)]
pub(super) struct Header {
    pub(super) id: u16,
    pub(super) flags: u16,
    pub(super) questions: u16,
    pub(super) answers: u16,
    pub(super) authorities: u16,
    pub(super) additional: u16,
}

impl Header {
    pub(super) fn parse(bytes: &[u8]) -> Option<Header> {
        let head = bytes.first_chunk::<HEADER_LEN>()?;
        let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        Some(Header {
            id: word(0),
            flags: word(2),
            questions: word(4),
            answers: word(6),
            authorities: word(8),
            additional: word(10),
        })
    }

    pub(super) fn is_response(&self) -> bool {
        self.flags & 0x8000 != 0
    }

    /// Whether a server would read further.
    pub(super) fn is_plausible(&self) -> bool {
        // Query, inverse query, status, notify, update (IANA DNS OpCodes).
        let opcode = self.flags >> 11 & 15;
        let has_content = self.questions != 0 || self.is_response();
        matches!(opcode, 0 | 1 | 2 | 4 | 5) && self.questions <= 32 && has_content
    }

    /// Whether it is the header of an ordinary question or answer: a strict test.
    fn is_strict(&self) -> bool {
        // Most datagrams that are not DNS fail here already.
        if self.questions != 1 {
            return false;
        }
        // Opcode 0 and the reserved bit clear; recursion and the DNSSEC bits may have any value.
        let flags = self.flags & 0x7840 == 0 && (self.is_response() || self.flags & 0x0680 == 0);
        let counts = match self.is_response() {
            true => self.answers <= 64 && self.authorities <= 64 && self.additional <= 64,
            false => self.answers == 0 && self.authorities == 0 && self.additional <= 2,
        };
        flags && counts
    }
}

/// Reads a name at an offset, and returns the offset after it.
fn name(message: &[u8], start: usize, text: &mut Name) -> Result<usize, Reason> {
    let mut at = start;
    let mut end = None;
    let mut len = 0;
    let mut pointers = 0;
    text.clear();
    loop {
        let byte = *message.get(at).ok_or(Reason::BadLength)?;
        match byte >> 6 {
            0 if byte == 0 => break,
            0 => {
                let label = message.get(at + 1..at + 1 + usize::from(byte));
                let label = label.ok_or(Reason::BadLength)?;
                len += label.len() + 1;
                // RFC 1035 §2.3.4.
                if len > 254 {
                    return Err(Reason::TooLong);
                }
                if !text.is_empty() {
                    text.push(b".");
                }
                text.push(label);
                at += 1 + label.len();
            }
            3 => {
                let low = *message.get(at + 1).ok_or(Reason::BadLength)?;
                let target = usize::from(byte & 0x3f) << 8 | usize::from(low);
                end.get_or_insert(at + 2);
                pointers += 1;
                if target >= at || pointers > POINTER_MAX {
                    return Err(Reason::BadValue);
                }
                at = target;
            }
            _ => return Err(Reason::BadValue),
        }
    }
    if text.is_empty() {
        text.push(b".");
    }
    Ok(end.unwrap_or(at + 1))
}

/// Reads the first question: returns its type and class, and the offset after it.
pub(super) fn question(message: &[u8], text: &mut Name) -> Result<(u16, u16, usize), Reason> {
    let at = name(message, HEADER_LEN, text)?;
    let rest = message.get(at..).ok_or(Reason::BadLength)?;
    let four = rest.first_chunk::<4>().ok_or(Reason::BadLength)?;
    let kind = u16::from_be_bytes([four[0], four[1]]);
    let class = u16::from_be_bytes([four[2], four[3]]);
    Ok((kind, class, at + 4))
}

/// Reads a record: returns its type, its class, and the range of its data.
fn record(message: &[u8], at: usize) -> Result<(u16, u16, core::ops::Range<usize>), Reason> {
    let mut text = Name::EMPTY;
    let at = name(message, at, &mut text)?;
    let rest = message.get(at..).ok_or(Reason::BadLength)?;
    let head = rest.first_chunk::<10>().ok_or(Reason::BadLength)?;
    let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let data = at + 10..at + 10 + usize::from(word(8));
    message.get(data.clone()).ok_or(Reason::BadLength)?;
    Ok((word(0), word(2), data))
}

const A: u16 = 1;
const NS: u16 = 2;
const CNAME: u16 = 5;
const PTR: u16 = 12;
const MX: u16 = 15;
const TXT: u16 = 16;
const AAAA: u16 = 28;
const SRV: u16 = 33;

/// The class of names such as `version.bind` (RFC 4892): their texts describe the server.
const CHAOS: u16 = 3;

fn tell_record(
    message: &[u8],
    (kind, class): (u16, u16),
    data: core::ops::Range<usize>,
    out: &mut dyn FieldSink,
) -> bool {
    let start = data.start;
    let bytes = message.get(data).unwrap_or(&[]);
    let value: Result<IpAddr, _> = match kind {
        A => <[u8; 4]>::try_from(bytes).map(|octets| Ipv4Addr::from(octets).into()),
        AAAA => <[u8; 16]>::try_from(bytes).map(|octets| Ipv6Addr::from(octets).into()),
        NS | CNAME | PTR | MX | SRV => {
            let mut text = Name::EMPTY;
            let skip = match kind {
                MX => 2,
                SRV => 6,
                _ => 0,
            };
            if name(message, start + skip, &mut text).is_ok() {
                out.field(Field::DnsAnswer, text.value());
                return true;
            }
            return false;
        }
        TXT if class == CHAOS => {
            let Some((len, rest)) = bytes.split_first() else {
                return false;
            };
            let text = &rest[..rest.len().min(usize::from(*len))];
            out.field(Field::DnsAnswer, Value::text(text));
            return true;
        }
        _ => return false,
    };
    match value {
        Ok(addr) => {
            out.field(Field::DnsAnswer, Value::Address(addr));
            true
        }
        Err(_) => false,
    }
}

/// Whether a datagram is a question or an answer by its form alone: read to its last byte.
pub(super) fn is_message(message: &[u8]) -> bool {
    match Header::parse(message) {
        Some(header) if header.is_strict() => is_whole(message, &header),
        _ => false,
    }
}

/// Whether question and records fill a message to its last byte. Not inlined: the test of the
/// header, which runs for every datagram, would have to reserve stack for a name.
#[inline(never)]
fn is_whole(message: &[u8], header: &Header) -> bool {
    let mut text = Name::EMPTY;
    let Ok((kind, class, mut at)) = question(message, &mut text) else {
        return false;
    };
    // A type in use, and the Internet class or any class.
    if !matches!(kind, 1..=65 | 99 | 249..=258 | 32769) || !matches!(class & 0x7fff, 1 | 255) {
        return false;
    }
    let count = header.answers + header.authorities + header.additional;
    for _ in 0..count.min(ANSWER_MAX) {
        match record(message, at) {
            Ok((_, _, data)) => at = data.end,
            Err(_) => return false,
        }
    }
    count > ANSWER_MAX || at == message.len()
}

/// Reports the question, if it was not seen before, and the answers.
pub(super) fn answers(
    header: &Header,
    message: &[u8],
    out: &mut dyn FieldSink,
) -> Result<(), Reason> {
    let mut at = HEADER_LEN;
    let mut text = Name::EMPTY;
    for index in 0..header.questions {
        let end = name(message, at, &mut text)?;
        let kind = message.get(end..end + 4).ok_or(Reason::BadLength)?;
        if index == 0 {
            out.field(Field::DnsName, text.value());
            let kind = u16::from_be_bytes([kind[0], kind[1]]);
            out.field(Field::DnsType, Value::Number(kind.into()));
        }
        at = end + 4;
    }
    let mut reported = 0;
    for _ in 0..header.answers.min(ANSWER_MAX) {
        let (kind, class, data) = record(message, at)?;
        at = data.end;
        if reported < TOLD_MAX && tell_record(message, (kind, class), data, out) {
            reported += 1;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer_named(bytes: &[u8], start: usize) -> Result<(std::string::String, usize), Reason> {
        let mut text = Name::EMPTY;
        let end = name(bytes, start, &mut text)?;
        Ok((
            std::string::String::from_utf8_lossy(text.bytes()).into_owned(),
            end,
        ))
    }

    /// A header with these flags and counts.
    fn header(flags: u16, counts: [u16; 4]) -> Header {
        let words = [7, flags, counts[0], counts[1], counts[2], counts[3]];
        let bytes: std::vec::Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        Header::parse(&bytes).unwrap()
    }

    #[test]
    fn headers_are_checked_by_opcode_and_counts() {
        const ANSWER: u16 = 0x8000;
        for opcode in 0..16 {
            let is_assigned = [0, 1, 2, 4, 5].contains(&opcode);
            for flags in [opcode << 11, ANSWER | opcode << 11] {
                let header = header(flags, [1, 0, 0, 0]);
                assert_eq!(header.is_plausible(), is_assigned, "opcode {opcode}");
                assert_eq!(header.is_strict(), opcode == 0, "opcode {opcode}");
            }
        }
        // Flags, questions and records; plausible, strict.
        for (flags, counts, plausible, strict) in [
            (0, [0, 0, 0, 0], false, false),
            (ANSWER, [0, 0, 0, 0], true, false),
            (0, [2, 0, 0, 0], true, false),
            (0, [32, 0, 0, 0], true, false),
            (0, [33, 0, 0, 0], false, false),
            (0, [1, 1, 0, 0], true, false),
            (0, [1, 0, 1, 0], true, false),
            (0, [1, 0, 0, 2], true, true),
            (0, [1, 0, 0, 3], true, false),
            (ANSWER, [1, 64, 64, 64], true, true),
            (ANSWER, [1, 65, 0, 0], true, false),
            (ANSWER, [1, 0, 65, 0], true, false),
            (ANSWER, [1, 0, 0, 65], true, false),
            // The reserved bit; authoritative, recursion available; recursion desired and the bits
            // of DNSSEC.
            (0x0040, [1, 0, 0, 0], true, false),
            (0x0400, [1, 0, 0, 0], true, false),
            (0x0080, [1, 0, 0, 0], true, false),
            (ANSWER | 0x0480, [1, 0, 0, 0], true, true),
            (0x0130, [1, 0, 0, 0], true, true),
        ] {
            let header = header(flags, counts);
            let found = (header.is_plausible(), header.is_strict());
            assert_eq!(found, (plausible, strict), "{flags:#06x} {counts:?}");
        }
    }

    #[test]
    fn compression_pointers_are_followed_backwards_only() {
        let bytes = b"\x03org\0\x07example\xc0\x00\x03www\xc0\x05\xc0\x13\xc0\x11\xff";
        assert_eq!(answer_named(bytes, 0), Ok(("org".into(), 5)));
        assert_eq!(answer_named(bytes, 5), Ok(("example.org".into(), 15)));
        assert_eq!(answer_named(bytes, 15), Ok(("www.example.org".into(), 21)));
        // To itself, forwards, and a label type of no use.
        assert_eq!(answer_named(b"\xc0\x00", 0), Err(Reason::BadValue));
        assert_eq!(answer_named(b"\xc0\x02\0", 0), Err(Reason::BadValue));
        assert_eq!(answer_named(b"\x80\0", 0), Err(Reason::BadValue));
        assert_eq!(answer_named(b"\x05abc", 0), Err(Reason::BadLength));
        assert_eq!(answer_named(b"\0", 0), Ok((".".into(), 1)));
        // Pointers to pointers, each one step back: bounded.
        let mut chain = std::vec![0u8, 0];
        for at in 0..200u16 {
            chain.extend((0xc000 | (at * 2)).to_be_bytes());
        }
        assert!(answer_named(&chain, 2 * POINTER_MAX).is_ok());
        assert_eq!(answer_named(&chain, 400), Err(Reason::BadValue));
        // 64 labels of 3 letters are 257 bytes.
        let long = b"\x03abc".repeat(64);
        assert_eq!(answer_named(&long, 0), Err(Reason::TooLong));
    }
}
