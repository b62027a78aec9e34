//! The range that the SIGBUS handler of mapped files reads, under every interleaving with the
//! threads that change it (loom).
//!
//! The module is compiled here a second time, with loom's atomics.

/// Replaces the crate's module of this name.
mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicUsize, Ordering, fence};
}

#[path = "../src/backend/file/watched.rs"]
mod watched;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use watched::WatchedRange;

/// Two mappings at different addresses, and one at the first address with another length.
const RANGES: [(usize, usize); 3] = [(0x1000, 0x100), (0x8000, 0x20), (0x1000, 0x7)];

fn range() -> WatchedRange {
    WatchedRange {
        version: atomics::AtomicUsize::new(0),
        base: atomics::AtomicUsize::new(0),
        len: atomics::AtomicUsize::new(0),
    }
}

fn check(range: &WatchedRange) {
    if let Some(pair) = range.get() {
        assert!(pair == (0, 0) || RANGES.contains(&pair), "{pair:x?}");
    }
}

/// A mapping is registered, removed, and its entry used again: the handler sees one of the ranges,
/// none, or that the entry is being changed, and never the words of two ranges.
#[test]
fn the_handler_never_combines_two_ranges() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Arc::new(range());
        let writer = {
            let shared = shared.clone();
            thread::spawn(move || {
                for (base, len) in [RANGES[0], (0, 0), RANGES[1]] {
                    shared.set(base, len);
                }
            })
        };
        check(&shared);
        writer.join().unwrap();
        assert_eq!(shared.get(), Some(RANGES[1]));
    });
}

/// Two threads use the entry one after the other, as `taken` lets them.
#[test]
fn an_entry_passes_from_thread_to_thread() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Arc::new((AtomicBool::new(false), range()));
        let threads: Vec<_> = [RANGES[0], RANGES[2]]
            .into_iter()
            .map(|(base, len)| {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (taken, range) = &*shared;
                    let take =
                        taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
                    if take.is_ok() {
                        range.set(base, len);
                        range.set(0, 0);
                        taken.store(false, Ordering::Release);
                    }
                })
            })
            .collect();
        check(&shared.1);
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(shared.1.get(), Some((0, 0)));
    });
}
