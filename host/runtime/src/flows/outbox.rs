//! Passes ended flows from a worker to the collector, in buffers that are returned empty.

use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};

use flow::tally::Tally;
use flow::{EndReason, Extra, OwnedExtra, Record, RecordSink};

use super::Message;

/// Flows in one buffer.
pub(super) const BUFFER_LEN: usize = 256;
/// Buffers of a worker: 3 MiB, plus extra fields.
pub(super) const BUFFER_COUNT: usize = 64;

/// A buffer of ended flows.
#[derive(Default)]
pub(super) struct Buffer {
    pub(super) records: Vec<(Record, EndReason)>,
    /// One per record, if extra fields are enabled. They stay when the buffer is emptied, so that
    /// their memory is reused.
    pub(super) extras: Vec<OwnedExtra>,
    pub(super) has_extras: bool,
}

impl Buffer {
    pub(super) fn new() -> Buffer {
        Buffer {
            records: Vec::with_capacity(BUFFER_LEN),
            ..Buffer::default()
        }
    }

    pub(super) fn clear(&mut self) {
        self.records.clear();
        self.has_extras = false;
    }

    fn push(&mut self, record: &Record, extra: Option<&Extra<'_>>, reason: EndReason) {
        if let Some(extra) = extra {
            self.has_extras = true;
            let at = self.records.len();
            if self.extras.len() <= at {
                self.extras.resize_with(at + 1, OwnedExtra::default);
            }
            self.extras[at].set(extra);
        }
        self.records.push((*record, reason));
    }
}

/// The worker's end of the channel to the collector.
pub(super) struct Outbox {
    index: usize,
    buffer: Buffer,
    messages: SyncSender<Message>,
    empties: Receiver<Buffer>,
    /// Returned buffers.
    spare: Vec<Buffer>,
    /// Whether waiting for a buffer loses no packets.
    pub(super) may_wait: bool,
    pub(super) records_dropped: u64,
    pub(super) packets_dropped: u64,
    /// Whether the collector has ended.
    pub(super) is_closed: bool,
    /// Sums by application, if requested.
    pub(super) tally: Option<Box<Tally>>,
    /// Place of the flow that is ending.
    place: u32,
}

impl RecordSink for Outbox {
    #[inline]
    fn leaving(&mut self, place: u32) {
        self.place = place;
    }

    #[inline]
    fn ended(&mut self, record: &Record, reason: EndReason) {
        if let Some(tally) = &mut self.tally {
            tally.ended(self.place, record, &Extra::default());
        }
        self.push(record, None, reason);
    }

    fn ended_with(&mut self, record: &Record, extra: &Extra<'_>, reason: EndReason) {
        if let Some(tally) = &mut self.tally {
            tally.ended(self.place, record, extra);
        }
        self.push(record, Some(extra), reason);
    }
}

impl Outbox {
    /// Creates the outbox of the worker with this index, whose empty buffers return through
    /// `empties`.
    pub(super) fn new(
        index: usize,
        messages: SyncSender<Message>,
        empties: Receiver<Buffer>,
        may_wait: bool,
    ) -> Outbox {
        Outbox {
            index,
            buffer: Buffer::new(),
            messages,
            empties,
            spare: Vec::with_capacity(BUFFER_COUNT),
            may_wait,
            records_dropped: 0,
            packets_dropped: 0,
            is_closed: false,
            tally: None,
            place: 0,
        }
    }

    #[inline]
    fn push(&mut self, record: &Record, extra: Option<&Extra<'_>>, reason: EndReason) {
        self.buffer.push(record, extra, reason);
        if self.buffer.records.len() == BUFFER_LEN {
            self.send();
        }
    }

    /// Whether half of the buffers are available.
    pub(super) fn has_room(&mut self) -> bool {
        while self.spare.len() < BUFFER_COUNT / 2
            && let Ok(empty) = self.empties.try_recv()
        {
            self.spare.push(empty);
        }
        self.spare.len() >= BUFFER_COUNT / 2
    }

    /// Sends a partly filled buffer, unless the collector lags: then the records wait for others,
    /// or the few records of each pulse would take all buffers.
    pub(super) fn pulse(&mut self) {
        if self.has_room() {
            self.send();
        }
    }

    pub(super) fn send(&mut self) {
        if self.buffer.records.is_empty() {
            return;
        }
        let empty = match self.spare.pop() {
            Some(empty) => Ok(empty),
            None if self.may_wait => self.empties.recv().map_err(|_| TryRecvError::Disconnected),
            None => self.empties.try_recv(),
        };
        match empty {
            Ok(empty) => {
                let full = std::mem::replace(&mut self.buffer, empty);
                // The channel has room for all buffers, so this does not block.
                let sent = self.messages.send(Message::Ended(self.index, full));
                self.is_closed |= sent.is_err();
            }
            Err(error) => {
                self.is_closed |= error == TryRecvError::Disconnected;
                let packets = self
                    .buffer
                    .records
                    .iter()
                    .map(|(record, _)| record.packets());
                self.packets_dropped += packets.sum::<u64>();
                self.records_dropped += self.buffer.records.len() as u64;
                self.buffer.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests;
