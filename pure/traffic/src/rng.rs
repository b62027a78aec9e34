//! A small pseudo-random number generator: the same seed gives the same packets everywhere.
//!
//! SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014):
//! one addition and a mixing function per number, and every seed is equally good.

/// A SplitMix64 generator.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates a generator from a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number from 0 to `last`. The bias is below 2^-64 × `last` if `last` fits into 64 bits, and
    /// about 2^-63 for larger ranges.
    #[inline]
    pub fn up_to(&mut self, last: u128) -> u128 {
        match u64::try_from(last) {
            Ok(u64::MAX) => self.next_u64().into(),
            Ok(last) => (u128::from(self.next_u64()) * (u128::from(last) + 1)) >> 64,
            Err(_) => {
                let wide = u128::from(self.next_u64()) << 64 | u128::from(self.next_u64());
                match last.checked_add(1) {
                    Some(count) => wide % count,
                    None => wide,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_reference() {
        // The first outputs for seed 0 of the authors' splitmix64.c.
        let mut rng = Rng::new(0);
        assert_eq!(rng.next_u64(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(rng.next_u64(), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn every_number_in_range_occurs_and_no_other() {
        let mut rng = Rng::new(7);
        for last in [0u128, 1, 2, 9, 255] {
            let mut seen = vec![0u32; last as usize + 1];
            for _ in 0..(last as usize + 1) * 400 {
                seen[rng.up_to(last) as usize] += 1;
            }
            assert!(seen.iter().all(|n| (250..600).contains(n)), "{seen:?}");
        }
        for last in [u128::from(u64::MAX), 1 << 64, u128::MAX - 1, u128::MAX] {
            for _ in 0..100 {
                assert!(rng.up_to(last) <= last);
            }
        }
    }
}
