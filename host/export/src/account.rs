//! Accounts: what happened to the records passed to a destination.

use flow::encode::{Refusal, Statistics, Sum};

/// Why records were not exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DropReason {
    /// The format supports IPv4 only.
    NotIpv4,
    /// A record does not fit into one message.
    TooLarge,
    /// A value exceeds the range of the format.
    OutOfRange,
    /// The queue to the exporter was full.
    QueueFull,
    /// The message was lost while sending.
    SendFailed,
    /// The file could not be written.
    WriteFailed,
    /// There was no connection until the end.
    Unreachable,
}

impl DropReason {
    /// Number of reasons.
    pub const COUNT: usize = 7;
    /// All reasons, the refusals of formats first.
    pub const ALL: [DropReason; DropReason::COUNT] = [
        DropReason::NotIpv4,
        DropReason::TooLarge,
        DropReason::OutOfRange,
        DropReason::QueueFull,
        DropReason::SendFailed,
        DropReason::WriteFailed,
        DropReason::Unreachable,
    ];

    /// Whether the destination lost the records; otherwise the format cannot hold them.
    pub const fn is_loss(self) -> bool {
        match self {
            DropReason::NotIpv4 | DropReason::TooLarge | DropReason::OutOfRange => false,
            DropReason::QueueFull
            | DropReason::SendFailed
            | DropReason::WriteFailed
            | DropReason::Unreachable => true,
        }
    }

    /// The name used in accounts.
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
    /// Records passed to the destination.
    pub offered: Sum,
    /// Records in messages sent or written.
    pub exported: Sum,
    /// Data records, as the format counts them: more if it has a record per direction.
    pub data_records: u64,
    /// Records dropped, by [`DropReason`].
    pub dropped: [Sum; DropReason::COUNT],
    /// Records exported without some extra fields, which would have exceeded a message.
    pub shortened: u64,
    /// Records with a time after 2262, which Parquet's nanoseconds cannot hold: exported with the
    /// last time that they can.
    pub time_clamped: u64,
    /// Messages sent or written, including templates and options; for Parquet, row groups.
    pub messages: u64,
    /// Files completed, if files are rotated.
    pub files: u64,
    /// Bytes in these messages or files.
    pub bytes: u64,
    /// Connections made; one for UDP and for a file.
    pub sessions: u64,
    /// Times that the destination was unreachable or disconnected.
    pub failures: u64,
    /// ICMP port unreachable errors (UDP).
    pub refused_by_host: u64,
    /// A description of the last failure.
    pub last_failure: Option<String>,
    /// Whether there is a connection now.
    pub is_connected: bool,
    /// Standard output failed: nothing more can be written, and the probe ends.
    pub is_over: bool,
    /// It failed because its reader closed the pipe, which is not a loss.
    pub has_reader_left: bool,
}

impl Account {
    /// The sum of all records dropped.
    pub fn dropped_total(&self) -> Sum {
        let mut total = Sum::default();
        for sum in &self.dropped {
            total.add(sum);
        }
        total
    }

    /// A description of the loss: records that did not reach the destination, and messages that its
    /// host refused. `None` if nothing was lost.
    pub fn loss(&self) -> Option<String> {
        if self.has_reader_left {
            return None;
        }
        let mut lost = Sum::default();
        let losses = DropReason::ALL.into_iter().filter(|r| r.is_loss());
        losses.for_each(|reason| lost.add(&self.dropped[reason as usize]));
        let refused = self.refused_by_host;
        let (flows, offered) = (lost.flows, self.offered.flows);
        let mut words = match (flows, refused) {
            (0, 0) => return None,
            (0, 1) => "the collector's host refused a message".to_owned(),
            (0, _) => format!("the collector's host refused {refused} messages"),
            _ => format!("{flows} of {offered} flows were lost"),
        };
        if let Some(failure) = &self.last_failure {
            words += &format!(" ({failure})");
        }
        Some(words)
    }

    /// Records neither exported nor dropped: queued while the exporter runs, and 0 afterwards.
    pub fn waiting(&self) -> i64 {
        let done = self.exported.flows + self.dropped_total().flows;
        self.offered.flows.wrapping_sub(done) as i64
    }

