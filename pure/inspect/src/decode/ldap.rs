//! LDAP (RFC 4511) over TCP, and connectionless LDAP over UDP (MS-ADTS §3.1.1.3.1.13): the first
//! bind, the base of the first search, and the first result. After StartTLS (RFC 4511 §4.14), TLS
//! follows.

use super::sides::Sides;
use super::{Context, Decode, Direction, First, Match, Next, Progress, ProtocolSwitch, Reason};
use crate::field::{Field, FieldSink, Protocol, Value};
use crate::identify::{Byte, Pattern, Row};
use crate::ports::Transport;

/// Maximum number of bytes kept of a message.
const KEPT: usize = 256;
/// Maximum message length: servers accept no more by default.
const MESSAGE_MAX: u32 = 1 << 24;

// Tags of BER (X.690 §8.1.2), and of the operations that are read (RFC 4511 §4.2 to §4.14).
const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
const ENUMERATED: u8 = 0x0a;
const SEQUENCE: u8 = 0x30;
const BIND: u8 = 0x60;
const BIND_RESPONSE: u8 = 0x61;
const UNBIND: u8 = 0x42;
const SEARCH: u8 = 0x63;
const ENTRY: u8 = 0x64;
const SEARCH_DONE: u8 = 0x65;
const REFERENCE: u8 = 0x73;
const EXTENDED: u8 = 0x77;
const EXTENDED_RESPONSE: u8 = 0x78;

const SIMPLE: u8 = 0x80;
const SASL: u8 = 0xa3;
const REQUEST_NAME: u8 = 0x80;

const SUCCESS: u64 = 0;
const SASL_IN_PROGRESS: u64 = 14;
const START_TLS: &[u8] = b"1.3.6.1.4.1.1466.20037";

/// Both sides switch to TLS once the server has accepted StartTLS.
const TLS: Row = Row::of("tls");

/// A sequence with a short length, or one of one to four bytes.
pub(super) const STARTS: &[Pattern] = &[
    Pattern::Bytes(&[Byte::Is(SEQUENCE), Byte::In(0x05, 0x7f), Byte::Is(INTEGER)]),
    Pattern::Bytes(&[
        Byte::Is(SEQUENCE),
        Byte::Is(0x81),
        Byte::Any,
        Byte::Is(INTEGER),
    ]),
    Pattern::Bytes(&[
        Byte::Is(SEQUENCE),
        Byte::Is(0x82),
        Byte::Any,
        Byte::Any,
        Byte::Is(INTEGER),
    ]),
    Pattern::Bytes(&[
        Byte::Is(SEQUENCE),
        Byte::Is(0x84),
        Byte::Is(0),
        Byte::Any,
        Byte::Any,
        Byte::Any,
        Byte::Is(INTEGER),
    ]),
];

/// Tag and length of the element at the start, and the length of its head; `None` while there are
/// too few bytes.
fn head(bytes: &[u8]) -> Result<Option<(u8, u32, usize)>, Reason> {
    let (Some(tag), Some(first)) = (bytes.first(), bytes.get(1)) else {
        return Ok(None);
    };
    if *first < 0x80 {
        return Ok(Some((*tag, u32::from(*first), 2)));
    }
    let count = usize::from(*first & 0x7f);
    // Indefinite lengths are not allowed (§5.1).
    if !(1..=4).contains(&count) {
        return Err(Reason::BadLength);
    }
    let Some(digits) = bytes.get(2..2 + count) else {
        return Ok(None);
    };
    let len = digits
        .iter()
        .fold(0, |sum, byte| sum << 8 | u32::from(*byte));
    Ok(Some((*tag, len, 2 + count)))
}

/// An element: its tag, its content, whether the content is truncated, and what follows.
struct Element<'a> {
    tag: u8,
    body: &'a [u8],
    is_cut: bool,
    rest: &'a [u8],
}

fn element(bytes: &[u8]) -> Option<Element<'_>> {
    let (tag, len, at) = head(bytes).ok()??;
    let rest = bytes.get(at..)?;
    let (body, behind) = rest.split_at(rest.len().min(len as usize));
    Some(Element {
        tag,
        body,
        is_cut: body.len() < len as usize,
        rest: behind,
    })
}

