//! `cargo xtask test`: every test of the workspace, and an honest sum at the end.
//!
//! libtest counts a test that skipped itself as passed; here it is counted as skipped.

use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};

use anyhow::{Context, Result};

use crate::lab;
use crate::run::{cargo, target_dir};
use crate::setup::{Set, ensure};

/// What all test binaries said together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub passed: u64,
    pub failed: u64,
}

/// The task: see the module.
pub fn run(args: &[String]) -> Result<ExitCode> {
    if let Err(error) = ensure(&[Set::Test]) {
        // Tests that need what is missing skip themselves, each by name.
        eprintln!("warning: {error:#}\nwarning: going on; tests will be skipped");
    }
    let skips_file = skips_file()?;
    let mut command = cargo();
    command.arg("test").args(cargo_args(args));
    command
        .env("BAREWIRE_SKIPS", &skips_file)
        // By this one tests know that they are in the guest.
        .env_remove("BAREWIRE_GUEST")
        .stdout(Stdio::piped());
    if std::io::stdout().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    let mut child = command.spawn().context("cannot run cargo test")?;
    let output = BufReader::new(child.stdout.take().expect("piped above"));
    let mut sum = Sum::default();
    let mut stdout = std::io::stdout().lock();
    for line in output.split(b'\n') {
        let line = line?;
        stdout.write_all(&line)?;
        stdout.write_all(b"\n")?;
        sum.add(&String::from_utf8_lossy(&line));
    }
    stdout.flush()?;
    let status = child.wait()?;
    if !status.success() && sum.failed == 0 {
        // A build error, or a test binary that a signal ended before it could count.
        eprintln!("error: cargo test ended with {status} and no failed test: counted as one");
        sum.failed = 1;
    }
    let mut skips: Vec<String> = std::fs::read_to_string(&skips_file)
        .context("the file of skips")?
        .lines()
        .map(str::to_owned)
        .collect();
    let _ = std::fs::remove_file(&skips_file);
    let mut guest = lab::Sum::default();
    // A run of all, not of one package or name.
    if args.is_empty() {
        guest = in_guest(&mut sum, &mut skips);
    }
    skips.sort();
    if !skips.is_empty() || !guest.not_run.is_empty() {
        println!("\nNot everything was tested here:");
        for skip in skips.iter().chain(&guest.not_run) {
            println!("  {skip}");
        }
    }
    for warning in &guest.warnings {
        println!("\n{warning}");
    }
    println!("\n{}", sum.line(skips.len(), guest.not_run.len()));
    Ok(if sum.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Ends the line of a test that skipped itself because it needs the guest; `lab::guest` says it.
const NEEDS_GUEST: &str = "the guest lab (cargo xtask lab)";

/// Set to 0, it turns the suites of the guest off.
const GUEST_VAR: &str = "BAREWIRE_TEST_GUEST";

/// Runs the suites of the guest lab. What was skipped for want of it counts as what it did there;
/// if there is no guest it stays skipped.
fn in_guest(sum: &mut Sum, skips: &mut Vec<String>) -> lab::Sum {
    if std::env::var_os(GUEST_VAR).is_some_and(|value| value == "0") {
        return lab::run_none(&format!("{GUEST_VAR}=0"));
    }
    let guest = match lab::run_all() {
        Ok(guest) => guest,
        Err(error) => {
            eprintln!("error: guest lab: {error:#}");
            sum.failed += 1;
            return lab::run_none("the guest could not be put together, see above");
        }
    };
    sum.passed += guest.tests.passed;
    sum.failed += guest.tests.failed;
    if guest.tests != Sum::default() {
        let all = skips.len();
        skips.retain(|skip| !skip.ends_with(NEEDS_GUEST));
        sum.passed = sum.passed.saturating_sub((all - skips.len()) as u64);
    }
    skips.extend(guest.skips.iter().cloned());
    guest
}

/// Arguments for cargo: all packages unless some are named, and all failures, not the first.
fn cargo_args(args: &[String]) -> Vec<String> {
    let own = args
        .iter()
        .position(|arg| arg == "--")
        .unwrap_or(args.len());
    let named = args[..own].iter().any(|arg| {
        let short = arg.starts_with("-p") && !arg.starts_with("--");
        short || arg == "--workspace" || arg.starts_with("--package") || arg == "--manifest-path"
    });
    let mut all = Vec::new();
    if !named {
        all.push("--workspace".to_owned());
    }
    if !args[..own].iter().any(|arg| arg == "--no-fail-fast") {
        all.push("--no-fail-fast".to_owned());
    }
    all.extend_from_slice(args);
    all
}

/// An empty file for the tests to append their skips to; absolute, because each test binary runs
/// in the directory of its package.
fn skips_file() -> Result<PathBuf> {
    let path = target_dir()?.join(format!("skips-{}", std::process::id()));
    std::fs::write(&path, "").with_context(|| path.display().to_string())?;
    Ok(path)
}

impl Sum {
    /// Adds a line of libtest: `test result: ok. 3 passed; 0 failed; …`, perhaps coloured.
    pub fn add(&mut self, line: &str) {
        let line = without_colour(line);
        let Some(rest) = line.trim_start().strip_prefix("test result: ") else {
            return;
        };
        let Some((_, counts)) = rest.split_once(". ") else {
            return;
        };
        for count in counts.split("; ") {
            match count.split_once(' ') {
                Some((number, "passed")) => self.passed += number.parse().unwrap_or(0),
                Some((number, "failed")) => self.failed += number.parse().unwrap_or(0),
                _ => {}
            }
        }
    }

    /// The last line. Tests that skipped themselves are among the passed by libtest's word; what
    /// was not even started is not.
    pub fn line(self, skipped: usize, not_run: usize) -> String {
        let passed = self.passed.saturating_sub(skipped as u64);
        let skipped = skipped + not_run;
        format!("{passed} passed, {} failed, {skipped} skipped", self.failed)
    }
}

/// The text without ANSI colour sequences.
fn without_colour(text: &str) -> String {
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
    fn results_of_all_binaries_are_summed() {
        let mut sum = Sum::default();
        let lines = [
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
            "test result: \u{1b}[31mFAILED\u{1b}(B\u{1b}[m. 2 passed; 1 failed; 0 ignored",
            "not a test result: ok. 9 passed; 9 failed",
        ];
        for line in lines {
            sum.add(line);
        }
        assert_eq!(
            sum,
            Sum {
                passed: 5,
                failed: 1
            }
        );
        assert_eq!(sum.line(2, 1), "3 passed, 1 failed, 3 skipped");
    }

    #[test]
    fn packages_named_replace_the_workspace() {
        let run = |text: &str| {
            let args: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
            cargo_args(&args).join(" ")
        };
        assert_eq!(run(""), "--workspace --no-fail-fast");
        assert_eq!(
            run("-p barewire-wire udp"),
            "--no-fail-fast -p barewire-wire udp"
        );
        assert_eq!(run("udp -- -p"), "--workspace --no-fail-fast udp -- -p");
    }
}
