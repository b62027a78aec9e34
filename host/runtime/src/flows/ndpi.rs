//! libndpi in addition to the decoders: names flows of several hundred protocols.
//!
//! The library gets packets that are rebuilt from the flow's key and the payload: unusual headers
//! are parsed by barewire alone. A flow's state is freed as soon as the library is done with it, so
//! few states serve many flows.

use flow::encode::extra_fields::transport;
use flow::{
    FlowKey, Inspect, Observed, Record, Side, put_application, take_application, take_transactions,
};
use inspect::{Application, DONE, Field, FieldSink, InspectorConfig, Transport, Value};
use sys::Result;
use sys::libndpi::{Detector, Protocol};

use super::application::Applications;

/// Packets with payload after which an unidentified flow is abandoned; fewer for UDP, as in the
/// library's own program.
const TCP_PACKETS_MAX: u8 = 40;
const UDP_PACKETS_MAX: u8 = 24;
/// Bytes of payload after which a flow is abandoned: the library may buffer them for reassembly.
const BYTES_MAX: u32 = 64 << 10;
const NO_STATE: u32 = u32::MAX;
/// Maximum length of a rebuilt packet: the library's limit.
const PACKET_MAX: usize = u16::MAX as usize;
/// Maximum length of rebuilt headers: IPv6 and TCP.
const HEADERS_MAX: usize = 60;

/// Counters of flows passed to libndpi, and of its results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NdpiStats {
    /// Flows passed to it.
    pub flows: u64,
    /// Flows that it identified.
    pub named: u64,
    /// Flows that it did not identify.
    pub unnamed: u64,
    /// Flows not passed to it because all states were in use.
    pub no_room: u64,
}

impl NdpiStats {
    /// Adds the counts of another worker.
    pub fn add(&mut self, other: &NdpiStats) {
        self.flows += other.flows;
        self.named += other.named;
        self.unnamed += other.unnamed;
        self.no_room += other.no_room;
    }
}

/// Memory in bytes that [`Ndpi`] reserves, excluding the library's own tables.
pub(super) fn memory_len(config: &InspectorConfig, flow_count: u32) -> usize {
    let places = config.flow_count_max as usize * (size_of::<Place>() + size_of::<u32>());
    places + PACKET_MAX + Detector::memory_len(flow_count).unwrap_or_default()
}

/// State of a flow.
#[derive(Clone, Copy, Default)]
struct Place {
    /// The decoders' handle.
    decoders: u32,
    /// Index of the library's state, or [`NO_STATE`].
    state: u32,
    protocol: Protocol,
    /// The next sequence number of each side.
    next: [u32; 2],
    packets: u8,
    /// Bytes of payload passed so far.
    bytes: u32,
}

/// The decoders of one worker, and the library.
pub(super) struct Ndpi {
    decoders: Applications,
    detector: Detector,
    places: Vec<Place>,
    free: Vec<u32>,
    place_max: usize,
    stats: NdpiStats,
    packet: Vec<u8>,
    /// Results of the decoders, before the name is added.
    reported: Vec<u8>,
}

impl Ndpi {
    /// Creates it with room for as many flows as the decoders have, of which this many are
    /// inspected at a time.
    ///
    /// # Errors
    /// If the library is missing or of an unsupported version, or memory is short.
    pub(super) fn new(
        decoders: Applications,
        config: &InspectorConfig,
        flow_count: u32,
    ) -> Result<Ndpi> {
        let place_max = config.flow_count_max as usize;
        Ok(Ndpi {
            decoders,
            detector: Detector::new(flow_count)?,
            places: Vec::with_capacity(place_max),
            free: Vec::with_capacity(place_max),
            place_max,
            stats: NdpiStats::default(),
            packet: Vec::with_capacity(PACKET_MAX),
            reported: Vec::with_capacity(1024),
        })
    }

