//! The flow probe: a meter and a thread for each queue, and one thread that collects what ends.
//!
//! A worker owns its queue and its table; nothing on its path is shared or locked. Ended flows go
//! to the collector in buffers that come back to be used again, so memory has a bound. A worker on
//! a live port never waits for a buffer: while there is none it searches its table no further for
//! ended flows, and records that end all the same are dropped and counted. A file can wait, and so
//! does its worker; at the end, when no more packets come, every worker does. An outlet that finds
//! no room for a record says [`Fate::Dropped`], which is counted, too. Figures and the largest live
//! flows are left where the collector finds them, ten times a second.
//!
//! With more than one queue, the two directions of a flow may go through different tables (a card's
//! hash need not be symmetric); [`flow::Merger`] makes them one record.

mod application;
pub mod egress;
mod ndpi;
mod selection;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bpf::cbpf::Program;
use flow::series::Series;
use flow::top::{Order, Top};
use flow::{
    EndReason, Extra, HashKey, Merger, MeterConfig, MeterStats, OwnedExtra, Record, Sampler,
    Sampling,
};
use port::{Intake, Port, PortAccount, PortControl, PortDescription, PortEvent};
use sys::{Error, ErrorKind, Result};
use wire::LinkType;

use selection::Changing;

use egress::{Egress, EgressReport, EgressStatus};
use inspect::{InspectorConfig, InspectorStats};

use crate::worker::Ended;
use crate::{Pacing, Stop};

pub use ndpi::NdpiStats;
pub use selection::Selection;

/// Flows in one buffer.
const BUFFER_LEN: usize = 256;
/// Buffers of a worker: 3 MiB, and what was asked for beyond records.
const BUFFER_COUNT: usize = 64;
/// One-way flows held back for their other half, when there are several queues.
const HALF_COUNT_MAX: usize = 1 << 16;
/// How long after a half the other one may end, beyond the idle timeout: the search for ended
/// flows, the devices' own delays.
const HALF_SLACK_NS: u64 = 5_000_000_000;
/// How long workers wait for the intake to be stopped before they take what is left.
const STOP_MAX: Duration = Duration::from_secs(5);

/// What a probe is to do.
#[derive(Clone, Debug)]
pub struct Config {
    /// Table, key, timeouts; for each queue.
    pub meter: MeterConfig,
    /// What workers do while idle.
    pub pacing: Pacing,
    /// Processors to pin workers to, by queue in turn. Without any, workers are pinned where there
    /// are several, and enough processors.
    pub cpus: Vec<usize>,
    /// Stop after this many packets.
    pub count: Option<u64>,
    /// End after so long.
    pub duration: Option<Duration>,
    /// Which records go to the outlet.
    pub record_sampling: Sampling,
    /// The largest flows to keep sums of.
    pub top_count: usize,
    /// What makes a flow large.
    pub order: Order,
    /// The largest flows that go on to be shown in [`QueueStatus::live`]; 0 does not look for
    /// them.
    pub live_count: usize,
    /// Decoders for the first packets of flows, for each queue.
    pub applications: Option<InspectorConfig>,
    /// With [`Config::applications`]: also ask libndpi, with room for so many flows of which it has
    /// not yet said all.
    pub ndpi_flow_count: Option<u32>,
    /// A filter that runs in the workers, and can be changed by [`Switch::select`]; beside
    /// [`Config::count`] and an egress there can be none.
    pub filter: Option<Arc<Program>>,
    /// Count packets and bytes over time ([`QueueStatus::series`]).
    pub series: bool,
}

impl Config {
    /// All packets, by addresses, ports and protocol, in tables that share the room for four
    /// million flows where there are more than four queues; timeouts of 30 and 300 seconds.
    pub fn new(queue_count: usize) -> Config {
        let mut meter = MeterConfig::new(secret());
        meter.table.flow_count_max = default_size(queue_count);
        Config {
            meter,
            pacing: Pacing::default(),
            cpus: Vec::new(),
            count: None,
            duration: None,
            record_sampling: Sampling::All,
            top_count: 1,
            order: Order::default(),
            live_count: 0,
            applications: None,
            ndpi_flow_count: None,
            filter: None,
            series: false,
        }
    }

