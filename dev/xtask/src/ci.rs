//! `cargo xtask ci`: the checks of CI, also for contributors before they send work.
//!
//! Cheap checks come first; the tests come last. The last lines are the checks that failed and the
//! sum of the tests. A check that cannot run here counts as a skipped test, and is a failure with
//! `BAREWIRE_NO_SKIPS=1`.

use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::run::{cargo, no_more, quietly, visibly};
use crate::{deny, fuzz, package, space, test};

/// Inputs per fuzz target: enough to run its corpus and find shallow bugs in seconds.
const FUZZ_INPUTS: u64 = 20_000;

/// Runs the task.
pub fn run(args: &[String]) -> Result<ExitCode> {
    no_more(args)?;
    space::check()?;
    let (mut failures, mut skips) = (Vec::new(), Vec::new());
    let mut step = |name: &str, result: Result<Ran>| match result {
        Ok(Ran::Whole) => {}
        Ok(Ran::Skipped(why)) => {
            let line = format!("SKIPPED: {name}: {why}");
            eprintln!("{line}");
            if is_strict() {
                failures.push(format!(
                    "{name} was skipped, and {STRICT_VAR} is set: {why}"
                ));
            }
            skips.push(line);
        }
        Err(error) => {
            eprintln!("error: {name}: {error:#}");
            failures.push(format!("{name}: {error:#}"));
        }
    };
    step(
        "format",
        with_component("fmt", &["fmt", "--all", "--check"], None),
    );
    let clippy = [
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ];
    step("lints", with_component("clippy", &clippy, None));
    let doc = [
        "doc",
        "--quiet",
        "--workspace",
        "--no-deps",
        "--document-private-items",
    ];
    step(
        "docs",
        with_component("doc", &doc, Some(("RUSTDOCFLAGS", "-D warnings"))),
    );
    // In addition to the lints, whose build this check of the command reuses.
    step("packages", package::verify_crates().map(|()| Ran::Whole));
    step("dependencies", deny::check().map(|()| Ran::Whole));
    step("fuzz", fuzz::smoke(FUZZ_INPUTS));
    let (tests, sum) = test::run_after(&[], skips)?;
    // After the tests, whose programs and builds it uses.
    if let Err(error) = test::dead::step() {
        eprintln!("error: tests with a dead program: {error:#}");
        failures.push(format!("tests with a dead program: {error:#}"));
    }
    // Again, since pages of test results are in between.
    failures
        .iter()
        .for_each(|failure| eprintln!("error: {failure}"));
    println!("{sum}");
    Ok(match failures.is_empty() {
        true => tests,
        false => ExitCode::FAILURE,
    })
}

/// As in `skip::STRICT_VAR`.
const STRICT_VAR: &str = "BAREWIRE_NO_SKIPS";

fn is_strict() -> bool {
    std::env::var_os(STRICT_VAR).is_some_and(|value| !value.is_empty())
}

/// How a check ran that has not failed.
pub enum Ran {
    Whole,
    /// Not at all, for this reason.
    Skipped(String),
}

/// Runs a cargo subcommand that is a component of the toolchain; if it is missing, it is skipped (a
/// Rust that is not from rustup may lack it).
fn with_component(name: &str, args: &[&str], env: Option<(&str, &str)>) -> Result<Ran> {
    if !has_component(name) {
        let why = format!("this toolchain does not have cargo {name}");
        return Ok(Ran::Skipped(why));
    }
    visibly(cargo().args(args).envs(env)).map(|()| Ran::Whole)
}

fn has_component(name: &str) -> bool {
    let mut command: Command = cargo();
    quietly(command.args([name, "--help"])).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_components_are_skips() {
        let ran = with_component("no-such-component", &["no-such-component"], None).unwrap();
        let Ran::Skipped(why) = ran else {
            panic!("it ran");
        };
        assert!(why.contains("cargo no-such-component"), "{why}");
        assert_eq!(STRICT_VAR, skip::STRICT_VAR);
    }

    #[test]
    fn installed_components_are_found() {
        assert!(has_component("doc"));
        assert!(!has_component("no-such-component"));
    }
}
