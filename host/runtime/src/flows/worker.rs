//! A worker: one queue, one meter, one thread.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flow::series::Series;
use flow::top::TopScan;
use flow::{BATCH_MAX, EndReason, Extra, Input, Meter, Record, RecordSink};
use inspect::Application;
use port::{RxBatch, RxQueue};
use sys::{Error, ErrorKind, Result};
use wire::LinkType;

use super::application::{Applications, Counts};
use super::egress::Out;
use super::ndpi::Ndpi;
use super::selection::Filter;
use super::{
    BUFFER_COUNT, BUFFER_LEN, Buffer, Config, Message, QueueStatus, STOP_MAX, Shared, lock,
    wall_clock_ns,
};
use crate::worker::{self, Ended, Engine, Verdict};

/// How often figures are published and the clock is told to the table.
const PULSE: Duration = Duration::from_millis(100);
/// How often the live flows are searched for the largest.
const SCAN: Duration = Duration::from_millis(500);
/// Places of the table that are looked at with each batch of packets, and when there are none: 64
/// KiB and 2 MiB of records, some 10 µs and some 300 µs.
const SCAN_STEP: usize = 512;
const SCAN_STEP_IDLE: usize = 16 << 10;
/// The clock goes on in steps short enough that the table is searched for at most so many ended
/// flows in one of them: a quarter of the buffers.
const TICK_FLOWS: u64 = (BUFFER_COUNT / 4 * BUFFER_LEN) as u64;
/// The table searches itself once in so long.
const ROUND_NS: u64 = 1 << 31;
/// How far behind the clock a packet's time may be when it comes: what devices and kernel hold
/// back.
const BEHIND_NS: u64 = 1_000_000_000;

const NO_INPUT: Input<'static> = Input {
    link: LinkType::ETHERNET,
    bytes: &[],
    wire_len: 0,
    time_ns: 0,
    vlan: None,
    interface: 0,
};

/// What a worker is given.
pub(super) struct Plan {
    pub(super) index: usize,
    pub(super) rx: RxQueue,
    pub(super) config: Config,
    pub(super) cpu: Option<usize>,
    pub(super) shared: Arc<Shared>,
    pub(super) messages: SyncSender<Message>,
    pub(super) empties: Receiver<Buffer>,
    pub(super) status: Arc<Mutex<QueueStatus>>,
    /// Link types of the interfaces known at the start.
    pub(super) links: Vec<LinkType>,
    /// Where chosen packets go.
    pub(super) egress: Option<Out>,
}

/// The life of a worker.
pub(super) fn work(plan: Plan) {
    let messages = plan.messages.clone();
    let shared = plan.shared.clone();
    let result = work_on(plan);
    if result.is_err() {
        // The others have no reason to go on: the device or the file is the same.
        shared.switch.end();
    }
    // Nobody listens if the collector failed first.
    drop(messages.send(Message::Done(result)));
}

fn work_on(plan: Plan) -> Result<Ended> {
    let mut rx = plan.rx;
    if let Some(cpu) = plan.cpu {
        sys::affinity::pin_current_thread(cpu).inspect_err(|_| {
            drop(plan.messages.send(Message::Paused));
        })?;
    }
    // Made here, so that its memory is near this thread's processor.
    let mut config = plan.config.meter.clone();
    config.table.reserved = sys::advice::large_pages;
    config.table.prefetch = Some(sys::advice::prefetch);
    let mut meter = Meter::new(&config).map_err(|e| {
        drop(plan.messages.send(Message::Paused));
        let error = Error::new(ErrorKind::NoSpace, "allocate the flow table", e.to_string());
        error.with_hint("use a smaller --table-size or fewer queues")
    })?;
    let applications = Arc::default();
    if let Some(config) = &plan.config.applications {
        let wanted = plan.egress.as_ref().map(Out::wanted).unwrap_or_default();
        let decoders = Applications::new(config, Arc::clone(&applications), wanted);
        match plan.config.ndpi_flow_count {
            None => meter.set_inspector(Box::new(decoders)),
            Some(count) => {
                let with_ndpi = Ndpi::new(decoders, config, count).inspect_err(|_| {
                    drop(plan.messages.send(Message::Paused));
                })?;
                meter.set_inspector(Box::new(with_ndpi));
            }
        }
    }
    let mut engine = FlowEngine {
        applications,
        found: Vec::new(),
        capacity: meter.table().capacity() as u64,
        has_extras: meter.has_extras(),
        meter,
        links: plan.links,
        outbox: Outbox {
            index: plan.index,
            buffer: Buffer::new(),
            messages: plan.messages.clone(),
            empties: plan.empties,
            spare: Vec::with_capacity(BUFFER_COUNT),
            may_wait: !plan.shared.is_live,
            records_dropped: 0,
            packets_dropped: 0,
            is_gone: false,
        },
        clock_ns: 0,
        shared: plan.shared.clone(),
        status: plan.status,
        wire_bytes: 0,
        unmetered: 0,
        filter: plan.config.filter.clone().map(Filter::new),
        selection_number: 0,
        unselected: 0,
        draining: false,
        scan: (plan.config.live_count != 0).then(|| Scan {
            scan: TopScan::new(plan.config.live_count),
            started_at: Instant::now(),
            running: true,
        }),
        series: plan.config.series.then(Box::default),
        egress: plan.egress,
        pulse_at: Instant::now(),
    };
    let ended = worker::run(
        &mut rx,
        &mut engine,
        &plan.shared.switch.stop,
        plan.config.pacing,
    );
    drop(plan.messages.send(Message::Paused));
    let mut drained = Ok(());
    if ended.is_ok() {
        let waited = Instant::now();
        while !plan.shared.intake_stopped.load(Ordering::Relaxed) && waited.elapsed() < STOP_MAX {
            std::thread::sleep(Duration::from_millis(1));
        }
        engine.draining = true;
        // What is in the rings was seen by the interface, so it belongs into the account.
        drained = worker::drain(&mut rx, &mut engine);
    }
    // However it ended: the flows that were metered are told.
    engine.finish();
    let left = engine.egress.as_mut().map_or(Ok(()), Out::finish);
    let ended = ended?;
    drained.and(left).map(|()| ended)
}

