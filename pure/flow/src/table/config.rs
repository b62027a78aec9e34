//! The configuration of a table, and its counters.

use crate::expire::{EndReason, Timeouts};

/// How a table is made.
#[derive(Clone, Copy, Debug)]
pub struct TableConfig {
    /// Flows at once, at least 1 and at most 2^28.
    pub flow_count_max: u32,
    /// When flows end.
    pub timeouts: Timeouts,
    /// What is recorded of a flow.
    pub profile: Profile,
    /// Whether the two directions of a connection are flows of their own.
    pub uniflow: bool,
    /// Called with address and length of each large piece of memory when it is reserved, before it
    /// is touched: the place to ask the system for large pages.
    pub reserved: fn(usize, usize),
    /// Called twice a batch with addresses in that memory that will be read soon: the place for an
    /// instruction that this crate, without unsafe code, has not. Without it they are read at
    /// once.
    pub prefetch: Option<fn(&[usize])>,
}

impl Default for TableConfig {
    /// 2^20 flows: 192 MiB.
    fn default() -> Self {
        TableConfig {
            flow_count_max: 1 << 20,
            timeouts: Timeouts::default(),
            profile: Profile::Standard,
            uniflow: false,
            reserved: |_, _| {},
            prefetch: None,
        }
    }
}

/// What is recorded of a flow. Each profile is compiled separately, so there is no test per packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Packets, bytes, times and TCP flags.
    Counters,
    /// All of [`Counters`](crate::Counters).
    #[default]
    Standard,
}

/// The system does not give so much memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Bytes wanted.
    pub len: usize,
}

impl std::fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the flow table needs {} MiB of memory", self.len >> 20)
    }
}

impl std::error::Error for OutOfMemory {}

/// The counters of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableStats {
    /// Packets given.
    pub packets: u64,
    /// Packets in records of ended flows.
    pub packets_ended: u64,
    /// Flows begun.
    pub flows: u64,
    /// Flows ended, by [`EndReason`].
    pub ended: [u64; EndReason::COUNT],
    /// Of those that ended for lack of resources: because the lines were full while records were
    /// still free.
    pub crowded: u64,
    /// Packets whose time was before the table's clock.
    pub late: u64,
    /// How often the clock was set back, because only packets far before it came.
    pub set_back: u64,
    /// Flows in the table now.
    pub live: u64,
}

impl TableStats {
    /// Adds another table's counts.
    pub fn add(&mut self, other: &TableStats) {
        self.packets += other.packets;
        self.packets_ended += other.packets_ended;
        self.flows += other.flows;
        for (sum, count) in self.ended.iter_mut().zip(other.ended) {
            *sum += count;
        }
        self.crowded += other.crowded;
        self.late += other.late;
        self.set_back += other.set_back;
        self.live += other.live;
    }
}
