//! Checks a topology, opens the ports over one pool, and offers the queues.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use port::{Direction, FilterSource, Intake, Port, PortDescription, PortOptions};
use ring::shared::{self, Interface, Offer, OwnerEnd};
use ring::{FrameCache, Pool, PoolConfig};
use sys::descriptors::Credentials;
use sys::memfd::Access;
use sys::privileges::User;
use sys::{Error, ErrorKind, Result};
use wire::LinkType;

use super::application::{self, Application, ApplicationCounts, WhenFull};
use super::balance::Balance;
use super::merge;
use super::mover::Mover;
use super::select::Selector;
use super::status::{InputStatus, Status};
use super::{Desk, Options, Queue, Shared, Totals};
use crate::Stop;
use crate::filter::Expression;

/// Maximum number of frames of a pool.
const FRAME_COUNT_MAX: u64 = 1 << 24;

/// Length of the frames if no port needs longer ones.
const FRAME_LEN: u32 = 2048;

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
    filter: String,
    applications: Vec<Application>,
    when_full: Vec<WhenFull>,
    pub ring_len: u32,
    merge: Option<Duration>,
    may_attach: Vec<u32>,
    is_zero_copy: bool,
}

/// A cluster whose ports are open and to which readers can connect.
pub struct Opened {
    pub(super) port: Port,
    pub(super) ends: Vec<OwnerEnd>,
    pub(super) pool: Pool,
    pub(super) offer: Arc<Offer>,
    pub(super) named: Named,
    selector: Selector,
}

/// A window for output; 0 if there is none.
fn milliseconds(window: Option<Duration>) -> u64 {
    window.map_or(0, |window| window.as_millis() as u64)
}

fn what(name: &str) -> String {
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
            if let Some(frames) = port::frames_of(input, options)? {
                frame_len = frame_len.max(frames.frame_len);
                // No port gives its device more than half of a pool with other users.
                count =
                    (count + u64::from(frames.frame_count)).max(2 * u64::from(frames.frame_count));
            }
        }
        if self.merge.is_some() {
            count += u64::from(merge::FRAME_COUNT_MAX);
        }
        // Frames in the caches of threads, and in a batch.
        count += 4 * FrameCache::LEN_MAX as u64 + 4096;
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
    setup.filter.prepare()?;
    for application in &setup.applications {
        application.filter.prepare()?;
        if let Balance::Filters(filters) = &application.balance {
            filters.iter().try_for_each(Expression::prepare)?;
        }
    }
    let ring_len = setup.ring_len.next_power_of_two();
    let path = shared::path_of(&setup.name)?;
    let mut options = PortOptions {
        direction: Direction::Rx,
        filter_source: Some(setup.filter()),
        ..setup.options.clone()
    };
    let pool = setup.pool(ring_len, &options)?;
    options.pool = Some(pool.clone());
    // Before the ports, which may take packets from the host.
    let offer = Offer::new(&pool, &path, Access::Read, !setup.allow.is_empty());
    let offer = offer.map_err(|error| {
        let why = error.why().to_owned();
        Error::new(error.kind(), what(&setup.name), why)
    })?;
    let uid = match &setup.user {
        Some(user) => {
            if Credentials::own().uid == 0 {
                offer.give_to(user.uid, user.gid)?;
            }
            user.uid
        }
        None => Credentials::own().uid,
    };
    let inputs: Vec<&str> = setup.inputs.iter().map(String::as_str).collect();
    let port = port::open_all(&inputs, &options)?;
    let description = port.control.describe();
    let ends = (0..setup.queue_count()).map(|_| OwnerEnd::new(&pool, ring_len, None));
    let ends: Vec<OwnerEnd> = ends.collect::<Result<_>>()?;
    let when_full = |application: &Application| match (application.when_full, description.intake) {
        (Some(when_full), _) => when_full,
        (None, Intake::Live) => WhenFull::Drop,
        (None, _) => WhenFull::Block(None),
    };
    let link_type = LinkType(description.link_type);
    for application in &setup.applications {
        if let Err(why) = application.cleanup.check(link_type) {
            let name = &application.name;
            let why = format!("application {name}: {why}");
            return Err(Error::new(ErrorKind::Unsupported, what(&setup.name), why));
        }
    }
    let others = setup.allow.iter().map(|user| user.uid);
    Ok(Opened {
        selector: Selector::new(&setup.applications, link_type)?,
        named: Named {
            name: setup.name.clone(),
            label: setup.inputs.join(", "),
            filter: setup.filter.text.trim().to_owned(),
            applications: setup.applications.clone(),
            when_full: setup.applications.iter().map(when_full).collect(),
            ring_len,
            merge: setup.merge,
            may_attach: [0, uid].into_iter().chain(others).collect(),
            is_zero_copy: port.rx.iter().all(|queue| queue.has_frames_of(&pool)),
        },
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
        self.named
            .status(&Totals::default(), queues, &unused, Duration::ZERO)
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
    ) -> (Mover, Desk) {
        let Self {
            port,
            ends,
            pool,
            offer,
            named,
            selector,
        } = self;
        let description = port.control.describe();
        let mover = Mover::new(
            port.rx,
            ends,
            FrameCache::new(pool),
            super::mover::Plan {
                applications: named.applications.clone(),
                selector,
                when_full: named.when_full.clone(),
                intake: description.intake,
                count: options.count,
                merge: named.merge,
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
            drains: Vec::new(),
        };
        (mover, desk)
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

    /// The interfaces of packets by their number, for readers.
    pub fn interfaces(&self, description: &PortDescription) -> Vec<Interface> {
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

    /// The status, with the counts of each application.
    pub fn status(
        &self,
        totals: &Totals,
        queues: Vec<Queue>,
        counts: &[ApplicationCounts],
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
            },
            queues,
        }
    }
}
