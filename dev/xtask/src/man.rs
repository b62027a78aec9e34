//! `cargo xtask man`: man pages and shell completions, for packagers.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::run::{cargo, no_more, quietly, target_dir, visibly};

/// Shells, and the file names under which they look for completions.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "barewire.bash"),
    ("zsh", "_barewire"),
    ("fish", "barewire.fish"),
];

/// Runs the task.
pub fn run(args: &[String]) -> Result<ExitCode> {
    let (directory, rest) = match args.split_first() {
        Some((directory, rest)) => (PathBuf::from(directory), rest),
        None => (target_dir()?.join("man"), args),
    };
    no_more(rest)?;
    // cargo runs at the root of the repository, this process perhaps elsewhere.
    let directory = std::path::absolute(directory)?;
    let barewire = ["run", "--quiet", "--package", "barewire-cli", "--"];
    visibly(cargo().args(barewire).arg("man").arg(&directory))?;
    for (shell, file) in COMPLETIONS {
        let script = quietly(cargo().args(barewire).args(["completions", shell]))?;
        let path = directory.join(file);
        std::fs::write(&path, script).with_context(|| path.display().to_string())?;
    }
    println!("{}", directory.display());
    Ok(ExitCode::SUCCESS)
}
