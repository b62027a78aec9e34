//! ATM cells as captured by Solaris (SunATM): circuits, signaling messages, and LAN emulation.
//!
//! Before the packet are a byte with the direction and the protocol, the virtual path, and two
//! bytes of the virtual channel. Q.2931 gives the types of messages.

use super::block::{Cond, JEQ, JGE, JGT};
use super::lex::Token;
use super::lower::{From, Kind, Link, Size};
use super::parse::Parser;
use crate::{Error, Result};

/// The protocol of a packet, in the low four bits of the first byte.
const PROTOCOL: u32 = 0x0f;
const LANE: u32 = 1;
const LLC: u32 = 2;
/// Offset of the type of a message.
const MESSAGE: u32 = 9;

/// Circuits on virtual path 0, with their virtual channels (ITU-T I.361 and I.610).
#[rustfmt::skip]
const CIRCUITS: &[(&str, &[u32])] = &[
    ("metac", &[1]), ("bcc", &[2]), ("oamf4s", &[3]), ("oamf4e", &[4]), ("oam", &[3, 4]),
    ("sc", &[5]), ("ilmic", &[16]), ("connectmsg", &[5]), ("metaconnect", &[1]),
];

/// Setup, call proceeding, connect, release and release done.
const CONNECT: [u32; 5] = [0x05, 0x02, 0x07, 0x4d, 0x5a];
const CONNECT_ACK: u32 = 0x0f;

pub(super) fn is_keyword(key: &str) -> bool {
    matches!(key, "vpi" | "vci" | "lane") || CIRCUITS.iter().any(|row| row.0 == key)
}

impl Parser<'_> {
    /// Parses a test of the ATM header, given its keyword.
    pub(super) fn atm(&mut self, key: &'static str) -> Result<Cond> {
        let place = self.place();
        if self.options.link_type != 123 {
            return Err(Error::new(place, format!("the link type has no \"{key}\""))
                .expected("only raw ATM of Solaris has one"));
        }
        self.next();
        let cell = |at, size, k| self.link.eq(From::Start, at, size, k);
        match key {
            "vpi" => {
                let link = self.link.clone();
                self.field(|jump, k| link.test(From::Start, 1, Size::B, jump, k))
            }
            "vci" => {
                let link = self.link.clone();
                self.field(|jump, k| link.test(From::Start, 2, Size::H, jump, k))
            }
            "lane" => {
                let is = self.link.atm_protocol(LANE);
                if self.link.kind == Kind::SunAtm {
                    self.link.push_lane();
                }
                Ok(is)
            }
            _ => {
                let channels = CIRCUITS.iter().find(|row| row.0 == key);
                let channels = channels.map_or(&[][..], |row| row.1);
                let any = channels.iter().map(|&channel| cell(2, Size::H, channel));
                let circuit = cell(1, Size::B, 0).and(Cond::Any(any.collect()));
                let mut messages = CONNECT.to_vec();
                match key {
                    "connectmsg" => messages.push(CONNECT_ACK),
                    "metaconnect" => {}
                    _ => return Ok(circuit),
                }
                let any = messages.iter().map(|&kind| cell(MESSAGE, Size::B, kind));
                Ok(circuit.and(Cond::Any(any.collect())))
            }
        }
    }

    /// Parses the value of a field: `3`, `> 3`, or `(3 or 4)`.
    pub(super) fn field(&mut self, test: impl Fn(u16, u32) -> Cond) -> Result<Cond> {
        self.field_up_to(u32::MAX, test)
    }

    /// Parses the value of a field with a maximum.
    pub(super) fn field_up_to(
        &mut self,
        most: u32,
        test: impl Fn(u16, u32) -> Cond,
    ) -> Result<Cond> {
        if self.take("(") {
            let mut any = vec![test(JEQ, self.bounded(most)?)];
            while self.take("or") {
                any.push(test(JEQ, self.bounded(most)?));
            }
            self.need(")")?;
            return Ok(Cond::Any(any));
        }
        let (jump, is_reversed) = match self.peek() {
            Token::Key("=") => (JEQ, false),
            Token::Key("!=") => (JEQ, true),
            Token::Key(">") => (JGT, false),
            Token::Key("<=") => (JGT, true),
            Token::Key(">=") => (JGE, false),
            Token::Key("<") => (JGE, true),
            _ => return Ok(test(JEQ, self.bounded(most)?)),
        };
        self.next();
        let cond = test(jump, self.bounded(most)?);
        Ok(if is_reversed { cond.negate() } else { cond })
    }

    fn bounded(&mut self, most: u32) -> Result<u32> {
        let place = self.place();
        let n = self.number()?;
        match n <= most {
            true => Ok(n),
            false => Err(
                Error::new(place, format!("{n} is too large for this field"))
                    .expected(format!("at most {most}")),
            ),
        }
    }
}

impl Link {
    fn atm_protocol(&self, protocol: u32) -> Cond {
        self.masked(From::Start, 0, Size::B, protocol, PROTOCOL)
    }

    /// Tests for a packet with an LLC header.
    pub(super) fn atm_llc(&self) -> Cond {
        self.atm_protocol(LLC)
    }
}
