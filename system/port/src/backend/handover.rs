//! What sending queues over a pool have in common: the buffers that they lend, and packets of other
//! queues: a frame of another pool is copied, a slot of a receiving queue over the same pool is
//! taken over.

use ring::{Frame, FrameCache, Owners, Pool};
use sys::{Error, ErrorKind, Result};

use crate::account::TxCounters;
use crate::slot::{Room, Slot};

/// Appends slots over up to `count` free frames, `headroom` bytes into each: buffers to be filled.
/// Fewer where the pool has no more. How many.
#[inline]
pub(super) fn lend_buffers(
    cache: &mut FrameCache,
    slots: &mut Vec<Slot>,
    count: usize,
    headroom: u32,
) -> usize {
    if count == 0 {
        return 0;
    }
    let pool = cache.pool();
    let mut buffers = Buffers::new(pool, slots, count, headroom);
    let mut left = count;
    while left != 0 {
        let run = cache.take_run(left);
        if run.is_empty() {
            break;
        }
        // SAFETY: just taken, and not more than `count`.
        unsafe { buffers.push(run) };
        left -= run.len();
    }
    buffers.finish()
}

/// Calls `step` with 0, 1, … below `count`, until it says no; how often it said yes. Four at a
/// time, so that counting and comparing are shared by them.
#[inline(always)]
fn count_while(count: usize, mut step: impl FnMut(usize) -> bool) -> usize {
    for four in 0..count / 4 {
        for ahead in 0..4 {
            let at = four * 4 + ahead;
            if !step(at) {
                return at;
            }
        }
    }
    for at in count / 4 * 4..count {
        if !step(at) {
            return at;
        }
    }
    count
}

/// Slots over frames of a pool, to be filled.
pub(super) struct Buffers<'v> {
    room: Room<'v>,
    first: *mut u8,
    shift: u32,
    len: u32,
}

impl<'v> Buffers<'v> {
    /// Room for `count` of them behind `slots`, `headroom` bytes into their frames.
    #[inline(always)]
    pub(super) fn new(pool: &Pool, slots: &'v mut Vec<Slot>, count: usize, headroom: u32) -> Self {
        Self {
            room: Room::new(slots, count),
            first: pool.base().as_ptr().wrapping_add(headroom as usize),
            shift: pool.frame_len().trailing_zeros(),
            len: pool.frame_len() - headroom,
        }
    }

    /// Adds slots over these frames.
    ///
    /// # Safety
    /// The frames are of the pool and held by the caller, who answers for giving them back; there
    /// are no more of them, over all calls, than room was made for.
    #[inline(always)]
    pub(super) unsafe fn push(&mut self, indices: &[u32]) {
        let count = count_while(indices.len(), |at| {
            // SAFETY: the caller's word; and `at` is below the count of indices.
            unsafe { self.write(at, *indices.get_unchecked(at)) };
            true
        });
        // SAFETY: they were written.
        unsafe { self.room.advance(count) };
    }

    /// # Safety
    /// As for [`push`](Self::push), for the frame `ahead` behind the next.
    #[inline(always)]
    unsafe fn write(&mut self, ahead: usize, index: u32) {
        let data = self.first.wrapping_add((index as usize) << self.shift);
        // SAFETY: the caller's word. The place is within the pool's mapping, which is not at 0.
        unsafe { Slot::write_buffer(self.room.next().add(ahead), data, self.len, index) };
    }

    /// As [`push`](Self::push) for frames that a device has given back: those of them that it holds
    /// become the user's.
    ///
    /// # Safety
    /// As for `push`, but that the frames are marked as a device's, which is done with them.
    #[inline(always)]
    pub(super) unsafe fn claim(&mut self, owners: Owners<'_>, indices: &[u32]) {
        let mut rest = indices;
        while !rest.is_empty() {
            let count = count_while(rest.len(), |at| {
                // SAFETY: the caller's word; and `at` is below the count of indices.
                unsafe {
                    let index = *rest.get_unchecked(at);
                    let claimed = owners.claim_known(index);
                    if claimed {
                        self.write(at, index);
                    }
                    claimed
                }
            });
            // SAFETY: they were written.
            unsafe { self.room.advance(count) };
            // Behind one that was not the device's it goes on.
            rest = &rest[rest.len().min(count + 1)..];
        }
    }

