//! SSH: identification strings (RFC 4253 §4.2) and the algorithms in the first key exchange packets
//! (§7.1), summarized as HASSH.

use md5::{Digest, Md5};

use super::{Context, Decode, Direction, Progress, Reason};
use crate::field::{Field, FieldSink, Value};
use crate::identify::Pattern;
use crate::text::Text;

/// Maximum packet length (RFC 4253 §6.1).
const PACKET_MAX: u32 = 35_000;
/// Maximum number of lines that a server may send before its identification (§4.2).
const LINES_MAX: u8 = 16;
const KEXINIT: u8 = 20;
/// Number of lists in a key exchange packet up to the compression algorithms.
const LIST_COUNT: u8 = 8;

pub(super) const STARTS: &[Pattern] = &[Pattern::Text(b"SSH-")];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Line,
    PacketLen,
    Padding,
    Kind,
    Cookie,
    ListLen,
    List,
    Over,
}

struct Side {
    step: Step,
    lines: u8,
    got: u8,
    number: u32,
    /// Bytes of the cookie or list still to come, and of the packet.
    run: u32,
    packet_left: u32,
    list: u8,
    failed: Option<Reason>,
    line: Text<256>,
    sum: Md5,
}

/// State of a connection.
pub(crate) struct Ssh {
    sides: [Side; 2],
}

impl Ssh {
    fn progress(&self) -> Progress {
        if self.sides.iter().any(|side| side.step != Step::Over) {
            return Progress::Need(1);
        }
        match self.sides.iter().find_map(|side| side.failed) {
            Some(reason) => Progress::Reject(reason),
            None => Progress::Done,
        }
    }
}

impl Side {
    fn fail(&mut self, reason: Reason) {
        self.step = Step::Over;
        self.failed = Some(reason);
    }

    fn int(&mut self, input: &mut &[u8], width: u8) -> Option<u32> {
        while self.got < width {
            let (byte, rest) = input.split_first()?;
            self.number = self.number << 8 | u32::from(*byte);
            self.got += 1;
            *input = rest;
        }
        self.got = 0;
        Some(core::mem::take(&mut self.number))
    }

    /// Whether a list is part of this side's hash: key exchange, encryption, MAC and compression,
    /// the latter three for its own direction.
    fn counts(&self, from: Direction) -> bool {
        match from {
            Direction::Forward => matches!(self.list, 0 | 2 | 4 | 6),
            Direction::Reverse => matches!(self.list, 0 | 3 | 5 | 7),
        }
    }

    fn identification(&mut self, from: Direction, out: &mut dyn FieldSink) -> Result<(), Reason> {
        let line = self.line.bytes();
        if !line.starts_with(b"SSH-") {
            self.lines += 1;
            self.line.clear();
            return match self.lines > LINES_MAX {
                true => Err(Reason::TooLong),
                false => Ok(()),
            };
        }
        let field = match from {
            Direction::Forward => Field::SshClient,
            Direction::Reverse => Field::SshServer,
        };
        out.field(field, self.line.value());
        // Version 1 has other packets.
        let is_two = line.starts_with(b"SSH-2.0-") || line.starts_with(b"SSH-1.99-");
        self.step = match is_two {
            true => Step::PacketLen,
            false => Step::Over,
        };
        Ok(())
    }

    fn feed(
        &mut self,
        from: Direction,
        input: &mut &[u8],
        out: &mut dyn FieldSink,
    ) -> Result<(), Reason> {
        while !input.is_empty() && self.step != Step::Over {
            match self.step {
                Step::Over => {}
                Step::Line => {
                    if self.line.line(input) {
                        self.identification(from, out)?;
                    }
                }
                Step::PacketLen => {
                    if let Some(len) = self.int(input, 4) {
                        if !(2 + 16..=PACKET_MAX).contains(&len) {
                            return Err(Reason::BadLength);
                        }
                        self.packet_left = len;
                        self.step = Step::Padding;
                    }
                }
                Step::Padding => {
                    if self.int(input, 1).is_some() {
                        self.step = Step::Kind;
                    }
                }
                Step::Kind => {
                    if let Some(kind) = self.int(input, 1) {
                        if kind != u32::from(KEXINIT) {
                            return Err(Reason::BadValue);
                        }
                        self.packet_left -= 2;
                        self.step = Step::Cookie;
                        self.run = 16;
                    }
                }
                Step::Cookie => {
                    let len = (self.run as usize).min(input.len());
                    self.run -= len as u32;
                    self.packet_left -= len as u32;
                    *input = &input[len..];
                    if self.run == 0 {
                        self.step = Step::ListLen;
                    }
                }
                Step::ListLen | Step::List => self.lists(from, input, out)?,
            }
        }
        Ok(())
    }

    /// Reads the lists of a key exchange packet, each after its length.
    fn lists(
        &mut self,
        from: Direction,
        input: &mut &[u8],
        out: &mut dyn FieldSink,
    ) -> Result<(), Reason> {
        if self.step == Step::ListLen {
            if let Some(len) = self.int(input, 4) {
                self.packet_left = match self.packet_left.checked_sub(4) {
                    Some(left) if len <= left => left,
                    _ => return Err(Reason::BadLength),
                };
                self.run = len;
                if self.counts(from) && self.list > 1 {
                    self.sum.update(b";");
                }
                self.step = Step::List;
                if len == 0 {
                    self.list_over(from, out);
                }
            }
            return Ok(());
        }
        let (part, rest) = input.split_at(input.len().min(self.run as usize));
        if self.counts(from) {
            self.sum.update(part);
        }
        self.run -= part.len() as u32;
        self.packet_left -= part.len() as u32;
        *input = rest;
        if self.run == 0 {
            self.list_over(from, out);
        }
        Ok(())
    }

    fn list_over(&mut self, from: Direction, out: &mut dyn FieldSink) {
        self.list += 1;
        self.step = Step::ListLen;
        if self.list == LIST_COUNT {
            let sum = core::mem::take(&mut self.sum).finalize();
            let field = match from {
                Direction::Forward => Field::Hassh,
                Direction::Reverse => Field::HasshServer,
            };
            out.field(field, Value::Digest(sum.into()));
            self.step = Step::Over;
        }
    }
}

impl Decode for Ssh {
    fn new() -> Ssh {
        let side = || Side {
            step: Step::Line,
            lines: 0,
            got: 0,
            number: 0,
            run: 0,
            packet_left: 0,
            list: 0,
            failed: None,
            line: Text::EMPTY,
            sum: Md5::new(),
        };
        Ssh {
            sides: [side(), side()],
        }
    }

    fn feed(
        &mut self,
        context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        let from = context.origin.from;
        let side = &mut self.sides[from as usize];
        let mut input = input;
        if let Err(reason) = side.feed(from, &mut input, out) {
            side.fail(reason);
        }
        self.progress()
    }

    fn gap(&mut self, from: Direction, len: u32, _out: &mut dyn FieldSink) -> Progress {
        let side = &mut self.sides[from as usize];
        // Lists that are not part of the hash may be missing.
        let passes = side.step == Step::Cookie || (side.step == Step::List && !side.counts(from));
        if side.step == Step::Over {
        } else if passes && len < side.run {
            side.run -= len;
            side.packet_left -= len;
        } else {
            side.fail(Reason::Gap);
        }
        self.progress()
    }
}
