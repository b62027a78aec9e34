//! The transactions of a flow: questions with their answers, requests with their responses.
//!
//! The fields of an [`Application`] are those of the first one. All are counted, and some of those
//! after the first are kept, in a [`Log`] of bounded size that is allocated for a flow's second
//! one.

use alloc::vec::Vec;

use crate::application::{Application, Fields};
use crate::field::{Field, FieldSink, Value};
use crate::slab::Slab;

/// Room for the kept transactions of a flow in bytes.
pub const LOG_LEN: usize = 1000;

/// Separates the fields of an application from its transactions: no field has this number.
const MARK: [u8; 3] = [0xff, 0, 0x3c];
/// The mark, the number of transactions, and the number of those lost.
const HEAD_LEN: usize = MARK.len() + 8;

/// Fields of a flow's first transaction that belong to the transaction, too.
const OF_FIRST: &[Field] = &[
    Field::DnsName,
    Field::DnsType,
    Field::DnsRcode,
    Field::DnsAnswers,
    Field::DnsLatencyNs,
    Field::HttpMethod,
    Field::HttpHost,
    Field::HttpPath,
    Field::HttpStatus,
    Field::RtspMethod,
    Field::RtspUrl,
    Field::RtspStatus,
];

/// Kept transactions in sequence: two bytes of length, then fields.
pub(crate) struct Log {
    len: u16,
    bytes: [u8; LOG_LEN],
}

impl Log {
    pub(crate) const EMPTY: Log = Log {
        len: 0,
        bytes: [0; LOG_LEN],
    };

    fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len).min(LOG_LEN)]
    }

    fn push(&mut self, entry: &[u8]) -> bool {
        let at = usize::from(self.len);
        let Some(place) = self.bytes.get_mut(at..at + 2 + entry.len()) else {
            return false;
        };
        place[..2].copy_from_slice(&(entry.len() as u16).to_le_bytes());
        place[2..].copy_from_slice(entry);
        self.len += 2 + entry.len() as u16;
        true
    }
}

/// Counters of a flow, and the number of its log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally {
    pub(crate) count: u32,
    lost: u32,
    log: u32,
}

const NO_LOG: u32 = u32::MAX;

impl Tally {
    pub(crate) const NEW: Tally = Tally {
        count: 0,
        lost: 0,
        log: NO_LOG,
    };

    /// Counts a transaction, and keeps it if there is room.
    pub(crate) fn add(
        &mut self,
        is_first: bool,
        fields: &[(Field, Value<'_>)],
        logs: &mut Slab<Log>,
    ) {
        self.count = self.count.saturating_add(1);
        // The application contains it.
        if is_first {
            return;
        }
        if self.log == NO_LOG
            && let Some(index) = logs.take(|| Log::EMPTY)
        {
            self.log = index;
            if let Some(log) = logs.get_mut(index) {
                log.len = 0;
            }
        }
        let mut entry = Application::EMPTY;
        for (field, value) in fields {
            entry.field(*field, *value);
        }
        let log = logs.get_mut(self.log);
        if !log.is_some_and(|log| log.push(entry.bytes().1)) {
            self.lost = self.lost.saturating_add(1);
        }
    }

    /// Frees the log.
    pub(crate) fn release(&mut self, logs: &mut Slab<Log>) {
        if self.log != NO_LOG {
            logs.give(self.log);
        }
        *self = Tally::NEW;
    }

    /// The transactions, if there was more than one.
    pub(crate) fn transactions<'a>(&self, logs: &'a Slab<Log>) -> Option<Transactions<'a>> {
        (self.count > 1).then(|| Transactions {
            count: self.count,
            lost: self.lost,
            kept: logs.get(self.log).map_or(&[], Log::bytes),
        })
    }
}

/// The transactions of a flow that has more than one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transactions<'a> {
    /// Number of transactions.
    pub count: u32,
    /// Number of transactions that were not kept.
    pub lost: u32,
    /// The kept ones, except the first.
    kept: &'a [u8],
}

