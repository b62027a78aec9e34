//! The flow probe: a meter and a thread for each queue, and one thread that collects ended flows.
//!
//! A worker owns its queue and its table; nothing on its path is shared or locked. Ended flows go
//! to the collector in buffers that return to be used again, so memory has a bound. A worker on
//! a live port never waits for a buffer: while there is none it searches its table no further for
//! ended flows, and records that end all the same are dropped and counted. A file can wait, and so
//! does its worker; at the end, when no more packets come, every worker does. An outlet without
//! room for a record returns [`RecordOutcome::Dropped`], which is counted, too. Workers publish
//! their figures and the largest live flows to the collector ten times a second.
//!
//! With more than one queue, the two directions of a flow may go through different tables (a card's
//! hash need not be symmetric); [`flow::Merger`] makes them one record.

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
pub use ndpi::NdpiStats;
pub use selection::Selection;
pub use status::{Outlet, QueueStatus, RecordOutcome, Report, Status, Switch};

/// What workers and collector share. Nothing here is touched for a packet.
struct Shared {
    switch: Switch,
    /// Packets still to be metered.
    budget: Option<AtomicU64>,
    /// No new packets enter the rings.
    intake_stopped: AtomicBool,
    /// Whether the clock drives expiry, besides packets.
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

/// A poisoned lock means that a worker panicked; its data is still the best there is.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Messages from workers to the collector.
enum Message {
    /// Flows ended; the buffer goes back to the worker.
    Ended(usize, Buffer),
    /// The worker's queue has come to its end, or was asked to.
    Paused,
    /// The worker is done, with its result.
    Done(Result<Ended>),
}

/// Runs a probe until the input ends, its limits are reached, or `stop` is set. The caller has
/// opened the port and dropped privileges.
///
/// # Errors
/// Only where threads cannot be started. What goes wrong later is in the report, with all that was
/// counted.
pub fn run(port: Port, config: &Config, stop: &Stop, outlet: &mut dyn Outlet) -> Result<Report> {
    run_with(port, None, config, stop, outlet)
}

/// As [`run`], with a way out for the packets that [`flow::ExtraConfig::shunt`] chooses.
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
    // The collector learns that all workers are gone when they have dropped theirs.
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

/// Link types of a port's interfaces, as far as they are known at the start: those of a capture
/// file are met on the way.
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
