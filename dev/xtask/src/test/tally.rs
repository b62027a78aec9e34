//! Sums up all suites from the output lines of cargo and libtest.

use std::collections::VecDeque;
use std::time::Instant;

use super::output::{self, Counts, Line};
use super::times::Times;

/// The combined results of all test binaries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub passed: u64,
    pub failed: u64,
}

impl Sum {
    /// Adds libtest's counts in a line, if it has any.
    pub fn add(&mut self, line: &str) {
        if let Some(counts) = output::counts(&output::without_colour(line)) {
            self.count(counts);
        }
    }

    fn count(&mut self, counts: Counts) {
        self.passed += counts.passed;
        self.failed += counts.failed;
    }

    /// The summary line. Tests that skipped themselves are among libtest's passed ones; suites that
    /// were not started are not.
    pub fn line(self, skipped: usize, not_run: usize) -> String {
        let passed = self.passed.saturating_sub(skipped as u64);
        let skipped = skipped + not_run;
        format!("{passed} passed, {} failed, {skipped} skipped", self.failed)
    }
}

/// Number of lines kept of what a failed test has printed; the reason is in the last ones.
const REPORT_LINES: usize = 30;

/// What a failed test has printed.
struct Report {
    suite: String,
    test: String,
    /// The last [`REPORT_LINES`].
    lines: VecDeque<String>,
}

/// Progress of the suites.
pub struct Tally {
    pub sum: Sum,
    pub times: Times,
    /// Tests that failed: suite and name.
    pub failed: Vec<(String, String)>,
    suite: String,
    open: Option<Open>,
    /// Suites that started and gave no result, each with the number of its tests.
    silent: Vec<(String, u64)>,
    reports: Vec<Report>,
    /// Whether lines belong to the last report.
    in_report: bool,
    /// Whether lines belong to the backtrace of a panic.
    in_backtrace: bool,
}

/// A running suite.
struct Open {
    began: Instant,
    total: u64,
    /// Tests that have ended, in order.
    ends: Vec<(String, Instant)>,
}

impl Tally {
    pub fn new(times: Times) -> Tally {
        Tally {
            sum: Sum::default(),
            times,
            failed: Vec::new(),
            suite: String::new(),
            open: None,
            silent: Vec::new(),
            reports: Vec::new(),
            in_report: false,
            in_backtrace: false,
        }
    }

    /// Handles an output line, without colours, that arrived at this time.
    pub fn add(&mut self, line: &str, now: Instant) {
        let content = output::parse(line);
        self.report(line, &content);
        match content {
            Line::Suite(name) => {
                self.close(now);
                name.clone_into(&mut self.suite);
            }
            // A test may print libtest output of a process that it started.
            Line::Begin(_) if self.open.is_some() => {}
            Line::Begin(total) => {
                self.open = Some(Open {
                    began: now,
                    total,
                    ends: Vec::new(),
                });
            }
            Line::Test(name, has_failed) => {
                if let Some(open) = &mut self.open {
                    open.ends.push((name.to_owned(), now));
                    if has_failed {
                        self.failed.push((self.suite.clone(), name.to_owned()));
                    }
                }
            }
            Line::Result(counts) => match self.open.take() {
                Some(open) if open.total != counts.total => self.open = Some(open),
                Some(open) => {
                    self.sum.count(counts);
                    self.times.add(&self.suite, open.began, &open.ends, now);
                }
                // Its start was garbled.
                None => self.sum.count(counts),
            },
            Line::Report(_) | Line::ReportsEnd | Line::Other => {}
        }
    }

    /// Adds a line to the report of a failed test, if it belongs to one.
    fn report(&mut self, line: &str, content: &Line<'_>) {
        match content {
            Line::Report(test) => {
                self.in_report = true;
                self.reports.push(Report {
                    suite: self.suite.clone(),
                    test: (*test).to_owned(),
                    lines: VecDeque::new(),
                });
            }
            Line::ReportsEnd | Line::Suite(_) => self.in_report = false,
            // The frames of a backtrace, which are indented.
            _ if line == "stack backtrace:" => self.in_backtrace = true,
            _ if self.in_backtrace && line.starts_with(' ') => {}
            _ if self.in_report => {
                self.in_backtrace = false;
                let lines = self.reports.last_mut().map(|report| &mut report.lines);
                let Some(lines) = lines else { return };
                if lines.len() == REPORT_LINES {
                    lines.pop_front();
                }
                lines.push_back(line.to_owned());
            }
            _ => {}
        }
    }

    /// The last lines that failed tests have printed, with their names. Pages of other results may
    /// be between the failure and the end of a run.
    pub fn reasons(&self) -> String {
        let mut text = String::new();
        for report in &self.reports {
            text += &format!("\n{} {} failed:\n", report.suite, report.test);
            for line in report.lines.iter().filter(|line| !line.is_empty()) {
                text += &format!("  {line}\n");
            }
        }
        text
    }

    /// Ends the running suite, which had no summary line.
    fn close(&mut self, now: Instant) {
        if let Some(open) = self.open.take() {
            self.times.add(&self.suite, open.began, &open.ends, now);
            self.silent.push((self.suite.clone(), open.total));
        }
    }

