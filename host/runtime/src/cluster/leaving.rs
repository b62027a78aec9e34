//! The end of a cluster: its queues are closed, and readers read what is left in them.

use std::time::{Duration, Instant};

use ring::shared::OwnerEnd;

use super::LEAVE_MAX;
use super::application::WhenFull;
use super::back::depths;
use super::mover::{Group, Mover, NAP, Out};

/// Sleep of the thread while nothing but the last packets is waited for.
const LONG_NAP: Duration = Duration::from_millis(5);

impl Mover {
    /// Ends all queues, in order or because a device is lost, and waits until their readers have
    /// returned all frames, at most until `end`. Calls `serve` meanwhile.
    pub fn leave(&mut self, end: Instant, is_lost: bool, mut serve: impl FnMut()) {
        let out = &mut self.out;
        let depths = depths(&out.applications);
        // The last packets of a pipeline's readers still reach those behind them.
        for depth in 0..=depths.iter().copied().max().unwrap_or(0) {
            for (group, _) in out
                .groups
                .iter()
                .zip(&depths)
                .filter(|(_, it)| **it == depth)
            {
                let queues = group.queues;
                let ends = out.ends.iter_mut().enumerate();
                for (_, end) in ends.filter(|(queue, _)| queues >> queue & 1 != 0) {
                    match is_lost {
                        true => end.close_lost(),
                        false => end.close(),
                    }
                }
            }
            loop {
                out.collect();
                out.flush();
                out.look();
                if !out.is_leaving(&depths, depth) || Instant::now() >= end {
                    break;
                }
                out.publish();
                serve();
                std::thread::sleep(NAP);
            }
        }
        out.drop_held();
        out.back.close();
        out.publish();
    }
}

impl Out {
    /// Whether readers of applications up to this depth still have packets, or may send some.
    fn is_leaving(&mut self, depths: &[usize], depth: usize) -> bool {
        if self.is_bouncing() {
            return true;
        }
        let groups = self.groups.iter().zip(depths);
        let queues: u64 = groups
            .filter(|(_, it)| **it <= depth)
            .map(|(it, _)| it.queues)
            .sum();
        let is_reading = |(queue, end): (usize, &OwnerEnd)| {
            let is_its = queues >> queue & 1 != 0 && end.has_peer();
            is_its && (end.holder().count() != 0 || self.back.may_send(queue))
        };
        self.ends.iter().enumerate().any(is_reading)
    }

    /// Waits until the readers of applications that block without a bound have received everything
    /// that is in their queues; some may not have connected yet.
    pub(super) fn wait_for_readers(&mut self) {
        let blocks = |group: &&Group| group.when_full == WhenFull::Block(None);
        let queues: u64 = self.groups.iter().filter(blocks).map(|it| it.queues).sum();
        let is_waiting = |(queue, end): (usize, &OwnerEnd)| {
            queues >> queue & 1 != 0 && end.counts().waiting() != 0
        };
        let mut bouncing_until = None;
        while !self.stop.is_set() {
            if !self.ends.iter().enumerate().any(is_waiting) {
                if queues == 0 || !self.is_bouncing() {
                    break;
                }
                // A reader that never stops sending must not keep the cluster from its end.
                let until = *bouncing_until.get_or_insert_with(|| Instant::now() + LEAVE_MAX);
                if Instant::now() >= until {
                    break;
                }
            }
            std::thread::sleep(LONG_NAP);
            self.collect();
            self.publish();
            self.serve();
        }
    }
}
