//! Moves packets of a batch into frames of a pool, for queues to other processes: without a copy if
//! the queue's frames are in that pool already, otherwise by one copy.

use ring::shared::SEGMENT_COUNT_MAX;
use ring::slot::{Slot, segment_count};
use ring::{Frame, FrameCache, Pool};

use super::{RxBatch, RxQueue, slot_bytes};

/// Result of adopting packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Packets whose frames were appended.
    pub packets: usize,
    /// Number of these that were copied.
    pub copied: usize,
    /// Packets dropped because they need too many frames.
    pub too_long: usize,
}

impl RxQueue {
    /// Whether its packets are in frames of this pool, which another queue can take over.
    pub fn has_frames_of(&self, pool: &Pool) -> bool {
        let own = self.backend.pool();
        self.backend.has_pool_frames() && own.is_some_and(|own| own.tag() == pool.tag())
    }
}

impl RxBatch<'_> {
    /// Captured bytes of the packets that were received, including those that were removed from the
    /// batch since.
    #[inline]
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    /// Moves up to `max` packets from the start of the batch into frames of the cache's pool,
    /// appends these with their metadata to `frames`, and removes the packets from the batch. A
    /// packet longer than a frame takes several: each but the last
    /// [continues](ring::Pool::continues). Stops when the pool has no free frame; the other packets
    /// stay in the batch.
    ///
    /// With `are_read` the caller reads the headers next: those that a device has written are
    /// fetched into the processor's cache.
    pub fn adopt(
        &mut self,
        cache: &mut FrameCache,
        frames: &mut Vec<Frame>,
        max: usize,
        are_read: bool,
    ) -> Adopted {
        let backend = &mut self.queue.backend;
        let tag = cache.pool().tag();
        let is_same = backend.pool().is_some_and(|pool| pool.tag() == tag);
        let can_move = is_same && backend.has_pool_frames();
        if can_move {
            backend.before_transfer();
        }
        let mut adopted = Adopted::default();
        while self.packets != 0 && adopted.packets + adopted.too_long < max {
            let most = max - adopted.packets - adopted.too_long;
            let count = match can_move {
                true if are_read => self.move_plain::<HEADERS_AHEAD>(cache.pool(), frames, most),
                true => self.move_plain::<0>(cache.pool(), frames, most),
                false => self.copy_plain(cache, frames, most),
            };
            if count != 0 {
                adopted.packets += count;
                adopted.copied += if can_move { 0 } else { count };
                continue;
            }
            let slots = &mut self.queue.slots[self.start..];
            let count = segment_count(slots);
            let slots = &mut slots[..count];
            if count > SEGMENT_COUNT_MAX as usize {
                adopted.too_long += 1;
            } else if can_move && move_packet(slots, cache, frames) {
                adopted.packets += 1;
            } else {
                match copy_packet(slots, cache, frames) {
                    Copied::Yes => {
                        adopted.packets += 1;
                        adopted.copied += 1;
                    }
                    Copied::TooLong => adopted.too_long += 1,
                    Copied::NoFrame => break,
                }
            }
            self.start += count;
            self.packets -= 1;
        }
        adopted
    }

    /// Copies up to `max` of the next packets that are in one slot and fit into one frame; returns
    /// how many.
    fn copy_plain(&mut self, cache: &mut FrameCache, frames: &mut Vec<Frame>, max: usize) -> usize {
        let slots = &self.queue.slots[self.start..];
        let most = self.packets.min(max).min(slots.len());
        // SAFETY: the slots describe memory that the queue owns until release.
        let count = unsafe { cache.copy_in(&slots[..most], frames) };
        self.start += count;
        self.packets -= count;
        count
    }

    /// Takes over the frames of up to `max` of the next packets that are in one slot, over a frame
    /// of the pool; returns how many. Fetches headers this many packets ahead, unless it is 0.
    fn move_plain<const AHEAD: usize>(
        &mut self,
        pool: &Pool,
        frames: &mut Vec<Frame>,
        max: usize,
    ) -> usize {
        let slots = &mut self.queue.slots[self.start..];
        let most = self.packets.min(max).min(slots.len());
        let slots = &mut slots[..most];
        frames.reserve(most);
        // A device has written the headers, by which queues are chosen.
        let fetch = |slot: &Slot| ring::slot::prefetch(slot.data().as_ptr());
        slots.iter().take(AHEAD).for_each(fetch);
        let mut count = 0;
        for ahead in 0..most {
            if AHEAD != 0
                && let Some(later) = slots.get(ahead + AHEAD)
            {
                fetch(later);
            }
            let slot = &mut slots[ahead];
            let Some((index, offset)) = slot.place_in(pool).filter(|_| !slot.continues()) else {
                break;
            };
            // SAFETY: the receiving queue holds the frame for this slot, which forgets it below.
            let mut frame = unsafe { pool.adopt(index) };
            pool.set_range(&mut frame, offset, slot.cap_len());
            pool.keep_metadata(&mut frame, slot);
            slot.forget_frame();
            frames.push(frame);
            count += 1;
        }
        self.start += count;
        self.packets -= count;
        count
    }
}

