//! Compiles a signature to a cBPF program.
//!
//! As the lengths of all headers are fixed, every field is at a constant offset, and adjacent
//! fields are compared together: version, header length, ECN and total length in one word;
//! fragment, flags, TTL and protocol in another by a subtraction; kinds, lengths and constants of
//! options word by word.

use bpf::cbpf::{Insn, Program};

use super::raw::Handshake;
use super::{MSS_LEAST, Payload, Quirks, Signature, TcpOption, Version, Window};
use crate::expression::Network;
use crate::{Error, Result};

mod block;
mod options;

use block::{Block, To};
pub(super) use options::lengths;

/// Header at the start of a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Start {
    /// The IP header, as in iptables' `bpf` match.
    Ip,
    /// An Ethernet header without VLAN tags.
    Ethernet,
    /// The headers of another link type (its LINKTYPE number), in front of the IP header.
    Link(u16),
}

/// Return value for a matching packet: libpcap's largest snapshot length.
const MATCH: u32 = 262_144;
/// Maximum number of variants that one signature is compiled to (options of variable length).
const VARIANTS_MAX: usize = 16;

/// Compiles a signature for the given packet of a handshake.
///
/// # Errors
/// A signature that can only be matched in user space: with `bad`, a quirk of an option that occurs
/// twice, or options of variable length in too many combinations.
pub fn compile(signature: &Signature, handshake: Handshake, start: Start) -> Result<Program> {
    compile_as(signature, handshake, start, false)
}

/// Compiles a signature for packets that match it fuzzily, see
/// [`matches_fuzzy`](super::matches_fuzzy).
///
/// # Errors
/// As [`compile`].
pub fn compile_fuzzy(signature: &Signature, handshake: Handshake, start: Start) -> Result<Program> {
    compile_as(signature, handshake, start, true)
}

fn compile_as(
    signature: &Signature,
    handshake: Handshake,
    start: Start,
    is_fuzzy: bool,
) -> Result<Program> {
    let whole = |what: &str| Error::new(0..usize::MAX, what);
    if signature.quirks.has(Quirks::BAD) {
        return Err(whole("malformed options (bad) cannot be compiled"));
    }
    let of_timestamp = [Quirks::TS1_ZERO, Quirks::TS2_NONZERO, Quirks::LINUX];
    for (option, quirks) in [
        (TcpOption::Timestamp, &of_timestamp[..]),
        (TcpOption::WindowScale, &[Quirks::EXCESSIVE_SCALE]),
    ] {
        let is_twice = signature.layout.iter().filter(|o| **o == option).count() > 1;
        if let Some(quirk) = quirks
            .iter()
            .find(|q| is_twice && signature.quirks.has(**q))
        {
            return Err(whole(&format!(
                "{option} occurs twice, which cannot be compiled with {quirk}"
            )));
        }
    }
    let lengths = lengths(&signature.layout);
    if lengths.len() > VARIANTS_MAX {
        return Err(whole(
            "options of variable length have too many combinations",
        ));
    }
    let mut blocks = Vec::new();
    for version in signature.versions() {
        if *version == Version::V6 && signature.ip_options > 0 {
            continue;
        }
        let network = match start {
            Start::Link(link_type) => match Network::of(link_type, *version == Version::V6) {
                None => continue,
                found => found,
            },
            _ => None,
        };
        for lengths in &lengths {
            let variant = Variant {
                signature,
                handshake,
                is_fuzzy,
                version: *version,
                quirks: signature.quirks_of(*version),
                lengths,
                is_ethernet: start == Start::Ethernet,
                ip: match (&network, start) {
                    (Some(network), _) => network.offset,
                    (None, Start::Ethernet) => 14,
                    _ => 0,
                },
            };
            let base = network.as_ref().and_then(|network| network.base);
            blocks.push((network.clone(), variant.block(base)));
        }
    }
    if let (Start::Link(number), true) = (start, blocks.is_empty()) {
        let what = format!("packets of link type {number} have no IP header for this signature");
        return Err(Error::unsupported(0..0, what)
            .expected("Ethernet, 802.11, NULL, raw IP, Linux cooked, PPP and others have one"));
    }
    let insns = link(&blocks).ok_or_else(|| whole("the program has too many instructions"))?;
    Program::new(insns).map_err(|why| whole(&format!("the program is refused: {why}")))
}

/// Chains blocks: a packet that one block rejects goes to the next.
fn link(blocks: &[(Option<Network>, Block)]) -> Option<Vec<Insn>> {
    let mut insns = Vec::new();
    for (network, block) in blocks {
        let block = block.link()?;
        if let Some(network) = network {
            insns.extend(network.or_skip(block.len()));
        }
        insns.extend(block);
    }
    insns.push(Insn::new(0x06, 0, 0, 0));
    Some(insns)
}

