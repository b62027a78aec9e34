//! Decodes a packet for the end of its line and for columns.
//!
//! A datagram is decoded on its own, so that each query and each response has its own fields. TCP
//! and QUIC are decoded as connections, and a line shows what its packet added; later requests of a
//! connection are read from the segment that contains them.

use std::fmt;

use inspect::decode::Direction;
use inspect::{
    Application, Conversation, FieldSink, Inspector, InspectorConfig, Origin, Protocol, Segment,
    Tools, Transport,
};
use wire::summary::SequenceBase;
use wire::{Dissection, LayerKind, dissect_inner, tcp};

use super::connections::{CONNECTION_COUNT, Connections};

/// Pages for the state of a datagram or segment decoded on its own.
const PAGE_COUNT: u32 = 4;

/// The decoders and their state.
pub(super) struct Decoding {
    connections: Connections,
    inspector: Inspector,
    tools: Tools,
    /// The fields found in the current packet.
    pub(super) found: Application,
    /// Its first TCP header, on any level.
    pub(super) tcp: Option<TcpHead>,
}

/// What JSON has of a TCP header.
#[derive(Clone, Copy, Debug)]
pub(super) struct TcpHead {
    pub(super) flags: u16,
    pub(super) seq: u32,
    pub(super) ack: u32,
}

impl fmt::Debug for Decoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut decoding = f.debug_struct("Decoding");
        decoding.field("found", &self.found).finish_non_exhaustive()
    }
}

impl Decoding {
    pub(super) fn new() -> Decoding {
        let config = InspectorConfig {
            flow_count_max: CONNECTION_COUNT as u32,
            page_count: 1 << 8,
            held_count_max: 1 << 7,
            log_count_max: 1 << 4,
            ..InspectorConfig::default()
        };
        Decoding {
            connections: Connections::new(),
            inspector: Inspector::new(&config),
            tools: Tools::new(config.decoders, PAGE_COUNT),
            found: Application::EMPTY,
            tcp: None,
        }
    }

    /// Forgets what the last packet contained.
    pub(super) fn clear(&mut self) {
        self.found.clear();
        self.tcp = None;
    }

    /// Decodes a packet; returns the base of its sequence numbers.
    pub(super) fn packet(
        &mut self,
        first: &Dissection,
        bytes: &[u8],
        time_ns: u64,
    ) -> SequenceBase {
        self.clear();
        let (mut base, mut level, mut inner) = (None, *first, Dissection::EMPTY);
        loop {
            if level.has(LayerKind::Tcp) && level.has_ports() {
                let found = self.segment(&level, bytes, time_ns);
                base.get_or_insert(found);
            } else if level.has(LayerKind::Udp) && level.has_ports() {
                self.datagram(&level, bytes, time_ns);
            }
            if level.inner_is_quote || !dissect_inner(bytes, &level, &mut inner) {
                return base.unwrap_or_default();
            }
            level = inner;
        }
    }

    fn segment(&mut self, d: &Dissection, bytes: &[u8], time_ns: u64) -> SequenceBase {
        let header = usize::from(d.transport_offset)..usize::from(d.transport_offset) + 20;
        if bytes.get(header).is_none() {
            return SequenceBase::default();
        }
        self.tcp.get_or_insert(TcpHead {
            flags: d.tcp_flags,
            seq: d.tcp_seq,
            ack: d.tcp_ack,
        });
        let inspector = &mut self.inspector;
        let (connection, side) = self.connections.of(d, |gone| {
            inspector.end(&mut gone.flow, |_| ());
        });
        let is_syn = d.tcp_flags & tcp::flag::SYN != 0;
        if is_syn && d.tcp_flags & tcp::flag::ACK == 0 && connection.flow & inspect::DONE != 0 {
            // The ports are reused.
            inspector.end(&mut connection.flow, |_| ());
            connection.is_reversed = side == 1;
        }
        let base = connection.sequence_base(d, side);
        let from = direction(side, connection.is_reversed);
        let segment = Segment {
            transport: Transport::Tcp,
            from,
            time_ns,
            ports: ports(d, from),
            sequence: d.tcp_seq,
            is_syn,
            begins: None,
            payload: d.payload(bytes),
            payload_len: d.payload_len,
        };
        read(inspector, &mut connection.flow, &segment, &mut self.found);
        let known = inspector.application(connection.flow);
        let known = known.map_or(Protocol::Unknown, Application::protocol);
        if known != Protocol::Unknown && !segment.payload.is_empty() {
            // A response repeats its query, and a later request is not the connection's first: the
            // segment decoded on its own may have more fields than it adds.
            let added = self.found.clone();
            self.found.clear();
            self.alone(&segment, known);
            if self.found.fields().count() <= added.fields().count() {
                self.found = added;
            }
        }
        base
    }

