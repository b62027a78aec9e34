//! Checks a topology, opens the ports over one pool, and offers the queues.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use port::{Direction, FilterSource, Intake, Port, PortDescription, PortOptions, TxQueue};
use ring::shared::{self, Interface, Offer, OwnerEnd};
use ring::{FrameCache, Pool, PoolConfig};
use sys::descriptors::Credentials;
use sys::memfd::Access;
use sys::privileges::User;
use sys::{Error, ErrorKind, Result};
use wire::LinkType;

use super::application::{self, Application, ApplicationCounts, WhenFull};
use super::balance::Balance;
use super::inputs::{InputPort, Inputs, Reopener, Source};
use super::inside::{Inside, Sending};
use super::merge;
use super::mover::Mover;
use super::returns::{self, Lane, OutputStatus, Return};
use super::select::Selector;
use super::status::{InputStatus, Status};
use super::{Desk, Options, Queue, Shared, Totals};
use crate::Stop;
use crate::filter::Expression;

/// Maximum number of frames of a pool.
const FRAME_COUNT_MAX: u64 = 1 << 24;

/// Frames that wait for a port of the return path, or are in caches of its thread.
const RETURN_FRAMES: u64 = 2 * 1024 + 4 * FrameCache::LEN_MAX as u64;

/// Frames in the cache of the thread that hands packets over and takes them back: enough to keep
/// receiving while readers stall briefly.
const CACHE_LEN: usize = 3 * 1024;

/// Length of the frames if no port needs longer ones.
const FRAME_LEN: u32 = 2048;

/// Packets received at once, if there are so many: what is done for each batch (making packets
/// visible to readers, looking for returned frames, publishing counts) waits for cache lines that
/// other processors have written.
const BATCH: usize = 256;

/// A cluster to open.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its name.
    pub name: String,
    /// Names of the input ports.
    pub inputs: Vec<String>,
    /// At least one.
    pub applications: Vec<Application>,
    /// Length of each queue in packets; rounded up to a power of two.
    pub ring_len: u32,
    /// Packets to hand over, as a pcap expression.
    pub filter: Expression,
    /// How long packets wait for earlier ones of other inputs; `None`: they are handed over as
    /// received.
    pub merge: Option<Duration>,
    /// The ports that send what readers send.
    pub returns: Vec<Return>,
    /// Options of the ports.
    pub options: PortOptions,
    /// Users whose processes may attach, in addition to root and the user of this process.
    pub allow: Vec<User>,
    /// The user to which this process will drop its privileges.
    pub user: Option<User>,
}

/// The part of a setup that is needed while the cluster runs.
pub(super) struct Named {
    name: String,
    label: String,
    /// The names of the inputs, if they are ports of their own.
    inputs: Vec<String>,
    filter: String,
    applications: Vec<Application>,
    when_full: Vec<WhenFull>,
    pub ring_len: u32,
    merge: Option<Duration>,
    may_attach: Vec<u32>,
    is_zero_copy: bool,
    /// The ports that send: those of the return path, then those that are readers.
    outputs: Vec<OutputStatus>,
}

/// A cluster whose ports are open and to which readers can connect.
pub struct Opened {
    pub(super) port: Port,
    pub(super) ends: Vec<OwnerEnd>,
    pub(super) pool: Pool,
    pub(super) offer: Arc<Offer>,
    pub(super) named: Named,
    selector: Selector,
    sending: Sending,
    /// The inputs, if they are ports of their own.
    pub(super) sources: Vec<Source>,
}

/// A window for output; 0 if there is none.
fn milliseconds(window: Option<Duration>) -> u64 {
    window.map_or(0, |window| window.as_millis() as u64)
}

pub(super) fn what(name: &str) -> String {
    format!("run cluster {name}")
}

