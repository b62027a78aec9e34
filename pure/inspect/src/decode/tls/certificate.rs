//! The first certificate of a server (RFC 5246 §7.4.2, RFC 5280 §4.1): serial number, algorithms,
//! names, validity, key and fingerprint.
//!
//! Up to TLS 1.2 it is not encrypted; in 1.3, [`EncryptedMessages`](super::EncryptedMessages) finds
//! it. It is read byte by byte, through the messages before it, to its end; the rest of the chain
//! is ignored. Of a name as much is read as there is room for.

mod element;
mod key;
mod name;
mod oid;

use sha2::{Digest, Sha256};

use super::der::{Choice, Der, Event, Head};
use crate::Reason;
use crate::date;
use crate::field::{Field, FieldSink, Value};
use crate::text::{Text, hex};

const CERTIFICATE: u8 = 11;
const SERVER_HELLO_DONE: u8 = 14;
/// Maximum number of messages between the hello and the certificate: one (RFC 4680 §2), with room
/// for future ones.
const PASSED_MAX: u8 = 4;
/// Maximum number of alternative names reported. All are counted.
const NAMES_MAX: u32 = 64;

// Tags (X.690 §8).
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;

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
    Signature,
    Validity,
    Key,
    KeyKind,
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
            Place::Signature | Place::Validity | Place::Key | Place::ExtensionsTag => Place::Signed,
            Place::KeyKind => Place::Key,
            Place::Extensions => Place::ExtensionsTag,
            Place::Extension => Place::Extensions,
            Place::ExtensionValue => Place::Extension,
            Place::GeneralNames => Place::ExtensionValue,
        }
    }
}

/// Number of bytes of a name that are read in a flow.
const NAME_LEN: usize = 512;
/// The same, where the whole certificate is at hand.
const WHOLE_NAME_LEN: usize = 8192;

/// Parser of a server's messages after its hello, up to its certificate.
pub(crate) type Certificate = Parser<NAME_LEN>;

/// The parser, with room for values of this many bytes.
pub(crate) struct Parser<const N: usize> {
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
    head: Head,
    /// Number of members of the signed part, and of the validity, that have begun.
    members: u8,
    times: u8,
    /// Whether the extension has the alternative names.
    is_wanted: bool,
    name_count: u32,
    key: key::Kind,
    /// Of the bytes so far; `None` if some of them were lost.
    sum: Option<Sha256>,
    text: Text<N>,
}

/// Reads a certificate (DER), or the beginning of one, and reports its fields.
///
/// # Errors
/// If it is encoded incorrectly; what was found before is reported.
pub fn certificate(der: &[u8], out: &mut dyn FieldSink) -> Result<(), Reason> {
    let len = u32::try_from(der.len()).map_err(|_| Reason::TooLong)?;
    let mut parser = Parser::<WHOLE_NAME_LEN>::new();
    parser.begin(len);
    parser.certificate(&mut &*der, out).map(drop)
}

impl<const N: usize> Parser<N> {
    pub(crate) const fn new() -> Parser<N> {
        Parser {
            step: Step::Kind,
            passed: 0,
            kind: 0,
            got: 0,
            number: 0,
            left: 0,
            der: Der::new(0),
            place: Place::Outside,
            head: Head { tag: 0, len: 0 },
            members: 0,
            times: 0,
            is_wanted: false,
            name_count: 0,
            key: key::Kind::UNKNOWN,
            sum: None,
            text: Text::EMPTY,
        }
    }

    /// Prepares for the list of certificates of a message of which this many bytes are still to
    /// come.
    pub(super) const fn at_list(left: u32) -> Parser<N> {
        let mut certificate = Parser::new();
        certificate.step = Step::ListLen;
        certificate.left = left;
        certificate
    }

