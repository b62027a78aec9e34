//! HTTP/1 (RFC 9112): the first request and the first final response, then each request with its
//! response.
//!
//! Start lines and a few headers are read line by line; lines longer than [`side::LINE_MAX`] are
//! truncated. Bodies are skipped by their length (§6.3). After a successful CONNECT the connection
//! carries any protocol (RFC 9110 §9.3.6); data that the client sends before the response are kept,
//! up to [`side::LINE_MAX`] bytes. HTTP/2 without TLS is recognised by its preface and named, but
//! not decoded.

mod side;

use side::{At, Side, words};

use super::{
    Context, Decode, Direction, Early, First, Match, Next, Progress, ProtocolSwitch, Reason, starts,
};
use crate::field::{Field, FieldSink, Protocol, Value};
use crate::identify::Pattern;
use crate::text::{Text, header, number};

/// Maximum number of header lines read: as many as fit in the bytes that are read of a flow.
const HEADER_MAX: u16 = 1 << 14;
/// Maximum number of provisional responses before the final one.
const PROVISIONAL_MAX: u8 = 8;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n";

/// A response, HTTP/2, and methods: those of the IANA registry that occur in practice, and some of
/// UPnP and others.
pub(super) const STARTS: &[Pattern] = &[
    Pattern::Text(b"HTTP/1."),
    Pattern::Text(PREFACE),
    Pattern::Text(b"GET "),
    Pattern::Text(b"POST "),
    Pattern::Text(b"HEAD "),
    Pattern::Text(b"PUT "),
    Pattern::Text(b"DELETE "),
    Pattern::Text(b"OPTIONS "),
    Pattern::Text(b"CONNECT "),
    Pattern::Text(b"TRACE "),
    Pattern::Text(b"PATCH "),
    Pattern::Text(b"PROPFIND "),
    Pattern::Text(b"PROPPATCH "),
    Pattern::Text(b"MKCOL "),
    Pattern::Text(b"COPY "),
    Pattern::Text(b"MOVE "),
    Pattern::Text(b"LOCK "),
    Pattern::Text(b"UNLOCK "),
    Pattern::Text(b"REPORT "),
    Pattern::Text(b"SEARCH "),
    Pattern::Text(b"NOTIFY "),
    Pattern::Text(b"SUBSCRIBE "),
    Pattern::Text(b"UNSUBSCRIBE "),
    Pattern::Text(b"CCM_POST "),
    Pattern::Text(b"BITS_POST "),
    Pattern::Text(b"RPC_IN_DATA "),
    Pattern::Text(b"RPC_OUT_DATA "),
];

/// SIP (RFC 3261 §19.1, RFC 3966) and RTSP (RFC 2326 §3.2, §6.1) share some methods with HTTP.
const OTHERS: &[&[u8]] = &[b"sip:", b"sips:", b"tel:", b"rtsp:", b"rtspu:", b"* RTSP/"];

/// Checks that a method is followed by a target: a path, a star, a URI or an authority, but not a
/// SIP or RTSP URI.
pub(super) fn first(first: &First<'_>) -> Match {
    let bytes = first.bytes;
    let is_other = |text| starts(bytes, text) == Match::Yes;
    if is_other(b"HTTP/1.") || is_other(PREFACE) {
        return Match::Yes;
    }
    let Some(end) = bytes.iter().position(|byte| *byte == b' ') else {
        return Match::Maybe;
    };
    // RFC 9112 §3 allows several spaces before it.
    let target = bytes[end..].trim_ascii_start();
    match target.first() {
        None => Match::Maybe,
        Some(byte) if !byte.is_ascii_graphic() => Match::No,
        Some(_) => {
            let others = OTHERS.iter().map(|other| starts(target, other));
            match others.max() {
                Some(Match::Yes) => Match::No,
                Some(Match::Maybe) => Match::Maybe,
                _ => Match::Yes,
            }
        }
    }
}

