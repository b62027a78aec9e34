//! The frames of a queue that the kernel has: one bit per frame.
//!
//! The pool's owner table records that a device owns a frame, but not which device. A socket can
//! only return frames it was given, so its descriptors are checked against this set as well; frames
//! left in it when the socket is closed were never returned by the kernel.

use ring::Pool;
use sys::xsk::Descriptor;

/// Result of checking a kernel descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// A packet in this frame, which the queue owns again.
    Packet(u32),
    /// The queue owns this frame again, but the packet exceeds it.
    TooLong(u32),
    /// Not a frame that this queue gave to the kernel: invented, or reported twice. Nothing has
    /// changed.
    Foreign,
}

/// A set of frame indices.
#[derive(Debug)]
pub(super) struct Borrowed {
    words: Box<[u64]>,
    count: u32,
}

impl Borrowed {
    /// Creates an empty set over `frame_count` frames.
    pub(super) fn new(frame_count: u32) -> Self {
        Self {
            words: vec![0; frame_count.div_ceil(64) as usize].into(),
            count: 0,
        }
    }

    /// Adds a frame of the pool that is not in the set.
    #[inline]
    pub(super) fn insert(&mut self, index: u32) {
        let bit = 1 << (index % 64);
        let word = &mut self.words[index as usize / 64];
        debug_assert!(*word & bit == 0, "borrowed once");
        *word |= bit;
        self.count += 1;
    }

    /// Removes a frame; false for any number that was not in the set.
    #[inline]
    pub(super) fn remove(&mut self, index: u32) -> bool {
        let bit = 1 << (index % 64);
        let Some(word) = self.words.get_mut(index as usize / 64) else {
            return false;
        };
        let was = *word & bit != 0;
        *word &= !bit;
        self.count -= u32::from(was);
        was
    }

    /// Claims the frame of a received packet from the kernel, if it was given to it. Nothing in the
    /// descriptor is trusted: address and length may be any values.
    #[inline(always)]
    pub(super) fn claim(&mut self, pool: &Pool, d: Descriptor) -> Claim {
        let Some((index, offset)) = pool.locate(d.addr) else {
            return Claim::Foreign;
        };
        // According to the set this queue borrowed it, and according to the owner table a device
        // holds it.
        // SAFETY: the kernel is done with a frame whose descriptor it has submitted.
        if !self.remove(index) || !unsafe { pool.claim_index(index) } {
            return Claim::Foreign;
        }
        match d.len <= pool.frame_len() - offset {
            true => Claim::Packet(index),
            false => Claim::TooLong(index),
        }
    }

    /// Number of frames in the set.
    #[inline]
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Iterates over the frames in the set.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        self.words.iter().enumerate().flat_map(|(at, &word)| {
            (0..64)
                .filter(move |bit| word >> bit & 1 != 0)
                .map(move |bit| at as u32 * 64 + bit)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::{FrameCache, PoolConfig};
    use std::collections::BTreeSet;

    #[test]
    fn no_descriptor_is_trusted() {
        let config = PoolConfig {
            frame_count: 70,
            frame_len: 2048,
            ..PoolConfig::default()
        };
        let pool = Pool::new(config).unwrap();
        let mut cache = FrameCache::new(pool.clone());
        let (mut borrowed, mut model) = (Borrowed::new(70), BTreeSet::new());
        let mut seed = 0x2545_f491_4f6c_dd1du64;
        let mut random = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let (mut packets, mut too_long, mut foreign) = (0, 0, 0);
        for _ in 0..50_000 {
            while model.len() < 40 {
                let index = cache.take_for_device().unwrap();
                borrowed.insert(index);
                assert!(model.insert(index));
            }
            let addr = match random() % 4 {
                0 => random(),
                1 => random() % (80 * 2048),
                _ => random() % 70 * 2048 + 256,
            };
            let len = match random() % 4 {
                0 => random() as u32,
                1 => 2048 - (addr % 2048) as u32,
                2 => 2049 - (addr % 2048) as u32,
                _ => random() as u32 % 1500,
            };
            let index = u32::try_from(addr / 2048).unwrap_or(u32::MAX);
            let options = random() as u32;
            let fits = u64::from(len) + addr % 2048 <= 2048;
            let expected = match (model.remove(&index), fits) {
                (true, true) => Claim::Packet(index),
                (true, false) => Claim::TooLong(index),
                (false, _) => Claim::Foreign,
            };
            assert_eq!(
                borrowed.claim(&pool, Descriptor { addr, len, options }),
                expected
            );
            match expected {
                Claim::Packet(_) => packets += 1,
                Claim::TooLong(_) => too_long += 1,
                Claim::Foreign => foreign += 1,
            }
            if expected != Claim::Foreign {
                // SAFETY: claimed just now, and nothing was made of it.
                assert!(unsafe { cache.give_index(index) });
            }
            assert_eq!(pool.counts().device as usize, model.len());
        }
        assert!(packets > 1000 && too_long > 1000 && foreign > 1000);
    }

    #[test]
    fn behaves_as_a_set() {
        let frame_count = 130;
        let (mut borrowed, mut model) = (Borrowed::new(frame_count), BTreeSet::new());
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let index = (seed >> 33) as u32 % (frame_count + 70);
            if index < frame_count && model.insert(index) {
                borrowed.insert(index);
            } else {
                assert_eq!(borrowed.remove(index), model.remove(&index), "{index}");
            }
            assert_eq!(borrowed.count() as usize, model.len());
        }
        assert!(borrowed.iter().eq(model));
        assert!(!Borrowed::new(1).remove(u32::MAX));
    }
}