impl<'a> Transactions<'a> {
    /// Reads the transactions after the fields of an application, as written by
    /// [`Transactions::put`] after [`Application::bytes`].
    pub fn of(bytes: &'a [u8]) -> Option<Transactions<'a>> {
        let mut fields = Fields::of(bytes);
        while fields.next().is_some() {}
        let rest = fields.rest().strip_prefix(&MARK)?;
        let (count, rest) = rest.split_first_chunk()?;
        let (lost, kept) = rest.split_first_chunk()?;
        Some(Transactions {
            count: u32::from_le_bytes(*count),
            lost: u32::from_le_bytes(*lost),
            kept,
        })
    }

    /// Appends them to the fields of an application.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.reserve(HEAD_LEN + self.kept.len());
        out.extend(MARK);
        out.extend(self.count.to_le_bytes());
        out.extend(self.lost.to_le_bytes());
        out.extend_from_slice(self.kept);
    }

    /// The fields of each kept transaction except the first, in the order in which they ended.
    pub fn kept(&self) -> impl Iterator<Item = Fields<'a>> + use<'a> {
        let mut rest = self.kept;
        core::iter::from_fn(move || {
            let (len, behind) = rest.split_first_chunk()?;
            let (entry, behind) = behind.split_at_checked(u16::from_le_bytes(*len).into())?;
            rest = behind;
            Some(Fields::of(entry))
        })
    }
}

/// The fields of an application that belong to its first transaction.
pub(crate) fn first(application: &Application) -> impl Iterator<Item = (Field, Value<'_>)> {
    let of = OF_FIRST.iter();
    of.filter_map(|field| Some((*field, application.get(*field)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_transactions_are_counted_and_some_kept() {
        let mut logs = Slab::new(1);
        let (mut one, mut other) = (Tally::NEW, Tally::NEW);
        let name = |name| {
            [
                (Field::DnsName, Value::text(name)),
                (Field::DnsType, Value::Number(1)),
            ]
        };
        one.add(true, &name(b"first"), &mut logs);
        assert!(one.transactions(&logs).is_none());
        for _ in 0..50 {
            one.add(false, &name(b"some.thirty.bytes.of.a.name"), &mut logs);
        }
        // No log is left for the other.
        other.add(true, &[], &mut logs);
        other.add(false, &name(b"x"), &mut logs);
        let lost = other.transactions(&logs).unwrap();
        assert_eq!((lost.count, lost.lost, lost.kept().count()), (2, 1, 0));
        let all = one.transactions(&logs).unwrap();
        let mut bytes = Vec::new();
        let mut application = Application::EMPTY;
        application.field(Field::DnsName, Value::text(b"first"));
        bytes.extend_from_slice(application.bytes().1);
        assert_eq!(Transactions::of(&bytes), None);
        all.put(&mut bytes);
        let read = Transactions::of(&bytes).unwrap();
        assert_eq!(read, all);
        assert_eq!(read.count, 51);
        assert_eq!(read.kept().count() + read.lost as usize, 50);
        assert!(read.kept().count() > 20);
        for fields in read.kept() {
            let expected = name(b"some.thirty.bytes.of.a.name");
            assert!(fields.eq(expected));
        }
        let copy = Application::from_bytes(crate::Protocol::Dns, &bytes);
        assert_eq!(copy.get(Field::Transactions), Some(Value::Number(51)));
        assert_eq!(copy.get(Field::DnsName), Some(Value::text(b"first")));
        // Merged halves of a flow are written and read again: the count stays single.
        let mut again = copy.bytes().1.to_vec();
        all.put(&mut again);
        let copy = Application::from_bytes(crate::Protocol::Dns, &again);
        let counts = copy
            .fields()
            .filter(|(field, _)| *field == Field::Transactions);
        assert_eq!(counts.count(), 1);
        assert_eq!(copy.get(Field::Transactions), Some(Value::Number(51)));
        one.release(&mut logs);
        other.release(&mut logs);
        assert_eq!(logs.len(), 0);
    }
}
