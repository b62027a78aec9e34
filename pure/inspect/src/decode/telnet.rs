//! Telnet (RFC 854, RFC 855): the options that the server requests or offers, and the first line of
//! its text, or its prompt for a name.
//!
//! What the user types is not reported, nor anything after it, because servers echo it.

use super::{Context, Decode, Direction, First, Match, Progress};
use crate::field::{Field, FieldSink};
use crate::identify::{Byte, Pattern};
use crate::text::{Text, decimal};

const PORTS: [u16; 2] = [23, 2323];

// Commands (RFC 854, "Command structure").
const SE: u8 = 240;
const SB: u8 = 250;
const WILL: u8 = 251;
const DONT: u8 = 254;
const IAC: u8 = 255;
/// Their names.
const VERBS: [&[u8]; 4] = [b"will ", b"wont ", b"do ", b"dont "];

/// Options up to this one begin a connection (IANA registry "Telnet Options").
const OPTION_MAX: u8 = 60;
/// Commands, or characters after one, by which it is identified on other ports.
const COMMANDS_MIN: usize = 2;
const CHARACTERS_MIN: usize = 4;

const ESCAPE: u8 = 0x1b;

/// Maximum number of options reported.
const OPTIONS_MAX: u8 = 16;
/// Ends of a prompt, which no end of a line follows.
const PROMPTS: [&[u8]; 4] = [b"login:", b"user:", b"name:", b"password:"];

/// A command about an option.
pub(super) const STARTS: &[Pattern] = &[Pattern::Bytes(&[
    Byte::Is(IAC),
    Byte::In(WILL, DONT),
    Byte::In(0, OPTION_MAX),
])];

pub(super) fn first(first: &First<'_>) -> Match {
    let (mut commands, mut characters) = (0, 0);
    let mut rest = first.bytes;
    loop {
        rest = match rest {
            [
                IAC,
                WILL..=DONT,
                0..=OPTION_MAX | 138..=140 | 255,
                rest @ ..,
            ] => {
                commands += 1;
                rest
            }
            [] | [IAC] | [IAC, WILL..=DONT] => break,
            // Parameters of an option, or a command without one.
            [IAC, SB, ..] => {
                commands += 1;
                break;
            }
            [IAC, 241..=249, rest @ ..] => rest,
            [0 | 7..=13 | ESCAPE | b' '..=b'~', rest @ ..] => {
                characters += 1;
                rest
            }
            _ => return Match::No,
        };
    }
    let has_port = PORTS.iter().any(|port| first.has_port(*port));
    let is_enough = has_port || commands >= COMMANDS_MIN || characters >= CHARACTERS_MIN;
    match commands != 0 && is_enough {
        true => Match::Yes,
        false => Match::Maybe,
    }
}

/// Place in a side's data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Text,
    Command,
    /// In a command about an option: its verb.
    Verb(u8),
    Parameters,
    ParametersCommand,
    /// In an escape sequence of a terminal (ECMA-48 §5.4).
    Escape,
    Sequence,
}

/// What a byte means.
enum Means {
    Nothing,
    Option(u8, u8),
    Character(u8),
}

impl At {
    fn step(&mut self, byte: u8) -> Means {
        let mut means = Means::Nothing;
        *self = match (*self, byte) {
            (At::Text, IAC) => At::Command,
            (At::Text, ESCAPE) => At::Escape,
            (At::Text, _) => {
                means = Means::Character(byte);
                At::Text
            }
            (At::Command, WILL..=DONT) => At::Verb(byte),
            (At::Command, SB) => At::Parameters,
            (At::Command, _) => {
                // Doubled, it is data.
                if byte == IAC {
                    means = Means::Character(byte);
                }
                At::Text
            }
            (At::Verb(verb), _) => {
                means = Means::Option(verb, byte);
                At::Text
            }
            (At::Parameters, IAC) => At::ParametersCommand,
            (At::ParametersCommand, SE) => At::Text,
            (At::Parameters | At::ParametersCommand, _) => At::Parameters,
            (At::Escape, b'[') => At::Sequence,
            (At::Sequence, 0x20..=0x3f) => At::Sequence,
            (At::Escape | At::Sequence, _) => At::Text,
        };
        means
    }
}

/// State of a connection.
pub(crate) struct Telnet {
    at: [At; 2],
    /// Whether the user has typed something: what follows may be an echo of it.
    is_typed: bool,
    is_over: bool,
    /// Whether white space precedes the next character.
    is_apart: bool,
    options: u8,
    text: Text<128>,
}

/// The server's side: that of the port, or else the responder.
fn server(ports: [u16; 2]) -> Direction {
    match PORTS.contains(&ports[0]) && !PORTS.contains(&ports[1]) {
        true => Direction::Forward,
        false => Direction::Reverse,
    }
}

/// Whether text ends in a prompt for a name or a password.
fn is_prompt(text: &[u8]) -> bool {
    PROMPTS.iter().any(|prompt| {
        let end = text.len().checked_sub(prompt.len());
        end.is_some_and(|at| text[at..].eq_ignore_ascii_case(prompt))
    })
}

impl Telnet {
    fn option(&mut self, verb: u8, option: u8, out: &mut dyn FieldSink) {
        if self.options == OPTIONS_MAX {
            return;
        }
        self.options += 1;
        let mut text = Text::<8>::EMPTY;
        text.push(VERBS[usize::from(verb.saturating_sub(WILL)) % VERBS.len()]);
        text.push(decimal(option.into(), &mut [0; 20]));
        out.field(Field::TelnetOption, text.value());
    }

    fn character(&mut self, byte: u8) {
        match byte {
            b'\r' | b'\n' => self.is_over = !self.text.is_empty(),
            b'\t' | b' ' => self.is_apart = true,
            0..b' ' | 0x7f => {}
            _ => {
                if core::mem::take(&mut self.is_apart) && !self.text.is_empty() {
                    self.text.push(b" ");
                }
                self.text.push(&[byte]);
                self.is_over = self.text.is_cut() || is_prompt(self.text.bytes());
            }
        }
    }
}

impl Decode for Telnet {
    fn new() -> Telnet {
        Telnet {
            at: [At::Text; 2],
            is_typed: false,
            is_over: false,
            is_apart: false,
            options: 0,
            text: Text::EMPTY,
        }
    }

    fn feed(
        &mut self,
        context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        let from = context.origin.from;
        let is_server = from == server(context.origin.ports);
        for byte in input {
            match (self.at[from as usize].step(*byte), is_server) {
                (Means::Option(verb, option), true) => self.option(verb, option, out),
                (Means::Character(byte), true) if !self.is_typed => self.character(byte),
                (Means::Character(_), false) => self.is_typed = true,
                _ => {}
            }
            if self.is_over {
                out.field(Field::TelnetText, self.text.value());
                return Progress::Done;
            }
        }
        Progress::Need(1)
    }
}
