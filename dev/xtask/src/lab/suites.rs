//! The suites, and their run: several in one guest, one after the other.
//!
//! The job says on its output where a suite begins and how it ends. A suite in which the guest ends
//! or hangs has failed; those behind it run in a fresh guest.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::build::Programs;
use super::{Options, accelerator, boot, build, dir_of, fetch, guest, tell};
use crate::test;

/// Tests that run in the guest together.
pub struct Suite {
    /// On the command line.
    pub name: &'static str,
    pub summary: &'static str,
    /// Test binaries of `dev/lab/tests`, each with the arguments of libtest.
    pub tests: &'static [(&'static str, &'static str)],
    /// Part of `cargo xtask test`, which has minutes.
    pub usual: bool,
    /// Seconds after which it hangs; several times what it takes on two busy processors.
    limit_seconds: u64,
}

/// Every suite, in the order in which they share a guest: those that leave a card with another name
/// or driver come last.
pub const SUITES: &[Suite] = &[
    Suite {
        name: "devices",
        summary: "what devices and doctor say of every card is true",
        tests: &[("guest_devices", "")],
        usual: true,
        limit_seconds: 300,
    },
    Suite {
        name: "afxdp",
        summary: "AF_XDP: zero-copy on igb and virtio-net, generic on e1000",
        tests: &[("guest_afxdp", "")],
        usual: true,
        limit_seconds: 400,
    },
    Suite {
        name: "vfio",
        summary: "cards driven in user space, behind the IOMMU: igb",
        tests: &[("guest_vfio", "")],
        usual: true,
        limit_seconds: 400,
    },
    Suite {
        name: "vfio_cards",
        summary: "the same of e1000 and virtio-net (split, packed), against the kernel's drivers",
        tests: &[("guest_vfio_cards", "")],
        usual: true,
        limit_seconds: 400,
    },
    Suite {
        name: "vfio_link",
        summary: "cards in user space whose wire is pulled, or that are reset under us",
        tests: &[("guest_vfio_link", "")],
        usual: true,
        limit_seconds: 400,
    },
    Suite {
        name: "vfio_packets",
        summary: "what cards in user space say of packets, let in, and spread over queues",
        tests: &[("guest_vfio_packets", "")],
        usual: true,
        limit_seconds: 300,
    },
    Suite {
        name: "vfio_idle",
        summary: "readers of cards in user space that sleep, or have stopped",
        tests: &[("guest_vfio_idle", "")],
        usual: true,
        limit_seconds: 300,
    },
    Suite {
        name: "ports",
        summary: "the conformance suite of ports, by AF_XDP zero-copy on igb",
        tests: &[("conformance_port", "--exact igb_zero_copy")],
        usual: true,
        limit_seconds: 900,
    },
    Suite {
        name: "vfio_ports",
        summary: "the same by drivers in user space: igb, e1000",
        tests: &[("conformance_port", "--exact igb_vfio e1000_vfio")],
        usual: true,
        limit_seconds: 900,
    },
    Suite {
        name: "virtio_ports",
        summary: "the same on virtio-net, by AF_XDP zero-copy and in user space",
        tests: &[("conformance_port", "--exact virtio_zero_copy virtio_vfio")],
        usual: true,
        limit_seconds: 900,
    },
    Suite {
        name: "more_ports",
        summary: "the same by AF_XDP in generic mode on e1000",
        tests: &[("conformance_port", "--exact e1000_generic")],
        usual: true,
        limit_seconds: 900,
    },
    Suite {
        name: "forward",
        summary: "forwarding between cards driven in user space",
        tests: &[("guest_forward", "")],
        usual: true,
        limit_seconds: 300,
    },
    Suite {
        name: "refused",
        summary: "what is told of cards that cannot be had",
        tests: &[("guest_refused", "")],
        usual: true,
        limit_seconds: 300,
    },
    Suite {
        name: "nic",
        summary: "cards that are given to vfio-pci and come back",
        tests: &[("guest_nic", "")],
        usual: true,
        limit_seconds: 300,
    },
];

/// What the suites said together.
#[derive(Clone, Debug, Default)]
pub struct Sum {
    /// Tests of the guest by libtest's word; those that skipped themselves count as passed.
    pub tests: test::Sum,
    /// Suites that failed, by tests or as a whole.
    pub failed: u64,
    /// Tests that skipped themselves, one line each.
    pub skips: Vec<String>,
    /// Suites that did not run, with the reason, one line each.
    pub not_run: Vec<String>,
    /// What must not become usual, one line each.
    pub warnings: Vec<String>,
}

