//! The fields of `--fields full` in formats other than JSON: in the same run each value equals that
//! of the JSON line. Where JSON omits a member, a cell is empty, 0 or false.

use std::path::Path;
use std::process::Command;

use crate::export::{Folder, LIMIT, Run, capture, captures, run};
use lab::oracle::python::python;
use lab::process::Process;
use lab::{require, skip};
use serde_json::{Value, json};

/// Members of a direction in the record.
const DIRECTED: [&str; 19] = [
    "packets",
    "bytes",
    "payload_bytes",
    "tcp_flags",
    "tcp_flags_first",
    "tcp_flags_last",
    "ttl_min",
    "ttl_max",
    "len_min",
    "len_max",
    "tos",
    "ip_flags",
    "fragments",
    "tcp_options",
    "tcp_window",
    "tcp_mss",
    "retransmissions",
    "out_of_order",
    "handshake_us",
];

const SHARED: [&str; 5] = [
    "ipv4_options",
    "ipv6_extension_headers",
    "rtt_us",
    "orphans",
    "uniflow",
];

const PACKETS: [&str; 4] = [
    "packet_lengths",
    "packet_times_us",
    "packet_flags",
    "packet_directions",
];

const TIMING: [&str; 8] = [
    "len_mean",
    "len_deviation",
    "len_histogram",
    "gap_min_us",
    "gap_max_us",
    "gap_mean_us",
    "gap_deviation_us",
    "gap_histogram",
];

const BYTES: [&str; 2] = ["byte_histogram", "entropy"];

/// The columns of a JSON record, by their names in tables.
fn columns(flow: &Value) -> Vec<(String, Value)> {
    let mut columns = Vec::new();
    for name in DIRECTED {
        columns.push((name.to_owned(), flow[name].clone()));
        columns.push((format!("reverse_{name}"), flow["reverse"][name].clone()));
    }
    for name in TIMING {
        columns.push((name.to_owned(), flow["timing"][name].clone()));
        let reverse = flow["reverse_timing"][name].clone();
        columns.push((format!("reverse_{name}"), reverse));
    }
    for name in BYTES {
        columns.push((name.to_owned(), flow[name].clone()));
        let name = format!("reverse_{name}");
        let value = flow[&name].clone();
        columns.push((name, value));
    }
    for name in SHARED.into_iter().chain(PACKETS) {
        columns.push((name.to_owned(), flow[name].clone()));
    }
    columns
}

/// Runs the probe on captures with `--fields full`, exporting to `url`; returns the results.
fn full(url: impl Fn(usize) -> String, args: &[&str]) -> Vec<(usize, Run)> {
    let mut runs = Vec::new();
    for (at, file) in captures(100).iter().enumerate() {
        let url = url(at);
        let mut all = vec!["--fields", "full", "--export", &url];
        all.extend(args);
        let run = run(file, &all);
        assert_eq!(run.export()["dropped"], json!({}), "{}", file.display());
        if !run.flows.is_empty() {
            runs.push((at, run));
        }
    }
    assert!(runs.len() > 3, "{}", runs.len());
    // Everything compared below must occur.
    for name in [
        "timing",
        "reverse_timing",
        "byte_histogram",
        "packet_lengths",
    ] {
        let flows = runs.iter().flat_map(|(_, run)| &run.flows);
        assert!(
            flows.filter(|flow| !flow[name].is_null()).count() > 10,
            "{name}"
        );
    }
    runs
}

/// Rows of a CSV file as objects of strings, read by Python.
fn rows(file: &Path) -> Vec<Value> {
    let read = "import csv, json, sys\n\
                csv.field_size_limit(1 << 20)\n\
                for row in csv.DictReader(open(sys.argv[1], newline='')):\n    \
                assert None not in row and None not in row.values(), row\n    \
                print(json.dumps(row))";
    let mut command = Command::new("python3");
    command.args(["-c", read]).arg(file);
    let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    let text = finished.checked().unwrap().stdout;
    let lines = text.lines();
    lines.map(|l| serde_json::from_str(l).unwrap()).collect()
}

