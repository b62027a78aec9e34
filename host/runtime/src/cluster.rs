//! A cluster: one process receives packets, and hands each of them to one queue of every
//! application. The readers are other processes, which open the queues as ports (`ring:NAME`).
//!
//! ```text
//!              copy, or the pool's own frames    by flow       a reader each
//!   port.rx[0] ─┐                                ┌──> queue 0 ──> ring:NAME/0
//!   port.rx[1] ─┴─> frames of a shared pool ──┬──┴──> queue 1 ──> ring:NAME/1
//!                                             └─────> queue 2 ──> ring:NAME/2, another application
//! ```
//!
//! The applications share the frame: no byte is copied for the second one. A queue without room
//! drops, and the drop is counted there; no reader delays another. What a reader had not taken when
//! it exited waits for the next one.
//!
//! One thread moves packets. The calling thread accepts readers and reports.

mod application;
mod back;
mod balance;
mod cleanup;
mod detunnel;
mod holders;
mod inputs;
mod inside;
mod leaving;
mod merge;
mod mover;
mod readers;
mod returns;
mod select;
mod setup;
mod shared;
mod status;
mod table;
mod topology;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use port::{PortAccount, PortDescription, PortEvent};
use ring::shared::{Caller, Handed};
use sys::poll::Wanted;
use sys::{Error, ErrorKind, Result};

use crate::Stop;
use crate::worker::{Ended, Pacing};

pub use application::{Application, ApplicationCounts, WhenFull, WhenGone};
pub use back::SentQueue;
pub use balance::Balance;
pub use cleanup::{Cleanup, DEDUPLICATE_DEFAULT, Detunnel, parse_deduplicate};
pub use inputs::InputPort;
pub use merge::{WINDOW_MAX, parse as parse_merge};
pub use returns::{OutputStatus, Return};
pub use setup::{Opened, Setup, open};
pub use status::{
    ApplicationStatus, InputStatus, Openable, QueueStatus, Status, drain, names, openable, status,
};
pub use table::Table;
pub use topology::{Topology, read as read_topology};

use mover::Mover;
use shared::{Shared, SharedApplication, SharedQueue, lock};

/// Interval of progress reports.
const TICK: Duration = Duration::from_secs(1);

/// Interval of checks whether readers have exited, and longest time until a reader is accepted.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How long readers have at the end to read what is in their queues, unless a request to drain the
/// cluster sets another time.
const LEAVE_MAX: Duration = Duration::from_secs(2);

/// Maximum number of processes that wait to be attached.
const CALLER_COUNT_MAX: usize = 64;

/// Options of a run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Stop after this many packets.
    pub count: Option<u64>,
    /// Stop after this long.
    pub duration: Option<Duration>,
    /// What the thread does while idle.
    pub pacing: Pacing,
    /// Processor to pin the thread to.
    pub cpu: Option<usize>,
}

/// Counts of the input, in packets unless noted otherwise: `received = adopted + pool_empty +
/// too_long + surplus + abandoned`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Packets that the ports delivered.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Packets offered to one queue of each application.
    pub adopted: u64,
    /// Number of these that were copied into the pool; the others were in it.
    pub copied: u64,
    /// Dropped: the pool had no free frame.
    pub pool_empty: u64,
    /// Dropped: in too many frames.
    pub too_long: u64,
    /// Received after the last one requested.
    pub surplus: u64,
    /// Not handled: the run ended first.
    pub abandoned: u64,
    /// Handed over out of order: they arrived after the merge window.
    pub late: u64,
}

impl Totals {
    /// Packets missing from the account (positive) or counted twice (negative).
    pub fn imbalance(&self) -> i64 {
        let known = self.adopted + self.pool_empty + self.too_long + self.surplus + self.abandoned;
        self.received.wrapping_sub(known) as i64
    }
}

