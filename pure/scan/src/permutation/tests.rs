//! Bijection at every small length and by samples at larger ones; walks and shards; statistical
//! quality.

use super::*;

/// Lengths above 2^16: around powers of two, primes, products of addresses and ports.
const LARGE: [u128; 9] = [
    65_537,
    (1 << 24) - 1,
    (1 << 24) + 43,
    1 << 32,
    3_702_258_688 * 3,
    1 << 48,
    (1 << 64) + 13,
    (1 << 96) - 17,
    LEN_MAX,
];

/// Every length of a rectangle has the same network, and differs only in which cells are beyond it.
/// If the network is a bijection of the cells, then going through it until a cell is below the
/// length is one of the numbers below the length. So all rectangles are checked cell by cell, and
/// the shortest, a middle and the longest length of each number by number: all lengths would take
/// two billion steps.
#[test]
fn lengths_to_2_16_are_bijections() {
    let mut seen = vec![0u32; 1 << 17];
    let mut round = 0;
    let mut len = 1u128;
    while len <= 1 << 16 {
        let permutation = Permutation::new(len, u64::from(round)).unwrap();
        let (rows, bits) = (permutation.rows, 64 - permutation.column_shift);
        round += 1;
        for index in 0..u128::from(rows) << bits {
            let number = permutation.number(permutation.forth(permutation.cell(index)));
            let place = &mut seen[number as usize];
            assert_ne!(*place, round, "{number} twice of {rows} rows");
            *place = round;
        }
        let shape = |len| {
            let other = Permutation::new(len, 0).unwrap();
            (other.rows, 64 - other.column_shift)
        };
        let mut last = len;
        while last < 1 << 16 && shape(last + 1) == (rows, bits) {
            last += 1;
        }
        for len in [len, len.midpoint(last), last] {
            let permutation = Permutation::new(len, u64::from(round)).unwrap();
            round += 1;
            let mut count = 0;
            for number in permutation.walk(0, 1) {
                let place = &mut seen[number as usize];
                assert_ne!(*place, round, "{number} twice of {len}");
                *place = round;
                count += 1;
            }
            assert_eq!(count, len);
        }
        len = last + 1;
    }
}

#[test]
fn a_walk_is_filled_as_it_is_iterated() {
    for len in LARGE.into_iter().chain([1, 2, 15, 1_000]) {
        let permutation = Permutation::new(len, 9).unwrap();
        for (from, stride) in [(0, 1), (len / 3, 7), (len - 1, 1), (len, 1)] {
            let mut walk = permutation.walk(from, stride);
            let mut single = permutation.walk(from, stride);
            for room in [0, 1, 16, 5] {
                let mut numbers = vec![0; room];
                let count = walk.fill(&mut numbers);
                assert!(
                    numbers[..count]
                        .iter()
                        .copied()
                        .eq(single.by_ref().take(room))
                );
            }
            if len <= 1 << 64 {
                let mut numbers = [0u64; 9];
                let count = walk.fill_narrow(&mut numbers);
                let expected = single.by_ref().take(9);
                assert!(numbers[..count].iter().map(|n| u128::from(*n)).eq(expected));
            }
            assert_eq!(walk.next(), single.next());
        }
    }
}

#[test]
fn index_of_is_the_inverse_of_at() {
    for len in LARGE.into_iter().chain([1, 2, 3, 7, 1000]) {
        let permutation = Permutation::new(len, 42).unwrap();
        for sample in 0..2_000u128 {
            let index = sample.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835) % len;
            let number = permutation.at(index);
            assert!(number < len);
            assert_eq!(permutation.index_of(number), index, "{len}");
            assert_eq!(permutation.at(permutation.index_of(index)), index);
        }
    }
}

#[test]
fn a_walk_returns_the_entries_at_its_indices() {
    for len in LARGE {
        let permutation = Permutation::new(len, 7).unwrap();
        for (from, stride) in [(0, 1), (5, 3), (len / 2, len / 500 + 1), (len - 1, 1)] {
            let walk = permutation.walk(from, stride);
            let mut index = from;
            for number in walk.take(300) {
                assert_eq!(number, permutation.at(index), "{len} {from} {stride}");
                index += stride;
            }
        }
        assert_eq!(permutation.walk(len, 1).next(), None);
    }
}

#[test]
fn shards_are_disjoint_and_complete() {
    for (len, shards) in [(1, 3), (10, 3), (4_096, 5), (10_007, 7)] {
        let permutation = Permutation::new(len, 3).unwrap();
        let mut seen = vec![0; len as usize];
        for shard in 0..shards {
            for number in permutation.walk(shard, shards) {
                seen[number as usize] += 1;
            }
        }
        assert!(seen.iter().all(|count| *count == 1), "{len} {shards}");
    }
}

