//! The ring of TPACKET_V3: the kernel copies packets one after another into blocks, and hands over
//! a block when it is full or its time is up.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sys::mmap::Mapping;
use sys::packet::RxRing;

use super::tap::Ring;

/// Offsets in a block: `struct tpacket_block_desc` with `struct tpacket_hdr_v1`.
pub(super) mod block {
    pub(in super::super) const STATUS: usize = 8;
    pub(in super::super) const PACKET_COUNT: usize = 12;
    pub(in super::super) const FIRST_PACKET: usize = 16;
    /// Length of the descriptor; the first packet follows.
    pub(in super::super) const HEADER_LEN: usize = 48;
    /// `TP_STATUS_USER`: user space owns the block. Zero: the kernel owns it.
    pub(in super::super) const OURS: u32 = 1;
}

/// Length of `struct tpacket3_hdr`; the `struct sockaddr_ll` follows.
pub(super) const PACKET_HEADER_LEN: usize = 48;

/// Maximum length of a packet that fits into a block: after both headers, with the network header
/// aligned to 16.
pub(super) fn packet_len_max(block_len: u32) -> u32 {
    /// `macoff` of Ethernet: TPACKET_ALIGN(48 + 20 + 16) - 14; shorter link headers up to 16 bytes
    /// move it less.
    const DATA_OFFSET: u32 = 96;
    block_len - block::HEADER_LEN as u32 - DATA_OFFSET
}

/// A mapped ring.
pub(super) struct Blocks {
    memory: Mapping,
    pub(super) block_len: usize,
    pub(super) block_count: usize,
    /// Packets taken out of blocks that have not been returned to the kernel.
    pub(super) walked: AtomicU64,
}

impl Blocks {
    pub(super) fn new(memory: Mapping, ring: &RxRing) -> Self {
        Self {
            memory,
            block_len: ring.block_len as usize,
            block_count: ring.block_count as usize,
            walked: AtomicU64::new(0),
        }
    }

    /// Address of a block.
    ///
    /// # Panics
    /// If the block does not exist.
    #[inline]
    pub(super) fn block(&self, index: usize) -> NonNull<u8> {
        assert!(index < self.block_count, "a block of the ring");
        // SAFETY: the mapping is block_count times block_len bytes long.
        unsafe { self.memory.base().add(index * self.block_len) }
    }

    /// A word of a block's descriptor that the kernel may write at any time.
    #[inline]
    pub(super) fn word(&self, index: usize, offset: usize) -> &AtomicU32 {
        debug_assert!(offset + 4 <= block::HEADER_LEN && offset.is_multiple_of(4));
        // SAFETY: within the block, aligned since blocks are whole pages, and only accessed
        // atomically by us; the mapping lives as long as `self`.
        unsafe { self.block(index).add(offset).cast().as_ref() }
    }
}

impl Ring for Blocks {
    /// Including those in the block that the kernel is filling: the reader sets a block's count to
    /// zero when it returns it.
    fn waiting(&self) -> u64 {
        let in_blocks: u64 = (0..self.block_count)
            .map(|index| {
                let count = self.word(index, block::PACKET_COUNT);
                u64::from(count.load(Ordering::Acquire))
            })
            .sum();
        in_blocks.saturating_sub(self.walked.load(Ordering::Acquire))
    }
}
