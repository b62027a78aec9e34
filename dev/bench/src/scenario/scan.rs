//! `scan`: processor time of a SYN sent over veth. `scan-answers`: which answers are reported, by
//! rate.
//!
//! Offloads stay as the kernel sets them. For the cost, SYNs go to the MAC address of another
//! station, so that the far end's IP layer drops them first thing; its interface counts them.
//! Processor time is that of the program with all its threads on one core, and that of ksoftirqd,
//! which takes over receiving if the sender's own softirqs last too long. It is the difference of
//! two lengths, so that start and end do not count.
//!
//! For the answers, the far end has a listener on [`HOSTS`] addresses. An answer that is missing is
//! lost silently, unless the program says how many packets were lost.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::process::Process;
use lab::veth::{Pair, Veth};
use serde_json::Value;

use super::{Plan, Scenario};
use crate::rounds::{Outcome, Table};
use crate::{bursts, cpu, link, program};

/// The row of the cost.
pub const COST: Scenario = Scenario {
    name: "scan",
    summary: "scanning over veth: processor time of a SYN on one core",
    run: cost,
};

/// The row of the answers.
pub const ANSWERS: Scenario = Scenario {
    name: "scan-answers",
    summary: "scanning over veth: answers reported, and missing silently, by rate",
    run: answers,
};

/// Number of addresses with a listener: [`NETWORK`].
const HOSTS: u32 = 1024;
const NETWORK: &str = "198.18.4.0/22";
/// Rates of the answers, in SYNs per second.
const RATES: [u32; 4] = [1_000, 5_000, 20_000, 200_000];
/// A rate that no sender reaches.
const MAX: u32 = 100_000_000;
/// The core of the senders, as `taskset` takes it.
const CPU: &str = "1";
/// How long a program may take.
const LIMIT: Duration = Duration::from_secs(60);

/// What to send.
struct Load {
    targets: &'static str,
    /// Number of ports, from 80 on. zmap, which has one port, sends as many SYNs to that.
    ports: u16,
    /// SYNs per second.
    rate: u32,
    /// Seconds to wait for answers to the last SYNs.
    wait: u32,
    /// The router's MAC address.
    router: [u8; 6],
}

impl Load {
    fn ports(&self) -> String {
        match self.ports {
            1 => "80".into(),
            count => format!("80-{}", 79 + count),
        }
    }

    fn router(&self) -> String {
        self.router.map(|byte| format!("{byte:02x}")).join(":")
    }
}

/// Answers that a program reports, and how many packets it says were lost.
#[derive(Debug, PartialEq)]
struct Found {
    answers: u64,
    lost: Option<u64>,
}

/// A scanner.
struct Subject {
    label: &'static str,
    program: fn() -> Result<PathBuf>,
    args: fn(&Pair, &Load) -> Vec<String>,
    found: fn(&str) -> Result<Found>,
}

const OURS: &str = "barewire afxdp:";

const SUBJECTS: [Subject; 4] = [
    Subject {
        label: OURS,
        program: program::barewire,
        args: |pair, load| barewire("afxdp", pair, load),
        found: json,
    },
    Subject {
        label: "barewire afpacket:",
        program: program::barewire,
        args: |pair, load| barewire("afpacket", pair, load),
        found: json,
    },
    Subject {
        label: "masscan",
        program: || program::installed("masscan"),
        args: masscan,
        found: |text| Ok(lines(text, "open tcp ")),
    },
    Subject {
        label: "zmap",
        program: || program::installed("zmap"),
        args: zmap,
        found: |text| Ok(lines(text, "198.18.")),
    },
];

/// The programs that are installed, and a note on each other.
fn subjects(notes: &mut Vec<String>) -> Vec<(&'static Subject, PathBuf)> {
    let mut found = Vec::new();
    for subject in &SUBJECTS {
        match (subject.program)() {
            Ok(path) => found.push((subject, path)),
            Err(error) => {
                eprintln!("SKIPPED: {}: {error:#}", subject.label);
                notes.push(format!("skipped: {error:#}"));
            }
        }
    }
    found
}

