//! Packets that rules steer to user space: one worker for each receive queue decides about them,
//! and returns those that it does not drop to the host.
//!
//! ```text
//!   program ─ verdict user ─> AF_XDP socket of the queue ─> worker ─> dropped
//!                                                              └─> the host, in order
//! ```
//!
//! A flow arrives at one queue, so one worker has all its packets, and returns them in the order of
//! arrival. `steered = returned + dropped + lost + failed + waiting`.

mod complete;
mod give;
mod rules;
mod worker;

use std::cell::RefCell;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ::guard::{Counters, Verdict};
use port::{AttachMode, Direction, Port, PortOptions, TimestampSource};
use sys::ethtool::Ethtool;
use sys::link::Link;
use sys::tun::Tap;
use sys::{Error, ErrorKind, Result};
use xdp::feature::{self, Presence};
use xdp::{GuardHook, XskMap};

pub use self::give::GiveBack;
pub use self::rules::{USER_RULES_MAX, check};
use super::{RuleSpec, RuleTotals};
use complete::Completer;
use give::{Giver, Ingress, Live, Way};
use rules::{NextRules, RuleWorker, UserRules};
use worker::Running;

/// What a worker decides about a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decision {
    /// Return it to the host.
    #[default]
    GiveBack,
    /// Drop it.
    Drop,
}

/// Decides about the steered packets of one receive queue, in a thread of its own.
pub trait SteerWorker: Send {
    /// Sets the decision for each packet; all are [`Decision::GiveBack`] at first. A packet begins
    /// with its Ethernet header; one that the kernel has merged from several (GRO, GSO) is longer
    /// than the MTU.
    fn decide(&mut self, packets: &[&[u8]], decisions: &mut [Decision]);

    /// Called when there are no packets, at least about ten times a second.
    fn idle(&mut self) {}
}

/// Creates the worker of a receive queue, from its number.
#[derive(Clone)]
pub struct WorkerSource(Arc<dyn Fn(u32) -> Box<dyn SteerWorker> + Send + Sync>);

impl WorkerSource {
    /// Creates workers by this function.
    pub fn new(create: impl Fn(u32) -> Box<dyn SteerWorker> + Send + Sync + 'static) -> Self {
        Self(Arc::new(create))
    }
}

impl fmt::Debug for WorkerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WorkerSource")
    }
}

/// How packets are steered.
#[derive(Clone, Debug, Default)]
pub struct SteerSetup {
    /// How packets return to the host.
    pub give_back: GiveBack,
    /// Whether packets of a queue without a worker are dropped; otherwise they pass.
    pub drops_on_failure: bool,
    /// The workers; `None` for those that apply the rules in user space.
    pub workers: Option<WorkerSource>,
}

/// Counts of steered packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SteerTotals {
    /// How packets return to the host: `live`, or the name of the TAP interface.
    pub give_back: String,
    /// Number of workers, without those that have ended.
    pub workers: usize,
    /// Packets that the program redirected to workers.
    pub steered: u64,
    /// Packets returned to the host.
    pub given_back: u64,
    /// Packets dropped by a worker's decision.
    pub dropped: u64,
    /// Packets lost before a worker received them: its ring was full, or it had ended.
    pub lost: u64,
    /// Packets that could not be returned.
    pub failed: u64,
    /// Packets in rings, and those that workers are handling.
    pub waiting: u64,
    /// The rules in user space, in the order of matching.
    pub rules: Vec<RuleTotals>,
    /// Packets decided by rules in user space that a reload removed.
    pub removed: Counters,
}

impl SteerTotals {
    /// Packets missing from the account (positive) or counted twice (negative).
    pub fn imbalance(&self) -> i64 {
        let known = self.given_back + self.dropped + self.lost + self.failed + self.waiting;
        self.steered.wrapping_sub(known) as i64
    }
}

/// The sockets, before they exist: the program needs their map.
#[derive(Debug)]
pub(super) struct Sockets {
    pub map: Arc<XskMap>,
    pub drops: bool,
    /// Whether they take packets of several buffers.
    pub takes_frags: bool,
    /// The mark of returned packets, used in generic mode.
    pub mark: u64,
}

impl Sockets {
    /// Creates the map for the rules that steer; `None` if there are none.
    ///
    /// # Errors
    /// `Unsupported` at another hook than XDP.
    pub fn create(
        device: &Link,
        setup: &SteerSetup,
        hook: GuardHook,
        specs: &[RuleSpec],
    ) -> Result<Option<Self>> {
        let steers = |spec: &&RuleSpec| spec.verdict == Verdict::User;
        let Some(first) = specs.iter().find(steers) else {
            if specs.iter().any(|spec| spec.in_user_space) {
                return Err(no_steering());
            }
            return Ok(None);
        };
        if hook != GuardHook::Xdp {
            return Err(not_here(&first.name));
        }
        Ok(Some(Self {
            map: Arc::new(XskMap::create(device.rx_queue_max.max(1))?),
            drops: setup.drops_on_failure,
            takes_frags: !matches!(feature::multi_buffer_sockets(), Presence::No(_)),
            mark: random(),
        }))
    }
}

