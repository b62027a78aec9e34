//! Decoders joined to the flow table: what the first packets say goes out with the record.

use std::sync::{Arc, Mutex};

use flow::encode::beyond::transport;
use flow::{Observed, Record, put_application};
use inspect::{
    Application, DONE, Direction, Inspector, InspectorConfig, InspectorStats, Protocol, Segment,
};

use super::lock;
use super::ndpi::NdpiStats;

/// Calls after which the counters are published.
const PUBLISH: u32 = 1024;

/// TCP's SYN.
const SYN: u16 = 0x02;

/// What a worker's decoders, and libndpi, have counted.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) decoders: InspectorStats,
    pub(super) ndpi: NdpiStats,
}

/// The decoders of one worker.
pub(super) struct Applications {
    inspector: Inspector,
    /// Where the worker finds the counters; written once in a while, and at the end.
    stats: Arc<Mutex<Counts>>,
    calls: u32,
    /// Applications whose packets go on; none asks for nothing.
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
        // The last flow of all must be in it, too.
        if self.calls >= PUBLISH || self.inspector.is_idle() {
            self.calls = 0;
            lock(&self.stats).decoders = self.inspector.stats();
        }
    }
}

impl flow::Inspect for Applications {
    fn packet(
        &mut self,
        handle: &mut u32,
        _nth: u8,
        record: &Record,
        packet: &Observed,
        payload: &[u8],
    ) -> bool {
        let Some(transport) = transport(record) else {
            return false;
        };
        let (key, initiator) = (record.key(), record.initiator());
        let segment = Segment {
            transport,
            from: match packet.side == initiator {
                true => Direction::Forward,
                false => Direction::Reverse,
            },
            time_ns: packet.time_ns,
            ports: [key.port(initiator), key.port(initiator.other())],
            sequence: packet.level.tcp_seq,
            is_syn: packet.level.tcp_flags & SYN != 0,
            begins: record.stream_begin(packet.side),
            payload,
            payload_len: packet.level.payload_len,
        };
        self.inspector.packet(handle, &segment);
        self.called();
        *handle & DONE == 0
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
        if let Some(application) = self.inspector.application(handle) {
            put_application(application, found);
        }
    }

    fn ended(&mut self, handle: u32, found: &mut Vec<u8>) {
        let mut number = handle;
        self.inspector.end(&mut number, |application| {
            put_application(application, found)
        });
        self.called();
    }

    fn memory_len(&self) -> usize {
        self.inspector.memory_len()
    }
}
