//! Clusters, queues and hashes of PF_RING ZC.

use std::sync::Arc;

use ring::{Pool, PoolConfig};
use sys::memfd::HugePages;

use super::*;
use crate::status::{GENERIC, NOT_SUPPORTED};
use buffer::Buffer;
use queue::{DeviceTerms, MultiQueue};
use remote::Reader;

fn cluster(count: u32) -> Cluster {
    Cluster::new(7, 1536, 0, count).unwrap()
}

/// A reference to a queue of the cluster.
fn queue(cluster: &Cluster, len: u32) -> Arc<Queue> {
    let place = cluster.queue(len).unwrap();
    let queues = lock(&cluster.queues);
    queues
        .iter()
        .find(|it| Arc::as_ptr(it) == place)
        .unwrap()
        .clone()
}

fn fill(buffer: &mut Buffer, number: u8) {
    buffer.len = 60;
    buffer.data()[..60].fill(number);
}

#[test]
fn packets_pass_through_a_queue_in_order_and_no_buffer_is_lost() {
    let cluster = cluster(6);
    let queue = queue(&cluster, 4);
    let (mut out, mut into) = (
        cluster.buffers().take().unwrap(),
        cluster.buffers().take().unwrap(),
    );
    for round in 0..50_u8 {
        for number in 0..4 {
            fill(&mut out, round.wrapping_add(number));
            assert_eq!(queue.send(&mut out, false), Ok(60));
        }
        fill(&mut out, 1);
        assert_eq!(queue.send(&mut out, false), Err(GENERIC), "full");
        assert!(queue.is_full() && !queue.is_empty());
        for number in 0..4 {
            assert_eq!(queue.receive(&mut into, true), Ok(true));
            assert_eq!(into.packet(), [round.wrapping_add(number); 60]);
        }
        assert_eq!(queue.receive(&mut into, false), Ok(false));
    }
    let statistics = queue.statistics().unwrap();
    assert_eq!(
        (statistics.received, statistics.sent, statistics.dropped),
        (200, 200, 50)
    );
    // Four are free, two are with the program.
    let free: Vec<_> = std::iter::from_fn(|| cluster.buffers().take()).collect();
    assert_eq!(free.len(), 4);
    let empty = queue.send(
        &mut {
            out.len = 0;
            out
        },
        false,
    );
    assert!(empty.is_err());
}

#[test]
fn a_queue_without_a_free_buffer_refuses() {
    let cluster = cluster(1);
    let queue = queue(&cluster, 4);
    let mut only = cluster.buffers().take().unwrap();
    fill(&mut only, 3);
    assert_eq!(queue.send(&mut only, false), Err(GENERIC));
    assert_eq!(only.packet(), [3; 60]);
}

#[test]
fn a_waiting_call_ends_when_it_is_asked_to() {
    let cluster = cluster(3);
    let queue = queue(&cluster, 1);
    let mut place = cluster.buffers().take().unwrap();
    queue.stop();
    assert_eq!(queue.receive(&mut place, true), Ok(false));
    let waiter = queue.clone();
    let thread = std::thread::spawn(move || (waiter.receive(&mut place, true), place));
    let mut sent = cluster.buffers().take().unwrap();
    fill(&mut sent, 9);
    while queue.send(&mut sent, false).is_err() {
        std::thread::yield_now();
    }
    let (received, place) = thread.join().unwrap();
    assert_eq!((received, place.packet()), (Ok(true), &[9; 60][..]));
}

#[test]
fn several_queues_receive_the_packets_of_their_bits() {
    let cluster = cluster(10);
    let queues = [queue(&cluster, 2), queue(&cluster, 2), queue(&cluster, 2)];
    let multi = MultiQueue::create(&queues).unwrap();
    assert!(!multi.is_null() && MultiQueue::create(&[]).is_err());
    let multi = MultiQueue::of(&queues);
    let mut place = cluster.buffers().take().unwrap();
    for (mask, count) in [(0b101, 2), (0, 0), (0b1000, 0), (u128::MAX, 3), (0b001, 0)] {
        fill(&mut place, mask as u8);
        assert_eq!(multi.send(&mut place, mask, false), count, "{mask}");
    }
    let mut seen = |queue: &Queue| {
        let mut numbers = Vec::new();
        while queue.receive(&mut place, false) == Ok(true) {
            numbers.push(place.packet()[0]);
        }
        numbers
    };
    assert_eq!(
        queues.each_ref().map(|it| seen(it)),
        [vec![5, 255], vec![255], vec![5, 255]]
    );
}

