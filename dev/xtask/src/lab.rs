//! `cargo xtask lab`: tests on real drivers and emulated cards, in a guest under QEMU.
//!
//! A veth pair has no DMA; zero-copy and drivers in user space cannot be tested on it. The guest
//! has an Intel 82576 (igb), 82540EM (e1000), 82574 (e1000e) and a virtio-net with several queues,
//! two of each connected by a wire, behind an emulated IOMMU. How to use it:
//! docs/guides/guest-lab.md.

mod accelerator;
pub mod apt;
mod build;
pub mod fetch;
mod guest;
mod initramfs;
mod look;
mod monitor;
mod own_root;
mod patience;
mod progress;
mod rounds;
mod stall;
mod suites;
pub mod ubuntu;
mod wire;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};

pub use self::rounds::{SECOND_FAILED, SECOND_PASSED};
pub use self::suites::Sum;
use self::suites::{SUITES, Suite};
use crate::run::{no_more, take_flag, take_option, target_dir};

/// Debian suite of the guest's default kernel: new enough for zero-copy on igb (Linux 6.14).
const KERNEL_SUITE: &str = "trixie-backports";

/// Default time limit of a command in the guest.
const COMMAND_LIMIT: Duration = Duration::from_secs(600);

/// How many guests are started for a command until one boots. (Suites: see [`rounds`].)
const BOOTS: u32 = 2;

/// The user's options besides the suites.
struct Options {
    kernel: String,
    accelerator: Option<String>,
    /// For each suite, or for the command.
    limit: Option<Duration>,
    keep_console: bool,
    release: bool,
    /// Without the workspace's programs, except those in `with`.
    bare: bool,
    machine: guest::Machine,
    /// More programs of this machine for the guest.
    with: Vec<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            kernel: KERNEL_SUITE.into(),
            accelerator: None,
            limit: None,
            keep_console: false,
            release: false,
            bare: false,
            machine: guest::Machine::default(),
            with: Vec::new(),
        }
    }
}

