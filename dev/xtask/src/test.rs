//! `cargo xtask test`: runs every test of the workspace, and prints a correct summary at the end.
//!
//! libtest counts a test that skipped itself as passed; here it is counted as skipped.

mod alone;
pub mod dead;
mod follow;
mod guest;
pub mod history;
mod output;
mod reduced;
mod tally;
mod times;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::lab;
use crate::run::{cargo, target_dir};
use crate::setup::{Set, ensure};
use crate::space;
use follow::{Waits, follow};
use guest::{Guest, in_guest};
use output::without_colour;
use reduced::{Reduced, is_reduced};
pub use tally::Sum;
use tally::Tally;
use times::Times;

/// How long a process that outlives its test may hold the output open before it is reported and the
/// run continues.
const GRACE: Duration = Duration::from_secs(10);

/// Time without output after which the running suite is killed: the longest test, several times
/// over. A test that hangs is a failure of its suite and not of the whole run.
const SILENCE: Duration = Duration::from_secs(900);

/// How a line in the file of skips starts that names a body of a child process, as
/// `skip::CHILD_PREFIX`.
pub const CHILD_PREFIX: &str = "CHILD: ";

/// Runs the task.
pub fn run(args: &[String]) -> Result<ExitCode> {
    if args.first().is_some_and(|arg| arg == "dead") {
        return dead::run(&args[1..]);
    }
    let (code, sum) = run_after(args, Vec::new())?;
    println!("{sum}");
    Ok(code)
}

/// Runs the task after other steps, of which these were skipped: one line each, which count as
/// skips. Returns the exit code and the sum of the tests, which the caller prints last.
pub fn run_after(args: &[String], mut not_run: Vec<String>) -> Result<(ExitCode, String)> {
    let factor = times::factor()?;
    if let Err(error) = ensure(&[Set::Test]) {
        // Tests with missing requirements skip themselves, each by name.
        eprintln!("warning: {error:#}\nwarning: going on; tests will be skipped");
    }
    if args.is_empty() {
        space::check()?;
    }
    let skips_file = skips_file()?;
    let programs = build(args)?;
    // Only when everything is run, not a package or test by name. QEMU uses one processor, the
    // tests the other.
    let guest = args.is_empty().then(Guest::start);
    let mut tally = Tally::new(Times::new(threads(args), factor));
    let (status, mut warnings) = tests(args, &skips_file, &programs, &mut tally)?;
    for error in tally.end(status.success(), Instant::now()) {
        eprintln!("{error}");
    }
    let reasons = tally.reasons();
    let Tally {
        mut sum,
        times,
        failed,
        ..
    } = tally;
    if !status.success() && sum.failed == 0 {
        // A build error.
        eprintln!("error: cargo test ended with {status} and no failed test: counted as one");
        sum.failed = 1;
    }
    // QEMU has ended when the result of the guest is known.
    let guest = guest.map(Guest::end);
    let mut retries = Vec::new();
    if args.is_empty() {
        let skips_file = skips_file.as_os_str();
        retries = alone::run_again(&failed, skips_file, &programs, &mut sum);
        let passed = retries.iter().filter(|retry| retry.has_passed);
        warnings.extend(passed.map(alone::warning));
    }
    let (mut skips, reduced) = take_skips(&skips_file, &mut sum)?;
    let guest = match guest {
        Some(guest) => in_guest(guest, &mut sum, &mut skips),
        None => lab::Sum::default(),
    };
    skips.sort();
    not_run.extend(guest.not_run);
    if !skips.is_empty() || !not_run.is_empty() || reduced.tests != 0 {
        println!("\nNot everything was tested here:");
        for skip in skips.iter().chain(&not_run).chain(&reduced.lines) {
            println!("  {skip}");
        }
    }
    retries.extend(guest.warnings.iter().filter_map(|line| guest::retry(line)));
    match history::update(&retries) {
        Ok(report) if report.is_empty() => {}
        Ok(report) => println!("\n{report}"),
        Err(error) => warnings.push(format!("WARNING: {error:#}")),
    }
    println!("\n{}\n{reasons}", times.report());
    let (slow, errors) = times.over();
    warnings.extend(guest.warnings);
    for line in warnings.iter().chain(&slow).chain(&errors) {
        println!("{line}\n");
    }
    // A suite far over its budget is one more failure.
    sum.failed += errors.len() as u64;
    let code = if sum.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    };
    let line = sum.line(skips.len(), not_run.len());
    Ok((code, format!("{line}{}", reduced.words())))
}

