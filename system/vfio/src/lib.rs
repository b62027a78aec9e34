//! Drivers for network cards in user space, through VFIO: the card's registers are mapped,
//! descriptors and packets are in memory shared with the card, and there are no system calls and no
//! interrupts on the path.
//!
//! ```text
//!   DriverRx -> descriptors <-DMA- card -DMA-> frames of the pool
//!   DriverTx -> descriptors -DMA-> card -DMA-> frames of the pool
//!   Driver   -> registers   ->     card
//! ```
//!
//! A driver (one directory here, one row in `cards.rs`) supports one family of cards and does not
//! depend on ports; its interface is in `driver.rs`. It accesses registers through `registers.rs`
//! and memory through `dma.rs`, so that it runs on a device model in the same way (`model.rs`).
//!
//! To open a card, find its row ([`find`]), open the function ([`VfioFunction`]) and let the row
//! create the driver ([`Card::drive`]); a [`Core`] holds the card while queues and control share
//! it. The backend `vfio:` of the crate `barewire-port` makes a port of these.
//!
//! Descriptors and the whole frame pool are mapped through the IOMMU when the card is started, at
//! addresses chosen by the driver. A wrong address, from the driver or the card, is unmapped. The
//! card is stopped before the memory is freed; when the process dies the kernel does so.
//!
//! # Since Linux
//! 4.0 (type 1 version 2); iommufd 6.6.
//!
//! # Features
//! `testing` adds the module `testing`: models of the cards, for tests and benchmarks without one.

mod cards;
mod core;
mod dma;
mod driver;
mod e1000;
mod function;
mod igb;
mod intel;
#[cfg(test)]
mod laws;
#[cfg(any(test, feature = "testing"))]
mod model;
mod registers;
#[cfg(feature = "testing")]
pub mod testing;
mod virtio;

pub use self::cards::{Card, Visitor, find, names};
pub use self::core::{Borrowed, Core, Started};
pub use self::dma::{DmaSpace, PoolDma, before_sleep_check};
pub use self::driver::{
    CardCounters, Driver, DriverRx, DriverTx, Function, Health, Interrupt, Lengths, Limits,
    LinkState, Posted, QueueCounters, Queues, Refused, Settings, TxPart,
};
pub use self::function::VfioFunction;
pub use self::registers::Registers;
