//! Drops packets in the driver by rules: one XDP program, or one at tc's ingress, on one interface.
//!
//! The program is attached through a bpf_link, so it is detached however the process ends. A new
//! set of rules is loaded next to the old one and replaces it atomically; counters and limits of
//! rules that stay are carried over.

mod attach;
mod detect;
mod iptables;
pub mod kept;
mod kernel;
mod lists;
mod owner;
mod rules;
mod samples;
mod session;
pub mod steer;
mod table;
mod warnings;

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use ::guard::Verdict;
use sys::{Error, ErrorKind, Result};
pub use xdp::GuardHook;
use xdp::{AttachMode, GuardLink};

use crate::filter::Compiler;
use crate::worker::Ended;
use crate::{Reload, Stop};
use attach::{Attached, attach, device, unanswered};
use detect::Detecting;
pub use detect::{
    Action, DetectSetup, Detection, FloodTotals, FlowChoice, Found, Key, Learned, Normal, Place,
    Rates, Reason, Step, Tap, TapCounts,
};
pub use iptables::{Installed, iptables, undo, undo_when_closed};
use kept::{Kept, Leftover};
pub use lists::{Item, ListSpec};
pub use rules::{RuleSpec, parse, parse_rate, parse_source_rate, read};
pub use samples::SampleSetup;
use samples::Samples;
use steer::{Sockets, SteerSetup, SteerTotals, Steered};
use table::Table;
pub use table::{RuleTotals, Totals, check};
pub use warnings::{Warning, warnings};

/// 0: none, 1: when a listener's queue is full, 2: always (tcp(7)).
const SYN_COOKIES: &str = "/proc/sys/net/ipv4/tcp_syncookies";

/// Interval of progress reports.
const TICK: Duration = Duration::from_secs(1);
/// Interval at which requests to stop or reload are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// How long to wait for packets still in the program to be counted.
const LAST_MAX: Duration = Duration::from_millis(500);

/// What to guard, and how.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// The interface.
    pub interface: String,
    /// Fixed rules; at equal priority they come before those of the file.
    pub rules: Vec<RuleSpec>,
    /// A rule file, read again on request.
    pub file: Option<PathBuf>,
    /// Where packets are dropped.
    pub hook: GuardHook,
    /// Attach XDP in this mode only; `None`: native, or generic if the driver does not support
    /// native.
    pub mode: Option<AttachMode>,
    /// Count what would be dropped, and drop nothing.
    pub dry_run: bool,
    /// Compiler of the expressions in the file.
    pub compiler: Compiler,
    /// Accept rules that drop packets of this process's SSH session.
    pub may_cut_session: bool,
    /// Detect floods.
    pub detect: Option<DetectSetup>,
    /// Write samples of dropped packets to a file.
    pub samples: Option<SampleSetup>,
    /// How packets are steered to user space, if rules do that.
    pub steer: SteerSetup,
    /// Leave the program attached if the process is killed.
    pub keep: bool,
}

impl Setup {
    /// All rules currently configured.
    fn specs(&self) -> Result<Vec<RuleSpec>> {
        let mut specs = self.rules.clone();
        if let Some(file) = &self.file {
            specs.extend(read(file, self.compiler)?);
        }
        number_names(&mut specs, |name| self.is_detected(name));
        if specs.iter().any(|spec| spec.verdict == Verdict::Challenge) {
            check_cookies(fs::read_to_string(SYN_COOKIES))?;
        }
        Ok(specs)
    }

    /// Whether this is the name of a rule of detection.
    fn is_detected(&self, name: &str) -> bool {
        self.detect.is_some() && detect::is_rule_name(name)
    }

    /// Refuses rules that would cut off this SSH session.
    fn check_session(&self, session: Option<&nic::Session>, specs: &[RuleSpec]) -> Result<()> {
        let Some(session) = session.filter(|_| !self.dry_run && !self.may_cut_session) else {
            return Ok(());
        };
        let compiled = |in_user_space| -> Result<Vec<_>> {
            let specs = specs.iter().filter(|s| s.in_user_space == in_user_space);
            let mut rules: Vec<_> = specs.map(RuleSpec::compile).collect::<Result<_>>()?;
            ::guard::order(&mut rules);
            Ok(rules)
        };
        let (rules, user) = (compiled(false)?, compiled(true)?);
        let is_detected = |name: &str| self.is_detected(name);
        let Some(rule) = session::cut_by(session, &rules, &user, is_detected) else {
            return Ok(());
        };
        let client = session.client.ip();
        let what = format!("guard {}", self.interface);
        let does = match rule.verdict {
            Verdict::Limit(_) => "limits",
            _ => "drops",
        };
        let why = format!(
            "the rule \"{}\" {does} packets of this SSH session, which comes from {client}",
            rule.name
        );
        Err(Error::new(ErrorKind::InvalidInput, what, why)
            .with_hint(format!("--allow {client} keeps it; --force overrides this")))
    }
}

