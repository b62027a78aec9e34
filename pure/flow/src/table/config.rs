//! Configuration of a table, and its counters.

use crate::expire::{EndReason, Timeouts};

/// Configuration of a table.
#[derive(Clone, Copy, Debug)]
pub struct TableConfig {
    /// Maximum number of concurrent flows: at least 1 and at most 2^28.
    pub flow_count_max: u32,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// Amount of data recorded per flow.
    pub profile: Profile,
    /// Whether the two directions of a connection are separate flows.
    pub uniflow: bool,
    /// Called with address and length of each large memory area when it is reserved, before it is
    /// touched: allows requesting large pages from the system.
    pub reserved: fn(usize, usize),
    /// Called twice per batch with addresses in that memory that will be read soon: allows the use
    /// of a prefetch instruction, which this crate without unsafe code cannot do. Without it they
    /// are read at once.
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

/// Amount of data recorded per flow. Each profile is compiled separately, so there is no test per
/// packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Packets, bytes, times and TCP flags.
    Counters,
    /// All of [`Counters`](crate::Counters).
    #[default]
    Standard,
}

/// The system cannot provide enough memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Requested memory in bytes.
    pub len: usize,
}

impl std::fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the flow table needs {} MiB of memory", self.len >> 20)
    }
}

impl std::error::Error for OutOfMemory {}

/// Counters of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableStats {
    /// Packets passed to the table.
    pub packets: u64,
    /// Packets in records of ended flows.
    pub packets_ended: u64,
    /// Flows begun.
    pub flows: u64,
    /// Flows ended, by [`EndReason`].
    pub ended: [u64; EndReason::COUNT],
    /// Of the flows that ended for lack of resources: those for which the lines were full while
    /// records were still free.
    pub crowded: u64,
    /// Packets whose time was before the table's clock.
    pub late: u64,
    /// Number of times the clock was set back, because only packets far before it arrived.
    pub set_back: u64,
    /// Active flows.
    pub live: u64,
}

impl TableStats {
    /// Adds the counters of another table.
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
