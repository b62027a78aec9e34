//! RTSP over TCP (RFC 2326, RFC 7826): each request with its response, matched by CSeq; a few
//! headers of the first ones.
//!
//! Either side may send requests. Bodies, and media interleaved with the messages (RFC 2326
//! §10.12), are skipped by their lengths.

use super::{Context, Decode, Direction, First, Match, Progress, Reason, starts};
use crate::field::{Field, FieldSink, Value};
use crate::identify::Pattern;
use crate::text::{Text, header, number};

/// Maximum number of bytes read of a line.
const LINE_MAX: usize = 256;
/// Maximum number of header lines of a message.
const HEADER_MAX: u16 = 64;
/// Maximum number of pending requests.
const ASKED_MAX: usize = 4;

const VERSION: &[u8] = b"RTSP/";
/// First byte of an interleaved media packet, followed by a channel and two bytes of length.
const INTERLEAVED: u8 = b'$';

/// A response, and the methods of both versions.
pub(super) const STARTS: &[Pattern] = &[
    Pattern::Text(VERSION),
    Pattern::Text(b"OPTIONS "),
    Pattern::Text(b"DESCRIBE "),
    Pattern::Text(b"ANNOUNCE "),
    Pattern::Text(b"SETUP "),
    Pattern::Text(b"PLAY "),
    Pattern::Text(b"PAUSE "),
    Pattern::Text(b"RECORD "),
    Pattern::Text(b"REDIRECT "),
    Pattern::Text(b"TEARDOWN "),
    Pattern::Text(b"GET_PARAMETER "),
    Pattern::Text(b"SET_PARAMETER "),
    Pattern::Text(b"PLAY_NOTIFY "),
];

/// Possible beginnings of a target; a star stands for the server itself.
const TARGETS: &[&[u8]] = &[b"rtsp://", b"rtspu://", b"rtsps://", b"* RTSP/"];

/// Checks that a method is followed by an RTSP URI.
pub(super) fn first(first: &First<'_>) -> Match {
    if starts(first.bytes, VERSION) == Match::Yes {
        let digit = first.bytes.get(VERSION.len());
        return match digit {
            None => Match::Maybe,
            Some(b'1' | b'2') => Match::Yes,
            Some(_) => Match::No,
        };
    }
    let Some(end) = first.bytes.iter().position(|byte| *byte == b' ') else {
        return Match::Maybe;
    };
    let target = first.bytes.get(end + 1..).unwrap_or(&[]);
    let targets = TARGETS.iter().map(|wanted| starts(target, wanted));
    targets.max().unwrap_or(Match::No)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Between messages.
    Start,
    /// Number of bytes of a media packet's head still to come.
    Head(u8),
    Request,
    Response,
    /// A body, or media.
    Body,
    Over,
}

struct Side {
    at: At,
    headers: u16,
    /// CSeq of the message being read.
    sequence: Option<u32>,
    status: u16,
    /// Number of bytes of a body or media packet still to come; before that, its announced length.
    left: u32,
    line: Text<LINE_MAX>,
}

/// A request that waits for its response.
struct Asked {
    from: Direction,
    is_first: bool,
    is_open: bool,
    sequence: Option<u32>,
    method: Text<16>,
    url: Text<128>,
}

/// State of a connection.
pub(crate) struct Rtsp {
    sides: [Side; 2],
    /// Pending requests in order; the oldest is replaced.
    asked: [Asked; ASKED_MAX],
    asked_count: u32,
    answered_count: u32,
    /// Whether it may be read past the first transaction; `None`: not requested yet.
    follows: Option<bool>,
}

impl Side {
    fn clear(&mut self) {
        let Side {
            at,
            headers,
            sequence,
            status,
            left,
            line,
        } = self;
        (*at, *headers, *sequence, *status, *left) = (At::Start, 0, None, 0, 0);
        line.clear();
    }

    fn pass(&mut self, len: u32) {
        self.left = self.left.saturating_sub(len);
        if self.left == 0 {
            self.at = At::Start;
        }
    }

    fn header(&mut self, out: &mut dyn FieldSink) {
        let line = self.line.bytes();
        if let Some(digits) = header(line, b"content-length") {
            // An invalid length makes what follows unreadable, which is detected there.
            self.left = number(digits).unwrap_or(0) as u32;
        } else if let Some(digits) = header(line, b"cseq") {
            self.sequence = number(digits).map(|number| number as u32);
        }
        let (name, field): (&[u8], Field) = match self.at {
            At::Request => (b"user-agent", Field::RtspAgent),
            _ => (b"server", Field::RtspServer),
        };
        if let Some(bytes) = header(line, name) {
            let is_cut = self.line.is_cut();
            out.field(field, Value::Text { bytes, is_cut });
        }
    }
}

