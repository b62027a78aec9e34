//! `forward`: packets through a box with two veth interfaces, compared with Linux: a bridge, and
//! redirection by tc.
//!
//! Packets are counted where they arrive, over a window in the middle of the run. Their cost is the
//! whole machine's CPU time at a rate that all candidates sustain, less that when packets end at
//! the box. [`latency`] measures how long packets take.

mod latency;

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::inline::{X, Y};
use lab::process::{Process, Signal};
use lab::{Inline, Veth};

use super::{Plan, Scenario};
use crate::cpu::Reading;
use crate::rounds::{Outcome, Table};
use crate::{link, program};

/// The row in the table.
pub const SCENARIO: Scenario = Scenario {
    name: "forward",
    summary: "packets from one veth to another through a box: their cost, rate and latency",
    run,
};

/// Bytes without FCS.
const LEN: usize = 60;
/// A rate that all candidates sustain.
const COST_RATE: &str = "100kpps";

/// A forwarder.
#[derive(Clone, Copy)]
struct Subject {
    label: &'static str,
    way: Way,
}

#[derive(Clone, Copy)]
enum Way {
    /// None: packets end at the box.
    Nobody,
    /// A Linux bridge with both interfaces.
    Bridge,
    /// `tc` with `mirred egress redirect`.
    Tc,
    /// `barewire forward` between these ports.
    Barewire(&'static str, &'static str),
}

const SUBJECTS: [Subject; 7] = [
    Subject {
        label: "nobody",
        way: Way::Nobody,
    },
    Subject {
        label: "Linux bridge",
        way: Way::Bridge,
    },
    Subject {
        label: "tc mirred redirect",
        way: Way::Tc,
    },
    Subject {
        label: "barewire afxdp: native",
        way: Way::Barewire("afxdp:right0?attach=native", "afxdp:left0"),
    },
    Subject {
        label: "barewire afxdp: generic",
        way: Way::Barewire("afxdp:right0?attach=generic", "afxdp:left0"),
    },
    Subject {
        label: "barewire afxdp: to xdplive:",
        way: Way::Barewire("afxdp:right0?attach=native", "xdplive:left0"),
    },
    Subject {
        label: "barewire afpacket:",
        way: Way::Barewire("afpacket:right0", "afpacket:left0"),
    },
];

fn run(plan: &Plan) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut cost = table("processor time a packet at 100 kpps", "µs", false);
    let mut rate = table("packets a second through the box", "Mpps", true);
    for _ in 0..plan.rounds {
        let mut base = None;
        for subject in SUBJECTS {
            if let Way::Nobody = subject.way {
                base = Some(one(plan, subject, COST_RATE)?.busy_us);
                continue;
            }
            match one(plan, subject, COST_RATE) {
                Ok(run) => cost.add(
                    subject.label,
                    0,
                    run.busy_us - base.context("nobody comes first")?,
                ),
                Err(error) => refuse(&mut outcome, &mut cost, subject, &error),
            }
            match one(plan, subject, "max") {
                Ok(run) => rate.add(subject.label, 0, run.mpps),
                Err(error) => refuse(&mut outcome, &mut rate, subject, &error),
            }
        }
    }
    outcome.tables.extend([cost, rate]);
    latency::run(plan, &mut outcome)?;
    outcome.notes.push(
        "the sender pinned to processor 0, barewire to 1; bridge and tc run where the sender does"
            .into(),
    );
    Ok(outcome)
}

fn refuse(outcome: &mut Outcome, table: &mut Table, subject: Subject, error: &anyhow::Error) {
    table.add(subject.label, 0, f64::NAN);
    let text = format!("{}: {error:#}", subject.label);
    eprintln!("{text}");
    if !outcome.notes.contains(&text) {
        outcome.notes.push(text);
    }
}

fn table(measure: &'static str, unit: &'static str, more_is_better: bool) -> Table {
    Table {
        measure,
        unit,
        axis: "",
        more_is_better,
        reference: "Linux bridge".into(),
        series: Vec::new(),
    }
}

/// The result of one run.
struct Run {
    /// Processor time of the machine per packet sent, in microseconds.
    busy_us: f64,
    /// Packets per second that arrived, in millions.
    mpps: f64,
}

