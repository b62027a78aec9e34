//! Decides which suites run in which guest, and which run again.
//!
//! Suites of the guest depend on the emulator, which sometimes fails (docs/guides/guest-lab.md).
//! The rule: a suite that fails is run once more, in a fresh guest and after all others, whatever
//! the reason; the output of its first attempt is printed at the end. A suite that passes at its
//! second attempt has passed, with a warning. Nothing else is run twice.

use super::guest::Outcome;
use super::progress::Attempt;
use super::suites::{Suite, Sum};

/// Number of consecutive guests that do not boot after which no other is tried.
const DEAD_MAX: u32 = 2;

/// How a suite that failed ended when it was run again, in its warning.
pub const SECOND_PASSED: &str = "at its first try and passed at its second";
pub const SECOND_FAILED: &str = "twice";

/// Suites for the next guest.
pub struct Batch<'a> {
    pub suites: Vec<&'a Suite>,
    /// Whether all of them have failed before.
    pub is_second: bool,
}

/// Progress of the suites over all guests.
pub struct Rounds<'a> {
    left: Vec<&'a Suite>,
    /// Suites that failed, each with the evidence.
    again: Vec<(&'a Suite, String)>,
    /// Number of consecutive guests that did not boot.
    dead: u32,
}

impl<'a> Rounds<'a> {
    pub fn new(suites: &[&'a Suite]) -> Rounds<'a> {
        Rounds {
            left: suites.to_vec(),
            again: Vec::new(),
            dead: 0,
        }
    }

    /// The suites of the next guest; `None` when all are done.
    pub fn next_batch(&self) -> Option<Batch<'a>> {
        let is_second = self.left.is_empty();
        let suites: Vec<_> = match is_second {
            true => self.again.iter().map(|(suite, _)| *suite).collect(),
            false => self.left.clone(),
        };
        (!suites.is_empty()).then_some(Batch { suites, is_second })
    }

    /// Handles the runs of the first suites of a batch.
    pub fn done(
        &mut self,
        batch: &Batch<'a>,
        attempts: Vec<Attempt>,
        outcome: &Outcome,
        sum: &mut Sum,
    ) {
        let count = attempts.len();
        for (suite, one) in batch.suites.iter().zip(attempts) {
            match (&one.wrong, batch.is_second) {
                (None, false) => sum.add(one),
                (Some(_), false) => {
                    eprintln!("lab {}: it will be run again, once", suite.name);
                    self.again.push((suite, evidence(suite, &one, outcome)));
                }
                (wrong, true) => {
                    let word = match wrong {
                        Some(_) => SECOND_FAILED,
                        None => SECOND_PASSED,
                    };
                    let (_, first) = self.again.remove(0);
                    sum.warnings.push(format!(
                        "WARNING: guest suite {} failed {word}\n{first}",
                        suite.name
                    ));
                    sum.add(one);
                }
            }
        }
        if !batch.is_second {
            self.left.drain(..count);
        }
        self.dead = if outcome.booted { 0 } else { self.dead + 1 };
        if self.dead == DEAD_MAX {
            self.give_up(sum);
        }
    }

    /// No guest boots: failed suites stay failed, the rest does not run.
    fn give_up(&mut self, sum: &mut Sum) {
        for (suite, first) in self.again.drain(..) {
            let name = suite.name;
            sum.warnings
                .push(format!("WARNING: guest suite {name} failed\n{first}"));
            let wrong = Some("the guest did not boot".into());
            sum.add(Attempt {
                wrong,
                ..Attempt::default()
            });
        }
        let left = std::mem::take(&mut self.left);
        sum.not_run(&left, "the guest did not boot");
    }
}

/// Information on a failed run.
fn evidence(suite: &Suite, one: &Attempt, outcome: &Outcome) -> String {
    let mut text = format!(
        "  first try: {}; console and files: {}\n  the end of what {} said:\n",
        one.wrong.as_deref().unwrap_or_default(),
        outcome.dir.display(),
        suite.name
    );
    for line in &one.said {
        text += &format!("  | {line}\n");
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::progress::Progress;
    use super::super::suites::SUITES;
    use super::*;
    use std::time::Duration;

    const PASSED: &str =
        "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
    const FAILED: &str =
        "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out";

    fn outcome(booted: bool, hung: bool) -> Outcome {
        Outcome {
            code: None,
            dir: "/nowhere".into(),
            took: Duration::ZERO,
            hung,
            booted,
            lost: None,
        }
    }

    /// Runs the first suites (devices, afxdp, vfio) in guests with these output lines and outcomes.
    /// Returns the suites of each guest, and the sum.
    fn run(count: usize, guests: &[(&[&str], Outcome)]) -> (Vec<String>, Sum) {
        let suites: Vec<_> = SUITES.iter().take(count).collect();
        let (mut rounds, mut sum) = (Rounds::new(&suites), Sum::default());
        let (mut batches, mut guests) = (Vec::new(), guests.iter());
        while let Some(batch) = rounds.next_batch() {
            let names: Vec<_> = batch.suites.iter().map(|suite| suite.name).collect();
            batches.push(names.join(" "));
            let (lines, outcome) = guests.next().expect("a guest more than expected");
            let mut progress = Progress::new(&batch.suites, None);
            for line in *lines {
                progress.line(line);
            }
            let attempts = progress.end(outcome);
            rounds.done(&batch, attempts, outcome, &mut sum);
        }
        assert!(guests.next().is_none(), "only {batches:?}");
        (batches, sum)
    }

    #[test]
    fn a_suite_that_ends_the_guest_and_those_after_it_run_in_another() {
        let first = [
            "@@lab begin devices",
            PASSED,
            "@@lab end devices 0",
            "@@lab begin afxdp",
            "test some::test ... SKIPPED: some::test: needs a thing",
        ];
        let second = ["@@lab begin vfio", PASSED, "@@lab end vfio 0"];
        let third = [
            "@@lab begin afxdp",
            "SKIPPED: some::test: needs a thing",
            "test some::child ... CHILD: some::child",
            PASSED,
            "@@lab end afxdp 0",
        ];
        let (batches, sum) = run(
            3,
            &[
                (&first, outcome(true, true)),
                (&second, outcome(true, false)),
                (&third, outcome(true, false)),
            ],
        );
        assert_eq!(batches, ["devices afxdp vfio", "vfio", "afxdp"]);
        // The output of the first attempt does not count, and is reported.
        assert_eq!(sum.line(), "4 passed, 0 failed, 1 skipped");
        assert_eq!(sum.warnings.len(), 1);
        let warning = &sum.warnings[0];
        assert!(
            warning.contains("afxdp failed at its first try and passed"),
            "{warning}"
        );
        assert!(
            warning.contains("it hung") && warning.contains("/nowhere"),
            "{warning}"
        );
        assert!(
            warning.contains("  | test some::test ... SKIPPED"),
            "{warning}"
        );
    }

    #[test]
    fn a_suite_runs_at_most_twice() {
        let fails = ["@@lab begin devices", FAILED, "@@lab end devices 1"];
        let lost = Outcome {
            lost: Some("processor 0 is halted".into()),
            ..outcome(true, true)
        };
        for second in [outcome(true, false), outcome(true, true), lost] {
            let (batches, sum) = run(1, &[(&fails, outcome(true, false)), (&fails[..2], second)]);
            assert_eq!(batches, ["devices", "devices"]);
            assert_eq!(sum.line(), "1 passed, 1 failed, 0 skipped");
            assert_eq!((sum.failed, sum.warnings.len()), (1, 1));
            assert!(
                sum.warnings[0].contains("failed twice"),
                "{:?}",
                sum.warnings
            );
        }
        // Only failed suites run again, both in one guest.
        let both = [
            "@@lab begin devices",
            FAILED,
            "@@lab end devices 1",
            "@@lab begin afxdp",
            "@@lab end afxdp 0",
            "@@lab begin vfio",
            PASSED,
            "@@lab end vfio 0",
        ];
        let again = [
            "@@lab begin devices",
            PASSED,
            "@@lab end devices 0",
            "@@lab begin afxdp",
            "@@lab end afxdp 0",
        ];
        let guests: [(&[&str], _); 2] = [
            (&both, outcome(true, false)),
            (&again, outcome(true, false)),
        ];
        let (batches, sum) = run(3, &guests);
        assert_eq!(batches, ["devices afxdp vfio", "devices afxdp"]);
        assert_eq!(sum.line(), "4 passed, 1 failed, 0 skipped");
        assert!(
            sum.warnings[1].contains("it ran no test"),
            "{:?}",
            sum.warnings
        );
    }

    #[test]
    fn a_guest_that_does_not_boot_counts_as_a_run_of_its_first_suite() {
        let rest = ["@@lab begin afxdp", PASSED, "@@lab end afxdp 0"];
        let again = ["@@lab begin devices", PASSED, "@@lab end devices 0"];
        let (batches, sum) = run(
            2,
            &[
                (&[], outcome(false, true)),
                (&rest, outcome(true, false)),
                (&again, outcome(true, false)),
            ],
        );
        assert_eq!(batches, ["devices afxdp", "afxdp", "devices"]);
        assert_eq!(sum.line(), "4 passed, 0 failed, 0 skipped");
        // Two in a row: no other is tried.
        let dead = || (&[][..], outcome(false, true));
        let (batches, sum) = run(3, &[dead(), dead()]);
        assert_eq!(batches, ["devices afxdp vfio", "afxdp vfio"]);
        assert_eq!((sum.failed, sum.not_run.len()), (2, 1));
        assert_eq!(sum.line(), "0 passed, 2 failed, 1 skipped");
    }

    #[test]
    fn a_guest_that_does_not_power_off_fails_its_last_suite() {
        let all = ["@@lab begin devices", PASSED, "@@lab end devices 0"];
        let guests: [(&[&str], _); 2] = [(&all, outcome(true, true)), (&all, outcome(true, false))];
        let (batches, sum) = run(1, &guests);
        assert_eq!(batches.len(), 2);
        assert_eq!(sum.line(), "2 passed, 0 failed, 0 skipped");
        assert!(
            sum.warnings[0].contains("did not go off"),
            "{:?}",
            sum.warnings
        );
    }
}
