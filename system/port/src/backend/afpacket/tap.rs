//! One socket and its receive ring, shared by the reading thread and the control side.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sys::packet::PacketSocket;
use sys::{Error, ErrorKind, Result};

use crate::account::{DropReason, QueueAccount, RxCounters};
use crate::rx::Ready;

use super::filter::{Counted, SocketFilter};

/// Length of the `struct sockaddr_ll` between the header of a packet and the packet.
pub(super) const PACKET_ADDRESS_LEN: usize = 20;
/// Bits of a packet's status (`TP_STATUS_`).
pub(super) const VLAN_VALID: u32 = 1 << 4;
pub(super) const VLAN_TPID_VALID: u32 = 1 << 6;
/// 802.1Q, for kernels that do not report the tag's protocol (before 3.14).
pub(super) const TPID_DEFAULT: u16 = 0x8100;
/// `PACKET_OUTGOING`, in `sll_pkttype`, which is at this offset in the address.
pub(super) const OUTGOING: u8 = 4;
pub(super) const KIND_OFFSET: usize = 10;

/// A reader that never sleeps checks whether the interface still exists once per this many empty
/// polls.
pub(super) const LOOKS_PER_CHECK: u32 = 1 << 16;
/// Longest sleep while the link is down, since the kernel does not report deletion then.
const DOWN_SLICE: Duration = Duration::from_millis(20);

/// A ring of packets that the kernel writes.
pub(super) trait Ring {
    /// Packets in it that the reader has not taken.
    fn waiting(&self) -> u64;
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
pub(super) struct Tap<R> {
    // Before the socket: a socket lives as long as its ring is mapped.
    pub(super) ring: R,
    pub(super) socket: PacketSocket,
    totals: Mutex<Totals>,
    /// Whether the interface has been deleted.
    pub(super) gone: AtomicBool,
    seen: Mutex<Seen>,
    /// Whether the reading queue has been dropped.
    closed: AtomicBool,
    pub(super) counters: Arc<RxCounters>,
}

impl<R: Ring> Tap<R> {
    pub(super) fn new(socket: PacketSocket, ring: R) -> Self {
        Self {
            ring,
            socket,
            totals: Mutex::default(),
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
            account.in_flight = self.ring.waiting();
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

    /// Sleeps until `is_ready`, at most `timeout`; `check_gone` fails once the interface has been
    /// deleted. `is_down` is whether the link is, as far as the reader knows.
    pub(super) fn wait(
        &self,
        timeout: Duration,
        is_down: &mut bool,
        is_ready: impl Fn() -> bool,
        check_gone: impl Fn() -> Result<()>,
    ) -> Result<Ready> {
        let started = Instant::now();
        loop {
            if is_ready() {
                return Ok(Ready::Packets);
            }
            let left = timeout.saturating_sub(started.elapsed());
            let slice = if *is_down { left.min(DOWN_SLICE) } else { left };
            let poll = self.socket.poll(false, slice)?;
            if poll.error && self.socket.take_error() == Some(libc::ENETDOWN) {
                *is_down = true;
            }
            if is_ready() {
                return Ok(Ready::Packets);
            }
            if !poll.readable {
                check_gone()?;
                if left == slice || poll.interrupted {
                    return Ok(Ready::Timeout);
                }
            } else if left.is_zero() {
                return Ok(Ready::Timeout);
            }
        }
    }

    /// Whether the interface has been deleted, if it is one.
    pub(super) fn is_gone(&self, is_any: bool) -> bool {
        if !is_any && self.socket.bound_interface().is_none() {
            self.gone.store(true, Ordering::Release);
        }
        self.gone.load(Ordering::Acquire)
    }
}

/// The error of a queue whose interface has been deleted.
#[cold]
pub(super) fn gone() -> Error {
    let why = "the interface has been deleted";
    Error::new(ErrorKind::Gone, "receive packets", why)
}
