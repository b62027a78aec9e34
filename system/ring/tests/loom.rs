//! The ring, the free list, the holdings of frames and the way to sleep under every interleaving of
//! two or three threads (loom).
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
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

    /// # Safety
    /// As for the crate's own.
    pub(crate) unsafe fn write_cells<T: Copy>(first: *const Cell<T>, values: &[T]) {
        for (at, value) in values.iter().enumerate() {
            // SAFETY: the caller's word.
            unsafe { (*first.add(at)).with_mut(|place| place.write(*value)) };
        }
    }
}

#[path = "../src/cursor.rs"]
mod cursor;
#[path = "../src/free.rs"]
mod free;
#[path = "../src/holding.rs"]
mod holding;
#[path = "../src/sleep.rs"]
mod sleep;

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

/// Of several holders that return a frame at the same time, one finds that it was the last; what
/// the others read of the frame before, they read before it is free.
#[test]
fn a_frame_of_several_holders_is_freed_once() {
    for count in [2, 3] {
        loom::model(move || {
            let held = Arc::new(AtomicU64::new(0));
            let frame = Arc::new(Bytes(sync::Cell::new(7)));
            holding::begin(&held, (1..=count).map(holding::bit).sum());
            let holders: Vec<_> = (2..=count)
                .map(|number| {
                    let (held, frame) = (held.clone(), frame.clone());
                    thread::spawn(move || give_back(&held, &frame, number))
                })
                .collect();
            let mut lasts = u32::from(give_back(&held, &frame, 1));
            for holder in holders {
                lasts += u32::from(holder.join().unwrap());
            }
            assert_eq!(lasts, 1);
            assert_eq!(holding::end(&held, holding::bit(1)), None);
        });
    }
}

/// A frame's bytes.
struct Bytes(sync::Cell<u32>);

// SAFETY: loom finds out if it is used from two threads at the same time.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

/// Reads the frame and returns it; whoever is the last writes it, as its next owner.
fn give_back(held: &AtomicU64, frame: &Bytes, number: u32) -> bool {
    // SAFETY: loom finds out if it is written at the same time.
    assert_eq!(frame.0.with(|frame| unsafe { *frame }), 7);
    let is_last = holding::end(held, holding::bit(number)).unwrap();
    if is_last {
        // SAFETY: nobody holds it any more, which is what loom checks.
        frame.0.with_mut(|frame| unsafe { *frame = 8 });
    }
    is_last
}

/// A reader that found nothing after it had announced its sleep is woken.
#[test]
fn no_reader_sleeps_beside_a_packet() {
    loom::model(|| {
        let (mut producer, mut consumer) = cursor::spsc_from::<u32>(2, 0);
        let sleeping = Arc::new(AtomicU32::new(0));
        let writer = {
            let sleeping = sleeping.clone();
            thread::spawn(move || {
                assert_eq!(producer.reserve(1), 1);
                producer.write(0, 1);
                producer.submit(1);
                sleep::is_needed(&sleeping)
            })
        };
        sleep::prepare(&sleeping);
        let sleeps = consumer.peek(1) == 0;
        let is_woken = writer.join().unwrap();
        assert!(!sleeps || is_woken, "it sleeps for good");
    });
}

/// The same for two readers of two rings, whose writer has one barrier for both.
#[test]
fn one_barrier_is_enough_for_two_readers() {
    loom::model(|| {
        let rings = [0, 1].map(|_| {
            let (producer, consumer) = cursor::spsc_from::<u32>(2, 0);
            (producer, consumer, Arc::new(AtomicU32::new(0)))
        });
        let (mut producers, mut readers) = (Vec::new(), Vec::new());
        for (producer, consumer, sleeping) in rings {
            producers.push((producer, sleeping.clone()));
            readers.push((consumer, sleeping));
        }
        let writer = thread::spawn(move || {
            for (producer, _) in &mut producers {
                assert_eq!(producer.reserve(1), 1);
                producer.write(0, 1);
                producer.submit(1);
            }
            sleep::barrier();
            let woken = producers.iter().map(|(_, it)| sleep::is_announced(it));
            woken.collect::<Vec<_>>()
        });
        let sleep = |(mut consumer, sleeping): (cursor::Consumer<u32>, Arc<AtomicU32>)| {
            sleep::prepare(&sleeping);
            consumer.peek(1) == 0
        };
        let second = readers.pop().unwrap();
        let second = thread::spawn(move || sleep(second));
        let first = sleep(readers.pop().unwrap());
        let sleeps = [first, second.join().unwrap()];
        for (sleeps, is_woken) in sleeps.into_iter().zip(writer.join().unwrap()) {
            assert!(!sleeps || is_woken, "it sleeps for good");
        }
    });
}