    /// Resets it, after a message of which this many bytes are still to be skipped.
    pub(crate) fn clear(&mut self, left: u32) {
        let Parser {
            step,
            passed,
            kind,
            got,
            number,
            left: left_of_message,
            der,
            place,
            head,
            members,
            times,
            is_wanted,
            name_count,
            key,
            sum,
            text,
        } = self;
        *step = Step::Skip;
        (*passed, *kind, *got, *number, *left_of_message) = (0, 0, 0, 0, left);
        *der = Der::new(0);
        (*place, *head) = (Place::Outside, Head { tag: 0, len: 0 });
        (*members, *times, *is_wanted, *name_count) = (0, 0, false, 0);
        (*key, *sum) = (key::Kind::UNKNOWN, None);
        text.clear();
    }

    /// Prepares for a certificate of this many bytes.
    fn begin(&mut self, len: u32) {
        self.der = Der::new(len);
        // An empty certificate has no fingerprint.
        self.sum = (len != 0).then(Sha256::new);
        self.step = Step::Certificate;
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
            Step::Certificate => {
                self.sum = None;
                self.der.gap(len)
            }
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
                self.begin(number);
            }
        }
        Ok(false)
    }

    fn certificate(&mut self, input: &mut &[u8], out: &mut dyn FieldSink) -> Result<bool, Reason> {
        let before = *input;
        let is_over = self.elements(input, out)?;
        if let Some(sum) = &mut self.sum {
            sum.update(&before[..before.len() - input.len()]);
        }
        if is_over && let Some(sum) = self.sum.take() {
            let mut text = Text::<64>::EMPTY;
            let sum = sum.finalize();
            sum.iter().for_each(|byte| text.push(&hex(*byte)));
            out.field(Field::TlsCertificateSha256, text.value());
        }
        Ok(is_over)
    }

    fn elements(&mut self, input: &mut &[u8], out: &mut dyn FieldSink) -> Result<bool, Reason> {
        while let Some(event) = self.der.next(input)? {
            match event {
                Event::Begins(head) => {
                    let choice = self.begins(head)?;
                    self.der.choose(choice)?;
                }
                Event::Contents(bytes) => self.text.push(bytes),
                Event::Ends => self.ends(out),
                Event::Leaves => {
                    if self.place == Place::Outside {
                        return Ok(true);
                    }
                    if self.place == Place::Signed && self.name_count != 0 {
                        let count = Value::Number(self.name_count.into());
                        out.field(Field::TlsSanCount, count);
                    }
                    self.place = self.place.parent();
                }
            }
        }
        Ok(false)
    }

    /// Handles the beginning of an element.
    fn begins(&mut self, head: Head) -> Result<Choice, Reason> {
        self.head = head;
        self.text.clear();
        let inner = match (self.place, head.tag) {
            // Behind the signed part there are the signature and its algorithm.
            (Place::Outside | Place::Certificate, _) if self.members != 0 => {
                return Ok(Choice::Skip);
            }
            (Place::Outside, SEQUENCE) => Place::Certificate,
            (Place::Certificate, SEQUENCE) => Place::Signed,
            (Place::Outside | Place::Certificate, _) => return Err(Reason::BadValue),
            (Place::Signed, tag) => match self.member(tag) {
                Some(Ok(place)) => place,
                Some(Err(choice)) => return Ok(choice),
                None => return Ok(Choice::Skip),
            },
            (Place::Key, SEQUENCE) => Place::KeyKind,
            (Place::ExtensionsTag, SEQUENCE) => Place::Extensions,
            (Place::Extensions, SEQUENCE) => Place::Extension,
            (Place::Extension, OCTET_STRING) if self.is_wanted => Place::ExtensionValue,
            (Place::ExtensionValue, SEQUENCE) => Place::GeneralNames,
            (Place::Signature | Place::Extension, OBJECT_IDENTIFIER)
            | (Place::Validity, UTC_TIME | GENERALIZED_TIME)
            | (Place::Key, BIT_STRING)
            | (Place::KeyKind, _) => return Ok(Choice::Read),
            (Place::GeneralNames, _) => {
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
        if inner == Place::Extension {
            self.is_wanted = false;
        }
        self.place = inner;
        Ok(Choice::Enter)
    }

    /// A member of the signed part: in order the serial number, the algorithm, the issuer, the
    /// validity, the subject, the key. The version before them is optional.
    fn member(&mut self, tag: u8) -> Option<Result<Place, Choice>> {
        if tag == VERSION && self.members == 0 {
            return None;
        }
        self.members = self.members.saturating_add(1);
        match (self.members, tag) {
            (1, INTEGER) | (3 | 5, SEQUENCE) => Some(Err(Choice::Read)),
            (2, SEQUENCE) => Some(Ok(Place::Signature)),
            (4, SEQUENCE) => Some(Ok(Place::Validity)),
            (6, SEQUENCE) => Some(Ok(Place::Key)),
            (_, EXTENSIONS) => Some(Ok(Place::ExtensionsTag)),
            _ => None,
        }
    }

    /// Handles the end of an element that was read.
    fn ends(&mut self, out: &mut dyn FieldSink) {
        let bytes = self.text.bytes();
        match (self.place, self.head.tag) {
            (Place::Signed, INTEGER) => out.field(Field::TlsSerial, serial(bytes).value()),
            (Place::Signed, _) => {
                let field = match self.members {
                    3 => Field::TlsIssuer,
                    _ => Field::TlsSubject,
                };
                let mut text = Text::<N>::EMPTY;
                name::distinguished(bytes, &mut text);
                if self.text.is_cut() {
                    text.cut();
                }
                out.field(field, text.value());
            }
            (Place::Signature, _) => {
                let number = oid::dotted(bytes);
                let name = oid::signature(&number).map(|name| Value::text(name.as_bytes()));
                out.field(Field::TlsSignature, name.unwrap_or(number.value()));
            }
            (Place::KeyKind, OBJECT_IDENTIFIER) if self.key.is_unknown() => {
                self.key = key::Kind::of(bytes);
                let number = oid::dotted(bytes);
                let name = self.key.name().map(|name| Value::text(name.as_bytes()));
                out.field(Field::TlsKeyType, name.unwrap_or(number.value()));
            }
            (Place::KeyKind, tag) => self.key.parameters(tag, bytes),
            (Place::Key, _) => {
                if let Some(bits) = self.key.bits(bytes, self.head.len) {
                    out.field(Field::TlsKeyBits, Value::Number(bits));
                }
            }
            (Place::Extension, _) => self.is_wanted = bytes == ALTERNATIVE_NAMES,
            (Place::Validity, tag) => {
                let field = match self.times {
                    0 => Field::TlsNotBefore,
                    _ => Field::TlsNotAfter,
                };
                self.times = self.times.saturating_add(1);
                if let Some(seconds) = seconds(tag, bytes)
                    && self.times <= 2
                {
                    out.field(field, Value::Number(seconds as u64));
                }
            }
            (Place::GeneralNames, name::IP_ADDRESS) => {
                let address = address(bytes).map(Value::Address);
                out.field(Field::TlsSan, address.unwrap_or(Value::text(b"<invalid>")));
            }
            (Place::GeneralNames, name::MAIL | name::DNS_NAME | name::URI) => {
                out.field(Field::TlsSan, self.text.value());
            }
            (Place::GeneralNames, tag) => {
                let mut text = Text::<N>::EMPTY;
                name::alternative(tag, bytes, &mut text);
                if self.text.is_cut() {
                    text.cut();
                }
                out.field(Field::TlsSan, text.value());
            }
            _ => {}
        }
    }
}

/// A serial number as OpenSSL prints it: the bytes of its magnitude, `-` in front of a negative
/// one.
fn serial(bytes: &[u8]) -> Text<64> {
    let mut text = Text::EMPTY;
    let is_negative = bytes.first().is_some_and(|byte| byte & 0x80 != 0);
    if is_negative {
        text.push_char('-');
    }
    // The two's complement: all bits inverted in front of the last one that is set.
    let last = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0);
    let magnitude = |(at, byte): (usize, &u8)| match (is_negative, at.cmp(&last)) {
        (false, _) | (true, core::cmp::Ordering::Greater) => *byte,
        (true, core::cmp::Ordering::Equal) => byte.wrapping_neg(),
        (true, core::cmp::Ordering::Less) => !byte,
    };
    let mut has_begun = false;
    for (at, byte) in bytes.iter().enumerate() {
        let shown = magnitude((at, byte));
        has_begun |= shown != 0 || at + 1 == bytes.len();
        if has_begun {
            let digits = hex(shown).map(|digit| digit.to_ascii_uppercase());
            text.push(&digits);
        }
    }
    text
}

