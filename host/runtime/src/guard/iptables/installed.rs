//! Rules that barewire installs, reads the counters of, and removes at the end.
//!
//! The kernel does not remove them when the process dies; a helper process does. If that was
//! killed too, the next start on the interface does: a lock shows whether the rules have an owner.
//! Commands that change the rules hold it too: those of a killed process may still run.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ::guard::{Counters, Verdict};
use nic::guardian;
use sys::{Error, ErrorKind, Result};

use super::{COMMANDS, Style, commands, listing, notes, pinned};
use crate::Stop;
use crate::guard::owner::{Kind, Owner, name_of_last};
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

/// The name of the helper process.
const HELPER: &str = "guard-undo";
/// How often the helper tries to remove the rules, and the interval.
const TRIES_MAX: u32 = 10;
const PAUSE: Duration = Duration::from_millis(200);

/// Installed rules; removed on drop.
pub struct Installed {
    interface: String,
    specs: Vec<RuleSpec>,
    notes: Vec<String>,
    /// Whether rules that a killed process had left were removed first.
    pub had_leftovers: bool,
    is_removed: bool,
    began: Instant,
    /// Of the rules of this interface, as long as the process lives. Dropped before the helper,
    /// which needs the lock.
    owner: Owner,
    /// Removes the rules when this process is killed, and if this process fails to.
    helper: Option<guardian::Guard>,
}

