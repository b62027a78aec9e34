//! The end of a queue in the process that created the pool.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use sys::memfd::Access;
use sys::{Error, ErrorKind, Result, descriptors};

use super::{ENTRY_COUNT_MAX, QueueMemory};
use crate::cache::FrameCache;
use crate::cursor::{Consumer, Producer};
use crate::descriptor::Descriptor;
use crate::holder::Holder;
use crate::pool::Pool;
use crate::sleep;

/// Indices returned by a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Number of frames that it held and returned.
    pub frames: u32,
    /// Number of indices out of range, or of frames that it did not hold.
    pub refused: u32,
}

/// Counts of a dead peer's frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Renewed {
    /// Packets that it had not taken: they are in the queue to the next peer.
    pub kept: u32,
    /// Frames that it had taken, and that are free now.
    pub recovered: u32,
}

/// Hands frames of a pool to another process.
pub struct OwnerEnd {
    pool: Pool,
    memory: Arc<QueueMemory>,
    delivered: Producer<Descriptor>,
    returned: Consumer<u32>,
    holder: Holder,
    /// Descriptors written since the last flush.
    written: u32,
    /// Whether the current packet is handed to this end.
    is_ready: bool,
    socket: UnixStream,
}

impl OwnerEnd {
    /// Creates a queue of `entry_count` packets (a power of two). `socket` is connected to the
    /// peer, to which the descriptors of the pool and of the [`queue`](Self::queue) have to be
    /// sent.
    ///
    /// The peer may hold twice as many frames as the queue has entries.
    ///
    /// # Errors
    /// `InvalidInput` for an invalid count, `NoSpace` if memory is short or the pool has too many
    /// holders.
    pub fn new(pool: &Pool, entry_count: u32, socket: UnixStream) -> Result<Self> {
        if !entry_count.is_power_of_two() || entry_count > ENTRY_COUNT_MAX {
            let why = format!("{entry_count} is not a power of two up to 2^20");
            return Err(Error::new(ErrorKind::InvalidInput, "make a queue", why));
        }
        let memory = Arc::new(QueueMemory::new(entry_count)?);
        Ok(Self {
            pool: pool.clone(),
            delivered: Producer::new(memory.descriptors()),
            returned: Consumer::new(memory.returned()),
            memory,
            holder: Holder::new(pool, 2 * entry_count)?,
            written: 0,
            is_ready: false,
            socket,
        })
    }

    /// Returns a file descriptor of the queue's memory, for the peer.
    ///
    /// # Errors
    /// Any error of the system.
    pub fn queue(&self) -> Result<OwnedFd> {
        self.memory.file.share(Access::Write)
    }

    /// The frames that the peer holds.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    #[cfg(test)]
    pub(crate) fn holder_mut(&mut self) -> &mut Holder {
        &mut self.holder
    }

    pub(super) fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Returns a descriptor that is readable when the peer has exited.
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether the peer has exited or closed its end.
    pub fn is_gone(&self) -> bool {
        !descriptors::is_open(&self.socket)
    }

    /// A peer that has not exited still reads the frames that it has taken.
    pub(super) fn check_gone(&self) -> Result<()> {
        if self.is_gone() {
            return Ok(());
        }
        let what = "connect a queue to another process";
        Err(Error::new(ErrorKind::Busy, what, "its peer has not exited"))
    }

    #[inline]
    fn has_room(&mut self) -> bool {
        let next = self.written + 1;
        self.holder.has_room() && self.delivered.reserve(next) == next
    }

    /// Hands a frame with its metadata to the peer, which the next [`flush`](Self::flush) wakes.
    /// Returns false if the queue is full, the peer holds too many frames, or this process does not
    /// hold the frame; then the caller keeps it.
    ///
    /// # Safety
    /// The caller holds the descriptor's index (as for [`FrameCache::give_index`]) and no longer
    /// writes the frame; if true is returned, it no longer holds the frame.
    #[inline]
    pub unsafe fn hand(&mut self, packet: Descriptor) -> bool {
        // SAFETY: guaranteed by the caller.
        if !self.has_room() || !unsafe { self.pool.hand_to(packet.index, &self.holder, 1) } {
            return false;
        }
        self.write(packet);
        true
    }

