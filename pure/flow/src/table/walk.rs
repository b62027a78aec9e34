//! The clock of a table, and the sweep of its index for ended flows.

use crate::expire::{self, EndReason};

use super::line::{Line, WAYS};
use super::{Alone, BATCH_MAX, NONE, Place, RecordSink, Table, Watch};

/// Time in which expiry walks the whole index: two seconds, a small fraction of any timeout.
const ROUND_NS: u64 = 1 << ROUND_SHIFT;
const ROUND_SHIFT: u32 = 31;

/// At the end of input, records are loaded this many bytes ahead of the one that ends.
const FINISH_AHEAD: usize = 2048;

/// Maximum number of lines that expiry checks after [`BATCH_MAX`] packets.
pub(super) const WALK_COUNT: usize = 2 * BATCH_MAX + 8;

/// Number of lines loaded ahead for the next part of the walk.
const WALK_AHEAD: usize = 16;

/// Packets this far behind the clock are not merely out of order.
pub(super) const JUMP_NS: u64 = 60_000_000_000;
const JUMP_COUNT: u64 = 1024;

impl Table {
    /// Counts a packet whose time is far before the clock. Once as many of them have arrived while
    /// the clock stood still as there may be flows, the clock is wrong (one packet with a time in
    /// the future is enough): it is set back, and every flow is as old as its last packet.
    #[inline(never)]
    pub(super) fn far_behind(&mut self, time_ns: u64) {
        if self.far_behind_ns != self.clock_ns {
            self.far_behind_ns = self.clock_ns;
            self.far_behind_count = 0;
        }
        self.far_behind_count += 1;
        let flows = self.stats.flows.min(self.record_count_max as u64);
        if self.far_behind_count < flows.max(JUMP_COUNT) {
            return;
        }
        self.far_behind_count = 0;
        self.stats.set_back += 1;
        self.clock_ns = time_ns;
        let tick = expire::tick(time_ns);
        for line in &mut self.lines {
            for way in 0..WAYS {
                if line.tags[way] == 0 {
                    continue;
                }
                let record = &mut self.records[line.records[way] as usize];
                record.set_seen(tick);
                let (left_ns, _) = self.timeouts.left(record);
                line.deadlines[way] = expire::deadline(time_ns, left_ns);
            }
        }
    }

    /// Advances the clock when no packets arrive, and ends expired flows. Checks the whole index if
    /// enough time has passed, so call it at most some ten times per second.
    pub fn tick(&mut self, clock_ns: u64, sink: &mut dyn RecordSink) {
        self.tick_with(clock_ns, &mut Alone::<true>, sink);
    }

    /// The same, with a [`Watch`].
    pub(crate) fn tick_with<W: Watch>(
        &mut self,
        clock_ns: u64,
        watch: &mut W,
        sink: &mut dyn RecordSink,
    ) {
        if self.is_stale {
            self.empty_index();
        }
        self.advance(clock_ns);
        self.walk(self.lines.len(), watch, sink);
    }

    /// Advances the clock to at least this time.
    pub(super) fn advance(&mut self, clock_ns: u64) {
        self.clock_ns = self.clock_ns.max(clock_ns);
    }

    /// Adds the time since the last walk to the lag of expiry.
    pub(super) fn owe(&mut self) {
        // The first time does not count as elapsed.
        if self.walked_ns != 0 {
            let passed_ns = self.clock_ns.saturating_sub(self.walked_ns);
            self.owed_ns = self.owed_ns.saturating_add(passed_ns).min(ROUND_NS);
        }
        self.walked_ns = self.clock_ns;
    }

    /// Checks a number of lines proportional to the elapsed time for ended flows, at most
    /// `line_count_max`.
    pub(super) fn walk<W: Watch>(
        &mut self,
        line_count_max: usize,
        watch: &mut W,
        sink: &mut dyn RecordSink,
    ) {
        self.owe();
        let line_count = self.lines.len() as u64;
        let owed = (self.owed_ns * line_count) >> ROUND_SHIFT;
        let count = owed.min(line_count_max as u64);
        if count == 0 {
            return;
        }
        self.owed_ns = self
            .owed_ns
            .saturating_sub((count << ROUND_SHIFT).div_ceil(line_count));
        let now = expire::deadline_now(self.clock_ns);
        for _ in 0..count {
            let at = self.hand;
            self.hand = self.behind(at, 1);
            if self.lines[at].has_passed(now) {
                self.end_passed(at, watch, sink);
            }
        }
        // The same number will be checked next time.
        if let Some(prefetch) = self.prefetch {
            let start = self.lines.as_ptr().addr() + self.hand * size_of::<Line>();
            let next: [usize; WALK_AHEAD] =
                std::array::from_fn(|at| start + at * size_of::<Line>());
            prefetch(&next[..WALK_AHEAD.min(count as usize)]);
        }
    }

    #[inline(never)]
    pub(super) fn end_passed<W: Watch>(
        &mut self,
        at: usize,
        watch: &mut W,
        sink: &mut dyn RecordSink,
    ) {
        let now = expire::deadline_now(self.clock_ns);
        let mut way = 0;
        while way < WAYS {
            let line = &self.lines[at];
            let record = line.records[way];
            if line.tags[way] == 0 || expire::until(line.deadlines[way], now) >= 0 {
                way += 1;
                continue;
            }
            let (left_ns, reason) = self.timeouts.left(&self.records[record as usize]);
            if expire::is_over(self.clock_ns, self.records[record as usize].seen(), left_ns) {
                // Another flow may move back into this way: check it again.
                self.end(Place { line: at, way }, reason, watch, sink);
            } else {
                // Its timeout is beyond the maximum deadline, or the deadlines wrapped.
                let seen = self.records[record as usize].seen();
                let left_ns = expire::left_now(self.clock_ns, seen, left_ns);
                self.lines[at].deadlines[way] = expire::deadline(self.clock_ns, left_ns);
                way += 1;
            }
        }
    }

    /// Clears the index after the end of input. Most tables are not reused, so this is deferred.
    #[cold]
    pub(super) fn empty_index(&mut self) {
        self.lines.fill(Line::EMPTY);
        self.is_stale = false;
    }

    /// Handles the end of input: every flow ends, timed-out ones with that reason, all others as
    /// forced. The table is then empty and can be used again.
    pub fn finish(&mut self, sink: &mut dyn RecordSink) {
        self.finish_with(&mut Alone::<true>, sink);
    }

    /// The same, with a [`Watch`].
    pub(crate) fn finish_with<W: Watch>(&mut self, watch: &mut W, sink: &mut dyn RecordSink) {
        for index in 0..self.records.len() {
            let record = &self.records[index];
            if let Some(prefetch) = self.prefetch {
                let ahead = std::ptr::from_ref(record).addr() + FINISH_AHEAD;
                prefetch(&[ahead, ahead + 64, ahead + 128]);
            }
            if !record.is_live() {
                continue;
            }
            let (left_ns, reason) = self.timeouts.left(record);
            let over = expire::is_over(self.clock_ns, record.seen(), left_ns);
            let reason = if over { reason } else { EndReason::Forced };
            self.report(index as u32, reason, watch, sink);
        }
        self.records.clear();
        self.free = NONE;
        self.is_stale = true;
        self.owed_ns = 0;
        self.walked_ns = self.clock_ns;
        self.until_walk = BATCH_MAX;
    }
}
