//! memcached's text protocol (memcached `doc/protocol.txt`), over TCP and UDP: the version of the
//! server, if `version` or `stats` asks for it.
//!
//! Keys and values are not reported: they may be secrets. The binary protocol is not decoded.

use super::{Context, Decode, Direction, First, Match, Progress, starts};
use crate::field::{Field, FieldSink, Value};
use crate::identify::Pattern;
use crate::ports::Transport;
use crate::text::Text;

const PORT: u16 = 11_211;
/// Header of a datagram: request, number of this datagram, number of datagrams, reserved.
const HEADER_LEN: usize = 8;
/// Maximum number of lines read of the server, and of bytes kept of each.
const LINES_MAX: u8 = 64;
const LINE_LEN: usize = 96;
/// Maximum length of a command that is looked at.
const COMMAND_LEN: usize = 16;

/// What only this protocol begins with: commands, and the answers to them.
const WORDS: &[&[u8]] = &[b"version\r\n", b"stats\r\n", b"VERSION ", b"STAT pid "];
/// Commands that other protocols may have as well; the port decides.
const COMMON: &[&[u8]] = &[b"get ", b"gets ", b"set ", b"add ", b"delete ", b"mg "];

/// The header of a datagram, or the words, decide. A pattern for the header would begin with two
/// arbitrary bytes, and would keep the automaton running for more bytes of every datagram.
pub(super) const STARTS: &[Pattern] = &[Pattern::ANY];

/// The text of a first datagram.
fn text(datagram: &[u8]) -> Option<&[u8]> {
    match datagram {
        [_, _, 0, 0, count, low, 0, 0, text @ ..] if [*count, *low] != [0, 0] => Some(text),
        _ => None,
    }
}

pub(super) fn first(first: &First<'_>) -> Match {
    let bytes = match first.transport {
        Transport::Tcp => first.bytes,
        Transport::Udp => match text(first.bytes) {
            Some(text) => text,
            None => return Match::No,
        },
    };
    // Called for every flow that no earlier row recognizes.
    if bytes
        .first()
        .is_some_and(|byte| !b"VSadgmsv".contains(byte))
    {
        return Match::No;
    }
    let of = |words: &[&[u8]]| {
        let matches = words.iter().map(|word| starts(bytes, word));
        matches.max().unwrap_or(Match::No)
    };
    let own = match (of(WORDS), bytes.strip_prefix(WORDS[2])) {
        // A version begins with a digit.
        (_, Some([])) => Match::Maybe,
        (_, Some([byte, ..])) if !byte.is_ascii_digit() => Match::No,
        (found, _) => found,
    };
    match first.has_port(PORT) {
        true => own.max(of(COMMON)),
        false => own,
    }
}

/// The version in a line of the server; an error if no line after it is read.
fn version(line: &[u8]) -> Result<Option<&[u8]>, ()> {
    let stat = line.strip_prefix(b"STAT ");
    let found = line
        .strip_prefix(b"VERSION ")
        .or_else(|| stat?.strip_prefix(b"version "));
    match (found, stat) {
        (Some(version), _) => Ok(Some(version)),
        (None, Some(_)) => Ok(None),
        (None, None) => Err(()),
    }
}

/// Whether a command is one whose answer contains the version.
fn asks(command: &[u8]) -> bool {
    [&b"version"[..], b"stats"].contains(&command)
}

/// State of a connection.
pub(crate) struct Memcached {
    server: Option<Direction>,
    is_over: bool,
    has_command: bool,
    command: Text<COMMAND_LEN>,
    lines: u8,
    line: Text<LINE_LEN>,
}

impl Memcached {
    /// Reads the client's first command.
    fn client(&mut self, input: &[u8]) {
        if self.has_command {
            return;
        }
        let mut rest = input;
        self.has_command = self.command.line(&mut rest);
        let is_other = self.has_command && !asks(self.command.bytes());
        self.is_over |= is_other || self.command.is_cut();
    }

    /// Reads a line of the server.
    fn line(&mut self, out: &mut dyn FieldSink) {
        self.lines += 1;
        let is_cut = self.line.is_cut();
        let found = version(self.line.bytes());
        if let Ok(Some(bytes)) = found {
            out.field(Field::MemcachedVersion, Value::Text { bytes, is_cut });
        }
        self.is_over = found != Ok(None) || self.lines == LINES_MAX;
    }

    fn progress(&self) -> Progress {
        match self.is_over {
            true => Progress::Done,
            false => Progress::Need(1),
        }
    }
}

impl Decode for Memcached {
    fn new() -> Memcached {
        Memcached {
            server: None,
            is_over: false,
            has_command: false,
            command: Text::EMPTY,
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
        let Some(byte) = input.first() else {
            return self.progress();
        };
        // The data that identified the flow are read first: answers are in capital letters.
        let sender = match byte.is_ascii_uppercase() {
            true => from,
            false => from.other(),
        };
        if *self.server.get_or_insert(sender) != from {
            self.client(input);
            return self.progress();
        }
        let mut rest = input;
        while !self.is_over && self.line.line(&mut rest) {
            self.line(out);
            self.line.clear();
        }
        self.progress()
    }

    fn gap(&mut self, from: Direction, _len: u32, _out: &mut dyn FieldSink) -> Progress {
        // Only the server's lines matter, up to the first one that is not whole.
        self.is_over |= self.server == Some(from) || !self.has_command;
        self.progress()
    }
}

/// No state is kept between datagrams.
pub(crate) struct Datagrams;

impl Decode for Datagrams {
    fn new() -> Datagrams {
        Datagrams
    }

    fn feed(
        &mut self,
        _context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        let Some(text) = text(input) else {
            return Progress::Need(HEADER_LEN);
        };
        let lines = text.split(|byte| *byte == b'\n');
        for line in lines.take(LINES_MAX.into()) {
            let (line, is_cut) = match line.strip_suffix(b"\r") {
                Some(line) => (line, false),
                None => (line, true),
            };
            if asks(line) {
                return Progress::Need(HEADER_LEN);
            }
            match version(line) {
                Ok(Some(bytes)) => {
                    out.field(Field::MemcachedVersion, Value::Text { bytes, is_cut });
                    return Progress::Done;
                }
                Ok(None) => {}
                Err(()) => return Progress::Done,
            }
        }
        Progress::Done
    }
}
