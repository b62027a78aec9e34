//! Packets of several frames, batches, and frames that are still in use at the end.

use super::*;
use crate::Frame;

/// A packet of three frames is received whole, by a batch; a packet of several frames whose reader
/// was killed between two packets is kept whole.
#[test]
fn packets_of_several_frames_are_handed_and_kept_whole() {
    let pool = pool(64);
    let mut cache = FrameCache::new(pool.clone());
    let (owner, mut peer) = ends(&pool, 16);
    let mut owners = [owner];
    let frames = |cache: &mut FrameCache, count: usize, number: u64| -> Vec<Frame> {
        let parts = (0..count).map(|at| {
            let mut frame = cache.take().unwrap();
            pool.set_range(&mut frame, 64, 8);
            pool.bytes_mut(&mut frame)
                .copy_from_slice(&number.to_ne_bytes());
            if at + 1 < count {
                pool.set_continues(&mut frame);
            }
            frame
        });
        parts.collect()
    };
    for (number, count) in [(0, 1), (1, 3), (2, 1), (3, 9), (4, 4)] {
        let mut packet = frames(&mut cache, count, number);
        let handed = OwnerEnd::hand_frames(&mut owners, 1, &mut packet);
        // The ring has 16 entries.
        assert_eq!(handed, u64::from(number < 4), "packet {number}");
        packet
            .into_iter()
            .for_each(|frame| cache.give(frame).unwrap());
    }
    // Without an end, or with an end in between, it is no packet.
    let mut cut = frames(&mut cache, 2, 9);
    pool.set_continues(&mut cut[1]);
    assert_eq!(OwnerEnd::hand_frames(&mut owners, 1, &mut cut), 0);
    cut.into_iter().for_each(|frame| cache.give(frame).unwrap());
    let [mut owner] = owners;
    owner.flush();
    let mut slots = Vec::new();
    let batch = peer.fill(&mut slots, 2, u32::MAX);
    assert_eq!(
        (batch.filled.packets, batch.filled.bytes, slots.len()),
        (1, 8, 1),
        "the second would exceed the batch"
    );
    peer.give_back(&mut slots);
    let batch = peer.fill(&mut slots, 1, 12);
    assert_eq!((batch.filled.packets, slots.len()), (1, 3));
    let lens: Vec<u32> = slots.iter().map(|slot| slot.cap_len()).collect();
    assert_eq!((lens, batch.filled.bytes), (vec![8, 4, 0], 12));
    peer.give_back(&mut slots);
    // Holds packet 2 when it exits; packet 3 is kept.
    assert_eq!(peer.fill(&mut slots, 1, u32::MAX).filled.packets, 1);
    drop(peer);
    wait_for_end(&owner);
    let recovered = owner.recover(&mut cache).unwrap();
    assert_eq!(recovered, Recovered { kept: 1, lost: 1 });
    let counts = owner.counts();
    assert_eq!(
        (counts.handed, counts.returned, counts.lost, counts.dropped),
        (4, 2, 1, 2)
    );
    assert_eq!((counts.waiting(), pool.counts().peer), (1, 9));
    let (ours, theirs) = UnixStream::pair().unwrap();
    owner.attach(ours).unwrap();
    let (mut owner, mut peer) = (owner.queue().unwrap(), owner, theirs).attach(&pool);
    slots.clear();
    assert_eq!(peer.fill(&mut slots, 1, u32::MAX).filled.packets, 1);
    // SAFETY: the bytes are in the frames that the peer holds.
    let value = unsafe { slots[8].data().cast::<[u8; 8]>().read() };
    assert_eq!((slots.len(), u64::from_ne_bytes(value)), (9, 3));
    peer.give_back(&mut slots);
    owner.collect(&mut cache);
    assert_eq!((owner.counts().returned, pool.counts().free), (3, 64));
}

