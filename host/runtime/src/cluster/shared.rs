//! What the threads of a cluster share: counts, requests of readers, and events.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use port::RxQueue;
use ring::shared::{Caller, Handed, Interface};

use super::inputs::SharedInput;
use super::{ApplicationCounts, Event, Queue, SentQueue, Totals, returns};

/// Counts that the thread publishes once a batch.
#[derive(Default)]
pub(super) struct Shared {
    pub totals: [AtomicU64; 9],
    pub queues: Vec<SharedQueue>,
    pub applications: Vec<SharedApplication>,
    /// The ports that send.
    pub outputs: Vec<returns::SharedOutput>,
    pub inputs: Vec<SharedInput>,
    /// The queues of inputs that were opened again, by the number of the input.
    pub arrived: Mutex<Vec<(u16, Vec<RxQueue>)>>,
    pub has_arrived: AtomicBool,
    /// Whether the device of a port that sends is gone.
    pub has_lost_output: AtomicBool,
    /// Requests of processes that want to attach.
    pub callers: Mutex<Vec<(Caller, Vec<Interface>)>>,
    pub has_callers: AtomicBool,
    /// Set to have the thread look for readers that have exited.
    pub look: AtomicBool,
    pub events: Mutex<Vec<Event>>,
}

/// Counts of an application, as in [`ApplicationCounts::named`].
#[derive(Debug, Default)]
pub(super) struct SharedApplication(pub [AtomicU64; 7]);

#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct SharedQueue {
    pub handed: AtomicU64,
    pub returned: AtomicU64,
    pub lost: AtomicU64,
    pub dropped: AtomicU64,
    pub refused: AtomicU64,
    pub depth: AtomicU64,
    pub reader: AtomicU64,
    pub readers: AtomicU64,
    /// Inode of its memory.
    pub memory: AtomicU64,
    /// As in [`SentQueue`].
    pub sent: [AtomicU64; 5],
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// The counts of each application.
    pub fn counts(&self) -> Vec<ApplicationCounts> {
        let counts = self.applications.iter().map(|SharedApplication(counts)| {
            let values = counts.each_ref().map(|it| it.load(Ordering::Relaxed));
            ApplicationCounts::from_values(values)
        });
        counts.collect()
    }

    pub fn set_totals(&self, totals: &Totals) {
        let values = [
            totals.received,
            totals.received_bytes,
            totals.adopted,
            totals.copied,
            totals.pool_empty,
            totals.too_long,
            totals.surplus,
            totals.abandoned,
            totals.late,
        ];
        for (place, value) in self.totals.iter().zip(values) {
            place.store(value, Ordering::Relaxed);
        }
    }

    pub fn totals(&self) -> Totals {
        let [
            received,
            received_bytes,
            adopted,
            copied,
            pool_empty,
            too_long,
            surplus,
            abandoned,
            late,
        ] = self
            .totals
            .each_ref()
            .map(|value| value.load(Ordering::Relaxed));
        Totals {
            received,
            received_bytes,
            adopted,
            copied,
            pool_empty,
            too_long,
            surplus,
            abandoned,
            late,
        }
    }
}

impl SharedQueue {
    pub fn set(&self, counts: &Handed, depth: u32) {
        let values = [
            (&self.returned, counts.returned),
            (&self.lost, counts.lost),
            (&self.dropped, counts.dropped),
            (&self.refused, counts.refused),
            (&self.depth, depth.into()),
            (&self.handed, counts.handed),
        ];
        for (place, value) in values {
            place.store(value, Ordering::Relaxed);
        }
    }

    pub fn set_sent(&self, it: &SentQueue) {
        let values = [it.sent, it.passed, it.copied, it.dropped, it.refused];
        for (place, value) in self.sent.iter().zip(values) {
            place.store(value, Ordering::Relaxed);
        }
    }

    pub fn read(&self, index: u32, application: &str, len: u32) -> Queue {
        let get = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let reader = get(&self.reader) as u32;
        let (returned, lost) = (get(&self.returned), get(&self.lost));
        let [sent, passed, copied, dropped, refused] = self.sent.each_ref().map(get);
        Queue {
            sent: SentQueue {
                sent,
                passed,
                copied,
                dropped,
                refused,
            },
            index,
            application: application.to_owned(),
            reader: (reader != 0).then_some(reader),
            has_reader_exited: false,
            memory: get(&self.memory),
            readers: get(&self.readers),
            depth: get(&self.depth) as u32,
            len,
            counts: Handed {
                // Another thread writes them: at least what was returned was handed over.
                handed: get(&self.handed).max(returned + lost),
                returned,
                lost,
                dropped: get(&self.dropped),
                refused: get(&self.refused),
            },
        }
    }
}