/// Runs the tests of this machine, prints and counts their output. Returns how cargo ended, and
/// errors to report at the end.
fn tests(
    args: &[String],
    skips_file: &PathBuf,
    programs: &[(&str, PathBuf)],
    tally: &mut Tally,
) -> Result<(ExitStatus, Vec<String>)> {
    // Both streams in one pipe, or lines could not be assigned to suites.
    let (output, input) = std::io::pipe().context("a pipe")?;
    let mut command = cargo();
    command.arg("test").args(cargo_args(args));
    command
        .env("BAREWIRE_SKIPS", skips_file)
        .envs(programs.iter().map(|(name, path)| (name, path)))
        // By this variable tests know that they are in the guest.
        .env_remove("BAREWIRE_GUEST")
        .stdout(input.try_clone().context("a pipe")?)
        .stderr(input);
    if std::io::stdout().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    let mut child = command.spawn().context("cannot run cargo test")?;
    // It holds the pipe open.
    drop(command);
    let mut stdout = std::io::stdout().lock();
    let waits = Waits {
        grace: GRACE,
        silence: SILENCE,
    };
    let end = follow(&mut child, output, waits, |line| {
        stdout.write_all(line)?;
        stdout.write_all(b"\n")?;
        let line = without_colour(&String::from_utf8_lossy(line));
        tally.add(&line, Instant::now());
        Ok(())
    })?;
    stdout.flush()?;
    let warnings = end.holders.iter().map(|process| {
        format!("WARNING: a process outlived its test and holds the output open: {process}")
    });
    let killed = end.killed.iter().map(|process| {
        format!(
            "WARNING: nothing was printed for {} s: killed {process}",
            SILENCE.as_secs()
        )
    });
    Ok((end.status, warnings.chain(killed).collect()))
}

/// What tests start or load, by the variable that names it to them.
const PROGRAMS: [(&str, &str); 3] = [
    ("BAREWIRE_BIN", "barewire"),
    ("BAREWIRE_LIBPCAP", "libpcap.so"),
    ("BAREWIRE_LIBPFRING", "libpfring.so"),
];

/// Builds everything that will run, with cargo's progress. Returns the programs that were built,
/// for the tests.
fn build(args: &[String]) -> Result<Vec<(&'static str, PathBuf)>> {
    let own = args.iter().position(|arg| arg == "--");
    let own = &args[..own.unwrap_or(args.len())];
    // Doc tests are built when they run.
    if own.iter().any(|arg| arg == "--doc") {
        return Ok(Vec::new());
    }
    let arguments = cargo_args(own);
    let is_all = arguments.iter().any(|arg| arg == "--workspace");
    let mut command = cargo();
    command.args(["test", "--no-run"]).args(arguments);
    // Build errors are reported, and counted, by the run.
    let _ = command.status().context("cannot run cargo")?;
    if !is_all {
        return Ok(Vec::new());
    }
    let mut command = cargo();
    command.args([
        "build",
        "--workspace",
        "--bin",
        "barewire",
        "--examples",
        "--lib",
    ]);
    let is_built = command.status().context("cannot run cargo")?.success();
    // With options, such as another profile, they are somewhere else.
    if !is_built || !own.is_empty() {
        return Ok(Vec::new());
    }
    // A test that asked cargo for them would wait until the guest lab, which builds meanwhile, lets
    // go of the build directory.
    let folder = target_dir()?.join("debug");
    let is_own = |name: &str| std::env::var_os(name).is_none();
    let programs = PROGRAMS.iter().filter(|(name, _)| is_own(name));
    let programs = programs.map(|&(name, file)| (name, folder.join(file)));
    Ok(programs.filter(|(_, path)| path.is_file()).collect())
}

