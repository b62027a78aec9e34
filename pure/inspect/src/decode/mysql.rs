//! MySQL and MariaDB (MySQL internals, "Connection Phase"): the server's greeting, the client's
//! login, and its result. TLS follows if the client requests it.

use super::sides::Sides;
use super::{
    Context, Decode, Direction, FIRST_MAX, First, Match, Next, Progress, ProtocolSwitch, Reason,
};
use crate::field::{Field, FieldSink, Value};
use crate::identify::{Byte, Pattern, Row};

/// Maximum number of bytes kept of a packet: a greeting, or user, secret and database of a login.
const KEPT: usize = 512 + HEAD_LEN;
/// Maximum packet length including its head; those of the connection phase are shorter.
const PACKET_MAX: u32 = 1 << 16;
/// Length of a head: three bytes of length, lowest first; sequence number.
const HEAD_LEN: usize = 4;

const PROTOCOL: u8 = 10;
/// Bytes before the version, and from the end of the version to the end of the first capabilities.
const GREETING_MIN: usize = 1 + 2 + FIXED_LEN;
const FIXED_LEN: usize = THREAD_LEN + SALT_LEN + 1 + 2;
const THREAD_LEN: usize = 4;
const SALT_LEN: usize = 8;

// First bytes of a server's packets.
const OK: u8 = 0x00;
const MORE: u8 = 0x01;
const SWITCH: u8 = 0xfe;
const ERROR: u8 = 0xff;

// Capabilities.
const WITH_DATABASE: u32 = 1 << 3;
const PROTOCOL_41: u32 = 1 << 9;
const WITH_TLS: u32 = 1 << 11;
const SECURE: u32 = 1 << 15;
const PLUGIN: u32 = 1 << 19;
const LONG_SECRET: u32 = 1 << 21;

/// Bytes of a login before the user, and length of a request for TLS, which ends there; then the
/// same for old clients.
const LOGIN_LEN: usize = 32;
const OLD_LOGIN_LEN: usize = 5;

/// Errors instead of a greeting: too many connections, host is blocked, not privileged.
const REFUSALS: [u16; 3] = [1040, 1129, 1130];
/// Number of bytes of such an error that must be text.
const REFUSAL_LEN: usize = FIRST_MAX - HEAD_LEN - 3;

/// Both sides switch to TLS after a request for it.
const TLS: Row = Row::of("tls");

/// A greeting of protocol 10 whose version begins with a digit (one pattern per nonzero length
/// byte, so that zeros are rejected early), and an error instead of it. Both have sequence number
/// 0.
pub(super) const STARTS: &[Pattern] = &[
    Pattern::Bytes(&[
        Byte::In(GREETING_MIN as u8, 0xff),
        Byte::Is(0),
        Byte::Is(0),
        Byte::Is(0),
        Byte::Is(PROTOCOL),
        Byte::In(b'0', b'9'),
    ]),
    Pattern::Bytes(&[
        Byte::Any,
        Byte::Is(1),
        Byte::Is(0),
        Byte::Is(0),
        Byte::Is(PROTOCOL),
        Byte::In(b'0', b'9'),
    ]),
    Pattern::Bytes(&[
        Byte::In(REFUSAL_LEN as u8, 0xff),
        Byte::Is(0),
        Byte::Is(0),
        Byte::Is(0),
        Byte::Is(ERROR),
        Byte::Any,
        Byte::Is(4),
        Byte::In(b' ', b'~'),
    ]),
];

fn is_text(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| (b' '..=b'~').contains(byte))
}

/// Checks that the version is text, and that its length matches the packet's.
pub(super) fn first(first: &First<'_>) -> Match {
    let Some((head, body)) = first.bytes.split_first_chunk::<HEAD_LEN>() else {
        return Match::Maybe;
    };
    let len = usize::from(u16::from_le_bytes([head[0], head[1]]));
    let Some((kind, rest)) = body.split_first() else {
        return Match::Maybe;
    };
    if *kind == ERROR {
        return refuses(len, rest);
    }
    let end = rest.iter().position(|byte| *byte == 0);
    let version = &rest[..end.unwrap_or(rest.len())];
    if !is_text(version) || GREETING_MIN + version.len() > len + 1 {
        return Match::No;
    }
    let is_full = first.bytes.len() == FIRST_MAX;
    match end.is_some() || is_full {
        true if version.contains(&b'.') => Match::Yes,
        true => Match::No,
        false => Match::Maybe,
    }
}

fn refuses(len: usize, rest: &[u8]) -> Match {
    let Some((code, text)) = rest.split_first_chunk::<2>() else {
        return Match::Maybe;
    };
    let is_known = REFUSALS.contains(&u16::from_le_bytes(*code));
    if !is_known || len < 3 + REFUSAL_LEN || !is_text(text) {
        return Match::No;
    }
    match text.len() < REFUSAL_LEN {
        true => Match::Maybe,
        false => Match::Yes,
    }
}

/// Length of a packet, including its head.
fn length(bytes: &[u8]) -> Result<Option<u32>, Reason> {
    let Some(head) = bytes.first_chunk::<HEAD_LEN>() else {
        return Ok(None);
    };
    let len = u32::from_le_bytes([head[0], head[1], head[2], 0]) + HEAD_LEN as u32;
    match len <= PACKET_MAX {
        true => Ok(Some(len)),
        false => Err(Reason::TooLong),
    }
}

/// Text up to its zero byte, whether that is missing, and what follows.
fn text(bytes: &[u8]) -> (Value<'_>, &[u8]) {
    let end = bytes.iter().position(|byte| *byte == 0);
    let (bytes, rest) = match end {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, &[][..]),
    };
    let is_cut = end.is_none();
    (Value::Text { bytes, is_cut }, rest)
}

