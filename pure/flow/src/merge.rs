//! Merges the halves of a biflow from different tables.
//!
//! A card with an asymmetric RSS hash puts the two directions of a connection into different
//! queues, and therefore threads and tables. Each table then has a flow in which only one side
//! sends. When such a half ends, it is held back until the other half ends too, and both become one
//! record; or until it is certain that no other half follows, and it is passed on unchanged. Flows
//! with packets from both sides never come here, nor anything with a single table.

use std::collections::hash_map::{Entry, HashMap};
use std::collections::vec_deque::VecDeque;

use crate::expire::EndReason;
use crate::extra::{Extra, OwnedExtra};
use crate::key::{FlowKey, KeyExtra};
use crate::record::Record;
use crate::table::RecordSink;

/// The complete key.
type Key = (FlowKey, KeyExtra);

/// Holds halves until their other half ends.
pub struct Merger {
    halves: HashMap<Key, Half>,
    /// In the order of arrival; entries whose keys are gone are skipped.
    order: VecDeque<(Key, u64)>,
    half_count_max: usize,
    hold_ns: u64,
    clock_ns: u64,
    merged: u64,
}

struct Half {
    record: Record,
    extra: Option<OwnedExtra>,
    reason: EndReason,
    /// Time of arrival, by the merger's clock.
    came_ns: u64,
}

impl Merger {
    /// Creates a merger that holds at most this many halves, each for at most this time, which
    /// should slightly exceed the longest idle timeout: the other half may end that much later.
    pub fn new(half_count_max: usize, hold_ns: u64) -> Merger {
        Merger {
            halves: HashMap::with_capacity(half_count_max),
            order: VecDeque::with_capacity(half_count_max * 2),
            half_count_max: half_count_max.max(1),
            hold_ns,
            clock_ns: 0,
            merged: 0,
        }
    }

    /// Number of merged pairs.
    pub fn merged(&self) -> u64 {
        self.merged
    }

    /// Number of halves held back.
    pub fn held(&self) -> usize {
        self.halves.len()
    }

    /// Takes an ended flow, and passes on complete ones. Uniflows are passed on unchanged.
    pub fn push(&mut self, record: &Record, reason: EndReason, out: &mut dyn RecordSink) {
        self.push_with(record, None, reason, out);
    }

    /// The same with extra fields.
    pub fn push_with(
        &mut self,
        record: &Record,
        extra: Option<&Extra<'_>>,
        reason: EndReason,
        out: &mut dyn RecordSink,
    ) {
        self.clock_ns = self.clock_ns.max(record.end_ns());
        if !record.is_one_way() || record.is_uniflow() {
            match extra {
                Some(extra) => out.ended_with(record, extra, reason),
                None => out.ended(record, reason),
            }
            return;
        }
        let came_ns = self.clock_ns;
        let half = Half {
            record: *record,
            extra: extra.map(|extra| {
                let mut owned = OwnedExtra::default();
                owned.set(extra);
                owned
            }),
            reason,
            came_ns,
        };
        let more = extra.and_then(|extra| extra.key).copied();
        let key = (*record.key(), more.unwrap_or(KeyExtra::NONE));
        match self.halves.entry(key) {
            Entry::Vacant(place) => {
                place.insert(half);
            }
            Entry::Occupied(mut held) => {
                if is_other_half(&held.get().record, record, self.hold_ns) {
                    let mut whole = held.remove();
                    if let (Some(mine), Some(theirs)) = (&mut whole.extra, extra) {
                        let later_ns = record.start_ns() as i64 - whole.record.start_ns() as i64;
                        mine.merge(theirs, later_ns / 1000);
                    }
                    whole.record.merge(record);
                    whole.reason = reason;
                    self.merged += 1;
                    whole.pass_on(out);
                    return;
                }
                // An earlier flow from the same side.
                held.insert(half).pass_on(out);
            }
        }
        self.order.push_back((key, came_ns));
        self.expire(out);
    }

    /// Passes on halves that have been held back long enough by this clock, and those in excess of
    /// the limit.
    pub fn tick(&mut self, clock_ns: u64, out: &mut dyn RecordSink) {
        self.clock_ns = self.clock_ns.max(clock_ns);
        self.expire(out);
    }

    fn expire(&mut self, out: &mut dyn RecordSink) {
        while let Some((key, came_ns)) = self.order.front().copied() {
            let is_late = came_ns.saturating_add(self.hold_ns) < self.clock_ns;
            let is_crowded = self.halves.len() > self.half_count_max
                || self.order.len() > self.half_count_max * 2;
            if !is_late && !is_crowded {
                return;
            }
            self.order.pop_front();
            if self
                .halves
                .get(&key)
                .is_some_and(|half| half.came_ns == came_ns)
                && let Some(half) = self.halves.remove(&key)
            {
                half.pass_on(out);
            }
        }
    }

