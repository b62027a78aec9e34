//! Notifications of what happens in a table.

use crate::expire::EndReason;
use crate::extra::Extra;
use crate::record::Record;
use crate::table::Observed;

/// Where ended flows go.
pub trait RecordSink {
    /// A flow has ended.
    fn ended(&mut self, record: &Record, reason: EndReason);

    /// A flow with extra fields has ended. Without this the record alone is taken.
    fn ended_with(&mut self, record: &Record, extra: &Extra<'_>, reason: EndReason) {
        let _ = extra;
        self.ended(record, reason);
    }
}

/// Extra data kept alongside the records of a table, by the number of the record. The code is made
/// for each, so that a table by itself pays for nothing.
pub(crate) trait Watch {
    /// Whether records hold more than counters.
    const DETAIL: bool;
    /// Whether there is any extra data.
    const HAS_EXTRAS: bool;

    /// Whether a packet is of this flow, whose key is the packet's.
    fn is_same(&self, record: u32, packet: &Observed) -> bool;

    /// A flow begins here, at this clock of the table.
    fn began(&mut self, record: u32, packet: &Observed, clock_ns: u64);

    /// A packet is about to be counted.
    fn packet(&mut self, index: u32, record: &mut Record, packet: &Observed);

    /// A flow has ended, at this clock of the table: the sink is to know.
    fn ended(
        &mut self,
        index: u32,
        ended: (&Record, EndReason),
        clock_ns: u64,
        sink: &mut dyn RecordSink,
    );

    /// The table has looked for ended flows: after this many packets, however they were given.
    fn walked(&mut self, clock_ns: u64);
}

/// No extra data is kept alongside the records.
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
    fn packet(&mut self, _: u32, _: &mut Record, _: &Observed) {}

    #[inline(always)]
    fn ended(&mut self, _: u32, ended: (&Record, EndReason), _: u64, sink: &mut dyn RecordSink) {
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
