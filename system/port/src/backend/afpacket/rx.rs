//! Receiving: walks the blocks that the kernel has filled, and returns each once all its packets
//! are released.

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ring::slot::{Slot, Vlan};
use ring::{Frame, Pool};
use sys::Result;

use crate::options::{PortOptions, TimestampSource};
use crate::rx::{Filled, Ready, RxBackend};

use super::super::clock::now_ns;
use super::super::keep::Keep;
use super::any::{Cook, Cooked, Headers};
use super::blocks::{Blocks, PACKET_HEADER_LEN, block};
use super::tap::{
    KIND_OFFSET, LOOKS_PER_CHECK, OUTGOING, PACKET_ADDRESS_LEN, TPID_DEFAULT, Tap, VLAN_TPID_VALID,
    VLAN_VALID, gone,
};

/// Offset of `sll_pkttype` after a packet's header.
const ADDRESS_KIND: usize = PACKET_HEADER_LEN + KIND_OFFSET;
/// Number of blocks after which the kernel's 32-bit counters are read: at most 2^30 packets of
/// minimum length.
const BLOCKS_PER_FOLD: u32 = 1 << 10;

/// `struct tpacket3_hdr`.
#[derive(Clone, Copy)]
#[repr(C)]
struct PacketHeader {
    next_offset: u32,
    sec: u32,
    nsec: u32,
    cap_len: u32,
    wire_len: u32,
    status: u32,
    mac_offset: u16,
    net_offset: u16,
    hash: u32,
    vlan_tci: u32,
    vlan_tpid: u16,
    padding: [u8; 10],
}

const _: () = assert!(size_of::<PacketHeader>() == PACKET_HEADER_LEN);

/// The reading side of a tap.
pub(super) struct Rx {
    tap: Arc<Tap<Blocks>>,
    /// Block being walked, or the next one.
    current: usize,
    /// Offset of the next packet in the block.
    at: usize,
    /// Packets left in it; zero while the kernel owns it.
    left: u32,
    /// Number of blocks walked completely and not returned, all before `current`.
    walked_blocks: usize,
    /// Packets walked in blocks that were not returned.
    walked: u64,
    /// Number of slots held by the program.
    borrowed: usize,
    snaplen: u32,
    time: TimestampSource,
    hash: bool,
    looks: u32,
    blocks: u32,
    is_down: bool,
    keep: Keep,
    /// Builds cooked headers, for `any` and on request.
    cook: Option<Cook>,
}

impl Rx {
    pub(super) fn new(
        tap: Arc<Tap<Blocks>>,
        time: TimestampSource,
        pool: Arc<OnceLock<Pool>>,
        options: &PortOptions,
        cook: Option<Cook>,
    ) -> Self {
        let snaplen = if options.snaplen == 0 {
            u32::MAX
        } else {
            options.snaplen
        };
        let keep = Keep::new(pool, tap.counters.clone());
        Self {
            tap,
            current: 0,
            at: 0,
            left: 0,
            walked_blocks: 0,
            walked: 0,
            borrowed: 0,
            snaplen,
            time,
            hash: options.rss_hash,
            looks: 0,
            blocks: 0,
            is_down: false,
            keep,
            cook,
        }
    }

    /// Whether the next block is ready.
    #[inline]
    fn is_ready(&self) -> bool {
        if self.left != 0 {
            return true;
        }
        // All blocks are walked and held: the status of the next one is stale.
        if self.walked_blocks == self.tap.ring.block_count {
            return false;
        }
        // Acquire: the kernel wrote the block's contents before its status.
        let status = self.tap.ring.word(self.current, block::STATUS);
        status.load(Ordering::Acquire) & block::OURS != 0
    }

    /// Opens the next block if it is ready.
    #[inline]
    fn open_block(&mut self) -> bool {
        if !self.is_ready() {
            return false;
        }
        let ring = &self.tap.ring;
        let word = |offset| ring.word(self.current, offset).load(Ordering::Relaxed);
        self.left = word(block::PACKET_COUNT);
        self.at = word(block::FIRST_PACKET) as usize;
        if self.left == 0 {
            self.close_block();
        }
        true
    }

