//! Line formats: one line per record, as many per message as fit.

use super::{Encode, Refusal, Statistics, Sum};
use crate::expire::EndReason;
use crate::extra::{Extra, OwnedExtra};
use crate::record::Record;

/// Appends the line of a record, with its line feed.
pub type WriteLine = Box<dyn Fn(&Record, &Extra<'_>, EndReason, &mut Vec<u8>) + Send>;

/// Encoder of a line format.
pub struct Encoder {
    write: WriteLine,
    head: String,
    limit: usize,
    buffer: Vec<u8>,
    held: Sum,
    refused: [Sum; Refusal::COUNT],
}

impl Encoder {
    /// Creates an encoder with messages of at most `limit` bytes; `head` begins every session.
    pub fn new(
        write: impl Fn(&Record, &Extra<'_>, EndReason, &mut Vec<u8>) + Send + 'static,
        head: impl Into<String>,
        limit: usize,
    ) -> Encoder {
        Encoder {
            write: Box::new(write),
            head: head.into(),
            limit,
            // A line that does not fit any more is still written first.
            buffer: Vec::with_capacity(limit + 4096),
            held: Sum::default(),
            refused: [Sum::default(); Refusal::COUNT],
        }
    }
}

impl Encode for Encoder {
    fn take(&mut self, records: &[(Record, EndReason)]) -> usize {
        self.take_with(records, &[])
    }

    fn take_with(&mut self, records: &[(Record, EndReason)], extras: &[OwnedExtra]) -> usize {
        for (count, (record, reason)) in records.iter().enumerate() {
            let before = self.buffer.len();
            let extra = extras.get(count).map(OwnedExtra::get).unwrap_or_default();
            (self.write)(record, &extra, *reason, &mut self.buffer);
            if self.buffer.len() <= self.limit {
                self.held.count(record);
                continue;
            }
            self.buffer.truncate(before);
            if before != 0 {
                return count;
            }
            self.refused[Refusal::TooLarge as usize].count(record);
        }
        records.len()
    }

    fn message(&mut self, _: u64) -> &[u8] {
        &self.buffer
    }

    fn held(&self) -> Sum {
        self.held
    }

    fn next(&mut self) {
        self.buffer.clear();
        self.held = Sum::default();
    }

    fn begin_session(&mut self, _: u64) -> Vec<Vec<u8>> {
        if self.head.is_empty() {
            return Vec::new();
        }
        vec![self.head.as_bytes().to_vec()]
    }

    fn refresh(&mut self, _: u64, _: &Statistics) -> Vec<Vec<u8>> {
        Vec::new()
    }

    fn end_session(&mut self, _: u64, _: &Statistics) -> Vec<Vec<u8>> {
        Vec::new()
    }

    fn refused(&self) -> &[Sum; Refusal::COUNT] {
        &self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::record;

    #[test]
    fn lines_are_never_split() {
        let records: Vec<_> = (1..100)
            .map(|n| (record(4, 17, [n % 9 + 1, n % 3]), EndReason::Idle))
            .collect();
        let mut encoder = Encoder::new(crate::encode::json::line_with, "", 1000);
        let (mut rest, mut text) = (&records[..], Vec::new());
        while !rest.is_empty() {
            rest = &rest[encoder.take(rest)..];
            assert!(encoder.message(0).len() <= 1000 && encoder.message(0).ends_with(b"}\n"));
            text.extend_from_slice(encoder.message(0));
            encoder.next();
        }
        let mut whole = Vec::new();
        for (record, reason) in &records {
            crate::encode::json::line(record, *reason, &mut whole);
        }
        assert_eq!(text, whole);
        let mut small = Encoder::new(crate::encode::json::line_with, "", 10);
        assert_eq!(small.take(&records), records.len());
        let refused = small.refused()[Refusal::TooLarge as usize];
        assert_eq!((refused.flows, small.message(0).len()), (99, 0));
    }
}