impl Installed {
    /// Installs the rules; removes those that a killed process left on the interface. `helper` is
    /// the command of a process that calls [`undo_when_closed`] for the interface.
    ///
    /// # Errors
    /// As [`super::iptables`]; `Busy` if another process has installed rules on the interface;
    /// errors of iptables, after which nothing is left; if the helper cannot be started.
    pub fn install(setup: &Setup, helper: Command) -> Result<Self> {
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
        let owner = Owner::become_owner(Kind::Rules, &setup.interface)?;
        // Before anything is changed.
        let helper = guardian::Guard::start_as(HELPER, helper)?;
        let had_leftovers = remove(&setup.interface, &owner)?;
        let installed = Self {
            interface: setup.interface.clone(),
            notes: specs.iter().flat_map(notes).collect(),
            specs,
            had_leftovers,
            is_removed: false,
            began: Instant::now(),
            owner,
            helper: Some(helper),
        };
        // If anything fails, drop removes what was installed and pinned.
        let pin = |command: &str, number, program: &_| {
            pinned::pin(&setup.interface, (command, number), program)
        };
        let text = commands(setup, &installed.specs, INSTALLED, &pin)?;
        shell(&text, &installed.owner)?;
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
    /// Errors of iptables; `NotFound` if another process has removed the rules of a command, or
    /// the jump to them.
    pub fn totals(&self) -> Result<Totals> {
        self.read(|command, text| self.check(command, text))
    }

    /// An error if the rules of a command, of which this is the listing, are not in force.
    fn check(&self, command: &str, text: &str) -> Result<()> {
        if is_hooked(text, &self.interface) {
            return Ok(());
        }
        let what = format!("guard {}", self.interface);
        let why = format!("another process has removed the {command} rules");
        Err(Error::new(ErrorKind::NotFound, what, why))
    }

    /// Reads the counts from the listings of both commands, which are checked first.
    fn read(&self, check: impl Fn(&str, &str) -> Result<()>) -> Result<Totals> {
        let mut seen = Counters::default();
        let mut rules = vec![Counters::default(); self.specs.len()];
        let main = INSTALLED.chain(&self.interface);
        for (command, _) in COMMANDS {
            let text = list(command)?;
            check(command, &text)?;
            for line in listing::rules(&text) {
                let counters = line.counters();
                let is_main = line.chain() == main;
                if is_main && line.number() == Some(0) {
                    seen.add(&counters);
                    continue;
                }
                let number = match is_main {
                    true => line.number(),
                    false => number_of(line.chain(), &self.interface),
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
        let watched = self.watch(duration, stop, &mut progress);
        // The rules may have been removed since the last report.
        let (ended, error) = match watched.and_then(|ended| self.totals().and(Ok(ended))) {
            Ok(ended) => (ended, None),
            Err(error) => (Ended::Stopped, Some(error)),
        };
        let elapsed = self.began.elapsed();
        let unhooked = unhook(&self.interface, &self.owner);
        let (totals, unread) = match self.last_totals() {
            Ok(totals) => (totals, None),
            Err(error) => (Totals::default(), Some(error)),
        };
        let removed = remove(&self.interface, &self.owner);
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
            let totals = self.read(|_, _| Ok(()))?;
            if totals.imbalance() == 0 || began.elapsed() >= LAST_MAX {
                return Ok(totals);
            }
        }
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let is_removed = self.is_removed || remove(&self.interface, &self.owner).is_ok();
        if let Some(helper) = self.helper.take_if(|_| is_removed) {
            helper.dismiss();
        }
    }
}

/// Removes the rules that a killed process left on this interface; returns whether there were any.
///
/// # Errors
/// `Busy` if a running process has installed them; errors of iptables.
pub fn undo(interface: &str) -> Result<bool> {
    remove(interface, &Owner::become_owner(Kind::Rules, interface)?)
}

/// The main function of the helper process: waits for the end of standard input, then removes the
/// rules of this interface, unless another process has become their owner.
///
/// # Errors
/// If they cannot be removed.
pub fn undo_when_closed(interface: &str) -> Result<()> {
    // Before this is ready, the process that started it changes nothing.
    let last = name_of_last(Kind::Rules, interface)?;
    guardian::wait_until_closed(HELPER)?;
    let Some(owner) = Owner::succeed(Kind::Rules, interface, &last)? else {
        return Ok(());
    };
    let mut tries = 1;
    loop {
        match remove(interface, &owner) {
            Err(_) if tries < TRIES_MAX => tries += 1,
            result => return result.map(drop),
        }
        thread::sleep(PAUSE);
    }
}

/// The number of the rule of this interface whose own chain this is.
fn number_of(name: &str, interface: &str) -> Option<usize> {
    let (number, _) = name.strip_prefix(INSTALLED.chain)?.split_once('-')?;
    let number = number.parse().ok()?;
    (name == INSTALLED.rule_chain(number, interface)).then_some(number)
}

/// Whether a rule is the jump to the chain of an interface.
fn is_jump(line: &listing::Line, interface: &str) -> bool {
    line.chain() == "PREROUTING"
        && line.value("-i") == Some(interface)
        && line.value("-j") == Some(&*INSTALLED.chain(interface))
}

/// Whether packets enter the chain of an interface, and its rules are there.
fn is_hooked(text: &str, interface: &str) -> bool {
    let main = INSTALLED.chain(interface);
    let is_first = |line: &listing::Line| line.chain() == main && line.number() == Some(0);
    listing::rules(text).any(|line| is_first(&line))
        && listing::rules(text).any(|line| is_jump(&line, interface))
}

/// Removes the jumps to the chain.
fn unhook(interface: &str, owner: &Owner) -> Result<()> {
    let main = INSTALLED.chain(interface);
    for (command, _) in COMMANDS {
        let lines = list(command)?;
        for _ in listing::rules(&lines).filter(|line| is_jump(line, interface)) {
            let jump = ["-D", "PREROUTING", "-i", interface, "-j", &main];
            change(command, &jump, owner)?;
        }
    }
    Ok(())
}

/// Removes all rules and chains of an interface; returns whether there were any.
fn remove(interface: &str, owner: &Owner) -> Result<bool> {
    unhook(interface, owner)?;
    let main = INSTALLED.chain(interface);
    let mut found = false;
    for (command, _) in COMMANDS {
        let mut chains = listing::chains(&list(command)?);
        chains.retain(|name| *name == main || number_of(name, interface).is_some());
        found |= !chains.is_empty();
        for verb in ["-F", "-X"] {
            for chain in &chains {
                change(command, &[verb, chain], owner)?;
            }
        }
    }
    pinned::remove(interface)?;
    Ok(found)
}

/// A command on the raw table.
fn raw_table(command: &str, args: &[&str]) -> Command {
    let mut process = Command::new(command);
    process.args(["-w", "10", "-t", "raw"]).args(args);
    process
}

/// Lists the rules of the raw table.
fn list(command: &str) -> Result<String> {
    output(raw_table(command, &["-v", "-S"]), "", Stdio::piped())
}

/// Changes the raw table.
fn change(command: &str, args: &[&str], owner: &Owner) -> Result<()> {
    output(raw_table(command, args), "", owner.held()?).map(drop)
}

/// Runs commands in a shell, up to the first that fails.
fn shell(text: &str, owner: &Owner) -> Result<()> {
    let mut process = Command::new("sh");
    process.arg("-e");
    output(process, text, owner.held()?).map(drop)
}

/// Runs a command with this standard input and output; returns the output if it is a pipe.
fn output(mut command: Command, input: &str, stdout: Stdio) -> Result<String> {
    let what = format!("run {}", command.get_program().to_string_lossy());
    // A process group of its own: Ctrl-C must not end it halfway.
    command.process_group(0);
    let spawned = command
        .stdin(Stdio::piped())
        .stdout(stdout)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_of_one_interface() {
        assert_eq!(number_of("bwguard1-eth0", "eth0"), Some(1));
        assert_eq!(number_of("bwguard12-eth0-1", "eth0-1"), Some(12));
        // 28 characters are the limit of iptables.
        assert_eq!(INSTALLED.rule_chain(10_000, "fifteen-letters").len(), 28);
        for name in [
            "bwguard-eth0",
            "bwguard-eth0-1",
            "bwguard1-eth0-1",
            "bwguard-1-eth0",
            "bwguard+1-eth0",
            "bwguard01-eth0",
            "bwguard-eth0-x",
        ] {
            assert_eq!(number_of(name, "eth0"), None, "{name}");
        }
    }

    #[test]
    fn rules_are_in_force_with_their_first_one_and_the_jump() {
        let jump = "-A PREROUTING -i eth0 -c 7 70 -j bwguard-eth0\n";
        let first = "-A bwguard-eth0 -m comment --comment 0 -c 7 70\n";
        let other = "-A PREROUTING -i eth0-1 -c 7 70 -j bwguard-eth0-1\n\
                     -A bwguard-eth0-1 -m comment --comment 0 -c 7 70\n";
        assert!(is_hooked(&[other, jump, first].concat(), "eth0"));
        assert!(!is_hooked(&[other, first].concat(), "eth0"));
        assert!(!is_hooked(&[other, jump].concat(), "eth0"));
        let elsewhere = jump.replace("-i eth0 ", "-i eth1 ");
        assert!(!is_hooked(&[&elsewhere, first].concat(), "eth0"));
    }
}
