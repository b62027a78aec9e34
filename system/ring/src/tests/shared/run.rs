//! Batches for several queues: what is handed over, where it stops, and what is returned.

use super::*;
use crate::Frame;

/// Frames whose packets have these numbers in their bytes.
fn frames(cache: &mut FrameCache, numbers: std::ops::Range<u64>) -> Vec<Frame> {
    let frames = numbers.map(|number| {
        let mut frame = cache.take().unwrap();
        let pool = cache.pool().clone();
        pool.set_range(&mut frame, 0, 8);
        pool.bytes_mut(&mut frame)
            .copy_from_slice(&number.to_ne_bytes());
        frame
    });
    frames.collect()
}

fn number_of(pool: &Pool, frame: &Frame) -> u64 {
    u64::from_ne_bytes(pool.bytes(frame).try_into().unwrap())
}

/// Takes and returns everything that is in a queue; returns the numbers.
fn read(peer: &mut PeerEnd) -> Vec<u64> {
    let mut numbers = Vec::new();
    while let Some(frame) = peer.take() {
        numbers.push(number_of(peer.pool(), &frame));
        peer.give(frame).unwrap();
    }
    numbers
}

/// Random batches for random sets of three queues: each receives what was selected for it, in
/// order, and nothing is handed over in part.
#[test]
fn batches_are_handed_to_the_selected_queues() {
    let pool = pool(512);
    let mut cache = FrameCache::new(pool.clone());
    let (mut owners, mut peers): (Vec<_>, Vec<_>) = (0..3).map(|_| ends(&pool, 32)).unzip();
    let mut random = Random::seeded("batches for queues");
    let mut next = 0;
    let mut expected = vec![Vec::new(); 3];
    let mut seen = vec![Vec::new(); 3];
    for _ in 0..300 {
        let count = u64::from(random.below(130));
        let mut batch = frames(&mut cache, next..next + count);
        next += count;
        let mut run = batch.drain(..);
        loop {
            let mut chosen = Vec::new();
            let select = |frame: &Frame| {
                let selected = u64::from(random.below(8));
                chosen.push((number_of(&pool, frame), selected));
                selected
            };
            let stopped = OwnerEnd::hand_run(&mut owners, &mut cache, &mut run, select);
            if let Some((frame, selected)) = &stopped {
                // The last one that was selected for, which nobody has.
                assert_eq!(chosen.pop(), Some((number_of(&pool, frame), *selected)));
            }
            for (number, selected) in chosen {
                for (queue, expected) in expected.iter_mut().enumerate() {
                    if selected >> queue & 1 != 0 {
                        expected.push(number);
                    }
                }
            }
            let Some((frame, selected)) = stopped else {
                break;
            };
            let full = (0..3).filter(|&at| !owners[at].has_room(1));
            let full: u64 = full.map(|at| 1 << at).sum();
            assert_ne!(selected & full, 0, "it stopped beside room");
            cache.give(frame).unwrap();
            owners.iter_mut().for_each(OwnerEnd::flush);
            for (peer, seen) in peers.iter_mut().zip(&mut seen) {
                seen.extend(read(peer));
            }
            assert_eq!(OwnerEnd::collect_all(&mut owners, &mut cache).refused, 0);
        }
        drop(run);
        owners.iter_mut().for_each(OwnerEnd::flush);
    }
    for (peer, seen) in peers.iter_mut().zip(&mut seen) {
        seen.extend(read(peer));
    }
    OwnerEnd::collect_all(&mut owners, &mut cache);
    assert_eq!(seen, expected);
    assert!(expected.iter().all(|numbers| numbers.len() > 1000));
    let counts = pool.counts();
    assert_eq!((counts.user, counts.peer), (0, 0), "a frame is lost");
    for owner in &owners {
        assert_eq!((owner.counts().waiting(), owner.holder().count()), (0, 0));
    }
}

/// Many returned frames, some with another holder, across the end of the ring: each is free when
/// its last holder has returned it.
#[test]
fn many_returned_frames_are_collected_at_once() {
    let pool = pool(512);
    let mut cache = FrameCache::with_len(pool.clone(), 500);
    let (mut owners, mut peers): (Vec<_>, Vec<_>) = (0..2).map(|_| ends(&pool, 256)).unzip();
    for count in [1, 63, 64, 65, 128, 200, 250] {
        let mut batch = frames(&mut cache, 0..count);
        let select = |frame: &Frame| number_of(&pool, frame) % 3 + 1;
        let mut run = batch.drain(..);
        let stopped = OwnerEnd::hand_run(&mut owners, &mut cache, &mut run, select);
        assert_eq!(stopped, None);
        drop(run);
        owners.iter_mut().for_each(OwnerEnd::flush);
        let only_second = (0..count).filter(|number| number % 3 + 1 == 2).count() as u64;
        let both = (0..count).filter(|number| number % 3 + 1 == 3).count() as u64;
        for (peer, held) in peers.iter_mut().zip([only_second + both, 0]) {
            let numbers = read(peer);
            let collected = OwnerEnd::collect_all(&mut owners, &mut cache);
            assert_eq!(collected.frames as usize, numbers.len(), "{count}");
            assert_eq!(collected.refused, 0, "{count}");
            assert_eq!(u64::from(pool.counts().peer), held, "{count}");
        }
    }
    assert_eq!(pool.counts().free, 512);
}

