//! Device models: cards played by this process, for tests and benches of drivers without a card.
//!
//! A model has the registers and does the DMA of a real card, so the driver cannot tell; see
//! `docs/guides/user-mode-drivers.md`.

pub use crate::backend::vfio::wire::{ModelEnd, ModelWire, open_with_wrong_addresses};
