//! `cluster`: queues between processes. The cost of a hop in batches of 32, of each further
//! consumer of the same frames, the rate at which a cluster balances packets from memory, and the
//! processor time of tcpdump on a queue.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use lab::dropin::{Dropin, original};
use lab::process::{Process, Signal};
use lab::veth::{Pair, Veth};

use super::{Plan, Scenario};
use crate::balance::{self, BURST, FLOWS, Input, Source};
use crate::bursts::{self, Load};
use crate::hop::{self, BATCH, Hop};
use crate::program;
use crate::rounds::{Outcome, Table};

/// The row in the table.
pub const SCENARIO: Scenario = Scenario {
    name: "cluster",
    summary: "queues between processes: a hop, fan-out, balancing, tcpdump on a queue",
    run,
};

/// Packets per second at which tcpdump is measured.
const TCPDUMP_PPS: u32 = 200_000;
/// How long programs may take to start and to end.
const LIMIT: Duration = Duration::from_secs(30);

/// Parts of a hop: label, and the function whose instructions count.
const PARTS: [(&str, &str); 4] = [
    ("owner: take a frame", "take_frames"),
    ("owner: hand over", "hand_batch"),
    ("consumer: receive, return", "read_batch"),
    ("owner: collect", "collect_batch"),
];

fn table(measure: &'static str, unit: &'static str, reference: &str) -> Table {
    Table {
        measure,
        unit,
        axis: "",
        more_is_better: unit == "Mpps",
        reference: reference.into(),
        series: Vec::new(),
    }
}

fn run(plan: &Plan) -> Result<Outcome> {
    let mut instructions = table("instructions a packet", "instructions", PARTS[1].0);
    let mut time = table("time a packet", "ns", "plain ring, two threads");
    let mut extra = table(
        "time for each further consumer",
        "ns",
        "2nd and 3rd consumer",
    );
    let mut rate = table("packets balanced to 4 consumers", "Mpps", BY_FLOW);
    let mut cost = table("tcpdump: own processor time a packet", "µs", ORIGINAL);
    let ours = std::env::current_exe()?;
    for consumers in [1, 3] {
        for (label, function) in PARTS {
            let run = |rounds: &str| {
                let args = ["--hop", &consumers.to_string(), rounds];
                program::instructions_in(&ours, &args, function)
            };
            let (few, many) = (run("33")?, run("133")?);
            let each = (many - few) as f64 / (100 * BATCH) as f64;
            let label = match consumers {
                1 => label.to_owned(),
                _ => format!("{label}, {consumers} consumers"),
            };
            instructions.add(&label, 0, each);
        }
    }
    let count = ((plan.seconds * 5e6) as u64).next_multiple_of(BATCH as u64);
    let file = Input::new(count)?;
    for _ in 0..plan.rounds {
        time.add("plain ring, two threads", 0, hop::plain_ring(count)?);
        time.add("hop, two processes", 0, hop::between_processes(count)?);
        let rounds = count as usize / BATCH;
        let one = Hop::new(1)?.time(rounds)?;
        let three = Hop::new(3)?.time(rounds)?;
        time.add("hop, both ends on one core", 0, one);
        time.add("hop to 3 consumers, all ends on one core", 0, three);
        extra.add("2nd and 3rd consumer", 0, (three - one) / 2.0);
        for (label, source, by) in balanced(&file) {
            rate.add(label, 0, balance::rate(source, count, by)?);
        }
        for subject in SUBJECTS {
            cost.add(subject.label, 0, tcpdump(subject, plan.seconds)?);
        }
    }
    Ok(Outcome {
        tables: vec![instructions, time, extra, rate, cost],
        notes: notes(),
    })
}

const BY_FLOW: &str = "file, by flow";