fn one(plan: &Plan, subject: Subject, rate: &str) -> Result<Run> {
    let mut veth = Veth::new();
    if let Way::Barewire(_, to) = subject.way
        && to.starts_with("xdplive:")
    {
        // XDP frames are accepted only if the peer polls: a program, or GRO.
        veth = veth.gro();
    }
    let row = Inline::new(&veth)?;
    let forwarder = start(&row, subject.way, false)?;
    let mut command: Command = row.a().ns.command("taskset");
    let seconds = (plan.seconds + 0.8).to_string();
    let mac = row.b().mac.map(|byte| format!("{byte:02x}")).join(":");
    command.args(["-c", "0"]).arg(program::barewire()?);
    command.args([
        "send",
        "--udp",
        "--size",
        &LEN.to_string(),
        "--dst-mac",
        &mac,
    ]);
    command.args(["--rate", rate, "--duration", &seconds]);
    command.arg(format!("afpacket:{}", row.a().ifname));
    let mut sender = Process::spawn(&mut command)?;
    sleep(Duration::from_millis(450));
    let read = || -> Result<_> {
        let sent = link::stats(row.a())?.tx_packets;
        Ok((
            Reading::take()?,
            sent,
            link::stats(row.b())?.rx_packets,
            Instant::now(),
        ))
    };
    let (cpu, sent, arrived, at) = read()?;
    sleep(Duration::from_secs_f64(plan.seconds));
    let (cpu_after, sent_after, arrived_after, at_after) = read()?;
    sender.wait(Duration::from_secs(10))?.checked()?;
    if let Some(mut process) = forwarder {
        process
            .stop(Signal::SIGINT, Duration::from_secs(10))?
            .checked()?;
    }
    let (sent, arrived) = (sent_after - sent, arrived_after - arrived);
    ensure!(sent > 0, "nothing was sent in the window");
    let is_nobody = matches!(subject.way, Way::Nobody);
    ensure!(is_nobody || arrived > 0, "nothing arrived in the window");
    Ok(Run {
        busy_us: cpu_after.busy_since(&cpu) / sent as f64 * 1e6,
        mpps: arrived as f64 / (at_after - at).as_secs_f64() / 1e6,
    })
}

/// Sets up forwarding, in `both` directions or from A to B; returns the process, if there is one.
fn start(row: &Inline, way: Way, both: bool) -> Result<Option<Process>> {
    let ns = row.ns();
    match way {
        Way::Nobody => Ok(None),
        Way::Bridge => {
            ns.ip([
                "link",
                "add",
                "bridge0",
                "type",
                "bridge",
                "mcast_snooping",
                "0",
            ])?;
            // The box's ends have the addresses of the two hosts, as both pairs are made alike; a
            // bridge keeps packets to its ports' own addresses.
            for (name, mac) in [(X, "02:ba:4e:00:01:01"), (Y, "02:ba:4e:00:01:02")] {
                ns.ip(["link", "set", name, "address", mac])?;
                ns.ip(["link", "set", name, "master", "bridge0"])?;
            }
            ns.ip(["link", "set", "bridge0", "up"])?;
            // The bridge would learn B's position from its first packet.
            let mac = row.b().mac.map(|byte| format!("{byte:02x}")).join(":");
            ns.exec(
                "bridge",
                ["fdb", "replace", &mac, "dev", Y, "master", "static"],
            )?;
            Ok(None)
        }
        Way::Tc => {
            let ways = [(X, Y), (Y, X)];
            for (from, to) in &ways[..1 + usize::from(both)] {
                ns.exec("tc", ["qdisc", "add", "dev", from, "clsact"])?;
                let filter = [
                    "filter", "add", "dev", from, "ingress", "protocol", "all", "u32", "match",
                    "u32", "0", "0",
                ];
                let action = ["action", "mirred", "egress", "redirect", "dev", to];
                ns.exec("tc", [&filter[..], &action[..]].concat())?;
            }
            Ok(None)
        }
        Way::Barewire(from, to) => {
            let mut command: Command = ns.command("taskset");
            command.args(["-c", "1"]).arg(program::barewire()?);
            command.args(["forward", from, to]);
            if both {
                command.arg("--both");
            }
            let process = Process::spawn(&mut command)?;
            process.wait_stderr("forwarding", Duration::from_secs(10))?;
            sleep(Duration::from_millis(200));
            Ok(Some(process))
        }
    }
}
