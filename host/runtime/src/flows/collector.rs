//! The collector: takes ended flows from the workers, merges halves, passes records to the outlet
//! and reports status to it.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flow::top::Top;
use flow::{EndReason, Extra, HashKey, Merger, OwnedExtra, Record, Sampler, Sampling};
use port::{PortAccount, PortDescription, PortEvent};
use sys::{Error, Result};

use super::egress::{self, Egress, EgressReport};
use super::outbox::Buffer;
use super::worker::Worker;
use super::{
    Config, Message, Outlet, QueueStatus, RecordOutcome, Report, Shared, Status, lock,
    wall_clock_ns,
};

/// Maximum number of one-way flows held for the other direction when there are several queues.
pub(super) const HALF_COUNT_MAX: usize = 1 << 16;
/// How long after one direction the other may end, in addition to the idle timeout: the search for
/// ended flows and the devices' own delays.
const HALF_SLACK_NS: u64 = 5_000_000_000;

/// A sampler of records, if any are left out.
fn sampler(sampling: Sampling, hash_key: &HashKey) -> Option<Sampler> {
    (sampling != Sampling::All).then(|| Sampler::new(sampling, hash_key))
}

/// Records passed to the outlet: counted and summed up.
struct Out<'a> {
    outlet: &'a mut dyn Outlet,
    top: Top,
    sampler: Option<Sampler>,
    hash_key: HashKey,
    /// Number of the selection that the sampler belongs to.
    selection_number: u32,
    records: u64,
    packets: u64,
    records_dropped: u64,
    packets_dropped: u64,
    /// Records left out by sampling, and packets in them.
    unsampled: [u64; 2],
    error: Option<Error>,
}

impl<'a> Out<'a> {
    fn new(config: &Config, outlet: &'a mut dyn Outlet) -> Out<'a> {
        Out {
            outlet,
            top: Top::new(config.top_count, config.order),
            sampler: sampler(config.record_sampling, &config.meter.hash_key),
            hash_key: config.meter.hash_key.clone(),
            selection_number: 0,
            records: 0,
            packets: 0,
            records_dropped: 0,
            packets_dropped: 0,
            unsampled: [0; 2],
            error: None,
        }
    }

    /// Whether a record is passed on.
    fn takes(&mut self, record: &Record) -> bool {
        self.top.add(record);
        let sampler = self.sampler.as_mut();
        if sampler.is_some_and(|s| !s.takes_record(record.key(), record.end_ns())) {
            self.unsampled[0] += 1;
            self.unsampled[1] += record.packets();
            return false;
        }
        true
    }

    /// Counts a record by its fate.
    fn note(&mut self, record: &Record, fate: Result<RecordOutcome>) {
        // A record for which the outlet failed was not passed on either.
        let fate = fate.unwrap_or_else(|error| {
            self.error = Some(error);
            RecordOutcome::Dropped
        });
        let (records, packets) = match fate {
            RecordOutcome::Reported => (&mut self.records, &mut self.packets),
            RecordOutcome::Dropped => (&mut self.records_dropped, &mut self.packets_dropped),
        };
        *records += 1;
        *packets += record.packets();
    }
}

impl flow::RecordSink for Out<'_> {
    fn ended(&mut self, record: &Record, reason: EndReason) {
        self.ended_with(record, &Extra::default(), reason);
    }

    fn ended_with(&mut self, record: &Record, extra: &Extra<'_>, reason: EndReason) {
        if self.takes(record) {
            let fate = match self.error {
                None => self.outlet.ended(record, extra, reason),
                Some(_) => Ok(RecordOutcome::Dropped),
            };
            self.note(record, fate);
        }
    }
}

/// Merges flows whose directions came through different queues.
fn merger(config: &Config) -> Merger {
    let timeouts = &config.meter.table.timeouts;
    let idle_ns = timeouts.idle_tcp_ns.max(timeouts.idle_udp_ns);
    let idle_ns = idle_ns.max(timeouts.idle_other_ns).max(timeouts.linger_ns);
    Merger::new(HALF_COUNT_MAX, idle_ns + HALF_SLACK_NS)
}

pub(super) struct Collector<'a> {
    start: Instant,
    /// Taken once it is over.
    duration: Option<Duration>,
    shared: Arc<Shared>,
    published: Vec<Arc<Mutex<QueueStatus>>>,
    empties: Vec<SyncSender<Buffer>>,
    merger: Option<Merger>,
    out: Out<'a>,
    /// Number of workers still running.
    running: usize,
    /// Number of workers that need no more packets.
    paused: usize,
    events: Vec<PortEvent>,
    error: Option<Error>,
    egress: Option<Egress>,
}

