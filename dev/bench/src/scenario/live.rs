//! `live`: flow probes on a live interface: processor time of the probe itself per packet, and the
//! highest rate without loss.
//!
//! Packets of [`FLOWS`] flows are sent over a veth pair in bursts, one burst per millisecond. Every
//! probe runs with its export on. Its own time is that of its processes with all their threads;
//! what the kernel does for it in the sender's context is not included (`capture` measures that). A
//! rate counts as lossless if the probe itself reports that it metered every packet that was sent.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::process::{Process, Signal};
use lab::veth::{Pair, Veth};

use super::{Plan, Scenario};
use crate::bursts::{self, Load, Sent};
use crate::program;
use crate::rounds::{Outcome, Table};

/// The row in the table.
pub const SCENARIO: Scenario = Scenario {
    name: "live",
    summary: "flow probes on a live interface: own processor time a packet, highest lossless rate",
    run,
};

/// Number of flows.
const FLOWS: usize = 1_000;
/// Bytes of a packet without FCS.
const LEN: usize = 60;
/// Packets per second at which the probe's own time is measured.
const COST_PPS: u32 = 200_000;
/// Rates tried for the highest lossless one, highest first.
const RATES: [u32; 9] = [
    1_200_000, 1_000_000, 800_000, 600_000, 400_000, 300_000, 200_000, 100_000, 50_000,
];
/// If the sender delivered less than this share of the requested rate, the rate was not tried.
const OFFERED: f64 = 0.95;
/// How long a probe may take to open the interface, and to end.
const LIMIT: Duration = Duration::from_secs(30);

/// Paths and ports in commands.
struct Places<'a> {
    interface: &'a str,
    scratch: &'a Path,
    /// A UDP port on the probe's loopback that receives the export and is never read.
    collector: u16,
}

