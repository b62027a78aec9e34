//! TLS over TCP: the record layer (RFC 8446 §5.1) and the two hellos in it.
//!
//! Handshake messages may be spread over records, and records over segments, in any way. Records of
//! other types before the hello are passed over. A direction is done with its hello, with the first
//! record of application data, or when it begins with some other handshake message.

use super::{Decoder, Direction, First, Match, Origin, Progress, Reason};
use crate::field::Sink;

mod fingerprint;
mod hello;

pub(crate) use fingerprint::Carrier;
pub(crate) use hello::Hello;

/// Largest record: 2^14 of plain text and what TLS 1.2 allows on top (RFC 5246 §6.2.3).
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
    /// Why it is over without a hello.
    failed: Option<Reason>,
    /// Bytes of the record still to come.
    left: u16,
    hello: Hello,
}

/// The state of a connection.
pub(crate) struct Tls {
    sides: [Side; 2],
}

impl Tls {
    pub(super) fn new() -> Tls {
        let side = || Side {
            head: [0; 5],
            head_len: 0,
            is_over: false,
            failed: None,
            left: 0,
            hello: Hello::new(),
        };
        Tls {
            sides: [side(), side()],
        }
    }

    /// As new, without touching all of its bytes.
    pub(super) fn clear(&mut self) {
        for side in &mut self.sides {
            let Side {
                head: _,
                head_len,
                is_over,
                failed,
                left,
                hello,
            } = side;
            (*head_len, *is_over, *failed, *left) = (0, false, None, 0);
            hello.clear();
        }
    }

    fn progress(&self) -> Progress {
        let need = self.sides.iter().filter(|side| !side.is_over);
        match need.map(Side::need).min() {
            Some(need) => Progress::Need(need),
            // What failed in one direction did not keep the other from being read.
            None => match self.sides.iter().find_map(|side| side.failed) {
                Some(reason) => Progress::Reject(reason),
                None => Progress::Done,
            },
        }
    }
}

impl Side {
    /// Bytes without which it cannot say more.
    fn need(&self) -> usize {
        if self.left == 0 {
            return 5 - usize::from(self.head_len).min(4);
        }
        self.hello.need().min(self.left.into())
    }

    fn fail(&mut self, reason: Reason) {
        self.is_over = true;
        self.failed = Some(reason);
    }

    /// Takes the head of a record. False while it is not whole.
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

    fn feed(&mut self, input: &mut &[u8]) -> Result<bool, Reason> {
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
                self.is_over = self.head[0] == APPLICATION_DATA;
                continue;
            }
            let (part, rest) = input.split_at(input.len().min(self.left.into()));
            self.left -= part.len() as u16;
            *input = rest;
            if self.head[0] != HANDSHAKE {
                continue;
            }
            match self.hello.feed(part) {
                Ok(false) => {}
                Ok(true) => {
                    self.is_over = true;
                    return Ok(true);
                }
                Err(reason) => return Err(reason),
            }
        }
        Ok(false)
    }
}

impl Decoder for Tls {
    fn feed(&mut self, origin: Origin, input: &[u8], out: &mut dyn Sink) -> Progress {
        let side = &mut self.sides[origin.from as usize];
        let mut input = input;
        match side.feed(&mut input) {
            Ok(true) => side.hello.tell(Carrier::Tcp, out),
            Ok(false) => {}
            Err(reason) => side.fail(reason),
        }
        self.progress()
    }

    fn gap(&mut self, from: Direction, len: u32, _out: &mut dyn Sink) -> Progress {
        let side = &mut self.sides[from as usize];
        if side.is_over {
            return self.progress();
        }
        // Within a field that is passed over nothing is missed.
        let is_inside = len <= side.left.into();
        if !is_inside || (side.head[0] == HANDSHAKE && !side.hello.gap(len)) {
            side.fail(Reason::Gap);
        } else {
            side.left -= len as u16;
        }
        self.progress()
    }
}