impl Setup {
    /// Checks everything that needs no port.
    ///
    /// # Errors
    /// `InvalidInput`, with the reason.
    pub fn check(&self) -> Result<()> {
        let refuse = |why: String| Err(Error::new(ErrorKind::InvalidInput, what(&self.name), why));
        shared::check_name(&self.name)?;
        if let Err(why) = application::check(&self.applications) {
            return refuse(why);
        }
        if self.ring_len == 0 || self.ring_len > shared::ENTRY_COUNT_MAX {
            let (len, max) = (self.ring_len, shared::ENTRY_COUNT_MAX);
            return refuse(format!("queues of {len} packets; possible are 1 to {max}"));
        }
        if let Some(window) = self.merge
            && (window.is_zero() || window > merge::WINDOW_MAX)
        {
            let max = merge::WINDOW_MAX.as_millis();
            return refuse(format!(
                "packets may wait for 1 to {max} ms for earlier ones"
            ));
        }
        let (inputs, returns) = (&self.inputs, &self.returns);
        if let Err(why) = returns::check(&self.name, inputs, &self.applications, returns) {
            return refuse(why);
        }
        let own = |input: &&String| {
            let target = input.strip_prefix("ring:").unwrap_or_default();
            target.split(['/', '?']).next() == Some(self.name.as_str())
        };
        if let Some(input) = self.inputs.iter().find(own) {
            return refuse(format!(
                "{input} is a queue of this cluster: packets would loop"
            ));
        }
        Ok(())
    }

    /// The cluster as it will be, without having opened anything. What depends on the ports is
    /// missing: policies that are not set, and whether packets are copied.
    pub fn planned(&self) -> Status {
        let mut queues = Vec::new();
        let mut applications = Vec::new();
        for application in &self.applications {
            for _ in 0..application.queue_count {
                queues.push(Queue {
                    index: queues.len() as u32,
                    application: application.name.clone(),
                    len: self.ring_len.next_power_of_two(),
                    ..Queue::default()
                });
            }
            let when_full = application.when_full.map(WhenFull::name);
            let counts = ApplicationCounts::default();
            applications.push(application.status(when_full.unwrap_or_default(), counts));
        }
        Status {
            name: self.name.clone(),
            process: 0,
            seconds: 0,
            input: InputStatus {
                ports: self.inputs.join(", "),
                filter: self.filter.text.trim().to_owned(),
                merge_ms: milliseconds(self.merge),
                ..InputStatus::default()
            },
            applications,
            queues,
            outputs: self.outputs(),
        }
    }

    /// The ports that send.
    fn outputs(&self) -> Vec<OutputStatus> {
        let mut outputs = returns::distinct(&self.applications, &self.returns);
        outputs.extend(returns::reading(&self.applications));
        outputs
    }

    /// The user whose processes may attach, to whom the socket belongs.
    fn owner(&self, offer: &Offer) -> Result<u32> {
        let own = Credentials::own().uid;
        let Some(user) = &self.user else {
            return Ok(own);
        };
        if own == 0 {
            offer.give_to(user.uid, user.gid)?;
        }
        Ok(user.uid)
    }

    /// Prepares all filters.
    fn prepare(&self) -> Result<()> {
        self.filter.prepare()?;
        for application in &self.applications {
            application.filter.prepare()?;
            if let Balance::Filters(filters) = &application.balance {
                filters.iter().try_for_each(Expression::prepare)?;
            }
        }
        Ok(())
    }

    /// The names of the ports that send.
    pub fn sending(&self) -> Vec<String> {
        self.outputs().into_iter().map(|port| port.port).collect()
    }

    /// The options of an input.
    pub(super) fn input(&self, name: &str, options: &PortOptions) -> PortOptions {
        let sends = self.returns.iter().any(|it| it.port == name);
        PortOptions {
            direction: if sends {
                Direction::Both
            } else {
                Direction::Rx
            },
            ..options.clone()
        }
    }

