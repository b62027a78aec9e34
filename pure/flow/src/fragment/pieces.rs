//! The parts of a datagram that have arrived.

use wire::Dissection;

/// The part of a datagram in a fragment, in units of eight bytes: start and end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) from: u16,
    pub(crate) to: u16,
}

impl Piece {
    pub(crate) fn of(level: &Dissection) -> Piece {
        let from = level.fragment_offset >> 3;
        let len = if level.transport_offset != 0 {
            let end = u32::from(level.ip_offset) + level.ip_total_len;
            end.saturating_sub(level.transport_offset.into())
        } else {
            level.payload_len
        };
        let units = len.div_ceil(8).min(8192) as u16;
        Piece {
            from,
            to: from + units,
        }
    }
}

/// The parts of a datagram received so far, while they are at most `N` ranges; the excess is
/// ignored.
#[derive(Clone, Copy)]
pub(crate) struct Pieces<const N: usize> {
    count: u8,
    ranges: [Piece; N],
}

impl<const N: usize> Pieces<N> {
    pub(crate) const EMPTY: Pieces<N> = Pieces {
        count: 0,
        ranges: [Piece { from: 0, to: 0 }; N],
    };

    fn ranges(&self) -> &[Piece] {
        self.ranges.get(..self.count.into()).unwrap_or(&[])
    }

    /// Whether any of a part is present.
    pub(crate) fn overlaps(&self, piece: Piece) -> bool {
        let mut ranges = self.ranges().iter();
        ranges.any(|range| piece.from < range.to && range.from < piece.to)
    }

    /// Whether all of a part is present.
    pub(crate) fn contains(&self, piece: Piece) -> bool {
        let mut ranges = self.ranges().iter();
        ranges.any(|range| range.from <= piece.from && piece.to <= range.to)
    }

    /// Whether this part is present, and nothing else.
    pub(crate) fn is_only(&self, piece: Piece) -> bool {
        self.ranges() == [piece]
    }

    /// The end of the last part.
    pub(crate) fn end(&self) -> u16 {
        let ends = self.ranges().iter().map(|range| range.to);
        ends.max().unwrap_or(0)
    }

    /// Adds a part, and returns whether any of it was already present.
    pub(crate) fn add(&mut self, piece: Piece) -> bool {
        let mut all = piece;
        let mut overlaps = false;
        let mut at = 0;
        while at < usize::from(self.count) {
            let range = self.ranges[at];
            overlaps |= piece.from < range.to && range.from < piece.to;
            if all.from <= range.to && range.from <= all.to {
                // Adjacent or overlapping: merge them.
                all.from = all.from.min(range.from);
                all.to = all.to.max(range.to);
                self.count -= 1;
                self.ranges[at] = self.ranges[usize::from(self.count)];
                at = 0;
            } else {
                at += 1;
            }
        }
        if let Some(free) = self.ranges.get_mut(usize::from(self.count)) {
            *free = all;
            self.count += 1;
        }
        overlaps
    }
}