    /// Bytes of memory that the probe takes with this number of queues, the port's own not
    /// included.
    pub fn memory_len(&self, queue_count: usize) -> usize {
        let extra = self.meter.flow_len() - size_of::<Record>();
        let buffers = BUFFER_COUNT * BUFFER_LEN * (size_of::<(Record, EndReason)>() + extra);
        // A map keeps an eighth of its places free and doubles; so twice the entries, and the queue
        // beside it.
        let halves = if queue_count > 1 {
            HALF_COUNT_MAX * (2 * (size_of::<Record>() + size_of::<OwnedExtra>() + 104) + 2 * 88)
        } else {
            0
        };
        let applications = self.applications.as_ref().map_or(0, |config| {
            let known = size_of::<inspect::Application>() + inspect::LOG_LEN;
            config.memory_len() + BUFFER_COUNT * BUFFER_LEN * known
        });
        let ndpi = match (&self.applications, self.ndpi_flow_count) {
            (Some(config), Some(count)) => ndpi::memory_len(config, count),
            _ => 0,
        };
        queue_count * (self.meter.memory_len() + buffers + applications + ndpi) + halves
    }
}

/// Flows at one time for each queue, unless told: a card with many queues must not take all memory.
fn default_size(queue_count: usize) -> u32 {
    const ONE: u32 = 1 << 20;
    ONE.min(4 * ONE / queue_count.max(1) as u32)
}

/// 64 bytes that nobody can guess: the standard library's keyed hash, whose key comes from the
/// system.
fn secret() -> HashKey {
    use std::hash::BuildHasher;
    let random = std::hash::RandomState::new();
    let mut bytes = [0; 64];
    for (at, chunk) in bytes.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&random.hash_one(at).to_le_bytes());
    }
    HashKey::from_bytes(&bytes)
}

/// A number of seconds, or with a unit: `500ms`, `90s`, `5m`, `1h`.
/// What an outlet did with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is on its way.
    Told,
    /// Its reader is too slow: there was no room, and the record is counted as dropped.
    Dropped,
}

