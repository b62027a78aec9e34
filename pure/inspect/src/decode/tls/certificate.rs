//! The first certificate of a server (RFC 5246 §7.4.2, RFC 5280 §4.1): subject names, issuer, and
//! validity.
//!
//! Up to TLS 1.2 it is not encrypted; in 1.3, [`EncryptedMessages`](super::EncryptedMessages) finds
//! it. It is read byte by byte, through the messages before it, to
//! the end of its extensions; the rest of the chain is ignored.

use super::der::{Choice, Der, Event, Head};
use crate::Reason;
use crate::date;
use crate::field::{Field, FieldSink, Value};
use crate::text::Text;

const CERTIFICATE: u8 = 11;
const SERVER_HELLO_DONE: u8 = 14;
/// Maximum number of messages between the hello and the certificate: one (RFC 4680 §2), with room
/// for future ones.
const PASSED_MAX: u8 = 4;
/// Maximum number of alternative names reported. All are counted.
const NAMES_MAX: u32 = 4;

// Tags (X.690 §8): universal ones, and those of GeneralName (RFC 5280 §4.2.1.6).
const OCTET_STRING: u8 = 0x04;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const TELETEX_STRING: u8 = 0x14;
const IA5_STRING: u8 = 0x16;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
const DNS_NAME: u8 = 0x82;
const IP_ADDRESS: u8 = 0x87;

/// id-at-commonName, 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 4, 3];
/// id-ce-subjectAltName, 2.5.29.17.
const ALTERNATIVE_NAMES: &[u8] = &[0x55, 29, 17];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Kind,
    Len,
    Skip,
    ListLen,
    CertificateLen,
    Certificate,
}

/// The open element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Outside,
    Certificate,
    /// TBSCertificate.
    Signed,
    Name,
    NameSet,
    Attribute,
    Validity,
    ExtensionsTag,
    Extensions,
    Extension,
    ExtensionValue,
    GeneralNames,
}

impl Place {
    const fn parent(self) -> Place {
        match self {
            Place::Outside | Place::Certificate => Place::Outside,
            Place::Signed => Place::Certificate,
            Place::Name | Place::Validity | Place::ExtensionsTag => Place::Signed,
            Place::NameSet => Place::Name,
            Place::Attribute => Place::NameSet,
            Place::Extensions => Place::ExtensionsTag,
            Place::Extension => Place::Extensions,
            Place::ExtensionValue => Place::Extension,
            Place::GeneralNames => Place::ExtensionValue,
        }
    }
}

/// Parser of a server's messages after its hello, up to its certificate.
pub(crate) struct Certificate {
    step: Step,
    passed: u8,
    kind: u8,
    /// Bytes of a number read so far, and the number.
    got: u8,
    number: u32,
    /// Bytes of the message still to come.
    left: u32,
    der: Der,
    place: Place,
    tag: u8,
    /// Number of members of the signed part, and of the validity, that have begun.
    members: u8,
    times: u8,
    /// Whether the last identifier is the one searched for there.
    is_wanted: bool,
    name_count: u32,
    text: Text<255>,
}

impl Certificate {
    pub(crate) const fn new() -> Certificate {
        Certificate {
            step: Step::Kind,
            passed: 0,
            kind: 0,
            got: 0,
            number: 0,
            left: 0,
            der: Der::new(0),
            place: Place::Outside,
            tag: 0,
            members: 0,
            times: 0,
            is_wanted: false,
            name_count: 0,
            text: Text::EMPTY,
        }
    }

    /// Prepares for the list of certificates of a message of which this many bytes are still to
    /// come.
    pub(super) const fn at_list(left: u32) -> Certificate {
        let mut certificate = Certificate::new();
        certificate.step = Step::ListLen;
        certificate.left = left;
        certificate
    }

    /// Resets it, after a message of which this many bytes are still to be skipped.
    pub(crate) fn clear(&mut self, left: u32) {
        let Certificate {
            step,
            passed,
            kind,
            got,
            number,
            left: left_of_message,
            der,
            place,
            tag,
            members,
            times,
            is_wanted,
            name_count,
            text,
        } = self;
        *step = Step::Skip;
        (*passed, *kind, *got, *number, *left_of_message) = (0, 0, 0, 0, left);
        *der = Der::new(0);
        (*place, *tag, *members, *times) = (Place::Outside, 0, 0, 0);
        (*is_wanted, *name_count) = (false, 0);
        text.clear();
    }

