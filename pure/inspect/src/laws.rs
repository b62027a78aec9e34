//! Laws: properties that hold for any input. Tests and fuzz targets call these with the feature
//! `laws`, which is off by default.
//!
//! An input of several segments is a sequence of: one byte whose lowest bit is the direction, two
//! bytes of length, and this many bytes.

use alloc::vec::Vec;

use crate::inspector::LOOSE;
use crate::{
    Application, DONE, Direction, Inspector, InspectorConfig, NONE, Segment, Transport, Value,
};

pub use crate::decode::quic_datagram;

/// Maximum number of segments in an input.
const PIECE_MAX: usize = 64;

/// A segment and its direction.
pub type Piece<'a> = (Direction, &'a [u8]);

/// Splits an input into segments.
pub fn pieces(mut input: &[u8]) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    while pieces.len() < PIECE_MAX
        && let Some((head, rest)) = input.split_first_chunk::<3>()
    {
        let len = usize::from(u16::from_be_bytes([head[1], head[2]])).min(rest.len());
        let from = match head[0] & 1 {
            0 => Direction::Forward,
            _ => Direction::Reverse,
        };
        pieces.push((from, &rest[..len]));
        input = &rest[len..];
    }
    pieces
}

/// Joins segments into an input: the inverse.
pub fn input_of(pieces: &[Piece<'_>]) -> Vec<u8> {
    let mut input = Vec::new();
    for (from, bytes) in pieces {
        input.push(*from as u8);
        input.extend((bytes.len() as u16).to_be_bytes());
        input.extend_from_slice(bytes);
    }
    input
}

/// A configuration without packet limits, so that segmentation makes no difference.
fn config() -> InspectorConfig {
    InspectorConfig {
        flow_count_max: 2,
        page_count: 2,
        held_count_max: 8,
        packet_count_max: u16::MAX,
        byte_count_max: u32::MAX,
        unknown_count_max: u16::MAX,
        ..InspectorConfig::default()
    }
}

/// Checks the laws with an inspector that is reused, as in a probe.
pub struct Laws {
    inspector: Inspector,
}

impl Default for Laws {
    fn default() -> Laws {
        Laws {
            inspector: Inspector::new(&config()),
        }
    }
}

/// Everything reported about a connection.
#[derive(Clone, Debug)]
pub struct Reported {
    /// The fields of the flow.
    pub application: Application,
    /// Its transactions if there was more than one, as [`Transactions::put`] writes them.
    ///
    /// [`Transactions::put`]: crate::Transactions::put
    pub transactions: Vec<u8>,
}

impl PartialEq for Reported {
    fn eq(&self, other: &Reported) -> bool {
        let fields = self.application.bytes() == other.application.bytes();
        fields && self.transactions == other.transactions
    }
}

/// A connection, passed segment by segment.
struct Connection<'a> {
    inspector: &'a mut Inspector,
    number: u32,
    next: [u32; 2],
    ports: [u16; 2],
}

impl Connection<'_> {
    fn new(laws: &mut Laws, ports: [u16; 2]) -> Connection<'_> {
        Connection {
            inspector: &mut laws.inspector,
            number: NONE,
            // Close to where sequence numbers wrap.
            next: [u32::MAX - 40, 1000],
            ports,
        }
    }

    fn send(&mut self, from: Direction, sequence: u32, payload: &[u8]) {
        let segment = Segment {
            transport: Transport::Tcp,
            from,
            time_ns: 7,
            ports: self.ports,
            sequence,
            is_syn: false,
            begins: None,
            payload,
            payload_len: payload.len() as u32,
        };
        self.inspector.packet(&mut self.number, &segment);
    }

    /// Passes a segment in order.
    fn push(&mut self, from: Direction, payload: &[u8]) {
        let sequence = self.next[from as usize];
        self.send(from, sequence, payload);
        self.next[from as usize] = sequence.wrapping_add(payload.len() as u32);
    }

    fn finish(mut self) -> Reported {
        self.inspector.rest(&mut self.number);
        let mut transactions = Vec::new();
        if let Some(all) = self.inspector.transactions(self.number) {
            all.put(&mut transactions);
        }
        let mut application = Application::EMPTY;
        if let Some(found) = self.inspector.end(&mut self.number, Application::clone) {
            check(&found);
            application = found;
        }
        let stats = self.inspector.stats();
        assert_eq!((stats.live, stats.imbalance()), (0, 0));
        assert!(self.inspector.is_idle(), "a slot was not returned");
        assert_eq!(self.number, NONE);
        Reported {
            application,
            transactions,
        }
    }
}