/// Pearson's statistic over equal cells, as standard deviations from its mean.
fn deviation(counts: &[u64]) -> f64 {
    let total: u64 = counts.iter().sum();
    let expected = total as f64 / counts.len() as f64;
    let square = |count: &u64| (*count as f64 - expected).powi(2) / expected;
    let freedom = counts.len() as f64 - 1.0;
    (counts.iter().map(square).sum::<f64>() - freedom) / (2.0 * freedom).sqrt()
}

#[test]
fn the_order_looks_random() {
    const CELLS: u128 = 256;
    for len in [1 << 24, (1 << 24) + 43, 1 << 32, 3_702_258_688 * 3, 1 << 48] {
        for seed in [0, 1, 2, 0xdead_beef] {
            let permutation = Permutation::new(len, seed).unwrap();
            let numbers: Vec<u128> = permutation.walk(0, 1).take(1 << 18).collect();
            let cell = |number: u128| (number * CELLS / len) as usize;
            let mut high = vec![0; CELLS as usize];
            let mut low = vec![0; CELLS as usize];
            let mut pairs = vec![0; 1 << 12];
            let mut gaps = vec![0; CELLS as usize];
            for two in numbers.windows(2) {
                high[cell(two[0])] += 1;
                low[(two[0] % CELLS) as usize] += 1;
                pairs[(cell(two[0]) >> 2) << 6 | cell(two[1]) >> 2] += 1;
                gaps[cell((two[1] + len - two[0]) % len)] += 1;
            }
            for (what, counts) in [
                ("high", high),
                ("low", low),
                ("pairs", pairs),
                ("gaps", gaps),
            ] {
                let deviation = deviation(&counts);
                assert!(
                    deviation.abs() < 5.0,
                    "{what} of {len} by {seed}: {deviation}"
                );
            }
        }
    }
}

/// Every bit of an index changes every bit of the number in about half of all cases.
#[test]
fn every_bit_of_an_index_changes_every_bit_of_the_number() {
    const SAMPLES: u64 = 4_096;
    for bits in [16u32, 24, 32, 33, 48, 64, 100] {
        let permutation = Permutation::new(1 << bits, 11).unwrap();
        for from in 0..bits {
            let mut changed = vec![0u64; bits as usize];
            for sample in 1..=SAMPLES {
                let wide =
                    u128::from(sample).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
                let index = wide % (1 << bits);
                let difference = permutation.at(index) ^ permutation.at(index ^ (1 << from));
                for (bit, count) in changed.iter_mut().enumerate() {
                    *count += (difference >> bit & 1) as u64;
                }
            }
            for (bit, count) in changed.iter().enumerate() {
                // Six standard deviations.
                let is_half = count.abs_diff(SAMPLES / 2) < 192;
                // In 16 bits there are few pairs.
                assert!(is_half || bits == 16, "{from} to {bit} of {bits}: {count}");
            }
        }
    }
}

/// Indices in steps, as shards take them, are spread evenly, too; so is a window of any place.
#[test]
fn every_shard_is_spread_evenly() {
    const CELLS: u128 = 256;
    for len in [1 << 24, (1 << 32) * 3, 1 << 48, (1 << 64) + 13] {
        for (from, stride) in [(0, 2), (1, 16), (5, 4_096), (3, 65_536), (len / 2, 97)] {
            let permutation = Permutation::new(len, 5).unwrap();
            let mut high = vec![0; CELLS as usize];
            let mut low = vec![0; CELLS as usize];
            for number in permutation.walk(from, stride).take(1 << 15) {
                high[(number / len.div_ceil(CELLS)) as usize] += 1;
                low[(number % CELLS) as usize] += 1;
            }
            for counts in [&high, &low] {
                let taken: u64 = counts.iter().sum();
                // A part without putting back is more even than chance.
                let deviation = if taken < 1 << 12 {
                    0.0
                } else {
                    deviation(counts)
                };
                assert!(deviation < 5.0, "{len} {from} {stride}: {deviation}");
            }
        }
    }
}

#[test]
fn different_seeds_give_unrelated_orders() {
    let len = 1 << 20;
    let one = Permutation::new(len, 1).unwrap();
    for seed in [0, 2, 1 << 63] {
        let other = Permutation::new(len, seed).unwrap();
        let same = one.walk(0, 1).zip(other.walk(0, 1)).filter(|(a, b)| a == b);
        // One is expected.
        assert!(same.count() < 10, "{seed}");
    }
}

#[test]
fn impossible_lengths_are_refused() {
    assert!(Permutation::new(0, 1).is_none());
    assert!(Permutation::new(LEN_MAX + 1, 1).is_none());
}