/// Maximum number of pending requests.
const ASKED_MAX: usize = 4;
/// Maximum number of earlier requests of which only the method is remembered.
const GIVEN_UP_MAX: u32 = u64::BITS;

/// A request that waits for its response.
struct Asked {
    is_first: bool,
    method: Text<16>,
    host: Text<64>,
    path: Text<128>,
}

/// Effect of a message's last header on the connection.
enum Outcome {
    GoesOn,
    /// HTTP has ended.
    Over,
    /// A CONNECT was accepted or refused.
    Tunnel,
    Refused,
}

/// State of a connection.
pub(crate) struct Http {
    sides: [Side; 2],
    asked: [Asked; ASKED_MAX],
    /// Number of requests that have begun, or that were answered (or abandoned), since the start.
    asked_count: u32,
    answered_count: u32,
    /// Number of earlier requests that were reported without their responses, which are still to
    /// come, and a bit set of those that were HEAD: the oldest is the lowest bit.
    given_up_count: u32,
    given_up_heads: u64,
    /// Whether both sides may be read past their first messages; `None`: not requested yet.
    follows: Option<bool>,
    is_over: bool,
}

// The documentation states three states per page.
const _: () = assert!(super::arena::slots_of::<Http>() >= 3);

impl Http {
    fn start(&mut self, at: usize, out: &mut dyn FieldSink) -> Result<(), Reason> {
        let side = &mut self.sides[at];
        let line = side.line.bytes();
        (side.headers, side.length, side.is_chunked) = (1, None, false);
        if let Some(rest) = line.strip_prefix(b"HTTP/1.") {
            // Version, status, reason phrase.
            let status = rest.get(1..5).and_then(|bytes| bytes.strip_prefix(b" "));
            let status = status.and_then(number).ok_or(Reason::BadValue)?;
            out.named(Protocol::Http);
            if (100..200).contains(&status) && status != 101 {
                side.provisional = side.provisional.saturating_add(1);
                side.at = At::Provisional;
                return match side.provisional > PROVISIONAL_MAX {
                    true => Err(Reason::TooLong),
                    false => Ok(()),
                };
            }
            side.provisional = 0;
            side.at = At::Response;
            side.messages = side.messages.saturating_add(1);
            side.status = status as u16;
            if side.messages == 1 {
                out.field(Field::HttpStatus, Value::Number(status));
            }
            return Ok(());
        }
        if line == PREFACE.trim_ascii() {
            out.named(Protocol::Http2);
            side.at = At::Over;
            return Ok(());
        }
        // RFC 9112 §2.2: empty lines before the request are skipped.
        if line.is_empty() && !side.line.is_cut() {
            return Ok(());
        }
        words(line)?;
        self.make_room(out);
        let side = &mut self.sides[at];
        let (method, target, has_more) = words(side.line.bytes())?;
        let is_cut = side.line.is_cut() && !has_more;
        side.messages = side.messages.saturating_add(1);
        side.at = At::Request;
        if side.messages == 1 {
            out.named(Protocol::Http);
            out.field(Field::HttpMethod, Value::text(method));
            let bytes = target;
            out.field(Field::HttpPath, Value::Text { bytes, is_cut });
        }
        let is_first = side.messages == 1;
        let asked = &mut self.asked[self.asked_count as usize % ASKED_MAX];
        self.asked_count = self.asked_count.wrapping_add(1);
        asked.is_first = is_first;
        asked.method.clear();
        asked.host.clear();
        asked.path.clear();
        asked.method.push(method);
        asked.path.push(target);
        Ok(())
    }

    /// Reports the oldest request without its response if the queue of pending ones is full.
    fn make_room(&mut self, out: &mut dyn FieldSink) {
        if self.asked_count.wrapping_sub(self.answered_count) < ASKED_MAX as u32 {
            return;
        }
        let oldest = &self.asked[self.answered_count as usize % ASKED_MAX];
        let is_head = u64::from(oldest.method.bytes() == b"HEAD");
        let bit = is_head.checked_shl(self.given_up_count).unwrap_or(0);
        self.given_up_heads |= bit;
        self.given_up_count = self.given_up_count.saturating_add(1);
        self.answered(None, out);
    }

