//! A worker: one queue, one meter, one thread.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flow::series::Series;
use flow::tally::Tally;
use flow::top::TopScan;
use flow::{BATCH_MAX, Input, Inspect, Meter, NO_TIME_NS, TIME_MAX_NS};
use inspect::Application;
use port::{RxBatch, RxQueue};
use sys::{Error, ErrorKind, Result};
use wire::LinkType;

use super::application::{Applications, Counts};
use super::egress::Out;
use super::ndpi::Ndpi;
use super::outbox::{BUFFER_COUNT, BUFFER_LEN, Buffer, Outbox};
use super::selection::Filter;
use super::{Config, Message, QueueStatus, Shared, lock, wall_clock_ns};
use crate::worker::{self, Ended, Engine, Verdict};

/// Interval at which counters are published and the table's clock is advanced.
const PULSE: Duration = Duration::from_millis(100);
/// Interval at which the live flows are scanned for the largest; rates are averages over it.
const SCAN: Duration = Duration::from_secs(1);
/// Interval at which the live flows are added to the sums by application.
const TALLY: Duration = Duration::from_secs(5);
/// Interval at which these sums are published.
const PUBLISH_SUMS: Duration = Duration::from_secs(1);
/// Slots of the table scanned with each batch of packets, and when there are none: 64 KiB and 2 MiB
/// of records, some 10 µs and some 300 µs.
const SCAN_STEP: usize = 512;
const SCAN_STEP_IDLE: usize = 16 << 10;
/// The clock advances in steps short enough that each ends at most this many flows: a quarter of
/// the buffers.
const TICK_FLOWS: u64 = (BUFFER_COUNT / 4 * BUFFER_LEN) as u64;
/// The table scans itself once in this time.
const ROUND_NS: u64 = 1 << 31;
/// How far behind the clock a packet's time may be on arrival: delays in devices and the kernel.
const BEHIND_NS: u64 = 1_000_000_000;

/// How long workers wait for the intake to be stopped before they drain their rings.
const STOP_MAX: Duration = Duration::from_secs(5);

const NO_INPUT: Input<'static> = Input {
    link: LinkType::ETHERNET,
    bytes: &[],
    wire_len: 0,
    time_ns: 0,
    vlan: None,
    interface: 0,
};

/// Starts the workers of a probe, and holds what they have in common.
pub(super) struct Spawner<'a> {
    pub(super) config: &'a Config,
    pub(super) shared: &'a Arc<Shared>,
    /// Link types of the interfaces known at the start.
    pub(super) links: &'a [LinkType],
    pub(super) messages: SyncSender<Message>,
    pub(super) queue_count: usize,
}

/// A worker as the collector sees it.
pub(super) struct Worker {
    /// The channel that returns its buffers.
    pub(super) empties: SyncSender<Buffer>,
    /// The status it publishes.
    pub(super) status: Arc<Mutex<QueueStatus>>,
    pub(super) thread: JoinHandle<()>,
}

impl Spawner<'_> {
    /// Starts the worker of a queue; selected packets are forwarded to `egress`.
    ///
    /// # Errors
    /// If a thread cannot be started; the workers before it are stopped.
    pub(super) fn start(&self, index: usize, rx: RxQueue, egress: Option<Out>) -> Result<Worker> {
        let (empties, empty_receiver) = sync_channel(BUFFER_COUNT);
        for _ in 1..BUFFER_COUNT {
            // The channel has room for all buffers.
            drop(empties.try_send(Buffer::new()));
        }
        let status = Arc::new(Mutex::new(QueueStatus {
            queue_index: rx.queue_index(),
            ..QueueStatus::default()
        }));
        let plan = Plan {
            index,
            rx,
            config: self.config.clone(),
            cpu: self.cpu_for(index),
            shared: self.shared.clone(),
            messages: self.messages.clone(),
            empties: empty_receiver,
            status: status.clone(),
            links: self.links.to_vec(),
            egress,
        };
        let thread = std::thread::Builder::new()
            .name(format!("flows-{index}"))
            .spawn(move || work(plan))
            .map_err(|e| {
                self.shared.switch.end();
                Error::from_io("start a thread for a queue", e)
            })?;
        Ok(Worker {
            empties,
            status,
            thread,
        })
    }

    /// The processor to pin a worker to.
    fn cpu_for(&self, index: usize) -> Option<usize> {
        let cpus = &self.config.cpus;
        if !cpus.is_empty() {
            return Some(cpus[index % cpus.len()]);
        }
        // A single thread is left to the scheduler.
        let allowed = sys::affinity::allowed_cpus();
        (self.queue_count > 1 && self.queue_count <= allowed.len()).then(|| allowed[index])
    }
}

