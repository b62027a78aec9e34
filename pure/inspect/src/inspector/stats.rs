//! What an inspector counts: each flow ends in one of these numbers.

use crate::conversation::End;
use crate::decode::Reason;

/// What an inspector has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InspectorStats {
    /// Packets looked at.
    pub packets: u64,
    /// Flows looked at.
    pub flows: u64,
    /// Flows whose decoder was content.
    pub done: u64,
    /// Flows abandoned, by [`Reason`].
    pub rejected: [u64; Reason::COUNT],
    /// Flows that ended before either.
    pub unfinished: u64,
    /// Flows not looked at because all slots for flows were taken.
    pub no_room_flow: u64,
    /// Flows not read because all pages for decoders were taken.
    pub no_room_state: u64,
    /// Segments that came too early and could not be kept.
    pub no_room_segment: u64,
    /// Flows that were read to the end of their first transaction only, because half of the pages
    /// were taken.
    pub no_room_follow: u64,
    /// Flows at this time that have a slot.
    pub live: u64,
}

impl InspectorStats {
    /// Counts how the reading of a flow ended.
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

    /// Flows looked at less those that are accounted for: 0.
    pub fn imbalance(&self) -> i64 {
        let rejected: u64 = self.rejected.iter().sum();
        let known = self.done + rejected + self.unfinished + self.no_room_flow + self.no_room_state;
        self.flows.wrapping_sub(known) as i64
    }
}
