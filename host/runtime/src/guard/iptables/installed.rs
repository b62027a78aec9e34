//! Rules that barewire installs, reads the counters of, and removes at the end.
//!
//! The kernel does not remove them when the process dies. So the next start on the interface
//! removes what a killed process left: an abstract socket, whose name disappears with its process
//! and is of one network namespace, shows whether the rules have an owner.

use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ::guard::{Counters, Verdict};
use sys::{Error, ErrorKind, Result};

use super::{COMMANDS, Style, commands, listing, notes, pinned};
use crate::Stop;
use crate::guard::table::{RuleTotals, Totals};
use crate::guard::{CHECK_INTERVAL, LAST_MAX, Outcome, RuleSpec, Setup, TICK};
use crate::worker::Ended;

/// Waits up to ten seconds for other users of the table.
const INSTALLED: Style = Style {
    options: " -w 10",
    chain: "bwguard",
    limit: "bwg",
    is_numbered: true,
};

/// Installed rules; removed on drop.
pub struct Installed {
    interface: String,
    specs: Vec<RuleSpec>,
    notes: Vec<String>,
    /// Whether rules that a killed process had left were removed first.
    pub had_leftovers: bool,
    is_removed: bool,
    began: Instant,
    /// Owner of the rules of this interface, as long as it is open.
    _owner: UnixDatagram,
}

impl Installed {
    /// Installs the rules; removes those that a killed process left on the interface.
    ///
    /// # Errors
    /// As [`super::iptables`]; `Busy` if another process has installed rules on the interface;
    /// errors of iptables, after which nothing is left.
    pub fn install(setup: &Setup) -> Result<Self> {
        let mut specs = setup.specs()?;
        if specs.is_empty() {
            let what = format!("guard {}", setup.interface);
            return Err(
                Error::new(ErrorKind::InvalidInput, what, "there are no rules")
                    .with_hint("--drop 'EXPR', --limit 'RATE EXPR' or --rules FILE"),
            );
        }
        specs.sort_by_key(|spec| spec.priority);
        sys::link::Link::by_name(&setup.interface)?;
        let session = nic::session_through(&setup.interface)?;
        setup.check_session(session.as_ref(), &specs)?;
        let owner = own(&setup.interface)?;
        let had_leftovers = remove(&setup.interface)?;
        let installed = Self {
            interface: setup.interface.clone(),
            notes: specs.iter().flat_map(notes).collect(),
            specs,
            had_leftovers,
            is_removed: false,
            began: Instant::now(),
            _owner: owner,
        };
        // If anything fails, drop removes what was installed and pinned.
        let pin = |command: &str, number, program: &_| {
            pinned::pin(&setup.interface, (command, number), program)
        };
        shell(&commands(setup, &installed.specs, INSTALLED, &pin)?)?;
        Ok(installed)
    }

    /// The interface.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// How rules differ from those in XDP, one line each.
    pub fn notes(&self) -> impl Iterator<Item = &str> {
        let notes = self.notes.iter();
        notes.map(|note| note.trim_start_matches("# ").trim_end())
    }

    /// The counts so far. Bytes are counted from the IP header on.
    ///
    /// # Errors
    /// Errors of iptables; `NotFound` if another process has removed the rules.
    pub fn totals(&self) -> Result<Totals> {
        let mut seen = None;
        let mut rules = vec![Counters::default(); self.specs.len()];
        let main = chain(&self.interface);
        for (command, _) in COMMANDS {
            for line in listing::rules(&list(command)?) {
                let counters = line.counters();
                let is_main = line.chain() == main;
                if is_main && line.number() == Some(0) {
                    seen.get_or_insert(Counters::default()).add(&counters);
                    continue;
                }
                let number = match is_main {
                    true => line.number(),
                    false => number_of(line.chain(), &main),
                };
                let index = number.unwrap_or_default().wrapping_sub(1);
                let Some(rule) = rules.get_mut(index) else {
                    continue;
                };
                if is_main {
                    rule.add(&counters);
                } else if line.has_match("hashlimit") {
                    rule.dropped += counters.packets;
                    rule.dropped_bytes += counters.bytes;
                }
            }
        }
        let seen = seen.ok_or_else(|| {
            let what = format!("guard {}", self.interface);
            let why = "another process has removed the iptables rules";
            Error::new(ErrorKind::NotFound, what, why)
        })?;
        Ok(self.account(seen, rules))
    }

    fn account(&self, seen: Counters, rules: Vec<Counters>) -> Totals {
        let mut unmatched = seen;
        let rules = self.specs.iter().zip(rules).map(|(spec, mut counters)| {
            if spec.verdict == Verdict::Drop {
                (counters.dropped, counters.dropped_bytes) = (counters.packets, counters.bytes);
            }
            if spec.verdict.decides() {
                unmatched.packets = unmatched.packets.saturating_sub(counters.packets);
                unmatched.bytes = unmatched.bytes.saturating_sub(counters.bytes);
            }
            RuleTotals {
                spec: spec.clone(),
                is_expired: false,
                counters,
            }
        });
        Totals {
            rules: rules.collect(),
            seen,
            unmatched,
            ..Totals::default()
        }
    }

