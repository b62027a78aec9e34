//! Signaling System No. 7: signal units of MTP2 (ITU-T Q.703) and the routing label of MTP3
//! (Q.704), also with the extended headers of high-speed links (Q.703 annex A).

use super::block::{Cond, JEQ, JGT, Test};
use super::extended::insn;
use super::lower::{From, Kind, Link, Size};
use super::parse::Parser;
use crate::{Error, Result};

const AND: u16 = 0x54;

/// Fields: offset from the length indicator, and 3 more on high-speed links; maximum value.
#[rustfmt::skip]
const FIELDS: &[(&str, u32, u32)] = &[
    ("sio", 1, 0xff), ("opc", 2, 0x3fff), ("dpc", 2, 0x3fff), ("sls", 5, 0xf),
    ("hsio", 4, 0xff), ("hopc", 5, 0x3fff), ("hdpc", 5, 0x3fff), ("hsls", 8, 0xf),
];

pub(super) fn is_keyword(key: &str) -> bool {
    matches!(key, "fisu" | "lssu" | "msu" | "hfisu" | "hlssu" | "hmsu")
        || FIELDS.iter().any(|row| row.0 == key)
}

impl Parser<'_> {
    /// Parses a test of a signal unit, given its keyword.
    pub(super) fn ss7(&mut self, key: &'static str) -> Result<Cond> {
        let place = self.place();
        if self.link.kind != Kind::Mtp2 {
            return Err(Error::new(place, format!("the link type has no \"{key}\""))
                .expected("only MTP2 of SS7 has one"));
        }
        self.next();
        let link = self.link.clone();
        let Some(&(_, at, most)) = FIELDS.iter().find(|row| row.0 == key) else {
            return Ok(link.signal_unit(key));
        };
        self.field_up_to(most, |jump, n| {
            // Point codes are in little-endian order, across bytes: 14 bits of the destination,
            // then 14 of the origin and 4 of the link.
            let (size, value, mask) = match key.trim_start_matches('h') {
                "sio" => (Size::B, n, u32::MAX),
                "sls" => (Size::B, n << 4, 0xf0),
                "opc" => (
                    Size::W,
                    (n & 3) << 22 | (n & 0x3fc) << 6 | n >> 10,
                    0x00c0_ff0f,
                ),
                _ => (Size::W, (n & 0xff) << 24 | (n & 0x3f00) << 8, 0xff3f_0000),
            };
            link.unit_field(at, size, jump, value, mask)
        })
    }
}

impl Link {
    /// Tests the type of a signal unit by its length indicator: 0, at most 2, or more.
    fn signal_unit(&self, key: &str) -> Cond {
        let (size, mask, two) = match key.starts_with('h') {
            true => (Size::H, 0xff80, 2 << 7),
            false => (Size::B, 0x3f, 2),
        };
        let at = match key.starts_with('h') {
            true => 2,
            false => 0,
        };
        let length = |jump, k| self.unit_field(at, size, jump, k, mask);
        match key.trim_start_matches('h') {
            "fisu" => length(JEQ, 0),
            "msu" => length(JGT, two),
            _ => length(JGT, 0).and(length(JGT, two).negate()),
        }
    }

    fn unit_field(&self, at: u32, size: Size, jump: u16, k: u32, mask: u32) -> Cond {
        let mut load = self.load(From::LinkType, at, size);
        if mask != u32::MAX {
            load.push(insn(AND, mask));
        }
        Cond::Test(Test::new(load, jump, k))
    }
}
