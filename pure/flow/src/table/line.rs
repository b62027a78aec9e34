//! A line of the index: eight ways, compared four at a time.

use crate::expire;

pub(super) const WAYS: usize = 8;
pub(super) const NONE: u32 = u32::MAX;

/// Eight ways of the index. A tag of 0 is a free way.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line {
    pub(super) tags: [u16; WAYS],
    pub(super) deadlines: [u16; WAYS],
    pub(super) records: [u32; WAYS],
}

const _: () = assert!(size_of::<Line>() == 64);

/// A set of ways, of which only the first is exact: way n is bit 16 n + 14, or 16 (n - 4) + 15 from
/// way 4 on. After the first it may contain ways that are not members.
#[derive(Clone, Copy)]
pub(super) struct Ways(u64);

impl Ways {
    #[inline(always)]
    pub(super) fn first(self) -> Option<usize> {
        let bit = self.0.trailing_zeros() as usize;
        (self.0 != 0).then_some((bit >> 4) & 3 | (bit & 1) << 2)
    }

    /// The set without its first member.
    #[inline(always)]
    pub(super) fn rest(self) -> Ways {
        Ways(self.0 & self.0.wrapping_sub(1))
    }
}

impl Line {
    pub(super) const EMPTY: Line = Line {
        tags: [0; WAYS],
        deadlines: [0; WAYS],
        records: [NONE; WAYS],
    };

    /// The ways with this tag. 0 finds the free ones.
    #[inline(always)]
    pub(super) fn find(&self, tag: u16) -> Ways {
        // Four comparisons in a word: subtracting one from each lane borrows from above only where
        // a lane was 0, which is what is searched for; so the lowest match is exact.
        const ONES: u64 = 0x0001_0001_0001_0001;
        const TOPS: u64 = ONES << 15;
        let wanted = u64::from(tag) * ONES;
        let equal = |tags: u64| {
            let different = tags ^ wanted;
            different.wrapping_sub(ONES) & !different & TOPS
        };
        // Four adjacent tags: one load.
        let word = |at: usize| {
            u64::from(self.tags[at])
                | u64::from(self.tags[at + 1]) << 16
                | u64::from(self.tags[at + 2]) << 32
                | u64::from(self.tags[at + 3]) << 48
        };
        Ways(equal(word(0)) >> 1 | equal(word(4)))
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.find(0).first().is_none()
    }

    /// Remaining time of each way; the maximum for free ones.
    #[inline(always)]
    fn untils(&self, now: u16) -> [i16; WAYS] {
        // In steps that compile to one comparison of eight each.
        let mut untils = [i16::MAX; WAYS];
        for ((until, deadline), tag) in untils.iter_mut().zip(&self.deadlines).zip(&self.tags) {
            let way_until = expire::until(*deadline, now);
            *until = if *tag == 0 { i16::MAX } else { way_until };
        }
        untils
    }

    /// Whether any way in use has passed its deadline.
    #[inline(always)]
    pub(super) fn has_passed(&self, now: u16) -> bool {
        let mut any = 0_i16;
        for (deadline, tag) in self.deadlines.iter().zip(&self.tags) {
            let in_use = if *tag == 0 { 0 } else { -1 };
            any |= expire::until(*deadline, now) & in_use;
        }
        any < 0
    }

    /// The minimum remaining time.
    #[inline(always)]
    fn least_until(&self, now: u16) -> i16 {
        let untils = self.untils(now);
        untils
            .iter()
            .fold(i16::MAX, |least, until| least.min(*until))
    }

    /// The way whose flow is closest to its timeout, and its remaining time; `None` if no way is in
    /// use.
    #[inline]
    pub(super) fn nearest(&self, now: u16) -> Option<(i16, usize)> {
        let untils = self.untils(now);
        let least = self.least_until(now);
        let way = untils.iter().position(|until| *until == least)?;
        (least != i16::MAX).then_some((least, way))
    }
}
