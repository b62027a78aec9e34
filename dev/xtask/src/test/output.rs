//! Parses the output of cargo and libtest line by line.
//!
//! Standard output and standard error share a pipe, and libtest writes the line of a result in
//! pieces (`test result: `, the verdict, the counts), so that output of another thread or process
//! may come in between. Each piece is one write(2) of less than `PIPE_BUF` bytes and therefore
//! atomic: the counts are found wherever they are in a line.

/// The counts of one result of libtest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: u64,
    pub failed: u64,
    /// All tests of the suite that were not filtered out, whatever their result.
    pub total: u64,
}

/// The content of a line.
#[derive(Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// cargo runs a test binary, or the doc tests of a crate: the name of the suite.
    Suite(&'a str),
    /// libtest starts with this many tests.
    Begin(u64),
    /// A test has ended, in failure or not.
    Test(&'a str, bool),
    /// libtest's summary of a suite.
    Result(Counts),
    /// What this failed test has printed follows.
    Report(&'a str),
    /// The last of these reports is over: the names of the failed tests follow.
    ReportsEnd,
    /// Anything else.
    Other,
}

/// Parses a line without colours.
pub fn parse(line: &str) -> Line<'_> {
    if let Some(counts) = counts(line) {
        return Line::Result(counts);
    }
    let line = line.trim();
    if let Some(rest) = line.strip_prefix("Running ") {
        // Running tests/all.rs (target/debug/deps/all-0123456789abcdef)
        let file = rest.rsplit(['/', '(']).next().unwrap_or_default();
        let name = file.rsplit_once('-').map_or(file, |(name, _)| name);
        return Line::Suite(name);
    }
    if line.starts_with("Doc-tests ") {
        return Line::Suite(line);
    }
    if let Some(rest) = line.strip_prefix("---- ")
        && let Some(name) = rest.strip_suffix(" stdout ----")
    {
        return Line::Report(name);
    }
    if line == "failures:" {
        return Line::ReportsEnd;
    }
    if let Some(rest) = line.strip_prefix("running ")
        && let Some(("test" | "tests", number)) = rest.split_once(' ').map(|(a, b)| (b, a))
        && let Ok(number) = number.parse()
    {
        return Line::Begin(number);
    }
    match line
        .strip_prefix("test ")
        .and_then(|l| l.split_once(" ... "))
    {
        Some((name, verdict)) => Line::Test(name, verdict.starts_with("FAILED")),
        None => Line::Other,
    }
}

/// libtest's counts, `. 3 passed; 1 failed; 0 ignored; 0 measured; 2 filtered out`, anywhere in a
/// line.
pub fn counts(line: &str) -> Option<Counts> {
    const WORDS: [&str; 5] = [
        " passed; ",
        " failed; ",
        " ignored; ",
        " measured; ",
        " filtered out",
    ];
    line.match_indices(". ").find_map(|(at, dot)| {
        let mut rest = &line[at + dot.len()..];
        let mut numbers = [0_u64; WORDS.len()];
        for (number, word) in numbers.iter_mut().zip(WORDS) {
            let (digits, behind) = rest.split_once(word)?;
            *number = digits.parse().ok()?;
            rest = behind;
        }
        let [passed, failed, ignored, measured, _] = numbers;
        let total = passed
            .checked_add(failed)?
            .checked_add(ignored)?
            .checked_add(measured)?;
        Some(Counts {
            passed,
            failed,
            total,
        })
    })
}

/// The text without ANSI colour sequences.
pub fn without_colour(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        plain += before;
        rest = after.split_once('m').map_or("", |(_, after)| after);
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_cargo_and_libtest_are_distinguished() {
        let file = "     Running tests/all.rs (target/debug/deps/all-0123456789abcdef)";
        assert_eq!(parse(file), Line::Suite("all"));
        assert_eq!(parse("   Doc-tests wire"), Line::Suite("Doc-tests wire"));
        assert_eq!(parse("running 1 test"), Line::Begin(1));
        assert_eq!(parse("running 12 tests"), Line::Begin(12));
        assert_eq!(parse("running late tests"), Line::Other);
        assert_eq!(parse("test a::b ... ok"), Line::Test("a::b", false));
        assert_eq!(parse("test a::b ... FAILED"), Line::Test("a::b", true));
        assert_eq!(parse("---- a::b stdout ----"), Line::Report("a::b"));
        assert_eq!(parse("failures:"), Line::ReportsEnd);
        assert_eq!(parse("test result: "), Line::Other);
    }

    #[test]
    fn counts_are_found_anywhere_in_a_line() {
        let counts = |line: &str| counts(line).map(|c| (c.passed, c.failed, c.total));
        let tail = "3 passed; 1 failed; 2 ignored; 0 measured; 7 filtered out; finished in 0.1s";
        let found = Some((3, 1, 6));
        assert_eq!(counts(&format!("test result: ok. {tail}")), found);
        // Another process printed between the verdict and the counts.
        assert_eq!(counts(&format!(". {tail}")), found);
        assert_eq!(counts(&format!("SKIPPED: a. b. {tail}")), found);
        let coloured = without_colour("test result: \u{1b}[31mFAILED\u{1b}(B\u{1b}[m");
        assert_eq!(counts(&format!("{coloured}. {tail}")), found);
        for other in [
            "not a test result: ok. 9 passed; 9 failed",
            "3 passed; 1 failed; 2 ignored; 0 measured; 7 filtered out",
            ". many passed; 1 failed; 2 ignored; 0 measured; 7 filtered out",
        ] {
            assert_eq!(counts(other), None, "{other}");
        }
    }
}