/// One queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Its number.
    pub index: u32,
    /// Name of its application.
    pub application: String,
    /// Process id of its reader; `None` if it has none.
    pub reader: Option<u32>,
    /// Whether that process has exited, and one that it has started reads.
    pub has_reader_exited: bool,
    /// Inode of the queue's memory, which its reader has mapped; 0 if that is unknown.
    pub memory: u64,
    /// Number of readers so far.
    pub readers: u64,
    /// Packets and segments that wait in the ring.
    pub depth: u32,
    /// Length of the ring.
    pub len: u32,
    /// Its counts.
    pub counts: Handed,
    /// What its readers have sent.
    pub sent: SentQueue,
}

/// Something that happened to a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A process reads a queue.
    Attached {
        /// The queue.
        queue: u32,
        /// The process.
        process: u32,
    },
    /// The reader of a queue has exited.
    Left {
        /// The queue.
        queue: u32,
        /// The process.
        process: u32,
        /// Packets that it had taken and not returned.
        lost: u32,
        /// Packets that wait for the next reader.
        kept: u32,
    },
    /// A process was refused, and why.
    Refused(String),
    /// The device of an input is gone, or back.
    Input {
        /// Its name.
        port: String,
        /// What happened.
        text: String,
        /// Whether packets are lost.
        is_warning: bool,
    },
    /// An event of a port that sends.
    Output {
        /// Its name.
        port: String,
        /// What happened.
        text: String,
        /// Whether packets are lost.
        is_warning: bool,
    },
}

/// Events while packets are moved.
#[derive(Debug)]
pub enum Notice<'a> {
    /// Once a second.
    Progress(&'a Totals, &'a [Queue], &'a [InputPort]),
    /// An event of a reader.
    Reader(Event),
    /// An event of the input.
    Port(PortEvent),
}

/// The outcome.
#[derive(Debug)]
pub struct Outcome {
    /// Counts of the input.
    pub totals: Totals,
    /// The applications.
    pub applications: Vec<ApplicationStatus>,
    /// The queues. Packets that still wait were in a queue, or with its reader, at the end.
    pub queues: Vec<Queue>,
    /// The ports that send.
    pub outputs: Vec<OutputStatus>,
    /// The input ports, with whether their devices are gone.
    pub inputs: Vec<InputPort>,
    /// The account of the input ports.
    pub account: PortAccount,
    /// Their description.
    pub description: PortDescription,
    /// Why it ended.
    pub ended: Ended,
    /// Time from the start.
    pub elapsed: Duration,
    /// The error that ended it early. Everything before it was handled.
    pub error: Option<Error>,
}

impl Outcome {
    /// The difference over the whole cluster: packets that the ports delivered against packets
    /// received, and packets adopted against packets handed to, dropped by or left out for each
    /// application.
    pub fn imbalance(&self) -> u64 {
        let delivered = self.account.rx_total().delivered;
        let mut sum = delivered.abs_diff(self.totals.received);
        sum += self.totals.imbalance().unsigned_abs();
        let its = |name: &str| {
            let name = name.to_owned();
            self.queues
                .iter()
                .filter(move |queue| queue.application == name)
        };
        let passed = |name: &str| its(name).map(|queue| queue.sent.passed).sum::<u64>();
        for application in &self.applications {
            let offered = |queue: &Queue| queue.counts.handed + queue.counts.dropped;
            let offered: u64 = its(&application.name).map(offered).sum();
            let expected = match application.source.as_str() {
                "" => self.totals.adopted,
                source => passed(source),
            };
            let counts = &application.counts;
            let left_out = counts.filtered + counts.duplicates + counts.shunted;
            sum += (offered + left_out).abs_diff(expected);
        }
        let known = |it: &SentQueue| it.passed + it.dropped + it.refused;
        let sent = self.queues.iter().map(|queue| &queue.sent);
        sum += sent.map(|it| it.sent.abs_diff(known(it))).sum::<u64>();
        let continued = |name: &str| self.applications.iter().any(|it| it.source == name);
        let last = self.applications.iter().filter(|it| !continued(&it.name));
        let passed: u64 = last.map(|it| passed(&it.name)).sum();
        let ports = self.outputs.iter().filter(|it| it.reader_of.is_empty());
        let given: u64 = ports.map(|port| port.given).sum();
        // A port that failed has not taken what it was given.
        if self.error.is_none() {
            sum += passed.abs_diff(given);
        }
        sum
    }
}

