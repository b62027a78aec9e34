//! The status and the outcome of a probe, and the trait of the outlet that receives them.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use flow::series::Series;
use flow::tally::Sums;
use flow::top::{Order, Top};
use flow::{EndReason, Extra, MeterStats, Record};
use inspect::InspectorStats;
use port::{PortAccount, PortDescription, PortEvent};
use sys::{Error, Result};

use super::Config;
use super::egress::{EgressReport, EgressStatus};
use super::ndpi::NdpiStats;
use super::selection::{Changing, Selection};
use crate::Stop;

/// What happened to a record at an outlet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordOutcome {
    /// It was accepted.
    Reported,
    /// It was dropped and counted: the reader is too slow, and there was no room.
    Dropped,
}

/// The destination of results. Called by the collector only.
pub trait Outlet {
    /// Called when a flow has ended. Extra fields that are disabled are empty.
    ///
    /// # Errors
    /// An error ends the probe.
    fn ended(
        &mut self,
        record: &Record,
        extra: &Extra<'_>,
        reason: EndReason,
    ) -> Result<RecordOutcome>;

    /// Called about ten times a second.
    ///
    /// # Errors
    /// An error ends the probe.
    fn pulse(&mut self, status: &Status<'_>) -> Result<()>;
}

/// The current state.
pub struct Status<'a> {
    /// Time since the start.
    pub elapsed: Duration,
    /// Figures of each queue.
    pub queues: &'a [QueueStatus],
    /// The port's account at the moment: its counters are not read at the same instant.
    pub account: &'a PortAccount,
    /// Sums over flows that have ended.
    pub top: &'a Top,
    /// Events of the device since the last call.
    pub events: &'a [PortEvent],
    /// Ends the probe, or changes what the largest flows are ordered by.
    pub switch: &'a Switch,
    /// Records dropped so far, by workers and by the outlet.
    pub records_dropped: u64,
    /// Packets forwarded to the egress so far.
    pub egress: Option<EgressStatus>,
}

impl Status<'_> {
    /// The figures of all queues added up.
    pub fn total(&self) -> QueueStatus {
        QueueStatus::total(self.queues)
    }
}

/// Requests that an outlet can make while the probe runs.
pub struct Switch {
    pub(super) stop: Stop,
    order: AtomicU8,
    pub(super) selection: Changing,
}

impl Switch {
    /// Creates the switch of a probe with this configuration, which also ends when `stop` is set.
    pub(super) fn new(config: &Config, stop: &Stop) -> Switch {
        Switch {
            // The end of one probe does not stop others.
            stop: stop.child(),
            order: AtomicU8::new(config.order as u8),
            selection: Changing::new(Selection {
                filter: config.filter.clone(),
                sampling: config.meter.sampling,
                record_sampling: config.record_sampling,
            }),
        }
    }

    /// Ends the probe in order.
    pub fn end(&self) {
        self.stop.set();
    }

    /// Selects these packets and records from now on. Each packet is counted by either the old or
    /// the new selection.
    pub fn select(&self, selection: Selection) {
        self.selection.set(selection);
    }

    /// Sets what the largest flows are ordered by.
    pub fn set_order(&self, order: Order) {
        self.order.store(order as u8, Ordering::Relaxed);
    }

    /// What the largest flows are ordered by.
    pub fn order(&self) -> Order {
        let index = usize::from(self.order.load(Ordering::Relaxed));
        Order::ALL.get(index).copied().unwrap_or_default()
    }
}

/// Figures of a queue.
#[derive(Clone, Debug, Default)]
pub struct QueueStatus {
    /// Index of the queue on its interface.
    pub queue_index: u32,
    /// Figures of the meter.
    pub meter: MeterStats,
    /// Bytes on the wire of the packets metered, link headers included.
    pub wire_bytes: u64,
    /// Packets delivered after `count` was reached, and not metered.
    pub unmetered: u64,
    /// Packets that the workers' filter rejected.
    pub unselected: u64,
    /// Records dropped because the collector lagged.
    pub records_dropped: u64,
    /// Packets in them.
    pub packets_in_dropped: u64,
    /// The largest live flows, largest first.
    pub live: Vec<Record>,
    /// Decoded fields of each of them so far.
    pub live_applications: Vec<inspect::Application>,
    /// Rates of each of them in bytes per second over about a second, from the initiator and from
    /// the responder; `None` before the second scan.
    pub live_rates: Vec<Option<[u64; 2]>>,
    /// Capacity of the table in flows.
    pub capacity: u64,
    /// Figures of the decoders.
    pub applications: InspectorStats,
    /// Figures of libndpi.
    pub ndpi: NdpiStats,
    /// Packets and bytes by application, of live flows too, if requested.
    pub by_application: Sums,
    /// Packets and bytes over packet time, at the end and if requested.
    pub series: Option<Box<Series>>,
}

impl QueueStatus {
    /// Sums over queues, without the live flows.
    pub fn total(queues: &[QueueStatus]) -> QueueStatus {
        let mut total = QueueStatus::default();
        for queue in queues {
            total.meter.add(&queue.meter);
            total.wire_bytes += queue.wire_bytes;
            total.unmetered += queue.unmetered;
            total.unselected += queue.unselected;
            total.records_dropped += queue.records_dropped;
            total.packets_in_dropped += queue.packets_in_dropped;
            total.capacity += queue.capacity;
            total.applications.add(&queue.applications);
            total.ndpi.add(&queue.ndpi);
        }
        total
    }
}

/// The outcome of a probe.
pub struct Report {
    /// From start to end.
    pub elapsed: Duration,
    /// The port's final account.
    pub account: PortAccount,
    /// Figures of each queue.
    pub queues: Vec<QueueStatus>,
    /// Records that the outlet accepted.
    pub records: u64,
    /// Packets in them.
    pub packets_in_records: u64,
    /// Records dropped by collector or outlet for lack of room.
    pub records_dropped: u64,
    /// Packets in them.
    pub packets_in_dropped: u64,
    /// Records left out by sampling.
    pub unsampled_records: u64,
    /// Packets in them.
    pub unsampled_record_packets: u64,
    /// Pairs of one-way records from different queues that were merged.
    pub merged: u64,
    /// Sums over all flows.
    pub top: Top,
    /// Why it ended early, if it did: the device was removed, the file is damaged, the outlet
    /// failed.
    pub error: Option<Error>,
    /// The port's description.
    pub description: PortDescription,
    /// Packets forwarded to the egress, if there is one.
    pub egress: Option<EgressReport>,
}

impl Report {
    /// Packets missing (positive) or counted twice (negative): between what the port delivered and
    /// the meters took, and between that and the records. 0 if everything is accounted for.
    pub fn imbalance(&self) -> i64 {
        let total = QueueStatus::total(&self.queues);
        let delivered = self.account.rx_total().delivered;
        let taken = total.meter.packets + total.unmetered + total.unselected;
        let taken = taken + total.meter.twice;
        let accounted = self.packets_in_records
            + self.packets_in_dropped
            + self.unsampled_record_packets
            + total.meter.refused_total()
            + total.meter.unsampled
            + total.unmetered
            + total.unselected;
        let between = |more: u64, less: u64| more.wrapping_sub(less) as i64;
        match between(delivered + total.meter.twice, taken) {
            0 => between(taken, accounted),
            missing => missing,
        }
    }
}
