//! Models of the cards: cards simulated in this process, for tests and benchmarks of drivers
//! without a card; they can inject faults.

pub use crate::e1000::{E1000, E1000Model};
pub use crate::igb::{Igb, IgbModel};
pub use crate::model::{Fault, Model, ModelCard, ModelMemory};
pub use crate::virtio::{Packed, Ring, Split, VirtioModel, VirtioNet};

/// Details of the model of an Intel 82576, for tests.
pub mod igb {
    pub use crate::igb::model::BUS_MASTER;
    pub use crate::igb::{PACKET_LEN_MAX, registers};
}
