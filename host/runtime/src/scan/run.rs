//! The threads of a scan.

mod link;
mod rate;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use ::scan::grab::{Banner, BannerGrabber, DatagramReader, GrabCounts};
use ::scan::{
    AdaptiveRate, Answer, AnswerClassifier, Cookies, Evidence, Prober, Seen, SeenBefore, State,
    neighbour,
};
use port::{DropReason, Port, PortAccount, PortControl, RxBatch, RxQueue};
use sys::{Error, Result};
use traffic::Rate;
use wire::Timestamp;

use super::probes::{BannerReader, ProbeSource, Segments, with_header};
use super::respond::Responder;
use super::transmit::{Live, Sent, transmit};
use super::{Found, Notice, Outcome, OwnCard, Scan, StateFile, Totals, now};
use crate::Stop;
use crate::send::SendEnded;
use crate::worker::{self, Engine, Pacing, Verdict};
use link::Watch;

/// Maximum number of answers queued for the thread that reports them; receivers wait when it is
/// full.
const ANSWERS_MAX: usize = 1 << 14;
/// Maximum number of answers remembered, so that each is reported once.
const SEEN_MAX: usize = 1 << 24;
/// How long to wait for answers to the last probes when the scan is ended early and its state is
/// kept.
const LAST_MAX: Duration = Duration::from_millis(800);
/// Maximum number of batches of segments queued for the connections; receivers wait when it is
/// full.
const SEGMENTS_MAX: usize = 256;
/// Longer round trips are not reported.
const RTT_MAX_US: u32 = 120_000_000;
/// Interval of progress reports.
const TICK: Duration = Duration::from_secs(1);

/// A message to the reporting thread.
pub enum Event {
    /// An answer to a probe.
    Answer(Box<Found>),
    /// A service's banner.
    Banner(Box<Banner>, Timestamp),
}

/// Recognizes answers on one queue.
struct Receiving<'p> {
    classifier: AnswerClassifier<'p>,
    events: SyncSender<Event>,
    /// Where TCP segments go, if banners are read.
    segments: Option<SyncSender<Segments>>,
    received: &'p AtomicU64,
    /// When the prober's clock was 0.
    began: Instant,
    /// Room for packets of a device without Ethernet headers, which are put before them.
    bare: Option<Vec<u8>>,
    /// Answers requests for our MAC address, if no kernel does.
    responder: Option<Responder>,
}

impl Engine for Receiving<'_> {
    fn batch(&mut self, batch: &mut RxBatch<'_>) -> Result<Verdict> {
        let mut received = batch.len() as u64;
        let time = now();
        let clock_us = clock_us(self.began);
        let mut segments = Segments::default();
        for packet in batch.iter() {
            let bytes = match &mut self.bare {
                Some(room) => with_header(packet.bytes(), room),
                None => packet.bytes(),
            };
            if let Some(responder) = &self.responder
                && responder.take(bytes)
            {
                received -= 1;
                continue;
            }
            let answer = self.classifier.classify(bytes);
            // Late replies of neighbours that were resolved on this port.
            if self.responder.is_some() && answer.is_none() && neighbour(bytes).is_some() {
                received -= 1;
                continue;
            }
            if let Some(answer) = answer
                && self
                    .events
                    .send(found(answer, bytes, (time, clock_us)))
                    .is_err()
            {
                self.received.fetch_add(received, Ordering::Relaxed);
                return Ok(Verdict::Finish);
            }
            // Resets, datagrams and ICMP errors that answer probes belong to no connection.
            let is_segment = |answer: Answer| answer.evidence == Evidence::SynAck;
            if self.segments.is_some() && answer.is_none_or(is_segment) {
                segments.push(bytes);
            }
        }
        self.received.fetch_add(received, Ordering::Relaxed);
        if let Some(to) = &self.segments
            && !segments.is_empty()
        {
            // The sender may have ended; then banners are no longer read.
            let _ = to.send(segments);
        }
        Ok(Verdict::Continue)
    }
}

/// The prober's clock; it wraps.
pub fn clock_us(began: Instant) -> u32 {
    began.elapsed().as_micros() as u32
}