impl Sum {
    /// Suites that do not run; said at once, and again at the end.
    pub fn not_run(&mut self, suites: &[&Suite], why: &str) {
        for suite in suites {
            let line = format!("SKIPPED: guest suite {}: {why}", suite.name);
            eprintln!("{line}");
            self.not_run.push(line);
        }
    }

    /// The last line.
    pub fn line(&self) -> String {
        let line = self.tests.line(self.skips.len(), self.not_run.len());
        if self.failed != 0 && self.tests.failed == 0 {
            return format!("{line}; {} suites failed", self.failed);
        }
        line
    }
}

/// Runs suites in as few guests as can be.
///
/// # Errors
/// When the guest cannot be put together although this machine could run one: something does not
/// build, or what was fetched is not what was signed.
pub fn run(suites: &[&Suite], options: &Options) -> Result<Sum> {
    let mut sum = Sum::default();
    let parts = match fetch::parts(&options.kernel) {
        Ok(parts) => parts,
        Err(error) if error.is::<fetch::NoGuest>() => {
            sum.not_run(suites, &format!("no guest here: {error:#}"));
            return Ok(sum);
        }
        Err(error) => return Err(error.context("putting the guest together")),
    };
    let programs = build::programs(options, suites)?;
    let accelerator = accelerator::choose(&parts, options)?;
    let (mut left, mut lost) = (suites, 0);
    while !left.is_empty() {
        let names: Vec<_> = left.iter().map(|suite| suite.name).collect();
        println!(
            "\nlab {}: Linux {} under QEMU ({accelerator})",
            names.join(", "),
            parts.release
        );
        let run = guest::Run {
            job: job(left),
            programs: in_guest(left, &programs)?,
            limit: options.limit.unwrap_or(Duration::from_secs(300)),
            boot_limit: None,
            accelerator: &accelerator,
            machine: options.machine,
        };
        let mut progress = Progress::new(left, options, &mut sum);
        let (outcome, tries) = boot(&parts, &run, &dir_of(names[0])?, options, |line| {
            progress.line(line)
        })?;
        let done = progress.end(&outcome, lost < LOST_MAX);
        lost += u32::from(outcome.lost.is_some());
        if tries > 1 {
            let warning = format!("WARNING: a guest came up only at try {tries}");
            eprintln!("{warning}");
            sum.warnings.push(warning);
        }
        tell(&outcome, options);
        left = &left[done..];
    }
    Ok(sum)
}

/// Guests that the emulator may fail before that is a failure of the suite.
const LOST_MAX: u32 = 3;

/// How a line of the job's output begins that tells of a suite.
const MARK: &str = "@@lab ";

/// The script that runs suites one after the other.
fn job(suites: &[&Suite]) -> String {
    let mut job = String::from("export BAREWIRE_GUEST=1 RUST_BACKTRACE=1\nall=0\n");
    job += &format!("export BAREWIRE_GUEST_QUEUES={}\n", guest::virtio_queues());
    // What tests read, for whoever looks for a fault.
    for name in ["BAREWIRE_CASE", "BAREWIRE_SEED", "BAREWIRE_NO_SKIPS"] {
        if let Ok(value) = std::env::var(name) {
            job += &format!("export {name}={}\n", super::quoted(&value));
        }
    }
    for Suite { name, tests, .. } in suites {
        job += &format!("echo '{MARK}begin {name}'\ncode=0\n");
        for (test, args) in *tests {
            job += &format!(
                "/{} --test-threads=1 --nocapture {args} || code=1\n",
                path(test)
            );
        }
        // The last line of a test may have no end.
        job += &format!("echo; echo \"{MARK}end {name} $code\"\n[ $code = 0 ] || all=1\n");
    }
    job + "exit $all\n"
}

/// Where a program is in the guest.
fn path(program: &str) -> String {
    format!("usr/local/bin/{program}")
}

