//! PostgreSQL (documentation of PostgreSQL, "Frontend/Backend Protocol", version 3): user and
//! database of the startup message, the server's authentication method, its version, and its first
//! error. TLS follows if the server accepts it.

use super::sides::Sides;
use super::{Context, Decode, Direction, First, Match, Next, Progress, ProtocolSwitch, Reason};
use crate::field::{Field, FieldSink, Value};
use crate::identify::{Byte, Pattern, Row};

/// Maximum number of bytes kept of a message.
const KEPT: usize = 512;
/// Maximum length of a startup message (`MAX_STARTUP_PACKET_LENGTH`), and of a message that is
/// skipped.
const STARTUP_MAX: u32 = 10_000;
const MESSAGE_MAX: u32 = 1 << 16;

/// Length and version, or the code of a request, and the beginning of a parameter's name.
const HEAD_LEN: usize = 8;
const NAME_LEN: usize = 4;
const VERSION: u16 = 3;
const CANCEL: u32 = 80_877_102;
const TLS_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;

// First bytes of a server's messages.
const AUTHENTICATION: u8 = b'R';
const ERROR: u8 = b'E';
const PARAMETER: u8 = b'S';
const NOTICE: u8 = b'N';
const CANCEL_KEY: u8 = b'K';
const NEGOTIATION: u8 = b'v';
const READY: u8 = b'Z';

/// Both sides switch to TLS once the server has accepted it.
const TLS: Row = Row::of("tls");

/// A startup message of version 3 (one pattern per nonzero length byte, so that zeros are rejected
/// early), and requests for encryption and for canceling.
pub(super) const STARTS: &[Pattern] = &[
    Pattern::Bytes(&[
        Byte::Is(0),
        Byte::Is(0),
        Byte::Is(0),
        Byte::In((HEAD_LEN + NAME_LEN) as u8, 0xff),
        Byte::Is(0),
        Byte::Is(VERSION as u8),
        Byte::Is(0),
        Byte::In(0, 2),
    ]),
    Pattern::Bytes(&[
        Byte::Is(0),
        Byte::Is(0),
        Byte::In(1, (STARTUP_MAX >> 8) as u8),
        Byte::Any,
        Byte::Is(0),
        Byte::Is(VERSION as u8),
        Byte::Is(0),
        Byte::In(0, 2),
    ]),
    Pattern::Bytes(&[
        Byte::Is(0),
        Byte::Is(0),
        Byte::Is(0),
        Byte::Is(HEAD_LEN as u8),
        Byte::Is(0x04),
        Byte::Is(0xd2),
        Byte::Is(0x16),
        Byte::In(0x2f, 0x30),
    ]),
    Pattern::Bytes(&[
        Byte::Is(0),
        Byte::Is(0),
        Byte::Is(0),
        Byte::Is(16),
        Byte::Is(0x04),
        Byte::Is(0xd2),
        Byte::Is(0x16),
        Byte::Is(0x2e),
    ]),
];

/// Checks that a startup message continues with the name of a parameter.
pub(super) fn first(first: &First<'_>) -> Match {
    let Some((head, rest)) = first.bytes.split_first_chunk::<HEAD_LEN>() else {
        return Match::Maybe;
    };
    if head[4] != 0 {
        return Match::Yes;
    }
    let name = &rest[..rest.len().min(NAME_LEN)];
    if !name.iter().all(|byte| matches!(byte, b'a'..=b'z' | b'_')) {
        return Match::No;
    }
    match name.len() < NAME_LEN {
        true => Match::Maybe,
        false => Match::Yes,
    }
}

/// Length of a client's first messages.
fn startup_len(bytes: &[u8]) -> Result<Option<u32>, Reason> {
    match bytes.first_chunk().map(|head| u32::from_be_bytes(*head)) {
        None => Ok(None),
        Some(len @ 8..=STARTUP_MAX) => Ok(Some(len)),
        Some(_) => Err(Reason::BadLength),
    }
}

/// Length of a server's messages, including their first byte.
fn message_len(bytes: &[u8]) -> Result<Option<u32>, Reason> {
    let len = bytes.get(1..).and_then(<[u8]>::first_chunk);
    match len.map(|len| u32::from_be_bytes(*len)) {
        None => Ok(None),
        Some(len @ 4..MESSAGE_MAX) => Ok(Some(len + 1)),
        Some(_) => Err(Reason::BadLength),
    }
}

/// Text up to its zero byte, whether that is missing, and what follows.
fn text(bytes: &[u8]) -> (&[u8], bool, &[u8]) {
    match bytes.iter().position(|byte| *byte == 0) {
        Some(end) => (&bytes[..end], false, &bytes[end + 1..]),
        None => (bytes, true, &[]),
    }
}

/// State of a conversation.
#[derive(Clone, Copy, Default)]
struct Talk {
    /// The side that speaks first.
    client: Option<Direction>,
    /// Whether a request for encryption waits for its one-byte reply.
    is_asked: bool,
    is_over: bool,
}

