//! SOCKS 4 and 4a (the memos of NEC), and 5 (RFC 1928, RFC 1929): the client's request and the
//! proxy's response.
//!
//! After a successful CONNECT or BIND the connection carries any protocol. A client need not wait
//! for the reply: what it sends before is kept, up to [`EARLY_MAX`] bytes. The protocol is named
//! once the server has replied, or by its port. Users and passwords are skipped; if another
//! authentication method was selected, the rest is not read.

use core::net::IpAddr;

use super::{
    Context, Decode, Direction, EARLY_MAX, Early, First, Match, Next, Progress, ProtocolSwitch,
    Reason,
};
use crate::field::{Field, FieldSink, Protocol, Value};
use crate::identify::{Byte, Pattern};
use crate::text::Text;

/// Registered and customary (Tor) ports of proxies, as in the row.
const PORTS: &[u16] = &[1080, 9050, 9150];

const CONNECT: u8 = 1;
const BIND: u8 = 2;
const UDP_ASSOCIATE: u8 = 3;

// Types of addresses (RFC 1928 §5).
const V4: u8 = 1;
const NAME: u8 = 3;
const V6: u8 = 4;

// Methods of authentication (RFC 1928 §3). Those that IANA has assigned end at 9.
const NO_AUTHENTICATION: u8 = 0;
const USER: u8 = 2;
const METHOD_LAST: u8 = 9;
const NONE_ACCEPTABLE: u8 = 0xff;

/// Reply code of version 4 for a granted request.
const GRANTED_4: u8 = 90;

/// Maximum message length: user and name of version 4a, each up to 255 bytes.
const MESSAGE_MAX: usize = 8 + 256 + 256;

const _: () = assert!(MESSAGE_MAX <= EARLY_MAX);

/// A greeting of version 5 offers at least one method; a request of version 4 is one of two.
pub(super) const STARTS: &[Pattern] = &[
    Pattern::Bytes(&[
        Byte::Is(5),
        Byte::In(1, METHOD_LAST + 1),
        Byte::In(0, METHOD_LAST),
    ]),
    Pattern::Bytes(&[Byte::Is(4), Byte::In(CONNECT, BIND)]),
];

pub(super) fn first(first: &First<'_>) -> Match {
    match first.bytes {
        [5, count, methods @ ..] => {
            let methods = &methods[..methods.len().min((*count).into())];
            let is_new = |(at, method): (usize, &u8)| !methods[..at].contains(method);
            let is_list = *count != 0 && methods.iter().all(|method| *method <= METHOD_LAST);
            match is_list && methods.iter().enumerate().all(is_new) {
                false => Match::No,
                true if methods.len() < usize::from(*count) => Match::Maybe,
                true => Match::Yes,
            }
        }
        [4, CONNECT | BIND, request @ ..] => {
            let user = request.get(6..).unwrap_or(&[]);
            let end = user.iter().position(|byte| *byte == 0);
            let user = &user[..end.unwrap_or(user.len())];
            let is_port = request.get(..2).is_none_or(|port| port != [0, 0]);
            match is_port && user.iter().all(u8::is_ascii_graphic) {
                false => Match::No,
                true if end.is_none() => Match::Maybe,
                true => Match::Yes,
            }
        }
        [4 | 5] | [] => Match::Maybe,
        _ => Match::No,
    }
}

/// What a client sends next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asks {
    Request4,
    Greeting,
    /// User and password, or the request.
    Either,
    User,
    Request,
    /// Any command.
    Nothing,
}

/// What a server sends next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    Method,
    User,
    Reply,
    /// For BIND, once the peer has connected.
    SecondReply,
}

/// State of a connection.
pub(crate) struct Socks {
    /// The client: the side whose first bytes identified the protocol.
    client: Option<Direction>,
    version: u8,
    asks: Asks,
    answers: Answers,
    is_named: bool,
    command: u8,
    port: u16,
    address: Option<IpAddr>,
    name: Text<255>,
    /// A message of the client, then the data it sends after its request.
    asked: Text<EARLY_MAX>,
    answered: Text<262>,
}

/// Length of a message according to the bytes present: if there are that many, it is complete.
fn wanted(asks: Asks, bytes: &[u8]) -> Result<usize, Reason> {
    let len = match asks {
        Asks::Nothing => 0,
        Asks::Either => 1,
        Asks::Greeting => 2 + usize::from(bytes.get(1).copied().unwrap_or(0)),
        Asks::User => {
            let user = 2 + usize::from(bytes.get(1).copied().unwrap_or(0));
            1 + user + usize::from(bytes.get(user).copied().unwrap_or(0))
        }
        Asks::Request => return wanted_5(bytes),
        Asks::Request4 => {
            let behind = bytes.get(8..).unwrap_or(&[]);
            let texts = 1 + usize::from(is_4a(bytes));
            let ends = behind.iter().filter(|byte| **byte == 0).count();
            match ends < texts {
                true => bytes.len().max(8) + 1,
                false => bytes.len(),
            }
        }
    };
    match len > MESSAGE_MAX {
        true => Err(Reason::TooLong),
        false => Ok(len),
    }
}

