//! Between two peers: takes back what the last one had taken, and keeps what it had not.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use sys::{Error, ErrorKind, Result};

use super::rest::{Entry, rest};
use super::{Kept, OwnerEnd, QueueMemory};
use crate::cache::FrameCache;
use crate::cursor::{Consumer, Producer};

/// Packets of a peer that has exited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Packets that it had not taken: they are in the queue to the next peer.
    pub kept: u32,
    /// Packets that it had taken and not returned: their frames are free now.
    pub lost: u32,
}

impl Entry for Kept {
    fn frame(&self) -> usize {
        self.index() as usize
    }

    fn follows(&self) -> bool {
        self.0 & Self::FOLLOWS != 0
    }
}

impl OwnerEnd {
    /// A peer that has not exited still reads the frames that it has taken.
    pub(crate) fn check_gone(&self) -> Result<()> {
        if self.is_gone() {
            return Ok(());
        }
        let what = "connect a queue to another process";
        Err(Error::new(ErrorKind::Busy, what, "its peer has not exited"))
    }

    /// Takes back the frames that a peer had taken before it exited, and moves the packets that it
    /// had not taken into a new ring, for the next peer. Does nothing if there is no peer.
    ///
    /// Of the old ring only the peer's position is used. The peer may have written anything there:
    /// this decides which of the packets in the ring it has taken.
    ///
    /// # Errors
    /// `Busy` if the peer has not exited, `NoSpace` if memory is short; then nothing has changed.
    pub fn recover(&mut self, cache: &mut FrameCache) -> Result<Recovered> {
        if !self.has_peer() {
            return Ok(Recovered::default());
        }
        self.check_gone()?;
        let memory = Arc::new(QueueMemory::new(self.memory.entry_count)?);
        self.flush();
        self.collect(cache);
        let mut is_kept = vec![false; self.pool.frame_count() as usize];
        let (ring, count) = (&self.handed, self.delivered.pending());
        let holds = |frame: usize| self.holder.holds(frame as u32);
        let rest = rest(ring, self.head, count, &mut is_kept, holds);
        let Self {
            holder, followers, ..
        } = self;
        let mut lost = 0;
        holder.take_all_back(cache, |index| {
            let keep = is_kept[index as usize];
            lost += u32::from(!keep && !followers.remove(index));
            keep
        });
        self.delivered = Producer::new(memory.descriptors());
        self.returned = Consumer::new(memory.returned());
        let mut kept = 0;
        for (at, packet) in rest.iter().enumerate() {
            let descriptor = self.pool.handed(packet.index());
            self.delivered.write(at as u32, descriptor);
            self.handed[at] = *packet;
            kept += u32::from(!packet.follows());
        }
        self.delivered.submit(rest.len() as u32);
        self.head = rest.len() as u32;
        self.memory = memory;
        self.socket = None;
        self.sent = None;
        self.counts.lost += u64::from(lost);
        self.before = [self.counts.handed - u64::from(kept), self.counts.dropped];
        self.flush();
        Ok(Recovered { kept, lost })
    }

    /// Connects the queue to its next peer.
    ///
    /// # Errors
    /// `Busy` if it has one.
    pub fn attach(&mut self, socket: UnixStream) -> Result<()> {
        if self.has_peer() {
            let what = "connect a queue to another process";
            return Err(Error::new(ErrorKind::Busy, what, "it has a peer"));
        }
        self.socket = Some(socket);
        Ok(())
    }

    /// Both: the next peer continues after one that has exited.
    ///
    /// # Errors
    /// As [`recover`](Self::recover).
    pub fn renew(&mut self, socket: UnixStream, cache: &mut FrameCache) -> Result<Recovered> {
        let recovered = self.recover(cache)?;
        self.attach(socket)?;
        Ok(recovered)
    }
}
