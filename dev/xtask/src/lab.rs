//! `cargo xtask lab`: tests on real drivers and emulated cards, in a guest under QEMU.
//!
//! A veth pair has no DMA; on it zero-copy and drivers in user space prove nothing. The guest has
//! an Intel 82576 (igb), 82540EM (e1000), 82574 (e1000e) and a virtio-net with several queues, two
//! of each joined by a wire, behind an emulated IOMMU. How to use it: docs/guides/guest-lab.md.

mod apt;
mod fetch;
mod guest;
mod initramfs;

use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::run::{cargo, no_more, take_flag, take_option, target_dir};

/// Suite of Debian whose kernel the guest runs unless told otherwise: new enough for zero-copy on
/// igb (Linux 6.14).
const KERNEL_SUITE: &str = "trixie-backports";

/// Longest time of a guest unless told otherwise, in seconds.
const LIMIT_SECONDS: u64 = 600;

/// Tests that run in the guest together.
pub struct Suite {
    /// On the command line.
    name: &'static str,
    summary: &'static str,
    /// Part of `cargo xtask test`, which has minutes.
    usual: bool,
    /// Test binaries of `dev/lab/tests`, each with the arguments of libtest.
    tests: &'static [(&'static str, &'static str)],
}

/// Every suite; each runs in a guest of its own.
const SUITES: &[Suite] = &[
    Suite {
        name: "devices",
        summary: "what devices and doctor say of every card is true",
        usual: true,
        tests: &[("guest_devices", "")],
    },
    Suite {
        name: "afxdp",
        summary: "AF_XDP: zero-copy on igb and virtio-net, generic on e1000",
        usual: true,
        tests: &[("guest_afxdp", "")],
    },
    Suite {
        name: "vfio",
        summary: "cards driven in user space, behind the IOMMU: igb",
        usual: true,
        tests: &[("guest_vfio", "")],
    },
    Suite {
        name: "vfio_cards",
        summary: "the same of e1000 and virtio-net (split, packed), against the kernel's drivers",
        usual: true,
        tests: &[("guest_vfio_cards", "")],
    },
    Suite {
        name: "nic",
        summary: "cards that are given to vfio-pci and come back",
        usual: false,
        tests: &[("guest_nic", "")],
    },
    Suite {
        name: "ports",
        summary: "the conformance suite of ports on igb, virtio-net and e1000 (minutes)",
        usual: false,
        tests: &[("conformance_port", "igb_ virtio_ e1000_")],
    },
];

/// What the user chose beside the suites.
struct Options {
    kernel: String,
    accelerator: Option<String>,
    limit: Duration,
    keep_console: bool,
    release: bool,
    /// More programs of this machine for the guest.
    with: Vec<PathBuf>,
}

