//! Packets logged by pf(4) of OpenBSD and FreeBSD: interface, rule, reason and action.
//!
//! The header is that of net/if_pflog.h. It begins with its length, which is rounded up to a
//! multiple of 4.

use super::arith::{ADD, AND, ST};
use super::block::Cond;
use super::extended::{insn, run};
use super::lex::Token;
use super::lower::{From, Kind, Size};
use super::parse::Parser;
use crate::{Error, Result};

const LDB: u16 = 0x30;
/// Offsets in the header.
const ACTION: u32 = 2;
const REASON: u32 = 3;
const INTERFACE: u32 = 4;
const RULESET: u32 = 20;
const RULE: u32 = 36;
const SUBRULE: u32 = 40;
/// Maximum length of the name of an interface or a rule set.
const NAME_LEN_MAX: usize = 15;

#[rustfmt::skip]
const REASONS: &[(&str, u32)] = &[
    ("match", 0), ("bad-offset", 1), ("fragment", 2), ("short", 3), ("normalize", 4),
    ("memory", 5), ("bad-timestamp", 6),
];

#[rustfmt::skip]
const ACTIONS: &[(&str, u32)] = &[
    ("pass", 0), ("accept", 0), ("drop", 1), ("block", 1), ("scrub", 2), ("nat", 4),
    ("binat", 6), ("rdr", 8), ("nordr", 9),
];

pub(super) fn is_keyword(key: &str) -> bool {
    matches!(
        key,
        "ifname" | "rset" | "rnr" | "srnr" | "reason" | "action"
    )
}

/// Stores the length of the header, which is the offset of the packet.
pub(super) fn start(word: u32) -> Cond {
    run(vec![
        insn(LDB, 0),
        insn(ADD, 3),
        insn(AND, !3),
        insn(ST, word),
    ])
}

impl Parser<'_> {
    /// Parses a test of the header, given its keyword.
    pub(super) fn pf(&mut self, key: &'static str) -> Result<Cond> {
        let place = self.place();
        if self.link.kind != Kind::PfLog {
            return Err(Error::new(place, format!("the link type has no \"{key}\""))
                .expected("only packets logged by pf(4) have one"));
        }
        self.next();
        let (at, size) = match key {
            "rnr" => (RULE, Size::W),
            "srnr" => (SUBRULE, Size::W),
            "reason" => (REASON, Size::B),
            "action" => (ACTION, Size::B),
            _ => return self.pf_name(if key == "ifname" { INTERFACE } else { RULESET }),
        };
        let value = match key {
            "reason" => self.pf_constant(key, REASONS)?,
            "action" => self.pf_constant(key, ACTIONS)?,
            _ => self.number()?,
        };
        Ok(self.link.eq(From::Header, at, size, value))
    }

    fn pf_constant(&mut self, key: &str, table: &[(&str, u32)]) -> Result<u32> {
        let place = self.place();
        let known = match self.next() {
            Token::Number(n) if key == "reason" => Some(n),
            Token::Name(name) => table
                .iter()
                .find(|row| row.0.eq_ignore_ascii_case(&name))
                .map(|row| row.1),
            _ => None,
        };
        known.ok_or_else(|| {
            let names: Vec<&str> = table.iter().map(|row| row.0).collect();
            Error::new(place, format!("unknown {key} of pf"))
                .expected(format!("expected one of {}", names.join(", ")))
        })
    }

    fn pf_name(&mut self, at: u32) -> Result<Cond> {
        let place = self.place();
        let Token::Name(name) = self.peek().clone() else {
            return Err(self.unexpected("expected the name of an interface or a rule set"));
        };
        self.next();
        if name.len() > NAME_LEN_MAX {
            return Err(Error::new(place, "the name is too long")
                .expected(format!("at most {NAME_LEN_MAX} bytes")));
        }
        Ok(self.link.bytes(From::Header, at, name.as_bytes()))
    }
}