    /// Handles the end of the output, with cargo's success or failure. Returns errors besides
    /// failed tests, one line each; they are counted.
    pub fn end(&mut self, success: bool, now: Instant) -> Vec<String> {
        self.close(now);
        let mut errors = Vec::new();
        for (suite, total) in std::mem::take(&mut self.silent) {
            if success {
                // libtest exits with 0 only if every test has passed: only the line is lost.
                self.sum.passed += total;
                continue;
            }
            self.sum.failed += 1;
            errors.push(format!(
                "error: suite {suite} ({total} tests) ended without a result: one failure"
            ));
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Tally {
        let mut tally = Tally::new(Times::new(2, 0));
        for line in lines {
            tally.add(line, Instant::now());
        }
        tally
    }

    #[test]
    fn failed_tests_are_known_by_suite_and_name() {
        let lines = [
            ALL,
            "test x ... FAILED",
            "running 2 tests",
            "test a::b ... ok",
            "test a::c ... FAILED",
        ];
        let failed = read(&lines).failed;
        assert_eq!(failed, [("all".to_owned(), "a::c".to_owned())]);
    }

    #[test]
    fn the_last_lines_of_failed_tests_are_kept() {
        let many: Vec<String> = (0..100).map(|number| format!("line {number}")).collect();
        let mut lines = vec![
            ALL,
            "running 2 tests",
            "test a::b ... FAILED",
            "failures:",
            "---- a::b stdout ----",
        ];
        lines.extend(many.iter().map(String::as_str));
        lines.extend([
            "---- a::c stdout ----",
            "why",
            "stack backtrace:",
            "   0: begin",
            "failures:",
            "    a::b",
        ]);
        let reasons = read(&lines).reasons();
        assert!(
            reasons.contains("all a::b failed:\n  line 70\n"),
            "{reasons}"
        );
        assert!(
            reasons.ends_with("line 99\n\nall a::c failed:\n  why\n"),
            "{reasons}"
        );
    }

    /// The tally of lines, from a cargo that ended with or without success.
    fn tally(lines: &[&str], success: bool) -> (Sum, Vec<String>) {
        let now = Instant::now();
        let mut tally = read(lines);
        let errors = tally.end(success, now);
        (tally.sum, errors)
    }

    const ALL: &str = "     Running tests/all.rs (target/debug/deps/all-0123456789abcdef)";
    const TAIL: &str = "0 ignored; 0 measured; 0 filtered out; finished in 0.02s";

    #[test]
    fn results_of_all_suites_are_summed() {
        let lines = [
            ALL,
            "running 3 tests",
            &format!("test result: ok. 3 passed; 0 failed; {TAIL}"),
            "   Doc-tests wire",
            "running 3 tests",
            &format!("test result: FAILED\u{1b}(B. 2 passed; 1 failed; {TAIL}"),
            "running 1 test",
            &format!("test result: ok. 1 passed; 0 failed; {TAIL}"),
        ];
        let (sum, errors) = tally(&lines, false);
        assert_eq!((sum.passed, sum.failed, errors.len()), (6, 1, 0));
        assert_eq!(sum.line(2, 1), "4 passed, 1 failed, 3 skipped");
    }

    #[test]
    fn a_result_interrupted_by_other_output_is_counted() {
        let lines = [
            ALL,
            "running 3 tests",
            "test result: SKIPPED: a::b: needs root",
            &format!("ok. 2 passed; 1 failed; {TAIL}"),
            "     Running unittests src/lib.rs (target/debug/deps/other-0123456789abcdef)",
            "a word without an end. running 2 tests",
            &format!("test result: okgone. 2 passed; 0 failed; {TAIL}"),
        ];
        let (sum, errors) = tally(&lines, false);
        assert_eq!((sum.passed, sum.failed, errors.len()), (4, 1, 0));
    }

    #[test]
    fn a_suite_without_a_result_is_lost_only_if_cargo_failed() {
        let lines = [
            ALL,
            "running 3 tests",
            "test a ... ok",
            "     Running unittests src/lib.rs (target/debug/deps/other-0123456789abcdef)",
            "running 2 tests",
            &format!("test result: ok. 2 passed; 0 failed; {TAIL}"),
        ];
        let (sum, errors) = tally(&lines, true);
        assert_eq!((sum.passed, sum.failed, errors.len()), (5, 0, 0));
        let (sum, errors) = tally(&lines, false);
        assert_eq!((sum.passed, sum.failed), (2, 1));
        assert!(errors[0].contains("suite all (3 tests)"), "{errors:?}");
    }

    #[test]
    fn libtest_output_printed_by_a_test_does_not_count() {
        let lines = [
            ALL,
            "running 3 tests",
            "running 1 test",
            &format!("test result: ok. 1 passed; 0 failed; {TAIL}"),
            &format!("test result: ok. 3 passed; 0 failed; {TAIL}"),
        ];
        assert_eq!(
            tally(&lines, true).0,
            Sum {
                passed: 3,
                failed: 0
            }
        );
    }
}
