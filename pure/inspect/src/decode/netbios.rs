//! NetBIOS over UDP (RFC 1002): the name service (§4.2), with the first name that is queried,
//! registered or answered, and the datagram service (§4.4), with the names of both ends.
//!
//! Names are reported as `nbtstat` prints them: without padding, the last byte in hexadecimal
//! (`WORKGROUP<1d>`).

use super::{Context, Decode, First, Match, Progress, Reason};
use crate::field::{Field, FieldSink, Protocol, Value};
use crate::identify::Pattern;
use crate::text::{Text, hex};

const NAME_PORT: u16 = 137;
const NAME_HEADER_LEN: usize = 12;
const DATAGRAM_HEADER_LEN: usize = 14;

/// Flags of a response (§4.2.1.1), and the reserved flags.
const RESPONSE: u16 = 0x8000;
const RESERVED: u16 = 0x0060;

/// Maximum flags of a datagram: the upper three bits are reserved. Windows uses a fourth.
const FLAGS_MAX: u8 = 0x1f;

/// Maximum number of labels of a scope after a name.
const SCOPE_MAX: usize = 8;

/// The port and the names decide. A pattern for the name service would begin with four arbitrary
/// bytes, and would keep the automaton running for six bytes of every datagram.
pub(super) const STARTS: &[Pattern] = &[Pattern::ANY];

/// A name has 15 characters and a suffix byte for its type.
type Name = [u8; 16];

/// Reads a name at the start (RFC 1001 §14): a label of 32 letters, each of which encodes half a
/// byte, then the labels of its scope.
fn name(bytes: &[u8]) -> Option<(Name, &[u8])> {
    let (label, mut rest) = bytes.strip_prefix(&[32])?.split_first_chunk::<32>()?;
    if !label.iter().all(|letter| (b'A'..=b'P').contains(letter)) {
        return None;
    }
    let mut name = [0; 16];
    for (byte, pair) in name.iter_mut().zip(label.chunks_exact(2)) {
        *byte = (pair[0] - b'A') << 4 | (pair[1] - b'A');
    }
    for _ in 0..=SCOPE_MAX {
        let (len, behind) = rest.split_first()?;
        match len {
            0 => return Some((name, behind)),
            1..=63 => rest = behind.get(usize::from(*len)..)?,
            _ => return None,
        }
    }
    None
}

fn report(name: &Name, field: Field, out: &mut dyn FieldSink) {
    let (last, text) = name.split_last().unwrap_or((&0, &[]));
    let end = text.iter().rposition(|byte| !matches!(byte, b' ' | 0));
    let mut shown = Text::<20>::EMPTY;
    shown.push(text.get(..end.map_or(0, |end| end + 1)).unwrap_or(&[]));
    shown.push(b"<");
    shown.push(&hex(*last));
    shown.push(b">");
    out.field(field, shown.value());
}

/// A message of the name service.
struct Message {
    flags: u16,
    name: Name,
}

fn message(bytes: &[u8]) -> Option<Message> {
    let (head, rest) = bytes.split_first_chunk::<NAME_HEADER_LEN>()?;
    let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let flags = word(2);
    // Query, registration, release, wait, refresh (two numbers), multi-homed registration.
    let is_known = matches!(flags >> 11 & 15, 0 | 5..=9 | 15);
    let counts = [word(4), word(6), word(8), word(10)];
    let is_question = flags & RESPONSE == 0;
    let has_counts = counts.iter().all(|count| *count <= 2) && (!is_question || counts[0] == 1);
    if !is_known || flags & RESERVED != 0 || !has_counts {
        return None;
    }
    let (name, rest) = name(rest)?;
    // NB, NBSTAT, and for negative answers NULL; the Internet class.
    let is_type = matches!(rest, [0, 0x0a | 0x20 | 0x21, 0, 1, ..]);
    is_type.then_some(Message { flags, name })
}

/// Source and destination of a datagram, which only the first fragment contains.
fn ends(bytes: &[u8]) -> Option<[Name; 2]> {
    let (head, rest) = bytes.split_first_chunk::<DATAGRAM_HEADER_LEN>()?;
    let has_offset = head[12..] != [0, 0];
    if !(0x10..=0x12).contains(&head[0]) || head[1] > FLAGS_MAX || has_offset {
        return None;
    }
    let (source, rest) = name(rest)?;
    let (destination, _) = name(rest)?;
    Some([source, destination])
}

pub(super) fn first(first: &First<'_>) -> Match {
    // Called for every datagram that no earlier row recognizes: the cheapest tests come first.
    let is_known = match first.bytes {
        [0x10..=0x12, 0..=FLAGS_MAX, ..] if ends(first.bytes).is_some() => true,
        _ => first.has_port(NAME_PORT) && message(first.bytes).is_some(),
    };
    match is_known {
        true => Match::Yes,
        false => Match::No,
    }
}

/// No state is kept between messages.
pub(super) struct Netbios;

impl Decode for Netbios {
    fn new() -> Netbios {
        Netbios
    }

    fn feed(
        &mut self,
        context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        if let Some([source, destination]) = ends(input) {
            out.named(Protocol::Nbdgm);
            report(&source, Field::NetbiosSource, out);
            report(&destination, Field::NetbiosDestination, out);
            return Progress::Done;
        }
        let Some(message) = message(input) else {
            return Progress::Reject(Reason::BadValue);
        };
        if !context.origin.ports.contains(&NAME_PORT) {
            return Progress::Reject(Reason::BadValue);
        }
        out.named(Protocol::Nbns);
        report(&message.name, Field::NetbiosName, out);
        let opcode = message.flags >> 11 & 15;
        out.field(Field::NetbiosOpcode, Value::Number(opcode.into()));
        if message.flags & RESPONSE == 0 {
            return Progress::Need(NAME_HEADER_LEN);
        }
        let rcode = message.flags & 15;
        out.field(Field::NetbiosRcode, Value::Number(rcode.into()));
        Progress::Done
    }
}
