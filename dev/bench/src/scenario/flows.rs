//! `flows`: metering captures from files, beside other probes, in packets a second of processor
//! time.
//!
//! The captures are made beforehand (ten million packets are no part of a repository): the folder
//! that `BAREWIRE_WORKLOADS` names holds `a.pcap` (many packets in a million flows), `b.pcap`
//! (mixed lengths, tags, fragments) and `d.pcap` (every packet a new flow), or some of them.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::{Plan, Scenario};
use crate::cpu;
use crate::program;
use crate::rounds::{Outcome, Table};

/// The row in the table.
pub const SCENARIO: Scenario = Scenario {
    name: "flows",
    summary: "flow records of captures (folder in BAREWIRE_WORKLOADS), beside other probes",
    run,
};

/// A capture's letter, and what it is.
const WORKLOADS: [(&str, &str); 3] = [
    ("a", "packets in many flows"),
    ("b", "mixed lengths, tags, fragments"),
    ("d", "new flows"),
];

/// Who is measured; `reference` first.
const SUBJECTS: [&str; 6] = [
    "softflowd",
    "nfpcapd",
    "yaf",
    "barewire",
    "barewire counters",
    "barewire json",
];

fn run(plan: &Plan) -> Result<Outcome> {
    let folder = std::env::var_os("BAREWIRE_WORKLOADS").map(PathBuf::from);
    let mut outcome = Outcome::default();
    for (letter, what) in WORKLOADS {
        let path = folder.as_ref().map(|f| f.join(format!("{letter}.pcap")));
        let Some(path) = path.filter(|path| path.exists()) else {
            outcome.notes.push(format!(
                "no {letter}.pcap in BAREWIRE_WORKLOADS: {what} left out"
            ));
            continue;
        };
        outcome
            .tables
            .push(workload(plan, letter, &path, &mut outcome.notes)?);
    }
    outcome.notes.push(
        "processor time of the whole program, user and system, from start to end; table for two \
         million flows; IPFIX of softflowd to a socket that is never read, files of nfpcapd to a \
         folder, IPFIX of yaf to /dev/null, JSON to /dev/null"
            .into(),
    );
    Ok(outcome)
}

fn workload(plan: &Plan, letter: &str, path: &Path, notes: &mut Vec<String>) -> Result<Table> {
    let measure = match letter {
        "a" => "packets in many flows",
        "b" => "packets of mixed lengths",
        _ => "packets that are each a new flow",
    };
    let mut table = Table {
        measure,
        unit: "Mpps",
        axis: "",
        more_is_better: true,
        reference: String::new(),
        series: Vec::new(),
    };
    let packets = packet_count(path)?;
    let sink = UdpSocket::bind("127.0.0.1:0")?;
    let port = sink.local_addr()?.port();
    for round in 0..plan.rounds {
        for subject in SUBJECTS {
            match seconds(subject, path, port) {
                Ok(seconds) => {
                    table.add(subject, 0, packets as f64 / seconds / 1e6);
                    if table.reference.is_empty() {
                        table.reference = subject.into();
                    }
                }
                Err(why) if round == 0 => notes.push(format!("{subject} left out: {why:#}")),
                Err(_) => {}
            }
        }
    }
    Ok(table)
}

/// Packets in a file, by barewire's own count.
fn packet_count(path: &Path) -> Result<u64> {
    let output = Command::new(program::barewire()?)
        .args([
            "flows",
            "--json",
            "--fields",
            "counters",
            "--table-size",
            "4M",
        ])
        .arg(path)
        .stderr(Stdio::null())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let summary = text.lines().last().unwrap_or_default();
    let (_, rest) = summary
        .split_once("\"packets\":")
        .context("no summary of barewire flows")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(0);
    Ok(rest[..digits].parse()?)
}

/// Processor time of one run.
fn seconds(subject: &str, path: &Path, port: u16) -> Result<f64> {
    let scratch = std::env::temp_dir().join(format!("bw-flows-{}", std::process::id()));
    std::fs::create_dir_all(&scratch)?;
    let mut command = match subject {
        "softflowd" => {
            let mut command = Command::new("softflowd");
            command.args(["-d", "-m", "4000000", "-v", "10", "-n"]);
            command.arg(format!("127.0.0.1:{port}"));
            command.arg("-p").arg(scratch.join("pid"));
            command.arg("-c").arg(scratch.join("ctl"));
            command.arg("-r").arg(path);
            command
        }
        "nfpcapd" => {
            let mut command = Command::new("nfpcapd");
            command.args(["-B", "2000000", "-e", "300,60", "-t", "300", "-w"]);
            command.arg(&scratch).arg("-r").arg(path);
            command
        }
        "yaf" => {
            let mut command = Command::new("yaf");
            command.args(["--out", "/dev/null", "--in"]).arg(path);
            command
        }
        _ => {
            let mut command = Command::new(program::barewire()?);
            command.args(["flows", "--plain", "--top", "1", "--table-size", "4M"]);
            command.arg(path);
            match subject {
                "barewire counters" => {
                    command.args(["--fields", "counters"]);
                }
                "barewire json" => {
                    command = Command::new(program::barewire()?);
                    command
                        .args(["flows", "--json", "--table-size", "4M"])
                        .arg(path);
                }
                _ => {}
            }
            command
        }
    };
    let before = cpu::of_children()?;
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let passed = cpu::of_children()? - before;
    let _ = std::fs::remove_dir_all(&scratch);
    match status {
        Ok(status) => ensure!(status.success(), "it failed: {status}"),
        Err(error) => bail!("{subject}: {error}"),
    }
    Ok(passed)
}
