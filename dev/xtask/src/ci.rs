//! `cargo xtask ci`: the checks of CI, also for contributors before they send work.
//!
//! Cheap checks come first; the tests come last. The last lines are their summary and the checks
//! that failed.

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
    let mut failures = Vec::new();
    let mut step = |name: &str, result: Result<()>| {
        if let Err(error) = result {
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
    step("packages", package::verify_crates());
    step("dependencies", deny::check());
    step("fuzz", fuzz::smoke(FUZZ_INPUTS));
    let tests = test::run(&[])?;
    step("tests with a dead program", test::dead::step());
    if !failures.is_empty() {
        // Again, since pages of test results are in between.
        failures
            .iter()
            .for_each(|failure| eprintln!("error: {failure}"));
        return Ok(ExitCode::FAILURE);
    }
    Ok(tests)
}

/// Runs a cargo subcommand that is a component of the toolchain; if it is missing, it is skipped
/// with a message (a Rust that is not from rustup may lack it).
fn with_component(name: &str, args: &[&str], env: Option<(&str, &str)>) -> Result<()> {
    if !has_component(name) {
        eprintln!("SKIPPED: cargo {name}: this toolchain does not have it");
        return Ok(());
    }
    visibly(cargo().args(args).envs(env))
}

fn has_component(name: &str) -> bool {
    let mut command: Command = cargo();
    quietly(command.args([name, "--help"])).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installed_components_are_found() {
        assert!(has_component("doc"));
        assert!(!has_component("no-such-component"));
    }
}
