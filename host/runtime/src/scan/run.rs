//! The threads of a scan.

mod link;
mod rate;
mod receive;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use ::scan::grab::{Banner, BannerGrabber, DatagramReader, GrabCounts};
use ::scan::{AdaptiveRate, AnswerClassifier, Cookies, Evidence, Prober, Seen, SeenBefore, State};
use port::{DropReason, Port, PortAccount, PortControl};
use sys::{Error, Result};
use traffic::Rate;
use wire::Timestamp;

use super::ahead::Ahead;
use super::probes::ProbeSource;
use super::record::{Recorder, Recording, Tap};
use super::talk::{BannerReader, Segments};
use super::transmit::{Live, Sent, transmit};
use super::{Found, Notice, Outcome, OwnCard, Scan, StateFile, Totals};
use crate::Stop;
use crate::send::SendEnded;
use link::Watch;
pub use receive::clock_us;
use receive::{Receiving, receive};

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
/// Interval of progress reports.
const TICK: Duration = Duration::from_secs(1);

/// A message to the reporting thread.
pub enum Event {
    /// An answer to a probe.
    Answer(Box<Found>),
    /// A service's banner.
    Banner(Box<Banner>, Timestamp),
    /// All targets on the link were asked for their MAC addresses: how many answered, of how many.
    Neighbours(u64, u128),
}

/// Runs a scan: resolves next hops, opens the port, sends and listens. Calls `opened` once
/// privileges are no longer needed, keeps the state file up to date, and records all packets.
///
/// # Errors
/// Errors before the scan begins; later ones are in the outcome.
pub fn run(
    scan: &Scan,
    key: [u8; 16],
    stop: &Stop,
    (state, recording): (Option<StateFile>, Option<Recording>),
    opened: impl FnOnce() -> Result<()>,
    mut notice: impl FnMut(Notice<'_>) -> Result<()>,
) -> Result<Outcome> {
    // Before neighbours are resolved, so that errors are reported at once.
    let mut port = scan.open()?;
    let own = scan.own_card(&mut port, stop, &mut notice)?;
    let stop = &stop.child();
    let taps = recording.as_ref().map(Recording::taps);
    let hops = scan.hops(stop, own.as_ref().map(|own| (&mut port, own)), taps)?;
    let mut ahead = None;
    if scan.resolves_ahead() {
        ahead = Some(Ahead::open(scan, &hops, taps.cloned())?);
    } else if hops.on_link().count() != 0 {
        notice(Notice::Neighbours(
            hops.known_count(),
            hops.on_link().count(),
        ))?;
    }
    let firewall = scan.firewall()?;
    if let Some(table) = &firewall {
        notice(Notice::Firewall(table.name()))?;
    }
    opened()?;
    // Everything ends when the file cannot be written.
    let recorder = recording.map(|recording| recording.start(stop.clone()));
    let cookies = Cookies::new(key, *scan.plan().source());
    let frames = scan.frames();
    let lanes = scan.lanes(port.tx.len());
    let from = scan.setup().from;
    let prober = |lane| Prober::new(scan.plan(), (from, lane), &cookies, &frames, &hops);
    let probers = lanes.iter().map(|lane| prober(*lane)).collect();
    let live = Live::new(lanes.len());
    if ahead.is_some() {
        live.resolve(0);
    }
    let recorder = recorder.transpose()?;
    let mut collector = Collector::new(scan, &live, (state, own, recorder));
    let grabber = scan.grabber(&cookies, &hops);
    collector.look_first(&mut notice)?;
    let sending = (probers, grabber, ahead);
    collector.run(&mut port, sending, &cookies, stop, &mut notice);
    drop(firewall);
    if let Some(recorder) = collector.recorder.take() {
        let ended = recorder.end();
        collector.keep(ended);
    }
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
    /// Records all packets.
    recorder: Option<Recorder>,
}

/// What sends: the probers of all lanes, the connections, and what resolves targets meanwhile.
type Sending<'p> = (
    Vec<Prober<'p>>,
    Option<BannerGrabber<'p>>,
    Option<Ahead<'p>>,
);

