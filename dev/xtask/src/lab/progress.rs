//! The suites of one guest as far as they have come, from the lines that the job prints.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::guest::Outcome;
use super::suites::Suite;
use crate::test;

/// How a line of the job's output begins that reports on a suite.
pub const MARK: &str = "@@lab ";

/// Lines of a suite's output that are kept as evidence, and characters of each.
const SAID_MAX: usize = 40;
const COLUMNS_MAX: usize = 400;

/// One try of a suite.
#[derive(Debug, Default)]
pub struct Try {
    /// Tests by libtest's word; those that skipped themselves count as passed.
    pub tests: test::Sum,
    /// Tests that skipped themselves, one line each.
    pub skips: Vec<String>,
    /// Why it failed; `None` if it passed.
    pub wrong: Option<String>,
    /// The end of its output.
    pub said: VecDeque<String>,
}

/// Suites of a guest.
pub struct Progress<'a> {
    suites: &'a [&'a Suite],
    /// The time limit of every suite, where it is not that of the suite.
    limit: Option<Duration>,
    /// Those that have ended, in the order of the suites.
    tries: Vec<Try>,
    /// The one that runs, and since when.
    running: Option<(Try, Instant)>,
}

impl<'a> Progress<'a> {
    pub fn new(suites: &'a [&'a Suite], limit: Option<Duration>) -> Progress<'a> {
        Progress {
            suites,
            limit,
            tries: Vec::new(),
            running: None,
        }
    }

    /// Takes a line of the job's output; the time limit of a suite that begins with it.
    pub fn line(&mut self, line: &str) -> Option<Duration> {
        let Some(words) = line.strip_prefix(MARK) else {
            println!("{line}");
            if let Some((running, _)) = &mut self.running {
                running.line(line);
            }
            return None;
        };
        let suite = self.suites.get(self.tries.len())?;
        let words: Vec<_> = words.split(' ').collect();
        match words[..] {
            ["begin", name] if name == suite.name => {
                println!("lab {name}: {}", suite.summary);
                self.running = Some((Try::default(), Instant::now()));
                let own = Duration::from_secs(suite.limit_seconds);
                return Some(self.limit.unwrap_or(own));
            }
            ["end", name, code] if name == suite.name => {
                self.close((code != "0").then_some("it failed"));
            }
            // Not printed by any of our jobs.
            _ => println!("{line}"),
        }
        None
    }

    /// The running suite is over, with what went wrong alongside its tests.
    fn close(&mut self, wrong: Option<&str>) {
        let name = self.suites[self.tries.len()].name;
        let (mut ended, since) = self
            .running
            .take()
            .unwrap_or((Try::default(), Instant::now()));
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
        self.tries.push(ended);
    }

    /// The guest is off. The tries of the suites that need no other guest, in their order: one at
    /// least.
    pub fn end(mut self, outcome: &Outcome) -> Vec<Try> {
        if self.tries.len() == self.suites.len() {
            if let Some(last) = self.tries.last_mut()
                && (outcome.hung || outcome.lost.is_some())
            {
                let wrong = "the guest did not go off behind it";
                eprintln!(
                    "error: guest suite {}: {wrong}",
                    self.suites[self.suites.len() - 1].name
                );
                last.wrong.get_or_insert_with(|| wrong.into());
            }
            return self.tries;
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
        self.tries
    }
}

impl Try {
    fn line(&mut self, line: &str) {
        self.tests.add(line);
        if self.said.len() == SAID_MAX {
            self.said.pop_front();
        }
        self.said
            .push_back(line.chars().take(COLUMNS_MAX).collect());
        // After libtest's word on which test it runs, where that stands alone.
        if let Some(at) = line.find("SKIPPED: ")
            && (at == 0 || line.starts_with("test ") && line[..at].ends_with(" ... "))
        {
            self.skips.push(format!("{} (in the guest)", &line[at..]));
        }
    }
}
