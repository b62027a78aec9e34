//! The end of a queue in the process that created the pool.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sys::memfd::Access;
use sys::{Error, ErrorKind, Result, descriptors};

use super::{ENTRY_COUNT_MAX, IN_ORDER, LOST, QueueMemory, SEGMENT_COUNT_MAX};
use crate::cache::FrameCache;
use crate::cursor::{Consumer, Producer};
use crate::descriptor::Descriptor;
use crate::frame::Frame;
use crate::holder::Holder;
use crate::pool::Pool;
use crate::sleep;

mod collect;
mod recover;
mod rest;
mod run;
mod sent;

pub use recover::Recovered;
use run::Bits;
pub use sent::{SentCounts, Taken};

/// Indices returned by a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Number of frames that it held and returned.
    pub frames: u32,
    /// Number of indices out of range, or of frames that it did not hold.
    pub refused: u32,
}

/// Counts of a queue since it was created, over all of its peers. In packets:
/// `handed = returned + lost + waiting`, where `waiting` are those in the ring or with the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handed {
    /// Packets handed to the queue.
    pub handed: u64,
    /// Packets that a peer has received and returned.
    pub returned: u64,
    /// Packets that a peer had taken, and not returned, when it exited.
    pub lost: u64,
    /// Packets for which the queue had no room.
    pub dropped: u64,
    /// Indices that peers returned without holding the frame.
    pub refused: u64,
}

impl Handed {
    /// Packets in the ring or with the peer.
    pub fn waiting(&self) -> u64 {
        self.handed - self.returned - self.lost
    }
}

/// One bit for each frame that continues a packet, for counting packets. Few packets have more than
/// one frame, so it is rarely accessed.
struct Followers {
    bits: Box<[u64]>,
    count: u32,
}

impl Followers {
    fn new(frame_count: u32) -> Self {
        Self {
            bits: vec![0; (frame_count as usize).div_ceil(64)].into(),
            count: 0,
        }
    }

    #[cold]
    fn add(&mut self, index: u32) {
        self.bits[index as usize / 64] |= 1 << (index % 64);
        self.count += 1;
    }

    /// Removes a frame; returns whether it continued a packet.
    #[inline]
    fn remove(&mut self, index: u32) -> bool {
        if self.count == 0 {
            return false;
        }
        let (word, bit) = (&mut self.bits[index as usize / 64], 1 << (index % 64));
        let found = *word & bit != 0;
        *word &= !bit;
        self.count -= u32::from(found);
        found
    }
}

/// A packet, or one segment of it, in the ring: the index of its frame. The rest of its descriptor
/// is in the frame's record ([`Pool::handed`]), which stays as it is while a peer holds the frame.
#[derive(Clone, Copy, Default)]
struct Kept(u32);

impl Kept {
    /// The frame continues the packet of the previous one.
    const FOLLOWS: u32 = 1 << 31;

    fn new(index: u32, follows: bool) -> Self {
        let flag = if follows { Self::FOLLOWS } else { 0 };
        Self(index | flag)
    }

    fn index(self) -> u32 {
        self.0 & !Self::FOLLOWS
    }
}

/// Hands frames of a pool to another process, or to several, one after the other.
pub struct OwnerEnd {
    pool: Pool,
    memory: Arc<QueueMemory>,
    delivered: Producer<Descriptor>,
    returned: Consumer<u32>,
    holder: ManuallyDrop<Holder>,
    /// The contents of the ring of descriptors, where no peer can write.
    handed: Box<[Kept]>,
    /// Index in the ring of the next descriptor to submit.
    head: u32,
    /// Descriptors written since the last flush.
    written: u32,
    followers: Followers,
    counts: Handed,
    /// The counts when the memory was created.
    before: [u64; 2],
    /// The connection to the peer; `None` between two peers.
    socket: Option<UnixStream>,
    /// Whether the next peer may send packets.
    may_send: bool,
    /// What the peer sends; `None` if it may not.
    sent: Option<sent::Sent>,
    sent_counts: SentCounts,
}

