//! The order of a scan's probes: arithmetic on one number.
//!
//! Every pair of an address and a port has an index in the [permutation](Permutation): those of all
//! addresses and all ports, and further pairs that are in a list. A shard
//! takes every n-th index. Attempts are grouped in blocks: all first attempts of a block of
//! indices, then all second ones, and so on, so that the attempts at one target are a block apart.
//! Nothing here depends on the rate: the n-th probe is the same at any rate and on any machine, and
//! a scan can begin at any probe.

mod divisor;

use std::net::IpAddr;
use std::sync::Arc;

use crate::cookie::{BATCH, ProbeTarget, word};
use crate::permutation::{Permutation, Walk};
use crate::port::{Entry, Ports};
use crate::probe::Probe;
use crate::source::Source;
use crate::target::Targets;
use divisor::Divisor;

/// One part of a scan that is split between machines or runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Index of the part, from 0.
    pub index: u32,
    /// Number of parts, at least one.
    pub count: u32,
}

impl Shard {
    /// The whole scan.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// Parses `1/4`: the first of four.
    ///
    /// # Errors
    /// What is wrong with it, as a sentence without a full stop.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').map(|(i, n)| (i.parse(), n.parse()));
        match parts {
            Some((Ok(index @ 1..), Ok(count))) if index <= count => Ok(Self {
                index: index - 1,
                count,
            }),
            _ => Err(format!("{text:?} is not a shard: 1/4 is the first of four")),
        }
    }
}

/// Order, split and repetition of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Seed of the permutation.
    pub seed: u64,
    /// The shard to send.
    pub shard: Shard,
    /// Probes per target, at least one.
    pub attempts: u32,
    /// Indices per block, at least one: the number of probes between two attempts at a target.
    pub block: u64,
}

/// Seconds between two attempts at a target, at least.
pub const ATTEMPT_SECONDS: f64 = 1.0;

/// An attempt at the targets of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The number of the previous probe to the same target; `None` for first attempts.
    pub before: Option<u128>,
    /// The number after the last probe of the attempt.
    pub end: u128,
}

/// The destination of a probe, and the index of its payload.
pub type PlannedProbe = (ProbeTarget, u16);

/// All probes of a scan.
#[derive(Clone, Debug)]
pub struct Plan {
    targets: Arc<Targets>,
    ports: Ports,
    /// Further probes, sorted, none of which is of an address and a port of the above.
    pairs: Vec<PlannedProbe>,
    /// Number of pairs of an address and a port.
    product: u128,
    /// The kinds of probes.
    kinds: Vec<Probe>,
    source: Source,
    order: Order,
    permutation: Permutation,
    /// The number of ports.
    port_count: Divisor,
    /// Whether every number has 64 bits.
    is_narrow: bool,
}

impl Plan {
    /// Creates a plan; `None` without targets or without ports, or if there are more than
    /// [`LEN_MAX`](crate::LEN_MAX) pairs of them.
    pub fn new(
        targets: impl Into<Arc<Targets>>,
        ports: Ports,
        source: Source,
        order: Order,
    ) -> Option<Self> {
        Self::with_pairs(targets, ports, Vec::new(), source, order)
    }

    /// Creates a plan of all ports of all targets, and of further pairs. Each probe is planned
    /// once. `None` if there is none, or more than [`LEN_MAX`](crate::LEN_MAX).
    pub fn with_pairs(
        targets: impl Into<Arc<Targets>>,
        ports: Ports,
        mut pairs: Vec<PlannedProbe>,
        source: Source,
        order: Order,
    ) -> Option<Self> {
        let targets = targets.into();
        pairs.retain(|(pair, _)| {
            !(targets.contains(pair.addr) && ports.contains(pair.probe, pair.port))
        });
        pairs.sort_unstable();
        pairs.dedup();
        let mut kinds = ports.probes().to_vec();
        kinds.extend(pairs.iter().map(|(pair, _)| pair.probe));
        kinds.sort_unstable();
        kinds.dedup();
        let port_count = ports.as_slice().len() as u128;
        let product = targets.count() * port_count;
        // The number of probes, too, is one of 128 bits.
        (product + pairs.len() as u128).checked_mul(order.attempts.max(1).into())?;
        let permutation = Permutation::new(product + pairs.len() as u128, order.seed)?;
        Some(Self {
            targets,
            pairs,
            product,
            kinds,
            source,
            order: Order {
                attempts: order.attempts.max(1),
                block: order.block.max(1),
                ..order
            },
            is_narrow: permutation.len() <= 1 << 64,
            permutation,
            port_count: Divisor::new(port_count as u64),
            ports,
        })
    }

    /// The target addresses.
    pub fn targets(&self) -> &Arc<Targets> {
        &self.targets
    }

    /// The ports.
    pub fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Probes in addition to all ports of all targets, sorted.
    pub fn pairs(&self) -> &[PlannedProbe] {
        &self.pairs
    }

    /// The kinds of probes, without duplicates.
    pub fn kinds(&self) -> &[Probe] {
        &self.kinds
    }

