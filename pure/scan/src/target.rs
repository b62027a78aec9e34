//! The addresses to scan: ranges of both families without the excluded ones, addressable by number.
//!
//! Ranges are sorted and disjoint, each with the number of addresses before it. To look up a
//! number, a table with as many buckets as ranges is indexed, and then the few ranges of its bucket
//! are compared: the cost hardly grows with the length of the list. A [`Table`] has one family.

mod list;
mod octets;
mod pair;
mod parse;
mod reserved;
mod table;
mod words;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use list::RangeList;
pub use octets::parse_octets;
pub use pair::{Pair, PairPort, parse_pair, split_pair};
pub use parse::{parse_line, parse_range};
pub use reserved::RESERVED;
pub use words::words_of;

use crate::permutation::Permutation;
use table::Table;

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

/// A numbered set of addresses.
#[derive(Clone, Debug, Default)]
pub struct Targets {
    v4: Table<u32>,
    /// Their numbers follow those of IPv4.
    v6: Table<u128>,
    /// Number of IPv4 addresses.
    v4_count: u64,
    count: u128,
}

impl Targets {
    /// Maximum number of addresses in a set.
    pub const COUNT_MAX: u128 = 1 << 107;

    /// All addresses of `include` that are not in `exclude`; overlapping ranges count once.
    /// `None` above [`COUNT_MAX`](Self::COUNT_MAX) addresses or 2^32 ranges of a family.
    pub fn new(include: impl Into<RangeList>, exclude: impl Into<RangeList>) -> Option<Self> {
        let mut exclude = exclude.into();
        exclude.merge();
        Self::without(include, &exclude)
    }

    /// As [`new`](Self::new), with a list of exclusions that was [merged](RangeList::merge), and is
    /// not copied.
    pub fn without(include: impl Into<RangeList>, exclude: &RangeList) -> Option<Self> {
        let mut include = include.into();
        include.merge();
        let v4 = Table::new(&include.v4, &exclude.v4, Self::COUNT_MAX)?;
        let v6 = Table::new(&include.v6, &exclude.v6, Self::COUNT_MAX)?;
        let count = v4.count() + v6.count();
        (count <= Self::COUNT_MAX).then_some(Self {
            v4_count: v4.count() as u64,
            v4,
            v6,
            count,
        })
    }

    /// Number of addresses.
    #[inline]
    pub fn count(&self) -> u128 {
        self.count
    }

    /// The ranges, sorted and disjoint, IPv4 first.
    pub fn ranges(&self) -> impl Iterator<Item = AddrRange> {
        self.v4.ranges().chain(self.v6.ranges())
    }

    /// Number of ranges.
    pub fn range_count(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// Whether there is an address of a family.
    pub fn has_family(&self, is_ipv6: bool) -> bool {
        match is_ipv6 {
            true => self.v6.count() != 0,
            false => self.v4_count != 0,
        }
    }

    /// The address with a number.
    ///
    /// # Panics
    /// If the number is not below [`count`](Self::count): a bug of the caller.
    #[inline]
    pub fn addr(&self, number: u128) -> IpAddr {
        let behind = number.wrapping_sub(self.v4_count.into());
        match number < self.v4_count.into() {
            true => Ipv4Addr::from_bits(self.v4.addr(number as u32)).into(),
            false => Ipv6Addr::from_bits(self.v6.addr(behind)).into(),
        }
    }

    /// The address with a number of 64 bits.
    ///
    /// # Panics
    /// As [`addr`](Self::addr).
    #[inline(always)]
    pub(crate) fn addr_narrow(&self, number: u64) -> IpAddr {
        let behind = number.wrapping_sub(self.v4_count);
        match number < self.v4_count {
            true => Ipv4Addr::from_bits(self.v4.addr(number as u32)).into(),
            false => Ipv6Addr::from_bits(self.v6.addr(behind.into())).into(),
        }
    }

    /// The IPv4 address with a number, of a set that has no others.
    ///
    /// # Panics
    /// As [`addr`](Self::addr).
    #[inline(always)]
    pub(crate) fn addr_v4(&self, number: u64) -> u32 {
        self.v4.addr(number as u32)
    }

    /// The IPv6 address with a number, of a set that has no others.
    ///
    /// # Panics
    /// As [`addr`](Self::addr).
    #[inline(always)]
    pub(crate) fn addr_v6(&self, number: u128) -> u128 {
        self.v6.addr(number)
    }

    /// The number of an address, if it is in the set.
    #[inline]
    pub fn number(&self, addr: IpAddr) -> Option<u128> {
        match addr {
            IpAddr::V4(addr) => self.v4.number(addr.to_bits()).map(u128::from),
            IpAddr::V6(addr) => {
                let number = self.v6.number(addr.to_bits())?;
                Some(number + u128::from(self.v4_count))
            }
        }
    }

    /// Whether the set contains an address.
    #[inline]
    pub fn contains(&self, addr: IpAddr) -> bool {
        self.range_of(addr).is_some()
    }

    /// The range of the set that an address is in.
    #[inline]
    pub fn range_of(&self, addr: IpAddr) -> Option<AddrRange> {
        match addr {
            IpAddr::V4(addr) => self.v4.range_of(addr.to_bits()),
            IpAddr::V6(addr) => self.v6.range_of(addr.to_bits()),
        }
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
        let ranges = self.ranges().filter(|r| r.is_ipv6 == within.is_ipv6);
        let counts = ranges.map(|range| {
            let (first, last) = (range.first.max(within.first), range.last.min(within.last));
            if first <= last { last - first + 1 } else { 0 }
        });
        counts.sum()
    }
}

#[cfg(test)]
mod tests;
