//! Frame ownership: random operations of a correct user and a misbehaving device, compared with a
//! model.

use std::collections::HashSet;

use sys::ErrorKind;
use sys::memfd::HugePages;

use super::random::Random;
use crate::{Frame, FrameCache, Owner, OwnerCounts, Pool, PoolConfig, free};

fn pool(frame_count: u32) -> Pool {
    Pool::new(PoolConfig {
        frame_count,
        frame_len: 2048,
        huge_pages: HugePages::Never,
    })
    .unwrap()
}

/// The expected owner table, and the frames owned by the user.
struct Model {
    owners: Vec<Owner>,
    frames: Vec<Frame>,
    /// Held by index, as batches do.
    indices: Vec<u32>,
}

impl Model {
    fn check(&self, pool: &Pool) {
        let count = |owner| self.owners.iter().filter(|o| **o == owner).count() as u32;
        let expected = OwnerCounts {
            free: count(Owner::Free),
            user: count(Owner::User),
            device: count(Owner::Device),
            peer: count(Owner::Peer),
        };
        assert_eq!(pool.counts(), expected);
        assert_eq!(
            self.frames.len() + self.indices.len(),
            expected.user as usize
        );
    }

    fn pass(&mut self, index: u32, from: Owner, to: Owner) {
        let owner = &mut self.owners[index as usize];
        assert_eq!(*owner, from, "frame {index}");
        *owner = to;
    }

    /// Whether a device that returns this index really owns it.
    fn is_borrowed(&self, index: u32) -> bool {
        self.owners.get(index as usize) == Some(&Owner::Device)
    }
}

/// Any index, of a frame or out of range.
fn any_index(random: &mut Random, frame_count: u32) -> u32 {
    match random.below(10) {
        0 => random.number() as u32,
        1 => frame_count,
        _ => random.below(frame_count),
    }
}

/// Frames move between the free list, a user that keeps the rules, and a device that returns
/// arbitrary indices: the table refuses every invalid one, counts are right after every step, and
/// each frame has one owner.
#[test]
fn random_operations_against_a_model() {
    let mut random = Random::seeded("pool");
    for _ in 0..30 {
        let frame_count = 1 + random.below(300);
        let pool = pool(frame_count);
        let mut caches: Vec<_> = (0..3).map(|_| FrameCache::new(pool.clone())).collect();
        let mut model = Model {
            owners: vec![Owner::Free; frame_count as usize],
            frames: Vec::new(),
            indices: Vec::new(),
        };
        for _ in 0..3000 {
            step(&pool, &mut caches, &mut model, &mut random);
            model.check(&pool);
        }
        let Model {
            frames,
            indices,
            owners,
        } = model;
        let cache = &mut caches[0];
        frames
            .into_iter()
            .for_each(|frame| cache.give(frame).unwrap());
        for index in indices {
            // SAFETY: held by this test, and not used any more.
            assert!(unsafe { cache.give_index(index) });
        }
        for (index, _) in (0..)
            .zip(owners)
            .filter(|(_, owner)| *owner == Owner::Device)
        {
            // SAFETY: there is no device, so it does not write.
            assert!(unsafe { cache.reclaim(index) });
        }
        drop(caches);
        assert_all_there(&pool);
    }
}

/// Checks that every frame can be taken, once.
fn assert_all_there(pool: &Pool) {
    assert_eq!(pool.counts().free, pool.frame_count());
    let mut cache = FrameCache::new(pool.clone());
    let frames: Vec<Frame> = std::iter::from_fn(|| cache.take()).collect();
    let indices: HashSet<u32> = frames.iter().map(Frame::index).collect();
    assert_eq!(
        (frames.len(), indices.len()),
        (pool.frame_count() as usize, frames.len())
    );
    frames
        .into_iter()
        .for_each(|frame| cache.give(frame).unwrap());
}

