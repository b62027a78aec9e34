//! The handshake of TLS 1.3 as far as the server's certificates (RFC 8446 §2): our hellos and the
//! server's give the keys for its next messages, which are decrypted as they arrive.
//!
//! The handshake is not completed: what a client would have to say after the server's messages is
//! never said. The key shares are generators ([`group`]), so nothing of it is secret.
//!
//! Memory is bounded: a hello of at most [`HELLO_MAX`] bytes, and the state of a record. Results do
//! not depend on how the stream is segmented.

pub mod group;
mod keys;
#[cfg(any(test, feature = "laws"))]
pub mod law;
mod record;
mod server_hello;
#[cfg(test)]
pub mod tests;

use std::sync::Arc;

use inspect::{EncryptedMessages, FieldSink};

use super::certificates::Certificates;
use super::hello::tls::{self, Retry};
use group::{GROUPS, SHARED_COUNT};
pub use keys::SUITES;
use keys::{Keys, Suite, Transcript};
use record::{Record, TAG_LEN};
pub use server_hello::{COOKIE, KEY_SHARE, SUPPORTED_VERSIONS};
use server_hello::{Kind, SERVER_HELLO, ServerHello};

/// Maximum length of a server's hello: with a cookie of more than 1 KiB it is not answered.
pub const HELLO_MAX: usize = 2048;
/// Maximum length of a record without protection, and of a protected one (RFC 8446 §5.1, §5.2).
const PLAIN_MAX: u16 = 1 << 14;
const PROTECTED_MAX: u16 = (1 << 14) + 256;
/// Number of bytes decrypted at a time.
const PIECE_LEN: usize = 512;

// Types of content.
const CHANGE_CIPHER_SPEC: u8 = 20;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A hello is awaited.
    Hello,
    /// The messages after it are decrypted.
    Encrypted,
    /// Nothing more is read.
    Over,
}

/// Receives what a server's messages say.
pub struct Out<'a> {
    /// Fields of the first certificate, and the application protocol.
    pub fields: &'a mut dyn FieldSink,
    /// The certificates, if they are kept.
    pub certificates: Option<&'a mut Certificates>,
}

/// Protected records.
struct Protected {
    keys: Keys,
    /// Number of the next record.
    number: u64,
    record: Option<Record>,
    /// The tag, as far as it is present.
    tag: [u8; TAG_LEN],
    tag_len: u8,
    /// The last byte of plain text that is not zero, which may be its type; and the number of zeros
    /// behind it, which may be padding.
    last: Option<u8>,
    zero_count: u16,
    messages: EncryptedMessages,
}

/// Reader of a server's stream.
pub struct Handshake {
    state: State,
    head: [u8; 5],
    head_len: u8,
    /// Bytes of the record still to come.
    left: u16,
    message: Vec<u8>,
    transcript: Option<(Suite, Transcript)>,
    protected: Option<Box<Protected>>,
    /// Name of the server in our hellos, and whether they offer HTTP.
    name: Option<Arc<str>>,
    has_alpn: bool,
}

impl Handshake {
    /// Before the first byte of the server with this name.
    pub const fn new(name: Option<Arc<str>>, has_alpn: bool) -> Self {
        Self {
            state: State::Hello,
            head: [0; 5],
            head_len: 0,
            left: 0,
            message: Vec::new(),
            transcript: None,
            protected: None,
            name,
            has_alpn,
        }
    }

    /// Whether nothing more is read.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Whether the server's messages are encrypted: it has chosen TLS 1.3.
    pub fn is_encrypted(&self) -> bool {
        self.protected.is_some()
    }

    /// Reads the next bytes from the server. `said` is the record of the hello. Returns a second
    /// hello if the server has asked for it.
    pub fn read(&mut self, bytes: &[u8], said: &[u8], out: &mut Out<'_>) -> Option<Vec<u8>> {
        let mut reply = None;
        let mut rest = bytes;
        while self.state != State::Over && !rest.is_empty() {
            if self.left == 0 {
                self.head[usize::from(self.head_len)] = rest[0];
                self.head_len += 1;
                rest = &rest[1..];
                if usize::from(self.head_len) == self.head.len() {
                    self.head_len = 0;
                    self.begin();
                }
                continue;
            }
            let (part, behind) = rest.split_at(rest.len().min(self.left.into()));
            self.left -= part.len() as u16;
            rest = behind;
            match (self.state, self.head[0]) {
                (State::Hello, HANDSHAKE) => reply = self.hello(part, said).or(reply),
                (State::Encrypted, APPLICATION_DATA) => self.protected(part, out),
                _ => {}
            }
        }
        reply
    }

    /// Checks the head of a record.
    fn begin(&mut self) {
        let [kind, major, _, high, low] = self.head;
        let len = u16::from_be_bytes([high, low]);
        self.left = len;
        let is_valid = match (self.state, kind) {
            (_, CHANGE_CIPHER_SPEC) => len == 1,
            (State::Hello, HANDSHAKE) => len != 0 && len <= PLAIN_MAX,
            (State::Encrypted, APPLICATION_DATA) => {
                usize::from(len) > TAG_LEN && len <= PROTECTED_MAX
            }
            // Alerts, and what older versions send.
            _ => false,
        };
        if !is_valid || major != 3 {
            self.state = State::Over;
            return;
        }
        if let Some(protected) = &mut self.protected
            && kind == APPLICATION_DATA
        {
            protected.begin(&self.head);
        }
    }