/// How many packets ahead headers are fetched into the cache.
const HEADERS_AHEAD: usize = 16;

/// Takes over the frames of a packet. Returns false and changes nothing if one of them is not a
/// frame of the pool.
fn move_packet(slots: &mut [Slot], cache: &FrameCache, frames: &mut Vec<Frame>) -> bool {
    let pool = cache.pool();
    if !slots.iter().all(|slot| slot.place_in(pool).is_some()) {
        return false;
    }
    for slot in slots {
        let Some((index, offset)) = slot.place_in(pool) else {
            continue;
        };
        // SAFETY: the receiving queue holds the frame for this slot, which forgets it below.
        let mut frame = unsafe { pool.adopt(index) };
        pool.set_range(&mut frame, offset, slot.cap_len());
        pool.keep_metadata(&mut frame, slot);
        if slot.continues() {
            pool.set_continues(&mut frame);
        }
        slot.forget_frame();
        frames.push(frame);
    }
    true
}

/// Result of copying a packet.
enum Copied {
    Yes,
    TooLong,
    NoFrame,
}

/// Copies a packet into as few frames as it needs.
fn copy_packet(slots: &[Slot], cache: &mut FrameCache, frames: &mut Vec<Frame>) -> Copied {
    let frame_len = cache.pool().frame_len() as usize;
    let total: usize = slots.iter().map(|slot| slot.cap_len() as usize).sum();
    if total > frame_len * SEGMENT_COUNT_MAX as usize {
        return Copied::TooLong;
    }
    // SAFETY: the slots describe memory that the queue owns until release.
    let mut sources = slots.iter().map(|slot| unsafe { slot_bytes(slot) });
    let mut source: &[u8] = sources.next().unwrap_or_default();
    let first = frames.len();
    let mut left = total;
    loop {
        let Some(mut frame) = cache.take() else {
            // The next attempt starts with the whole packet.
            for frame in frames.drain(first..) {
                let _ = cache.give(frame);
            }
            return Copied::NoFrame;
        };
        let len = left.min(frame_len);
        let pool = cache.pool();
        pool.set_range(&mut frame, 0, len as u32);
        let mut room = pool.bytes_mut(&mut frame);
        while !room.is_empty() {
            let part = source.len().min(room.len());
            let (now, later) = source.split_at(part);
            room[..part].copy_from_slice(now);
            (source, room) = (later, &mut room[part..]);
            if source.is_empty() {
                let Some(next) = sources.next() else { break };
                source = next;
            }
        }
        left -= len;
        pool.keep_metadata(&mut frame, &slots[0]);
        if left != 0 {
            pool.set_continues(&mut frame);
        }
        frames.push(frame);
        if left == 0 {
            return Copied::Yes;
        }
    }
}

