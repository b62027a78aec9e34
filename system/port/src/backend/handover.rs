//! Code shared by the sending queues over a pool: reserving buffers, and accepting packets of other
//! queues: a frame of another pool is copied, a slot of a receiving queue over the same pool is
//! transferred.

use ring::slot::{Room, Slot};
use ring::{Frame, FrameCache, Owners, Pool};
use sys::{Error, ErrorKind, Result};

use crate::account::TxCounters;

/// Appends slots over up to `count` free frames, `headroom` bytes into each: buffers to be filled.
/// Fewer if the pool has no more; returns how many.
#[inline]
pub(super) fn reserve_buffers(
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

/// Calls `step` with 0, 1, … below `count`, until it returns false; returns how often it returned
/// true. Four at a time, to share the counting and comparing.
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
    /// Room for `count` of them after `slots`, `headroom` bytes into their frames.
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
    /// The frames belong to the pool and are owned by the caller, which must return them; over all
    /// calls there are no more of them than room was reserved for.
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
    /// As for [`push`](Self::push), for the frame `ahead` after the next.
    #[inline(always)]
    unsafe fn write(&mut self, ahead: usize, index: u32) {
        let data = self.first.wrapping_add((index as usize) << self.shift);
        // SAFETY: the caller's word. The place is within the pool's mapping, which is not at 0.
        unsafe { Slot::write_buffer(self.room.place().add(ahead), data, self.len, index) };
    }

    /// Like [`push`](Self::push), for frames that a device has returned: those that it owns become
    /// the user's.
    ///
    /// # Safety
    /// As for `push`, but the frames are marked as owned by a device, which has finished with them.
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
            // Continue after one that the device did not own.
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
    /// Index of its frame, which the device owns now.
    pub index: u32,
    /// Offset of the first byte in the frame.
    pub offset: u32,
    /// Length in bytes.
    pub len: u32,
    /// Whether the packet ends in it.
    pub is_last: bool,
}

/// Takes over a packet from a receiving queue, whose slots forget it, and passes its parts to
/// `post`; `None` if `is_sendable` rejects its length or a part is not within a frame of `pool`:
/// nothing changes then.
#[inline]
pub(super) fn take_over(
    pool: &Pool,
    packet: &mut [Slot],
    is_sendable: impl FnOnce(u32) -> bool,
    mut post: impl FnMut(Part),
) -> Option<u32> {
    let packet_len: u32 = packet.iter().map(|slot| slot.cap_len()).sum();
    let sendable = is_sendable(packet_len)
        && packet
            .iter()
            .all(|slot| slot.cap_len() != 0 && slot.place_in(pool).is_some());
    if !sendable {
        return None;
    }
    let (owners, count) = (pool.owners(), packet.len());
    for (at, slot) in packet.iter_mut().enumerate() {
        let (index, offset) = slot.place_in(pool)?;
        // SAFETY: the receiving queue holds the frame and hands it over: the slot forgets it.
        let borrowed = unsafe { owners.give_to_device(index) };
        debug_assert!(borrowed, "a slot's frame is its queue's");
        slot.forget_frame();
        post(Part {
            index,
            offset,
            len: slot.cap_len(),
            is_last: at + 1 == count,
        });
    }
    Some(packet_len)
}

/// Result of copying a frame of another pool.
pub(super) enum Copied {
    /// A frame of this queue's pool with the same packet; the other was returned to its pool.
    Frame(Frame),
    /// No frame is free: returns the original.
    NoRoom(Frame),
}

/// Number of foreign pools with a cached look-up: the ports that one program forwards from.
const FOREIGN_MAX: usize = 8;

/// Number of flushes without a frame of a pool after which the pool is forgotten: a cache keeps its
/// pool in memory, even if the port that it belonged to is closed.
const FLUSHES_MAX: u32 = 256;

/// The pools of frames to be copied.
#[derive(Default)]
pub(super) struct Foreign {
    /// The pools seen last, the most recent at the end; each with a cache for its frames.
    met: Vec<Met>,
    /// Number of flushes so far.
    flushes: u32,
}

/// A pool whose frames were seen.
struct Met {
    cache: FrameCache,
    /// Number of flushes before its last frame.
    flushes: u32,
}

