//! A rate that follows the answers: it falls when fewer probes are answered than before, and rises
//! again.
//!
//! Probes are in random order, so the share of them that is answered does not depend on time. If it
//! falls, a link, a router or the target network drops packets at this rate. The law compares the
//! share in windows of at least a second with the share so far. If fewer answers arrived than
//! chance explains, the rate falls to a little less than what came through. Otherwise it doubles,
//! and near the rate that came through it rises slowly and rarely.
//!
//! Answers are counted when they arrive. A window therefore begins [`SETTLE_NS`] after a change,
//! when answers to earlier probes have arrived: at a steady rate, answers that are missing at its
//! end are replaced by earlier ones at its start.
//!
//! If no probe is answered any more, at any rate, the rate stays at the lowest one until answers
//! arrive again: without them nothing shows that a higher rate comes through.

/// Time after a change before counting begins.
const SETTLE_NS: u64 = 1_000_000_000;
/// Minimum length of a window.
const WINDOW_MIN_NS: u64 = 1_000_000_000;
/// A window ends then at the latest, however few answers were expected.
const WINDOW_MAX_NS: u64 = 5_000_000_000;
/// The first window, which measures the share, may be longer.
const FIRST_MAX_NS: u64 = 15_000_000_000;
/// Expected answers that are enough to end a window.
const EXPECTED_ENOUGH: f64 = 50.0;
/// The same for the first window.
const FIRST_ENOUGH: f64 = 150.0;
/// Expected answers without which the rate is not raised near the capacity.
const EXPECTED_SURE: f64 = 1_500.0;
/// Counting at one rate starts again after so many, so that it notices a change.
const EXPECTED_MAX: f64 = 4_000.0;
/// Fewer expected answers than these prove nothing.
const EXPECTED_MIN: f64 = 12.0;
/// Fewer than this part of the expected answers is a loss, if chance does not explain it.
const SHARE_LOSS: f64 = 0.95;
/// Number of standard deviations that chance explains.
const DEVIATIONS: f64 = 4.0;
/// How many answers the share is as good as, at most; and how many of them one count adds.
const EVIDENCE: (f64, f64) = (2_000.0, 400.0);
/// The new rate after a loss, as a part of what came through; and the part of the capacity up to
/// which the rate doubles.
const BACK_OFF: f64 = 0.9;
/// Limits of the factor by which a loss changes the rate.
const FACTOR: (f64, f64) = (0.25, 0.85);
/// Windows without loss before the rate is raised near the capacity: at first, and at most.
const HOLD: (u32, u32) = (4, 32);
/// Such a rise, as a part of the rate: at first, its growth from one to the next, and at most.
const RISE: (f64, f64, f64) = (0.05, 1.3, 0.25);

/// A change of the rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateChange {
    /// The rate before.
    pub from: f64,
    /// The rate now.
    pub to: f64,
    /// The part of the expected answers that arrived, if that lowered the rate.
    pub share: Option<f64>,
}

/// Probes sent and answers received.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    sent: u64,
    answers: u64,
}

