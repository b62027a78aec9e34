//! Tests that ran on less input than there could be, from the lines that `dev/skip` writes.

use std::collections::{BTreeMap, BTreeSet};

/// Start of such a line: `REDUCED: TEST: ran on 4 of 700 captures`.
const START: &str = "REDUCED: ";

pub fn is_reduced(line: &str) -> bool {
    line.starts_with(START)
}

/// The tests that ran on less input. They are among those that passed or failed.
#[derive(Debug, Default)]
pub struct Reduced {
    /// Number of tests.
    pub tests: usize,
    /// A line for each kind of input, with its number of tests.
    pub lines: Vec<String>,
}

impl Reduced {
    /// Counts the tests of these lines.
    pub fn of(lines: &[&str]) -> Reduced {
        let mut kinds = BTreeMap::<&str, BTreeSet<&str>>::new();
        let mut tests = BTreeSet::new();
        for line in lines {
            let Some((test, how)) = line.strip_prefix(START).and_then(|l| l.split_once(": "))
            else {
                continue;
            };
            kinds.entry(how).or_default().insert(test);
            tests.insert(test);
        }
        let line = |(how, tests): (&&str, &BTreeSet<&str>)| match tests.len() {
            1 => format!("{START}1 test {how}"),
            count => format!("{START}{count} tests {how}"),
        };
        Reduced {
            tests: tests.len(),
            lines: kinds.iter().map(line).collect(),
        }
    }

    /// The end of the summary.
    pub fn words(&self) -> String {
        match self.tests {
            0 => String::new(),
            count => format!("; {count} of them on less input"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_counted_once_for_each_kind_of_input() {
        let lines = [
            "REDUCED: a::one: ran on 4 of 700 captures",
            "REDUCED: a::one: ran on 4 of 700 captures",
            "REDUCED: b::two: ran on 4 of 700 captures",
            "REDUCED: a::one: ran on 1 of some 140 captures",
        ];
        assert!(lines.iter().all(|line| is_reduced(line)));
        assert!(!is_reduced("SKIPPED: a::one: needs root"));
        let reduced = Reduced::of(&lines);
        let expected = [
            "REDUCED: 1 test ran on 1 of some 140 captures",
            "REDUCED: 2 tests ran on 4 of 700 captures",
        ];
        assert_eq!(
            (reduced.tests, reduced.lines.as_slice()),
            (2, &expected.map(String::from)[..])
        );
        assert_eq!(reduced.words(), "; 2 of them on less input");
        assert_eq!(Reduced::of(&[]).words(), "");
    }
}