#[cfg(test)]
mod tests {
    use ring::PoolConfig;

    use super::*;
    use crate::port::Port;
    use crate::{PortOptions, open};

    fn pool(frame_count: u32) -> Pool {
        Pool::new(PoolConfig {
            frame_count,
            frame_len: 2048,
            ..PoolConfig::default()
        })
        .unwrap()
    }

    /// A port over `pool` with packets of these lengths.
    fn port(pool: &Pool, lens: &[usize]) -> Port {
        let options = PortOptions {
            pool: Some(pool.clone()),
            ring_len: 64,
            ..PortOptions::default()
        };
        let mut port = open("memory:", &options).unwrap();
        let mut batch = port.tx[0].reserve(64).unwrap();
        for (number, len) in lens.iter().enumerate() {
            assert!(batch.write(&vec![number as u8; *len]));
        }
        batch.submit().unwrap();
        port
    }

    /// The packets in `frames`, each as its length, and whether all bytes are its number.
    fn packets(pool: &Pool, frames: Vec<Frame>, cache: &mut FrameCache) -> Vec<usize> {
        let mut lens = vec![0];
        let mut number = 0;
        for frame in frames {
            assert!(pool.bytes(&frame).iter().all(|byte| *byte == number));
            *lens.last_mut().unwrap() += pool.bytes(&frame).len();
            let descriptor = pool.descriptor(&frame);
            assert_ne!(descriptor.info & u64::from(Slot::TIME), 0);
            assert_eq!(descriptor.continues(), pool.continues(&frame));
            if !pool.continues(&frame) {
                lens.push(0);
                number += 1;
            }
            cache.give(frame).unwrap();
        }
        lens.pop();
        lens
    }

    #[test]
    fn packets_move_within_a_pool_and_are_copied_into_another() {
        let lens = [60, 5000, 1514, 0, 1792];
        for (is_same, are_read) in [(true, true), (true, false), (false, true), (false, false)] {
            let own = pool(256);
            let target = if is_same { own.clone() } else { pool(512) };
            let mut port = port(&own, &lens);
            let mut cache = FrameCache::new(target.clone());
            let mut frames = Vec::new();
            let mut batch = port.rx[0].receive().unwrap();
            let adopted = batch.adopt(&mut cache, &mut frames, usize::MAX, are_read);
            assert!(batch.is_empty());
            drop(batch);
            assert_eq!(adopted.packets, lens.len());
            assert_eq!(adopted.copied, if is_same { 0 } else { lens.len() });
            assert_eq!(packets(&target, frames, &mut cache), lens);
            drop((port, cache));
            assert_eq!((own.counts().free, target.counts().user), (256, 0));
        }
    }

    #[test]
    fn packets_without_a_frame_stay_in_the_batch() {
        let (own, target) = (pool(256), pool(4));
        let mut port = port(&own, &[60, 5000, 60]);
        let mut cache = FrameCache::new(target.clone());
        let mut frames = Vec::new();
        let mut batch = port.rx[0].receive().unwrap();
        // The second needs three frames; three of four are free.
        let held = cache.take().unwrap();
        assert_eq!(
            batch
                .adopt(&mut cache, &mut frames, usize::MAX, true)
                .packets,
            1
        );
        assert_eq!((batch.len(), frames.len()), (2, 1));
        assert_eq!(
            batch
                .adopt(&mut cache, &mut frames, usize::MAX, true)
                .packets,
            0
        );
        cache.give(held).unwrap();
        cache.give(frames.remove(0)).unwrap();
        assert_eq!(
            batch
                .adopt(&mut cache, &mut frames, usize::MAX, true)
                .packets,
            2
        );
        drop(batch);
        assert_eq!(frames.len(), 4);
        for frame in frames {
            cache.give(frame).unwrap();
        }
    }
}