    /// A handle for a new flow; 0 if there is no room.
    fn begin(&mut self) -> u32 {
        self.stats.flows += 1;
        let at = match self.free.pop() {
            Some(at) => at as usize,
            None if self.places.len() < self.place_max => {
                self.places.push(Place::default());
                self.places.len() - 1
            }
            None => {
                self.stats.no_room += 1;
                self.decoders.publish_ndpi(self.stats);
                return 0;
            }
        };
        let state = self.detector.begin().unwrap_or_else(|| {
            self.stats.no_room += 1;
            NO_STATE
        });
        self.places[at] = Place {
            state,
            ..Place::default()
        };
        at as u32 + 1
    }

    fn place(&self, handle: u32) -> Option<Place> {
        let at = handle.checked_sub(1)?;
        self.places.get(at as usize).copied()
    }

    /// Passes a packet of a flow that has a state to the library.
    fn look(&mut self, place: &mut Place, record: &Record, packet: &Observed, payload: &[u8]) {
        if place.state == NO_STATE {
            return;
        }
        let Some(transport) = transport(record) else {
            return;
        };
        make(transport, place, packet, payload, &mut self.packet);
        let time_ms = packet.time_ns / 1_000_000;
        place.protocol = self.detector.packet(place.state, &self.packet, time_ms);
        place.packets = place.packets.saturating_add(1);
        place.bytes = place.bytes.saturating_add(payload.len() as u32);
        let most = match transport {
            Transport::Tcp => TCP_PACKETS_MAX,
            Transport::Udp => UDP_PACKETS_MAX,
        };
        let is_over = place.packets >= most
            || place.bytes >= BYTES_MAX
            || (place.protocol.is_known() && !self.detector.wants_more(place.state));
        if is_over {
            self.settle(place);
        }
    }

    /// Makes the final call to the library.
    fn settle(&mut self, place: &mut Place) {
        if place.state == NO_STATE {
            return;
        }
        if !place.protocol.is_known() {
            place.protocol = self.detector.give_up(place.state);
        }
        match place.protocol.is_known() {
            true => self.stats.named += 1,
            false => self.stats.unnamed += 1,
        }
        self.detector.end(place.state);
        place.state = NO_STATE;
        self.decoders.publish_ndpi(self.stats);
    }

    /// Reports the decoders' results, preceded by the library's name: the name is never what lacks
    /// room.
    fn report(&self, protocol: Protocol, reported: &[u8], found: &mut Vec<u8>) {
        if !protocol.is_known() {
            return found.extend_from_slice(reported);
        }
        let mut name = Vec::new();
        self.detector.name(protocol, &mut name);
        let mut application = Application::EMPTY;
        application.field(Field::Ndpi, Value::text(&name));
        if let Some(other) = take_application(reported) {
            application.merge(&other);
        }
        put_application(&application, found);
        if let Some(transactions) = take_transactions(reported) {
            transactions.put(found);
        }
    }
}

impl Inspect for Ndpi {
    fn packet(
        &mut self,
        handle: &mut u32,
        nth: u8,
        (record, initiator): (&Record, Side),
        packet: &Observed,
        payload: &[u8],
    ) -> bool {
        if *handle & DONE != 0 || transport(record).is_none() {
            return false;
        }
        if *handle == 0 {
            *handle = self.begin();
        }
        let Some(mut place) = self.place(*handle) else {
            *handle = DONE;
            return false;
        };
        if place.decoders & DONE == 0 {
            let inner = &mut place.decoders;
            let flow = (record, initiator);
            self.decoders.packet(inner, nth, flow, packet, payload);
        }
        self.look(&mut place, record, packet, payload);
        let is_over = place.decoders & DONE != 0 && place.state == NO_STATE;
        let at = *handle - 1;
        self.places[at as usize] = place;
        // Nothing was identified, and nothing will be.
        if is_over && place.decoders == DONE && !place.protocol.is_known() {
            self.free.push(at);
            *handle = DONE;
        }
        !is_over
    }

