//! The ends of a queue in the process that created it, of other processes that receive from it or
//! send to it.

use ring::shared::{ENTRY_COUNT_MAX, OwnerEnd, SEND_COUNT_MAX, Taken};
use ring::{Descriptor, Frame, FrameCache, Pool};
use sys::Result;

use crate::header::Header;

/// Packets after which frames that the other process has returned are collected.
const COLLECT_EVERY: u32 = 64;

/// Frames of the longest packet.
const LONGEST: u32 = 32;

/// The end of the process that receives. Without one, packets wait for the next.
pub(super) struct Reader {
    pub end: OwnerEnd,
    /// The process, 0 without one.
    pub process: i32,
    cache: FrameCache,
    len: u32,
    /// Packets that processes have taken, as far as known.
    taken: u64,
    /// Packets sent since the last collection.
    since: u32,
    frames: Vec<Frame>,
}

impl Reader {
    /// Makes the end of a queue of `len` packets. If fewer wait, there is room for the longest one.
    pub fn new(pool: &Pool, len: u32) -> Result<Self> {
        let entries = len.min(ENTRY_COUNT_MAX).saturating_add(LONGEST);
        let entries = entries.next_power_of_two().min(ENTRY_COUNT_MAX);
        Ok(Self {
            end: OwnerEnd::new(pool, entries, None)?,
            process: 0,
            cache: FrameCache::new(pool.clone()),
            len: len.min(entries),
            taken: 0,
            since: 0,
            frames: Vec::new(),
        })
    }

    pub fn has_peer(&self) -> bool {
        self.end.has_peer()
    }

    /// Number of packets and segments that it has not taken.
    pub fn depth(&self) -> u32 {
        self.end.depth()
    }

    /// Packets that processes have taken. While packets in several segments wait, it may be too
    /// low, but never lower than before: what waits is counted in segments.
    pub fn received(&mut self) -> u64 {
        let taken = self.end.counts().handed.saturating_sub(self.depth().into());
        self.taken = self.taken.max(taken);
        self.taken
    }

    fn collect(&mut self) {
        self.since = 0;
        self.end.collect(&mut self.cache);
        // Other queues take their frames from the same pool.
        self.cache.keep_an_eighth();
    }

    /// Whether there is room for a packet of `count` frames.
    pub fn has_room(&mut self, count: u32) -> bool {
        let is_short = self.depth() < self.len;
        if is_short && !self.end.has_room(count) {
            self.collect();
        }
        is_short && self.end.has_room(count)
    }

    fn take_frame(&mut self) -> Option<Frame> {
        match self.cache.take() {
            Some(frame) => Some(frame),
            None => {
                self.collect();
                self.cache.take()
            }
        }
    }

    /// Copies a packet into frames, and hands them over; false if there is no room.
    pub fn send(&mut self, bytes: &[u8], metadata: Descriptor) -> bool {
        let pool = self.cache.pool().clone();
        let frame_len = pool.frame_len() as usize;
        let count = bytes.len().div_ceil(frame_len);
        if !self.has_room(count as u32) {
            // Without frames there is nothing to hand over: the queue counts a drop, which the
            // process sees.
            OwnerEnd::hand_frames(std::slice::from_mut(&mut self.end), 1, &mut Vec::new());
            self.end.flush();
            return false;
        }
        let mut frames = std::mem::take(&mut self.frames);
        for (at, part) in bytes.chunks(frame_len).enumerate() {
            let Some(mut frame) = self.take_frame() else {
                break;
            };
            pool.set_range(&mut frame, 0, part.len() as u32);
            pool.bytes_mut(&mut frame).copy_from_slice(part);
            pool.set_metadata(&mut frame, &metadata);
            if at + 1 < count {
                pool.set_continues(&mut frame);
            }
            frames.push(frame);
        }
        let is_sent = frames.len() == count && self.pass(&mut frames);
        for frame in frames.drain(..) {
            let _ = self.cache.give(frame);
        }
        self.frames = frames;
        is_sent
    }

    /// Hands the frames of a packet over; false, and the frames stay, if there is no room.
    pub fn pass(&mut self, frames: &mut Vec<Frame>) -> bool {
        let ends = std::slice::from_mut(&mut self.end);
        let is_handed = OwnerEnd::hand_frames(ends, 1, frames) != 0;
        self.end.flush();
        self.since += 1;
        if self.since >= COLLECT_EVERY {
            self.collect();
        }
        is_handed
    }

    /// If the process has exited, frees the packet that it had taken, and keeps the others for the
    /// next one.
    pub fn recover_if_gone(&mut self) {
        // If memory is short, the next look tries again.
        if self.end.has_peer() && self.end.is_gone() && self.end.recover(&mut self.cache).is_ok() {
            self.process = 0;
        }
    }
}

/// The end of the process that sends.
pub(super) struct Sender {
    pub end: OwnerEnd,
    /// The process.
    pub process: i32,
    cache: FrameCache,
    /// A packet in several frames.
    whole: Vec<u8>,
}

impl Sender {
    /// Makes the end by which up to `len` packets wait.
    pub fn new(pool: &Pool, len: u32) -> Result<Self> {
        let entries = len.max(LONGEST).next_power_of_two().min(SEND_COUNT_MAX);
        let mut end = OwnerEnd::new(pool, entries, None)?;
        end.set_may_send(true);
        Ok(Self {
            end,
            process: 0,
            cache: FrameCache::new(pool.clone()),
            whole: Vec::new(),
        })
    }

    /// The frames of a packet of this length.
    pub fn frames_of(&self, len: u32) -> u32 {
        len.div_ceil(self.cache.pool().frame_len())
    }

    /// Takes the next packet that the process has sent: true with its frames, or false if it was
    /// refused. `None` if there is none.
    pub fn take(&mut self, frames: &mut Vec<Frame>) -> Option<bool> {
        match self.end.take_sent(&mut self.cache, frames) {
            Taken::Nothing => None,
            Taken::Packet => Some(true),
            Taken::Dropped => Some(false),
        }
    }

    /// The packet in these frames.
    pub fn packet(&mut self, frames: &[Frame]) -> (Header, &[u8]) {
        let pool = self.cache.pool();
        self.whole.clear();
        for frame in frames {
            self.whole.extend_from_slice(pool.bytes(frame));
        }
        let first = frames.first().map(|frame| pool.descriptor(frame));
        let first = first.unwrap_or_default();
        let cap_len = self.whole.len() as u32;
        let hash = (first.hash >> 32) as u32;
        let header = Header::of_sent(first.wire_len, cap_len, first.time_ns, hash);
        (header, &self.whole)
    }

    /// Takes frames back that were not handed over.
    pub fn give(&mut self, frames: &mut Vec<Frame>) {
        for frame in frames.drain(..) {
            let _ = self.cache.give(frame);
        }
        self.cache.keep_an_eighth();
    }

    /// Whether the process has exited, and everything that it had sent is passed on.
    pub fn is_done(&mut self) -> bool {
        let is_done = self.end.is_gone() && !self.end.has_sent();
        if is_done {
            // It held no frames: it only sends.
            let _ = self.end.recover(&mut self.cache);
        }
        is_done
    }
}