    /// As [`Room::finish`].
    #[inline(always)]
    pub(super) fn finish(self) -> usize {
        self.room.finish()
    }
}

/// A part of a packet that was taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Its frame, which is the device's now.
    pub index: u32,
    /// First byte in the frame.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
    /// The packet ends in it.
    pub is_last: bool,
}

/// Takes a packet over from a receiving queue, whose slots forget it, and hands its parts to
/// `post`; `None` if `is_sendable` says no of its length or a part is not within a frame of `pool`:
/// then all stays as it was.
#[inline]
pub(super) fn take_over(
    pool: &Pool,
    packet: &mut [Slot],
    is_sendable: impl FnOnce(u32) -> bool,
    mut post: impl FnMut(Part),
) -> Option<u32> {
    let packet_len: u32 = packet.iter().map(|slot| slot.cap_len).sum();
    let sendable = is_sendable(packet_len)
        && packet
            .iter()
            .all(|slot| slot.cap_len != 0 && slot.place_in(pool).is_some());
    if !sendable {
        return None;
    }
    let (owners, count) = (pool.owners(), packet.len());
    for (at, slot) in packet.iter_mut().enumerate() {
        let (index, offset) = slot.place_in(pool)?;
        // SAFETY: the receiving queue holds the frame and hands it over: the slot forgets it.
        let lent = unsafe { owners.lend(index) };
        debug_assert!(lent, "a slot's frame is its queue's");
        slot.token = Slot::DETACHED;
        post(Part {
            index,
            offset,
            len: slot.cap_len,
            is_last: at + 1 == count,
        });
    }
    Some(packet_len)
}

/// What became of a frame of another pool.
pub(super) enum Copied {
    /// A frame of this queue's pool with the same packet; the other went back to its pool.
    Frame(Frame),
    /// No frame is free: it comes back.
    NoRoom(Frame),
}

/// The pools that frames to be copied come from.
#[derive(Default)]
pub(super) struct Foreign {
    /// The pool met last.
    cache: Option<FrameCache>,
}

impl Foreign {
    /// Copies a packet into a frame of `cache`'s pool, `headroom` bytes into it, and counts that.
    ///
    /// # Errors
    /// `InvalidInput` if the frame's pool is gone, or the packet does not fit; the frame is then
    /// back in its pool, and the packet counts as failed.
    pub(super) fn copy(
        &mut self,
        frame: Frame,
        headroom: u32,
        cache: &mut FrameCache,
        counters: &TxCounters,
    ) -> Result<Copied> {
        let refuse = |why: String| Error::new(ErrorKind::InvalidInput, "send a frame", why);
        let tag = frame.pool_tag();
        let foreign = match &mut self.cache {
            Some(foreign) if foreign.pool().tag() == tag => foreign,
            other => {
                let pool = Pool::find(tag).ok_or_else(|| {
                    refuse("its pool is gone".into())
                        .with_hint("keep the port, or the pool, that the frame came from")
                })?;
                other.insert(FrameCache::new(pool))
            }
        };
        let Some(mut copy) = cache.take() else {
            return Ok(Copied::NoRoom(frame));
        };
        let (pool, len) = (cache.pool(), frame.len());
        if len > pool.frame_len() - headroom {
            let why = format!("{len} bytes do not fit this queue's frames");
            let _ = foreign.give(frame);
            let _ = cache.give(copy);
            counters.failed.add(1);
            return Err(refuse(why).with_hint("write such a packet with reserve, in pieces"));
        }
        pool.set_range(&mut copy, headroom, len);
        pool.bytes_mut(&mut copy)
            .copy_from_slice(foreign.pool().bytes(&frame));
        let _ = foreign.give(frame);
        counters.copied.add(1);
        Ok(Copied::Frame(copy))
    }
}