/// A signature with one IP version and one length of each option.
struct Variant<'a> {
    signature: &'a Signature,
    handshake: Handshake,
    is_fuzzy: bool,
    version: Version,
    quirks: Quirks,
    lengths: &'a [u8],
    is_ethernet: bool,
    /// Offset of the IP header.
    ip: u32,
}

impl Variant<'_> {
    /// The tests; offsets are relative to a word of scratch memory, if there is one.
    fn block(&self, base: Option<u32>) -> Block {
        let mut block = Block::new(base);
        match self.version {
            Version::V6 => self.ipv6(&mut block),
            _ => self.ipv4(&mut block),
        }
        self.tcp(&mut block);
        self.options(&mut block);
        self.window(&mut block);
        // The packet contains all headers.
        block.reach(self.tcp_at() + self.tcp_len());
        block.ret(MATCH);
        block
    }

    fn quirk(&self, quirk: Quirks) -> bool {
        self.quirks.has(quirk)
    }

    fn ip_len(&self) -> u32 {
        match self.version {
            Version::V6 => 40,
            _ => 20 + u32::from(self.signature.ip_options),
        }
    }

    fn tcp_at(&self) -> u32 {
        self.ip + self.ip_len()
    }

    fn tcp_len(&self) -> u32 {
        20 + self.lengths.iter().map(|len| u32::from(*len)).sum::<u32>()
    }

    /// Minimum and maximum total length for the required payload.
    fn total(&self, headers: u32) -> (u32, u32) {
        match self.signature.payload {
            Payload::None => (headers, headers),
            Payload::Some => (headers + 1, 0xffff),
            Payload::Any => (headers, 0xffff),
        }
    }

    fn ethertype(&self, block: &mut Block, ethertype: u32) {
        if self.is_ethernet {
            block.half(12);
            block.equal(ethertype);
        }
    }

    fn ipv4(&self, block: &mut Block) {
        self.ethertype(block, 0x0800);
        // Version, header length, ECN (unless it may be in the TCP header), total length.
        let first = (0x40 | (self.ip_len() / 4)) << 24;
        let ecn = if self.may_be_ecn() { 0 } else { 3 << 16 };
        let (least, most) = self.total(self.ip_len() + self.tcp_len());
        block.word(self.ip);
        block.and(0xff00_ffff | ecn);
        block.between(first | least, first | most);
        match self.is_fuzzy {
            true => self.fuzzy_flags(block),
            false => self.flags(block),
        }
    }

    /// Identification, flags, fragment offset, TTL and protocol.
    fn flags(&self, block: &mut Block) {
        let is_zero = match self.quirk(Quirks::DF) {
            true => !self.quirk(Quirks::ID_NONZERO),
            false => self.quirk(Quirks::ID_ZERO),
        };
        block.half(self.ip + 4);
        block.zero(is_zero);
        // The difference from the minimum is the TTL's distance from it.
        let df = if self.quirk(Quirks::DF) { 0x4000 } else { 0 };
        let least = self.signature.least_ttl();
        block.word(self.ip + 6);
        block.sub((df | self.reserved()) << 16 | u32::from(least) << 8 | 6);
        block.at_most(u32::from(self.signature.ttl - least) << 8);
        block.none_of(0xff);
    }

    fn reserved(&self) -> u32 {
        match self.quirk(Quirks::RESERVED) {
            true => 0x8000,
            false => 0,
        }
    }

    /// The same for fuzzy matches: `df` and `id+` may be absent, `id-` may be present, and the TTL
    /// may have any value.
    fn fuzzy_flags(&self, block: &mut Block) {
        let has_df = self.quirk(Quirks::DF);
        if self.quirk(Quirks::ID_ZERO) {
            block.half(self.ip + 4);
            block.zero(true);
        } else if has_df && !self.quirk(Quirks::ID_NONZERO) {
            // A nonzero identification together with DF would be id+.
            let done = block.label();
            block.half(self.ip + 4);
            block.jump_if(0x15, 0, To::Label(done), To::Next);
            block.half(self.ip + 6);
            block.none_of(0x4000);
            block.bind(done);
        }
        let mask = if has_df { 0xbfff_00ff } else { 0xffff_00ff };
        block.word(self.ip + 6);
        block.and(mask);
        block.equal(self.reserved() << 16 | 6);
        if self.signature.any_distance {
            block.byte(self.ip + 8);
            block.at_most(self.signature.ttl.into());
        }
    }

    fn may_be_ecn(&self) -> bool {
        self.is_fuzzy || self.quirk(Quirks::ECN)
    }

    fn ipv6(&self, block: &mut Block) {
        self.ethertype(block, 0x86dd);
        let ecn = if self.may_be_ecn() { 0 } else { 0x30_0000 };
        block.word(self.ip);
        if self.quirk(Quirks::FLOW) {
            block.any_of(0xf_ffff);
            block.and(0xf000_0000 | ecn);
        } else {
            block.and(0xf00f_ffff | ecn);
        }
        block.equal(0x6000_0000);
        // Payload length, next header, hop limit.
        let (least, most) = self.total(self.tcp_len());
        let ttl = match self.is_fuzzy && !self.signature.any_distance {
            true => [0, 255],
            false => [self.signature.least_ttl(), self.signature.ttl].map(u32::from),
        };
        block.word(self.ip + 4);
        if least == most {
            block.between(least << 16 | 6 << 8 | ttl[0], least << 16 | 6 << 8 | ttl[1]);
        } else {
            block.at_least(least << 16);
            block.and(0xffff);
            block.between(6 << 8 | ttl[0], 6 << 8 | ttl[1]);
        }
    }

    fn tcp(&self, block: &mut Block) {
        let tcp = self.tcp_at();
        block.word(tcp + 4);
        block.zero(self.quirk(Quirks::SEQ_ZERO));
        block.word(tcp + 8);
        block.zero(match self.handshake {
            Handshake::Syn => !self.quirk(Quirks::ACK_NONZERO),
            Handshake::SynAck => self.quirk(Quirks::ACK_ZERO),
        });
        let mut flags = ((self.tcp_len() / 4) << 12) | 0x02;
        for (is_set, bit) in [
            (self.handshake == Handshake::SynAck, 0x10),
            (self.quirk(Quirks::URG), 0x20),
            (self.quirk(Quirks::PUSH), 0x08),
        ] {
            flags |= if is_set { bit } else { 0 };
        }
        // All flags except the three of ECN; none of the reserved bits.
        let ecn = if self.may_be_ecn() { 0 } else { 0x01c0 };
        let mask = 0xf03f | ecn;
        match self.signature.window {
            Window::Exact(window) => {
                block.word(tcp + 12);
                block.and(mask << 16 | 0xffff);
                block.equal(flags << 16 | u32::from(window));
            }
            _ => {
                block.half(tcp + 12);
                block.and(mask);
                block.equal(flags);
            }
        }
        if self.quirk(Quirks::ECN) {
            self.ecn(block);
        }
        if !self.quirk(Quirks::URG) {
            block.half(tcp + 18);
            block.zero(!self.quirk(Quirks::URG_POINTER));
        }
        if self.quirk(Quirks::LINUX) {
            self.linux(block);
        }
    }

    /// Tests for ECN in the TCP header or the IP header.
    fn ecn(&self, block: &mut Block) {
        let done = block.label();
        block.half(self.tcp_at() + 12);
        block.jump_if(0x45, 0x01c0, To::Label(done), To::Next);
        block.half(self.ip);
        let bits = if self.version == Version::V6 {
            0x30
        } else {
            0x3
        };
        block.any_of(bits);
        block.bind(done);
    }

    fn linux(&self, block: &mut Block) {
        let Some(timestamp) = self.offset_of(TcpOption::Timestamp) else {
            return;
        };
        block.half(self.tcp_at() + 6);
        block.tax();
        block.half(timestamp + 4);
        block.xor_x();
        block.tax();
        block.half(self.ip + 4);
        block.equal_x();
    }

    fn window(&self, block: &mut Block) {
        let at = self.tcp_at() + 14;
        match self.signature.window {
            Window::Any | Window::Exact(_) => {}
            Window::Multiple(of) => {
                block.half(at);
                block.modulo(of.into());
                block.equal(0);
            }
            Window::Mss(times) => self.multiple(block, at, times, false),
            Window::Mtu(times) => self.multiple(block, at, times, true),
        }
    }

    /// Divisors of a window in p0f's order: an addend to the MSS, or a constant; and whether the
    /// divisor is an MTU.
    fn divisors(&self) -> Vec<(Divisor, bool)> {
        let is_v6 = self.version == Version::V6;
        let has_ts1 =
            self.signature.layout.contains(&TcpOption::Timestamp) && !self.quirk(Quirks::TS1_ZERO);
        let headers = (self.ip_len() + self.tcp_len()) as i32;
        let all = [
            (true, Divisor::Mss(0), false),
            (has_ts1, Divisor::Mss(-12), false),
            (true, Divisor::Constant(1460), false),
            (true, Divisor::Constant(1448), false),
            (is_v6, Divisor::Constant(1440), false),
            (is_v6, Divisor::Constant(1428), false),
            (true, Divisor::Mss(40), true),
            (true, Divisor::Mss(headers), true),
            (is_v6, Divisor::Mss(60), true),
            (true, Divisor::Constant(1500), true),
        ];
        let applies = all.into_iter().filter(|(applies, ..)| *applies);
        applies
            .map(|(_, divisor, is_mtu)| (divisor, is_mtu))
            .collect()
    }

    fn multiple(&self, block: &mut Block, at: u32, times: u16, of_mtu: bool) {
        let divisors = self.divisors();
        if let Some(mss) = self.signature.mss {
            return constant_windows(block, at, times, of_mtu, &divisors, mss);
        }
        let Some(option) = self.offset_of(TcpOption::Mss) else {
            return;
        };
        // After the last required divisor, the rest does not matter.
        let last = divisors.iter().rposition(|(_, is_mtu)| *is_mtu == of_mtu);
        let mut divisors = &divisors[..last.map_or(0, |last| last + 1)];
        let (times, divided) = (u32::from(times), block.label());
        block.half(option + 2);
        block.at_least(MSS_LEAST.into());
        block.tax();
        let mut added = 0;
        // Divisions by X come after all others.
        while let [(divisor, is_mtu), rest @ ..] = divisors {
            match divisor {
                Divisor::Mss(add) => {
                    if *add != added {
                        block.txa();
                        block.add((add - added) as u32);
                        block.tax();
                        added = *add;
                    }
                    let to = match *is_mtu == of_mtu {
                        true => To::Label(divided),
                        false => To::Fail,
                    };
                    block.half(at);
                    block.modulo_x();
                    let otherwise = if rest.is_empty() { To::Fail } else { To::Next };
                    block.jump_if(0x15, 0, to, otherwise);
                }
                Divisor::Constant(_) if *is_mtu == of_mtu => {
                    return self.constants(block, at, times, divisors, divided);
                }
                Divisor::Constant(of) => {
                    block.half(at);
                    block.modulo(*of);
                    block.jump_if(0x15, 0, To::Fail, To::Next);
                }
            }
            divisors = rest;
        }
        block.bind(divided);
        block.half(at);
        block.divide_x();
        block.equal(times);
    }

    /// Tests the last divisors, which are constants: the window is a given multiple of one of them,
    /// and not a multiple of an earlier one.
    fn constants(
        &self,
        block: &mut Block,
        at: u32,
        times: u32,
        divisors: &[(Divisor, bool)],
        divided: usize,
    ) {
        let constants: Vec<u32> = divisors
            .iter()
            .filter_map(|(divisor, _)| match divisor {
                Divisor::Constant(of) => Some(*of),
                Divisor::Mss(_) => None,
            })
            .collect();
        let done = block.label();
        let windows: Vec<u32> = constants
            .iter()
            .enumerate()
            .map(|(index, of)| (&constants[..index], of * times))
            .filter(|(before, window)| {
                *window <= 0xffff && !before.iter().any(|of| window.is_multiple_of(*of))
            })
            .map(|(_, window)| window)
            .collect();
        block.half(at);
        match windows.split_last() {
            None => block.fail(),
            Some((last, others)) => {
                for window in others {
                    block.jump_if(0x15, *window, To::Label(done), To::Next);
                }
                block.jump_if(0x15, *last, To::Label(done), To::Fail);
            }
        }
        block.bind(divided);
        block.half(at);
        block.divide_x();
        block.equal(times);
        block.bind(done);
    }
}

