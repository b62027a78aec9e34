//! Forwards the packets of one port to another; with `both` also in the other direction.
//!
//! ```text
//!   A.rx[0] ─┐                      one lane: a thread with one sending queue and the receiving
//!   A.rx[2] ─┴─> choose ─> B.tx[0]  queues that it serves; as many lanes as there are pairs
//!   A.rx[1] ───> choose ─> B.tx[1]
//! ```
//!
//! If both ports use one pool (`open` gives them one), a packet's frame changes hands and no byte
//! is moved; otherwise it is copied and counted. Packets for which the sending side has no room
//! wait briefly if the input can lose packets, and as long as necessary if it cannot (a file, a
//! ring in memory).

mod lane;
mod setup;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

pub use port::Intake;
use port::{Counter, Port, PortAccount, PortDescription, PortEvent};
use sys::{Error, Result};

use crate::Stop;
use crate::worker::{Ended, Pacing};
use lane::Lane;

pub(crate) use setup::{End, open_sending, refuse_circle};
pub use setup::{Opened, Setup, open};

/// Interval of progress reports and checks for events.
const TICK: Duration = Duration::from_secs(1);

/// How long the last packets may take to be sent.
const LEAVE_MAX: Duration = Duration::from_secs(2);

/// Options of forwarding.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Also forward from the second port to the first.
    pub both: bool,
    /// Stop after this many packets in both directions together.
    pub count: Option<u64>,
    /// Stop after this long.
    pub duration: Option<Duration>,
    /// What threads do while idle. [`Pacing::Gather`] is [`Pacing::Prompt`] here.
    pub pacing: Pacing,
    /// Processors to pin the threads to: first the lanes from the first port to the second, then
    /// the others.
    pub cpus: Vec<usize>,
}

/// One end of the path.
pub struct Side {
    /// The port.
    pub port: Port,
    /// Maximum length of a packet sent on it, in bytes; 0 is unlimited.
    pub packet_len_max: usize,
    /// What happens to packets that are not received from it.
    pub intake: Intake,
}

impl From<Port> for Side {
    /// A port that sends packets of any length.
    fn from(port: Port) -> Self {
        let intake = port.control.describe().intake;
        Self {
            port,
            packet_len_max: 0,
            intake,
        }
    }
}

/// Counts of one direction, in packets unless noted otherwise: `received = forwarded + tx_full +
/// too_long + cut + outgoing + surplus + abandoned`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Packets that the receiving port delivered.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Packets handed to the sending port. What its device refuses is counted there, as failed.
    pub forwarded: u64,
    /// Their bytes.
    pub forwarded_bytes: u64,
    /// Packets of these that were copied because the ports share no pool.
    pub copied: u64,
    /// Dropped: the sending port had no room.
    pub tx_full: u64,
    /// Dropped: longer than the sending interface allows, or than its ring holds.
    pub too_long: u64,
    /// Dropped: truncated by the capture, so the packet would not be the original.
    pub cut: u64,
    /// Not forwarded: sent by the host itself, as seen by a tap.
    pub outgoing: u64,
    /// Not forwarded: received after the last one requested.
    pub surplus: u64,
    /// Not forwarded: an error ended forwarding before their turn.
    pub abandoned: u64,
}

impl Flow {
    /// Packets lost between the ports.
    pub fn dropped(&self) -> u64 {
        self.tx_full + self.too_long + self.cut + self.abandoned
    }

    /// Packets missing from the account (positive) or counted twice (negative).
    pub fn imbalance(&self) -> i64 {
        let known = self.forwarded + self.dropped() + self.outgoing + self.surplus;
        self.received.wrapping_sub(known) as i64
    }

    fn add(&mut self, other: &Self) {
        self.received += other.received;
        self.received_bytes += other.received_bytes;
        self.forwarded += other.forwarded;
        self.forwarded_bytes += other.forwarded_bytes;
        self.copied += other.copied;
        self.tx_full += other.tx_full;
        self.too_long += other.too_long;
        self.cut += other.cut;
        self.outgoing += other.outgoing;
        self.surplus += other.surplus;
        self.abandoned += other.abandoned;
    }
}

