//! Models of the cards: cards played by this process, for tests and benches of drivers without a
//! card, and hostile on request.

pub use crate::e1000::{E1000, E1000Model};
pub use crate::igb::{Igb, IgbModel};
pub use crate::model::{Fault, Model, ModelCard, ModelMemory};
pub use crate::virtio::{Packed, Ring, Split, VirtioModel, VirtioNet};

/// What tests look at in the model of an Intel 82576.
pub mod igb {
    pub use crate::igb::model::BUS_MASTER;
    pub use crate::igb::{PACKET_LEN_MAX, registers};
}