impl Talk {
    /// Reads a message of the client. Returns false after the startup message.
    fn client_message(&mut self, bytes: &[u8], out: &mut dyn FieldSink) -> bool {
        let Some((head, mut rest)) = bytes.split_first_chunk::<HEAD_LEN>() else {
            return false;
        };
        match u32::from_be_bytes([head[4], head[5], head[6], head[7]]) {
            TLS_REQUEST | GSS_REQUEST => {
                self.is_asked = true;
                return true;
            }
            CANCEL => {
                self.is_over = true;
                return false;
            }
            version if version >> 16 != VERSION.into() => return false,
            _ => {}
        }
        while !rest.is_empty() {
            let (name, _, behind) = text(rest);
            let (bytes, is_cut, behind) = text(behind);
            let field = match name {
                b"user" => Some(Field::PostgresqlUser),
                b"database" => Some(Field::PostgresqlDatabase),
                _ => None,
            };
            if let Some(field) = field.filter(|_| !bytes.is_empty()) {
                out.field(field, Value::Text { bytes, is_cut });
            }
            rest = behind;
        }
        false
    }

    /// Reads a message of the server. Returns false if it is invalid.
    fn server_message(&mut self, bytes: &[u8], out: &mut dyn FieldSink) -> bool {
        let Some((head, body)) = bytes.split_first_chunk::<5>() else {
            return false;
        };
        match head[0] {
            AUTHENTICATION => authentication(body, out),
            ERROR => {
                error(body, out);
                self.is_over = true;
            }
            PARAMETER => {
                let (name, _, rest) = text(body);
                let (bytes, is_cut, _) = text(rest);
                if name == b"server_version" {
                    out.field(Field::PostgresqlVersion, Value::Text { bytes, is_cut });
                }
            }
            READY => self.is_over = true,
            NOTICE | CANCEL_KEY | NEGOTIATION => {}
            _ => return false,
        }
        true
    }
}

/// Reports the server's first authentication request, or the end of authentication.
fn authentication(body: &[u8], out: &mut dyn FieldSink) {
    let Some((kind, rest)) = body.split_first_chunk::<4>() else {
        return;
    };
    let name: &[u8] = match u32::from_be_bytes(*kind) {
        0 => b"none",
        2 => b"kerberos",
        3 => b"password",
        5 => b"md5",
        7 => b"gss",
        9 => b"sspi",
        // The mechanism that the server prefers.
        10 => text(rest).0,
        _ => return,
    };
    out.field(Field::PostgresqlAuth, Value::text(name));
}

/// Reports the code of an error, one of its fields, which consist of one byte and a text each.
fn error(body: &[u8], out: &mut dyn FieldSink) {
    let mut rest = body;
    while let Some((kind, behind)) = rest.split_first() {
        let (bytes, is_cut, behind) = text(behind);
        if *kind == b'C' {
            out.field(Field::PostgresqlError, Value::Text { bytes, is_cut });
        }
        rest = behind;
    }
}

/// State of a connection.
pub(crate) struct Postgresql {
    talk: Talk,
    sides: Sides<KEPT>,
}

impl Postgresql {
    fn progress(&self) -> Progress {
        match self.talk.is_over || self.sides.are_over() {
            true => Progress::Done,
            false => Progress::Need(1),
        }
    }

    /// Reads the server's reply to a request for encryption; returns whether TLS follows.
    fn answer(&mut self, rest: &mut &[u8]) -> bool {
        let answer = rest.first().copied();
        self.talk.is_asked = false;
        match answer {
            // An error message of an old server.
            Some(ERROR) => return false,
            Some(b'S' | b'N') => {}
            // GSSAPI encryption, or unknown data.
            _ => self.talk.is_over = true,
        }
        *rest = rest.get(1..).unwrap_or(&[]);
        answer == Some(b'S')
    }
}

impl Decode for Postgresql {
    fn new() -> Postgresql {
        Postgresql {
            talk: Talk::default(),
            sides: Sides::NEW,
        }
    }

    fn clear(&mut self) {
        let Postgresql { talk, sides } = self;
        *talk = Talk::default();
        sides.clear();
    }

    fn feed(
        &mut self,
        context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        let from = context.origin.from;
        let is_client = *self.talk.client.get_or_insert(from) == from;
        let mut rest = input;
        if !is_client
            && self.talk.is_asked
            && !rest.is_empty()
            && self.sides.wants(from)
            && self.answer(&mut rest)
        {
            return Progress::ProtocolSwitch(ProtocolSwitch {
                next: Next::Decoder(TLS),
                used: input.len() - rest.len(),
            });
        }
        let length = if is_client { startup_len } else { message_len };
        while !self.talk.is_over {
            let talk = &mut self.talk;
            let read = |bytes: &[u8]| match is_client {
                true => talk.client_message(bytes, out),
                false => talk.server_message(bytes, out),
            };
            if !(self.sides).message(from, &mut rest, length, read) {
                break;
            }
        }
        self.progress()
    }

    fn wants(&self, from: Direction) -> bool {
        self.sides.wants(from)
    }

    fn skips(&self, from: Direction) -> u32 {
        match self.talk.is_asked {
            // The reply is read before any message continues.
            true => 0,
            false => self.sides.skips(from),
        }
    }

    fn skip(&mut self, from: Direction, len: u32) {
        self.sides.skip(from, len);
    }

    fn gap(&mut self, from: Direction, len: u32, _out: &mut dyn FieldSink) -> Progress {
        self.sides.gap(from, len);
        self.progress()
    }
}