struct FlowEngine {
    meter: Meter,
    /// Link types by interface of the capture.
    links: Vec<LinkType>,
    outbox: Outbox,
    shared: Arc<Shared>,
    status: Arc<Mutex<QueueStatus>>,
    /// What the decoders have counted.
    applications: Arc<Mutex<Counts>>,
    /// What they found of one flow.
    found: Vec<u8>,
    wire_bytes: u64,
    unmetered: u64,
    filter: Option<Filter>,
    /// Of the selection that filter and sampling are of.
    selection_number: u32,
    unselected: u64,
    draining: bool,
    capacity: u64,
    /// More than records is asked for, so packets are given to the meter together.
    has_extras: bool,
    scan: Option<Scan>,
    /// How much came when.
    series: Option<Box<Series>>,
    egress: Option<Out>,
    pulse_at: Instant,
    /// What the table was last told by the clock.
    clock_ns: u64,
}

struct Scan {
    scan: TopScan,
    started_at: Instant,
    running: bool,
}

impl Engine for FlowEngine {
    fn batch(&mut self, batch: &mut RxBatch<'_>) -> Result<Verdict> {
        self.look_at_selection();
        let count = batch.len() as u64;
        let allowed = self.take_budget(count);
        // Each packet's first line is in nobody's cache yet: load them together, then look at them
        // in turn. Those of a file lie behind each other, which the processor foresees.
        if self.shared.is_live {
            let mut touched = 0;
            for packet in batch.iter() {
                touched |= packet.bytes().first().copied().unwrap_or(0);
            }
            std::hint::black_box(touched);
        }
        let mut clock_ns = None;
        let mut together: [Input<'_>; BATCH_MAX] = [NO_INPUT; BATCH_MAX];
        let mut count_together = 0;
        for packet in batch.iter().take(allowed as usize) {
            if let Some(filter) = &mut self.filter
                && !filter.takes(&packet)
            {
                self.unselected += 1;
                continue;
            }
            let time_ns = match packet.time_ns() {
                Some(time_ns) => time_ns,
                None => *clock_ns.get_or_insert_with(wall_clock_ns),
            };
            let interface = packet.interface_index();
            let link = match self.links.get(usize::from(interface)) {
                Some(link) => *link,
                None => self.learn_link(interface),
            };
            let wire_len = packet.wire_len();
            self.wire_bytes += u64::from(wire_len);
            if let Some(series) = &mut self.series {
                series.add(time_ns, wire_len);
            }
            let input = Input {
                link,
                bytes: packet.bytes(),
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
                self.meter.observe_all(&together, &mut self.outbox);
                if let Some(egress) = &mut self.egress {
                    egress.mark(BATCH_MAX, self.meter.chosen());
                }
                count_together = 0;
            }
        }
        if count_together != 0 {
            let rest = &together[..count_together];
            self.meter.observe_all(rest, &mut self.outbox);
            if let Some(egress) = &mut self.egress {
                egress.mark(count_together, self.meter.chosen());
            }
        }
        self.meter.flush(&mut self.outbox);
        if self.scan.is_some() {
            self.scan(SCAN_STEP);
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
            self.publish();
        }
        Ok(self.verdict())
    }
}

impl FlowEngine {
    fn verdict(&self) -> Verdict {
        if self.outbox.is_gone {
            Verdict::Finish
        } else {
            Verdict::Continue
        }
    }

