//! A receive queue (VIRTIO 1.2 §5.1.6.3, §5.1.6.4).
//!
//! ```text
//!  frame: | room | header (12) | packet …          |      the first buffer of a packet
//!  frame: | room | … packet …                      |      the others (MRG_RXBUF)
//!                ^ here the device begins to write
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use ring::slot::{Filled, Room, Slot, prefetch};

use super::super::dma::PoolDma;
use super::super::driver::{DriverRx, Health, Refused};
use super::super::registers::Registers;
use super::HEADROOM;
use super::header::{self, HEADER_LEN, Header};
use super::ring::{Element, Ring, UsedElement};
use super::transport::{Doorbell, Transport};

/// Offset at which the device writes in a frame.
pub(super) const START: u32 = HEADROOM - HEADER_LEN;

/// The ring of a receiving queue, and the settings for creating slots.
pub struct VirtioRx<G, R> {
    ring: R,
    bell: Doorbell<G>,
    transport: Transport<G>,
    frames: Arc<PoolDma>,
    ring_len: u32,
    /// Length of a buffer, including the header.
    buffer_len: u32,
    packet_len_max: u32,
    mergeable: bool,
    /// Mask of the valid header flags.
    flags_known: u8,
    /// A packet that was taken and did not fit into the batch; this queue owns its frames.
    kept: Vec<Slot>,
    /// State shared with the control side.
    view: RxView,
}

/// State shared between the control side and a queue.
#[derive(Clone, Default)]
pub(super) struct RxView {
    /// Number of packets taken from the ring, valid or not.
    pub given: Arc<AtomicU64>,
    /// Number of packets taken that wait for the next batch.
    pub kept: Arc<AtomicU32>,
    /// Whether buffers are no longer offered.
    pub stopped: Arc<AtomicBool>,
}

/// Parts of a queue.
pub(super) struct RxParts<G, R> {
    pub ring: R,
    pub bell: Doorbell<G>,
    pub transport: Transport<G>,
    pub frames: Arc<PoolDma>,
    pub ring_len: u32,
    pub packet_len_max: u32,
    pub mergeable: bool,
    /// Whether the device may report on checksums (GUEST_CSUM).
    pub checksums: bool,
    pub view: RxView,
}

impl<G: Registers, R: Ring> VirtioRx<G, R> {
    pub(super) fn new(parts: RxParts<G, R>) -> Self {
        Self {
            buffer_len: parts.frames.pool().frame_len() - START,
            ring: parts.ring,
            bell: parts.bell,
            transport: parts.transport,
            frames: parts.frames,
            ring_len: parts.ring_len,
            packet_len_max: parts.packet_len_max,
            mergeable: parts.mergeable,
            // §5.1.6.4.1: fields of features that were not negotiated are 0 or invalid.
            flags_known: match parts.checksums {
                true => header::NEEDS_CSUM | header::DATA_VALID,
                false => 0,
            },
            kept: Vec::new(),
            view: parts.view,
        }
    }

    /// A slot over a claimed frame, starting where the device began to write.
    fn slot(&self, frame: u32, skip: u32, len: u32) -> Slot {
        let pool = self.frames.pool();
        let offset = pool.addr_of(frame) as usize + (START + skip) as usize;
        // SAFETY: the frame is one that we offered, so the pool's, and START + skip is within it.
        // It was claimed for this slot, and `len` is no more than we offered.
        unsafe {
            let data = pool.base().add(offset);
            Slot::over(data, len, len, frame.into())
        }
    }

