//! The ring compared with a model, and against hostile indices.

use std::collections::VecDeque;

use std::sync::Arc;

use super::random::Random;
use crate::cursor::{Consumer, Producer, RingMemory, spsc, spsc_from};
use crate::sync::{AtomicU32, Cell, Ordering};

/// Random batches through rings of every small size, starting where the indices wrap, compared with
/// a queue of the standard library.
#[test]
fn random_batches_against_a_queue() {
    let mut random = Random::seeded("ring");
    for round in 0..200 {
        let size = 1 << random.below(6);
        let start = if round % 2 == 0 {
            0
        } else {
            u32::MAX - random.below(100)
        };
        let (mut producer, mut consumer) = spsc_from::<u64>(size, start);
        assert_eq!(
            (producer.entry_count(), consumer.entry_count()),
            (size, size)
        );
        // Entries in the ring, and values written but not submitted (a later write replaces them).
        let mut model = VecDeque::new();
        let mut next = 0_u64;
        for _ in 0..500 {
            if random.below(2) == 0 {
                let want = random.below(size + 3);
                let room = producer.reserve(want);
                assert_eq!(room, want.min(size - model.len() as u32), "room");
                let count = random.below(room + 1);
                for at in 0..room {
                    producer.write(at, next + u64::from(at));
                }
                producer.submit(count);
                model.extend((next..next + u64::from(count)).collect::<Vec<_>>());
                next += u64::from(count);
            } else {
                let want = random.below(size + 3);
                let ready = consumer.peek(want);
                assert_eq!(ready, want.min(model.len() as u32), "ready");
                for at in 0..ready {
                    assert_eq!(consumer.read(at), model[at as usize]);
                }
                let count = random.below(ready + 1);
                consumer.release(count);
                model.drain(..count as usize);
            }
            assert_eq!(producer.pending() as usize, model.len());
        }
    }
}

#[test]
fn sizes_are_rounded_up_to_powers_of_two() {
    for (asked, got) in [(0, 1), (1, 1), (2, 2), (3, 4), (1000, 1024)] {
        assert_eq!(spsc::<u8>(asked).0.entry_count(), got);
    }
}

#[test]
fn both_ends_work_from_different_threads() {
    const COUNT: u64 = 200_000;
    let (mut producer, mut consumer) = spsc::<u64>(64);
    let sender = std::thread::spawn(move || {
        let mut next = 0;
        while next < COUNT {
            let room = producer.reserve(17).min((COUNT - next) as u32);
            for at in 0..room {
                producer.write(at, next + u64::from(at));
            }
            producer.submit(room);
            next += u64::from(room);
            if room == 0 {
                std::thread::yield_now();
            }
        }
    });
    let mut expected = 0;
    while expected < COUNT {
        let ready = consumer.peek(23);
        for at in 0..ready {
            assert_eq!(consumer.read(at), expected + u64::from(at));
        }
        consumer.release(ready);
        expected += u64::from(ready);
        if ready == 0 {
            std::thread::yield_now();
        }
    }
    sender.join().unwrap();
}

/// Memory that a hostile other side writes into.
struct Shared {
    words: [AtomicU32; 3],
    entries: Vec<Cell<u64>>,
}

// SAFETY: the tests touch it from one thread.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

fn shared(entry_count: u32) -> (Arc<Shared>, RingMemory<u64>) {
    let shared = Arc::new(Shared {
        words: [0, 0, 0].map(AtomicU32::new),
        entries: (0..entry_count).map(|n| Cell::new(n.into())).collect(),
    });
    let memory = end(&shared, entry_count);
    (shared, memory)
}

/// A handle to that memory, for one end.
fn end(shared: &Arc<Shared>, entry_count: u32) -> RingMemory<u64> {
    // SAFETY: the words and entries live in the Arc that is passed as keeper, and are aligned; no
    // test makes two ends of a kind.
    unsafe {
        RingMemory::from_raw(
            shared.words[0].as_ptr(),
            shared.words[1].as_ptr(),
            shared.words[2].as_ptr(),
            shared.entries.as_ptr().cast(),
            entry_count,
            shared.clone(),
        )
    }
}

