//! Queues of several ports opened as one: their numbers, and the port in their errors.

use sys::Error;

use super::RxQueue;

impl RxQueue {
    /// Gives the queue a number among those of several ports, and its packets the number of their
    /// port, which has one interface with this name.
    pub(crate) fn number(&mut self, queue_index: u32, interface_index: u16, interface: &str) {
        (self.queue_index, self.interface_index) = (queue_index, interface_index);
        interface.clone_into(&mut self.interface);
    }

    /// Adds the interface to an error, if there are several.
    #[cold]
    pub(super) fn named(&self, error: Error) -> Error {
        if self.interface.is_empty() {
            return error;
        }
        let why = format!("{}: {}", self.interface, error.why());
        error.with_why(why)
    }

    /// Number of its port among several opened as one; otherwise 0.
    pub fn interface_index(&self) -> u16 {
        self.interface_index
    }
}
