//! The programs that the guest runs: built as `cargo xtask test` builds them, so that nothing is
//! built twice.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Options;
use crate::run::cargo;

/// Files by the name of program or test.
pub struct Programs(BTreeMap<String, PathBuf>);

impl Programs {
    /// The path of a program.
    pub fn get(&self, name: &str) -> Result<PathBuf> {
        let found = self.0.get(name).cloned();
        found.with_context(|| format!("cargo built nothing of the name {name}"))
    }
}

/// The test binary whose tests run in the guest.
pub const TESTS: &str = "guest";

/// Builds the command, and the tests if requested.
///
/// The whole workspace, of which only these are built: with a single package, its dependencies
/// would have other features than in a run of all tests, and be rebuilt.
pub fn programs(options: &Options, with_tests: bool) -> Result<Programs> {
    let mut builds = vec![vec!["build", "--workspace", "--bin", "barewire"]];
    if with_tests {
        builds.push(vec!["test", "--no-run", "--workspace", "--test", TESTS]);
    }
    eprintln!("lab: building");
    let mut programs = BTreeMap::new();
    for build in &builds {
        let mut command = cargo();
        command.args(build);
        if options.release {
            command.arg("--release");
        }
        let output = command
            .args(["--quiet", "--message-format=json"])
            .stderr(Stdio::inherit())
            .output()
            .context("cannot run cargo")?;
        ensure!(output.status.success(), "cargo {} failed", build.join(" "));
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let message: Value = serde_json::from_str(line).context("JSON of cargo")?;
            let name = message["target"]["name"].as_str();
            if let (Some(name), Some(file)) = (name, message["executable"].as_str()) {
                programs.insert(name.to_owned(), PathBuf::from(file));
            }
        }
    }
    Ok(Programs(programs))
}