    /// Adds the account of an earlier session of the same destination.
    pub(crate) fn add(&mut self, other: &Account) {
        self.offered.add(&other.offered);
        self.exported.add(&other.exported);
        self.data_records += other.data_records;
        self.shortened += other.shortened;
        self.time_clamped += other.time_clamped;
        for (sum, more) in self.dropped.iter_mut().zip(&other.dropped) {
            sum.add(more);
        }
        self.messages += other.messages;
        self.files += other.files;
        self.bytes += other.bytes;
        self.sessions += other.sessions;
        self.failures += other.failures;
        self.refused_by_host += other.refused_by_host;
        self.is_over |= other.is_over;
        self.has_reader_left |= other.has_reader_left;
        if self.last_failure.is_none() {
            self.last_failure.clone_from(&other.last_failure);
        }
    }

    /// Statistics for options records.
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
    fn refusals_come_first_among_reasons() {
        for refusal in Refusal::ALL {
            assert_eq!(DropReason::ALL[refusal as usize].name(), refusal.name());
        }
        for (at, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, at);
        }
    }

    /// An account in which all numbers differ.
    fn counted(from: u64) -> Account {
        let sum = |n: u64| Sum {
            flows: from + n,
            packets: from + n + 100,
            bytes: from + n + 200,
        };
        Account {
            offered: sum(900),
            exported: sum(1),
            data_records: from + 2,
            shortened: from + 9,
            time_clamped: from + 10,
            dropped: std::array::from_fn(|at| sum(10 + at as u64)),
            messages: from + 3,
            files: from + 4,
            bytes: from + 5,
            sessions: from + 6,
            failures: from + 7,
            refused_by_host: from + 8,
            last_failure: Some(format!("failure {from}")),
            is_connected: false,
            is_over: false,
            has_reader_left: false,
        }
    }

    #[test]
    fn accounts_of_two_sessions_add_up() {
        let mut account = counted(1000);
        account.add(&counted(5000));
        let sum = |n: u64| Sum {
            flows: 6000 + 2 * n,
            packets: 6200 + 2 * n,
            bytes: 6400 + 2 * n,
        };
        assert_eq!((account.offered, account.exported), (sum(900), sum(1)));
        for (at, dropped) in account.dropped.iter().enumerate() {
            assert_eq!(*dropped, sum(10 + at as u64));
        }
        let counts = [
            account.data_records,
            account.messages,
            account.files,
            account.bytes,
            account.sessions,
            account.failures,
            account.refused_by_host,
            account.shortened,
            account.time_clamped,
        ];
        let sums = [6004, 6006, 6008, 6010, 6012, 6014, 6016, 6018, 6020];
        assert_eq!(counts, sums);
        assert_eq!(
            account.last_failure.as_deref(),
            Some("failure 1000"),
            "the later one"
        );
        let mut account = Account::default();
        account.add(&counted(5000));
        assert_eq!(account.last_failure.as_deref(), Some("failure 5000"));
    }

    #[test]
    fn waiting_records_were_neither_exported_nor_dropped() {
        let account = counted(0);
        let dropped = account.dropped_total();
        assert_eq!(
            (dropped.flows, dropped.packets, dropped.bytes),
            (91, 791, 1491)
        );
        assert_eq!(account.waiting(), 900 - 1 - 91);
        let mut account = Account::default();
        account.exported.flows = 3;
        assert_eq!(account.waiting(), -3, "more than was offered is seen");
        let account = counted(0);
        let Statistics {
            exported_messages,
            exported_octets,
            exported_records,
            not_sent,
            ..
        } = account.statistics();
        assert_eq!(
            (exported_messages, exported_octets, exported_records),
            (3, 5, 2)
        );
        assert_eq!(not_sent, dropped);
    }

    #[test]
    fn reasons_have_names() {
        let names = DropReason::ALL.map(DropReason::name);
        let own = ["queue_full", "send_failed", "write_failed", "unreachable"];
        assert_eq!(names[3..], own);
    }
}