fn in_guest(suites: &[&Suite], programs: &Programs) -> Result<Vec<(String, std::path::PathBuf)>> {
    let tests = suites.iter().flat_map(|suite| suite.tests);
    let names = std::iter::once("barewire").chain(tests.map(|(name, _)| *name));
    // Suites may share a test binary.
    let names: std::collections::BTreeSet<_> = names.collect();
    let files = names.into_iter();
    files
        .map(|name| Ok((path(name), programs.get(name)?)))
        .collect()
}

/// Suites of one guest as far as they have come.
struct Progress<'a> {
    suites: &'a [&'a Suite],
    options: &'a Options,
    sum: &'a mut Sum,
    /// How many have ended.
    ended: usize,
    /// The one that runs.
    running: Option<Running>,
}

/// A suite that runs.
struct Running {
    since: Instant,
    /// The sum of before it, and how many skips there were.
    before: test::Sum,
    skips: usize,
}

impl<'a> Progress<'a> {
    fn new(suites: &'a [&'a Suite], options: &'a Options, sum: &'a mut Sum) -> Progress<'a> {
        Progress {
            suites,
            options,
            sum,
            ended: 0,
            running: None,
        }
    }

    /// Takes a line of the job's output; the time limit of a suite that begins with it.
    fn line(&mut self, line: &str) -> Option<Duration> {
        let Some(words) = line.strip_prefix(MARK) else {
            println!("{line}");
            self.sum.tests.add(line);
            // Behind libtest's word on which test it runs, where that stands alone.
            if let Some(at) = line.find("SKIPPED: ")
                && (at == 0 || line.starts_with("test ") && line[..at].ends_with(" ... "))
            {
                self.sum
                    .skips
                    .push(format!("{} (in the guest)", &line[at..]));
            }
            return None;
        };
        let suite = self.suites.get(self.ended)?;
        let words: Vec<_> = words.split(' ').collect();
        match words[..] {
            ["begin", name] if name == suite.name => {
                println!("lab {name}: {}", suite.summary);
                self.running = Some(Running {
                    since: Instant::now(),
                    before: self.sum.tests,
                    skips: self.sum.skips.len(),
                });
                let own = Duration::from_secs(suite.limit_seconds);
                return Some(self.options.limit.unwrap_or(own));
            }
            ["end", name, code] if name == suite.name => {
                self.close(if code == "0" { None } else { Some("it failed") });
            }
            // Said by no job of ours.
            _ => println!("{line}"),
        }
        None
    }

    /// The running suite is over, with what went wrong beside its tests.
    fn close(&mut self, wrong: Option<&str>) {
        let name = self.suites[self.ended].name;
        self.ended += 1;
        let now = self.sum.tests;
        let running = self.running.take();
        let (since, before) = match running {
            Some(running) => (running.since, running.before),
            None => (Instant::now(), now),
        };
        let silent = now == before;
        let wrong = wrong.or(silent.then_some("it ran no test"));
        println!("lab {name}: {} s\n", since.elapsed().as_secs());
        if let Some(wrong) = wrong {
            eprintln!("error: guest suite {name}: {wrong}");
            self.sum.failed += 1;
            self.sum.tests.failed += u64::from(now.failed == before.failed);
        }
    }

    /// The guest is off. How many suites need no other guest: one at least, unless the emulator
    /// failed it and that `may_repeat`.
    fn end(mut self, outcome: &guest::Outcome, may_repeat: bool) -> usize {
        if self.ended == self.suites.len() {
            if outcome.hung {
                eprintln!("error: the guest hung behind its last suite");
                self.sum.failed += 1;
                self.sum.tests.failed += 1;
            }
            return self.ended;
        }
        if let (Some(why), true) = (&outcome.lost, may_repeat) {
            // What it said counts for nothing: it is all said again.
            if let Some(running) = self.running.take() {
                self.sum.tests = running.before;
                self.sum.skips.truncate(running.skips);
            }
            let name = self.suites[self.ended].name;
            let warning = format!("WARNING: guest suite {name} is run again: {why}");
            eprintln!("{warning}");
            self.sum.warnings.push(warning);
            return self.ended;
        }
        if !outcome.booted {
            self.close(Some("the guest did not boot"));
            let rest = &self.suites[self.ended..];
            self.sum.not_run(rest, "the guest did not boot");
            return self.suites.len();
        }
        let wrong = match (outcome.hung, &self.running) {
            (true, Some(_)) => "it hung, and the guest was ended",
            (true, None) => "it never began, and the guest was ended",
            (false, Some(_)) => "the guest ended in it",
            (false, None) => "the guest ended before it",
        };
        self.close(Some(wrong));
        self.ended
    }
}

