//! Random numbers for this crate's tests.

/// SplitMix64, seeded from `BAREWIRE_SEED`, or with a constant.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn seeded(what: &str) -> Self {
        let given = std::env::var("BAREWIRE_SEED").ok();
        let seed = match given.as_deref().map(str::parse) {
            Some(seed) => seed.expect("BAREWIRE_SEED is a number"),
            None => 1,
        };
        println!("{what}: BAREWIRE_SEED={seed}");
        Self(seed)
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        (self.number() % u64::from(bound)) as u32
    }
}
