//! `capture`: the cost of receiving and writing to `/dev/null` by packet size, and the highest rate
//! without loss. Figures 4 and 5 of the zero-copy paper, redrawn.
//!
//! The cost is the processor time of sender, kernel and reader together while packets arrive at a
//! fixed rate, less that of the same sending without a receiver, per packet. It includes all
//! processes and the kernel. "Nobody" is measured before and after the readers of a round.
//!
//! A veth pair has no DMA and copies in every mode. The cost of a mode depends on how packets
//! enter: as socket buffers (an AF_PACKET sender) or as XDP frames (`xdplive:`), so both are
//! measured.

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::process::{Process, Signal};
use lab::veth::{Pair, Veth};

use super::{Plan, Scenario};
use crate::bursts::Load;
use crate::rounds::{Outcome, Table};
use crate::{bursts, link, program};

/// The row in the table.
pub const SCENARIO: Scenario = Scenario {
    name: "capture",
    summary: "added processor time a packet and highest rate without loss, by packet size",
    run,
};

/// Packet sizes with FCS, as in the paper; 4 bytes less are sent.
const SIZES: [u32; 7] = [64, 128, 256, 512, 1024, 1514, 9000];
/// Sizes at which the highest rate is measured.
const RATE_SIZES: [u32; 4] = [64, 512, 1514, 9000];
/// Maximum length of a packet sent as one XDP frame by `xdplive:`.
const XDP_FRAME_MAX: u32 = 3300;
/// Packets per second at which the cost is measured: low enough that no candidate loses any.
const COST_PPS: u32 = 200_000;
/// Rates tried for the highest without loss, starting with the maximum.
const RATES: [&str; 8] = [
    "max", "1500kpps", "1Mpps", "800kpps", "600kpps", "400kpps", "200kpps", "80kpps",
];

/// How packets enter.
#[derive(Clone, Copy)]
struct Sender {
    scheme: &'static str,
    cost: &'static str,
    rate: &'static str,
}

const SENDERS: [Sender; 2] = [
    Sender {
        scheme: "afpacket",
        cost: "added processor time a packet, packets sent as socket buffers",
        rate: "highest rate without loss, packets sent as socket buffers",
    },
    Sender {
        scheme: "xdplive",
        cost: "added processor time a packet, packets sent as XDP frames",
        rate: "highest rate without loss, packets sent as XDP frames",
    },
];

/// A receiver.
struct Subject {
    label: &'static str,
    /// Program and arguments; `None`: no receiver.
    args: Vec<String>,
    /// The signal that ends it.
    signal: Signal,
    /// How long after the last packet it is ended: programs that collect packets lose those they
    /// have not read.
    drain: Duration,
    /// Finds the number of packets in its output.
    received: fn(&str) -> Option<u64>,
}

const NOBODY: &str = "nobody";

fn run(plan: &Plan) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let chosen: Vec<u32> = plan.sizes.clone();
    let sizes: &[u32] = match (plan.quick, chosen.is_empty()) {
        (true, true) => &[64, 1514],
        (false, true) => &SIZES,
        (_, false) => &chosen,
    };
    for sender in SENDERS {
        let mut cost = table(sender.cost, "µs", false);
        let mut rate = table(sender.rate, "Mpps", true);
        for &size in sizes {
            for round in 0..plan.rounds {
                measure(
                    plan,
                    sender,
                    size,
                    round == 0,
                    &mut cost,
                    &mut rate,
                    &mut outcome.notes,
                )?;
            }
        }
        outcome.tables.extend([cost, rate]);
    }
    outcome.notes.push(format!(
        "cost at {COST_PPS} packets a second, sent a burst each millisecond; packets for another \
         station, as a mirror port carries them; a pair for \
         packets of 9000 bytes has an MTU of 9000, the others 1500"
    ));
    Ok(outcome)
}

fn table(measure: &'static str, unit: &'static str, more_is_better: bool) -> Table {
    let reference = "tcpdump".into();
    let axis = "packet size in bytes";
    Table {
        measure,
        unit,
        axis,
        more_is_better,
        reference,
        series: Vec::new(),
    }
}

