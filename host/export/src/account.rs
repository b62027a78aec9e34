//! What became of the records that were handed over.

use flow::encode::{Refusal, Statistics, Sum};

/// Why records were not exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DropReason {
    /// The format knows IPv4 only.
    NotIpv4,
    /// A record does not fit into one message.
    TooLarge,
    /// A value is beyond what the format can say.
    OutOfRange,
    /// The queue to the exporter was full.
    QueueFull,
    /// The message was lost on its way to the network.
    SendFailed,
    /// The file could not be written.
    WriteFailed,
    /// There was no connection up to the end.
    Unreachable,
}

impl DropReason {
    /// How many there are.
    pub const COUNT: usize = 7;
    /// All of them, the refusals of formats first.
    pub const ALL: [DropReason; DropReason::COUNT] = [
        DropReason::NotIpv4,
        DropReason::TooLarge,
        DropReason::OutOfRange,
        DropReason::QueueFull,
        DropReason::SendFailed,
        DropReason::WriteFailed,
        DropReason::Unreachable,
    ];

    /// The name in accounts.
    pub const fn name(self) -> &'static str {
        match self {
            DropReason::NotIpv4 => Refusal::NotIpv4.name(),
            DropReason::TooLarge => Refusal::TooLarge.name(),
            DropReason::OutOfRange => Refusal::OutOfRange.name(),
            DropReason::QueueFull => "queue_full",
            DropReason::SendFailed => "send_failed",
            DropReason::WriteFailed => "write_failed",
            DropReason::Unreachable => "unreachable",
        }
    }
}

/// The account of one destination.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// Records handed over.
    pub offered: Sum,
    /// Records in messages that were sent or written.
    pub exported: Sum,
    /// The same as the format counts them: of one with a record for each direction, more.
    pub data_records: u64,
    /// Records that were not, by [`DropReason`].
    pub dropped: [Sum; DropReason::COUNT],
    /// Messages sent or written, those with templates and options included; row groups of
    /// Parquet.
    pub messages: u64,
    /// Files that were completed, where one follows the other.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Connections made; over UDP, and to a file, one.
    pub sessions: u64,
    /// Times that the destination could not be reached, or went away.
    pub failures: u64,
    /// Times that the host said that nobody listens there (UDP).
    pub refused_by_host: u64,
    /// The last failure, in words.
    pub last_failure: Option<String>,
    /// Whether there is a connection now.
    pub is_connected: bool,
}

impl Account {
    /// All that was not exported.
    pub fn dropped_total(&self) -> Sum {
        let mut total = Sum::default();
        for sum in &self.dropped {
            total.add(sum);
        }
        total
    }

    /// Records neither exported nor dropped: waiting, while the exporter runs; afterwards 0.
    pub fn waiting(&self) -> i64 {
        let done = self.exported.flows + self.dropped_total().flows;
        self.offered.flows.wrapping_sub(done) as i64
    }

    /// Takes in the account of an earlier session of the same destination.
    pub(crate) fn add(&mut self, other: &Account) {
        self.offered.add(&other.offered);
        self.exported.add(&other.exported);
        self.data_records += other.data_records;
        for (sum, more) in self.dropped.iter_mut().zip(&other.dropped) {
            sum.add(more);
        }
        self.messages += other.messages;
        self.files += other.files;
        self.bytes += other.bytes;
        self.sessions += other.sessions;
        self.failures += other.failures;
        self.refused_by_host += other.refused_by_host;
        if self.last_failure.is_none() {
            self.last_failure.clone_from(&other.last_failure);
        }
    }

    /// What options records say.
    pub(crate) fn statistics(&self) -> Statistics {
        Statistics {
            exported_messages: self.messages,
            exported_octets: self.bytes,
            exported_records: self.data_records,
            not_sent: self.dropped_total(),
            ..Statistics::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_the_first_reasons() {
        for refusal in Refusal::ALL {
            assert_eq!(DropReason::ALL[refusal as usize].name(), refusal.name());
        }
        for (at, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, at);
        }
    }
}
