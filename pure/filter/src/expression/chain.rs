//! Compiles `protochain`, which follows headers to a protocol, and `geneve`.
//!
//! libpcap compiles `protochain` to a loop, which no kernel accepts. Here the loop is unrolled for
//! a bounded number of headers, so that the program runs everywhere.

use std::ops::Range;

use super::arith::{ADD, ADD_X, AND, LDX_MEM, MUL, ST, TAX};
use super::block::{Cond, JEQ, LD_IMM};
use super::extended::{AT, LD_MEM, LDB_IND, LDH_IND, NEXT, TXA, insn, ip_header, run, step};
use super::lower::{From, IP, IPV6, Size};
use super::parse::Parser;
use crate::{Error, Result};

/// Maximum number of headers to skip.
const HEADERS_MAX: usize = 16;
/// Number of tests of one header, in [`header`].
const TESTS_PER_HEADER: usize = 9;
/// IPv6 extension headers with a length in units of 8 bytes: hop-by-hop options, destination
/// options, routing, fragment.
const EXTENSIONS: [u32; 4] = [0, 60, 43, 44];
const NO_NEXT: u32 = 59;
const AUTHENTICATION: u32 = 51;
const UDP: u32 = 17;
const GENEVE_PORT: u32 = 6081;
/// EtherType of Ethernet in another protocol (Transparent Ethernet Bridging).
const ETHERNET: u32 = 0x6558;
/// Maximum virtual network identifier (VNI).
const NETWORK_MAX: u32 = 0xff_ffff;

impl Parser<'_> {
    /// Compiles a test whether following the headers leads to a protocol.
    pub(super) fn protocol_chain(
        &mut self,
        proto: Option<&str>,
        number: u32,
        place: Range<usize>,
    ) -> Result<Cond> {
        self.need_constant("protochain", place.clone())?;
        self.count_tests(2 * HEADERS_MAX * TESTS_PER_HEADER, place.clone())?;
        match proto {
            None => Ok(self.chain(false, number).or(self.chain(true, number))),
            Some("ip") => Ok(self.chain(false, number)),
            Some("ip6") => Ok(self.chain(true, number)),
            Some(proto) => Err(
                Error::new(place, format!("\"{proto}\" has no chain of headers"))
                    .expected("expected \"ip\", \"ip6\" or no protocol before it"),
            ),
        }
    }

    fn chain(&self, is_v6: bool, number: u32) -> Cond {
        let network = self.link.offset(From::Network);
        let (protocol, field) = if is_v6 { (IPV6, 6) } else { (IP, 9) };
        let mut start = ip_header(is_v6, network);
        start.extend([insn(ST, AT), insn(0x30, network + field), insn(ST, NEXT)]);
        let walk = (0..HEADERS_MAX).fold(Cond::Const(false), |next, _| {
            header(network, is_v6, number, next)
        });
        Cond::All(vec![self.link.protocol(protocol), run(start), walk])
    }

    /// Compiles a test for a Geneve header, and its VNI. The primitives that follow apply to the
    /// inner packet, whose offsets are stored in scratch memory.
    pub(super) fn geneve(&mut self, start: Range<usize>) -> Result<Cond> {
        let place = self.place();
        let network = self.optional_number();
        if network.is_some_and(|n| n > NETWORK_MAX) {
            return Err(Error::new(place, "the number of \"geneve\" is too large")
                .expected(format!("at most {NETWORK_MAX}")));
        }
        let link = self.link.clone();
        let bases = self.link.reserve().ok_or_else(|| {
            Error::unsupported(start, "too many nested \"geneve\"").expected("at most 4")
        })?;
        let [Some(header), Some(link_type), Some(payload)] =
            [bases.header, bases.link_type, bases.payload]
        else {
            return Ok(Cond::Const(false));
        };
        let over = |from: From| {
            let mut list = vec![
                link.eq(from, 2, Size::H, GENEVE_PORT),
                link.masked(from, 8, Size::B, 0, 0xc0),
            ];
            list.extend(network.map(|n| link.masked(from, 12, Size::W, n << 8, 0xffff_ff00)));
            // The offset of the Geneve header, after that of UDP.
            let mut load = link.prefix(from);
            if load.is_empty() {
                load.extend([insn(LD_IMM, 0), insn(TAX, 0)]);
            }
            load.extend([insn(TXA, 0), insn(ADD, link.offset(from).wrapping_add(8))]);
            load.push(insn(ST, link_type));
            list.push(run(load));
            Cond::All(list)
        };
        let v4 = link.ip4(UDP).and(link.first_fragment());
        let next = link.eq(From::Network, 6, Size::B, UDP);
        let v6 = link.protocol(IPV6).and(next);
        let either = v4
            .and(over(From::Transport4))
            .or(v6.and(over(From::Transport6)));
        // Options are in units of 4 bytes. The EtherType is in the header, or in that of the inner
        // Ethernet packet.
        let end = run(vec![
            insn(LDX_MEM, link_type),
            insn(LDB_IND, 0),
            insn(AND, 0x3f),
            insn(MUL, 4),
            insn(ADD, 8),
            insn(ADD_X, 0),
            insn(ST, header),
            insn(ST, payload),
            insn(TXA, 0),
            insn(ADD, 2),
            insn(ST, link_type),
        ]);
        let is_ethernet = step(
            vec![insn(LDX_MEM, link_type), insn(LDH_IND, 0)],
            JEQ,
            ETHERNET,
        );
        let inner = run(vec![
            insn(LD_MEM, header),
            insn(ADD, 12),
            insn(ST, link_type),
            insn(ADD, 2),
            insn(ST, payload),
        ]);
        let inner = Cond::Choice(is_ethernet, Box::new(inner), Box::new(Cond::Const(true)));
        self.link.push_geneve(bases);
        Ok(Cond::All(vec![either, end, inner]))
    }
}

/// Steps that set scratch words to 0.
pub(super) fn clear(words: Range<u32>) -> Cond {
    let mut load = vec![insn(LD_IMM, 0)];
    load.extend(words.map(|word| insn(ST, word)));
    run(load)
}

/// Tests the header at the offset in scratch memory, then `next` for the header after it.
fn header(network: u32, is_v6: bool, number: u32, next: Cond) -> Cond {
    let is = |number| step(vec![insn(LD_MEM, NEXT)], JEQ, number);
    let advance = |words: u32, len: u32| {
        let mut load = vec![insn(LDX_MEM, AT), insn(LDB_IND, network), insn(ST, NEXT)];
        load.extend([insn(LDB_IND, network + 1), insn(ADD, words), insn(MUL, len)]);
        load
    };
    let mut extension = advance(1, 8);
    extension.extend([insn(ADD_X, 0), insn(ST, AT)]);
    // As in libpcap: the length of the header is used as the offset of the next one.
    let mut authentication = advance(2, 4);
    authentication.push(insn(ST, AT));
    let is_authentication = Cond::Test(is(AUTHENTICATION)).and(run(authentication));
    let passed = match is_v6 {
        true => {
            let any = EXTENSIONS.iter().map(|&number| Cond::Test(is(number)));
            let is_extension = Cond::Any(any.collect()).and(run(extension));
            is_extension.or(is_authentication)
        }
        false => is_authentication,
    };
    let other = Cond::Choice(
        is(NO_NEXT),
        Box::new(Cond::Const(false)),
        Box::new(passed.and(next)),
    );
    Cond::Choice(is(number), Box::new(Cond::Const(true)), Box::new(other))
}