/// A lane's counters, updated by its thread once per batch.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Counters {
    received: Counter,
    received_bytes: Counter,
    forwarded: Counter,
    forwarded_bytes: Counter,
    copied: Counter,
    tx_full: Counter,
    too_long: Counter,
    cut: Counter,
    outgoing: Counter,
    surplus: Counter,
    abandoned: Counter,
}

impl Counters {
    fn read(&self) -> Flow {
        // Later stages of a packet are read first, so that none appears counted twice.
        let (forwarded, forwarded_bytes) = (self.forwarded.get(), self.forwarded_bytes.get());
        Flow {
            forwarded,
            forwarded_bytes,
            copied: self.copied.get(),
            tx_full: self.tx_full.get(),
            too_long: self.too_long.get(),
            cut: self.cut.get(),
            outgoing: self.outgoing.get(),
            surplus: self.surplus.get(),
            abandoned: self.abandoned.get(),
            received: self.received.get(),
            received_bytes: self.received_bytes.get(),
        }
    }
}

/// State shared by the lanes of one direction and the control side.
struct Way {
    counters: Vec<Arc<Counters>>,
    packet_len_max: Arc<AtomicUsize>,
    failing: Arc<Failing>,
}

/// Whether sending currently fails, and why; accessed when an outage begins and ends.
#[derive(Debug, Default)]
struct Failing(Mutex<Outages>);

/// Outages so far. Several lanes on one device have separate outages.
#[derive(Clone, Debug, Default)]
struct Outages {
    /// Reason of the last one.
    why: String,
    /// Number of outages that began.
    begun: u64,
    /// Number of outages that ended.
    over: u64,
}

impl Failing {
    fn begin(&self, why: String) {
        let mut outages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        outages.why = why;
        outages.begun += 1;
    }

    fn end(&self) {
        let mut outages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        outages.over += 1;
    }

    fn get(&self) -> Outages {
        let outages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        outages.clone()
    }
}

impl Way {
    fn new(to: &Side) -> Self {
        Self {
            counters: Vec::new(),
            packet_len_max: Arc::new(AtomicUsize::new(to.packet_len_max)),
            failing: Arc::default(),
        }
    }

    fn flow(&self) -> Flow {
        let mut sum = Flow::default();
        for counters in &self.counters {
            sum.add(&counters.read());
        }
        sum
    }
}

/// Packets that may still be forwarded, shared by all lanes.
#[derive(Debug)]
struct Budget(Option<Left>);

/// Packets not claimed by any lane, and packets not forwarded yet: the two differ by the packets
/// that lanes have claimed, some of which they may return.
#[derive(Debug)]
struct Left {
    free: AtomicU64,
    wanted: AtomicU64,
}

impl Budget {
    fn new(count: Option<u64>) -> Self {
        Self(count.map(|count| Left {
            free: AtomicU64::new(count),
            wanted: AtomicU64::new(count),
        }))
    }

    /// Claims up to `want` packets.
    fn take(&self, want: u64) -> u64 {
        let Some(left) = &self.0 else { return want };
        let mut taken = 0;
        let _ = left
            .free
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| {
                taken = free.min(want);
                Some(free - taken)
            });
        taken
    }

    /// Settles a claim: how many packets were forwarded, and how many are returned.
    fn settle(&self, used: u64, unused: u64) {
        if let Some(left) = &self.0 {
            left.free.fetch_add(unused, Ordering::Relaxed);
            left.wanted.fetch_sub(used, Ordering::Relaxed);
        }
    }

    /// Whether all requested packets have been forwarded, not only claimed.
    fn is_used_up(&self) -> bool {
        let left = self.0.as_ref();
        left.is_some_and(|left| left.wanted.load(Ordering::Relaxed) == 0)
    }
}

/// Events while packets are forwarded.
#[derive(Debug)]
pub enum Notice<'a> {
    /// Once a second: packets forwarded so far, from the first port and, with `both`, from the
    /// second.
    Progress(&'a [Flow]),
    /// An event of the device behind port 0 or 1.
    Event(usize, PortEvent),
    /// Once a second, if there are new ones: packets that the device of port 0 or 1 has refused so
    /// far, of those handed to it.
    Refused(usize, u64),
    /// Sending on port 0 or 1 fails; packets without room are dropped. Reported once per outage.
    Failing(usize, String),
    /// Sending on port 0 or 1 works again.
    Working(usize),
}

