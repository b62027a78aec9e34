//! The configuration of a probe, and its memory use.

use std::sync::Arc;
use std::time::Duration;

use bpf::cbpf::Program;
use flow::tally::Tally;
use flow::top::{Order, TopScan};
use flow::{EndReason, HashKey, MeterConfig, OwnedExtra, Record, Sampling};
use inspect::InspectorConfig;

use super::collector::HALF_COUNT_MAX;
use super::ndpi;
use super::outbox::{BUFFER_COUNT, BUFFER_LEN};
use crate::Pacing;

/// The configuration of a probe.
#[derive(Clone, Debug)]
pub struct Config {
    /// Table, key and timeouts of each queue.
    pub meter: MeterConfig,
    /// What workers do while idle.
    pub pacing: Pacing,
    /// Processors to pin workers to, by queue in turn. If empty, workers are pinned if there are
    /// several and enough processors.
    pub cpus: Vec<usize>,
    /// Stop after this many packets.
    pub count: Option<u64>,
    /// Stop after this long.
    pub duration: Option<Duration>,
    /// Which records are passed to the outlet.
    pub record_sampling: Sampling,
    /// Number of largest flows to keep sums of.
    pub top_count: usize,
    /// What the largest flows are ordered by.
    pub order: Order,
    /// Number of largest live flows in [`QueueStatus::live`](super::QueueStatus::live); 0 disables
    /// the search.
    pub live_count: usize,
    /// Decoders for the first packets of flows, per queue.
    pub applications: Option<InspectorConfig>,
    /// With [`Config::applications`]: also use libndpi, with room to inspect this many flows at
    /// once.
    pub ndpi_flow_count: Option<u32>,
    /// A filter that runs in the workers and can be changed by
    /// [`Switch::select`](super::Switch::select); not possible with [`Config::count`] or an egress.
    pub filter: Option<Arc<Program>>,
    /// Whether to count packets and bytes over time
    /// ([`QueueStatus::series`](super::QueueStatus::series)).
    pub series: bool,
    /// Whether to sum up packets and bytes by application, of live flows too
    /// ([`QueueStatus::by_application`](super::QueueStatus::by_application)).
    pub by_application: bool,
}

impl Config {
    /// The default: all packets, keyed by addresses, ports and protocol; with more than four
    /// queues, tables that share room for four million flows; timeouts of 30 and 300 seconds.
    pub fn new(queue_count: usize) -> Config {
        let mut meter = MeterConfig::new(secret());
        meter.table.flow_count_max = default_size(queue_count);
        Config {
            meter,
            pacing: Pacing::default(),
            cpus: Vec::new(),
            count: None,
            duration: None,
            record_sampling: Sampling::All,
            top_count: 1,
            order: Order::default(),
            live_count: 0,
            applications: None,
            ndpi_flow_count: None,
            filter: None,
            series: false,
            by_application: false,
        }
    }

    /// Memory in bytes that the probe takes with this number of queues, excluding the port's own.
    pub fn memory_len(&self, queue_count: usize) -> usize {
        let extra = self.meter.flow_len() - size_of::<Record>();
        let buffers = BUFFER_COUNT * BUFFER_LEN * (size_of::<(Record, EndReason)>() + extra);
        // A map keeps an eighth of its slots free and doubles; so twice the entries, plus the
        // queue.
        let halves = if queue_count > 1 {
            HALF_COUNT_MAX * (2 * (size_of::<Record>() + size_of::<OwnedExtra>() + 104) + 2 * 88)
        } else {
            0
        };
        let applications = self.applications.as_ref().map_or(0, |config| {
            let known = size_of::<inspect::Application>() + inspect::LOG_LEN;
            config.memory_len() + BUFFER_COUNT * BUFFER_LEN * known
        });
        let ndpi = match (&self.applications, self.ndpi_flow_count) {
            (Some(config), Some(count)) => ndpi::memory_len(config, count),
            _ => 0,
        };
        let scan = match self.live_count {
            0 => 0,
            _ => TopScan::memory_len(self.meter.table.flow_count_max),
        };
        let tally = match self.by_application {
            true => Tally::memory_len(self.meter.table.flow_count_max),
            false => 0,
        };
        let queue = self.meter.memory_len() + buffers + applications + ndpi + scan + tally;
        queue_count * queue + halves
    }
}

/// Default number of flows per queue: a card with many queues must not take all memory.
fn default_size(queue_count: usize) -> u32 {
    const ONE: u32 = 1 << 20;
    ONE.min(4 * ONE / queue_count.max(1) as u32)
}

/// 64 unpredictable bytes: the standard library's keyed hash, whose key comes from the system.
pub(crate) fn secret() -> HashKey {
    use std::hash::BuildHasher;
    let random = std::hash::RandomState::new();
    let mut bytes = [0; 64];
    for (at, chunk) in bytes.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&random.hash_one(at).to_le_bytes());
    }
    HashKey::from_bytes(&bytes)
}
