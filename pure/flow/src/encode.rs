//! Records as bytes. A format is a file in this directory.
//!
//! A format is an [`Encode`]: it takes records until its message is full, lends the message, and
//! forgets it when told that it has gone. Nothing is allocated for a record or a message; only the
//! messages that come now and then (templates, options) are. Who sends the messages, and where, is
//! not known here.

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

/// Why a format could not take a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// The format knows IPv4 only.
    NotIpv4,
    /// It does not fit into one message.
    TooLarge,
    /// A value is beyond what the format can say.
    OutOfRange,
}

impl Refusal {
    /// How many there are.
    pub const COUNT: usize = 3;
    /// All of them.
    pub const ALL: [Refusal; Refusal::COUNT] =
        [Refusal::NotIpv4, Refusal::TooLarge, Refusal::OutOfRange];

    /// The name in accounts.
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
    /// Flow records, as the table gave them.
    pub flows: u64,
    /// Packets in them.
    pub packets: u64,
    /// Bytes in them.
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

/// What an exporter says of itself in options records (RFC 7012's counters of the same names).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Messages sent.
    pub exported_messages: u64,
    /// Bytes in them.
    pub exported_octets: u64,
    /// Flow records in them, as the format counts them: of a format with one direction a record, a
    /// flow of which both sides sent is two.
    pub exported_records: u64,
    /// Flows that the metering process observed.
    pub observed_flows: u64,
    /// Packets that are in no flow because they could not be read.
    pub ignored_packets: u64,
    /// Packets that were lost before they were seen.
    pub dropped_packets: u64,
    /// What was not sent: flows, packets and bytes.
    pub not_sent: Sum,
}

/// A format.
pub trait Encode: Send {
    /// Takes records in turn into the message, and says how many. Fewer than all means that the
    /// message is full. A record that is refused counts as taken.
    fn take(&mut self, records: &[(Record, EndReason)]) -> usize;

    /// The same for records of which more is known: an extra for each. Formats that cannot say it
    /// leave it out.
    fn take_with(&mut self, records: &[(Record, EndReason)], extras: &[OwnedExtra]) -> usize {
        let _ = extras;
        self.take(records)
    }

    /// The message, empty if nothing was taken. `time_ns` is now. May be asked for again.
    fn message(&mut self, time_ns: u64) -> &[u8];

    /// What is in the message.
    fn held(&self) -> Sum;

    /// Data records of flows in the message. Formats of which a record is one direction have more
    /// of them than flows.
    fn record_count(&self) -> u64 {
        self.held().flows
    }

    /// The message is on its way, or lost: begins the next one.
    fn next(&mut self);

    /// Messages that go before all others when a session begins, and what a session restarts. A
    /// message that has not gone yet goes into the new session.
    fn begin_session(&mut self, time_ns: u64) -> Vec<Vec<u8>>;

    /// Messages to be sent again now and then on a transport that loses some. Called between
    /// messages: [`Encode::held`] is empty.
    fn refresh(&mut self, time_ns: u64, statistics: &Statistics) -> Vec<Vec<u8>>;

    /// Messages with the last words on a transport that loses none.
    fn end_session(&mut self, time_ns: u64, statistics: &Statistics) -> Vec<Vec<u8>>;

    /// Records refused, by [`Refusal`].
    fn refused(&self) -> &[Sum; Refusal::COUNT];

    /// Records taken without some of their extra fields, with which they would not have fitted into
    /// a message.
    fn shortened(&self) -> u64 {
        0
    }
}