/// The number of tests that run at once, as libtest determines it.
fn threads(args: &[String]) -> usize {
    let mut args = args.iter();
    let mut reported = std::env::var("RUST_TEST_THREADS").ok();
    while let Some(arg) = args.next() {
        if let Some(rest) = arg.strip_prefix("--test-threads") {
            let value = rest.strip_prefix('=').map(str::to_owned);
            reported = value.or_else(|| args.next().cloned());
        }
    }
    let own = || std::thread::available_parallelism().map_or(1, usize::from);
    reported
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(own)
}

/// Arguments for cargo: all packages unless some are named, and all failures, not just the first.
fn cargo_args(args: &[String]) -> Vec<String> {
    let own = args
        .iter()
        .position(|arg| arg == "--")
        .unwrap_or(args.len());
    let named = args[..own].iter().any(|arg| {
        let short = arg.starts_with("-p") && !arg.starts_with("--");
        short || arg == "--workspace" || arg.starts_with("--package") || arg == "--manifest-path"
    });
    let mut all = Vec::new();
    if !named {
        all.push("--workspace".to_owned());
    }
    if !args[..own].iter().any(|arg| arg == "--no-fail-fast") {
        all.push("--no-fail-fast".to_owned());
    }
    all.extend_from_slice(args);
    all
}

/// An empty file to which tests append their skips; an absolute path, because each test binary runs
/// in the directory of its package.
fn skips_file() -> Result<PathBuf> {
    let path = target_dir()?.join(format!("skips-{}", std::process::id()));
    std::fs::write(&path, "").with_context(|| path.display().to_string())?;
    Ok(path)
}

/// The skips in the file, which is removed. Bodies of child processes, which pass without testing
/// anything when they are not in a child, are subtracted from the sum.
fn take_skips(skips_file: &PathBuf, sum: &mut Sum) -> Result<(Vec<String>, Reduced)> {
    let text = std::fs::read_to_string(skips_file).context("the file of skips")?;
    let _ = std::fs::remove_file(skips_file);
    let (bodies, skips): (Vec<&str>, Vec<&str>) = text
        .lines()
        .partition(|line| line.starts_with(CHILD_PREFIX));
    sum.passed = sum.passed.saturating_sub(bodies.len() as u64);
    let (reduced, skips): (Vec<_>, Vec<_>) = skips.into_iter().partition(|line| is_reduced(line));
    let skips = skips.into_iter().map(str::to_owned).collect();
    Ok((skips, Reduced::of(&reduced)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_of_children_are_neither_passed_nor_skipped() {
        assert_eq!(CHILD_PREFIX, skip::CHILD_PREFIX);
        let name = format!("barewire-skips-{}", std::process::id());
        let file = std::env::temp_dir().join(name);
        let text = "CHILD: a::child_reads\nSKIPPED: a::b: needs root\nCHILD: b::child\n\
                    REDUCED: a::c: ran on 4 of 700 captures\n";
        std::fs::write(&file, text).unwrap();
        let mut sum = Sum {
            passed: 10,
            failed: 1,
        };
        let (skips, reduced) = take_skips(&file, &mut sum).unwrap();
        assert_eq!(reduced.tests, 1);
        assert_eq!(skips, ["SKIPPED: a::b: needs root"]);
        assert!(!file.exists());
        // A step that was skipped before is not among the passed ones.
        assert_eq!(sum.line(skips.len(), 1), "7 passed, 1 failed, 2 skipped");
    }

    #[test]
    fn threads_are_those_of_libtest() {
        let run = |text: &str| {
            let args: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
            threads(&args)
        };
        assert_eq!(run("-p x -- --test-threads=3"), 3);
        assert_eq!(run("-p x -- --test-threads 1 --nocapture"), 1);
        assert!(run("") >= 1);
    }

    #[test]
    fn packages_named_replace_the_workspace() {
        let run = |text: &str| {
            let args: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
            cargo_args(&args).join(" ")
        };
        assert_eq!(run(""), "--workspace --no-fail-fast");
        assert_eq!(
            run("-p barewire-wire udp"),
            "--no-fail-fast -p barewire-wire udp"
        );
        assert_eq!(run("udp -- -p"), "--workspace --no-fail-fast udp -- -p");
    }
}
