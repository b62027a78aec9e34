//! An invertible permutation of `0..len` for any length, with random access.
//!
//! A generalized Feistel network (Black and Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA
//! 2002) over a rectangle of `rows × columns` cells that is hardly larger than `len`: the number of
//! columns is its square root. In even rounds a function of the column moves the row, in odd rounds
//! one of the row moves the column. The functions take the high half of a product where masscan
//! divides, so no round has a division. A cell at or above `len` (at most `sqrt(len)` cells) goes
//! through the rounds again until it is below, so the cost does not depend on how close `len` is to
//! a power of two or a prime.
//!
//! The order need not be secret: anyone with the seed can run a shard of the same scan. Forged
//! answers are detected by the [cookie](crate::Cookies), which has another key.

/// Number of rounds. Four pass the tests of this module; two more cost 2 ns.
const ROUNDS: usize = 6;

/// Longest permutation: halves stay below 2^62, so that the sum of two fits into 64 bits.
pub const LEN_MAX: u128 = 1 << 124;

/// A permutation of `0..len`.
#[derive(Clone, Debug)]
pub struct Permutation {
    len: u128,
    rows: u64,
    columns: u64,
    keys: [u64; ROUNDS],
}

/// A cell of the rectangle, as row and column: an index, or a position in the permuted order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    row: u64,
    column: u64,
}

/// A bijection on 64 bits in which every bit of the input reaches the high bits of the output:
/// the finalizer of SplitMix64 without its last shift.
#[inline(always)]
fn mix(value: u64) -> u64 {
    let mut z = value;
    z = (z ^ z >> 32).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 29).wrapping_mul(0x94d0_49bb_1331_11eb);
    z
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
        let mut columns = len.isqrt();
        columns += u128::from(columns * columns < len);
        let rows = len.div_ceil(columns);
        let mut keys = [0; ROUNDS];
        let mut state = seed;
        for key in &mut keys {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            *key = mix(mix(state) ^ state >> 31);
        }
        Some(Self {
            len,
            rows: rows as u64,
            columns: columns as u64,
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
            if self.number(cell) < self.len {
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
            at: self.cell(from.min(self.len - 1)),
            step: self.cell(stride.min(self.len - 1)),
            left,
        }
    }

    fn cell(&self, index: u128) -> Cell {
        let columns = u128::from(self.columns);
        Cell {
            row: (index / columns) as u64,
            column: (index % columns) as u64,
        }
    }

    #[inline(always)]
    fn number(&self, cell: Cell) -> u128 {
        u128::from(cell.row) * u128::from(self.columns) + u128::from(cell.column)
    }

    /// The image of a cell, below `len`.
    #[inline(always)]
    fn image(&self, cell: Cell) -> Cell {
        let mut cell = self.forth(cell);
        while self.number(cell) >= self.len {
            cell = self.forth(cell);
        }
        cell
    }

    #[inline(always)]
    fn forth(&self, mut cell: Cell) -> Cell {
        for pair in self.keys.chunks_exact(2) {
            cell.row += below(mix(cell.column ^ pair[0]), self.rows);
            if cell.row >= self.rows {
                cell.row -= self.rows;
            }
            cell.column += below(mix(cell.row ^ pair[1]), self.columns);
            if cell.column >= self.columns {
                cell.column -= self.columns;
            }
        }
        cell
    }

    fn back(&self, mut cell: Cell) -> Cell {
        for pair in self.keys.chunks_exact(2).rev() {
            let column = below(mix(cell.row ^ pair[1]), self.columns);
            cell.column += if cell.column < column {
                self.columns
            } else {
                0
            };
            cell.column -= column;
            let row = below(mix(cell.column ^ pair[0]), self.rows);
            cell.row += if cell.row < row { self.rows } else { 0 };
            cell.row -= row;
        }
        cell
    }
}

/// Iterator over a part of the permutation, without a division per step.
#[derive(Clone, Debug)]
pub struct Walk<'p> {
    permutation: &'p Permutation,
    at: Cell,
    step: Cell,
    left: u128,
}

impl Iterator for Walk<'_> {
    type Item = u128;

    #[inline]
    fn next(&mut self) -> Option<u128> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let permutation = self.permutation;
        let number = permutation.number(permutation.image(self.at));
        self.at.row += self.step.row;
        self.at.column += self.step.column;
        if self.at.column >= permutation.columns {
            self.at.column -= permutation.columns;
            self.at.row += 1;
        }
        Some(number)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.left);
        (left.unwrap_or(usize::MAX), left.ok())
    }
}

#[cfg(test)]
mod tests;
