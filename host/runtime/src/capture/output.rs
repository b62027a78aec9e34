//! The writer thread: takes packets from the queues in order, and writes them to the file or to
//! standard output. A blocked writer does not block any queue.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use port::file::{FileInterface, FileWriter, Record, WriteFormat, Written};
use port::{DropReason, PortAccount};
use sys::{Error, ErrorKind, Result};

use super::handover::{Bell, Bundle, Given, Merge, NO_TIME_NS, Next, is_beyond_pcap, written_ns};
use super::{Context, Control, Event, Options, Printer, Recorder, Totals, lock};
use crate::Stop;
use crate::output::is_closed;

/// The time of a packet, if it has one.
fn known(time_ns: u64) -> Option<u64> {
    (time_ns != NO_TIME_NS).then_some(time_ns)
}

/// Bytes of text after which it is written although packets keep arriving.
const TEXT_LEN: usize = 64 << 10;

/// Packets between two reads of the clock.
const ROUND_LEN: u64 = 256;

/// Longest sleep.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// How long packets accumulate before the writer checks a busy queue again.
const NAP: Duration = Duration::from_millis(10);

/// Longest sleep while a packet waits for older ones.
const SLEEP_WINDOW: Duration = Duration::from_millis(10);

/// State shared by the threads of a capture. The lock is between the writer and the control side
/// only.
#[derive(Default)]
pub(super) struct Link {
    /// Wakes the writer.
    pub(super) bell: Arc<Bell>,
    /// Tells the queues to end.
    pub(super) halt: Stop,
    /// Nothing more is written: the output was stalled for too long.
    pub(super) is_abandoned: AtomicBool,
    /// Step of the writer: odd during a call that may block.
    pub(super) step: AtomicU64,
    /// The current state.
    pub(super) status: Mutex<Status>,
}

/// State shared between the writer and the control side.
#[derive(Default)]
pub(super) struct Status {
    /// Counts as of the last round.
    pub(super) totals: Totals,
    /// The file's counts as of the last round.
    pub(super) written: Option<Written>,
    /// The port's account, for the file.
    account: Option<PortAccount>,
}

impl Link {
    /// Records the port's account, and returns the counts.
    pub(super) fn report(&self, account: &PortAccount) -> Totals {
        let mut status = lock(&self.status);
        status.account = Some(account.clone());
        status.totals
    }
}

/// The result of writing.
pub(super) struct End {
    pub(super) totals: Totals,
    pub(super) written: Option<Written>,
    pub(super) error: Option<Error>,
    pub(super) stdout_closed: bool,
}

/// The output and its counts.
pub(super) struct Output {
    recorder: Recorder,
    totals: Totals,
    /// Writing has failed, or the limit is reached: further packets are surplus.
    is_over: bool,
    has_failed: bool,
    /// Link type and name of each interface of the port.
    links: Vec<(u16, String)>,
    /// How many of these are in the file, with the same indices.
    announced: usize,
    filter: Arc<str>,
    is_live: bool,
    /// Whether a pcap file is written.
    is_pcap: bool,
    /// Whether the blocks of a file are copied.
    copies_blocks: bool,
    /// The last group of these that was written.
    group: u64,
    count: u64,
    flushed: Instant,
    /// The reader of the lines has closed them, while the file is still written.
    stdout_closed: bool,
    control: Arc<Control>,
}

impl Output {
    pub(super) fn new(recorder: Recorder, options: &Options, control: Arc<Control>) -> Output {
        let is_pcap = match &recorder {
            Recorder::File(writer) | Recorder::Both(writer, _) => writer.is_pcap(),
            Recorder::Text(_) | Recorder::Count => false,
        };
        Output {
            recorder,
            totals: Totals::default(),
            is_over: false,
            has_failed: false,
            links: Vec::new(),
            announced: 0,
            filter: options.filter.as_str().into(),
            is_live: options.is_live,
            is_pcap,
            copies_blocks: options.copies_blocks,
            group: 0,
            count: options.count.unwrap_or(u64::MAX),
            flushed: Instant::now(),
            stdout_closed: false,
            control,
        }
    }

    /// Adds the first interface even without packets: a live port has one from the start.
    pub(super) fn learn_first(&mut self) -> Result<()> {
        let count = lock(&self.control).interfaces(0).len();
        if !self.is_live && count == 0 {
            return Ok(());
        }
        self.learn(count.saturating_sub(1))
    }

