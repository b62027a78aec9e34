//! The flow probe: a meter and a thread per queue, and one thread that collects ended flows.
//!
//! A worker owns its queue and its table; its packet path shares and locks nothing. Ended flows are
//! passed to the collector in buffers that are returned and reused, so memory is bounded. A worker
//! on a live port never waits for a buffer: while there is none it stops searching its table for
//! ended flows, and records that end all the same are dropped and counted. A worker on a file
//! waits; at the end, when no more packets come, every worker does. An outlet without room for a
//! record returns [`RecordOutcome::Dropped`], which is counted as well. Figures and the largest
//! live flows are published for the collector ten times a second.
//!
//! With more than one queue, the two directions of a flow may be in different tables (a card's hash
//! need not be symmetric); [`flow::Merger`] joins them into one record.

mod application;
mod collector;
mod config;
pub mod egress;
mod ndpi;
mod outbox;
mod selection;
mod status;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use port::{Intake, Port, PortControl, PortDescription};
use sys::{Error, ErrorKind, Result};
use wire::LinkType;

use collector::Collector;
use egress::Egress;
use outbox::{BUFFER_COUNT, Buffer};
use worker::Spawner;

use crate::Stop;
use crate::worker::Ended;

pub use config::Config;
pub(crate) use config::secret;
pub use ndpi::NdpiStats;
pub use selection::Selection;
pub use status::{Outlet, QueueStatus, RecordOutcome, Report, Status, Switch};

/// State shared by workers and collector. None of it is accessed per packet.
struct Shared {
    switch: Switch,
    /// Packets left to be metered.
    budget: Option<AtomicU64>,
    /// The intake is stopped: no new packets enter the rings.
    intake_stopped: AtomicBool,
    /// Whether the clock drives expiry in addition to packets.
    is_live: bool,
    control: Mutex<Box<dyn PortControl>>,
}

impl Shared {
    fn new(
        control: Box<dyn PortControl>,
        description: &PortDescription,
        config: &Config,
        stop: &Stop,
    ) -> Shared {
        Shared {
            switch: Switch::new(config, stop),
            budget: config.count.map(AtomicU64::new),
            intake_stopped: AtomicBool::new(false),
            is_live: description.intake != Intake::File,
            control: Mutex::new(control),
        }
    }
}

/// Locks; a poisoned lock means that a worker panicked, and its data is still the best available.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Messages from workers to the collector.
enum Message {
    /// Ended flows; the buffer is returned to the worker.
    Ended(usize, Buffer),
    /// The worker's queue has ended, or the worker was asked to stop.
    Paused,
    /// The worker has ended, with its result.
    Done(Result<Ended>),
}

/// Runs a probe until the input ends, its limits are reached, or `stop` is set. The caller has
/// opened the port and dropped privileges.
///
/// # Errors
/// Only if threads cannot be started. Later errors are in the report, with all counts.
pub fn run(port: Port, config: &Config, stop: &Stop, outlet: &mut dyn Outlet) -> Result<Report> {
    run_with(port, None, config, stop, outlet)
}

/// As [`run`], with an egress for the packets that [`flow::ExtraConfig::shunt`] selects.
///
/// # Errors
/// As [`run`].
pub fn run_with(
    port: Port,
    mut egress: Option<Egress>,
    config: &Config,
    stop: &Stop,
    outlet: &mut dyn Outlet,
) -> Result<Report> {
    let start = Instant::now();
    let description = port.control.describe();
    let links = known_links(&description);
    let shared = Arc::new(Shared::new(port.control, &description, config, stop));
    let queue_count = port.rx.len();
    let (sender, receiver) = sync_channel(BUFFER_COUNT * queue_count + 2 * queue_count);
    let spawner = Spawner {
        config,
        shared: &shared,
        links: &links,
        messages: sender,
        queue_count,
    };
    let mut workers = Vec::new();
    for (index, rx) in port.rx.into_iter().enumerate() {
        let out = egress.as_mut().and_then(Egress::out);
        workers.push(spawner.start(index, rx, out)?);
    }
    // The channel disconnects once all workers have dropped their senders.
    drop(spawner);
    let mut collector = Collector::new(start, config, shared, &workers, egress, outlet);
    collector.collect(&receiver);
    for worker in workers {
        if worker.thread.join().is_err() {
            let why = "a worker thread panicked, a bug in barewire";
            collector.failed(Error::new(ErrorKind::Io, "meter flows", why));
        }
    }
    Ok(collector.report(description))
}

/// Link types of a port's interfaces known at the start: those of a capture file become known while
/// it is read.
fn known_links(description: &PortDescription) -> Vec<LinkType> {
    let interfaces = description.interfaces.iter();
    let mut links: Vec<LinkType> = interfaces.map(|(link, _)| LinkType(*link)).collect();
    if links.is_empty() && description.intake != Intake::File {
        links.push(LinkType(description.link_type));
    }
    links
}

/// The wall clock, in nanoseconds since the Unix epoch.
fn wall_clock_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_nanos() as u64)
}

#[cfg(test)]
mod tests;