/// The suite of a name.
///
/// # Errors
/// When there is none.
pub fn find(name: &str) -> Result<&'static Suite> {
    let found = SUITES.iter().find(|suite| suite.name == name);
    found.with_context(|| format!("there is no suite {name:?}\nhint: cargo xtask lab --list"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(booted: bool, hung: bool) -> guest::Outcome {
        guest::Outcome {
            code: None,
            dir: "/nowhere".into(),
            took: Duration::ZERO,
            hung,
            booted,
            lost: None,
        }
    }

    fn told(lines: &[&str], outcome: &guest::Outcome) -> (usize, Sum) {
        told_and(lines, outcome, true)
    }

    fn told_and(lines: &[&str], outcome: &guest::Outcome, may_repeat: bool) -> (usize, Sum) {
        let (mut sum, options) = (Sum::default(), Options::default());
        let suites: Vec<_> = SUITES.iter().collect();
        let mut progress = Progress::new(&suites[..3], &options, &mut sum);
        for line in lines {
            progress.line(line);
        }
        let done = progress.end(outcome, may_repeat);
        (done, sum)
    }

    const PASSED: &str = "test result: ok. 2 passed; 0 failed; 0 ignored";

    #[test]
    fn suites_behind_one_that_ends_the_guest_are_left_for_another() {
        let lines = [
            "@@lab begin devices",
            PASSED,
            "@@lab end devices 0",
            "@@lab begin afxdp",
            "test some::test ... SKIPPED: some::test: needs a thing",
        ];
        let (done, sum) = told(&lines, &outcome(true, true));
        assert_eq!((done, sum.failed, sum.tests.failed), (2, 1, 1));
        assert_eq!(sum.line(), "1 passed, 1 failed, 1 skipped");
        // It ended between two suites: the next one is not tried for ever.
        let (done, sum) = told(&lines[..3], &outcome(true, false));
        assert_eq!((done, sum.failed), (2, 1));
    }

    #[test]
    fn a_suite_in_which_the_emulator_failed_is_run_again_and_not_for_ever() {
        let lines = [
            "@@lab begin devices",
            PASSED,
            "@@lab end devices 0",
            "@@lab begin afxdp",
            PASSED,
            "SKIPPED: some::test: needs a thing",
        ];
        let lost = guest::Outcome {
            lost: Some("processor 0 is halted".into()),
            ..outcome(true, true)
        };
        let (done, sum) = told(&lines, &lost);
        assert_eq!((done, sum.failed, sum.warnings.len()), (1, 0, 1));
        assert_eq!(sum.line(), "2 passed, 0 failed, 0 skipped");
        let (done, sum) = told_and(&lines, &lost, false);
        assert_eq!((done, sum.failed), (2, 1));
    }

    #[test]
    fn a_guest_that_does_not_boot_is_a_failure_and_the_rest_skipped() {
        let (done, sum) = told(&[], &outcome(false, true));
        assert_eq!((done, sum.failed, sum.not_run.len()), (3, 1, 2));
        assert_eq!(sum.line(), "0 passed, 1 failed, 2 skipped");
    }

    #[test]
    fn silence_and_a_code_are_failures() {
        let lines = [
            "@@lab begin devices",
            "@@lab end devices 0",
            "@@lab begin afxdp",
            PASSED,
            "@@lab end afxdp 1",
            "@@lab begin vfio",
            PASSED,
            "@@lab end vfio 0",
        ];
        let (done, sum) = told(&lines, &outcome(true, false));
        assert_eq!((done, sum.failed), (3, 2));
        assert_eq!(sum.line(), "4 passed, 2 failed, 0 skipped");
        // All said that they were well, and then it did not go off.
        let (_, sum) = told(&lines, &outcome(true, true));
        assert_eq!(sum.failed, 3);
    }

    #[test]
    fn the_job_runs_every_suite_whatever_the_one_before_did() {
        let suites: Vec<_> = SUITES.iter().collect();
        let job = job(&suites);
        for suite in suites {
            assert!(job.contains(&format!("begin {}'", suite.name)), "{job}");
        }
        assert!(!job.contains("set -e"));
    }
}
