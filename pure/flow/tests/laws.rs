//! The laws of `flow::laws` over messages of our own making: whole, cut at each byte, with each bit
//! flipped; and over the fuzz corpus, which is made here.
//!
//! `BAREWIRE_BLESS=1 cargo test -p barewire-flow --test laws` writes the corpus anew.

use std::fs;
use std::path::Path;

use flow::element::Column;
use flow::encode::ipfix::{Config, Encoder};
use flow::encode::{Encode, Statistics};
use flow::{EndReason, HashKey, Input, Meter, MeterConfig, Record, laws};
use wire::LinkType;

fn records() -> Vec<(Record, EndReason)> {
    let mut config = MeterConfig::new(HashKey::from_seed(1));
    config.table.flow_count_max = 64;
    let mut meter = Meter::new(&config).unwrap();
    let mut records = Vec::new();
    let mut sink = |record: &Record, reason| records.push((*record, reason));
    for n in 0..6_u8 {
        for (source, destination) in [(1, 2), (2, 1)] {
            if n % 2 == 0 && source == 2 {
                continue;
            }
            let mut bytes = vec![0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0];
            bytes.extend([
                10,
                0,
                n,
                source,
                10,
                0,
                n,
                destination,
                0,
                53,
                0,
                53,
                0,
                8,
                0,
                0,
            ]);
            if n > 3 {
                bytes.splice(..12, [0x60, 0, 0, 0, 0, 8, 17, 64]);
                bytes.splice(8..8, [0x20; 24]);
            }
            let input = Input {
                link: LinkType::RAW,
                bytes: &bytes,
                wire_len: bytes.len() as u32,
                time_ns: 1_700_000_000_000_000_000,
                vlan: None,
                interface: 0,
            };
            meter.observe(&input, &mut sink);
        }
    }
    meter.finish(&mut sink);
    records
}

/// Streams of messages, each with a name.
fn streams() -> Vec<(&'static str, Vec<u8>)> {
    let extra = [
        "payloadOctetDeltaCount",
        "ipVersion",
        "flowStartNanoseconds",
    ];
    let kinds = [
        ("biflow", true, Vec::new(), 1400),
        ("uniflow", false, Vec::new(), 256),
        (
            "own",
            true,
            extra.into_iter().filter_map(Column::find).collect(),
            512,
        ),
    ];
    kinds
        .into_iter()
        .map(|(name, is_biflow, extra, message_len_max)| {
            let mut encoder = Encoder::new(Config {
                is_biflow,
                extra,
                message_len_max,
                interfaces: vec![(1, "eth0".into())],
                withdraws: true,
                ..Config::default()
            });
            let mut stream = encoder.begin_session(0).concat();
            let records = records();
            let mut rest = &records[..];
            while !rest.is_empty() {
                rest = &rest[encoder.take(rest)..];
                stream.extend_from_slice(encoder.message(1));
                encoder.next();
            }
            stream.extend(encoder.refresh(2, &Statistics::default()).concat());
            stream.extend(encoder.end_session(3, &Statistics::default()).concat());
            (name, stream)
        })
        .collect()
}

#[test]
fn laws_hold_for_damaged_messages() {
    for (_, stream) in streams() {
        laws::ipfix_input(&stream);
        for at in 0..stream.len() {
            laws::ipfix_input(&stream[..at]);
            for bit in 0..8 {
                let mut damaged = stream.clone();
                damaged[at] ^= 1 << bit;
                laws::ipfix_input(&damaged);
            }
        }
    }
}

#[test]
fn the_corpus_holds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/ipfix");
    if std::env::var_os("BAREWIRE_BLESS").is_some() {
        fs::create_dir_all(&folder).unwrap();
        for (name, stream) in streams() {
            fs::write(folder.join(name), stream).unwrap();
        }
    }
    let mut count = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        laws::ipfix_input(&fs::read(entry.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count >= 3, "{count} inputs in {}", folder.display());
}
