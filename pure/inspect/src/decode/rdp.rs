//! RDP (MS-RDPBCGR §1.3.1.1): the connecting user and the requested security protocols, in the
//! X.224 connection request and confirm (§2.2.1.1, §2.2.1.2). TLS follows if it was negotiated.

use super::frame::Frame;
use super::{
    Context, Decode, Direction, First, Match, Next, Progress, ProtocolSwitch, Reason, starts,
};
use crate::field::{Field, FieldSink, Value};
use crate::identify::{Byte, Pattern, Row};

const PORT: u16 = 3389;
/// Maximum number of bytes kept of a side; requests are shorter.
const KEPT: usize = 256;
const PACKET_MAX: u16 = 512;

/// Length of TPKT (RFC 1006 §6), and of the fixed part of an X.224 connection request.
const TPKT_LEN: usize = 4;
const FIXED_LEN: usize = 11;
const REQUEST: u8 = 0xe0;
const CONFIRM: u8 = 0xd0;

const COOKIE: &[u8] = b"Cookie: msts";
const USER: &[u8] = b"Cookie: mstshash=";

/// Negotiation request, response and failure: type, flags, length of eight, a number.
const NEGOTIATION_LEN: usize = 8;
const ASKS: u8 = 1;
const AGREES: u8 = 2;
const FAILS: u8 = 3;

/// Both sides switch to TLS unless the old security was negotiated (§5.4.2, §5.4.5).
const TLS: Row = Row::of("tls");

pub(super) const STARTS: &[Pattern] = &[
    Pattern::Bytes(&[
        Byte::Is(3),
        Byte::Is(0),
        Byte::In(0, 1),
        Byte::Any,
        Byte::Any,
        Byte::Is(REQUEST),
        Byte::Is(0),
        Byte::Is(0),
    ]),
    Pattern::Bytes(&[
        Byte::Is(3),
        Byte::Is(0),
        Byte::Is(0),
        Byte::Is(19),
        Byte::Is(14),
        Byte::Is(CONFIRM),
    ]),
];

/// Type and number of a negotiation.
fn negotiation(bytes: &[u8]) -> Option<(u8, u32)> {
    let [kind, _flags, 8, 0, number @ ..] = bytes.first_chunk::<NEGOTIATION_LEN>()? else {
        return None;
    };
    Some((*kind, u32::from_le_bytes(*number)))
}

/// Checks for RDP's cookie, negotiation or port: other protocols begin with X.224, too.
pub(super) fn first(first: &First<'_>) -> Match {
    let Some((head, rest)) = first.bytes.split_first_chunk::<FIXED_LEN>() else {
        return Match::Maybe;
    };
    let len = usize::from(u16::from_be_bytes([head[2], head[3]]));
    // The length in X.224 excludes its own byte.
    if len < FIXED_LEN || len > PACKET_MAX.into() || usize::from(head[4]) + 5 != len {
        return Match::No;
    }
    if head[5] == REQUEST && len == FIXED_LEN {
        return match first.has_port(PORT) {
            true => Match::Yes,
            false => Match::No,
        };
    }
    let cookie = match head[5] {
        REQUEST => starts(rest, COOKIE),
        _ => Match::No,
    };
    if cookie != Match::No || len != FIXED_LEN + NEGOTIATION_LEN {
        return cookie;
    }
    match (rest.get(..NEGOTIATION_LEN).map(negotiation), head[5]) {
        (None, _) => Match::Maybe,
        (Some(Some((ASKS, _))), REQUEST) => Match::Yes,
        (Some(Some((AGREES | FAILS, _))), CONFIRM) => Match::Yes,
        _ => Match::No,
    }
}

/// Length of a packet, by TPKT.
fn length(bytes: &[u8]) -> Result<Option<u32>, Reason> {
    let Some(head) = bytes.first_chunk::<TPKT_LEN>() else {
        return Ok(None);
    };
    let len = u16::from_be_bytes([head[2], head[3]]);
    match (head[0], len) {
        (3, 7..=PACKET_MAX) => Ok(Some(len.into())),
        (3, _) => Err(Reason::BadLength),
        _ => Err(Reason::BadValue),
    }
}

fn request(bytes: &[u8], out: &mut dyn FieldSink) {
    let mut rest = bytes;
    if bytes.starts_with(COOKIE) {
        let end = bytes.windows(2).position(|pair| pair == b"\r\n");
        let line = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or(&[]);
        let is_cut = end.is_none();
        let (field, bytes) = match line.strip_prefix(USER) {
            Some(user) => (Field::RdpUser, user),
            None => (
                Field::RdpToken,
                line.strip_prefix(b"Cookie: ").unwrap_or(line),
            ),
        };
        out.field(field, Value::Text { bytes, is_cut });
        rest = rest.get(line.len() + 2..).unwrap_or(&[]);
    }
    if let Some((ASKS, protocols)) = negotiation(rest) {
        out.field(Field::RdpRequested, Value::Number(protocols.into()));
    }
}

/// State of a connection.
pub(crate) struct Rdp {
    sides: [Frame<KEPT>; 2],
    is_over: [bool; 2],
}

impl Rdp {
    /// Reads a packet; returns whether TLS follows.
    fn packet(&mut self, from: Direction, out: &mut dyn FieldSink) -> Result<bool, Reason> {
        let bytes = self.sides[from as usize].bytes();
        let (fixed, rest) = bytes
            .split_first_chunk::<FIXED_LEN>()
            .ok_or(Reason::BadLength)?;
        self.is_over[from as usize] = true;
        match fixed[5] {
            REQUEST => {
                request(rest, out);
                Ok(false)
            }
            CONFIRM => {
                let (field, number) = match negotiation(rest) {
                    Some((AGREES, number)) => (Field::RdpSelected, number),
                    Some((FAILS, code)) => (Field::RdpFailure, code),
                    // An old server, which supports only the old security.
                    _ => return Ok(false),
                };
                out.field(field, Value::Number(number.into()));
                Ok(field == Field::RdpSelected && number != 0)
            }
            _ => Err(Reason::BadValue),
        }
    }

    fn progress(&self) -> Progress {
        match self.is_over {
            [true, true] => Progress::Done,
            _ => Progress::Need(1),
        }
    }
}

impl Decode for Rdp {
    fn new() -> Rdp {
        Rdp {
            sides: [Frame::EMPTY, Frame::EMPTY],
            is_over: [false; 2],
        }
    }

    fn clear(&mut self) {
        let Rdp { sides, is_over } = self;
        sides.iter_mut().for_each(Frame::clear);
        *is_over = [false; 2];
    }

    fn feed(
        &mut self,
        context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        let from = context.origin.from;
        let mut rest = input;
        if self.is_over[from as usize] {
            return self.progress();
        }
        match self.sides[from as usize].take(&mut rest, length) {
            Ok(true) => {}
            Ok(false) => return self.progress(),
            Err(reason) => return Progress::Reject(reason),
        }
        match self.packet(from, out) {
            Ok(true) => Progress::ProtocolSwitch(ProtocolSwitch {
                next: Next::Decoder(TLS),
                used: input.len() - rest.len(),
            }),
            Ok(false) => self.progress(),
            Err(reason) => Progress::Reject(reason),
        }
    }
}
