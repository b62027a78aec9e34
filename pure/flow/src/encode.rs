//! Encoders of records. Each format is a file in this directory.
//!
//! A format implements [`Encode`]: it takes records until its message is full, returns the message,
//! and clears it once it has been sent. No allocations per record or message; only occasional
//! messages (templates, options) are allocated. The encoder does not know how and where messages
//! are sent.

pub mod csv;
pub mod directed;
pub mod eve;
pub mod extra_fields;
pub mod ipfix;
pub mod json;
pub mod lines;
pub mod measured;
pub mod netflow5;
pub mod netflow9;
mod uptime;

use crate::expire::EndReason;
use crate::extra::OwnedExtra;
use crate::record::Record;

/// Why a format refused a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// The format supports only IPv4.
    NotIpv4,
    /// It does not fit into one message.
    TooLarge,
    /// A value exceeds the range of the format.
    OutOfRange,
}

impl Refusal {
    /// Number of reasons.
    pub const COUNT: usize = 3;
    /// All reasons.
    pub const ALL: [Refusal; Refusal::COUNT] =
        [Refusal::NotIpv4, Refusal::TooLarge, Refusal::OutOfRange];

    /// Name in statistics.
    pub const fn name(self) -> &'static str {
        match self {
            Refusal::NotIpv4 => "not_ipv4",
            Refusal::TooLarge => "too_large",
            Refusal::OutOfRange => "out_of_range",
        }
    }
}

/// A sum over flow records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Number of flow records, as produced by the table.
    pub flows: u64,
    /// Number of packets.
    pub packets: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl Sum {
    /// Adds a record.
    #[inline]
    pub fn count(&mut self, record: &Record) {
        self.flows += 1;
        self.packets += record.packets();
        self.bytes = self.bytes.wrapping_add(record.bytes());
    }

    /// Adds another sum.
    #[inline]
    pub fn add(&mut self, other: &Sum) {
        self.flows += other.flows;
        self.packets += other.packets;
        self.bytes = self.bytes.wrapping_add(other.bytes);
    }
}

/// Exporter statistics for options records (RFC 7012's counters of the same names).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Messages sent.
    pub exported_messages: u64,
    /// Bytes of the messages.
    pub exported_octets: u64,
    /// Flow records exported, as counted by the format: if it has one direction per record, a flow
    /// in which both sides sent counts as two.
    pub exported_records: u64,
    /// Flows that the metering process observed.
    pub observed_flows: u64,
    /// Packets that are in no flow because they could not be parsed.
    pub ignored_packets: u64,
    /// Packets lost before they were seen.
    pub dropped_packets: u64,
    /// Flows, packets and bytes that were not sent.
    pub not_sent: Sum,
}

/// An export format.
pub trait Encode: Send {
    /// Encodes records into the message, and returns how many. Fewer than all means that the
    /// message is full. A refused record counts as encoded.
    fn take(&mut self, records: &[(Record, EndReason)]) -> usize;

    /// The same with extra fields for each record. Formats that do not support them omit them.
    fn take_with(&mut self, records: &[(Record, EndReason)], extras: &[OwnedExtra]) -> usize {
        let _ = extras;
        self.take(records)
    }

    /// The message; empty if it has no records. `time_ns` is the current time. May be called
    /// repeatedly.
    fn message(&mut self, time_ns: u64) -> &[u8];

    /// Sum of the records in the message.
    fn held(&self) -> Sum;

    /// Number of flow data records in the message. It exceeds the number of flows for formats with
    /// one direction per record.
    fn record_count(&self) -> u64 {
        self.held().flows
    }

    /// Begins the next message, once this one was sent or lost.
    fn next(&mut self);

    /// Begins a session and returns the messages that come first in it. A message that was not sent
    /// yet becomes part of the new session.
    fn begin_session(&mut self, time_ns: u64) -> Vec<Vec<u8>>;

    /// Messages to repeat periodically on a lossy transport. Called between messages, when
    /// [`Encode::held`] is empty.
    fn refresh(&mut self, time_ns: u64, statistics: &Statistics) -> Vec<Vec<u8>>;

    /// Final messages on a lossless transport.
    fn end_session(&mut self, time_ns: u64, statistics: &Statistics) -> Vec<Vec<u8>>;

    /// Records refused, by [`Refusal`].
    fn refused(&self) -> &[Sum; Refusal::COUNT];

    /// Number of records encoded without some of their extra fields, with which they would not have
    /// fitted into a message.
    fn shortened(&self) -> u64 {
        0
    }
}
