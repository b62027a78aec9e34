//! `flows`: flow records of captures, compared with other probes, in packets per second of
//! processor time on one processor; and a meter alone in one and two threads, and with increasing
//! numbers of flows.
//!
//! Captures are taken from the directory in `BAREWIRE_WORKLOADS` (`a.pcap`, `b.pcap`, `d.pcap`);
//! missing ones are generated in the system's temporary directory, which takes some ten seconds and
//! 1.2 GB, and deleted afterwards. The one for decoders is merged from the large corpus
//! (`BAREWIRE_CORPUS`); without it its table is omitted, with a note.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::{Plan, Scenario};
use crate::rounds::{Outcome, Table};
use crate::{applications, cpu, meter, program, workload};

mod decoding;

/// The row in the table.
pub const SCENARIO: Scenario = Scenario {
    name: "flows",
    summary: "flow records of captures, beside other probes (captures from BAREWIRE_WORKLOADS, \
              or made)",
    run,
};

/// Which candidates are measured on which workload.
struct Comparison {
    file: &'static str,
    measure: &'static str,
    /// Table size, enough for all flows.
    table_size: &'static str,
    subjects: &'static [Subject],
}

/// A capture that can be generated.
struct Workload {
    compared: Comparison,
    make: fn(&Path, u32) -> Result<()>,
    packets: u32,
}

const WORKLOADS: [Workload; 3] = [
    Workload {
        compared: Comparison {
            file: "a.pcap",
            measure: "a: small packets in a tenth as many flows",
            table_size: "2M",
            subjects: &SUBJECTS,
        },
        make: |path, packets| workload::many_flows(path, packets, packets / 10),
        packets: 10_000_000,
    },
    Workload {
        compared: Comparison {
            file: "b.pcap",
            measure: "b: mixed lengths, tags, fragments",
            table_size: "512k",
            subjects: &SUBJECTS,
        },
        make: workload::mixed,
        packets: 1_000_000,
    },
    Workload {
        compared: Comparison {
            file: "d.pcap",
            measure: "d: every packet a new flow",
            table_size: "4M",
            subjects: &SUBJECTS,
        },
        make: |path, packets| workload::many_flows(path, packets, packets),
        packets: 3_000_000,
    },
];

/// Paths and ports in commands.
struct Places<'a> {
    capture: &'a Path,
    table_size: &'static str,
    scratch: &'a Path,
    /// A UDP socket that is never read.
    port: u16,
}

