//! Capturing: packets from the queues of a port into a file, onto standard output, or only counted.
//!
//! A thread a queue. They share what they fill, under a lock taken once a batch; with one queue
//! nobody ever waits for it. With several, packets of different queues follow each other batch by
//! batch: each queue's are in order, the whole is not quite.

mod print;

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use port::file::{FileInterface, FileWriter, Written, Wrote};
use port::{
    DropReason, Packet, Port, PortAccount, PortControl, PortDescription, PortEvent, RxBatch,
    RxQueue,
};
use sys::{Error, ErrorKind, Result};

use crate::Stop;
use crate::worker::{self, Ended, Engine, Pacing, Verdict};

pub use print::{Context, Dump, Printer, Style, TimeStyle};

/// How often progress is told, counters of a file are brought up to date.
const TICK: Duration = Duration::from_secs(1);

/// Text that waits before it is written although packets keep coming.
const TEXT_LEN: usize = 64 << 10;

/// Where packets go.
#[derive(Debug)]
pub enum Sink {
    /// Into a capture file.
    File(Box<FileWriter>),
    /// Onto standard output as text.
    Text(Box<Printer>),
    /// Nowhere.
    Count,
}

/// Which of a tap's packets are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// All.
    #[default]
    Both,
    /// Those that the host received.
    In,
    /// Those that the host sent.
    Out,
}

/// How to capture.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// End after so many packets.
    pub count: Option<u64>,
    /// End after so long.
    pub duration: Option<Duration>,
    /// Which way they must have gone.
    pub way: Way,
    /// Write each batch at once.
    pub unbuffered: bool,
    /// How long packets may wait in memory while nothing comes.
    pub linger: Duration,
    /// The filter's text, for the file.
    pub filter: String,
    /// The port is an interface: it is known which way packets went.
    pub is_live: bool,
    /// What threads do while nothing comes.
    pub pacing: Pacing,
    /// Processors to pin the threads to.
    pub cpus: Vec<usize>,
}

/// What was captured so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Packets written, printed or counted.
    pub packets: u64,
    /// Their bytes, as captured.
    pub bytes: u64,
    /// Packets that went the other way.
    pub other_way: u64,
    /// Packets that came after the last one wanted.
    pub surplus: u64,
    /// Time of the first.
    pub first_ns: Option<u64>,
    /// Time of the last.
    pub last_ns: Option<u64>,
}

/// What the caller hears while a capture runs.
#[derive(Debug)]
pub enum Notice<'a> {
    /// Once a second.
    Progress {
        /// What was captured.
        totals: Totals,
        /// The port's account.
        account: &'a PortAccount,
    },
    /// Something happened to the device.
    Event(PortEvent),
}

/// How a capture ended.
#[derive(Debug)]
pub struct Outcome {
    /// What was captured.
    pub totals: Totals,
    /// What was written, into how many files; nothing without a file.
    pub written: Option<Written>,
    /// The port's account.
    pub account: PortAccount,
    /// What the port was.
    pub description: PortDescription,
    /// What ended it early: the first error. Everything before it was handled.
    pub error: Option<Error>,
}

/// What the threads share.
struct Shared {
    sink: Sink,
    control: Box<dyn PortControl>,
    totals: Totals,
    /// Link type and name of each interface of the port.
    links: Vec<(u16, String)>,
    /// The number of each in the file.
    written_as: Vec<u32>,
    filter: String,
    is_live: bool,
    flushed: Instant,
}

impl Shared {
    /// Learns of interfaces up to `index`: files tell of them while they are read.
    fn learn(&mut self, index: usize) -> Result<()> {
        let text = self.control.describe();
        self.links = text.interfaces;
        if self.links.is_empty() && self.is_live {
            // A device is its own only interface.
            self.links.push((text.link_type, text.target));
        }
        if let Sink::File(writer) = &mut self.sink {
            for (link_type, name) in self.links.iter().skip(self.written_as.len()) {
                self.written_as.push(writer.interface(FileInterface {
                    link_type: *link_type,
                    name: name.clone(),
                    filter: self.filter.clone(),
                })?);
            }
        }
        if index >= self.links.len() {
            let why = format!("a packet of interface {index}, which was not described");
            return Err(Error::new(ErrorKind::Damaged, "capture", why));
        }
        Ok(())
    }

