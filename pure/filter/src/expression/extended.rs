//! Compiles primitives that libpcap's language does not have: `payload[0:4] = 0x47455420`, `payload
//! contains "GET" within 64`, `ttl 60-64`, `src net file LIST`, `tcp option sackok`; those about
//! tunnels are in `tunnel`.
//!
//! The payload is the data from the TCP or UDP header to the end of the IP packet, for IPv4 (except
//! later fragments) and for IPv6 without extension headers. Its offset depends on the packet, so it
//! is kept in scratch memory while steps ([`Test::is_step`]) read it.

use std::ops::Range;

use bpf::cbpf::{INSN_COUNT_MAX, Insn};

use super::arith::{ADD, ADD_X, AND, Guarded, LDX_MEM, RSH, ST, SUB, TAX, Value};
use super::block::{Cond, JEQ, JGE, JGT, LD_IMM, LDX_MSH, Test, WITH_X};
use super::lex::Token;
use super::lower::{From, IP, IPV6, Size, Way};
use super::parse::{Parsed, Parser};
use super::{ranges, tunnel};
use crate::{Error, Result};

/// The first word of scratch memory that is reserved for steps.
pub(super) const CELLS: u32 = 13;
/// Scratch word: the protocol number of the next header.
pub(super) const NEXT: u32 = 13;
/// Scratch word: the length of the payload, or the end of the TCP options, relative to the network
/// header.
const END: u32 = 14;
/// Scratch word: the offset of the payload, or of the next option, relative to the network header.
pub(super) const AT: u32 = 15;

pub(super) const LD_MEM: u16 = 0x60;
pub(super) const LDH: u16 = 0x28;
pub(super) const LDB_IND: u16 = 0x50;
pub(super) const LDH_IND: u16 = 0x48;
pub(super) const TXA: u16 = 0x87;

/// Maximum length of the TCP options in bytes.
const OPTIONS_LEN_MAX: usize = 40;
/// Number of tests of one option, in [`option_step`].
const TESTS_PER_OPTION: usize = 8;
/// Maximum number of payload bytes to search, and so the maximum length of the text.
const WITHIN_MAX: u32 = 1500;

/// TCP options by name (IANA registry).
#[rustfmt::skip]
const OPTIONS: &[(&str, u32)] = &[
    ("eol", 0), ("nop", 1), ("mss", 2), ("ws", 3), ("wscale", 3), ("sok", 4), ("sackok", 4),
    ("sack", 5), ("ts", 8), ("timestamp", 8), ("md5", 19), ("ao", 29), ("mptcp", 30),
    ("fastopen", 34),
];

pub(super) fn insn(code: u16, k: u32) -> Insn {
    Insn::new(code, 0, 0, k)
}

pub(super) fn step(load: Vec<Insn>, jump: u16, k: u32) -> Test {
    Test {
        is_step: true,
        ..Test::new(load, jump, k)
    }
}

/// A step that is always true.
pub(super) fn run(load: Vec<Insn>) -> Cond {
    Cond::Test(step(load, JGE, 0))
}

/// Loads the length of the IPv4 header, or of the fixed IPv6 header, in bytes into X and A.
pub(super) fn ip_header(is_v6: bool, network: u32) -> Vec<Insn> {
    match is_v6 {
        true => vec![insn(LD_IMM, 40), insn(TAX, 0)],
        false => vec![insn(LDX_MSH, network), insn(TXA, 0)],
    }
}