/// A candidate; the first that runs is the reference.
struct Subject {
    name: &'static str,
    /// Baselines take ten times as long: fewer rounds.
    is_baseline: bool,
    command: fn(&Places<'_>) -> Result<Command>,
}

const SUBJECTS: [Subject; 8] = [
    Subject {
        name: "nfpcapd",
        is_baseline: true,
        command: |places| {
            let mut command = Command::new("nfpcapd");
            command.args(["-B", "4000000", "-e", "300,60", "-t", "300", "-w"]);
            command.arg(places.scratch).arg("-r").arg(places.capture);
            Ok(command)
        },
    },
    Subject {
        name: "softflowd, IPFIX",
        is_baseline: true,
        command: |places| {
            let mut command = Command::new("softflowd");
            command.args(["-d", "-m", "4000000", "-v", "10", "-n"]);
            command.arg(format!("127.0.0.1:{}", places.port));
            command.arg("-p").arg(places.scratch.join("pid"));
            command.arg("-c").arg(places.scratch.join("ctl"));
            command.arg("-r").arg(places.capture);
            Ok(command)
        },
    },
    Subject {
        name: "argus",
        is_baseline: true,
        command: |places| {
            let mut command = Command::new("argus");
            command.args(["-X", "-S", "300", "-w", "/dev/null", "-r"]);
            command.arg(places.capture);
            Ok(command)
        },
    },
    Subject {
        name: "yaf",
        is_baseline: true,
        command: |places| {
            let mut command = Command::new("yaf");
            command.args(["--out", "/dev/null", "--in"]);
            command.arg(places.capture);
            Ok(command)
        },
    },
    Subject {
        name: "barewire, standard, IPFIX over UDP",
        is_baseline: false,
        command: |places| {
            let mut command = barewire(places)?;
            command.args(["--plain", "--top", "1", "--export"]);
            command.arg(format!("ipfix:udp://127.0.0.1:{}", places.port));
            Ok(command)
        },
    },
    decoding::EXPORTED,
    Subject {
        name: "barewire, standard",
        is_baseline: false,
        command: |places| {
            let mut command = barewire(places)?;
            command.args(["--plain", "--top", "1"]);
            Ok(command)
        },
    },
    Subject {
        name: "barewire, counters",
        is_baseline: false,
        command: |places| {
            let mut command = barewire(places)?;
            command.args(["--plain", "--top", "1", "--fields", "counters"]);
            Ok(command)
        },
    },
];

/// Rounds that include baselines.
const BASELINE_ROUNDS: usize = 2;

fn barewire(places: &Places<'_>) -> Result<Command> {
    let mut command = Command::new(program::barewire()?);
    command.args(["flows", "--table-size", places.table_size]);
    command.arg(places.capture);
    Ok(command)
}

/// A directory that is deleted with its owner.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("bw-flows-{}", std::process::id()));
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
    let scratch = Scratch::new()?;
    let given = std::env::var_os("BAREWIRE_WORKLOADS").map(PathBuf::from);
    let mut outcome = Outcome::default();
    let mut metered = None;
    for workload in &WORKLOADS {
        let path = given
            .as_ref()
            .map(|folder| folder.join(workload.compared.file));
        let path = match path.filter(|path| path.exists()) {
            Some(path) => path,
            None => {
                let packets = if plan.quick {
                    workload.packets / 50
                } else {
                    workload.packets
                };
                eprintln!(
                    "no {} in BAREWIRE_WORKLOADS: making one of {packets} packets",
                    workload.compared.file
                );
                outcome
                    .notes
                    .push(format!("{} was made by the bench", workload.compared.file));
                let path = scratch.0.join(workload.compared.file);
                (workload.make)(&path, packets)?;
                path
            }
        };
        let notes = &mut outcome.notes;
        outcome
            .tables
            .push(rates(plan, &workload.compared, &path, &scratch.0, notes)?);
        metered.get_or_insert(path);
    }
    if let Some(path) = metered {
        outcome.tables.push(threads(plan, &path)?);
    }
    outcome.tables.push(sizes(plan)?);
    outcome
        .tables
        .extend(decoders(plan, &scratch.0, &mut outcome.notes)?);
    outcome.notes.push(
        "processor time of the whole program with all its threads, pinned to one processor, from \
         start to end; tables of barewire for 2 M, 512 k and 4 M flows; IPFIX to a UDP socket \
         that is never read; nfpcapd writes files, argus and yaf to /dev/null; baselines in \
         the first two rounds only"
            .into(),
    );
    outcome.notes.push(
        "not run: pmacctd, which does not end with its file; YAF and ipfixprobe, which Debian does \
         not have, run where they are installed. Where ipfixprobe is not, nfpcapd is the \
         yardstick: once measured together over workload b, ipfixprobe 5.7 with four plugins took \
         0.57 s of processor time, nfpcapd 1.7.1 took 0.51 s and nfpcapd 1.7.8 took 0.46 s"
            .into(),
    );
    outcome.notes.push(
        "meter: packets of workload a in memory, given to one meter or to two in threads of their \
         own, as two queues of a card have them: each in memory of its own, both directions of a \
         flow in one, and as many in each as whole entries of the card's table allow; time from \
         the first packet to the last record; flows: packets of flows at random, each seen before"
            .into(),
    );
    Ok(outcome)
}