/// An element with this tag.
fn tagged(bytes: &[u8], tag: u8) -> Option<Element<'_>> {
    element(bytes).filter(|element| element.tag == tag)
}

fn integer(element: &Element<'_>) -> Option<u64> {
    let len = element.body.len();
    let is_number = !element.is_cut && (1..=4).contains(&len);
    let digits = element.body.iter();
    is_number.then(|| digits.fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

/// Whether bytes begin a message: a number, an operation, and its first element.
fn begins(bytes: &[u8]) -> Match {
    let part = |at: usize| match bytes.get(at..).map(head) {
        Some(Ok(Some(found))) => Ok(found),
        Some(Ok(None)) | None => Err(Match::Maybe),
        Some(Err(_)) => Err(Match::No),
    };
    let look = || -> Result<Match, Match> {
        let (tag, len, mut at) = part(0)?;
        let (id, id_len, used) = part(at)?;
        if tag != SEQUENCE || id != INTEGER || !(1..=4).contains(&id_len) || len > MESSAGE_MAX {
            return Err(Match::No);
        }
        at += used + id_len as usize;
        let (operation, inner, used) = part(at)?;
        at += used;
        if operation == UNBIND {
            return Ok(if inner == 0 { Match::Yes } else { Match::No });
        }
        // An element is no longer than the one that contains it.
        if len < inner {
            return Err(Match::No);
        }
        let (tag, len, used) = part(at)?;
        Ok(match (operation, tag, len) {
            (BIND, INTEGER, 1) => match (bytes.get(at + used), bytes.get(at + used + 1)) {
                (Some(2 | 3), Some(&OCTET_STRING)) => Match::Yes,
                (Some(2 | 3) | None, None) => Match::Maybe,
                _ => Match::No,
            },
            (BIND_RESPONSE | SEARCH_DONE | EXTENDED_RESPONSE, ENUMERATED, 1)
            | (SEARCH | ENTRY | REFERENCE, OCTET_STRING, _)
            | (EXTENDED, REQUEST_NAME, 1..=64)
                if len < inner =>
            {
                Match::Yes
            }
            _ => Match::No,
        })
    };
    look().unwrap_or_else(|answer| answer)
}

/// Checks that a datagram consists of one or more complete messages.
pub(super) fn first(first: &First<'_>) -> Match {
    let found = begins(first.bytes);
    if first.transport == Transport::Udp && found == Match::Yes {
        return match element(first.bytes).is_some_and(|message| !message.is_cut) {
            true => Match::Yes,
            false => Match::No,
        };
    }
    found
}

/// State of a conversation.
#[derive(Clone, Copy, Default)]
struct Talk {
    has_base: bool,
    /// Message id of a StartTLS request.
    start_tls: Option<u64>,
    is_tls: bool,
    is_over: bool,
}

impl Talk {
    /// Reads a message, as much of it as is present.
    fn message(&mut self, bytes: &[u8], out: &mut dyn FieldSink) -> Option<()> {
        let message = tagged(bytes, SEQUENCE)?;
        let id = tagged(message.body, INTEGER)?;
        let operation = element(id.rest)?;
        match operation.tag {
            BIND => bind(&operation, out)?,
            BIND_RESPONSE => drop(result(&operation, out)?),
            SEARCH => {
                let base = tagged(operation.body, OCTET_STRING)?;
                self.has_base = true;
                let (bytes, is_cut) = (base.body, base.is_cut);
                if !bytes.is_empty() {
                    out.field(Field::LdapBase, Value::Text { bytes, is_cut });
                }
            }
            SEARCH_DONE => {
                result(&operation, out)?;
                // This may be the result of another search, if its request was not seen.
                self.is_over = self.has_base;
            }
            EXTENDED => {
                let name = tagged(operation.body, REQUEST_NAME)?;
                if name.body == START_TLS {
                    self.start_tls = integer(&id);
                    out.field(Field::LdapStartTls, Value::Number(1));
                }
            }
            EXTENDED_RESPONSE => {
                let code = result(&operation, out)?;
                let is_asked = self.start_tls.is_some() && self.start_tls == integer(&id);
                self.is_tls = is_asked && code == SUCCESS;
                self.start_tls = self.start_tls.filter(|_| !is_asked);
            }
            UNBIND => self.is_over = true,
            _ => {}
        }
        Some(())
    }
}

/// Reports the bind name, and the SASL mechanism, or `simple`.
fn bind(operation: &Element<'_>, out: &mut dyn FieldSink) -> Option<()> {
    let version = tagged(operation.body, INTEGER)?;
    let name = tagged(version.rest, OCTET_STRING)?;
    let (bytes, is_cut) = (name.body, name.is_cut);
    if !bytes.is_empty() {
        out.field(Field::LdapBindDn, Value::Text { bytes, is_cut });
    }
    let how = element(name.rest)?;
    let mechanism = match how.tag {
        SIMPLE => Value::text(b"simple"),
        SASL => {
            let mechanism = tagged(how.body, OCTET_STRING)?;
            let (bytes, is_cut) = (mechanism.body, mechanism.is_cut);
            Value::Text { bytes, is_cut }
        }
        // MS-ADTS §5.1.1.1.3.
        0x89..=0x8b => Value::text(b"sicily"),
        _ => return None,
    };
    out.field(Field::LdapMechanism, mechanism);
    Some(())
}

/// Reports the code of a result (§4.1.9), unless it requests another SASL round.
fn result(operation: &Element<'_>, out: &mut dyn FieldSink) -> Option<u64> {
    let code = integer(&tagged(operation.body, ENUMERATED)?)?;
    if code != SASL_IN_PROGRESS {
        out.field(Field::LdapResult, Value::Number(code));
    }
    Some(code)
}

/// State of a connection.
pub(crate) struct Ldap {
    talk: Talk,
    sides: Sides<KEPT>,
}

/// Length of a message, including its head.
fn length(bytes: &[u8]) -> Result<Option<u32>, Reason> {
    if bytes.first().is_some_and(|tag| *tag != SEQUENCE) {
        // Most likely a negotiated security layer (RFC 4513 §5.2.1.5).
        return Err(Reason::BadValue);
    }
    match head(bytes)? {
        Some((_, len, _)) if len > MESSAGE_MAX => Err(Reason::TooLong),
        Some((_, len, at)) => Ok(Some(len + at as u32)),
        None => Ok(None),
    }
}

impl Ldap {
    fn progress(&self) -> Progress {
        match self.talk.is_over || self.sides.are_over() {
            true => Progress::Done,
            false => Progress::Need(1),
        }
    }
}

impl Decode for Ldap {
    fn new() -> Ldap {
        Ldap {
            talk: Talk::default(),
            sides: Sides::NEW,
        }
    }

    fn clear(&mut self) {
        let Ldap { talk, sides } = self;
        *talk = Talk::default();
        sides.clear();
    }

    fn feed(
        &mut self,
        context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        out.named(Protocol::Ldap);
        let mut rest = input;
        while !self.talk.is_over {
            let talk = &mut self.talk;
            // An invalid message does not end decoding: its length is known.
            let read = |bytes: &[u8]| {
                talk.message(bytes, out);
                true
            };
            if !(self.sides).message(context.origin.from, &mut rest, length, read) {
                break;
            }
            if self.talk.is_tls {
                return Progress::ProtocolSwitch(ProtocolSwitch {
                    next: Next::Decoder(TLS),
                    used: input.len() - rest.len(),
                });
            }
        }
        self.progress()
    }

    fn wants(&self, from: Direction) -> bool {
        self.sides.wants(from)
    }

    fn skips(&self, from: Direction) -> u32 {
        self.sides.skips(from)
    }

    fn skip(&mut self, from: Direction, len: u32) {
        self.sides.skip(from, len);
    }

    fn gap(&mut self, from: Direction, len: u32, _out: &mut dyn FieldSink) -> Progress {
        self.sides.gap(from, len);
        self.progress()
    }
}

/// Messages in datagrams.
#[derive(Default)]
pub(super) struct Datagrams {
    talk: Talk,
}

impl Decode for Datagrams {
    fn new() -> Datagrams {
        Datagrams::default()
    }

    fn feed(
        &mut self,
        _context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        out.named(Protocol::Cldap);
        let mut rest = input;
        // An entry, and the result after it.
        for _ in 0..4 {
            let Some(message) = element(rest) else {
                break;
            };
            self.talk.message(rest, out);
            rest = message.rest;
        }
        match self.talk.is_over {
            true => Progress::Done,
            false => Progress::Need(1),
        }
    }
}