impl Parser<'_> {
    /// Whether a primitive of the extended language starts at this token.
    pub(super) fn is_extended(&self, at: usize) -> bool {
        let Token::Name(name) = &self.tokens[at].0 else {
            return false;
        };
        let next = self.tokens.get(at + 1).map(|token| &token.0);
        self.options.extended
            && match (name.as_str(), next) {
                ("ttl", Some(Token::Number(_))) => true,
                ("ttl", Some(Token::Name(range))) => {
                    range.starts_with(|c: char| c.is_ascii_digit())
                }
                ("payload", Some(Token::Key("["))) => true,
                ("payload", Some(Token::Name(name))) => name == "contains",
                (name, next) => tunnel::is_tunnel(name, next),
            }
    }

    /// Whether this word comes next, followed by its argument.
    pub(super) fn is_phrase(&self, word: &str) -> bool {
        let next = self.tokens.get(self.at + 1).map(|token| &token.0);
        self.options.extended
            && *self.peek() == Token::Name(word.to_owned())
            && matches!(
                next,
                Some(Token::Name(_) | Token::Number(_) | Token::Text(_))
            )
    }

    pub(super) fn is_payload_load(&self) -> bool {
        let is_load = matches!(self.tokens.get(self.at + 1), Some((Token::Key("["), _)));
        is_load && self.is_extended(self.at)
    }

    pub(super) fn extended(&mut self) -> Result<Parsed> {
        let place = self.place();
        let Token::Name(name) = self.next() else {
            return Err(self.unexpected("expected a primitive"));
        };
        let cond = match name.as_str() {
            "ttl" => self.ttl()?,
            "inner" => self.inner(place)?,
            "vxlan" | "gtpu" => self.tunnel(&name, place)?,
            _ => self.payload_contains()?,
        };
        Ok((cond, None))
    }

    /// Parses a TTL or hop limit: a number or a range.
    fn ttl(&mut self) -> Result<Cond> {
        let place = self.place();
        let range = match self.next() {
            Token::Number(n) => Some((n, n)),
            Token::Name(text) => text
                .split_once('-')
                .and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?))),
            _ => None,
        };
        let Some((low, high)) = range.filter(|&(low, high)| low <= high && high <= 255) else {
            return Err(Error::new(place, "not a TTL or a range of TTLs")
                .expected("expected a number up to 255, or two as in 60-64"));
        };
        let link = &self.link;
        let within = |at| match low == high {
            true => link.eq(From::Network, at, Size::B, low),
            false => {
                let least = link.test(From::Network, at, Size::B, JGE, low);
                least.and(link.test(From::Network, at, Size::B, JGT, high).negate())
            }
        };
        let v4 = link.protocol(IP).and(within(8));
        Ok(v4.or(link.protocol(IPV6).and(within(7))))
    }

    /// Compiles a test for addresses in the prefixes of a file; only IP headers are tested.
    pub(super) fn net_file(&mut self, proto: Option<&'static str>, way: Way) -> Result<Cond> {
        let start = self.place();
        self.next();
        let place = start.start..self.place().end;
        let wrong = |what: String| Error::new(place.clone(), what);
        if !matches!(proto, None | Some("ip" | "ip6")) {
            return Err(wrong("\"net file\" tests IP addresses".to_owned())
                .expected("expected \"ip\", \"ip6\" or no protocol before it"));
        }
        let file = match self.next() {
            Token::Text(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Token::Name(name) => name,
            _ => return Err(wrong("the file name is missing".to_owned())),
        };
        let prefixes = self.options.names.prefixes(&file);
        let prefixes = prefixes.map_err(|why| {
            wrong(format!("cannot use the prefixes in \"{file}\": {why}"))
                .expected("expected a file with one prefix per line")
        })?;
        let (v4, v6) = ranges::of(&prefixes);
        let count = v4.len() + v6.len();
        if count > INSN_COUNT_MAX {
            let what = format!(
                "{file} has {count} ranges of addresses; a program has at most {INSN_COUNT_MAX} \
                 instructions"
            );
            return Err(wrong(what).expected("barewire guard has room for a million prefixes"));
        }
        self.count_tests(2 * count, place.clone())?;
        let link = &self.link;
        let v4 = link
            .protocol(IP)
            .and(way.both(|is_src| ranges::contains(link, if is_src { 12 } else { 16 }, 1, &v4)));
        let v6 = link
            .protocol(IPV6)
            .and(way.both(|is_src| ranges::contains(link, if is_src { 8 } else { 24 }, 4, &v6)));
        Ok(match proto {
            Some("ip") => v4,
            Some(_) => v6,
            None => v4.or(v6),
        })
    }

    /// Steps that store the offset and length of the payload; false for packets without one.
    fn payload(&self) -> Cond {
        let link = &self.link;
        let network = link.offset(From::Network);
        let transport = |is_v6: bool, protocol: u32| {
            let field = if is_v6 { 6 } else { 9 };
            let mut load = ip_header(is_v6, network);
            match protocol {
                6 => load.extend([
                    insn(LDB_IND, network + 12),
                    insn(AND, 0xf0),
                    insn(RSH, 2),
                    insn(ADD_X, 0),
                ]),
                _ => load.push(insn(ADD, 8)),
            }
            // The length of the IP packet, from its header.
            let total = match is_v6 {
                true => vec![insn(LDH, network + 4), insn(ADD, 40)],
                false => vec![insn(LDH, network + 2)],
            };
            load.extend([insn(ST, AT), insn(TAX, 0)]);
            load.extend(&total);
            let mut rest = vec![insn(LDX_MEM, AT)];
            rest.extend(total);
            rest.extend([insn(SUB + WITH_X, 0), insn(ST, END)]);
            Cond::All(vec![
                link.eq(From::Network, field, Size::B, protocol),
                Cond::Test(step(load, JGE + WITH_X, 0)),
                run(rest),
            ])
        };
        let both = |is_v6| transport(is_v6, 6).or(transport(is_v6, 17));
        let v4 = Cond::All(vec![link.protocol(IP), link.first_fragment(), both(false)]);
        v4.or(link.protocol(IPV6).and(both(true)))
    }

    /// Parses `payload[at:size]` with a constant offset.
    pub(super) fn payload_load(&mut self) -> Result<Guarded> {
        self.next();
        self.next();
        let place = self.place();
        let at = self.number()?;
        let size = self.size()?;
        self.need("]")?;
        let len = match size {
            0 => 4,
            8 => 2,
            _ => 1,
        };
        if at > 0xffff {
            return Err(
                Error::new(place, format!("payload offset {at} is out of range"))
                    .expected("expected a number up to 65535"),
            );
        }
        self.need_constant("payload", place)?;
        let is_there = Cond::Test(step(vec![insn(LD_MEM, END)], JGE, at + len));
        let from = self.link.offset(From::Network) + at;
        Ok(Guarded {
            value: Value::Step(vec![insn(LDX_MEM, AT), insn(0x40 | size, from)]),
            guard: Vec::new(),
            steps: vec![self.payload(), is_there],
        })
    }

    /// Parses `payload contains "text" within n`.
    fn payload_contains(&mut self) -> Result<Cond> {
        self.next();
        let place = self.place();
        let text = match self.next() {
            Token::Text(text) if !text.is_empty() => text,
            _ => {
                return Err(
                    Error::new(place, "the text to search for is missing").expected(
                        "expected text in quotation marks, as in contains \"GET\" within 64",
                    ),
                );
            }
        };
        if self.next() != Token::Name("within".to_owned()) {
            return Err(
                Error::new(place, "the number of bytes to search is missing")
                    .expected("expected \"within\" and a number of bytes after the text"),
            );
        }
        let bound = self.place();
        let within = self.number()?;
        if within > WITHIN_MAX || (within as usize) < text.len() {
            let what = format!("\"within {within}\" is out of range");
            return Err(Error::new(bound, what).expected(format!(
                "expected {} (the length of the text) to {WITHIN_MAX} bytes",
                text.len()
            )));
        }
        self.need_constant("payload", bound.clone())?;
        let places = within as usize - text.len() + 1;
        self.count_tests(places * (text.len().div_ceil(4) + 1), bound)?;
        let network = self.link.offset(From::Network);
        let longer = step(vec![insn(LD_MEM, END)], JGT, within);
        let cut = run(vec![insn(LD_IMM, within), insn(ST, END)]);
        let cut = Cond::Choice(longer, Box::new(cut), Box::new(Cond::Const(true)));
        // All of these bytes must be present: loading the last one ensures it.
        let last = vec![
            insn(LD_MEM, END),
            insn(LDX_MEM, AT),
            insn(ADD_X, 0),
            insn(SUB, 1),
            insn(TAX, 0),
            insn(LDB_IND, network),
        ];
        let len = text.len() as u32;
        let places = (0..=within - len).map(|at| {
            let fits = step(vec![insn(LD_MEM, END)], JGE, at + len);
            (fits, bytes_at(&text, network + at))
        });
        let find = Cond::Last(places.collect());
        Ok(Cond::All(vec![self.payload(), cut, run(last), find]))
    }

    /// Compiles `option NAME`, which walks the options of a TCP header.
    pub(super) fn tcp_option(&mut self) -> Result<Cond> {
        self.next();
        let place = self.place();
        let kind = match self.next() {
            Token::Number(n) if n <= 255 => Some(n),
            Token::Name(name) => OPTIONS.iter().find(|row| row.0 == name).map(|row| row.1),
            _ => None,
        };
        let kind = kind.ok_or_else(|| unknown_option(place.clone()))?;
        self.need_constant("tcp option", place.clone())?;
        self.count_tests(OPTIONS_LEN_MAX * TESTS_PER_OPTION, place)?;
        let link = &self.link;
        let network = link.offset(From::Network);
        let start = |is_v6| {
            let mut load = ip_header(is_v6, network);
            load.extend([insn(ADD, 20), insn(ST, AT), insn(LDB_IND, network + 12)]);
            load.extend([insn(AND, 0xf0), insn(RSH, 2), insn(ADD_X, 0), insn(ST, END)]);
            run(load)
        };
        let v4 = Cond::All(vec![
            link.protocol(IP),
            link.first_fragment(),
            link.eq(From::Network, 9, Size::B, 6),
            start(false),
        ]);
        let v6 = Cond::All(vec![
            link.protocol(IPV6),
            link.eq(From::Network, 6, Size::B, 6),
            start(true),
        ]);
        let walk = (0..OPTIONS_LEN_MAX).fold(Cond::Const(false), |next, _| {
            option_step(network, kind, next)
        });
        Ok(v4.or(v6).and(walk))
    }
}

