//! `ring:` queues of a cluster: another process receives packets from its ports, and hands them
//! over without a copy (`barewire cluster`).
//!
//! The frames are mapped read-only; a program that changes packets gets copies. The filter runs in
//! user space, because the packets are in shared memory already.

mod control;
mod rx;

use std::sync::{Arc, OnceLock};

use ring::Pool;
use ring::shared::{self, Interface, PeerEnd, Request, Terms};
use sys::memfd::Access;
use sys::{Error, ErrorKind, Result};

use self::control::Control;
use self::rx::{Rx, Taken};
use crate::account::RxCounters;
use crate::backend::keep::Keep;
use crate::control::Capabilities;
use crate::options::{FilterTarget, PortOptions};
use crate::port::Port;
use crate::registry::{Backend, PortName};
use crate::rx::RxQueue;

/// Row in the table of backends.
pub(crate) const BACKEND: Backend = Backend {
    summary: "queue of a cluster: packets that another process receives and hands over",
    example: "ring:ids, ring:ids/0",
    needs: "a running cluster (barewire cluster run) of root or of the same user",
    ..Backend::new("ring", open)
};

/// Maximum number of queues of a cluster.
const QUEUE_COUNT_MAX: u32 = 64;

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

fn open(name: &PortName, options: &PortOptions) -> Result<Port> {
    let what = || format!("open ring:{}", name.target);
    let refuse = |why: String| Err(Error::new(ErrorKind::InvalidInput, what(), why));
    if options.direction.has_tx() {
        let why = "packets are only received from a cluster";
        return Err(Error::new(ErrorKind::Unsupported, what(), why)
            .with_hint("send on another port: docs/ports.md lists what each port supports"));
    }
    let (cluster, request) = request(name)?;
    let count = options.queue_count.max(1);
    if count > QUEUE_COUNT_MAX || count > 1 && matches!(request, Request::Queue(_)) {
        return refuse(format!("{count} queues of it cannot be opened"));
    }
    let path = shared::find(cluster)?;
    let pool = Arc::new(OnceLock::new());
    if let Some(given) = &options.pool {
        pool.get_or_init(|| given.clone());
    }
    let mut rx = Vec::new();
    let mut parts = Vec::new();
    let mut interfaces: Vec<Interface> = Vec::new();
    let mut memory_len = 0;
    for _ in 0..count {
        let (peer, terms) = shared::connect(&path, Access::Read, &request).map_err(|error| {
            let why = error.why().to_owned();
            error.with_why(format!("{cluster}: {why}"))
        })?;
        memory_len = peer.pool().memory_len();
        let (queue, part) = queue(peer, &terms, cluster, options, &pool)?;
        rx.push(queue);
        parts.push(part);
        interfaces = terms.interfaces;
    }
    let link_type = interfaces.first().map_or(1, |first| first.link_type);
    Ok(Port {
        name: format!("ring:{}", name.target),
        rx,
        tx: Vec::new(),
        control: Box::new(Control {
            target: name.target.clone(),
            link_type,
            interfaces,
            parts,
            memory_len,
        }),
        capabilities: Capabilities {
            timestamps: true,
            rss_hash: true,
            vlan: true,
            multi_buffer: true,
            ..Capabilities::default()
        },
    })
}

/// The receiving queue over one end, and its counters.
fn queue(
    peer: PeerEnd,
    terms: &Terms,
    cluster: &str,
    options: &PortOptions,
    pool: &Arc<OnceLock<Pool>>,
) -> Result<(RxQueue, control::Part)> {
    let target = FilterTarget {
        link_type: link_type(&terms.interfaces, cluster)?,
        tap: None,
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
    let backend = Box::new(Rx::new(peer, cluster, options, keep, taken));
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