    /// Ends flows by the clock, as long as there is room for them: the rest stays in the table.
    fn tick(&mut self) {
        let now_ns = wall_clock_ns().saturating_sub(BEHIND_NS);
        // A clock that was set back, and one that was not read yet.
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

    /// Goes on with another filter or sampling, if somebody wants it.
    #[inline]
    fn look_at_selection(&mut self) {
        let changing = &self.shared.switch.selection;
        if let Some(selection) = changing.changed(&mut self.selection_number) {
            self.filter = selection.filter.map(Filter::new);
            self.meter.set_sampling(selection.sampling);
        }
    }

    /// How many of so many packets may be metered.
    fn take_budget(&self, count: u64) -> u64 {
        let Some(budget) = &self.shared.budget else {
            return count;
        };
        let take = |left: u64| Some(left.saturating_sub(count));
        // Once a batch, and only when a count was asked for.
        match budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(left) | Err(left) => left.min(count),
        }
    }

    fn is_budget_spent(&self) -> bool {
        let budget = self.shared.budget.as_ref();
        budget.is_some_and(|budget| budget.load(Ordering::Relaxed) == 0)
    }

    /// A file may have several interfaces, met on the way; a device's is known from the start, so
    /// that nobody waits here while the kernel is asked for counters.
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

    /// Looks a little further for the largest live flows.
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
                ..
            } = &mut *status;
            live_applications.clear();
            scan.scan.take(live, |place, record| {
                self.meter.application(place, record, &mut self.found);
                let known = flow::take_application(&self.found).unwrap_or(Application::EMPTY);
                live_applications.push(known);
            });
            drop(status);
            scan.running = false;
        }
    }

    fn publish(&mut self) {
        if let Some(scan) = &mut self.scan
            && !scan.running
            && scan.started_at.elapsed() >= SCAN
        {
            scan.started_at = Instant::now();
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
        // No more packets come, and the collector does not wait long for anybody.
        self.outbox.may_wait = true;
        self.meter.finish(&mut self.outbox);
        self.outbox.send();
        self.publish();
        let mut status = lock(&self.status);
        status.series = self.series.take();
        status.live.clear();
        status.live_applications.clear();
    }
}

/// Ended flows on their way to the collector.
struct Outbox {
    index: usize,
    buffer: Buffer,
    messages: SyncSender<Message>,
    empties: Receiver<Buffer>,
    /// Buffers that have come back.
    spare: Vec<Buffer>,
    /// No packets are lost while we wait for a buffer.
    may_wait: bool,
    records_dropped: u64,
    packets_dropped: u64,
    /// The collector is gone.
    is_gone: bool,
}

impl RecordSink for Outbox {
    #[inline]
    fn ended(&mut self, record: &Record, reason: EndReason) {
        self.push(record, None, reason);
    }

    fn ended_with(&mut self, record: &Record, extra: &Extra<'_>, reason: EndReason) {
        self.push(record, Some(extra), reason);
    }
}

impl Outbox {
    #[inline]
    fn push(&mut self, record: &Record, extra: Option<&Extra<'_>>, reason: EndReason) {
        self.buffer.push(record, extra, reason);
        if self.buffer.records.len() == BUFFER_LEN {
            self.send();
        }
    }

    /// Whether half of the buffers are here.
    fn has_room(&mut self) -> bool {
        while self.spare.len() < BUFFER_COUNT / 2
            && let Ok(empty) = self.empties.try_recv()
        {
            self.spare.push(empty);
        }
        self.spare.len() >= BUFFER_COUNT / 2
    }

    /// Sends the records of a buffer that is not full, unless the collector is behind: then they
    /// wait for others, or the few records of each pulse would take all buffers.
    fn pulse(&mut self) {
        if self.has_room() {
            self.send();
        }
    }

    fn send(&mut self) {
        if self.buffer.records.is_empty() {
            return;
        }
        let empty = match self.spare.pop() {
            Some(empty) => Ok(empty),
            None if self.may_wait => self.empties.recv().map_err(|_| TryRecvError::Disconnected),
            None => self.empties.try_recv(),
        };
        match empty {
            Ok(empty) => {
                let full = std::mem::replace(&mut self.buffer, empty);
                // There is room for all buffers, so this does not wait.
                let sent = self.messages.send(Message::Ended(self.index, full));
                self.is_gone |= sent.is_err();
            }
            Err(error) => {
                self.is_gone |= error == TryRecvError::Disconnected;
                let packets = self
                    .buffer
                    .records
                    .iter()
                    .map(|(record, _)| record.packets());
                self.packets_dropped += packets.sum::<u64>();
                self.records_dropped += self.buffer.records.len() as u64;
                self.buffer.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests;