#[test]
fn a_pair_that_is_not_possible_takes_no_buffers() {
    let cluster = cluster(10);
    assert_eq!(cluster.pair(0, 4).err(), Some(INVALID_ARGUMENT));
    assert_eq!(cluster.pair(1, 11).err(), Some(NO_MEMORY));
    assert!(cluster.pair(1, 10).is_ok());
}

#[test]
fn queues_that_are_created_at_the_same_time_have_different_numbers() {
    const EACH: u32 = 50;
    let cluster = cluster(1000);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..EACH).for_each(|_| assert!(cluster.pair(1, 1).is_ok())));
        }
    });
    let queues: Vec<_> = lock(&cluster.queues).iter().map(|it| it.id()).collect();
    assert_eq!(queues, (0..4 * EACH).collect::<Vec<_>>());
    let mut pools: Vec<_> = lock(&cluster.pools).iter().map(|it| it.id).collect();
    pools.sort_unstable();
    assert_eq!(pools, queues);
}

fn pool() -> Pool {
    let pool = Pool::new(PoolConfig {
        frame_count: 256,
        frame_len: 2048,
        huge_pages: HugePages::Never,
    });
    pool.unwrap()
}

#[test]
fn a_long_packet_has_room_behind_short_ones() {
    let mut reader = Reader::new(&pool(), 16).unwrap();
    let metadata = cluster(1).buffers().take().unwrap().metadata();
    for _ in 0..15 {
        assert!(reader.send(&[1; 60], metadata));
    }
    assert!(reader.has_room(32) && reader.send(&[2; 65_535], metadata));
    assert!(!reader.has_room(1) && !reader.send(&[3; 60], metadata));
}

/// Where the packet starts, and how much room there is from there on.
fn room(buffer: &mut Buffer) -> (*const u8, usize) {
    let data = buffer.data();
    (data.as_ptr(), data.len())
}

#[test]
fn a_buffer_whose_packet_was_copied_has_its_room_again() {
    const COUNT: u8 = 16;
    let cluster = cluster(2);
    let queue = queue(&cluster, COUNT.into());
    queue.as_local().unwrap().make_reader(&pool());
    let mut place = cluster.buffers().take().unwrap();
    let before = room(&mut place);
    for number in 0..COUNT {
        fill(&mut place, number);
        // Headers are removed, and in other rounds added.
        let (moved, len) = match number % 2 {
            0 => (place.pull(14).is_some(), 46),
            _ => (place.push(50).is_some(), 110),
        };
        assert!(moved);
        assert_ne!(room(&mut place), before);
        assert_eq!(queue.send(&mut place, false), Ok(len));
        assert_eq!(room(&mut place), before, "{number}");
    }
    // A packet that was not sent stays as it is, so that it can be sent again.
    fill(&mut place, 99);
    assert!(place.pull(14).is_some());
    let pulled = room(&mut place);
    assert_eq!(queue.send(&mut place, false), Err(GENERIC));
    assert_eq!((room(&mut place), place.packet()), (pulled, &[99; 46][..]));
}

#[test]
fn several_queues_receive_a_packet_whose_start_was_moved() {
    let cluster = cluster(8);
    let queues = [queue(&cluster, 2), queue(&cluster, 2), queue(&cluster, 2)];
    let multi = MultiQueue::of(&queues);
    // The last one copies, so that the buffer stays.
    queues[2].as_local().unwrap().make_reader(&pool());
    let mut place = cluster.buffers().take().unwrap();
    let before = room(&mut place);
    fill(&mut place, 5);
    place.data()[..14].fill(9);
    assert!(place.pull(14).is_some());
    assert_eq!(multi.send(&mut place, u128::MAX, false), 3);
    assert_eq!(room(&mut place), before);
    for queue in &queues[..2] {
        assert_eq!(queue.receive(&mut place, false), Ok(true));
        assert_eq!(place.packet(), [5; 46]);
    }
}

#[test]
fn packets_that_were_not_taken_are_counted_not_their_parts() {
    let mut sent = attached::Sent::default();
    for part_count in [1, 10, 1] {
        sent.push(part_count);
    }
    for (pending, left) in [(12, 3), (11, 2), (5, 2), (1, 1), (0, 0)] {
        assert_eq!(sent.trim(pending), left, "{pending}");
    }
}

