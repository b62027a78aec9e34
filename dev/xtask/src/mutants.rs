//! `cargo xtask mutants`: checks whether a test fails when the code is changed.
//!
//! cargo-mutants makes the changes and runs the tests of the crate. There are thousands of mutants
//! per crate, each of which is a build, so a sample is taken, the same for the same seed. The
//! results are recorded in docs/mutants.md.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::run::{cargo, no_more, quietly, take_option, target_dir, which};

/// Crates that are sampled by default.
const CRATES: [&str; 8] = [
    "wire", "bpf", "flow", "inspect", "guard", "ring", "export", "runtime",
];

/// Default number of mutants per crate.
const SAMPLE: usize = 30;

/// Minimum seconds for the tests before a mutant counts as a timeout; five times their usual time
/// if that is more.
const TIMEOUT_MIN: u64 = 120;

/// Exit codes of cargo-mutants: all caught, some missed, some timed out. Others are failures.
const DONE: [i32; 3] = [0, 2, 3];

/// Runs the task.
pub fn run(args: &[String]) -> Result<ExitCode> {
    let mut args = args.to_vec();
    let mut number = |name: &str, default: u64| -> Result<u64> {
        let text = take_option(&mut args, name)?;
        text.map_or(Ok(default), |text| {
            text.parse().with_context(|| format!("{name} {text}"))
        })
    };
    let (sample, seed) = (number("--sample", SAMPLE as u64)?, number("--seed", 1)?);
    let is_option = |arg: &&String| arg.starts_with('-');
    no_more(&args.iter().filter(is_option).cloned().collect::<Vec<_>>())?;
    if which("cargo-mutants").is_none() {
        bail!("cargo-mutants is not installed\nhint: cargo install cargo-mutants --locked");
    }
    let names: Vec<&str> = match args.is_empty() {
        true => CRATES.to_vec(),
        false => args
            .iter()
            .map(|arg| arg.trim_start_matches("barewire-"))
            .collect(),
    };
    let mut report = String::from(HEAD);
    let mut survivors = String::new();
    for name in names {
        let package = format!("barewire-{name}");
        let all = list(&package)?;
        let chosen = choose(&all, usize::try_from(sample)?, seed);
        eprintln!(
            "mutants: {} of {} of {package}, seed {seed}",
            chosen.len(),
            all.len()
        );
        let dir = target_dir()?.join("mutants").join(name);
        let outcomes = test(&package, &chosen, &dir)?;
        let (row, missed) = summary(name, &chosen, (all.len(), seed), &outcomes)?;
        println!("{row}");
        report += &format!("{row}\n");
        survivors += &missed;
    }
    println!("\n{report}\nNot noticed:\n\n{survivors}");
    Ok(ExitCode::SUCCESS)
}

/// The header of the table, as in docs/mutants.md.
const HEAD: &str = "\
| crate | mutants | seed | tried | caught | timeout | missed | unviable | noticed |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
";

/// The names of all mutants of a package.
fn list(package: &str) -> Result<Vec<String>> {
    let text = quietly(cargo().args(["mutants", "--list", "--json", "--package", package]))?;
    let list: Value = serde_json::from_str(&text).context("the list of cargo-mutants")?;
    let list = list.as_array().context("the list of cargo-mutants")?;
    let names = list
        .iter()
        .map(|mutant| mutant["name"].as_str().map(str::to_owned));
    let names: Option<Vec<_>> = names.collect();
    let names = names.context("a mutant without a name")?;
    ensure!(!names.is_empty(), "{package} has no mutants");
    Ok(names)
}

/// Selects `count` entries of a list, the same for the same seed, in the order of the list.
fn choose(all: &[String], count: usize, seed: u64) -> Vec<&String> {
    let mut state = seed;
    // SplitMix64 (Steele, Lea, Flood 2014).
    let mut random = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    };
    let mut indices: Vec<usize> = (0..all.len()).collect();
    let count = count.min(all.len());
    for at in 0..count {
        let left = (all.len() - at) as u64;
        indices.swap(at, at + (random() % left) as usize);
    }
    indices.truncate(count);
    indices.sort_unstable();
    indices.into_iter().map(|index| &all[index]).collect()
}

/// Runs the tests of a package with each of these mutants; returns the results of cargo-mutants.
fn test(package: &str, mutants: &[&String], dir: &Path) -> Result<Value> {
    std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let mut command = cargo();
    command.args([
        "mutants",
        "--package",
        package,
        "--jobs",
        "1",
        "--no-shuffle",
    ]);
    command.args(["--minimum-test-timeout", &TIMEOUT_MIN.to_string()]);
    command
        .args(["--timeout-multiplier", "5", "--output"])
        .arg(dir);
    for mutant in mutants {
        command.arg(format!("--re=^{}$", escaped(mutant)));
    }
    let status = command.status().context("cannot run cargo mutants")?;
    let is_done = status.code().is_some_and(|code| DONE.contains(&code));
    ensure!(
        is_done,
        "cargo mutants ended with {status}; logs are in {}",
        dir.display()
    );
    let file = dir.join("mutants.out/outcomes.json");
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    serde_json::from_str(&text).with_context(|| file.display().to_string())
}

