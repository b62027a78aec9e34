//! IEEE 802.11: the length of its header, its addresses, and tests of type and direction.
//!
//! A data frame has 24 bytes of header, 2 more with QoS, and then an LLC header; before it may be a
//! radio header. As in libpcap, the offsets of both are computed first, if anything needs them, and
//! four addresses do not make the header longer.

use std::ops::Range;

use bpf::cbpf::Insn;

use super::arith::{ADD, AND, LDX_MEM, LSH, OR, ST, TAX};
use super::block::{Cond, JEQ, JSET, LD_IMM, Test, WITH_X};
use super::extended::{LD_MEM, LDB_IND, LDH, TXA, insn, run};
use super::lex::Token;
use super::lower::{From, Kind, Link, Size, Way};
use super::parse::Parser;
use super::pf;
use crate::{Error, Result};

const LDB: u16 = 0x30;
const LDW: u16 = 0x20;

/// Bits of the first byte of the frame control field: not a management frame; a control frame or a
/// reserved type; QoS.
const NOT_MANAGEMENT: u32 = 0x08;
const NOT_DATA: u32 = 0x04;
const QOS: u32 = 0x80;
const TYPE: u32 = 0x0c;
const SUBTYPE: u32 = 0xf0;
/// Bits of the second byte.
const TO_DS: u32 = 0x01;
const FROM_DS: u32 = 0x02;
const DIRECTION: u32 = 0x03;

/// Bits of radiotap's first presence word, as loaded (radiotap is in little-endian order).
const TSFT: u32 = 1_u32.swap_bytes();
const FLAGS: u32 = 2_u32.swap_bytes();
const EXTENDED: u32 = 0x8000_0000_u32.swap_bytes();
/// Flag of radiotap: the header is padded to 4 bytes.
const PADDED: u32 = 0x20;

/// The header before that of 802.11.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Radio {
    None,
    /// Radiotap: the length is at 2, in little-endian order.
    Radiotap,
    /// PPI: the length is at 2, in little-endian order, and the link type at 4.
    Ppi,
    /// AVS: the length is at 4.
    Avs,
    /// Prism, with 144 bytes, or AVS.
    Prism,
}

#[rustfmt::skip]
const TYPES: &[(&str, u32)] = &[
    ("mgt", 0x00), ("mgmt", 0x00), ("management", 0x00), ("ctl", 0x04), ("ctrl", 0x04),
    ("control", 0x04), ("data", 0x08),
];

/// Subtypes by name, each with its type.
#[rustfmt::skip]
const SUBTYPES: &[(&str, u32, u32)] = &[
    ("assocreq", 0x00, 0x00), ("assoc-req", 0x00, 0x00), ("assocresp", 0x00, 0x10),
    ("assoc-resp", 0x00, 0x10), ("reassocreq", 0x00, 0x20), ("reassoc-req", 0x00, 0x20),
    ("reassocresp", 0x00, 0x30), ("reassoc-resp", 0x00, 0x30), ("probereq", 0x00, 0x40),
    ("probe-req", 0x00, 0x40), ("proberesp", 0x00, 0x50), ("probe-resp", 0x00, 0x50),
    ("beacon", 0x00, 0x80), ("atim", 0x00, 0x90), ("disassoc", 0x00, 0xa0),
    ("disassociation", 0x00, 0xa0), ("auth", 0x00, 0xb0), ("authentication", 0x00, 0xb0),
    ("deauth", 0x00, 0xc0), ("deauthentication", 0x00, 0xc0),
    ("ps-poll", 0x04, 0xa0), ("rts", 0x04, 0xb0), ("cts", 0x04, 0xc0), ("ack", 0x04, 0xd0),
    ("cf-end", 0x04, 0xe0), ("cf-end-ack", 0x04, 0xf0),
    ("data", 0x08, 0x00), ("data-cf-ack", 0x08, 0x10), ("data-cf-poll", 0x08, 0x20),
    ("data-cf-ack-poll", 0x08, 0x30), ("null", 0x08, 0x40), ("cf-ack", 0x08, 0x50),
    ("cf-poll", 0x08, 0x60), ("cf-ack-poll", 0x08, 0x70), ("qos-data", 0x08, 0x80),
    ("qos-data-cf-ack", 0x08, 0x90), ("qos-data-cf-poll", 0x08, 0xa0),
    ("qos-data-cf-ack-poll", 0x08, 0xb0), ("qos", 0x08, 0xc0), ("qos-cf-poll", 0x08, 0xe0),
    ("qos-cf-ack-poll", 0x08, 0xf0),
];

const DIRECTIONS: &[(&str, u32)] = &[("nods", 0), ("tods", 1), ("fromds", 2), ("dstods", 3)];

