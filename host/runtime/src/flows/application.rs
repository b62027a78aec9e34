//! Connects the decoders to the flow table: results from the first packets are exported with the
//! record.

use std::sync::{Arc, Mutex};

use flow::{Inspect, Observed, Record, Side};
use inspect::{Application, Inspector, InspectorConfig, InspectorStats, Protocol};

use super::lock;
use super::ndpi::NdpiStats;

/// Calls after which the counters are published.
const PUBLISH: u32 = 1024;

/// Counts of a worker's decoders and libndpi.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) decoders: InspectorStats,
    pub(super) ndpi: NdpiStats,
}

/// The decoders of one worker.
pub(super) struct Applications {
    inspector: Inspector,
    /// Counters for the worker; updated from time to time, and at the end.
    stats: Arc<Mutex<Counts>>,
    calls: u32,
    /// Applications whose packets are forwarded; `None`: no selection.
    wanted: Vec<Protocol>,
}

impl Applications {
    pub(super) fn new(
        config: &InspectorConfig,
        stats: Arc<Mutex<Counts>>,
        wanted: Vec<Protocol>,
    ) -> Self {
        Self {
            inspector: Inspector::new(config),
            stats,
            calls: 0,
            wanted,
        }
    }

    pub(super) fn publish_ndpi(&self, stats: NdpiStats) {
        lock(&self.stats).ndpi = stats;
    }

    fn called(&mut self) {
        self.calls += 1;
        if self.calls >= PUBLISH {
            self.publish();
        }
    }

    fn publish(&mut self) {
        self.calls = 0;
        lock(&self.stats).decoders = self.inspector.stats();
    }
}

impl Inspect for Applications {
    fn packet(
        &mut self,
        handle: &mut u32,
        nth: u8,
        flow: (&Record, Side),
        packet: &Observed,
        payload: &[u8],
    ) -> bool {
        let inspector = &mut self.inspector;
        let continues = Inspect::packet(inspector, handle, nth, flow, packet, payload);
        self.called();
        continues
    }

    fn begins(&mut self, handle: &mut u32, is_initiator: bool, sequence: u32) {
        self.inspector.begins(handle, is_initiator, sequence);
        self.called();
    }

    fn rest(&mut self, handle: &mut u32) {
        self.inspector.rest(handle);
        self.called();
    }

    fn wants(&self, handle: u32) -> Option<bool> {
        if self.wanted.is_empty() {
            return None;
        }
        match self
            .inspector
            .application(handle)
            .map(Application::protocol)
        {
            Some(protocol) if protocol != Protocol::Unknown => {
                Some(self.wanted.contains(&protocol))
            }
            _ => None,
        }
    }

    fn known(&self, handle: u32, found: &mut Vec<u8>) {
        self.inspector.known(handle, found);
    }

    fn ended(&mut self, handle: u32, found: &mut Vec<u8>) {
        self.inspector.ended(handle, found);
        self.called();
    }

    fn finished(&mut self) {
        self.publish();
    }

    fn memory_len(&self) -> usize {
        self.inspector.memory_len()
    }
}
