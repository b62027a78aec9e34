//! The sending end of the ring.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ring::slot::{Slot, segment_count, whole_packets};
use ring::{Descriptor, Frame, FrameCache, Pool, Producer};
use sys::{Error, ErrorKind, Result};

use super::super::handover::reserve_buffers;
use super::{Ends, FRAMES_A_CLOCK, HEADROOM, ROOM_NAP};
use crate::account::TxCounters;
use crate::tx::TxBackend;

pub(super) struct Tx {
    pub(super) producer: Producer<Descriptor>,
    pub(super) cache: FrameCache,
    pub(super) ends: Arc<Ends>,
    pub(super) stamp: bool,
    /// The timestamp of frames sent one by one.
    pub(super) time_ns: u64,
    /// Number of further frames that share this time.
    pub(super) frames_stamped: u32,
    pub(super) segment_max: usize,
    pub(super) counters: Arc<TxCounters>,
}

impl Tx {
    /// The time for a whole batch.
    fn now_ns(&self) -> u64 {
        if !self.stamp {
            return 0;
        }
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_nanos() as u64)
    }

    /// The time for a frame: that of the first one since the last flush, shared by a limited
    /// number.
    #[inline]
    fn frame_ns(&mut self) -> u64 {
        if self.frames_stamped == 0 {
            self.time_ns = self.now_ns();
            self.frames_stamped = FRAMES_A_CLOCK;
        }
        self.frames_stamped -= 1;
        self.time_ns
    }

    /// Writes the leading single-segment packets without metadata; returns their number and bytes.
    // Not inlined, so that it has enough registers.
    #[inline(never)]
    fn post_plain(&mut self, slots: &[Slot], time_ns: u64) -> (u32, u64) {
        let owners = self.cache.pool().owners();
        let info = u64::from(time_ns != 0) * u64::from(Slot::TIME);
        let (mut count, mut bytes) = (0, 0);
        for slot in slots {
            if slot.info() != 0 {
                break;
            }
            let index = slot.index();
            // SAFETY: the slot's frame is held by its batch, and the slot ends here.
            unsafe { owners.give_to_device(index) };
            let descriptor = Descriptor {
                index,
                offset: HEADROOM,
                cap_len: slot.cap_len(),
                wire_len: slot.wire_len,
                time_ns,
                hash: slot.hash,
                info,
            };
            self.producer.write(count, descriptor);
            count += 1;
            bytes += u64::from(slot.cap_len());
        }
        (count, bytes)
    }

    fn is_open(&self) -> bool {
        !self.ends.rx_closed.load(Ordering::Acquire) && !self.ends.stopped.load(Ordering::Acquire)
    }
}

impl TxBackend for Tx {
    #[inline]
    fn reserve(&mut self, slots: &mut Vec<Slot>, max: usize) -> Result<()> {
        let room = self
            .producer
            .reserve(u32::try_from(max).unwrap_or(u32::MAX));
        reserve_buffers(&mut self.cache, slots, room as usize, HEADROOM);
        Ok(())
    }

    #[inline]
    fn submit(&mut self, slots: &mut Vec<Slot>, filled: usize) -> Result<()> {
        let open = self.is_open();
        let time_ns = if filled == 0 { 0 } else { self.now_ns() };
        let (mut written, mut bytes) = match open {
            true => self.post_plain(&slots[..filled], time_ns),
            false => (0, 0),
        };
        let (mut packets, mut failed) = (u64::from(written), 0);
        let mut at = written as usize;
        while at < filled {
            let count = segment_count(&slots[at..filled]);
            let packet = &slots[at..at + count];
            at += count;
            if !open || count > self.segment_max {
                failed += 1;
                for slot in packet {
                    // SAFETY: the slot's frame is held by this batch, and the slot ends here.
                    unsafe { self.cache.give_index(slot.token() as u32) };
                }
                continue;
            }
            for slot in packet {
                let index = slot.token() as u32;
                // SAFETY: as above.
                unsafe { self.cache.pool().give_index_to_device(index) };
                let descriptor = Descriptor::of(slot, index, HEADROOM).or_time(time_ns);
                self.producer.write(written, descriptor);
                written += 1;
                bytes += u64::from(slot.cap_len());
            }
            packets += 1;
        }
        // SAFETY: the slots' frames are held by this batch, and the slots end here.
        unsafe {
            self.cache
                .give_each(slots[filled..].iter().map(|slot| slot.token() as u32))
        };
        slots.clear();
        // Counted before they can be received: an account in between shows them in flight.
        if packets != 0 {
            self.counters.sent.add(packets);
            self.counters.sent_bytes.add(bytes);
        }
        if failed != 0 {
            self.counters.failed.add(failed);
        }
        self.producer.submit(written);
        Ok(())
    }