fn measure(
    plan: &Plan,
    sender: Sender,
    size: u32,
    with_rates: bool,
    cost: &mut Table,
    rate: &mut Table,
    notes: &mut Vec<String>,
) -> Result<()> {
    if sender.scheme == "xdplive" && size > XDP_FRAME_MAX {
        let text = format!("no XDP frames of {size} bytes: one is at most a page");
        note(notes, text);
        return Ok(());
    }
    let subjects = subjects("right0")?;
    let mut base = Vec::new();
    let mut found = Vec::new();
    for subject in subjects.iter().chain(subjects.first()) {
        let one = costs(plan, sender, size, subject);
        match one {
            Ok((busy_us, _)) if subject.label == NOBODY => base.push(busy_us),
            Ok((busy_us, lost)) => {
                found.push((subject.label, busy_us));
                if lost > 0 {
                    let at = format!("{COST_PPS} packets of {size} bytes a second");
                    note(notes, format!("{}: lost {lost} at {at}", subject.label));
                }
            }
            Err(error) => {
                found.push((subject.label, f64::NAN));
                let label = subject.label;
                note(notes, format!("{label} at {size} bytes: {error:#}"));
                continue;
            }
        }
        if with_rates && RATE_SIZES.contains(&size) && subject.label != NOBODY {
            rate.add(subject.label, size, highest(plan, sender, size, subject)?);
        }
    }
    let base_us = base.iter().sum::<f64>() / base.len() as f64;
    for (label, busy_us) in found {
        cost.add(label, size, busy_us - base_us);
    }
    Ok(())
}

/// Processor time per packet in microseconds, and packets lost.
fn costs(plan: &Plan, sender: Sender, size: u32, subject: &Subject) -> Result<(f64, u64)> {
    let pair = pair(sender, size)?;
    let mut reader = start_reader(&pair, subject)?;
    let load = Load {
        scheme: sender.scheme,
        len: size.min(9_004) as usize - 4,
        flows: 1,
        pps: COST_PPS,
        seconds: plan.seconds,
    };
    let sent = bursts::send(&pair, load, reader.as_ref().map(Process::pid))?;
    let received = match &mut reader {
        Some(reader) => count(reader, subject)?,
        None => sent.all,
    };
    Ok((sent.busy_us(), sent.all.saturating_sub(received)))
}

fn note(notes: &mut Vec<String>, text: String) {
    eprintln!("{text}");
    if !notes.contains(&text) {
        notes.push(text);
    }
}

/// The first rate, from the highest down, without loss; 0 if there is none.
fn highest(plan: &Plan, sender: Sender, size: u32, subject: &Subject) -> Result<f64> {
    for rate in RATES {
        match one(plan, sender, size, subject, rate) {
            Ok(run) if run.lost() == 0 => return Ok(run.mpps),
            Ok(_) => {}
            Err(error) => eprintln!("{} at {size} bytes and {rate}: {error:#}", subject.label),
        }
    }
    Ok(0.0)
}

/// The result of one run at a rate.
struct Run {
    /// Packets per second in the window, in millions.
    mpps: f64,
    sent: u64,
    received: u64,
}

impl Run {
    fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.received)
    }
}

fn pair(sender: Sender, size: u32) -> Result<Pair> {
    let mut veth = Veth::new().mtu(if size > 1514 { 9000 } else { 1500 });
    if sender.scheme == "xdplive" {
        // XDP frames are accepted only if the peer polls: a program, or GRO.
        veth = veth.gro();
    }
    veth.create()
}

fn one(plan: &Plan, sender: Sender, size: u32, subject: &Subject, rate: &str) -> Result<Run> {
    let pair = pair(sender, size)?;
    let mut reader = start_reader(&pair, subject)?.context("nobody has no rate")?;
    let first = link::stats(&pair.right)?;
    let mut source = start_sender(&pair, sender, size, rate, plan.seconds + 0.6)?;
    sleep(Duration::from_millis(350));
    let (start, before) = (Instant::now(), link::stats(&pair.right)?);
    sleep(Duration::from_secs_f64(plan.seconds));
    let (elapsed, after) = (start.elapsed(), link::stats(&pair.right)?);
    source.wait(Duration::from_secs(10))?.checked()?;
    let sent = link::stats(&pair.right)?.rx_packets - first.rx_packets;
    let packets = after.rx_packets - before.rx_packets;
    ensure!(packets > 0, "nothing arrived in the window");
    Ok(Run {
        mpps: packets as f64 / elapsed.as_secs_f64() / 1e6,
        sent,
        received: count(&mut reader, subject)?,
    })
}

