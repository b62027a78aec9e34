//! Ports on models of cards, played by this process, for tests and benches without a card; and the
//! way to see an IOMMU at work.
//!
//! A model has the registers and does the DMA of a real card, so the driver sees no difference; see
//! `docs/guides/user-mode-drivers.md`.

pub use crate::backend::vfio::models::{ModelEnd, ModelWire, open_with_wrong_addresses};
