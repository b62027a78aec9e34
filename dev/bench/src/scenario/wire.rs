//! `wire`: dissecting a mix of packets in memory, compared with other libraries reading the same
//! fields.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use wire::{Dissection, LinkType, dissect};

use super::{Plan, Scenario};
use crate::rounds::{Outcome, Table};
use crate::{mix, program};

/// The row in the table.
pub const SCENARIO: Scenario = Scenario {
    name: "wire",
    summary: "dissection of an IPv4/IPv6 mix in memory: instructions and nanoseconds a packet",
    run,
};

/// Packets of the mix: more than fit the first-level cache, fewer than fit the last.
const PACKETS: usize = 4_000;

fn table(measure: &'static str, unit: &'static str) -> Table {
    let reference = "etherparse 0.21".into();
    Table {
        measure,
        unit,
        axis: "",
        more_is_better: false,
        reference,
        series: Vec::new(),
    }
}

fn run(plan: &Plan) -> Result<Outcome> {
    let packets = mix::packets(PACKETS);
    let file = std::env::temp_dir().join(format!("bw-mix-{}.pcap", std::process::id()));
    mix::write_pcap(&file, &packets)?;
    let outcome = measure(plan, &packets, &file);
    let _ = std::fs::remove_file(&file);
    outcome
}

fn measure(plan: &Plan, packets: &[Vec<u8>], file: &Path) -> Result<Outcome> {
    let mut instructions = table("instructions a packet", "instructions");
    let mut time = table("time a packet", "ns");
    let mut notes = vec![
        "what is read: barewire fills its whole dissection (layers, key, flags, options, \
         payload bounds), the \
         others only the fields of the key"
            .into(),
        "smoltcp's wire layer ends at a VLAN tag (one packet in ten); libpcap includes reading \
         the file"
            .into(),
    ];
    let file = file.to_str().unwrap_or_default();
    let ours = std::env::current_exe()?;
    let count = |program: &Path, before: &[&str]| -> Result<f64> {
        let run = |rounds: &str| {
            let args: Vec<&str> = before.iter().copied().chain([file, rounds]).collect();
            program::instructions(program, &args)
        };
        let (few, many) = (run("1")?, run("11")?);
        Ok((many - few) as f64 / (10 * PACKETS) as f64)
    };
    instructions.add("barewire", 0, count(&ours, &["--dissect"])?);
    let baselines = program::baselines();
    for (library, label) in [
        ("etherparse", "etherparse 0.21"),
        ("smoltcp", "smoltcp 0.14"),
        ("libpcap", "libpcap pcap_next"),
    ] {
        match &baselines {
            Ok(folder) => {
                instructions.add(label, 0, count(&folder.join("baseline-wire"), &[library])?);
            }
            Err(why) => notes.push(format!("{label} left out: {why}")),
        }
    }
    let rounds = if plan.quick { 20 } else { 500 };
    for _ in 0..plan.rounds {
        let start = Instant::now();
        black_box(dissect_all(packets, rounds));
        let ns = start.elapsed().as_nanos() as f64 / (PACKETS * rounds) as f64;
        time.add("barewire", 0, ns);
        if let Ok(folder) = &baselines {
            for (library, label) in [
                ("etherparse", "etherparse 0.21"),
                ("smoltcp", "smoltcp 0.14"),
            ] {
                time.add(
                    label,
                    0,
                    baseline_ns(&folder.join("baseline-wire"), library, file, rounds)?,
                );
            }
        }
    }
    notes.push("instructions by callgrind, the difference of 11 and 1 rounds over the mix".into());
    Ok(Outcome {
        tables: vec![instructions, time],
        notes,
    })
}

/// Wall clock time of a baseline over many rounds, less its start.
fn baseline_ns(program: &Path, library: &str, file: &str, rounds: usize) -> Result<f64> {
    let run = |rounds: usize| -> Result<f64> {
        let start = Instant::now();
        let status = std::process::Command::new(program)
            .args([library, file, &rounds.to_string()])
            .stdout(std::process::Stdio::null())
            .status()?;
        ensure!(status.success(), "{} failed", program.display());
        Ok(start.elapsed().as_nanos() as f64)
    };
    Ok((run(rounds)? - run(0)?) / (PACKETS * rounds) as f64)
}

fn dissect_all(packets: &[Vec<u8>], rounds: usize) -> u64 {
    let mut sum = 0;
    let mut out = Dissection::EMPTY;
    for _ in 0..rounds {
        for packet in packets {
            dissect(
                LinkType::ETHERNET,
                black_box(packet),
                packet.len() as u32,
                &mut out,
            );
            sum += u64::from(out.src_port) + u64::from(out.payload_len);
        }
    }
    sum
}

/// The subject under callgrind: reads the capture, dissects it `rounds` times.
pub fn worker(file: &str, rounds: usize) -> Result<()> {
    let bytes = std::fs::read(file)?;
    let mut packets = Vec::new();
    let mut at = 24;
    while let Some(head) = bytes.get(at..at + 16) {
        let len = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
        packets.push(bytes[at + 16..at + 16 + len].to_vec());
        at += 16 + len;
    }
    black_box(dissect_all(&packets, rounds));
    Ok(())
}