    /// Checks that packets of this link type can be cleaned up as wanted.
    fn check_cleanup(&self, link_type: LinkType) -> Result<()> {
        for application in &self.applications {
            if let Err(why) = application.cleanup.check(link_type) {
                let why = format!("application {}: {why}", application.name);
                return Err(Error::new(ErrorKind::Unsupported, what(&self.name), why));
            }
        }
        Ok(())
    }

    /// Opens the inputs; those that send as well are returned without and with their sending
    /// queues.
    fn open_inputs(&self, options: &PortOptions) -> Result<(Port, Vec<(String, Port)>)> {
        let sends = |name: &String| self.input(name, options).direction.has_tx();
        if !self.inputs.iter().any(sends) {
            let inputs: Vec<&str> = self.inputs.iter().map(String::as_str).collect();
            return Ok((port::open_all(&inputs, options)?, Vec::new()));
        }
        let (mut ports, mut sending) = (Vec::new(), Vec::new());
        for name in &self.inputs {
            let mut port = port::open(name, &self.input(name, options))?;
            if sends(name) {
                sending.push((name.clone(), port.split_sending()));
            }
            ports.push(port);
        }
        match (ports.pop(), ports.is_empty()) {
            (Some(only), true) => Ok((only, sending)),
            (last, _) => {
                ports.extend(last);
                Ok((port::join(ports)?, sending))
            }
        }
    }

    fn queue_count(&self) -> u32 {
        let counts = self
            .applications
            .iter()
            .map(|application| application.queue_count);
        counts.sum()
    }

    /// The pool: the frames of the ports' devices, and those that the queues and readers can hold.
    fn pool(&self, ring_len: u32, options: &PortOptions) -> Result<Pool> {
        let mut frame_len = FRAME_LEN;
        let mut count = u64::from(self.queue_count()) * 2 * u64::from(ring_len);
        for input in &self.inputs {
            if let Some(frames) = port::frames_of(input, &self.input(input, options))? {
                frame_len = frame_len.max(frames.frame_len);
                // No port gives its device more than half of a pool with other users.
                count =
                    (count + u64::from(frames.frame_count)).max(2 * u64::from(frames.frame_count));
            }
        }
        for output in returns::distinct(&self.applications, &self.returns) {
            count += RETURN_FRAMES;
            if let Some(frames) = port::frames_of(&output.port, &returns::sending(options))? {
                frame_len = frame_len.max(frames.frame_len);
                count += u64::from(frames.frame_count);
            }
        }
        if self.merge.is_some() {
            count += u64::from(merge::FRAME_COUNT_MAX);
        }
        // Frames in the caches of threads, and in a batch.
        count += 4 * FrameCache::LEN_MAX as u64 + CACHE_LEN as u64 + 4096;
        if count > FRAME_COUNT_MAX {
            let why = format!("{count} frames are needed; a pool has at most {FRAME_COUNT_MAX}");
            return Err(Error::new(ErrorKind::InvalidInput, what(&self.name), why)
                .with_hint("use fewer or shorter queues: --queues, --ring"));
        }
        Pool::new(PoolConfig {
            frame_count: count as u32,
            frame_len,
            ..PoolConfig::default()
        })
    }

    /// The filter, which also refuses packets of a second link type: the queues have one.
    fn filter(&self) -> FilterSource {
        let (source, what) = (self.filter.source(), what(&self.name));
        let first = OnceLock::new();
        FilterSource::new(move |target| {
            let first = *first.get_or_init(|| target.link_type);
            if target.link_type != first {
                let [here, there] = [target.link_type, first].map(LinkType);
                let why = format!("the inputs have several link types: {there}, {here}");
                return Err(Error::new(ErrorKind::Unsupported, what.clone(), why)
                    .with_hint("run a cluster for each link type"));
            }
            source.compile(target)
        })
    }
}

