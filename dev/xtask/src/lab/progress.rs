//! Progress of the suites in one guest, from the lines that the job prints.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::guest::Outcome;
use super::suites::Suite;
use crate::test;

/// Prefix of a line of the job's output that reports on a suite.
pub const MARK: &str = "@@lab ";

/// Maximum number of output lines of a suite kept as evidence, and of characters in each.
const SAID_MAX: usize = 40;
const COLUMNS_MAX: usize = 400;

/// One run of a suite.
#[derive(Debug, Default)]
pub struct Attempt {
    /// Test counts of libtest; tests that skipped themselves count as passed.
    pub tests: test::Sum,
    /// Tests that skipped themselves, one line each.
    pub skips: Vec<String>,
    /// Bodies of child processes, which libtest counts as passed tests.
    pub bodies: u64,
    /// Why it failed; `None` if it passed.
    pub wrong: Option<String>,
    /// The end of its output.
    pub said: VecDeque<String>,
}

/// The suites of a guest.
pub struct Progress<'a> {
    suites: &'a [&'a Suite],
    /// The time limit of every suite, if it is not the suite's own.
    limit: Option<Duration>,
    /// Suites that have ended, in order.
    attempts: Vec<Attempt>,
    /// The running suite, and since when.
    running: Option<(Attempt, Instant)>,
}

impl<'a> Progress<'a> {
    pub fn new(suites: &'a [&'a Suite], limit: Option<Duration>) -> Progress<'a> {
        Progress {
            suites,
            limit,
            attempts: Vec::new(),
            running: None,
        }
    }

    /// Handles a line of the job's output; returns the time limit of a suite that starts with it.
    pub fn line(&mut self, line: &str) -> Option<Duration> {
        let Some(words) = line.strip_prefix(MARK) else {
            println!("{line}");
            if let Some((running, _)) = &mut self.running {
                running.line(line);
            }
            return None;
        };
        let suite = self.suites.get(self.attempts.len())?;
        let words: Vec<_> = words.split(' ').collect();
        match words[..] {
            ["begin", name] if name == suite.name => {
                println!("lab {name}: {}", suite.summary);
                self.running = Some((Attempt::default(), Instant::now()));
                let own = Duration::from_secs(suite.limit_seconds);
                return Some(self.limit.unwrap_or(own));
            }
            ["end", name, code] if name == suite.name => {
                self.close((code != "0").then_some("it failed"));
            }
            // Not printed by any job.
            _ => println!("{line}"),
        }
        None
    }

    /// Ends the running suite, with the error besides its tests, if any.
    fn close(&mut self, wrong: Option<&str>) {
        let name = self.suites[self.attempts.len()].name;
        let (mut ended, since) = self
            .running
            .take()
            .unwrap_or((Attempt::default(), Instant::now()));
        println!("lab {name}: {} s\n", since.elapsed().as_secs());
        let test::Sum { passed, failed } = ended.tests;
        ended.wrong = match wrong {
            _ if failed != 0 => Some(format!("{failed} of its tests failed")),
            None if passed == 0 => Some("it ran no test".into()),
            wrong => wrong.map(str::to_owned),
        };
        if let Some(wrong) = &ended.wrong {
            eprintln!("error: guest suite {name}: {wrong}");
        }
        self.attempts.push(ended);
    }

    /// The guest is off. Returns the runs of the suites that need no other guest, in order: at
    /// least one.
    pub fn end(mut self, outcome: &Outcome) -> Vec<Attempt> {
        if self.attempts.len() == self.suites.len() {
            if let Some(last) = self.attempts.last_mut()
                && (outcome.hung || outcome.lost.is_some())
            {
                let wrong = "the guest did not go off behind it";
                eprintln!(
                    "error: guest suite {}: {wrong}",
                    self.suites[self.suites.len() - 1].name
                );
                last.wrong.get_or_insert_with(|| wrong.into());
            }
            return self.attempts;
        }
        let lost = outcome
            .lost
            .as_ref()
            .map(|why| format!("the emulator failed it: {why}"));
        let wrong = match (outcome.hung, &self.running) {
            _ if !outcome.booted => "the guest did not boot",
            _ if lost.is_some() => lost.as_deref().unwrap_or_default(),
            (true, Some(_)) => "it hung, and the guest was ended",
            (true, None) => "it never began, and the guest was ended",
            (false, Some(_)) => "the guest ended in it",
            (false, None) => "the guest ended before it",
        };
        self.close(Some(wrong));
        self.attempts
    }
}

impl Attempt {
    fn line(&mut self, line: &str) {
        self.tests.add(line);
        if self.said.len() == SAID_MAX {
            self.said.pop_front();
        }
        self.said
            .push_back(line.chars().take(COLUMNS_MAX).collect());
        // After libtest's line on the running test, if that is separate.
        let find = |word: &str| {
            let at = line.find(word)?;
            let is_behind = line.starts_with("test ") && line[..at].ends_with(" ... ");
            (at == 0 || is_behind).then_some(&line[at..])
        };
        if let Some(skip) = find("SKIPPED: ") {
            self.skips.push(format!("{skip} (in the guest)"));
        }
        self.bodies += u64::from(find(test::CHILD_PREFIX).is_some());
    }
}