/// Checks that fields are within their bounds and survive a copy.
fn check(application: &Application) {
    for (field, value) in application.fields() {
        if let Value::Text { bytes, .. } = value {
            assert!(bytes.len() <= usize::from(field.row().len_max));
        }
    }
    let (protocol, bytes) = application.bytes();
    let copy = Application::from_bytes(protocol, bytes);
    assert_eq!(copy.bytes(), (protocol, bytes));
}

impl Laws {
    /// Passes the bytes of both sides of a TCP connection unchanged.
    pub fn whole(&mut self, pieces: &[Piece<'_>], ports: [u16; 2]) -> Reported {
        let mut connection = Connection::new(self, ports);
        for (from, bytes) in pieces {
            connection.push(*from, bytes);
        }
        connection.finish()
    }

    /// The same, with each piece cut into segments of `step` bytes.
    pub fn cut(&mut self, pieces: &[Piece<'_>], ports: [u16; 2], step: usize) -> Reported {
        let mut connection = Connection::new(self, ports);
        for (from, bytes) in pieces {
            for part in bytes.chunks(step.max(1)) {
                connection.push(*from, part);
            }
        }
        connection.finish()
    }

    /// The same, with each piece in two segments: the second arrives first, and then both are
    /// repeated.
    pub fn turned(&mut self, pieces: &[Piece<'_>], ports: [u16; 2], at: usize) -> Reported {
        let mut connection = Connection::new(self, ports);
        for (from, bytes) in pieces {
            let (one, two) = bytes.split_at(at.min(bytes.len()));
            let start = connection.next[*from as usize];
            // The very first byte marks the start of the stream.
            let (lead, one) = one.split_at(one.len().min(1));
            connection.push(*from, lead);
            let middle = start.wrapping_add((lead.len() + one.len()) as u32);
            connection.send(*from, middle, two);
            connection.push(*from, one);
            connection.push(*from, two);
            connection.send(*from, start, bytes);
        }
        connection.finish()
    }

    /// The same with `len` bytes missing from `at` on, in either direction; but never the first
    /// byte of a direction, because then the gap could not be detected.
    pub fn with_gap(
        &mut self,
        pieces: &[Piece<'_>],
        ports: [u16; 2],
        at: usize,
        len: usize,
    ) -> Application {
        let mut connection = Connection::new(self, ports);
        let mut seen = 0;
        let mut has_begun = [false; 2];
        for (from, bytes) in pieces {
            let begun = core::mem::replace(&mut has_begun[*from as usize], true);
            let least = if begun { 0 } else { bytes.len().min(1) };
            let gap = at.saturating_sub(seen).min(bytes.len()).max(least);
            let end = (at + len).saturating_sub(seen).min(bytes.len()).max(gap);
            connection.push(*from, &bytes[..gap]);
            let next = &mut connection.next[*from as usize];
            *next = next.wrapping_add((end - gap) as u32);
            for part in bytes[end..].chunks(100) {
                connection.push(*from, part);
            }
            seen += bytes.len();
        }
        connection.finish().application
    }

    /// Checks the laws of a connection, with the ports of all stream decoders.
    pub fn stream(&mut self, input: &[u8]) {
        let Some((choice, rest)) = input.split_first() else {
            return;
        };
        let port = [443, 53, 25, 21, 5060, 9999][usize::from(choice & 7) % 6];
        let ports = [40_000, port];
        let pieces = pieces(rest);
        let expected = self.whole(&pieces, ports);
        let step = usize::from(choice >> 3) + 1;
        for step in [1, step] {
            let other = self.cut(&pieces, ports, step);
            assert_eq!(expected, other);
        }
        // Segments that arrive early are kept up to a length only.
        if pieces.iter().all(|(_, bytes)| bytes.len() <= 1500) {
            let other = self.turned(&pieces, ports, step);
            assert_eq!(expected, other);
        }
        // A gap is reported the same each time, and one of no bytes is none.
        let at = usize::from(*choice) * 2;
        let found = self.with_gap(&pieces, ports, at, step);
        let again = self.with_gap(&pieces, ports, at, step);
        assert_eq!(found.bytes(), again.bytes());
        let found = self.with_gap(&pieces, ports, at, 0);
        assert_eq!(found.bytes(), expected.application.bytes());
    }
}

/// Passes the bytes of both sides of a TCP connection unchanged.
pub fn whole(pieces: &[Piece<'_>], ports: [u16; 2]) -> Application {
    Laws::default().whole(pieces, ports).application
}

/// Checks the laws of a connection, with the ports of all stream decoders.
pub fn stream(input: &[u8]) {
    Laws::default().stream(input);
}

/// Checks the laws of datagrams: complete, and truncated.
pub fn datagrams(input: &[u8]) {
    Laws::default().datagrams(input);
}

impl Laws {
    /// Checks the laws of datagrams: complete, and truncated.
    pub fn datagrams(&mut self, input: &[u8]) {
        let Some((choice, rest)) = input.split_first() else {
            return;
        };
        let port = [443, 53, 123, 67, 5060, 5353, 9999, 137][usize::from(choice & 7)];
        let pieces = pieces(rest);
        for keep in [usize::MAX, usize::from(*choice) * 4] {
            let inspector = &mut self.inspector;
            let mut number = NONE;
            for (from, bytes) in &pieces {
                let segment = Segment {
                    transport: Transport::Udp,
                    from: *from,
                    time_ns: 7,
                    ports: [68, port],
                    sequence: 0,
                    is_syn: false,
                    begins: None,
                    payload: &bytes[..bytes.len().min(keep)],
                    payload_len: bytes.len() as u32,
                };
                inspector.packet(&mut number, &segment);
                if let Some(application) = inspector.application(number) {
                    check(application);
                }
            }
            let has_slot = number & !DONE == 1;
            assert!(number == NONE || number == DONE || number & LOOSE != 0 || has_slot);
            inspector.end(&mut number, check);
            assert!(inspector.is_idle());
            assert_eq!(inspector.stats().imbalance(), 0);
        }
    }

    /// QUIC: uses the input as the frames of authentic packets, one packet per piece.
    pub fn quic(&mut self, input: &[u8]) {
        let inspector = &mut self.inspector;
        let mut number = NONE;
        for (index, (from, frames)) in pieces(input).into_iter().enumerate() {
            let is_server = from == Direction::Reverse;
            let version = if index % 2 == 0 { 1 } else { 0x6b33_43cf };
            let frames = &frames[..frames.len().min(1200)];
            let datagram = quic_datagram(version, b"12345678", is_server, index as u32, frames);
            let segment = Segment {
                transport: Transport::Udp,
                from,
                time_ns: 7,
                ports: [40_000, 443],
                sequence: 0,
                is_syn: false,
                begins: None,
                payload: &datagram,
                payload_len: datagram.len() as u32,
            };
            inspector.packet(&mut number, &segment);
        }
        inspector.end(&mut number, check);
        assert!(inspector.is_idle());
        self.datagrams(input);
    }
}

/// QUIC: uses the input as the frames of authentic packets, one packet per piece.
pub fn quic(input: &[u8]) {
    Laws::default().quic(input);
}
