//! Measures the cost of encoding: `encode_cost FORMAT [ROUNDS] [one]` with a format of `ipfix`,
//! `uniflow`, `fields`, `netflow9`, `netflow5`, `json` and `csv` encodes 4,096 records this many
//! times and prints the size of the output. With `one` the records are TCP over IPv4 without
//! replies, as left by a scan.
//!
//! Run it under `valgrind --tool=callgrind` with two numbers of rounds: the difference, divided by
//! 4,096, is the cost per record in instructions:
//!
//! ```text
//! cargo build --release -p barewire-flow --example encode_cost
//! valgrind --tool=callgrind target/release/examples/encode_cost ipfix 101
//! ```
#![forbid(unsafe_code)]

use std::hint::black_box;

use barewire_flow::element::Column;
use barewire_flow::encode::{Encode, csv, ipfix, json, lines, netflow5, netflow9};
use barewire_flow::{EndReason, HashKey, Input, Meter, MeterConfig, Record};
use wire::LinkType;

/// Builds records of TCP over IPv4; all but every eighth have a reply; every fifth is IPv6. With
/// `is_one` all are IPv4 without replies.
fn records(is_one: bool) -> Vec<(Record, EndReason)> {
    let mut config = MeterConfig::new(HashKey::from_seed(1));
    config.table.flow_count_max = 8192;
    let mut meter = Meter::new(&config).expect("memory for the table");
    let mut records = Vec::new();
    let mut sink = |record: &Record, reason| records.push((*record, reason));
    for n in 0..4096_u16 {
        for way in 0..2 {
            if way == 1 && (is_one || n % 8 == 0) {
                continue;
            }
            let ends = if way == 0 { [1, 2] } else { [2, 1] };
            let mut bytes = if n % 5 == 0 && !is_one {
                let mut bytes = vec![0x60, 0, 0, 0, 0, 20, 6, 64];
                bytes.extend([ends[0]; 16]);
                bytes.extend([ends[1]; 16]);
                bytes
            } else {
                let mut bytes = vec![0x45, 0, 0, 40, 0, 1, 0, 0, 64, 6, 0, 0];
                bytes.extend([10, 0, 0, ends[0], 10, 0, 0, ends[1]]);
                bytes
            };
            let ports = if way == 0 { [n, 443] } else { [443, n] };
            bytes.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
            bytes.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
            let input = Input {
                link: LinkType::RAW,
                bytes: &bytes,
                wire_len: bytes.len() as u32,
                time_ns: 1_700_000_000_000_000_000 + u64::from(n) * 1000,
                vlan: None,
                interface: 0,
            };
            meter.observe(&input, &mut sink);
        }
    }
    meter.finish(&mut sink);
    records
}

fn encoder(name: &str) -> Option<Box<dyn Encode>> {
    let mut config = ipfix::Config::default();
    match name {
        "ipfix" => {}
        "uniflow" => config.is_biflow = false,
        "fields" => config.extra.extend(Column::find("payloadOctetDeltaCount")),
        "netflow9" => {
            return Some(Box::new(netflow9::Encoder::new(netflow9::Config {
                domain: 0,
                message_len_max: 1400,
                extra: Vec::new(),
                extra_fields: Default::default(),
                sampling: 1,
                interface: 0,
                interfaces: Vec::new(),
            })));
        }
        "netflow5" => return Some(Box::new(netflow5::Encoder::new(0, 1, 0))),
        "json" => return Some(Box::new(lines::Encoder::new(json::line_with, "", 32 << 10))),
        "csv" => {
            return Some(Box::new(lines::Encoder::new(
                |record, _, reason, out| csv::line(record, reason, out),
                csv::HEAD,
                32 << 10,
            )));
        }
        _ => return None,
    }
    Some(Box::new(ipfix::Encoder::new(config)))
}

fn main() -> Result<(), String> {
    let mut args = std::env::args().skip(1);
    let usage = "encode_cost ipfix|uniflow|fields|netflow9|netflow5|json|csv [ROUNDS] [one]";
    let mut encoder = args.next().and_then(|name| encoder(&name)).ok_or(usage)?;
    let rounds: u32 = args
        .next()
        .map_or(Ok(1), |text| text.parse().map_err(|_| usage))?;
    let records = records(args.next().is_some_and(|word| word == "one"));
    let (mut messages, mut bytes) = (0_u64, 0_u64);
    for _ in 0..rounds {
        let mut rest = black_box(&records[..]);
        while !rest.is_empty() {
            rest = &rest[encoder.take(rest)..];
            bytes += black_box(encoder.message(0)).len() as u64;
            messages += 1;
            encoder.next();
        }
    }
    println!(
        "{} records, {rounds} rounds: {messages} messages, {bytes} bytes",
        records.len()
    );
    Ok(())
}
