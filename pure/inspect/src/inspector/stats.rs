//! Counters of an inspector: each flow ends in exactly one of them.

use crate::conversation::End;
use crate::decode::Reason;

/// Counters of an inspector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InspectorStats {
    /// Packets inspected.
    pub packets: u64,
    /// Flows inspected.
    pub flows: u64,
    /// Flows whose decoder finished.
    pub done: u64,
    /// Flows abandoned, by [`Reason`].
    pub rejected: [u64; Reason::COUNT],
    /// Flows that ended before that.
    pub unfinished: u64,
    /// Flows not inspected because all flow slots were in use.
    pub no_room_flow: u64,
    /// Flows not read because all decoder pages were in use.
    pub no_room_state: u64,
    /// Segments that arrived early and could not be kept.
    pub no_room_segment: u64,
    /// Flows read only to the end of their first transaction, because half of the pages were in
    /// use.
    pub no_room_follow: u64,
    /// Flows that currently have a slot.
    pub live: u64,
}

impl InspectorStats {
    /// Counts the result of reading a flow.
    pub(super) fn count(&mut self, end: End) {
        match end {
            End::Done => self.done += 1,
            End::Rejected(reason) => self.rejected[reason as usize] += 1,
            End::NoRoom => self.no_room_state += 1,
        }
    }

    /// Adds another inspector's counts.
    pub fn add(&mut self, other: &InspectorStats) {
        self.packets += other.packets;
        self.flows += other.flows;
        self.done += other.done;
        for (sum, count) in self.rejected.iter_mut().zip(other.rejected) {
            *sum += count;
        }
        self.unfinished += other.unfinished;
        self.no_room_flow += other.no_room_flow;
        self.no_room_state += other.no_room_state;
        self.no_room_segment += other.no_room_segment;
        self.no_room_follow += other.no_room_follow;
        self.live += other.live;
    }

    /// Inspected flows less those accounted for: 0.
    pub fn imbalance(&self) -> i64 {
        let rejected: u64 = self.rejected.iter().sum();
        let known = self.done + rejected + self.unfinished + self.no_room_flow + self.no_room_state;
        self.flows.wrapping_sub(known) as i64
    }
}
