//! Caches at and around their limits.

use sys::memfd::HugePages;

use crate::{FrameCache, Owner, OwnerCounts, Pool, PoolConfig};

fn pool(frame_count: u32) -> Pool {
    Pool::new(PoolConfig {
        frame_count,
        frame_len: 2048,
        huge_pages: HugePages::Never,
    })
    .unwrap()
}

/// Only frames on the list that are in use are skipped: those before and after them are handed out
/// once each.
#[test]
fn runs_skip_frames_that_are_not_free() {
    const COUNT: u32 = 8;
    for wrong in 0_u32..1 << COUNT {
        for max in [1, 2, 3, 5, 8, 64] {
            let pool = pool(COUNT);
            let is_wrong = |index: u32| wrong >> index & 1 != 0;
            for index in (0..COUNT).filter(|index| is_wrong(*index)) {
                assert!(pool.owners().pass(index, Owner::Free, Owner::Peer));
            }
            let mut cache = FrameCache::new(pool.clone());
            let mut seen = Vec::new();
            loop {
                let run = cache.take_run(max);
                if run.is_empty() {
                    break;
                }
                assert!(run.len() <= max);
                seen.extend_from_slice(run);
            }
            seen.sort_unstable();
            let expected: Vec<u32> = (0..COUNT).filter(|index| !is_wrong(*index)).collect();
            assert_eq!(seen, expected, "{wrong:#b} {max}");
            let peer = wrong.count_ones();
            let counts = OwnerCounts {
                user: COUNT - peer,
                peer,
                ..OwnerCounts::default()
            };
            assert_eq!(pool.counts(), counts);
        }
    }
}

/// As above, one by one.
#[test]
fn single_takes_skip_frames_that_are_not_free() {
    let pool = pool(8);
    for index in [0, 3, 7] {
        assert!(pool.owners().pass(index, Owner::Free, Owner::Device));
    }
    let mut cache = FrameCache::new(pool.clone());
    let mut seen: Vec<u32> = std::iter::from_fn(|| cache.take_for_device()).collect();
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 4, 5, 6]);
    assert_eq!(pool.counts().device, 8);
    assert!(cache.take_run_for_device(0).is_empty());
}

/// Adds runs to a nearly full cache: the excess goes to the shared list, nothing is lost, and
/// frames that the device does not own are left unchanged.
#[test]
fn a_run_fills_the_cache_and_spills() {
    const COUNT: u32 = 2 * FrameCache::LEN_MAX as u32;
    for before in [
        0,
        1,
        63,
        64,
        65,
        FrameCache::LEN_MAX as u32 - 1,
        FrameCache::LEN_MAX as u32,
    ] {
        for run in [1, 2, 63, 64, 65, 130] {
            let pool = pool(COUNT);
            let mut taker = FrameCache::new(pool.clone());
            let taken: Vec<u32> = std::iter::from_fn(|| taker.take_for_device()).collect();
            assert_eq!(taken.len() as u32, COUNT);
            let mut cache = FrameCache::new(pool.clone());
            let (first, rest) = taken.split_at(before as usize);
            // SAFETY: no device has the frames in truth.
            unsafe { cache.reclaim_run(first) };
            let mut indices = rest[..run].to_vec();
            indices.insert(run / 2, u32::MAX);
            // SAFETY: as above.
            unsafe { cache.reclaim_run(&indices) };
            assert_eq!(pool.counts().free, before + run as u32, "{before} {run}");
            drop(cache);
            let mut seen: Vec<u32> = std::iter::from_fn(|| taker.take_index()).collect();
            seen.sort_unstable();
            let mut expected = taken[..before as usize + run].to_vec();
            expected.sort_unstable();
            assert_eq!(seen, expected, "{before} {run}");
        }
    }
}

/// A thread that only returns frames keeps an eighth of the pool and no more.
#[test]
fn more_than_an_eighth_goes_to_the_shared_list() {
    for (kept, left) in [(7, 0), (8, 0), (9, 9), (10, 10), (20, 20)] {
        let pool = pool(64);
        let mut taker = FrameCache::new(pool.clone());
        let taken: Vec<u32> = std::iter::from_fn(|| taker.take_index()).collect();
        let mut giver = FrameCache::new(pool.clone());
        for &index in &taken[..kept] {
            // SAFETY: taken above, and touched no more.
            assert!(unsafe { giver.give_index(index) });
        }
        giver.keep_an_eighth();
        let again = std::iter::from_fn(|| taker.take_index()).count();
        assert_eq!(again, left, "{kept}");
    }
}

#[test]
fn lengths_and_owners_of_a_pool() {
    let pool = pool(100);
    assert_eq!(pool.frames_len(), 100 * 2048);
    // The head of the free list; a record, a link, a holding and an owner for each frame.
    let least = 100 * 2048 + 8 + 100 * 41;
    assert!((least..least + 65_536).contains(&pool.memory_len()));
    for (owner, count) in [(Owner::User, 3), (Owner::Device, 5), (Owner::Peer, 7)] {
        for index in 0..count {
            let index = index + owner as u32 * 10;
            assert!(pool.owners().pass(index, Owner::Free, owner));
            assert!(!pool.owners().pass(index, Owner::Free, owner));
        }
    }
    let expected = OwnerCounts {
        free: 85,
        user: 3,
        device: 5,
        peer: 7,
    };
    assert_eq!(pool.counts(), expected);
}
