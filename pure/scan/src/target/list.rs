//! Lists of ranges in little memory: 8 bytes for a range of IPv4 addresses, sorted and merged in
//! place.

use super::AddrRange;
use super::table::Bits;

/// Ranges of addresses in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeList {
    pub(super) v4: Vec<(u32, u32)>,
    pub(super) v6: Vec<(u128, u128)>,
}

impl RangeList {
    /// Adds a range.
    #[inline]
    pub fn push(&mut self, range: AddrRange) {
        match range.is_ipv6 {
            true => self.v6.push((range.first, range.last)),
            false => self.v4.push((range.first as u32, range.last as u32)),
        }
    }

    /// Moves all ranges of another list into this one.
    pub fn append(&mut self, other: &mut Self) {
        self.v4.append(&mut other.v4);
        self.v6.append(&mut other.v6);
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// Whether there is no range.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The ranges: IPv4 first, otherwise in the order of the list.
    pub fn iter(&self) -> impl Iterator<Item = AddrRange> {
        let v4 = self.v4.iter().map(|ends| range_of(*ends));
        v4.chain(self.v6.iter().map(|ends| range_of(*ends)))
    }

    /// Sorts the ranges and merges those that overlap or touch. Needs no memory.
    pub fn merge(&mut self) {
        merge(&mut self.v4);
        merge(&mut self.v6);
    }
}

impl Extend<AddrRange> for RangeList {
    fn extend<I: IntoIterator<Item = AddrRange>>(&mut self, ranges: I) {
        ranges.into_iter().for_each(|range| self.push(range));
    }
}

impl FromIterator<AddrRange> for RangeList {
    fn from_iter<I: IntoIterator<Item = AddrRange>>(ranges: I) -> Self {
        let mut list = Self::default();
        list.extend(ranges);
        list
    }
}

impl From<Vec<AddrRange>> for RangeList {
    fn from(ranges: Vec<AddrRange>) -> Self {
        ranges.into_iter().collect()
    }
}

pub(super) fn range_of<T: Bits>((first, last): (T, T)) -> AddrRange {
    AddrRange {
        is_ipv6: T::IS_IPV6,
        first: first.wide(),
        last: last.wide(),
    }
}

fn merge<T: Bits>(ranges: &mut Vec<(T, T)>) {
    let touch =
        |before: &(T, T), after: &(T, T)| after.0.wide() <= before.1.wide().saturating_add(1);
    let is_merged =
        ranges.is_sorted_by(|before, after| before.1 < after.0 && !touch(before, after));
    if is_merged {
        return;
    }
    ranges.sort_unstable();
    ranges.dedup_by(|after, before| {
        let is_touching = touch(before, after);
        if is_touching {
            before.1 = before.1.max(after.1);
        }
        is_touching
    });
}
