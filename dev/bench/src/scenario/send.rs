//! `send`: packets per second from one core into a veth pair, at 64 bytes (60 without FCS).
//!
//! Counted by the receiving interface over a window in the middle of the run, so that a program's
//! start, end and own report do not count.

use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lab::process::Process;
use lab::veth::{Pair, Veth};

use super::{Plan, Scenario};
use crate::rounds::{Outcome, Table};
use crate::{link, mix, program};

/// The row in the table.
pub const SCENARIO: Scenario = Scenario {
    name: "send",
    summary: "packets a second from one core into a veth pair at 64 bytes",
    run,
};

/// Bytes without FCS.
const LEN: usize = 60;

/// A sender: label and command.
struct Subject {
    label: &'static str,
    args: Vec<String>,
}

/// The other end.
#[derive(Clone, Copy)]
struct Peer {
    measure: &'static str,
    gro: bool,
}

const PEERS: [Peer; 2] = [
    Peer {
        measure: "packets a second, nobody listening",
        gro: false,
    },
    Peer {
        measure: "packets a second, nobody listening, peer with GRO",
        gro: true,
    },
];

fn run(plan: &Plan) -> Result<Outcome> {
    let folder = Files::make()?;
    let mut outcome = Outcome::default();
    for peer in PEERS {
        let mut veth = Veth::new();
        if peer.gro {
            veth = veth.gro();
        }
        let pair = veth.create()?;
        let mut table = Table {
            measure: peer.measure,
            unit: "Mpps",
            axis: "",
            more_is_better: true,
            reference: "trafgen".into(),
            series: Vec::new(),
        };
        let subjects = subjects(&pair, &folder, plan, &mut outcome.notes)?;
        for _ in 0..plan.rounds {
            for subject in &subjects {
                match rate(&pair, subject, plan) {
                    Ok(mpps) => table.add(subject.label, 0, mpps),
                    Err(error) => {
                        table.add(subject.label, 0, f64::NAN);
                        let text = format!("{}: {error:#}", subject.label);
                        eprintln!("{text}");
                        if !outcome.notes.contains(&text) {
                            outcome.notes.push(text);
                        }
                    }
                }
            }
        }
        outcome.tables.push(table);
    }
    outcome
        .notes
        .push("every sender pinned to processor 0; receiving is done there too".into());
    Ok(outcome)
}

/// Files for the baselines, deleted on drop.
struct Files(PathBuf);

impl Files {
    fn make() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("bw-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let packet = udp_packet();
        mix::write_pcap(&folder.join("packets.pcap"), &vec![packet.clone(); 1_000])?;
        let bytes: Vec<String> = packet.iter().map(|byte| format!("0x{byte:02x}")).collect();
        std::fs::write(
            folder.join("trafgen.cfg"),
            format!("{{ {} }}\n", bytes.join(", ")),
        )?;
        Ok(Self(folder))
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A UDP packet for another station, as on a mirror port.
fn udp_packet() -> Vec<u8> {
    let mut packet = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 8, 0];
    packet.extend([0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0]);
    packet.extend([198, 18, 0, 1, 198, 19, 0, 1]);
    let sum = wire::checksum::checksum(&packet[14..34]).to_be_bytes();
    packet[24..26].copy_from_slice(&sum);
    packet.extend([4, 0, 0, 9, 0, 26, 0, 0]);
    packet.resize(LEN, 0);
    packet
}

fn subjects(
    pair: &Pair,
    files: &Files,
    plan: &Plan,
    notes: &mut Vec<String>,
) -> Result<Vec<Subject>> {
    let interface = &pair.left.ifname;
    let seconds = plan.seconds + 1.5;
    let mut all = vec![
        Subject {
            label: "tcpreplay --topspeed",
            args: words(&format!(
                "tcpreplay -q --topspeed -K --loop=100000000 -i {interface} {}",
                files.path("packets.pcap")
            )),
        },
        Subject {
            label: "trafgen",
            args: words(&format!(
                "trafgen -o {interface} -c {} -P 1",
                files.path("trafgen.cfg")
            )),
        },
    ];
    match program::baselines() {
        Ok(folder) => all.push(Subject {
            label: "sendmmsg",
            args: words(&format!(
                "{} {interface} {LEN} {seconds}",
                folder.join("baseline-sendmmsg").display()
            )),
        }),
        Err(why) => notes.push(format!("sendmmsg left out: {why:#}")),
    }
    let barewire = program::barewire()?;
    for (label, scheme) in [
        ("barewire afpacket:", "afpacket"),
        ("barewire afxdp:", "afxdp"),
        ("barewire xdplive:", "xdplive"),
    ] {
        all.push(Subject {
            label,
            args: words(&format!(
                "{} send --udp --size {LEN} --dst-mac 02:00:00:00:00:09 --rate max \
                 --duration {seconds} \
                 {scheme}:{interface}",
                barewire.display()
            )),
        });
    }
    Ok(all)
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Packets that arrive in the window, in millions per second.
fn rate(pair: &Pair, subject: &Subject, plan: &Plan) -> Result<f64> {
    let mut command: Command = pair.left.ns.command("taskset");
    command.args(["-c", "0"]).args(&subject.args);
    let mut sender = Process::spawn(&mut command)?;
    sleep(Duration::from_millis(900));
    let (before, start) = (link::stats(&pair.right)?, Instant::now());
    sleep(Duration::from_secs_f64(plan.seconds));
    let (after, elapsed) = (link::stats(&pair.right)?, start.elapsed());
    let running = sender.running()?;
    // Not every baseline ends on a signal that it could catch, and nothing more is needed from it.
    let finished = sender.kill()?;
    let packets = after.rx_packets - before.rx_packets;
    (running && packets > 0)
        .then(|| packets as f64 / elapsed.as_secs_f64() / 1e6)
        .with_context(|| {
            format!(
                "sent nothing in the window\n{}{}",
                finished.stdout, finished.stderr
            )
        })
}
