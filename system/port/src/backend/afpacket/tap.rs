//! One socket and its receive ring, shared by the thread that reads it and the control side.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sys::Result;
use sys::mmap::Mapping;
use sys::packet::{PacketSocket, RxRing};

use crate::account::{DropReason, QueueAccount, RxCounters};

use super::filter::{Counted, SocketFilter};

/// `struct tpacket_block_desc` with `struct tpacket_hdr_v1`: where things stand in a block.
pub(super) mod block {
    pub(in super::super) const STATUS: usize = 8;
    pub(in super::super) const PACKET_COUNT: usize = 12;
    pub(in super::super) const FIRST_PACKET: usize = 16;
    /// Bytes of the descriptor; the first packet comes after.
    pub(in super::super) const HEADER_LEN: usize = 48;
    /// `TP_STATUS_USER`: the block is ours. Zero: it is the kernel's.
    pub(in super::super) const OURS: u32 = 1;
}

/// `struct tpacket3_hdr` and the `struct sockaddr_ll` after it, in bytes.
pub(super) const PACKET_HEADER_LEN: usize = 48;
pub(super) const PACKET_ADDRESS_LEN: usize = 20;

/// Longest packet that a block takes whole: after both headers, and the kernel aligns the network
/// header to 16.
pub(super) fn packet_len_max(block_len: u32) -> u32 {
    /// `macoff` of Ethernet: TPACKET_ALIGN(48 + 20 + 16) - 14; link headers up to 16 bytes move it
    /// less.
    const DATA_OFFSET: u32 = 96;
    block_len - block::HEADER_LEN as u32 - DATA_OFFSET
}

/// The kernel's counters, added up: reading them starts them anew, and they have 32 bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) packets: u64,
    pub(super) drops: u64,
    pub(super) freezes: u64,
}

/// How many packets the socket's filters have seen, one after the other.
#[derive(Default)]
struct Seen {
    /// By the filters before this one.
    before: u64,
    /// What the socket had taken when this one came.
    packets_before: u64,
    /// This one's own count, where it keeps one.
    counted: Option<Counted>,
}

impl Seen {
    /// All of them, of a socket that has taken this many.
    fn count(&self, packets: u64) -> u64 {
        let since = match &self.counted {
            Some(counted) => counted.seen(),
            None => packets.saturating_sub(self.packets_before),
        };
        // Packets that came while the filter was replaced may be in neither count.
        (self.before + since).max(packets)
    }
}

/// A socket, its ring, and what is known about both.
pub(super) struct Tap {
    // Before the socket: a socket lives as long as its ring is mapped.
    memory: Mapping,
    pub(super) socket: PacketSocket,
    pub(super) block_len: usize,
    pub(super) block_count: usize,
    totals: Mutex<Totals>,
    /// Packets taken out of blocks that have not gone back to the kernel.
    pub(super) walked: AtomicU64,
    /// The interface has been deleted.
    pub(super) gone: AtomicBool,
    seen: Mutex<Seen>,
    /// The reading queue has been dropped.
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

    /// Puts the filter on the socket, in the place of one that is present.
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

    /// Whether the filter counts what it sees.
    pub(super) fn counts_filtered(&self) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.counted.is_some()
    }

    /// First byte of a block.
    ///
    /// # Panics
    /// If there is no such block.
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

    /// Adds the kernel's counters since the last time to the totals, and gives these.
    pub(super) fn totals(&self) -> Result<Totals> {
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        self.add_statistics(&mut totals)?;
        Ok(*totals)
    }

    /// The same, only so that 32 bits do not overflow, and not if another thread is doing it.
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

    /// Packets in the ring that the program has not received, those in the block that the kernel
    /// fills included: the reader sets a block's count to zero when it returns it.
    fn waiting(&self) -> u64 {
        let in_blocks: u64 = (0..self.block_count)
            .map(|index| {
                let count = self.word(index, block::PACKET_COUNT);
                u64::from(count.load(Ordering::Acquire))
            })
            .sum();
        in_blocks.saturating_sub(self.walked.load(Ordering::Acquire))
    }

    /// The queue's account. Exact when nothing moves; while packets flow, what moved between two of
    /// the reads shows as a small imbalance.
    pub(super) fn account(&self, queue_index: u32) -> Result<QueueAccount> {
        let mut account = QueueAccount {
            queue_index,
            ..QueueAccount::default()
        };
        // A few tries for a view in which the reader did not move meanwhile.
        for _ in 0..4 {
            let before = self.counters.delivered.get() + self.counters.filtered.get();
            account.in_flight = self.waiting();
            let totals = self.totals()?;
            // The filter's own count, where it keeps one: all else that it saw, it rejected.
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

    /// Times the ring stood still.
    pub(super) fn freezes(&self) -> u64 {
        let totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        totals.freezes
    }

    /// Ends the intake; what is in the ring stays there.
    pub(super) fn stop(&self) -> Result<()> {
        self.socket.attach_filter(super::filter::REJECT_ALL)
    }

    /// The reader has gone.
    pub(super) fn close(&self) {
        // It fails on a dead socket only, if nothing comes in anyway.
        let _ = self.stop();
        self.closed.store(true, Ordering::Release);
    }
}
