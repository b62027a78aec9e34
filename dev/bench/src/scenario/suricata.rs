//! `suricata`: how many packets an unmodified Suricata loses on a veth pair, alone by AF_PACKET,
//! and behind a cluster that hands it only the start of each flow, at the rate at which it loses
//! about a fifth alone. Both have one core; the cluster's thread is on the same one as its reader.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::dropin::Dropin;
use lab::process::{Process, Signal};
use lab::unpacked::Unpacked;
use lab::veth::{Pair, Veth};
use serde_json::Value;

use super::{Plan, Scenario};
use crate::program;
use crate::rounds::{Outcome, Table};
use crate::workload::{Capture, Random};

/// The row in the table.
pub const SCENARIO: Scenario = Scenario {
    name: "suricata",
    summary: "packets that Suricata loses, alone and behind a cluster that shunts flows",
    run,
};

const ALONE: &str = "Suricata, AF_PACKET";
const BEHIND: &str = "Suricata behind a cluster, shunt after 64k";

/// Rules on bytes of streams, as signatures have.
const RULES: u32 = 3_000;
/// Downloads at the same time, and their data segments.
const FLOWS: u32 = 100;
const SEGMENTS: u32 = 720;
const SEGMENT_LEN: usize = 1_400;

/// The share of lost packets that is looked for, and the rates at which it is, per second.
const WANTED: f64 = 0.2;
const FIRST_PPS: f64 = 40_000.0;
const STEP: f64 = 1.35;
const STEPS: u32 = 8;

const LIMIT: Duration = Duration::from_secs(60);

fn run(plan: &Plan) -> Result<Outcome> {
    let Ok(suricata) = Unpacked::find("suricata", "usr/bin/suricata") else {
        bail!("Suricata is missing: cargo xtask setup test");
    };
    let places = Places::new(suricata)?;
    let packets = places.write(plan.quick)?;
    let library = Dropin::new()?;
    let mut pps = FIRST_PPS;
    let mut searched = Vec::new();
    for _ in 0..if plan.quick { 1 } else { STEPS } {
        let lost = places.alone(packets, pps, plan.seconds)?;
        searched.push(format!("{:.0}: {:.1} %", pps, lost * 100.0));
        if lost >= WANTED {
            break;
        }
        pps *= STEP;
    }
    let mut lost = Table {
        measure: "packets lost",
        unit: "%",
        axis: "packets per second",
        more_is_better: false,
        reference: ALONE.into(),
        series: Vec::new(),
    };
    for _ in 0..plan.rounds {
        let alone = places.alone(packets, pps, plan.seconds)?;
        lost.add(ALONE, pps as u32, alone * 100.0);
        let behind = places.behind(packets, pps, plan.seconds, &library)?;
        lost.add(BEHIND, pps as u32, behind * 100.0);
    }
    let notes = vec![
        format!(
            "{FLOWS} downloads at the same time, {SEGMENTS} segments of {SEGMENT_LEN} bytes each, \
             {RULES} rules on bytes; sender on core 0, everything else on core 1"
        ),
        format!(
            "alone, while the rate was looked for: {}",
            searched.join(", ")
        ),
        "lost: sent and not inspected, except what was shunted".into(),
    ];
    Ok(Outcome {
        tables: vec![lost],
        notes,
    })
}

/// A directory in memory, which is deleted on drop.
struct Places {
    suricata: Unpacked,
    folder: PathBuf,
}

