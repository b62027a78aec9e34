//! VNC (RFB, RFC 6143 §7.1): the server's protocol version, and the security types that it offers.

use super::{Context, Decode, Direction, Progress, Reason};
use crate::field::{Field, FieldSink, Value};
use crate::identify::{Byte, Pattern};
use crate::text::{Text, decimal, number};

/// Length of a version: `RFB 003.008` and a line feed.
const VERSION_LEN: usize = 12;
/// Bytes kept of the server: a version, the number of security types, and as many of them as fit.
const KEPT: usize = VERSION_LEN + 1 + 255;
/// Maximum length of the list of security types.
const LIST_LEN: usize = 48;
/// The first version in which the server offers several security types.
const WITH_LIST: (u64, u64) = (3, 7);

const DIGIT: Byte = Byte::In(b'0', b'9');

/// A version; both sides begin with one, the server first.
pub(super) const STARTS: &[Pattern] = &[Pattern::Bytes(&[
    Byte::Is(b'R'),
    Byte::Is(b'F'),
    Byte::Is(b'B'),
    Byte::Is(b' '),
    DIGIT,
    DIGIT,
    DIGIT,
    Byte::Is(b'.'),
    DIGIT,
    DIGIT,
    DIGIT,
    Byte::Is(b'\n'),
])];

/// Major and minor number of a version.
fn version(bytes: &[u8]) -> Result<Option<(u64, u64)>, Reason> {
    let Some(bytes) = bytes.first_chunk::<VERSION_LEN>() else {
        return Ok(None);
    };
    match (bytes, number(&bytes[4..7]), number(&bytes[8..11])) {
        ([b'R', b'F', b'B', b' ', .., b'\n'], Some(major), Some(minor)) => Ok(Some((major, minor))),
        _ => Err(Reason::BadValue),
    }
}

/// State of a connection.
pub(crate) struct Vnc {
    /// The side that sends its version first.
    server: Option<Direction>,
    is_lost: bool,
    has_version: bool,
    said: Text<KEPT>,
    answer: Text<VERSION_LEN>,
}

impl Vnc {
    /// Reports the server's version, if it is whole.
    fn version(&mut self, out: &mut dyn FieldSink) {
        let bytes = self.said.bytes();
        if let Some(text) = bytes.get(4..VERSION_LEN - 1)
            && bytes.len() >= VERSION_LEN
            && !core::mem::replace(&mut self.has_version, true)
        {
            out.field(Field::VncVersion, Value::text(text));
        }
    }

    /// Reads what both sides have sent so far.
    fn read(&mut self, out: &mut dyn FieldSink) -> Result<Progress, Reason> {
        let said = version(self.said.bytes())?;
        let (Some(own), Some(answer)) = (said, version(self.answer.bytes())?) else {
            return Ok(Progress::Need(1));
        };
        self.version(out);
        let rest = self.said.bytes().get(VERSION_LEN..).unwrap_or(&[]);
        let mut list = Text::<LIST_LEN>::EMPTY;
        let mut add = |kind: u64| {
            let comma: &[u8] = if list.is_empty() { b"" } else { b"," };
            list.push(comma);
            list.push(decimal(kind, &mut [0; 20]));
        };
        if own.min(answer) < WITH_LIST {
            let Some(kind) = rest.first_chunk::<4>() else {
                return Ok(Progress::Need(4 - rest.len()));
            };
            add(u32::from_be_bytes(*kind).into());
        } else {
            let Some((count, kinds)) = rest.split_first() else {
                return Ok(Progress::Need(1));
            };
            let Some(kinds) = kinds.get(..usize::from(*count)) else {
                return Ok(Progress::Need(usize::from(*count) - kinds.len()));
            };
            // None: a reason follows why the connection is refused.
            match kinds {
                [] => add(0),
                kinds => kinds.iter().for_each(|kind| add((*kind).into())),
            }
        }
        out.field(Field::VncSecurity, list.value());
        Ok(Progress::Done)
    }
}

impl Decode for Vnc {
    fn new() -> Vnc {
        Vnc {
            server: None,
            is_lost: false,
            has_version: false,
            said: Text::EMPTY,
            answer: Text::EMPTY,
        }
    }

    fn feed(
        &mut self,
        context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        let from = context.origin.from;
        match *self.server.get_or_insert(from) == from {
            true => self.said.push(input),
            false => self.answer.push(input),
        }
        match self.read(out) {
            Ok(progress) => progress,
            Err(reason) => {
                self.is_lost = true;
                Progress::Reject(reason)
            }
        }
    }

    fn gap(&mut self, _from: Direction, _len: u32, _out: &mut dyn FieldSink) -> Progress {
        self.is_lost = true;
        Progress::Reject(Reason::Gap)
    }

    fn end(&mut self, out: &mut dyn FieldSink) {
        // A server whose client did not answer.
        if !self.is_lost && self.answer.is_empty() {
            self.version(out);
        }
    }
}
