//! Decoders joined to the flow table: what the first packets say goes out with the record.

use std::sync::{Arc, Mutex};

use flow::{Extra, Observed, Record, Side};
use inspect::{
    Application, DONE, Direction, Inspector, InspectorConfig, InspectorStats, Protocol, Segment,
    Transport,
};

use super::lock;

/// Calls after which the counters are published.
const PUBLISH: u32 = 1024;

/// TCP's SYN.
const SYN: u16 = 0x02;

/// The decoders of one worker.
pub(super) struct Applications {
    inspector: Inspector,
    /// Where the worker finds the counters; written once in a while, and at the end.
    stats: Arc<Mutex<InspectorStats>>,
    calls: u32,
}

impl Applications {
    pub(super) fn new(config: &InspectorConfig, stats: Arc<Mutex<InspectorStats>>) -> Self {
        Self {
            inspector: Inspector::new(config),
            stats,
            calls: 0,
        }
    }

    fn called(&mut self) {
        self.calls += 1;
        // The last flow of all must be in it, too.
        if self.calls >= PUBLISH || self.inspector.is_idle() {
            self.calls = 0;
            *lock(&self.stats) = self.inspector.stats();
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
            payload,
            payload_len: packet.level.payload_len,
        };
        self.inspector.packet(handle, &segment);
        self.called();
        *handle & DONE == 0
    }

    fn known(&self, handle: u32, found: &mut Vec<u8>) {
        if let Some(application) = self.inspector.application(handle) {
            put(application, found);
        }
    }

    fn ended(&mut self, handle: u32, found: &mut Vec<u8>) {
        let mut number = handle;
        self.inspector
            .end(&mut number, |application| put(application, found));
        self.called();
    }

    fn memory_len(&self) -> usize {
        self.inspector.memory_len()
    }
}

/// One byte for the protocol, then the fields.
fn put(application: &Application, found: &mut Vec<u8>) {
    let (protocol, bytes) = application.bytes();
    found.push(protocol as u8);
    found.extend_from_slice(bytes);
}

fn transport(record: &Record) -> Option<Transport> {
    match record.key().protocol() {
        6 => Some(Transport::Tcp),
        17 => Some(Transport::Udp),
        _ => None,
    }
}

/// What the decoders found of a flow, as it came with its record. `None` where nothing was.
pub fn application(extra: &Extra<'_>) -> Option<Application> {
    take(extra.application)
}

/// What [`put`] wrote.
pub(super) fn take(found: &[u8]) -> Option<Application> {
    let (protocol, bytes) = found.split_first()?;
    let protocol = Protocol::ALL.get(usize::from(*protocol)).copied()?;
    Some(Application::from_bytes(protocol, bytes))
}

/// Appends to a line of JSON, which ends in `}` and a line feed, the Community ID, and what is
/// known of the flow's application, or what its ports say; nothing of it where neither says
/// anything.
pub fn append_json(record: &Record, extra: &Extra<'_>, line: &mut Vec<u8>) {
    if !line.ends_with(b"}\n") {
        return;
    }
    line.truncate(line.len() - 2);
    let (key, initiator) = (record.key(), record.initiator());
    let side = |side| (key.addr(side), key.port(side));
    let id = inspect::community_id(0, key.protocol(), side(initiator), side(initiator.other()));
    line.extend(b",\"community_id\":\"");
    line.extend(id.as_str().as_bytes());
    line.push(b'"');
    if let Some(transport) = transport(record) {
        let end = line.len();
        line.extend(b",\"application\":");
        let application = application(extra).unwrap_or(Application::EMPTY);
        if !inspect::json(&application, guess(record, transport), line) {
            line.truncate(end);
        }
    }
    line.extend(b"}\n");
}

fn guess(record: &Record, transport: Transport) -> Option<&'static str> {
    let (key, side): (_, Side) = (record.key(), record.initiator());
    inspect::guess(transport, key.port(side), key.port(side.other()))
}
