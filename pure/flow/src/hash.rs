//! Keyed hash of flow keys.
//!
//! It starts with NH, the universal hash of UMAC and VMAC (RFC 4418 §5.2.2, here on 64-bit words):
//! sums modulo 2^64, products and their sum modulo 2^128. For any two keys chosen without the
//! secret, the NH values are equal with a probability of 2^-64. A final multiplication folds 128
//! bits to 64 so that every bit of the result can be used. Four multiplications, all but the last
//! independent of each other.

/// Secret of a table. Use the system's random source; equal secrets give equal hashes.
#[derive(Clone)]
pub struct HashKey([u64; 8]);

impl HashKey {
    /// Creates a key from 64 random bytes.
    pub fn from_bytes(bytes: &[u8; 64]) -> HashKey {
        let (words, _) = bytes.as_chunks::<8>();
        let mut key = [0; 8];
        for (word, bytes) in key.iter_mut().zip(words) {
            *word = u64::from_le_bytes(*bytes);
        }
        HashKey(key)
    }

    /// Creates a key from a number, for repeatable results (tests, measurements). Not a secret.
    pub fn from_seed(seed: u64) -> HashKey {
        let mut state = seed;
        HashKey(std::array::from_fn(|_| {
            // SplitMix64 (Steele, Lea, Flood 2014).
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    /// The secret words, for hashing other data.
    #[inline(always)]
    pub(crate) fn words(&self) -> &[u64; 8] {
        &self.0
    }

    /// Hashes six words.
    #[inline(always)]
    pub fn hash(&self, words: &[u64; 6]) -> u64 {
        let k = &self.0;
        let pair = |at: usize| {
            let left = words[at].wrapping_add(k[at]);
            let right = words[at + 1].wrapping_add(k[at + 1]);
            u128::from(left) * u128::from(right)
        };
        let sum = pair(0).wrapping_add(pair(2)).wrapping_add(pair(4));
        let folded = u128::from(sum as u64 ^ k[6]) * u128::from((sum >> 64) as u64 ^ k[7]);
        folded as u64 ^ (folded >> 64) as u64
    }
}

impl std::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HashKey(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::HashKey;

    #[test]
    fn every_input_bit_moves_half_of_the_output() {
        let mut flipped = [0u32; 64];
        let mut total = 0;
        for seed in 0..200 {
            let key = HashKey::from_seed(seed);
            let words: [u64; 6] = std::array::from_fn(|i| seed.wrapping_mul(i as u64 + 3));
            let plain = key.hash(&words);
            for bit in 0..384 {
                let mut other = words;
                other[bit / 64] ^= 1 << (bit % 64);
                let difference = plain ^ key.hash(&other);
                assert_ne!(difference, 0);
                total += 1;
                for (out, count) in flipped.iter_mut().enumerate() {
                    *count += (difference >> out & 1) as u32;
                }
            }
        }
        for count in flipped {
            let share = f64::from(count) / f64::from(total);
            assert!((0.48..0.52).contains(&share), "{share}");
        }
    }

    #[test]
    fn the_secret_matters() {
        let words = [1, 2, 3, 4, 5, 6];
        let a = HashKey::from_bytes(&[7; 64]).hash(&words);
        let b = HashKey::from_bytes(&[8; 64]).hash(&words);
        assert_ne!(a, b);
        assert_eq!(a, HashKey::from_bytes(&[7; 64]).hash(&words));
        // The public part of a key reveals nothing.
        assert_eq!(format!("{:?}", HashKey::from_seed(1)), "HashKey(secret)");
    }
}