/// An answer with the parts of its packet that are kept.
fn found(answer: Answer, packet: &[u8], (time, clock_us): (Timestamp, u32)) -> Event {
    // The remote end can modify what it sends back.
    let rtt = answer.sent_us.map(|sent| clock_us.wrapping_sub(sent));
    let rtt = rtt.filter(|rtt| *rtt <= RTT_MAX_US);
    Event::Answer(Box::new(Found {
        payload: answer.payload(packet).into(),
        vendor: None,
        answer,
        time,
        rtt: rtt.map(|rtt| Duration::from_micros(rtt.into())),
    }))
}

fn receive(rx: &mut RxQueue, engine: &mut Receiving<'_>, ended: &Stop) -> Result<()> {
    worker::run(rx, engine, ended, Pacing::Gather)?;
    worker::drain(rx, engine)
}

/// Runs a scan: resolves next hops, opens the port, sends and listens. Calls `opened` once
/// privileges are no longer needed, and keeps `state` up to date.
///
/// # Errors
/// Errors before the scan begins; later ones are in the outcome.
pub fn run(
    scan: &Scan,
    key: [u8; 16],
    stop: &Stop,
    state: Option<StateFile>,
    opened: impl FnOnce() -> Result<()>,
    mut notice: impl FnMut(Notice<'_>) -> Result<()>,
) -> Result<Outcome> {
    // Before neighbours are resolved, so that errors are reported at once.
    let mut port = scan.open()?;
    let own = scan.own_card(&mut port, stop, &mut notice)?;
    let hops = scan.hops(stop, own.as_ref().map(|own| (&mut port, own)))?;
    if scan.on_link_count() != 0 {
        notice(Notice::Neighbours(
            hops.neighbours.len(),
            scan.on_link_count(),
        ))?;
    }
    let firewall = scan.firewall()?;
    if let Some(table) = &firewall {
        notice(Notice::Firewall(table.name()))?;
    }
    opened()?;
    let cookies = Cookies::new(key, *scan.plan().source());
    let frames = scan.frames();
    let lanes = scan.lanes(port.tx.len());
    let from = scan.setup().from;
    let prober = |lane| Prober::new(scan.plan(), (from, lane), &cookies, &frames, &hops);
    let probers = lanes.iter().map(|lane| prober(*lane)).collect();
    let live = Live::new(lanes.len());
    let mut collector = Collector {
        scan,
        totals: Totals {
            probes: scan.plan().probe_count(),
            before: scan.setup().from,
            ..Totals::default()
        },
        seen: Seen::new(SEEN_MAX),
        live: &live,
        began: Instant::now(),
        is_complete: false,
        sending: Duration::ZERO,
        error: None,
        state,
        watch: Watch::new(scan.setup().from),
        own,
        grabbed: None,
        datagrams: scan
            .setup()
            .grab
            .as_ref()
            .map(|_| DatagramReader::default()),
        datagram_count: 0,
        adaptive: scan.setup().adaptive(),
        rate: scan.setup().asked_rate().max,
        observed: Instant::now(),
    };
    let grabber = scan.grabber(&cookies, &hops);
    collector.look_first(&mut notice)?;
    collector.run(&mut port, (probers, grabber), &cookies, stop, &mut notice);
    drop(firewall);
    Ok(collector.outcome())
}

/// What arrives while the scan runs.
struct Incoming<'p> {
    answers: Receiver<Event>,
    control: &'p mut dyn PortControl,
}

/// The reporting thread's state: collects answers, figures and errors.
struct Collector<'s> {
    scan: &'s Scan,
    totals: Totals,
    seen: Seen,
    live: &'s Live,
    began: Instant,
    sending: Duration,
    is_complete: bool,
    error: Option<Error>,
    /// The state file; `None` also once a result could not be reported: a resumed scan must find
    /// it again.
    state: Option<StateFile>,
    /// The link, and the state of the last ticks.
    watch: Watch,
    /// Answers for our addresses, if no kernel does.
    own: Option<OwnCard>,
    /// The connections' counts, once the sender has ended.
    grabbed: Option<GrabCounts>,
    /// Decodes the answers of UDP services, if banners are read, and how many banners they were.
    datagrams: Option<DatagramReader>,
    datagram_count: u64,
    /// The law of the rate, unless it is constant, and when it last took the counts.
    adaptive: Option<AdaptiveRate>,
    observed: Instant,
    /// The rate asked for now, which a [`super::RateControl`] may change.
    rate: f64,
}

