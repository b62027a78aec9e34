//! Ports and queues: any device, file or ring, opened by name, gives batches of packets and takes
//! them.
//!
//! ```no_run
//! let options = port::PortOptions::default();
//! let mut port = port::open("afxdp:eth0", &options)?;
//! let rx = &mut port.rx[0];
//! loop {
//!     let batch = rx.receive()?;               // never blocks
//!     for packet in batch.iter() {
//!         println!("{} bytes", packet.cap_len());
//!     }
//!     let idle = batch.is_empty();
//!     drop(batch);                             // the frames go back to the device
//!     if idle && rx.wait(std::time::Duration::from_millis(100))? == port::Ready::End {
//!         break;                               // a file's end; a device never ends
//!     }
//! }
//! # Ok::<(), sys::Error>(())
//! ```
//!
//! A backend is one file in `backend/` (an [`RxBackend`], a [`TxBackend`], a [`PortControl`]) and
//! one row in [`BACKENDS`]. Dynamic dispatch happens once a batch.

mod account;
mod backend;
mod control;
pub mod model;
mod open;
mod options;
mod rx;
mod slot;
mod tx;

/// Writing capture files, one or a set of them.
pub mod file {
    pub use crate::backend::file::rotation::Rotation;
    pub use crate::backend::file::writer::{
        FileCompression, FileFormat, FileInterface, FileWriter, Record, WriterOptions, Written,
        Wrote,
    };
    pub use wire::file::pcap::Precision;
}

pub use account::{
    Counter, DropReason, PortAccount, QueueAccount, RxCounters, TxAccount, TxCounters,
};
pub use backend::vfio::card_name as user_mode_card;
pub use control::{Capabilities, PortControl, PortDescription, PortEvent};
pub use open::{BACKENDS, Backend, Port, PortName, open, shared_pool};
pub use options::{
    AttachMode, BindMode, Direction, Fanout, FilterSource, FilterTarget, IommuBy, PortOptions,
    TapBy, TimestampSource,
};
pub use rx::{Filled, Forwarded, Packet, PacketMut, Ready, RxBackend, RxBatch, RxQueue};
pub use slot::{Checksum, Slot, Vlan};
pub use tx::{TxBackend, TxBatch, TxQueue};
