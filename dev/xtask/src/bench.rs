//! `cargo xtask bench`: the benchmarks of `dev/bench`, built as users get them.

use std::process::ExitCode;

use anyhow::Result;

use crate::run::{cargo, visibly};
use crate::setup::{Set, ensure};

/// The task: see the module.
pub fn run(args: &[String]) -> Result<ExitCode> {
    if let Err(error) = ensure(&[Set::Bench]) {
        // Rivals that are not there are left out of the picture by the bench itself.
        eprintln!("warning: {error:#}");
    }
    // The rivals alternate with this binary, which cargo would not build with the bench.
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