fn unknown_option(place: Range<usize>) -> Error {
    let names: Vec<&str> = OPTIONS.iter().map(|row| row.0).collect();
    Error::new(place, "unknown TCP option")
        .expected(format!("expected a number or one of {}", names.join(", ")))
}

/// Tests for the bytes of a text at an offset in the payload.
fn bytes_at(text: &[u8], offset: u32) -> Cond {
    let mut list = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let (size, len) = match text.len() - at {
            4.. => (Size::W, 4),
            2.. => (Size::H, 2),
            _ => (Size::B, 1),
        };
        let bytes = &text[at..at + len];
        let value = bytes.iter().fold(0, |v, &byte| v << 8 | u32::from(byte));
        let load = insn(0x40 | size as u16, offset + at as u32);
        list.push(Cond::Test(step(vec![insn(LDX_MEM, AT), load], JEQ, value)));
        at += len;
    }
    Cond::All(list)
}

/// Tests the option at the offset in scratch memory, then `next` for the option after it. An option
/// counts as present if its kind is within the header; an option with a length below 2, or without
/// a length, is the last one.
fn option_step(network: u32, kind: u32, next: Cond) -> Cond {
    let here = |offset: u32| vec![insn(LDX_MEM, AT), insn(LDB_IND, network + offset)];
    let past = |offset: u32| {
        let mut load = vec![insn(LDX_MEM, END), insn(LD_MEM, AT)];
        if offset > 0 {
            load.push(insn(ADD, offset));
        }
        step(load, JGE + WITH_X, 0)
    };
    let never = || Box::new(Cond::Const(false));
    let mut by_length = here(1);
    by_length.extend([insn(ADD_X, 0), insn(ST, AT)]);
    let advance = Cond::Choice(
        step(here(0), JEQ, 1),
        Box::new(run(vec![insn(LD_MEM, AT), insn(ADD, 1), insn(ST, AT)])),
        Box::new(Cond::All(vec![
            Cond::Test(past(1)).negate(),
            Cond::Test(step(here(1), JGE, 2)),
            run(by_length),
        ])),
    );
    let other = Cond::Choice(step(here(0), JEQ, 0), never(), Box::new(advance.and(next)));
    let is_kind = Cond::Choice(
        step(here(0), JEQ, kind),
        Box::new(Cond::Const(true)),
        Box::new(other),
    );
    Cond::Choice(past(0), never(), Box::new(is_kind))
}
