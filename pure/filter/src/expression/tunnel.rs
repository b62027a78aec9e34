//! Compiles `inner`, `vxlan` and `gtpu`: tests of the packet that a tunnel carries.
//!
//! Steps find the inner packet and store three words: the offset of its Ethernet header (that of
//! the network header if it has none), its EtherType, and the offset of its network header. Tests
//! of the inner packet then read these words instead of constant offsets. `inner` applies to one
//! expression, as `not` does; `vxlan` and `gtpu` to everything after them, as libpcap's `geneve`
//! and, from 1.11 on, `vxlan`.
//!
//! A program has no loops, so the number of headers to skip is bounded: [`EXTENSIONS_MAX`] of IPv6,
//! and as many of GTP-U. GRE with source routes (RFC 1701) is not entered.

use std::ops::Range;

use bpf::cbpf::Insn;

use super::arith::{ADD, ADD_X, AND, LDX_MEM, LSH, MUL, ST, TAX};
use super::block::{Cond, JEQ, JGT, JSET, LD_IMM, Test};
use super::extended::{AT, LD_MEM, LDB_IND, LDH_IND, NEXT, TXA, insn, run, step};
use super::lex::Token;
use super::lower::{Bases, From, IP, IPV6, Kind, Link, Size};
use super::parse::Parser;
use crate::{Error, Result};

/// Maximum number of IPv6 extension headers, and of GTP-U's.
const EXTENSIONS_MAX: usize = 4;
/// Scratch word: the length of a header while its parts are added up.
const LEN: u32 = 14;
/// Number of tests of `inner` that walk the headers, about.
const TESTS: usize = 120;

/// EtherTypes in tunnels: Ethernet, PPP, ERSPAN type II (or I) and III, and those of headers that
/// carry a packet.
const ETHERNET: u32 = 0x6558;
const PPP: u32 = 0x880b;
const ERSPAN: u32 = 0x88be;
const ERSPAN_III: u32 = 0x22eb;
const MPLS: u32 = 0x8847;
const NSH: u32 = 0x894f;
const PBB: u32 = 0x88e7;
const FABRIC_PATH: u32 = 0x8903;
/// Instead of the EtherType of a PPP protocol that has none: a reserved number.
const NO_TYPE: u32 = 0xffff;

const UDP: u32 = 17;
const VXLAN_PORT: u32 = 4789;
const GTPU_PORT: u32 = 2152;
/// User packet.
const G_PDU: u32 = 255;
/// Maximum virtual network identifier (VNI).
const NETWORK_MAX: u32 = 0xff_ffff;

/// The words of a tunnel: Ethernet header, EtherType, network header.
#[derive(Clone, Copy)]
struct Words {
    header: u32,
    kind: u32,
    payload: u32,
}

/// Whether a token cannot follow `inner`: a name that is an identifier in libpcap's language can
/// only be followed by these.
fn ends_expression(token: Option<&Token>) -> bool {
    matches!(
        token,
        None | Some(Token::End | Token::Key("and" | "or" | ")"))
    )
}

/// Whether a word is a primitive about a tunnel, followed by this token.
pub(super) fn is_tunnel(word: &str, next: Option<&Token>) -> bool {
    match word {
        "inner" => !ends_expression(next),
        "vxlan" | "gtpu" => true,
        _ => false,
    }
}

