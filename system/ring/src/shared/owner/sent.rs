//! Takes the packets that a peer has sent.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use sys::Result;

use super::super::sending::{IN_BUFFER, SEND_COUNT_MAX, SendMemory};
use super::{OwnerEnd, SEGMENT_COUNT_MAX};
use crate::cache::FrameCache;
use crate::cursor::Consumer;
use crate::descriptor::Descriptor;
use crate::frame::Frame;
use crate::pool::Owner;

/// Room before a packet that was copied, for a VLAN tag or another header.
const HEADROOM: u32 = 64;

/// Counts of the packets that peers of a queue have sent, since it was created:
/// `sent = accepted + refused + pool_empty`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentCounts {
    /// Packets taken from the peers.
    pub sent: u64,
    /// Packets that were returned to the caller as frames.
    pub accepted: u64,
    /// Number of these that were copied: they were in the peer's own memory, or others read the
    /// frame as well.
    pub copied: u64,
    /// Packets that were dropped because of what a peer wrote: a frame that it does not hold, bytes
    /// beyond a frame, a packet without an end.
    pub refused: u64,
    /// Packets that were dropped because no frame was free for their copy.
    pub pool_empty: u64,
}

/// The result of taking a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// There is none.
    Nothing,
    /// One, whose frames are this process's now.
    Packet,
    /// One was dropped, and counted.
    Dropped,
}

/// The owner's end of the way back from the current peer.
pub(super) struct Sent {
    memory: Arc<SendMemory>,
    ring: Consumer<Descriptor>,
    /// Position in the ring of the next packet.
    at: u32,
}

/// Why a part of a packet gives no frame.
enum Lost {
    Refused,
    NoFrame,
}

impl OwnerEnd {
    /// Lets the peers that connect from now on send packets, or not.
    pub fn set_may_send(&mut self, may_send: bool) {
        self.may_send = may_send;
    }

    /// Creates the memory by which the next peer sends; `None` if it may not.
    pub(crate) fn open_way_back(&mut self) -> Result<Option<OwnedFd>> {
        self.sent = None;
        if !self.may_send {
            return Ok(None);
        }
        let count = self.memory.entry_count.min(SEND_COUNT_MAX);
        let memory = Arc::new(SendMemory::new(count, self.pool.frame_len())?);
        let fd = memory.share()?;
        self.sent = Some(Sent {
            ring: Consumer::new(memory.ring()),
            memory,
            at: 0,
        });
        Ok(Some(fd))
    }

    /// The counts since the queue was created.
    pub fn sent_counts(&self) -> SentCounts {
        self.sent_counts
    }

    /// How many parts of packets were taken from the peer so far; it wraps.
    pub fn sent_position(&self) -> u32 {
        self.sent.as_ref().map_or(0, |sent| sent.at)
    }

    /// Whether the peer has sent packets that were not taken yet.
    pub fn has_sent(&mut self) -> bool {
        let sent = self.sent.as_mut();
        sent.is_some_and(|sent| sent.ring.peek(1) != 0)
    }

    /// Takes the next packet that the peer has sent, and appends its frames, each with its
    /// metadata. A frame that only this peer held is not copied; one that others read as well is,
    /// and so are bytes in the peer's own memory.
    ///
    /// Before [`recover`](Self::recover) all packets have to be taken that a peer had sent before
    /// it exited: its frames are recovered then, also those of packets that were not taken.
    pub fn take_sent(&mut self, cache: &mut FrameCache, frames: &mut Vec<Frame>) -> Taken {
        let Some(sent) = &mut self.sent else {
            return Taken::Nothing;
        };
        let count = sent.ring.peek(SEGMENT_COUNT_MAX);
        if count == 0 {
            return Taken::Nothing;
        }
        if sent.ring.is_overrun() {
            // Nothing in the ring means anything; there is no end of it, either.
            self.sent = None;
            self.sent_counts.sent += 1;
            self.sent_counts.refused += 1;
            return Taken::Dropped;
        }
        // Read once: the peer may write them again.
        let mut parts = [Descriptor::default(); SEGMENT_COUNT_MAX as usize];
        let mut len = 0;
        for place in parts.iter_mut().take(count as usize) {
            *place = sent.ring.read(len as u32);
            len += 1;
            if !place.continues() {
                break;
            }
        }
        let parts = &parts[..len];
        // A peer makes whole packets visible.
        let is_whole = parts.last().is_some_and(|part| !part.continues());
        let first = frames.len();
        let mut lost = (!is_whole).then_some(Lost::Refused);
        let mut copied = 0;
        for (ahead, part) in parts.iter().enumerate() {
            let result = match lost {
                None => self.frame_of(*part, ahead as u32, cache),
                Some(_) => {
                    self.end_part(*part, cache);
                    continue;
                }
            };
            match result {
                Ok((frame, is_copy)) => {
                    copied += u64::from(is_copy);
                    frames.push(frame);
                }
                Err(why) => lost = Some(why),
            }
        }
        if let Some(sent) = &mut self.sent {
            sent.ring.release(len as u32);
            sent.at = sent.at.wrapping_add(len as u32);
        }
        let counts = &mut self.sent_counts;
        counts.sent += 1;
        let Some(why) = lost else {
            counts.accepted += 1;
            counts.copied += u64::from(copied != 0);
            return Taken::Packet;
        };
        match why {
            Lost::Refused => counts.refused += 1,
            Lost::NoFrame => counts.pool_empty += 1,
        }
        for frame in frames.drain(first..) {
            // A frame of this pool is accepted.
            let _ = cache.give(frame);
        }
        Taken::Dropped
    }