/// A cell as a JSON value: a list if the expected value is one.
fn cell(text: &str, expected: &Value) -> Value {
    let number = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| json!(text));
    match expected {
        Value::Array(_) => text.split(';').map(number).collect(),
        Value::Null if matches!(text, "" | "0" | "false") => Value::Null,
        _ => number(text),
    }
}

#[test]
fn cells_of_csv_equal_json() {
    require!(skip::program("python3", "python3"));
    let folder = Folder::new("fields-csv");
    let path = |at: usize| folder.0.join(format!("{at}.csv"));
    for (at, run) in full(|at| format!("csv:{}", path(at).display()), &[]) {
        let rows = rows(&path(at));
        assert_eq!(rows.len(), run.flows.len());
        for (row, flow) in rows.iter().zip(&run.flows) {
            assert_eq!(row["start"], flow["start"]);
            for (name, expected) in columns(flow) {
                let text = row[&name].as_str().expect(&name);
                assert_eq!(cell(text, &expected), expected, "{name} of {flow}");
            }
            for name in ["start", "end"] {
                let text = row[&format!("reverse_{name}")].as_str().unwrap();
                assert_eq!(text, flow["reverse"][name].as_str().unwrap_or_default());
            }
        }
    }
}

/// A row with the columns of a flow in one text: fractions in thousandths, and nothing for null, 0
/// and false, which JSON omits.
fn canonical(columns: &[(String, Value)]) -> String {
    let canonical = |value: &Value| match value {
        Value::Null | Value::Bool(false) => Value::Null,
        Value::Number(number) if number.is_f64() => {
            json!((number.as_f64().unwrap() * 1000.0).round())
        }
        value if *value == json!(0) => Value::Null,
        value => value.clone(),
    };
    let values: Vec<Value> = columns.iter().map(|(_, value)| canonical(value)).collect();
    Value::from(values).to_string()
}

/// Checks that rows of another format, named by column, equal the flows of the JSON lines.
pub fn assert_same_rows(rows: &[Value], flows: &[Value], place: &str) {
    let mut expected: Vec<String> = flows.iter().map(|flow| canonical(&columns(flow))).collect();
    let of = |row: &Value| {
        let names = columns(&json!({})).into_iter();
        let cells = names.map(|(name, _)| {
            let value = row
                .get(&name)
                .unwrap_or_else(|| panic!("{place}: no {name}"));
            (name, value.clone())
        });
        canonical(&cells.collect::<Vec<_>>())
    };
    let mut found: Vec<String> = rows.iter().map(of).collect();
    expected.sort();
    found.sort();
    assert_eq!(found.len(), expected.len(), "{place}");
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected, "{place}");
    }
}

#[test]
fn rows_of_parquet_equal_json() {
    require!(python(&["pyarrow"]));
    let folder = Folder::new("fields-parquet");
    let path = |at: usize| folder.0.join(at.to_string());
    let read = "import sys, json, pyarrow.dataset as ds\n\
                table = ds.dataset(sys.argv[1]).to_table()\n\
                drop = [n for n in table.column_names if n.endswith(('_time', '_address'))]\n\
                for row in table.drop(drop).to_pylist(): print(json.dumps(row))";
    let url = |at: usize| format!("parquet:{}", path(at).display());
    for (at, run) in full(url, &[]) {
        let mut command = Command::new(python(&["pyarrow"]).unwrap());
        command.args(["-c", read]).arg(path(at));
        let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
        let text = finished.checked().unwrap().stdout;
        let rows: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_same_rows(&rows, &run.flows, &path(at).display().to_string());
    }
}

