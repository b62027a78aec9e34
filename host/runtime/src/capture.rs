//! Captures: packets from the queues of a port are written to a file, printed on standard output,
//! or only counted.
//!
//! There is a thread per queue, and a writer thread. A queue's thread formats its packets as
//! records of the file, in bundles of its own, so that no queue waits for another one; the writer
//! takes them in timestamp order. When all bundles of a queue are in use because the output is
//! slow, packets stay in the device's ring, and the device counts what it drops. The control side's
//! counters are read under a lock that no queue takes.
//!
//! When the run is to end, by a signal or after its duration, the wait for a stalled output is
//! bounded: what is still unwritten then is counted.

mod handover;
mod output;
mod print;
mod queue;
mod watch;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use port::file::{FileWriter, KernelProgress, Written};
use port::{Port, PortAccount, PortControl, PortDescription, PortEvent, RxQueue};
use sys::{Error, ErrorKind, Result};

use self::handover::{Contents, Filling};
use self::output::{End, Link, Output, Writer};
use self::queue::{Counting, Handing, Thread};
use self::watch::Watch;
use crate::Stop;
use crate::worker::{Ended, Pacing};

pub use handover::{Held, NO_TIME_NS};
pub use print::{Columns, Context, Dump, Printer, Style, TimeStyle};

/// Interval of progress reports and of updates of a file's counters.
const TICK: Duration = Duration::from_secs(1);

/// Interval at which the stop flag is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// How long the writer may take at the end while it makes progress.
const END_MAX: Duration = Duration::from_secs(30);

/// The destination of captured packets.
#[derive(Debug)]
pub enum Recorder {
    /// A capture file.
    File(Box<FileWriter>),
    /// A capture file, and text on standard output.
    Both(Box<FileWriter>, Box<Printer>),
    /// Text on standard output.
    Text(Box<Printer>),
    /// None; packets are only counted.
    Count,
}

/// Direction of the packets of a tap to capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// Both directions.
    #[default]
    Both,
    /// Packets that the host received.
    In,
    /// Packets that the host sent.
    Out,
}

/// Options of a capture.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Stop after this many packets.
    pub count: Option<u64>,
    /// Stop after this long.
    pub duration: Option<Duration>,
    /// Direction of the packets to capture.
    pub way: Way,
    /// Write each batch immediately.
    pub unbuffered: bool,
    /// How long packets may stay in memory while no others arrive.
    pub linger: Duration,
    /// The filter's text, for the file.
    pub filter: String,
    /// The port is an interface, so the direction of packets is known.
    pub is_live: bool,
    /// The blocks of a pcapng file are copied: the port has
    /// [`copies_blocks`](port::PortOptions::copies_blocks), the file
    /// [`BlockCopy`](port::file::BlockCopy).
    pub copies_blocks: bool,
    /// What threads do while idle.
    pub pacing: Pacing,
    /// Processors to pin the threads to.
    pub cpus: Vec<usize>,
}

/// Counts of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Packets written, printed or counted.
    pub packets: u64,
    /// Their bytes, as captured.
    pub bytes: u64,
    /// Packets in the other direction.
    pub other_way: u64,
    /// Packets received after the last one requested.
    pub surplus: u64,
    /// Packets not written because the output was stalled at the end.
    pub unwritten: u64,
    /// Packets of several queues that came too late for timestamp order, and were written after
    /// newer ones.
    pub late: u64,
    /// Packets written to a pcap file with its latest time, because theirs is later.
    pub times_clamped: u64,
    /// Timestamp of the first.
    pub first_ns: Option<u64>,
    /// Timestamp of the last.
    pub last_ns: Option<u64>,
}

/// Events while a capture runs.
#[derive(Debug)]
pub enum Notice<'a> {
    /// Once a second.
    Progress {
        /// The counts so far.
        totals: Totals,
        /// The port's account.
        account: &'a PortAccount,
    },
    /// An event of the device.
    Event(PortEvent),
}

/// How a capture ended.
#[derive(Debug)]
pub struct Outcome {
    /// The final counts.
    pub totals: Totals,
    /// What was written, and into how many files; `None` without a file.
    pub written: Option<Written>,
    /// The port's account.
    pub account: PortAccount,
    /// The port's description.
    pub description: PortDescription,
    /// Number of blocks of a copied file that were left out
    /// ([`PortControl::blocks_left_out`]).
    pub blocks_left_out: u64,
    /// The first error, which ended the capture early. Everything before it was handled.
    pub error: Option<Error>,
    /// A write has not returned: `totals` and `written` count as written what the kernel has taken,
    /// and everything else as unwritten.
    pub is_stuck: bool,
    /// Lines were printed in addition to a file, and their reader has closed them: the file is
    /// complete.
    pub stdout_closed: bool,
}