impl Count {
    fn since(self, before: Self) -> Self {
        Self {
            sent: self.sent.saturating_sub(before.sent),
            answers: self.answers.saturating_sub(before.answers),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Settling {
        until_ns: u64,
    },
    Counting {
        /// When the window began.
        since_ns: u64,
        /// The counts then, and when counting at this rate began.
        window: Count,
        start: Count,
    },
}

/// The rate of a scan, in any unit.
#[derive(Clone, Debug)]
pub struct AdaptiveRate {
    min: f64,
    max: f64,
    rate: f64,
    phase: Phase,
    /// Answers per probe, and the number of answers that this is known from; `None` until there are
    /// answers, and when the network has changed.
    share: Option<(f64, f64)>,
    /// Whether the share was ever known.
    has_answered: bool,
    /// The rate that came through when answers were last lost.
    capacity: Option<f64>,
    /// Windows without loss since the last change, and how many are needed.
    good: u32,
    hold: u32,
    /// The next rise near the capacity, as a part of the rate.
    step: f64,
    /// Whether the rate was raised above what came through.
    is_trying: bool,
}

impl AdaptiveRate {
    /// Starts at the lowest rate, which measures the share of probes that are answered.
    pub fn new(min: f64, max: f64) -> Self {
        Self {
            min: min.min(max),
            max,
            rate: min.min(max),
            phase: Phase::Settling {
                until_ns: SETTLE_NS,
            },
            share: None,
            has_answered: false,
            capacity: None,
            good: 0,
            hold: HOLD.0,
            step: RISE.0,
            is_trying: false,
        }
    }

    /// The rate.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Takes the probes sent and the answers received so far, repeated ones excluded, at a time in
    /// nanoseconds; returns a change of the rate. Call it some times a second.
    pub fn observe(&mut self, now_ns: u64, sent: u64, answers: u64) -> Option<RateChange> {
        let now = Count { sent, answers };
        let counting = |start| Phase::Counting {
            since_ns: now_ns,
            window: now,
            start,
        };
        match self.phase {
            Phase::Settling { until_ns } => {
                if now_ns >= until_ns {
                    self.phase = counting(now);
                }
                None
            }
            Phase::Counting {
                since_ns,
                window,
                start,
            } => {
                let lasted_ns = now_ns.saturating_sub(since_ns);
                if !self.is_over(lasted_ns, now.since(window)) {
                    return None;
                }
                let all = now.since(start);
                let change = self.judge(now.since(window), all);
                self.phase = match change {
                    Some(_) => Phase::Settling {
                        until_ns: now_ns + SETTLE_NS,
                    },
                    None if self.expected(all) > EXPECTED_MAX => {
                        self.learn(all);
                        counting(now)
                    }
                    // The new share must not include the time without answers.
                    None if self.is_waiting() => counting(now),
                    None => counting(start),
                };
                change
            }
        }
    }

    /// Begins to count anew at a time at which there had been no link.
    pub fn settle(&mut self, now_ns: u64) {
        self.phase = Phase::Settling {
            until_ns: now_ns + SETTLE_NS,
        };
    }

    /// Answers expected to a number of probes; 0 until the share is known.
    fn expected(&self, count: Count) -> f64 {
        self.share
            .map_or(0.0, |(share, _)| share * count.sent as f64)
    }

    /// Whether the rate is held until there are answers again.
    fn is_waiting(&self) -> bool {
        self.share.is_none() && self.has_answered
    }

    fn is_over(&self, lasted_ns: u64, count: Count) -> bool {
        let (is_enough, max_ns) = match self.share {
            Some(_) => (self.expected(count) >= EXPECTED_ENOUGH, WINDOW_MAX_NS),
            // Short windows: the one in which answers return has little of the time before.
            None if self.has_answered && count.answers == 0 => (true, WINDOW_MIN_NS),
            None => (count.answers as f64 >= FIRST_ENOUGH, FIRST_MAX_NS),
        };
        // At very low rates a window has some probes at least.
        let is_long = lasted_ns >= max_ns && count.sent >= 8;
        lasted_ns >= WINDOW_MIN_NS && (is_enough || is_long)
    }

    /// The part of the expected answers that arrived, if fewer did than chance explains.
    fn lost(&self, count: Count) -> Option<f64> {
        let (share, evidence) = self.share?;
        let (expected, arrived) = (self.expected(count), count.answers as f64);
        // The variance of the count, and that of the share it is compared with.
        let variance = expected * (1.0 + expected / evidence.max(1.0)) * (1.0 - share).max(0.05);
        let is_lost = expected >= EXPECTED_MIN
            && arrived < SHARE_LOSS * expected
            && expected - arrived > DEVIATIONS * variance.sqrt();
        is_lost.then(|| arrived / expected)
    }

    /// Judges a window, and all windows at this rate together.
    fn judge(&mut self, window: Count, all: Count) -> Option<RateChange> {
        if let Some(share) = self.lost(all).or_else(|| self.lost(window)) {
            return self.fall(share);
        }
        let is_first = self.share.is_none();
        if is_first {
            self.learn(all);
        }
        if self.is_waiting() {
            return None;
        }
        self.good += 1;
        let expected = self.expected(all);
        let change = match self.capacity {
            None => self.change(self.rate * 2.0, None),
            Some(capacity) => self.rise(capacity, expected),
        };
        if change.is_some() && !is_first {
            self.learn(all);
        }
        change
    }

    /// Updates the share by a count, unless the rate is above what is known to come through: losses
    /// that are too small to be seen must not lower what is expected.
    fn learn(&mut self, count: Count) {
        let measured = count.answers as f64 / (count.sent as f64).max(1.0);
        let weight = (count.answers as f64).min(EVIDENCE.1);
        self.share = match self.share {
            None => (count.answers > 0).then_some((measured, weight)),
            Some(known) if self.is_trying => Some(known),
            Some((share, evidence)) => {
                let all = (evidence + weight).max(1.0);
                let share = (share * evidence + measured * weight) / all;
                Some((share, all.min(EVIDENCE.0)))
            }
        };
        self.has_answered |= self.share.is_some();
    }

    fn fall(&mut self, share: f64) -> Option<RateChange> {
        if self.rate <= self.min {
            // Not the rate, but the network has changed: its share is measured anew.
            self.share = None;
            self.capacity = None;
            self.is_trying = false;
            self.hold = HOLD.0;
            return None;
        }
        self.capacity = Some(self.rate * share.max(FACTOR.0));
        self.hold = (self.hold * 2).min(HOLD.1);
        self.step = RISE.0;
        self.is_trying = false;
        let factor = (share * BACK_OFF).clamp(FACTOR.0, FACTOR.1);
        self.change(self.rate * factor, Some(share))
    }

    /// Raises the rate below the capacity, or slowly above it: it may have changed.
    fn rise(&mut self, capacity: f64, expected: f64) -> Option<RateChange> {
        let safe = capacity * BACK_OFF;
        if self.rate < safe * 0.99 {
            return self.change((self.rate * 2.0).min(safe), None);
        }
        if self.good < self.hold || expected < EXPECTED_SURE {
            return None;
        }
        self.hold = (self.hold / 2).max(1);
        let to = self.rate * (1.0 + self.step);
        self.is_trying = true;
        self.step = (self.step * RISE.1).min(RISE.2);
        self.capacity = Some(capacity.max(to / BACK_OFF));
        self.change(to, None)
    }

    fn change(&mut self, to: f64, share: Option<f64>) -> Option<RateChange> {
        let (from, to) = (self.rate, to.clamp(self.min, self.max));
        self.good = 0;
        self.rate = to;
        (from != to).then_some(RateChange { from, to, share })
    }
}

#[cfg(test)]
mod tests;
