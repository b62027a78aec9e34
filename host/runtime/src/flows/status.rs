//! The status and the outcome of a probe, and the trait of the outlet that gets them.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use flow::series::Series;
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

/// What an outlet did with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordOutcome {
    /// It is on its way.
    Reported,
    /// Its reader is too slow: there was no room, and the record is counted as dropped.
    Dropped,
}

/// Where the results go. Called by the collector only.
pub trait Outlet {
    /// A flow has ended. Extra fields that are disabled are empty.
    ///
    /// # Errors
    /// End the probe.
    fn ended(
        &mut self,
        record: &Record,
        extra: &Extra<'_>,
        reason: EndReason,
    ) -> Result<RecordOutcome>;

    /// About ten times a second.
    ///
    /// # Errors
    /// End the probe.
    fn pulse(&mut self, status: &Status<'_>) -> Result<()>;
}

/// The current state.
pub struct Status<'a> {
    /// Since the start.
    pub elapsed: Duration,
    /// Each queue's figures.
    pub queues: &'a [QueueStatus],
    /// The port's account, momentary: counters are not read at one instant.
    pub account: &'a PortAccount,
    /// Sums over flows that have ended.
    pub top: &'a Top,
    /// What happened to the device since the last time.
    pub events: &'a [PortEvent],
    /// Ends the probe when set; changes what is large.
    pub switch: &'a Switch,
    /// Records dropped so far, by workers and by the outlet.
    pub records_dropped: u64,
    /// What went on to another port so far.
    pub egress: Option<EgressStatus>,
}

impl Status<'_> {
    /// The figures of all queues together.
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
    /// Of a probe with this configuration, which also ends when `stop` is set.
    pub(super) fn new(config: &Config, stop: &Stop) -> Switch {
        Switch {
            // The end of one probe is no request to others.
            stop: stop.child(),
            order: AtomicU8::new(config.order as u8),
            selection: Changing::new(Selection {
                filter: config.filter.clone(),
                sampling: config.meter.sampling,
                record_sampling: config.record_sampling,
            }),
        }
    }

    /// Ends the probe, cleanly.
    pub fn end(&self) {
        self.stop.set();
    }

    /// From now on these packets and records, and no others. Each packet is counted as the one or
    /// the other had it.
    pub fn select(&self, selection: Selection) {
        self.selection.set(selection);
    }

    /// What makes a flow large, from now on.
    pub fn set_order(&self, order: Order) {
        self.order.store(order as u8, Ordering::Relaxed);
    }

    /// What makes a flow large.
    pub fn order(&self) -> Order {
        let index = usize::from(self.order.load(Ordering::Relaxed));
        Order::ALL.get(index).copied().unwrap_or_default()
    }
}

/// A queue's figures.
#[derive(Clone, Debug, Default)]
pub struct QueueStatus {
    /// Number of the queue on its interface.
    pub queue_index: u32,
    /// The meter's.
    pub meter: MeterStats,
    /// Bytes on the wire of the packets metered, link headers included.
    pub wire_bytes: u64,
    /// Packets delivered after the count to end at was reached, and not metered.
    pub unmetered: u64,
    /// Packets that the filter in the workers left out.
    pub unselected: u64,
    /// Records dropped because the collector had not taken those before them.
    pub records_dropped: u64,
    /// Packets in them.
    pub packets_in_dropped: u64,
    /// The largest flows that continue, largest first.
    pub live: Vec<Record>,
    /// What decoders know of each of them so far.
    pub live_applications: Vec<inspect::Application>,
    /// Bytes a second of each of them over about a second, from the initiator and to it; nothing
    /// before there were two looks.
    pub live_rates: Vec<Option<[u64; 2]>>,
    /// Flows that fit into the table.
    pub capacity: u64,
    /// The decoders'.
    pub applications: InspectorStats,
    /// libndpi's.
    pub ndpi: NdpiStats,
    /// Packets and bytes over packet time: at the end, if requested.
    pub series: Option<Box<Series>>,
}

impl QueueStatus {
    /// Sums; the live flows are left out.
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

/// How a probe ended.
pub struct Report {
    /// From start to end.
    pub elapsed: Duration,
    /// The port's account, closed.
    pub account: PortAccount,
    /// Each queue's figures.
    pub queues: Vec<QueueStatus>,
    /// Records given to the outlet, which took them.
    pub records: u64,
    /// Packets in them.
    pub packets_in_records: u64,
    /// Records for which collector or outlet had no room.
    pub records_dropped: u64,
    /// Packets in them.
    pub packets_in_dropped: u64,
    /// Records that sampling left out.
    pub unsampled_records: u64,
    /// Packets in them.
    pub unsampled_record_packets: u64,
    /// Pairs of one-way records from different queues made one.
    pub merged: u64,
    /// Sums over all flows.
    pub top: Top,
    /// Why it ended early, if it did: the device went away, the file is damaged, the outlet
    /// failed.
    pub error: Option<Error>,
    /// What the port was.
    pub description: PortDescription,
    /// What went on to another port, if anything was to.
    pub egress: Option<EgressReport>,
}

impl Report {
    /// What is missing (positive) or counted twice (negative): between what the port delivered and
    /// what the meters took, and between that and the records given out. 0 when all adds up.
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