    /// Number of addresses that are probed.
    pub fn addr_count(&self) -> u128 {
        let addrs = self.pairs.chunk_by(|(a, _), (b, _)| a.addr == b.addr);
        let further = addrs.filter(|of| !self.targets.contains(of[0].0.addr));
        let all = if self.product == 0 {
            0
        } else {
            self.targets.count()
        };
        all + further.count() as u128
    }

    /// Whether a probe is in the plan.
    pub fn contains(&self, target: &ProbeTarget) -> bool {
        let is_of_all =
            || self.ports.contains(target.probe, target.port) && self.targets.contains(target.addr);
        let is_pair = || {
            let at = self.pairs.partition_point(|(pair, _)| pair < target);
            self.pairs.get(at).is_some_and(|(pair, _)| pair == target)
        };
        is_of_all() || (!self.pairs.is_empty() && is_pair())
    }

    /// The scanner's own addresses and ports.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The order of the probes.
    pub fn order(&self) -> &Order {
        &self.order
    }

    /// Pairs of address and port in this shard.
    pub fn pair_count(&self) -> u128 {
        let Shard { index, count } = self.order.shard;
        let len = self.permutation.len();
        let index = u128::from(index);
        if index < len {
            (len - index).div_ceil(count.into())
        } else {
            0
        }
    }

    /// Probes of this shard, including all attempts.
    pub fn probe_count(&self) -> u128 {
        self.pair_count() * u128::from(self.order.attempts)
    }

    /// The attempt that a probe belongs to, by its number.
    pub fn attempt(&self, number: u128) -> Attempt {
        let (block, attempts) = (
            u128::from(self.order.block),
            u128::from(self.order.attempts),
        );
        let block_number = number / (block * attempts);
        let first = block_number * block;
        // The last block is shorter, and so are its attempts.
        let len = block.min(self.pair_count().saturating_sub(first)).max(1);
        let (start, within) = (first * attempts, number % (block * attempts));
        let attempt = (within / len).min(attempts - 1);
        Attempt {
            before: (attempt != 0).then(|| number - len),
            end: start + (attempt + 1) * len,
        }
    }

    /// Seconds that it takes to send the probes from a number on, at a rate: the attempts at a
    /// target are at least [`ATTEMPT_SECONDS`] apart.
    pub fn seconds(&self, from: u128, pps: f64) -> f64 {
        let (block, attempts) = (
            u128::from(self.order.block),
            u128::from(self.order.attempts),
        );
        // The last of the attempts is followed by the next block.
        let of_block = |len: u128| {
            let seconds = len as f64 / pps;
            seconds + (attempts - 1) as f64 * seconds.max(ATTEMPT_SECONDS)
        };
        let (pairs, left) = (self.pair_count(), self.probe_count().saturating_sub(from));
        let (whole, last) = (pairs / block, pairs % block);
        let mut seconds = whole as f64 * of_block(block);
        if last != 0 {
            seconds += of_block(last);
        }
        seconds * (left as f64 / self.probe_count().max(1) as f64)
    }

    /// Iterates over the probes from a number on.
    pub fn probes(&self, from: u128) -> Probes<'_> {
        let (block, attempts) = (
            u128::from(self.order.block),
            u128::from(self.order.attempts),
        );
        let first = from / (block * attempts) * block;
        let within = from % (block * attempts);
        let pairs = self.pair_count();
        // The last block is shorter, and so are its attempts.
        let len = block.min(pairs.saturating_sub(first));
        let start = self.walk(first);
        let (attempt, offset) = match len {
            0 => (0, 0),
            _ if within >= len * attempts => (attempts - 1, len),
            _ => (within / len, within % len),
        };
        Probes {
            walk: self.walk(first + offset),
            left: len - offset,
            start,
            len,
            attempt: attempt as u32,
            behind: pairs.saturating_sub(first + len),
            plan: self,
        }
    }

    /// Iterates over the pairs from the n-th of this shard on.
    fn walk(&self, pair: u128) -> Walk<'_> {
        let Shard { index, count } = self.order.shard;
        let count = u128::from(count);
        self.permutation
            .walk(u128::from(index) + pair * count, count)
    }

    /// The pair with a number of the permutation, and its payload.
    #[inline]
    fn target(&self, number: u128) -> PlannedProbe {
        if number >= self.product {
            return self.pairs[(number - self.product) as usize];
        }
        let (addr, port) = self.port_count.div_rem_wide(number);
        self.probe(self.targets.addr(addr), port)
    }

    /// The pair with a number of 64 bits.
    #[inline(always)]
    fn target_narrow(&self, number: u64) -> PlannedProbe {
        if u128::from(number) >= self.product {
            return self.pairs[(u128::from(number) - self.product) as usize];
        }
        let (addr, port) = self.port_count.div_rem(number);
        self.probe(self.targets.addr_narrow(addr), port)
    }

    /// The probe of a port, by its place in the list.
    #[inline(always)]
    fn probe(&self, addr: IpAddr, port: u64) -> PlannedProbe {
        let Entry {
            probe,
            port,
            payload,
        } = self.ports.as_slice()[port as usize];
        (ProbeTarget { addr, probe, port }, payload)
    }
}