/// The rules of the program, and those in user space.
pub(super) fn split(specs: Vec<RuleSpec>) -> (Vec<RuleSpec>, Vec<RuleSpec>) {
    specs.into_iter().partition(|spec| !spec.in_user_space)
}

/// Refuses rules that steer when a file is read again, and none did at the start.
///
/// # Errors
/// `Unsupported`.
pub(super) fn check_absent(specs: &[RuleSpec], user: &[RuleSpec]) -> Result<()> {
    let steers = |spec: &&RuleSpec| spec.verdict == Verdict::User;
    let Some(spec) = specs.iter().find(steers).or(user.first()) else {
        return Ok(());
    };
    let what = format!("load the rule \"{}\"", spec.name);
    let why = "no rule steered to user space at the start, so there are no sockets";
    Err(Error::new(ErrorKind::Unsupported, what, why).with_hint("start barewire again"))
}

/// The error of a rule that steers at a hook that cannot.
pub(super) fn not_here(name: &str) -> Error {
    let what = format!("use the rule \"{name}\"");
    let why = "only XDP can redirect packets to user space";
    Error::new(ErrorKind::Unsupported, what, why).with_hint("use --hook xdp, the default")
}

fn no_steering() -> Error {
    let what = "load the rules in user space";
    let why = "no rule steers packets to them";
    Error::new(ErrorKind::InvalidInput, what, why)
        .with_hint("--steer EXPR, or a [[rule]] with verdict = \"user\"")
}

/// A number that nobody can guess: the keys of `RandomState` are random.
pub(in crate::guard) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The open sockets, and their workers once these are started.
pub(super) struct Steered {
    port: RefCell<Port>,
    give_back: String,
    loses_tags: bool,
    ways: Vec<Way>,
    completers: Vec<Completer>,
    workers: Option<WorkerSource>,
    rules: Arc<UserRules>,
    running: Vec<Running>,
    stop: Arc<AtomicBool>,
}

impl Steered {
    /// Opens the sockets of all queues of the interface, which must have the program attached, and
    /// the ways back.
    ///
    /// # Errors
    /// Those of the port and of the way back.
    pub fn open(
        interface: &str,
        mode: xdp::AttachMode,
        sockets: &Sockets,
        setup: &SteerSetup,
        specs: Vec<RuleSpec>,
    ) -> Result<Self> {
        let options = PortOptions {
            direction: Direction::Rx,
            batch_max: worker::BATCH_MAX,
            attach: match mode {
                xdp::AttachMode::Native => AttachMode::Native,
                xdp::AttachMode::Generic => AttachMode::Generic,
            },
            sockets: Some(sockets.map.clone()),
            timestamp: TimestampSource::None,
            promiscuous: false,
            ..PortOptions::default()
        };
        let port = port::open(&format!("afxdp:{interface}"), &options)?;
        let device = Link::by_name(interface)?;
        let mark = (mode == xdp::AttachMode::Generic).then_some(sockets.mark);
        let queues: Vec<u32> = port.rx.iter().map(|rx| rx.queue_index()).collect();
        let (give_back, ways) = ways(&device, setup.give_back, &queues, mark)?;
        let completes = mode == xdp::AttachMode::Generic || is_virtual(&device);
        let completers = queues.iter();
        let completers = completers.map(|_| Completer::new(device.mtu, completes));
        let rules = Arc::new(UserRules::new(queues.len()));
        rules.replace(rules.prepare(specs)?);
        Ok(Self {
            port: RefCell::new(port),
            give_back,
            loses_tags: removes_tags(&device),
            ways,
            completers: completers.collect(),
            workers: setup.workers.clone(),
            rules,
            running: Vec::new(),
            stop: Arc::new(AtomicBool::new(false)),
        })
    }

