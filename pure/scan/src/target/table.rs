//! The addresses of one family by number, in little memory: 8 bytes for a range of IPv4 addresses,
//! and 4 for each bucket.
//!
//! A look-up reads the bucket of a number, and the four ranges from the bucket's first on. It
//! compares all of them without a branch, so that the look-ups of a batch wait for memory at the
//! same time. Only where more ranges begin in one bucket they are searched.

use super::AddrRange;
use super::list::range_of;

/// The bits of an address.
pub(super) trait Bits: Copy + Ord {
    const IS_IPV6: bool;
    const MAX: Self;
    fn wide(self) -> u128;
    fn of(wide: u128) -> Self;
    /// The sum; it wraps.
    fn plus(self, other: Self) -> Self;
    /// The bucket of a number.
    fn bucket(self, shift: u32) -> usize;
}

impl Bits for u32 {
    const IS_IPV6: bool = false;
    const MAX: Self = Self::MAX;

    #[inline(always)]
    fn wide(self) -> u128 {
        self.into()
    }

    #[inline(always)]
    fn of(wide: u128) -> Self {
        wide as Self
    }

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }

    #[inline(always)]
    fn bucket(self, shift: u32) -> usize {
        // The shift may be 32.
        (u64::from(self) >> (shift & 63)) as usize
    }
}

impl Bits for u128 {
    const IS_IPV6: bool = true;
    const MAX: Self = Self::MAX;

    #[inline(always)]
    fn wide(self) -> u128 {
        self
    }

    #[inline(always)]
    fn of(wide: u128) -> Self {
        wide
    }

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }

    #[inline(always)]
    fn bucket(self, shift: u32) -> usize {
        (self >> (shift & 127)) as usize
    }
}

/// Ranges compared at once.
const WINDOW: usize = 4;

/// A range: the number of its first address, and what makes an address of a number in it.
#[derive(Clone, Copy, Debug)]
struct Entry<T> {
    before: T,
    offset: T,
}

/// Sorted and disjoint ranges of one family.
#[derive(Clone, Debug)]
pub(super) struct Table<T> {
    /// The ranges, and behind them as many more as a look-up may read.
    entries: Vec<Entry<T>>,
    /// Number of addresses.
    count: u128,
    /// For each bucket of `1 << shift` numbers, the range of its first number; at the end, the last
    /// range.
    buckets: Vec<u32>,
    shift: u32,
}

impl<T: Bits> Default for Table<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            count: 0,
            buckets: Vec::new(),
            shift: 0,
        }
    }
}

impl<T: Bits> Table<T> {
    /// The parts of `include` that are not in `exclude`, both merged. `None` above `count_max`
    /// addresses or 2^32 ranges.
    pub fn new(include: &[(T, T)], exclude: &[(T, T)], count_max: u128) -> Option<Self> {
        if include.is_empty() {
            return Some(Self::default());
        }
        let mut table = Self {
            // Each exclusion splits at most one range.
            entries: Vec::with_capacity(include.len() + exclude.len() + WINDOW - 1),
            ..Self::default()
        };
        let mut rest = exclude;
        for (first, last) in include {
            // What ends before this range is not needed any more.
            let behind = rest.iter().position(|cut| cut.1 >= *first);
            rest = &rest[behind.unwrap_or(rest.len())..];
            let mut from = *first;
            let mut is_open = true;
            for cut in rest.iter().take_while(|cut| cut.0 <= *last) {
                if cut.0 > from {
                    table.push(from, T::of(cut.0.wide() - 1), count_max)?;
                }
                if cut.1 >= *last {
                    is_open = false;
                    break;
                }
                from = from.max(T::of(cut.1.wide() + 1));
            }
            if is_open {
                table.push(from, *last, count_max)?;
            }
        }
        table.fill_buckets();
        let behind = Entry {
            before: T::MAX,
            offset: T::MAX,
        };
        table.entries.extend([behind; WINDOW - 1]);
        Some(table)
    }

    fn push(&mut self, first: T, last: T, count_max: u128) -> Option<()> {
        let before = T::of(self.count);
        let offset = T::of(first.wide().wrapping_sub(self.count));
        self.entries.push(Entry { before, offset });
        let len = (last.wide() - first.wide()).checked_add(1)?;
        self.count = self.count.checked_add(len)?;
        let fits = self.count <= count_max && u32::try_from(self.entries.len()).is_ok();
        fits.then_some(())
    }

    fn fill_buckets(&mut self) {
        let Some(last) = self.entries.len().checked_sub(1) else {
            return;
        };
        let wanted = self.entries.len().next_power_of_two() as u128;
        while self.count >> self.shift > wanted {
            self.shift += 1;
        }
        let bucket_count = (self.count - 1) >> self.shift;
        self.buckets.reserve_exact(bucket_count as usize + 2);
        let mut range = 0;
        for bucket in 0..=bucket_count {
            let first = bucket << self.shift;
            while range < last && self.entries[range + 1].before.wide() <= first {
                range += 1;
            }
            self.buckets.push(range as u32);
        }
        self.buckets.push(last as u32);
    }

    /// Number of addresses.
    #[inline(always)]
    pub fn count(&self) -> u128 {
        self.count
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.entries.len().saturating_sub(WINDOW - 1)
    }

    /// The range with an index.
    fn range(&self, index: usize) -> AddrRange {
        let Entry { before, offset } = self.entries[index];
        let end = match index + 1 == self.len() {
            true => self.count,
            false => self.entries[index + 1].before.wide(),
        };
        range_of((before.plus(offset), T::of(end.wrapping_sub(1)).plus(offset)))
    }

    /// The ranges, sorted and disjoint.
    pub fn ranges(&self) -> impl Iterator<Item = AddrRange> {
        (0..self.len()).map(|index| self.range(index))
    }

    /// The address with a number below the count.
    #[inline(always)]
    pub fn addr(&self, number: T) -> T {
        let bucket = number.bucket(self.shift);
        let ends = &self.buckets[bucket..bucket + 2];
        let (first, last) = (ends[0] as usize, ends[1] as usize);
        if T::IS_IPV6 && first == last {
            // Comparing numbers of 128 bits takes longer, and there are few ranges.
            return number.plus(self.entries[first].offset);
        }
        let window = &self.entries[first..first + WINDOW];
        let is_at = |index: usize| usize::from(window[index].before <= number);
        if last - first >= WINDOW {
            return self.search(number, first, last);
        }
        let within = is_at(1) + is_at(2) + is_at(3);
        // What is read behind the last range may count, too.
        let within = within.min(last - first);
        number.plus(window[within].offset)
    }

    #[cold]
    fn search(&self, number: T, first: usize, last: usize) -> T {
        let ranges = &self.entries[first..=last];
        let within = ranges.partition_point(|entry| entry.before <= number);
        number.plus(ranges[within - 1].offset)
    }

    /// The number of an address.
    pub fn number(&self, addr: T) -> Option<T> {
        let ranges = &self.entries[..self.len()];
        let behind = ranges.partition_point(|entry| entry.before.plus(entry.offset) <= addr);
        let index = behind.checked_sub(1)?;
        let offset = ranges[index].offset.wide();
        let number = T::of(addr.wide().wrapping_sub(offset));
        (addr.wide() <= self.range(index).last).then_some(number)
    }

    /// The range that an address is in.
    pub fn range_of(&self, addr: T) -> Option<AddrRange> {
        let ranges = &self.entries[..self.len()];
        let behind = ranges.partition_point(|entry| entry.before.plus(entry.offset) <= addr);
        let range = self.range(behind.checked_sub(1)?);
        (addr.wide() <= range.last).then_some(range)
    }
}