/// Iterator over the probes of a plan, each with the index of its payload.
#[derive(Clone, Debug)]
pub struct Probes<'p> {
    plan: &'p Plan,
    walk: Walk<'p>,
    /// Start of the block.
    start: Walk<'p>,
    /// Pairs in the block.
    len: u128,
    /// Pairs of the block that are left in this attempt.
    left: u128,
    attempt: u32,
    /// Pairs after the block.
    behind: u128,
}

impl Iterator for Probes<'_> {
    type Item = PlannedProbe;

    #[inline]
    fn next(&mut self) -> Option<PlannedProbe> {
        if self.left == 0 && !self.turn() {
            return None;
        }
        self.left -= 1;
        let number = self.walk.next()?;
        Some(self.plan.target(number))
    }
}

impl<'p> Probes<'p> {
    /// Writes the next probes to `out`, at most a batch, and returns how many: fewer than it has
    /// room for at the end alone. All numbers come first and then all look-ups, which overlap in
    /// the processor.
    #[inline]
    pub(crate) fn fill(&mut self, out: &mut [PlannedProbe]) -> usize {
        let plan = self.plan;
        if plan.is_narrow {
            let mut numbers = [0u64; BATCH];
            let count = self.numbers(&mut numbers[..out.len()], Walk::fill_narrow);
            for (probe, number) in out.iter_mut().zip(&numbers[..count]) {
                *probe = plan.target_narrow(*number);
            }
            count
        } else {
            let mut numbers = [0u128; BATCH];
            let count = self.numbers(&mut numbers[..out.len()], Walk::fill);
            for (probe, number) in out.iter_mut().zip(&numbers[..count]) {
                *probe = plan.target(*number);
            }
            count
        }
    }

    /// As [`fill`](Self::fill), of a plan that has only SYNs to IPv4 addresses: their
    /// [words](word). `numbers` is where the numbers are written, at least as many.
    #[inline(always)]
    pub(crate) fn fill_syns_v4(&mut self, words: &mut [u64], numbers: &mut [u64; BATCH]) -> usize {
        let plan = self.plan;
        let (targets, ports) = (&plan.targets, plan.ports.as_slice());
        let count = self.numbers(&mut numbers[..words.len()], Walk::fill_narrow);
        let out = words.iter_mut().zip(&numbers[..count]);
        if let [only] = ports {
            let of_port = word(false, Probe::Syn, only.port, 0);
            for (out, number) in out {
                let addr = targets.addr_v4(*number).swap_bytes();
                *out = of_port | u64::from(addr) << 32;
            }
            return count;
        }
        for (out, number) in out {
            let (addr, port) = plan.port_count.div_rem(*number);
            let addr = targets.addr_v4(addr).swap_bytes();
            *out = word(false, Probe::Syn, ports[port as usize].port, addr);
        }
        count
    }

    /// As [`fill_syns_v4`](Self::fill_syns_v4), to IPv6 addresses. Their bytes are in `addrs`, in
    /// little-endian order.
    #[inline(always)]
    pub(crate) fn fill_syns_v6(&mut self, words: &mut [u64], addrs: &mut [u128; BATCH]) -> usize {
        let plan = self.plan;
        let (targets, ports) = (&plan.targets, plan.ports.as_slice());
        let count = self.numbers(&mut addrs[..words.len()], Walk::fill);
        let out = words.iter_mut().zip(&mut addrs[..count]);
        if let [only] = ports {
            let of_port = word(true, Probe::Syn, only.port, 0);
            for (out, number) in out {
                *number = targets.addr_v6(*number).swap_bytes();
                *out = of_port;
            }
            return count;
        }
        for (out, number) in out {
            let (addr, port) = plan.port_count.div_rem_wide(*number);
            *number = targets.addr_v6(addr).swap_bytes();
            *out = word(true, Probe::Syn, ports[port as usize].port, 0);
        }
        count
    }

    /// The next numbers, of any attempts; returns how many: fewer than there is room at the end
    /// alone.
    #[inline(always)]
    fn numbers<T>(
        &mut self,
        out: &mut [T],
        fill: impl Fn(&mut Walk<'p>, &mut [T]) -> usize,
    ) -> usize {
        let mut at = 0;
        while at < out.len() {
            if self.left == 0 && !self.turn() {
                break;
            }
            let room = out.len() - at;
            let room = usize::try_from(self.left).map_or(room, |left| left.min(room));
            fill(&mut self.walk, &mut out[at..at + room]);
            self.left -= room as u128;
            at += room;
        }
        at
    }

    /// Starts the next attempt or the next block; false at the end.
    #[cold]
    fn turn(&mut self) -> bool {
        self.attempt += 1;
        if self.len != 0 && self.attempt < self.plan.order.attempts {
            self.walk = self.start.clone();
            self.left = self.len;
            return true;
        }
        if self.behind == 0 {
            self.attempt = self.plan.order.attempts;
            return false;
        }
        self.attempt = 0;
        self.start = self.walk.clone();
        self.len = self.behind.min(self.plan.order.block.into());
        self.behind -= self.len;
        self.left = self.len;
        true
    }
}

#[cfg(test)]
mod tests;
