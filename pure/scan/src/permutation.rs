//! An invertible permutation of `0..len` for any length, with random access.
//!
//! A generalized Feistel network (Black and Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA
//! 2002) over a rectangle of `rows × columns` cells that is hardly larger than `len`. The number of
//! columns is a power of two close to its square root, so that an index is split into row and
//! column by a shift, and a round that moves the column is an exclusive or; a round that moves the
//! row takes the high half of a product where masscan divides. Nothing is divided. A cell
//! at or above `len` (fewer than there are columns) goes through the rounds again until it is
//! below, so the cost does not depend on how close `len` is to a power of two or a prime.
//!
//! The order need not be secret: anyone with the seed can run a shard of the same scan. Forged
//! answers are detected by the [cookie](crate::Cookies), which has another key.
//!
//! A saved scan and the shards of a scan rely on the order: [`ORDER_VERSION`] changes with it.

/// Number of rounds. Three do not pass the tests of this module.
const ROUNDS: usize = 4;

/// The version of the order: the same seed and length give the same permutation under the same
/// version alone.
pub const ORDER_VERSION: u32 = 2;

/// Longest permutation: halves stay below 2^62, so that the sum of two fits into 64 bits.
pub const LEN_MAX: u128 = 1 << 124;

/// A permutation of `0..len`.
#[derive(Clone, Debug)]
pub struct Permutation {
    len: u128,
    /// Number of rows; the last may be incomplete.
    rows: u64,
    /// Number of complete rows.
    rows_complete: u64,
    /// The first column beyond the last row if it is incomplete, otherwise 0.
    columns_last: u64,
    /// 64 less the binary logarithm of the number of columns, 2 to 63.
    column_shift: u32,
    keys: [u64; ROUNDS],
}

/// A cell of the rectangle, as row and column: an index, or a position in the permuted order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    row: u64,
    /// In the upper bits: the lower ones are 0. So a carry out of the column is one of 64 bits, and
    /// the upper bits of a product are a column by a mask.
    column: u64,
}

/// A function of 64 bits in which every bit of the input reaches the high bits of the output: two
/// multiplications, with both halves of the first product.
#[inline(always)]
fn mix(value: u64) -> u64 {
    let product = u128::from(value) * 0xbf58_476d_1ce4_e5b9;
    let folded = (product >> 64) as u64 ^ product as u64;
    folded.wrapping_mul(0x94d0_49bb_1331_11eb)
}

/// Maps 64 bits to a number below `limit`.
#[inline(always)]
fn below(bits: u64, limit: u64) -> u64 {
    ((u128::from(bits) * u128::from(limit)) >> 64) as u64
}

impl Permutation {
    /// Creates the permutation of `0..len` for a seed; `None` if `len` is 0 or above [`LEN_MAX`].
    pub fn new(len: u128, seed: u64) -> Option<Self> {
        if len == 0 || len > LEN_MAX {
            return None;
        }
        let column_shift = 64 - len.ilog2().div_ceil(2).max(1);
        let mut keys = [0; ROUNDS];
        let mut state = seed;
        for key in &mut keys {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            *key = mix(mix(state ^ state >> 32) ^ state >> 31);
        }
        let end = Cell::of(len << column_shift);
        Some(Self {
            len,
            rows: end.row + u64::from(end.column != 0),
            rows_complete: end.row,
            columns_last: end.column,
            column_shift,
            keys,
        })
    }

