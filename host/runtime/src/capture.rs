//! Capturing: packets from the queues of a port into a file, onto standard output, or only counted.
//!
//! A thread a queue. They share what they fill, under a lock taken once a batch; with one queue
//! nobody ever waits for it. With several, packets of different queues follow each other batch by
//! batch: each queue's are in order, the whole is not quite. The control side has a lock of its
//! own, which is held while the kernel is asked for counters: no packet waits for that.

mod print;

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// The control side. Threads of queues take it only to learn of an interface of a file, whose
/// control side asks nobody.
type Control = Mutex<Box<dyn PortControl>>;

/// What the threads share.
struct Shared {
    sink: Sink,
    totals: Totals,
    /// Writing has failed: what comes now is surplus.
    failed: bool,
    /// Link type and name of each interface of the port.
    links: Vec<(u16, String)>,
    /// The number of each in the file.
    written_as: Vec<u32>,
    filter: Arc<str>,
    is_live: bool,
    flushed: Instant,
}

impl Shared {
    /// Learns of interfaces up to `index`: files tell of them while they are read.
    fn learn(&mut self, index: usize, control: &Control) -> Result<()> {
        self.links.extend({
            let control = lock(control);
            let new = control.interfaces(self.links.len());
            if new.is_empty() && self.links.is_empty() && self.is_live {
                // A device is its own only interface.
                let text = control.describe();
                vec![(text.link_type, text.target)]
            } else {
                new
            }
        });
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

    /// Takes a packet, which is counted in one of the totals whatever happens.
    fn packet(
        &mut self,
        packet: &Packet<'_>,
        options: &Options,
        control: &Control,
        now_ns: u64,
    ) -> Result<Verdict> {
        let index = usize::from(packet.interface_index());
        if index >= self.links.len()
            && let Err(error) = self.learn(index, control)
        {
            self.totals.surplus += 1;
            return Err(error);
        }
        let time_ns = packet.time_ns().unwrap_or(now_ns);
        let mut failure = None;
        match &mut self.sink {
            Sink::File(writer) => {
                let outgoing = packet.is_outgoing();
                let outgoing = (options.is_live || outgoing).then_some(outgoing);
                // Missing where the file could not take the interface: that error ends the capture.
                let Some(&interface) = self.written_as.get(index) else {
                    self.totals.surplus += 1;
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
                        // The error may count it among the packets lost: then it was captured.
                        if writer.written().packets + writer.waiting() <= self.totals.packets {
                            self.totals.surplus += 1;
                            return Err(error);
                        }
                        failure = Some(error);
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
                    failure = self.flush().err();
                }
            }
            Sink::Count => {}
        }
        let totals = &mut self.totals;
        totals.packets += 1;
        totals.bytes += u64::from(packet.cap_len());
        totals.first_ns.get_or_insert(time_ns);
        totals.last_ns = Some(time_ns);
        if let Some(error) = failure {
            return Err(error);
        }
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

    /// Gives a file the counters of the account, for whenever it ends.
    fn note(&mut self, account: &PortAccount) {
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
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked is a bug of ours that its join tells; the data is whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The clock, for packets without a time.
fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_nanos() as u64)
}

/// What a queue's thread runs.
struct Worker<'a> {
    shared: &'a Mutex<Shared>,
    control: &'a Control,
    options: &'a Options,
    /// The last packet wanted was seen: what comes now is surplus.
    finished: bool,
}

impl Engine for Worker<'_> {
    fn batch(&mut self, batch: &mut RxBatch<'_>) -> Result<Verdict> {
        let mut shared = lock(self.shared);
        let mut now = 0;
        let mut failure = None;
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
            self.finished |= shared.failed || shared.totals.packets >= count;
            if self.finished {
                shared.totals.surplus += 1;
                continue;
            }
            // Of a file that does not say when, nothing is known; on a wire it was now.
            if now == 0 && self.options.is_live && packet.time_ns().is_none() {
                now = now_ns();
            }
            match shared.packet(&packet, self.options, self.control, now) {
                Ok(verdict) => self.finished = verdict == Verdict::Finish,
                Err(error) => {
                    // The rest of the batch was delivered too, and is counted.
                    shared.failed = true;
                    failure = Some(error);
                }
            }
        }
        if let Some(error) = failure {
            return Err(error);
        }
        if self.options.unbuffered && !shared.failed {
            shared.flush()?;
        }
        Ok(match self.finished {
            true => Verdict::Finish,
            false => Verdict::Continue,
        })
    }

    fn idle(&mut self) -> Result<Verdict> {
        let mut shared = lock(self.shared);
        if shared.flushed.elapsed() >= self.options.linger && !shared.failed {
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
    let control: Control = Mutex::new(control);
    let shared = Mutex::new(Shared {
        sink,
        totals: Totals::default(),
        failed: false,
        links: Vec::new(),
        written_as: Vec::new(),
        filter: options.filter.as_str().into(),
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
    keep(learn_first(&shared, &control));
    let queues = if stop.is_set() {
        rx
    } else {
        let threads = Threads {
            shared: &shared,
            control: &control,
            options,
            stop,
        };
        threads.receive(rx, &mut notice, &mut keep)
    };
    keep(lock(&control).stop());
    for mut rx in queues {
        let mut worker = Worker {
            shared: &shared,
            control: &control,
            options,
            finished: false,
        };
        keep(worker::drain(&mut rx, &mut worker));
    }
    let mut shared = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !shared.failed {
        keep(shared.flush());
    }
    let (account, description) = {
        let mut control = lock(&control);
        (control.account().unwrap_or_default(), control.describe())
    };
    shared.note(&account);
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

fn learn_first(shared: &Mutex<Shared>, control: &Control) -> Result<()> {
    let mut shared = lock(shared);
    if !shared.is_live && lock(control).interfaces(0).is_empty() {
        return Ok(());
    }
    shared.learn(0, control)
}

/// What runs the threads of the queues.
#[derive(Clone, Copy)]
struct Threads<'a> {
    shared: &'a Mutex<Shared>,
    control: &'a Control,
    options: &'a Options,
    stop: &'a Stop,
}

impl Threads<'_> {
    /// Runs a thread a queue until all have ended, and gives back the queues that may hold more.
    fn receive(
        self,
        queues: Vec<RxQueue>,
        notice: &mut impl FnMut(Notice<'_>),
        keep: &mut impl FnMut(Result<()>),
    ) -> Vec<RxQueue> {
        let Threads {
            shared,
            control,
            options,
            stop,
        } = self;
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
                        control,
                        options,
                        finished: false,
                    };
                    let result = pinned
                        .and_then(|()| worker::run(&mut rx, &mut worker, stop, options.pacing));
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
                    keep(self.tick(notice));
                }
            }
        });
        rest
    }

    /// What is done once a second. The two locks are never held together, so that no packet waits
    /// while the kernel is asked.
    fn tick(&self, notice: &mut impl FnMut(Notice<'_>)) -> Result<()> {
        let (events, account) = {
            let mut control = lock(self.control);
            let events: Vec<PortEvent> = std::iter::from_fn(|| control.event()).collect();
            (events, control.account()?)
        };
        let totals = {
            let mut shared = lock(self.shared);
            shared.note(&account);
            shared.totals
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
}

#[cfg(test)]
mod tests;
