//! How a server is asked for TLS on a connection that begins without it: SMTP (RFC 3207), IMAP and
//! POP3 (RFC 2595), FTP (RFC 4217), LDAP (RFC 4511 §4.14), PostgreSQL (manual, "Message Flow") and
//! MySQL (manual, "Connection Phase").

use std::net::IpAddr;

use inspect::Protocol;

/// Maximum length of a line, or of MySQL's greeting, that is read.
const LINE_MAX: usize = 512;
/// Maximum number of lines read.
const LINES_MAX: u16 = 128;

/// What follows from the server's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Say {
    Nothing,
    /// A command.
    Bytes(Vec<u8>),
    /// Bytes, which may be empty, and a TLS hello behind them.
    Tls(Vec<u8>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Greeting,
    /// Capabilities of SMTP are awaited.
    Capabilities,
    /// The answer to the request is awaited.
    Requested,
    Over,
}

/// A dialog with a server.
#[derive(Clone, Debug)]
pub struct Dialog {
    talk: Protocol,
    step: Step,
    line: Vec<u8>,
    line_count: u16,
    has_tls: bool,
    own: IpAddr,
}

/// StartTLS of LDAP, an extended request.
pub const LDAP_REQUEST: &[u8] = b"\x30\x1d\x02\x01\x01\x77\x18\x80\x161.3.6.1.4.1.1466.20037";

impl Dialog {
    /// A dialog with a server of this protocol, from its first byte on; `None` if it has none. For
    /// LDAP and PostgreSQL the request has been sent. The client is at the address `own`.
    pub fn of(talk: Protocol, own: IpAddr) -> Option<Self> {
        let step = match talk {
            Protocol::Smtp | Protocol::Imap | Protocol::Pop3 | Protocol::Ftp | Protocol::Mysql => {
                Step::Greeting
            }
            Protocol::Ldap | Protocol::Postgresql => Step::Requested,
            _ => return None,
        };
        Some(Self {
            talk,
            step,
            line: Vec::new(),
            line_count: 0,
            has_tls: false,
            own,
        })
    }

    /// Whether an answer is awaited.
    pub fn is_awaited(&self) -> bool {
        matches!(self.step, Step::Capabilities | Step::Requested)
    }

    /// Reads the next bytes from the server.
    pub fn read(&mut self, bytes: &[u8]) -> Say {
        for byte in bytes {
            if self.step == Step::Over {
                break;
            }
            let is_text = !matches!(
                self.talk,
                Protocol::Mysql | Protocol::Ldap | Protocol::Postgresql
            );
            let said = match (is_text, byte) {
                (true, b'\n') => self.end_line(),
                (true, b'\r') => Say::Nothing,
                _ => {
                    if self.line.len() < LINE_MAX {
                        self.line.push(*byte);
                    } else if !is_text {
                        self.step = Step::Over;
                    }
                    match is_text {
                        true => Say::Nothing,
                        false => self.message(),
                    }
                }
            };
            if said != Say::Nothing {
                return said;
            }
        }
        Say::Nothing
    }

    fn end_line(&mut self) -> Say {
        let line = std::mem::take(&mut self.line);
        self.line_count += 1;
        if self.line_count > LINES_MAX {
            self.step = Step::Over;
        }
        match self.talk {
            Protocol::Smtp | Protocol::Ftp => self.reply(&line),
            _ => self.response(&line),
        }
    }

    fn request(&mut self, text: &str) -> Say {
        self.step = Step::Requested;
        Say::Bytes(text.as_bytes().to_vec())
    }

    fn over(&mut self) -> Say {
        self.step = Step::Over;
        Say::Nothing
    }

    fn tls(&mut self, before: Vec<u8>) -> Say {
        self.step = Step::Over;
        Say::Tls(before)
    }

    /// A line of SMTP or FTP: three digits, and a dash if more lines of the reply follow.
    fn reply(&mut self, line: &[u8]) -> Say {
        let is_last = line.get(3) != Some(&b'-');
        let code = line
            .get(..3)
            .filter(|code| code.iter().all(u8::is_ascii_digit));
        let Some(code) = code else {
            // A line of text within a greeting of FTP.
            return Say::Nothing;
        };
        let word = line.get(4..).unwrap_or(&[]).trim_ascii();
        self.has_tls |= word.eq_ignore_ascii_case(b"STARTTLS");
        if !is_last {
            return Say::Nothing;
        }
        match (self.step, self.talk, code) {
            (Step::Greeting, Protocol::Ftp, b"220") => self.request("AUTH TLS\r\n"),
            (Step::Greeting, _, b"220") => {
                self.step = Step::Capabilities;
                self.has_tls = false;
                let own = match self.own {
                    IpAddr::V4(addr) => format!("[{addr}]"),
                    IpAddr::V6(addr) => format!("[IPv6:{addr}]"),
                };
                Say::Bytes(format!("EHLO {own}\r\n").into_bytes())
            }
            (Step::Capabilities, _, b"250") if self.has_tls => self.request("STARTTLS\r\n"),
            (Step::Requested, Protocol::Smtp, b"220") | (Step::Requested, _, b"234") => {
                self.tls(Vec::new())
            }
            // A greeting that asks to wait (RFC 959 §5.4).
            (Step::Greeting, Protocol::Ftp, b"120") => Say::Nothing,
            _ => self.over(),
        }
    }

