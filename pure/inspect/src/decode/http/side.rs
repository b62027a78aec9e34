//! One side of a connection: its position in the message, the values read so far, and how the body
//! is delimited (RFC 9112 §6, §7.1).

use crate::Reason;
use crate::field::{Field, FieldSink, Value};
use crate::text::{Text, header};

/// Maximum number of bytes read of a line.
pub(super) const LINE_MAX: usize = 320;
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    Start,
    Request,
    Response,
    /// A response before the final one (RFC 9110 §15.2).
    Provisional,
    /// A body of known length; a chunk, the line after it, and the trailer (RFC 9112 §7.1).
    Body,
    ChunkLen,
    Chunk,
    ChunkEnd,
    Trailer,
    /// After an unanswered CONNECT. What follows is kept in place of a line.
    Tunnel,
    Over,
}

/// State of one side.
pub(super) struct Side {
    pub(super) at: At,
    pub(super) provisional: u8,
    pub(super) headers: u16,
    /// Number of start lines read, and whether the first message's headers have ended.
    pub(super) messages: u32,
    pub(super) is_selected: bool,
    /// Length, status and type of the message.
    pub(super) length: Option<u64>,
    pub(super) is_chunked: bool,
    pub(super) status: u16,
    /// Bytes of the body, or of a chunk, still to come.
    pub(super) left: u64,
    pub(super) failed: Option<Reason>,
    pub(super) line: Text<LINE_MAX>,
}

impl Side {
    pub(super) const NEW: Side = Side {
        at: At::Start,
        provisional: 0,
        headers: 0,
        messages: 0,
        is_selected: false,
        length: None,
        is_chunked: false,
        status: 0,
        left: 0,
        failed: None,
        line: Text::EMPTY,
    };

    /// Resets it.
    pub(super) fn clear(&mut self) {
        // Destructured, so that a new field is not forgotten.
        let Side {
            at,
            provisional,
            headers,
            messages,
            is_selected,
            length,
            is_chunked,
            status,
            left,
            failed,
            line,
        } = self;
        (*at, *provisional, *headers, *failed) = (At::Start, 0, 0, None);
        (*messages, *is_selected, *length, *is_chunked) = (0, false, None, false);
        (*status, *left) = (0, 0);
        line.clear();
    }

    pub(super) fn fail(&mut self, reason: Reason) {
        self.at = At::Over;
        if !self.is_selected {
            self.failed = Some(reason);
        }
    }

    /// Whether the next byte cannot begin a message, which means that the length of the previous
    /// message was wrong.
    pub(super) fn is_lost(&self, next: u8) -> bool {
        let is_start = next.is_ascii_uppercase() || matches!(next, b'\r' | b'\n');
        self.at == At::Start && self.messages != 0 && self.line.is_empty() && !is_start
    }

    /// Skips bytes.
    pub(super) fn pass(&mut self, len: u64) {
        self.left = self.left.saturating_sub(len);
        if self.left == 0 {
            self.at = match self.at {
                At::Chunk => At::ChunkEnd,
                At::Body => At::Start,
                other => other,
            };
        }
    }

    /// Determines how the data after the headers are delimited. `None`: by the end of the
    /// connection.
    pub(super) fn begin_body(&mut self) -> Option<()> {
        if self.is_chunked {
            self.at = At::ChunkLen;
            return Some(());
        }
        self.left = self.length?;
        self.at = if self.left == 0 { At::Start } else { At::Body };
        Some(())
    }

    pub(super) fn header(&mut self, out: &mut dyn FieldSink) {
        let line = self.line.bytes();
        if let Some(digits) = header(line, b"content-length") {
            self.length = length(digits);
        } else if let Some(codings) = header(line, b"transfer-encoding") {
            let last = codings.rsplit(|byte| *byte == b',').next().unwrap_or(&[]);
            self.is_chunked = last.trim_ascii().eq_ignore_ascii_case(b"chunked");
        }
        let fields: &[(&[u8], Field)] = match self.at {
            At::Request => &[
                (b"host", Field::HttpHost),
                (b"user-agent", Field::HttpAgent),
            ],
            At::Response => &[
                (b"server", Field::HttpServer),
                (b"content-type", Field::HttpType),
            ],
            _ => &[],
        };
        // Of the first message only: fields that it lacks are not taken from the next one.
        if self.messages > 1 {
            return;
        }
        for (name, field) in fields {
            if let Some(bytes) = header(line, name) {
                let is_cut = self.line.is_cut();
                out.field(*field, Value::Text { bytes, is_cut });
            }
        }
    }

    /// Reads the chunk size line.
    pub(super) fn chunk(&mut self) -> Result<(), Reason> {
        let line = self.line.bytes();
        let end = line.iter().position(|byte| !byte.is_ascii_hexdigit());
        let digits = line.get(..end.unwrap_or(line.len())).unwrap_or(&[]);
        if digits.is_empty() || digits.len() > 15 {
            return Err(Reason::BadValue);
        }
        let digit = |byte: &u8| u64::from((*byte as char).to_digit(16).unwrap_or(0));
        self.left = digits.iter().fold(0, |sum, byte| sum << 4 | digit(byte));
        self.at = if self.left == 0 {
            At::Trailer
        } else {
            At::Chunk
        };
        Ok(())
    }
}

/// A length in decimal digits.
fn length(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    digits.iter().try_fold(0, |sum, digit| {
        let is_digit = digit.is_ascii_digit();
        is_digit.then(|| sum * 10 + u64::from(digit.wrapping_sub(b'0')))
    })
}

/// Splits a request line: method, target, and whether anything follows them.
pub(super) fn words(line: &[u8]) -> Result<(&[u8], &[u8], bool), Reason> {
    let end = line.iter().position(|byte| *byte == b' ');
    let (method, rest) = line
        .split_at_checked(end.unwrap_or(0))
        .unwrap_or((&[], &[]));
    let mut words = rest.trim_ascii_start().splitn(2, |byte| *byte == b' ');
    let target = words.next().unwrap_or(&[]);
    let is_method = |byte: &u8| byte.is_ascii_uppercase() || b"-_".contains(byte);
    if target.is_empty() || method.is_empty() || !method.iter().all(is_method) {
        return Err(Reason::BadValue);
    }
    Ok((method, target, words.next().is_some()))
}