fn cost(plan: &Plan) -> Result<Outcome> {
    let mut table = table("processor time of a SYN, one core", "ns", false);
    // One SYN a port to each of 65,536 addresses.
    let lengths = if plan.quick { [1, 2] } else { [4, 20] };
    let mut notes = vec![format!(
        "difference of {} and {} SYNs to 65,536 addresses, at maximum rate on processor {CPU}; \
         offloads of veth as the kernel sets them",
        u64::from(lengths[1]) << 16,
        u64::from(lengths[0]) << 16
    )];
    let subjects = subjects(&mut notes);
    for _ in 0..plan.rounds {
        for (subject, path) in &subjects {
            let (short_ns, short) = cost_ns(subject, path, lengths[0])?;
            let (long_ns, long) = cost_ns(subject, path, lengths[1])?;
            let ns = (long_ns - short_ns) / long.saturating_sub(short) as f64;
            table.add(subject.label, 0, ns);
        }
    }
    Ok(Outcome {
        tables: vec![table],
        notes,
    })
}

fn answers(plan: &Plan) -> Result<Outcome> {
    let mut reported = table("answers reported of 1024", "answers", true);
    let mut silent = table(
        "answers missing beyond the losses reported",
        "answers",
        false,
    );
    for table in [&mut reported, &mut silent] {
        table.axis = "SYNs a second";
    }
    let mut notes = Vec::new();
    let subjects = subjects(&mut notes);
    for _ in 0..plan.rounds {
        for rate in RATES {
            for (subject, path) in &subjects {
                let Found { answers, lost } = answered(subject, path, rate)?;
                reported.add(subject.label, rate, answers as f64);
                let missing = u64::from(HOSTS).saturating_sub(answers + lost.unwrap_or(0));
                silent.add(subject.label, rate, missing as f64);
                if let Some(lost) = lost.filter(|lost| *lost > 0) {
                    notes.push(format!(
                        "{} at {rate} SYNs a second: {answers} answers, {lost} packets lost",
                        subject.label
                    ));
                }
            }
        }
    }
    notes.push("offloads of veth as the kernel sets them; a second of waiting, or more".into());
    Ok(Outcome {
        tables: vec![reported, silent],
        notes,
    })
}

fn table(measure: &'static str, unit: &'static str, more_is_better: bool) -> Table {
    Table {
        measure,
        unit,
        axis: "",
        more_is_better,
        reference: OURS.into(),
        series: Vec::new(),
    }
}

fn pair() -> Result<Pair> {
    Veth::new().offloads().vlan_offload().create()
}

/// Nanoseconds of processor time of a run, and how many SYNs arrived.
fn cost_ns(subject: &Subject, path: &PathBuf, ports: u16) -> Result<(f64, u64)> {
    let pair = pair()?;
    let load = Load {
        targets: "198.18.0.0/16",
        ports,
        rate: MAX,
        wait: 0,
        // Another station: the far end drops the packets before it looks for a route.
        router: [2, 0, 0, 0, 0, 9],
    };
    let mut command = pair.left.ns.command("taskset");
    command.args(["-c", CPU]).arg(path);
    command.args((subject.args)(&pair, &load));
    let softirq = bursts::packet_threads()?;
    let arrived = link::stats(&pair.right)?.rx_packets;
    let (own_s, kernel_ns) = (cpu::of_children()?, bursts::sum_ns(&softirq)?);
    ended(subject, &pair, &mut command)?;
    let own_ns = (cpu::of_children()? - own_s) * 1e9;
    let kernel_ns = bursts::sum_ns(&softirq)? - kernel_ns;
    let arrived = link::stats(&pair.right)?.rx_packets - arrived;
    let sent = u64::from(load.ports) << 16;
    ensure!(
        arrived >= sent - sent / 100 && arrived <= sent + 100,
        "{}: {arrived} of {sent} SYNs arrived",
        subject.label
    );
    Ok((own_ns + kernel_ns as f64, arrived))
}

/// Scans the listeners at this rate.
fn answered(subject: &Subject, path: &PathBuf, rate: u32) -> Result<Found> {
    let pair = pair()?;
    let (left, right) = (&pair.left, &pair.right);
    right
        .ns
        .ip(["route", "add", "local", NETWORK, "dev", "lo"])?;
    let router = right.ipv4.to_string();
    left.ns.ip(["route", "add", NETWORK, "via", &router])?;
    let listen = || std::net::TcpListener::bind(("0.0.0.0", 80));
    let _listener = right.ns.run(listen)??;
    let load = Load {
        targets: NETWORK,
        ports: 1,
        rate,
        wait: 1,
        router: right.mac,
    };
    let mut command = left.ns.command(path);
    let stdout = ended(subject, &pair, command.args((subject.args)(&pair, &load)))?;
    (subject.found)(&stdout).with_context(|| stdout)
}