impl<'a> Collector<'a> {
    /// Creates the collector of a probe started at `start` with these workers.
    pub(super) fn new(
        start: Instant,
        config: &Config,
        shared: Arc<Shared>,
        workers: &[Worker],
        egress: Option<Egress>,
        outlet: &'a mut dyn Outlet,
    ) -> Collector<'a> {
        Collector {
            start,
            duration: config.duration,
            shared,
            published: workers.iter().map(|w| w.status.clone()).collect(),
            empties: workers.iter().map(|w| w.empties.clone()).collect(),
            merger: (workers.len() > 1).then(|| merger(config)),
            out: Out::new(config, outlet),
            running: workers.len(),
            paused: 0,
            events: Vec::new(),
            error: None,
            egress,
        }
    }

    /// Runs until all workers have ended.
    pub(super) fn collect(&mut self, messages: &Receiver<Message>) {
        const PULSE: Duration = Duration::from_millis(100);
        let mut next_pulse = self.start + PULSE;
        while self.running > 0 {
            let wait = next_pulse.saturating_duration_since(Instant::now());
            match messages.recv_timeout(wait) {
                Ok(message) => self.handle(message),
                Err(RecvTimeoutError::Timeout) => {}
                // All senders are gone: a worker panicked.
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if Instant::now() >= next_pulse {
                next_pulse = Instant::now() + PULSE;
                self.pulse();
            }
            let start = self.start;
            if self.duration.take_if(|d| start.elapsed() >= *d).is_some() {
                self.shared.switch.end();
                // The outlet learns that the time is up before it gets the remaining records.
                self.pulse();
            }
            if self.out.error.is_some() {
                self.shared.switch.end();
            }
            self.stop_intake();
        }
        if let Some(merger) = &mut self.merger {
            merger.finish(&mut self.out);
        }
        // The final state: a short file ends before the first pulse.
        self.pulse();
    }

    /// Records the error, unless there was one before.
    pub(super) fn failed(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Ended(index, mut buffer) => {
                for (at, (record, reason)) in buffer.records.iter().enumerate() {
                    let extra = match buffer.has_extras {
                        true => buffer.extras.get(at).map(OwnedExtra::get),
                        false => None,
                    };
                    let out = &mut self.out;
                    match &mut self.merger {
                        Some(merger) => merger.push_with(record, extra.as_ref(), *reason, out),
                        None => {
                            let extra = extra.unwrap_or_default();
                            flow::RecordSink::ended_with(out, record, &extra, *reason);
                        }
                    }
                }
                buffer.clear();
                // The worker may have ended; its channel has room for all its buffers.
                drop(self.empties[index].try_send(buffer));
            }
            Message::Paused => self.paused += 1,
            Message::Done(ended) => {
                self.running -= 1;
                if let Err(error) = ended {
                    self.failed(error);
                }
            }
        }
    }

    fn stop_intake(&mut self) {
        let all_paused = self.paused == self.published.len();
        let wanted = self.shared.switch.stop.is_set() || all_paused;
        if wanted && !self.shared.intake_stopped.load(Ordering::Relaxed) {
            // A device that was removed cannot be stopped; the worker reports its error.
            drop(lock(&self.shared.control).stop());
            self.shared.intake_stopped.store(true, Ordering::Relaxed);
        }
    }

    fn pulse(&mut self) {
        if self.shared.is_live
            && let Some(merger) = &mut self.merger
        {
            merger.tick(wall_clock_ns(), &mut self.out);
        }
        let account = {
            let mut control = lock(&self.shared.control);
            self.events.clear();
            while let Some(event) = control.event() {
                self.events.push(event);
            }
            control.account().unwrap_or_default()
        };
        let queues: Vec<QueueStatus> = self.published.iter().map(|s| lock(s).clone()).collect();
        let dropped = queues
            .iter()
            .map(|queue| queue.records_dropped)
            .sum::<u64>();
        let status = Status {
            elapsed: self.start.elapsed(),
            queues: &queues,
            account: &account,
            top: &self.out.top,
            events: &self.events,
            switch: &self.shared.switch,
            records_dropped: self.out.records_dropped + dropped,
            egress: self.egress.as_ref().map(|e| egress::total(&e.counters)),
        };
        let reported = self.out.outlet.pulse(&status);
        if self.out.error.is_none() {
            self.out.error = reported.err();
        }
        let number = &mut self.out.selection_number;
        if let Some(selection) = self.shared.switch.selection.changed(number) {
            self.out.sampler = sampler(selection.record_sampling, &self.out.hash_key);
        }
    }

    pub(super) fn report(mut self, mut description: PortDescription) -> Report {
        let (account, described) = {
            let mut control = lock(&self.shared.control);
            (control.account(), control.describe())
        };
        // Interfaces that became known while a file was read.
        description.interfaces = described.interfaces;
        let account = account.unwrap_or_else(|error| {
            self.error.get_or_insert(error);
            PortAccount::default()
        });
        let egress = self.egress.map(|mut egress| EgressReport {
            status: egress::total(&egress.counters),
            // A device that was removed has no account.
            account: egress.port.control.account().unwrap_or_default(),
        });
        let queues: Vec<QueueStatus> = self.published.iter().map(|s| lock(s).clone()).collect();
        let total = QueueStatus::total(&queues);
        Report {
            egress,
            elapsed: self.start.elapsed(),
            account,
            queues,
            records: self.out.records,
            packets_in_records: self.out.packets,
            records_dropped: self.out.records_dropped + total.records_dropped,
            packets_in_dropped: self.out.packets_dropped + total.packets_in_dropped,
            unsampled_records: self.out.unsampled[0],
            unsampled_record_packets: self.out.unsampled[1],
            merged: self.merger.as_ref().map_or(0, Merger::merged),
            top: self.out.top,
            error: self.out.error.or(self.error),
            description,
        }
    }
}
