//! A transmit queue whose device returns the same kind of error from each call, for tests.

use std::sync::Arc;
use std::time::Duration;

use port::{Slot, TxBackend, TxCounters, TxQueue};
use ring::{Frame, Pool};
use sys::{Error, ErrorKind, Result};

/// All kinds but [`ErrorKind::Gone`].
pub const TRANSIENT: [ErrorKind; 8] = [
    ErrorKind::NotFound,
    ErrorKind::Permission,
    ErrorKind::Unsupported,
    ErrorKind::Busy,
    ErrorKind::InvalidInput,
    ErrorKind::Damaged,
    ErrorKind::NoSpace,
    ErrorKind::Io,
];

/// Creates the queue.
pub fn queue(kind: ErrorKind) -> TxQueue {
    TxQueue::new(Box::new(Broken(kind)), 0, Arc::new(TxCounters::default()))
}

struct Broken(ErrorKind);

impl Broken {
    fn fail<T>(&self) -> Result<T> {
        Err(Error::new(self.0, "send", "the device failed"))
    }
}

impl TxBackend for Broken {
    fn reserve(&mut self, _: &mut Vec<Slot>, _: usize) -> Result<()> {
        self.fail()
    }

    fn submit(&mut self, slots: &mut Vec<Slot>, _: usize) -> Result<()> {
        slots.clear();
        self.fail()
    }

    fn send(&mut self, _: Frame) -> Result<Option<Frame>> {
        self.fail()
    }

    fn flush(&mut self) -> Result<()> {
        self.fail()
    }

    fn wait(&mut self, _: bool, _: Duration) -> Result<bool> {
        self.fail()
    }

    fn pool(&self) -> Option<&Pool> {
        None
    }
}
