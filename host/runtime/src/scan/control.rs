//! The rate of a running scan, which another thread may change.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use traffic::Rate;

/// A rate in the unit of the setup's rate; clones share it. A change takes effect after the
/// next packet, whose time the rate before has set.
#[derive(Clone, Debug)]
pub struct RateControl(Arc<AtomicU64>);

impl RateControl {
    /// Begins with the rate of the setup.
    pub fn new(rate: Rate) -> Self {
        let (Rate::Packets(number) | Rate::Bits(number)) = rate;
        Self(Arc::new(number.to_bits().into()))
    }

    /// Changes the rate to another one, more than 0.
    pub fn set(&self, rate: f64) {
        self.0.store(rate.to_bits(), Ordering::Relaxed);
    }

    /// The rate now.
    pub fn rate(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}