fn step(pool: &Pool, caches: &mut [FrameCache], model: &mut Model, random: &mut Random) {
    let at = random.below(caches.len() as u32) as usize;
    let cache = &mut caches[at];
    match random.below(15) {
        0 | 1 => {
            if let Some(mut frame) = cache.take() {
                model.pass(frame.index(), Owner::Free, Owner::User);
                assert_eq!((frame.offset(), frame.len()), (0, 0));
                stamp(pool, &mut frame);
                model.frames.push(frame);
            }
        }
        2 => {
            if let Some(index) = cache.take_index() {
                model.pass(index, Owner::Free, Owner::User);
                model.indices.push(index);
            }
        }
        3 | 4 => {
            if let Some(index) = cache.take_for_device() {
                model.pass(index, Owner::Free, Owner::Device);
            }
        }
        5 if !model.frames.is_empty() => {
            let frame = model
                .frames
                .swap_remove(random.below(model.frames.len() as u32) as usize);
            check_stamp(pool, &frame);
            model.pass(frame.index(), Owner::User, Owner::Free);
            cache.give(frame).unwrap();
        }
        6 if !model.frames.is_empty() => {
            let frame = model
                .frames
                .swap_remove(random.below(model.frames.len() as u32) as usize);
            check_stamp(pool, &frame);
            model.pass(frame.index(), Owner::User, Owner::Device);
            pool.give_to_device(frame);
        }
        7 if !model.indices.is_empty() => give_index(pool, cache, model, random),
        8 => claim(pool, model, random),
        9 => claim_index(pool, model, random),
        10 => {
            let index = any_index(random, pool.frame_count());
            let truth = model.is_borrowed(index);
            // SAFETY: there is no device, so it does not write.
            assert_eq!(unsafe { cache.reclaim(index) }, truth);
            if truth {
                model.pass(index, Owner::Device, Owner::Free);
            }
        }
        11 => take_run(cache, model, random),
        12 => give_each(cache, model, random),
        13 => reclaim_run(cache, model, random),
        // A thread ends and another begins.
        _ => *cache = FrameCache::new(pool.clone()),
    }
}

/// The user frees a frame, or gives it to the device, by its index; and repeats it.
fn give_index(pool: &Pool, cache: &mut FrameCache, model: &mut Model, random: &mut Random) {
    let at = random.below(model.indices.len() as u32) as usize;
    let index = model.indices.swap_remove(at);
    let give = random.below(2) == 0;
    let to = if give { Owner::Device } else { Owner::Free };
    model.pass(index, Owner::User, to);
    // SAFETY: held by this test by its index, and not used any more; so in the second call,
    // which is refused.
    unsafe {
        let passed = if give {
            pool.give_index_to_device(index)
        } else {
            cache.give_index(index)
        };
        assert!(passed);
        assert!(
            !pool.give_index_to_device(index) && !cache.give_index(index),
            "given twice"
        );
    }
}

/// The device returns a frame, which becomes the user's if the device owns it.
fn claim(pool: &Pool, model: &mut Model, random: &mut Random) {
    let index = any_index(random, model.owners.len() as u32);
    let truth = model.is_borrowed(index);
    // SAFETY: there is no device, so it does not write.
    let frame = unsafe { pool.claim(index) };
    assert_eq!(frame.is_some(), truth, "index {index}");
    if let Some(mut frame) = frame {
        model.pass(index, Owner::Device, Owner::User);
        stamp(pool, &mut frame);
        model.frames.push(frame);
    }
}

/// The same by index.
fn claim_index(pool: &Pool, model: &mut Model, random: &mut Random) {
    let index = any_index(random, model.owners.len() as u32);
    let truth = model.is_borrowed(index);
    // SAFETY: there is no device, so it does not write; the index is kept in the model.
    assert_eq!(unsafe { pool.claim_index(index) }, truth);
    if truth {
        model.pass(index, Owner::Device, Owner::User);
        model.indices.push(index);
    }
}

/// The user or the device takes runs of frames.
fn take_run(cache: &mut FrameCache, model: &mut Model, random: &mut Random) {
    let (max, device) = (random.below(100) as usize, random.below(2) == 0);
    let (run, to) = match device {
        true => (cache.take_run_for_device(max), Owner::Device),
        false => (cache.take_run(max), Owner::User),
    };
    assert!(run.len() <= max);
    for &index in run {
        model.pass(index, Owner::Free, to);
        if !device {
            model.indices.push(index);
        }
    }
}

/// The user returns runs of indices.
fn give_each(cache: &mut FrameCache, model: &mut Model, random: &mut Random) {
    let keep = random.below(model.indices.len() as u32 + 1) as usize;
    let mut given = model.indices.split_off(keep);
    for &index in &given {
        model.pass(index, Owner::User, Owner::Free);
    }
    // Repeated, and with a free frame: nothing changes.
    given.extend_from_within(..);
    given.push(u32::MAX);
    // SAFETY: held by this test by their indices, and not used any more.
    unsafe { cache.give_each(given.into_iter()) };
}

