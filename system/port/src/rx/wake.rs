//! Waiting together with other events: a descriptor to poll, and a waker that ends a wait from
//! another thread.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sys::Result;
use sys::eventfd::EventFd;

use super::{Ready, RxQueue};

/// How often a queue is checked without a wake-up: not every event makes its descriptor readable,
/// such as the deletion of the interface.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The same if there is no descriptor to sleep on.
const NAP: Duration = Duration::from_millis(1);

/// Ends a queue's [`wait`](RxQueue::wait) from any thread. A wake without a pending wait ends the
/// next wait at once.
#[derive(Clone, Debug)]
pub struct Waker(Arc<EventFd>);

impl Waker {
    /// Ends the wait, which returns [`Ready::Woken`].
    pub fn wake(&self) {
        self.0.signal();
    }
}

impl AsFd for Waker {
    /// Readable from a wake until the queue's next wait.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl RxQueue {
    /// Creates a waker for this queue. With one, a wait costs a system call or two more.
    ///
    /// # Errors
    /// If no more descriptors can be opened.
    pub fn waker(&mut self) -> Result<Waker> {
        let event = match self.waker.take() {
            Some(event) => event,
            None => Arc::new(EventFd::new()?),
        };
        Ok(Waker(self.waker.insert(event).clone()))
    }

    /// A descriptor that is readable when there may be packets, for `poll(2)` or `epoll(7)`
    /// together with others. `None` for a port that never needs waiting (a file), or has nothing to
    /// poll.
    ///
    /// Before each poll receive until a batch is empty, and call [`arm`](Self::arm). Not every
    /// event makes it readable, such as the deletion of the interface: call wait with timeout zero
    /// about ten times per second.
    pub fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.backend.poll_fd()
    }

    /// Prepares a poll of [`poll_fd`](Self::poll_fd). Returns false if there may be packets
    /// already: do not sleep then.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn arm(&mut self) -> Result<bool> {
        Ok(self.backend.wait(Duration::ZERO)? == Ready::Timeout && self.backend.arm()?)
    }

    /// Number of packets that can wait for the reader before the next is lost, if that is fixed.
    pub fn ring_len(&self) -> Option<u32> {
        self.backend.ring_len()
    }

    /// Whether the kernel gathers packets by itself before it wakes a reader.
    pub fn gathers(&self) -> bool {
        self.backend.gathers()
    }

    /// Like [`wait`](Self::wait), ended by the waker too.
    pub(super) fn wait_or_wake(&mut self, waker: &EventFd, timeout: Duration) -> Result<Ready> {
        let start = Instant::now();
        loop {
            // Before the packets, which may never end.
            if waker.take() {
                return Ok(Ready::Woken);
            }
            // Packets, the end, an error: everything known without sleeping.
            match self.backend.wait(Duration::ZERO)? {
                Ready::Timeout => {}
                ready => return Ok(ready),
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(Ready::Timeout);
            }
            if !self.backend.arm()? {
                continue;
            }
            // A socket is readable as long as a batch of it is held.
            let fd = self.backend.poll_fd().filter(|_| self.slots.is_empty());
            let longest = if fd.is_some() { LOOK_EVERY } else { NAP };
            if waker.wait_beside(fd, left.min(longest))? {
                // A signal arrived: return, so that the caller can handle it.
                return Ok(Ready::Timeout);
            }
        }
    }
}