    fn packet(&mut self, packet: &Packet<'_>, options: &Options, now_ns: u64) -> Result<Verdict> {
        let index = usize::from(packet.interface_index());
        if index >= self.links.len() {
            self.learn(index)?;
        }
        let time_ns = packet.time_ns().unwrap_or(now_ns);
        match &mut self.sink {
            Sink::File(writer) => {
                let outgoing = packet.is_outgoing();
                let outgoing = (options.is_live || outgoing).then_some(outgoing);
                // Missing where the file could not take the interface: that error ends the capture.
                let Some(&interface) = self.written_as.get(index) else {
                    return Ok(Verdict::Finish);
                };
                match writer.packet(packet, interface, outgoing, now_ns) {
                    Ok(Wrote::Packet) => {}
                    Ok(Wrote::Full) => {
                        // The set of files is full: this packet came too late for it.
                        self.totals.surplus += 1;
                        return Ok(Verdict::Finish);
                    }
                    Err(error) => {
                        // The error counts it among the packets lost, so it was captured.
                        self.totals.packets += 1;
                        return Err(error);
                    }
                }
            }
            Sink::Text(printer) => {
                let (link_type, interface) = &self.links[index];
                let context = Context {
                    link_type: *link_type,
                    interface,
                    time_ns: now_ns,
                    has_way: options.is_live,
                };
                printer.packet(packet, &context);
                if printer.waiting() >= TEXT_LEN {
                    self.flush()?;
                }
            }
            Sink::Count => {}
        }
        let totals = &mut self.totals;
        totals.packets += 1;
        totals.bytes += u64::from(packet.cap_len());
        totals.first_ns.get_or_insert(time_ns);
        totals.last_ns = Some(time_ns);
        Ok(match options.count {
            Some(count) if totals.packets >= count => Verdict::Finish,
            _ => Verdict::Continue,
        })
    }

    /// Gives what waits in memory to the system.
    fn flush(&mut self) -> Result<()> {
        self.flushed = Instant::now();
        match &mut self.sink {
            Sink::File(writer) => writer.flush(),
            Sink::Text(printer) => printer
                .flush(&mut io::stdout().lock())
                .map_err(|e| Error::from_io("write to standard output", e)),
            Sink::Count => Ok(()),
        }
    }

    /// Takes the account; a file gets the counters too, for whenever it ends.
    fn account(&mut self) -> Result<PortAccount> {
        let account = self.control.account()?;
        if let Sink::File(writer) = &mut self.sink {
            let total = account.rx_total();
            let by_interface = total.dropped[DropReason::Interface as usize];
            let lost = total.lost().saturating_sub(by_interface);
            // The counters of a port are those of its only interface; a file that is copied has
            // none of its own.
            if let ([interface], true) = (self.written_as.as_slice(), self.is_live) {
                writer.statistics(*interface, total.seen, by_interface, lost);
            }
        }
        Ok(account)
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    // A thread that panicked is a bug of ours that its join tells; the data is whole.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The clock, for packets without a time.
fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_nanos() as u64)
}

/// What a queue's thread runs.
struct Worker<'a> {
    shared: &'a Mutex<Shared>,
    options: &'a Options,
    /// The last packet wanted was seen: what comes now is surplus.
    finished: bool,
}

impl Engine for Worker<'_> {
    fn batch(&mut self, batch: &mut RxBatch<'_>) -> Result<Verdict> {
        let mut shared = lock(self.shared);
        let mut now = 0;
        for packet in batch.iter() {
            let is_wanted = match self.options.way {
                Way::Both => true,
                Way::In => !packet.is_outgoing(),
                Way::Out => packet.is_outgoing(),
            };
            if !is_wanted {
                shared.totals.other_way += 1;
                continue;
            }
            // Another thread may have taken the last one.
            let count = self.options.count.unwrap_or(u64::MAX);
            self.finished |= shared.totals.packets >= count;
            if self.finished {
                shared.totals.surplus += 1;
                continue;
            }
            // Of a file that does not say when, nothing is known; on a wire it was now.
            if now == 0 && self.options.is_live && packet.time_ns().is_none() {
                now = now_ns();
            }
            let verdict = shared.packet(&packet, self.options, now)?;
            self.finished = verdict == Verdict::Finish;
        }
        if self.options.unbuffered {
            shared.flush()?;
        }
        Ok(match self.finished {
            true => Verdict::Finish,
            false => Verdict::Continue,
        })
    }

    fn idle(&mut self) -> Result<Verdict> {
        let mut shared = lock(self.shared);
        if shared.flushed.elapsed() >= self.options.linger {
            shared.flush()?;
        }
        Ok(Verdict::Continue)
    }
}

