//! Keeps the attempts at a target apart in time: a lane looks up how far it was some time ago, and
//! sends no further attempt at a target whose last one is more recent. In small sets, all attempts
//! would be sent within one burst of loss otherwise.

use std::collections::VecDeque;
use std::time::Duration;

use ::scan::ATTEMPT_SECONDS;

/// Time between two attempts at a target, at least.
const GAP_NS: u64 = (ATTEMPT_SECONDS * 1e9) as u64;
/// Interval between two marks.
const MARK_NS: u64 = 1_000_000;
/// Longest time until a lane looks again, for probes that another lane sent.
const LOOK_MAX: Duration = Duration::from_millis(10);

/// The recent past of a lane.
pub struct Spacing {
    /// Times since the beginning, and the next probe at each of them: at most one for each
    /// [`MARK_NS`] of [`GAP_NS`].
    marks: VecDeque<(u64, u128)>,
    /// All probes of the lane before this one may be repeated now.
    settled: u128,
}

impl Spacing {
    /// Begins at a probe. Those before it may have been sent just now, by the run that is resumed.
    pub fn new(from: u128) -> Self {
        Self {
            marks: VecDeque::from([(0, from)]),
            settled: 0,
        }
    }

    /// Records that the lane is at a probe now, all before which were sent. Returns the first probe
    /// of the lane that may not be repeated yet.
    pub fn note(&mut self, now_ns: u64, next: u128) -> u128 {
        while let Some((at_ns, index)) = self.marks.front().copied()
            && at_ns + GAP_NS <= now_ns
        {
            self.settled = index;
            self.marks.pop_front();
        }
        let is_due = self
            .marks
            .back()
            .is_none_or(|(at_ns, index)| next != *index && now_ns >= at_ns + MARK_NS);
        if is_due {
            self.marks.push_back((now_ns, next));
        }
        self.settled
    }

    /// The lane goes back to a probe, which was sent long ago.
    pub fn go_back(&mut self, index: u128) {
        self.marks.clear();
        self.settled = index;
    }

    /// Time until more probes may be repeated.
    pub fn wait(&self, now_ns: u64) -> Duration {
        let due_ns = self.marks.front().map(|(at_ns, _)| at_ns + GAP_NS);
        due_ns.map_or(LOOK_MAX, |due_ns| {
            Duration::from_nanos(due_ns.saturating_sub(now_ns)).min(LOOK_MAX)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lane with a clock of its own, which sends a probe every `interval_ns` unless it waits.
    #[test]
    fn attempts_are_a_second_apart_whatever_the_size_of_the_set() {
        use ::scan::{Order, Plan, Ports, Shard, Source, Targets, parse_range};
        let source = Source {
            ipv4: Some([198, 51, 100, 7].into()),
            ipv6: None,
            ports: (61_000, 10),
        };
        for (range, block, interval_ns) in [
            ("192.0.2.1", 102, 10_000_000),
            ("192.0.2.0/28", 102, 10_000_000),
            ("192.0.2.0/24", 10_200, 100_000),
            // Two whole blocks, and a last one.
            ("192.0.2.0/24", 102, 10_000_000),
            ("192.0.2.0/24", 100, 1_000_000),
        ] {
            let targets = Targets::new(vec![parse_range(range).unwrap()], Vec::new()).unwrap();
            let order = Order {
                seed: 1,
                shard: Shard::WHOLE,
                attempts: 3,
                block,
            };
            let plan = Plan::new(targets, Ports::tcp("80").unwrap(), source, order).unwrap();
            let (mut now_ns, mut waited_ns) = (0_u64, 0_u64);
            let mut spacing = Spacing::new(0);
            let mut sent: Vec<u64> = Vec::new();
            while (sent.len() as u128) < plan.probe_count() {
                let next = sent.len() as u128;
                let settled = spacing.note(now_ns, next);
                if plan
                    .attempt(next)
                    .before
                    .is_some_and(|before| before >= settled)
                {
                    let wait = spacing.wait(now_ns).as_nanos() as u64;
                    // It always waits for something.
                    assert!(wait != 0, "{range} {next}");
                    (now_ns, waited_ns) = (now_ns + wait, waited_ns + wait);
                    continue;
                }
                sent.push(now_ns);
                now_ns += interval_ns;
            }
            for (number, at_ns) in sent.iter().enumerate() {
                if let Some(before) = plan.attempt(number as u128).before {
                    assert!(at_ns - sent[before as usize] >= GAP_NS, "{range} {number}");
                }
            }
            let lasted = now_ns as f64 / 1e9;
            let expected = plan.seconds(0, 1e9 / interval_ns as f64);
            assert!(
                (lasted - expected).abs() < 0.2,
                "{range}: {lasted} {expected}"
            );
            assert!(spacing.marks.len() <= 1_001);
            let is_whole = u128::from(block) * interval_ns as u128 > GAP_NS as u128;
            let has_waited = !plan.pair_count().is_multiple_of(u128::from(block)) || !is_whole;
            assert_eq!(waited_ns != 0, has_waited, "{range}");
        }
    }

    #[test]
    fn a_resumed_scan_does_not_know_when_the_probes_before_it_were_sent() {
        let mut spacing = Spacing::new(50);
        assert_eq!(spacing.note(GAP_NS - 1, 50), 0);
        assert_eq!(spacing.note(GAP_NS, 50), 50);
        spacing.go_back(20);
        assert_eq!(spacing.note(GAP_NS + 5, 20), 20);
    }
}