/// The task: see the module.
pub fn run(args: &[String]) -> Result<ExitCode> {
    let own = args.iter().position(|arg| arg == "--");
    let (args, command) = match own {
        Some(at) => (&args[..at], Some(&args[at + 1..])),
        None => (args, None),
    };
    let mut args = args.to_vec();
    let mut with = Vec::new();
    while let Some(file) = take_option(&mut args, "--with")? {
        with.push(PathBuf::from(file));
    }
    let limit = match take_option(&mut args, "--limit")? {
        Some(text) => text
            .parse()
            .with_context(|| format!("not seconds: {text}"))?,
        None => LIMIT_SECONDS,
    };
    let options = Options {
        kernel: take_option(&mut args, "--kernel")?.unwrap_or_else(|| KERNEL_SUITE.into()),
        accelerator: take_option(&mut args, "--accel")?,
        limit: Duration::from_secs(limit),
        keep_console: take_flag(&mut args, "--keep-console"),
        release: take_flag(&mut args, "--release"),
        with,
    };
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
    let mut suites = Vec::new();
    for arg in &args {
        match SUITES.iter().find(|suite| suite.name == arg) {
            Some(suite) => suites.push(suite),
            None => bail!("there is no suite {arg:?}\nhint: cargo xtask lab --list"),
        }
    }
    if suites.is_empty() {
        suites = SUITES.iter().collect();
    }
    let sum = run_suites(&suites, &options)?;
    println!("\n{}", sum.line());
    Ok(if sum.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// What the suites said together.
#[derive(Clone, Debug, Default)]
pub struct Sum {
    /// Tests of the guest by libtest's word.
    pub tests: crate::test::Sum,
    /// Suites that failed, by tests or as a whole.
    pub failed: u64,
    /// One line each.
    pub skips: Vec<String>,
}

impl Sum {
    fn line(&self) -> String {
        let line = self.tests.line(self.skips.len() as u64);
        if self.failed != 0 && self.tests.failed == 0 {
            return format!("{line}; {} suites failed", self.failed);
        }
        line
    }
}

/// The suites that are part of `cargo xtask test`.
pub fn run_all() -> Result<Sum> {
    let options = Options {
        kernel: KERNEL_SUITE.into(),
        accelerator: None,
        limit: Duration::from_secs(LIMIT_SECONDS),
        keep_console: false,
        release: false,
        with: Vec::new(),
    };
    let usual: Vec<_> = SUITES.iter().filter(|suite| suite.usual).collect();
    run_suites(&usual, &options)
}

fn run_suites(suites: &[&Suite], options: &Options) -> Result<Sum> {
    let mut sum = Sum::default();
    let parts = match fetch::parts(&options.kernel) {
        Ok(parts) => parts,
        Err(error) => {
            // Loud, and counted: no network, no Debian, another architecture.
            for suite in suites {
                let line = format!("SKIPPED: lab {}: no guest here: {error:#}", suite.name);
                eprintln!("{line}");
                sum.skips.push(line);
            }
            return Ok(sum);
        }
    };
    let programs = built(options, suites)?;
    let accelerator = accelerator(&parts, options)?;
    for suite in suites {
        println!(
            "\nlab {}: Linux {} under QEMU ({accelerator})",
            suite.name, parts.release
        );
        let mut job = String::from(JOB_HEAD);
        let mut in_guest = vec![barewire(&programs)?];
        for (test, args) in suite.tests {
            let file = programs
                .iter()
                .find(|(name, _)| name == test)
                .with_context(|| format!("no test is called {test}"))?;
            let path = format!("usr/local/bin/{test}");
            job += &format!("/{path} --test-threads=1 --nocapture {args} || code=1\n");
            in_guest.push((path, file.1.clone()));
        }
        job += "exit $code\n";
        let run = guest::Run {
            job,
            programs: in_guest,
            limit: options.limit,
            accelerator: &accelerator,
        };
        let before = sum.tests;
        let outcome = boot(&parts, &run, &dir_of(suite.name)?, options, |line| {
            println!("{line}");
            sum.tests.add(line);
            if line.starts_with("SKIPPED: ") {
                sum.skips.push(format!("{line} (in the guest)"));
            }
        })?;
        tell(&outcome, options);
        let silent = sum.tests == before;
        if outcome.code != Some(0) || outcome.hung || silent {
            if silent {
                eprintln!("error: suite {} ran no test", suite.name);
            }
            sum.failed += 1;
            sum.tests.failed += u64::from(sum.tests.failed == before.failed);
        }
    }
    Ok(sum)
}

/// Runs any command line in the guest; its exit code is ours.
fn run_command(words: &[String], options: &Options) -> Result<ExitCode> {
    let parts = fetch::parts(&options.kernel)?;
    let mut programs = vec![barewire(&built(options, &[])?)?];
    for file in &options.with {
        let name = file.file_name().context("--with names no file")?;
        programs.push((
            format!("usr/local/bin/{}", name.to_string_lossy()),
            file.clone(),
        ));
    }
    let quoted: Vec<_> = words
        .iter()
        .map(|word| format!("'{}'", word.replace('\'', r"'\''")))
        .collect();
    let accelerator = accelerator(&parts, options)?;
    let run = guest::Run {
        job: format!("export BAREWIRE_GUEST=1\n{}\n", quoted.join(" ")),
        programs,
        limit: options.limit,
        accelerator: &accelerator,
    };
    let outcome = boot(&parts, &run, &dir_of("run")?, options, |line| {
        println!("{line}");
    })?;
    tell(&outcome, options);
    let code = outcome.code.and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Runs a job; once more if the guest never came as far as the job, which is no fault of the job's.
/// That is told with the console: it must not become usual.
fn boot(
    parts: &fetch::Parts,
    run: &guest::Run<'_>,
    dir: &Path,
    options: &Options,
    mut line: impl FnMut(&str),
) -> Result<guest::Outcome> {
    let outcome = guest::run(parts, run, dir, &mut line)?;
    if outcome.booted || outcome.code.is_some() {
        return Ok(outcome);
    }
    tell(&outcome, options);
    eprintln!("WARNING: the guest did not boot (console above); it is started once more");
    guest::run(parts, run, dir, line)
}

/// What every job of a suite begins with. Tests know by the variable that they are in the guest.
const JOB_HEAD: &str = "export BAREWIRE_GUEST=1 RUST_BACKTRACE=1\ncode=0\n";

/// Says how a guest ended, with its console where that is of help.
fn tell(outcome: &guest::Outcome, options: &Options) {
    let console = outcome.dir.join("console");
    let seconds = outcome.took.as_secs();
    if outcome.hung {
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
    // Of this build, even where what was fetched is shared; runs beside each other do not mix.
    Ok(target_dir()?
        .join("lab-runs")
        .join(format!("{name}-{}", std::process::id())))
}

fn barewire(programs: &[(String, PathBuf)]) -> Result<(String, PathBuf)> {
    let found = programs.iter().find(|(name, _)| name == "barewire");
    let (name, file) = found.context("no program barewire was built")?;
    Ok((format!("usr/local/bin/{name}"), file.clone()))
}

/// Builds the program and the tests of these suites; names and files of what came out.
fn built(options: &Options, suites: &[&Suite]) -> Result<Vec<(String, PathBuf)>> {
    let profile: &[&str] = if options.release { &["--release"] } else { &[] };
    let mut programs = Vec::new();
    let mut test = vec!["test", "--no-run", "--package", "barewire-lab"];
    for (name, _) in suites.iter().flat_map(|suite| suite.tests) {
        test.extend(["--test", name]);
    }
    let build = vec!["build", "--package", "barewire-cli"];
    let mut builds = vec![build];
    builds.extend((!suites.is_empty()).then_some(test));
    eprintln!("lab: building");
    for build in &builds {
        let output = cargo()
            .args(build)
            .args(profile)
            .args(["--quiet", "--message-format=json"])
            .stderr(Stdio::inherit())
            .output()
            .context("cannot run cargo")?;
        anyhow::ensure!(output.status.success(), "cargo {} failed", build.join(" "));
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let message: Value = serde_json::from_str(line).context("JSON of cargo")?;
            let name = message["target"]["name"].as_str();
            if let (Some(name), Some(file)) = (name, message["executable"].as_str()) {
                programs.push((name.to_owned(), PathBuf::from(file)));
            }
        }
    }
    Ok(programs)
}

/// KVM where a guest gets through with it, which a short boot finds out once; else emulation.
fn accelerator(parts: &fetch::Parts, options: &Options) -> Result<String> {
    if let Some(chosen) = &options.accelerator {
        return Ok(chosen.clone());
    }
    let usable = |path: &Path| {
        std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
    };
    if usable(Path::new("/dev/kvm")).is_err() {
        return Ok("tcg".into());
    }
    // Another machine, or another kernel of it, may answer otherwise.
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let memory = fetch::cache()?.join(format!("kvm-{}", parts.release));
    if let Ok(text) = std::fs::read_to_string(&memory)
        && let Some((of, answer)) = text.split_once(' ')
        && of == boot.trim()
    {
        return Ok(answer.to_owned());
    }
    eprintln!("lab: trying KVM");
    let probe = guest::Run {
        job: "exit 0".into(),
        programs: Vec::new(),
        limit: Duration::from_secs(15),
        accelerator: "kvm",
    };
    let outcome = guest::run(parts, &probe, &dir_of("kvm")?, |_| ());
    let works = outcome.is_ok_and(|outcome| outcome.code == Some(0));
    let answer = if works { "kvm" } else { "tcg" };
    std::fs::write(memory, format!("{} {answer}", boot.trim()))?;
    Ok(answer.into())
}