/// Fields of the record alone: nothing more is stored per flow, and other outputs do not change.
#[test]
fn all_columns_of_the_record_are_optional() {
    require!(skip::program("python3", "python3"));
    let folder = Folder::new("fields-columns");
    let (all, standard) = (folder.0.join("all.csv"), folder.0.join("standard.csv"));
    let urls = [
        format!("csv:{}?columns=all", all.display()),
        format!("csv:{}", standard.display()),
    ];
    let file = &capture();
    let run = run(file, &["--export", &urls[0], "--export", &urls[1]]);
    let (all, standard) = (rows(&all), rows(&standard));
    for ((all, standard), flow) in all.iter().zip(&standard).zip(&run.flows) {
        let (all, standard) = (all.as_object().unwrap(), standard.as_object().unwrap());
        assert_eq!(standard.len(), 25);
        for (name, value) in standard {
            assert_eq!(&all[name], value, "{name}");
        }
        let ttl = flow["ttl_max"].as_u64();
        assert_eq!(
            all["ttl_max"],
            ttl.map_or_else(String::new, |ttl| ttl.to_string())
        );
        assert!(!all.contains_key("len_mean") && !all.contains_key("entropy"));
    }
}

/// IPFIX elements by column.
const ELEMENTS: [(&str, &str); 38] = [
    ("packets", "packetDeltaCount"),
    ("bytes", "octetDeltaCount"),
    ("payload_bytes", "payloadOctetDeltaCount"),
    ("tcp_flags", "tcpControlBits"),
    ("tcp_flags_first", "firstTcpControlBits"),
    ("tcp_flags_last", "lastTcpControlBits"),
    ("ttl_min", "minimumTTL"),
    ("ttl_max", "maximumTTL"),
    ("len_min", "minimumIpTotalLength"),
    ("len_max", "maximumIpTotalLength"),
    ("tos", "ipClassOfService"),
    ("ip_flags", "fragmentFlags"),
    ("fragments", "fragmentDeltaCount"),
    ("tcp_options", "tcpOptions"),
    ("tcp_window", "tcpWindowSize"),
    ("tcp_mss", "tcpMaximumSegmentSize"),
    ("retransmissions", "tcpRetransmissionDeltaCount"),
    ("out_of_order", "tcpOutOfOrderDeltaCount"),
    ("handshake_us", "tcpHandshakeMicroseconds"),
    ("ipv4_options", "ipv4OptionNumbers"),
    ("ipv6_extension_headers", "ipv6ExtensionHeaders"),
    ("rtt_us", "tcpRoundTripMicroseconds"),
    ("orphans", "orphanFragments"),
    ("uniflow", "uniflowRecord"),
    ("packet_lengths", "packetPayloadOctets"),
    ("packet_times_us", "packetTimeMicroseconds"),
    ("packet_flags", "packetTcpControlBits"),
    ("packet_directions", "packetDirection"),
    ("len_mean", "packetLengthMean"),
    ("len_deviation", "packetLengthDeviation"),
    ("len_histogram", "packetLengthHistogram"),
    ("gap_min_us", "packetGapMinimum"),
    ("gap_max_us", "packetGapMaximum"),
    ("gap_mean_us", "packetGapMean"),
    ("gap_deviation_us", "packetGapDeviation"),
    ("gap_histogram", "packetGapHistogram"),
    ("byte_histogram", "payloadByteHistogram"),
    ("entropy", "payloadEntropy"),
];