    /// Handles a response to a request that was reported without it.
    fn answered_late(&mut self) -> Outcome {
        let is_head = self.given_up_heads & 1 != 0;
        self.given_up_heads >>= 1;
        self.given_up_count -= 1;
        match is_head {
            true => Outcome::GoesOn,
            false => Outcome::Over,
        }
    }

    /// Ends a request with its response, or without one.
    fn answered(&mut self, answer: Option<(bool, u16)>, out: &mut dyn FieldSink) -> Outcome {
        let status = answer.map(|(_, status)| Value::Number(status.into()));
        if self.asked_count == self.answered_count {
            // The request was not seen.
            if let (Some(status), Some((is_first, _))) = (status, answer) {
                out.transaction(is_first, &[(Field::HttpStatus, status)]);
            }
            return Outcome::GoesOn;
        }
        let asked = &self.asked[self.answered_count as usize % ASKED_MAX];
        self.answered_count = self.answered_count.wrapping_add(1);
        let all = [
            (Field::HttpMethod, Some(asked.method.value())),
            (
                Field::HttpHost,
                (!asked.host.is_empty()).then(|| asked.host.value()),
            ),
            (Field::HttpPath, Some(asked.path.value())),
            (Field::HttpStatus, status),
        ];
        let mut fields = [(Field::HttpMethod, asked.method.value()); 4];
        let mut count = 0;
        for (field, value) in all {
            if let (Some(value), Some(place)) = (value, fields.get_mut(count)) {
                *place = (field, value);
                count += 1;
            }
        }
        out.transaction(asked.is_first, &fields[..count]);
        match answer {
            Some((_, 200..300)) if asked.method.bytes() == b"CONNECT" => Outcome::Tunnel,
            Some(_) if asked.method.bytes() == b"HEAD" => Outcome::GoesOn,
            _ => Outcome::Over,
        }
    }

    /// Handles the end of a message's headers.
    fn headers_over(&mut self, at: usize, out: &mut dyn FieldSink) -> Outcome {
        let side = &mut self.sides[at];
        match side.at {
            At::Provisional => {
                side.at = At::Start;
                return Outcome::GoesOn;
            }
            At::Request => {
                let last = self.asked_count.wrapping_sub(1) as usize % ASKED_MAX;
                side.is_selected = true;
                if self.asked[last].method.bytes() == b"CONNECT" {
                    side.at = At::Tunnel;
                } else if side.begin_body().is_none() {
                    // RFC 9112 §6.3: a request without a length has no body.
                    side.at = At::Start;
                }
                return Outcome::GoesOn;
            }
            _ => {}
        }
        side.is_selected = true;
        let (is_first, status) = (side.messages == 1, side.status);
        let had_request = self.asked_count != self.answered_count;
        if self.given_up_count > GIVEN_UP_MAX {
            // Whether it has a body depends on its request, which is not known any more.
            side.at = At::Over;
            return Outcome::GoesOn;
        }
        let outcome = match self.given_up_count {
            0 => self.answered(Some((is_first, status)), out),
            _ => self.answered_late(),
        };
        let has_no_body = had_request && matches!(outcome, Outcome::GoesOn);
        let side = &mut self.sides[at];
        if matches!(outcome, Outcome::Tunnel) {
            return Outcome::Tunnel;
        }
        if status == 101 {
            return Outcome::Over;
        }
        side.at = At::Start;
        if !has_no_body && !matches!(status, 204 | 304) && side.begin_body().is_none() {
            return Outcome::Over;
        }
        // CONNECT is the last request that was sent. A client whose request was refused may try
        // again.
        let is_refused = had_request && self.asked_count == self.answered_count;
        if is_refused && self.sides[1 - at].at == At::Tunnel {
            return Outcome::Refused;
        }
        Outcome::GoesOn
    }