impl Parser<'_> {
    /// Parses `inner EXPR`: like `not`, for the next primitive or what is in parentheses.
    pub(super) fn inner(&mut self, place: Range<usize>) -> Result<Cond> {
        self.count_tests(TESTS, place.clone())?;
        if matches!(self.link.kind, Kind::Other | Kind::Mtp2) {
            let what = "\"inner\" is not supported on this link type";
            return Err(Error::unsupported(place, what)
                .expected("expected bytes such as \"link[0]\", \"len\" or \"less\""));
        }
        let outer = self.link.clone();
        let (words, bases) = self.words(place)?;
        let enter = enter(&outer, words);
        self.link.push_tunnel(bases);
        let inside = self.deeper(Self::operand_of_inner)?;
        self.link.pop_tunnel(outer);
        Ok(Cond::All(vec![enter, inside]))
    }

    fn operand_of_inner(&mut self) -> Result<Cond> {
        if self.take("not") {
            return self.deeper(|p| Ok(p.operand_of_inner()?.negate()));
        }
        self.operand()
    }

    /// Parses `vxlan` or `gtpu` with its number.
    pub(super) fn tunnel(&mut self, name: &str, word: Range<usize>) -> Result<Cond> {
        let place = self.place();
        let number = self.optional_number();
        if name == "vxlan" && number.is_some_and(|n| n > NETWORK_MAX) {
            return Err(Error::new(place, "the number of \"vxlan\" is too large")
                .expected(format!("at most {NETWORK_MAX}")));
        }
        let outer = self.link.clone();
        let (words, bases) = self.words(word)?;
        let over = |from: From| {
            let (mut list, len) = match name {
                "vxlan" => (vxlan(&outer, from, number), 16),
                _ => (gtpu_header(&outer, from, number), 8),
            };
            let mut begin = start(&outer, from, len);
            begin.push(insn(ST, words.header));
            list.push(run(begin));
            Cond::All(list)
        };
        let v4 = Cond::All(vec![
            outer.ip4(UDP),
            outer.first_fragment(),
            over(From::Transport4),
        ]);
        let v6 = Cond::All(vec![
            outer.protocol(IPV6),
            outer.eq(From::Network, 6, Size::B, UDP),
            over(From::Transport6),
        ]);
        let inner = match name {
            "vxlan" => ethernet(words),
            _ => gtpu(words).and(network(words)),
        };
        self.link.push_tunnel(bases);
        // Without a tunnel, tests of its packet find no protocol.
        let mut nothing = vec![insn(LD_IMM, NO_TYPE), insn(ST, words.kind), insn(LD_IMM, 0)];
        nothing.extend([insn(ST, words.header), insn(ST, words.payload)]);
        Ok(Cond::All(vec![run(nothing), v4.or(v6), inner]))
    }

    /// Reserves the words of another tunnel.
    fn words(&mut self, place: Range<usize>) -> Result<(Words, Bases)> {
        let too_many = || {
            Error::unsupported(place, "too many tunnels inside each other").expected("at most 4")
        };
        let bases = self.link.reserve().ok_or_else(too_many)?;
        let word = |word: Option<u32>| word.unwrap_or(AT);
        let words = Words {
            header: word(bases.header),
            kind: word(bases.link_type),
            payload: word(bases.payload),
        };
        Ok((words, bases))
    }
}

/// Loads bytes after the cursor.
fn at(offset: u32, size: Size) -> Vec<Insn> {
    vec![insn(LDX_MEM, AT), insn(0x40 | size as u16, offset)]
}

fn test(load: Vec<Insn>, jump: u16, k: u32) -> Test {
    step(load, jump, k)
}

/// A comparison of bytes after the cursor.
fn is(offset: u32, size: Size, value: u32) -> Test {
    test(at(offset, size), JEQ, value)
}

fn masked(offset: u32, value: u32, mask: u32) -> Test {
    let mut load = at(offset, Size::B);
    load.push(insn(AND, mask));
    test(load, JEQ, value)
}

fn bit(offset: u32, bits: u32) -> Test {
    test(at(offset, Size::B), JSET, bits)
}

fn choice(test: Test, first: Cond, second: Cond) -> Cond {
    Cond::Choice(test, Box::new(first), Box::new(second))
}

fn when(test: Test, then: Cond) -> Cond {
    choice(test, then, Cond::Const(true))
}

fn need(test: Test) -> Cond {
    Cond::Test(test)
}

/// One alternative for each value; false for others.
fn by_value(alternatives: Vec<(Test, Cond)>) -> Cond {
    let last = Cond::Const(false);
    let rows = alternatives.into_iter().rev();
    rows.fold(last, |other, (test, cond)| choice(test, cond, other))
}

