//! Redis (Redis serialization protocol, RESP 2 and 3): the name of the first command, the code of
//! an error reply to it, and the server's version if INFO or HELLO reports it.
//!
//! Arguments and values are not reported: they may be secrets.

use super::{Context, Decode, Direction, First, Match, Progress, Reason};
use crate::field::{Field, FieldSink, Value};
use crate::identify::{Byte, Pattern};
use crate::text::{Text, number};

/// Maximum length of a command name, and number of bytes kept of a first command.
const NAME_MAX: u64 = 32;
const KEPT: usize = 48;
/// Maximum number of lines read of a reply, and of bytes kept of each.
const LINES_MAX: u8 = 32;
const LINE_LEN: usize = 96;

const VERSION: &[u8] = b"redis_version:";

/// An array of bulk strings, the first of which is the name of a command.
pub(super) const STARTS: &[Pattern] = &[
    Pattern::Bytes(&[
        Byte::Is(b'*'),
        Byte::In(b'1', b'9'),
        Byte::Is(b'\r'),
        Byte::Is(b'\n'),
        Byte::Is(b'$'),
        Byte::In(b'1', b'9'),
    ]),
    Pattern::Bytes(&[
        Byte::Is(b'*'),
        Byte::In(b'1', b'9'),
        Byte::In(b'0', b'9'),
        Byte::Is(b'\r'),
        Byte::Is(b'\n'),
        Byte::Is(b'$'),
        Byte::In(b'1', b'9'),
    ]),
];

/// A kind, a number of at most two digits, and the end of the line.
fn count(bytes: &[u8], kind: u8) -> Result<(u64, &[u8]), Match> {
    let Some((first, rest)) = bytes.split_first() else {
        return Err(Match::Maybe);
    };
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, end) = rest.split_at(digits);
    if *first != kind || digits.len() > 2 {
        return Err(Match::No);
    }
    match (end, number(digits)) {
        ([], _) | ([b'\r'], Some(_)) => Err(Match::Maybe),
        ([b'\r', b'\n', rest @ ..], Some(number)) => Ok((number, rest)),
        _ => Err(Match::No),
    }
}

/// The name of a command, as much of it as is present, and its length.
fn command(bytes: &[u8]) -> Result<(&[u8], usize), Match> {
    let (_, rest) = count(bytes, b'*')?;
    let (len, rest) = count(rest, b'$')?;
    let name = &rest[..rest.len().min(len as usize)];
    // Commands of modules have a dot in their names.
    let is_name = |byte: &u8| byte.is_ascii_alphabetic() || b"._-".contains(byte);
    if !(2..=NAME_MAX).contains(&len) || !name.iter().all(is_name) {
        return Err(Match::No);
    }
    Ok((name, len as usize))
}

/// Checks that the name has at least two letters.
pub(super) fn first(first: &First<'_>) -> Match {
    match command(first.bytes) {
        Ok((name, _)) if name.len() < 2 => Match::Maybe,
        Ok(_) => Match::Yes,
        Err(answer) => answer,
    }
}

/// What to read of the server's data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// The command is unknown: nothing.
    Unknown,
    /// One line.
    Line,
    /// Lines up to the version; whether the line after the next is it.
    Version {
        follows: u8,
    },
    Over,
}

/// State of a connection.
pub(crate) struct Redis {
    client: Option<Direction>,
    has_command: bool,
    command: Text<KEPT>,
    answer: Answer,
    lines: u8,
    line: Text<LINE_LEN>,
}

impl Redis {
    fn client(&mut self, input: &[u8], out: &mut dyn FieldSink) -> Result<(), Reason> {
        self.command.push(input);
        match command(self.command.bytes()) {
            Ok((name, len)) if name.len() == len => {
                self.has_command = true;
                out.field(Field::RedisCommand, Value::text(name));
                let reports = |of: &[u8]| name.eq_ignore_ascii_case(of);
                self.answer = match reports(b"INFO") || reports(b"HELLO") {
                    true => Answer::Version { follows: 0 },
                    false => Answer::Line,
                };
                Ok(())
            }
            Ok(_) | Err(Match::Maybe) => Ok(()),
            Err(_) => Err(Reason::BadValue),
        }
    }

    /// Reads a line of the server.
    fn line(&mut self, out: &mut dyn FieldSink) {
        let line = self.line.bytes();
        self.lines += 1;
        if let (1, Some(error)) = (self.lines, line.strip_prefix(b"-")) {
            // What follows the code may quote arguments.
            let code = error.split(|byte| *byte == b' ').next().unwrap_or(&[]);
            out.field(Field::RedisError, Value::text(code));
            self.answer = Answer::Over;
        }
        let Answer::Version { follows } = self.answer else {
            self.answer = Answer::Over;
            return;
        };
        let version = match (line.strip_prefix(VERSION), follows) {
            (Some(version), _) => Some(version),
            (None, 1) => Some(line),
            (None, _) => None,
        };
        if let Some(bytes) = version {
            let is_cut = self.line.is_cut();
            out.field(Field::RedisVersion, Value::Text { bytes, is_cut });
        }
        // In the reply to HELLO the length of the version comes first.
        let follows = if line == b"version" {
            2
        } else {
            follows.saturating_sub(1)
        };
        self.answer = match version.is_some() || self.lines == LINES_MAX {
            true => Answer::Over,
            false => Answer::Version { follows },
        };
    }

    fn progress(&self) -> Progress {
        match self.answer {
            Answer::Over => Progress::Done,
            _ => Progress::Need(1),
        }
    }
}

impl Decode for Redis {
    fn new() -> Redis {
        Redis {
            client: None,
            has_command: false,
            command: Text::EMPTY,
            answer: Answer::Unknown,
            lines: 0,
            line: Text::EMPTY,
        }
    }

    fn feed(
        &mut self,
        context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        let from = context.origin.from;
        if *self.client.get_or_insert(from) == from {
            if !self.has_command
                && let Err(reason) = self.client(input, out)
            {
                return Progress::Reject(reason);
            }
            return self.progress();
        }
        if self.answer == Answer::Unknown && !input.is_empty() {
            self.answer = Answer::Over;
        }
        let mut rest = input;
        while self.answer != Answer::Over && self.line.line(&mut rest) {
            self.line(out);
            self.line.clear();
        }
        self.progress()
    }

    fn gap(&mut self, from: Direction, _len: u32, _out: &mut dyn FieldSink) -> Progress {
        // Missing arguments do not matter.
        if self.client != Some(from) || !self.has_command {
            self.answer = Answer::Over;
        }
        self.progress()
    }
}