/// A probe.
struct Subject {
    label: &'static str,
    command: fn(&Places<'_>) -> Result<Command>,
    /// Ends the probe and returns how many packets it metered.
    metered: fn(Process, &Pair, &Places<'_>) -> Result<u64>,
}

const SUBJECTS: [Subject; 5] = [
    Subject {
        label: "softflowd, IPFIX",
        command: |places| {
            let mut command = Command::new("softflowd");
            command.args([
                "-d",
                "-v",
                "10",
                "-m",
                "100000",
                "-i",
                places.interface,
                "-n",
            ]);
            command.arg(format!("127.0.0.1:{}", places.collector));
            command.arg("-p").arg(places.scratch.join("pid"));
            command.arg("-c").arg(places.scratch.join("ctl"));
            Ok(command)
        },
        metered: |process, _, places| {
            let output = Command::new("softflowctl")
                .arg("-c")
                .arg(places.scratch.join("ctl"))
                .arg("statistics")
                .output()
                .context("run softflowctl")?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            ended(process)?;
            number_after(&text, "Packets processed:")
        },
    },
    Subject {
        label: "nfpcapd",
        command: |places| {
            let mut command = Command::new("nfpcapd");
            command.args(["-i", places.interface, "-B", "100000", "-e", "300,60"]);
            command.args(["-t", "300", "-w"]).arg(places.scratch);
            Ok(command)
        },
        metered: |process, _, places| {
            ended(process)?;
            let output = Command::new("nfdump")
                .arg("-R")
                .arg(places.scratch)
                .arg("-I")
                .output()
                .context("run nfdump")?;
            number_after(&String::from_utf8_lossy(&output.stdout), "Packets:")
        },
    },
    Subject {
        label: "pmacctd, print",
        command: |places| {
            let config = places.scratch.join("pmacctd.conf");
            let text = format!(
                "daemonize: false\npcap_interface: {}\nplugins: print\n\
                 aggregate: src_host, dst_host, src_port, dst_port, proto\n\
                 plugin_pipe_size: 67108864\nplugin_buffer_size: 65536\n\
                 print_cache_entries: 100003\nprint_refresh_time: 300\n\
                 print_output: csv\nprint_output_file: {}\n",
                places.interface,
                places.scratch.join("pmacct.csv").display()
            );
            std::fs::write(&config, text)?;
            let mut command = Command::new("pmacctd");
            command.arg("-f").arg(config);
            Ok(command)
        },
        metered: |process, _, places| {
            ended(process)?;
            // The plugin writes its cache after its parent has ended.
            let path = places.scratch.join("pmacct.csv");
            for _ in 0..50 {
                if path.exists() {
                    break;
                }
                sleep(Duration::from_millis(100));
            }
            sleep(Duration::from_millis(500));
            let text = std::fs::read_to_string(path).context("pmacctd wrote nothing")?;
            csv_sum(&text, "PACKETS")
        },
    },
    Subject {
        label: "barewire afpacket:, IPFIX",
        command: |places| barewire(places, "afpacket:", ""),
        metered: |process, _, _| barewire_metered(process),
    },
    Subject {
        label: "barewire afxdp: native, IPFIX",
        command: |places| barewire(places, "afxdp:", "?attach=native"),
        metered: |process, _, _| barewire_metered(process),
    },
];

fn barewire(places: &Places<'_>, scheme: &str, options: &str) -> Result<Command> {
    let mut command = Command::new(program::barewire()?);
    command.args(["flows", "--json", "--table-size", "100k", "--export"]);
    command.arg(format!("ipfix:udp://127.0.0.1:{}", places.collector));
    command.arg(format!("{scheme}{}{options}", places.interface));
    Ok(command)
}

fn barewire_metered(process: Process) -> Result<u64> {
    let printed = ended(process)?;
    let summary = printed.lines().last().context("no summary")?;
    let summary: serde_json::Value = serde_json::from_str(summary)?;
    let total = &summary["account"]["total"];
    total["delivered"].as_u64().context("no account")
}

/// Ends a probe; returns its standard output.
fn ended(mut process: Process) -> Result<String> {
    let finished = process.stop(Signal::SIGINT, LIMIT)?;
    Ok(finished.stdout)
}

/// The first number after `mark`.
fn number_after(text: &str, mark: &str) -> Result<u64> {
    let line = text.lines().find_map(|line| line.split_once(mark));
    let word = line.and_then(|(_, rest)| rest.split_whitespace().next());
    let word = word.with_context(|| format!("no {mark} in: {text}"))?;
    word.parse()
        .with_context(|| format!("not a number: {word}"))
}

/// The sum of a column of a CSV text.
fn csv_sum(text: &str, column: &str) -> Result<u64> {
    let mut lines = text.lines();
    let header = lines.next().context("no header")?;
    let at = header.split(',').position(|name| name.trim() == column);
    let at = at.with_context(|| format!("no column {column} in: {header}"))?;
    Ok(lines
        .filter_map(|line| line.split(',').nth(at)?.trim().parse::<u64>().ok())
        .sum())
}

/// A directory that is deleted with its owner.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("bw-live-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(plan: &Plan) -> Result<Outcome> {
    let table = |measure, unit, more_is_better| Table {
        measure,
        unit,
        axis: "",
        more_is_better,
        reference: SUBJECTS[0].label.into(),
        series: Vec::new(),
    };
    let mut cost = table("the probe's own processor time a packet", "µs", false);
    let mut rate = table("highest rate without loss", "Mpps", true);
    let mut notes = vec![format!(
        "packets of {LEN} bytes without check sequence, {FLOWS} flows, a burst each millisecond; \
         own time at {COST_PPS} packets a second; sender on the first processor, probes on the \
         second; rates tried: {RATES:?}"
    )];
    for _ in 0..plan.rounds {
        for subject in &SUBJECTS {
            match one(subject, COST_PPS, plan.seconds) {
                Ok(outcome) => {
                    cost.add(subject.label, 0, outcome.sent.reader_us());
                    if outcome.lost() > 0 {
                        note(
                            &mut notes,
                            format!("{}: lost packets at {COST_PPS} a second", subject.label),
                        );
                    }
                }
                Err(error) => note(&mut notes, format!("{}: {error:#}", subject.label)),
            }
            match highest(subject, plan.seconds) {
                Ok(mpps) => rate.add(subject.label, 0, mpps),
                Err(error) => note(&mut notes, format!("{}: {error:#}", subject.label)),
            }
        }
    }
    Ok(Outcome {
        tables: vec![cost, rate],
        notes,
    })
}

fn note(notes: &mut Vec<String>, text: String) {
    eprintln!("{text}");
    if !notes.contains(&text) {
        notes.push(text);
    }
}

/// How many packets were sent, and how many of them a probe metered.
struct Run {
    sent: Sent,
    metered: u64,
}

impl Run {
    fn lost(&self) -> u64 {
        self.sent.all.saturating_sub(self.metered)
    }
}

/// The highest rate without loss, in millions of packets per second; 0 if every rate loses.
fn highest(subject: &Subject, seconds: f64) -> Result<f64> {
    for pps in RATES {
        let run = one(subject, pps, seconds)?;
        let offered = run.sent.pps();
        if run.lost() == 0 && offered >= f64::from(pps) * OFFERED {
            return Ok(offered / 1e6);
        }
    }
    Ok(0.0)
}

fn one(subject: &Subject, pps: u32, seconds: f64) -> Result<Run> {
    let pair = Veth::new().create()?;
    let scratch = Scratch::new()?;
    let sink = pair.right.ns.run(|| UdpSocket::bind("127.0.0.1:0"))??;
    let places = Places {
        interface: &pair.right.ifname,
        scratch: &scratch.0,
        collector: sink.local_addr()?.port(),
    };
    let wanted = (subject.command)(&places)?;
    let mut command: Command = pair.right.ns.command("taskset");
    command.args(["-c", "1"]).arg(wanted.get_program());
    command.args(wanted.get_args());
    let mut process = Process::spawn(&mut command)?;
    sleep(Duration::from_millis(1_000));
    if !process.running()? {
        let finished = process.wait(Duration::from_secs(1))?;
        anyhow::bail!("ended at once: {}{}", finished.stdout, finished.stderr);
    }
    let load = Load {
        scheme: "afpacket",
        len: LEN,
        flows: FLOWS,
        pps,
        seconds,
    };
    let sent = bursts::send(&pair, load, Some(process.pid()))?;
    // Probes read in blocks, some only a few times a second.
    sleep(Duration::from_millis(1_500));
    let metered = (subject.metered)(process, &pair, &places)?;
    ensure!(metered > 0, "it metered nothing");
    Ok(Run { sent, metered })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_parsed_from_the_output_of_probes() {
        let text = "Number of active flows: 3\nPackets processed: 1234\n";
        assert_eq!(number_after(text, "Packets processed:").unwrap(), 1234);
        assert!(number_after(text, "Bytes:").is_err());
        let csv = "SRC_IP,PACKETS,BYTES\n10.0.0.1,5,300\n10.0.0.2,7,420\n";
        assert_eq!(csv_sum(csv, "PACKETS").unwrap(), 12);
        assert!(csv_sum(csv, "FLOWS").is_err());
    }
}
