//! Moving and copying between rings in memory.

use std::ptr::NonNull;

use ring::{FrameCache, Pool, PoolConfig};

use super::*;
use crate::{Port, PortOptions, open};

fn pool(frame_count: u32) -> Pool {
    Pool::new(PoolConfig {
        frame_count,
        ..PoolConfig::default()
    })
    .unwrap()
}

fn memory(pool: &Pool, ring_len: u32) -> Port {
    let options = PortOptions {
        pool: Some(pool.clone()),
        ring_len,
        ..PortOptions::default()
    };
    open("memory:", &options).unwrap()
}

/// Packet `number`, of several lengths, some longer than a frame.
fn packet(number: usize) -> Vec<u8> {
    let len = match number % 7 {
        3 => 9_000,
        _ => 60 + number % 1_400,
    };
    (0..len).map(|at| (at * 7 + number) as u8).collect()
}

fn put(port: &mut Port, packets: std::ops::Range<usize>) {
    for number in packets {
        let mut batch = port.tx[0].reserve(8).unwrap();
        assert!(batch.write(&packet(number)));
        batch.submit().unwrap();
    }
}

fn take(port: &mut Port) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    loop {
        let batch = port.rx[0].receive().unwrap();
        if batch.is_empty() {
            return packets;
        }
        packets.extend(
            batch
                .iter()
                .map(|packet| packet.segments().collect::<Vec<_>>().concat()),
        );
    }
}

/// Forwards everything that waits; returns the result and the packets with the addresses of their
/// first bytes.
fn forward(from: &mut Port, to: &mut Port) -> Forwarded {
    let mut sum = Forwarded::default();
    loop {
        let mut batch = from.rx[0].receive().unwrap();
        if batch.is_empty() {
            return sum;
        }
        let count = batch.len();
        let forwarded = batch.forward(&mut to.tx[0], count).unwrap();
        assert_eq!(
            (forwarded.packets, batch.len()),
            (count, 0),
            "there is room"
        );
        sum.packets += forwarded.packets;
        sum.bytes += forwarded.bytes;
        sum.copied += forwarded.copied;
    }
}

#[test]
fn one_pool_moves_and_two_copy() {
    let (one, other) = (pool(512), pool(512));
    for (second, copied) in [(&one, 0), (&other, 50)] {
        let (mut a, mut b) = (memory(&one, 256), memory(second, 256));
        put(&mut a, 0..50);
        let forwarded = forward(&mut a, &mut b);
        let expected: Vec<_> = (0..50).map(packet).collect();
        let bytes: usize = expected.iter().map(Vec::len).sum();
        assert_eq!(
            (forwarded.packets, forwarded.copied, forwarded.bytes),
            (50, copied, bytes as u64)
        );
        assert_eq!(take(&mut b), expected);
        let account = b.control.account().unwrap();
        assert_eq!(account.tx[0].copied, copied as u64);
        assert_eq!(
            (account.tx[0].sent, account.tx[0].sent_bytes),
            (50, bytes as u64)
        );
        drop((a, b));
        assert_eq!((one.counts().free, other.counts().free), (512, 512));
    }
}

#[test]
fn moved_packets_stay_where_they_are() {
    let pool = pool(64);
    let (mut a, mut b) = (memory(&pool, 32), memory(&pool, 32));
    put(&mut a, 0..1);
    let mut batch = a.rx[0].receive().unwrap();
    let before = batch.iter().next().unwrap().bytes().as_ptr();
    batch.forward(&mut b.tx[0], 1).unwrap();
    drop(batch);
    let batch = b.rx[0].receive().unwrap();
    assert_eq!(batch.iter().next().unwrap().bytes().as_ptr(), before);
}