    /// Handles the end of input: passes on all halves.
    pub fn finish(&mut self, out: &mut dyn RecordSink) {
        for (key, came_ns) in self.order.drain(..) {
            if self
                .halves
                .get(&key)
                .is_some_and(|half| half.came_ns == came_ns)
                && let Some(half) = self.halves.remove(&key)
            {
                half.pass_on(out);
            }
        }
    }
}

impl Half {
    fn pass_on(&self, out: &mut dyn RecordSink) {
        match &self.extra {
            Some(extra) => out.ended_with(&self.record, &extra.get(), self.reason),
            None => out.ended(&self.record, self.reason),
        }
    }
}

/// Whether two one-way records with the same key are the two directions of one flow.
fn is_other_half(a: &Record, b: &Record, hold_ns: u64) -> bool {
    let same_side = a.sender() == b.sender();
    let gap_ns = a
        .start_ns()
        .saturating_sub(b.end_ns())
        .max(b.start_ns().saturating_sub(a.end_ns()));
    !same_side && gap_ns <= hold_ns
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Ports, Side};
    use crate::record::tests::{Sent, add};

    const S: u64 = 1_000_000_000;

    fn half(flow: u16, side: Side, start_s: u64, packets: u32) -> Record {
        let ports = Ports {
            src: flow,
            dst: 80,
            is_answer: false,
        };
        let (key, _) = FlowKey::new(&[1; 16], &[2; 16], ports, 17, 6, false);
        let mut record = Record::new(key, side, false, false);
        let sent = Sent {
            packets,
            bytes: 10,
            payload_bytes: 1,
            first_ns: start_s * S,
            last_ns: (start_s + 1) * S,
            tcp_flags: 0,
            ttl: 1,
        };
        add(&mut record, side, &sent);
        record
    }

    fn run(max: usize, records: &[Record]) -> (Vec<(u64, bool)>, u64) {
        let mut merger = Merger::new(max, 60 * S);
        let mut out = Vec::new();
        let mut sink = |r: &Record, _| out.push((r.packets(), r.is_one_way()));
        for record in records {
            merger.push(record, EndReason::Idle, &mut sink);
            assert!(merger.held() <= max && merger.order.len() <= 2 * max);
        }
        merger.finish(&mut sink);
        assert_eq!(merger.held(), 0);
        (out, merger.merged())
    }

    #[test]
    fn halves_are_merged() {
        let (a, b) = (Side::A, Side::B);
        let records = [half(1, a, 0, 1), half(2, a, 1, 4), half(1, b, 2, 2)];
        assert_eq!(run(8, &records), (vec![(3, false), (4, true)], 1));
        // Too far apart, or from the same side: two flows.
        let records = [half(1, a, 0, 1), half(1, b, 100, 2)];
        assert_eq!(run(8, &records), (vec![(1, true), (2, true)], 0));
        let records = [half(1, a, 0, 1), half(1, a, 3, 2), half(1, b, 3, 4)];
        assert_eq!(run(8, &records), (vec![(1, true), (6, false)], 1));
    }

    #[test]
    fn the_initiator_is_the_earlier_sender() {
        for (first, second) in [(Side::A, Side::B), (Side::B, Side::A)] {
            let records = [half(1, second, 5, 1), half(1, first, 4, 2)];
            let mut merger = Merger::new(8, 60 * S);
            for record in &records {
                merger.push(record, EndReason::Idle, &mut |r: &Record, _| {
                    assert_eq!(r.initiator(), first);
                    assert_eq!((r.forward().packets, r.reverse().packets), (2, 1));
                });
            }
        }
    }

    #[test]
    fn bounds_hold_and_nothing_is_lost() {
        let records: Vec<Record> = (0..1000)
            .map(|i| {
                half(
                    i % 300,
                    if i % 7 < 3 { Side::A } else { Side::B },
                    i.into(),
                    1,
                )
            })
            .collect();
        for max in [1, 10, 50, 5000] {
            let (out, merged) = run(max, &records);
            assert_eq!(out.iter().map(|(packets, _)| packets).sum::<u64>(), 1000);
            assert_eq!(out.len() as u64, 1000 - merged);
        }
        // The time limit passes them on without further input.
        let mut merger = Merger::new(8, 60 * S);
        let mut gone = 0;
        merger.push(&records[0], EndReason::Idle, &mut |_: &Record, _| panic!());
        merger.tick(60 * S, &mut |_: &Record, _| panic!("too early"));
        merger.tick(62 * S, &mut |_: &Record, _| gone += 1);
        assert_eq!((gone, merger.held()), (1, 0));
    }
}