    /// A line of IMAP or POP3.
    fn response(&mut self, line: &[u8]) -> Say {
        let is_pop = self.talk == Protocol::Pop3;
        let begins = |word: &[u8]| {
            let head = line.get(..word.len());
            head.is_some_and(|head| head.eq_ignore_ascii_case(word))
        };
        match self.step {
            Step::Greeting if is_pop && begins(b"+OK") => self.request("STLS\r\n"),
            Step::Greeting if !is_pop && begins(b"* OK") => self.request("a1 STARTTLS\r\n"),
            Step::Requested if is_pop && begins(b"+OK") => self.tls(Vec::new()),
            Step::Requested if !is_pop && begins(b"a1 OK") => self.tls(Vec::new()),
            Step::Requested if !is_pop && begins(b"*") => Say::Nothing,
            _ => self.over(),
        }
    }

    /// The beginning of a binary message.
    fn message(&mut self) -> Say {
        let found = match self.talk {
            Protocol::Postgresql => Some(self.line == b"S"),
            Protocol::Ldap => ldap_result(&self.line),
            _ => match mysql_has_tls(&self.line) {
                Some(true) => {
                    let next = self.line[3].wrapping_add(1);
                    return self.tls(mysql_request(next));
                }
                found => found,
            },
        };
        match found {
            None => Say::Nothing,
            Some(true) => self.tls(Vec::new()),
            Some(false) => self.over(),
        }
    }
}

/// Whether an extended response has succeeded; `None` if it is not complete so far.
fn ldap_result(message: &[u8]) -> Option<bool> {
    /// Contents of an element with this tag.
    fn enter(bytes: &[u8], tag: u8) -> Option<Result<(&[u8], usize), ()>> {
        let (first, len) = (*bytes.first()?, *bytes.get(1)?);
        if first != tag {
            return Some(Err(()));
        }
        let (at, len) = match len {
            0..=0x7f => (2, usize::from(len)),
            0x81..=0x84 => {
                let count = usize::from(len & 0x7f);
                let number = bytes.get(2..2 + count)?.iter();
                (
                    2 + count,
                    number.fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
                )
            }
            _ => return Some(Err(())),
        };
        Some(Ok((&bytes[at..], len)))
    }
    let read = || {
        let Ok((message, _)) = enter(message, 0x30)? else {
            return Some(false);
        };
        let Ok((id, id_len)) = enter(message, 0x02)? else {
            return Some(false);
        };
        let Ok((response, _)) = enter(id.get(id_len..)?, 0x78)? else {
            return Some(false);
        };
        let Ok((code, 1)) = enter(response, 0x0a)? else {
            return Some(false);
        };
        Some(*code.first()? == 0)
    };
    read()
}

/// CLIENT_SSL, CLIENT_PROTOCOL_41, CLIENT_SECURE_CONNECTION and CLIENT_PLUGIN_AUTH.
const MYSQL_CLIENT: u32 = 0x0008_8a00;
const MYSQL_SSL: u16 = 0x0800;

/// Whether MySQL's greeting offers TLS; `None` if that part has not arrived.
fn mysql_has_tls(packet: &[u8]) -> Option<bool> {
    let [_, _, _, _, version, rest @ ..] = packet else {
        return None;
    };
    if *version != 10 {
        return Some(false);
    }
    let end = rest.iter().position(|byte| *byte == 0)?;
    // Thread, data for the authentication, filler.
    let at = end + 1 + 4 + 8 + 1;
    let low = rest.get(at..at + 2)?.first_chunk()?;
    Some(u16::from_le_bytes(*low) & MYSQL_SSL != 0)
}

