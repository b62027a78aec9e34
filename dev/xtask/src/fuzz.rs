//! `cargo xtask fuzz`: libFuzzer with AddressSanitizer over the targets of `fuzz/`.
//!
//! The targets are built with the compiler flags that cargo-fuzz would use, so that only a nightly
//! toolchain has to be installed. New inputs go to a directory of the build; the committed corpora
//! (which ordinary tests replay) are only read.
//!
//! CI runs few inputs, the same for each commit. `--long` is for a machine that has a night: every
//! target for ten minutes, with the date as the seed, so that each day tries something else and a
//! day can be repeated.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::ci::Ran;
use crate::run::{no_more, quietly, root, take_flag, take_option, visibly, which};
use crate::test::history::date;

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

/// Seconds for each target, and with `--long`.
const SECONDS: u64 = 60;
const SECONDS_LONG: u64 = 600;

/// Runs the task.
pub fn run(args: &[String]) -> Result<ExitCode> {
    let mut args = args.to_vec();
    let length = length(&mut args, &today())?;
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
    fuzz(wanted, &length)?;
    Ok(ExitCode::SUCCESS)
}

/// Takes the options of the length from the arguments.
fn length(args: &mut Vec<String>, today: &str) -> Result<Length> {
    let is_long = take_flag(args, "--long");
    let number = |name: &str, text: Option<String>| -> Result<Option<u64>> {
        let parse = |text: String| text.parse().with_context(|| format!("{name} {text}"));
        text.map(parse).transpose()
    };
    let seconds = number("--seconds", take_option(args, "--seconds")?)?;
    let seed = number("--seed", take_option(args, "--seed")?)?;
    Ok(match is_long {
        true => Length::Long {
            seconds: seconds.unwrap_or(SECONDS_LONG),
            seed: match seed {
                Some(seed) => seed,
                None => today.replace('-', "").parse().context("the date")?,
            },
        },
        false if seed.is_some() => bail!("--seed is for --long"),
        false => Length::Seconds(seconds.unwrap_or(SECONDS)),
    })
}

/// The date, in UTC.
fn today() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    date(now.map_or(0, |since| since.as_secs()))
}

/// Fuzzes every target with `inputs` inputs that are the same in every run: those of the committed
/// corpus, and what libFuzzer derives from them with a fixed seed. So a commit always passes or
/// never does. If fuzzing is not possible, it is skipped.
pub fn smoke(inputs: u64) -> Result<Ran> {
    if let Some(missing) = missing() {
        return Ok(Ran::Skipped(missing.to_owned()));
    }
    fuzz(&targets()?, &Length::Inputs(inputs))?;
    Ok(Ran::Whole)
}

/// How long a target is fuzzed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    /// Seconds, seeded by the clock, and with the findings of earlier runs.
    Seconds(u64),
    /// Seconds, with this seed and from the committed inputs alone: what is found can be repeated
    /// as far as the speed of the machine allows. A target that fails does not end the run.
    Long { seconds: u64, seed: u64 },
    /// A number of inputs, the same in every run of a commit.
    Inputs(u64),
}

impl Length {
    /// The arguments for libFuzzer. It writes its findings to the first directory that it is given,
    /// so the committed inputs must never be that.
    fn args(&self) -> Vec<String> {
        match self {
            Length::Seconds(seconds) => vec![format!("-max_total_time={seconds}")],
            Length::Long { seconds, seed } => vec![
                format!("-max_total_time={seconds}"),
                // libFuzzer's seeds have 32 bits, and 0 stands for the clock.
                format!("-seed={}", (seed % u64::from(u32::MAX)).max(1)),
            ],
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
    if let Length::Long { seconds, seed } = length {
        eprintln!("fuzz: {seconds} s for each target; to repeat it: --long --seed {seed}");
    }
    let mut failures = Vec::new();
    for target in targets {
        match one(target, length, &host) {
            Err(error) if matches!(length, Length::Long { .. }) => {
                eprintln!("error: {error:#}");
                failures.push(format!("{error:#}"));
            }
            result => result?,
        }
    }
    if !failures.is_empty() {
        bail!(
            "{} targets failed:\n{}",
            failures.len(),
            failures.join("\n")
        );
    }
    Ok(())
}

/// Fuzzes a target that is built.
fn one(target: &str, length: &Length, host: &str) -> Result<()> {
    let fuzz = root().join("fuzz");
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
    let binary = fuzz.join("target").join(host).join("release").join(target);
    let first = match length {
        Length::Seconds(_) => &found,
        Length::Long { .. } | Length::Inputs(_) => &fresh,
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
        .with_context(|| format!("target {target}: the input is in {}", artifacts.display()))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (Result<Length>, Vec<String>) {
        let mut args: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        (length(&mut args, "2026-11-28"), args)
    }

    #[test]
    fn the_seed_of_a_long_run_is_the_date_or_as_requested() {
        for (text, seconds, seed) in [
            ("--long", SECONDS_LONG, 20_261_128),
            ("--long --seconds 5", 5, 20_261_128),
            ("dissect --long --seed=7", SECONDS_LONG, 7),
        ] {
            let (length, left) = parsed(text);
            let length = length.unwrap();
            assert_eq!(length, Length::Long { seconds, seed }, "{text}");
            assert_eq!(left.len(), usize::from(text.starts_with("dissect")));
            let args = [
                format!("-max_total_time={seconds}"),
                format!("-seed={seed}"),
            ];
            assert_eq!(length.args(), args);
        }
        assert_eq!(parsed("").0.unwrap(), Length::Seconds(SECONDS));
        assert_eq!(parsed("--seconds 9 p0f").0.unwrap(), Length::Seconds(9));
        assert!(parsed("--seed 7").0.is_err());
        assert!(parsed("--long --seconds many").0.is_err());
        assert!(Length::Inputs(5).args().contains(&"-seed=1".to_owned()));
    }
}
