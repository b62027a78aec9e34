//! `paths`: the cost of getting packets from an igb to a program, by every available path, and from
//! one igb to another; in a guest with emulated cards (docs/guides/guest-lab.md).
//!
//! An emulated card is slow, and its work is done by the CPU that rings its doorbell. So there are
//! two guests: in one the clock is the machine's, which gives packets per second including the
//! emulation; in the other the clock counts the guest's instructions and nothing else, which gives
//! what the guest's processor does for a packet, independently of the emulation.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{Plan, Scenario};
use crate::guest::{self, What};
use crate::program;
use crate::rounds::{Outcome, Table};

/// The row in the table.
pub const SCENARIO: Scenario = Scenario {
    name: "paths",
    summary: "from a card to a program and from card to card, by every way, on emulated igb",
    run,
};

/// Time limit of a guest in seconds: the setup of all candidates and every load, times two.
fn limit(plan: &guest::Plan) -> u64 {
    const SUBJECTS: f64 = 16.0;
    const SET_UP: f64 = 10.0;
    let loads = guest::LOADS as f64 * (plan.seconds + 1.0);
    600 + (2.0 * plan.rounds as f64 * SUBJECTS * (SET_UP + loads)) as u64
}

fn run(plan: &Plan) -> Result<Outcome> {
    let guests = [
        guest::Plan {
            what: What::Rates,
            rounds: plan.rounds,
            seconds: plan.seconds,
        },
        // Instructions hardly differ between rounds.
        guest::Plan {
            what: What::Cost,
            rounds: plan.rounds.min(2),
            seconds: plan.seconds,
        },
    ];
    let mut outcome = Outcome {
        tables: vec![
            table("packets a second received", "packets/s", "receive"),
            table("instructions a packet received", "instructions", "receive"),
            table("instructions a packet captured", "instructions", "capture"),
            table("packets a second forwarded", "packets/s", "forward"),
            table("instructions a packet forwarded", "instructions", "forward"),
        ],
        notes: vec![
            "two processors: the generator (an igb in user mode) on one; interrupts, kernel and \
             program of who is measured on the other; 60 bytes without check sequence; every card \
             behind the IOMMU"
                .into(),
            "packets a second: the best of 24 to 288 kpps offered and of as many as the generator \
             can; with all that the emulation takes: a card's work is done in the time of who \
             rings its doorbell, one such work at a time"
                .into(),
            "instructions: what is missing from those that the processor has to spare, at 51.2 \
             kpps in bursts of 64, the generator's own taken off; in a guest whose clock counts \
             instructions, where emulation takes no time"
                .into(),
            "captured: into /dev/null, by whole programs, the copy into the file's format included \
             (netring only counts); a program that misses a packet in a hundred is left out"
                .into(),
            "our own readers pace themselves as the commands do (`--idle gather`): under load they \
             sleep until a batch has gathered, which also leaves the processor to the emulation"
                .into(),
            "recvmmsg gets datagrams to the card's own address; to all others they are another \
             station's, which the stack behind TPACKET_V3 drops"
                .into(),
        ],
    };
    for plan in guests {
        one(&plan, &mut outcome)?;
    }
    outcome.tables.retain(|table| !table.series.is_empty());
    Ok(outcome)
}

fn table(measure: &'static str, unit: &'static str, kind: &str) -> Table {
    Table {
        measure,
        unit,
        axis: "",
        more_is_better: unit == "packets/s",
        reference: match kind {
            "receive" => "kernel stack, recvmmsg".into(),
            "capture" => "tcpdump".into(),
            _ => "Linux bridge".into(),
        },
        series: Vec::new(),
    }
}

/// Runs a guest and collects its output.
fn one(plan: &guest::Plan, outcome: &mut Outcome) -> Result<()> {
    let baselines = program::baselines()?;
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(program::workspace());
    command.args([
        "run",
        "--quiet",
        "--package",
        "barewire-xtask",
        "--",
        "lab",
        "run",
        "--bare",
    ]);
    command.args(["--cards-in-a-row", "--limit", &limit(plan).to_string()]);
    let (option, what) = match plan.what {
        What::Rates => ("--iommu-for-all", "rates"),
        What::Cost => ("--count-instructions", "cost"),
    };
    command.arg(option);
    command.arg("--with").arg(std::env::current_exe()?);
    for baseline in ["baseline-recvmmsg", "baseline-netring"] {
        command.arg("--with").arg(baselines.join(baseline));
    }
    for name in ["bridge", "tcpdump", "netsniff-ng", "taskset"] {
        command.arg("--with").arg(program::installed(name)?);
    }
    command.args(["--", "barewire-bench", "--in-guest", what]);
    command.args(["--rounds", &plan.rounds.to_string()]);
    command.args(["--seconds", &plan.seconds.to_string()]);
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .context("run cargo xtask lab")?;
    let output = child.stdout.take().context("piped")?;
    let mut base = 0.0;
    for line in BufReader::new(output).lines() {
        let line = line?;
        eprintln!("  {line}");
        take(plan.what, &line, &mut base, outcome);
    }
    let status = child.wait()?;
    ensure!(status.success(), "the guest ended with {status}");
    Ok(())
}

/// Parses a line of the guest.
fn take(what: What, line: &str, base: &mut f64, outcome: &mut Outcome) {
    let words: Vec<&str> = line.split('\t').collect();
    let unit = match what {
        What::Rates => "packets/s",
        What::Cost => "instructions",
    };
    let mut add = |kind: &str, subject: &str, value: f64| {
        let ending = match kind {
            "receive" => "received",
            "capture" => "captured",
            _ => "forwarded",
        };
        let is_it = |table: &&mut Table| table.unit == unit && table.measure.ends_with(ending);
        if let Some(table) = outcome.tables.iter_mut().find(is_it) {
            table.add(subject, 0, value);
        }
    };
    match words[..] {
        ["value", measure, subject, value] => {
            let (Some((measure, kind)), Ok(value)) = (measure.split_once('-'), value.parse())
            else {
                return;
            };
            match (measure, kind) {
                // Each round starts with the cost of the generator alone.
                (_, "base") => *base = value,
                ("rate", _) => add(kind, subject, value),
                ("cost", _) => add(kind, subject, value - *base),
                // The maximum rate of the emulation.
                ("offered", _) if subject.contains("user-mode") => {
                    add(kind, "(sent to the user-mode driver)", value);
                }
                _ => {}
            }
        }
        ["refused", kind, subject, why] => {
            add(kind, subject, f64::NAN);
            let note = format!("{subject}: {why}");
            if !outcome.notes.contains(&note) {
                outcome.notes.push(note);
            }
        }
        _ => {}
    }
}