    fn send(&mut self, frame: Frame) -> Result<Option<Frame>> {
        if frame.pool_tag() != self.cache.pool().tag() {
            let why = "the frame belongs to another pool";
            return Err(Error::new(ErrorKind::InvalidInput, "send a frame", why));
        }
        if !self.is_open() {
            self.counters.failed.add(1);
            let _ = self.cache.give(frame);
            return Ok(None);
        }
        if self.producer.reserve(1) == 0 {
            return Ok(Some(frame));
        }
        let len = frame.len();
        let time_ns = self.frame_ns();
        let pool = self.cache.pool();
        let descriptor = pool.descriptor(&frame).or_time(time_ns);
        pool.give_to_device(frame);
        self.producer.write(0, descriptor);
        self.counters.sent.add(1);
        self.counters.sent_bytes.add(len.into());
        self.producer.submit(1);
        Ok(None)
    }

    fn transfer(&mut self, slots: &mut [Slot]) -> Result<Option<usize>> {
        let open = self.is_open();
        let room = match open {
            true => self.producer.reserve(slots.len() as u32) as usize,
            false => slots.len(),
        };
        let taken = whole_packets(slots, room);
        let time_ns = if taken == 0 { 0 } else { self.now_ns() };
        let (mut sent, mut packets, mut bytes, mut failed) = (0, 0, 0, 0);
        let mut rest = &mut slots[..taken];
        while !rest.is_empty() {
            let (packet, tail) = rest.split_at_mut(segment_count(rest));
            rest = tail;
            let pool = self.cache.pool();
            let fits = packet.len() <= self.segment_max
                && packet.iter().all(|slot| slot.place_in(pool).is_some());
            if !open || !fits {
                failed += 1;
                continue;
            }
            for slot in packet {
                let Some((index, offset)) = slot.place_in(pool) else {
                    continue;
                };
                // SAFETY: the receiving queue holds the frame and hands it over: the slot forgets
                // it below.
                unsafe { pool.give_index_to_device(index) };
                slot.forget_frame();
                let descriptor = Descriptor::of(slot, index, offset).or_time(time_ns);
                self.producer.write(sent, descriptor);
                sent += 1;
                bytes += u64::from(slot.cap_len());
            }
            packets += 1;
        }
        // Counted before they can be received: an account in between shows them in flight.
        self.counters.sent.add(packets);
        self.counters.sent_bytes.add(bytes);
        self.counters.failed.add(failed);
        self.producer.submit(sent);
        Ok(Some(taken))
    }

    fn flush(&mut self) -> Result<()> {
        self.frames_stamped = 0;
        self.ends.ring();
        Ok(())
    }

    fn wait(&mut self, all: bool, timeout: Duration) -> Result<bool> {
        let end = Instant::now() + timeout;
        let enough = if all { self.producer.entry_count() } else { 1 };
        while self.producer.reserve(enough) < enough {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.ends.rx_closed.load(Ordering::Acquire) {
                return Ok(false);
            }
            self.ends.wants_room.0.store(true, Ordering::Relaxed);
            if self.producer.reserve(enough) < enough {
                self.ends.room.wait(left.min(ROOM_NAP))?;
            }
        }
        Ok(true)
    }

    fn carries_metadata(&self) -> bool {
        true
    }

    fn pool(&self) -> Option<&Pool> {
        Some(self.cache.pool())
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `Rx::wait`; submitted packets become visible before
        // the end.
        self.ends.tx_closed.store(true, Ordering::Release);
        self.ends.ring();
    }
}