    /// Adds interfaces up to `index`: those of a file become known while it is read.
    fn learn(&mut self, index: usize) -> Result<()> {
        let known = self.links.len();
        let new = {
            let control = lock(&self.control);
            let new = control.interfaces(known);
            if new.is_empty() && known == 0 && self.is_live {
                // A device is its own only interface.
                let text = control.describe();
                vec![(text.link_type, text.target)]
            } else {
                new
            }
        };
        // The reader is ahead: how far must not show in the file.
        self.links.extend(new.into_iter().take(index + 1 - known));
        if let Recorder::File(writer) | Recorder::Both(writer, _) = &mut self.recorder {
            for (link_type, name) in self.links.iter().skip(self.announced) {
                let number = writer.interface(FileInterface {
                    link_type: *link_type,
                    name: name.clone(),
                    filter: self.filter.clone(),
                })?;
                // Records contain the port's indices.
                debug_assert_eq!(number as usize, self.announced);
                self.announced += 1;
            }
        }
        if index >= self.links.len() {
            let why = format!("a packet of interface {index}, which has no description block");
            return Err(Error::new(ErrorKind::Damaged, "capture", why));
        }
        Ok(())
    }

    /// Handles a packet, which is counted in exactly one of the totals.
    fn packet(&mut self, packet: &Given<'_>) -> Result<()> {
        if !self.takes(packet.head.meta.interface, 1)? {
            return Ok(());
        }
        self.blocks_before(packet.group)?;
        let wrote = self.put(packet);
        if let Ok(false) = wrote {
            // The set of files is full: this packet came too late for it.
            self.totals.surplus += 1;
            self.is_over = true;
            return Ok(());
        }
        let time_ns = packet.head.meta.time_ns;
        let more = Totals {
            packets: 1,
            bytes: packet.head.cap_len.into(),
            times_clamped: u64::from(self.is_pcap && is_beyond_pcap(written_ns(time_ns))),
            first_ns: known(time_ns),
            last_ns: known(time_ns),
            ..Totals::default()
        };
        self.count(&more, wrote.map(drop))
    }

    /// Handles a bundle, whose packets are counted in exactly one of the totals.
    fn bundle(&mut self, bundle: &Bundle) -> Result<()> {
        let Bundle { packets, .. } = *bundle;
        if !self.takes(bundle.interface, packets)? {
            return Ok(());
        }
        self.blocks_before(bundle.group)?;
        let Recorder::File(writer) = &mut self.recorder else {
            self.totals.surplus += packets;
            return Ok(());
        };
        let (bytes, last_ns) = (bundle.bytes(), bundle.last_ns);
        let time_ns = written_ns(last_ns);
        let wrote = writer.records(bytes, packets, bundle.kept_bytes, time_ns);
        let more = Totals {
            packets,
            bytes: bundle.cap_bytes,
            times_clamped: if self.is_pcap { bundle.beyond_pcap } else { 0 },
            first_ns: known(bundle.first_ns),
            last_ns: known(last_ns),
            ..Totals::default()
        };
        self.count(&more, wrote)
    }

    /// Copies the blocks that come before a packet.
    #[inline]
    fn blocks_before(&mut self, group: u64) -> Result<()> {
        match self.copies_blocks && group > self.group {
            true => self.copy_blocks(group),
            false => Ok(()),
        }
    }

    /// Copies blocks up to this group.
    #[cold]
    fn copy_blocks(&mut self, group: u64) -> Result<()> {
        self.group = group;
        let blocks = lock(&self.control).blocks(group);
        if let Recorder::File(writer) | Recorder::Both(writer, _) = &mut self.recorder {
            for block in blocks {
                writer.block(block)?;
            }
        }
        Ok(())
    }

    /// Copies what follows the last packet, unless the output ends before it.
    fn copy_rest(&mut self) -> Result<()> {
        match self.copies_blocks && !self.is_over {
            true => self.copy_blocks(u64::MAX),
            false => Ok(()),
        }
    }

    /// Whether so many packets of this interface are written; if not, they are surplus.
    #[inline]
    fn takes(&mut self, interface: u32, packets: u64) -> Result<bool> {
        if self.is_over {
            self.totals.surplus += packets;
            return Ok(false);
        }
        let index = interface as usize;
        if index >= self.links.len()
            && let Err(error) = self.learn(index)
        {
            self.totals.surplus += packets;
            return Err(error);
        }
        // If the file could not add the interface, that error ends the capture.
        if self.written().is_some() && index >= self.announced {
            self.totals.surplus += packets;
            self.is_over = true;
            return Ok(false);
        }
        Ok(true)
    }