/// The parameters of a worker.
struct Plan {
    index: usize,
    rx: RxQueue,
    config: Config,
    cpu: Option<usize>,
    shared: Arc<Shared>,
    messages: SyncSender<Message>,
    empties: Receiver<Buffer>,
    status: Arc<Mutex<QueueStatus>>,
    /// Link types of the interfaces known at the start.
    links: Vec<LinkType>,
    /// Where selected packets are forwarded.
    egress: Option<Out>,
}

/// Runs a worker.
fn work(plan: Plan) {
    let messages = plan.messages.clone();
    let shared = plan.shared.clone();
    let result = work_on(plan);
    if result.is_err() {
        // The others have no reason to continue: it is the same device or file.
        shared.switch.end();
    }
    // The receiver has ended if the collector failed first.
    drop(messages.send(Message::Done(result)));
}

fn work_on(plan: Plan) -> Result<Ended> {
    let (messages, shared) = (plan.messages.clone(), plan.shared.clone());
    let pacing = plan.config.pacing;
    // A worker that cannot start needs no packets either.
    let pause = || drop(messages.send(Message::Paused));
    let (mut rx, mut engine) = prepare(plan).inspect_err(|_| pause())?;
    let ended = worker::run(&mut rx, &mut engine, &shared.switch.stop, pacing);
    pause();
    let mut drained = Ok(());
    if ended.is_ok() {
        let waited = Instant::now();
        while !shared.intake_stopped.load(Ordering::Relaxed) && waited.elapsed() < STOP_MAX {
            std::thread::sleep(Duration::from_millis(1));
        }
        engine.draining = true;
        // The interface has seen what is in the rings, so it belongs in the account.
        drained = worker::drain(&mut rx, &mut engine);
    }
    // However it ended, the flows that were metered are reported.
    engine.finish();
    let left = engine.egress.as_mut().map_or(Ok(()), Out::finish);
    let ended = ended?;
    drained.and(left).map(|()| ended)
}

/// Pins this thread and creates its engine: here, so that the memory is local to this processor.
fn prepare(plan: Plan) -> Result<(RxQueue, FlowEngine)> {
    if let Some(cpu) = plan.cpu {
        sys::affinity::pin_current_thread(cpu)?;
    }
    let mut config = plan.config.meter.clone();
    config.table.reserved = sys::advice::large_pages;
    config.table.prefetch = Some(sys::advice::prefetch);
    let mut meter = Meter::new(&config).map_err(|e| {
        let error = Error::new(ErrorKind::NoSpace, "allocate the flow table", e.to_string());
        error.with_hint("use a smaller --table-size or fewer queues")
    })?;
    let counts = Arc::default();
    let egress = plan.egress.as_ref();
    if let Some(inspector) = inspector(&plan.config, egress, &counts)? {
        meter.set_inspector(inspector);
    }
    let may_wait = !plan.shared.is_live;
    let mut outbox = Outbox::new(plan.index, plan.messages, plan.empties, may_wait);
    if plan.config.by_application {
        let config = &plan.config.meter;
        let tally = Tally::new(config.table.flow_count_max, config.extra.inspect_count);
        outbox.tally = Some(Box::new(tally));
    }
    let engine = FlowEngine {
        applications: counts,
        found: Vec::new(),
        capacity: meter.table().capacity() as u64,
        has_extras: meter.has_extras(),
        meter,
        links: plan.links,
        outbox,
        tally: Round::default(),
        clock_ns: 0,
        shared: plan.shared,
        status: plan.status,
        wire_bytes: 0,
        unmetered: 0,
        filter: plan.config.filter.map(Filter::new),
        selection_number: 0,
        unselected: 0,
        draining: false,
        scan: (plan.config.live_count != 0).then(|| Scan {
            scan: TopScan::new(
                plan.config.live_count,
                plan.config.meter.table.flow_count_max,
            ),
            started_at: Instant::now(),
            running: true,
        }),
        series: plan.config.series.then(Box::default),
        egress: plan.egress,
        pulse_at: Instant::now(),
    };
    Ok((plan.rx, engine))
}

