//! Line-based protocols in which the server speaks first: SMTP (RFC 5321), IMAP (RFC 9051), POP3
//! (RFC 1939), and FTP (RFC 959), which has the same greeting as SMTP and must be distinguished
//! from it.

use super::{Context, Decode, Next, Origin, Progress, ProtocolSwitch, Reason};
use crate::field::{Field, FieldSink, Protocol, Value};
use crate::identify::{Pattern, Row};
use crate::text::Text;

const LINE_MAX: usize = 160;
/// Maximum number of lines read per direction.
const LINES_MAX: u16 = 64;

pub(super) const STARTS: &[Pattern] = &[
    Pattern::Text(b"220 "),
    Pattern::Text(b"220-"),
    Pattern::Text(b"+OK"),
    Pattern::Text(b"* OK"),
    Pattern::Text(b"* PREAUTH"),
    Pattern::Text(b"* BYE"),
    Pattern::AnyCase(b"EHLO "),
    Pattern::AnyCase(b"HELO "),
    Pattern::AnyCase(b"LHLO "),
];

/// Both sides switch to TLS once the server has accepted STARTTLS.
const TLS: Row = Row::of("tls");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Talk {
    /// A greeting with 220 that could be either.
    SmtpOrFtp,
    Smtp,
    Ftp,
    Imap,
    Pop3,
}

struct Side {
    lines: u16,
    line: Text<LINE_MAX>,
}

/// State of a connection.
pub(crate) struct Mail {
    talk: Option<Talk>,
    has_tls: bool,
    is_over: bool,
    sides: [Side; 2],
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len())
        .any(|window| window.eq_ignore_ascii_case(word))
}

/// The rest of a line that begins with this command.
fn command<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (head, rest) = line.split_at_checked(name.len())?;
    let is_word = rest.first().is_none_or(|byte| *byte == b' ');
    (is_word && head.eq_ignore_ascii_case(name)).then(|| rest.trim_ascii())
}

/// The text between angle brackets (RFC 5321 §4.1.2), or all of it.
fn path(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|byte| *byte == b'<');
    let end = text.iter().position(|byte| *byte == b'>');
    match (start, end) {
        (Some(start), Some(end)) if start < end => &text[start + 1..end],
        _ => text.trim_ascii(),
    }
}

impl Mail {
    fn named(&mut self, talk: Talk, out: &mut dyn FieldSink) {
        self.talk = Some(talk);
        out.named(match talk {
            Talk::SmtpOrFtp => return,
            Talk::Smtp => Protocol::Smtp,
            Talk::Ftp => Protocol::Ftp,
            Talk::Imap => Protocol::Imap,
            Talk::Pop3 => Protocol::Pop3,
        });
    }

    fn greeting(&mut self, at: usize, origin: &Origin, out: &mut dyn FieldSink) -> bool {
        let line = self.sides[at].line.bytes();
        let is = |text: &[u8]| line.starts_with(text);
        let talk = if is(b"220") {
            // RFC 5321 §4.3.1 requires a domain there; in practice the protocol's name follows.
            if contains(line, b"SMTP") || contains(line, b"LMTP") {
                Talk::Smtp
            } else if contains(line, b"FTP") {
                Talk::Ftp
            } else if [25, 587].iter().any(|port| origin.ports.contains(port)) {
                Talk::Smtp
            } else if origin.ports.contains(&21) {
                Talk::Ftp
            } else {
                Talk::SmtpOrFtp
            }
        } else if is(b"+OK") {
            Talk::Pop3
        } else if is(b"* ") {
            Talk::Imap
        } else {
            return false;
        };
        out.field(Field::MailGreeting, self.sides[at].line.value());
        self.named(talk, out);
        true
    }

    fn one(&mut self, at: usize, origin: &Origin, out: &mut dyn FieldSink) {
        let is_greeting = self.talk.is_none() && self.greeting(at, origin, out);
        if is_greeting {
            return;
        }
        let (line, is_cut) = (self.sides[at].line.bytes(), self.sides[at].line.is_cut());
        let helo = [&b"EHLO"[..], b"HELO", b"LHLO"];
        if let Some(name) = helo.iter().find_map(|name| command(line, name)) {
            let bytes = name;
            out.field(Field::MailHelo, Value::Text { bytes, is_cut });
            return self.named(Talk::Smtp, out);
        }
        match self.talk {
            Some(Talk::SmtpOrFtp) => {
                let words = [&b"USER"[..], b"AUTH", b"FEAT", b"SYST"];
                if words.iter().any(|word| command(line, word).is_some()) {
                    self.named(Talk::Ftp, out);
                    self.ftp(at);
                }
            }
            Some(Talk::Smtp) => self.smtp(at, out),
            Some(Talk::Pop3) => {
                if command(line, b"STLS").is_some() {
                    self.has_tls = true;
                    out.field(Field::MailStartTls, Value::Number(1));
                } else if self.has_tls && (line.starts_with(b"+OK") || line.starts_with(b"-ERR")) {
                    self.has_tls &= line.starts_with(b"+OK");
                    self.is_over = true;
                }
            }
            Some(Talk::Imap) => self.imap(at, out),
            Some(Talk::Ftp) => self.ftp(at),
            None => {}
        }
    }

