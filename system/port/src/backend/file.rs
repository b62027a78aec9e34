//! `file:` capture files, read and written as ports: pcap and pcapng, plain or compressed.
//!
//! Reading an uncompressed regular file copies nothing: slots point into a private mapping of it.
//! Everything else (pipes, compressed files, files that change while they are read) uses one buffer
//! in which each packet is contiguous. `wire::file` handles timestamp units, byte order, interfaces
//! and sections.
//!
//! Damage ends a file late: all earlier packets are delivered, then [`RxQueue::receive`] fails with
//! `Damaged` and the offset in bytes (of the uncompressed file).
//!
//! Several files form one port, whose packets are in timestamp order ([`merge`]).

mod blocks;
mod control;
mod gather;
pub(crate) mod handed;
mod input;
mod mapping;
mod merge;
mod output;
pub(crate) mod rotation;
mod rx;
mod source;
mod tx;
mod watched;
pub(crate) mod writer;

/// The model test of [`watched`] replaces them by loom's.
mod atomics {
    pub(super) use std::sync::atomic::{AtomicUsize, Ordering, fence};
}

use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sys::{Error, ErrorKind, Result};

use self::blocks::Blocks;
use self::control::{Control, Facts, TxControl};
use self::rx::Rx;
use crate::account::{Counter, QueueAccount, RxCounters, TxCounters};
use crate::control::{Capabilities, PortControl};
use crate::options::{Direction, PortOptions};
use crate::port::Port;
use crate::registry::{Backend, Plain, PortName, Target};
use crate::rx::{RxBackend, RxQueue};
use crate::tx::TxQueue;

/// Row in the table of backends.
pub(crate) const BACKEND: Backend = Backend {
    summary: "capture file: pcap or pcapng, plain, gzip or zstd; - is standard input or output",
    example: "file:x.pcapng",
    target: Target::File,
    plain: Plain::Files,
    merge: Some(merge::open),
    ..Backend::new("file", open)
};

fn open(name: &PortName, options: &PortOptions) -> Result<Port> {
    match options.direction {
        Direction::Rx => open_rx(name, options),
        Direction::Tx => open_tx(name, options),
        Direction::Both => {
            let why = "a capture file is either read or written";
            let error = Error::new(
                ErrorKind::InvalidInput,
                format!("open {}", name.target),
                why,
            );
            Err(error.with_hint("open it twice, or name two files"))
        }
    }
}

fn open_tx(name: &PortName, options: &PortOptions) -> Result<Port> {
    let counters = Arc::new(TxCounters::default());
    let tx = tx::Tx::open(&name.target, options, counters.clone())?;
    let control = TxControl {
        path: name.target.clone(),
        counters: counters.clone(),
        memory_len: tx.memory_len(),
    };
    Ok(Port {
        name: format!("file:{}", name.target),
        rx: Vec::new(),
        tx: vec![TxQueue::new(Box::new(tx), 0, counters)],
        control: Box::new(control),
        capabilities: Capabilities {
            packet_len_max: wire::file::MAX_PACKET_LEN,
            multi_buffer: true,
            ..Capabilities::default()
        },
    })
}

fn open_rx(name: &PortName, options: &PortOptions) -> Result<Port> {
    let counters = Arc::new(RxCounters::default());
    let mut rx = Rx::new(&name.target, options, counters.clone())?;
    rx.open(false)?;
    let control = Control {
        path: name.target.clone(),
        counters: counters.clone(),
        facts: Facts::of(&rx),
        shared: rx.shared.clone(),
    };
    Ok(receiving(
        &name.target,
        Box::new(rx),
        Box::new(control),
        options,
        counters,
    ))
}

/// Creates a port with one receiving queue.
fn receiving(
    target: &str,
    backend: Box<dyn RxBackend>,
    control: Box<dyn PortControl>,
    options: &PortOptions,
    counters: Arc<RxCounters>,
) -> Port {
    let filter = options.filter.clone();
    Port {
        name: format!("file:{target}"),
        rx: vec![RxQueue::new(
            backend,
            0,
            options.batch_max,
            filter,
            counters,
        )],
        tx: Vec::new(),
        control,
        capabilities: Capabilities {
            timestamps: true,
            ..Capabilities::default()
        },
    }
}

/// Shared state, from the reading thread to the control side.
#[derive(Default)]
struct Shared {
    /// Packets read from the file.
    seen: Counter,
    /// Packets whose wire length is damaged.
    wire_len_damaged: Counter,
    /// Packets whose time is outside of the range of timestamps.
    time_clamped: Counter,
    /// Packets without a time.
    time_missing: Counter,
    /// Packets rejected because the filter cannot be used on their link type.
    filter_unsuitable: Counter,
    /// Link types of these. Locked when one is new, never for a packet.
    unsuitable_links: Mutex<Vec<u16>>,
    /// Packets that the capture lost, as the file states.
    capture_lost: Counter,
    /// Blocks to copy.
    blocks: Blocks,
    /// Whether reading was stopped.
    stopped: AtomicBool,
    /// The greatest snapshot length of all interfaces read; 0 if none limits it.
    snaplen: AtomicU32,
    /// Link type and name of each interface read. Locked when one is read, never for a packet.
    interfaces: Mutex<Vec<(u16, String)>>,
}

impl Shared {
    /// Counts what is unusual about a packet.
    #[inline]
    fn count(&self, packet: &wire::file::Packet) {
        if !packet.has_wire_len {
            self.wire_len_damaged.add(1);
        }
        if packet.is_time_clamped {
            self.time_clamped.add(1);
        }
        if !packet.has_time {
            self.time_missing.add(1);
        }
    }

    fn unsuitable_links(&self) -> MutexGuard<'_, Vec<u16>> {
        self.unsuitable_links
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what this file contributes to the account of a port.
    fn add_to(&self, queue: &mut QueueAccount) {
        queue.seen += self.seen.get();
        queue.wire_len_damaged += self.wire_len_damaged.get();
        queue.time_clamped += self.time_clamped.get();
        queue.time_missing += self.time_missing.get();
        queue.filter_unsuitable += self.filter_unsuitable.get();
        queue.capture_lost += self.capture_lost.get();
    }

    /// The interfaces read, except the first `known`.
    fn interfaces_from(&self, known: usize) -> Vec<(u16, String)> {
        let all = self
            .interfaces
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.get(known..).unwrap_or_default().to_vec()
    }
}

#[cfg(test)]
mod tests;