/// Stores a constant.
fn set(word: u32, value: u32) -> Cond {
    run(vec![insn(LD_IMM, value), insn(ST, word)])
}

/// Moves the cursor.
fn advance(len: u32) -> Cond {
    run(vec![insn(LD_MEM, AT), insn(ADD, len), insn(ST, AT)])
}

/// Adds to the length of a header.
fn lengthen(len: u32) -> Cond {
    run(vec![insn(LD_MEM, LEN), insn(ADD, len), insn(ST, LEN)])
}

/// Moves the cursor behind a header.
fn advance_by_len() -> Cond {
    let load = [insn(LD_MEM, LEN), insn(LDX_MEM, AT), insn(ADD_X, 0)];
    run([&load[..], &[insn(ST, AT)]].concat())
}

/// Moves the cursor by a length in the header: `(byte + plus) * unit`.
fn advance_by(offset: u32, plus: u32, unit: u32) -> Vec<Insn> {
    let mut load = at(offset, Size::B);
    load.extend([
        insn(ADD, plus),
        insn(MUL, unit),
        insn(ADD_X, 0),
        insn(ST, AT),
    ]);
    load
}

/// Puts the cursor at an offset of the outer packet.
fn start(link: &Link, from: From, plus: u32) -> Vec<Insn> {
    let mut load = link.prefix(from);
    if load.is_empty() {
        load.extend([insn(LD_IMM, 0), insn(TAX, 0)]);
    }
    load.extend([
        insn(TXA, 0),
        insn(ADD, link.offset(from).wrapping_add(plus)),
    ]);
    load.push(insn(ST, AT));
    load
}

/// Finds the packet inside any tunnel.
fn enter(link: &Link, words: Words) -> Cond {
    let ip = ip(link).and(carried(words));
    let mut list = vec![];
    if link.labels > 0 {
        // A pseudowire with a control word (RFC 4448).
        list.push(Cond::All(vec![
            link.masked(From::LastLabel, 2, Size::B, 1, 1),
            link.masked(From::Network, 0, Size::B, 0, 0xf0),
            run(start(link, From::Network, 4)),
            set(words.kind, ETHERNET),
        ]));
    } else {
        for (kind, len) in [(PBB, 4), (FABRIC_PATH, 2)] {
            let begin = run(start(link, From::Network, len));
            let found = [link.protocol(kind), begin, set(words.kind, ETHERNET)];
            list.push(Cond::All(found.into()));
        }
        let begin = run(start(link, From::Network, 0));
        list.push(Cond::All(vec![link.protocol(NSH), begin, nsh(words)]));
    }
    list.push(ip);
    Cond::Any(list).and(network(words))
}

/// Steps over the IP header, up to the header that is no extension: its number is in [`NEXT`].
fn ip(link: &Link) -> Cond {
    let next = |at: u32| {
        let mut load = link.load(From::Network, at, Size::B);
        load.push(insn(ST, NEXT));
        run(load)
    };
    let v4 = Cond::All(vec![
        link.protocol(IP),
        link.first_fragment(),
        run(start(link, From::Transport4, 0)),
        next(9),
        when(is_next(51), authentication()),
    ]);
    let mut v6 = vec![
        link.protocol(IPV6),
        run(start(link, From::Transport6, 0)),
        next(6),
    ];
    v6.extend((0..EXTENSIONS_MAX).map(|_| extension()));
    v4.or(Cond::All(v6))
}

fn is_next(number: u32) -> Test {
    test(vec![insn(LD_MEM, NEXT)], JEQ, number)
}

/// Stores the number of the header after the one at the cursor.
fn store_next() -> Vec<Insn> {
    let mut load = at(0, Size::B);
    load.push(insn(ST, NEXT));
    load
}

fn authentication() -> Cond {
    run([store_next(), advance_by(1, 2, 4)].concat())
}