    /// Harvests single-buffer packets, until there is another kind or `max` are taken. Nothing that
    /// the device reports is trusted.
    #[inline(always)]
    fn harvest_plain(
        &mut self,
        slots: &mut Vec<Slot>,
        max: usize,
        time_ns: u64,
        (looks, filled): (&mut u32, &mut Filled),
    ) -> Stop {
        let mut room = Room::new(slots, max);
        let Self { ring, frames, .. } = self;
        let pool = frames.pool();
        let owners = pool.owners();
        let first = pool.base().as_ptr().wrapping_add(HEADROOM as usize);
        let shift = pool.frame_len().trailing_zeros();
        let (longest, mergeable) = (self.packet_len_max, self.mergeable);
        let known = self.flags_known;
        let buffer_len = self.buffer_len - HEADER_LEN;
        let stamp = u64::from(time_ns != 0) * u64::from(Slot::TIME);
        let mut left = max as u32;
        let mut bytes = 0;
        let stop = loop {
            if left == 0 || *looks == 0 {
                break Stop::Nothing;
            }
            *looks -= 1;
            let (frame, len) = match ring.next_used_one() {
                UsedElement::Frame { frame, len } => (frame, len.wrapping_sub(HEADER_LEN)),
                UsedElement::Nothing => {
                    *looks += 1;
                    break Stop::Nothing;
                }
                UsedElement::Foreign => break Stop::Invalid(None),
            };
            // SAFETY: the device has used the buffer, so it is done with the frame.
            if !unsafe { owners.claim(frame) } {
                break Stop::Invalid(None);
            }
            // Also shorter than a header.
            if len > buffer_len {
                break Stop::Invalid(Some(frame));
            }
            let data = first.wrapping_add((frame as usize) << shift);
            // SAFETY: the frame is claimed, and the header lies in it in front of the packet.
            let mut header = unsafe { header::read(data.wrapping_sub(HEADER_LEN as usize)) };
            header.flags &= known;
            let whole = !mergeable || header.num_buffers == 1;
            // Empty after the header is invalid, too.
            let fits = len.wrapping_sub(1) < longest;
            if !whole || header.flags & header::NEEDS_CSUM != 0 || !fits {
                break Stop::Odd(frame, len, header);
            }
            let info = u64::from(checksum_flags(header.flags)) | stamp;
            // SAFETY: room was made for `max` of them. The packet begins and ends in the frame,
            // which is the pool's (claimed; its length is checked).
            unsafe { room.push(data, len, frame, time_ns, 0, info) };
            prefetch(data);
            bytes += u64::from(len);
            left -= 1;
        };
        filled.packets += room.finish();
        filled.bytes += bytes;
        stop
    }

    /// Packets in the ring that were not taken yet, for the control side.
    pub(super) fn watch_ring(&self) -> Box<dyn Fn() -> u32 + Send + Sync> {
        self.ring.watch()
    }

    /// Completes the checksum of a packet that was never on a wire (§5.1.6.4): its field contains
    /// the sum of the pseudo header, and everything from `csum_start` on must be added. The packet
    /// is complete when it is forwarded. Left unchanged if the device specifies a position outside
    /// of the packet.
    #[cold]
    fn finish_checksum(&self, frame: u32, segments: &mut [Slot]) {
        let pool = self.frames.pool();
        let header = pool.addr_of(frame) as usize + START as usize;
        // SAFETY: the frame is claimed, and the header lies within it.
        let (start, offset) = unsafe { header::read_checksum(pool.base().add(header).as_ptr()) };
        let field = start + offset;
        let mut sum = 0_u64;
        let (mut at, mut place) = (0, None);
        for slot in segments.iter() {
            // SAFETY: the slot's frame is ours, and its range is within the frame.
            let bytes = unsafe {
                std::slice::from_raw_parts(slot.data().as_ptr(), slot.cap_len() as usize)
            };
            for (index, byte) in bytes.iter().enumerate().skip(start.saturating_sub(at)) {
                let high = (at + index - start) % 2 == 0;
                sum += u64::from(*byte) << if high { 8 } else { 0 };
            }
            if (at..at + bytes.len().saturating_sub(1)).contains(&field) {
                place = Some(slot.data().as_ptr().wrapping_add(field - at));
            }
            at += bytes.len();
        }
        let Some(place) = place else { return };
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        // Zero would mean no checksum (RFC 768).
        let checksum = match !(sum as u16) {
            0 => 0xffff_u16,
            checksum => checksum,
        };
        // SAFETY: both bytes lie in one of the segments (see above), which are ours.
        unsafe { place.cast::<[u8; 2]>().write(checksum.to_be_bytes()) };
        if let Some(first) = segments.first_mut() {
            first.flags = first.flags & !Slot::CHECKSUM_PARTIAL | Slot::CHECKSUM_GOOD;
        }
    }

