//! Frames held by several other processes: random hand-overs, and genuine and forged returns,
//! compared with a model.

use std::collections::BTreeSet;

use sys::ErrorKind;
use sys::memfd::HugePages;

use super::random::Random;
use crate::{FrameCache, HOLDER_COUNT_MAX, Holder, OwnerCounts, Pool, PoolConfig};

fn pool(frame_count: u32) -> Pool {
    Pool::new(PoolConfig {
        frame_count,
        frame_len: 2048,
        huge_pages: HugePages::Never,
    })
    .unwrap()
}

/// Hands a frame to some of the holders.
fn hand<'h>(pool: &Pool, index: u32, to: impl Iterator<Item = &'h mut Holder>) -> bool {
    let mut to: Vec<&mut Holder> = to.collect();
    if to.is_empty() {
        return false;
    }
    let holders = to.iter().map(|holder| holder.bit()).sum();
    // SAFETY: the tests take the index from a cache, and access no frame.
    let handed = unsafe { pool.hand_to(index, holders) };
    if handed {
        to.iter_mut().for_each(|holder| holder.add(1));
    }
    handed
}

/// The frames of each holder, and those that this process took and has not handed over.
struct Model {
    held: Vec<BTreeSet<u32>>,
    ours: Vec<u32>,
}

impl Model {
    fn check(&self, pool: &Pool, holders: &[Holder]) {
        let away: BTreeSet<u32> = self.held.iter().flatten().copied().collect();
        let (user, peer) = (self.ours.len() as u32, away.len() as u32);
        let expected = OwnerCounts {
            free: pool.frame_count() - user - peer,
            user,
            device: 0,
            peer,
        };
        assert_eq!(pool.counts(), expected);
        for (holder, held) in holders.iter().zip(&self.held) {
            assert_eq!(holder.count() as usize, held.len());
        }
        for index in 0..pool.frame_count() {
            let count = self
                .held
                .iter()
                .filter(|held| held.contains(&index))
                .count();
            assert_eq!(usize::from(pool.holding(index).unwrap().count), count);
        }
    }
}

#[test]
fn random_holdings_against_a_model() {
    let mut random = Random::seeded("holders");
    for _ in 0..20 {
        let pool = pool(1 + random.below(150));
        let mut cache = FrameCache::new(pool.clone());
        let holder = || Holder::new(&pool, u32::MAX).unwrap();
        let mut holders: Vec<Holder> = (0..4).map(|_| holder()).collect();
        let mut model = Model {
            held: vec![BTreeSet::new(); 4],
            ours: Vec::new(),
        };
        for _ in 0..1500 {
            let at = random.below(4) as usize;
            match random.below(12) {
                0..3 => model.ours.extend(cache.take_index()),
                3..6 => {
                    let Some(index) = model.ours.pop() else {
                        continue;
                    };
                    let some = random.below(16);
                    let chosen = |at: &usize| some >> at & 1 != 0;
                    for first in [true, false] {
                        let to = (0..4).zip(&mut holders).filter(|(at, _)| chosen(at));
                        let handed = hand(&pool, index, to.map(|(_, holder)| holder));
                        assert_eq!(handed, first && some != 0, "not twice");
                    }
                    if some.count_ones() == 1 {
                        let holding = pool.holding(index).unwrap();
                        let number = holders[some.trailing_zeros() as usize].number();
                        assert_eq!(holding.number, Some(number));
                    }
                    (0..4).filter(chosen).for_each(|at| {
                        model.held[at].insert(index);
                    });
                    model.ours.extend((some == 0).then_some(index));
                }
                6..11 => {
                    // Any index: held by this holder, by another, free, or out of range.
                    let index = match random.below(8) {
                        0 => random.number() as u32,
                        1 => pool.frame_count(),
                        _ => random.below(pool.frame_count()),
                    };
                    assert_eq!(holders[at].holds(index), model.held[at].contains(&index));
                    let took = holders[at].take_back(index, &mut cache);
                    assert_eq!(took, model.held[at].remove(&index), "frame {index}");
                }
                _ => {
                    // The process has exited; some of its frames are kept for the next one.
                    let keep = random.below(5);
                    let kept = |index: u32| keep != 0 && index.is_multiple_of(keep);
                    let before = model.held[at].len();
                    model.held[at].retain(|index| kept(*index));
                    let count = holders[at].take_all_back(&mut cache, kept);
                    assert_eq!(count as usize, before - model.held[at].len());
                    if model.held[at].is_empty() {
                        holders[at] = holder();
                    }
                }
            }
            model.check(&pool, &holders);
        }
        drop(holders);
        // SAFETY: taken from a cache, and used nowhere else.
        unsafe { cache.give_each(model.ours.into_iter()) };
        assert_eq!(pool.counts().free, pool.frame_count());
    }
}

#[test]
fn holders_are_numbered_and_bounded() {
    let pool = pool(8);
    let mut holders: Vec<Holder> = (1..=HOLDER_COUNT_MAX)
        .map(|number| {
            let holder = Holder::new(&pool, 1).unwrap();
            assert_eq!(u32::from(holder.number()), number);
            holder
        })
        .collect();
    let more = Holder::new(&pool, 1).err().unwrap();
    assert_eq!(more.kind(), ErrorKind::NoSpace);
    drop(holders.remove(6));
    assert_eq!(Holder::new(&pool, 1).unwrap().number(), 7);
    // The maximum number of holders can hold the same frame.
    let mut cache = FrameCache::new(pool.clone());
    let index = cache.take_index().unwrap();
    assert!(hand(&pool, index, holders.iter_mut()));
    assert!(holders.iter().all(|holder| !holder.has_room(1)));
    assert_eq!(pool.holding(index).unwrap().count, 63);
    assert_eq!(pool.counts().peer, 1);
    drop(holders);
    assert_eq!(pool.counts().free, 8);
}

/// Holders return the same frames from several threads: each frame is freed once.
#[test]
fn frames_returned_at_the_same_time_are_freed_once() {
    let pool = pool(64);
    let holder = |_| Holder::new(&pool, 64).unwrap();
    let mut holders: Vec<Holder> = (0..4).map(holder).collect();
    for _ in 0..200 {
        let mut cache = FrameCache::new(pool.clone());
        let indices: Vec<u32> = std::iter::from_fn(|| cache.take_index()).collect();
        assert_eq!(indices.len(), 64);
        for &index in &indices {
            assert!(hand(&pool, index, holders.iter_mut()));
        }
        std::thread::scope(|scope| {
            for holder in &mut holders {
                let (indices, pool) = (&indices, &pool);
                scope.spawn(move || {
                    let mut cache = FrameCache::new(pool.clone());
                    for &index in indices {
                        assert!(holder.take_back(index, &mut cache));
                        assert!(!holder.take_back(index, &mut cache));
                    }
                });
            }
        });
        assert_eq!(pool.counts().free, 64);
    }
}