/// Steps over an extension header of IPv6, if there is one. Later fragments have no headers.
fn extension() -> Cond {
    let options = || run([store_next(), advance_by(1, 1, 8)].concat());
    let offset = [at(2, Size::H), vec![insn(AND, 0xfff8)]].concat();
    let fragment = Cond::All(vec![
        need(test(offset, JEQ, 0)),
        run(store_next()),
        advance(8),
    ]);
    let others = when(is_next(51), authentication());
    let others = choice(is_next(44), fragment, others);
    [60, 43, 0].into_iter().fold(others, |other, number| {
        choice(is_next(number), options(), other)
    })
}

/// Finds what an IP packet carries.
fn carried(words: Words) -> Cond {
    let kind = |value| set(words.kind, value);
    let etherip = Cond::All(vec![
        need(masked(0, 0x30, 0xf0)),
        advance(2),
        kind(ETHERNET),
    ]);
    // A register message (RFC 7761, section 4.9.3).
    let pim = Cond::All(vec![
        need(is(0, Size::B, 0x21)),
        advance(8),
        by_version(words),
    ]);
    by_value(vec![
        (is_next(UDP), udp(words)),
        (is_next(47), gre(words)),
        (is_next(4), kind(IP)),
        (is_next(41), kind(IPV6)),
        (is_next(97), etherip),
        (is_next(103), pim),
        (is_next(137), kind(MPLS)),
        (is_next(143), kind(ETHERNET)),
    ])
}

/// Finds what a UDP packet carries, by its destination port, or its source port for tunnels that
/// answer from theirs.
fn udp(words: Words) -> Cond {
    let kind = |value| set(words.kind, value);
    let vxlan = Cond::All(vec![advance(16), kind(ETHERNET)]);
    let gpe = by_value(vec![
        (is(11, Size::B, 1), kind(IP)),
        (is(11, Size::B, 2), kind(IPV6)),
        (is(11, Size::B, 3), kind(ETHERNET)),
        (is(11, Size::B, 4), kind(NSH)),
    ]);
    let mut stored = at(10, Size::H);
    stored.push(insn(ST, words.kind));
    let mut options = at(8, Size::B);
    options.extend([insn(AND, 0x3f), insn(LSH, 2), insn(ADD_X, 0)]);
    options.extend([insn(ADD, 16), insn(ST, AT)]);
    let geneve = Cond::All(vec![need(masked(8, 0, 0xc0)), run(stored), run(options)]);
    let user_packet = Cond::All(vec![
        need(masked(8, 0x20, 0xe0)),
        need(is(9, Size::B, G_PDU)),
        advance(8),
        gtpu(words),
    ]);
    let old_gtp = Cond::All(vec![
        need(masked(8, 0x10, 0xf0)),
        need(is(9, Size::B, G_PDU)),
        advance(28),
        by_version(words),
    ]);
    let port = |offset, number| is(offset, Size::H, number);
    let teredo = || advance(8).and(teredo(words));
    let l2tp = || advance(8).and(l2tp(words));
    let replies = vec![(port(0, 1701), l2tp()), (port(0, 3544), teredo())];
    let to = vec![
        (port(2, VXLAN_PORT), vxlan),
        (port(2, 4790), gpe.and(advance(16))),
        (port(2, 6081), geneve),
        (port(2, GTPU_PORT), user_packet),
        (port(2, 3386), old_gtp),
        (port(2, 3544), teredo()),
        (port(2, 1701), l2tp()),
        (port(2, 4754), advance(8).and(gre(words))),
        // ESP or IKE.
        (port(2, 4500), Cond::Const(false)),
    ];
    let rows = to.into_iter().rev();
    rows.fold(by_value(replies), |other, (test, cond)| {
        choice(test, cond, other)
    })
}