    fn smtp(&mut self, at: usize, out: &mut dyn FieldSink) {
        let (line, is_cut) = (self.sides[at].line.bytes(), self.sides[at].line.is_cut());
        let upper = |name: &[u8]| {
            let (head, rest) = line.split_at_checked(name.len())?;
            head.eq_ignore_ascii_case(name).then_some(rest)
        };
        if let Some(rest) = upper(b"MAIL FROM:") {
            let bytes = path(rest);
            out.field(Field::MailFrom, Value::Text { bytes, is_cut });
        } else if let Some(rest) = upper(b"RCPT TO:") {
            let bytes = path(rest);
            out.field(Field::MailTo, Value::Text { bytes, is_cut });
        } else if command(line, b"STARTTLS").is_some() {
            self.has_tls = true;
            out.field(Field::MailStartTls, Value::Number(1));
        } else if command(line, b"DATA").is_some() || upper(b"BDAT ").is_some() {
            self.is_over = true;
        } else if self.has_tls && line.len() >= 3 && line[..3].iter().all(u8::is_ascii_digit) {
            // Replies to commands before STARTTLS may still be in flight: those have code 250.
            let is_ready = line.starts_with(b"220");
            let is_refused = matches!(line[0], b'4' | b'5');
            self.has_tls = !is_refused;
            self.is_over = is_ready || is_refused;
        }
    }

    /// RFC 4217 §4: `AUTH TLS` and its reply.
    fn ftp(&mut self, at: usize) {
        let line = self.sides[at].line.bytes();
        if let Some(how) = command(line, b"AUTH") {
            let names = [&b"TLS"[..], b"TLS-C", b"TLS-P", b"SSL"];
            self.has_tls = names.iter().any(|name| how.eq_ignore_ascii_case(name));
        } else if self.has_tls && line.len() >= 3 && line[..3].iter().all(u8::is_ascii_digit) {
            self.is_over = line.starts_with(b"234");
            // Replies to earlier commands may still be in flight.
            self.has_tls = !matches!(line[0], b'4' | b'5');
        }
    }

    fn imap(&mut self, at: usize, out: &mut dyn FieldSink) {
        let line = self.sides[at].line.bytes();
        // A tag, then the command or its result.
        let mut words = line.split(|byte| *byte == b' ');
        let (tag, word) = (words.next().unwrap_or(&[]), words.next().unwrap_or(&[]));
        if word.eq_ignore_ascii_case(b"STARTTLS") {
            self.has_tls = true;
            out.field(Field::MailStartTls, Value::Number(1));
        } else if self.has_tls && tag != b"*" {
            let is_ready = word.eq_ignore_ascii_case(b"OK");
            let is_refused = word.eq_ignore_ascii_case(b"NO") || word.eq_ignore_ascii_case(b"BAD");
            self.has_tls &= !is_refused;
            self.is_over = is_ready || is_refused;
        } else if word.eq_ignore_ascii_case(b"LOGIN") || word.eq_ignore_ascii_case(b"AUTHENTICATE")
        {
            self.is_over = true;
        }
    }
}

impl Decode for Mail {
    fn new() -> Mail {
        let side = || Side {
            lines: 0,
            line: Text::EMPTY,
        };
        Mail {
            talk: None,
            has_tls: false,
            is_over: false,
            sides: [side(), side()],
        }
    }

    fn clear(&mut self) {
        (self.talk, self.has_tls, self.is_over) = (None, false, false);
        for side in &mut self.sides {
            side.lines = 0;
            side.line.clear();
        }
    }

    fn feed(
        &mut self,
        context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        let at = context.origin.from as usize;
        let mut rest = input;
        while !self.is_over && self.sides[at].line.line(&mut rest) {
            let side = &mut self.sides[at];
            side.lines += 1;
            if side.lines > LINES_MAX {
                return match self.talk {
                    Some(Talk::SmtpOrFtp) | None => Progress::Reject(Reason::Unknown),
                    Some(_) => Progress::Done,
                };
            }
            self.one(at, &context.origin, out);
            self.sides[at].line.clear();
        }
        match (self.is_over, self.has_tls) {
            (true, true) => Progress::ProtocolSwitch(ProtocolSwitch {
                next: Next::Decoder(TLS),
                used: input.len() - rest.len(),
            }),
            (true, false) => Progress::Done,
            (false, _) => Progress::Need(1),
        }
    }
}