/// The device returns runs of arbitrary indices; those that it owns become free.
fn reclaim_run(cache: &mut FrameCache, model: &mut Model, random: &mut Random) {
    let reported: Vec<u32> = (0..random.below(150))
        .map(|_| any_index(random, model.owners.len() as u32))
        .collect();
    for &index in &reported {
        if model.is_borrowed(index) {
            model.pass(index, Owner::Device, Owner::Free);
        }
    }
    // SAFETY: there is no device, so it does not write.
    unsafe { cache.reclaim_run(&reported) };
}

/// Fills a frame with bytes unique to it.
fn stamp(pool: &Pool, frame: &mut Frame) {
    pool.set_range(frame, 0, pool.frame_len());
    let index = frame.index();
    pool.bytes_mut(frame).fill(index as u8 ^ 0x5a);
    pool.bytes_mut(frame)[..4].copy_from_slice(&index.to_ne_bytes());
}

/// Checks that the bytes were not overwritten.
fn check_stamp(pool: &Pool, frame: &Frame) {
    let bytes = pool.bytes(frame);
    assert_eq!(bytes[..4], frame.index().to_ne_bytes());
    assert!(
        bytes[4..]
            .iter()
            .all(|byte| *byte == frame.index() as u8 ^ 0x5a)
    );
}

/// Threads take and return frames through their own caches: no frame has two owners at a time, none
/// is lost.
#[test]
fn threads_share_a_pool() {
    let pool = pool(1000);
    std::thread::scope(|scope| {
        for seed in 0..4_u32 {
            let pool = pool.clone();
            scope.spawn(move || {
                let mut random = Random::seeded("threads");
                let mut cache = FrameCache::new(pool.clone());
                let mut mine = Vec::new();
                for _ in 0..20_000 {
                    if random.below(2) == 0 && mine.len() < 400 {
                        let Some(mut frame) = cache.take() else {
                            continue;
                        };
                        pool.set_range(&mut frame, 0, 4);
                        pool.bytes_mut(&mut frame)
                            .copy_from_slice(&seed.to_ne_bytes());
                        mine.push(frame);
                    } else if let Some(frame) = mine.pop() {
                        assert_eq!(
                            pool.bytes(&frame),
                            seed.to_ne_bytes(),
                            "another thread has it too"
                        );
                        cache.give(frame).unwrap();
                    }
                }
                mine.into_iter()
                    .for_each(|frame| cache.give(frame).unwrap());
            });
        }
    });
    assert_all_there(&pool);
}

/// A run is empty only when the pool has no frame left.
#[test]
fn runs_give_out_every_frame_of_the_pool_once() {
    for to_device in [false, true] {
        let pool = pool(100);
        let mut cache = FrameCache::new(pool.clone());
        let mut seen = HashSet::new();
        loop {
            let run = match to_device {
                true => cache.take_run_for_device(7),
                false => cache.take_run(7),
            };
            assert!(run.len() <= 7);
            if run.is_empty() {
                break;
            }
            for &index in run {
                assert!(seen.insert(index), "frame {index} was given out twice");
            }
        }
        assert_eq!(seen.len(), pool.frame_count() as usize);
        assert!(cache.take().is_none());
    }
}

/// A corrupted list with an index twice, out of range, or of a frame in use: no frame gets a second
/// owner.
#[test]
fn a_damaged_free_list_gives_no_frame_twice() {
    let pool = pool(100);
    let mut cache = FrameCache::new(pool.clone());
    let held: Vec<Frame> = (0..10).map(|_| cache.take().unwrap()).collect();
    let in_use = held[3].index();
    drop(cache);
    free::push(pool.head(), pool.next(), &[in_use, 4_000_000, u32::MAX]);
    free::push(pool.head(), pool.next(), &[in_use]);
    let mut cache = FrameCache::new(pool.clone());
    let mut seen: HashSet<u32> = held.iter().map(Frame::index).collect();
    for &index in cache.take_run(5) {
        assert!(seen.insert(index), "frame {index} was given out twice");
    }
    // The end comes, even where the damage made a circle.
    while let Some(frame) = cache.take() {
        assert!(
            seen.insert(frame.index()),
            "frame {} was given out twice",
            frame.index()
        );
        // Dropped: it stays out.
    }
}

