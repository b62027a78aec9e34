//! Measures the cost of metering: `meter_cost FILE walk|dissect|meter|counters [FLOWS] [ROUNDS]`
//! reads a capture from memory and does nothing, dissects it, or meters it (the standard record, or
//! counters alone), and prints time and counts.
//!
//! Run it under `valgrind --tool=callgrind` with two modes or numbers of rounds: the difference,
//! divided by the packets, is the cost per packet in instructions:
//!
//! ```text
//! cargo build --release -p barewire-flow --example meter_cost
//! valgrind --tool=callgrind target/release/examples/meter_cost a.pcap meter 2000000 1
//! ```
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::ops::Range;
use std::time::Instant;

use barewire_flow::{HashKey, Input, Meter, MeterConfig, Profile, Record};
use wire::file::{Event, Reader};
use wire::{Dissection, LinkType};

struct Packet {
    bytes: Range<usize>,
    wire_len: u32,
    time_ns: u64,
}

fn packets(file: &[u8]) -> Result<Vec<Packet>, String> {
    let (mut reader, mut at, mut packets) = (Reader::new(), 0, Vec::new());
    loop {
        match reader.next(&file[at..]).map_err(|e| e.to_string())? {
            Event::Need(_) => return Ok(packets),
            event => {
                if let Event::Packet(packet) = &event {
                    packets.push(Packet {
                        bytes: at + packet.data.start..at + packet.data.end,
                        wire_len: packet.wire_len,
                        time_ns: packet.time.ns(),
                    });
                }
                at += event.used();
            }
        }
    }
}

fn main() -> Result<(), String> {
    let mut args = std::env::args().skip(1);
    let usage = "meter_cost FILE walk|dissect|meter|counters [FLOWS] [ROUNDS]";
    let path = args.next().ok_or(usage)?;
    let mode = args.next().ok_or(usage)?;
    let mut number = |default: u32| args.next().map_or(Some(default), |a| a.parse().ok());
    let flow_count_max = number(1 << 20).ok_or(usage)?;
    let rounds = number(1).ok_or(usage)?;
    let file = std::fs::read(&path).map_err(|e| format!("{path}: {e}"))?;
    let packets = packets(&file)?;
    let mut config = MeterConfig::new(HashKey::from_seed(1));
    config.table.flow_count_max = flow_count_max;
    if mode == "counters" {
        config.table.profile = Profile::Counters;
    }
    let mut dissection = Dissection::EMPTY;
    for _ in 0..rounds {
        let mut meter = Meter::new(&config).map_err(|e| e.to_string())?;
        let (mut records, mut bytes) = (0, 0);
        let mut sink = |record: &Record, _| {
            records += 1;
            bytes += record.bytes();
        };
        let start = Instant::now();
        for packet in &packets {
            let data = &file[packet.bytes.clone()];
            match mode.as_str() {
                "walk" => {
                    black_box(data.first());
                }
                "dissect" => {
                    let link = LinkType::ETHERNET;
                    wire::dissect(link, data, packet.wire_len, &mut dissection);
                    black_box(&dissection);
                }
                "meter" | "counters" => {
                    let input = Input {
                        link: LinkType::ETHERNET,
                        bytes: data,
                        wire_len: packet.wire_len,
                        time_ns: packet.time_ns,
                        vlan: None,
                        interface: 0,
                    };
                    meter.observe(&input, &mut sink);
                }
                _ => return Err(usage.to_string()),
            }
        }
        meter.flush(&mut sink);
        let passed = start.elapsed();
        let stats = meter.stats();
        meter.finish(&mut sink);
        let end = start.elapsed();
        println!(
            "{mode}: {} packets, {:.2} ns each, {:.2} Mpps; {} to the end; \
             {records} records, {bytes} bytes; {:?}",
            packets.len(),
            passed.as_nanos() as f64 / packets.len() as f64,
            packets.len() as f64 / passed.as_secs_f64() / 1e6,
            end.as_secs_f64(),
            stats.table,
        );
    }
    Ok(())
}
