//! Ports on simulated cards in this process, for tests and benchmarks without a card; and access
//! for a test of the IOMMU.
//!
//! A model has the registers and does the DMA of a real card, so the driver sees no difference; see
//! `docs/guides/user-mode-drivers.md`.

pub use crate::backend::vfio::models::{ModelEnd, ModelWire, open_with_wrong_addresses};