/// The reader of an owner that was killed learns that; packets that it was handed arrive first.
#[test]
fn an_owner_that_is_killed_is_gone() {
    let pool = pool(64);
    let mut cache = FrameCache::new(pool.clone());
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut owner = OwnerEnd::new(&pool, 8, None).unwrap();
    for number in 0..3 {
        assert!(hand(&mut owner, &mut cache, number));
    }
    owner.flush();
    // The kernel closes the sockets of a killed process, which then writes nothing any more.
    let (_owner, mut peer) = (owner.queue().unwrap(), owner, theirs).attach(&pool);
    drop(ours);
    assert_eq!(peer.wait(LONG).unwrap(), Ready::Packets);
    while take(&mut peer).is_some() {}
    assert_eq!(peer.wait(LONG).unwrap(), Ready::Gone);
}

/// The wake-up of the end may be read together with that of packets: the end is seen without it.
#[test]
fn the_end_is_seen_without_its_wake_up() {
    let pool = pool(64);
    let mut cache = FrameCache::new(pool.clone());
    let (mut owner, mut peer) = ends(&pool, 8);
    assert!(hand(&mut owner, &mut cache, 1));
    owner.close();
    let socket = peer.poll_fd().try_clone_to_owned().unwrap();
    let count = UnixStream::from(socket).read(&mut [0; 16]).unwrap();
    assert!(count > 0);
    assert_eq!(peer.wait(LONG).unwrap(), Ready::Packets);
    assert_eq!(take(&mut peer), Some(1));
    assert!(!peer.arm());
    assert_eq!(peer.wait(LONG).unwrap(), Ready::End);
}

/// The peer learns that its packets came from something that is lost, behind the last one; the drop
/// of the owner changes nothing of it.
#[test]
fn an_end_by_loss_is_not_an_end_in_order() {
    for is_dropped in [false, true] {
        let pool = pool(64);
        let mut cache = FrameCache::new(pool.clone());
        let (mut owner, mut peer) = ends(&pool, 8);
        assert!(hand(&mut owner, &mut cache, 1));
        owner.close_lost();
        let owner = (!is_dropped).then_some(owner);
        assert_eq!(peer.wait(LONG).unwrap(), Ready::Packets);
        assert_eq!(take(&mut peer), Some(1));
        assert_eq!(peer.wait(LONG).unwrap(), Ready::Lost);
        drop(owner);
    }
}

#[test]
fn frames_of_a_live_peer_are_not_used_again() {
    let pool = pool(64);
    let mut cache = FrameCache::new(pool.clone());
    // A peer that exits first, and one that returns all of its frames.
    for exits in [true, false] {
        let (mut owner, mut peer) = ends(&pool, 8);
        for number in 0..3 {
            assert!(hand(&mut owner, &mut cache, number));
        }
        owner.close();
        let first = peer.take().unwrap();
        assert_eq!(peer.wait(LONG).unwrap(), Ready::Packets, "before the end");
        if exits {
            drop((first, peer));
            wait_for_end(&owner);
            drop(owner);
        } else {
            peer.give(first).unwrap();
            assert_eq!((take(&mut peer), take(&mut peer)), (Some(1), Some(2)));
            assert_eq!(peer.wait(LONG).unwrap(), Ready::End);
            drop(owner);
        }
        assert_eq!(pool.counts().peer, 0);
    }
    // One that does neither: its frames are lost to the pool, and their contents are unchanged.
    let (mut owner, mut peer) = ends(&pool, 8);
    assert!(hand(&mut owner, &mut cache, 7));
    owner.flush();
    let frame = peer.take().unwrap();
    drop(owner);
    let mut others = 0;
    while packet(&mut cache, 8).is_some() {
        others += 1;
    }
    assert_eq!((others, pool.counts().peer), (63, 1));
    assert_eq!(peer.pool().bytes(&frame), 7_u64.to_ne_bytes());
    let _ = peer.give(frame);
}