/// Where the results go. Called by the collector only.
pub trait Outlet {
    /// A flow has ended. What was not asked for beyond the record is empty.
    ///
    /// # Errors
    /// End the probe.
    fn ended(&mut self, record: &Record, extra: &Extra<'_>, reason: EndReason) -> Result<Fate>;

    /// About ten times a second.
    ///
    /// # Errors
    /// End the probe.
    fn pulse(&mut self, status: &Status<'_>) -> Result<()>;
}

/// How things stand.
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

/// What an outlet can ask for while the probe runs.
pub struct Switch {
    stop: Stop,
    order: AtomicU8,
    selection: Changing,
}

impl Switch {
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
    /// The largest flows that go on, largest first.
    pub live: Vec<Record>,
    /// What decoders know of each of them so far.
    pub live_applications: Vec<inspect::Application>,
    /// Flows that fit into the table.
    pub capacity: u64,
    /// The decoders'.
    pub applications: InspectorStats,
    /// libndpi's.
    pub ndpi: NdpiStats,
    /// Packets and bytes over time, by the packets' own: at the end, if that was asked for.
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

/// What workers and collector share. Nothing here is touched for a packet.
struct Shared {
    switch: Switch,
    /// Packets still to be metered.
    budget: Option<AtomicU64>,
    /// No new packets enter the rings.
    intake_stopped: AtomicBool,
    /// Whether the clock drives expiry, beside packets.
    is_live: bool,
    control: Mutex<Box<dyn PortControl>>,
}

/// A poisoned lock means that a worker panicked; its data is still the best there is.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What workers tell the collector.
enum Message {
    /// Flows ended; the buffer goes back to the worker.
    Ended(usize, Buffer),
    /// The worker's queue has come to its end, or was asked to.
    Paused,
    /// The worker is done, and says how it ended.
    Done(Result<Ended>),
}

/// Ended flows on their way, and back again empty.
#[derive(Default)]
struct Buffer {
    records: Vec<(Record, EndReason)>,
    /// One for each record, if anything beyond records was asked for. They stay when the buffer is
    /// emptied: their memory is used again.
    extras: Vec<OwnedExtra>,
    has_extras: bool,
}

impl Buffer {
    fn new() -> Buffer {
        Buffer {
            records: Vec::with_capacity(BUFFER_LEN),
            ..Buffer::default()
        }
    }

    fn clear(&mut self) {
        self.records.clear();
        self.has_extras = false;
    }

    fn push(&mut self, record: &Record, extra: Option<&Extra<'_>>, reason: EndReason) {
        if let Some(extra) = extra {
            self.has_extras = true;
            let at = self.records.len();
            if self.extras.len() <= at {
                self.extras.resize_with(at + 1, OwnedExtra::default);
            }
            self.extras[at].set(extra);
        }
        self.records.push((*record, reason));
    }
}

/// Runs a probe until the input ends, its limits are reached, or somebody says stop. The caller has
/// opened the port and given up rights.
///
/// # Errors
/// Only where threads cannot be started. What goes wrong later is in the report, with all that was
/// counted.
pub fn run(port: Port, config: &Config, stop: &Stop, outlet: &mut dyn Outlet) -> Result<Report> {
    run_with(port, None, config, stop, outlet)
}

/// As [`run`], with a way out for the packets that [`flow::ExtraConfig::shunt`] chooses.
///
/// # Errors
/// As [`run`].
pub fn run_with(
    port: Port,
    mut egress: Option<Egress>,
    config: &Config,
    stop: &Stop,
    outlet: &mut dyn Outlet,
) -> Result<Report> {
    let start = Instant::now();
    let description = port.control.describe();
    let is_live = description.intake != Intake::File;
    let mut links: Vec<LinkType> = description
        .interfaces
        .iter()
        .map(|(link, _)| LinkType(*link))
        .collect();
    if links.is_empty() && is_live {
        links.push(LinkType(description.link_type));
    }
    let shared = Arc::new(Shared {
        switch: Switch {
            // The end of one probe is no request to others.
            stop: stop.child(),
            order: AtomicU8::new(config.order as u8),
            selection: Changing::new(Selection {
                filter: config.filter.clone(),
                sampling: config.meter.sampling,
                record_sampling: config.record_sampling,
            }),
        },
        budget: config.count.map(AtomicU64::new),
        intake_stopped: AtomicBool::new(false),
        is_live,
        control: Mutex::new(port.control),
    });
    let queue_count = port.rx.len();
    let (sender, receiver) = sync_channel(BUFFER_COUNT * queue_count + 2 * queue_count);
    let mut empties = Vec::new();
    let mut published = Vec::new();
    let mut threads = Vec::new();
    for (index, rx) in port.rx.into_iter().enumerate() {
        let (empty_sender, empty_receiver) = sync_channel(BUFFER_COUNT);
        for _ in 1..BUFFER_COUNT {
            // The channel has room for all buffers there are.
            drop(empty_sender.try_send(Buffer::new()));
        }
        empties.push(empty_sender);
        let status = Arc::new(Mutex::new(QueueStatus {
            queue_index: rx.queue_index(),
            ..QueueStatus::default()
        }));
        published.push(status.clone());
        let plan = worker::Plan {
            index,
            rx,
            config: config.clone(),
            cpu: cpu_for(config, index, queue_count),
            shared: shared.clone(),
            messages: sender.clone(),
            empties: empty_receiver,
            status,
            links: links.clone(),
            egress: egress.as_mut().and_then(Egress::out),
        };
        let thread = std::thread::Builder::new()
            .name(format!("flows-{index}"))
            .spawn(move || worker::work(plan))
            .map_err(|e| {
                shared.switch.end();
                Error::from_io("start a thread for a queue", e)
            })?;
        threads.push(thread);
    }
    drop(sender);
    let mut collector = Collector {
        start,
        duration: config.duration,
        shared: shared.clone(),
        published,
        empties,
        merger: (queue_count > 1).then(|| {
            let t = &config.meter.table.timeouts;
            let idle_ns = t.idle_tcp_ns.max(t.idle_udp_ns).max(t.idle_other_ns);
            Merger::new(HALF_COUNT_MAX, idle_ns.max(t.linger_ns) + HALF_SLACK_NS)
        }),
        out: Out {
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
        },
        running: queue_count,
        paused: 0,
        events: Vec::new(),
        error: None,
        egress,
    };
    collector.collect(&receiver);
    for thread in threads {
        if thread.join().is_err() && collector.error.is_none() {
            let why = "a worker thread panicked, a bug in barewire";
            collector.error = Some(Error::new(ErrorKind::Io, "meter flows", why));
        }
    }
    Ok(collector.report(description))
}

/// The processor to pin a worker to.
fn cpu_for(config: &Config, index: usize, queue_count: usize) -> Option<usize> {
    if !config.cpus.is_empty() {
        return Some(config.cpus[index % config.cpus.len()]);
    }
    // One thread is left to the scheduler, which knows what else runs.
    let allowed = sys::affinity::allowed_cpus();
    (queue_count > 1 && queue_count <= allowed.len()).then(|| allowed[index])
}

/// The wall clock, in nanoseconds since the Unix epoch.
fn wall_clock_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_nanos() as u64)
}

/// Of records, if any are left out.
fn sampler(sampling: Sampling, hash_key: &HashKey) -> Option<Sampler> {
    (sampling != Sampling::All).then(|| Sampler::new(sampling, hash_key))
}

/// Records on their way out: counted, summed up, given to the outlet.
struct Out<'a> {
    outlet: &'a mut dyn Outlet,
    top: Top,
    sampler: Option<Sampler>,
    hash_key: HashKey,
    /// Of the selection that the sampler is of.
    selection_number: u32,
    records: u64,
    packets: u64,
    records_dropped: u64,
    packets_dropped: u64,
    /// Records that sampling left out, and packets in them.
    unsampled: [u64; 2],
    error: Option<Error>,
}