/// Opens the ports and offers the queues.
///
/// # Errors
/// `InvalidInput` for a topology that is not possible, `Busy` if a cluster of this name runs;
/// otherwise errors of opening.
pub fn open(setup: &Setup) -> Result<Opened> {
    setup.check()?;
    setup.prepare()?;
    let ring_len = setup.ring_len.next_power_of_two();
    let path = shared::path_of(&setup.name)?;
    let mut options = PortOptions {
        direction: Direction::Rx,
        batch_max: setup.options.batch_max.max(BATCH),
        filter_source: Some(setup.filter()),
        // What is sent on an input's interface is not received again.
        outgoing: setup.outputs().is_empty() && setup.options.outgoing,
        ..setup.options.clone()
    };
    let pool = setup.pool(ring_len, &options)?;
    options.pool = Some(pool.clone());
    // Before the ports, which may take packets from the host.
    let offer = Offer::new(&pool, &path, Access::Read, !setup.allow.is_empty());
    let offer = offer.map_err(|error| {
        let why = error.why().to_owned();
        let named = Error::new(error.kind(), what(&setup.name), why);
        match error.hint() {
            Some(hint) => named.with_hint(hint),
            None => named,
        }
    })?;
    let uid = setup.owner(&offer)?;
    let (port, sending) = setup.open_inputs(&options)?;
    let description = port.control.describe();
    let ends = (0..setup.queue_count()).map(|_| OwnerEnd::new(&pool, ring_len, None));
    let mut ends: Vec<OwnerEnd> = ends.collect::<Result<_>>()?;
    let inside = Inside {
        setup,
        pool: &pool,
        offer: &offer,
        description: &description,
    };
    let sending = inside.open(sending, &mut ends)?;
    let when_full = |application: &Application| match (application.when_full, description.intake) {
        (Some(when_full), _) => when_full,
        (None, Intake::Live) => WhenFull::Drop,
        (None, _) => WhenFull::Block(None),
    };
    let link_type = LinkType(description.link_type);
    setup.check_cleanup(link_type)?;
    let others = setup.allow.iter().map(|user| user.uid);
    let sources = setup.sources(description.intake, &options);
    Ok(Opened {
        selector: Selector::new(&setup.applications, link_type)?,
        named: Named {
            name: setup.name.clone(),
            label: setup.inputs.join(", "),
            inputs: sources.iter().map(|it| it.name.clone()).collect(),
            filter: setup.filter.text.trim().to_owned(),
            applications: setup.applications.clone(),
            when_full: setup.applications.iter().map(when_full).collect(),
            ring_len,
            merge: setup.merge,
            may_attach: [0, uid].into_iter().chain(others).collect(),
            is_zero_copy: port.rx.iter().all(|queue| queue.has_frames_of(&pool)),
            outputs: setup.outputs(),
        },
        sending,
        sources,
        port,
        ends,
        pool,
        offer: Arc::new(offer),
    })
}

impl Opened {
    /// The path of the socket, which is removed at the end.
    pub fn path(&self) -> &std::path::Path {
        self.offer.path()
    }

    /// Takes the sending ends of inputs that are rings of this process (`memory:`): the cluster
    /// receives what is sent there, without a copy, until they are dropped.
    pub fn take_senders(&mut self) -> Vec<TxQueue> {
        std::mem::take(&mut self.port.tx)
    }

    /// The status before the first packet.
    pub fn status(&self) -> Status {
        let queue = |index: u32| Queue {
            index,
            application: self.named.application_of(index).to_owned(),
            len: self.named.ring_len,
            ..Queue::default()
        };
        let queues = (0..self.ends.len() as u32).map(queue).collect();
        let unused = vec![ApplicationCounts::default(); self.named.applications.len()];
        self.named.status(
            &Totals::default(),
            queues,
            &unused,
            &Shared::default(),
            Duration::ZERO,
        )
    }

    /// The ports that send.
    pub(super) fn outputs(&self) -> impl Iterator<Item = &OutputStatus> {
        self.named.outputs.iter()
    }

    pub(super) fn applications(&self) -> impl Iterator<Item = &Application> {
        self.named.applications.iter()
    }

