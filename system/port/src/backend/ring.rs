//! `ring:` queues of a cluster: another process receives packets from its ports, and hands them
//! over without a copy (`barewire cluster`).
//!
//! The frames are mapped read-only; a program that changes packets gets copies. The filter runs in
//! user space, because the packets are in shared memory already.
//!
//! A cluster with a return path also takes packets from its readers: `ring:NAME/QUEUE` opened for
//! both directions, or `ring:NAME/return` for sending, in a process that reads a queue.

mod control;
mod rx;
mod tx;

use std::sync::{Arc, OnceLock};

use ring::Pool;
use ring::shared::{self, Interface, PeerEnd, Request, Sender, Terms};
use sys::memfd::Access;
use sys::{Error, ErrorKind, Result};

use self::control::Control;
use self::rx::{Rx, Taken};
use self::tx::{Tx, WayBack};
use crate::account::{RxCounters, TxCounters};
use crate::backend::keep::Keep;
use crate::control::Capabilities;
use crate::options::{FilterTarget, PortOptions};
use crate::port::Port;
use crate::registry::{Backend, PortName};
use crate::rx::RxQueue;
use crate::tx::TxQueue;

/// Row in the table of backends.
pub(crate) const BACKEND: Backend = Backend {
    summary: "queue of a cluster: packets that another process receives and hands over",
    example: "ring:ids, ring:ids/0",
    needs: "a running cluster (barewire cluster run) of root or of the same user",
    ..Backend::new("ring", open)
};

/// Maximum number of queues of a cluster.
const QUEUE_COUNT_MAX: u32 = 64;

/// In the place of a queue: the way back of those that this process reads.
const RETURN: &str = "return";

/// What a name asks for: `NAME`, `NAME/QUEUE` or `NAME/APPLICATION`.
fn request(name: &PortName) -> Result<(&str, Request)> {
    let Some((cluster, rest)) = name.target.split_once('/') else {
        return Ok((&name.target, Request::Any));
    };
    let request = match rest.parse() {
        Ok(number) => Request::Queue(number),
        Err(_) => {
            shared::check_name(rest)?;
            Request::Application(rest.to_owned())
        }
    };
    Ok((cluster, request))
}

/// Errors of opening one name.
struct What<'a>(&'a PortName);

impl What<'_> {
    fn error(&self, kind: ErrorKind, why: impl Into<String>) -> Error {
        Error::new(kind, format!("open ring:{}", self.0.target), why.into())
    }

    /// The cluster sends nothing for this application's readers.
    fn no_way_back(&self, cluster: &str) -> Error {
        let why = format!("cluster {cluster} has no return path for this application");
        self.error(ErrorKind::Unsupported, why).with_hint(
            "start it with --return PORT, or [[return]] in its topology file: docs/cluster.md",
        )
    }
}

/// The way back of queues that this process reads: `ring:NAME/return`.
fn open_return(name: &PortName, cluster: &str, options: &PortOptions) -> Result<Port> {
    let what = What(name);
    let mut parts = Vec::new();
    let mut tx = Vec::new();
    for _ in 0..options.queue_count.max(1) {
        let sender = WayBack::take_of(cluster).map_err(|()| {
            let why = "this process reads no queue of the cluster";
            what.error(ErrorKind::NotFound, why).with_hint(format!(
                "open a queue first, such as ring:{cluster}: its packets are sent back this way"
            ))
        })?;
        match sender {
            Some(sender) => add_sending(&mut tx, &mut parts, sender),
            None if tx.is_empty() => return Err(what.no_way_back(cluster)),
            None => break,
        }
    }
    Ok(Port {
        name: format!("ring:{}", name.target),
        rx: Vec::new(),
        tx,
        control: Box::new(Control {
            target: name.target.clone(),
            link_type: 1,
            interfaces: Vec::new(),
            parts: Vec::new(),
            tx: parts,
            memory_len: 0,
        }),
        capabilities: Capabilities {
            multi_buffer: true,
            ..Capabilities::default()
        },
    })
}

/// Adds the sending queue over a way back, and its counters.
fn add_sending(tx: &mut Vec<TxQueue>, parts: &mut Vec<Arc<TxCounters>>, sender: Sender) {
    let counters = Arc::new(TxCounters::default());
    parts.push(counters.clone());
    let backend = Box::new(Tx::new(sender, counters.clone()));
    tx.push(TxQueue::new(backend, tx.len() as u32, counters));
}

/// The capabilities of a port that reads queues.
fn receiving() -> Capabilities {
    Capabilities {
        timestamps: true,
        rss_hash: true,
        vlan: true,
        multi_buffer: true,
        ..Capabilities::default()
    }
}

