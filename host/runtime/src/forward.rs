//! Forwarding: what one port receives, another sends, and with `both` the other way too.
//!
//! ```text
//!   A.rx[0] ─┐                      one lane: a thread with one sending queue and the receiving
//!   A.rx[2] ─┴─> choose ─> B.tx[0]  queues that it serves; as many lanes as there are pairs
//!   A.rx[1] ───> choose ─> B.tx[1]
//! ```
//!
//! Where both ports are over one pool (`open` gives them one), a packet's frame changes hands and
//! no byte moves; elsewhere it is copied and counted. What the sending side has no room for waits a
//! moment if the input can be lost, and as long as it takes if it cannot (a file, a ring in
//! memory).

mod lane;
mod setup;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use port::{Counter, Port, PortAccount, PortDescription, PortEvent};
use sys::{Error, Result};

use crate::Stop;
use crate::worker::{Ended, Pacing};
use lane::Lane;

pub use setup::{Opened, Setup, open};

/// How often progress is told and events are looked at.
const TICK: Duration = Duration::from_secs(1);

/// How long the last packets may take to leave.
const LEAVE_MAX: Duration = Duration::from_secs(2);

/// How to forward.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Also from the second port to the first.
    pub both: bool,
    /// End after so many packets, over both directions.
    pub count: Option<u64>,
    /// End after so long.
    pub duration: Option<Duration>,
    /// What threads do while nothing comes.
    pub pacing: Pacing,
    /// Processors to pin the threads to: lanes from the first port to the second, then the others.
    pub cpus: Vec<usize>,
}

/// One end of the path.
pub struct Side {
    /// The port.
    pub port: Port,
    /// Longest packet that can be sent on it, in bytes; 0 is any.
    pub packet_len_max: usize,
    /// What becomes of packets that are not taken from it.
    pub intake: Intake,
}

/// What becomes of packets that nobody takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intake {
    /// They are lost when a ring is full.
    Live,
    /// Their sender waits.
    Waiting,
    /// They stay in the file.
    File,
}

impl From<Port> for Side {
    /// A port that takes packets of any length.
    fn from(port: Port) -> Self {
        let intake = match port.control.describe().scheme {
            "file" => Intake::File,
            "memory" => Intake::Waiting,
            _ => Intake::Live,
        };
        Self {
            port,
            packet_len_max: 0,
            intake,
        }
    }
}

/// What happened to the packets of one direction, in packets unless said otherwise:
/// `received = forwarded + tx_full + too_long + outgoing + surplus`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Packets that the receiving port delivered.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Packets handed to the sending port. What its device refused is counted there, as failed.
    pub forwarded: u64,
    /// Their bytes.
    pub forwarded_bytes: u64,
    /// Packets of these that were copied because the ports share no pool.
    pub copied: u64,
    /// Dropped: the sending port had no room.
    pub tx_full: u64,
    /// Dropped: longer than the sending interface takes.
    pub too_long: u64,
    /// Not forwarded: a tap showed what the host itself sent.
    pub outgoing: u64,
    /// Not forwarded: came after the last one wanted.
    pub surplus: u64,
}

impl Flow {
    /// Packets lost between the ports.
    pub fn dropped(&self) -> u64 {
        self.tx_full + self.too_long
    }

    /// What is missing from the account (positive) or counted twice (negative).
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
        self.outgoing += other.outgoing;
        self.surplus += other.surplus;
    }
}

/// A lane's counters, moved by its thread once a batch.
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
    outgoing: Counter,
    surplus: Counter,
}

impl Counters {
    fn read(&self) -> Flow {
        // What comes later in a packet's life is read first, so that nothing shows as counted
        // twice.
        let (forwarded, forwarded_bytes) = (self.forwarded.get(), self.forwarded_bytes.get());
        Flow {
            forwarded,
            forwarded_bytes,
            copied: self.copied.get(),
            tx_full: self.tx_full.get(),
            too_long: self.too_long.get(),
            outgoing: self.outgoing.get(),
            surplus: self.surplus.get(),
            received: self.received.get(),
            received_bytes: self.received_bytes.get(),
        }
    }
}

