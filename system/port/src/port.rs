//! An open port.

use crate::control::{Capabilities, PortControl};
use crate::rx::RxQueue;
use crate::tx::TxQueue;

/// An open port: queues for threads to own, and the control side.
pub struct Port {
    /// The name that it was opened by.
    pub name: String,
    /// Receiving queues; each may move to its own thread.
    pub rx: Vec<RxQueue>,
    /// Sending queues; each may move to its own thread.
    pub tx: Vec<TxQueue>,
    /// Counters, events, description. To close the port, drop this and the queues.
    pub control: Box<dyn PortControl>,
    /// Its capabilities.
    pub capabilities: Capabilities,
}
