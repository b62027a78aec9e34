//! The order of a scan's probes: arithmetic on one number.
//!
//! Every pair of an address and a port has an index in the [permutation](Permutation): those of all
//! addresses and all ports, and further pairs that are in a list. A shard
//! takes every n-th index. Attempts are grouped in blocks: all first attempts of a block of
//! indices, then all second ones, and so on, so that the attempts at one target are a block apart.
//! Nothing here depends on the rate: the n-th probe is the same at any rate and on any machine, and
//! a scan can begin at any probe.

use crate::cookie::ProbeTarget;
use crate::permutation::{Permutation, Walk};
use crate::port::{Entry, Ports};
use crate::probe::Probe;
use crate::source::Source;
use crate::target::Targets;

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

/// The destination of a probe, and the index of its payload.
pub type PlannedProbe = (ProbeTarget, u16);

/// All probes of a scan.
#[derive(Clone, Debug)]
pub struct Plan {
    targets: Targets,
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
    /// 2^64 / number of ports, rounded down.
    reciprocal: u64,
}

impl Plan {
    /// Creates a plan; `None` without targets or without ports, or if there are more than
    /// [`LEN_MAX`](crate::LEN_MAX) pairs of them.
    pub fn new(targets: Targets, ports: Ports, source: Source, order: Order) -> Option<Self> {
        Self::with_pairs(targets, ports, Vec::new(), source, order)
    }

    /// Creates a plan of all ports of all targets, and of further pairs. Each probe is planned
    /// once. `None` if there is none, or more than [`LEN_MAX`](crate::LEN_MAX).
    pub fn with_pairs(
        targets: Targets,
        ports: Ports,
        mut pairs: Vec<PlannedProbe>,
        source: Source,
        order: Order,
    ) -> Option<Self> {
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
            permutation,
            reciprocal: ((1u128 << 64) / port_count.max(1)).min(u64::MAX.into()) as u64,
            ports,
        })
    }

    /// The target addresses.
    pub fn targets(&self) -> &Targets {
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
        let ports = self.ports.as_slice();
        let count = ports.len() as u64;
        let (addr, port) = match u64::try_from(number) {
            Ok(number) => {
                // The estimate is right, or one too low.
                let estimate = ((u128::from(number) * u128::from(self.reciprocal)) >> 64) as u64;
                let rest = number - estimate * count;
                let is_low = rest >= count;
                let rest = if is_low { rest - count } else { rest };
                (u128::from(estimate + u64::from(is_low)), rest)
            }
            Err(_) => {
                let count = u128::from(count);
                (number / count, (number % count) as u64)
            }
        };
        let Entry {
            probe,
            port,
            payload,
        } = ports[port as usize];
        let addr = self.targets.addr(addr);
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

impl Probes<'_> {
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