/// Reports a nonempty text, and returns what follows.
fn report<'a>(field: Field, bytes: &'a [u8], out: &mut dyn FieldSink) -> &'a [u8] {
    let (value, rest) = text(bytes);
    if bytes.first().is_some_and(|byte| *byte != 0) {
        out.field(field, value);
    }
    rest
}

/// The bytes after the first `len`, or after all there are.
fn after(bytes: &[u8], len: usize) -> &[u8] {
    bytes.get(len..).unwrap_or(&[])
}

fn greeting(bytes: &[u8], out: &mut dyn FieldSink) -> Option<()> {
    out.field(Field::MysqlProtocol, Value::Number(PROTOCOL.into()));
    let rest = report(Field::MysqlVersion, bytes, out);
    let low = rest.get(FIXED_LEN - 2..FIXED_LEN)?;
    let mut capabilities = u32::from(u16::from_le_bytes([low[0], low[1]]));
    // Character set, status, the rest of the capabilities, the length of the salt, ten bytes.
    let rest = after(rest, FIXED_LEN);
    if let Some(high) = rest.get(3..5) {
        capabilities |= u32::from(u16::from_le_bytes([high[0], high[1]])) << 16;
    }
    let number = Value::Number(capabilities.into());
    out.field(Field::MysqlCapabilities, number);
    if capabilities & PLUGIN != 0 {
        let salt_len = usize::from(*rest.get(5)?).saturating_sub(SALT_LEN).max(13);
        report(Field::MysqlAuth, rest.get(16 + salt_len..)?, out);
    }
    Some(())
}

/// Effect of a client's packet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Login {
    Done,
    Tls,
    Unknown,
}

fn login(bytes: &[u8], out: &mut dyn FieldSink) -> Login {
    let Some(capabilities) = bytes.first_chunk::<2>() else {
        return Login::Unknown;
    };
    let mut capabilities = u32::from(u16::from_le_bytes(*capabilities));
    let is_old = capabilities & PROTOCOL_41 == 0;
    let fixed_len = if is_old { OLD_LOGIN_LEN } else { LOGIN_LEN };
    let Some((fixed, rest)) = bytes.split_at_checked(fixed_len) else {
        return Login::Unknown;
    };
    if rest.is_empty() {
        return match capabilities & WITH_TLS {
            0 => Login::Unknown,
            _ => Login::Tls,
        };
    }
    if let (false, Some(all)) = (is_old, fixed.first_chunk::<4>()) {
        capabilities = u32::from_le_bytes(*all);
    }
    let rest = report(Field::MysqlUser, rest, out);
    if capabilities & WITH_DATABASE == 0 {
        return Login::Done;
    }
    // The secret, which is not reported: with a one-byte length, a longer one, or up to a zero
    // byte.
    let rest = match (capabilities & LONG_SECRET != 0, rest) {
        _ if is_old || capabilities & (SECURE | LONG_SECRET) == 0 => text(rest).1,
        (true, [0xfc, low, high, rest @ ..]) => {
            after(rest, u16::from_le_bytes([*low, *high]).into())
        }
        (true, [0xfb..=0xff, ..]) | (_, []) => &[],
        (_, [len, rest @ ..]) => after(rest, (*len).into()),
    };
    report(Field::MysqlDatabase, rest, out);
    Login::Done
}

/// State of a conversation.
#[derive(Clone, Copy, Default)]
struct Talk {
    /// The side that sends the greeting.
    server: Option<Direction>,
    is_greeted: bool,
    has_login: bool,
    is_tls: bool,
    is_over: bool,
}

impl Talk {
    /// Reads the kept part of a packet. Returns false if the rest of its side is not read.
    fn packet(&mut self, from: Direction, bytes: &[u8], out: &mut dyn FieldSink) -> bool {
        let Some((head, body)) = bytes.split_first_chunk::<HEAD_LEN>() else {
            return false;
        };
        if self.server == Some(from) {
            return self.server_packet(body, out).is_some();
        }
        // The login is the packet after the greeting.
        if head[3] == 1 {
            match login(body, out) {
                Login::Done => self.has_login = true,
                Login::Tls => self.is_tls = true,
                Login::Unknown => {}
            }
        }
        false
    }

    fn server_packet(&mut self, body: &[u8], out: &mut dyn FieldSink) -> Option<()> {
        let (kind, rest) = body.split_first()?;
        if !self.is_greeted {
            self.is_greeted = true;
            if *kind == PROTOCOL {
                return greeting(rest, out);
            }
            self.has_login = *kind == ERROR;
        }
        if !self.has_login {
            return None;
        }
        let code = match *kind {
            OK => 0,
            ERROR => u16::from_le_bytes(*rest.first_chunk()?),
            MORE | SWITCH => return Some(()),
            _ => return None,
        };
        out.field(Field::MysqlResult, Value::Number(code.into()));
        self.is_over = true;
        Some(())
    }
}

/// State of a connection.
pub(crate) struct Mysql {
    talk: Talk,
    sides: Sides<KEPT>,
}

impl Mysql {
    fn progress(&self) -> Progress {
        match self.talk.is_over || self.sides.are_over() {
            true => Progress::Done,
            false => Progress::Need(1),
        }
    }
}

impl Decode for Mysql {
    fn new() -> Mysql {
        Mysql {
            talk: Talk::default(),
            sides: Sides::NEW,
        }
    }

    fn clear(&mut self) {
        let Mysql { talk, sides } = self;
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
        // The data that identified the flow are a greeting, and are read first.
        self.talk.server.get_or_insert(from);
        let mut rest = input;
        while !self.talk.is_over {
            let talk = &mut self.talk;
            let read = |bytes: &[u8]| talk.packet(from, bytes, out);
            if !(self.sides).message(from, &mut rest, length, read) {
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
