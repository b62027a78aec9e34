//! The sampling that is reported to collectors, read by goflow2 and tshark: the rate, which is the
//! product of all that omit packets or records, and in IPFIX the method with its parameters.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::export::{Folder, LIMIT, flood, run, tcp_port, udp_port, wait_bound};
use lab::oracle::goflow2::goflow2;
use lab::oracle::tshark;
use lab::process::{Process, Signal};
use lab::{require, skip};
use serde_json::Value;

/// What omits packets or records, and what collectors must read.
struct Case {
    args: &'static [&'static str],
    rate: u64,
    /// tshark's fields and values in the records of selectors (RFC 5477, RFC 7014).
    selectors: &'static [(&'static str, &'static str)],
}

const CASES: &[Case] = &[
    Case {
        args: &["--sampling-rate", "250"],
        rate: 250,
        selectors: &[],
    },
    Case {
        args: &["--sample", "20", "--sampling-rate", "5"],
        rate: 100,
        selectors: &[
            ("cflow.selector_algorithm", "1"),
            ("cflow.sampling_size", "1"),
            ("cflow.sampling_population", "20"),
        ],
    },
    Case {
        args: &["--sample", "random:8"],
        rate: 8,
        selectors: &[
            ("cflow.selector_algorithm", "4"),
            ("cflow.sampling_probability", "0.125"),
        ],
    },
    Case {
        args: &["--sample", "hash:6"],
        rate: 6,
        selectors: &[
            ("cflow.selector_algorithm", "6"),
            ("cflow.sampling_population", "6"),
        ],
    },
    Case {
        args: &["--sample", "time:1s/10ms"],
        rate: 100,
        selectors: &[
            ("cflow.selector_algorithm", "2"),
            ("cflow.sampling_time_interval", "10000"),
            ("cflow.sampling_time_space", "990000"),
        ],
    },
    Case {
        args: &["--sample", "2", "--sample-records", "3"],
        rate: 6,
        selectors: &[
            ("cflow.selector_algorithm", "1"),
            ("cflow.sampling_population", "2"),
            ("cflow.sampling_population", "3"),
        ],
    },
];

/// The largest rate that NetFlow 5 has bits for.
const NETFLOW5_MAX: u64 = 0x3fff;

/// A capture of flows of one packet, each from another address: sampling by hash selects addresses.
fn flows(count: u32) -> Vec<u8> {
    const RECORD_LEN: usize = 16 + 28;
    let mut bytes = flood(count);
    for (number, record) in bytes[24..].chunks_exact_mut(RECORD_LEN).enumerate() {
        record[16 + 14..16 + 16].copy_from_slice(&(number as u16).to_be_bytes());
    }
    bytes
}

/// Rates in what goflow2 prints for an export of this capture, one for each record.
fn rates(capture: &Path, program: &Path, format: &str, args: &[&str]) -> Vec<u64> {
    let port = udp_port();
    let mut command = Command::new(program);
    // One worker: several would handle records before the options that came before them.
    let listen = format!("netflow://127.0.0.1:{port}?count=1&workers=1&queue_size=100000");
    command.args(["-listen", &listen, "-format", "json", "-addr"]);
    command.arg(format!("127.0.0.1:{}", tcp_port()));
    let mut process = Process::spawn(&mut command).unwrap();
    wait_bound("udp", port);
    let url = format!("{format}:udp://127.0.0.1:{port}?rate=5000");
    let run = run(capture, &[args, &["--export", &url]].concat());
    let count = run.export()["exported"]["packets"].as_u64().unwrap() as usize;
    assert!(count > 1, "{format} {args:?}: {}", run.export());
    let until = Instant::now() + LIMIT;
    let found = loop {
        let text = process.stdout();
        let rows = text.lines().filter(|line| line.starts_with('{'));
        let rows: Vec<Value> = rows.filter_map(|l| serde_json::from_str(l).ok()).collect();
        if rows.len() >= count {
            break rows;
        }
        assert!(
            Instant::now() < until,
            "{format}: {} of {count}",
            rows.len()
        );
        std::thread::sleep(Duration::from_millis(50));
    };
    process.stop(Signal::SIGTERM, LIMIT).unwrap();
    let rate = |row: &Value| row["sampling_rate"].as_u64();
    found.iter().map(|row| rate(row).unwrap()).collect()
}

#[test]
fn goflow2_reads_the_rate_of_every_format() {
    require!(goflow2());
    let program = goflow2().unwrap();
    let folder = Folder::new("sampling-goflow2");
    let capture = folder.0.join("flows.pcap");
    std::fs::write(&capture, flows(600)).unwrap();
    for format in ["ipfix", "netflow9", "netflow5"] {
        for Case { args, rate, .. } in CASES {
            let found: BTreeSet<u64> = rates(&capture, &program, format, args)
                .into_iter()
                .collect();
            assert_eq!(found, BTreeSet::from([*rate]), "{format} {args:?}");
        }
        let most = match format {
            "netflow5" => NETFLOW5_MAX,
            _ => 100_000,
        };
        let found = rates(&capture, &program, format, &["--sampling-rate", "100000"]);
        assert!(
            found.iter().all(|rate| *rate == most),
            "{format}: {found:?}"
        );
    }
}

#[test]
fn tshark_reads_the_rate_and_the_method() {
    require!(skip::program("tshark", "tshark"));
    let folder = Folder::new("sampling-tshark");
    let capture = folder.0.join("flows.pcap");
    std::fs::write(&capture, flows(600)).unwrap();
    for (
        at,
        Case {
            args,
            rate,
            selectors,
        },
    ) in CASES.iter().enumerate()
    {
        let file = folder.0.join(format!("{at}.ipfix"));
        let url = format!("ipfix:{}", file.display());
        run(&capture, &[args, &["--export", &url][..]].concat());
        let values = |field: &str| -> BTreeSet<String> {
            let rows = tshark::fields(&file, &[field], &[]).unwrap();
            let words = rows.iter().flatten().flat_map(|row| row.split(','));
            words.filter(|w| !w.is_empty()).map(str::to_owned).collect()
        };
        // In the old form and in the new one, which also has the size of the sample.
        let expected = BTreeSet::from([rate.to_string()]);
        assert_eq!(values("cflow.sampling_interval"), expected, "{args:?}");
        let populations = values("cflow.sampling_population");
        assert!(
            populations.contains(&rate.to_string()),
            "{args:?}: {populations:?}"
        );
        for (field, value) in *selectors {
            let found = values(field);
            assert!(found.contains(*value), "{args:?}: {field}: {found:?}");
        }
        let known = ["cflow.sampling_probability", "cflow.sampling_time_interval"];
        for field in known
            .iter()
            .filter(|field| !selectors.iter().any(|s| s.0 == **field))
        {
            assert_eq!(values(field), BTreeSet::new(), "{args:?}: {field}");
        }
    }
}