/// Moves packets until the stop flag, the end of the input, the count, the time, or an error.
pub fn run(
    opened: Opened,
    options: &Options,
    stop: &Stop,
    mut notice: impl FnMut(Notice<'_>),
) -> Outcome {
    let began = Instant::now();
    let shared = Arc::new(Shared {
        queues: opened.ends.iter().map(|_| SharedQueue::default()).collect(),
        applications: opened
            .applications()
            .map(|_| SharedApplication::default())
            .collect(),
        outputs: opened
            .outputs()
            .map(|_| returns::SharedOutput::default())
            .collect(),
        inputs: opened
            .sources
            .iter()
            .map(|_| inputs::SharedInput::default())
            .collect(),
        ..Shared::default()
    });
    let (mut mover, mut desk, lanes) = opened.split(options, &shared, stop);
    let pacing = options.pacing;
    let cpu = options.cpu;
    thread::scope(|lane_scope| {
        let lanes = lanes.into_iter().enumerate();
        let start = |(at, lane)| returns::start(lane_scope, lane, at, pacing, &shared, stop);
        let lanes: Vec<_> = lanes.map(start).collect();
        let (mover, result) = thread::scope(|scope| {
            let thread = scope.spawn(move || {
                let pinned = cpu.map_or(Ok(()), sys::affinity::pin_current_thread);
                let result = pinned.and_then(|()| mover.run(pacing));
                (mover, result)
            });
            let deadline = options.duration.map(|duration| began + duration);
            let mut tick = began + TICK;
            while !thread.is_finished() {
                desk.serve(&mut notice);
                let now = Instant::now();
                if deadline.is_some_and(|deadline| now >= deadline) {
                    stop.set();
                }
                if now >= tick {
                    tick += TICK;
                    desk.report(&mut notice);
                }
            }
            let result = thread.join();
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        desk.finish(mover, result, lanes, began, notice)
    })
}

/// The thread that accepts readers and reports.
struct Desk {
    control: Box<dyn port::PortControl>,
    offer: Arc<ring::shared::Offer>,
    shared: Arc<Shared>,
    setup: setup::Named,
    began: Instant,
    refused_at: Option<Instant>,
    stop: Stop,
    reopener: inputs::Reopener,
    /// Requests to drain the cluster, which are answered at the end.
    drains: Vec<Caller>,
}

impl Desk {
    /// Accepts readers that wait, at most for [`LOOK_EVERY`].
    fn serve(&mut self, notice: &mut impl FnMut(Notice<'_>)) {
        let fd = self.offer.poll_fd();
        let mut wanted = [Wanted::readable(&fd)];
        // An error here is one of `accept` as well.
        let _ = sys::poll::wait(&mut wanted, LOOK_EVERY);
        // Each caller may take its time, but all together not longer than that.
        let began = Instant::now();
        for _ in 0..CALLER_COUNT_MAX {
            if began.elapsed() >= LOOK_EVERY {
                break;
            }
            match self.offer.next(|process| self.setup.may(process)) {
                Ok(None) => break,
                Ok(Some(caller)) => self.answer(caller),
                Err(error) if self.refused_at.is_none_or(|at| at.elapsed() >= TICK) => {
                    // Not more often: any process may try again and again.
                    self.refused_at = Some(Instant::now());
                    notice(Notice::Reader(Event::Refused(error.why().to_owned())));
                }
                Err(_) => {}
            }
        }
        self.shared.look.store(true, Ordering::Relaxed);
        self.reopener.run(&mut *self.control, &self.shared);
        for event in std::mem::take(&mut *lock(&self.shared.events)) {
            notice(Notice::Reader(event));
        }
    }

    fn answer(&mut self, caller: Caller) {
        if caller.request == ring::shared::Request::Status {
            let text = self.status().encode();
            return caller.answer(&text);
        }
        if let ring::shared::Request::Drain(_) = caller.request {
            return self.drain(caller);
        }
        let interfaces = self.setup.interfaces(&self.control.describe());
        let mut callers = lock(&self.shared.callers);
        if callers.len() >= CALLER_COUNT_MAX {
            let why = "too many processes attach at the same time";
            return caller.refuse(ring::shared::Refusal::Busy, why);
        }
        callers.push((caller, interfaces));
        self.shared.has_callers.store(true, Ordering::Release);
    }

    /// Ends the run for a process of root or of this user.
    fn drain(&mut self, caller: Caller) {
        let own = sys::descriptors::Credentials::own().uid;
        if ![0, own].contains(&caller.process.uid) {
            // Closed without an answer.
            return;
        }
        if self.drains.len() < CALLER_COUNT_MAX {
            self.drains.push(caller);
            self.stop.set();
        }
    }

    /// Answers requests while readers read what is left: there are no more queues.
    fn serve_ending(&mut self) {
        let Ok(Some(caller)) = self.offer.next(|process| self.setup.may(process)) else {
            return;
        };
        match caller.request {
            ring::shared::Request::Status => caller.answer(&self.status().encode()),
            ring::shared::Request::Drain(_) => self.drain(caller),
            _ => {
                let why = "it is ending: its readers read what is left";
                caller.refuse(ring::shared::Refusal::Busy, why);
            }
        }
    }

    /// How long readers have at the end.
    fn patience(&self) -> Duration {
        let asked = self.drains.iter().map(|caller| match caller.request {
            ring::shared::Request::Drain(seconds) => Duration::from_secs(seconds.into()),
            _ => LEAVE_MAX,
        });
        asked.max().unwrap_or(LEAVE_MAX)
    }

    fn queues(&self) -> Vec<Queue> {
        let queues = self.shared.queues.iter().enumerate();
        let read = |(index, queue): (usize, &SharedQueue)| {
            let application = self.setup.application_of(index as u32);
            queue.read(index as u32, application, self.setup.ring_len)
        };
        queues.map(read).collect()
    }

    fn status(&self) -> Status {
        self.setup.status(
            &self.shared.totals(),
            self.queues(),
            &self.shared.counts(),
            &self.shared,
            self.began.elapsed(),
        )
    }

    fn report(&mut self, notice: &mut impl FnMut(Notice<'_>)) {
        while let Some(event) = self.control.event() {
            notice(Notice::Port(event));
        }
        let inputs = self.setup.input_ports(&self.shared);
        let totals = self.shared.totals();
        notice(Notice::Progress(&totals, &self.queues(), &inputs));
    }

    /// Handles what is in the rings of the ports, ends the queues in order, and reports.
    fn finish(
        mut self,
        mut mover: Mover,
        result: Result<Ended>,
        lanes: Vec<returns::Running<'_>>,
        began: Instant,
        mut notice: impl FnMut(Notice<'_>),
    ) -> Outcome {
        // Also after an error of an input: queues that are full do not hold up the end.
        self.stop.set();
        let mut error = None;
        let mut keep = |result: Result<()>| {
            if let Err(first) = result {
                error.get_or_insert(first);
            }
        };
        let is_gone = |error: &Error| error.kind() == ErrorKind::Gone;
        let is_lost = result.as_ref().is_err_and(is_gone)
            || self.shared.has_lost_output.load(Ordering::Relaxed);
        let ended = result.unwrap_or_else(|error| {
            keep(Err(error));
            Ended::Stopped
        });
        keep(self.control.stop());
        keep(mover.drain());
        let elapsed = began.elapsed();
        let end = Instant::now() + self.patience();
        mover.leave(end, is_lost, || self.serve_ending());
        // Their input has ended: they send what they were given.
        for lane in lanes {
            let failed = lane
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            keep(failed.map_or(Ok(()), Err));
        }
        for event in std::mem::take(&mut *lock(&self.shared.events)) {
            notice(Notice::Reader(event));
        }
        // Those who wait get no queue.
        lock(&self.shared.callers).clear();
        let status = self.status();
        drop(mover);
        for caller in self.drains {
            caller.answer(&status.encode());
        }
        Outcome {
            totals: self.shared.totals(),
            applications: status.applications,
            queues: status.queues,
            outputs: status.outputs,
            inputs: status.input.each,
            account: self.control.account().unwrap_or_default(),
            description: self.control.describe(),
            ended,
            elapsed,
            error,
        }
    }
}

#[cfg(test)]
mod tests;