/// Length of a request or a reply of version 5.
fn wanted_5(bytes: &[u8]) -> Result<usize, Reason> {
    let [version, _, _, kind, first, ..] = bytes else {
        return Ok(5);
    };
    if *version != 5 {
        return Err(Reason::BadValue);
    }
    Ok(match *kind {
        V4 => 4 + 4 + 2,
        V6 => 4 + 16 + 2,
        NAME => 5 + usize::from(*first) + 2,
        _ => return Err(Reason::BadValue),
    })
}

/// Whether the address announces a name in version 4a: 0.0.0.x.
fn is_4a(request: &[u8]) -> bool {
    matches!(request.get(4..8), Some([0, 0, 0, last]) if *last != 0)
}

impl Socks {
    /// Handles a complete message of the client.
    fn asked(&mut self) -> Result<(), Reason> {
        let bytes = self.asked.bytes();
        match (self.asks, bytes) {
            (Asks::Either, [1]) => {
                // The same byte begins the message.
                self.asks = Asks::User;
                return Ok(());
            }
            (Asks::Either, [5]) => {
                self.asks = Asks::Request;
                return Ok(());
            }
            (Asks::Greeting | Asks::User, _) => self.asks = Asks::Either,
            (
                Asks::Request,
                [
                    _,
                    command @ CONNECT..=UDP_ASSOCIATE,
                    0,
                    kind,
                    address @ ..,
                    high,
                    low,
                ],
            ) => {
                self.command = *command;
                self.port = u16::from_be_bytes([*high, *low]);
                match (*kind, address) {
                    (NAME, [_, name @ ..]) => self.name.push(name),
                    (V4, address) => {
                        self.address = address.first_chunk::<4>().map(|a| IpAddr::from(*a));
                    }
                    (_, address) => {
                        self.address = address.first_chunk::<16>().map(|a| IpAddr::from(*a));
                    }
                }
                self.asks = Asks::Nothing;
            }
            (
                Asks::Request4,
                [
                    _,
                    command @ CONNECT..=BIND,
                    high,
                    low,
                    a,
                    b,
                    c,
                    d,
                    texts @ ..,
                ],
            ) => {
                self.command = *command;
                self.port = u16::from_be_bytes([*high, *low]);
                match is_4a(bytes) {
                    true => {
                        let name = texts.split(|byte| *byte == 0).nth(1);
                        self.name.push(name.unwrap_or(&[]));
                    }
                    false => self.address = Some(IpAddr::from([*a, *b, *c, *d])),
                }
                self.asks = Asks::Nothing;
            }
            _ => return Err(Reason::BadValue),
        }
        self.asked.clear();
        Ok(())
    }

    fn client(&mut self, input: &[u8]) -> Result<(), Reason> {
        for (at, byte) in input.iter().enumerate() {
            if self.asks == Asks::Nothing {
                if !self.asked.is_cut() {
                    self.asked.push(&input[at..]);
                }
                break;
            }
            self.asked.push(&[*byte]);
            while self.asks != Asks::Nothing
                && !self.asked.is_empty()
                && wanted(self.asks, self.asked.bytes())? == self.asked.bytes().len()
            {
                self.asked()?;
            }
        }
        Ok(())
    }

    /// Reports the request, once the server has replied or if the port is a proxy's.
    fn report(&mut self, out: &mut dyn FieldSink) {
        if !self.is_named {
            self.is_named = true;
            out.named(match self.version {
                4 => Protocol::Socks4,
                _ => Protocol::Socks5,
            });
        }
        if self.asks != Asks::Nothing {
            return;
        }
        out.field(Field::SocksCommand, Value::Number(self.command.into()));
        let target = match self.address {
            Some(address) => Value::Address(address),
            None => self.name.value(),
        };
        out.field(Field::SocksTarget, target);
        out.field(Field::SocksPort, Value::Number(self.port.into()));
    }

