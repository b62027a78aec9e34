//! Runs the suites: several in one guest, one after another.
//!
//! The job marks in its output where a suite starts and how it ends
//! ([`progress`](super::progress)). [`rounds`](super::rounds) decides which suites run again.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::build::Programs;
use super::progress::{Attempt, MARK, Progress};
use super::rounds::Rounds;
use super::{Options, accelerator, build, dir_of, fetch, guest, report};
use crate::test;

/// A set of tests that run in the guest together.
pub struct Suite {
    /// Name on the command line.
    pub name: &'static str,
    pub summary: &'static str,
    /// Tests of `dev/lab/tests/guest.rs` in it, as arguments of libtest.
    pub tests: &'static str,
    /// Whether it is part of `cargo xtask test`, which has minutes.
    pub usual: bool,
    /// The Debian suite of its kernel, if it needs another one than the rest.
    pub kernel: Option<&'static str>,
    /// Seconds after which it counts as hung; several times what it takes on two busy processors.
    pub limit_seconds: u64,
}

/// All suites, in the order in which they share a guest: those that leave a card with another name
/// or driver come last.
pub const SUITES: &[Suite] = &[
    Suite {
        name: "devices",
        summary: "what devices and doctor say of every card is true",
        tests: "guest_devices::",
        usual: true,
        kernel: None,
        limit_seconds: 300,
    },
    Suite {
        name: "afxdp",
        summary: "AF_XDP: zero-copy on igb and virtio-net, generic on e1000",
        tests: "guest_afxdp::",
        usual: true,
        kernel: None,
        limit_seconds: 400,
    },
    Suite {
        name: "vfio",
        summary: "cards driven in user space, behind the IOMMU: igb",
        tests: "guest_vfio::",
        usual: true,
        kernel: None,
        limit_seconds: 400,
    },
    Suite {
        name: "vfio_cards",
        summary: "the same of e1000 and virtio-net (split, packed), against the kernel's drivers",
        tests: "guest_vfio_cards::",
        usual: true,
        kernel: None,
        limit_seconds: 400,
    },
    Suite {
        name: "vfio_link",
        summary: "cards in user space whose wire is pulled, or that are reset under us",
        tests: "guest_vfio_link::",
        usual: true,
        kernel: None,
        limit_seconds: 400,
    },
    Suite {
        name: "vfio_packets",
        summary: "what cards in user space say of packets, let in, and spread over queues",
        tests: "guest_vfio_packets::",
        usual: true,
        kernel: None,
        limit_seconds: 300,
    },
    Suite {
        name: "vfio_idle",
        summary: "readers of cards in user space that sleep, or have stopped",
        tests: "guest_vfio_idle::",
        usual: true,
        kernel: None,
        limit_seconds: 300,
    },
    Suite {
        name: "vfio_scan",
        summary: "scans by cards in user space, which answer ARP and Neighbor Discovery",
        tests: "guest_vfio_scan::",
        // Exact counts of packets, which QEMU loses now and then where it interprets the guest.
        usual: false,
        kernel: None,
        limit_seconds: 400,
    },
    Suite {
        name: "ports",
        summary: "the conformance suite of ports, by AF_XDP zero-copy on igb",
        tests: "--exact conformance_port::igb_zero_copy",
        usual: true,
        kernel: None,
        limit_seconds: 900,
    },
    Suite {
        name: "vfio_ports",
        summary: "the same by drivers in user space: igb, e1000",
        tests: "--exact conformance_port::igb_vfio conformance_port::e1000_vfio",
        usual: true,
        kernel: None,
        limit_seconds: 900,
    },
    Suite {
        name: "virtio_ports",
        summary: "the same on virtio-net, by AF_XDP zero-copy and in user space",
        tests: "--exact conformance_port::virtio_zero_copy conformance_port::virtio_vfio",
        usual: true,
        kernel: None,
        limit_seconds: 900,
    },
    Suite {
        name: "more_ports",
        summary: "the same by AF_XDP in generic mode on e1000",
        tests: "--exact conformance_port::e1000_generic",
        usual: true,
        kernel: None,
        limit_seconds: 900,
    },
    Suite {
        name: "forward",
        summary: "forwarding between cards driven in user space",
        tests: "guest_forward::",
        usual: true,
        kernel: None,
        limit_seconds: 300,
    },
    Suite {
        name: "refused",
        summary: "errors for cards that cannot be used",
        tests: "guest_refused::",
        usual: true,
        kernel: None,
        limit_seconds: 300,
    },
    Suite {
        name: "nic",
        summary: "cards that are given to vfio-pci and come back, and queues that leave RSS",
        tests: "guest_nic:: guest_isolate::",
        usual: true,
        kernel: None,
        limit_seconds: 300,
    },
    Suite {
        name: "linux-6.1",
        summary: "programs that the verifier of Linux 6.1 accepts; a scan across PPP",
        tests: "guest_kernels::",
        usual: true,
        kernel: Some("bookworm"),
        limit_seconds: 300,
    },
    Suite {
        name: "linux-5.10",
        summary: "programs that the verifier of Linux 5.10, older than supported, accepts; PPP",
        tests: "guest_kernels::",
        usual: true,
        kernel: Some("bullseye"),
        limit_seconds: 300,
    },
];

