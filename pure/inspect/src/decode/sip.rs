//! SIP (RFC 3261) over UDP and TCP: start line and a few headers of the first request and response.

use super::{Context, Decode, First, Match, Progress, Reason, starts};
use crate::field::{Field, FieldSink, Protocol, Value};
use crate::identify::Pattern;
use crate::text::{Text, header, number};

const LINE_MAX: usize = 256;
const HEADER_MAX: u16 = 64;

const SCHEMES: &[&[u8]] = &[b"sip:", b"sips:", b"tel:"];

/// A response, and the methods of RFC 3261, 3262, 3265, 3311, 3428, 3515, 3903, 6086.
pub(super) const STARTS: &[Pattern] = &[
    Pattern::Text(b"SIP/2.0 "),
    Pattern::Text(b"INVITE "),
    Pattern::Text(b"REGISTER "),
    Pattern::Text(b"OPTIONS "),
    Pattern::Text(b"ACK "),
    Pattern::Text(b"BYE "),
    Pattern::Text(b"CANCEL "),
    Pattern::Text(b"PRACK "),
    Pattern::Text(b"SUBSCRIBE "),
    Pattern::Text(b"NOTIFY "),
    Pattern::Text(b"UPDATE "),
    Pattern::Text(b"MESSAGE "),
    Pattern::Text(b"REFER "),
    Pattern::Text(b"PUBLISH "),
    Pattern::Text(b"INFO "),
];

/// Checks that a method is followed by a SIP or tel URI.
pub(super) fn first(first: &First<'_>) -> Match {
    if starts(first.bytes, b"SIP/2.0 ") == Match::Yes {
        return Match::Yes;
    }
    let Some(end) = first.bytes.iter().position(|byte| *byte == b' ') else {
        return Match::Maybe;
    };
    let target = &first.bytes[end + 1..];
    let schemes = SCHEMES.iter().map(|scheme| starts(target, scheme));
    schemes.max().unwrap_or(Match::No)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Start,
    Headers,
    Over,
}

struct Side {
    at: At,
    is_response: bool,
    headers: u16,
    line: Text<LINE_MAX>,
}

/// State of a connection.
pub(crate) struct Sip {
    sides: [Side; 2],
}

impl Side {
    const NEW: Side = Side {
        at: At::Start,
        is_response: false,
        headers: 0,
        line: Text::EMPTY,
    };

    fn start(&mut self, out: &mut dyn FieldSink) -> Result<(), Reason> {
        let line = self.line.bytes();
        // RFC 3261 §7.5: empty lines before the start line are ignored; they are keepalives.
        if line.is_empty() {
            return Ok(());
        }
        if let Some(rest) = line.strip_prefix(b"SIP/2.0 ") {
            let status = rest.get(..3).and_then(number).ok_or(Reason::BadValue)?;
            self.at = At::Headers;
            self.is_response = true;
            out.named(Protocol::Sip);
            out.field(Field::SipStatus, Value::Number(status));
            return Ok(());
        }
        let mut words = line.split(|byte| *byte == b' ');
        let (Some(method), Some(uri)) = (words.next(), words.next()) else {
            return Err(Reason::BadValue);
        };
        if method.is_empty() || !method.iter().all(u8::is_ascii_uppercase) {
            return Err(Reason::BadValue);
        }
        self.at = At::Headers;
        out.named(Protocol::Sip);
        out.field(Field::SipMethod, Value::text(method));
        let is_cut = self.line.is_cut() && words.next().is_none();
        out.field(Field::SipUri, Value::Text { bytes: uri, is_cut });
        Ok(())
    }

    fn header(&self, out: &mut dyn FieldSink) {
        // The short forms are those of RFC 3261 §7.3.3.
        const NAMES: &[(&[u8], Field)] = &[
            (b"from", Field::SipFrom),
            (b"f", Field::SipFrom),
            (b"to", Field::SipTo),
            (b"t", Field::SipTo),
            (b"call-id", Field::SipCallId),
            (b"i", Field::SipCallId),
            (b"user-agent", Field::SipAgent),
            (b"server", Field::SipServer),
        ];
        for (name, field) in NAMES {
            if let Some(bytes) = header(self.line.bytes(), name) {
                let is_cut = self.line.is_cut();
                out.field(*field, Value::Text { bytes, is_cut });
            }
        }
    }

    fn feed(&mut self, input: &mut &[u8], out: &mut dyn FieldSink) -> Result<(), Reason> {
        while self.at != At::Over && self.line.line(input) {
            self.headers += 1;
            if self.headers > HEADER_MAX {
                return Err(Reason::TooLong);
            }
            if self.at == At::Start {
                self.start(out)?;
            } else if self.line.is_empty() {
                self.at = At::Over;
            } else {
                self.header(out);
            }
            self.line.clear();
        }
        Ok(())
    }
}

impl Decode for Sip {
    fn new() -> Sip {
        Sip {
            sides: [Side::NEW, Side::NEW],
        }
    }

    fn clear(&mut self) {
        for side in &mut self.sides {
            let Side {
                at,
                is_response,
                headers,
                line,
            } = side;
            (*at, *is_response, *headers) = (At::Start, false, 0);
            line.clear();
        }
    }

    fn feed(
        &mut self,
        context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        let side = &mut self.sides[context.origin.from as usize];
        let mut input = input;
        if let Err(reason) = side.feed(&mut input, out) {
            return Progress::Reject(reason);
        }
        match self.sides.iter().all(|side| side.at == At::Over) {
            true => Progress::Done,
            false => Progress::Need(1),
        }
    }
}

/// Messages in datagrams; no state is kept between them. The first message in each direction is
/// reported, because the first value of a field is kept.
pub(super) struct Datagrams;

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
        let mut side = Side::NEW;
        let mut input = input;
        match side.feed(&mut input, out) {
            Err(reason) => Progress::Reject(reason),
            // A response has arrived, or this is one: nothing more is needed.
            Ok(()) if side.is_response => Progress::Done,
            Ok(()) => Progress::Need(1),
        }
    }
}