/// A frame that continues in the next one, and an end that does not exist.
#[test]
fn other_packets_are_returned() {
    let pool = pool(64);
    let mut cache = FrameCache::new(pool.clone());
    let (owner, mut peer) = ends(&pool, 16);
    let mut owners = [owner];
    let mut batch = frames(&mut cache, 0..5);
    pool.set_continues(&mut batch[1]);
    let mut run = batch.drain(..);
    let select = |frame: &Frame| u64::from(number_of(&pool, frame) != 2) << 1 | 1;
    let mut hand = |cache: &mut FrameCache, select: &dyn Fn(&Frame) -> u64| {
        let stopped = OwnerEnd::hand_run(&mut owners, cache, &mut run, select);
        let (frame, selected) = stopped.unwrap();
        let number = number_of(&pool, &frame);
        cache.give(frame).unwrap();
        (number, selected)
    };
    assert_eq!(hand(&mut cache, &|_| 1), (1, 0));
    // Number 2 is handed over.
    assert_eq!(hand(&mut cache, &select), (3, 0b11));
    drop(run);
    owners[0].flush();
    assert_eq!(read(&mut peer), [0, 2]);
}

/// One of two holders in another thread's hands: frames of both are freed once.
#[test]
fn some_of_the_holders_collect_as_well() {
    let pool = pool(64);
    let mut cache = FrameCache::new(pool.clone());
    let (mut owners, mut peers): (Vec<_>, Vec<_>) = (0..2).map(|_| ends(&pool, 16)).unzip();
    for round in 0..20 {
        let mut batch = frames(&mut cache, 0..10);
        let mut run = batch.drain(..);
        let stopped = OwnerEnd::hand_run(&mut owners, &mut cache, &mut run, |_| 0b11);
        assert_eq!(stopped, None);
        drop(run);
        owners.iter_mut().for_each(OwnerEnd::flush);
        for peer in [round % 2, 1 - round % 2] {
            assert!(read(&mut peers[peer]).into_iter().eq(0..10));
        }
        let (first, second) = owners.split_at_mut(1);
        let mut other = FrameCache::new(pool.clone());
        std::thread::scope(|scope| {
            scope.spawn(|| OwnerEnd::collect_all(second, &mut other));
            OwnerEnd::collect_all(first, &mut cache);
        });
    }
    assert_eq!(pool.counts().free, 64);
}

/// A peer that exits with a batch in its ring that begins at the ring's end and continues at its
/// start: the next peer receives all of it.
#[test]
fn a_batch_across_the_end_of_the_ring_is_kept() {
    for (taken, several) in [(0, false), (3, false), (0, true), (3, true)] {
        let pool = pool(64);
        let mut cache = FrameCache::new(pool.clone());
        let (mut owners, mut peers): (Vec<_>, Vec<_>) = (0..2).map(|_| ends(&pool, 16)).unzip();
        let selected = if several { 0b11 } else { 0b01 };
        let hand = |cache: &mut FrameCache, owners: &mut [OwnerEnd], numbers| {
            let mut batch = frames(cache, numbers);
            let stopped = OwnerEnd::hand_run(owners, cache, &mut batch.drain(..), |_| selected);
            assert_eq!(stopped, None);
            owners.iter_mut().for_each(OwnerEnd::flush);
        };
        hand(&mut cache, &mut owners, 0..11);
        for peer in &mut peers {
            read(peer);
        }
        OwnerEnd::collect_all(&mut owners, &mut cache);
        hand(&mut cache, &mut owners, 20..30);
        let mut killed = peers.remove(0);
        let _lost: Vec<Frame> = (0..taken).map(|_| killed.take().unwrap()).collect();
        drop(killed);
        let recovered = owners[0].recover(&mut cache).unwrap();
        assert_eq!((recovered.kept, recovered.lost), (10 - taken, taken));
        let (ours, theirs) = UnixStream::pair().unwrap();
        owners[0].attach(ours).unwrap();
        let attached = Pool::attach(pool.share(Access::Read).unwrap(), Access::Read).unwrap();
        let queue = owners[0].queue().unwrap();
        let mut next = PeerEnd::attach(attached, queue, theirs).unwrap();
        let first = 20 + u64::from(taken);
        assert!(read(&mut next).into_iter().eq(first..30));
        if several {
            assert!(read(&mut peers[0]).into_iter().eq(20..30));
        }
        OwnerEnd::collect_all(&mut owners, &mut cache);
        assert_eq!(pool.counts().peer, 0, "a frame is lost");
    }
}
