//! An open port.

use crate::control::{Capabilities, PortControl};
use crate::rx::RxQueue;
use crate::tx::TxQueue;

/// An open port: queues for threads to own, and the control side.
pub struct Port {
    /// The name it was opened by.
    pub name: String,
    /// Receiving queues; each may move to its own thread.
    pub rx: Vec<RxQueue>,
    /// Sending queues; each may move to its own thread.
    pub tx: Vec<TxQueue>,
    /// Counters, events, description. Closing the port is dropping this and the queues.
    pub control: Box<dyn PortControl>,
    /// What it can do.
    pub capabilities: Capabilities,
}