    /// Starts the workers. Threads have the privileges of the thread that starts them.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(&mut self) -> Result<()> {
        let port = self.port.get_mut();
        let ends = port.rx.drain(..);
        let ways = self.ways.drain(..).zip(self.completers.drain(..));
        for (index, (rx, (way, completer))) in ends.zip(ways).enumerate() {
            let decide = match &self.workers {
                Some(workers) => workers.0(rx.queue_index()),
                None => Box::new(RuleWorker::new(self.rules.clone(), index)),
            };
            let giver = Giver::new(way, completer);
            let worker = Running::start(rx, giver, decide, self.stop.clone())?;
            self.running.push(worker);
        }
        Ok(())
    }

    /// Compiles new rules for user space.
    ///
    /// # Errors
    /// Those of a rule.
    pub fn prepare(&self, specs: Vec<RuleSpec>) -> Result<NextRules> {
        self.rules.prepare(specs)
    }

    /// Replaces the rules in user space.
    pub fn replace(&self, next: NextRules) {
        self.rules.replace(next);
    }

    /// How packets return to the host: `live`, or the name of the TAP interface.
    pub fn give_back(&self) -> &str {
        &self.give_back
    }

    /// Whether the card removes VLAN tags: returned packets do not have them.
    pub fn loses_tags(&self) -> bool {
        self.loses_tags
    }

    /// The queue of a worker that has ended by itself, and its error; each only once.
    pub fn ended(&mut self) -> Option<(u32, Error)> {
        for worker in &mut self.running {
            if let Some(result) = worker.ended() {
                let what = "decide about packets";
                let stopped = || Error::new(ErrorKind::Gone, what, "the worker has ended");
                return Some((worker.queue_index, result.err().unwrap_or_else(stopped)));
            }
        }
        None
    }

    /// Lets the workers finish what has arrived, after the program was detached.
    ///
    /// # Errors
    /// The error of a worker.
    pub fn finish(&mut self) -> Result<()> {
        self.stop.store(true, Ordering::Release);
        let mut result = Ok(());
        for worker in &mut self.running {
            result = result.and(worker.join());
        }
        result
    }

    /// The counts so far, without what the program has redirected.
    ///
    /// # Errors
    /// If the kernel refuses to read the counters of a socket.
    pub fn totals(&self) -> Result<SteerTotals> {
        // The workers' counters first: what a worker does meanwhile is still waiting for it.
        let mut totals = SteerTotals {
            give_back: self.give_back.clone(),
            // Those that are not started yet.
            workers: self.ways.len(),
            ..SteerTotals::default()
        };
        let mut abandoned = 0;
        let mut done_by = Vec::new();
        for worker in &self.running {
            let counts = &worker.counts;
            let (given, dropped) = (counts.given_back.get(), counts.dropped.get());
            let failed = counts.failed.get();
            totals.given_back += given;
            totals.dropped += dropped;
            totals.failed += failed;
            totals.workers += usize::from(worker.is_running());
            done_by.push((
                worker.queue_index,
                given + dropped + failed,
                worker.is_running(),
            ));
        }
        let account = self.port.borrow_mut().control.account()?;
        for queue in account.rx {
            totals.lost += queue.lost();
            totals.waiting += queue.in_flight;
            let row = done_by.iter().find(|row| row.0 == queue.queue_index);
            let (done, is_running) = row.map_or((0, true), |row| (row.1, row.2));
            let held = queue.delivered.saturating_sub(done);
            match is_running {
                true => totals.waiting += held,
                // What it had when it ended.
                false => abandoned += held,
            }
        }
        totals.failed += abandoned;
        (totals.rules, totals.removed) = self.rules.totals();
        Ok(totals)
    }
}

/// The name of live frames in output.
const LIVE: &str = "live";

/// The ways back of all queues.
fn ways(
    device: &Link,
    give_back: GiveBack,
    queues: &[u32],
    mark: Option<u64>,
) -> Result<(String, Vec<Way>)> {
    let live = |queue_index: &u32| {
        let live = Live::open(Ingress {
            ifindex: device.index,
            mtu: device.mtu,
            queue_index: *queue_index,
            worker_count: queues.len() as u32,
            mark,
        });
        live.map(|live| Way::Live(Box::new(live)))
    };
    let all_live = || -> Result<_> {
        let ways: Result<Vec<Way>> = queues.iter().map(live).collect();
        Ok((LIVE.to_owned(), ways?))
    };
    match give_back {
        GiveBack::Live => return all_live(),
        GiveBack::Auto => {
            if let Ok(ways) = all_live() {
                return Ok(ways);
            }
        }
        GiveBack::Tap => {}
    }
    let Ok(address) = <[u8; 6]>::try_from(&*device.address) else {
        let what = "create a TAP interface";
        let why = format!("{} has no Ethernet address", device.name);
        return Err(Error::new(ErrorKind::Unsupported, what, why));
    };
    let name = tap_name(device);
    let tap = Arc::new(Tap::create(&name, address, device.mtu, &device.name)?);
    let ways = queues.iter().map(|_| Way::Tap(tap.clone()));
    Ok((tap.name().to_owned(), ways.collect()))
}

/// The name of the TAP interface of a device.
fn tap_name(device: &Link) -> String {
    let name = format!("bw-{}", device.name);
    // IFNAMSIZ, with the zero byte. A shortened name could be that of two devices.
    match name.len() {
        0..=15 => name,
        _ => format!("bw-{}", device.index),
    }
}

/// Whether the card removes VLAN tags from received packets.
fn removes_tags(device: &Link) -> bool {
    let offloads = Ethtool::open().and_then(|ethtool| ethtool.offloads(&device.name));
    offloads
        .ok()
        .flatten()
        .is_some_and(|offloads| offloads.rx_vlan)
}

/// Whether packets may arrive as another host's stack on this machine has built them.
fn is_virtual(device: &Link) -> bool {
    if !device.kind.is_empty() {
        return true;
    }
    let info = Ethtool::open().and_then(|ethtool| ethtool.driver_info(&device.name));
    info.ok()
        .flatten()
        .is_some_and(|info| info.driver == "virtio_net")
}
