//! HTTP/1 (RFC 9112): the first request and the first final response.
//!
//! Start lines and a few headers are read, line by line; lines longer than [`LINE_MAX`] are cut.
//! HTTP/2 without TLS is recognised by its preface and named, not read.

use super::{Decoder, First, Match, Origin, Progress, Reason, starts};
use crate::field::{Field, Protocol, Sink, Value};
use crate::text::{Text, header, number};

/// Bytes of a line that are looked at.
const LINE_MAX: usize = 320;
/// Header lines that are looked at.
const HEADER_MAX: u16 = 128;
/// Provisional responses before the final one.
const PROVISIONAL_MAX: u8 = 8;

/// Methods of the IANA registry that are seen in the wild, and some of UPnP and others.
const METHODS: &[&[u8]] = &[
    b"GET ",
    b"POST ",
    b"HEAD ",
    b"PUT ",
    b"DELETE ",
    b"OPTIONS ",
    b"CONNECT ",
    b"TRACE ",
    b"PATCH ",
    b"PROPFIND ",
    b"PROPPATCH ",
    b"MKCOL ",
    b"COPY ",
    b"MOVE ",
    b"LOCK ",
    b"UNLOCK ",
    b"REPORT ",
    b"SEARCH ",
    b"NOTIFY ",
    b"SUBSCRIBE ",
    b"UNSUBSCRIBE ",
    b"CCM_POST ",
    b"BITS_POST ",
    b"RPC_IN_DATA ",
    b"RPC_OUT_DATA ",
];

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n";

pub(super) fn first(first: &First<'_>) -> Match {
    let bytes = first.bytes;
    // Nearly everything that is not HTTP ends here, without a comparison for each method.
    let Some(letter) = bytes.first() else {
        return Match::Maybe;
    };
    if !letter.is_ascii_uppercase() {
        return Match::No;
    }
    let mut best = starts(bytes, b"HTTP/1.").max(starts(bytes, PREFACE));
    for method in METHODS {
        if method[0] != *letter {
            continue;
        }
        best = best.max(match starts(bytes, method) {
            // A target: a path, a star, a URI or an authority, never a SIP address. RFC 9112 §3
            // lets more than one space be before it.
            Match::Yes => match bytes[method.len()..].trim_ascii_start().first() {
                None => Match::Maybe,
                Some(byte) if byte.is_ascii_graphic() => Match::Yes,
                Some(_) => Match::No,
            },
            other => other,
        });
    }
    best
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Start,
    Request,
    Response,
    /// A response before the final one (RFC 9110 §15.2).
    Provisional,
    Over,
}

struct Side {
    at: At,
    provisional: u8,
    headers: u16,
    failed: Option<Reason>,
    line: Text<LINE_MAX>,
}

/// The state of a connection.
pub(crate) struct Http {
    sides: [Side; 2],
}

impl Http {
    pub(super) fn new() -> Http {
        let side = || Side {
            at: At::Start,
            provisional: 0,
            headers: 0,
            failed: None,
            line: Text::EMPTY,
        };
        Http {
            sides: [side(), side()],
        }
    }

    /// As new, without touching what lines leave behind.
    pub(super) fn clear(&mut self) {
        for side in &mut self.sides {
            let Side {
                at,
                provisional,
                headers,
                failed,
                line,
            } = side;
            (*at, *provisional, *headers, *failed) = (At::Start, 0, 0, None);
            line.clear();
        }
    }

    fn progress(&self) -> Progress {
        if self.sides.iter().any(|side| side.at != At::Over) {
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
        self.at = At::Over;
        self.failed = Some(reason);
    }

    fn start(&mut self, out: &mut dyn Sink) -> Result<(), Reason> {
        let line = self.line.bytes();
        if let Some(rest) = line.strip_prefix(b"HTTP/1.") {
            // Version, status, reason phrase.
            let status = rest.get(1..5).and_then(|bytes| bytes.strip_prefix(b" "));
            let status = status.and_then(number).ok_or(Reason::BadValue)?;
            out.named(Protocol::Http);
            self.provisional = self.provisional.saturating_add(1);
            if (100..200).contains(&status) && status != 101 {
                self.at = At::Provisional;
                return Ok(());
            }
            self.at = At::Response;
            out.field(Field::HttpStatus, Value::Number(status));
            return Ok(());
        }
        if line == PREFACE.trim_ascii() {
            out.named(Protocol::Http2);
            self.at = At::Over;
            return Ok(());
        }
        // RFC 9112 §2.2: an empty line or two before the request are passed over.
        if line.is_empty() && !self.line.is_cut() {
            return Ok(());
        }
        let (method, rest) = match line.iter().position(|byte| *byte == b' ') {
            Some(end) => (line.get(..end), line.get(end..).unwrap_or(&[])),
            None => (None, &[][..]),
        };
        let mut words = rest.trim_ascii_start().splitn(2, |byte| *byte == b' ');
        let target = words.next().filter(|target| !target.is_empty());
        let (Some(method), Some(target)) = (method, target) else {
            return Err(Reason::BadValue);
        };
        if method.is_empty()
            || !method
                .iter()
                .all(|byte| byte.is_ascii_uppercase() || b"-_".contains(byte))
        {
            return Err(Reason::BadValue);
        }
        out.named(Protocol::Http);
        out.field(Field::HttpMethod, Value::text(method));
        out.field(
            Field::HttpPath,
            Value::Text {
                bytes: target,
                is_cut: self.line.is_cut() && words.next().is_none(),
            },
        );
        self.at = At::Request;
        Ok(())
    }

    fn header(&mut self, out: &mut dyn Sink) {
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
        for (name, field) in fields {
            if let Some(bytes) = header(self.line.bytes(), name) {
                let is_cut = self.line.is_cut();
                out.field(*field, Value::Text { bytes, is_cut });
            }
        }
    }

    fn line(&mut self, out: &mut dyn Sink) -> Result<(), Reason> {
        self.headers += 1;
        if self.headers > HEADER_MAX || self.provisional > PROVISIONAL_MAX {
            return Err(Reason::TooLong);
        }
        if self.at == At::Start {
            return self.start(out);
        }
        if !self.line.is_empty() {
            self.header(out);
        } else {
            self.at = match self.at {
                At::Provisional => At::Start,
                _ => At::Over,
            };
        }
        Ok(())
    }
}

impl Decoder for Http {
    fn feed(&mut self, origin: Origin, input: &[u8], out: &mut dyn Sink) -> Progress {
        let side = &mut self.sides[origin.from as usize];
        let mut input = input;
        while side.at != At::Over && side.line.line(&mut input) {
            if let Err(reason) = side.line(out) {
                side.fail(reason);
            }
            side.line.clear();
        }
        self.progress()
    }

    fn wants(&self, from: super::Direction) -> bool {
        self.sides[from as usize].at != At::Over
    }

    fn gap(&mut self, from: super::Direction, _len: u32, out: &mut dyn Sink) -> Progress {
        let side = &mut self.sides[from as usize];
        if side.at == At::Over {
            return self.progress();
        }
        // Of a start line that was cut off, the words that are whole are worth something.
        let words = side.line.bytes().split(|byte| *byte == b' ');
        let word_count = words.filter(|word| !word.is_empty()).count();
        if side.at == At::Start && word_count >= 3 && side.start(out).is_ok() {
            side.line.clear();
        }
        side.fail(Reason::Gap);
        self.progress()
    }
}
