//! The loss account: what happened to every packet that the interface saw.
//!
//! For each queue `seen = delivered + passed + Σ dropped + in_flight`. The terms come from
//! different counters (`seen` from the XDP program or the kernel, `delivered` from the queue), so
//! the identity is a check and not a definition.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a packet did not reach the program; index of its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DropReason {
    /// The program was too slow: its ring had no room.
    RingFull,
    /// The kernel or card had no free frame.
    FillEmpty,
    /// The descriptor or record was invalid (out of range, duplicate, too long).
    Invalid,
    /// The pool had no frame left for a copy.
    PoolEmpty,
    /// The filter rejected it.
    Filter,
    /// Longer than a frame, and the socket does not support multi-buffer packets.
    TooLong,
    /// The driver or kernel lost it before the hook.
    Interface,
    /// It was still in a ring when the port was closed.
    Closed,
}

impl DropReason {
    /// Number of reasons.
    pub const COUNT: usize = 8;
    /// All reasons, in the order of their counters.
    pub const ALL: [Self; Self::COUNT] = [
        Self::RingFull,
        Self::FillEmpty,
        Self::Invalid,
        Self::PoolEmpty,
        Self::Filter,
        Self::TooLong,
        Self::Interface,
        Self::Closed,
    ];

    /// The name in reports and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::RingFull => "ring_full",
            Self::FillEmpty => "fill_empty",
            Self::Invalid => "invalid",
            Self::PoolEmpty => "pool_empty",
            Self::Filter => "filter",
            Self::TooLong => "too_long",
            Self::Interface => "interface",
            Self::Closed => "closed",
        }
    }
}

/// Account of one queue, in packets since the port was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueAccount {
    /// Number of the queue on its interface.
    pub queue_index: u32,
    /// Packets seen by the hook.
    pub seen: u64,
    /// Packets delivered to the program.
    pub delivered: u64,
    /// Captured bytes of the delivered packets (not those on the wire).
    pub delivered_bytes: u64,
    /// Packets passed to the host because they were not selected.
    pub passed: u64,
    /// Packets lost, by [`DropReason`].
    pub dropped: [u64; DropReason::COUNT],
    /// Packets waiting in a ring (a momentary value).
    pub in_flight: u64,
    /// Of the packets seen in a capture file, those whose stated wire length exceeds
    /// [`MAX_WIRE_LEN`](wire::file::MAX_WIRE_LEN). They are counted with the captured length.
    pub wire_len_damaged: u64,
    /// Of the packets seen in a capture file, those from before 1970 or after 2554. They have the
    /// first or the last time of that range.
    pub time_clamped: u64,
    /// Of the packets seen in a capture file, those without a time (pcapng's Simple Packet Blocks).
    pub time_missing: u64,
    /// Of the packets that the filter rejected, those of a link type on which it cannot be used.
    pub filter_unsuitable: u64,
    /// Packets that a capture file says its capture lost: they are in none of the other numbers.
    pub capture_lost: u64,
}

impl QueueAccount {
    /// All packets lost, except those rejected by a filter.
    pub fn lost(&self) -> u64 {
        self.dropped_total() - self.dropped[DropReason::Filter as usize]
    }

    /// All packets dropped, including those rejected by a filter.
    pub fn dropped_total(&self) -> u64 {
        self.dropped.iter().sum()
    }

    /// Number of packets missing from the account (positive) or counted twice (negative); 0 if it
    /// adds up.
    pub fn imbalance(&self) -> i64 {
        let known = self.delivered + self.passed + self.dropped_total() + self.in_flight;
        self.seen.wrapping_sub(known) as i64
    }

    /// Adds the account of another queue.
    pub fn add(&mut self, other: &Self) {
        self.seen += other.seen;
        self.delivered += other.delivered;
        self.delivered_bytes += other.delivered_bytes;
        self.passed += other.passed;
        self.in_flight += other.in_flight;
        self.wire_len_damaged += other.wire_len_damaged;
        self.time_clamped += other.time_clamped;
        self.time_missing += other.time_missing;
        self.filter_unsuitable += other.filter_unsuitable;
        self.capture_lost += other.capture_lost;
        for (sum, value) in self.dropped.iter_mut().zip(other.dropped) {
            *sum += value;
        }
    }
}

/// Account of one sending queue since the port was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxAccount {
    /// Number of the queue on its interface.
    pub queue_index: u32,
    /// Packets handed to the device.
    pub sent: u64,
    /// Bytes of the packets handed over.
    pub sent_bytes: u64,
    /// Packets that the device or kernel refused (invalid, interface down).
    pub failed: u64,
    /// Packets copied because they were not in this queue's pool.
    pub copied: u64,
}

/// Account of a whole port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortAccount {
    /// Receiving queues.
    pub rx: Vec<QueueAccount>,
    /// Interface and queue of each, such as `eth1/0`, if there are several interfaces; otherwise
    /// empty.
    pub rx_names: Vec<String>,
    /// Sending queues.
    pub tx: Vec<TxAccount>,
    /// Packets that the interface itself counted as received since the port was opened, if it
    /// counts.
    pub interface_seen: Option<u64>,
    /// Packets that the interface or card itself counted as sent since the port was opened, if it
    /// counts; includes those of other senders on the interface. [`TxAccount::sent`] is what the
    /// port handed over.
    pub interface_sent: Option<u64>,
}

impl PortAccount {
    /// Sum over the receiving queues.
    pub fn rx_total(&self) -> QueueAccount {
        let mut total = QueueAccount::default();
        for queue in &self.rx {
            total.add(queue);
        }
        total
    }

    /// Sum over the sending queues.
    pub fn tx_total(&self) -> TxAccount {
        let mut total = TxAccount::default();
        for queue in &self.tx {
            total.sent += queue.sent;
            total.sent_bytes += queue.sent_bytes;
            total.failed += queue.failed;
            total.copied += queue.copied;
        }
        total
    }
}

macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct $name { $($(#[$field_doc])* pub $field: Counter,)* }
    };
}

/// A counter that one thread updates and any thread reads: a load and a store, no locked
/// instruction.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to the counter; only the queue's own thread calls this.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.store(
            self.0.load(Ordering::Relaxed).wrapping_add(count),
            Ordering::Relaxed,
        );
    }

    /// Reads.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

counters! {
    /// Counters updated by a receiving queue's own thread, once per batch; the control side reads
    /// them at any time.
    RxCounters {
        /// Packets delivered to the program.
        delivered,
        /// Captured bytes of these.
        delivered_bytes,
        /// Packets rejected by a filter in user space.
        filtered,
        /// Invalid descriptors or records.
        invalid,
        /// Packets dropped because no frame was free.
        pool_empty,
        /// Packets too long for a frame or slot.
        too_long,
        /// Packets detached by copying, because the backend cannot give its memory away.
        detach_copies,
        /// Number of times the thread slept.
        waits,
    }
}

counters! {
    /// Counters updated by a sending queue's own thread, once per batch.
    TxCounters {
        /// Packets handed to the device.
        sent,
        /// Bytes of these.
        sent_bytes,
        /// Packets refused.
        failed,
        /// Packets copied from another pool.
        copied,
        /// System calls made to start the device.
        kicks,
    }
}