    /// Handles a refused CONNECT: what its client sent after it is HTTP.
    fn refused(
        &mut self,
        at: usize,
        context: &mut Context<'_>,
        out: &mut dyn FieldSink,
    ) -> Progress {
        let side = &mut self.sides[at];
        side.at = At::Start;
        let held = side.line.clone();
        side.line.clear();
        let progress = match self.read(at, context, held.bytes(), out) {
            // Both sides send requests and responses: they cannot be matched.
            Progress::ProtocolSwitch(_) => {
                self.is_over = true;
                Progress::Done
            }
            progress => progress,
        };
        let from = [Direction::Forward, Direction::Reverse][at & 1];
        match (progress, held.is_cut()) {
            (Progress::Need(_), true) => self.gap(from, 1, out),
            (progress, _) => progress,
        }
    }

    /// Handles one complete line.
    fn line(&mut self, at: usize, out: &mut dyn FieldSink) -> Result<Outcome, Reason> {
        let side = &mut self.sides[at];
        side.headers = side.headers.saturating_add(1);
        if side.headers > HEADER_MAX {
            return Err(Reason::TooLong);
        }
        match side.at {
            At::Start => self.start(at, out)?,
            At::ChunkLen => {
                side.headers = 0;
                side.chunk()?;
            }
            At::ChunkEnd if side.line.is_empty() => side.at = At::ChunkLen,
            At::ChunkEnd => return Err(Reason::BadLength),
            At::Trailer if side.line.is_empty() => side.at = At::Start,
            At::Trailer => {}
            _ if side.line.is_empty() => return Ok(self.headers_over(at, out)),
            _ => {
                side.header(out);
                if side.at == At::Request
                    && let Some(host) = header(side.line.bytes(), b"host")
                {
                    let last = self.asked_count.wrapping_sub(1) as usize % ASKED_MAX;
                    self.asked[last].host.clear();
                    self.asked[last].host.push(host);
                }
            }
        }
        Ok(Outcome::GoesOn)
    }

    /// Reads the next bytes of a side.
    fn read(
        &mut self,
        at: usize,
        context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        let mut rest = input;
        while let Some(next) = rest.first().copied() {
            let side = &mut self.sides[at];
            if side.is_lost(next) {
                side.at = At::Over;
            }
            match side.at {
                At::Over => break,
                At::Tunnel => {
                    if !side.line.is_cut() {
                        side.line.push(rest);
                    }
                    break;
                }
                At::Body | At::Chunk => {
                    let len = side.left.min(rest.len() as u64);
                    rest = rest.get(len as usize..).unwrap_or(&[]);
                    side.pass(len);
                    continue;
                }
                _ => {}
            }
            if !side.line.line(&mut rest) {
                break;
            }
            let outcome = self.line(at, out);
            self.sides[at].line.clear();
            match outcome {
                Ok(Outcome::GoesOn) => {}
                Ok(Outcome::Over) => {
                    self.is_over = true;
                    self.sides[at].at = At::Over;
                }
                Ok(Outcome::Tunnel) => {
                    let used = input.len() - rest.len();
                    let next = Next::Identify;
                    return Progress::ProtocolSwitch(ProtocolSwitch { next, used });
                }
                Ok(Outcome::Refused) => {
                    let progress = self.refused(1 - at, context, out);
                    if !matches!(progress, Progress::Need(_)) {
                        return progress;
                    }
                }
                Err(reason) => self.sides[at].fail(reason),
            }
            let progress = self.progress(context);
            if !matches!(progress, Progress::Need(_)) {
                return progress;
            }
        }
        self.progress(context)
    }

