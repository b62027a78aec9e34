//! Packets that a peer sends through the owner: its own, those that it received, and lies.

use super::*;
use crate::shared::{Sender, Taken};
use crate::slot::Slot;

/// Both ends of a queue, and the peer's way back.
fn rig(pool: &Pool, entry_count: u32) -> (OwnerEnd, PeerEnd, Sender) {
    let (mut owner, peer) = ends(pool, entry_count);
    owner.set_may_send(true);
    let fd = owner.open_way_back().unwrap().unwrap();
    let sender = Sender::attach(peer.pool(), fd).unwrap();
    (owner, peer, sender)
}

/// A slot without bytes of its own, for the metadata.
fn slot(number: u64, len: u32) -> Slot {
    static BYTES: [u8; 4096] = [0; 4096];
    // SAFETY: never written, and nothing reads more than `len` bytes.
    let mut slot = unsafe { Slot::over(std::ptr::NonNull::from(&BYTES).cast(), len, len, 0) };
    slot.set_time(number);
    slot.set_interface(3);
    slot
}

/// Takes the next packet as its bytes; `None` if there is none or it was dropped.
fn taken(owner: &mut OwnerEnd, cache: &mut FrameCache) -> Option<Vec<u8>> {
    let mut frames = Vec::new();
    if owner.take_sent(cache, &mut frames) != Taken::Packet {
        assert!(frames.is_empty());
        return None;
    }
    let pool = cache.pool().clone();
    let bytes = frames.iter().flat_map(|frame| pool.bytes(frame).to_vec());
    let bytes = bytes.collect();
    let count = frames.len();
    for (at, frame) in frames.into_iter().enumerate() {
        assert_eq!(pool.continues(&frame), at + 1 != count);
        cache.give(frame).unwrap();
    }
    Some(bytes)
}

/// All frames are free again, except those that the peer holds.
fn check(pool: &Pool, owner: &OwnerEnd) {
    let (counts, held) = (pool.counts(), owner.holder().count());
    assert_eq!((counts.user, counts.device, counts.peer), (0, 0, held));
    let sent = owner.sent_counts();
    assert_eq!(sent.sent, sent.accepted + sent.refused + sent.pool_empty);
}

#[test]
fn own_packets_are_copied_and_received_ones_are_not() {
    let pool = pool(256);
    let (mut owner, mut peer, mut sender) = rig(&pool, 16);
    let mut cache = FrameCache::new(pool.clone());
    for round in 0..50_u8 {
        // In buffers: one of one part, one of three.
        assert!(sender.copy(&slot(1, 60), &[round; 60]));
        for part in 0..3 {
            let mut one = slot(2, 2048);
            if part != 2 {
                one.set_continues();
            }
            assert!(sender.copy(&one, &[round + part; 2048]));
        }
        sender.submit();
        // As received.
        assert!(hand(&mut owner, &mut cache, round.into()));
        owner.flush();
        let mut slots = Vec::new();
        peer.fill(&mut slots, 1, u32::MAX);
        let index = slots[0].index();
        // SAFETY: the slot is not used again.
        assert!(unsafe { sender.hand(&slots[0]) });
        // SAFETY: as above.
        assert!(!unsafe { sender.hand(&slots[0]) }, "a second time");
        sender.submit();
        assert_eq!(taken(&mut owner, &mut cache).unwrap(), [round; 60]);
        let long = taken(&mut owner, &mut cache).unwrap();
        assert_eq!((long.len(), long[0], long[6143]), (6144, round, round + 2));
        let mut frames = Vec::new();
        assert_eq!(owner.take_sent(&mut cache, &mut frames), Taken::Packet);
        let frame = frames.pop().unwrap();
        assert_eq!(frame.index(), index, "copied");
        assert_eq!(pool.descriptor(&frame).time_ns, u64::from(round));
        assert_eq!(pool.bytes(&frame), u64::from(round).to_ne_bytes());
        cache.give(frame).unwrap();
        assert_eq!(taken(&mut owner, &mut cache), None);
        check(&pool, &owner);
    }
    let (sent, handed) = (owner.sent_counts(), owner.counts());
    assert_eq!((sent.sent, sent.copied, sent.refused), (150, 100, 0));
    assert_eq!((handed.returned, handed.waiting()), (50, 0));
}

/// A frame that others read as well is copied: they keep it as it is.
#[test]
fn a_frame_with_several_readers_is_copied() {
    let pool = pool(256);
    let (owner, mut peer, mut sender) = rig(&pool, 16);
    let (other, mut second) = ends(&pool, 16);
    let mut ends = [owner, other];
    let mut cache = FrameCache::new(pool.clone());
    let packet = packet(&mut cache, 7).unwrap();
    // SAFETY: the frame was just taken, and is handed over.
    assert_eq!(unsafe { OwnerEnd::hand_to(&mut ends, 3, &[packet]) }, 3);
    ends.iter_mut().for_each(OwnerEnd::flush);
    let mut slots = Vec::new();
    peer.fill(&mut slots, 1, u32::MAX);
    // SAFETY: the slot is not used again.
    assert!(unsafe { sender.hand(&slots[0]) });
    sender.submit();
    let mut frames = Vec::new();
    assert_eq!(ends[0].take_sent(&mut cache, &mut frames), Taken::Packet);
    let mut frame = frames.pop().unwrap();
    assert_ne!(frame.index(), packet.index);
    pool.bytes_mut(&mut frame).fill(0xff);
    cache.give(frame).unwrap();
    assert_eq!(take(&mut second), Some(7), "changed");
    OwnerEnd::collect_all(&mut ends, &mut cache);
    assert_eq!(pool.counts().peer, 0);
    assert_eq!(ends[0].sent_counts().copied, 1);
}