/// Makes names unique: a rule with the name of an earlier one, or with a name that detection gives
/// to its rules, gets a number, "udp (2)".
fn number_names(specs: &mut [RuleSpec], is_detected: impl Fn(&str) -> bool) {
    let mut names = HashSet::new();
    for spec in specs {
        let mut name = spec.name.clone();
        let mut number = 2;
        while is_detected(&name) || !names.insert(name.clone()) {
            name = format!("{} ({number})", spec.name);
            number += 1;
        }
        spec.name = name;
    }
}

/// Checks that the kernel's setting lets it make the cookies of a challenge.
fn check_cookies(setting: io::Result<String>) -> Result<()> {
    let what = "answer SYNs with cookies";
    match setting {
        Ok(value) if value.trim() == "0" => {
            let why = "net.ipv4.tcp_syncookies is 0: the kernel sends no SYN cookies";
            Err(Error::new(ErrorKind::InvalidInput, what, why)
                .with_hint("`sysctl net.ipv4.tcp_syncookies=1`, or 2 to answer every SYN"))
        }
        Ok(_) => Ok(()),
        Err(_) => {
            let why = "this kernel has no SYN cookies (CONFIG_SYN_COOKIES)";
            Err(Error::new(ErrorKind::Unsupported, what, why))
        }
    }
}

/// An attached guard.
pub struct Guard {
    setup: Setup,
    /// Index of the interface.
    ifindex: u32,
    /// The SSH session that uses the interface.
    session: Option<nic::Session>,
    link: GuardLink,
    table: Table,
    /// Rules against detected floods.
    found: Vec<RuleSpec>,
    detecting: Option<Detecting>,
    samples: Option<Samples>,
    /// The sockets of rules that steer.
    sockets: Option<Sockets>,
    steered: Option<Steered>,
    /// Until its end.
    kept: Option<Kept>,
    /// Whether a killed process had left its program attached; it was removed.
    pub had_leftover: bool,
    /// What has the name of such a program and is none: it was left alone.
    pub foreign_name: Option<Error>,
    began: Instant,
    /// Why generic mode is used, if it was not requested.
    pub fallback: Option<String>,
    /// Why answers to SYNs may not arrive, if the requested mode is kept nevertheless.
    pub unanswered: Option<String>,
}

/// Events while the guard runs.
pub enum Notice<'a> {
    /// Once a second.
    Progress(&'a Totals),
    /// The rules were replaced; the number of new ones.
    Reloaded(usize),
    /// The new rules are invalid; the old ones stay.
    Kept(Error),
    /// This rule has expired.
    Expired(String),
    /// A flood was detected or is over, or a rule was derived, installed or removed.
    Flood(&'a Step),
    /// Sampling failed, so floods are no longer detected; the rules stay in force.
    DetectionEnded(Error),
    /// Samples can no longer be written; the rules stay in force.
    SamplesEnded(Error),
    /// The worker of this queue has ended: its packets pass or are dropped, as configured.
    WorkerEnded(u32, Error),
}

/// How the guard ended.
#[derive(Debug)]
pub struct Outcome {
    /// The final counts.
    pub totals: Totals,
    /// How long the guard was attached.
    pub elapsed: Duration,
    /// Packets sampled by detection, if it ran until the end.
    pub sampled: Option<TapCounts>,
    /// Why it ended.
    pub ended: Ended,
    /// The error that ended it, if any.
    pub error: Option<Error>,
}

/// Loads the rules and attaches the program.
///
/// # Errors
/// Errors of the rules and of loading; `Busy` if another XDP program is on the interface, which is
/// left alone.
pub fn open(setup: Setup) -> Result<Guard> {
    let specs = setup.specs()?;
    if specs.is_empty() && setup.file.is_none() && setup.detect.is_none() {
        let what = format!("guard {}", setup.interface);
        return Err(
            Error::new(ErrorKind::InvalidInput, what, "there are no rules")
                .with_hint("--drop 'EXPR', --limit 'RATE EXPR', --rules FILE or --detect propose"),
        );
    }
    let device = device(&setup.interface)?;
    let session = nic::session_through(&setup.interface)?;
    setup.check_session(session.as_ref(), &specs)?;
    let samples = setup.samples.as_ref().map(Samples::create).transpose()?;
    let sockets = Sockets::create(&device, &setup.steer, setup.hook, &specs)?;
    let (specs, user) = steer::split(specs);
    let load = |mode| {
        let is_generic = mode == AttachMode::Generic;
        Table::load(
            specs.clone(),
            options(&setup, &samples, &sockets, is_generic),
        )
    };
    let unanswered = unanswered(&device, &specs).filter(|_| setup.hook == GuardHook::Xdp);
    let mode = match setup.hook {
        GuardHook::Xdp => setup.mode,
        // The mode is of XDP.
        GuardHook::Tc => Some(AttachMode::Native),
    };
    let mut leftover = Leftover::find(&setup.interface, device.index, setup.keep)?;
    let foreign_name = leftover.foreign.take();
    let Attached {
        table,
        link,
        fallback,
        unanswered,
        had_leftover,
        owner,
    } = attach(load, device.index, mode, unanswered, leftover)?;
    let steered = match (&sockets, link.mode()) {
        (Some(sockets), Some(mode)) if !setup.dry_run => {
            let interface = &setup.interface;
            Some(Steered::open(interface, mode, sockets, &setup.steer, user)?)
        }
        _ => None,
    };
    let detect = |detect| Detecting::open(&setup, detect);
    let detecting = setup.detect.map(detect).transpose()?;
    let kept = match owner.filter(|_| setup.keep) {
        Some(owner) => Some(Kept::keep(&setup.interface, &link, owner)?),
        None => None,
    };
    Ok(Guard {
        setup,
        ifindex: device.index,
        session,
        link,
        table,
        found: Vec::new(),
        detecting,
        samples,
        sockets,
        steered,
        kept,
        had_leftover,
        foreign_name,
        began: Instant::now(),
        fallback,
        unanswered,
    })
}

/// What the programs do beside the rules.
fn options<'a>(
    setup: &Setup,
    samples: &'a Option<Samples>,
    sockets: &'a Option<Sockets>,
    is_generic: bool,
) -> table::Options<'a> {
    table::Options {
        hook: setup.hook,
        dry_run: setup.dry_run,
        samples: samples.as_ref().map(Samples::of_program),
        sockets: sockets.as_ref(),
        is_generic,
    }
}