    fn progress(&mut self, context: &mut Context<'_>) -> Progress {
        let [one, other] = &self.sides;
        let is_read = |side: &Side| side.is_selected || side.at == At::Over;
        if !is_read(one) || !is_read(other) {
            // With asymmetric routing only one direction is seen, and its transactions count.
            let has_response = |side: &Side| side.is_selected && side.status != 0;
            if self.answered_count != 0 || has_response(one) || has_response(other) {
                self.follows.get_or_insert_with(|| context.follow());
            }
            return Progress::Need(1);
        }
        if let Some(reason) = self.sides.iter().find_map(|side| side.failed) {
            return Progress::Reject(reason);
        }
        // The requesting side has ended and all requests are answered, or the responding side has
        // ended.
        let is_over = |side: &Side| side.at == At::Over;
        let waits = self.asked_count != self.answered_count && self.asked_count != 0;
        let ends = self.is_over || is_over(one) && is_over(other);
        if ends || (is_over(one) || is_over(other)) && !waits {
            return Progress::Done;
        }
        match *self.follows.get_or_insert_with(|| context.follow()) {
            true => Progress::Need(1),
            false => Progress::Done,
        }
    }
}

impl Decode for Http {
    fn new() -> Http {
        Http {
            sides: [Side::NEW, Side::NEW],
            asked: core::array::from_fn(|_| Asked {
                is_first: false,
                method: Text::EMPTY,
                host: Text::EMPTY,
                path: Text::EMPTY,
            }),
            asked_count: 0,
            answered_count: 0,
            given_up_count: 0,
            given_up_heads: 0,
            follows: None,
            is_over: false,
        }
    }

    fn clear(&mut self) {
        let Http {
            sides,
            asked: _,
            asked_count,
            answered_count,
            given_up_count,
            given_up_heads,
            follows,
            is_over,
        } = self;
        (*given_up_count, *given_up_heads) = (0, 0);
        (*asked_count, *answered_count, *follows, *is_over) = (0, 0, None, false);
        for side in sides {
            side.clear();
        }
    }

    fn feed(
        &mut self,
        context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        self.read(context.origin.from as usize, context, input, out)
    }

    fn wants(&self, from: Direction) -> bool {
        self.sides[from as usize].at != At::Over
    }

    fn skips(&self, from: Direction) -> u32 {
        let side = &self.sides[from as usize];
        match side.at {
            At::Body | At::Chunk => side.left.min(u32::MAX.into()) as u32,
            _ => 0,
        }
    }

    fn skip(&mut self, from: Direction, len: u32) {
        self.sides[from as usize].pass(len.into());
    }

    fn early(&self, from: Direction) -> Early<'_> {
        let side = &self.sides[from as usize];
        let is_tunnel = side.at == At::Tunnel;
        Early {
            bytes: if is_tunnel { side.line.bytes() } else { &[] },
            is_cut: is_tunnel && side.line.is_cut(),
        }
    }

    fn gap(&mut self, from: Direction, len: u32, out: &mut dyn FieldSink) -> Progress {
        let at = from as usize;
        let side = &mut self.sides[at];
        match side.at {
            At::Body | At::Chunk if u64::from(len) <= side.left => side.pass(len.into()),
            At::Tunnel => side.line.cut(),
            At::Over => {}
            _ => {
                // The complete words of a truncated start line are still useful.
                let words = side.line.bytes().split(|byte| *byte == b' ');
                let word_count = words.filter(|word| !word.is_empty()).count();
                if side.at == At::Start
                    && side.messages == 0
                    && word_count >= 3
                    && self.start(at, out).is_ok()
                {
                    self.sides[at].line.clear();
                }
                self.sides[at].fail(Reason::Gap);
            }
        }
        let [one, other] = &self.sides;
        let is_read = |side: &Side| side.is_selected || side.at == At::Over;
        match is_read(one) && is_read(other) && (one.at == At::Over || other.at == At::Over) {
            false => Progress::Need(1),
            true => match self.sides.iter().find_map(|side| side.failed) {
                Some(reason) => Progress::Reject(reason),
                None => Progress::Done,
            },
        }
    }

    fn end(&mut self, out: &mut dyn FieldSink) {
        while self.asked_count != self.answered_count {
            self.answered(None, out);
        }
    }
}
