//! Packets that outlive their batch.

use ring::slot::Slot;
use ring::{FrameCache, Pool, PoolConfig};

use super::*;
use crate::{Port, PortOptions, open};

fn pool() -> Pool {
    Pool::new(PoolConfig {
        frame_count: 256,
        ..PoolConfig::default()
    })
    .unwrap()
}

fn memory(pool: &Pool) -> Port {
    let options = PortOptions {
        pool: Some(pool.clone()),
        ..PortOptions::default()
    };
    open("memory:?batch=64", &options).unwrap()
}

/// Packet `number` of a batch; every fifth is longer than a frame.
fn packet(number: usize) -> Vec<u8> {
    let len = if number % 5 == 3 { 5_000 } else { 60 + number };
    (0..len).map(|at| (at * 3 + number) as u8).collect()
}

fn put(port: &mut Port, numbers: impl Iterator<Item = usize>) {
    for number in numbers {
        let mut batch = port.tx[0].reserve(8).unwrap();
        assert!(batch.write(&packet(number)));
        batch.submit().unwrap();
    }
    port.tx[0].flush().unwrap();
}

#[test]
fn packet_metadata_is_carried_along() {
    let pool = pool();
    let mut port = memory(&pool);
    put(&mut port, 0..3);
    let mut batch = port.rx[0].receive().unwrap();
    let vlan = Vlan {
        tpid: 0x88a8,
        tci: 0x2123,
    };
    let slot = &mut batch.queue.slots[1];
    slot.wire_len = 1_234;
    slot.time_ns = 1_700_000_000_123_456_789;
    slot.vlan = vlan;
    slot.interface_index = 7;
    slot.flags = Slot::TIME | Slot::VLAN | Slot::OUTGOING | Slot::CHECKSUM_BAD;
    slot.set_rss_hash(0xdead_beef);
    let before = batch.iter().nth(1).unwrap().meta();
    let detached = batch.detach(1).unwrap();
    let expected = Meta {
        wire_len: 1_234,
        time_ns: Some(1_700_000_000_123_456_789),
        rss_hash: Some(0xdead_beef),
        vlan: Some(vlan),
        checksum: Checksum::Bad,
        is_outgoing: true,
        interface_index: 7,
    };
    assert_eq!((detached.meta, before), (expected, expected));
    let plain = batch.detach(2).unwrap();
    assert_eq!((plain.meta.vlan, plain.meta.rss_hash), (None, None));
    assert_eq!(plain.meta.wire_len, 62);
    assert!(batch.detach(1).is_err(), "it is detached already");
    let mut cache = FrameCache::new(pool);
    cache.give(detached.frame).unwrap();
    cache.give(plain.frame).unwrap();
}

#[test]
fn packets_are_detached_by_number_in_any_order() {
    // Without packets in several segments, with some, and after some that were skipped.
    for (several, skipped) in [(false, 0), (true, 0), (true, 4), (false, 4)] {
        let numbers: Vec<usize> = (0..40).filter(|n| several || n % 5 != 3).collect();
        for step in [1, 3, 7, 38] {
            let pool = pool();
            let mut port = memory(&pool);
            put(&mut port, numbers.iter().copied());
            let mut cache = FrameCache::new(pool.clone());
            let mut batch = port.rx[0].receive().unwrap();
            assert_eq!(batch.len(), numbers.len());
            // A search before the batch gets shorter must not lead astray.
            let first = batch.detach(skipped).ok();
            batch.skip(skipped);
            let count = batch.len();
            for turn in 0..count {
                let index = turn * step % count;
                let number = numbers[skipped + index];
                match batch.detach(index) {
                    Ok(detached) => {
                        assert_eq!(pool.bytes(&detached.frame), packet(number));
                        cache.give(detached.frame).unwrap();
                    }
                    Err(error) if number % 5 == 3 => {
                        assert!(error.why().contains("several"), "{error}");
                    }
                    Err(error) => assert!(error.why().contains("already"), "{error}"),
                }
            }
            assert!(batch.detach(count).is_err());
            drop(batch);
            if let Some(detached) = first {
                assert_eq!(pool.bytes(&detached.frame), packet(numbers[skipped]));
                cache.give(detached.frame).unwrap();
            }
        }
    }
}