    /// Runs until stopped, or for the given duration, and removes the rules.
    pub fn run(
        mut self,
        duration: Option<Duration>,
        stop: &Stop,
        mut progress: impl FnMut(&Totals),
    ) -> Outcome {
        let (ended, error) = match self.watch(duration, stop, &mut progress) {
            Ok(ended) => (ended, None),
            Err(error) => (Ended::Stopped, Some(error)),
        };
        let elapsed = self.began.elapsed();
        let unhooked = unhook(&self.interface);
        let (totals, unread) = match self.last_totals() {
            Ok(totals) => (totals, None),
            Err(error) => (Totals::default(), Some(error)),
        };
        let removed = remove(&self.interface);
        self.is_removed = removed.is_ok();
        let error = error.or(unread).or(unhooked.err()).or(removed.err());
        Outcome {
            totals,
            elapsed,
            sampled: None,
            ended,
            error,
        }
    }

    fn watch(
        &self,
        duration: Option<Duration>,
        stop: &Stop,
        progress: &mut impl FnMut(&Totals),
    ) -> Result<Ended> {
        let mut next = self.began + TICK;
        loop {
            if stop.is_set() {
                return Ok(Ended::Stopped);
            }
            if duration.is_some_and(|duration| self.began.elapsed() >= duration) {
                return Ok(Ended::Finished);
            }
            if Instant::now() >= next {
                next += TICK;
                progress(&self.totals()?);
            }
            thread::sleep(CHECK_INTERVAL);
        }
    }

    /// Reads the totals once no packet enters the chain; the last ones may still be in it.
    fn last_totals(&self) -> Result<Totals> {
        let began = Instant::now();
        loop {
            let totals = self.totals()?;
            if totals.imbalance() == 0 || began.elapsed() >= LAST_MAX {
                return Ok(totals);
            }
        }
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        if !self.is_removed {
            let _ = remove(&self.interface);
        }
    }
}

/// Removes the rules that a killed process left on this interface; returns whether there were any.
///
/// # Errors
/// `Busy` if a running process has installed them; errors of iptables.
pub fn undo(interface: &str) -> Result<bool> {
    let _owner = own(interface)?;
    remove(interface)
}

/// Becomes the owner of the rules of an interface in this network namespace.
fn own(interface: &str) -> Result<UnixDatagram> {
    let name = format!("barewire guard iptables {interface}");
    let address = SocketAddr::from_abstract_name(name);
    let bound = address.and_then(|address| UnixDatagram::bind_addr(&address));
    bound.map_err(|error| {
        let what = format!("use iptables on {interface}");
        match error.kind() {
            io::ErrorKind::AddrInUse => {
                let why = "another barewire guard has rules there";
                Error::new(ErrorKind::Busy, what, why).with_hint("stop it first")
            }
            _ => Error::from_io(what, error),
        }
    })
}

fn chain(interface: &str) -> String {
    format!("{}-{interface}", INSTALLED.chain)
}

/// The number of the rule whose own chain this is.
fn number_of(name: &str, main: &str) -> Option<usize> {
    name.strip_prefix(main)?.strip_prefix('-')?.parse().ok()
}

/// Lists the rules of the raw table.
fn list(command: &str) -> Result<String> {
    call(command, &["-v", "-S"])
}

/// Removes the jumps to the chain.
fn unhook(interface: &str) -> Result<()> {
    let main = chain(interface);
    for (command, _) in COMMANDS {
        let is_jump = |line: &listing::Line| {
            line.chain() == "PREROUTING" && line.value("-j") == Some(main.as_str())
        };
        for _ in listing::rules(&list(command)?).filter(is_jump) {
            call(command, &["-D", "PREROUTING", "-i", interface, "-j", &main])?;
        }
    }
    Ok(())
}

/// Removes all rules and chains of an interface; returns whether there were any.
fn remove(interface: &str) -> Result<bool> {
    unhook(interface)?;
    let main = chain(interface);
    let mut found = false;
    for (command, _) in COMMANDS {
        let mut chains = listing::chains(&list(command)?);
        chains.retain(|name| *name == main || number_of(name, &main).is_some());
        found |= !chains.is_empty();
        for verb in ["-F", "-X"] {
            for chain in &chains {
                call(command, &[verb, chain])?;
            }
        }
    }
    pinned::remove(interface)?;
    Ok(found)
}

/// Runs iptables on the raw table, and returns what it prints.
fn call(command: &str, args: &[&str]) -> Result<String> {
    let mut process = Command::new(command);
    process.args(["-w", "10", "-t", "raw"]).args(args);
    output(process, "")
}

/// Runs commands in a shell, up to the first that fails.
fn shell(text: &str) -> Result<()> {
    let mut process = Command::new("sh");
    process.arg("-e");
    output(process, text).map(drop)
}

fn output(mut command: Command, input: &str) -> Result<String> {
    let what = format!("run {}", command.get_program().to_string_lossy());
    // A process group of its own: Ctrl-C must not end it halfway.
    command.process_group(0);
    let spawned = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = spawned.map_err(|error| Error::from_io(&*what, error))?;
    if let Some(mut stdin) = child.stdin.take() {
        // If it has ended early, its status is the error.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output();
    let output = output.map_err(|error| Error::from_io(&*what, error))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let why = text.lines().next().unwrap_or("it failed without a message");
    Err(Error::new(ErrorKind::Io, what, why))
}
