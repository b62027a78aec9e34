//! `cargo xtask fuzz`: libFuzzer with AddressSanitizer over the targets of `fuzz/`.
//!
//! The targets are built with the compiler flags that cargo-fuzz would use, so that only a nightly
//! toolchain has to be installed. New inputs go to a directory of the build; the committed corpora
//! (which ordinary tests replay) are only read.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::run::{no_more, quietly, root, take_option, visibly, which};

/// Coverage feedback for libFuzzer, AddressSanitizer, overflow checks and debug assertions, at the
/// speed of optimised code.
const FLAGS: &[&str] = &[
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Zsanitizer=address",
    "-Cdebug-assertions",
    "-Coverflow-checks",
    "-Ccodegen-units=1",
];

/// Runs the task.
pub fn run(args: &[String]) -> Result<ExitCode> {
    let mut args = args.to_vec();
    let seconds = match take_option(&mut args, "--seconds")? {
        Some(text) => text.parse().with_context(|| format!("--seconds {text}"))?,
        None => 60,
    };
    if let Some(missing) = missing() {
        bail!("{missing}");
    }
    let all = targets()?;
    let (wanted, unknown): (Vec<_>, Vec<_>) = args.into_iter().partition(|arg| all.contains(arg));
    if !unknown.is_empty() {
        eprintln!("targets: {}", all.join(", "));
    }
    no_more(&unknown)?;
    let wanted = if wanted.is_empty() { &all } else { &wanted };
    fuzz(wanted, &Length::Seconds(seconds))?;
    Ok(ExitCode::SUCCESS)
}

/// Fuzzes every target with `inputs` inputs that are the same in every run: those of the committed
/// corpus, and what libFuzzer derives from them with a fixed seed. So a commit always passes or
/// never does. If fuzzing is not possible, prints a message and succeeds.
pub fn smoke(inputs: u64) -> Result<()> {
    if let Some(missing) = missing() {
        eprintln!("SKIPPED: fuzz targets: {missing}");
        return Ok(());
    }
    fuzz(&targets()?, &Length::Inputs(inputs))
}

/// How long a target is fuzzed.
enum Length {
    /// Seconds, seeded by the clock, and with the findings of earlier runs.
    Seconds(u64),
    /// A number of inputs, the same in every run of a commit.
    Inputs(u64),
}

impl Length {
    /// The arguments for libFuzzer. It writes its findings to the first directory that it is given,
    /// so the committed inputs must never be that.
    fn args(&self) -> Vec<String> {
        match self {
            Length::Seconds(seconds) => vec![format!("-max_total_time={seconds}")],
            Length::Inputs(inputs) => vec!["-seed=1".into(), format!("-runs={inputs}")],
        }
    }
}

/// The reason why fuzzing is not possible here, if any.
fn missing() -> Option<&'static str> {
    if which("rustup").is_none() || quietly(nightly("rustc").arg("--version")).is_err() {
        return Some("needs a nightly toolchain (rustup toolchain install nightly)");
    }
    if which("c++").is_none() {
        return Some("needs a C++ compiler for libFuzzer (apt-get install g++)");
    }
    None
}

/// A program of the nightly toolchain. The variables that the pinned cargo sets for its children
/// are removed, or nightly's cargo would call the pinned compiler.
fn nightly(program: &str) -> Command {
    let mut command = Command::new("rustup");
    command
        .args(["run", "nightly", program])
        .current_dir(root().join("fuzz"));
    for variable in [
        "CARGO",
        "RUSTC",
        "RUSTDOC",
        "RUSTUP_TOOLCHAIN",
        "CARGO_TARGET_DIR",
    ] {
        command.env_remove(variable);
    }
    command
}

/// The names of all targets: every binary of the fuzz workspace.
fn targets() -> Result<Vec<String>> {
    // With an explicit path, or cargo would look for a workspace further up.
    let metadata = [
        "metadata",
        "--no-deps",
        "--format-version=1",
        "--manifest-path=Cargo.toml",
    ];
    let metadata: Value = serde_json::from_str(&quietly(nightly("cargo").args(metadata))?)?;
    let packages = metadata["packages"]
        .as_array()
        .context("packages of cargo metadata")?;
    let targets = packages
        .iter()
        .filter_map(|package| package["targets"].as_array())
        .flatten();
    let bins = targets.filter(|target| target["kind"][0] == "bin");
    let names: Vec<_> = bins
        .filter_map(|target| target["name"].as_str().map(str::to_owned))
        .collect();
    if names.is_empty() {
        bail!("fuzz/ has no targets");
    }
    Ok(names)
}

fn fuzz(targets: &[String], length: &Length) -> Result<()> {
    let host = host()?;
    // With --target the flags apply to the targets alone, not to build scripts.
    let build = [
        "build",
        "--quiet",
        "--release",
        "--manifest-path=Cargo.toml",
        "--target",
        &host,
    ];
    visibly(
        nightly("cargo")
            .env("RUSTFLAGS", FLAGS.join(" "))
            .args(build),
    )?;
    let fuzz = root().join("fuzz");
    for target in targets {
        let (found, committed) = (fuzz.join("target/corpus").join(target), corpus(target));
        let artifacts = fuzz.join("artifacts").join(target);
        // Emptied, so that every run of a commit starts with the committed inputs alone.
        let fresh = fuzz.join("target/smoke").join(target);
        if fresh.exists() {
            std::fs::remove_dir_all(&fresh).with_context(|| fresh.display().to_string())?;
        }
        for directory in [&found, &fresh, &artifacts] {
            std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        }
        let binary = fuzz.join("target").join(&host).join("release").join(target);
        let first = match length {
            Length::Seconds(_) => &found,
            Length::Inputs(_) => &fresh,
        };
        let mut command = Command::new(binary);
        command.args(length.args()).arg(first);
        command.arg(format!("-artifact_prefix={}/", artifacts.display()));
        // Limits of time (s) and memory (MiB) per input: a parser needs neither.
        command.args([
            "-timeout=10",
            "-rss_limit_mb=1024",
            "-print_final_stats=1",
            "-verbosity=0",
            "-print_funcs=0",
        ]);
        command.args(committed.is_dir().then_some(committed));
        visibly(&mut command)
            .with_context(|| format!("target {target}: the input is in {}", artifacts.display()))?;
    }
    Ok(())
}

/// The committed inputs of a target.
fn corpus(target: &str) -> PathBuf {
    root().join("fuzz/corpus").join(target)
}

/// The target triple of this machine.
fn host() -> Result<String> {
    let version = quietly(nightly("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_owned())
}