    /// Counts packets that were written.
    #[inline]
    fn count(&mut self, more: &Totals, wrote: Result<()>) -> Result<()> {
        if wrote.is_err()
            && let Recorder::File(writer) | Recorder::Both(writer, _) = &self.recorder
            && writer.written().packets + writer.waiting() <= self.totals.packets
        {
            // Otherwise the error counts them as lost: then they were captured.
            self.totals.surplus += more.packets;
            return wrote;
        }
        let totals = &mut self.totals;
        totals.packets += more.packets;
        totals.bytes += more.bytes;
        totals.times_clamped += more.times_clamped;
        totals.first_ns = totals.first_ns.or(more.first_ns);
        totals.last_ns = more.last_ns.or(totals.last_ns);
        self.is_over = totals.packets >= self.count;
        wrote
    }

    /// Writes the packet to the file or as text; false if it is not written.
    #[inline]
    fn put(&mut self, packet: &Given<'_>) -> Result<bool> {
        let meta = &packet.head.meta;
        let index = meta.interface as usize;
        match &mut self.recorder {
            Recorder::File(writer) => {
                let wrote = writer.record(written_ns(meta.time_ns), packet.bytes)?;
                Ok(wrote == WriteFormat::Packet)
            }
            Recorder::Both(writer, printer) => {
                let (wrote, held) = match self.copies_blocks {
                    true => (
                        writer.record(written_ns(meta.time_ns), packet.bytes)?,
                        packet.held_in_block(),
                    ),
                    false => {
                        let time_ns = written_ns(meta.time_ns);
                        let record = Record { time_ns, ..*meta };
                        (
                            writer.write(&record, std::iter::once(packet.bytes))?,
                            packet.held(),
                        )
                    }
                };
                if wrote == WriteFormat::Full {
                    return Ok(false);
                }
                let context = context(&self.links[index], self.is_live);
                if !self.stdout_closed {
                    printer.packet(&held, &context);
                }
                if printer.waiting() >= TEXT_LEN {
                    self.flush()?;
                }
                Ok(true)
            }
            Recorder::Text(printer) => {
                let context = context(&self.links[index], self.is_live);
                printer.packet(&packet.held(), &context);
                if printer.waiting() >= TEXT_LEN {
                    self.flush()?;
                }
                Ok(true)
            }
            Recorder::Count => Ok(true),
        }
    }

    /// Passes buffered data to the system.
    fn flush(&mut self) -> Result<()> {
        self.flushed = Instant::now();
        match &mut self.recorder {
            Recorder::File(writer) => writer.flush(),
            Recorder::Both(writer, printer) => {
                writer.flush()?;
                match print(printer) {
                    // The file is still written.
                    Err(error) if is_closed(&error) => {
                        self.stdout_closed = true;
                        Ok(())
                    }
                    result => result,
                }
            }
            Recorder::Text(printer) => print(printer),
            Recorder::Count => Ok(()),
        }
    }

    /// Passes a file the counters of the account, for its end.
    fn note(&mut self, account: &PortAccount) {
        if let Recorder::File(writer) | Recorder::Both(writer, _) = &mut self.recorder {
            let total = account.rx_total();
            let by_interface = total.dropped[DropReason::Interface as usize];
            let lost = total.lost().saturating_sub(by_interface);
            // The counters of a port are those of its only interface; a file that is copied has no
            // counters of its own.
            if self.announced == 1 && self.is_live {
                writer.statistics(0, total.seen, by_interface, lost);
            }
        }
    }

    fn is_file(&self) -> bool {
        matches!(self.recorder, Recorder::File(_))
    }

    fn written(&self) -> Option<Written> {
        match &self.recorder {
            Recorder::File(writer) | Recorder::Both(writer, _) => Some(writer.written()),
            Recorder::Text(_) | Recorder::Count => None,
        }
    }

    /// Completes the file.
    fn finish(self) -> (Option<Written>, Result<()>) {
        let so_far = self.written();
        match self.recorder {
            Recorder::File(writer) | Recorder::Both(writer, _) => match FileWriter::finish(*writer)
            {
                Ok(written) => (Some(written), Ok(())),
                Err(error) => (so_far, Err(error)),
            },
            Recorder::Text(_) | Recorder::Count => (None, Ok(())),
        }
    }
}

/// Passes the buffered text to the system.
fn print(printer: &mut Printer) -> Result<()> {
    let printed = printer.flush(&mut io::stdout().lock());
    printed.map_err(|e| Error::from_io("write to standard output", e))
}

