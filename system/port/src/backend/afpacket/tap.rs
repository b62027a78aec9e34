//! One socket and its receive ring, shared by the reading thread and the control side.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sys::Result;
use sys::mmap::Mapping;
use sys::packet::{PacketSocket, RxRing};

use crate::account::{DropReason, QueueAccount, RxCounters};

use super::filter::{Counted, SocketFilter};

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

/// Length of `struct tpacket3_hdr` and the `struct sockaddr_ll` after it.
pub(super) const PACKET_HEADER_LEN: usize = 48;
pub(super) const PACKET_ADDRESS_LEN: usize = 20;

/// Maximum length of a packet that fits into a block: after both headers, with the network header
/// aligned to 16.
pub(super) fn packet_len_max(block_len: u32) -> u32 {
    /// `macoff` of Ethernet: TPACKET_ALIGN(48 + 20 + 16) - 14; shorter link headers up to 16 bytes
    /// move it less.
    const DATA_OFFSET: u32 = 96;
    block_len - block::HEADER_LEN as u32 - DATA_OFFSET
}

/// Sums of the kernel's counters, which have 32 bits and are reset by reading.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) packets: u64,
    pub(super) drops: u64,
    pub(super) freezes: u64,
}

/// Number of packets seen by the socket's successive filters.
#[derive(Default)]
struct Seen {
    /// Seen by earlier filters.
    before: u64,
    /// Packets that the socket had accepted when this filter was set.
    packets_before: u64,
    /// This filter's own count, if it has one.
    counted: Option<Counted>,
}

impl Seen {
    /// The total, for a socket that has accepted this many packets.
    fn count(&self, packets: u64) -> u64 {
        let since = match &self.counted {
            Some(counted) => counted.seen(),
            None => packets.saturating_sub(self.packets_before),
        };
        // Packets that arrived while the filter was replaced may be in neither count.
        (self.before + since).max(packets)
    }
}

/// A socket, its ring, and their state.
pub(super) struct Tap {
    // Before the socket: a socket lives as long as its ring is mapped.
    memory: Mapping,
    pub(super) socket: PacketSocket,
    pub(super) block_len: usize,
    pub(super) block_count: usize,
    totals: Mutex<Totals>,
    /// Packets taken out of blocks that have not been returned to the kernel.
    pub(super) walked: AtomicU64,
    /// Whether the interface has been deleted.
    pub(super) gone: AtomicBool,
    seen: Mutex<Seen>,
    /// Whether the reading queue has been dropped.
    closed: AtomicBool,
    pub(super) counters: Arc<RxCounters>,
}

impl Tap {
    pub(super) fn new(socket: PacketSocket, memory: Mapping, ring: &RxRing) -> Self {
        Self {
            memory,
            socket,
            block_len: ring.block_len as usize,
            block_count: ring.block_count as usize,
            totals: Mutex::default(),
            walked: AtomicU64::new(0),
            gone: AtomicBool::new(false),
            seen: Mutex::default(),
            closed: AtomicBool::new(false),
            counters: Arc::default(),
        }
    }

    /// Sets the socket's filter, replacing the previous one.
    pub(super) fn filter(&self, filter: &SocketFilter) -> Result<()> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let before = seen.count(self.totals()?.packets);
        let counted = filter.attach(&self.socket)?;
        *seen = Seen {
            before,
            packets_before: self.totals()?.packets,
            counted,
        };
        Ok(())
    }

    /// Whether the filter counts the packets that it sees.
    pub(super) fn counts_filtered(&self) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.counted.is_some()
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

    /// Adds the kernel's counters since the last call to the totals, and returns these.
    pub(super) fn totals(&self) -> Result<Totals> {
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        self.add_statistics(&mut totals)?;
        Ok(*totals)
    }

    /// The same, only to prevent 32-bit overflow, and not if another thread is doing it.
    pub(super) fn fold_totals(&self) {
        if let Ok(mut totals) = self.totals.try_lock() {
            // A failure means that the socket is gone, which the next wait reports.
            let _ = self.add_statistics(&mut totals);
        }
    }

    fn add_statistics(&self, totals: &mut Totals) -> Result<()> {
        let new = self.socket.statistics()?;
        totals.packets += u64::from(new.packets);
        totals.drops += u64::from(new.drops);
        totals.freezes += u64::from(new.freezes);
        Ok(())
    }

    /// Packets in the ring that the program has not received, including those in the block that the
    /// kernel is filling: the reader sets a block's count to zero when it returns it.
    fn waiting(&self) -> u64 {
        let in_blocks: u64 = (0..self.block_count)
            .map(|index| {
                let count = self.word(index, block::PACKET_COUNT);
                u64::from(count.load(Ordering::Acquire))
            })
            .sum();
        in_blocks.saturating_sub(self.walked.load(Ordering::Acquire))
    }

    /// The queue's account. Exact if no packets are moving; otherwise packets that moved between
    /// two of the reads appear as a small imbalance.
    pub(super) fn account(&self, queue_index: u32) -> Result<QueueAccount> {
        let mut account = QueueAccount {
            queue_index,
            ..QueueAccount::default()
        };
        // A few attempts at a view during which the reader did not advance.
        for _ in 0..4 {
            let before = self.counters.delivered.get() + self.counters.filtered.get();
            account.in_flight = self.waiting();
            let totals = self.totals()?;
            // The filter's own count, if it has one: it rejected everything else it saw.
            let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            account.seen = seen.count(totals.packets);
            drop(seen);
            let rejected = account.seen.saturating_sub(totals.packets);
            let filtered = self.counters.filtered.get();
            account.dropped[DropReason::Filter as usize] = rejected + filtered;
            account.dropped[DropReason::RingFull as usize] = totals.drops;
            account.delivered = self.counters.delivered.get();
            if account.delivered + filtered == before {
                break;
            }
        }
        account.delivered_bytes = self.counters.delivered_bytes.get();
        account.dropped[DropReason::Invalid as usize] = self.counters.invalid.get();
        if self.closed.load(Ordering::Acquire) {
            let left = std::mem::take(&mut account.in_flight);
            account.dropped[DropReason::Closed as usize] = left;
        }
        Ok(account)
    }

    /// Number of times the ring stood still.
    pub(super) fn freezes(&self) -> u64 {
        let totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        totals.freezes
    }

    /// Stops the intake; the ring keeps its contents.
    pub(super) fn stop(&self) -> Result<()> {
        self.socket.attach_filter(super::filter::REJECT_ALL)
    }

    /// Marks the reader as closed.
    pub(super) fn close(&self) {
        // This fails only on a dead socket, which receives nothing anyway.
        let _ = self.stop();
        self.closed.store(true, Ordering::Release);
    }
}