/// Divisor of a window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Divisor {
    /// The MSS plus this.
    Mss(i32),
    Constant(u32),
}

/// With a constant MSS only a few windows match: they are compared one by one.
fn constant_windows(
    block: &mut Block,
    at: u32,
    times: u16,
    of_mtu: bool,
    divisors: &[(Divisor, bool)],
    mss: u16,
) {
    let value = |divisor: &Divisor| match divisor {
        Divisor::Mss(add) => i32::from(mss).saturating_add(*add).unsigned_abs(),
        Divisor::Constant(of) => *of,
    };
    let mut windows = Vec::new();
    for (index, (divisor, is_mtu)) in divisors.iter().enumerate() {
        let window = value(divisor) * u32::from(times);
        let is_first = !divisors[..index]
            .iter()
            .any(|(before, _)| window.is_multiple_of(value(before)));
        if *is_mtu == of_mtu && window <= 0xffff && is_first {
            windows.push(window);
        }
    }
    let done = block.label();
    block.half(at);
    match windows.split_last() {
        None => block.fail(),
        Some((last, others)) => {
            for window in others {
                block.jump_if(0x15, *window, To::Label(done), To::Next);
            }
            block.jump_if(0x15, *last, To::Next, To::Fail);
        }
    }
    block.bind(done);
}