fn address(bytes: &[u8]) -> Option<core::net::IpAddr> {
    let v4 = || <[u8; 4]>::try_from(bytes).ok().map(Into::into);
    let v6 = || <[u8; 16]>::try_from(bytes).ok().map(Into::into);
    v4().or_else(v6)
}

/// Converts a time (RFC 5280 §4.1.2.5) to seconds since the Unix epoch. Old certificates omit the
/// seconds, have fractions of them, or the difference from UTC.
fn seconds(tag: u8, text: &[u8]) -> Option<i64> {
    let pair = |at: usize| {
        let [tens, ones] = *text.get(at..at + 2)?.first_chunk::<2>()?;
        let is_number = tens.is_ascii_digit() && ones.is_ascii_digit();
        is_number.then(|| i64::from(tens - b'0') * 10 + i64::from(ones - b'0'))
    };
    let (year, at) = match tag {
        // Two digits stand for 1950 to 2049.
        UTC_TIME => match pair(0)? {
            year @ 50.. => (1900 + year, 2),
            year => (2000 + year, 2),
        },
        _ => (pair(0)? * 100 + pair(2)?, 4),
    };
    let (second, mut end) = match text.get(at + 8)? {
        b'Z' | b'+' | b'-' => (0, at + 8),
        _ => (pair(at + 8)?, at + 10),
    };
    if tag == GENERALIZED_TIME && text.get(end) == Some(&b'.') {
        let digits = text[end + 1..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit());
        end += 1 + digits.count();
    }
    let offset = match text.get(end..)? {
        b"Z" => 0,
        [sign @ (b'+' | b'-'), _, _, _, _] => {
            let offset = pair(end + 1)? * 3600 + pair(end + 3)? * 60;
            if *sign == b'-' { -offset } else { offset }
        }
        _ => return None,
    };
    let date = [year, pair(at)?, pair(at + 2)?];
    let local = date::seconds(date, [pair(at + 4)?, pair(at + 6)?, second])?;
    Some(local - offset)
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
            (UTC_TIME, b"500101000000Z", Some(-631_152_000)),
            (UTC_TIME, b"691231235959Z", Some(-1)),
            (UTC_TIME, b"7001010000000Z", None),
            (UTC_TIME, b"700101000000+0000", Some(0)),
            (UTC_TIME, b"7001010130+0130", Some(0)),
            (UTC_TIME, b"700101000000-0100", Some(3600)),
            (UTC_TIME, b"700101000000+00", None),
            (UTC_TIME, b"70010100", None),
            (UTC_TIME, b"", None),
            (GENERALIZED_TIME, b"20500101000000Z", Some(2_524_608_000)),
            (GENERALIZED_TIME, b"99991231235959Z", Some(253_402_300_799)),
            (GENERALIZED_TIME, b"19490101000000Z", Some(-662_688_000)),
            (GENERALIZED_TIME, b"19700101000000.5Z", Some(0)),
            (GENERALIZED_TIME, b"2050010100000xZ", None),
            (GENERALIZED_TIME, b"20501301000000Z", None),
        ] {
            assert_eq!(seconds(tag, text), expected, "{}", text.escape_ascii());
        }
    }

    #[test]
    fn serial_numbers_are_those_of_openssl() {
        for (bytes, expected) in [
            (&[0][..], "00"),
            (&[1], "01"),
            (&[0x12, 0x34], "1234"),
            (&[0, 0x80], "80"),
            (&[0x7f, 0, 0], "7F0000"),
            (&[0xff], "-01"),
            (&[0x80], "-80"),
            (&[0xff, 0x00], "-0100"),
            (&[0xff, 0x7f], "-81"),
            (&[], ""),
        ] {
            assert_eq!(serial(bytes).bytes(), expected.as_bytes(), "{bytes:?}");
        }
        assert!(serial(&[1; 33]).is_cut());
    }
}
