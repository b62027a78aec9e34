//! Once warm, moving packets through the memory ring allocates nothing: a counting allocator says
//! so.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use port::{Port, PortOptions};

thread_local! {
    /// Allocations of this thread. Without a destructor, so that it can be used from an allocator.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator as it came; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How many allocations `body` makes on this thread.
fn allocations(body: impl FnOnce()) -> u64 {
    let before = COUNT.get();
    body();
    COUNT.get() - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![1, 2, 3]))), 1);
    assert_eq!(allocations(|| ()), 0);
}

/// Sends `rounds` batches of packets of several lengths and receives them; gives back how many, and
/// a sum over their bytes, so that nothing is optimized away.
fn turn(port: &mut Port, rounds: usize, keep: bool) -> (usize, u64) {
    let (rx, tx) = (&mut port.rx[0], &mut port.tx[0]);
    let packet = [0x5a_u8; 1514];
    let (mut received, mut sum) = (0, 0);
    for round in 0..rounds {
        let mut batch = tx.reserve(64).unwrap();
        for at in 0..batch.room() {
            batch.write(&packet[..60 + (round * 37 + at * 131) % 1400]);
        }
        batch.submit().unwrap();
        tx.flush().unwrap();
        rx.wait(Duration::ZERO).unwrap();
        let mut batch = rx.receive().unwrap();
        received += batch.len();
        for packet in batch.iter() {
            sum += packet
                .bytes()
                .iter()
                .map(|byte| u64::from(*byte))
                .sum::<u64>();
            sum += packet.time_ns().unwrap_or(0) & 1;
        }
        for mut packet in batch.iter_mut() {
            packet.bytes_mut()[0] ^= 1;
        }
        if keep && !batch.is_empty() {
            // A frame that is kept is a move, and goes out again.
            let frame = batch.detach(0).unwrap();
            drop(batch);
            assert!(tx.send(frame).unwrap().is_none());
        }
    }
    (received, sum)
}

#[test]
fn the_memory_ring_allocates_nothing_once_warm() {
    for (query, keep) in [
        ("memory:", false),
        ("memory:?batch=7", true),
        ("memory:?timestamp=none", true),
    ] {
        let mut port = port::open(query, &PortOptions::default()).unwrap();
        turn(&mut port, 100, keep);
        let mut moved = (0, 0);
        let count = allocations(|| moved = turn(&mut port, 2000, keep));
        assert!(moved.0 > 10_000 && moved.1 > 0, "{query}: {moved:?}");
        assert_eq!(count, 0, "{query}: {} packets", moved.0);
    }
}

/// With a filter in user space too, rejected packets included.
#[test]
fn filtering_allocates_nothing_once_warm() {
    // ld len; jset #1, reject, keep
    let insns = vec![
        bpf::cbpf::Insn::new(0x80, 0, 0, 0),
        bpf::cbpf::Insn::new(0x45, 0, 1, 1),
        bpf::cbpf::Insn::new(0x06, 0, 0, 0),
        bpf::cbpf::Insn::new(0x06, 0, 0, u32::MAX),
    ];
    let options = PortOptions {
        filter: Some(bpf::cbpf::Program::new(insns).unwrap()),
        ..PortOptions::default()
    };
    let mut port = port::open("memory:", &options).unwrap();
    turn(&mut port, 100, false);
    let mut moved = (0, 0);
    let count = allocations(|| moved = turn(&mut port, 2000, false));
    let filtered = port.rx[0].counters().filtered.get();
    assert!(
        moved.0 > 10_000 && filtered > 10_000,
        "{moved:?}, {filtered} filtered"
    );
    assert_eq!(count, 0);
}
