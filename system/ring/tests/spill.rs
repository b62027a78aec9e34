//! A full cache moves frames to the pool's list, and none is lost: each can be taken by another
//! cache.

use std::collections::BTreeSet;

use barewire_ring::{FrameCache, Pool, PoolConfig};

const FRAMES: u32 = 8 * FrameCache::LEN_MAX as u32;

/// Ways to return frames to a cache.
#[derive(Clone, Copy, Debug)]
enum Way {
    Owned,
    Index,
    Each,
    FromDevice,
    RunFromDevice,
}

/// Takes all available frames; returns their indices.
fn take_all(cache: &mut FrameCache) -> Vec<u32> {
    std::iter::from_fn(|| cache.take_index()).collect()
}

#[test]
fn frames_returned_by_a_full_cache_can_be_taken_by_another() {
    // The other length is no multiple of a batch.
    for len in [FrameCache::LEN_MAX, 500] {
        check(len);
    }
}

/// Checks a cache for up to `len` frames.
fn check(len: usize) {
    for way in [
        Way::Owned,
        Way::Index,
        Way::Each,
        Way::FromDevice,
        Way::RunFromDevice,
    ] {
        let config = PoolConfig {
            frame_count: FRAMES,
            ..PoolConfig::default()
        };
        let pool = Pool::new(config).unwrap();
        let cache = || FrameCache::with_len(pool.clone(), len);
        let (mut one, mut other) = (cache(), FrameCache::new(pool.clone()));
        // More than once, in pieces that divide nothing.
        for piece in [7, 64, 191] {
            match way {
                Way::Owned => {
                    let frames: Vec<_> = std::iter::from_fn(|| one.take()).collect();
                    assert_eq!(frames.len(), FRAMES as usize);
                    for frame in frames {
                        one.give(frame).unwrap();
                    }
                }
                Way::Index | Way::Each => {
                    let indices = take_all(&mut one);
                    assert_eq!(indices.len(), FRAMES as usize);
                    for piece in indices.chunks(piece) {
                        // SAFETY: taken above, and nothing was made of them.
                        unsafe {
                            match way {
                                Way::Each => one.give_each(piece.iter().copied()),
                                _ => assert!(piece.iter().all(|&index| one.give_index(index))),
                            }
                        }
                    }
                }
                Way::FromDevice | Way::RunFromDevice => {
                    let take = || one.take_for_device();
                    let indices: Vec<u32> = std::iter::from_fn(take).collect();
                    assert_eq!(indices.len(), FRAMES as usize);
                    for piece in indices.chunks(piece) {
                        // SAFETY: borrowed above, to no device.
                        unsafe {
                            match way {
                                Way::RunFromDevice => one.reclaim_run(piece),
                                _ => assert!(piece.iter().all(|&index| one.reclaim(index))),
                            }
                        }
                    }
                }
            }
            // What the first one keeps is within its bound; all else is on the list.
            let mut taken = take_all(&mut other);
            let kept = FRAMES as usize - taken.len();
            assert!(kept <= len, "{way:?}: {kept} kept or lost");
            // And what it keeps returns with it.
            drop(std::mem::replace(&mut one, cache()));
            taken.extend(take_all(&mut other));
            assert_eq!(taken.len(), FRAMES as usize, "{way:?}");
            let different: BTreeSet<u32> = taken.iter().copied().collect();
            assert_eq!(different.len(), FRAMES as usize, "{way:?}");
            // SAFETY: taken above, and nothing was made of them.
            unsafe { other.give_each(taken.into_iter()) };
            drop(std::mem::replace(&mut other, FrameCache::new(pool.clone())));
            assert_eq!(pool.counts().free, FRAMES);
        }
    }
}
