//! Notifications about the flows of a table.

use crate::expire::EndReason;
use crate::extra::Extra;
use crate::record::Record;
use crate::table::Observed;

/// Receives ended flows.
pub trait RecordSink {
    /// Called when a flow has ended.
    fn ended(&mut self, record: &Record, reason: EndReason);

    /// Called before a table reports an ended flow, with its place: the place is free afterwards.
    /// By default this is ignored.
    fn leaving(&mut self, place: u32) {
        let _ = place;
    }

    /// Called when a flow with extra fields has ended. By default only the record is used.
    fn ended_with(&mut self, record: &Record, extra: &Extra<'_>, reason: EndReason) {
        let _ = extra;
        self.ended(record, reason);
    }
}

/// Extra data kept alongside a table's records, by record number. Code is generated for each
/// implementation, so a table without any has no overhead.
pub(crate) trait Watch {
    /// Whether records contain more than counters.
    const DETAIL: bool;
    /// Whether there is any extra data.
    const HAS_EXTRAS: bool;

    /// Whether a packet belongs to this flow, which has the same key.
    fn is_same(&self, record: u32, packet: &Observed) -> bool;

    /// Called when a flow begins, at this clock of the table.
    fn began(&mut self, record: u32, packet: &Observed, clock_ns: u64);

    /// Called before a packet that was in fragments is counted, with its bytes: the input has only
    /// those of the last fragment.
    fn hold_bytes(&mut self, bytes: &[u8]);

    /// Called before a packet is counted.
    fn packet(&mut self, index: u32, record: &mut Record, packet: &Observed);

    /// Called when a flow has ended, at this clock of the table: notifies the sink.
    fn ended(
        &mut self,
        index: u32,
        ended: (&Record, EndReason),
        clock_ns: u64,
        sink: &mut dyn RecordSink,
    );

    /// Called when the table has checked for ended flows: after a fixed number of packets, however
    /// they were passed.
    fn walked(&mut self, clock_ns: u64);
}

/// No extra data.
pub(crate) struct Alone<const DETAIL: bool>;

impl<const D: bool> Watch for Alone<D> {
    const DETAIL: bool = D;
    const HAS_EXTRAS: bool = false;

    #[inline(always)]
    fn is_same(&self, _: u32, _: &Observed) -> bool {
        true
    }

    #[inline(always)]
    fn began(&mut self, _: u32, _: &Observed, _: u64) {}

    #[inline(always)]
    fn hold_bytes(&mut self, _: &[u8]) {}

    #[inline(always)]
    fn packet(&mut self, _: u32, _: &mut Record, _: &Observed) {}

    #[inline(always)]
    fn ended(
        &mut self,
        index: u32,
        ended: (&Record, EndReason),
        _: u64,
        sink: &mut dyn RecordSink,
    ) {
        sink.leaving(index);
        sink.ended(ended.0, ended.1);
    }

    #[inline(always)]
    fn walked(&mut self, _: u64) {}
}

impl<F: FnMut(&Record, EndReason)> RecordSink for F {
    fn ended(&mut self, record: &Record, reason: EndReason) {
        self(record, reason);
    }
}