/// Splits a request line: method, target, and whether anything follows them.
fn words(line: &[u8]) -> Option<(&[u8], &[u8], bool)> {
    let mut words = line.splitn(3, |byte| *byte == b' ');
    let (method, target) = (words.next()?, words.next()?);
    let is_method = |byte: &u8| byte.is_ascii_uppercase() || *byte == b'_';
    let is_there = !method.is_empty() && !target.is_empty() && method.iter().all(is_method);
    is_there.then_some((method, target, words.next().is_some()))
}

impl Rtsp {
    /// Handles a complete start line.
    fn start(&mut self, from: Direction, out: &mut dyn FieldSink) -> Result<(), Reason> {
        let side = &mut self.sides[from as usize];
        let line = side.line.bytes();
        // RFC 2326 §4.1: empty lines before a message are skipped.
        if line.is_empty() {
            return Ok(());
        }
        (side.headers, side.sequence, side.left) = (1, None, 0);
        if let Some(rest) = line.strip_prefix(VERSION) {
            let mut words = rest.split(|byte| *byte == b' ');
            let digits = words.nth(1).filter(|digits| digits.len() == 3);
            side.status = digits.and_then(number).ok_or(Reason::BadValue)? as u16;
            side.at = At::Response;
            return Ok(());
        }
        let (method, url, has_more) = words(line).ok_or(Reason::BadValue)?;
        let is_cut = side.line.is_cut() && !has_more;
        side.at = At::Request;
        // After an answer, the first request was not seen.
        let is_first = self.asked_count == 0 && self.answered_count == 0;
        if is_first {
            out.field(Field::RtspMethod, Value::text(method));
            out.field(Field::RtspUrl, Value::Text { bytes: url, is_cut });
        }
        let asked = &mut self.asked[self.asked_count as usize % ASKED_MAX];
        if asked.is_open {
            report(asked, None, out);
            self.answered_count = self.answered_count.saturating_add(1);
        }
        self.asked_count = self.asked_count.wrapping_add(1);
        (asked.from, asked.is_first, asked.is_open) = (from, is_first, true);
        asked.sequence = None;
        asked.method.clear();
        asked.url.clear();
        asked.method.push(method);
        asked.url.push(url);
        Ok(())
    }

    /// Handles the end of a message's headers.
    fn headers_over(&mut self, from: Direction, out: &mut dyn FieldSink) {
        let side = &mut self.sides[from as usize];
        let (is_request, sequence, status) = (side.at == At::Request, side.sequence, side.status);
        side.at = if side.left == 0 { At::Start } else { At::Body };
        if is_request {
            let last = self.asked_count.wrapping_sub(1) as usize % ASKED_MAX;
            self.asked[last].sequence = sequence;
            return;
        }
        // A provisional response is followed by the final one.
        if status < 200 {
            return;
        }
        let asker = from.other();
        let of_asker = |asked: &&mut Asked| asked.is_open && asked.from == asker;
        let asked = self.asked.iter_mut().filter(of_asker);
        match { asked }.find(|asked| asked.sequence == sequence) {
            Some(asked) => report(asked, Some(status), out),
            None => {
                // The request was not seen, or has been reported.
                let is_first = self.asked_count == 0 && self.answered_count == 0;
                let status = Value::Number(status.into());
                if is_first {
                    out.field(Field::RtspStatus, status);
                }
                out.transaction(is_first, &[(Field::RtspStatus, status)]);
            }
        }
        self.answered_count = self.answered_count.saturating_add(1);
    }

    /// Handles one complete line.
    fn line(&mut self, from: Direction, out: &mut dyn FieldSink) -> Result<(), Reason> {
        let side = &mut self.sides[from as usize];
        if side.at == At::Start {
            return self.start(from, out);
        }
        if side.line.bytes().is_empty() {
            self.headers_over(from, out);
            return Ok(());
        }
        side.headers += 1;
        if side.headers > HEADER_MAX {
            return Err(Reason::TooLong);
        }
        side.header(out);
        Ok(())
    }