/// The outcome.
#[derive(Debug)]
pub struct Outcome {
    /// Counts from the first port and, with `both`, from the second.
    pub flows: Vec<Flow>,
    /// The accounts of both ports.
    pub accounts: [PortAccount; 2],
    /// The descriptions of both ports.
    pub descriptions: [PortDescription; 2],
    /// Why it ended.
    pub ended: Ended,
    /// Time from the start until the last packet was sent.
    pub elapsed: Duration,
    /// The first error, which ended it early. Everything before it was handled.
    pub error: Option<Error>,
}

impl Outcome {
    /// The difference over a whole direction: packets the receiving port delivered against packets
    /// received, and packets handed over against packets the sending port sent or refused.
    pub fn imbalance(&self, way: usize) -> u64 {
        let flow = &self.flows[way];
        let (rx, tx) = (
            self.accounts[way].rx_total(),
            self.accounts[1 - way].tx_total(),
        );
        let taken = rx.delivered.abs_diff(flow.received);
        let given = flow.forwarded.abs_diff(tx.sent + tx.failed);
        taken + flow.imbalance().unsigned_abs() + given
    }

    /// Packets that the interfaces' own counters lack: received but not seen by the receiving
    /// interface, and sent but not counted by the sending one. Other traffic there hides some of
    /// them.
    pub fn unknown_to_interfaces(&self, way: usize) -> [u64; 2] {
        let (from, to) = (&self.accounts[way], &self.accounts[1 - way]);
        let received = self.flows[way].received - self.flows[way].outgoing;
        [
            from.interface_seen
                .map_or(0, |seen| received.saturating_sub(seen)),
            to.interface_sent
                .map_or(0, |sent| to.tx_total().sent.saturating_sub(sent)),
        ]
    }
}

/// Forwards until the stop flag, the end of the input, the count, the time, or an error.
pub fn run(
    sides: [Side; 2],
    options: &Options,
    stop: &Stop,
    mut notice: impl FnMut(Notice<'_>),
) -> Outcome {
    let began = Instant::now();
    let [mut a, mut b] = sides;
    let budget = Arc::new(Budget::new(options.count));
    let mut ways = vec![Way::new(&b)];
    let mut lanes = lane::lanes(&mut ways[0], &mut a, &mut b, &budget);
    if options.both {
        ways.push(Way::new(&a));
        lanes.extend(lane::lanes(&mut ways[1], &mut b, &mut a, &budget));
    }
    let mut running = Running {
        sides: [a, b],
        ways,
        stop,
        error: None,
        ended: Ended::Stopped,
        reported: [0; 2],
        is_failing: [false; 2],
        refused: [0; 2],
    };
    let mut lanes = match options.count {
        Some(0) => lanes,
        _ => running.lanes(lanes, options, &mut notice),
    };
    running.finish(&mut lanes, options.both);
    // Before the accounts: packets never sent are returned when their queue closes, and count as
    // failed.
    drop(lanes);
    let accounts = running.sides.each_mut().map(|side| {
        let account = side.port.control.account();
        account.unwrap_or_default()
    });
    Outcome {
        flows: running.ways.iter().map(Way::flow).collect(),
        accounts,
        descriptions: running
            .sides
            .each_ref()
            .map(|side| side.port.control.describe()),
        ended: running.ended,
        elapsed: began.elapsed(),
        error: running.error,
    }
}

/// The control side while lanes run.
struct Running<'a> {
    sides: [Side; 2],
    ways: Vec<Way>,
    stop: &'a Stop,
    error: Option<Error>,
    ended: Ended,
    /// Reported outages of each direction, and whether the last one continues.
    reported: [u64; 2],
    is_failing: [bool; 2],
    /// Packets reported as refused by the sending port of each direction.
    refused: [u64; 2],
}

/// Ends everything when its thread panics: the others would never learn of it.
struct EndsWith<'a>(&'a Stop);

impl Drop for EndsWith<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.set();
        }
    }
}

