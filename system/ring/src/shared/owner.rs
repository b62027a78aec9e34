//! The end in the process that made the pool.

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

/// What came back from a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Frames that it held and returned.
    pub frames: u32,
    /// Indices of no frame, or of frames that it did not hold.
    pub refused: u32,
}

/// Numbers of frames of a dead peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Renewed {
    /// Packets that it had not taken: they wait for the next peer.
    pub kept: u32,
    /// Frames that it had taken, which are free now.
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
    /// Whether the packet at hand goes to this end too.
    is_ready: bool,
    socket: UnixStream,
}

impl OwnerEnd {
    /// The end of a new queue of `entry_count` packets (a power of two); `socket` is connected to
    /// the peer, which is sent the pool's descriptor and [`queue`](Self::queue)'s.
    ///
    /// The peer may hold twice as many frames as the queue has entries.
    ///
    /// # Errors
    /// `InvalidInput` for a wrong count, `NoSpace` where memory is short or the pool has too many
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

    /// The descriptor of the queue's memory, for the peer.
    ///
    /// # Errors
    /// The system's.
    pub fn queue(&self) -> Result<OwnedFd> {
        self.memory.file.share(Access::Write)
    }

    /// Which frames the peer holds.
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

    /// Readable when the peer is gone.
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether the peer is gone.
    pub fn is_gone(&self) -> bool {
        !descriptors::is_open(&self.socket)
    }

    #[inline]
    fn has_room(&mut self) -> bool {
        let next = self.written + 1;
        self.holder.has_room() && self.delivered.reserve(next) == next
    }

    /// Hands a frame with its metadata to the peer, which is woken by the next
    /// [`flush`](Self::flush). False if the queue is full, or the peer holds too many frames, or
    /// this process does not hold the frame; then it stays the caller's.
    ///
    /// # Safety
    /// The caller holds the descriptor's index (as for [`FrameCache::give_index`]) and no longer
    /// writes the frame; if true is returned it has given it away.
    #[inline]
    pub unsafe fn hand(&mut self, packet: Descriptor) -> bool {
        // SAFETY: the caller's word.
        if !self.has_room() || !unsafe { self.pool.hand_to(packet.index, &self.holder, 1) } {
            return false;
        }
        self.write(packet);
        true
    }

    /// Hands the same frame to each of several peers that has room: nothing is copied, and the
    /// frame is free once the last one has returned it. How many it went to; 0 leaves it with the
    /// caller.
    ///
    /// # Safety
    /// As for [`hand`](Self::hand). All ends are of the frame's pool.
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
        // SAFETY: the caller's word.
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

    /// Writes the packet into the ring of one that has room.
    #[inline]
    fn write(&mut self, packet: Descriptor) {
        self.holder.mark(packet.index);
        self.delivered.write(self.written, packet);
        self.written += 1;
    }

    /// Makes what was handed visible to the peer, and wakes it if it sleeps.
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

    /// Takes back what the peer has returned so far, at most a ring's worth.
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

    /// Prepares for the next peer, after this one is gone: takes back what it had taken, and moves
    /// the packets that it had not into a new queue.
    ///
    /// What the old queue holds is the word of a process that may have written anything: of each
    /// frame that it held, at most one packet is kept.
    ///
    /// # Errors
    /// `NoSpace` where memory is short; then nothing has changed.
    pub fn renew(&mut self, socket: UnixStream, cache: &mut FrameCache) -> Result<Renewed> {
        let memory = Arc::new(QueueMemory::new(self.memory.entry_count)?);
        self.flush();
        let mut recovered = self.collect(cache).frames;
        let mut kept = Vec::new();
        // Our own positions, and the peer's: those that it left are between the two.
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
