//! `cargo xtask bench`: the benchmarks of `dev/bench`, built in the release profile.

use std::process::ExitCode;

use anyhow::Result;

use crate::run::{cargo, visibly};
use crate::setup::{Set, ensure};

/// Runs the task.
pub fn run(args: &[String]) -> Result<ExitCode> {
    if let Err(error) = ensure(&[Set::Bench]) {
        // The bench itself skips missing baselines.
        eprintln!("warning: {error:#}");
    }
    // The baselines alternate with this binary, which cargo would not build with the bench.
    let build = ["build", "--release", "--quiet", "--package", "barewire-cli"];
    visibly(cargo().args(build))?;
    let run = [
        "run",
        "--release",
        "--quiet",
        "--package",
        "barewire-bench",
        "--",
    ];
    visibly(cargo().args(run).args(args))?;
    Ok(ExitCode::SUCCESS)
}
