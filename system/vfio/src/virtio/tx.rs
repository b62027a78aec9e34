//! A transmit queue (VIRTIO 1.2 §5.1.6.2).
//!
//! The header is written into the frame before the packet, and both form one element. If a packet
//! begins too close to its frame's first byte, or is in several frames, it becomes a chain whose
//! first element is a header of zeroes shared by all packets: the device only reads it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use ring::slot::Slot;

use super::super::dma::{DmaArray, PoolDma};
use super::super::driver::{DriverTx, Health, Lengths, Posted, TxPart};
use super::super::registers::Registers;
use super::header::{self, HEADER_LEN};
use super::ring::{Element, NO_FRAME, Ring, Used};
use super::transport::{Doorbell, Transport};

/// Number of frames returned at a time.
const RUN: usize = 64;

/// Number of polls without progress after which a device is notified even without a request.
const LOOKS_MAX: u32 = 64;

/// The ring of a sending queue.
pub struct VirtioTx<G, R> {
    ring: R,
    bell: Doorbell<G>,
    transport: Transport<G>,
    frames: Arc<PoolDma>,
    ring_len: u32,
    /// Twelve zeroes.
    header: Arc<DmaArray<AtomicU8>>,
    /// Number of frames posted and not reclaimed.
    parts: u32,
    /// Parts that are not in the ring yet: of a packet whose last part is still missing, or after
    /// one that needs more descriptors than are free. In order; at most as many as the ring has
    /// entries.
    waiting: VecDeque<TxPart>,
    /// Elements of the current packet.
    chain: Vec<Element>,
    /// The device gave back what it did not have.
    lied: bool,
    /// Number of consecutive polls in which it had packets, returned none and requested no
    /// notification.
    looks: u32,
}

/// Parts of a queue.
pub(super) struct TxParts<G, R> {
    pub ring: R,
    pub bell: Doorbell<G>,
    pub transport: Transport<G>,
    pub frames: Arc<PoolDma>,
    pub ring_len: u32,
    pub header: Arc<DmaArray<AtomicU8>>,
}

impl<G: Registers, R: Ring> VirtioTx<G, R> {
    pub(super) fn new(parts: TxParts<G, R>) -> Self {
        Self {
            ring: parts.ring,
            bell: parts.bell,
            transport: parts.transport,
            frames: parts.frames,
            ring_len: parts.ring_len,
            header: parts.header,
            parts: 0,
            waiting: VecDeque::with_capacity(parts.ring_len as usize),
            chain: Vec::with_capacity(32),
            lied: false,
            looks: 0,
        }
    }

    /// Moves whole packets from `waiting` into the ring while there is room.
    #[cold]
    fn advance(&mut self) {
        while let Some(last) = self.waiting.iter().position(|part| part.is_last) {
            self.chain.clear();
            self.chain.push(Element {
                iova: self.header.iova(),
                len: HEADER_LEN,
                frame: NO_FRAME,
            });
            for part in self.waiting.iter().take(last + 1) {
                self.chain.push(Element {
                    iova: self.frames.address(part.index, part.offset),
                    len: part.len,
                    frame: part.index,
                });
            }
            if !self.ring.offer_chain(&self.chain, false) {
                return;
            }
            self.waiting.drain(..=last);
        }
    }
}

impl<G: Registers, R: Ring> DriverTx for VirtioTx<G, R> {
    fn ring_len(&self) -> u32 {
        self.ring_len
    }

    #[inline(always)]
    fn room(&self) -> u32 {
        let waiting = self.waiting.len() as u32;
        self.ring.book().room().saturating_sub(waiting)
    }

    fn pending(&self) -> u32 {
        self.parts
    }

    #[inline(always)]
    fn post(&mut self, part: TxPart) {
        self.parts += 1;
        let whole = part.is_first && part.is_last && part.offset >= HEADER_LEN;
        // A chain takes one more descriptor than it has parts, which may have been needed for this
        // packet.
        if !whole || !self.waiting.is_empty() || self.ring.book().room() == 0 {
            self.waiting.push_back(part);
            if part.is_last {
                self.advance();
            }
            return;
        }
        let pool = self.frames.pool();
        let start = part.offset - HEADER_LEN;
        let at = pool.addr_of(part.index) as usize + start as usize;
        // SAFETY: the caller gives the frame, which is the pool's; the header ends where the packet
        // begins, so it is within the frame.
        unsafe { header::write(pool.base().add(at).as_ptr()) };
        self.ring.offer(Element {
            iova: self.frames.address(part.index, start),
            len: part.len + HEADER_LEN,
            frame: part.index,
        });
    }

