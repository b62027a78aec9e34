//! One record per message, for destinations whose readers count messages: lines without line feeds.

use flow::encode::{Encode, Refusal, Statistics, Sum};
use flow::{EndReason, OwnedExtra, Record};

/// Splits a line format into single lines.
pub(crate) struct One(pub Box<dyn Encode>);

impl Encode for One {
    fn take(&mut self, records: &[(Record, EndReason)]) -> usize {
        self.take_with(records, &[])
    }

    fn take_with(&mut self, records: &[(Record, EndReason)], extras: &[OwnedExtra]) -> usize {
        if self.0.held().flows != 0 {
            return 0;
        }
        match records.first_chunk::<1>() {
            Some(one) => self.0.take_with(one, extras.get(..1).unwrap_or_default()),
            None => 0,
        }
    }

    fn message(&mut self, time_ns: u64) -> &[u8] {
        let message = self.0.message(time_ns);
        message.strip_suffix(b"\n").unwrap_or(message)
    }

    fn held(&self) -> Sum {
        self.0.held()
    }

    fn next(&mut self) {
        self.0.next();
    }

    fn begin_session(&mut self, time_ns: u64) -> Vec<Vec<u8>> {
        self.0.begin_session(time_ns)
    }

    fn refresh(&mut self, time_ns: u64, statistics: &Statistics) -> Vec<Vec<u8>> {
        self.0.refresh(time_ns, statistics)
    }

    fn end_session(&mut self, time_ns: u64, statistics: &Statistics) -> Vec<Vec<u8>> {
        self.0.end_session(time_ns, statistics)
    }

    fn refused(&self) -> &[Sum; Refusal::COUNT] {
        self.0.refused()
    }

    fn shortened(&self) -> u64 {
        self.0.shortened()
    }
}

#[cfg(test)]
mod tests;
