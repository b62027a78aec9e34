//! Runs failed lab tests once more, alone.
//!
//! Lab tests start real programs and exchange packets with them, two tests at once and beside QEMU.
//! On a busy machine a program may get no processor for a minute, and its test fails. A test that
//! passes on the idle machine is named in a warning and does not fail the run.

use std::ffi::OsStr;
use std::path::PathBuf;

use super::history::Retry;
use super::{Sum, cargo_args};
use crate::run::cargo;

/// The suites of lab tests.
const SUITES: [&str; 2] = ["all", "guest"];

/// Maximum number of failed tests that are run again; more have a reason other than the load.
const TESTS_MAX: usize = 3;

/// Runs the tests of [`SUITES`] among these (suite, name) again, and corrects the sum. Returns
/// those that were run.
pub fn run_again(
    failed: &[(String, String)],
    skips_file: &OsStr,
    programs: &[(&str, PathBuf)],
    sum: &mut Sum,
) -> Vec<Retry> {
    let is_lab = |suite: &str| SUITES.contains(&suite);
    let failed: Vec<_> = failed.iter().filter(|(suite, _)| is_lab(suite)).collect();
    if failed.len() > TESTS_MAX {
        return Vec::new();
    }
    let mut retries = Vec::new();
    for (suite, name) in failed {
        println!("\nOnce more, alone: {suite} {name}");
        let args = ["--test", suite, "--", "--exact", name].map(str::to_owned);
        let mut command = cargo();
        command
            .arg("test")
            .args(cargo_args(&args))
            .env("BAREWIRE_SKIPS", skips_file)
            .envs(programs.iter().map(|(name, path)| (name, path)))
            .env_remove("BAREWIRE_GUEST");
        let has_passed = command.status().is_ok_and(|status| status.success()) && sum.failed > 0;
        if has_passed {
            sum.failed -= 1;
            sum.passed += 1;
        }
        retries.push(Retry {
            name: format!("{suite} {name}"),
            has_passed,
        });
    }
    retries
}

/// The warning about a test that passed when it was run again.
pub fn warning(retry: &Retry) -> String {
    let name = &retry.name;
    format!("WARNING: {name} failed beside other tests and passed alone")
}
