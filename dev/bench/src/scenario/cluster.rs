//! `cluster`: queues between processes. The cost of a hop in batches of 32, of each further
//! consumer of the same frames, the rate at which a cluster balances packets from memory, and the
//! processor time of tcpdump on a queue.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::dropin::{Dropin, original};
use lab::process::{Process, Signal};
use lab::veth::{Pair, Veth};
use nix::sys::resource::{UsageWho, getrusage};
use port::PortOptions;
use runtime::Stop;
use runtime::cluster::{self, Application, Setup};
use runtime::filter::Expression;

use super::{Plan, Scenario};
use crate::bursts::{self, Load};
use crate::hop::{self, BATCH, Hop};
use crate::rounds::{Outcome, Table};
use crate::{program, workload};

/// The row in the table.
pub const SCENARIO: Scenario = Scenario {
    name: "cluster",
    summary: "queues between processes: a hop, fan-out, balancing, tcpdump on a queue",
    run,
};

/// Instances that packets are balanced to.
const INSTANCES: u32 = 4;
/// Flows of the balanced packets.
const FLOWS: u32 = 10_000;
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
    let mut rate = table("packets balanced to 4 consumers", "Mpps", "flow");
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
        for balance in ["flow", "round-robin"] {
            rate.add(balance, 0, balanced(&file.0, count, balance)?);
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
             to 74 bytes, which are read, copied into the pool, dissected and handed to 4 reading \
             processes; packets by the processor time of the owner's process"
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

/// A capture file in memory, deleted on drop.
struct Input(PathBuf);

impl Input {
    fn new(count: u64) -> Result<Self> {
        let input = Self(format!("/dev/shm/bw-cluster-{}.pcap", std::process::id()).into());
        workload::many_flows(&input.0, u32::try_from(count)?, FLOWS)?;
        Ok(input)
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Processes that are killed and waited for on drop.
struct Readers(Vec<Child>);

impl Drop for Readers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Processor time of this process in seconds.
fn own_time() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).context("getrusage")?;
    let seconds =
        |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// Millions of packets per second of the owner's processor time.
fn balanced(file: &Path, count: u64, balance: &str) -> Result<f64> {
    let application = Application {
        balance: cluster::Balance::parse(balance).map_err(anyhow::Error::msg)?,
        ..Application::new("all", INSTANCES)
    };
    let opened = cluster::open(&Setup {
        name: format!("bench-{}", std::process::id()),
        inputs: vec![file.display().to_string()],
        applications: vec![application],
        ring_len: 4096,
        filter: Expression::default(),
        merge: None,
        returns: Vec::new(),
        options: PortOptions::default(),
        allow: Vec::new(),
        user: None,
    })?;
    let mut readers = Readers(Vec::new());
    for _ in 0..INSTANCES {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--hop-reader").arg(opened.path()).arg("1");
        readers.0.push(command.spawn()?);
    }
    let options = cluster::Options {
        cpu: Some(0),
        ..cluster::Options::default()
    };
    let before = own_time()?;
    let outcome = cluster::run(opened, &options, &Stop::new(), |_| {});
    let spent = own_time()? - before;
    for reader in &mut readers.0 {
        ensure!(reader.wait()?.success(), "a reader failed");
    }
    let delivered: u64 = outcome
        .queues
        .iter()
        .map(|queue| queue.counts.returned)
        .sum();
    ensure!(
        delivered == count && outcome.imbalance() == 0,
        "{outcome:?}"
    );
    Ok(count as f64 / spent / 1e6)
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