impl Parser<'_> {
    /// Parses `type T`, `type T subtype S`, `subtype S` or `dir D`.
    pub(super) fn frame_control(&mut self, key: &'static str) -> Result<Cond> {
        let place = self.place();
        self.next();
        let test =
            |p: &Self, at, value, mask| Ok(p.link.masked(From::Header, at, Size::B, value, mask));
        let cond = match key {
            "direction" => {
                let value = self.constant("direction", u32::MAX, DIRECTIONS)?;
                test(self, 1, value, DIRECTION)
            }
            "type" => {
                let kind = self.constant("type", TYPE, TYPES)?;
                let (subtype, mask) = match self.take("subtype") {
                    false => (0, TYPE),
                    true => {
                        let own = SUBTYPES.iter().filter(|row| row.1 == kind);
                        let own: Vec<(&str, u32)> = own.map(|row| (row.0, row.2)).collect();
                        (self.constant("subtype", SUBTYPE, &own)?, TYPE | SUBTYPE)
                    }
                };
                test(self, 0, kind | subtype, mask)
            }
            _ => {
                let all: Vec<(&str, u32)> =
                    SUBTYPES.iter().map(|row| (row.0, row.1 | row.2)).collect();
                // Without a type, libpcap knows subtypes by name only.
                let value = self.constant("subtype", 0, &all)?;
                test(self, 0, value, TYPE | SUBTYPE)
            }
        };
        if !self.link.is_wlan() {
            return Err(
                Error::new(place, format!("the link type has no {key} of frames"))
                    .expected("802.11 frames have one"),
            );
        }
        cond
    }

    /// Parses a name of a table, or a number with only these bits.
    fn constant(&mut self, what: &str, bits: u32, table: &[(&str, u32)]) -> Result<u32> {
        let place = self.place();
        let found = match self.next() {
            Token::Number(n) if bits != 0 && n & !bits == 0 => Some(n),
            Token::Name(name) => {
                let row = table.iter().find(|row| row.0.eq_ignore_ascii_case(&name));
                row.map(|row| row.1)
            }
            _ => None,
        };
        found.ok_or_else(|| {
            let names: Vec<&str> = table.iter().map(|row| row.0).collect();
            Error::new(place, format!("not a {what} of 802.11 frames"))
                .expected(format!("expected one of {}", names.join(", ")))
        })
    }
}

impl Link {
    pub(super) fn is_wlan(&self) -> bool {
        matches!(self.kind, Kind::Wlan(_))
    }

    /// Tests for 802.11 in a PPI packet, which can carry packets of any link type.
    pub(super) fn ppi(&self) -> Cond {
        self.eq(From::Start, 4, Size::W, 105_u32.swap_bytes())
    }

    fn bit(&self, at: u32, bit: u32) -> Cond {
        self.test(From::Header, at, Size::B, JSET, bit)
    }

    /// Tests for a data frame.
    pub(super) fn data_frame(&self) -> Cond {
        self.bit(0, NOT_DATA)
            .negate()
            .and(self.bit(0, NOT_MANAGEMENT))
    }

    /// Tests the destination address by a test at its offset: it depends on the frame's type, and
    /// in data frames on its direction.
    pub(super) fn wlan_destination(&self, at: impl Fn(u32) -> Cond) -> Cond {
        let to_ds = || self.bit(1, TO_DS);
        let data = to_ds().and(at(16)).or(to_ds().negate().and(at(4)));
        self.data_or_management(data, at(4))
    }

    fn wlan_source(&self, at: impl Fn(u32) -> Cond) -> Cond {
        let (to_ds, from_ds) = (|| self.bit(1, TO_DS), || self.bit(1, FROM_DS));
        let from = to_ds().and(at(24)).or(to_ds().negate().and(at(16)));
        let data = from_ds().and(from).or(from_ds().negate().and(at(10)));
        self.data_or_management(data, at(10))
    }

    fn data_or_management(&self, data: Cond, management: Cond) -> Cond {
        let is_not = || self.bit(0, NOT_MANAGEMENT);
        let either = is_not().and(data).or(is_not().negate().and(management));
        self.bit(0, NOT_DATA).negate().and(either)
    }

    /// Tests a MAC address of an 802.11 frame.
    pub(super) fn wlan_mac(&self, address: [u8; 6], way: Way) -> Cond {
        let at = |offset| self.bytes(From::Header, offset, &address);
        let ends = |is_src| match is_src {
            true => self.wlan_source(at),
            false => self.wlan_destination(at),
        };
        let byte = |value, mask| self.masked(From::Header, 0, Size::B, value, mask);
        let is_control = || byte(0x04, TYPE);
        // CTS and ACK frames have no second address.
        let has_second = || {
            let others = byte(0xc0, SUBTYPE)
                .negate()
                .and(byte(0xd0, SUBTYPE).negate());
            is_control().negate().or(others)
        };
        match way {
            Way::Address(0) => at(4),
            Way::Address(1) => has_second().and(at(10)),
            Way::Address(2) => is_control().negate().and(at(16)),
            Way::Address(_) => {
                let both = self.masked(From::Header, 1, Size::B, TO_DS | FROM_DS, DIRECTION);
                both.and(at(24))
            }
            // Management frames have neither.
            Way::Receiver => self.bit(0, NOT_MANAGEMENT).and(at(4)),
            Way::Transmitter => self.bit(0, NOT_MANAGEMENT).and(has_second()).and(at(10)),
            _ => way.both(ends),
        }
    }