fn context((link_type, interface): &(u16, String), has_way: bool) -> Context<'_> {
    Context {
        link_type: *link_type,
        interface,
        has_way,
    }
}

/// The writer thread.
pub(super) struct Writer {
    pub(super) output: Output,
    pub(super) merge: Merge,
    pub(super) link: Arc<Link>,
    /// When the capture began.
    pub(super) origin: Instant,
    pub(super) unbuffered: bool,
    /// How long packets may stay in memory while no others arrive.
    pub(super) linger: Duration,
    pub(super) events: Sender<Event>,
    /// Receives the account once every queue has ended.
    pub(super) last: Receiver<PortAccount>,
}

impl Writer {
    /// Runs until every queue has ended and everything is written.
    pub(super) fn run(mut self) {
        self.link.bell.belongs_here();
        // The first write may already block forever.
        self.publish();
        while self.round() {}
        if !self.output.has_failed {
            self.guarded(Output::copy_rest);
        }
        if !self.output.has_failed {
            self.guarded(Output::flush);
        }
        if let Ok(account) = self.last.recv() {
            self.output.note(&account);
        }
        self.publish();
        let (totals, stdout_closed) = (self.output.totals, self.output.stdout_closed);
        self.link.step.fetch_add(1, Ordering::Relaxed);
        let (written, result) = self.output.finish();
        // The receiver may have ended.
        let _ = self.events.send(Event::Written(End {
            totals,
            written,
            error: result.err(),
            stdout_closed,
        }));
    }

    /// Handles some packets and what else is due; false at the end.
    fn round(&mut self) -> bool {
        let now_ms = self.origin.elapsed().as_millis() as u32;
        let (mut count, mut is_end, mut waits) = (0, false, false);
        while count < ROUND_LEN {
            let next = self.merge.next(now_ms);
            let packets = match &next {
                Next::Packet(_) => 1,
                Next::Bundle(bundle) => bundle.packets,
                Next::Wait => {
                    waits = true;
                    break;
                }
                Next::End => {
                    is_end = true;
                    break;
                }
            };
            count += packets;
            if self.link.is_abandoned.load(Ordering::Relaxed) {
                self.output.totals.unwritten += packets;
                continue;
            }
            let was_over = self.output.is_over;
            self.link.step.fetch_add(1, Ordering::Relaxed);
            let result = match next {
                Next::Packet(packet) => self.output.packet(&packet),
                Next::Bundle(bundle) => self.output.bundle(bundle),
                Next::Wait | Next::End => Ok(()),
            };
            self.link.step.fetch_add(1, Ordering::Relaxed);
            self.after(was_over, result);
        }
        let output = &self.output;
        let is_idle = waits && output.flushed.elapsed() >= self.linger;
        if !output.has_failed && (self.unbuffered && count != 0 || is_idle) {
            self.guarded(Output::flush);
        }
        self.publish();
        if waits {
            let merge = &mut self.merge;
            let sleep = if merge.has_packet() {
                SLEEP_WINDOW
            } else {
                SLEEP_MAX
            };
            let is_ready = || merge.is_ready(now_ms);
            // Readers of the growing file get it without delay.
            let gathers = count != 0 && !self.unbuffered && self.output.is_file();
            match gathers {
                true => self.link.bell.nap(NAP, is_ready),
                false => self.link.bell.sleep(sleep, is_ready),
            }
        }
        !is_end
    }

    /// Runs a call that may block.
    fn guarded(&mut self, call: impl FnOnce(&mut Output) -> Result<()>) {
        let was_over = self.output.is_over;
        self.link.step.fetch_add(1, Ordering::Relaxed);
        let result = call(&mut self.output);
        self.link.step.fetch_add(1, Ordering::Relaxed);
        self.after(was_over, result);
    }

    /// Handles an end or an error.
    fn after(&mut self, was_over: bool, result: Result<()>) {
        if let Err(error) = result {
            self.output.has_failed = true;
            self.output.is_over = true;
            let _ = self.events.send(Event::Failed(error));
        }
        if self.output.is_over && !was_over {
            self.link.halt.set();
        }
    }

    fn publish(&mut self) {
        self.output.totals.late = self.merge.late;
        let account = {
            let mut status = lock(&self.link.status);
            status.totals = self.output.totals;
            status.written = self.output.written();
            status.account.take()
        };
        if let Some(account) = account {
            self.output.note(&account);
        }
    }
}
