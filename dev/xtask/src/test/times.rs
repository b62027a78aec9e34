//! Times of each suite and each test, and budgets of suites.
//!
//! libtest reports the time of a test only in nightly. But it starts tests in the order of their
//! names, as many at once as it has threads, and each end starts the next: all start times follow
//! from the end times, which it does print.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Seconds that a suite may take on two idle processors, if that is not [`BUDGET`]. A suite is a
/// test binary, by name.
const BUDGETS: &[(&str, u64)] = &[
    ("all", 1000),
    ("guest", 240),
    ("barewire_xtask", 60),
    // Oracles, and a guest that may have to be fetched first.
    ("barewire_lab", 90),
    ("lab_ends", 240),
];

/// Seconds that any other suite may take.
const BUDGET: u64 = 40;

/// A suite that took this many times its budget has failed. Machines differ in speed and load; one
/// on which the tests take three times as long gives no useful result.
const FACTOR: u64 = 3;

/// Seconds below which no suite fails, or a short stall of the machine would be enough.
const FLOOR: u64 = 300;

/// Replaces [`FACTOR`] if set; 0 disables the check, for slow machines.
const FACTOR_VAR: &str = "BAREWIRE_TEST_BUDGET_FACTOR";

/// Number of slowest tests named.
const SLOWEST: usize = 10;

/// Suites and tests that have ended.
#[derive(Debug)]
pub struct Times {
    threads: usize,
    factor: u64,
    suites: Vec<(String, Duration)>,
    tests: Vec<(String, Duration)>,
}

/// The factor from the environment, or the default.
///
/// # Errors
/// If it is not a number.
pub fn factor() -> Result<u64> {
    match std::env::var(FACTOR_VAR) {
        Ok(text) => text.parse().with_context(|| format!("{FACTOR_VAR}={text}")),
        Err(_) => Ok(FACTOR),
    }
}

impl Times {
    /// For suites that run this many tests at once, and fail above `factor` times their budget.
    pub fn new(threads: usize, factor: u64) -> Times {
        Times {
            threads: threads.max(1),
            factor,
            suites: Vec::new(),
            tests: Vec::new(),
        }
    }

    /// Adds a suite that has ended: its start and end, and the end times of its tests in order.
    pub fn add(&mut self, suite: &str, began: Instant, ends: &[(String, Instant)], now: Instant) {
        let mut order: Vec<&str> = ends.iter().map(|(name, _)| name.as_str()).collect();
        order.sort_unstable();
        // The first ones begin at once, each further one at the next end.
        let first = std::iter::repeat_n(began, self.threads);
        let begins = first.chain(ends.iter().map(|(_, end)| *end));
        for (name, began) in order.into_iter().zip(begins) {
            let end = ends.iter().find(|(other, _)| other == name);
            let took = end.map_or(Duration::ZERO, |(_, end)| end.duration_since(began));
            self.tests.push((format!("{suite} {name}"), took));
        }
        self.suites
            .push((suite.to_owned(), now.duration_since(began)));
    }

    /// The report at the end: suites with their budgets, and the slowest tests.
    pub fn report(&self) -> String {
        let mut text = String::from("Suites, with the seconds that they took and may take:\n");
        for (name, took) in &self.suites {
            let budget = budget(name);
            let seconds = took.as_secs_f64();
            // Very short ones are not meaningful.
            if seconds < 1.0 {
                continue;
            }
            let word = if seconds > budget as f64 {
                "  OVER ITS BUDGET"
            } else {
                ""
            };
            text += &format!("  {seconds:7.1} of {budget:4}  {name}{word}\n");
        }
        let mut tests: Vec<_> = self.tests.iter().collect();
        tests.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
        text += "The slowest tests, in seconds:\n";
        for (name, took) in tests.into_iter().take(SLOWEST) {
            text += &format!("  {:7.1}  {name}\n", took.as_secs_f64());
        }
        text
    }

    /// A warning for each suite over its budget, and an error for each that exceeds it by so much
    /// that it has failed.
    pub fn over(&self) -> (Vec<String>, Vec<String>) {
        let (mut warnings, mut errors) = (Vec::new(), Vec::new());
        for (name, took) in &self.suites {
            let (budget, seconds) = (budget(name), took.as_secs());
            let reported = format!("suite {name} took {seconds} s and may take {budget} s");
            let limit = (budget * self.factor).max(FLOOR);
            if self.factor != 0 && *took > Duration::from_secs(limit) {
                errors.push(format!(
                    "error: {reported}; beyond {limit} s that is a failure\nhint: make it faster, \
                     raise its budget in dev/xtask/src/test/times.rs, or set {FACTOR_VAR}=0 on a \
                     slow machine"
                ));
            } else if *took > Duration::from_secs(budget) {
                warnings.push(format!("WARNING: {reported}"));
            }
        }
        (warnings, errors)
    }
}

fn budget(suite: &str) -> u64 {
    let row = BUDGETS.iter().find(|(name, _)| *name == suite);
    row.map_or(BUDGET, |(_, seconds)| *seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_times_follow_from_end_times() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut times = Times::new(2, FACTOR);
        // Two threads: a and b start, b ends and c starts, c ends and d starts.
        let ends = [("b", 2), ("c", 3), ("a", 10), ("d", 1003)];
        let ends = ends.map(|(name, seconds)| (name.to_owned(), at(seconds)));
        times.add("all", began, &ends, at(1003));
        times.add(
            "Doc-tests wire",
            at(1005),
            &[("x".into(), at(1009))],
            at(1009),
        );
        let report = times.report();
        let seconds: Vec<_> = times.tests.iter().map(|(_, took)| took.as_secs()).collect();
        assert_eq!(seconds, [10, 2, 1, 1000, 4], "{report}");
        assert!(
            report.contains("1003.0 of 1000  all  OVER ITS BUDGET\n"),
            "{report}"
        );
        assert!(report.contains("4.0 of   40  Doc-tests wire\n"), "{report}");
        let slowest = report.find("1000.0  all d").unwrap();
        assert!(slowest < report.find("10.0  all a").unwrap(), "{report}");
    }

    #[test]
    fn a_suite_over_its_budget_is_reported_and_fails_only_far_above_it() {
        let began = Instant::now();
        let took = |name: &str, seconds, factor| {
            let mut times = Times::new(1, factor);
            times.add(name, began, &[], began + Duration::from_secs(seconds));
            let (warnings, errors) = times.over();
            (warnings.len(), errors.len())
        };
        assert_eq!(took("all", 999, FACTOR), (0, 0));
        assert_eq!(took("all", 1001, FACTOR), (1, 0));
        assert_eq!(took("all", 3000, FACTOR), (1, 0));
        assert_eq!(took("all", 3001, FACTOR), (0, 1));
        // Three times a small budget may be due to a stall of the machine.
        assert_eq!(took("small", 299, FACTOR), (1, 0));
        assert_eq!(took("small", 301, FACTOR), (0, 1));
        assert_eq!(took("all", 3001, 4), (1, 0));
        assert_eq!(took("all", 1_000_000, 0), (1, 0));
    }
}