    /// Steps that compute the variable parts of offsets, if tests use them: those of the 802.11
    /// header and of its payload, of the packet in a log of pf(4), or of what Juniper's header has
    /// behind it.
    pub(super) fn start(&self, uses: impl Fn(u32) -> bool) -> Option<Cond> {
        let bases = self.outermost();
        let radio = match self.kind {
            _ if self.is_juniper => {
                return bases.header.filter(|&word| uses(word)).map(juniper_start);
            }
            Kind::Wlan(radio) => radio,
            Kind::PfLog => return bases.payload.filter(|&word| uses(word)).map(pf::start),
            _ => return None,
        };
        let payload = bases.payload.filter(|&word| uses(word));
        let header = bases.header.filter(|&word| payload.is_some() || uses(word));
        let mut steps = Vec::new();
        if let Some(header) = header {
            steps.push(header_start(radio, header));
        }
        if let Some(payload) = payload {
            steps.push(payload_start(radio, header, payload));
        }
        (!steps.is_empty()).then_some(Cond::All(steps))
    }
}

/// Stores the length of Juniper's header: 4 bytes, and extensions with their length.
fn juniper_start(word: u32) -> Cond {
    let is_extended = Test::new(vec![insn(LDB, 3)], JSET, 0x80);
    let store = |load: &[Insn]| Box::new(run([load, &[insn(ST, word)]].concat()));
    let extended = store(&[insn(LDH, 4), insn(ADD, 6)]);
    Cond::Choice(is_extended, extended, store(&[insn(LD_IMM, 4)]))
}

/// Stores the length of the radio header.
fn header_start(radio: Radio, word: u32) -> Cond {
    let store = |mut load: Vec<Insn>| {
        load.push(insn(ST, word));
        run(load)
    };
    let avs = || store(vec![insn(LDW, 4)]);
    match radio {
        Radio::Avs => avs(),
        Radio::Prism => {
            let magic = vec![insn(LDW, 0), insn(AND, 0xffff_f000)];
            let is_avs = Test::new(magic, JEQ, 0x8021_1000);
            let prism = store(vec![insn(LD_IMM, 144)]);
            Cond::Choice(is_avs, Box::new(avs()), Box::new(prism))
        }
        Radio::None | Radio::Radiotap | Radio::Ppi => store(vec![
            insn(LDB, 3),
            insn(LSH, 8),
            insn(TAX, 0),
            insn(LDB, 2),
            insn(OR + WITH_X, 0),
        ]),
    }
}

/// Stores the offset of the LLC header of a data frame.
fn payload_start(radio: Radio, header: Option<u32>, payload: u32) -> Cond {
    let base = || match header {
        Some(word) => vec![insn(LDX_MEM, word)],
        None => vec![insn(LD_IMM, 0), insn(TAX, 0)],
    };
    let mut plain = base();
    plain.extend([insn(TXA, 0), insn(ADD, 24), insn(ST, payload)]);
    let control = |bit| {
        let mut load = base();
        load.push(insn(LDB_IND, 0));
        Test::new(load, JSET, bit)
    };
    let always = || Box::new(Cond::Const(true));
    let change = |insns: &[Insn]| {
        let mut load = vec![insn(LD_MEM, payload)];
        load.extend(insns);
        load.push(insn(ST, payload));
        Box::new(run(load))
    };
    let qos = Cond::Choice(control(QOS), change(&[insn(ADD, 2)]), always());
    let padding = match radio {
        Radio::Radiotap => {
            let present = |bit| Test::new(vec![insn(LDW, 4)], JSET, bit);
            let padded = |at| {
                let test = Test::new(vec![insn(LDB, at)], JSET, PADDED);
                Box::new(Cond::Choice(
                    test,
                    change(&[insn(ADD, 3), insn(AND, !3)]),
                    always(),
                ))
            };
            let flags = Cond::Choice(present(TSFT), padded(16), padded(8));
            let flags = Cond::Choice(present(EXTENDED), always(), Box::new(flags));
            Cond::Choice(present(FLAGS), Box::new(flags), always())
        }
        _ => Cond::Const(true),
    };
    let data = Box::new(qos.and(padding));
    let is_data = Cond::Choice(control(NOT_DATA), always(), data);
    let is_data = Cond::Choice(control(NOT_MANAGEMENT), Box::new(is_data), always());
    run(plain).and(is_data)
}

/// The words of scratch memory that tests read.
pub(super) fn reads(load: &[Insn], words: &Range<u32>) -> Vec<u32> {
    let is_read = |insn: &&Insn| matches!(insn.code, LD_MEM | LDX_MEM) && words.contains(&insn.k);
    load.iter().filter(is_read).map(|insn| insn.k).collect()
}