/// What one direction's lanes share, and the control side.
struct Way {
    counters: Vec<Arc<Counters>>,
    packet_len_max: Arc<AtomicUsize>,
    failing: Arc<Failing>,
}

/// Why sending fails for now.
#[derive(Debug, Default)]
struct Failing(Mutex<Option<String>>);

impl Failing {
    fn set(&self, why: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    fn get(&self) -> Option<String> {
        let why = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        why.clone()
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

/// Packets that may still be forwarded; shared by all lanes.
#[derive(Debug)]
struct Budget(Option<AtomicU64>);

impl Budget {
    /// Takes up to `want` packets; what is not used is given back.
    fn take(&self, want: u64) -> u64 {
        let Some(left) = &self.0 else { return want };
        let mut taken = 0;
        let _ = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            taken = left.min(want);
            Some(left - taken)
        });
        taken
    }

    fn give_back(&self, count: u64) {
        if let Some(left) = &self.0 {
            left.fetch_add(count, Ordering::Relaxed);
        }
    }

    fn is_used_up(&self) -> bool {
        let left = self.0.as_ref();
        left.is_some_and(|left| left.load(Ordering::Relaxed) == 0)
    }
}

/// What the caller hears while packets are forwarded.
#[derive(Debug)]
pub enum Notice<'a> {
    /// Once a second: what was forwarded so far, from the first port and, with both, from the
    /// second.
    Progress(&'a [Flow]),
    /// Something happened to the device behind port 0 or 1.
    Event(usize, PortEvent),
    /// Sending on port 0 or 1 fails for now; packets that find no room are dropped.
    Failing(usize, String),
}

/// How it ended.
#[derive(Debug)]
pub struct Outcome {
    /// What was forwarded from the first port and, with both, from the second.
    pub flows: Vec<Flow>,
    /// The accounts of both ports.
    pub accounts: [PortAccount; 2],
    /// What the ports were.
    pub descriptions: [PortDescription; 2],
    /// Why it ended.
    pub ended: Ended,
    /// From the first packet's chance to the last one's leaving.
    pub elapsed: Duration,
    /// What ended it early: the first error. Everything before it was handled.
    pub error: Option<Error>,
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
    let budget = Arc::new(Budget(options.count.map(AtomicU64::new)));
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
    };
    let mut lanes = match options.count {
        Some(0) => lanes,
        _ => running.lanes(lanes, options, &mut notice),
    };
    running.finish(&mut lanes, options.both);
    // Before the accounts: what never left comes back when its queue closes, and counts as failed.
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
}

impl Running<'_> {
    /// Keeps the first error, which is the cause of the others, and ends everything.
    fn keep(&mut self, result: Result<()>) {
        if let Err(error) = result {
            self.error.get_or_insert(error);
            self.stop.set();
        }
    }

    /// Runs a thread a lane until all have ended, and gives the lanes back.
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
                    // A thread panicked; leaving the scope tells it.
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

    /// What is done once a second.
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
            if let Some(why) = way.failing.get() {
                notice(Notice::Failing(1 - from, why));
            }
        }
        let flows: Vec<Flow> = self.ways.iter().map(Way::flow).collect();
        notice(Notice::Progress(&flows));
    }

    /// Stops the intake, forwards what is in the rings, and waits until it has left.
    fn finish(&mut self, lanes: &mut [Lane], both: bool) {
        for index in 0..1 + usize::from(both) {
            let stopped = self.sides[index].port.control.stop();
            self.keep(stopped);
        }
        for lane in lanes {
            let drained = lane.finish(LEAVE_MAX);
            self.keep(drained);
        }
    }
}

#[cfg(test)]
mod tests;
