//! Batches of SYNs to addresses of one family through one next hop, as most scans send them.
//!
//! What all other probes decide one by one (kind, family, template, length, next hop) is constant,
//! so only the order, the cookie and the fields that differ remain.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::Mac;

use crate::cookie::{BATCH, Block, Cookies};
use crate::frame::{Frames, SynFields, SynFrame};
use crate::hops::NextHops;
use crate::plan::{Plan, Probes};
use crate::probe::Probe;

/// A batch.
pub(super) struct SynBatch {
    frame: SynFrame,
    is_ipv6: bool,
    /// The [words](crate::cookie::word) of the probes.
    words: [u64; BATCH],
    /// Their addresses, of IPv6, in little-endian order.
    addrs: [u128; BATCH],
    /// Room for the numbers of the permutation.
    numbers: [u64; BATCH],
}

impl SynBatch {
    /// `None` if the plan has other probes, both families, or more than one next hop.
    pub(super) fn new(plan: &Plan, frames: &Frames, hops: &NextHops) -> Option<Self> {
        let is_ipv6 = plan.targets().has_family(true);
        let is_alone = is_ipv6 != plan.targets().has_family(false);
        let is_syn = plan.kinds() == [Probe::Syn] && plan.pairs().is_empty();
        let is_plain = plan
            .ports()
            .as_slice()
            .iter()
            .all(|entry| entry.payload == 0);
        if !(is_alone && is_syn && is_plain && hops.on_link().count() == 0) {
            return None;
        }
        let mac: Mac = match is_ipv6 {
            true => hops.router_v6?,
            false => hops.router_v4?,
        };
        Some(Self {
            frame: frames.syn(is_ipv6, mac)?,
            is_ipv6,
            words: [0; BATCH],
            addrs: [0; BATCH],
            numbers: [0; BATCH],
        })
    }

    /// Length of each probe.
    #[inline(always)]
    pub(super) fn probe_len(&self) -> usize {
        self.frame.len()
    }

    /// The target of a probe of the batch.
    pub(super) fn addr(&self, at: usize) -> IpAddr {
        match self.is_ipv6 {
            true => Ipv6Addr::from_bits(self.addrs[at].swap_bytes()).into(),
            false => Ipv4Addr::from_bits(((self.words[at] >> 32) as u32).swap_bytes()).into(),
        }
    }

    /// Takes the next probes, at most `room`, with the blocks of their cookies; returns how many.
    #[inline]
    pub(super) fn fill(
        &mut self,
        probes: &mut Probes<'_>,
        room: usize,
        cookies: &Cookies,
        blocks: &mut [Block; BATCH],
    ) -> usize {
        let words = &mut self.words[..room.min(BATCH)];
        let len = match self.is_ipv6 {
            true => probes.fill_syns_v6(words, &mut self.addrs),
            false => probes.fill_syns_v4(words, &mut self.numbers),
        };
        match self.is_ipv6 {
            true => cookies.of_words_v6(&words[..len], &self.addrs[..len], blocks),
            false => cookies.of_words_v4(&words[..len], blocks),
        }
        len
    }

    /// Writes a probe of the batch; `None` if it does not fit.
    #[inline(always)]
    pub(super) fn write(
        &self,
        at: usize,
        block: &Block,
        clock_us: u32,
        out: &mut [u8],
    ) -> Option<usize> {
        let fields = SynFields {
            word: self.words[at],
            cookie: u128::from_le_bytes((*block).into()),
            clock_us,
        };
        match self.is_ipv6 {
            true => self.frame.write_v6(fields, self.addrs[at], out),
            false => self.frame.write_v4(fields, out),
        }
    }
}