    /// Reads handshake bytes. Returns true when there is no more to read.
    ///
    /// # Errors
    /// If a length contradicts another, or the certificate is encoded incorrectly.
    pub(crate) fn feed(
        &mut self,
        mut input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Result<bool, Reason> {
        let input = &mut input;
        loop {
            match self.step {
                Step::Skip => {
                    let len = input.len().min(self.left as usize);
                    *input = &input[len..];
                    self.left -= len as u32;
                    if self.left != 0 {
                        return Ok(false);
                    }
                    self.step = Step::Kind;
                }
                Step::Certificate => return self.certificate(input, out),
                _ if input.is_empty() => return Ok(false),
                _ => {
                    if self.head(input)? {
                        return Ok(true);
                    }
                }
            }
        }
    }

    /// Handles a gap of this many bytes. Returns true if they would have been skipped.
    pub(crate) fn gap(&mut self, len: u32) -> bool {
        match self.step {
            Step::Skip if len <= self.left => {
                self.left -= len;
                true
            }
            Step::Certificate => self.der.gap(len),
            _ => false,
        }
    }

    /// Reads a number of this many bytes, once they are present.
    fn int(&mut self, input: &mut &[u8], width: u8) -> Option<u32> {
        while self.got < width {
            let (byte, rest) = input.split_first()?;
            self.number = self.number << 8 | u32::from(*byte);
            self.got += 1;
            *input = rest;
        }
        self.got = 0;
        Some(core::mem::take(&mut self.number))
    }

    /// Reads what precedes the certificate. Returns true if there is no certificate.
    fn head(&mut self, input: &mut &[u8]) -> Result<bool, Reason> {
        let width = if self.step == Step::Kind { 1 } else { 3 };
        let Some(number) = self.int(input, width) else {
            return Ok(false);
        };
        match self.step {
            Step::Kind => {
                self.kind = number as u8;
                self.passed += u8::from(self.kind != CERTIFICATE);
                self.step = Step::Len;
                return Ok(self.kind == SERVER_HELLO_DONE || self.passed > PASSED_MAX);
            }
            Step::Len => {
                self.left = number;
                self.step = match self.kind {
                    CERTIFICATE => Step::ListLen,
                    _ => Step::Skip,
                };
            }
            Step::ListLen => {
                if number.checked_add(3) != Some(self.left) {
                    return Err(Reason::BadLength);
                }
                self.left = number;
                self.step = Step::CertificateLen;
                // A server without a certificate.
                return Ok(number == 0);
            }
            _ => {
                if number.saturating_add(3) > self.left {
                    return Err(Reason::BadLength);
                }
                self.der = Der::new(number);
                self.step = Step::Certificate;
            }
        }
        Ok(false)
    }

    fn certificate(&mut self, input: &mut &[u8], out: &mut dyn FieldSink) -> Result<bool, Reason> {
        while let Some(event) = self.der.next(input)? {
            match event {
                Event::Begins(head) => {
                    let choice = self.begins(head)?;
                    self.der.choose(choice)?;
                }
                Event::Contents(bytes) => self.text.push(bytes),
                Event::Ends => self.ends(out),
                Event::Leaves => {
                    if matches!(
                        self.place,
                        Place::Signed | Place::Certificate | Place::Outside
                    ) {
                        if self.name_count != 0 {
                            let count = Value::Number(self.name_count.into());
                            out.field(Field::TlsSanCount, count);
                        }
                        return Ok(true);
                    }
                    self.place = self.place.parent();
                }
            }
        }
        Ok(false)
    }

    /// Handles the beginning of an element.
    fn begins(&mut self, head: Head) -> Result<Choice, Reason> {
        self.tag = head.tag;
        self.text.clear();
        let inner = match (self.place, head.tag) {
            (Place::Outside, SEQUENCE) => Place::Certificate,
            (Place::Certificate, SEQUENCE) => Place::Signed,
            (Place::Outside | Place::Certificate, _) => return Err(Reason::BadValue),
            (Place::Signed, tag) => match self.member(tag) {
                Some(place) => place,
                None => return Ok(Choice::Skip),
            },
            (Place::Name, SET) => Place::NameSet,
            (Place::NameSet, SEQUENCE) => Place::Attribute,
            (Place::ExtensionsTag, SEQUENCE) => Place::Extensions,
            (Place::Extensions, SEQUENCE) => Place::Extension,
            (Place::Extension, OCTET_STRING) if self.is_wanted => Place::ExtensionValue,
            (Place::ExtensionValue, SEQUENCE) => Place::GeneralNames,
            (Place::Attribute | Place::Extension, OBJECT_IDENTIFIER)
            | (Place::Validity, UTC_TIME | GENERALIZED_TIME) => return Ok(Choice::Read),
            (Place::Attribute, UTF8_STRING | PRINTABLE_STRING | TELETEX_STRING | IA5_STRING)
                if self.is_wanted =>
            {
                return Ok(Choice::Read);
            }
            (Place::GeneralNames, DNS_NAME | IP_ADDRESS) => {
                self.name_count += 1;
                let is_selected = self.name_count <= NAMES_MAX;
                return Ok(if is_selected {
                    Choice::Read
                } else {
                    Choice::Skip
                });
            }
            _ => return Ok(Choice::Skip),
        };
        if matches!(inner, Place::Attribute | Place::Extension) {
            self.is_wanted = false;
        }
        self.place = inner;
        Ok(Choice::Enter)
    }

    /// A member of the signed part: in order the serial number, the algorithm, the issuer, the
    /// validity, the subject, the key. The version before them is optional.
    fn member(&mut self, tag: u8) -> Option<Place> {
        if tag == VERSION {
            return None;
        }
        self.members = self.members.saturating_add(1);
        match (self.members, tag) {
            (3 | 5, SEQUENCE) => Some(Place::Name),
            (4, SEQUENCE) => Some(Place::Validity),
            (_, EXTENSIONS) => Some(Place::ExtensionsTag),
            _ => None,
        }
    }

    /// Handles the end of an element that was read.
    fn ends(&mut self, out: &mut dyn FieldSink) {
        let bytes = self.text.bytes();
        match (self.place, self.tag) {
            (Place::Attribute, OBJECT_IDENTIFIER) => self.is_wanted = bytes == COMMON_NAME,
            (Place::Extension, _) => self.is_wanted = bytes == ALTERNATIVE_NAMES,
            (Place::Attribute, _) => {
                let is_subject = self.members == 5;
                let field = match is_subject {
                    true => Field::TlsSubject,
                    false => Field::TlsIssuer,
                };
                out.field(field, self.text.value());
            }
            (Place::Validity, tag) => {
                let field = match self.times {
                    0 => Field::TlsNotBefore,
                    _ => Field::TlsNotAfter,
                };
                self.times = self.times.saturating_add(1);
                if let Some(seconds) = seconds(tag, bytes)
                    && self.times <= 2
                {
                    out.field(field, Value::Number(seconds));
                }
            }
            (Place::GeneralNames, IP_ADDRESS) => {
                if let Some(address) = address(bytes) {
                    out.field(Field::TlsSan, Value::Address(address));
                }
            }
            (Place::GeneralNames, _) => out.field(Field::TlsSan, self.text.value()),
            _ => {}
        }
    }
}

fn address(bytes: &[u8]) -> Option<core::net::IpAddr> {
    let v4 = || <[u8; 4]>::try_from(bytes).ok().map(Into::into);
    let v6 = || <[u8; 16]>::try_from(bytes).ok().map(Into::into);
    v4().or_else(v6)
}

/// Converts a time (RFC 5280 §4.1.2.5) to seconds since the Unix epoch; `None` before 1970. Old
/// certificates omit the seconds.
fn seconds(tag: u8, text: &[u8]) -> Option<u64> {
    let pair = |at: usize| {
        let [tens, ones] = *text.get(at..at + 2)?.first_chunk::<2>()?;
        let is_number = tens.is_ascii_digit() && ones.is_ascii_digit();
        is_number.then(|| u64::from(tens - b'0') * 10 + u64::from(ones - b'0'))
    };
    let (year, at) = match tag {
        // Two digits stand for 1950 to 2049.
        UTC_TIME => match pair(0)? {
            year @ 50.. => (1900 + year, 2),
            year => (2000 + year, 2),
        },
        _ => (pair(0)? * 100 + pair(2)?, 4),
    };
    let (second, end) = match text.get(at + 8)? {
        b'Z' => (0, at + 8),
        _ => (pair(at + 8)?, at + 10),
    };
    if text.get(end..) != Some(b"Z") {
        return None;
    }
    let date = [year, pair(at)?, pair(at + 2)?];
    date::seconds(date, [pair(at + 4)?, pair(at + 6)?, second])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_times_are_parsed() {
        for (tag, text, expected) in [
            (UTC_TIME, &b"700101000000Z"[..], Some(0)),
            (UTC_TIME, b"491231235959Z", Some(2_524_607_999)),
            (UTC_TIME, b"9912312359Z", Some(946_684_740)),
            (UTC_TIME, b"500101000000Z", None),
            (UTC_TIME, b"7001010000000Z", None),
            (UTC_TIME, b"700101000000+0000", None),
            (UTC_TIME, b"70010100", None),
            (UTC_TIME, b"", None),
            (GENERALIZED_TIME, b"20500101000000Z", Some(2_524_608_000)),
            (GENERALIZED_TIME, b"99991231235959Z", Some(253_402_300_799)),
            (GENERALIZED_TIME, b"2050010100000xZ", None),
            (GENERALIZED_TIME, b"20501301000000Z", None),
        ] {
            assert_eq!(seconds(tag, text), expected, "{}", text.escape_ascii());
        }
    }
}