/// Runs the task.
pub fn run(args: &[String]) -> Result<ExitCode> {
    let own = args.iter().position(|arg| arg == "--");
    let (args, command) = match own {
        Some(at) => (&args[..at], Some(&args[at + 1..])),
        None => (args, None),
    };
    let mut args = args.to_vec();
    let options = options(&mut args)?;
    if take_flag(&mut args, "--list") {
        for suite in SUITES {
            println!("{:10} {}", suite.name, suite.summary);
        }
        return Ok(ExitCode::SUCCESS);
    }
    if args.first().is_some_and(|arg| arg == "run") {
        no_more(&args[1..])?;
        let command = command.filter(|words| !words.is_empty());
        let command = command.context("what to run? cargo xtask lab run -- CMD [ARGS]")?;
        return run_command(command, &options);
    }
    if args.first().is_some_and(|arg| arg == "boots") {
        let count = args.get(1).context("how often? cargo xtask lab boots 30")?;
        no_more(&args[2..])?;
        let count = count.parse();
        return run_boots(count.context("not a number of boots")?, &options);
    }
    if command.is_some() {
        bail!("a command behind -- is for `cargo xtask lab run`");
    }
    let sum_file = take_option(&mut args, "--sum")?;
    if take_flag(&mut args, "--usual") {
        no_more(&args)?;
        let sum = run_all(&options)?;
        // For the run of all tests, which includes this one.
        if let Some(file) = sum_file {
            std::fs::write(&file, sum.to_json()).context(file)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut chosen = Vec::new();
    for arg in &args {
        chosen.push(suites::find(arg)?);
    }
    if chosen.is_empty() {
        chosen = SUITES.iter().collect();
    }
    let sum = suites::run(&chosen, &options)?;
    for line in &sum.warnings {
        println!("{line}");
    }
    println!("\n{}", sum.line());
    Ok(if sum.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn options(args: &mut Vec<String>) -> Result<Options> {
    let mut with = Vec::new();
    while let Some(file) = take_option(args, "--with")? {
        with.push(PathBuf::from(file));
    }
    let limit = match take_option(args, "--limit")? {
        Some(text) => {
            let seconds = text.parse();
            Some(seconds.with_context(|| format!("not seconds: {text}"))?)
        }
        None => None,
    };
    Ok(Options {
        kernel: take_option(args, "--kernel")?.unwrap_or_else(|| KERNEL_SUITE.into()),
        accelerator: take_option(args, "--accel")?,
        limit: limit.map(Duration::from_secs),
        keep_console: take_flag(args, "--keep-console"),
        release: take_flag(args, "--release"),
        bare: take_flag(args, "--bare"),
        machine: guest::Machine {
            cards: match take_flag(args, "--cards-in-a-row") {
                true => guest::CARDS_IN_A_ROW,
                false => guest::CARDS,
            },
            counts_instructions: take_flag(args, "--count-instructions"),
            translates_all: take_flag(args, "--iommu-for-all"),
        },
        with,
    })
}

/// Runs the suites that are part of `cargo xtask test`; names the others.
fn run_all(options: &Options) -> Result<Sum> {
    let (usual, rest): (Vec<&Suite>, _) = SUITES.iter().partition(|suite| suite.usual);
    let mut sum = suites::run(&usual, options)?;
    sum.not_run(&rest, "not in the usual run: cargo xtask lab runs it");
    Ok(sum)
}

/// Reports all suites as not run, for this reason.
pub fn run_none(why: &str) -> Sum {
    let all: Vec<&Suite> = SUITES.iter().collect();
    let mut sum = Sum::default();
    sum.not_run(&all, why);
    sum
}

/// Runs any command line in the guest, and returns its exit code.
fn run_command(words: &[String], options: &Options) -> Result<ExitCode> {
    let parts = fetch::parts(&options.kernel);
    let parts = parts.map_err(|error| match error.is::<fetch::NoGuest>() {
        true => error.context("no guest here"),
        false => error,
    })?;
    let mut programs = Vec::new();
    if !options.bare {
        let barewire = build::programs(options, false)?.get("barewire")?;
        programs.push(("usr/local/bin/barewire".to_owned(), barewire));
    }
    for file in &options.with {
        let name = file.file_name().context("--with names no file")?;
        programs.push((
            format!("usr/local/bin/{}", name.to_string_lossy()),
            file.clone(),
        ));
    }
    let words: Vec<_> = words.iter().map(|word| quoted(word)).collect();
    let accelerator = accelerator::choose(&parts, options)?;
    let run = guest::Run {
        job: format!(
            "export BAREWIRE_GUEST=1 BAREWIRE_GUEST_QUEUES={}\n{}\n",
            guest::virtio_queues(),
            words.join(" ")
        ),
        programs,
        limit: options.limit.unwrap_or(COMMAND_LIMIT),
        boot_limit: None,
        accelerator: &accelerator,
        machine: options.machine,
    };
    let outcome = boot(&parts, &run, &dir_of("run")?, options, |line| {
        println!("{line}");
        None
    })?;
    report(&outcome, options);
    let code = outcome.code.filter(|_| !outcome.hung);
    let code = code.and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Boots the guest repeatedly without a job, to check whether it is stable on this machine.
fn run_boots(count: u32, options: &Options) -> Result<ExitCode> {
    let parts = fetch::parts(&options.kernel)?;
    let accelerator = accelerator::choose(&parts, options)?;
    let run = guest::Run {
        job: "exit 0\n".into(),
        programs: Vec::new(),
        limit: options.limit.unwrap_or(COMMAND_LIMIT),
        boot_limit: None,
        accelerator: &accelerator,
        machine: options.machine,
    };
    let mut failed = 0;
    for number in 1..=count {
        let dir = dir_of(&format!("boot{number}"))?;
        let outcome = guest::run(&parts, &run, &dir, |_| None)?;
        let good = outcome.code == Some(0) && !outcome.hung;
        let word = if good { "up and down" } else { "FAILED" };
        println!("boot {number}: {word} in {:.1?}", outcome.took);
        if good {
            std::fs::remove_dir_all(&dir)?;
        } else {
            failed += 1;
            report(&outcome, options);
        }
    }
    println!("{} of {count} boots failed ({accelerator})", failed);
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Runs a command; again if the guest did not get as far as the command, which is no fault of the
/// command. That is reported with the console: it must not become usual.
fn boot(
    parts: &fetch::Parts,
    run: &guest::Run<'_>,
    dir: &Path,
    options: &Options,
    mut line: impl FnMut(&str) -> Option<Duration>,
) -> Result<guest::Outcome> {
    let mut tries = 1;
    loop {
        let outcome = guest::run(parts, run, dir, &mut line)?;
        if outcome.booted || outcome.code.is_some() || tries == BOOTS {
            return Ok(outcome);
        }
        report(&outcome, options);
        tries += 1;
        eprintln!("WARNING: the guest did not boot (console above); try {tries} of {BOOTS}");
    }
}

/// Prints how a guest ended, with its console if that helps.
fn report(outcome: &guest::Outcome, options: &Options) {
    let console = outcome.dir.join("console");
    let seconds = outcome.took.as_secs();
    if let Some(why) = &outcome.lost {
        eprintln!("error: the guest was ended after {seconds} s: {why}");
    } else if outcome.hung {
        eprintln!("error: the guest hung and was ended after {seconds} s");
    } else if outcome.code.is_none() {
        eprintln!("error: the guest ended after {seconds} s without an exit code");
    }
    if outcome.hung || outcome.code.is_none() {
        eprintln!("the end of its console ({}):", console.display());
        eprintln!("{}", guest::console_tail(&outcome.dir, 40));
    } else {
        eprintln!(
            "lab: {seconds} s; console and files: {}",
            outcome.dir.display()
        );
        if options.keep_console {
            eprintln!("{}", guest::console_tail(&outcome.dir, usize::MAX));
        }
    }
}

fn dir_of(name: &str) -> Result<PathBuf> {
    // From this build, even if the fetched files are shared; parallel runs do not mix.
    Ok(target_dir()?
        .join("lab-runs")
        .join(format!("{name}-{}", std::process::id())))
}