/// The control side. The writer locks it only for a new interface of a file, whose control side
/// makes no system calls.
type Control = Mutex<Box<dyn PortControl>>;

/// Messages from the threads.
enum Event {
    /// A queue has ended.
    Received(Result<Ended>),
    /// A queue's ring is drained and its thread has ended.
    Drained(Result<()>, Totals),
    /// Writing failed.
    Failed(Error),
    /// The output is complete.
    Written(End),
    /// A thread panicked.
    Panicked,
}

/// Reports a panic of its thread, which the control side would otherwise wait for forever.
struct Alarm(Sender<Event>);

impl Drop for Alarm {
    fn drop(&mut self) {
        if thread::panicking() {
            let _ = self.0.send(Event::Panicked);
        }
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked is a bug in barewire, which its alarm reports; the data is intact.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Captures until the stop flag, the end of the file, the count, the time, or an error.
pub fn run(
    port: Port,
    recorder: Recorder,
    options: &Options,
    stop: &Stop,
    mut notice: impl FnMut(Notice<'_>),
) -> Outcome {
    let Port { rx, control, .. } = port;
    let mut capture = Capture::new(control, rx.len(), options);
    let started = match recorder {
        Recorder::Count => capture.start_counting(rx),
        recorder => capture.start_writing(rx, recorder),
    };
    capture.keep(started);
    while !capture.is_over() {
        capture.handle_events();
        capture.look(stop);
        if Instant::now() >= capture.tick {
            // Ticks missed while, for example, the process was stopped are skipped.
            capture.tick = Instant::now() + TICK;
            let reported = capture.report(&mut notice);
            capture.keep(reported);
        }
    }
    capture.outcome()
}

/// The control side of a capture.
struct Capture {
    options: Arc<Options>,
    control: Arc<Control>,
    link: Arc<Link>,
    origin: Instant,
    /// The channel that all threads send to.
    events: (Sender<Event>, Receiver<Event>),
    /// Number of queues still receiving.
    receiving: usize,
    /// Number of queue threads still running.
    running: usize,
    /// Dropped once the intake is stopped: then the queues drain their rings.
    go: Vec<Sender<()>>,
    /// Sends the final account to the writer once every queue has ended; `None` if nothing is
    /// written.
    last: Option<Sender<PortAccount>>,
    is_stopped: bool,
    account: Option<PortAccount>,
    /// Counts of the queues.
    counted: Totals,
    /// Current counts of the queues if nothing is written; otherwise counts that the writer has not
    /// seen yet.
    shown: Vec<Arc<[AtomicU64; 2]>>,
    /// What the output has accepted, if there is one.
    handed: Option<KernelProgress>,
    end: Option<End>,
    is_stuck: bool,
    error: Option<Error>,
    deadline: Option<Instant>,
    tick: Instant,
    /// When the end was requested.
    asked: Option<Instant>,
    /// Detects a writer blocked by its output.
    watch: Watch,
    abandoned_at: Option<Instant>,
}

impl Capture {
    fn new(control: Box<dyn PortControl>, queue_count: usize, options: &Options) -> Capture {
        let now = Instant::now();
        Capture {
            options: Arc::new(options.clone()),
            control: Arc::new(Mutex::new(control)),
            link: Arc::default(),
            origin: now,
            events: mpsc::channel(),
            receiving: queue_count,
            running: queue_count,
            go: Vec::new(),
            last: None,
            is_stopped: false,
            account: None,
            counted: Totals::default(),
            shown: Vec::new(),
            handed: None,
            end: None,
            is_stuck: false,
            error: None,
            deadline: options.duration.map(|duration| now + duration),
            tick: now + TICK,
            asked: None,
            watch: Watch::new(false),
            abandoned_at: None,
        }
    }

    /// Keeps the first error, which caused the others.
    fn keep(&mut self, result: Result<()>) {
        if let Err(new) = result {
            self.error.get_or_insert(new);
            self.link.halt.set();
        }
    }

    fn spawn(&self, name: String, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let alarm = Alarm(self.events.0.clone());
        let work = move || {
            let _alarm = alarm;
            work();
        };
        thread::Builder::new()
            .name(name)
            .spawn(work)
            .map(drop)
            .map_err(|e| Error::from_io("start a thread of the capture", e))
    }

    /// Creates the thread of a queue.
    fn thread(&mut self, index: usize, rx: RxQueue) -> Thread {
        let (go, stopped) = mpsc::channel();
        self.go.push(go);
        let cpus = &self.options.cpus;
        Thread {
            rx,
            options: self.options.clone(),
            link: self.link.clone(),
            cpu: cpus.get(index % cpus.len().max(1)).copied(),
            events: self.events.0.clone(),
            stopped,
        }
    }

    fn start_counting(&mut self, queues: Vec<RxQueue>) -> Result<()> {
        let taken = Arc::default();
        for (index, rx) in queues.into_iter().enumerate() {
            let engine = Counting {
                options: self.options.clone(),
                taken: Arc::clone(&taken),
                shown: Arc::default(),
                totals: Totals::default(),
            };
            self.shown.push(engine.shown.clone());
            let thread = self.thread(index, rx);
            self.start_queue(index, move || thread.run(engine))?;
        }
        Ok(())
    }

    /// How packets are passed to the writer.
    fn filling(&self, recorder: &Recorder, queue_count: usize) -> Filling {
        let contents = match recorder {
            // The records of several queues must be merged in order.
            Recorder::File(writer) if queue_count == 1 && writer.takes_records() => {
                Contents::Records(writer.encoder())
            }
            Recorder::File(writer) => Contents::Headed(writer.encoder()),
            Recorder::Both(writer, _) if self.options.copies_blocks => {
                Contents::Headed(writer.encoder())
            }
            Recorder::Both(..) | Recorder::Text(_) | Recorder::Count => Contents::Packets,
        };
        Filling {
            contents,
            knows_way: self.options.is_live,
            linger: self.options.linger,
            unbuffered: self.options.unbuffered,
        }
    }

    fn start_writing(&mut self, queues: Vec<RxQueue>, recorder: Recorder) -> Result<()> {
        let filling = self.filling(&recorder, queues.len());
        self.handed = match &recorder {
            Recorder::File(writer) | Recorder::Both(writer, _) => Some(writer.handed()),
            Recorder::Text(printer) => Some(printer.handed()),
            Recorder::Count => None,
        };
        self.watch = Watch::new(match &recorder {
            Recorder::File(writer) => writer.is_stream(),
            Recorder::Text(_) => true,
            // In both cases the disk may take longer.
            Recorder::Both(..) | Recorder::Count => false,
        });
        let (inlets, merge) = handover::ends(queues.len(), &self.link.bell, filling);
        let (account, last) = mpsc::channel();
        let mut output = Output::new(recorder, &self.options, self.control.clone());
        let learned = output.learn_first();
        self.keep(learned);
        let writer = Writer {
            output,
            merge,
            link: self.link.clone(),
            origin: self.origin,
            unbuffered: self.options.unbuffered,
            linger: self.options.linger,
            events: self.events.0.clone(),
            last,
        };
        self.spawn("writer".into(), move || writer.run())
            .inspect_err(|_| (self.receiving, self.running) = (0, 0))?;
        self.last = Some(account);
        // With several queues only the writer knows the last packet of `--count`.
        let left = match (queues.len(), self.options.count) {
            (1, Some(count)) => count,
            _ => u64::MAX,
        };
        for (index, (rx, inlet)) in queues.into_iter().zip(inlets).enumerate() {
            let engine = Handing {
                inlet,
                options: self.options.clone(),
                link: self.link.clone(),
                origin: self.origin,
                left,
                shown: Arc::default(),
                totals: Totals::default(),
            };
            self.shown.push(engine.shown.clone());
            let thread = self.thread(index, rx);
            self.start_queue(index, move || thread.run(engine))?;
        }
        Ok(())
    }

    fn start_queue(&mut self, index: usize, work: impl FnOnce() + Send + 'static) -> Result<()> {
        self.spawn(format!("queue-{index}"), work).inspect_err(|_| {
            // Queues whose threads were not started count as ended.
            let missing = self.receiving - index;
            self.receiving -= missing;
            self.running -= missing;
        })
    }

    fn is_over(&self) -> bool {
        let is_written = self.end.is_some() || self.last.is_none();
        self.is_stuck || self.is_stopped && self.running == 0 && is_written
    }

    /// Receives and handles messages from the threads.
    fn handle_events(&mut self) {
        let wait = self.tick.saturating_duration_since(Instant::now());
        match self.events.1.recv_timeout(wait.min(CHECK_INTERVAL)) {
            Ok(Event::Received(result)) => {
                self.receiving -= 1;
                match result {
                    Ok(Ended::Finished) => self.link.halt.set(),
                    Ok(Ended::Input | Ended::Stopped) => {}
                    Err(error) => self.keep(Err(error)),
                }
            }
            Ok(Event::Drained(result, totals)) => {
                self.running -= 1;
                self.counted.add(&totals);
                self.keep(result);
            }
            Ok(Event::Failed(error)) => self.keep(Err(error)),
            Ok(Event::Written(end)) => self.end = Some(end),
            Ok(Event::Panicked) => panic!("a thread of the capture panicked"),
            // This thread itself holds a sender.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        if self.receiving == 0 && !self.is_stopped {
            self.is_stopped = true;
            let stopped = lock(&self.control).stop();
            self.keep(stopped);
            self.go.clear();
        }
        if self.is_stopped && self.running == 0 && self.account.is_none() {
            let account = lock(&self.control).account().unwrap_or_default();
            if let Some(last) = &self.last {
                // A writer that has ended needs none.
                let _ = last.send(account.clone());
            }
            self.account = Some(account);
        }
    }

    /// Checks whether the run is to end, and abandons a writer that is stalled then.
    fn look(&mut self, stop: &Stop) {
        let now = Instant::now();
        if self.asked.is_none()
            && (stop.is_set() || self.deadline.is_some_and(|deadline| now >= deadline))
        {
            self.asked = Some(now);
            self.link.halt.set();
        }
        let Some(asked) = self.asked.filter(|_| self.last.is_some()) else {
            return;
        };
        if let Some(abandoned_at) = self.abandoned_at {
            self.is_stuck = self.end.is_none() && now - abandoned_at >= self.watch.grace;
            return;
        }
        let step = self.link.step.load(Ordering::Relaxed);
        let handed = self.handed.as_ref().map_or(0, KernelProgress::packets);
        if self.watch.is_stalled(step, handed, now) || now - asked >= END_MAX {
            self.link.is_abandoned.store(true, Ordering::Relaxed);
            self.abandoned_at = Some(now);
        }
    }

    /// Reports progress once a second. The two locks are never held together.
    fn report(&self, notice: &mut impl FnMut(Notice<'_>)) -> Result<()> {
        let (events, account) = {
            let mut control = lock(&self.control);
            let events: Vec<PortEvent> = std::iter::from_fn(|| control.event()).collect();
            (events, control.account()?)
        };
        let mut totals = self.link.report(&account);
        for shown in &self.shown {
            totals.packets += shown[0].load(Ordering::Relaxed);
            totals.bytes += shown[1].load(Ordering::Relaxed);
        }
        events
            .into_iter()
            .for_each(|event| notice(Notice::Event(event)));
        notice(Notice::Progress {
            totals,
            account: &account,
        });
        Ok(())
    }

    fn outcome(mut self) -> Outcome {
        let (account, description, blocks_left_out) = {
            let mut control = lock(&self.control);
            let account = self.account.take();
            let account = account.unwrap_or_else(|| control.account().unwrap_or_default());
            (account, control.describe(), control.blocks_left_out())
        };
        let mut totals = self.counted;
        let (mut written, mut stdout_closed) = (None, false);
        if let Some(end) = self.end.take() {
            totals.add(&end.totals);
            written = end.written;
            stdout_closed = end.stdout_closed;
            self.keep(end.error.map_or(Ok(()), Err));
        } else if self.is_stuck {
            let status = lock(&self.link.status);
            totals.add(&status.totals);
            written = status.written;
            // Packets waiting in memory are lost as those in the rings are.
            if let Some(handed) = &self.handed {
                (totals.packets, totals.bytes) = (handed.packets(), handed.captured_bytes());
                if let Some(written) = &mut written {
                    written.packets = handed.packets();
                    written.bytes = handed.written_bytes();
                }
            }
            // Packets handed to the output, of which it is unknown whether they were accepted.
            let known = totals.packets + totals.other_way + totals.surplus + totals.unwritten;
            let delivered = account.rx_total().delivered;
            totals.unwritten += delivered.saturating_sub(known);
        }
        if totals.unwritten != 0 || self.is_stuck {
            let why = format!(
                "the disk or the reader stalled; {} packets are lost",
                totals.unwritten
            );
            let error = Error::new(ErrorKind::Io, "write what was captured", why);
            self.keep(Err(error.with_hint("resume the reader, or check the disk")));
        }
        Outcome {
            stdout_closed,
            totals,
            written,
            account,
            description,
            blocks_left_out,
            error: self.error,
            is_stuck: self.is_stuck,
        }
    }
}

impl Totals {
    /// Adds the counts of another thread.
    fn add(&mut self, other: &Totals) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.other_way += other.other_way;
        self.surplus += other.surplus;
        self.unwritten += other.unwritten;
        self.late += other.late;
        self.times_clamped += other.times_clamped;
        self.first_ns = self.first_ns.into_iter().chain(other.first_ns).min();
        self.last_ns = self.last_ns.max(other.last_ns);
    }
}

#[cfg(test)]
mod tests;