/// Ends a reader and parses the number of received packets from its output.
fn count(reader: &mut Process, subject: &Subject) -> Result<u64> {
    sleep(subject.drain);
    let finished = reader.stop(subject.signal, Duration::from_secs(10))?;
    let status = finished.status;
    let printed = finished.stdout + &finished.stderr;
    let received = (subject.received)(&printed)
        .with_context(|| format!("{status}, no number in: {printed}"))?;
    ensure!(received > 0, "it says that it received nothing");
    Ok(received)
}

fn start_reader(pair: &Pair, subject: &Subject) -> Result<Option<Process>> {
    let Some((program, args)) = subject.args.split_first() else {
        return Ok(None);
    };
    let mut command: Command = pair.right.ns.command("taskset");
    command.args(["-c", "1", program]).args(args);
    let mut reader = Process::spawn(&mut command)?;
    sleep(Duration::from_millis(600));
    if !reader.running()? {
        let finished = reader.wait(Duration::from_secs(1))?;
        anyhow::bail!("ended at once: {}{}", finished.stdout, finished.stderr);
    }
    Ok(Some(reader))
}

fn start_sender(
    pair: &Pair,
    sender: Sender,
    size: u32,
    rate: &str,
    seconds: f64,
) -> Result<Process> {
    let mut command: Command = pair.left.ns.command("taskset");
    let port = format!("{}:{}", sender.scheme, pair.left.ifname);
    let len = (size.min(9_004) - 4).to_string();
    command
        .args(["-c", "0"])
        .arg(program::barewire()?)
        .args([
            "send",
            "--udp",
            "--dst-mac",
            "02:00:00:00:00:09",
            "--size",
            &len,
        ])
        .args(["--rate", rate, "--duration", &seconds.to_string(), &port]);
    Process::spawn(&mut command)
}

/// The word before `mark`, as a number.
fn number_before(text: &str, mark: &str) -> Option<u64> {
    let at = text.find(mark)?;
    text[..at].split_whitespace().last()?.parse().ok()
}

fn subjects(interface: &str) -> Result<Vec<Subject>> {
    let captured = |text: &str| number_before(text, "packets captured");
    let subject = |label, line: String| Subject {
        label,
        args: line.split_whitespace().map(str::to_owned).collect(),
        signal: Signal::SIGINT,
        drain: Duration::from_millis(1200),
        received: captured,
    };
    let ours = program::barewire()?.display().to_string();
    let mut all = vec![
        subject(NOBODY, String::new()),
        subject(
            "tcpdump",
            format!("tcpdump -i {interface} -w /dev/null -Z root"),
        ),
        Subject {
            received: |text| number_before(text, "packets incoming"),
            ..subject(
                "netsniff-ng",
                // With its default ring it is not listening yet when packets arrive.
                format!("netsniff-ng --in {interface} --out /dev/null --silent --ring-size 64MiB"),
            )
        },
    ];
    if let Ok(folder) = program::baselines() {
        let program = folder.join("baseline-netring");
        all.push(subject(
            "netring (counts)",
            format!("{} {interface}", program.display()),
        ));
    }
    for (label, port) in [
        ("barewire afpacket:", format!("afpacket:{interface}")),
        (
            "barewire afxdp: generic",
            format!("afxdp:{interface}?attach=generic"),
        ),
        (
            "barewire afxdp: native",
            format!("afxdp:{interface}?attach=native"),
        ),
    ] {
        all.push(Subject {
            drain: Duration::from_millis(150),
            ..subject(label, format!("{ours} capture {port} -w /dev/null"))
        });
    }
    Ok(all)
}
