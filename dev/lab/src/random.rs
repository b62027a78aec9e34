//! Random numbers for tests, from a seed that can be given again.

/// SplitMix64: small, and good enough for random walks.
#[derive(Clone, Debug)]
pub struct Random {
    seed: u64,
    state: u64,
}

impl Random {
    /// Seeds it from the variable `BAREWIRE_SEED`, or with a fixed seed, so that a run can be
    /// repeated. Prints the seed and `what` it is for.
    pub fn seeded(what: &str) -> Random {
        let given = std::env::var("BAREWIRE_SEED").ok();
        let seed = match given.as_deref().map(str::parse) {
            Some(seed) => seed.expect("BAREWIRE_SEED is a number"),
            None => 1,
        };
        println!("{what}: BAREWIRE_SEED={seed}");
        Random { seed, state: seed }
    }

    /// The initial seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }
}