    /// Moves to the next block; the walked one is returned with the next release.
    #[inline]
    fn close_block(&mut self) {
        self.left = 0;
        self.walked_blocks += 1;
        self.current += 1;
        if self.current == self.tap.ring.block_count {
            self.current = 0;
        }
    }

    /// Creates slots for up to `max` packets of the current block.
    #[inline]
    fn walk<const COOKED: bool>(&mut self, slots: &mut Vec<Slot>, max: usize, now_ns: u64) {
        let base = self.tap.ring.block(self.current);
        let block_len = self.tap.ring.block_len;
        let mut at = self.at;
        let count = (self.left as usize).min(max);
        slots.reserve(count);
        for _ in 0..count {
            if at + PACKET_HEADER_LEN + PACKET_ADDRESS_LEN > block_len {
                return self.refuse_rest();
            }
            // SAFETY: header and address lie within the block, checked above; any bits are a
            // header; the kernel does not write a block that is ours.
            let (header, kind) = unsafe {
                let place = base.add(at);
                let header = place.cast::<PacketHeader>().read_unaligned();
                (header, place.add(ADDRESS_KIND).read())
            };
            let start = at + usize::from(header.mac_offset);
            if start + header.cap_len as usize > block_len
                || (header.next_offset as usize) < PACKET_HEADER_LEN && self.left > 1
            {
                return self.refuse_rest();
            }
            // SAFETY: `start` is within the block.
            let data = unsafe { base.add(start) };
            let slot = self.slot(data, &header, kind, now_ns);
            if COOKED {
                // SAFETY: `at` is the header's place in the block, as above.
                unsafe { self.cook(base.add(at), &header, slot, slots) };
            } else {
                slots.push(slot);
            }
            at += header.next_offset as usize;
            self.left -= 1;
            self.walked += 1;
        }
        self.at = at;
        if self.left == 0 {
            self.close_block();
        }
    }

    /// Adds a packet with a cooked header.
    ///
    /// # Safety
    /// As [`Cook::cook`].
    unsafe fn cook(
        &self,
        place: NonNull<u8>,
        header: &PacketHeader,
        slot: Slot,
        slots: &mut Vec<Slot>,
    ) {
        let Some(cook) = &self.cook else { return };
        let headers = Headers {
            header_len: PACKET_HEADER_LEN,
            mac_offset: header.mac_offset,
            net_offset: header.net_offset,
            cap_len: header.cap_len,
            wire_len: header.wire_len,
        };
        // SAFETY: the caller's.
        match unsafe { cook.cook(place, headers, &slot) } {
            Cooked::Packet(slot) => slots.push(slot),
            Cooked::Twice => self.tap.counters.filtered.add(1),
            Cooked::Invalid => self.tap.counters.invalid.add(1),
        }
    }

    #[inline(always)]
    fn slot(&self, data: NonNull<u8>, header: &PacketHeader, kind: u8, now_ns: u64) -> Slot {
        let cap_len = header.cap_len.min(self.snaplen);
        // SAFETY: the caller checked that the packet lies within its block, which stays ours until
        // `release`.
        let mut slot = unsafe { Slot::over(data, cap_len, header.wire_len, 0) };
        slot.time_ns = match self.time {
            TimestampSource::Batch => now_ns,
            _ => u64::from(header.sec) * 1_000_000_000 + u64::from(header.nsec),
        };
        if self.time != TimestampSource::None {
            slot.flags = Slot::TIME;
        }
        if kind == OUTGOING {
            slot.flags |= Slot::OUTGOING;
        }
        if header.status & VLAN_VALID != 0 {
            let tpid = if header.status & VLAN_TPID_VALID != 0 {
                header.vlan_tpid
            } else {
                TPID_DEFAULT
            };
            slot.vlan = Vlan {
                tpid,
                tci: header.vlan_tci as u16,
            };
            slot.flags |= Slot::VLAN;
        }
        if self.hash {
            slot.set_rss_hash(header.hash);
        }
        slot
    }

    /// The block does not match its descriptor: the rest of it is dropped and counted.
    #[cold]
    fn refuse_rest(&mut self) {
        self.tap.counters.invalid.add(self.left.into());
        self.walked += u64::from(self.left);
        self.close_block();
    }