/// Captures until the stop flag, the end of the file, the count, the time, or an error.
pub fn run(
    port: Port,
    sink: Sink,
    options: &Options,
    stop: &Stop,
    mut notice: impl FnMut(Notice<'_>),
) -> Outcome {
    let Port { rx, control, .. } = port;
    let shared = Mutex::new(Shared {
        sink,
        control,
        totals: Totals::default(),
        links: Vec::new(),
        written_as: Vec::new(),
        filter: options.filter.clone(),
        is_live: options.is_live,
        flushed: Instant::now(),
    });
    let mut error = None;
    let mut keep = |result: Result<()>| {
        if let Err(new) = result {
            // The first is the cause; what follows is its consequence.
            error.get_or_insert(new);
            stop.set();
        }
    };
    // Interfaces without packets are told too: a live port has its one from the start.
    keep(learn_first(&shared));
    let queues = if stop.is_set() {
        rx
    } else {
        receive(rx, &shared, options, stop, &mut notice, &mut keep)
    };
    keep(lock(&shared).control.stop());
    for mut rx in queues {
        let mut worker = Worker {
            shared: &shared,
            options,
            finished: false,
        };
        keep(worker::drain(&mut rx, &mut worker));
    }
    let mut shared = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    keep(shared.flush());
    let account = shared.account().unwrap_or_default();
    let description = shared.control.describe();
    let written = match shared.sink {
        Sink::File(writer) => {
            let so_far = writer.written();
            let result = writer.finish();
            let written = result.as_ref().map_or(so_far, |written| *written);
            keep(result.map(drop));
            Some(written)
        }
        _ => None,
    };
    Outcome {
        totals: shared.totals,
        written,
        account,
        description,
        error,
    }
}

fn learn_first(shared: &Mutex<Shared>) -> Result<()> {
    let mut shared = lock(shared);
    if !shared.is_live && shared.control.describe().interfaces.is_empty() {
        return Ok(());
    }
    shared.learn(0)
}

/// Runs a thread a queue until all have ended, and gives back the queues that may hold more.
fn receive(
    queues: Vec<RxQueue>,
    shared: &Mutex<Shared>,
    options: &Options,
    stop: &Stop,
    notice: &mut impl FnMut(Notice<'_>),
    keep: &mut impl FnMut(Result<()>),
) -> Vec<RxQueue> {
    let deadline = options.duration.map(|duration| Instant::now() + duration);
    let (send, ended) = mpsc::channel();
    let mut rest = Vec::new();
    thread::scope(|scope| {
        let mut running = queues.len();
        for (index, mut rx) in queues.into_iter().enumerate() {
            let send = send.clone();
            let cpu = options.cpus.get(index % options.cpus.len().max(1)).copied();
            scope.spawn(move || {
                let pinned = cpu.map_or(Ok(()), sys::affinity::pin_current_thread);
                let mut worker = Worker {
                    shared,
                    options,
                    finished: false,
                };
                let result =
                    pinned.and_then(|()| worker::run(&mut rx, &mut worker, stop, options.pacing));
                let _ = send.send((rx, result));
            });
        }
        drop(send);
        let mut tick = Instant::now() + TICK;
        while running > 0 {
            let next = deadline.map_or(tick, |deadline| deadline.min(tick));
            match ended.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok((rx, result)) => {
                    running -= 1;
                    match result {
                        Ok(Ended::Input) => {}
                        Ok(Ended::Finished) => stop.set(),
                        Ok(Ended::Stopped) => rest.push(rx),
                        Err(error) => keep(Err(error)),
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
                keep(self::tick(shared, notice));
            }
        }
    });
    rest
}

/// What is done once a second.
fn tick(shared: &Mutex<Shared>, notice: &mut impl FnMut(Notice<'_>)) -> Result<()> {
    let (totals, account, events) = {
        let mut shared = lock(shared);
        let events: Vec<PortEvent> = std::iter::from_fn(|| shared.control.event()).collect();
        (shared.totals, shared.account()?, events)
    };
    events
        .into_iter()
        .for_each(|event| notice(Notice::Event(event)));
    notice(Notice::Progress {
        totals,
        account: &account,
    });
    Ok(())
}