    /// Harvests a packet of several buffers, with an incomplete checksum, empty, or too long: its
    /// first frame is claimed, and contains `len` bytes.
    #[cold]
    fn harvest_odd(
        &mut self,
        (frame, len, header): (u32, u32, Header),
        slots: &mut Vec<Slot>,
        back: &mut Vec<u32>,
        refused: &mut Refused,
    ) {
        let first = slots.len();
        let mut slot = self.slot(frame, HEADER_LEN, len);
        slot.flags = checksum_flags(header.flags);
        slots.push(slot);
        let count = if self.mergeable {
            header.num_buffers
        } else {
            1
        };
        if self.gather(count, slots, back, refused) && header.flags & header::NEEDS_CSUM != 0 {
            self.finish_checksum(frame, &mut slots[first..]);
        }
    }

    /// Takes the rest of a packet of several buffers (§5.1.6.3.1), whose first slot is the last of
    /// `slots`. Returns false if it is invalid or too long; its frames are then in `back`.
    ///
    /// A device shows a packet's buffers all at once (§2.8.9; with one step of `used.idx` where
    /// queues are split), so one that is not present yet is an error of the device.
    #[cold]
    fn gather(
        &mut self,
        count: u16,
        slots: &mut Vec<Slot>,
        back: &mut Vec<u32>,
        refused: &mut Refused,
    ) -> bool {
        let first = slots.len() - 1;
        let possible = count != 0 && u32::from(count) <= self.ring_len;
        let mut len = slots[first].cap_len();
        // §5.1.6.4: the device fills a buffer before it continues with the next, so none is empty.
        let mut sound = possible && len != 0;
        for _ in 1..if possible { count } else { 1 } {
            let (frame, part) = match self.ring.next_used_one() {
                UsedElement::Frame { frame, len } => (frame, len),
                UsedElement::Foreign => {
                    sound = false;
                    continue;
                }
                UsedElement::Nothing => {
                    sound = false;
                    break;
                }
            };
            // SAFETY: the device has used the buffer, so it is done with the frame.
            if !unsafe { self.frames.pool().claim_index(frame) } {
                sound = false;
                continue;
            }
            let fits = part != 0 && part <= self.buffer_len;
            sound &= fits;
            len = len.saturating_add(part);
            slots.push(self.slot(frame, 0, if fits { part } else { 0 }));
        }
        if sound && len <= self.packet_len_max {
            let last = slots.len() - 1;
            for slot in &mut slots[first..last] {
                slot.flags |= Slot::CONTINUES;
            }
            for slot in &mut slots[first..] {
                slot.wire_len = len;
            }
            return true;
        }
        match sound {
            true => refused.too_long += 1,
            false => refused.invalid += 1,
        }
        back.extend(slots.drain(first..).map(|slot| slot.token() as u32));
        false
    }
}

impl<G: Registers, R: Ring> DriverRx for VirtioRx<G, R> {
    fn ring_len(&self) -> u32 {
        self.ring_len
    }

    #[inline(always)]
    fn vacant(&self) -> u32 {
        match self.view.stopped.load(Ordering::Relaxed) {
            true => 0,
            false => self.ring.book().room(),
        }
    }

    fn headroom(&self) -> u32 {
        START
    }

    #[inline]
    fn offer_run(&mut self, indices: &[u32]) {
        for &index in indices {
            self.ring.offer(Element {
                iova: self.frames.address(index, START),
                len: self.buffer_len,
                frame: index,
            });
        }
    }

    #[inline]
    unsafe fn offer_slots(&mut self, slots: &[Slot]) -> usize {
        let most = slots.len().min(self.vacant() as usize);
        let len = self.buffer_len;
        let Self { ring, frames, .. } = self;
        let pool = frames.pool();
        let owners = pool.owners();
        let first = frames.address(0, START);
        let shift = pool.frame_len().trailing_zeros();
        for (at, slot) in slots[..most].iter().enumerate() {
            let index = slot.token() as u32;
            // SAFETY: the caller's word: the slot's frame is one of the pool's, held by its batch,
            // which ends here.
            if !unsafe { owners.give_known_to_device(index) } {
                return at;
            }
            ring.offer(Element {
                iova: first + (u64::from(index) << shift),
                len,
                frame: index,
            });
        }
        most
    }

    #[inline]
    fn publish(&mut self) {
        if self.ring.publish() {
            self.bell.ring();
        }
    }

