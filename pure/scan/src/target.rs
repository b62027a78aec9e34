//! The addresses to scan: ranges of both families without the excluded ones, addressable by number.
//!
//! Ranges are sorted and disjoint, each with the number of addresses before it. To look up a
//! number, a table with as many buckets as ranges is indexed, and then the few ranges of its bucket
//! are searched: the cost hardly grows with the length of the list.

mod pair;
mod parse;
mod reserved;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use pair::{Pair, PairPort, parse_pair, split_pair};
pub use parse::{parse_line, parse_range, words_of};
pub use reserved::RESERVED;

use crate::permutation::Permutation;

/// Addresses of one family from `first` to `last`, both included. IPv4 addresses are their 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddrRange {
    /// Whether the addresses are IPv6.
    pub is_ipv6: bool,
    /// First address, as a number.
    pub first: u128,
    /// Last address, as a number.
    pub last: u128,
}

impl AddrRange {
    /// The range of one address.
    pub fn single(addr: IpAddr) -> Self {
        let (is_ipv6, bits) = bits_of(addr);
        Self {
            is_ipv6,
            first: bits,
            last: bits,
        }
    }

    /// Whether this range contains all of another.
    pub fn covers(&self, other: &Self) -> bool {
        self.is_ipv6 == other.is_ipv6 && self.first <= other.first && other.last <= self.last
    }

    /// The first address.
    pub fn first_addr(&self) -> IpAddr {
        self.addr(self.first)
    }

    /// The address with this number, in the range's family.
    fn addr(&self, bits: u128) -> IpAddr {
        match self.is_ipv6 {
            true => Ipv6Addr::from_bits(bits).into(),
            false => Ipv4Addr::from_bits(bits as u32).into(),
        }
    }
}

fn bits_of(addr: IpAddr) -> (bool, u128) {
    match addr {
        IpAddr::V4(v4) => (false, v4.to_bits().into()),
        IpAddr::V6(v6) => (true, v6.to_bits()),
    }
}

/// Sorts ranges and merges those that overlap or touch.
fn merged(mut ranges: Vec<AddrRange>) -> Vec<AddrRange> {
    ranges.sort_unstable();
    let mut out: Vec<AddrRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match out.last_mut() {
            Some(last)
                if last.is_ipv6 == range.is_ipv6 && range.first <= last.last.saturating_add(1) =>
            {
                last.last = last.last.max(range.last);
            }
            _ => out.push(range),
        }
    }
    out
}

/// The parts of sorted `ranges` that are not in sorted `without`.
fn subtract(ranges: &[AddrRange], without: &[AddrRange]) -> Vec<AddrRange> {
    let mut out = Vec::with_capacity(ranges.len());
    let mut at = 0;
    for range in ranges {
        let mut first = range.first;
        // Ranges that end before this one begins are not needed any more.
        while let Some(cut) = without.get(at)
            && (cut.is_ipv6, cut.last) < (range.is_ipv6, range.first)
        {
            at += 1;
        }
        let mut is_open = true;
        for cut in &without[at..] {
            if cut.is_ipv6 != range.is_ipv6 || cut.first > range.last {
                break;
            }
            if cut.first > first {
                let last = cut.first - 1;
                out.push(AddrRange {
                    first,
                    last,
                    ..*range
                });
            }
            if cut.last >= range.last {
                is_open = false;
                break;
            }
            first = first.max(cut.last + 1);
        }
        if is_open {
            out.push(AddrRange { first, ..*range });
        }
    }
    out
}

/// A numbered set of addresses.
#[derive(Clone, Debug, Default)]
pub struct Targets {
    ranges: Vec<AddrRange>,
    /// Number of addresses before each range.
    before: Vec<u128>,
    count: u128,
    /// For each bucket of `1 << shift` numbers, the range of its first number.
    buckets: Vec<u32>,
    shift: u32,
}

impl Targets {
    /// Maximum number of addresses in a set.
    pub const COUNT_MAX: u128 = 1 << 107;

    /// All addresses of `include` that are not in `exclude`; overlapping ranges count once.
    /// `None` above [`COUNT_MAX`](Self::COUNT_MAX) addresses or 2^32 ranges.
    pub fn new(include: Vec<AddrRange>, exclude: Vec<AddrRange>) -> Option<Self> {
        let ranges = subtract(&merged(include), &merged(exclude));
        if u32::try_from(ranges.len()).is_err() {
            return None;
        }
        let mut before = Vec::with_capacity(ranges.len());
        let mut count = 0u128;
        for range in &ranges {
            before.push(count);
            count = count.checked_add((range.last - range.first).checked_add(1)?)?;
        }
        if count > Self::COUNT_MAX {
            return None;
        }
        let mut targets = Self {
            ranges,
            before,
            count,
            buckets: Vec::new(),
            shift: 0,
        };
        targets.fill_buckets();
        Some(targets)
    }

    fn fill_buckets(&mut self) {
        let wanted = self.ranges.len().next_power_of_two() as u128;
        while self.count >> self.shift > wanted {
            self.shift += 1;
        }
        let mut range = 0;
        for bucket in 0..=(self.count >> self.shift) {
            let first = bucket << self.shift;
            while self
                .before
                .get(range + 1)
                .is_some_and(|before| *before <= first)
            {
                range += 1;
            }
            self.buckets.push(range as u32);
        }
    }

    /// Number of addresses.
    pub fn count(&self) -> u128 {
        self.count
    }

    /// The ranges, sorted and disjoint.
    pub fn ranges(&self) -> &[AddrRange] {
        &self.ranges
    }

    /// The address with a number.
    ///
    /// # Panics
    /// If the number is not below [`count`](Self::count): a bug of the caller.
    #[inline]
    pub fn addr(&self, number: u128) -> IpAddr {
        let bucket = (number >> self.shift) as usize;
        let first = self.buckets[bucket] as usize;
        let last = self
            .buckets
            .get(bucket + 1)
            .map_or(self.ranges.len(), |r| *r as usize + 1);
        let within = self.before[first..last].partition_point(|before| *before <= number) - 1;
        let range = &self.ranges[first + within];
        range.addr(range.first + (number - self.before[first + within]))
    }

    /// Whether the set contains an address.
    pub fn contains(&self, addr: IpAddr) -> bool {
        let (is_ipv6, bits) = bits_of(addr);
        let key = (is_ipv6, bits);
        let behind = self
            .ranges
            .partition_point(|range| (range.is_ipv6, range.first) <= key);
        let range = behind.checked_sub(1).map(|at| &self.ranges[at]);
        range.is_some_and(|range| range.is_ipv6 == is_ipv6 && bits <= range.last)
    }

    /// Up to `count` addresses of the set, chosen at random by a seed, each once.
    pub fn sample(&self, count: u64, seed: u64) -> Vec<IpAddr> {
        // Another order than that of the probes.
        let permutation = Permutation::new(self.count, !seed);
        let numbers = permutation.iter().flat_map(|of| of.walk(0, 1));
        numbers
            .take(usize::try_from(count).unwrap_or(usize::MAX))
            .map(|number| self.addr(number))
            .collect()
    }

    /// Number of addresses of the set within a range.
    pub fn count_in(&self, within: &AddrRange) -> u128 {
        let ranges = self.ranges.iter().filter(|r| r.is_ipv6 == within.is_ipv6);
        let counts = ranges.map(|range| {
            let (first, last) = (range.first.max(within.first), range.last.min(within.last));
            if first <= last { last - first + 1 } else { 0 }
        });
        counts.sum()
    }
}

#[cfg(test)]
mod tests;
