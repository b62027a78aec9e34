//! WireGuard (protocol paper §5.4): handshake initiation and response, by type, reserved bytes and
//! exact length. Transport data alone are not recognised.

use super::{Context, Decode, First, Match, Progress, Reason};
use crate::field::{Field, FieldSink, Protocol, Value};
use crate::identify::{Byte, Pattern};

const INITIATION_LEN: usize = 148;
const RESPONSE_LEN: usize = 92;

const ZERO: Byte = Byte::Is(0);

pub(super) const STARTS: &[Pattern] = &[Pattern::Bytes(&[Byte::In(1, 2), ZERO, ZERO, ZERO])];

/// A handshake message.
enum Message {
    Initiation { sender: u32 },
    Response { sender: u32, receiver: u32 },
}

fn message(bytes: &[u8]) -> Option<Message> {
    let word = |at: usize| {
        let word = bytes.get(at..)?.first_chunk::<4>()?;
        Some(u32::from_le_bytes(*word))
    };
    let (key_at, found) = match (word(0)?, bytes.len()) {
        (1, INITIATION_LEN) => (8, Message::Initiation { sender: word(4)? }),
        (2, RESPONSE_LEN) => (
            12,
            Message::Response {
                sender: word(4)?,
                receiver: word(8)?,
            },
        ),
        _ => return None,
    };
    // A public key of Curve25519 is below 2^255 and not zero.
    let key = bytes.get(key_at..key_at + 32)?;
    let is_key = key[31] & 0x80 == 0 && key.iter().any(|byte| *byte != 0);
    is_key.then_some(found)
}

pub(super) fn first(first: &First<'_>) -> Match {
    match message(first.bytes) {
        Some(_) => Match::Yes,
        None => Match::No,
    }
}

/// No state is kept between messages.
pub(super) struct WireGuard;

impl Decode for WireGuard {
    fn new() -> WireGuard {
        WireGuard
    }

    fn feed(
        &mut self,
        _context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        match message(input) {
            Some(Message::Initiation { sender }) => {
                out.named(Protocol::WireGuard);
                out.field(Field::WireGuardInitiator, Value::Number(sender.into()));
                Progress::Need(RESPONSE_LEN)
            }
            Some(Message::Response { sender, receiver }) => {
                out.named(Protocol::WireGuard);
                out.field(Field::WireGuardInitiator, Value::Number(receiver.into()));
                out.field(Field::WireGuardResponder, Value::Number(sender.into()));
                Progress::Done
            }
            None => Progress::Reject(Reason::BadValue),
        }
    }
}