impl Guard {
    /// The attach mode of XDP, or "tc".
    pub fn mode(&self) -> String {
        let mode = self.link.mode();
        mode.map_or_else(|| "tc".to_owned(), |mode| mode.to_string())
    }

    /// The interface.
    pub fn interface(&self) -> &str {
        &self.setup.interface
    }

    /// Whether this is a dry run, which drops nothing.
    pub fn is_dry_run(&self) -> bool {
        self.setup.dry_run
    }

    /// How floods are detected; `None` if detection is off.
    pub fn detection(&self) -> Option<&DetectSetup> {
        self.setup.detect.as_ref()
    }

    /// The counts so far.
    ///
    /// # Errors
    /// If the kernel refuses to read the counters.
    pub fn totals(&self) -> Result<Totals> {
        // The program's counters last: a packet counts there before anywhere else.
        let steer = self.steered.as_ref().map(Steered::totals).transpose()?;
        let mut totals = self.table.totals()?;
        if let Some(samples) = &self.samples {
            samples.correct(&mut totals.samples);
        }
        let steered = totals.steered();
        totals.steer = steer.map(|steer| SteerTotals { steered, ..steer });
        Ok(totals)
    }

    /// How steered packets return to the host: `live`, or the name of a TAP interface; `None`
    /// without rules that steer.
    pub fn give_back(&self) -> Option<&str> {
        self.steered.as_ref().map(Steered::give_back)
    }

    /// Whether the card removes VLAN tags, so that steered packets return without theirs.
    pub fn loses_tags(&self) -> bool {
        self.steered.as_ref().is_some_and(Steered::loses_tags)
    }

    /// The file for samples of dropped packets.
    pub fn sample_file(&self) -> Option<&Path> {
        self.setup.samples.as_ref().map(|s| s.path.as_path())
    }