/// The request for TLS: capabilities, the longest packet, the character set utf8.
fn mysql_request(number: u8) -> Vec<u8> {
    let mut packet = vec![32, 0, 0, number];
    packet.extend(MYSQL_CLIENT.to_le_bytes());
    packet.extend((1_u32 << 24).to_le_bytes());
    packet.push(33);
    packet.resize(36, 0);
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    /// What is said to a server, whose answers follow each other.
    fn talk(protocol: Protocol, server: &[u8], step: usize) -> Vec<Say> {
        let mut dialog = Dialog::of(protocol, OWN).unwrap();
        let parts = server.chunks(step).map(|part| dialog.read(part));
        parts.filter(|said| *said != Say::Nothing).collect()
    }

    fn bytes(text: &str) -> Say {
        Say::Bytes(text.as_bytes().to_vec())
    }

    #[test]
    fn servers_are_asked_for_tls() {
        let tls = || Say::Tls(Vec::new());
        for (protocol, server, expected) in [
            (
                Protocol::Smtp,
                &b"220-a\r\n220 b ESMTP\r\n250-b\r\n250-STARTTLS\r\n250 HELP\r\n220 go\r\n"[..],
                vec![bytes("EHLO [192.0.2.1]\r\n"), bytes("STARTTLS\r\n"), tls()],
            ),
            (
                Protocol::Smtp,
                b"220 b\r\n250-b\r\n250 HELP\r\n220 go\r\n",
                vec![bytes("EHLO [192.0.2.1]\r\n")],
            ),
            (Protocol::Smtp, b"554 no\r\n", vec![]),
            (
                Protocol::Ftp,
                b"220-a\r\n text\r\n220 b\r\n234 go\r\n",
                vec![bytes("AUTH TLS\r\n"), tls()],
            ),
            (
                Protocol::Ftp,
                b"220 b\r\n530 no\r\n234 \r\n",
                vec![bytes("AUTH TLS\r\n")],
            ),
            (
                Protocol::Imap,
                b"* OK b\r\n* CAPABILITY x\r\na1 OK go\r\n",
                vec![bytes("a1 STARTTLS\r\n"), tls()],
            ),
            (
                Protocol::Imap,
                b"* OK b\r\na1 BAD no\r\na1 OK go\r\n",
                vec![bytes("a1 STARTTLS\r\n")],
            ),
            (
                Protocol::Pop3,
                b"+OK b\r\n+OK go\r\n",
                vec![bytes("STLS\r\n"), tls()],
            ),
            (Protocol::Pop3, b"-ERR\r\n+OK go\r\n", vec![]),
            (
                Protocol::Ldap,
                b"\x30\x0c\x02\x01\x01\x78\x07\x0a\x01\0\x04\0\x04\0",
                vec![tls()],
            ),
            (
                Protocol::Ldap,
                b"\x30\x84\0\0\0\x10\x02\x01\x01\x78\x84\0\0\0\x07\x0a\x01\0\x04\0\x04\0",
                vec![tls()],
            ),
            (
                Protocol::Ldap,
                b"\x30\x0c\x02\x01\x01\x78\x07\x0a\x01\x02\x04\0\x04\0",
                vec![],
            ),
            (Protocol::Postgresql, b"S", vec![tls()]),
            (Protocol::Postgresql, b"N", vec![]),
        ] {
            for step in [1, 1000].into_iter().chain(2..20) {
                // A server waits for the commands: nothing follows them in the same segment.
                let lines = server.split_inclusive(|byte| *byte == b'\n');
                let mut dialog = Dialog::of(protocol, OWN).unwrap();
                let said = lines.flat_map(|line| {
                    let parts = line.chunks(step).map(|part| dialog.read(part));
                    parts.collect::<Vec<_>>()
                });
                let said: Vec<_> = said.filter(|said| *said != Say::Nothing).collect();
                assert_eq!(said, expected, "{protocol:?} {step}");
            }
        }
    }

    #[test]
    fn mysql_is_asked_in_its_own_way() {
        let greeting = |low: u16| {
            let version = b"\x0a8.0.36\0";
            let mut packet = vec![70, 0, 0, 0];
            packet.extend(version);
            packet.extend([1; 13]);
            packet.extend(low.to_le_bytes());
            packet.extend([0; 30]);
            packet
        };
        for step in [1, 7, 100] {
            let said = talk(Protocol::Mysql, &greeting(0xffff), step);
            let [Say::Tls(request)] = &said[..] else {
                panic!("{said:?}");
            };
            assert_eq!((request.len(), &request[..4]), (36, &[32, 0, 0, 1][..]));
            assert_eq!(talk(Protocol::Mysql, &greeting(0xf7ff), step), []);
        }
        // An error instead of a greeting.
        assert_eq!(talk(Protocol::Mysql, b"\x45\0\0\0\xff\x6a\x04Host", 1), []);
        assert!(Dialog::of(Protocol::Http, OWN).is_none());
    }
}