    #[inline]
    fn harvest(
        &mut self,
        slots: &mut Vec<Slot>,
        max: usize,
        time_ns: u64,
        back: &mut Vec<u32>,
        refused: &mut Refused,
    ) -> Filled {
        let start = slots.len();
        let end = start.saturating_add(max);
        if !self.kept.is_empty() {
            for slot in &mut self.kept {
                stamp(slot, time_ns);
            }
            slots.append(&mut self.kept);
        }
        let mut filled = Filled::of(&slots[start..]);
        // A device cannot correctly use more than it holds; one that never stops is left alone
        // until the next call.
        let mut looks = self.ring_len;
        let mut given = 0;
        while slots.len() < end {
            let max = (end - slots.len()).min(looks as usize);
            let before = filled.packets;
            let counts = (&mut looks, &mut filled);
            let stop = self.harvest_plain(slots, max, time_ns, counts);
            given += (filled.packets - before) as u64 + u64::from(!matches!(stop, Stop::Nothing));
            match stop {
                Stop::Nothing => break,
                Stop::Invalid(frame) => {
                    refused.invalid += 1;
                    back.extend(frame);
                }
                Stop::Odd(frame, len, header) => {
                    let first = slots.len();
                    self.harvest_odd((frame, len, header), slots, back, refused);
                    for slot in &mut slots[first..] {
                        stamp(slot, time_ns);
                    }
                    if slots.len() > end && first > start {
                        // A partial packet is never returned: it waits for the next batch.
                        self.kept.extend(slots.drain(first..));
                        break;
                    }
                    let taken = Filled::of(&slots[first..]);
                    filled.packets += taken.packets;
                    filled.bytes += taken.bytes;
                }
            }
        }
        self.ring.mark();
        // Only this thread writes them.
        let sum = self.view.given.load(Ordering::Relaxed).wrapping_add(given);
        self.view.given.store(sum, Ordering::Relaxed);
        let kept = u32::from(!self.kept.is_empty());
        self.view.kept.store(kept, Ordering::Relaxed);
        filled
    }

    fn is_ready(&self) -> bool {
        !self.kept.is_empty() || self.ring.has_used()
    }

    fn watch(&self) -> Box<dyn Fn() -> u32 + Send + Sync> {
        // Counts buffers: a packet in several counts as many until it is harvested.
        let (ring, kept) = (self.ring.watch(), self.view.kept.clone());
        Box::new(move || ring() + kept.load(Ordering::Relaxed))
    }

    fn health(&mut self) -> Health {
        self.transport.health()
    }

    fn arm(&mut self) {
        self.transport.quiet_pin();
        self.ring.listen(true);
    }

    fn disarm(&mut self) {
        self.ring.listen(false);
        self.transport.quiet_pin();
    }

    fn drain(&mut self, frame: &mut dyn FnMut(u32)) {
        for slot in self.kept.drain(..) {
            let index = slot.token() as u32;
            // SAFETY: the slot held the frame, and ends here.
            if unsafe { self.frames.pool().give_index_to_device(index) } {
                frame(index);
            }
        }
        self.ring.book_mut().leave_all(frame);
    }
}

/// Why a run of plain packets ended.
enum Stop {
    /// No more packets, or no room for one.
    Nothing,
    /// Not a packet; its frame, if it is one of the queue's.
    Invalid(Option<u32>),
    /// A packet that is not plain: its first frame, the number of bytes in it, its header.
    Odd(u32, u32, Header),
}

/// Sets the time of a slot.
fn stamp(slot: &mut Slot, time_ns: u64) {
    slot.time_ns = time_ns;
    slot.flags |= u16::from(time_ns != 0) * Slot::TIME;
}

/// Converts the header's checksum flags (§5.1.6.4) to those of slots.
#[inline(always)]
fn checksum_flags(flags: u8) -> u16 {
    const FLAGS: [u16; 4] = [
        0,
        // NEEDS_CSUM: the field contains the sum of the pseudo header; the packet was never on a
        // wire.
        Slot::CHECKSUM_PARTIAL,
        // DATA_VALID.
        Slot::CHECKSUM_GOOD,
        Slot::CHECKSUM_PARTIAL,
    ];
    const { assert!(header::NEEDS_CSUM == 1 && header::DATA_VALID == 2) };
    FLAGS[usize::from(flags & 3)]
}
