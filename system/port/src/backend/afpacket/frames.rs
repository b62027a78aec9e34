//! The ring of TPACKET_V2: a frame of fixed length per packet, which the kernel hands over as soon
//! as the packet is in it. For readers that want each packet at once
//! ([`PortOptions::immediate`](crate::PortOptions::immediate)).
//!
//! A socket's rings have headers of one version, so this ring could share a socket with the
//! transmit ring. It does not: the kernel leaves out what a socket itself has sent, and a port's
//! queues show the packets that the port sends.

mod rx;
mod shape;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sys::mmap::Mapping;
use sys::packet::FrameRing;

use super::tap::{PACKET_ADDRESS_LEN, Ring};

pub(super) use rx::FrameRx;
pub(super) use shape::{longest, ring_shape};

/// Length of `struct tpacket2_hdr`; the `struct sockaddr_ll` follows.
const HEADER_LEN: usize = 32;
/// Least offset of a packet in its frame.
const DATA_OFFSET_MIN: usize = HEADER_LEN + PACKET_ADDRESS_LEN;
/// Greatest offset of a packet in its frame: TPACKET_ALIGN(32 + 20 + 16), for one without a link
/// header. Ethernet's begins 14 bytes before, those with longer headers before that.
const DATA_OFFSET_MAX: u32 = 80;
/// `TP_STATUS_USER`: user space owns the frame. Zero: the kernel owns it.
const OURS: u32 = 1;
/// `TP_STATUS_KERNEL`.
const KERNELS: u32 = 0;

/// A mapped ring.
pub(super) struct Frames {
    memory: Mapping,
    frame_len: usize,
    frames_per_block: usize,
    frame_count: usize,
    /// Bytes after the last frame of a block.
    gap: usize,
    /// The reader's position: index of the next frame, and in the upper half the number of frames
    /// before it that have not been returned.
    position: AtomicU64,
}

impl Frames {
    pub(super) fn new(memory: Mapping, ring: &FrameRing) -> Self {
        let frames_per_block = ring.frames_per_block();
        Self {
            memory,
            frame_len: ring.frame_len as usize,
            frames_per_block: frames_per_block as usize,
            frame_count: ring.frame_count() as usize,
            gap: (ring.block_len - ring.frame_len * frames_per_block) as usize,
            position: AtomicU64::new(0),
        }
    }

    /// Packet memory in bytes.
    pub(super) fn len(&self) -> usize {
        self.memory.len()
    }

    /// Maximum length of a packet that is received in full.
    pub(super) fn packet_len_max(&self) -> u32 {
        self.frame_len as u32 - DATA_OFFSET_MAX
    }

    /// The place of a frame.
    fn place(&self, index: usize) -> Place {
        let in_block = index % self.frames_per_block;
        let block_len = self.frames_per_block * self.frame_len + self.gap;
        Place {
            index,
            in_block,
            at: index / self.frames_per_block * block_len + in_block * self.frame_len,
        }
    }

    /// The place of the frame after another, which is the first after the last.
    #[inline]
    fn after(&self, place: Place) -> Place {
        let next = Place {
            index: place.index + 1,
            in_block: place.in_block + 1,
            at: place.at + self.frame_len,
        };
        if next.in_block != self.frames_per_block {
            return next;
        }
        if next.index == self.frame_count {
            return Place::default();
        }
        Place {
            in_block: 0,
            at: next.at + self.gap,
            ..next
        }
    }

    /// Address of a frame.
    #[inline]
    fn frame(&self, place: Place) -> NonNull<u8> {
        debug_assert!(place.index < self.frame_count && place == self.place(place.index));
        // SAFETY: places come from `place` and `after`, which stay below the number of frames; all
        // of these lie in the mapping.
        unsafe { self.memory.base().add(place.at) }
    }

    /// A frame's status, which the kernel may write at any time.
    #[inline]
    fn status(&self, place: Place) -> &AtomicU32 {
        // SAFETY: the first word of the frame, aligned since frames are multiples of 16 from the
        // start of a page, and only accessed atomically by us while the kernel may write it; the
        // mapping lives as long as `self`.
        unsafe { self.frame(place).cast().as_ref() }
    }

    /// Publishes the reader's position.
    #[inline]
    fn publish(&self, next: Place, held: usize) {
        let position = next.index as u64 | (held as u64) << 32;
        self.position.store(position, Ordering::Release);
    }
}

impl Ring for Frames {
    fn waiting(&self) -> u64 {
        let position = self.position.load(Ordering::Acquire);
        let held = (position >> 32) as usize;
        let mut place = self.place((position as u32) as usize);
        let mut count = 0;
        // Up to the first frame that the kernel is filling.
        for _ in held..self.frame_count {
            if self.status(place).load(Ordering::Acquire) & OURS == 0 {
                break;
            }
            place = self.after(place);
            count += 1;
        }
        count
    }
}

/// A frame's place in the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    index: usize,
    /// Its number in its block.
    in_block: usize,
    /// Its offset in the ring's memory.
    at: usize,
}

#[cfg(test)]
mod tests;
