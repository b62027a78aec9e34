//! Small sets of numbers, of a size fixed by a table.

/// Number of words for a set of `count` numbers.
pub(crate) const fn words(count: usize) -> usize {
    count.div_ceil(u64::BITS as usize)
}

/// Numbers below `64 * W`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Set<const W: usize>([u64; W]);

impl<const W: usize> Set<W> {
    pub(crate) const NONE: Set<W> = Set([0; W]);

    #[inline]
    pub(crate) const fn has(&self, number: usize) -> bool {
        number / 64 < W && self.0[number / 64] & 1 << (number % 64) != 0
    }

    /// Inserts a number; one out of range is ignored.
    #[inline]
    pub(crate) const fn insert(&mut self, number: usize) {
        if number / 64 < W {
            self.0[number / 64] |= 1 << (number % 64);
        }
    }

    pub(crate) const fn or(mut self, other: Set<W>) -> Set<W> {
        let mut at = 0;
        while at < W {
            self.0[at] |= other.0[at];
            at += 1;
        }
        self
    }

    /// The numbers of this set that are not in the other.
    #[inline]
    pub(crate) const fn without(mut self, other: Set<W>) -> Set<W> {
        let mut at = 0;
        while at < W {
            self.0[at] &= !other.0[at];
            at += 1;
        }
        self
    }

    /// Removes and returns the lowest number.
    #[inline]
    pub(crate) const fn pop(&mut self) -> Option<usize> {
        let mut at = 0;
        while at < W {
            let word = self.0[at];
            if word != 0 {
                self.0[at] = word & (word - 1);
                return Some(at * 64 + word.trailing_zeros() as usize);
            }
            at += 1;
        }
        None
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        let mut at = 0;
        while at < W {
            if self.0[at] != 0 {
                return false;
            }
            at += 1;
        }
        true
    }

    /// Iterates over the numbers in order.
    #[inline]
    pub(crate) fn iter(mut self) -> impl Iterator<Item = usize> {
        core::iter::from_fn(move || self.pop())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn numbers_above_one_word_are_kept_in_order() {
        let mut set = Set::<{ words(200) }>::NONE;
        for number in [199, 0, 64, 63, 130, 5000] {
            set.insert(number);
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 63, 64, 130, 199]);
        assert!(!set.has(65) && set.has(63) && !set.has(5000));
        let mut other = Set::NONE;
        for number in [0, 63, 64, 65] {
            other.insert(number);
        }
        assert_eq!(set.without(other).iter().collect::<Vec<_>>(), [130, 199]);
        let joined: Vec<_> = set.or(other).iter().collect();
        assert_eq!(joined, [0, 63, 64, 65, 130, 199]);
        assert!(Set::<4>::NONE.is_empty() && !set.is_empty() && set.or(Set::NONE) == set);
    }
}