/// What is balanced, and how: label, packets, `--balance`.
fn balanced(file: &Input) -> [(&'static str, Source<'_>, &'static str); 4] {
    let source = Source::File(&file.0);
    [
        (BY_FLOW, source, "flow"),
        ("file, round-robin", source, "round-robin"),
        ("frames of the pool, by flow", Source::Frames, "flow"),
        (
            "frames of the pool, round-robin",
            Source::Frames,
            "round-robin",
        ),
    ]
}

/// The rates of balancing and the cost of tcpdump, once each: for a profiler.
///
/// # Errors
/// As [`balance::rate`], or if tcpdump lost a packet.
pub fn alone(label: &str, seconds: f64) -> Result<()> {
    let count = (seconds * 5e6) as u64;
    let file = Input::new(count)?;
    for (its, source, by) in balanced(&file) {
        if its.contains(label) {
            println!("{its}: {:.2} Mpps", balance::rate(source, count, by)?);
        }
    }
    for subject in SUBJECTS {
        if subject.label.contains(label) {
            println!("{}: {:.4} µs", subject.label, tcpdump(subject, seconds)?);
        }
    }
    Ok(())
}

fn notes() -> Vec<String> {
    vec![
        "instructions by callgrind within the calls of each side, the difference of 133 and 33 \
         batches of 32"
            .into(),
        "a hop: the owner takes a free frame, hands it over, the consumer receives and returns \
         it, the owner collects it; with the tables of owners and holders, in batches of 32; a \
         plain ring only moves descriptors"
            .into(),
        format!(
            "balanced: `cluster run` of a file in memory (/dev/shm), {FLOWS} flows, packets of 60 \
             to 74 bytes, which are read, copied into the pool, hashed and handed to 4 reading \
             processes that share the other processor; or of `memory:`, where a thread on that \
             processor has written {BURST} packets at a time into frames of the pool, as a card \
             does, so that they are not copied; packets by the processor time of the owner's \
             process without that thread"
        ),
        format!(
            "tcpdump -w /dev/null at {TCPDUMP_PPS} packets a second of 60 bytes: its own processor \
             time; on a queue the cluster's process has its own, which all readers share"
        ),
    ]
}

/// Passes batches to `consumers` in this process: the subject of callgrind.
///
/// # Errors
/// If packets were lost.
pub fn pass(consumers: &str, rounds: &str) -> Result<()> {
    Hop::new(consumers.parse()?)?.rounds(rounds.parse()?)
}

const ORIGINAL: &str = "original library, interface";

/// What tcpdump reads, and by which library.
struct Subject {
    label: &'static str,
    /// Whether it runs on this build's library.
    is_dropin: bool,
    /// The device, from the interface's name.
    device: fn(&str) -> String,
    /// Whether a cluster receives from the interface.
    has_cluster: bool,
}

const SUBJECTS: &[Subject] = &[
    Subject {
        label: ORIGINAL,
        is_dropin: false,
        device: |interface| interface.to_owned(),
        has_cluster: false,
    },
    Subject {
        label: "drop-in, afpacket:",
        is_dropin: true,
        device: |interface| format!("afpacket:{interface}"),
        has_cluster: false,
    },
    Subject {
        label: "drop-in, queue of a cluster",
        is_dropin: true,
        device: |interface| format!("ring:bench-{interface}"),
        has_cluster: true,
    },
];

/// tcpdump's own processor time a packet, in microseconds.
fn tcpdump(subject: &Subject, seconds: f64) -> Result<f64> {
    let pair = Veth::new().create()?;
    let interface = pair.right.ifname.as_str();
    let cluster = match subject.has_cluster {
        true => Some(start_cluster(&pair)?),
        false => None,
    };
    let dropin = Dropin::new()?;
    let device = (subject.device)(interface);
    let wanted = match subject.is_dropin {
        true => dropin.command("tcpdump"),
        false => original("tcpdump"),
    };
    let mut command: Command = pair.right.ns.command("taskset");
    command.args(["-c", "1"]).arg(wanted.get_program());
    // KiB: with the usual 2 MiB the original library loses packets at this rate.
    command.args(["-i", &device, "-B", "65536"]);
    command.args(["-n", "-w", "/dev/null", "-Z", "root"]);
    for (name, value) in wanted.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut process = Process::spawn(&mut command)?;
    process.wait_stderr("listening on", LIMIT)?;
    let load = Load {
        scheme: "afpacket",
        len: 60,
        flows: 1_000,
        pps: TCPDUMP_PPS,
        seconds,
    };
    let sent = bursts::send(&pair, load, Some(process.pid()))?;
    std::thread::sleep(Duration::from_millis(1_500));
    let finished = process.stop(Signal::SIGINT, LIMIT)?;
    let number = |text: &str| text.split_whitespace().next()?.parse::<u64>().ok();
    let captured = finished
        .stderr
        .lines()
        .find(|line| line.contains(" captured"));
    let captured = captured.and_then(number).unwrap_or_default();
    ensure!(
        captured == sent.all,
        "{captured} of {}: {}",
        sent.all,
        finished.stderr
    );
    if let Some(mut cluster) = cluster {
        cluster.stop(Signal::SIGINT, LIMIT)?;
    }
    Ok(sent.reader_us())
}

fn start_cluster(pair: &Pair) -> Result<Process> {
    let interface = &pair.right.ifname;
    let mut command = pair.right.ns.command("taskset");
    command.args(["-c", "0"]).arg(program::barewire()?);
    command.args(["cluster", "run", "--name", &format!("bench-{interface}")]);
    command.args(["--ring", "65536", interface]);
    let process = Process::spawn(&mut command)?;
    process.wait_stderr("open ring:", LIMIT)?;
    Ok(process)
}