/// GRE (RFC 2784, RFC 2890), version 1 of PPTP (RFC 2637), and ERSPAN.
fn gre(words: Words) -> Cond {
    let plain = Cond::All(vec![
        need(bit(0, 0x40)).negate(),
        when(bit(0, 0x80), lengthen(4)),
        when(bit(0, 0x20), lengthen(4)),
    ]);
    // Without the key, which has the length of the payload, it is an acknowledgement only.
    let pptp = Cond::All(vec![
        need(bit(0, 0x20)),
        lengthen(4),
        when(bit(1, 0x80), lengthen(4)),
    ]);
    let version = by_value(vec![(masked(1, 0, 7), plain), (masked(1, 1, 7), pptp)]);
    let mut stored = at(2, Size::H);
    stored.push(insn(ST, words.kind));
    let is_kind = |value| test(vec![insn(LD_MEM, words.kind)], JEQ, value);
    // Type I of ERSPAN has no header of its own and no sequence number.
    let erspan = when(bit(0, 0x10), lengthen(8)).and(advance_by_len());
    let long = when(bit(11, 1), lengthen(8)).and(lengthen(12));
    let erspan_iii = Cond::All(vec![advance_by_len(), set(LEN, 0), long, advance_by_len()]);
    let ethernet = || set(words.kind, ETHERNET);
    let rest = choice(
        is_kind(ERSPAN),
        erspan.and(ethernet()),
        choice(
            is_kind(ERSPAN_III),
            erspan_iii.and(ethernet()),
            advance_by_len(),
        ),
    );
    Cond::All(vec![
        set(LEN, 4),
        version,
        when(bit(0, 0x10), lengthen(4)),
        run(stored),
        rest,
    ])
}

/// GTP-U (3GPP TS 29.281) at the cursor: the packet after its header and extension headers.
fn gtpu(words: Words) -> Cond {
    // The byte with the type of the next extension header is the last one of each header.
    let walk = (0..EXTENSIONS_MAX).fold(need(is(0, Size::B, 0)), |next, _| {
        let mut to_next = at(1, Size::B);
        to_next.extend([insn(LSH, 2), insn(ADD_X, 0), insn(ST, AT)]);
        let has_len = need(is(1, Size::B, 0)).negate();
        let step = Cond::All(vec![has_len, run(to_next), next]);
        choice(is(0, Size::B, 0), Cond::Const(true), step)
    });
    let extensions = Cond::All(vec![advance(11), walk, advance(1)]);
    let options = choice(bit(0, 4), extensions, advance(12));
    let header = choice(bit(0, 7), options, advance(8));
    header.and(by_version(words))
}

/// Teredo (RFC 4380, section 5.1.1): IPv6 after an authentication and an origin.
fn teredo(words: Words) -> Cond {
    let mut authentication = at(2, Size::B);
    authentication.extend([insn(ST, LEN), insn(LDB_IND, 3), insn(ADD_X, 0)]);
    authentication.extend([insn(LDX_MEM, LEN), insn(ADD_X, 0)]);
    authentication.extend([insn(ADD, 13), insn(ST, AT)]);
    Cond::All(vec![
        when(is(0, Size::H, 1), run(authentication)),
        when(is(0, Size::H, 0), advance(8)),
        need(masked(0, 0x60, 0xf0)),
        set(words.kind, IPV6),
    ])
}

/// L2TP version 2 (RFC 2661): PPP in data messages.
fn l2tp(words: Words) -> Cond {
    let mut offset = at(0, Size::H);
    offset.extend([insn(ADD, 2), insn(ADD_X, 0), insn(ST, AT)]);
    Cond::All(vec![
        need(masked(1, 2, 0x0f)),
        need(bit(0, 0x80)).negate(),
        set(LEN, 6),
        when(bit(0, 0x40), lengthen(2)),
        when(bit(0, 0x08), lengthen(4)),
        choice(
            bit(0, 0x02),
            advance_by_len().and(run(offset)),
            advance_by_len(),
        ),
        set(words.kind, PPP),
    ])
}