fn rates(
    plan: &Plan,
    compared: &Comparison,
    path: &Path,
    scratch: &Path,
    notes: &mut Vec<String>,
) -> Result<Table> {
    let mut table = Table {
        measure: compared.measure,
        unit: "Mpps",
        axis: "",
        more_is_better: true,
        reference: String::new(),
        series: Vec::new(),
    };
    let packets = meter::count(path)?;
    let sink = UdpSocket::bind("127.0.0.1:0")?;
    let places = Places {
        capture: path,
        table_size: compared.table_size,
        scratch,
        port: sink.local_addr()?.port(),
    };
    for round in 0..plan.rounds {
        for subject in compared.subjects {
            if subject.is_baseline && round >= BASELINE_ROUNDS {
                continue;
            }
            match seconds(subject, &places) {
                Ok(seconds) => {
                    let rate = packets as f64 / seconds / 1e6;
                    eprintln!("{} {}: {rate:.3} Mpps", compared.file, subject.name);
                    table.add(subject.name, 0, rate);
                    if table.reference.is_empty() {
                        table.reference = subject.name.into();
                    }
                }
                Err(why) if round == 0 && !notes.iter().any(|note| note.contains(subject.name)) => {
                    notes.push(format!(
                        "{}: {} left out: {why:#}",
                        compared.file, subject.name
                    ));
                }
                Err(_) => {}
            }
        }
    }
    Ok(table)
}

/// Compared with other programs that identify applications.
fn decoders(plan: &Plan, scratch: &Path, notes: &mut Vec<String>) -> Result<Option<Table>> {
    let corpus = match lab::corpus::large() {
        Ok(corpus) => corpus,
        Err(missing) => {
            eprintln!("SKIPPED: decoders: {missing}");
            notes.push(format!("no table for decoders: {missing}"));
            return Ok(None);
        }
    };
    let compared = &decoding::COMPARED;
    let path = scratch.join(compared.file);
    let repetitions = if plan.quick { 1 } else { decoding::REPETITIONS };
    let files = applications::join(&corpus, &path, repetitions)?;
    notes.push(format!(
        "{}: {files} captures of the corpus joined, {repetitions} times with other addresses",
        compared.file
    ));
    let table = rates(plan, compared, &path, scratch, notes)?;
    std::fs::remove_file(&path)?;
    Ok(Some(table))
}

/// Processor time of one run, on the last processor.
fn seconds(subject: &Subject, places: &Places<'_>) -> Result<f64> {
    let wanted = (subject.command)(places)?;
    let cpu = sys::affinity::allowed_cpus().last().copied().unwrap_or(0);
    let mut command = Command::new("taskset");
    command.args(["-c", &cpu.to_string()]);
    command.arg(wanted.get_program()).args(wanted.get_args());
    let before = cpu::of_children()?;
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let passed = cpu::of_children()? - before;
    match status {
        Ok(status) if status.code() == Some(127) => bail!("it is not installed"),
        Ok(status) => ensure!(status.success(), "it failed: {status}"),
        Err(error) => return Err(error).context("run taskset"),
    }
    Ok(passed)
}

/// One thread and two.
fn threads(plan: &Plan, path: &Path) -> Result<Table> {
    let mut table = Table {
        measure: "a meter by itself, workload a from memory",
        unit: "Mpps",
        axis: "threads",
        more_is_better: true,
        reference: "standard".into(),
        series: Vec::new(),
    };
    let packets = meter::Packets::read(path)?;
    for _ in 0..plan.rounds {
        for threads in [1, 2] {
            for (name, is_counters) in [("standard", false), ("counters", true)] {
                let rate = meter::rate(&packets, threads, is_counters)?;
                table.add(name, threads, rate);
            }
        }
    }
    Ok(table)
}

/// Increasing numbers of flows.
fn sizes(plan: &Plan) -> Result<Table> {
    let mut table = Table {
        measure: "a packet of one of so many flows, standard record",
        unit: "ns",
        axis: "flows",
        more_is_better: false,
        reference: "barewire".into(),
        series: Vec::new(),
    };
    let counts = if plan.quick {
        &[1_000, 10_000][..]
    } else {
        &[1_000, 10_000, 100_000, 1_000_000, 10_000_000][..]
    };
    for _ in 0..plan.rounds.min(3) {
        for count in counts {
            table.add("barewire", *count, meter::known_flows_ns(*count)?);
        }
    }
    Ok(table)
}