    /// Reads bytes of a server's hello.
    fn hello(&mut self, mut part: &[u8], said: &[u8]) -> Option<Vec<u8>> {
        loop {
            let len = match self.message[..] {
                [] | [SERVER_HELLO] | [SERVER_HELLO, _] | [SERVER_HELLO, _, _] => 4,
                // Without a body nothing would ever complete it.
                [SERVER_HELLO, 0, 0, 0, ..] => usize::MAX,
                [SERVER_HELLO, a, b, c, ..] => 4 + u32::from_be_bytes([0, a, b, c]) as usize,
                _ => usize::MAX,
            };
            if len > HELLO_MAX {
                self.state = State::Over;
                return None;
            }
            if part.is_empty() {
                return None;
            }
            let (new, rest) = part.split_at(part.len().min(len - self.message.len()));
            self.message.extend(new);
            part = rest;
            if self.message.len() == len && len > 4 {
                let message = std::mem::take(&mut self.message);
                let reply = self.answer(&message, said);
                // Keys change at the boundary of a record (RFC 8446 §5.1).
                if reply.is_err() || !part.is_empty() || self.left != 0 {
                    self.state = State::Over;
                }
                return reply.ok().flatten();
            }
        }
    }

    /// Continues after a server's hello. Returns a second hello of ours if it is asked for.
    fn answer(&mut self, message: &[u8], said: &[u8]) -> Result<Option<Vec<u8>>, ()> {
        let found = ServerHello::parse(message).ok_or(())?;
        let (suite, hello) = (found.suite, said.get(5..).ok_or(())?);
        match found.kind {
            Kind::Retry(group, cookie) => {
                let is_shared = group.is_none_or(|group| {
                    let mut shared = GROUPS[..SHARED_COUNT].iter();
                    shared.any(|one| one.id == group.id)
                });
                // It must change something, and may be sent once (RFC 8446 §4.1.4).
                if self.transcript.is_some() || is_shared && cookie.is_empty() {
                    return Err(());
                }
                let retry = Retry { group, cookie };
                let random = hello.get(6..).and_then(<[u8]>::first_chunk).ok_or(())?;
                let to = (self.name.as_deref(), self.has_alpn);
                let second = tls::message(random, to, Some(&retry));
                let mut transcript = Transcript::retried(suite, hello);
                transcript.add(message);
                transcript.add(&second);
                self.transcript = Some((suite, transcript));
                Ok(Some(tls::second_flight(&second)))
            }
            Kind::Key(group, key) => {
                let first = || (suite, Transcript::new(suite, hello));
                let (expected, mut transcript) = self.transcript.take().unwrap_or_else(first);
                let shared = group.shared(key).filter(|_| expected == suite).ok_or(())?;
                transcript.add(message);
                self.protected = Some(Box::new(Protected {
                    keys: transcript.keys(suite, shared),
                    number: 0,
                    record: None,
                    tag: [0; TAG_LEN],
                    tag_len: 0,
                    last: None,
                    zero_count: 0,
                    messages: EncryptedMessages::new(),
                }));
                self.state = State::Encrypted;
                Ok(None)
            }
        }
    }

    fn protected(&mut self, part: &[u8], out: &mut Out<'_>) {
        let Some(protected) = &mut self.protected else {
            return;
        };
        let left = usize::from(self.left) + part.len();
        let (text, tag) = part.split_at(part.len().min(left.saturating_sub(TAG_LEN)));
        for piece in text.chunks(PIECE_LEN) {
            protected.decrypt(piece, out);
        }
        for byte in tag {
            protected.tag[usize::from(protected.tag_len) % TAG_LEN] = *byte;
            protected.tag_len += 1;
        }
        let is_right = self.left != 0 || protected.end();
        let kept = out.certificates.as_ref();
        let is_kept = kept.is_none_or(|certificates| certificates.is_over());
        if !is_right || protected.messages.is_over() && is_kept {
            self.state = State::Over;
        }
    }
}

impl Protected {
    fn begin(&mut self, head: &[u8; 5]) {
        self.record = Some(Record::new(&self.keys, self.number, head));
        self.number += 1;
        self.tag_len = 0;
        (self.last, self.zero_count) = (None, 0);
    }

    /// Decrypts bytes, and passes on those that are certainly not the type and padding at the end.
    fn decrypt(&mut self, piece: &[u8], out: &mut Out<'_>) {
        let mut bytes = [0; PIECE_LEN];
        let Some((record, bytes)) = self.record.as_mut().zip(bytes.get_mut(..piece.len())) else {
            return;
        };
        bytes.copy_from_slice(piece);
        record.open(bytes);
        let Some(at) = bytes.iter().rposition(|byte| *byte != 0) else {
            self.zero_count += bytes.len() as u16;
            return;
        };
        if let Some(last) = self.last.replace(bytes[at]) {
            self.pass(&[last], out);
        }
        const ZEROS: [u8; PIECE_LEN] = [0; PIECE_LEN];
        let mut zero_count = usize::from(std::mem::take(&mut self.zero_count));
        while zero_count != 0 {
            let len = zero_count.min(PIECE_LEN);
            self.pass(&ZEROS[..len], out);
            zero_count -= len;
        }
        self.pass(&bytes[..at], out);
        self.zero_count = (bytes.len() - at - 1) as u16;
    }

    /// Passes handshake bytes on. What is not a handshake is noticed at the end of its record: an
    /// alert, whose two bytes are less than the head of a message.
    fn pass(&mut self, bytes: &[u8], out: &mut Out<'_>) {
        // A malformed message is the end of the messages, too; fields before it stay valid.
        let _ = self.messages.feed(bytes, out.fields);
        if let Some(certificates) = &mut out.certificates {
            certificates.messages(bytes);
        }
    }

    /// Ends a record: whether its tag is right, and it was a handshake.
    fn end(&mut self) -> bool {
        let tag = self.record.take().map(Record::tag);
        tag == Some(self.tag) && self.last == Some(HANDSHAKE)
    }
}