/// Runs a program at the left end to its end; its standard output. Lost packets are an exit code of
/// barewire.
///
/// The right end sends a datagram five times a second: on a silent interface, masscan 1.3.2 does
/// not end.
fn ended(subject: &Subject, pair: &Pair, command: &mut Command) -> Result<String> {
    let open = || std::net::UdpSocket::bind(("0.0.0.0", 0));
    let socket = pair.right.ns.run(open)??;
    let mut process = Process::spawn(command)?;
    let since = Instant::now();
    while process.running()? && since.elapsed() < LIMIT {
        // The answer is an ICMP error, which a later call returns.
        let _ = socket.send_to(&[0], (pair.left.ipv4, 9));
        std::thread::sleep(Duration::from_millis(200));
    }
    let finished = process.wait(Duration::from_secs(1))?;
    if finished.code() == Some(LOST) {
        return Ok(finished.stdout);
    }
    Ok(finished.checked().context(subject.label)?.stdout)
}

/// The exit code of barewire if packets were lost.
const LOST: i32 = 5;

fn strings<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

fn barewire(scheme: &str, pair: &Pair, load: &Load) -> Vec<String> {
    strings([
        "scan",
        load.targets,
        "-p",
        &load.ports(),
        "-e",
        &format!("{scheme}:{}", pair.left.ifname),
        "--queues",
        "1",
        "--rate",
        &load.rate.to_string(),
        "--yes",
        "--wait",
        // 0 is refused.
        &format!("{}ms", (load.wait * 1000).max(1)),
        "--router-mac",
        &load.router(),
        "--json",
    ])
}

fn masscan(pair: &Pair, load: &Load) -> Vec<String> {
    strings([
        load.targets,
        "-p",
        &load.ports(),
        "-e",
        &pair.left.ifname,
        "--source-ip",
        &pair.left.ipv4.to_string(),
        "--source-port",
        "61000",
        "--router-mac",
        &load.router().replace(':', "-"),
        "--rate",
        &load.rate.to_string(),
        "--wait",
        &load.wait.to_string(),
        "-oL",
        "-",
    ])
}

/// Without its configuration file, and without its list of reserved addresses.
fn zmap(pair: &Pair, load: &Load) -> Vec<String> {
    strings([
        "-C",
        "/dev/null",
        "-b",
        "/dev/null",
        "-i",
        &pair.left.ifname,
        "-S",
        &pair.left.ipv4.to_string(),
        "-G",
        &load.router(),
        "-r",
        &load.rate.to_string(),
        "-c",
        &load.wait.to_string(),
        "-T",
        "1",
        "-P",
        &load.ports.to_string(),
        "-p",
        "80",
        "--disable-syslog",
        "-q",
        "-o",
        "-",
        load.targets,
    ])
}

/// The lines of `--json`.
fn json(text: &str) -> Result<Found> {
    let mut found = Found {
        answers: 0,
        lost: None,
    };
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        match line["type"].as_str() {
            Some("answer") => found.answers += 1,
            Some("totals") => found.lost = line["lost"].as_u64(),
            _ => {}
        }
    }
    ensure!(found.lost.is_some(), "no totals");
    Ok(found)
}

/// A line for each answer, which starts so.
fn lines(text: &str, start: &str) -> Found {
    let mut answers: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with(start))
        .collect();
    answers.sort_unstable();
    answers.dedup();
    Found {
        answers: answers.len() as u64,
        lost: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_and_losses_are_read_from_outputs() {
        let text = "{\"type\":\"answer\"}\n{\"type\":\"rate\"}\n{\"type\":\"answer\"}\n\
                    {\"type\":\"totals\",\"lost\":7}\n";
        let lost = Some(7);
        assert_eq!(json(text).unwrap(), Found { answers: 2, lost });
        assert!(json("{\"type\":\"answer\"}\n").is_err());
        let text = "#masscan\nopen tcp 80 198.18.4.1 1700000000\n\
                    open tcp 80 198.18.4.2 1700000000\n# end\n";
        assert_eq!(lines(text, "open tcp ").answers, 2);
        let text = "saddr\n198.18.4.1\n198.18.4.2\n198.18.4.1\n";
        let lost = None;
        assert_eq!(lines(text, "198.18."), Found { answers: 2, lost });
    }
}