    /// Hands the same frame to each of several peers that has room: nothing is copied, and the
    /// frame is free after the last peer has returned it. Returns the number of these peers; if it
    /// is 0, the caller keeps the frame.
    ///
    /// # Safety
    /// As for [`hand`](Self::hand). All ends belong to the frame's pool.
    #[inline]
    pub unsafe fn hand_to_each(ends: &mut [OwnerEnd], packet: Descriptor) -> usize {
        let mut count = 0;
        for end in ends.iter_mut() {
            end.is_ready = end.has_room();
            count += usize::from(end.is_ready);
        }
        let Some(first) = ends.iter().find(|end| end.is_ready) else {
            return 0;
        };
        // SAFETY: guaranteed by the caller.
        let handed = unsafe {
            let pool = &first.pool;
            pool.hand_to(packet.index, &first.holder, count as u32)
        };
        if !handed {
            return 0;
        }
        for end in ends.iter_mut().filter(|end| end.is_ready) {
            end.write(packet);
        }
        count
    }

    /// Writes the packet into the ring, which has room.
    #[inline]
    fn write(&mut self, packet: Descriptor) {
        self.holder.mark(packet.index);
        self.delivered.write(self.written, packet);
        self.written += 1;
    }

    /// Makes the frames handed over visible to the peer, and wakes it if it sleeps.
    #[inline]
    pub fn flush(&mut self) {
        if self.written == 0 {
            return;
        }
        self.delivered.submit(self.written);
        self.written = 0;
        if sleep::is_needed(self.memory.sleeping()) {
            descriptors::wake(&self.socket);
        }
    }

    /// Takes back the frames that the peer has returned so far, at most one ring of them.
    #[inline]
    pub fn collect(&mut self, cache: &mut FrameCache) -> Collected {
        let count = self.returned.peek(2 * self.memory.entry_count);
        let mut collected = Collected::default();
        for at in 0..count {
            match self.holder.take_back(self.returned.read(at), cache) {
                true => collected.frames += 1,
                false => collected.refused += 1,
            }
        }
        self.returned.release(count);
        collected
    }

    /// Prepares for the next peer after this one has exited: takes back the frames that it had
    /// taken, and moves the remaining packets into a new queue.
    ///
    /// The contents of the old queue are untrusted, since its peer may have written anything: at
    /// most one packet is kept for each frame that it held.
    ///
    /// # Errors
    /// `Busy` if the peer has not exited, `NoSpace` if memory is short; then nothing has changed.
    pub fn renew(&mut self, socket: UnixStream, cache: &mut FrameCache) -> Result<Renewed> {
        self.check_gone()?;
        let memory = Arc::new(QueueMemory::new(self.memory.entry_count)?);
        self.flush();
        let mut recovered = self.collect(cache).frames;
        let mut kept = Vec::new();
        // The remaining packets are between the peer's position and this end's.
        let mut rest = Consumer::new(self.memory.descriptors());
        let count = rest.peek(u32::MAX).min(self.delivered.pending());
        let mut is_kept = vec![false; self.pool.frame_count() as usize];
        for at in 0..count {
            let packet = rest.read(at);
            let index = packet.index as usize;
            if self.holder.holds(packet.index) && !is_kept[index] {
                is_kept[index] = true;
                kept.push(packet);
            }
        }
        recovered += self
            .holder
            .take_all_back(cache, |index| is_kept[index as usize]);
        self.delivered = Producer::new(memory.descriptors());
        self.returned = Consumer::new(memory.returned());
        self.memory = memory;
        self.socket = socket;
        let room = self.delivered.reserve(kept.len() as u32);
        for (at, packet) in (0..room).zip(&kept) {
            self.delivered.write(at, *packet);
        }
        self.delivered.submit(room);
        let kept = room;
        Ok(Renewed { kept, recovered })
    }
}