#[test]
fn a_tag_is_restored_if_there_is_room() {
    let pool = pool();
    let mut cache = FrameCache::new(pool.clone());
    let frame_len = pool.frame_len();
    let cases = [
        (0, 60, true),
        (3, 60, true),
        (4, 60, true),
        (256, frame_len - 256, true),
        (0, frame_len - 4, true),
        (0, frame_len - 3, false),
        (3, frame_len - 3, false),
        (64, 11, false),
        (64, 12, true),
    ];
    for (offset, len, fits) in cases {
        let mut frame = cache.take().unwrap();
        pool.set_range(&mut frame, offset, len);
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
        pool.bytes_mut(&mut frame).copy_from_slice(&bytes);
        let meta = Meta {
            wire_len: len,
            time_ns: None,
            rss_hash: None,
            vlan: Some(Vlan {
                tpid: 0x8100,
                tci: 0x6064,
            }),
            checksum: Checksum::Unknown,
            is_outgoing: false,
            interface_index: 0,
        };
        let mut detached = Detached { frame, meta };
        assert_eq!(detached.restore_tag(&pool), fits, "{offset} {len}");
        let expected = match fits {
            true => [&bytes[..12], &[0x81, 0, 0x60, 0x64], &bytes[12..]].concat(),
            false => bytes,
        };
        assert_eq!(pool.bytes(&detached.frame), expected, "{offset} {len}");
        assert_eq!(detached.meta.vlan.is_none(), fits);
        // Nothing is left to be done.
        if fits {
            assert!(detached.restore_tag(&pool));
            assert_eq!(pool.bytes(&detached.frame), expected);
            assert_eq!(detached.meta.wire_len, len + 4);
        }
        cache.give(detached.frame).unwrap();
    }
}

/// One packet that waits in a port, with its metadata and nothing else.
fn meta_of(port: &mut Port) -> Meta {
    let batch = port.rx[0].receive().unwrap();
    assert_eq!(batch.len(), 1);
    batch.iter().next().unwrap().meta()
}

/// Through memory rings nothing that is known of a packet is lost, in whichever way it gets into
/// the next ring: its frame is transferred, its bytes are copied, or it is kept and sent.
#[test]
fn metadata_passes_every_hop_unchanged() {
    let (one, other) = (pool(), pool());
    let mut ports = [&one, &one, &other, &other, &other].map(memory);
    for number in [1, 3] {
        put(&mut ports[0], [number].into_iter());
        let [first, second, third, fourth, last] = &mut ports;
        let mut batch = first.rx[0].receive().unwrap();
        let slot = &mut batch.queue.slots[0];
        slot.wire_len = 9_234;
        slot.set_time(1_700_000_000_123_456_789);
        slot.set_vlan(Vlan {
            tpid: 0x88a8,
            tci: 0x2123,
        });
        slot.set_interface(7);
        slot.set_rss_hash(0xdead_beef);
        slot.set_checksum(ring::slot::Checksum::Partial);
        slot.set_outgoing();
        let before = batch.iter().next().unwrap().meta();
        let moved = batch.forward(&mut second.tx[0], 1).unwrap();
        let expected = packet(number).len() as u64 + Vlan::LEN as u64;
        assert_eq!((moved.packets, moved.copied, moved.bytes), (1, 0, expected));
        drop(batch);
        let mut batch = second.rx[0].receive().unwrap();
        let copied = batch.forward(&mut third.tx[0], 1).unwrap();
        assert_eq!(
            (copied.packets, copied.copied, copied.bytes),
            (1, 1, expected)
        );
        drop(batch);
        let mut batch = third.rx[0].receive().unwrap();
        assert_eq!(
            batch.iter().next().unwrap().meta(),
            before,
            "transferred and copied"
        );
        if number == 3 {
            // In several frames: it cannot be kept.
            assert!(batch.detach(0).is_err());
            continue;
        }
        let mut kept = batch.detach(0).unwrap();
        drop(batch);
        assert!(fourth.tx[0].send(kept.frame).unwrap().is_none());
        let mut batch = fourth.rx[0].receive().unwrap();
        assert_eq!(batch.iter().next().unwrap().meta(), before, "kept and sent");
        kept = batch.detach(0).unwrap();
        drop(batch);
        // A tag that is put back into the bytes is no longer beside them.
        assert!(kept.restore_tag(&other));
        let restored = kept.meta;
        assert!(last.tx[0].send(kept.frame).unwrap().is_none());
        assert_eq!(meta_of(last), restored);
    }
    // The next packet in the same frames has none of it.
    put(&mut ports[0], 0..1);
    let fresh = meta_of(&mut ports[0]);
    let Meta { rss_hash, vlan, .. } = fresh;
    assert_eq!((rss_hash, vlan, fresh.is_outgoing), (None, None, false));
    drop(ports);
    assert_eq!((one.counts().free, other.counts().free), (256, 256));
}
