//! Where the IP header of a link type begins, for compilers of other languages.

use bpf::cbpf::Insn;

use super::Options;
use super::block::{Graph, REFUSE, TAKE};
use super::lower::{From, IP, IPV6, Kind, Link};
use super::wlan::Radio;
use super::{emit, optimize};

const JA: u16 = 0x05;

/// The place of an IP header.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    /// Tests for this header, without the two jumps at the end that [`Network::or_skip`] adds.
    test: Vec<Insn>,
    /// Its offset, from the word of scratch memory if there is one, which `test` has stored.
    pub(crate) offset: u32,
    /// The scratch word with the variable part of the offset.
    pub(crate) base: Option<u32>,
}

impl Network {
    /// The place of the IPv4 or the IPv6 header; `None` if packets of the link type have none that
    /// expressions find.
    pub(crate) fn of(link_type: u16, is_v6: bool) -> Option<Network> {
        let link = Link::new(link_type)?;
        if matches!(link.kind, Kind::Other | Kind::Mtp2) {
            return None;
        }
        let mut cond = link.protocol(if is_v6 { IPV6 } else { IP });
        if link.kind == Kind::Wlan(Radio::Ppi) {
            cond = link.ppi().and(cond);
        }
        let mut graph = Graph::new();
        let start = graph.add(&cond, TAKE, REFUSE);
        let mut start = optimize::optimize(&mut graph, start);
        if start == REFUSE {
            return None;
        }
        if let Some(steps) = link.start(|_| true) {
            start = graph.add(&steps, start, REFUSE);
        }
        let program = emit::emit(&graph, start, &Options::default(), 0..0).ok()?;
        // The last two instructions are the returns, unless every packet has the header.
        let insns = program.insns();
        let test = insns[..insns.len().saturating_sub(2)].to_vec();
        Some(Network {
            test,
            offset: link.offset(From::Network),
            base: link.prefix(From::Network).first().map(|load| load.k),
        })
    }

    /// The instructions that test for the header, and otherwise skip what follows them.
    pub(crate) fn or_skip(&self, count: usize) -> Vec<Insn> {
        let mut insns = self.test.clone();
        if !insns.is_empty() {
            insns.push(Insn::new(JA, 0, 0, 1));
            insns.push(Insn::new(JA, 0, 0, count as u32));
        }
        insns
    }
}