/// A regular expression that matches only this text.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        // Not all punctuation: `\<` is the start of a word.
        if r"\.+*?()|[]{}^$".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// The row of a crate that has `all` mutants, and the mutants that no test caught.
///
/// Only selected mutants count: cargo-mutants 27.1 runs all that delete a field, regardless of
/// `--re`.
fn summary(
    name: &str,
    chosen: &[&String],
    (all, seed): (usize, u64),
    outcomes: &Value,
) -> Result<(String, String)> {
    let list = outcomes["outcomes"].as_array().context("no outcomes")?;
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let mut missed = String::new();
    for outcome in list {
        let Some(mutant) = outcome["scenario"]["Mutant"]["name"].as_str() else {
            // The tests without any change.
            continue;
        };
        if !chosen.iter().any(|name| *name == mutant) {
            continue;
        }
        let word = outcome["summary"]
            .as_str()
            .context("an outcome without a summary")?;
        *counts.entry(word).or_default() += 1;
        if word == "MissedMutant" {
            missed += &format!("- `{mutant}`\n");
        }
    }
    let of = |word: &str| counts.get(word).copied().unwrap_or_default();
    let [caught, timeout] = ["CaughtMutant", "Timeout"].map(of);
    let [lost, unviable] = ["MissedMutant", "Unviable"].map(of);
    let tried: u64 = counts.values().sum();
    ensure!(
        caught + timeout + lost + unviable == tried,
        "outcomes that are not known: {counts:?}"
    );
    // A change with which the tests do not end is caught; one that does not build is not a mutant.
    let ratio = match caught + timeout + lost {
        0 => "-".to_owned(),
        viable => format!("{} %", 100 * (caught + timeout) / viable),
    };
    let counts = format!("{tried} | {caught} | {timeout} | {lost} | {unviable}");
    let row = format!("| {name} | {all} | {seed} | {counts} | {ratio} |");
    Ok((row, missed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_the_same_for_the_same_seed() {
        let all: Vec<String> = (0..1000).map(|n: u32| format!("{n:04}")).collect();
        let one = choose(&all, 20, 1);
        assert_eq!(one, choose(&all, 20, 1));
        assert_ne!(one, choose(&all, 20, 2));
        assert_eq!(one.len(), 20);
        assert!(one.is_sorted() && one.windows(2).all(|pair| pair[0] != pair[1]));
        assert_eq!(
            choose(&all[..3], 20, 1),
            all[..3].iter().collect::<Vec<_>>()
        );
        // From the whole list.
        let (low, high) = (one[0].as_str(), one[19].as_str());
        assert!(low < "0400" && high > "0600", "{one:?}");
    }

    #[test]
    fn names_of_mutants_are_matched_literally() {
        let name = "pure/bpf/src/asm.rs:46:9: replace f -> Result<()> with Ok(\"a+b\")";
        let expected = r#"pure/bpf/src/asm\.rs:46:9: replace f -> Result<\(\)> with Ok\("a\+b"\)"#;
        assert_eq!(escaped(name), expected);
    }

    #[test]
    fn outcomes_are_summed_and_missed_mutants_named() {
        let outcome = |name: &str, word: &str| {
            let scenario = serde_json::json!({ "Mutant": { "name": name } });
            serde_json::json!({ "scenario": scenario, "summary": word })
        };
        let mut outcomes = serde_json::json!({"outcomes": [
            {"scenario": "Baseline", "summary": "Success"},
            outcome("a", "CaughtMutant"),
            outcome("b", "MissedMutant"),
            outcome("c", "Timeout"),
            outcome("d", "Unviable"),
            outcome("not chosen", "MissedMutant"),
        ]});
        let names = ["a", "b", "c", "d", "e"].map(str::to_owned);
        let chosen: Vec<&String> = names.iter().collect();
        let (row, missed) = summary("wire", &chosen, (99, 7), &outcomes).unwrap();
        assert_eq!(row, "| wire | 99 | 7 | 4 | 1 | 1 | 1 | 1 | 66 % |");
        assert_eq!(missed, "- `b`\n");
        let columns = |line: &str| line.matches('|').count();
        assert!(HEAD.lines().all(|line| columns(line) == columns(&row)));
        outcomes["outcomes"][0] = outcome("e", "Exploded");
        assert!(summary("wire", &chosen, (99, 7), &outcomes).is_err());
    }
}