#[test]
fn clusters_have_bounds() {
    for (len, metadata, count) in [(0, 0, 1), (65_536, 0, 1), (64, 241, 1), (64, 0, 0)] {
        assert!(Cluster::new(1, len, metadata, count).is_err());
    }
    let cluster = cluster(10);
    assert!(cluster.queue(0).is_err());
    assert!(cluster.pool(8).is_ok());
    assert_eq!(cluster.pool(3).err(), Some(NO_MEMORY));
    assert_eq!(
        queue(&cluster, 1).set_filter(Some("tcp")),
        Err(NOT_SUPPORTED)
    );
    assert!(
        cluster
            .device("no-such-interface", Mode::Receive, DeviceTerms::default())
            .is_err()
    );
}

/// An IPv4 packet with UDP.
fn packet(ends: [(u8, u16); 2], payload: &[u8]) -> Vec<u8> {
    let [from, to] = ends;
    let mut bytes = vec![0; 12];
    bytes.extend([8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0]);
    bytes.extend([10, 0, 0, from.0, 10, 0, 0, to.0]);
    bytes.extend([from.1.to_be_bytes(), to.1.to_be_bytes(), [0, 8], [0, 0]].concat());
    bytes.extend(payload);
    bytes
}

#[test]
fn hashes_are_the_same_in_both_directions_and_look_into_gtp() {
    use hash::{by_addresses, by_flow, by_gre, by_gtp};
    let [there, back] = [[(1, 7), (2, 9)], [(2, 9), (1, 7)]].map(|ends| packet(ends, &[]));
    assert_eq!(by_addresses(&there), by_addresses(&back));
    assert_eq!(by_gtp(&there), by_gtp(&back));
    assert_ne!(by_gtp(&there), by_gtp(&packet([(1, 8), (2, 9)], &[])));
    assert_ne!(
        by_addresses(&there),
        by_addresses(&packet([(1, 7), (3, 9)], &[]))
    );
    let mut tagged = there.clone();
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    assert_eq!(by_addresses(&tagged), by_addresses(&there));
    let gtp = |inner: &[u8]| {
        packet(
            [(8, 2152), (9, 2152)],
            &[&[0x30, 255, 0, 0, 0, 0, 0, 1], &inner[14..]].concat(),
        )
    };
    assert_eq!(by_gtp(&gtp(&there)), by_gtp(&back));
    assert_eq!(by_flow(&there), by_flow(&back));
    assert_ne!(by_flow(&there), by_flow(&packet([(1, 8), (2, 9)], &[])));
    // By GRE with a key: only the inner addresses count.
    let gre = |outer: u8, inner: &[u8]| {
        let key = [0x20, 0, 8, 0, 0, 0, 0, outer];
        let mut bytes = packet([(outer, 0), (9, 0)], &[&[0; 8], &inner[14..]].concat());
        bytes[23] = 47;
        bytes[34..42].copy_from_slice(&key);
        bytes.drain(42..50);
        bytes
    };
    assert_eq!(by_gre(&gre(1, &there)), by_addresses(&there));
    assert_eq!(by_gre(&gre(2, &back)), by_addresses(&there));
    assert_eq!(by_gre(&there), by_gtp(&there));
    for len in 0..there.len() {
        by_addresses(&there[..len]);
        by_flow(&there[..len]);
        by_gtp(&gtp(&there)[..len]);
        by_gre(&gre(1, &there)[..len]);
    }
    assert_eq!(by_addresses(&[]), 0);
}

#[test]
fn headers_are_removed_and_added_at_the_start_of_a_packet() {
    let cluster = cluster(2);
    let mut buffer = cluster.buffers().take().unwrap();
    fill(&mut buffer, 7);
    let start = buffer.data().as_ptr();
    assert_eq!(
        buffer.pull(14).map(|data| data.as_ptr()),
        Some(start.wrapping_add(14))
    );
    assert_eq!((buffer.packet().len(), buffer.packet()[0]), (46, 7));
    // The head room, and what was removed.
    assert_eq!(
        buffer.push(14 + 64).map(|data| data.as_ptr()),
        Some(start.wrapping_sub(64))
    );
    assert_eq!(buffer.packet().len(), 60 + 64);
    assert!(buffer.push(1).is_none() && buffer.pull(125).is_none());
    let address = (&raw const *buffer).addr();
    let data = buffer.data().as_ptr().addr();
    for at in [data, data + 64, data + 100] {
        assert_eq!(cluster.buffers().of_data(at), Some(address));
    }
    assert_ne!(cluster.buffers().of_data(data - 1), Some(address));
    // A buffer that is taken again has its head room.
    cluster.buffers().give(buffer);
    let mut buffer = cluster.buffers().take().unwrap();
    assert_eq!(buffer.data().as_ptr(), start);
}
