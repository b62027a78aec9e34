//! Eviction: selects a flow and frees its entry.

use crate::expire::{self, EndReason};

use super::line::{NONE, WAYS};
use super::{AWAY_SHIFT, Place, REACH, RecordSink, Table, Watch};

impl Table {
    /// The flow closest to its timeout in the first `reach` lines from home, or, if they are empty,
    /// in the next line that is not. `None` only in an empty table, for which it is never called.
    pub(super) fn victim(&self, hash: u64, reach: usize) -> Option<Place> {
        let now = expire::deadline_now(self.clock_ns);
        let home = self.home(hash);
        let mut best: Option<(i16, Place)> = None;
        for away in 0..self.lines.len() {
            if away >= reach && best.is_some() {
                break;
            }
            let at = self.behind(home, away);
            if let Some((until, way)) = self.lines[at].nearest(now)
                && best.is_none_or(|(least, _)| until < least)
            {
                best = Some((until, Place { line: at, way }));
            }
        }
        best.map(|(_, place)| place)
    }

    /// Why an evicted flow ends: it may have timed out in any case.
    pub(super) fn reason_to_go(&self, place: Place) -> EndReason {
        let record = &self.records[self.lines[place.line].records[place.way] as usize];
        let (left_ns, reason) = self.timeouts.left(record);
        if expire::is_over(self.clock_ns, record.seen(), left_ns) {
            reason
        } else {
            EndReason::Resources
        }
    }

    pub(super) fn evict<W: Watch>(
        &mut self,
        place: Place,
        watch: &mut W,
        sink: &mut dyn RecordSink,
    ) {
        let reason = self.reason_to_go(place);
        self.end(place, reason, watch, sink);
    }

    /// Frees a way. Flows that were displaced because this line was full move back, so that a
    /// search may stop at the first line with a free way.
    pub(super) fn remove(&mut self, place: Place) {
        let mut hole = place;
        loop {
            let was_full = self.lines[hole.line].is_full();
            self.lines[hole.line].tags[hole.way] = 0;
            self.lines[hole.line].records[hole.way] = NONE;
            if !was_full {
                return;
            }
            let Some((from, by)) = self.moved_past(hole.line) else {
                return;
            };
            let source = self.lines[from.line];
            let line = &mut self.lines[hole.line];
            line.tags[hole.way] = source.tags[from.way] - (by << AWAY_SHIFT);
            line.deadlines[hole.way] = source.deadlines[from.way];
            line.records[hole.way] = source.records[from.way];
            hole = from;
        }
    }

    /// A flow in a later line whose place would be in this one, and its distance.
    pub(super) fn moved_past(&self, line: usize) -> Option<(Place, u16)> {
        for by in 1..REACH as u16 {
            let at = self.behind(line, usize::from(by));
            let line = &self.lines[at];
            if let Some(way) = (0..WAYS).find(|&way| line.tags[way] >> AWAY_SHIFT >= by) {
                return Some((Place { line: at, way }, by));
            }
            if line.is_full() {
                continue;
            }
            break;
        }
        None
    }
}