/// The network service header (RFC 8300).
fn nsh(words: Words) -> Cond {
    let kind = |value| set(words.kind, value);
    let next = by_value(vec![
        (is(3, Size::B, 1), kind(IP)),
        (is(3, Size::B, 2), kind(IPV6)),
        (is(3, Size::B, 3), kind(ETHERNET)),
        (is(3, Size::B, 4), kind(NSH)),
        (is(3, Size::B, 5), kind(MPLS)),
    ]);
    let mut len = at(1, Size::B);
    len.extend([insn(AND, 0x3f), insn(LSH, 2)]);
    let is_long = test(len.clone(), JGT, 7);
    len.extend([insn(ADD_X, 0), insn(ST, AT)]);
    Cond::All(vec![
        need(masked(0, 0, 0xc0)),
        need(is_long),
        next,
        run(len),
    ])
}

/// Stores the EtherType of an IP packet by its version.
fn by_version(words: Words) -> Cond {
    by_value(vec![
        (masked(0, 0x40, 0xf0), set(words.kind, IP)),
        (masked(0, 0x60, 0xf0), set(words.kind, IPV6)),
    ])
}

/// Stores the offsets of the packet at the cursor.
fn network(words: Words) -> Cond {
    let is_kind = |value| test(vec![insn(LD_MEM, words.kind)], JEQ, value);
    let begin = run(vec![insn(LD_MEM, AT), insn(ST, words.header)]);
    let here = vec![
        insn(LD_MEM, AT),
        insn(ST, words.header),
        insn(ST, words.payload),
    ];
    let framed = begin.and(ethernet(words));
    let other = when(is_kind(PPP), ppp(words)).and(run(here));
    choice(is_kind(ETHERNET), framed, other)
}

/// Stores the EtherType and the offset of the network header of an Ethernet packet.
fn ethernet(words: Words) -> Cond {
    let mut load = vec![insn(LDX_MEM, words.header), insn(LDH_IND, 12)];
    load.extend([insn(ST, words.kind), insn(TXA, 0), insn(ADD, 14)]);
    load.push(insn(ST, words.payload));
    run(load)
}

/// Steps over a PPP header (RFC 1661): address and control may be absent, and the first byte of the
/// protocol, if it is 0.
fn ppp(words: Words) -> Cond {
    let long = [at(0, Size::H), vec![insn(ST, words.kind)]].concat();
    let short = [at(0, Size::B), vec![insn(ST, words.kind)]].concat();
    let protocol = choice(
        bit(0, 1),
        run(short).and(advance(1)),
        run(long).and(advance(2)),
    );
    let is_kind = |value| test(vec![insn(LD_MEM, words.kind)], JEQ, value);
    let numbers = [(0x283, 0x8848), (0x281, MPLS), (0x57, IPV6), (0x21, IP)];
    let kind = numbers
        .into_iter()
        .fold(set(words.kind, NO_TYPE), |other, (number, value)| {
            choice(is_kind(number), set(words.kind, value), other)
        });
    Cond::All(vec![
        when(is(0, Size::H, 0xff03), advance(2)),
        protocol,
        kind,
    ])
}

/// Tests a VXLAN header (RFC 7348) behind UDP.
fn vxlan(link: &Link, from: From, network: Option<u32>) -> Vec<Cond> {
    let mut list = vec![
        link.eq(from, 2, Size::H, VXLAN_PORT),
        // The identifier is valid.
        link.masked(from, 8, Size::B, 0x08, 0x08),
    ];
    list.extend(network.map(|n| link.masked(from, 12, Size::W, n << 8, 0xffff_ff00)));
    list
}

/// Tests a GTP-U header behind UDP.
fn gtpu_header(link: &Link, from: From, endpoint: Option<u32>) -> Vec<Cond> {
    let mut list = vec![
        link.eq(from, 2, Size::H, GTPU_PORT),
        link.masked(from, 8, Size::B, 0x20, 0xe0),
        link.eq(from, 9, Size::B, G_PDU),
    ];
    list.extend(endpoint.map(|n| link.eq(from, 12, Size::W, n)));
    list
}
