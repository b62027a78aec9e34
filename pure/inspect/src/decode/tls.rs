//! TLS over TCP: the record layer (RFC 8446 §5.1), the two hellos, and up to TLS 1.2 the server's
//! certificate.
//!
//! Handshake messages may be spread over records, and records over segments, in any way. Records of
//! other types before the hello are skipped. The client's direction ends with its hello, the
//! server's with its certificate, or where the certificate would be encrypted. Either ends with the
//! first record of application data, or if it begins with another handshake message.

use super::{Context, Decode, Direction, First, Match, Progress, Reason};
use crate::field::FieldSink;
use crate::identify::{Byte, Pattern};

mod certificate;
mod der;
mod encrypted;
mod fingerprint;
mod hello;

pub(crate) use certificate::Certificate;
pub use certificate::certificate;
pub use encrypted::EncryptedMessages;
pub(crate) use fingerprint::Carrier;
pub(crate) use hello::Hello;

/// Maximum record length: 2^14 of plaintext and the overhead allowed by TLS 1.2 (RFC 5246 §6.2.3).
const RECORD_MAX: u16 = (1 << 14) + 2048;

const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;

fn is_head(head: &[u8; 5]) -> bool {
    let len = u16::from_be_bytes([head[3], head[4]]);
    matches!(head[0], CHANGE_CIPHER_SPEC..=APPLICATION_DATA)
        && head[1] == 3
        && head[2] <= 4
        && len <= RECORD_MAX
        && (len != 0 || head[0] == APPLICATION_DATA)
        && (head[0] != ALERT || len < 64)
        && (head[0] != CHANGE_CIPHER_SPEC || len == 1)
}

/// Type and version of a record.
pub(super) const STARTS: &[Pattern] = &[Pattern::Bytes(&[
    Byte::In(CHANGE_CIPHER_SPEC, APPLICATION_DATA),
    Byte::Is(3),
    Byte::In(0, 4),
])];

pub(super) fn first(first: &First<'_>) -> Match {
    let bytes = first.bytes;
    let plausible = |at: usize, test: fn(u8) -> bool| bytes.get(at).is_none_or(|b| test(*b));
    if !plausible(0, |b| matches!(b, CHANGE_CIPHER_SPEC..=APPLICATION_DATA))
        || !plausible(1, |b| b == 3)
        || !plausible(2, |b| b <= 4)
    {
        return Match::No;
    }
    let Some((head, rest)) = bytes.split_first_chunk::<5>() else {
        return Match::Maybe;
    };
    if !is_head(head) {
        return Match::No;
    }
    if head[0] != HANDSHAKE {
        return Match::Yes;
    }
    match rest.first().copied() {
        None => Match::Maybe,
        Some(hello::CLIENT_HELLO | hello::SERVER_HELLO) => Match::Yes,
        Some(_) => Match::No,
    }
}

/// One direction.
struct Side {
    head: [u8; 5],
    head_len: u8,
    is_over: bool,
    /// Why it ended before it was complete.
    failed: Option<Reason>,
    /// Bytes of the record still to come.
    left: u16,
    hello: Hello,
    /// Whether the hello has been read, and a certificate follows.
    awaits_certificate: bool,
    certificate: Certificate,
}

/// State of a connection.
pub(crate) struct Tls {
    sides: [Side; 2],
}

impl Tls {
    fn progress(&self) -> Progress {
        let need = self.sides.iter().filter(|side| !side.is_over);
        match need.map(Side::need).min() {
            Some(need) => Progress::Need(need),
            // A failure in one direction does not prevent reading the other.
            None => match self.sides.iter().find_map(|side| side.failed) {
                Some(reason) => Progress::Reject(reason),
                None => Progress::Done,
            },
        }
    }
}

impl Side {
    /// Minimum number of bytes needed to continue.
    fn need(&self) -> usize {
        if self.left == 0 {
            return 5 - usize::from(self.head_len).min(4);
        }
        match self.awaits_certificate {
            true => 1,
            false => self.hello.need().min(self.left.into()),
        }
    }