/// Creates the requested decoders; their counters are left in `counts`.
fn inspector(
    config: &Config,
    egress: Option<&Out>,
    counts: &Arc<Mutex<Counts>>,
) -> Result<Option<Box<dyn Inspect + Send>>> {
    let Some(applications) = &config.applications else {
        return Ok(None);
    };
    let wanted = egress.map(Out::wanted).unwrap_or_default();
    let decoders = Applications::new(applications, Arc::clone(counts), wanted);
    Ok(Some(match config.ndpi_flow_count {
        None => Box::new(decoders),
        Some(count) => Box::new(Ndpi::new(decoders, applications, count)?),
    }))
}

struct FlowEngine {
    meter: Meter,
    /// Link types of the capture's interfaces.
    links: Vec<LinkType>,
    outbox: Outbox,
    shared: Arc<Shared>,
    status: Arc<Mutex<QueueStatus>>,
    /// Counts of the decoders.
    applications: Arc<Mutex<Counts>>,
    /// Decoded fields of one flow.
    found: Vec<u8>,
    wire_bytes: u64,
    unmetered: u64,
    filter: Option<Filter>,
    /// Number of the selection that filter and sampling belong to.
    selection_number: u32,
    unselected: u64,
    draining: bool,
    capacity: u64,
    /// Extra fields are enabled, so packets are passed to the meter together.
    has_extras: bool,
    scan: Option<Scan>,
    /// The round of the outbox's [`Tally`].
    tally: Round,
    /// Packets and bytes over time.
    series: Option<Box<Series>>,
    egress: Option<Out>,
    pulse_at: Instant,
    /// The time last passed to the table.
    clock_ns: u64,
}

struct Scan {
    scan: TopScan,
    started_at: Instant,
    running: bool,
}

/// A round through the live flows for the sums by application.
#[derive(Default)]
struct Round {
    running: bool,
    started_at: Option<Instant>,
    published_at: Option<Instant>,
}

/// Whether something last done at `before` is due again.
fn is_due(before: Option<Instant>, interval: Duration) -> bool {
    before.is_none_or(|before| before.elapsed() >= interval)
}

impl Engine for FlowEngine {
    fn batch(&mut self, batch: &mut RxBatch<'_>) -> Result<Verdict> {
        self.look_at_selection();
        let count = batch.len() as u64;
        let allowed = self.take_budget(count);
        if self.shared.is_live {
            touch(batch);
        }
        self.meter_packets(batch, allowed as usize);
        if self.scan.is_some() {
            self.scan(SCAN_STEP);
        }
        if self.tally.running {
            self.count_live(SCAN_STEP);
        }
        if let Some(egress) = &mut self.egress {
            let links = &self.links;
            let link = |at: u16| links.get(usize::from(at)).copied();
            egress.take(batch, |at| link(at).unwrap_or(LinkType::ETHERNET))?;
        }
        self.unmetered += count - allowed;
        if !self.draining && self.is_budget_spent() {
            self.shared.switch.end();
            return Ok(Verdict::Finish);
        }
        Ok(self.verdict())
    }

    fn idle(&mut self) -> Result<Verdict> {
        if self.pulse_at.elapsed() >= PULSE {
            self.pulse_at = Instant::now();
            if self.shared.is_live {
                self.tick();
            }
            self.outbox.pulse();
            if let Some(egress) = &mut self.egress {
                egress.flush()?;
            }
            self.scan(SCAN_STEP_IDLE);
            self.count_live(SCAN_STEP_IDLE);
            self.publish();
        }
        Ok(self.verdict())
    }
}

