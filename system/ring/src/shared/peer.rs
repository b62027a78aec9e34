//! The end of a queue in the process that attached to the pool.

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

/// The result of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// There may be packets.
    Packets,
    /// The timeout expired, or a signal arrived.
    Timeout,
    /// The owner has exited: no more packets will arrive.
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
    /// Attaches to a queue created by the owner of `pool`, which is attached already.
    ///
    /// # Errors
    /// `InvalidInput` for a descriptor that does not belong to a queue, `Unsupported` for a queue
    /// of another version.
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

    /// The pool that the frames belong to.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Number of refused descriptors: with an index out of range, of a frame that this process
    /// already holds, or of bytes beyond the frame.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Takes the next packet; [`Pool::descriptor`] returns its metadata.
    #[inline]
    pub fn take(&mut self) -> Option<Frame> {
        // Bounded, even if the owner keeps submitting descriptors.
        for _ in 0..self.delivered.entry_count() {
            if self.delivered.peek(1) == 0 {
                break;
            }
            let packet = self.delivered.read(0);
            // One at a time: if this process is killed now, the following packets are not lost.
            self.delivered.release(1);
            let frame = self.pool.receive(packet);
            if frame.is_some() {
                return frame;
            }
            self.refused += 1;
        }
        None
    }

    /// Returns a frame to its owner. A frame of another pool is refused.
    ///
    /// # Errors
    /// The frame, if it belongs to another pool, or the owner has not collected enough of the
    /// frames returned before.
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

    /// Returns a descriptor that, after [`arm`](Self::arm), is readable when there are packets or
    /// the owner has exited.
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Makes [`poll_fd`](Self::poll_fd) readable on the next packet; returns false if there are
    /// packets already.
    pub fn arm(&mut self) -> bool {
        sleep::prepare(self.memory.sleeping());
        self.delivered.peek(1) == 0
    }

    /// Waits for packets, at most `timeout`.
    ///
    /// # Errors
    /// Any error of the system.
    pub fn wait(&mut self, timeout: Duration) -> Result<Ready> {
        // Announced only if there is none, so that a busy reader costs the owner no system calls.
        if self.delivered.peek(1) != 0 || !self.arm() {
            return Ok(Ready::Packets);
        }
        let mut wanted = [Wanted::readable(&self.socket)];
        sys::poll::wait(&mut wanted, timeout)?;
        if !wanted[0].is_ready() {
            return Ok(Ready::Timeout);
        }
        let is_open = descriptors::is_open(&self.socket);
        // Packets that the owner sent before it exited are received first.
        Ok(match self.delivered.peek(1) {
            0 if !is_open => Ready::End,
            _ => Ready::Packets,
        })
    }
}