    /// Length of the permutation.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u128 {
        self.len
    }

    /// The number at an index.
    ///
    /// # Panics
    /// If the index is not below [`len`](Self::len): a bug of the caller.
    pub fn at(&self, index: u128) -> u128 {
        assert!(index < self.len, "an index beyond the permutation");
        self.number(self.image(self.cell(index)))
    }

    /// The index of a number.
    ///
    /// # Panics
    /// If the number is not below [`len`](Self::len): a bug of the caller.
    pub fn index_of(&self, number: u128) -> u128 {
        assert!(number < self.len, "a number beyond the permutation");
        let mut cell = self.cell(number);
        loop {
            cell = self.back(cell);
            if !self.is_beyond(cell) {
                return self.number(cell);
            }
        }
    }

    /// Iterates from an index on in steps of `stride`: one of `stride` shards. It ends at the end
    /// of the permutation.
    pub fn walk(&self, from: u128, stride: u128) -> Walk<'_> {
        let stride = stride.max(1);
        let left = match from < self.len {
            true => (self.len - from).div_ceil(stride),
            false => 0,
        };
        Walk {
            permutation: self,
            at: from.min(self.len - 1) << self.column_shift,
            step: stride.min(self.len - 1) << self.column_shift,
            left,
        }
    }

    fn cell(&self, index: u128) -> Cell {
        Cell::of(index << self.column_shift)
    }

    #[inline(always)]
    fn number(&self, cell: Cell) -> u128 {
        // Masked, the shift needs no check.
        (u128::from(cell.row) << 64 | u128::from(cell.column)) >> (self.column_shift & 63)
    }

    /// Whether a cell is at or above `len`.
    #[inline(always)]
    fn is_beyond(&self, cell: Cell) -> bool {
        cell.row >= self.rows_complete && cell.column >= self.columns_last
    }

    /// The image of a cell, below `len`.
    #[inline(always)]
    fn image(&self, cell: Cell) -> Cell {
        let mut cell = self.forth(cell);
        // At most as many cells as there are columns are beyond, hardly ever one.
        while self.is_beyond(cell) {
            cell = self.forth(cell);
        }
        cell
    }

    #[inline(always)]
    fn forth(&self, cell: Cell) -> Cell {
        let keys = &self.keys;
        let row = self.moved(cell.row, cell.column ^ keys[0]);
        let column = cell.column ^ self.column_of(mix(row ^ keys[1]));
        let row = self.moved(row, column ^ keys[2]);
        let column = column ^ self.column_of(mix(row ^ keys[3]));
        Cell { row, column }
    }

    fn back(&self, cell: Cell) -> Cell {
        let keys = &self.keys;
        let column = cell.column ^ self.column_of(mix(cell.row ^ keys[3]));
        let row = self.moved_back(cell.row, column ^ keys[2]);
        let column = column ^ self.column_of(mix(row ^ keys[1]));
        let row = self.moved_back(row, column ^ keys[0]);
        Cell { row, column }
    }

    /// Moves a row on by a function of the column.
    #[inline(always)]
    fn moved(&self, row: u64, column: u64) -> u64 {
        let row = row + below(mix(column), self.rows);
        // Below `rows` the difference wraps, and is the greater one.
        row.min(row.wrapping_sub(self.rows))
    }

    fn moved_back(&self, row: u64, column: u64) -> u64 {
        let by = below(mix(column), self.rows);
        row + if row < by { self.rows } else { 0 } - by
    }

    /// Maps 64 bits to a column.
    #[inline(always)]
    fn column_of(&self, bits: u64) -> u64 {
        bits & (u64::MAX << (self.column_shift & 63))
    }
}

impl Cell {
    /// The cell of an index that is shifted by the bits below the column.
    #[inline(always)]
    fn of(shifted: u128) -> Self {
        Self {
            row: (shifted >> 64) as u64,
            column: shifted as u64,
        }
    }
}

/// Iterator over a part of the permutation.
#[derive(Clone, Debug)]
pub struct Walk<'p> {
    permutation: &'p Permutation,
    /// The next index, shifted by the bits below the column.
    at: u128,
    /// What is added to it.
    step: u128,
    left: u128,
}

impl Walk<'_> {
    /// The cell of the next number; advances to the one after it.
    #[inline(always)]
    fn advance(&mut self) -> Cell {
        let cell = self.permutation.image(Cell::of(self.at));
        // Beyond the end of the longest permutation it wraps, and is not used.
        self.at = self.at.wrapping_add(self.step);
        cell
    }

    /// Writes the next numbers to `out` and returns how many: fewer than it has room for at the
    /// end alone. Faster than one by one.
    #[inline]
    pub fn fill(&mut self, out: &mut [u128]) -> usize {
        let count = usize::try_from(self.left).map_or(out.len(), |left| left.min(out.len()));
        for number in &mut out[..count] {
            let cell = self.advance();
            *number = self.permutation.number(cell);
        }
        self.left -= count as u128;
        count
    }

    /// As [`fill`](Self::fill), for a permutation of at most 2^64.
    #[inline]
    pub(crate) fn fill_narrow(&mut self, out: &mut [u64]) -> usize {
        debug_assert!(self.permutation.len <= 1 << 64, "a number has 64 bits");
        let count = usize::try_from(self.left).map_or(out.len(), |left| left.min(out.len()));
        for number in &mut out[..count] {
            let cell = self.advance();
            *number = self.permutation.number(cell) as u64;
        }
        self.left -= count as u128;
        count
    }
}

impl Iterator for Walk<'_> {
    type Item = u128;

    #[inline]
    fn next(&mut self) -> Option<u128> {
        self.left = self.left.checked_sub(1)?;
        let cell = self.advance();
        Some(self.permutation.number(cell))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.left);
        (left.unwrap_or(usize::MAX), left.ok())
    }
}

#[cfg(test)]
mod tests;
