//! Packet capture, AF_XDP, user-mode drivers, flow metering and export behind one API.
//!
//! A *port* is a source or destination of packets, opened by name: `eth0` (a tap), `afxdp:eth0`
//! (kernel bypass), `vfio:0000:01:00.0` (a card driven in user space), `trace.pcapng` (a capture
//! file), `memory:` (a ring in this process). The same loop runs on all of them. A port has
//! *queues*; a thread owns a queue and receives packets from it in *batches*.
//!
//! A complete program: it prints a line for each packet of an interface or file.
//!
//! ```no_run
//! use barewire::packet::{Dissection, LinkType, Summary, dissect};
//! use barewire::{PortOptions, Ready, Stop};
//! use std::time::Duration;
//!
//! fn main() -> barewire::Result<()> {
//!     let name = std::env::args().nth(1).unwrap_or("eth0".into());
//!     let options = PortOptions { queue_count: 1, ..Default::default() };
//!     let mut port = barewire::open(&name, &options)?;
//!     let link = LinkType(port.control.describe().link_type);
//!     let stop = Stop::on_signals()?;
//!     let mut dissection = Dissection::EMPTY;
//!     while !stop.is_set() {
//!         let batch = port.rx[0].receive()?; // never blocks
//!         for packet in batch.iter() {
//!             let bytes = packet.bytes();
//!             dissect(link, bytes, packet.wire_len(), &mut dissection);
//!             println!("{}", Summary { dissection: &dissection, bytes });
//!         }
//!         let is_idle = batch.is_empty();
//!         drop(batch); // the packets return to the device
//!         if is_idle && port.rx[0].wait(Duration::from_millis(100))? == Ready::End {
//!             break; // the end of a file
//!         }
//!     }
//!     let total = port.control.account()?.rx_total();
//!     eprintln!("{} packets, {} lost", total.delivered, total.lost());
//!     Ok(())
//! }
//! ```
//!
//! Overview:
//!
//! - [`run`] is that loop with pacing, so that an idle queue costs nothing and a busy one few
//!   wake-ups; it calls your [`Engine`]. [`run_queues`] runs it on every queue of a port, with a
//!   thread each.
//! - [`packet`]: header views, dissection, one-line summaries, capture file framing.
//! - [`flows`]: flow keys, tables, records.
//! - [`probe`]: the flow probe, from a port to its exports.
//! - [`export`]: destinations of records: IPFIX, NetFlow, Parquet, Kafka and others.
//! - [`send`]: packet templates, rates, pacing.
//! - [`mod@file`]: writing capture files.
//!
//! The directory `examples` has complete programs: `count`, `sniff`, `reflect`,
//! `flow_export`, `generate`, `forwarder`.
//!
//! # Stability
//!
//! This crate follows semantic versioning: a name that is reachable from here changes only with the
//! first digit of the version that is not zero. The crates behind it (`barewire-port`,
//! `barewire-flow` and the others) are published because this one needs them; what they export and
//! this crate does not may change in any release. Depend on `barewire` alone.
//!
//! # Privileges
//!
//! Files and `memory:` need none. A tap needs `CAP_NET_RAW`, `afxdp:` needs `CAP_NET_RAW`,
//! `CAP_NET_ADMIN` and `CAP_BPF`, `vfio:` access to the card's VFIO group. An error states what is
//! missing and what to do.
//!
//! # Signals
//!
//! [`Stop::on_signals`] handles SIGINT, SIGTERM and SIGHUP; without that call they are the
//! program's. One handler is installed without being asked for: opening an uncompressed capture
//! file maps it, and a mapped file that another process truncates raises SIGBUS, so the first such
//! file installs a handler for the whole process. It handles faults in these mappings and passes
//! all others to the handler that was there before. With [`PortOptions::map_files`] `false`, files
//! are read through a buffer, and nothing is installed: for libraries, and for programs with a
//! SIGBUS handler of their own.
#![forbid(unsafe_code)]

use std::thread;

pub use port::{
    AttachMode, BindMode, Capabilities, Checksum, Direction, DropReason, Fanout, Packet, PacketMut,
    Port, PortAccount, PortControl, PortDescription, PortEvent, PortName, PortOptions,
    QueueAccount, Ready, RxBatch, RxQueue, TapMethod, TimestampSource, TxAccount, TxBatch, TxQueue,
    Vlan, open, shared_pool,
};
pub use runtime::filter;
pub use runtime::worker::{drain, run};
pub use runtime::{Ended, Engine, Pacing, Stop, Verdict};
pub use sys::{Error, ErrorKind, Result};

/// Packets: header views, dissection in one pass, one-line summaries, checksums, and the framing of
/// pcap and pcapng files.
pub use wire as packet;

/// Writing capture files, one or a set of them.
pub use port::file;

/// Flows: keys, tables, records and their formats.
pub use flow as flows;

/// The flow probe: meters a port's packets and exports the records.
pub mod probe {
    pub use probe::*;
    pub use runtime::flows::{Config, Report};
}

/// Destinations of flow records by name, such as `ipfix:udp://192.0.2.1:4739` or
/// `parquet:/var/lib/flows`.
pub use export;

/// Sending: packet templates and pacing.
pub mod send {
    pub use runtime::pace::Clock;
    pub use runtime::send::*;
    pub use traffic::{
        AddrMap, Addresses, Generator, Icmp, L4, Order, Pace, Pacer, PortMap, Range, Rate,
        Rewriter, Sizes, Tag, Tcp, Template, Udp,
    };
}

/// Runs an engine on every receive queue of a port, one thread each, until `stop` is set, the input
/// ends, or an engine finishes or fails, which ends the others; then stops the intake and passes
/// what is left in the rings to the engines of queues that were stopped. `engine` creates the
/// engine of a queue, by its index.
///
/// Returns the engines in the order of the queues. The port's account is then final. `stop` itself
/// is never set.
///
/// # Errors
/// The first error of a queue or an engine.
///
/// # Panics
/// If an engine panics; the others are ended first.
pub fn run_queues<E: Engine + Send>(
    port: &mut Port,
    stop: &Stop,
    pacing: Pacing,
    mut engine: impl FnMut(usize) -> E,
) -> Result<Vec<E>> {
    let mut engines: Vec<E> = (0..port.rx.len()).map(&mut engine).collect();
    let stop = stop.child();
    let results: Vec<Result<Ended>> = thread::scope(|scope| {
        let queues = port.rx.iter_mut().zip(&mut engines);
        let threads: Vec<_> = queues
            .map(|(rx, engine)| {
                let stop = &stop;
                scope.spawn(move || {
                    let mut guard = EndOthers { stop, armed: true };
                    let result = run(rx, engine, stop, pacing);
                    // Other queues of the input may still have packets.
                    guard.armed = !matches!(result, Ok(Ended::Input));
                    result
                })
            })
            .collect();
        // All of them are joined before the first error is returned.
        let join = |thread: thread::ScopedJoinHandle<'_, Result<Ended>>| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().map(join).collect()
    });
    let mut outcome = port.control.stop();
    for ((rx, engine), result) in port.rx.iter_mut().zip(&mut engines).zip(results) {
        let drained = match result {
            Ok(Ended::Stopped) => drain(rx, engine),
            other => other.map(drop),
        };
        outcome = outcome.and(drained);
    }
    outcome.map(|()| engines)
}

/// Ends the other queues when a thread ends or panics.
struct EndOthers<'a> {
    stop: &'a Stop,
    armed: bool,
}

impl Drop for EndOthers<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.stop.set();
        }
    }
}
