//! A link that goes down while the scan runs. Nothing is sent until it is up again; then each lane
//! goes back to where it was some time before: what was sent since may be lost, and so may answers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use ::scan::Skipped;

/// How long before the report that the link is down probes count as lost: the kernel may delay the
/// report of a lost carrier by a second, and answers take their time.
pub const LOST_MS: u64 = 2_500;
/// Interval between marks.
const MARK_MS: u64 = 100;
/// Number of marks that are kept: enough to go back, also if the report is late.
const MARKS_MAX: usize = 64;

/// The link as the reporting thread knows it.
#[derive(Default)]
pub struct LinkState {
    /// How often it went down.
    downs: AtomicU32,
    is_down: AtomicBool,
    /// When it went down last, in milliseconds since the beginning of the scan.
    down_at_ms: AtomicU64,
}

impl LinkState {
    /// Records that it is down, at a time since the beginning.
    pub fn set_down(&self, at: Duration) {
        self.down_at_ms.store(millis(at), Ordering::Relaxed);
        self.is_down.store(true, Ordering::Relaxed);
        self.downs.fetch_add(1, Ordering::Release);
    }

    /// Records that it is up.
    pub fn set_up(&self) {
        self.is_down.store(false, Ordering::Release);
    }

    /// When it went down last, in milliseconds since the beginning.
    fn lost_ms(&self) -> u64 {
        self.down_at_ms.load(Ordering::Relaxed)
    }

    /// Whether it is down.
    pub fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Acquire)
    }
}

pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Where a lane was at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Milliseconds since the beginning of the scan.
    pub at_ms: u64,
    /// The next probe, and those skipped before it.
    pub index: u128,
    /// As above.
    pub skipped: Skipped,
    /// Probes handed to the device, and packets that it had refused.
    pub put: u64,
    /// As above.
    pub failed: u64,
}

/// What a lane does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It sends on.
    GoOn,
    /// It sends nothing.
    Hold,
    /// It goes back to a mark.
    Back(Mark),
}

/// The recent past of a lane.
#[derive(Default)]
pub struct Trail {
    marks: VecDeque<Mark>,
    /// How often the link had gone down when the lane last went back.
    downs: u32,
    /// When the link went down first since then, in milliseconds since the beginning.
    lost_ms: Option<u64>,
}

impl Trail {
    /// Takes where the lane is now, and decides what it does.
    pub fn step(&mut self, link: &LinkState, now: Mark) -> Step {
        let downs = link.downs.load(Ordering::Acquire);
        if downs == self.downs {
            let last_ms = self.marks.back().map(|mark| mark.at_ms);
            if last_ms.is_none_or(|last_ms| now.at_ms >= last_ms + MARK_MS) {
                if self.marks.len() == MARKS_MAX {
                    // The report may be late: every other mark stays, however old.
                    let mut is_kept = false;
                    self.marks.retain(|_| {
                        is_kept = !is_kept;
                        is_kept
                    });
                }
                self.marks.push_back(now);
            }
            return Step::GoOn;
        }
        let lost_ms = *self.lost_ms.get_or_insert_with(|| link.lost_ms());
        if link.is_down() {
            return Step::Hold;
        }
        (self.downs, self.lost_ms) = (downs, None);
        Step::Back(self.back(lost_ms, now))
    }

    /// The mark to go back to if the lane ends while the link is down, or has just been.
    pub fn last_step(&mut self, link: &LinkState, now: Mark) -> Option<Mark> {
        let downs = link.downs.load(Ordering::Acquire);
        let is_lost = downs != self.downs;
        self.downs = downs;
        let lost_ms = self.lost_ms.take().unwrap_or_else(|| link.lost_ms());
        is_lost.then(|| self.back(lost_ms, now))
    }

    /// The last mark from before the loss, from which the lane begins again.
    fn back(&mut self, lost_ms: u64, now: Mark) -> Mark {
        let safe_ms = lost_ms.saturating_sub(LOST_MS);
        let mut marks = self.marks.iter().rev();
        let safe = marks.find(|mark| mark.at_ms <= safe_ms);
        let mark = safe.or(self.marks.front()).copied().unwrap_or(now);
        self.marks.clear();
        // What is sent from here on is counted from here on, if the link goes down again soon.
        self.marks.push_back(Mark {
            at_ms: now.at_ms,
            put: now.put,
            failed: now.failed,
            ..mark
        });
        mark
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(at_ms: u64, index: u128) -> Mark {
        Mark {
            at_ms,
            index,
            skipped: Skipped::default(),
            put: index as u64,
            failed: 0,
        }
    }

    #[test]
    fn a_lane_goes_back_to_before_the_loss() {
        let (link, mut trail) = (LinkState::default(), Trail::default());
        for at_ms in (0..10_000).step_by(20) {
            let step = trail.step(&link, mark(at_ms, at_ms.into()));
            assert_eq!(step, Step::GoOn);
        }
        link.set_down(Duration::from_millis(9_990));
        assert!(link.is_down());
        for at_ms in (10_000..60_000).step_by(100) {
            assert_eq!(trail.step(&link, mark(at_ms, 10_000)), Step::Hold);
        }
        link.set_up();
        let back = mark(7_400, 7_400);
        assert_eq!(trail.step(&link, mark(60_000, 10_000)), Step::Back(back));
        // Again, before it is as far as it was: not further back, and only what is new counts.
        assert_eq!(trail.step(&link, mark(60_050, 7_450)), Step::GoOn);
        link.set_down(Duration::from_millis(60_080));
        link.set_up();
        let again = Mark {
            at_ms: 60_000,
            put: 10_000,
            ..back
        };
        assert_eq!(trail.step(&link, mark(60_100, 7_480)), Step::Back(again));
        assert_eq!(trail.last_step(&link, mark(60_200, 7_500)), None);
    }

    #[test]
    fn a_link_that_flaps_while_a_lane_waits_was_lost_when_it_went_down_first() {
        let (link, mut trail) = (LinkState::default(), Trail::default());
        for at_ms in (0..10_000).step_by(20) {
            trail.step(&link, mark(at_ms, at_ms.into()));
        }
        link.set_down(Duration::from_millis(10_000));
        assert_eq!(trail.step(&link, mark(10_020, 10_000)), Step::Hold);
        link.set_up();
        link.set_down(Duration::from_millis(15_000));
        assert_eq!(trail.step(&link, mark(15_020, 10_000)), Step::Hold);
        link.set_up();
        let Step::Back(back) = trail.step(&link, mark(20_000, 10_000)) else {
            panic!("it must go back");
        };
        // Older marks are further apart.
        assert!((7_200..=7_500).contains(&back.at_ms), "{back:?}");
    }

    #[test]
    fn marks_reach_back_however_late_the_report_is() {
        let (link, mut trail) = (LinkState::default(), Trail::default());
        for at_ms in (0..600_000).step_by(20) {
            trail.step(&link, mark(at_ms, at_ms.into()));
        }
        link.set_down(Duration::from_millis(300_000));
        link.set_up();
        let Step::Back(back) = trail.step(&link, mark(600_000, 600_000)) else {
            panic!("it must go back");
        };
        assert!(back.at_ms <= 297_500, "{back:?}");
    }

    #[test]
    fn a_lane_that_has_just_begun_goes_back_to_its_first_probe() {
        let (link, mut trail) = (LinkState::default(), Trail::default());
        assert_eq!(trail.step(&link, mark(3, 100)), Step::GoOn);
        link.set_down(Duration::from_millis(700));
        assert_eq!(trail.last_step(&link, mark(800, 900)), Some(mark(3, 100)));
    }
}
