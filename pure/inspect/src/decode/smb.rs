//! SMB (MS-CIFS, MS-SMB, MS-SMB2) over TCP and over the NetBIOS session service (RFC 1002 §4.3):
//! the dialect selected by the server, the NTLM user, and the requested shares.
//!
//! A direction with encrypted or compressed messages (MS-SMB2 §2.2.41, §2.2.42) is not read
//! further.

use super::sides::Sides;
use super::{Context, Decode, Direction, First, Match, Progress, Reason, starts};
use crate::field::{Field, FieldSink, Value};
use crate::identify::{Byte, Pattern};
use crate::text::Text;

mod ntlm;
mod old;
mod v2;

/// Maximum number of bytes kept of a message: enough for the names of an NTLM authentication.
const KEPT: usize = 1024;
/// Length of the head of a session service packet.
const HEAD_LEN: usize = 4;
/// Maximum number of trees reported.
const TREES_MAX: u8 = 4;

/// Packet types of the session service (RFC 1002 §4.3.1).
const MESSAGE: u8 = 0x00;
const SESSION_REQUEST: u8 = 0x81;
const KEEP_ALIVE: u8 = 0x85;

/// Length of the shortest message: the header of the old protocol, and counts of zero.
const LEAST: u8 = 35;

const OLD: &[u8] = b"\xffSMB";
const V2: &[u8] = b"\xfeSMB";
const ENCRYPTED: &[u8] = b"\xfdSMB";

/// A message of at least [`LEAST`] bytes (one pattern per nonzero length byte, so that zeros are
/// rejected before the header), and the session request, whose names are 34 bytes each.
pub(super) const STARTS: &[Pattern] = &[
    Pattern::Bytes(&[
        Byte::Is(MESSAGE),
        Byte::In(1, 0xff),
        Byte::Any,
        Byte::Any,
        Byte::In(0xfd, 0xff),
        Byte::Is(b'S'),
        Byte::Is(b'M'),
        Byte::Is(b'B'),
    ]),
    Pattern::Bytes(&[
        Byte::Is(MESSAGE),
        Byte::Is(0),
        Byte::In(1, 0xff),
        Byte::Any,
        Byte::In(0xfd, 0xff),
        Byte::Is(b'S'),
        Byte::Is(b'M'),
        Byte::Is(b'B'),
    ]),
    Pattern::Bytes(&[
        Byte::Is(MESSAGE),
        Byte::Is(0),
        Byte::Is(0),
        Byte::In(LEAST, 0xff),
        Byte::In(0xfd, 0xff),
        Byte::Is(b'S'),
        Byte::Is(b'M'),
        Byte::Is(b'B'),
    ]),
    Pattern::Bytes(&[
        Byte::Is(SESSION_REQUEST),
        Byte::Is(0),
        Byte::Is(0),
        Byte::Is(68),
        Byte::Is(32),
        Byte::In(b'A', b'P'),
        Byte::In(b'A', b'P'),
        Byte::In(b'A', b'P'),
        Byte::In(b'A', b'P'),
        Byte::In(b'A', b'P'),
        Byte::In(b'A', b'P'),
        Byte::In(b'A', b'P'),
        Byte::In(b'A', b'P'),
    ]),
];

/// Checks that a header has its own length, or a valid command.
pub(super) fn first(first: &First<'_>) -> Match {
    let Some((head, rest)) = first.bytes.split_first_chunk::<HEAD_LEN>() else {
        return Match::Maybe;
    };
    if head[0] != MESSAGE {
        return Match::Yes;
    }
    let len = u32::from_be_bytes(*head);
    let is = |magic| starts(rest, magic) == Match::Yes;
    if is(V2) {
        // The length of the header is always 64 (MS-SMB2 §2.2.1).
        return match len >= 64 {
            true => starts(rest.get(4..).unwrap_or(&[]), &[64, 0]),
            false => Match::No,
        };
    }
    let least = if is(ENCRYPTED) { 52 } else { LEAST.into() };
    match len >= least {
        true => Match::Yes,
        false => Match::No,
    }
}

/// Length of a packet, including its head.
fn length(bytes: &[u8]) -> Result<Option<u32>, Reason> {
    let Some(head) = bytes.first_chunk::<HEAD_LEN>() else {
        return Ok(None);
    };
    match head[0] {
        MESSAGE => Ok(Some(u32::from_be_bytes(*head) + HEAD_LEN as u32)),
        SESSION_REQUEST..=KEEP_ALIVE => {
            let len = u16::from_be_bytes([head[2], head[3]]);
            Ok(Some(u32::from(len) + HEAD_LEN as u32))
        }
        _ => Err(Reason::BadValue),
    }
}

/// A number in a message: little endian, like all of SMB.
fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk::<2>()?;
    Some(u16::from_le_bytes(*bytes))
}

fn long(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*bytes))
}

/// UTF-16 text as UTF-8. `None` if there is none.
fn wide<const N: usize>(bytes: &[u8]) -> Option<Text<N>> {
    let mut text = Text::EMPTY;
    let units = bytes
        .chunks_exact(2)
        .map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    for decoded in char::decode_utf16(units) {
        let letter = decoded.unwrap_or(char::REPLACEMENT_CHARACTER);
        text.push(letter.encode_utf8(&mut [0; 4]).as_bytes());
    }
    (!text.is_empty()).then_some(text)
}

/// State of a conversation.
struct Talk {
    /// Dialects that the client offered, by their index: an old server answers with an index.
    offered: [u8; old::OFFERED_MAX],
    trees: u8,
    /// Whether the client has requested a tree other than IPC$.
    is_over: bool,
}

impl Talk {
    const NEW: Talk = Talk {
        offered: [0; old::OFFERED_MAX],
        trees: 0,
        is_over: false,
    };

    fn tree<const N: usize>(&mut self, path: &Text<N>, out: &mut dyn FieldSink) {
        if self.trees < TREES_MAX {
            self.trees += 1;
            out.field(Field::SmbTree, path.value());
        }
        let share = path.bytes().rsplit(|byte| *byte == b'\\').next();
        self.is_over |= !share.unwrap_or(&[]).eq_ignore_ascii_case(b"IPC$");
    }

    /// Reads the kept part of a message. Returns false if nothing after it can be read.
    fn message(&mut self, bytes: &[u8], out: &mut dyn FieldSink) -> bool {
        if bytes.starts_with(V2) {
            self.v2(bytes, out);
        } else if bytes.starts_with(OLD) {
            self.old(bytes, out);
        } else {
            return false;
        }
        true
    }
}

/// State of a connection.
pub(crate) struct Smb {
    talk: Talk,
    sides: Sides<KEPT>,
}

impl Smb {
    fn progress(&self) -> Progress {
        match self.talk.is_over || self.sides.are_over() {
            true => Progress::Done,
            false => Progress::Need(1),
        }
    }
}

impl Decode for Smb {
    fn new() -> Smb {
        Smb {
            talk: Talk::NEW,
            sides: Sides::NEW,
        }
    }

    fn clear(&mut self) {
        let Smb { talk, sides } = self;
        *talk = Talk::NEW;
        sides.clear();
    }

    fn feed(
        &mut self,
        context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        let mut rest = input;
        while !self.talk.is_over {
            let talk = &mut self.talk;
            let read = |bytes: &[u8]| {
                let (kind, message) = match bytes.split_first_chunk::<HEAD_LEN>() {
                    Some((head, message)) => (head[0], message),
                    None => (KEEP_ALIVE, &[][..]),
                };
                kind != MESSAGE || talk.message(message, out)
            };
            if !(self.sides).message(context.origin.from, &mut rest, length, read) {
                break;
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
