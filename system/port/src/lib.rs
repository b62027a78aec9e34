//! Ports and queues: any device, file or ring, opened by name, receives and sends batches of
//! packets.
//!
//! ```no_run
//! let options = barewire_port::PortOptions::default();
//! let mut port = barewire_port::open("afxdp:eth0", &options)?;
//! let rx = &mut port.rx[0];
//! loop {
//!     let batch = rx.receive()?;               // never blocks
//!     for packet in batch.iter() {
//!         println!("{} bytes", packet.cap_len());
//!     }
//!     let idle = batch.is_empty();
//!     drop(batch);                             // the frames go back to the device
//!     if idle && rx.wait(std::time::Duration::from_millis(100))? == barewire_port::Ready::End {
//!         break;                               // a file's end; a device never ends
//!     }
//! }
//! # Ok::<(), sys::Error>(())
//! ```
//!
//! A backend is one file in `backend/` (an [`RxBackend`], a [`TxBackend`], a [`PortControl`]) and
//! one row in [`BACKENDS`]. Dynamic dispatch happens once per batch.
//!
//! # Features
//! `testing` adds the module `testing`: ports on models of cards, for tests and benches.

mod account;
mod backend;
mod control;
mod joined;
mod matcher;
mod open;
mod options;
mod port;
mod registry;
mod rx;
mod split;
#[cfg(feature = "testing")]
pub mod testing;
mod tx;

/// Writes capture files, one or a set of them.
pub mod file {
    pub use crate::backend::file::handed::KernelProgress;
    pub use crate::backend::file::rotation::{FileNames, Rotation};
    pub use crate::backend::file::writer::{
        BlockCopy, Encoded, Encoder, FileCompression, FileFormat, FileInterface, FileWriter,
        Record, WriteFormat, WriterOptions, Written,
    };
    pub use wire::file::pcap::Precision;
    pub use wire::file::pcapng::Block;
}

pub use account::{
    Counter, DropReason, PortAccount, QueueAccount, RxCounters, TxAccount, TxCounters,
};
pub use backend::ring::of_peer;
pub use backend::vfio::card_name as user_mode_card;
pub use control::{Capabilities, Intake, PortControl, PortDescription, PortEvent};
pub use joined::join;
pub use matcher::Matcher;
pub use open::{BACKENDS, frames_of, open, open_all, shared_pool};
pub use options::{
    AttachMode, BindMode, Direction, Fanout, FilterSource, FilterTarget, IommuInterface,
    PortOptions, TapMethod, TimestampSource,
};
pub use port::Port;
pub use registry::{Backend, Merge, Plain, PortName, Registry, Target};
pub use ring::slot::{Checksum, Slot, Vlan};
pub use rx::{
    Adopted, Detached, Filled, FilterSwitch, Forwarded, Meta, Packet, PacketMut, Ready, RxBackend,
    RxBatch, RxQueue, Waker,
};
pub use tx::{TxBackend, TxBatch, TxQueue};
