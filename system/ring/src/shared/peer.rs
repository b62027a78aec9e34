//! The end in the process that was handed a pool's descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use sys::poll::Wanted;
use sys::{Result, descriptors};

use super::QueueMemory;
use crate::cursor::{Consumer, Producer};
use crate::descriptor::Descriptor;
use crate::frame::Frame;
use crate::pool::{Owner, Pool};
use crate::sleep;

/// What waiting ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// There may be packets.
    Packets,
    /// The time ran out, or a signal came.
    Timeout,
    /// The owner is gone: there will never be packets again.
    End,
}

/// Receives frames of another process's pool, and returns them.
pub struct PeerEnd {
    pool: Pool,
    memory: Arc<QueueMemory>,
    delivered: Consumer<Descriptor>,
    returned: Producer<u32>,
    refused: u64,
    socket: UnixStream,
}

impl PeerEnd {
    /// The end of a queue that the owner of `pool` (attached to) has made.
    ///
    /// # Errors
    /// `InvalidInput` for a descriptor that is not a queue's, `Unsupported` for one of another
    /// version.
    pub fn attach(pool: Pool, queue: OwnedFd, socket: UnixStream) -> Result<Self> {
        let memory = Arc::new(QueueMemory::attach(queue)?);
        Ok(Self {
            pool,
            delivered: Consumer::new(memory.descriptors()),
            returned: Producer::new(memory.returned()),
            memory,
            refused: 0,
            socket,
        })
    }

    /// The pool that the frames are of.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Descriptors that named no frame, one that this process has already, or bytes beyond it.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Takes the next packet; its metadata is that of [`Pool::descriptor`].
    #[inline]
    pub fn take(&mut self) -> Option<Frame> {
        // Bounded, also if the owner claims to write without end.
        for _ in 0..self.delivered.entry_count() {
            if self.delivered.peek(1) == 0 {
                break;
            }
            let packet = self.delivered.read(0);
            // One at a time: were this process killed now, the ones after it would not be lost.
            self.delivered.release(1);
            let frame = self.pool.receive(packet);
            if frame.is_some() {
                return frame;
            }
            self.refused += 1;
        }
        None
    }

    /// Returns a frame to its owner. A frame of another pool comes back as the error.
    ///
    /// # Errors
    /// The frame, also if the owner is far behind in collecting what was returned.
    #[inline]
    pub fn give(&mut self, frame: Frame) -> std::result::Result<(), Frame> {
        if frame.tag != self.pool.tag() || self.returned.reserve(1) == 0 {
            return Err(frame);
        }
        let passed = self.pool.pass(frame.index, Owner::User, Owner::Peer);
        debug_assert!(passed, "an owned frame is marked as the user's");
        self.returned.write(0, frame.index);
        self.returned.submit(1);
        Ok(())
    }

    /// Readable when there are packets or the owner is gone, once [`arm`](Self::arm) was called.
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Has [`poll_fd`](Self::poll_fd) become readable with the next packet; false if there are
    /// packets already.
    pub fn arm(&mut self) -> bool {
        sleep::prepare(self.memory.sleeping());
        self.delivered.peek(1) == 0
    }

    /// Sleeps until there are packets, at most `timeout`.
    ///
    /// # Errors
    /// The system's.
    pub fn wait(&mut self, timeout: Duration) -> Result<Ready> {
        if !self.arm() {
            return Ok(Ready::Packets);
        }
        let mut wanted = [Wanted::readable(&self.socket)];
        sys::poll::wait(&mut wanted, timeout)?;
        if !wanted[0].is_ready() {
            return Ok(Ready::Timeout);
        }
        let is_open = descriptors::is_open(&self.socket);
        // What the owner sent before it was gone is received first.
        Ok(match self.delivered.peek(1) {
            0 if !is_open => Ready::End,
            _ => Ready::Packets,
        })
    }
}