/// The combined result of the suites.
#[derive(Clone, Debug, Default)]
pub struct Sum {
    /// Test counts of libtest in the guest; tests that skipped themselves count as passed.
    pub tests: test::Sum,
    /// Suites that failed, by tests or as a whole.
    pub failed: u64,
    /// Tests that skipped themselves, one line each.
    pub skips: Vec<String>,
    /// Suites that did not run, with the reason, one line each.
    pub not_run: Vec<String>,
    /// Warnings about what must not become usual, with evidence.
    pub warnings: Vec<String>,
}

impl Sum {
    /// Records suites that do not run; printed immediately, and again at the end.
    pub fn not_run(&mut self, suites: &[&Suite], why: &str) {
        for suite in suites {
            let line = format!("SKIPPED: guest suite {}: {why}", suite.name);
            eprintln!("{line}");
            self.not_run.push(line);
        }
    }

    /// Adds a run of a suite that is not run again.
    pub fn add(&mut self, one: Attempt) {
        self.tests.passed += one.tests.passed.saturating_sub(one.bodies);
        self.tests.failed += one.tests.failed;
        self.skips.extend(one.skips);
        if one.wrong.is_some() {
            self.failed += 1;
            // A suite that failed as a whole counts as one failed test.
            self.tests.failed += u64::from(one.tests.failed == 0);
        }
    }

    /// The sum for another process.
    pub fn to_json(&self) -> String {
        serde_json::json!({
            "passed": self.tests.passed,
            "failed_tests": self.tests.failed,
            "failed": self.failed,
            "skips": self.skips,
            "not_run": self.not_run,
            "warnings": self.warnings,
        })
        .to_string()
    }

    /// Parses the output of [`to_json`](Sum::to_json).
    ///
    /// # Errors
    /// If it is anything else.
    pub fn from_json(text: &str) -> Result<Sum> {
        let value: Value = serde_json::from_str(text).context("the sum of the guest lab")?;
        let number = |name: &str| value[name].as_u64().with_context(|| name.to_owned());
        let lines = |name: &str| -> Result<Vec<String>> {
            let list = value[name].as_array().with_context(|| name.to_owned())?;
            let lines = list.iter().map(|line| line.as_str().map(str::to_owned));
            lines
                .collect::<Option<_>>()
                .with_context(|| name.to_owned())
        };
        Ok(Sum {
            tests: test::Sum {
                passed: number("passed")?,
                failed: number("failed_tests")?,
            },
            failed: number("failed")?,
            skips: lines("skips")?,
            not_run: lines("not_run")?,
            warnings: lines("warnings")?,
        })
    }

    /// The summary line.
    pub fn line(&self) -> String {
        let line = self.tests.line(self.skips.len(), self.not_run.len());
        if self.failed != 0 && self.tests.failed == 0 {
            return format!("{line}; {} suites failed", self.failed);
        }
        line
    }
}

/// Runs suites in as few guests as possible, those of each kernel together.
///
/// # Errors
/// If the guest cannot be built although this machine could run one: something does not build, or
/// fetched data is not what was signed.
pub fn run(suites: &[&Suite], options: &Options) -> Result<Sum> {
    let mut sum = Sum::default();
    let mut common = None;
    let mut left = suites.to_vec();
    while let Some(first) = left.first() {
        let kernel = first.kernel;
        let (these, others) = left.iter().partition(|suite| suite.kernel == kernel);
        left = others;
        run_on(kernel, &these, options, &mut common, &mut sum)?;
    }
    Ok(sum)
}

