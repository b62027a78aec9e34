//! The end of a queue in the process that attached to the pool.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sys::poll::Wanted;
use sys::{Result, descriptors};

use super::{LOST, QueueMemory, Sender};
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
    /// The owner has ended the queue: no more packets will arrive.
    End,
    /// As `End`, because the owner has lost what the packets came from.
    Lost,
    /// The owner has exited without ending the queue: it was killed.
    Gone,
}

/// The owner's counts of a queue, since this peer attached. They are in memory that both processes
/// can write, for information only.
#[derive(Clone)]
pub struct QueueCounts {
    memory: Arc<QueueMemory>,
    dropped_before: u64,
}

impl QueueCounts {
    /// Packets that were handed to this peer, including those that wait in the ring.
    pub fn handed(&self) -> u64 {
        self.memory.counts()[0].load(Ordering::Relaxed)
    }

    /// Packets that were dropped because the ring was full.
    pub fn dropped(&self) -> u64 {
        let dropped = self.memory.counts()[1].load(Ordering::Relaxed);
        dropped.wrapping_sub(self.dropped_before)
    }
}

/// Receives frames of another process's pool, and returns them.
pub struct PeerEnd {
    pub(super) pool: Pool,
    pub(super) memory: Arc<QueueMemory>,
    pub(super) delivered: Consumer<Descriptor>,
    pub(super) returned: Producer<u32>,
    pub(super) refused: u64,
    /// Whether a part of the current packet was refused.
    pub(super) is_skipping: bool,
    dropped_before: u64,
    socket: UnixStream,
    /// The way back, until it is taken; `None` also if this process may only receive.
    pub(super) sender: Option<Sender>,
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
            refused: 0,
            is_skipping: false,
            dropped_before: memory.counts()[1].load(Ordering::Relaxed),
            memory,
            socket,
            sender: None,
        })
    }

    /// Takes the end by which packets are sent through the owner. `None` if it does not offer one,
    /// or at the second call.
    pub fn take_sender(&mut self) -> Option<Sender> {
        self.sender.take()
    }

    /// The pool that the frames belong to.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Number of packets that the ring can hold.
    pub fn entry_count(&self) -> u32 {
        self.memory.entry_count
    }

    /// Number of frames in the ring, according to the owner.
    pub fn waiting(&mut self) -> u32 {
        self.delivered.peek(u32::MAX)
    }

    /// The owner's counts, for another thread.
    pub fn counts(&self) -> QueueCounts {
        QueueCounts {
            memory: self.memory.clone(),
            dropped_before: self.dropped_before,
        }
    }

    /// Number of refused packets: with an index out of range, of a frame that this process already
    /// holds, of bytes beyond the frame, or of too many frames.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Takes the next packet; [`Pool::descriptor`] returns its metadata. A packet of several frames
    /// is refused: [`fill`](Self::fill) receives it.
    ///
    /// One at a time: if this process is killed, no other packet is lost.
    #[inline]
    pub fn take(&mut self) -> Option<Frame> {
        // Bounded, even if the owner keeps submitting descriptors.
        for _ in 0..self.delivered.entry_count() {
            if self.delivered.peek(1) == 0 {
                break;
            }
            let packet = self.delivered.read(0);
            self.delivered.release(1);
            let Some(frame) = self.pool.receive(packet) else {
                self.is_skipping = packet.continues();
                self.refused += u64::from(!self.is_skipping);
                continue;
            };
            if !packet.continues() && !self.is_skipping {
                return Some(frame);
            }
            self.is_skipping = packet.continues();
            self.refused += u64::from(!self.is_skipping);
            let _ = self.give(frame);
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
        // The wake-up of the end may have been taken together with the last packets. Acquire: as in
        // `wait`.
        let is_closed = self.memory.closed().load(Ordering::Acquire) != 0;
        self.delivered.peek(1) == 0 && !is_closed
    }

    /// How the owner has ended the queue.
    fn end(&self) -> Ready {
        match self.memory.closed().load(Ordering::Relaxed) {
            LOST => Ready::Lost,
            _ => Ready::End,
        }
    }

    /// Waits for packets, at most `timeout`.
    ///
    /// # Errors
    /// Any error of the system.
    pub fn wait(&mut self, timeout: Duration) -> Result<Ready> {
        // Announced only if there is none, so that a busy reader costs the owner no system calls.
        if self.delivered.peek(1) != 0 {
            return Ok(Ready::Packets);
        }
        let end = Instant::now() + timeout;
        let mut left = timeout;
        loop {
            if !self.arm() {
                return Ok(match self.delivered.peek(1) {
                    0 => self.end(),
                    _ => Ready::Packets,
                });
            }
            let mut wanted = [Wanted::readable(&self.socket)];
            sys::poll::wait(&mut wanted, left)?;
            let is_woken = wanted[0].is_ready();
            let is_open = !is_woken || descriptors::is_open(&self.socket);
            // Before the ring. Acquire: pairs with the Release in `OwnerEnd::close`; packets that
            // the owner sent before the end are received first.
            let is_closed = self.memory.closed().load(Ordering::Acquire) != 0;
            left = end.saturating_duration_since(Instant::now());
            match self.delivered.peek(1) {
                0 if is_closed => return Ok(self.end()),
                0 if !is_open => return Ok(Ready::Gone),
                // Woken for packets that were received before.
                0 if is_woken && !left.is_zero() => {}
                0 => return Ok(Ready::Timeout),
                _ => return Ok(Ready::Packets),
            }
        }
    }
}