fn open(name: &PortName, options: &PortOptions) -> Result<Port> {
    let what = What(name);
    let refuse = |why: String| Err(what.error(ErrorKind::InvalidInput, why));
    if let Some((cluster, RETURN)) = name.target.split_once('/') {
        if options.direction.has_rx() {
            return refuse("packets are only sent by it".into());
        }
        return open_return(name, cluster, options);
    }
    let (cluster, request) = request(name)?;
    if !options.direction.has_rx() {
        let why = "a queue is opened for receiving, or for both";
        return Err(what.error(ErrorKind::Unsupported, why).with_hint(format!(
            "ring:{cluster}/return sends, in a process that reads a queue of the cluster"
        )));
    }
    let count = options.queue_count.max(1);
    if count > QUEUE_COUNT_MAX || count > 1 && matches!(request, Request::Queue(_)) {
        return refuse(format!("{count} queues of it cannot be opened"));
    }
    let path = shared::find(cluster)?;
    let pool = Arc::new(OnceLock::new());
    if let Some(given) = &options.pool {
        pool.get_or_init(|| given.clone());
    }
    let (mut rx, mut tx) = (Vec::new(), Vec::new());
    let (mut parts, mut tx_parts) = (Vec::new(), Vec::new());
    let mut interfaces: Vec<Interface> = Vec::new();
    let mut memory_len = 0;
    for _ in 0..count {
        let (mut peer, terms) =
            shared::connect(&path, Access::Read, &request).map_err(|error| {
                let why = error.why().to_owned();
                error.with_why(format!("{cluster}: {why}"))
            })?;
        memory_len = peer.pool().memory_len();
        let way_back = WayBack::keep(cluster, peer.take_sender());
        if options.direction.has_tx() {
            match way_back.take() {
                Some(sender) => add_sending(&mut tx, &mut tx_parts, sender),
                None if options.tx_optional => {}
                None => return Err(what.no_way_back(cluster)),
            }
        }
        let (queue, part) = queue(peer, &terms, cluster, options, &pool, way_back)?;
        rx.push(queue);
        parts.push(part);
        interfaces = terms.interfaces;
    }
    let link_type = interfaces.first().map_or(1, |first| first.link_type);
    Ok(Port {
        name: format!("ring:{}", name.target),
        rx,
        tx,
        control: Box::new(Control {
            target: name.target.clone(),
            link_type,
            interfaces,
            parts,
            tx: tx_parts,
            memory_len,
        }),
        capabilities: receiving(),
    })
}

/// A port over the queue of a cluster in this process: it receives what other readers would.
///
/// # Errors
/// As [`open`](crate::open()).
pub fn of_peer(peer: PeerEnd, terms: &Terms, cluster: &str, options: &PortOptions) -> Result<Port> {
    let pool = Arc::new(OnceLock::new());
    let memory_len = peer.pool().memory_len();
    let way_back = WayBack::keep(cluster, None);
    let (rx, part) = queue(peer, terms, cluster, options, &pool, way_back)?;
    let target = format!("{cluster}/{}", terms.queue);
    Ok(Port {
        name: format!("ring:{target}"),
        rx: vec![rx],
        tx: Vec::new(),
        control: Box::new(Control {
            target,
            link_type: terms.interfaces.first().map_or(1, |first| first.link_type),
            interfaces: terms.interfaces.clone(),
            parts: vec![part],
            tx: Vec::new(),
            memory_len,
        }),
        capabilities: receiving(),
    })
}

/// The receiving queue over one end, and its counters.
fn queue(
    peer: PeerEnd,
    terms: &Terms,
    cluster: &str,
    options: &PortOptions,
    pool: &Arc<OnceLock<Pool>>,
    way_back: WayBack,
) -> Result<(RxQueue, control::Part)> {
    let target = FilterTarget {
        link_type: link_type(&terms.interfaces, cluster)?,
        // As from a tap: the tag may be beside the packet. No interface has the index 0.
        tap: Some(0),
    };
    let filter = options.for_packets(target)?.filter;
    let counters = Arc::new(RxCounters::default());
    let taken = Arc::new(Taken::default());
    let part = control::Part {
        queue: terms.queue,
        rx: counters.clone(),
        taken: taken.clone(),
        owner: peer.counts(),
    };
    let keep = Keep::new(pool.clone(), counters.clone());
    let backend = Box::new(Rx::new(peer, cluster, options, keep, taken, way_back));
    let (number, batch_max) = (terms.queue, options.batch_max);
    let queue = RxQueue::new(backend, number, batch_max, filter, counters);
    Ok((queue, part))
}

/// The link type that all interfaces have.
fn link_type(interfaces: &[Interface], cluster: &str) -> Result<u16> {
    let first = interfaces.first().map_or(1, |first| first.link_type);
    match interfaces.iter().all(|other| other.link_type == first) {
        true => Ok(first),
        false => {
            let why = "its inputs have several link types";
            Err(Error::new(
                ErrorKind::Unsupported,
                format!("open ring:{cluster}"),
                why,
            ))
        }
    }
}

#[cfg(test)]
mod tests;