impl Running<'_> {
    /// Keeps the first error, which caused the others, and ends everything.
    fn keep(&mut self, result: Result<()>) {
        if let Err(error) = result {
            self.error.get_or_insert(error);
            self.stop.set();
        }
    }

    /// Runs a thread per lane until all have ended, and returns the lanes.
    fn lanes(
        &mut self,
        lanes: Vec<Lane>,
        options: &Options,
        notice: &mut impl FnMut(Notice<'_>),
    ) -> Vec<Lane> {
        let deadline = options.duration.map(|duration| Instant::now() + duration);
        let (send, ended) = mpsc::channel();
        let stop = self.stop;
        let mut rest = Vec::new();
        thread::scope(|scope| {
            let mut running = lanes.len();
            for (index, mut lane) in lanes.into_iter().enumerate() {
                let send = send.clone();
                let cpu = options.cpus.get(index % options.cpus.len().max(1)).copied();
                let pacing = options.pacing;
                scope.spawn(move || {
                    let _ends = EndsWith(stop);
                    let pinned = cpu.map_or(Ok(()), sys::affinity::pin_current_thread);
                    let result = pinned.and_then(|()| lane.run(stop, pacing));
                    let _ = send.send((lane, result));
                });
            }
            drop(send);
            let mut tick = Instant::now() + TICK;
            while running > 0 {
                let next = deadline.map_or(tick, |deadline| deadline.min(tick));
                match ended.recv_timeout(next.saturating_duration_since(Instant::now())) {
                    Ok((lane, result)) => {
                        running -= 1;
                        rest.push(lane);
                        match result {
                            Ok(Ended::Input) if running == 0 => self.ended = Ended::Input,
                            Ok(Ended::Finished) => {
                                self.ended = Ended::Finished;
                                stop.set();
                            }
                            Ok(_) => {}
                            Err(error) => self.keep(Err(error)),
                        }
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    // A thread panicked; leaving the scope reports it.
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    stop.set();
                }
                if Instant::now() >= tick {
                    tick += TICK;
                    self.tick(notice);
                }
            }
        });
        rest
    }

    /// Reports progress, once a second.
    fn tick(&mut self, notice: &mut impl FnMut(Notice<'_>)) {
        for index in 0..2 {
            while let Some(event) = self.sides[index].port.control.event() {
                let side = &self.sides[index];
                if let PortEvent::MtuChanged(mtu) = &event
                    && let Some(way) = self.ways.get(1 - index)
                    && side.packet_len_max != 0
                {
                    let len_max = setup::packet_len_max(*mtu, &side.port);
                    way.packet_len_max.store(len_max, Ordering::Relaxed);
                }
                notice(Notice::Event(index, event));
            }
        }
        for (from, way) in self.ways.iter().enumerate() {
            let now = way.failing.get();
            // An outage that began and ended between two checks is reported, too.
            if now.begun != self.reported[from] {
                self.reported[from] = now.begun;
                self.is_failing[from] = true;
                notice(Notice::Failing(1 - from, now.why));
            }
            if now.over == now.begun && std::mem::take(&mut self.is_failing[from]) {
                notice(Notice::Working(1 - from));
            }
            let account = self.sides[1 - from].port.control.account();
            let refused = account.map_or(0, |account| account.tx_total().failed);
            if refused > self.refused[from] {
                self.refused[from] = refused;
                notice(Notice::Refused(1 - from, refused));
            }
        }
        let flows: Vec<Flow> = self.ways.iter().map(Way::flow).collect();
        notice(Notice::Progress(&flows));
    }

    /// Stops the intake, forwards what is in the rings, and waits until it is sent.
    fn finish(&mut self, lanes: &mut [Lane], both: bool) {
        for index in 0..1 + usize::from(both) {
            let stopped = self.sides[index].port.control.stop();
            self.keep(stopped);
        }
        // In parallel: while one waits for its device, the others' rings would overflow.
        let results: Vec<_> = thread::scope(|scope| {
            let finish = |lane| scope.spawn(|| Lane::finish(lane, LEAVE_MAX));
            let threads: Vec<_> = lanes.iter_mut().map(finish).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                let result = thread.join();
                result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect()
        });
        for result in results {
            self.keep(result);
        }
    }
}

#[cfg(test)]
mod tests;