/// For any value that the other side writes into its index, no more is granted than the ring holds,
/// and every access stays within it.
#[test]
fn false_indices_stay_within_the_ring() {
    let mut random = Random::seeded("lies");
    for _ in 0..2000 {
        let size = 1 << random.below(5);
        let (shared, memory) = shared(size);
        let mut consumer = Consumer::new(memory);
        for _ in 0..20 {
            shared.words[0].store(random.number() as u32, Ordering::Relaxed);
            let ready = consumer.peek(random.number() as u32);
            assert!(ready <= size);
            for at in 0..ready {
                assert!(consumer.read(at) < u64::from(size));
            }
            consumer.release(random.below(ready + 1));
        }
        let (shared, memory) = self::shared(size);
        let mut producer = Producer::new(memory);
        for _ in 0..20 {
            shared.words[1].store(random.number() as u32, Ordering::Relaxed);
            let room = producer.reserve(random.number() as u32);
            assert!(room <= size && producer.pending() <= size);
            for at in 0..room {
                producer.write(at, at.into());
            }
            producer.submit(random.below(room + 1));
        }
    }
}

#[test]
fn a_cursor_continues_at_the_position_in_shared_memory() {
    let (shared, memory) = shared(8);
    shared.words[0].store(13, Ordering::Relaxed);
    shared.words[1].store(11, Ordering::Relaxed);
    let mut consumer = Consumer::new(memory);
    assert_eq!(consumer.peek(8), 2);
    assert_eq!((consumer.read(0), consumer.read(1)), (3, 4));
    let mut producer = Producer::new(end(&shared, 8));
    assert_eq!(producer.reserve(8), 6);
    assert_eq!(producer.pending(), 2);
}

#[test]
fn the_flag_is_read_anew_each_time() {
    let (shared, memory) = shared(1);
    let (producer, consumer) = (Producer::new(memory), Consumer::new(end(&shared, 1)));
    for flags in [0, 1, 0, 2, 3] {
        shared.words[2].store(flags, Ordering::Relaxed);
        assert_eq!(producer.need_wakeup(), flags & 1 == 1);
        assert_eq!(consumer.need_wakeup(), flags & 1 == 1);
    }
}

/// Accesses outside the granted range are refused, in release builds too.
#[test]
fn exceeding_the_grant_panics() {
    let panics = |what: &str, body: fn(Producer<u64>, Consumer<u64>)| {
        let (mut producer, consumer) = spsc(4);
        assert_eq!(producer.reserve(3), 3);
        producer.write(0, 7);
        producer.submit(1);
        let run = std::panic::AssertUnwindSafe(|| body(producer, consumer));
        assert!(std::panic::catch_unwind(run).is_err(), "{what}");
    };
    // Three of four are free now; the limit is known from the reserve.
    panics("write", |mut producer, _| producer.write(3, 0));
    panics("submit", |mut producer, _| producer.submit(4));
    panics("read before a peek", |_, consumer| {
        consumer.read(0);
    });
    panics("read", |_, mut consumer| {
        assert_eq!(consumer.peek(4), 1);
        consumer.read(1);
    });
    panics("release", |_, mut consumer| {
        assert_eq!(consumer.peek(4), 1);
        consumer.release(2);
    });
}

#[test]
#[should_panic(expected = "power of two")]
fn memory_of_another_length_is_refused() {
    shared(3);
}

/// A consumer's index that goes back does not take away what was granted, which would make the
/// submit fail.
#[test]
fn a_consumer_that_goes_back_takes_nothing_away() {
    let (shared, memory) = shared(8);
    let mut producer = Producer::new(memory);
    assert_eq!(producer.reserve(6), 6);
    for back in [u32::MAX, u32::MAX - 5, 1 << 31] {
        shared.words[1].store(back, Ordering::Relaxed);
        assert!(producer.reserve(9) >= 6, "{back}");
    }
    producer.write(5, 1);
    producer.submit(6);
    assert!(producer.pending() <= 8);
}