    /// Handles a complete message of the server. Returns whether it is the last one, and whether
    /// another protocol begins after it.
    fn answered(&mut self, out: &mut dyn FieldSink) -> Result<Option<bool>, Reason> {
        let bytes = self.answered.bytes();
        let [version, code, ..] = *bytes else {
            return Err(Reason::BadLength);
        };
        let expected = match (self.version, self.answers) {
            (4, _) => 0,
            (_, Answers::User) => 1,
            _ => 5,
        };
        if version != expected {
            return Err(Reason::BadValue);
        }
        self.answered.clear();
        match self.answers {
            Answers::Method => {
                self.report(out);
                self.answers = match code {
                    NO_AUTHENTICATION => Answers::Reply,
                    USER => Answers::User,
                    NONE_ACCEPTABLE => return Ok(Some(false)),
                    _ => return Err(Reason::Unsupported),
                };
                return Ok(None);
            }
            Answers::User => {
                self.answers = Answers::Reply;
                return Ok((code != 0).then_some(false));
            }
            Answers::Reply | Answers::SecondReply => {}
        }
        // A reply without a request.
        if self.asks != Asks::Nothing {
            return Err(Reason::BadValue);
        }
        self.report(out);
        out.field(Field::SocksResult, Value::Number(code.into()));
        let granted = if self.version == 4 { GRANTED_4 } else { 0 };
        match (self.command, code == granted) {
            (BIND, true) if self.answers == Answers::Reply => {
                self.answers = Answers::SecondReply;
                Ok(None)
            }
            (CONNECT | BIND, true) => Ok(Some(true)),
            _ => Ok(Some(false)),
        }
    }

    fn server(&mut self, input: &[u8], out: &mut dyn FieldSink) -> Result<Progress, Reason> {
        for (at, byte) in input.iter().enumerate() {
            self.answered.push(&[*byte]);
            let bytes = self.answered.bytes();
            let len = match (self.version, self.answers) {
                (4, _) => 8,
                (_, Answers::Method | Answers::User) => 2,
                _ => wanted_5(bytes)?,
            };
            if bytes.len() < len {
                continue;
            }
            match self.answered(out)? {
                None => {}
                Some(false) => return Ok(Progress::Done),
                Some(true) => {
                    return Ok(Progress::ProtocolSwitch(ProtocolSwitch {
                        next: Next::Identify,
                        used: at + 1,
                    }));
                }
            }
        }
        Ok(Progress::Need(1))
    }
}

impl Decode for Socks {
    fn new() -> Socks {
        Socks {
            client: None,
            version: 0,
            asks: Asks::Greeting,
            answers: Answers::Method,
            is_named: false,
            command: 0,
            port: 0,
            address: None,
            name: Text::EMPTY,
            asked: Text::EMPTY,
            answered: Text::EMPTY,
        }
    }

    fn clear(&mut self) {
        let Socks {
            client,
            version,
            asks,
            answers,
            is_named,
            command,
            port,
            address,
            name,
            asked,
            answered,
        } = self;
        (*client, *version, *is_named) = (None, 0, false);
        (*asks, *answers) = (Asks::Greeting, Answers::Method);
        (*command, *port, *address) = (0, 0, None);
        name.clear();
        asked.clear();
        answered.clear();
    }

    fn feed(
        &mut self,
        context: &mut Context<'_>,
        input: &[u8],
        out: &mut dyn FieldSink,
    ) -> Progress {
        let from = context.origin.from;
        if let (None, Some(version)) = (self.client, input.first()) {
            (self.client, self.version) = (Some(from), *version);
            if *version == 4 {
                (self.asks, self.answers) = (Asks::Request4, Answers::Reply);
            }
        }
        if self.client != Some(from) {
            return self.server(input, out).unwrap_or_else(Progress::Reject);
        }
        let was_asked = self.asks == Asks::Nothing;
        if let Err(reason) = self.client(input) {
            return Progress::Reject(reason);
        }
        let is_initiator = from == Direction::Forward;
        let has_port = is_initiator && PORTS.contains(&context.origin.ports[1]);
        if !was_asked && self.asks == Asks::Nothing && (self.is_named || has_port) {
            self.report(out);
        }
        Progress::Need(1)
    }

    fn early(&self, from: Direction) -> Early<'_> {
        let is_early = self.client == Some(from) && self.asks == Asks::Nothing;
        Early {
            bytes: if is_early { self.asked.bytes() } else { &[] },
            is_cut: is_early && self.asked.is_cut(),
        }
    }

    fn gap(&mut self, from: Direction, _len: u32, _out: &mut dyn FieldSink) -> Progress {
        if self.client != Some(from) || self.asks != Asks::Nothing {
            return Progress::Reject(Reason::Gap);
        }
        self.asked.cut();
        Progress::Need(1)
    }
}
