//! The ring and the free list under every interleaving of two threads (loom).
//!
//! The modules are compiled here a second time, with loom's atomics and cells instead of those of
//! `crate::sync`: so the models run in the ordinary `cargo test`, without a flag for the whole
//! build. A model explores all executions; those here take seconds.
#![allow(dead_code, reason = "the modules have more than the models use")]

/// Replaces the crate's module of this name.
mod sync {
    #[allow(
        clippy::unsafe_removed_from_name,
        reason = "the crate's own cell has this name"
    )]
    pub(crate) use loom::cell::UnsafeCell as Cell;
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}

#[path = "../src/cursor.rs"]
mod cursor;
#[path = "../src/free.rs"]
mod free;

use std::sync::Arc;

use loom::thread;
use sync::{AtomicU32, AtomicU64};

/// The producer fills a ring of two entries repeatedly, starting shortly before the indices wrap;
/// the consumer sees every value once, in order, and loom checks that no entry is read and written
/// at the same time. (Nothing spins: a model of that would not end.)
#[test]
fn a_ring_hands_over_in_order() {
    loom::model(|| {
        let (mut producer, mut consumer) = cursor::spsc_from::<u32>(2, u32::MAX);
        let sender = thread::spawn(move || {
            let mut sent = 0;
            for want in [1, 2, 2] {
                let room = producer.reserve(want);
                for at in 0..room {
                    producer.write(at, sent + at + 1);
                }
                producer.submit(room);
                sent += room;
            }
            sent
        });
        let mut seen = 0;
        let mut take = || {
            let count = consumer.peek(2);
            for at in 0..count {
                assert_eq!(consumer.read(at), seen + at + 1);
            }
            consumer.release(count);
            seen += count;
        };
        take();
        take();
        let sent = sender.join().unwrap();
        take();
        assert!(seen == sent && sent >= 2, "{seen} of {sent}");
    });
}

/// Entries submitted before the sender closed are still received afterwards.
#[test]
fn no_packet_is_lost_when_the_sender_is_closed() {
    loom::model(|| {
        let (mut producer, mut consumer) = cursor::spsc_from::<u32>(4, 0);
        let sender = thread::spawn(move || {
            assert_eq!(producer.reserve(3), 3);
            (0..3).for_each(|at| producer.write(at, at + 1));
            producer.submit(2);
            producer.submit(1);
        });
        let early = consumer.peek(4);
        let seen: Vec<u32> = (0..early).map(|at| consumer.read(at)).collect();
        consumer.release(early);
        sender.join().unwrap();
        let late = consumer.peek(4);
        let seen: Vec<u32> = seen
            .into_iter()
            .chain((0..late).map(|at| consumer.read(at)))
            .collect();
        assert_eq!(seen, [1, 2, 3]);
    });
}

struct List {
    head: AtomicU64,
    next: Vec<AtomicU32>,
}

impl List {
    /// A list with all of `count` indices.
    fn full(count: u32) -> Arc<List> {
        let list = List {
            head: AtomicU64::new(free::empty()),
            next: (0..count).map(|_| AtomicU32::new(0)).collect(),
        };
        let all: Vec<u32> = (0..count).collect();
        free::push(&list.head, &list.next, &all);
        Arc::new(list)
    }

    fn pop(&self, max: usize) -> Vec<u32> {
        let mut out = vec![0; max];
        let count = free::pop(&self.head, &self.next, &mut out);
        out.truncate(count);
        out
    }

    fn push(&self, indices: &[u32]) {
        free::push(&self.head, &self.next, indices);
    }
}

/// Checks that the indices are exactly those of a list of `count`.
fn assert_whole(mut indices: Vec<u32>, count: u32) {
    indices.sort_unstable();
    assert_eq!(indices, (0..count).collect::<Vec<_>>());
}

/// Two threads pop at the same time: no index goes to both, none is lost.
#[test]
fn no_index_is_popped_twice() {
    loom::model(|| {
        let list = List::full(3);
        let other = list.clone();
        let popped = thread::spawn(move || other.pop(2));
        let mut all = list.pop(2);
        all.extend(popped.join().unwrap());
        all.extend(list.pop(3));
        assert_whole(all, 3);
    });
}

/// A top that was popped and pushed again while another thread was popping (ABA): the tag detects
/// it.
#[test]
fn a_reinserted_top_is_detected() {
    loom::model(|| {
        let list = List::full(3);
        let other = list.clone();
        let kept = thread::spawn(move || {
            let first = other.pop(1);
            let second = other.pop(1);
            other.push(&first);
            second
        });
        let mut all = list.pop(2);
        all.extend(kept.join().unwrap());
        all.extend(list.pop(3));
        assert_whole(all, 3);
    });
}

/// Both threads pop and push: at the end all indices are on the list, once.
#[test]
fn a_pushed_index_is_popped_once() {
    loom::model(|| {
        let list = List::full(2);
        let other = list.clone();
        let thread = thread::spawn(move || {
            let mine = other.pop(2);
            other.push(&mine);
        });
        let mine = list.pop(1);
        list.push(&mine);
        thread.join().unwrap();
        assert_whole(list.pop(3), 2);
    });
}