    #[inline]
    unsafe fn post_slots(&mut self, slots: &[Slot], offset: u32, lengths: Lengths) -> Posted {
        let mut posted = Posted::default();
        if offset < HEADER_LEN || !self.waiting.is_empty() {
            return posted;
        }
        let most = slots.len().min(self.room() as usize);
        let Self { ring, frames, .. } = self;
        let pool = frames.pool();
        let owners = pool.owners();
        let start = offset - HEADER_LEN;
        let (first, base) = (frames.address(0, start), pool.base().as_ptr());
        let base = base.wrapping_add(start as usize);
        let shift = pool.frame_len().trailing_zeros();
        for slot in &slots[..most] {
            let (index, len) = (slot.token() as u32, slot.cap_len());
            // SAFETY: the caller's word: the slot's frame is one of the pool's, held by its batch,
            // which ends here.
            let borrowed = !slot.has(Slot::CONTINUES)
                && lengths.hold(len)
                && unsafe { owners.give_known_to_device(index) };
            if !borrowed {
                break;
            }
            // SAFETY: the frame is the pool's and was held by the batch; the header ends where the
            // packet begins, so it is within the frame.
            unsafe { header::write(base.wrapping_add((index as usize) << shift)) };
            ring.offer(Element {
                iova: first + (u64::from(index) << shift),
                len: len + HEADER_LEN,
                frame: index,
            });
            posted.packets += 1;
            posted.bytes += u64::from(len);
        }
        self.parts += posted.packets as u32;
        posted
    }

    /// Some devices fail to request notifications: QEMU drops packets while the link is down, and
    /// leaves its notification index far behind. A device without progress is therefore notified
    /// anyway.
    #[inline]
    fn publish(&mut self) {
        if self.ring.publish() || self.looks >= LOOKS_MAX {
            self.looks = 0;
            self.bell.ring();
        }
    }

    #[inline]
    fn reclaim(&mut self, mut frames: impl FnMut(&[u32])) {
        let mut parts = self.parts;
        // Buffers return in any order: some are gathered before they are passed on.
        let (mut run, mut count) = ([0; RUN], 0);
        for _ in 0..self.ring_len {
            match self.ring.next_used() {
                Used::Buffer { id, .. } => self.ring.book_mut().leave(id, |index| {
                    if index == NO_FRAME {
                        return;
                    }
                    parts -= 1;
                    if count == RUN {
                        frames(&run);
                        count = 0;
                    }
                    run[count] = index;
                    count += 1;
                }),
                Used::Nothing => break,
                Used::Foreign => self.lied = true,
            }
        }
        frames(&run[..count]);
        self.looks = match parts != self.parts || parts == 0 {
            true => 0,
            false => self.looks + 1,
        };
        self.parts = parts;
        if !self.waiting.is_empty() {
            self.advance();
            self.publish();
        }
    }

    fn left(&self) -> Posted {
        let buffers = self.ring.book().held_buffers().count();
        let headers = buffers as u64 * u64::from(HEADER_LEN);
        let mut left = Posted {
            packets: buffers,
            bytes: self.ring.held_bytes().saturating_sub(headers),
        };
        for part in &self.waiting {
            left.packets += usize::from(part.is_last);
            left.bytes += u64::from(part.len);
        }
        left
    }

    fn health(&mut self) -> Health {
        match self.transport.health() {
            // Which descriptors are free is no longer known: only a reset helps.
            Health::Running if self.lied => Health::Reset,
            health => health,
        }
    }

    fn drain(&mut self, frame: &mut dyn FnMut(u32)) {
        for part in self.waiting.drain(..) {
            frame(part.index);
        }
        self.ring.book_mut().leave_all(|index| {
            if index != NO_FRAME {
                frame(index);
            }
        });
        self.parts = 0;
    }
}