    fn datagram(&mut self, d: &Dissection, bytes: &[u8], time_ns: u64) {
        let payload = d.payload(bytes);
        if payload.is_empty() {
            return;
        }
        let from = match d.src_port >= d.dst_port {
            true => Direction::Forward,
            false => Direction::Reverse,
        };
        let mut segment = Segment {
            transport: Transport::Udp,
            from,
            time_ns,
            ports: ports(d, from),
            sequence: 0,
            is_syn: false,
            begins: None,
            payload,
            payload_len: d.payload_len,
        };
        self.alone(&segment, Protocol::Unknown);
        if self.found.protocol() != Protocol::Quic {
            return;
        }
        // A hello may span several datagrams, which only the connection reassembles.
        self.found.clear();
        let inspector = &mut self.inspector;
        let (connection, side) = self.connections.of(d, |gone| {
            inspector.end(&mut gone.flow, |_| ());
        });
        segment.from = direction(side, connection.is_reversed);
        segment.ports = ports(d, segment.from);
        read(inspector, &mut connection.flow, &segment, &mut self.found);
    }

    /// Decodes a payload on its own; keeps the result only if the protocol is `wanted`, if one is
    /// given.
    fn alone(&mut self, segment: &Segment<'_>, wanted: Protocol) {
        let origin = Origin {
            from: segment.from,
            time_ns: segment.time_ns,
            ports: segment.ports,
        };
        let mut conversation = Conversation::NEW;
        let (tools, found) = (&mut self.tools, &mut self.found);
        match segment.transport {
            Transport::Tcp => conversation.stream(&origin, segment.payload, tools, found),
            Transport::Udp => conversation.datagram(&origin, segment.payload, tools, found),
        };
        conversation.finish(tools, found);
        if wanted != Protocol::Unknown && found.protocol() != wanted {
            found.clear();
        }
    }
}

/// Passes a packet to its connection, and returns what it adds.
fn read(inspector: &mut Inspector, flow: &mut u32, segment: &Segment<'_>, found: &mut Application) {
    let (before, known) = match inspector.application(*flow) {
        Some(application) => (application.fields().count(), application.protocol()),
        None => (0, Protocol::Unknown),
    };
    inspector.packet(flow, segment);
    let Some(application) = inspector.application(*flow) else {
        return;
    };
    let (count, protocol) = (application.fields().count(), application.protocol());
    if count > before || protocol != known {
        found.named(protocol);
        for (field, value) in application.fields().skip(before) {
            found.field(field, value);
        }
    }
}

fn direction(side: usize, is_reversed: bool) -> Direction {
    match (side == 1) == is_reversed {
        true => Direction::Forward,
        false => Direction::Reverse,
    }
}

/// Ports of the initiator and of the responder.
fn ports(d: &Dissection, from: Direction) -> [u16; 2] {
    match from {
        Direction::Forward => [d.src_port, d.dst_port],
        Direction::Reverse => [d.dst_port, d.src_port],
    }
}