impl Foreign {
    /// Copies a packet into a frame of `cache`'s pool, `headroom` bytes into it, and counts it.
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
        let foreign = self.cache_of(tag).ok_or_else(|| {
            refuse("its pool no longer exists".into())
                .with_hint("keep the port or the pool that the frame came from")
        })?;
        let Some(mut copy) = cache.take() else {
            return Ok(Copied::NoRoom(frame));
        };
        let (pool, len) = (cache.pool(), frame.len());
        if len > pool.frame_len() - headroom {
            let why = format!("{len} bytes do not fit into this queue's frames");
            let _ = foreign.give(frame);
            foreign.keep_an_eighth();
            let _ = cache.give(copy);
            counters.failed.add(1);
            return Err(refuse(why).with_hint("write such a packet with reserve, in pieces"));
        }
        pool.set_range(&mut copy, headroom, len);
        pool.bytes_mut(&mut copy)
            .copy_from_slice(foreign.pool().bytes(&frame));
        let _ = foreign.give(frame);
        foreign.keep_an_eighth();
        counters.copied.add(1);
        Ok(Copied::Frame(copy))
    }

    /// Called with each flush: forgets pools without recent frames.
    #[inline]
    pub(super) fn age(&mut self) {
        let Some(oldest) = self.met.first() else {
            return;
        };
        self.flushes = self.flushes.wrapping_add(1);
        if self.flushes.wrapping_sub(oldest.flushes) > FLUSHES_MAX {
            self.met.remove(0);
        }
    }

    /// The cache for a pool's frames; `None` if the pool is gone. Looking up a pool takes a lock
    /// and creating a cache allocates, so the caches of several pools are kept.
    fn cache_of(&mut self, tag: u32) -> Option<&mut FrameCache> {
        let is_of = |met: &Met| met.cache.pool().tag() == tag;
        match self.met.iter().rposition(is_of) {
            Some(at) => self.met[at..].rotate_left(1),
            None => {
                let cache = FrameCache::new(Pool::find(tag)?);
                if self.met.len() == FOREIGN_MAX {
                    self.met.remove(0);
                }
                self.met.push(Met { cache, flushes: 0 });
            }
        }
        let met = self.met.last_mut()?;
        met.flushes = self.flushes;
        Some(&mut met.cache)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::PoolConfig;

    fn cache() -> FrameCache {
        let config = PoolConfig {
            // More than caches hold.
            frame_count: 1024,
            ..PoolConfig::default()
        };
        FrameCache::new(Pool::new(config).unwrap())
    }

    fn tags(foreign: &Foreign) -> Vec<u32> {
        let met = foreign.met.iter();
        met.map(|met| met.cache.pool().tag()).collect()
    }

    /// The pool of a closed port is freed while others still send.
    #[test]
    fn pools_without_traffic_are_forgotten() {
        let (mut own, counters) = (cache(), TxCounters::default());
        let (mut closed, mut open) = (cache(), cache());
        let mut foreign = Foreign::default();
        let mut copy = |foreign: &mut Foreign, from: &mut FrameCache| {
            let frame = from.take().unwrap();
            match foreign.copy(frame, 0, &mut own, &counters) {
                Ok(Copied::Frame(copy)) => own.give(copy).unwrap(),
                _ => panic!("there is room"),
            }
        };
        copy(&mut foreign, &mut closed);
        let tag = closed.pool().tag();
        drop(closed);
        assert!(Pool::find(tag).is_some(), "frames of it may still come");
        for _ in 0..2 * FLUSHES_MAX {
            copy(&mut foreign, &mut open);
            foreign.age();
        }
        assert!(Pool::find(tag).is_none(), "it is not freed");
        assert_eq!(tags(&foreign), [open.pool().tag()]);
        // Frames may return in later calls.
        (0..2 * FLUSHES_MAX).for_each(|_| foreign.age());
        assert_eq!(tags(&foreign), []);
        copy(&mut foreign, &mut open);
        assert_eq!(tags(&foreign), [open.pool().tag()]);
    }

    /// A sender returns frames of a small pool at once, so that receivers can use them.
    #[test]
    fn a_small_pool_gets_its_frames_back() {
        let (mut own, counters) = (cache(), TxCounters::default());
        let config = PoolConfig {
            frame_count: 64,
            ..PoolConfig::default()
        };
        let mut from = FrameCache::new(Pool::new(config).unwrap());
        let mut foreign = Foreign::default();
        for number in 0..1000 {
            let frame = from.take();
            let frame = frame.unwrap_or_else(|| panic!("no frame is free after {number}"));
            let Ok(Copied::Frame(copy)) = foreign.copy(frame, 0, &mut own, &counters) else {
                panic!("there is room");
            };
            own.give(copy).unwrap();
        }
    }

    /// Frames of several pools in turn: each pool is looked up once. (`tests/allocations.rs` checks
    /// that nothing is allocated.)
    #[test]
    fn alternating_pools_keep_their_caches() {
        let (mut own, counters) = (cache(), TxCounters::default());
        let mut pools: Vec<FrameCache> = (0..FOREIGN_MAX + 1).map(|_| cache()).collect();
        let mut foreign = Foreign::default();
        let mut places = Vec::new();
        for round in 0..3 {
            for (number, from) in pools[..FOREIGN_MAX].iter_mut().enumerate() {
                let mut frame = from.take().unwrap();
                from.pool().set_range(&mut frame, 0, 60);
                from.pool().bytes_mut(&mut frame).fill(number as u8);
                let Ok(Copied::Frame(copy)) = foreign.copy(frame, 0, &mut own, &counters) else {
                    panic!("there is room");
                };
                assert_eq!(own.pool().bytes(&copy), [number as u8; 60]);
                own.give(copy).unwrap();
            }
            let now = tags(&foreign);
            if round == 0 {
                places = now.clone();
            }
            assert_eq!(now, places);
        }
        assert_eq!(counters.copied.get(), 3 * FOREIGN_MAX as u64);
        // One more replaces the one seen longest ago: not the first, which is seen again.
        for number in [0, FOREIGN_MAX] {
            let frame = pools[number].take().unwrap();
            assert!(foreign.copy(frame, 0, &mut own, &counters).is_ok());
        }
        let now = tags(&foreign);
        let last = [places[0], pools[FOREIGN_MAX].pool().tag()];
        assert_eq!(now[..], [&places[2..], &last].concat());
        // Every frame was returned to its pool.
        drop(foreign);
        for from in pools {
            let pool = from.pool().clone();
            drop(from);
            assert_eq!(pool.counts().user, 0);
        }
    }

    #[test]
    fn a_pool_that_is_gone_is_reported() {
        let (mut own, counters) = (cache(), TxCounters::default());
        let frame = cache().take().unwrap();
        let error = Foreign::default().copy(frame, 0, &mut own, &counters).err();
        assert!(
            error
                .unwrap()
                .to_string()
                .contains("its pool no longer exists")
        );
    }
}