impl<'s> Collector<'s> {
    fn run(
        &mut self,
        port: &mut Port,
        (probers, grabber): (Vec<Prober<'_>>, Option<BannerGrabber<'_>>),
        cookies: &Cookies,
        stop: &Stop,
        notice: &mut impl FnMut(Notice<'_>) -> Result<()>,
    ) {
        let (give, answers) = sync_channel(ANSWERS_MAX);
        let Port {
            rx, tx, control, ..
        } = port;
        let mut incoming = Incoming {
            answers,
            control: control.as_mut(),
        };
        let (segments, inbox) = sync_channel(SEGMENTS_MAX);
        let (over, ended) = (stop.child(), Stop::new());
        let (live, plan) = (self.live, self.scan.plan());
        let talking =
            grabber.map(|grabber| BannerReader::new(grabber, inbox, (give.clone(), live)));
        let segments = talking.as_ref().map(|_| segments);
        let sent = &mut None;
        thread::scope(|scope| {
            let mut receivers = Vec::new();
            for rx in rx {
                let mut engine = Receiving {
                    classifier: AnswerClassifier::new(plan, cookies),
                    events: give.clone(),
                    segments: segments.clone(),
                    received: &live.received,
                    began: self.began,
                    bare: self.scan.is_bare().then(Vec::new),
                    responder: self.own.as_ref().map(|own| own.responder.clone()),
                };
                let ended = &ended;
                receivers.push(scope.spawn(move || receive(rx, &mut engine, ended)));
            }
            drop((give, segments));
            let sending = &over;
            let (sources, rate) = self.sources(probers, talking);
            let sender = scope.spawn(move || transmit(tx, sources, rate, live, sending));
            let is_probed = || sender.is_finished() || live.is_probed();
            self.collect(&mut incoming, notice, is_probed, None, &over);
            let waits = !sender.is_finished();
            if waits {
                // The sender itself waits for the last answers: they begin connections, and a link
                // that goes down takes it back.
                self.wait(&mut incoming, notice, &over);
                self.collect(&mut incoming, notice, || sender.is_finished(), None, &over);
            }
            *sent = Some(join(sender));
            let all_sent = self.account_sent(sent.as_ref());
            self.collect_last(&mut incoming, notice, (all_sent, waits), &over);
            if let (Some(state), Some(sent)) = (&mut self.state, sent.as_ref()) {
                let noted = state.note(sent.next);
                self.keep(noted);
            }
            // The receivers drain their rings and end; then the channel is closed.
            ended.set();
            self.collect(&mut incoming, notice, || false, None, &Stop::new());
            for receiver in receivers {
                self.keep(join(receiver));
            }
        });
        self.account_received(&mut incoming);
        if let Some(Err(error)) = sent.take().map(|sent| sent.result) {
            self.keep(Err(error));
        }
    }

    /// Reports the last answers; those to the last probes were waited for if the sender `waited`.
    fn collect_last(
        &mut self,
        incoming: &mut Incoming<'_>,
        notice: &mut impl FnMut(Notice<'_>) -> Result<()>,
        (all_sent, waited): (bool, bool),
        stop: &Stop,
    ) {
        if all_sent && self.error.is_none() {
            if !waited {
                self.wait(incoming, notice, stop);
            }
        } else if self.state.is_some() {
            // Keeps the state from falling back to before the last probes.
            let until = Instant::now() + LAST_MAX;
            self.collect(incoming, notice, || false, Some(until), &Stop::new());
        }
    }

    /// The packets to send on each queue, and each one's rate to begin with. Connections are on the
    /// first.
    fn sources<'p>(
        &mut self,
        probers: Vec<Prober<'p>>,
        mut talking: Option<BannerReader<'p>>,
    ) -> (Vec<ProbeSource<'p>>, Rate)
    where
        's: 'p,
    {
        let setup = self.scan.setup();
        let (unit, count) = (setup.unit(), probers.len());
        let rate = self.adaptive.as_ref().map_or(self.rate, AdaptiveRate::rate);
        let changes = self.adaptive.is_some() || setup.control.is_some();
        if changes {
            self.live.set_rate(rate);
        }
        let mut replies = self.own.as_mut().and_then(|own| own.replies.take());
        let source = |(lane, prober)| {
            let began = (setup.from, self.began);
            let options = (talking.take(), self.scan.is_bare());
            let prober = (prober, lane);
            let mut source = ProbeSource::new(prober, began, self.live, options, setup.wait);
            if let Some(replies) = replies.take() {
                source.reply(replies);
            }
            if changes {
                source.follow(unit);
            }
            source
        };
        let sources = probers.into_iter().enumerate().map(source).collect();
        (sources, unit(rate / count as f64))
    }

    fn account_received(&mut self, incoming: &mut Incoming<'_>) {
        match incoming.control.account() {
            Ok(account) => self.totals.lost = lost(&account),
            Err(error) => self.keep(Err(error)),
        }
        self.totals.received = self.live.received.load(Ordering::Relaxed);
    }

    /// Reports answers until `is_done` returns true, the time is over, `stop` is set, or all
    /// receivers have ended.
    fn collect(
        &mut self,
        incoming: &mut Incoming<'_>,
        notice: &mut impl FnMut(Notice<'_>) -> Result<()>,
        is_done: impl Fn() -> bool,
        until: Option<Instant>,
        stop: &Stop,
    ) {
        let mut tick = Instant::now() + TICK;
        loop {
            match incoming.answers.recv_timeout(Duration::from_millis(20)) {
                Ok(Event::Answer(mut found)) => {
                    found.vendor = self.scan.vendor(&found);
                    let result = self.answer(&found, notice);
                    self.reported(result, stop);
                }
                Ok(Event::Banner(banner, _)) if !self.watch.is_new(&banner) => {}
                Ok(Event::Banner(banner, time)) => {
                    self.totals.grabbed.banners += 1;
                    self.reported(notice(Notice::Banner(&banner, time)), stop);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = Instant::now();
            let watched = self.watch(now, incoming, notice);
            self.reported(watched, stop);
            let changed = self.obey(notice).and_then(|()| self.adapt(now, notice));
            self.end_on_error(changed, stop);
            if now >= tick {
                tick = now + TICK;
                let result = self.progress(incoming, notice);
                self.reported(result, stop);
                // The state is written last: everything it counts as done was reported before.
                let noted = self.note();
                self.end_on_error(noted, stop);
            }
            if is_done()
                || until.is_some_and(|until| now >= until)
                || (until.is_some() && stop.is_set())
            {
                return;
            }
        }
    }

    /// Reports the counts.
    fn progress(
        &mut self,
        incoming: &mut Incoming<'_>,
        notice: &mut impl FnMut(Notice<'_>) -> Result<()>,
    ) -> Result<()> {
        // Once the sender has ended, its own counts are in the totals.
        if self.grabbed.is_none() {
            let live = self.live.sent();
            (self.totals.sent, self.totals.sent_bytes) = (live.packets, live.bytes);
            (self.totals.failed, self.totals.resent) = (live.failed, live.resent);
            self.totals.unreachable = self.live.unreachable().into();
        }
        self.totals.received = self.live.received.load(Ordering::Relaxed);
        if let Ok(account) = incoming.control.account() {
            self.totals.lost = lost(&account);
        }
        let mut totals = self.totals;
        totals.grabbed.banners += self.datagram_count;
        totals.grabbed.received = self.live.talked.load(Ordering::Relaxed);
        notice(Notice::Progress(&totals, self.began.elapsed()))
    }

    /// Reports that all probes were sent, with the counts up to there.
    fn wait(
        &mut self,
        incoming: &mut Incoming<'_>,
        notice: &mut impl FnMut(Notice<'_>) -> Result<()>,
        stop: &Stop,
    ) {
        let result = self.progress(incoming, notice);
        let result = result.and_then(|()| notice(Notice::Waiting(self.scan.setup().wait)));
        self.reported(result, stop);
    }

    fn answer(
        &mut self,
        found: &Found,
        notice: &mut impl FnMut(Notice<'_>) -> Result<()>,
    ) -> Result<()> {
        let totals = &mut self.totals;
        totals.answers += 1;
        // A repeated answer may be that to another request.
        let reader = self.datagrams.as_mut();
        let banner = reader.and_then(|r| r.read(&found.answer, &found.payload, found.time.0));
        self.datagram_count += u64::from(banner.is_some());
        match self.seen.note(&found.answer) {
            SeenBefore::Again => {
                totals.repeated += 1;
                return banner.map_or(Ok(()), |b| notice(Notice::Banner(&b, found.time)));
            }
            SeenBefore::Unknown => totals.maybe_repeated += 1,
            SeenBefore::New => {}
        }
        match found.answer.state {
            State::Open => totals.open += 1,
            State::Closed => totals.closed += 1,
            State::Filtered => totals.filtered += 1,
            State::Unfiltered => totals.unfiltered += 1,
            State::Up => totals.up += 1,
        }
        notice(Notice::Found(found))?;
        banner.map_or(Ok(()), |b| notice(Notice::Banner(&b, found.time)))
    }

    /// Adds the sender's result to the totals; true if all probes were sent.
    fn account_sent(&mut self, sent: Option<&Sent>) -> bool {
        let Some(sent) = sent else {
            return false;
        };
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let segments = count(&self.live.segments);
        let others = segments + count(&self.live.replies);
        let other_bytes = count(&self.live.segment_bytes) + count(&self.live.reply_bytes);
        self.totals.sent = sent.report.packets.saturating_sub(others);
        self.totals.sent_bytes = sent.report.bytes.saturating_sub(other_bytes);
        self.totals.resent = self.live.sent().resent;
        self.grabbed = Some(sent.grabbed);
        self.totals.failed = sent.report.failed;
        self.totals.unreachable = sent.unreachable;
        self.totals.next = sent.next;
        // Banners are read after the last probe, too.
        self.sending = match self.live.probed_ns.load(Ordering::Relaxed) {
            ns if ns != 0 && segments != 0 => Duration::from_nanos(ns),
            _ => Duration::from_nanos(sent.report.covered_ns),
        };
        let is_end = sent.next == self.scan.plan().probe_count();
        self.is_complete =
            sent.result.is_ok() && (sent.report.ended == SendEnded::Source || is_end);
        self.is_complete
    }

    /// Ends the scan if a result could not be reported, and leaves the state as it is.
    fn reported(&mut self, result: Result<()>, stop: &Stop) {
        if result.is_err() {
            self.state = None;
        }
        self.end_on_error(result, stop);
    }

    fn end_on_error(&mut self, result: Result<()>, stop: &Stop) {
        if result.is_err() {
            stop.set();
        }
        self.keep(result);
    }

    /// Keeps the first error, which caused the others.
    fn keep(&mut self, result: Result<()>) {
        if let Err(error) = result {
            self.error.get_or_insert(error);
        }
    }

    fn outcome(mut self) -> Outcome {
        // Only now: banners that wait to be reported when the sender ends would count twice.
        if let Some(grabbed) = self.grabbed {
            self.totals.grabbed = grabbed;
            self.totals.grabbed.banners -= self.watch.again.min(grabbed.banners);
        }
        self.totals.grabbed.banners += self.datagram_count;
        Outcome {
            totals: self.totals,
            elapsed: self.began.elapsed(),
            sending: self.sending,
            is_complete: self.is_complete,
            error: self.error,
        }
    }
}

/// Packets lost between the interface and the scan. Those that a card found damaged are none, as on
/// ports whose card the kernel drives.
fn lost(account: &PortAccount) -> u64 {
    let all = account.rx_total();
    all.lost() - all.dropped[DropReason::Interface as usize]
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    let result = thread.join();
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