/// Prefetches each packet's first cache line: all together, before they are parsed in turn. Packets
/// of a file are consecutive, which the processor prefetches itself.
#[inline]
fn touch(batch: &RxBatch<'_>) {
    let mut touched = 0;
    for packet in batch.iter() {
        touched |= packet.bytes().first().copied().unwrap_or(0);
    }
    std::hint::black_box(touched);
}

impl FlowEngine {
    /// Meters the first `count` packets of a batch.
    #[inline]
    fn meter_packets(&mut self, batch: &RxBatch<'_>, count: usize) {
        let mut clock_ns = None;
        let mut together: [Input<'_>; BATCH_MAX] = [NO_INPUT; BATCH_MAX];
        let mut count_together = 0;
        for packet in batch.iter().take(count) {
            if let Some(filter) = &mut self.filter
                && !filter.takes(&packet)
            {
                self.unselected += 1;
                continue;
            }
            let time_ns = match packet.time_ns() {
                Some(time_ns) => time_ns.min(TIME_MAX_NS),
                None if self.shared.is_live => *clock_ns.get_or_insert_with(wall_clock_ns),
                None => NO_TIME_NS,
            };
            let interface = packet.interface_index();
            let link = match self.links.get(usize::from(interface)) {
                Some(link) => *link,
                None => self.learn_link(interface),
            };
            let wire_len = packet.wire_len().saturating_sub(packet.fcs_len());
            self.wire_bytes += u64::from(wire_len);
            if let Some(series) = &mut self.series
                && time_ns != NO_TIME_NS
            {
                series.add(time_ns, wire_len);
            }
            let bytes = packet.bytes();
            let input = Input {
                link,
                // Without the frame check sequence.
                bytes: bytes.get(..wire_len as usize).unwrap_or(bytes),
                wire_len,
                time_ns,
                vlan: packet.vlan().map(|vlan| vlan.tci & 0xfff),
                interface,
            };
            if !self.has_extras {
                self.meter.observe(&input, &mut self.outbox);
                continue;
            }
            together[count_together] = input;
            count_together += 1;
            if count_together == BATCH_MAX {
                self.meter_together(&together);
                count_together = 0;
            }
        }
        self.meter_together(&together[..count_together]);
        self.meter.flush(&mut self.outbox);
    }

    /// Meters packets as a group, and marks those to be forwarded.
    #[inline]
    fn meter_together(&mut self, inputs: &[Input<'_>]) {
        if inputs.is_empty() {
            return;
        }
        self.meter.observe_all(inputs, &mut self.outbox);
        if let Some(egress) = &mut self.egress {
            egress.mark(inputs.len(), self.meter.chosen());
        }
    }

    fn verdict(&self) -> Verdict {
        if self.outbox.is_closed {
            Verdict::Finish
        } else {
            Verdict::Continue
        }
    }

    /// Ends flows by the clock as long as there is room for them; the others stay in the table.
    fn tick(&mut self) {
        let now_ns = wall_clock_ns().saturating_sub(BEHIND_NS);
        // A clock that was set back, or not read yet.
        let mut clock_ns = match self.clock_ns {
            before if before == 0 || before > now_ns => now_ns,
            before => before,
        };
        clock_ns = clock_ns.max(now_ns.saturating_sub(ROUND_NS));
        let step_ns = (ROUND_NS * TICK_FLOWS / self.capacity.max(1)).clamp(100_000, ROUND_NS);
        while self.outbox.has_room() {
            clock_ns = (clock_ns + step_ns).min(now_ns);
            self.clock_ns = clock_ns;
            self.meter.tick(clock_ns, &mut self.outbox);
            if clock_ns == now_ns {
                return;
            }
        }
    }

    /// Switches to another filter or sampling, if requested.
    #[inline]
    fn look_at_selection(&mut self) {
        let changing = &self.shared.switch.selection;
        if let Some(selection) = changing.changed(&mut self.selection_number) {
            self.filter = selection.filter.map(Filter::new);
            self.meter.set_sampling(selection.sampling);
        }
    }

    /// How many of `count` packets may be metered.
    fn take_budget(&self, count: u64) -> u64 {
        let Some(budget) = &self.shared.budget else {
            return count;
        };
        let take = |left: u64| Some(left.saturating_sub(count));
        // Once a batch, and only with `--count`.
        match budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(left) | Err(left) => left.min(count),
        }
    }

    fn is_budget_spent(&self) -> bool {
        let budget = self.shared.budget.as_ref();
        budget.is_some_and(|budget| budget.load(Ordering::Relaxed) == 0)
    }

    /// The link type of an interface. Those of a file become known while it is read; a device's is
    /// known from the start, so that nothing waits here while counters are read from the kernel.
    #[cold]
    fn learn_link(&mut self, interface: u16) -> LinkType {
        let new = lock(&self.shared.control).interfaces(self.links.len());
        self.links
            .extend(new.iter().map(|(link, _)| LinkType(*link)));
        let known = self.links.get(usize::from(interface)).copied();
        known
            .or(self.links.first().copied())
            .unwrap_or(LinkType::ETHERNET)
    }

    /// Scans a little further for the largest live flows.
    fn scan(&mut self, place_count: usize) {
        let Some(scan) = &mut self.scan else { return };
        if !scan.running {
            return;
        }
        let order = self.shared.switch.order();
        if scan.scan.step(self.meter.table(), place_count, order) {
            let mut status = lock(&self.status);
            let QueueStatus {
                live,
                live_applications,
                live_rates,
                ..
            } = &mut *status;
            live_applications.clear();
            live_rates.clear();
            scan.scan.take(live, |place, record, rate| {
                live_rates.push(rate);
                self.meter.application(place, record, &mut self.found);
                let known = flow::take_application(&self.found).unwrap_or(Application::EMPTY);
                live_applications.push(known);
            });
            drop(status);
            scan.running = false;
        }
    }

    /// Continues the round that adds live flows to the sums by application.
    fn count_live(&mut self, place_count: usize) {
        if self.tally.running
            && let Some(tally) = &mut self.outbox.tally
        {
            self.tally.running = !tally.step(&self.meter, place_count);
        }
    }

    /// Publishes the sums by application, and begins the next round.
    fn publish_sums(&mut self) {
        let Some(tally) = &self.outbox.tally else {
            return;
        };
        if is_due(self.tally.published_at, PUBLISH_SUMS) {
            self.tally.published_at = Some(Instant::now());
            lock(&self.status).by_application = tally.sums().clone();
        }
        if !self.tally.running && is_due(self.tally.started_at, TALLY) {
            self.tally.started_at = Some(Instant::now());
            self.tally.running = true;
        }
    }

    fn publish(&mut self) {
        self.publish_sums();
        if let Some(scan) = &mut self.scan
            && !scan.running
            && scan.started_at.elapsed() >= SCAN
        {
            let now = Instant::now();
            let interval = now.duration_since(scan.started_at);
            scan.scan.begin(interval.as_nanos() as u64);
            scan.started_at = now;
            scan.running = true;
        }
        let applications = *lock(&self.applications);
        let mut status = lock(&self.status);
        status.applications = applications.decoders;
        status.ndpi = applications.ndpi;
        status.meter = self.meter.stats();
        status.wire_bytes = self.wire_bytes;
        status.unmetered = self.unmetered;
        status.unselected = self.unselected;
        status.records_dropped = self.outbox.records_dropped;
        status.packets_in_dropped = self.outbox.packets_dropped;
        status.capacity = self.capacity;
    }

    fn finish(&mut self) {
        // No more packets come, and the collector does not wait for anything for long.
        self.outbox.may_wait = true;
        self.meter.finish(&mut self.outbox);
        self.outbox.send();
        self.tally.published_at = None;
        self.publish();
        let mut status = lock(&self.status);
        status.series = self.series.take();
        status.live.clear();
        status.live_applications.clear();
        status.live_rates.clear();
    }
}