impl<'s> Collector<'s> {
    fn new(
        scan: &'s Scan,
        live: &'s Live,
        (state, own, recorder): (Option<StateFile>, Option<OwnCard>, Option<Recorder>),
    ) -> Self {
        let setup = scan.setup();
        let totals = Totals {
            probes: scan.plan().probe_count(),
            before: setup.from,
            ..Totals::default()
        };
        Self {
            scan,
            totals,
            seen: Seen::new(SEEN_MAX),
            live,
            began: Instant::now(),
            is_complete: false,
            sending: Duration::ZERO,
            error: None,
            state,
            watch: Watch::new(setup.from),
            own,
            grabbed: None,
            datagrams: setup.grab.as_ref().map(|_| DatagramReader::default()),
            datagram_count: 0,
            adaptive: setup.adaptive(),
            rate: setup.asked_rate().max,
            observed: Instant::now(),
            recorder,
        }
    }

    /// What recognizes the answers on a queue.
    fn receiving<'p>(
        &self,
        cookies: &'p Cookies,
        events: &SyncSender<Event>,
        segments: Option<&SyncSender<Segments>>,
    ) -> Receiving<'p>
    where
        's: 'p,
    {
        Receiving {
            classifier: AnswerClassifier::new(self.scan.plan(), cookies),
            events: events.clone(),
            segments: segments.cloned(),
            received: &self.live.received,
            began: self.began,
            bare: self.scan.is_bare().then(Vec::new),
            responder: self.own.as_ref().map(|own| own.responder.clone()),
            tap: self.tap(false),
        }
    }

    fn run(
        &mut self,
        port: &mut Port,
        (probers, grabber, ahead): Sending<'_>,
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
        let live = self.live;
        let talking =
            grabber.map(|grabber| BannerReader::new(grabber, inbox, (give.clone(), live)));
        let segments = talking.as_ref().map(|_| segments);
        let sent = &mut None;
        thread::scope(|scope| {
            let mut receivers = Vec::new();
            for rx in rx {
                let mut engine = self.receiving(cookies, &give, segments.as_ref());
                let ended = &ended;
                receivers.push(scope.spawn(move || receive(rx, &mut engine, ended)));
            }
            let sending = &over;
            let resolver = ahead.map(|ahead| {
                let events = give.clone();
                scope.spawn(move || resolve(ahead, live, sending, &events))
            });
            drop((give, segments));
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
            for thread in receivers.into_iter().chain(resolver) {
                self.keep(join(thread));
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
        let taps = self
            .recorder
            .as_ref()
            .map(|recorder| recorder.taps().clone());
        let source = |(lane, prober)| {
            let began = (setup.from, self.began);
            let options = (talking.take(), self.scan.is_bare());
            let prober = (prober, lane);
            let mut source = ProbeSource::new(prober, began, self.live, options, setup.wait);
            if let Some(replies) = replies.take() {
                source.reply(replies);
            }
            source.record(taps.as_ref().map(|taps| taps.tap(true)));
            if changes {
                source.follow(unit);
            }
            source
        };
        let sources = probers.into_iter().enumerate().map(source).collect();
        (sources, unit(rate / count as f64))
    }

    /// What records packets sent or received by a thread.
    fn tap(&self, is_sent: bool) -> Option<Tap> {
        let recorder = self.recorder.as_ref();
        recorder.map(|recorder| recorder.taps().tap(is_sent))
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
                Ok(Event::Neighbours(found, asked)) => {
                    self.reported(notice(Notice::Neighbours(found, asked)), stop);
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
            let skipped = self.live.skipped();
            (self.totals.unreachable, self.totals.own) = (skipped.unreachable, skipped.own);
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
        let before = self.seen.note(&found.answer);
        let is_reset = found.answer.evidence == Evidence::Reset;
        if before == SeenBefore::Overruled && is_reset && self.datagrams.is_some() {
            // It is counted among the segments of the connection that it ends.
            return Ok(());
        }
        let totals = &mut self.totals;
        totals.answers += 1;
        // A repeated answer may be that to another request.
        let reader = self.datagrams.as_mut();
        let banner = reader.and_then(|r| r.read(&found.answer, &found.payload, found.time.0));
        self.datagram_count += u64::from(banner.is_some());
        match before {
            SeenBefore::Again | SeenBefore::Overruled => {
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
        self.totals.unreachable = sent.skipped.unreachable;
        self.totals.own = sent.skipped.own;
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

/// Resolves targets ahead of the probes; without them, nothing can be sent.
fn resolve(ahead: Ahead<'_>, live: &Live, stop: &Stop, events: &SyncSender<Event>) -> Result<()> {
    let result = ahead.run(live, stop);
    if result.is_err() {
        stop.set();
    }
    let (found, asked) = result?;
    // The scan may have ended.
    let _ = events.send(Event::Neighbours(found, asked));
    Ok(())
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    let result = thread.join();
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
