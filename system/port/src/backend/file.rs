//! `file:` capture files, read and written as ports: pcap and pcapng, plain or compressed.
//!
//! Reading an uncompressed regular file copies nothing: slots point into a private mapping of it.
//! Everything else (pipes, compressed files, files that change while they are read) goes through
//! one buffer in which each packet is contiguous. `wire::file` handles timestamp units, byte order,
//! interfaces and sections.
//!
//! Damage ends a file late: all packets before it are delivered, then [`RxQueue::receive`] fails
//! with `Damaged` and the offset in bytes (of the uncompressed file).
//!
//! Several files are one port, whose packets come in the order of their times ([`merge`]).

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
pub(crate) mod writer;

use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, PoisonError};

use sys::{Error, ErrorKind, Result};

use self::control::{Control, Facts, TxControl};
use self::rx::Rx;
use crate::account::{Counter, RxCounters, TxCounters};
use crate::control::{Capabilities, PortControl};
use crate::options::{Direction, PortOptions};
use crate::port::Port;
use crate::registry::{Backend, Plain, PortName, Target};
use crate::rx::{RxBackend, RxQueue};
use crate::tx::TxQueue;

/// The row in the table of backends.
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
    rx.open()?;
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

/// A port of one queue that reads.
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

/// What the reading thread tells the control side.
#[derive(Default)]
struct Shared {
    /// Packets met in the file.
    seen: Counter,
    /// Those of them whose wire length is damaged.
    wire_len_damaged: Counter,
    /// No more is to be read.
    stopped: AtomicBool,
    /// The greatest snapshot length of an interface met; 0 if there is none that limits.
    snaplen: AtomicU32,
    /// Link type and name of each interface met. Locked when one is met, never for a packet.
    interfaces: Mutex<Vec<(u16, String)>>,
}

impl Shared {
    /// The interfaces met, but for the first `known`.
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
