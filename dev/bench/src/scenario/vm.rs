//! `vm`: packets to a virtual machine: the cost of a packet in the port alone, and the rate that a
//! guest of QEMU receives, by vhost-user and by a TAP interface.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::Netns;
use lab::process::{Process, barewire};
use lab::vm::{Link, Machine, Options};
use port::{Direction, Port, PortOptions};
use vhost::testing::{self, FrontEnd};

use super::{Plan, Scenario};
use crate::mix;
use crate::rounds::{Outcome, Table};

/// The row in the table.
pub const SCENARIO: Scenario = Scenario {
    name: "vm",
    summary: "packets to a guest: the port's own cost, and QEMU's vhost-user beside its TAP",
    run,
};

/// Packets per batch.
const BATCH: usize = 64;
/// Bytes per packet.
const LEN: usize = 60;
/// Time limit of a step of a guest.
const LIMIT: Duration = Duration::from_secs(120);

fn run(plan: &Plan) -> Result<Outcome> {
    let mut cost = Table {
        measure: "time a packet",
        unit: "ns",
        axis: "",
        more_is_better: false,
        reference: "copy into a Vec".into(),
        series: Vec::new(),
    };
    let mut ports = Ports::open()?;
    let count = (plan.seconds * 1e6) as u64;
    for _ in 0..plan.rounds {
        cost.add("copy into a Vec", 0, copy(count));
        cost.add("vm: from the guest", 0, ports.receive(count)?);
        cost.add("vm: to the guest", 0, ports.send(count)?);
    }
    drop(ports);
    let mut notes = vec!["the guest's half of the rings is not timed".into()];
    let mut tables = vec![cost];
    match lab::vm::available() {
        Ok(()) => tables.push(rates(plan)?),
        Err(missing) => notes.push(format!("no rates: {missing}")),
    }
    notes.push("QEMU emulates the guest's processor (TCG), which then limits the rate".into());
    Ok(Outcome { tables, notes })
}

/// As in many programs: each packet is copied to its own memory.
fn copy(count: u64) -> f64 {
    let packet = black_box([0x5au8; LEN]);
    let start = Instant::now();
    for _ in 0..count {
        black_box(packet.to_vec());
    }
    start.elapsed().as_nanos() as f64 / count as f64
}

/// The port, and a guest of our own.
struct Ports {
    port: Port,
    guest: FrontEnd,
}

fn socket(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("bw-bench-{}-{name}.sock", std::process::id()))
}

impl Ports {
    fn open() -> Result<Self> {
        let path = socket("cost");
        let options = PortOptions {
            direction: Direction::Both,
            batch_max: BATCH,
            timestamp: port::TimestampSource::None,
            ..PortOptions::default()
        };
        let mut port = port::open(&format!("vm:{}", path.display()), &options)?;
        // Starts the thread that the front-end speaks to.
        drop(port.rx[0].receive()?);
        let guest = FrontEnd::connect(&path, testing::Options::default())?;
        Ok(Self { port, guest })
    }

    /// Only receiving, touching and releasing is timed.
    fn receive(&mut self, count: u64) -> Result<f64> {
        let packet = [0x5au8; LEN];
        let (mut done, mut nanos) = (0, 0);
        while done < count {
            for _ in 0..2 * BATCH {
                let driver = &mut self.guest.drivers[1];
                ensure!(
                    driver.place(&self.guest.memory, &packet),
                    "the ring is full"
                );
            }
            let start = Instant::now();
            for _ in 0..2 {
                let batch = self.port.rx[0].receive()?;
                for packet in batch.iter() {
                    black_box(packet.bytes()[12]);
                }
                done += batch.len() as u64;
            }
            nanos += start.elapsed().as_nanos();
        }
        Ok(nanos as f64 / done as f64)
    }

    /// Only reserving, writing and submitting is timed.
    fn send(&mut self, count: u64) -> Result<f64> {
        let packet = [0x5au8; LEN];
        let (mut done, mut nanos) = (0, 0);
        while done < count {
            let start = Instant::now();
            for _ in 0..2 {
                let mut batch = self.port.tx[0].reserve(BATCH)?;
                while batch.write(&packet) {}
                batch.submit()?;
            }
            nanos += start.elapsed().as_nanos();
            while self.guest.receive(0).is_some() {
                done += 1;
            }
        }
        Ok(nanos as f64 / done as f64)
    }
}

/// The rate at which a guest receives.
fn rates(plan: &Plan) -> Result<Table> {
    let mut table = Table {
        measure: "packets a second into a guest",
        unit: "kpps",
        axis: "",
        more_is_better: true,
        reference: "QEMU's TAP, barewire send afpacket:".into(),
        series: Vec::new(),
    };
    let file = std::env::temp_dir().join(format!("bw-bench-{}-vm.pcap", std::process::id()));
    let mut packet = vec![0x5a; LEN];
    packet[..6].fill(0xff);
    packet[12..14].copy_from_slice(&[0x88, 0xb5]);
    mix::write_pcap(&file, &vec![packet; 1000])?;
    let ns = Netns::new()?;
    ns.ip(["tuntap", "add", "dev", "tap0", "mode", "tap"])?;
    ns.ip(["link", "set", "tap0", "up"])?;
    let path = socket("rate");
    for _ in 0..plan.rounds {
        let tap = Link::Tap(ns.path(), "tap0".into());
        let by_tap = rate(&ns, tap, "afpacket:tap0", &file, plan)?;
        table.add("QEMU's TAP, barewire send afpacket:", 0, by_tap);
        let name = format!("vm:{}", path.display());
        let by_vhost = rate(&ns, Link::VhostUser(path.clone()), &name, &file, plan)?;
        table.add("vhost-user, barewire send vm:", 0, by_vhost);
    }
    let _ = std::fs::remove_file(&file);
    Ok(table)
}

/// Starts a guest, sends to it for some seconds, and returns the rate that the guest's own counter
/// shows in the middle, in thousands of packets a second.
fn rate(ns: &Netns, link: Link, port: &str, file: &Path, plan: &Plan) -> Result<f64> {
    let options = Options {
        link,
        own: "10.99.0.2".into(),
        peer: String::new(),
        mac: "52:54:00:99:00:02".into(),
        mtu: 0,
    };
    let mut guest = Machine::start("bench", &options)?;
    // A socket that is not there yet is tried again.
    let seconds = format!("{}s", 6.0 + plan.seconds);
    let name = file.to_str().context("a path in UTF-8")?;
    let start = |ns: &Netns| -> Result<Process> {
        let args = [
            "send",
            name,
            port,
            "--loop",
            "0",
            "--rate",
            "max",
            "--duration",
            &seconds,
        ];
        ns.spawn(barewire()?, args)
    };
    let early = port.starts_with("vm:").then(|| start(ns)).transpose()?;
    guest.wait_console("vm: up", 1, LIMIT)?;
    let mut sender = match early {
        Some(sender) => sender,
        None => start(ns)?,
    };
    sender.wait(LIMIT)?;
    let lines = guest.counters();
    // The steepest second is one in which packets were sent throughout.
    let steps = lines.windows(2);
    let rates = steps.map(|pair| (pair[1].1 - pair[0].1) / (pair[1].0 - pair[0].0).max(0.1));
    let best = rates.fold(0.0, f64::max);
    ensure!(
        best > 0.0,
        "the guest received nothing:\n{}",
        guest.console()
    );
    Ok(best / 1e3)
}
