//! Which memory of a record a packet accesses, so that it can be loaded in advance.

use super::{Direction, Record};
use crate::key::Side;

impl Record {
    /// Loads the cache lines that a packet of this side will access: the first and the last byte of
    /// the head and of the side, since records are not aligned to cache lines.
    #[inline(always)]
    pub(crate) fn touch(&self, side: Side) -> u64 {
        self.key.touch() | u64::from(self.traffic_class[1]) | self.sides[side as usize].touch()
    }
}

/// Number of addresses in [`Record::places`].
const PLACE_COUNT: usize = 4;

impl Record {
    /// The addresses that [`Record::touch`] loads.
    #[inline(always)]
    pub(crate) fn places(&self, side: Side) -> [usize; PLACE_COUNT] {
        let start = std::ptr::from_ref(self).addr();
        let side = start + HEAD_LEN + side as usize * size_of::<Direction>();
        [
            start,
            start + HEAD_LEN - 1,
            side,
            side + size_of::<Direction>() - 1,
        ]
    }
}

/// Length of the record before the sides.
const HEAD_LEN: usize = std::mem::offset_of!(Record, sides);