/// Data records as printed by ipfixDump: values by element name, those of a list by the name of the
/// inner element.
fn dumped(file: &Path) -> Vec<Value> {
    let mut command = Command::new("ipfixDump");
    command.arg("--in").arg(file).args(["--data", "--rfc5610"]);
    let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    let text = finished.checked().unwrap().stdout;
    let (mut records, mut list): (Vec<Value>, _) = (Vec::new(), String::new());
    for line in text.lines().map(str::trim) {
        if line.starts_with("--- data record") {
            records.push(json!({}));
        }
        let Some(record) = records.last_mut() else {
            continue;
        };
        if let Some((_, element)) = line.split_once("ie: (") {
            let (_, name) = element.split_once(") ").unwrap();
            list = name.to_owned();
            // A list that was not measured has no entries.
            record[&list] = Value::Null;
        } else if let Some((left, value)) = line.split_once(" : ") {
            let value = serde_json::from_str(value.trim()).unwrap_or(Value::Null);
            if left.trim().parse::<u32>().is_ok() {
                match &mut record[&list] {
                    Value::Array(values) => values.push(value),
                    empty => *empty = json!([value]),
                }
                continue;
            }
            // `(32473/16385)reversePayloadOctetDeltaCount`, `(2)    packetDeltaCount`
            let name = left.rsplit([' ', ')']).next().unwrap();
            record[name] = value;
        }
    }
    records
}

/// A value in thousandths, to which JSON rounds.
fn thousandths(value: &Value) -> String {
    match value {
        Value::Array(values) => values
            .iter()
            .map(|value| thousandths(value) + " ")
            .collect(),
        Value::Number(number) if number.as_f64() == Some(0.0) => String::new(),
        Value::Bool(true) => thousandths(&json!(1)),
        Value::Number(number) => format!("{:.0}", (number.as_f64().unwrap() * 1000.0).round()),
        _ => String::new(),
    }
}

#[test]
fn lists_of_ipfix_equal_json() {
    require!(skip::program("ipfixDump", "libfixbuf-tools"));
    let folder = Folder::new("fields-ipfix");
    let path = |at: usize| folder.0.join(format!("{at}.ipfix"));
    for (at, run) in full(|at| format!("ipfix:{}", path(at).display()), &[]) {
        // The source of a one-way record is its sender: its columns may be swapped.
        let flows = run.flows.iter();
        let sent = |of: &Value| of["packets"].as_u64().is_some_and(|packets| packets != 0);
        let flows = flows.filter(|flow| sent(flow) && sent(&flow["reverse"]));
        let mut expected: Vec<Vec<String>> = flows
            .map(|flow| {
                let columns = columns(flow);
                let known = columns.iter().filter(|(name, _)| {
                    let name = name.strip_prefix("reverse_").unwrap_or(name);
                    ELEMENTS.iter().any(|(column, _)| *column == name)
                });
                known.map(|(_, value)| thousandths(value)).collect()
            })
            .collect();
        let records = dumped(&path(at));
        let both = |record: &&Value| !record["reversePacketDeltaCount"].is_null();
        let mut found: Vec<Vec<String>> = records
            .iter()
            .filter(both)
            .map(|record| {
                let names = columns(&json!({})).into_iter().map(|(name, _)| name);
                let of = |name: String| {
                    let (column, is_reverse) = match name.strip_prefix("reverse_") {
                        Some(column) => (column, true),
                        None => (name.as_str(), false),
                    };
                    let (_, element) = ELEMENTS.iter().find(|(of, _)| *of == column)?;
                    let element = match is_reverse {
                        true => format!("reverse{}{}", element[..1].to_uppercase(), &element[1..]),
                        false => (*element).to_owned(),
                    };
                    let value = &record[&element];
                    Some(match column {
                        // The bits of the header byte.
                        "ip_flags" => thousandths(&value.as_u64().map(|bits| bits >> 5).into()),
                        _ => thousandths(value),
                    })
                };
                names.filter_map(of).collect()
            })
            .collect();
        expected.sort();
        found.sort();
        assert_eq!(found.len(), expected.len(), "{}", path(at).display());
        for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
            // JSON has thousandths, ipfixDump eight digits.
            let numbers = (found.parse::<f64>(), expected.parse::<f64>());
            let is_near = matches!(numbers, (Ok(a), Ok(b)) if (a - b).abs() <= 1.0 + b * 1e-7);
            let place = path(at).display().to_string();
            assert!(is_near || found == expected, "{place}: {found} {expected}");
        }
    }
}