    /// Returns all walked blocks to the kernel.
    fn return_blocks(&mut self) {
        let count = self.tap.ring.block_count;
        let mut index = (self.current + count - self.walked_blocks) % count;
        for _ in 0..self.walked_blocks {
            // Zero, so that the account can see what is pending in the ring; the kernel writes it
            // again.
            let packets = self.tap.ring.word(index, block::PACKET_COUNT);
            self.walked -= u64::from(packets.swap(0, Ordering::Relaxed)).min(self.walked);
            // Release: reads of the block complete before the kernel writes it again.
            let status = self.tap.ring.word(index, block::STATUS);
            status.store(0, Ordering::Release);
            index = if index + 1 == count { 0 } else { index + 1 };
        }
        self.blocks += self.walked_blocks as u32;
        self.walked_blocks = 0;
        self.tap.ring.walked.store(self.walked, Ordering::Release);
        if self.blocks >= BLOCKS_PER_FOLD {
            self.blocks = 0;
            self.tap.fold_totals();
        }
    }

    /// Whether the kernel is filling the next block, and will hand it over.
    fn is_block_begun(&self) -> bool {
        let count = self.tap.ring.word(self.current, block::PACKET_COUNT);
        self.walked_blocks < self.tap.ring.block_count && count.load(Ordering::Relaxed) != 0
    }

    /// Checks whether the interface still exists.
    ///
    /// # Errors
    /// `Gone`, once all earlier packets have been read.
    fn check_gone(&self) -> Result<()> {
        let is_any = self.cook.as_ref().is_some_and(Cook::is_any);
        if self.tap.is_gone(is_any) && !self.is_ready() && !self.is_block_begun() {
            return Err(gone());
        }
        Ok(())
    }
}

impl RxBackend for Rx {
    fn fill(&mut self, slots: &mut Vec<Slot>, max: usize) -> Result<Filled> {
        // Checked before the clock is read: a block that is filled between two checks would have
        // time 0. Those that are filled during the walk have the batch's time.
        let is_ready = self.is_ready();
        let now_ns = match self.time {
            TimestampSource::Batch if is_ready => now_ns(libc::CLOCK_REALTIME),
            _ => 0,
        };
        let start = slots.len();
        while is_ready && slots.len() - start < max && (self.left != 0 || self.open_block()) {
            let room = max - (slots.len() - start);
            if self.left != 0 {
                match self.cook {
                    None => self.walk::<false>(slots, room, now_ns),
                    Some(_) => self.walk::<true>(slots, room, now_ns),
                }
            }
        }
        self.borrowed += slots.len() - start;
        if slots.len() > start {
            self.is_down = false;
            self.tap.ring.walked.store(self.walked, Ordering::Release);
            return Ok(Filled::of(&slots[start..]));
        }
        if self.walked_blocks != 0 && self.borrowed == 0 {
            // Blocks without a valid packet.
            self.return_blocks();
        }
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOKS_PER_CHECK) || self.tap.gone.load(Ordering::Relaxed) {
            self.check_gone()?;
        }
        Ok(Filled::default())
    }

    #[inline]
    fn release(&mut self, slots: &mut Vec<Slot>) {
        self.borrowed -= slots.len();
        slots.clear();
        if self.borrowed == 0 && self.walked_blocks != 0 {
            self.return_blocks();
        }
    }

    fn detach(&mut self, slot: &mut Slot) -> Result<Frame> {
        // SAFETY: the slot's block is ours until release.
        unsafe { self.keep.copy(slot) }
    }

    fn wait(&mut self, timeout: Duration) -> Result<Ready> {
        let mut is_down = self.is_down;
        let ready = self.tap.wait(
            timeout,
            &mut is_down,
            || self.is_ready(),
            || self.check_gone(),
        );
        self.is_down = is_down;
        ready
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.tap.socket.as_fd())
    }

    fn pool(&self) -> Option<&Pool> {
        self.keep.pool()
    }

    /// A block is handed over when it is full or its time is up.
    fn gathers(&self) -> bool {
        true
    }
}

impl Drop for Rx {
    fn drop(&mut self) {
        self.tap.close();
    }
}