    /// Takes back the frame of a part that is not passed on, if the peer holds it.
    fn end_part(&mut self, part: Descriptor, cache: &mut FrameCache) {
        if part.index != IN_BUFFER && self.holder.take_back(part.index, cache) {
            self.count_returned(part.index);
        }
    }

    fn count_returned(&mut self, index: u32) {
        self.counts.returned += u64::from(!self.followers.remove(index));
    }

    /// The frame of a part of a packet, `ahead` entries after the next one, and whether it is a
    /// copy.
    fn frame_of(
        &mut self,
        part: Descriptor,
        ahead: u32,
        cache: &mut FrameCache,
    ) -> std::result::Result<(Frame, bool), Lost> {
        let end = part.offset.checked_add(part.cap_len);
        if end.is_none_or(|end| end > self.pool.frame_len()) || part.cap_len == 0 {
            self.end_part(part, cache);
            return Err(Lost::Refused);
        }
        if part.index == IN_BUFFER {
            let Some(sent) = &self.sent else {
                return Err(Lost::Refused);
            };
            let buffer = sent.memory.buffer(sent.at.wrapping_add(ahead));
            // SAFETY: within the buffer, as checked above.
            let frame = unsafe { copy(cache, buffer.add(part.offset as usize), part) };
            return frame.map(|frame| (frame, true)).ok_or(Lost::NoFrame);
        }
        if !self.holder.holds(part.index) {
            return Err(Lost::Refused);
        }
        let holding = self.pool.holding(part.index);
        if holding.is_some_and(|holding| holding.count == 1) {
            let is_last = self.holder.end(part.index) == Some(true);
            self.count_returned(part.index);
            return match is_last && self.pool.pass(part.index, Owner::Peer, Owner::User) {
                true => Ok((self.pool.with_record(part.index, part), false)),
                false => Err(Lost::Refused),
            };
        }
        let place = self.pool.addr_of(part.index) as usize + part.offset as usize;
        // SAFETY: the index is the pool's, as all that a holder holds, and the range was checked.
        // The frame stays as it is until this holder returns it.
        let frame = unsafe { copy(cache, self.pool.base().add(place).as_ptr(), part) };
        self.end_part(part, cache);
        frame.map(|frame| (frame, true)).ok_or(Lost::NoFrame)
    }
}

/// Copies a part of a packet into a free frame.
///
/// # Safety
/// `cap_len` bytes can be read from `bytes`. They may change meanwhile: only the copy is looked at.
unsafe fn copy(cache: &mut FrameCache, bytes: *const u8, part: Descriptor) -> Option<Frame> {
    let frame = cache.take()?;
    let pool = cache.pool();
    let offset = HEADROOM.min(pool.frame_len() - part.cap_len);
    let place = pool.addr_of(frame.index()) as usize + offset as usize;
    // SAFETY: the frame is this process's, and the range is within it, because the length is at
    // most that of a frame.
    unsafe {
        let to = pool.base().add(place).as_ptr();
        std::ptr::copy_nonoverlapping(bytes, to, part.cap_len as usize);
    }
    let copied = Descriptor { offset, ..part };
    Some(pool.with_record(frame.index(), copied))
}