    /// Runs until stopped, or for the given duration.
    pub fn run(
        mut self,
        duration: Option<Duration>,
        stop: &Stop,
        reload: Option<&Reload>,
        mut notice: impl FnMut(Notice<'_>),
    ) -> Outcome {
        let (ended, error) = match self.watch(duration, stop, reload, &mut notice) {
            Ok(ended) => (ended, None),
            Err(error) => (Ended::Stopped, Some(self.gone().unwrap_or(error))),
        };
        let sampled = self.detecting.as_mut().map(|d| d.tap().counts());
        let detached = self.link.detach();
        drop(self.kept.take());
        let elapsed = self.began.elapsed();
        let finished = self.steered.as_mut().map_or(Ok(()), Steered::finish);
        let (totals, unread) = match self.last_totals(stop, &mut notice) {
            Ok(totals) => (totals, None),
            Err(error) => (Totals::default(), Some(error)),
        };
        // When a device is removed, its link goes with it.
        let error = error.or(unread).or(detached.err()).or(finished.err());
        Outcome {
            totals,
            elapsed,
            sampled: sampled.and_then(Result::ok),
            ended,
            error,
        }
    }

    fn watch(
        &mut self,
        duration: Option<Duration>,
        stop: &Stop,
        reload: Option<&Reload>,
        notice: &mut impl FnMut(Notice<'_>),
    ) -> Result<Ended> {
        let mut next = self.began + TICK;
        if let Some(samples) = &mut self.samples {
            samples.start(&self.setup.interface)?;
        }
        if let Some(steered) = &mut self.steered {
            steered.start()?;
        }
        loop {
            if stop.is_set() {
                return Ok(Ended::Stopped);
            }
            if duration.is_some_and(|duration| self.began.elapsed() >= duration) {
                return Ok(Ended::Finished);
            }
            if reload.is_some_and(Reload::take) {
                match self.reload() {
                    Ok(count) => notice(Notice::Reloaded(count)),
                    Err(error) => notice(Notice::Kept(error)),
                }
            }
            let now = Instant::now();
            if now >= next {
                // After a pause, missed ticks are not made up for: their intervals would be empty.
                next = (next + TICK).max(now + TICK / 2);
                self.expire(notice)?;
                self.check_attached()?;
                self.table.settle()?;
                if let Some(steered) = &mut self.steered {
                    while let Some((queue, error)) = steered.ended() {
                        notice(Notice::WorkerEnded(queue, error));
                    }
                }
                let mut totals = self.totals()?;
                // Packets that arrived during a long interval belong to it.
                self.read_tap(notice);
                totals.floods = self.detect(&totals, notice);
                notice(Notice::Progress(&totals));
            }
            self.read_tap(notice);
            self.read_samples(notice);
            thread::sleep(CHECK_INTERVAL);
        }
    }

    /// Reloads the rule file.
    fn reload(&mut self) -> Result<usize> {
        let mut specs = self.setup.specs()?;
        specs.extend(self.found.iter().cloned());
        self.setup.check_session(self.session.as_ref(), &specs)?;
        self.check_answers(&specs)?;
        let count = specs.len();
        let (specs, user) = steer::split(specs);
        if self.sockets.is_none() {
            steer::check_absent(&specs, &user)?;
        }
        let next = self.table.next(specs, self.options())?;
        let steered = self.steered.as_ref();
        let user = steered.map(|s| s.prepare(user)).transpose()?;
        self.replace(next)?;
        if let (Some(steered), Some(user)) = (&self.steered, user) {
            steered.replace(user);
        }
        Ok(count)
    }

    /// Replaces the rules in the program.
    fn load(&mut self, specs: Vec<RuleSpec>) -> Result<()> {
        let next = self.table.next(specs, self.options())?;
        self.replace(next)
    }

    fn options(&self) -> table::Options<'_> {
        let is_generic = self.link.mode() == Some(AttachMode::Generic);
        options(&self.setup, &self.samples, &self.sockets, is_generic)
    }

    fn expire(&mut self, notice: &mut impl FnMut(Notice<'_>)) -> Result<()> {
        let ended = self.table.expire(Instant::now());
        if ended.is_empty() {
            return Ok(());
        }
        let next = self.table.again(self.options())?;
        self.replace(next)?;
        for name in ended {
            self.found.retain(|spec| spec.name != name);
            if let Some(detecting) = &mut self.detecting {
                detecting.expired(&name);
            }
            notice(Notice::Expired(name));
        }
        Ok(())
    }

    fn replace(&mut self, next: table::Next) -> Result<()> {
        self.link.update(next.program())?;
        self.table.replace(next);
        Ok(())
    }

    /// Writes the samples in the rings. If that fails, sampling ends; the rules stay in force.
    fn read_samples(&mut self, notice: &mut impl FnMut(Notice<'_>)) {
        if let Some(samples) = &mut self.samples
            && let Err(error) = samples.read(&self.table)
        {
            notice(Notice::SamplesEnded(error));
        }
    }

    /// Reads the totals and the samples after the program is detached; the last packets may still
    /// be in it.
    fn last_totals(&mut self, stop: &Stop, notice: &mut impl FnMut(Notice<'_>)) -> Result<Totals> {
        let began = Instant::now();
        loop {
            let totals = self.totals()?;
            self.read_samples(notice);
            let has_read = |samples: &Samples| samples.has_read(totals.samples.taken);
            let steer = totals.steer.as_ref();
            let is_complete = totals.imbalance() == 0
                && steer.is_none_or(|steer| steer.imbalance() == 0 && steer.waiting == 0)
                && self.samples.as_ref().is_none_or(has_read);
            if is_complete || began.elapsed() >= LAST_MAX {
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        if let Some(samples) = &mut self.samples
            && let Err(error) = samples.finish(stop)
        {
            notice(Notice::SamplesEnded(error));
        }
        self.totals()
    }
}

#[cfg(test)]
mod tests;