impl Out<'_> {
    /// Whether a record goes out.
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

    /// Counts a record by what became of it.
    fn note(&mut self, record: &Record, fate: Result<Fate>) {
        // A record that the outlet failed with did not get out either.
        let fate = fate.unwrap_or_else(|error| {
            self.error = Some(error);
            Fate::Dropped
        });
        let (records, packets) = match fate {
            Fate::Told => (&mut self.records, &mut self.packets),
            Fate::Dropped => (&mut self.records_dropped, &mut self.packets_dropped),
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
                Some(_) => Ok(Fate::Dropped),
            };
            self.note(record, fate);
        }
    }
}

struct Collector<'a> {
    start: Instant,
    /// Taken when it is over.
    duration: Option<Duration>,
    shared: Arc<Shared>,
    published: Vec<Arc<Mutex<QueueStatus>>>,
    empties: Vec<SyncSender<Buffer>>,
    merger: Option<Merger>,
    out: Out<'a>,
    /// Workers that have not ended.
    running: usize,
    /// Workers that want no more packets.
    paused: usize,
    events: Vec<PortEvent>,
    error: Option<Error>,
    egress: Option<Egress>,
}

impl Collector<'_> {
    /// Until all workers are done.
    fn collect(&mut self, messages: &Receiver<Message>) {
        const PULSE: Duration = Duration::from_millis(100);
        let mut next_pulse = self.start + PULSE;
        while self.running > 0 {
            let wait = next_pulse.saturating_duration_since(Instant::now());
            match messages.recv_timeout(wait) {
                Ok(message) => self.handle(message),
                Err(RecvTimeoutError::Timeout) => {}
                // All workers are gone: one of them panicked.
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if Instant::now() >= next_pulse {
                next_pulse = Instant::now() + PULSE;
                self.pulse();
            }
            let start = self.start;
            if self.duration.take_if(|d| start.elapsed() >= *d).is_some() {
                self.shared.switch.end();
                // The outlet learns that the time is up before it gets what is left.
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
        // How it stands at the end: a short file is over before the first pulse.
        self.pulse();
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
                // The worker may be gone; its channel has room for all its buffers.
                drop(self.empties[index].try_send(buffer));
            }
            Message::Paused => self.paused += 1,
            Message::Done(ended) => {
                self.running -= 1;
                if let Err(error) = ended
                    && self.error.is_none()
                {
                    self.error = Some(error);
                }
            }
        }
    }

    fn stop_intake(&mut self) {
        let all_paused = self.paused == self.published.len();
        let wanted = self.shared.switch.stop.is_set() || all_paused;
        if wanted && !self.shared.intake_stopped.load(Ordering::Relaxed) {
            // A device that is gone cannot be stopped; its error is told by the worker.
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
        let told = self.out.outlet.pulse(&status);
        if self.out.error.is_none() {
            self.out.error = told.err();
        }
        let number = &mut self.out.selection_number;
        if let Some(selection) = self.shared.switch.selection.changed(number) {
            self.out.sampler = sampler(selection.record_sampling, &self.out.hash_key);
        }
    }

    fn report(mut self, mut description: PortDescription) -> Report {
        let (account, described) = {
            let mut control = lock(&self.shared.control);
            (control.account(), control.describe())
        };
        // Interfaces met while a file was read.
        description.interfaces = described.interfaces;
        let account = account.unwrap_or_else(|error| {
            self.error.get_or_insert(error);
            PortAccount::default()
        });
        let egress = self.egress.map(|mut egress| EgressReport {
            status: egress::total(&egress.counters),
            // A device that is gone tells no more.
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

#[cfg(test)]
mod tests;