    /// Takes one step within the input. Returns false if there is too little of it.
    fn step(
        &mut self,
        from: Direction,
        input: &mut &[u8],
        out: &mut dyn FieldSink,
    ) -> Result<bool, Reason> {
        let side = &mut self.sides[from as usize];
        let Some((byte, rest)) = input.split_first() else {
            return Ok(false);
        };
        match side.at {
            At::Over => return Ok(false),
            At::Body => {
                let len = (side.left as usize).min(input.len());
                side.pass(len as u32);
                *input = input.get(len..).unwrap_or(&[]);
            }
            At::Head(count) => {
                side.left = side.left << 8 & 0xffff | u32::from(*byte);
                *input = rest;
                side.at = match (count, side.left) {
                    (1, 0) => At::Start,
                    (1, _) => At::Body,
                    _ => At::Head(count - 1),
                };
            }
            At::Start if side.line.is_empty() && *byte == INTERLEAVED => {
                (side.at, side.left) = (At::Head(3), 0);
                *input = rest;
            }
            At::Start | At::Request | At::Response => {
                if !side.line.line(input) {
                    return Ok(false);
                }
                let reported = self.line(from, out);
                self.sides[from as usize].line.clear();
                reported?;
            }
        }
        Ok(true)
    }

    fn progress(&mut self, context: &mut Context<'_>) -> Progress {
        if self.sides.iter().all(|side| side.at == At::Over) {
            return Progress::Done;
        }
        if self.answered_count == 0 || *self.follows.get_or_insert_with(|| context.follow()) {
            return Progress::Need(1);
        }
        Progress::Done
    }
}

/// Reports a request with its response, if it has one.
fn report(asked: &mut Asked, status: Option<u16>, out: &mut dyn FieldSink) {
    asked.is_open = false;
    let (method, url) = (asked.method.value(), asked.url.value());
    let fields = [
        (Field::RtspMethod, method),
        (Field::RtspUrl, url),
        (Field::RtspStatus, Value::Number(status.unwrap_or(0).into())),
    ];
    let count = match status {
        Some(_) => 3,
        None => 2,
    };
    if asked.is_first && count == 3 {
        out.field(Field::RtspStatus, fields[2].1);
    }
    out.transaction(asked.is_first, &fields[..count]);
}

impl Decode for Rtsp {
    fn new() -> Rtsp {
        let side = || Side {
            at: At::Start,
            headers: 0,
            sequence: None,
            status: 0,
            left: 0,
            line: Text::EMPTY,
        };
        Rtsp {
            sides: [side(), side()],
            asked: core::array::from_fn(|_| Asked {
                from: Direction::Forward,
                is_first: false,
                is_open: false,
                sequence: None,
                method: Text::EMPTY,
                url: Text::EMPTY,
            }),
            asked_count: 0,
            answered_count: 0,
            follows: None,
        }
    }

    fn clear(&mut self) {
        let Rtsp {
            sides,
            asked,
            asked_count,
            answered_count,
            follows,
        } = self;
        (*asked_count, *answered_count, *follows) = (0, 0, None);
        sides.iter_mut().for_each(Side::clear);
        // The rest of a request is written before it is opened.
        for asked in asked {
            asked.is_open = false;
        }
    }

    fn feed(
        &mut self,
        context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        let from = context.origin.from;
        let mut rest = input;
        loop {
            match self.step(from, &mut rest, out) {
                Ok(true) => {}
                Ok(false) => return self.progress(context),
                // The other side continues to be read.
                Err(_) => self.sides[from as usize].at = At::Over,
            }
            if self.progress(context) == Progress::Done {
                return Progress::Done;
            }
        }
    }

    fn wants(&self, from: Direction) -> bool {
        self.sides[from as usize].at != At::Over
    }

    fn skips(&self, from: Direction) -> u32 {
        let side = &self.sides[from as usize];
        match side.at {
            At::Body => side.left,
            _ => 0,
        }
    }

    fn skip(&mut self, from: Direction, len: u32) {
        self.sides[from as usize].pass(len);
    }

    fn gap(&mut self, from: Direction, len: u32, _out: &mut dyn FieldSink) -> Progress {
        let side = &mut self.sides[from as usize];
        match side.at {
            At::Body if len <= side.left => side.pass(len),
            _ => side.at = At::Over,
        }
        match self.sides.iter().all(|side| side.at == At::Over) {
            true => Progress::Done,
            false => Progress::Need(1),
        }
    }

    fn end(&mut self, out: &mut dyn FieldSink) {
        // Oldest first.
        for at in 0..ASKED_MAX as u32 {
            let at = self.asked_count.wrapping_add(at) as usize % ASKED_MAX;
            if self.asked[at].is_open {
                report(&mut self.asked[at], None, out);
            }
        }
    }
}
