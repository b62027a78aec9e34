//! DTLS 1.0, 1.2 (RFC 4347, RFC 6347) and the hellos of 1.3 (RFC 9147): the records of a datagram,
//! the two hellos, and up to 1.2 the server's certificate.
//!
//! One message is reassembled at a time. Its fragments may arrive in any order and repeatedly; data
//! ahead of the first missing byte are kept within 2048 bytes. Fragments of later messages are
//! ignored until they are retransmitted.

use super::quic::Window;
use super::tls::{Carrier, Certificate, Hello};
use super::{Context, Decode, First, Match, Progress, Reason};
use crate::field::FieldSink;
use crate::identify::{Byte, Pattern};

/// Number of 64-byte words of a message kept while earlier ones are missing.
const WINDOW_WORDS: usize = 32;
/// Maximum number of records read per datagram.
const RECORDS_MAX: usize = 16;
/// Maximum record length: 2^14 of plaintext and the cipher's overhead (RFC 6347 §4.1).
const RECORD_MAX: usize = (1 << 14) + 2048;

const CHANGE_CIPHER_SPEC: u8 = 20;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;

const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
const HELLO_VERIFY_REQUEST: u8 = 3;
const CERTIFICATE: u8 = 11;
const SERVER_HELLO_DONE: u8 = 14;

/// Type and version of a record.
pub(super) const STARTS: &[Pattern] = &[Pattern::Bytes(&[
    Byte::In(CHANGE_CIPHER_SPEC, APPLICATION_DATA),
    Byte::Is(0xfe),
    Byte::In(0xfd, 0xff),
])];

/// Checks the first record. It is complete; if it is not encrypted, it contains a hello, or the
/// server's reply to the first one.
pub(super) fn first(first: &First<'_>) -> Match {
    let Some((record, _)) = Record::take(first.bytes) else {
        return Match::No;
    };
    let is_it = match record.kind {
        _ if record.epoch != 0 => true,
        HANDSHAKE => {
            let fragment = Fragment::take(record.body);
            fragment.is_some_and(|(fragment, _)| {
                matches!(
                    fragment.kind,
                    CLIENT_HELLO | SERVER_HELLO | HELLO_VERIFY_REQUEST
                )
            })
        }
        _ => false,
    };
    if is_it { Match::Yes } else { Match::No }
}

/// A record (RFC 6347 §4.1).
struct Record<'a> {
    kind: u8,
    epoch: u16,
    body: &'a [u8],
}

impl<'a> Record<'a> {
    /// Splits off the first record of a datagram; `None` if it is incomplete.
    fn take(bytes: &'a [u8]) -> Option<(Record<'a>, &'a [u8])> {
        let (head, rest) = bytes.split_first_chunk::<13>()?;
        let len = usize::from(u16::from_be_bytes([head[11], head[12]]));
        let is_version = head[1] == 0xfe && matches!(head[2], 0xfd | 0xff);
        let is_kind = matches!(head[0], CHANGE_CIPHER_SPEC..=APPLICATION_DATA);
        if !is_version || !is_kind || len == 0 || len > RECORD_MAX {
            return None;
        }
        let (body, rest) = rest.split_at_checked(len)?;
        let record = Record {
            kind: head[0],
            epoch: u16::from_be_bytes([head[3], head[4]]),
            body,
        };
        Some((record, rest))
    }
}

/// A fragment of a handshake message, or all of it (RFC 6347 §4.2.2).
struct Fragment<'a> {
    kind: u8,
    len: u32,
    sequence: u16,
    offset: u32,
    bytes: &'a [u8],
}

impl<'a> Fragment<'a> {
    /// Splits off the first fragment of a record; `None` if its lengths contradict each other.
    fn take(bytes: &'a [u8]) -> Option<(Fragment<'a>, &'a [u8])> {
        let (head, rest) = bytes.split_first_chunk::<12>()?;
        let number = |at: usize| u32::from_be_bytes([0, head[at], head[at + 1], head[at + 2]]);
        let (len, offset, part) = (number(1), number(6), number(9));
        if offset + part > len {
            return None;
        }
        let (bytes, rest) = rest.split_at_checked(part as usize)?;
        let fragment = Fragment {
            kind: head[0],
            len,
            sequence: u16::from_be_bytes([head[4], head[5]]),
            offset,
            bytes,
        };
        Some((fragment, rest))
    }
}