impl OwnerEnd {
    /// Creates a queue of `entry_count` packets (a power of two). `socket` is connected to the
    /// peer, to which the descriptors of the pool and of the [`queue`](Self::queue) have to be
    /// sent; without one, the queue waits for a peer ([`attach`](Self::attach)).
    ///
    /// The peer may hold twice as many frames as the queue has entries.
    ///
    /// # Errors
    /// `InvalidInput` for an invalid count, `NoSpace` if memory is short or the pool has too many
    /// holders.
    pub fn new(
        pool: &Pool,
        entry_count: u32,
        socket: impl Into<Option<UnixStream>>,
    ) -> Result<Self> {
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
            holder: ManuallyDrop::new(Holder::new(pool, 2 * entry_count)?),
            handed: vec![Kept::default(); entry_count as usize].into(),
            head: 0,
            written: 0,
            followers: Followers::new(pool.frame_count()),
            counts: Handed::default(),
            before: [0; 2],
            socket: socket.into(),
            may_send: false,
            sent: None,
            sent_counts: SentCounts::default(),
        })
    }

    /// Returns a file descriptor of the queue's memory, for the peer.
    ///
    /// # Errors
    /// Any error of the system.
    pub fn queue(&self) -> Result<OwnedFd> {
        self.memory.file.share(Access::Write)
    }

    /// The inode of the queue's memory, of which processes that read the queue have a mapping.
    pub fn memory_inode(&self) -> u64 {
        let found = sys::memfd::measure(self.memory.file.fd().as_fd());
        found.map_or(0, |found| found.inode)
    }

    pub(super) fn tag(&self) -> u32 {
        self.pool.tag()
    }

    /// The frames that the peer holds.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    #[cfg(test)]
    pub(crate) fn holder_mut(&mut self) -> &mut Holder {
        &mut self.holder
    }

    /// The counts since the queue was created.
    pub fn counts(&self) -> Handed {
        self.counts
    }

    /// Number of packets or segments in the ring that the peer has not taken, according to the
    /// peer.
    pub fn depth(&self) -> u32 {
        self.delivered.pending()
    }

    pub(super) fn socket(&self) -> Option<&UnixStream> {
        self.socket.as_ref()
    }

    /// Returns a descriptor that is readable when the peer has exited; `None` between two peers.
    pub fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// Whether the queue has a peer, which may have exited.
    pub fn has_peer(&self) -> bool {
        self.socket.is_some()
    }

    /// Whether the peer has exited or closed its end, or there is none.
    pub fn is_gone(&self) -> bool {
        let socket = self.socket.as_ref();
        socket.is_none_or(|socket| !descriptors::is_open(socket))
    }

    /// Whether there is room for a packet of `count` frames.
    #[inline(always)]
    pub fn has_room(&mut self, count: u32) -> bool {
        let wanted = self.written + count;
        self.holder.has_room(count)
            && (self.delivered.granted() >= wanted || self.look_for_room(wanted))
    }

    /// Reads the peer's position.
    #[cold]
    fn look_for_room(&mut self, wanted: u32) -> bool {
        self.delivered.reserve(wanted) == wanted
    }

    /// Hands a packet of one frame with its metadata to the peer, which the next
    /// [`flush`](Self::flush) wakes. Returns false if the queue is full, the peer holds too many
    /// frames, this process does not hold the frame, or the packet has more frames; then the
    /// caller keeps it.
    ///
    /// # Safety
    /// The caller holds the descriptor's index (as for [`FrameCache::give_index`]) and no longer
    /// writes the frame; if true is returned, it no longer holds the frame.
    #[inline]
    pub unsafe fn hand(&mut self, packet: Descriptor) -> bool {
        let ends = std::slice::from_mut(self);
        // SAFETY: guaranteed by the caller.
        unsafe { Self::hand_to(ends, 1, &[packet]) == 1 }
    }

    /// Those of the selected ends (bit 0 is the first one) that have room for a packet of `count`
    /// frames.
    #[inline]
    pub fn with_room(ends: &mut [OwnerEnd], mut selected: u64, count: u32) -> u64 {
        let mut ready = 0;
        while selected != 0 {
            let at = selected.trailing_zeros();
            selected &= selected - 1;
            let has_room = ends
                .get_mut(at as usize)
                .is_some_and(|end| end.has_room(count));
            ready |= u64::from(has_room) << at;
        }
        ready
    }

    /// Hands a packet to each of the selected ends (bit 0 is the first one) that has room: nothing
    /// is copied, and its frames are free after the last peer has returned them. Returns those that
    /// received it; if it is 0, the caller keeps the packet.
    ///
    /// The packet's descriptors, except the last one, have the flag
    /// [`Slot::CONTINUES`](crate::slot::Slot::CONTINUES); otherwise it is refused.
    ///
    /// # Safety
    /// As for [`hand`](Self::hand), for each of the frames, which are different ones. All ends
    /// belong to the frames' pool.
    #[inline]
    pub unsafe fn hand_to(ends: &mut [OwnerEnd], selected: u64, packet: &[Descriptor]) -> u64 {
        let Some((last, others)) = packet.split_last() else {
            return 0;
        };
        let is_packet = !last.continues()
            && others.len() < SEGMENT_COUNT_MAX as usize
            && others.iter().all(Descriptor::continues);
        let ready = Self::with_room(ends, selected, packet.len() as u32);
        if ready == 0 || !is_packet {
            return 0;
        }
        let first = &ends[ready.trailing_zeros() as usize];
        if !packet.iter().all(|part| first.pool.is_held(part.index)) {
            return 0;
        }
        let pool = &first.pool;
        let bits = Bits(ready).filter_map(|at| ends.get(at).map(|end| end.holder.bit()));
        let holders = bits.fold(0, |all, bit| all | bit);
        for part in packet {
            // SAFETY: guaranteed by the caller, and checked above.
            unsafe { pool.keep_handed(part) };
            // SAFETY: guaranteed by the caller.
            let handed = unsafe { pool.hand_to(part.index, holders) };
            debug_assert!(handed, "checked above");
            if !handed {
                return 0;
            }
        }
        let mut rest = ready;
        while rest != 0 {
            let end = &mut ends[rest.trailing_zeros() as usize];
            rest &= rest - 1;
            end.write(packet);
        }
        ready
    }

    /// Like [`hand_to`](Self::hand_to), for one frame with the metadata of its record. Each
    /// selected end without room counts the packet as dropped.
    ///
    /// # Errors
    /// The frame, if no end received it.
    #[inline]
    pub fn hand_frame(
        ends: &mut [OwnerEnd],
        selected: u64,
        frame: Frame,
    ) -> std::result::Result<u64, Frame> {
        let Some(end) = ends.first().filter(|end| end.pool.tag() == frame.tag) else {
            return Err(frame);
        };
        let packet = [end.pool.descriptor(&frame)];
        // SAFETY: the frame is owned, and is forgotten if it was handed over.
        let handed = unsafe { Self::hand_to(ends, selected, &packet) };
        Self::count_dropped(ends, selected & !handed);
        if handed == 0 { Err(frame) } else { Ok(handed) }
    }

    /// Like [`hand_frame`](Self::hand_frame), for a packet of several frames: removes them from the
    /// vector if an end received the packet.
    pub fn hand_frames(ends: &mut [OwnerEnd], selected: u64, frames: &mut Vec<Frame>) -> u64 {
        let Some(end) = ends.first() else { return 0 };
        let mut packet = [Descriptor::default(); SEGMENT_COUNT_MAX as usize];
        let is_valid =
            frames.len() <= packet.len() && frames.iter().all(|frame| frame.tag == end.pool.tag());
        let mut handed = 0;
        if is_valid {
            for (place, frame) in packet.iter_mut().zip(&*frames) {
                *place = end.pool.descriptor(frame);
            }
            // SAFETY: the frames are owned, so they are different ones, and are forgotten if they
            // were handed over.
            handed = unsafe { Self::hand_to(ends, selected, &packet[..frames.len()]) };
        }
        Self::count_dropped(ends, selected & !handed);
        if handed != 0 {
            frames.clear();
        }
        handed
    }

    #[inline]
    fn count_dropped(ends: &mut [OwnerEnd], mut selected: u64) {
        while selected != 0 {
            let at = selected.trailing_zeros() as usize;
            selected &= selected - 1;
            if let Some(end) = ends.get_mut(at) {
                end.counts.dropped += 1;
            }
        }
    }

    /// Writes the packet into the ring, which has room.
    fn write(&mut self, packet: &[Descriptor]) {
        let mut follows = false;
        for part in packet {
            self.holder.add(1);
            self.delivered.write(self.written, *part);
            if follows {
                self.followers.add(part.index);
            }
            let at = self.head.wrapping_add(self.written) as usize & (self.handed.len() - 1);
            self.handed[at] = Kept::new(part.index, follows);
            self.written += 1;
            follows = true;
        }
        self.counts.handed += 1;
    }

    /// Makes the packets handed over visible to the peer, and wakes it if it sleeps. Called once
    /// per batch.
    #[inline]
    pub fn flush(&mut self) {
        if self.submit() {
            sleep::barrier();
            self.wake();
        }
    }

    /// Like [`flush`](Self::flush), for each of the ends: with one memory barrier, which waits
    /// until all that was written is visible.
    #[inline]
    pub fn flush_all(ends: &mut [OwnerEnd]) {
        let mut submitted = 0_u64;
        for (at, end) in ends.iter_mut().enumerate() {
            submitted |= u64::from(end.submit()) << (at % 64);
        }
        if submitted == 0 {
            return;
        }
        sleep::barrier();
        for (at, end) in ends.iter().enumerate() {
            if submitted >> (at % 64) & 1 != 0 {
                end.wake();
            }
        }
    }

    /// Makes the packets handed over visible to the peer; returns whether there were any.
    #[inline]
    fn submit(&mut self) -> bool {
        let [handed, dropped] = self.before;
        let counts = &self.counts;
        self.memory
            .set_counts(counts.handed - handed, counts.dropped - dropped);
        if self.written == 0 {
            return false;
        }
        self.delivered.submit(self.written);
        self.head = self.head.wrapping_add(self.written);
        self.written = 0;
        true
    }

    /// Wakes the peer if it sleeps. Called after a barrier behind the submission.
    #[inline]
    fn wake(&self) {
        if sleep::is_announced(self.memory.sleeping())
            && let Some(socket) = &self.socket
        {
            descriptors::wake(socket);
        }
    }

    /// Closes the connection to the peer, as the kernel does when this process is killed: the peer
    /// finds [`Ready::Gone`](super::Ready::Gone). Frames that it holds stay with it.
    pub fn disconnect(&mut self) {
        if let Some(socket) = &self.socket {
            // A peer that has exited is disconnected.
            let _ = socket.shutdown(std::net::Shutdown::Write);
        }
    }

    /// Ends the queue in order: the peer still receives the packets in it, and then
    /// [`Ready::End`](super::Ready::End). Frames can be collected until the queue is dropped.
    pub fn close(&mut self) {
        self.close_as(IN_ORDER);
    }

    /// As [`close`](Self::close), because what the packets come from is lost: the peer finds
    /// [`Ready::Lost`](super::Ready::Lost) behind the last one.
    pub fn close_lost(&mut self) {
        self.close_as(LOST);
    }

    fn close_as(&mut self, how: u32) {
        self.flush();
        // Release: the packets are visible before the end. The drop that follows changes nothing.
        self.memory.closed().fetch_max(how, Ordering::Release);
        if let Some(socket) = &self.socket {
            descriptors::wake(socket);
        }
    }
}

/// Frames that the peer has not returned are used again only if it has exited: otherwise they stay
/// with it, because it may still read them.
impl Drop for OwnerEnd {
    fn drop(&mut self) {
        self.close();
        if !self.is_gone() {
            let mut cache = FrameCache::new(self.pool.clone());
            self.collect(&mut cache);
            if self.holder.count() != 0 {
                self.holder.abandon();
            }
        }
        // SAFETY: not used again.
        unsafe { ManuallyDrop::drop(&mut self.holder) };
    }
}
