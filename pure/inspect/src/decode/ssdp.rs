//! SSDP (UPnP Device Architecture 2.0 §1): start line and a few headers of searches, announcements
//! and responses.

use super::{Context, Decode, First, Match, Progress, Reason, starts};
use crate::field::{Field, FieldSink, Protocol, Value};
use crate::identify::Pattern;
use crate::text::header;

const PORT: u16 = 1900;
const HEADER_MAX: usize = 64;
const ANSWER: &[u8] = b"HTTP/1.1 200 OK";

pub(super) const STARTS: &[Pattern] = &[
    Pattern::Text(b"M-SEARCH * HTTP/1."),
    Pattern::Text(b"NOTIFY * HTTP/1."),
    Pattern::Text(ANSWER),
];

/// Checks the port as well, because a response looks like any HTTP response.
pub(super) fn first(first: &First<'_>) -> Match {
    match starts(first.bytes, ANSWER) == Match::Yes && !first.has_port(PORT) {
        true => Match::No,
        false => Match::Yes,
    }
}

/// No state is kept between messages.
pub(super) struct Ssdp;

impl Decode for Ssdp {
    fn new() -> Ssdp {
        Ssdp
    }

    fn feed(
        &mut self,
        _context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        const NAMES: &[(&[u8], Field)] = &[
            (b"st", Field::SsdpTarget),
            (b"nt", Field::SsdpTarget),
            (b"user-agent", Field::SsdpAgent),
            (b"server", Field::SsdpServer),
            (b"location", Field::SsdpLocation),
        ];
        // A line truncated by the capture has no end; what follows the last line feed is ignored.
        let whole = input.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
        let mut lines = input[..whole].split(|byte| *byte == b'\n');
        let start = lines.next().unwrap_or_default();
        let is_answer = start.starts_with(ANSWER);
        let method = start.split(|byte| *byte == b' ').next();
        match method {
            Some(method @ (b"M-SEARCH" | b"NOTIFY")) => {
                out.named(Protocol::Ssdp);
                out.field(Field::SsdpMethod, Value::text(method));
            }
            _ if is_answer => out.named(Protocol::Ssdp),
            _ => return Progress::Reject(Reason::BadValue),
        }
        for line in lines.take(HEADER_MAX) {
            for (name, field) in NAMES {
                if let Some(bytes) = header(line, name).filter(|bytes| !bytes.is_empty()) {
                    out.field(*field, Value::text(bytes));
                }
            }
        }
        match is_answer {
            true => Progress::Done,
            false => Progress::Need(1),
        }
    }
}