/// The message being reassembled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Message {
    from: u8,
    kind: u8,
    sequence: u16,
    len: u32,
}

/// State of a connection.
pub(crate) struct Dtls {
    /// Sides that send no more plaintext.
    is_over: [bool; 2],
    /// Sides whose hello has been reported.
    is_selected: [bool; 2],
    /// The side whose certificate is expected.
    server: Option<u8>,
    message: Option<Message>,
    hello: Hello,
    certificate: Certificate,
    window: Window<WINDOW_WORDS>,
}

impl Dtls {
    /// Handles a fragment.
    fn fragment(
        &mut self,
        from: u8,
        fragment: &Fragment<'_>,
        out: &mut dyn FieldSink,
    ) -> Result<(), Reason> {
        let side = usize::from(from & 1);
        let awaits = self.server == Some(from);
        let is_wanted = match fragment.kind {
            CLIENT_HELLO | SERVER_HELLO => !self.is_selected[side],
            CERTIFICATE => awaits,
            SERVER_HELLO_DONE if awaits => {
                self.is_over[side] = true;
                false
            }
            _ => false,
        };
        if !is_wanted || self.is_over[side] {
            return Ok(());
        }
        let message = Message {
            from,
            kind: fragment.kind,
            sequence: fragment.sequence,
            len: fragment.len,
        };
        if self.message != Some(message) {
            self.begin(message, out)?;
        }
        let offset = fragment.offset.into();
        if fragment.kind == CERTIFICATE {
            let certificate = &mut self.certificate;
            let mut feed = |bytes: &[u8]| certificate.feed(bytes, out);
            let is_read = self.window.take(offset, fragment.bytes, &mut feed)?;
            self.is_over[side] |= is_read;
            return Ok(());
        }
        let hello = &mut self.hello;
        let mut feed = |bytes: &[u8]| hello.feed(bytes);
        if self.window.take(offset, fragment.bytes, &mut feed)? {
            self.hello.report(Carrier::Dtls, out);
            self.message = None;
            self.is_selected[side] = true;
            match self.hello.has_certificate() {
                true => self.server = Some(from),
                false => self.is_over[side] = true,
            }
        }
        Ok(())
    }

    /// Begins a message: the handshake parsers expect its type and length first, as in TLS.
    fn begin(&mut self, message: Message, out: &mut dyn FieldSink) -> Result<(), Reason> {
        self.message = Some(message);
        self.window.clear();
        let len = message.len.to_be_bytes();
        let head = [message.kind, len[1], len[2], len[3]];
        if message.kind == CERTIFICATE {
            self.certificate.clear(0);
            return self.certificate.feed(&head, out).map(drop);
        }
        self.hello.clear();
        self.hello.expect_cookie();
        self.hello.feed(&head).map(drop)
    }
}

impl Decode for Dtls {
    fn new() -> Dtls {
        Dtls {
            is_over: [false; 2],
            is_selected: [false; 2],
            server: None,
            message: None,
            hello: Hello::new(),
            certificate: Certificate::new(),
            window: Window::new(),
        }
    }

    fn clear(&mut self) {
        let Dtls {
            is_over,
            is_selected,
            server,
            message,
            // Reset where a message begins.
            hello: _,
            certificate: _,
            window: _,
        } = self;
        (*is_over, *is_selected) = ([false; 2], [false; 2]);
        (*server, *message) = (None, None);
    }

    fn feed(
        &mut self,
        context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        let from = context.origin.from as u8;
        let side = usize::from(from & 1);
        let mut rest = input;
        for _ in 0..RECORDS_MAX {
            let Some((record, behind)) = Record::take(rest) else {
                break;
            };
            rest = behind;
            if record.epoch != 0 || record.kind == CHANGE_CIPHER_SPEC {
                // The rest is encrypted.
                self.is_over[side] = true;
                break;
            }
            if record.kind != HANDSHAKE {
                continue;
            }
            let mut body = record.body;
            while let Some((fragment, behind)) = Fragment::take(body) {
                body = behind;
                if let Err(reason) = self.fragment(from, &fragment, out) {
                    return Progress::Reject(reason);
                }
            }
        }
        match self.is_over {
            [true, true] => Progress::Done,
            _ => Progress::Need(1),
        }
    }
}