/// What a peer writes: frames that it does not hold, a frame twice, lengths beyond a frame, packets
/// without an end, positions at random. Every frame is free in the end, and nothing else is sent.
#[test]
fn lies_are_refused() {
    let pool = pool(256);
    let (mut owner, mut peer, mut sender) = rig(&pool, 16);
    let mut cache = FrameCache::new(pool.clone());
    let foreign = cache.take().unwrap();
    let mut random = Random::seeded("lies_are_refused");
    let mut accepted = 0;
    for _ in 0..20_000 {
        while hand(&mut owner, &mut cache, 1) {}
        owner.flush();
        let mut slots = Vec::new();
        peer.fill(&mut slots, 4, u32::MAX);
        for slot in &slots {
            let index = match random.below(6) {
                0 => foreign.index(),
                1 => u32::MAX - 1,
                2 => u32::MAX,
                3 => random.below(256),
                _ => slot.index(),
            };
            let packet = Descriptor {
                index,
                offset: random.below(4) * 1000,
                cap_len: [0, 8, 2048, u32::MAX][random.below(4) as usize],
                info: (random.below(1 << 8) & !0x10 | (random.below(8) / 7) << 4).into(),
                ..Descriptor::of(slot, 0, 0)
            };
            for _ in 0..1 + random.below(5) / 4 {
                sender.write_raw(packet);
            }
        }
        sender.submit();
        let mut frames = Vec::new();
        loop {
            match owner.take_sent(&mut cache, &mut frames) {
                Taken::Nothing => break,
                Taken::Dropped => assert!(frames.is_empty()),
                Taken::Packet => accepted += 1,
            }
            for frame in frames.drain(..) {
                assert_ne!(frame.index(), foreign.index());
                let _ = pool.bytes(&frame);
                cache.give(frame).unwrap();
            }
        }
        peer.give_back(&mut slots);
        owner.collect(&mut cache);
    }
    assert!(accepted > 1_000, "{accepted}");
    assert!(owner.sent_counts().refused > 1_000);
    cache.give(foreign).unwrap();
    drop((peer, sender));
    owner.recover(&mut cache).unwrap();
    drop(owner);
    drop(cache);
    assert_eq!(pool.counts().free, 256);
}

/// A ring that seems to hold more than it has room for is not read at all: it would have no end.
#[test]
fn a_producer_index_beyond_the_ring_ends_the_way_back() {
    for ahead in [17, 5_000, u32::MAX] {
        let pool = pool(64);
        let (mut owner, mut peer, mut sender) = rig(&pool, 16);
        let mut cache = FrameCache::new(pool.clone());
        assert!(hand(&mut owner, &mut cache, 1));
        owner.flush();
        let mut slots = Vec::new();
        peer.fill(&mut slots, 1, u32::MAX);
        sender.forge(ahead);
        let mut frames = Vec::new();
        assert_eq!(owner.take_sent(&mut cache, &mut frames), Taken::Dropped);
        assert_eq!(owner.take_sent(&mut cache, &mut frames), Taken::Nothing);
        assert!(!owner.has_sent() && frames.is_empty());
        assert_eq!(owner.sent_counts().refused, 1);
        drop((peer, sender));
        owner.recover(&mut cache).unwrap();
        drop((owner, cache));
        assert_eq!(pool.counts().free, 64);
    }
}

/// Packets that a peer had sent before it exited are still taken, once; the others that it held are
/// recovered.
#[test]
fn packets_of_a_peer_that_exited_are_taken_once_or_recovered() {
    for takes in [true, false] {
        let pool = pool(256);
        let (mut owner, mut peer, mut sender) = rig(&pool, 16);
        let mut cache = FrameCache::new(pool.clone());
        (0..8).for_each(|number| assert!(hand(&mut owner, &mut cache, number)));
        owner.flush();
        let mut slots = Vec::new();
        peer.fill(&mut slots, 6, u32::MAX);
        for slot in &slots[..4] {
            // SAFETY: the slot is not used again.
            assert!(unsafe { sender.hand(slot) });
        }
        sender.submit();
        // Written, but not made visible.
        // SAFETY: as above.
        assert!(unsafe { sender.hand(&slots[4]) });
        drop((peer, sender));
        let count = (0..8).filter(|_| takes && taken(&mut owner, &mut cache).is_some());
        assert_eq!(count.count(), if takes { 4 } else { 0 });
        let lost = if takes { 2 } else { 6 };
        let recovered = owner.recover(&mut cache).unwrap();
        assert_eq!(recovered, Recovered { kept: 2, lost });
        assert!(!owner.has_sent());
        assert_eq!(taken(&mut owner, &mut cache), None);
        check(&pool, &owner);
        assert_eq!(owner.counts().waiting(), 2);
    }
}

#[test]
fn a_peer_that_may_not_send_gets_no_memory() {
    let pool = pool(64);
    let (mut owner, peer) = ends(&pool, 16);
    assert!(owner.open_way_back().unwrap().is_none());
    assert!(!owner.has_sent());
    // Of another geometry: refused.
    owner.set_may_send(true);
    let fd = owner.open_way_back().unwrap().unwrap();
    let longer = Pool::new(PoolConfig {
        frame_count: 4,
        frame_len: 4096,
        huge_pages: HugePages::Never,
    });
    assert!(Sender::attach(&longer.unwrap(), fd).is_err());
    let queue = owner.queue().unwrap();
    assert!(Sender::attach(peer.pool(), queue).is_err());
}
