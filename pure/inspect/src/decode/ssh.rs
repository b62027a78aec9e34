//! SSH: identification strings (RFC 4253 §4.2), the algorithms in the first key exchange packets
//! (§7.1), summarized as HASSH, and the server's host key (§8; RFC 5656 §4, RFC 4419 §3).

use md5::{Digest, Md5};
use sha2::Sha256;

use super::{Context, Decode, Direction, Progress, Reason};
use crate::field::{Field, FieldSink, Value};
use crate::identify::Pattern;
use crate::text::Text;

/// Maximum packet length (RFC 4253 §6.1).
const PACKET_MAX: u32 = 35_000;
/// Maximum number of lines that a server may send before its identification (§4.2).
const LINES_MAX: u8 = 16;
const KEXINIT: u8 = 20;
const NEWKEYS: u8 = 21;
/// The server's messages that begin with its host key. The first number is also that of a message
/// with a prime (RFC 4419 §5).
const KEY_REPLIES: [u8; 2] = [31, 33];
/// Maximum number of the server's packets from its algorithms to its host key.
const PACKETS_MAX: u8 = 8;
/// Maximum length of the name of a key's algorithm (RFC 4251 §6).
const NAME_MAX: u32 = 64;
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
    /// The rest of a packet.
    Rest,
    KeyLen,
    NameLen,
    Name,
    Key,
    Over,
}

struct Side {
    step: Step,
    lines: u8,
    /// Packets after the first one.
    packets: u8,
    got: u8,
    number: u32,
    /// Bytes of the cookie, list or key still to come, and of the packet.
    run: u32,
    packet_left: u32,
    list: u8,
    failed: Option<Reason>,
    line: Text<256>,
    sum: Md5,
    key: Sha256,
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
                        let min = if self.packets == 0 { 2 + 16 } else { 2 };
                        if !(min..=PACKET_MAX).contains(&len) {
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
                        self.packet_left -= 2;
                        self.kind(kind as u8)?;
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
                Step::Rest => {
                    let len = (self.packet_left as usize).min(input.len());
                    self.packet_left -= len as u32;
                    *input = &input[len..];
                    self.rest_over();
                }
                Step::KeyLen | Step::NameLen | Step::Name | Step::Key => self.key(input, out),
            }
        }
        Ok(())
    }

    /// Selects what follows the number of a message.
    fn kind(&mut self, kind: u8) -> Result<(), Reason> {
        if self.packets == 0 {
            if kind != KEXINIT {
                return Err(Reason::BadValue);
            }
            self.step = Step::Cookie;
            self.run = 16;
            return Ok(());
        }
        self.step = match kind {
            // From here on everything is encrypted.
            NEWKEYS => Step::Over,
            kind if KEY_REPLIES.contains(&kind) => Step::KeyLen,
            _ => Step::Rest,
        };
        if self.step == Step::Rest {
            self.rest_over();
        }
        Ok(())
    }

    /// Continues with the next packet if nothing of this one is left.
    fn rest_over(&mut self) {
        if self.packet_left == 0 {
            self.packets += 1;
            self.step = match self.packets > PACKETS_MAX {
                true => Step::Over,
                false => Step::PacketLen,
            };
        }
    }

    /// Skips the rest of a packet.
    fn skip_rest(&mut self) {
        self.step = Step::Rest;
        self.rest_over();
    }

    /// Reads a host key: a string, which begins with the name of its algorithm (RFC 4253 §6.6).
    /// Anything else is skipped.
    fn key(&mut self, input: &mut &[u8], out: &mut dyn FieldSink) {
        match self.step {
            Step::KeyLen | Step::NameLen => {
                let Some(len) = self.int(input, 4) else {
                    return;
                };
                let room = match self.step {
                    Step::KeyLen => self.packet_left,
                    _ => self.run.min(4 + NAME_MAX),
                };
                if len.saturating_add(4) > room || len == 0 {
                    self.packet_left = self.packet_left.saturating_sub(4);
                    return self.skip_rest();
                }
                self.packet_left -= 4;
                if self.step == Step::KeyLen {
                    self.run = len;
                    self.step = Step::NameLen;
                } else {
                    self.run -= 4;
                    self.number = len;
                    self.key = Sha256::new_with_prefix(len.to_be_bytes());
                    self.line.clear();
                    self.step = Step::Name;
                }
            }
            Step::Name => {
                let len = (self.number as usize).min(input.len());
                let (part, rest) = input.split_at(len);
                *input = rest;
                self.line.push(part);
                self.key.update(part);
                self.number -= len as u32;
                self.run -= len as u32;
                self.packet_left -= len as u32;
                if self.number == 0 {
                    self.step = Step::Key;
                    let is_name = |byte: &u8| byte.is_ascii_graphic();
                    if !self.line.bytes().iter().all(is_name) || self.run == 0 {
                        self.skip_rest();
                    }
                }
            }
            _ => {
                let (part, rest) = input.split_at(input.len().min(self.run as usize));
                *input = rest;
                self.key.update(part);
                self.run -= part.len() as u32;
                self.packet_left -= part.len() as u32;
                if self.run == 0 {
                    out.field(Field::SshHostKey, self.line.value());
                    let sum = core::mem::take(&mut self.key).finalize();
                    out.field(
                        Field::SshHostKeySha256,
                        Value::text(&fingerprint(&sum.into())),
                    );
                    self.step = Step::Over;
                }
            }
        }
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
            // Only the server has a key.
            match from {
                Direction::Forward => self.step = Step::Over,
                Direction::Reverse => self.skip_rest(),
            }
        }
    }
}

/// Base64 without padding (RFC 4648 §4), as `ssh-keygen -l` prints a key's hash behind `SHA256:`.
fn fingerprint(sum: &[u8; 32]) -> [u8; 43] {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = [0; 43];
    for (at, digit) in text.iter_mut().enumerate() {
        let (byte, bit) = (at * 6 / 8, at * 6 % 8);
        let next = sum.get(byte + 1).copied().unwrap_or(0);
        let pair = u16::from_be_bytes([sum[byte], next]);
        *digit = DIGITS[usize::from(pair >> (10 - bit) & 63)];
    }
    text
}

impl Decode for Ssh {
    fn new() -> Ssh {
        let side = || Side {
            step: Step::Line,
            lines: 0,
            packets: 0,
            got: 0,
            number: 0,
            run: 0,
            packet_left: 0,
            list: 0,
            failed: None,
            line: Text::EMPTY,
            sum: Md5::new(),
            key: Sha256::new(),
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
            match side.packets {
                0 => side.fail(reason),
                // Without the host key, but with everything before it.
                _ => side.step = Step::Over,
            }
        }
        self.progress()
    }

    fn gap(&mut self, from: Direction, len: u32, _out: &mut dyn FieldSink) -> Progress {
        let side = &mut self.sides[from as usize];
        // Lists that are not part of the hash may be missing.
        let passes = side.step == Step::Cookie || (side.step == Step::List && !side.counts(from));
        if side.step == Step::Over {
        } else if side.step == Step::Rest && len < side.packet_left {
            side.packet_left -= len;
        } else if side.step == Step::Rest || side.packets > 0 {
            side.step = Step::Over;
        } else if passes && len < side.run {
            side.run -= len;
            side.packet_left -= len;
        } else {
            side.fail(Reason::Gap);
        }
        self.progress()
    }
}
