//! Sampling: which packets are metered (RFC 5475), and which records are exported.
//!
//! Skipped packets and records are counted, so the account still adds up. An exporter must report
//! the rate ([`Sampling::interval`]) and the method to collectors.

use crate::hash::HashKey;
use crate::key::FlowKey;

/// Selection of packets or records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sampling {
    /// All.
    #[default]
    All,
    /// The first of every N: systematic count-based (RFC 5475 §5.1).
    Count(u32),
    /// Each with a probability of 1/N: uniform probabilistic (§5.2.2.1).
    Random(u32),
    /// Packets of one address pair in N, selected by hash, so flows are selected as a whole, with
    /// all fragments (§6.2). Records: by the hash of the key.
    Hash(u32),
    /// Packets whose time is in the first `open_ns` of each `every_ns`: systematic time-based
    /// (§5.1). Records: by the time of their end.
    Time {
        /// Length of a period in nanoseconds.
        every_ns: u64,
        /// Length of the selected part.
        open_ns: u64,
    },
}

impl Sampling {
    /// Average N of one in N.
    pub fn interval(&self) -> f64 {
        match *self {
            Sampling::All => 1.0,
            Sampling::Count(n) | Sampling::Random(n) | Sampling::Hash(n) => f64::from(n.max(1)),
            Sampling::Time { every_ns, open_ns } => every_ns as f64 / open_ns.max(1) as f64,
        }
    }

    /// Value of IPFIX element 304, selectorAlgorithm; `None` for all.
    pub fn selector_algorithm(&self) -> Option<u16> {
        match self {
            Sampling::All => None,
            Sampling::Count(_) => Some(1),
            Sampling::Time { .. } => Some(2),
            Sampling::Random(_) => Some(4),
            Sampling::Hash(_) => Some(6),
        }
    }
}

/// Selects packets or records.
pub struct Sampler {
    sampling: Sampling,
    /// Number to skip until the next is selected.
    left: u32,
    random: u64,
    hash_key: HashKey,
}

impl Sampler {
    /// Creates a sampler. The hash key makes the selection unpredictable; the same key selects the
    /// same flows by hash.
    pub fn new(sampling: Sampling, hash_key: &HashKey) -> Sampler {
        Sampler {
            sampling,
            left: 0,
            random: hash_key.hash(&[0x5a; 6]) | 1,
            hash_key: hash_key.clone(),
        }
    }

    /// Whether a packet with this time is selected.
    pub(crate) fn takes_packet(&mut self, time_ns: u64) -> bool {
        match self.sampling {
            Sampling::All | Sampling::Hash(_) => true,
            Sampling::Count(n) => self.is_turn(n),
            Sampling::Random(n) => self.is_chance(n),
            Sampling::Time { every_ns, open_ns } => time_ns % every_ns.max(1) < open_ns,
        }
    }

    /// Whether packets of the flow with this hash are selected.
    pub(crate) fn takes_flow(&self, hash: u64) -> bool {
        match self.sampling {
            // Other bits than those that select the place in the table.
            Sampling::Hash(n) => below(self.hash_key.hash(&[hash, 1, 2, 3, 4, 5]), n) == 0,
            _ => true,
        }
    }

    /// Whether a record with this key and end time is selected.
    pub fn takes_record(&mut self, key: &FlowKey, end_ns: u64) -> bool {
        match self.sampling {
            Sampling::Hash(n) => {
                let hash = self.hash_key.hash(&key.words());
                below(self.hash_key.hash(&[hash, 5, 4, 3, 2, 1]), n) == 0
            }
            _ => self.takes_packet(end_ns),
        }
    }

    fn is_turn(&mut self, n: u32) -> bool {
        if self.left == 0 {
            self.left = n.max(1) - 1;
            return true;
        }
        self.left -= 1;
        false
    }

    fn is_chance(&mut self, n: u32) -> bool {
        // xorshift64* (Vigna 2016).
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        below(self.random.wrapping_mul(0x2545_f491_4f6c_dd1d), n) == 0
    }
}

/// A number below `n`, from random bits.
fn below(bits: u64, n: u32) -> u32 {
    (((bits >> 32) * u64::from(n.max(1))) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(sampling: Sampling, count: u64) -> u64 {
        let mut sampler = Sampler::new(sampling, &HashKey::from_seed(7));
        let mut takes = |n: u64| {
            let hash = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            sampler.takes_packet(n * 1000) && sampler.takes_flow(hash)
        };
        (0..count).filter(|n| takes(*n)).count() as u64
    }

    #[test]
    fn one_in_n_is_selected() {
        const COUNT: u64 = 100_000;
        assert_eq!(taken(Sampling::All, COUNT), COUNT);
        assert_eq!(taken(Sampling::Count(7), COUNT), COUNT.div_ceil(7));
        assert_eq!(taken(Sampling::Count(0), COUNT), COUNT);
        let time = Sampling::Time {
            every_ns: 10_000,
            open_ns: 2_000,
        };
        assert_eq!((taken(time, COUNT), time.interval()), (COUNT / 5, 5.0));
        for n in [2, 10, 100] {
            // Five standard deviations.
            let expected = COUNT as f64 / f64::from(n);
            let slack = 5.0 * expected.sqrt();
            for sampling in [Sampling::Random(n), Sampling::Hash(n)] {
                let count = taken(sampling, COUNT) as f64;
                assert!((count - expected).abs() < slack, "{sampling:?}: {count}");
            }
        }
    }

    /// The first outputs of xorshift64* from state 1.
    #[test]
    fn selection_follows_the_generator() {
        let outputs = [
            5_180_492_295_206_395_165_u64,
            12_380_297_144_915_551_517,
            13_389_498_078_930_870_103,
            5_599_127_315_341_312_413,
        ];
        for n in [2, 3, 4] {
            let mut sampler = Sampler::new(Sampling::Random(n), &HashKey::from_seed(1));
            sampler.random = 1;
            let expected = outputs.map(|bits| below(bits, n) == 0);
            assert_eq!(outputs.map(|_| sampler.takes_packet(0)), expected, "{n}");
        }
        let mut sampler = Sampler::new(Sampling::Random(2), &HashKey::from_seed(1));
        sampler.random = 1;
        for bits in outputs {
            sampler.takes_packet(0);
            assert_eq!(sampler.random.wrapping_mul(0x2545_f491_4f6c_dd1d), bits);
        }
    }
}
