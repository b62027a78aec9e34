//! How long a packet takes through the box: round trips of echo requests between the two hosts,
//! without other traffic and beside a load from A to B.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::process::{Process, Signal};
use lab::{Inline, Veth};

use super::{LEN, SUBJECTS, Way, refuse, start};
use crate::program;
use crate::rounds::{Outcome, Table};
use crate::scenario::Plan;

/// Packets a second beside the echo requests, and 0 for none.
const LOADS: [u32; 2] = [0, 100_000];
/// Seconds between two echo requests.
const INTERVAL: &str = "0.005";
/// Round trips not counted: ARP, and the box's first packets.
const WARM_UP: usize = 10;
/// Time limit of the far ends.
const LIMIT: Duration = Duration::from_secs(30);

/// Adds a table of the median and one of the 99th percentile.
pub(super) fn run(plan: &Plan, outcome: &mut Outcome) -> Result<()> {
    let mut middle = table("round trip through the box, median");
    let mut tail = table("round trip through the box, 99th percentile");
    let count = WARM_UP + (plan.seconds * 200.0) as usize;
    for _ in 0..plan.rounds {
        for subject in SUBJECTS {
            // `xdplive:` only sends, and nobody answers.
            if matches!(subject.way, Way::Nobody)
                || matches!(subject.way, Way::Barewire(_, to) if to.starts_with("xdplive:"))
            {
                continue;
            }
            for load in LOADS {
                match round_trips(subject.way, load, count) {
                    Ok(sorted) => {
                        middle.add(subject.label, load, sorted[sorted.len() / 2]);
                        tail.add(subject.label, load, sorted[sorted.len() * 99 / 100]);
                    }
                    Err(error) => refuse(outcome, &mut middle, subject, &error),
                }
            }
        }
    }
    outcome.tables.extend([middle, tail]);
    Ok(())
}

fn table(measure: &'static str) -> Table {
    Table {
        measure,
        unit: "µs",
        axis: "other packets a second",
        more_is_better: false,
        reference: "Linux bridge".into(),
        series: Vec::new(),
    }
}

/// Sorted round trips in microseconds.
fn round_trips(way: Way, load: u32, count: usize) -> Result<Vec<f64>> {
    let row = Inline::new(&Veth::new())?;
    let forwarder = start(&row, way, true)?;
    let mut sender = None;
    if load != 0 {
        let mac = row.b().mac.map(|byte| format!("{byte:02x}")).join(":");
        let mut command: Command = row.a().ns.command("taskset");
        command.args(["-c", "0"]).arg(program::barewire()?);
        command.args(["send", "--udp", "--size", &LEN.to_string()]);
        command.args(["--dst-mac", &mac, "--rate", &format!("{load}pps")]);
        command.args(["--duration", "60"]);
        command.arg(format!("afpacket:{}", row.a().ifname));
        sender = Some(Process::spawn(&mut command)?);
        sleep(Duration::from_millis(300));
    }
    let address = row.b().ipv4.to_string();
    let count_text = count.to_string();
    let args = ["-n", "-c", &count_text, "-i", INTERVAL, &address];
    let text = row.a().ns.exec("ping", args)?;
    for mut process in sender.into_iter().chain(forwarder) {
        process.stop(Signal::SIGINT, LIMIT)?.checked()?;
    }
    let time = |line: &str| -> Option<f64> {
        let (_, rest) = line.split_once("time=")?;
        rest.split(' ').next()?.parse().ok()
    };
    let times_us = text.lines().filter_map(time).map(|time_ms| time_ms * 1e3);
    let mut sorted: Vec<f64> = times_us.skip(WARM_UP).collect();
    ensure!(sorted.len() * 10 > count * 9, "answers are missing: {text}");
    sorted.sort_by(f64::total_cmp);
    sorted.first().context("no round trip was measured")?;
    Ok(sorted)
}