    fn fail(&mut self, reason: Reason) {
        self.is_over = true;
        self.failed = Some(reason);
    }

    /// Reads the head of a record. Returns false while it is incomplete.
    fn head(&mut self, input: &mut &[u8]) -> bool {
        while self.head_len < 5 {
            let Some((byte, rest)) = input.split_first() else {
                return false;
            };
            self.head[usize::from(self.head_len)] = *byte;
            self.head_len += 1;
            *input = rest;
        }
        true
    }

    fn feed(&mut self, mut input: &[u8], out: &mut dyn FieldSink) -> Result<(), Reason> {
        let input = &mut input;
        while !self.is_over && !input.is_empty() {
            if self.left == 0 {
                if !self.head(input) {
                    break;
                }
                self.head_len = 0;
                if !is_head(&self.head) {
                    return Err(Reason::BadValue);
                }
                self.left = u16::from_be_bytes([self.head[3], self.head[4]]);
                // After a change of cipher everything is encrypted: a resumed session has no
                // certificate.
                self.is_over = self.head[0] == APPLICATION_DATA
                    || (self.awaits_certificate && self.head[0] == CHANGE_CIPHER_SPEC);
                continue;
            }
            let (part, rest) = input.split_at(input.len().min(self.left.into()));
            self.left -= part.len() as u16;
            *input = rest;
            if self.head[0] != HANDSHAKE {
                continue;
            }
            self.is_over = self.handshake(part, out)?;
        }
        Ok(())
    }

    /// Reads handshake bytes. Returns true when there is no more to read.
    fn handshake(&mut self, mut part: &[u8], out: &mut dyn FieldSink) -> Result<bool, Reason> {
        if !self.awaits_certificate {
            if !self.hello.take(&mut part)? {
                return Ok(false);
            }
            self.hello.report(Carrier::Tcp, out);
            if !self.hello.has_certificate() {
                return Ok(true);
            }
            self.awaits_certificate = true;
            self.certificate.clear(self.hello.left());
        }
        self.certificate.feed(part, out)
    }

    /// Handles a gap in the handshake. Returns true if the missing bytes do not matter.
    fn passes_gap(&mut self, len: u32) -> bool {
        match self.awaits_certificate {
            true => self.certificate.gap(len),
            false => self.hello.gap(len),
        }
    }
}

impl Decode for Tls {
    fn new() -> Tls {
        let side = || Side {
            head: [0; 5],
            head_len: 0,
            is_over: false,
            failed: None,
            left: 0,
            hello: Hello::new(),
            awaits_certificate: false,
            certificate: Certificate::new(),
        };
        Tls {
            sides: [side(), side()],
        }
    }

    fn clear(&mut self) {
        for side in &mut self.sides {
            let Side {
                head: _,
                head_len,
                is_over,
                failed,
                left,
                hello,
                awaits_certificate,
                // Reset when a hello is complete.
                certificate: _,
            } = side;
            (*head_len, *is_over, *failed, *left) = (0, false, None, 0);
            *awaits_certificate = false;
            hello.clear();
        }
    }

    fn feed(
        &mut self,
        context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        let side = &mut self.sides[context.origin.from as usize];
        if let Err(reason) = side.feed(input, out) {
            side.fail(reason);
        }
        self.progress()
    }

    fn wants(&self, from: Direction) -> bool {
        !self.sides[from as usize].is_over
    }

    fn gap(&mut self, from: Direction, len: u32, _out: &mut dyn FieldSink) -> Progress {
        let side = &mut self.sides[from as usize];
        if side.is_over {
            return self.progress();
        }
        // Nothing is missed within a skipped field.
        let is_inside = len <= side.left.into();
        if !is_inside || (side.head[0] == HANDSHAKE && !side.passes_gap(len)) {
            side.fail(Reason::Gap);
        } else {
            side.left -= len as u16;
        }
        self.progress()
    }
}