    fn begins(&mut self, handle: &mut u32, is_initiator: bool, sequence: u32) {
        if *handle == 0 {
            *handle = self.begin();
        }
        let Some(mut place) = self.place(*handle) else {
            return;
        };
        self.decoders
            .begins(&mut place.decoders, is_initiator, sequence);
        self.places[*handle as usize - 1] = place;
    }

    fn rest(&mut self, handle: &mut u32) {
        let Some(mut place) = self.place(*handle) else {
            return;
        };
        self.decoders.rest(&mut place.decoders);
        self.settle(&mut place);
        self.places[*handle as usize - 1] = place;
    }

    fn wants(&self, handle: u32) -> Option<bool> {
        self.decoders.wants(self.place(handle)?.decoders)
    }

    fn known(&self, handle: u32, found: &mut Vec<u8>) {
        if let Some(place) = self.place(handle) {
            let mut reported = Vec::new();
            self.decoders.known(place.decoders, &mut reported);
            self.report(place.protocol, &reported, found);
        }
    }

    fn ended(&mut self, handle: u32, found: &mut Vec<u8>) {
        let Some(mut place) = self.place(handle) else {
            return;
        };
        self.settle(&mut place);
        let mut reported = std::mem::take(&mut self.reported);
        reported.clear();
        self.decoders.ended(place.decoders, &mut reported);
        self.report(place.protocol, &reported, found);
        self.reported = reported;
        self.free.push(handle - 1);
    }

    fn finished(&mut self) {
        self.decoders.finished();
    }

    fn memory_len(&self) -> usize {
        self.decoders.memory_len() + self.place_max * size_of::<Place>()
    }
}

/// Rebuilds a packet: an IP header without options, a transport header, and the payload as far as
/// it was captured and fits.
fn make(
    transport: Transport,
    place: &mut Place,
    packet: &Observed,
    payload: &[u8],
    out: &mut Vec<u8>,
) {
    let (key, side) = (&packet.key, packet.side);
    let payload = &payload[..payload.len().min(PACKET_MAX - HEADERS_MAX)];
    let (number, header_len) = match transport {
        Transport::Tcp => (6, 20),
        Transport::Udp => (17, 8),
    };
    let rest_len = (header_len + payload.len()) as u16;
    out.clear();
    ip(key, side, number, packet.level.ttl, rest_len, out);
    out.extend(key.port(side).to_be_bytes());
    out.extend(key.port(side.other()).to_be_bytes());
    match transport {
        Transport::Tcp => {
            let level = &packet.level;
            out.extend(level.tcp_seq.to_be_bytes());
            // The other side's bytes have been seen, so they count as acknowledged.
            out.extend(place.next[side.other() as usize].to_be_bytes());
            out.extend([5 << 4, level.tcp_flags as u8]);
            out.extend(level.tcp_window.to_be_bytes());
            out.extend([0; 4]);
            place.next[side as usize] = level.tcp_seq.wrapping_add(level.payload_len);
        }
        Transport::Udp => {
            out.extend(rest_len.to_be_bytes());
            out.extend([0; 2]);
        }
    }
    out.extend_from_slice(payload);
}

/// Appends an IP header (RFC 791 §3.1, RFC 8200 §3) without a checksum, for this many bytes.
fn ip(key: &FlowKey, side: Side, protocol: u8, ttl: u8, rest_len: u16, out: &mut Vec<u8>) {
    use std::net::IpAddr::{V4, V6};
    match (key.addr(side), key.addr(side.other())) {
        (V4(source), V4(destination)) => {
            out.extend([0x45, 0]);
            out.extend((rest_len + 20).to_be_bytes());
            out.extend([0, 0, 0, 0, ttl, protocol, 0, 0]);
            out.extend(source.octets());
            out.extend(destination.octets());
        }
        (V6(source), V6(destination)) => {
            out.extend([0x60, 0, 0, 0]);
            out.extend(rest_len.to_be_bytes());
            out.extend([protocol, ttl]);
            out.extend(source.octets());
            out.extend(destination.octets());
        }
        // A key has one address family.
        (V4(_), V6(_)) | (V6(_), V4(_)) => {}
    }
}
