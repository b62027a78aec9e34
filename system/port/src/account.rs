//! The loss account: what happened to every packet that the interface saw.
//!
//! For each queue `seen = delivered + passed + Σ dropped + in_flight`. The terms come from
//! different counters (the XDP program's or the kernel's for `seen`, ours for `delivered`), so that
//! the identity is a check and not a definition.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a packet did not reach the program; the index of its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DropReason {
    /// The program was too slow: no room in the ring towards it.
    RingFull,
    /// No free frame had been offered to the kernel or card.
    FillEmpty,
    /// The descriptor or record was wrong (out of range, doubled, too long).
    Invalid,
    /// The pool had no frame left for a copy.
    PoolEmpty,
    /// The filter did not select it.
    Filter,
    /// Larger than a frame, and the socket takes no packets in several pieces.
    TooLong,
    /// The driver or kernel lost it before our hook.
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

/// One queue's account, in packets since the port was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueAccount {
    /// Number of the queue on its interface.
    pub queue_index: u32,
    /// Packets that the hook saw.
    pub seen: u64,
    /// Packets handed to the program.
    pub delivered: u64,
    /// Bytes of them present (not on the wire).
    pub delivered_bytes: u64,
    /// Packets passed to the host because they were not selected.
    pub passed: u64,
    /// Packets lost, by [`DropReason`].
    pub dropped: [u64; DropReason::COUNT],
    /// Packets that wait in a ring (a momentary value).
    pub in_flight: u64,
    /// Of the packets seen in a capture file, those whose stated wire length exceeds
    /// [`MAX_WIRE_LEN`](wire::file::MAX_WIRE_LEN). They count with the bytes present.
    pub wire_len_damaged: u64,
}

impl QueueAccount {
    /// All packets lost. Those a filter rejected are not lost, so they are not in it.
    pub fn lost(&self) -> u64 {
        self.dropped_total() - self.dropped[DropReason::Filter as usize]
    }

    /// All packets dropped, those that a filter rejected included.
    pub fn dropped_total(&self) -> u64 {
        self.dropped.iter().sum()
    }

    /// What is missing from the account (positive) or counted twice (negative): 0 when it adds up.
    pub fn imbalance(&self) -> i64 {
        let known = self.delivered + self.passed + self.dropped_total() + self.in_flight;
        self.seen.wrapping_sub(known) as i64
    }

    /// Adds another queue's account to this one.
    pub fn add(&mut self, other: &Self) {
        self.seen += other.seen;
        self.delivered += other.delivered;
        self.delivered_bytes += other.delivered_bytes;
        self.passed += other.passed;
        self.in_flight += other.in_flight;
        self.wire_len_damaged += other.wire_len_damaged;
        for (sum, value) in self.dropped.iter_mut().zip(other.dropped) {
            *sum += value;
        }
    }
}

/// One sending queue's account, since the port was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxAccount {
    /// Number of the queue on its interface.
    pub queue_index: u32,
    /// Packets that left our hands for the device.
    pub sent: u64,
    /// Bytes of them.
    pub sent_bytes: u64,
    /// Packets that the device or kernel refused (invalid, interface down).
    pub failed: u64,
    /// Packets copied because they were not in this queue's pool.
    pub copied: u64,
}

/// A whole port's account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortAccount {
    /// Receiving queues.
    pub rx: Vec<QueueAccount>,
    /// Interface and queue of each, such as `eth1/0`, where they are of several interfaces; else
    /// empty.
    pub rx_names: Vec<String>,
    /// Sending queues.
    pub tx: Vec<TxAccount>,
    /// Packets that the interface itself counted as received since the port was opened, where it
    /// counts.
    pub interface_seen: Option<u64>,
    /// Packets that the interface or card itself counted as sent since the port was opened, where
    /// it counts; those of other senders on the interface too. In addition to [`TxAccount::sent`],
    /// which is what we handed over.
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

/// A counter that one thread moves and any thread reads: a load and a store, no locked instruction.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds; only the queue's own thread calls this.
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
    /// What a receiving queue's own thread counts, once per batch; the control side reads it at
    /// any time.
    RxCounters {
        /// Packets handed to the program.
        delivered,
        /// Their bytes present.
        delivered_bytes,
        /// Packets that a filter in user space rejected.
        filtered,
        /// Wrong descriptors or records.
        invalid,
        /// Packets for which there was no frame.
        pool_empty,
        /// Packets too long for a frame or slot.
        too_long,
        /// Frames that were detached by copying, because the backend only borrows its memory.
        detach_copies,
        /// Times the thread slept.
        waits,
    }
}

counters! {
    /// What a sending queue's own thread counts, once per batch.
    TxCounters {
        /// Packets handed to the device.
        sent,
        /// Their bytes.
        sent_bytes,
        /// Packets refused.
        failed,
        /// Packets copied from another pool.
        copied,
        /// System calls made to start the device.
        kicks,
    }
}