impl Drop for Places {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A segment of connection `flow`.
fn segment(flow: u32, is_client: bool, flags: u8, [seq, ack]: [u32; 2], data: &[u8]) -> Vec<u8> {
    let mut ends = [
        ([10, 0, 1, flow as u8], 20_000 + flow as u16),
        ([10, 0, 2, 1], 80),
    ];
    if !is_client {
        ends.reverse();
    }
    let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    bytes.extend((40 + data.len() as u16).to_be_bytes());
    bytes.extend((seq as u16).to_be_bytes());
    bytes.extend([0x40, 0, 64, 6, 0, 0]);
    bytes.extend(ends[0].0);
    bytes.extend(ends[1].0);
    bytes.extend(ends[0].1.to_be_bytes());
    bytes.extend(ends[1].1.to_be_bytes());
    bytes.extend([seq.to_be_bytes(), ack.to_be_bytes()].concat());
    bytes.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    bytes.extend(data);
    bytes
}

impl Places {
    fn new(suricata: Unpacked) -> Result<Self> {
        let folder = PathBuf::from(format!("/dev/shm/bw-suricata-{}", std::process::id()));
        std::fs::create_dir(&folder)?;
        Ok(Self { suricata, folder })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Writes rules and traffic; returns the number of packets.
    fn write(&self, quick: bool) -> Result<u64> {
        let mut random = Random::new(14);
        let mut rules = String::new();
        for sid in 1..=RULES {
            let len = 6 + random.below(8);
            let word: String = (0..len)
                .map(|_| char::from(b'a' + random.below(26) as u8))
                .collect();
            writeln!(
                rules,
                "alert tcp any any -> any any (msg:\"r\"; content:\"{word}\"; nocase; sid:{sid};)"
            )?;
        }
        std::fs::write(self.file("test.rules"), rules)?;
        let mut capture = Capture::create(&self.file("traffic.pcap"))?;
        let mut count = 0;
        let mut put = |packet: Vec<u8>| {
            count += 1;
            capture.put_at(&packet, packet.len() as u32, count * 1_000)
        };
        let request = b"GET /file HTTP/1.1\r\nHost: example.net\r\n\r\n";
        let segments = if quick { 20 } else { SEGMENTS };
        let all = segments as usize * SEGMENT_LEN;
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {all}\r\n\r\n");
        let (client, server) = (1 + request.len() as u32, 1 + head.len() as u32);
        for flow in 0..FLOWS {
            put(segment(flow, true, 0x02, [0, 0], &[]))?;
            put(segment(flow, false, 0x12, [0, 1], &[]))?;
            put(segment(flow, true, 0x18, [1, 1], request))?;
            put(segment(flow, false, 0x18, [1, client], head.as_bytes()))?;
        }
        let mut data = vec![0; SEGMENT_LEN];
        for number in 0..segments {
            for flow in 0..FLOWS {
                for byte in &mut data {
                    *byte = b'a' + random.below(26) as u8;
                }
                let seq = server + number * SEGMENT_LEN as u32;
                put(segment(flow, false, 0x10, [seq, client], &data))?;
                if number % 2 == 1 {
                    let end = seq + SEGMENT_LEN as u32;
                    put(segment(flow, true, 0x10, [client, end], &[]))?;
                }
            }
        }
        let end = server + segments * SEGMENT_LEN as u32;
        for flow in 0..FLOWS {
            put(segment(flow, false, 0x11, [end, client], &[]))?;
            put(segment(flow, true, 0x11, [client, end + 1], &[]))?;
            put(segment(flow, false, 0x10, [end + 1, client + 1], &[]))?;
        }
        capture.end()?;
        Ok(count)
    }

    /// Suricata with the rules on core 1 of the pair's right end.
    fn suricata(&self, pair: &Pair, library: Option<&Dropin>, source: &str) -> Result<Process> {
        let _ = std::fs::remove_dir_all(self.file("log"));
        std::fs::create_dir(self.file("log"))?;
        let suricata = self.suricata.clone().with(&self.folder);
        let mut command = pair.right.ns.command("taskset");
        command.args(["-c", "1"]);
        command.args(suricata.with_library(library).words());
        command.args(["--runmode", "single", "-k", "none", "-l"]);
        command.arg(self.file("log"));
        command.arg("-S").arg(self.file("test.rules"));
        command.args(["--set", "unix-command.enabled=no", source, "tcp"]);
        let process = Process::spawn(&mut command)?;
        let end = Instant::now() + LIMIT;
        while !self.log().contains("Engine started") {
            ensure!(
                Instant::now() < end,
                "Suricata does not start: {}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(process)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.file("log/suricata.log")).unwrap_or_default()
    }

    /// Sends the traffic at this rate; returns the number of packets.
    fn send(&self, pair: &Pair, packets: u64, pps: f64, seconds: f64) -> Result<u64> {
        let rounds = (pps * seconds / packets as f64).ceil().max(1.0);
        let mut command = pair.left.ns.command("taskset");
        command.args(["-c", "0"]).arg(program::barewire()?);
        command.args(["send", "--json", "--pps", &format!("{pps:.0}")]);
        command.args(["--loop", &format!("{rounds:.0}")]);
        command.arg(self.file("traffic.pcap"));
        command.arg(format!("afpacket:{}", pair.left.ifname));
        let finished = Process::spawn(&mut command)?.wait(LIMIT)?.checked()?;
        let last = finished.stdout.lines().last().unwrap_or_default();
        let report: Value = serde_json::from_str(last)?;
        let sent = report["packets"].as_u64();
        let sent = sent.with_context(|| format!("no number of packets: {last}"))?;
        ensure!(sent == packets * rounds as u64, "sent {sent}: {last}");
        Ok(sent)
    }

    /// Stops Suricata; returns the packets that it has inspected.
    fn stop(&self, mut suricata: Process) -> Result<u64> {
        // What is in rings and queues.
        std::thread::sleep(Duration::from_secs(1));
        suricata.stop(Signal::SIGINT, LIMIT)?.checked()?;
        let eve = std::fs::read_to_string(self.file("log/eve.json"))?;
        let events = eve.lines().rev();
        let mut events = events.filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let last = events.find(|event| event["event_type"] == "stats");
        let inspected = last.and_then(|event| event["stats"]["decoder"]["pkts"].as_u64());
        inspected.context("Suricata wrote no statistics")
    }

    /// The share of packets that Suricata loses alone.
    fn alone(&self, packets: u64, pps: f64, seconds: f64) -> Result<f64> {
        let pair = Veth::new().create()?;
        let source = format!("--af-packet={}", pair.right.ifname);
        let suricata = self.suricata(&pair, None, &source)?;
        let sent = self.send(&pair, packets, pps, seconds)?;
        let inspected = self.stop(suricata)?;
        Ok(sent.saturating_sub(inspected) as f64 / sent as f64)
    }

    /// The share that is lost before Suricata behind a cluster.
    fn behind(&self, packets: u64, pps: f64, seconds: f64, library: &Dropin) -> Result<f64> {
        let pair = Veth::new().create()?;
        let interface = &pair.right.ifname;
        let mut command = pair.right.ns.command("taskset");
        command.args(["-c", "1"]).arg(program::barewire()?);
        let name = format!("bench-{interface}");
        command.args([
            "cluster", "run", "--json", "--name", &name, "--shunt", "64k",
        ]);
        command.args(["--ring", "65536", interface, "tcp"]);
        let mut cluster = Process::spawn(&mut command)?;
        cluster.wait_stderr("open ring:", LIMIT)?;
        let source = format!("--pcap=ring:{name}/0");
        let suricata = self.suricata(&pair, Some(library), &source)?;
        let sent = self.send(&pair, packets, pps, seconds)?;
        let inspected = self.stop(suricata)?;
        let finished = cluster.stop(Signal::SIGINT, LIMIT)?.checked()?;
        let last = finished.stdout.lines().last().unwrap_or_default();
        let totals: Value = serde_json::from_str(last)?;
        ensure!(totals["imbalance"] == 0, "{last}");
        let shunted = totals["applications"][0]["shunted"].as_u64();
        let kept = inspected + shunted.context("no count of shunted packets")?;
        Ok(sent.saturating_sub(kept) as f64 / sent as f64)
    }
}