#[test]
fn packets_without_room_stay_in_the_batch() {
    let (one, other) = (pool(512), pool(512));
    for second in [&one, &other] {
        // A packet of 9,000 bytes has three pieces, so the ring of 8 has room for six whole ones.
        let (mut a, mut b) = (memory(&one, 256), memory(second, 8));
        put(&mut a, 0..20);
        let mut got = Vec::new();
        let mut batch = a.rx[0].receive().unwrap();
        assert_eq!(batch.len(), 20);
        let first = batch.forward(&mut b.tx[0], 20).unwrap();
        assert_eq!((first.packets, batch.len()), (6, 14));
        assert_eq!(batch.forward(&mut b.tx[0], 20).unwrap().packets, 0, "full");
        // The next ones are dropped, the rest are forwarded.
        batch.skip(4);
        assert_eq!(batch.len(), 10);
        while !batch.is_empty() {
            got.extend(take(&mut b));
            let count = batch.len().min(2);
            batch.forward(&mut b.tx[0], count).unwrap();
        }
        drop(batch);
        got.extend(take(&mut b));
        let expected: Vec<_> = (0..6).chain(10..20).map(packet).collect();
        assert_eq!(got, expected);
        drop((a, b));
        assert_eq!((one.counts().free, other.counts().free), (512, 512));
    }
}

#[test]
fn packets_without_a_receiver_count_as_failed() {
    let pool = pool(64);
    let (mut a, mut b) = (memory(&pool, 32), memory(&pool, 32));
    b.rx.clear();
    put(&mut a, 0..3);
    assert_eq!(forward(&mut a, &mut b).packets, 3);
    let account = b.control.account().unwrap();
    assert_eq!((account.tx[0].sent, account.tx[0].failed), (0, 3));
    drop((a, b));
    assert_eq!(pool.counts().free, 64);
}

#[test]
fn tags_are_restored_in_the_packet() {
    let pool = pool(256);
    let mut cache = FrameCache::new(pool.clone());
    let index = cache.take_index().unwrap();
    let frame_len = pool.frame_len() as usize;
    let plain: Vec<u8> = (0..frame_len).map(|at| at as u8).collect();
    // Where it begins, how long it is, whether it continues elsewhere, how long it becomes.
    for (offset, len, goes_on, expected_len) in [
        (256, 60, false, 64),
        (256, 60, true, 64),
        (frame_len - 60, 60, false, 64),
        // Room after only.
        (3, 60, false, 64),
        (0, frame_len - 4, false, frame_len),
        // None.
        (0, frame_len - 3, false, 0),
        (3, frame_len - 3, false, 0),
        (3, 60, true, 0),
    ] {
        // SAFETY: the frame was taken above, and nothing else has it; the range lies within it.
        let mut slot = unsafe {
            let data = pool.base().add(pool.addr_of(index) as usize + offset);
            ptr::copy_nonoverlapping(plain.as_ptr(), data.as_ptr(), len);
            Slot::over(data, len as u32, len as u32, index.into())
        };
        slot.vlan = Vlan {
            tpid: 0x8100,
            tci: 0x2007,
        };
        slot.flags = Slot::VLAN | if goes_on { Slot::CONTINUES } else { 0 };
        restore_tag(&mut slot, &pool);
        let what = format!("{len} bytes at {offset}");
        assert_eq!(slot.cap_len() as usize, expected_len, "{what}");
        assert!(!slot.has(Slot::VLAN));
        if expected_len != 0 {
            let tagged = [&plain[..12], &[0x81, 0, 0x20, 7], &plain[12..len]].concat();
            // SAFETY: as above.
            let bytes = unsafe { std::slice::from_raw_parts(slot.data().as_ptr(), expected_len) };
            assert_eq!(bytes, tagged, "{what}");
            assert!(slot.place_in(&pool).is_some(), "{what}");
        }
    }
    // The same by copying.
    let plain = &plain[..60];
    let mut bytes = plain.to_vec();
    // SAFETY: `bytes` outlives the slot, and is reached through it only.
    let mut slots = [unsafe { Slot::over(NonNull::from(&mut bytes[..]).cast(), 60, 60, 0) }];
    slots[0].vlan = Vlan {
        tpid: 0x88a8,
        tci: 5,
    };
    slots[0].flags = Slot::VLAN;
    let mut b = memory(&pool, 4);
    let mut out = b.tx[0].reserve(1).unwrap();
    assert_eq!(write(&mut out, &Packet { slots: &slots }), Some(64));
    out.submit().unwrap();
    let tagged = [&plain[..12], &[0x88, 0xa8, 0, 5], &plain[12..]].concat();
    assert_eq!(take(&mut b), [tagged]);
}