/// Runs suites of one kernel. Programs are built, and the accelerator is chosen, for the first one.
fn run_on(
    kernel: Option<&str>,
    suites: &[&Suite],
    options: &Options,
    common: &mut Option<(Programs, String)>,
    sum: &mut Sum,
) -> Result<()> {
    let parts = match fetch::parts(kernel.unwrap_or(&options.kernel)) {
        Ok(parts) => parts,
        Err(error) if error.is::<fetch::NoGuest>() => {
            sum.not_run(suites, &format!("no guest here: {error:#}"));
            return Ok(());
        }
        Err(error) => return Err(error.context("putting the guest together")),
    };
    if common.is_none() {
        let programs = build::programs(options, true)?;
        *common = Some((programs, accelerator::choose(&parts, options)?));
    }
    let (programs, accelerator) = common.as_ref().context("programs")?;
    let mut rounds = Rounds::new(suites);
    while let Some(batch) = rounds.next_batch() {
        let names: Vec<_> = batch.suites.iter().map(|suite| suite.name).collect();
        println!(
            "\nlab {}: Linux {} under QEMU ({accelerator})",
            names.join(", "),
            parts.release
        );
        let run = guest::Run {
            job: job(&batch.suites),
            programs: in_guest(programs)?,
            limit: options.limit.unwrap_or(Duration::from_secs(300)),
            boot_limit: None,
            accelerator,
            machine: options.machine,
        };
        // The files of a first run are kept.
        let dir = match batch.is_second {
            true => dir_of(&format!("{}-again", names[0]))?,
            false => dir_of(names[0])?,
        };
        let mut progress = Progress::new(&batch.suites, options.limit);
        let outcome = guest::run(&parts, &run, &dir, |line| progress.line(line))?;
        report(&outcome, options);
        let attempts = progress.end(&outcome);
        rounds.done(&batch, attempts, &outcome, sum);
    }
    Ok(())
}

/// The script that runs suites one after another.
fn job(suites: &[&Suite]) -> String {
    let mut job = String::from("export BAREWIRE_GUEST=1 RUST_BACKTRACE=1\nall=0\n");
    // Before Linux 5.11 BPF maps are locked memory.
    job += "ulimit -l unlimited\n";
    job += &format!("export BAREWIRE_GUEST_QUEUES={}\n", guest::virtio_queues());
    // Variables that tests read, for debugging.
    for name in ["BAREWIRE_CASE", "BAREWIRE_SEED", "BAREWIRE_NO_SKIPS"] {
        if let Ok(value) = std::env::var(name) {
            job += &format!("export {name}={}\n", super::quoted(&value));
        }
    }
    for Suite { name, tests, .. } in suites {
        job += &format!("echo '{MARK}begin {name}'\ncode=0\n");
        let program = path(build::TESTS);
        job += &format!("/{program} --test-threads=1 --nocapture {tests} || code=1\n");
        // The last line of a test may be incomplete.
        job += &format!("echo; echo \"{MARK}end {name} $code\"\n[ $code = 0 ] || all=1\n");
    }
    job + "exit $all\n"
}

/// Path of a program in the guest.
fn path(program: &str) -> String {
    format!("usr/local/bin/{program}")
}

fn in_guest(programs: &Programs) -> Result<Vec<(String, std::path::PathBuf)>> {
    let names = ["barewire", build::TESTS].into_iter();
    names
        .map(|name| Ok((path(name), programs.get(name)?)))
        .collect()
}

/// Finds a suite by name.
///
/// # Errors
/// If it does not exist.
pub fn find(name: &str) -> Result<&'static Suite> {
    let found = SUITES.iter().find(|suite| suite.name == name);
    found.with_context(|| format!("there is no suite {name:?}\nhint: cargo xtask lab --list"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_passed_to_another_process() {
        let sum = Sum {
            tests: test::Sum {
                passed: 7,
                failed: 2,
            },
            failed: 1,
            skips: vec!["SKIPPED: one".into(), "SKIPPED: \"two\"".into()],
            not_run: vec!["SKIPPED: guest suite x".into()],
            warnings: vec!["WARNING: again".into()],
        };
        let same = Sum::from_json(&sum.to_json()).unwrap();
        assert_eq!(format!("{same:?}"), format!("{sum:?}"));
        assert!(Sum::from_json("{}").is_err());
    }

    #[test]
    fn the_job_runs_every_suite_after_any_result() {
        let suites: Vec<_> = SUITES.iter().collect();
        let job = job(&suites);
        for suite in suites {
            assert!(job.contains(&format!("begin {}'", suite.name)), "{job}");
        }
        assert!(!job.contains("set -e"));
    }
}