#[test]
fn frames_of_other_pools_are_refused() {
    let (one, other) = (pool(2), pool(2));
    assert_ne!(one.tag(), other.tag());
    let mut cache = FrameCache::new(one.clone());
    let mut foreign = FrameCache::new(other.clone()).take().unwrap();
    foreign = cache.give(foreign).unwrap_err();
    let bytes = std::panic::AssertUnwindSafe(|| one.bytes(&foreign).len());
    assert!(std::panic::catch_unwind(bytes).is_err());
    let range = std::panic::AssertUnwindSafe(|| one.set_range(&mut foreign.duplicate(), 0, 1));
    assert!(std::panic::catch_unwind(range).is_err());
    let give = std::panic::AssertUnwindSafe(|| one.give_to_device(foreign.duplicate()));
    assert!(std::panic::catch_unwind(give).is_err());
    assert_eq!(one.counts().free, 2);
    assert_eq!(other.counts().user, 1);
    FrameCache::new(other.clone()).give(foreign).unwrap();
}

impl Frame {
    /// Creates a second owner, which only these tests may do.
    fn duplicate(&self) -> Frame {
        Frame { ..*self }
    }
}

#[test]
fn ranges_stay_within_the_frame() {
    let pool = pool(1);
    let mut frame = FrameCache::new(pool.clone()).take().unwrap();
    for (offset, len, good) in [
        (0, 0, true),
        (0, 2048, true),
        (2048, 0, true),
        (2047, 1, true),
        (0, 2049, false),
        (2048, 1, false),
        (1, u32::MAX, false),
        (u32::MAX, 1, false),
    ] {
        let set = std::panic::AssertUnwindSafe(|| pool.set_range(&mut frame, offset, len));
        assert_eq!(
            std::panic::catch_unwind(set).is_ok(),
            good,
            "{offset}+{len}"
        );
    }
}

#[test]
fn addresses_are_split_and_checked() {
    let pool = pool(3);
    assert_eq!(pool.frames_len(), 3 * 2048);
    assert_eq!(pool.locate(0), Some((0, 0)));
    assert_eq!(pool.locate(2 * 2048 + 17), Some((2, 17)));
    for too_large in [3 * 2048, u64::from(u32::MAX) * 2048, u64::MAX] {
        assert_eq!(pool.locate(too_large), None);
    }
    assert_eq!(pool.locate(pool.addr_of(1)), Some((1, 0)));
}

#[test]
fn counts_and_lengths_are_checked() {
    for (frame_count, frame_len) in [
        (0, 2048),
        ((1 << 24) + 1, 2048),
        (1, 1024),
        (1, 8192),
        (1, 3000),
    ] {
        let refused = Pool::new(PoolConfig {
            frame_count,
            frame_len,
            huge_pages: HugePages::Never,
        });
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

/// The bytes of other frames and the tables cannot be reached from one frame.
#[test]
fn neighbours_do_not_overlap() {
    let pool = pool(64);
    let mut cache = FrameCache::new(pool.clone());
    let mut frames: Vec<Frame> = std::iter::from_fn(|| cache.take()).collect();
    frames.iter_mut().for_each(|frame| stamp(&pool, frame));
    frames.iter().for_each(|frame| check_stamp(&pool, frame));
    frames
        .into_iter()
        .for_each(|frame| cache.give(frame).unwrap());
    drop(cache);
    assert_all_there(&pool);
}

#[test]
fn frames_are_taken_until_the_pool_is_empty() {
    let pool = pool(300);
    let mut cache = FrameCache::new(pool.clone());
    let mut frames = vec![cache.take().unwrap()];
    for (count, taken) in [(0, 0), (1, 1), (200, 200), (200, 98), (5, 0)] {
        assert_eq!(cache.take_frames(count, &mut frames), taken);
    }
    let mut seen: Vec<u32> = frames.iter().map(Frame::index).collect();
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..300), "each frame once");
    assert_eq!(pool.counts().user, 300);
    for frame in frames {
        assert_eq!((frame.offset(), frame.len()), (0, 0));
        cache.give(frame).unwrap();
    }
    assert_eq!(pool.counts().free, 300);
}