    /// The description of the input ports.
    pub fn description(&self) -> PortDescription {
        self.port.control.describe()
    }

    pub(super) fn split(
        self,
        options: &Options,
        shared: &Arc<Shared>,
        stop: &Stop,
    ) -> (Mover, Desk, Vec<Lane>) {
        let Self {
            port,
            ends,
            pool,
            offer,
            named,
            selector,
            sources,
            sending:
                Sending {
                    back,
                    lanes,
                    read_inside,
                },
        } = self;
        let description = port.control.describe();
        let mover = Mover::new(
            port.rx,
            ends,
            FrameCache::with_len(pool, CACHE_LEN),
            super::mover::Plan {
                applications: named.applications.clone(),
                selector,
                when_full: named.when_full.clone(),
                intake: description.intake,
                count: options.count,
                merge: named.merge,
                back,
                read_inside,
                inputs: Inputs::new(&sources),
            },
            shared.clone(),
            offer.clone(),
            stop,
        );
        let desk = Desk {
            control: port.control,
            offer,
            shared: shared.clone(),
            setup: named,
            began: std::time::Instant::now(),
            refused_at: None,
            stop: stop.clone(),
            reopener: Reopener::new(sources),
            drains: Vec::new(),
        };
        (mover, desk, lanes)
    }
}

impl Named {
    /// Whether a process may attach.
    pub fn may(&self, process: Credentials) -> bool {
        self.may_attach.contains(&process.uid)
    }

    /// The name of a queue's application.
    pub fn application_of(&self, mut queue: u32) -> &str {
        for application in &self.applications {
            match queue.checked_sub(application.queue_count) {
                None => return &application.name,
                Some(rest) => queue = rest,
            }
        }
        ""
    }

    /// The inputs, if they are ports of their own.
    pub fn input_ports(&self, shared: &Shared) -> Vec<InputPort> {
        let pairs = self.inputs.iter().zip(&shared.inputs);
        pairs.map(|(name, input)| input.read(name)).collect()
    }

    /// The interfaces of packets by their number, for readers.
    pub fn interfaces(&self, description: &PortDescription) -> Vec<Interface> {
        interfaces(description)
    }

    /// The status, with the counts of each application.
    pub fn status(
        &self,
        totals: &Totals,
        queues: Vec<Queue>,
        counts: &[ApplicationCounts],
        shared: &Shared,
        elapsed: Duration,
    ) -> Status {
        let policies = self.applications.iter().zip(&self.when_full);
        let applications = policies
            .zip(counts)
            .map(|((application, when_full), counts)| {
                application.status(when_full.name(), *counts)
            });
        Status {
            name: self.name.clone(),
            process: std::process::id(),
            seconds: elapsed.as_secs(),
            applications: applications.collect(),
            input: InputStatus {
                ports: self.label.clone(),
                filter: self.filter.clone(),
                is_zero_copy: self.is_zero_copy,
                received: totals.received,
                copied: totals.copied,
                dropped: totals.pool_empty + totals.too_long,
                merge_ms: milliseconds(self.merge),
                late: totals.late,
                each: self.input_ports(shared),
            },
            queues,
            outputs: match shared.outputs.as_slice() {
                [] => self.outputs.clone(),
                outputs => {
                    let pairs = outputs.iter().zip(&self.outputs);
                    pairs.map(|(counts, named)| counts.read(named)).collect()
                }
            },
        }
    }
}

/// The interfaces of packets by their number.
pub(super) fn interfaces(description: &PortDescription) -> Vec<Interface> {
    let named = |(link_type, name): &(u16, String)| Interface {
        link_type: *link_type,
        name: name.clone(),
    };
    match description.interfaces.as_slice() {
        [] => vec![Interface {
            link_type: description.link_type,
            name: description.target.clone(),
        }],
        several => several.iter().map(named).collect(),
    }
}
