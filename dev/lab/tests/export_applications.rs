//! Applications, Community ID and additional key fields in every export, read by independent
//! programs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::export::{self, Folder, LIMIT, Run, run};
use lab::process::Process;
use lab::{require, skip};
use serde_json::Value;

fn mixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/captures/lab-mix.pcapng")
}

/// Runs the probe with decoders on, exporting to this destination.
fn decoded(url: &str) -> Run {
    let args = ["--decode", "all", "--key", "mac,vlan", "--export", url];
    run(&mixture(), &args)
}

/// How often each value of a member of applications occurs.
fn values(run: &Run, member: &str) -> BTreeMap<String, usize> {
    let found = run.flows.iter();
    let found = found.filter_map(|flow| flow["application"][member].as_str());
    count(found.map(str::to_owned))
}

fn count(values: impl Iterator<Item = String>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for value in values.filter(|value| !value.is_empty()) {
        *counts.entry(value).or_insert(0) += 1;
    }
    counts
}

fn stdout(command: &mut Command) -> String {
    let finished = Process::spawn(command).unwrap().wait(LIMIT).unwrap();
    finished.checked().unwrap().stdout
}

/// Reads `name : value` in ipfixDump's output, with types from the file alone.
fn dumped(text: &str, name: &str) -> BTreeMap<String, usize> {
    let values = text.lines().filter_map(|line| {
        let (left, value) = line.split_once(" : ")?;
        let is_wanted = left.split_whitespace().last() == Some(name);
        // Strings are preceded by their length.
        let value = match value.trim().strip_prefix("(len: ") {
            Some(rest) => rest.split_once(") ").map_or("", |(_, text)| text),
            None => value.trim(),
        };
        is_wanted.then(|| value.to_owned())
    });
    count(values)
}

#[test]
fn ipfix_names_its_own_elements() {
    require!(skip::program("ipfixDump", "libfixbuf-tools"));
    let folder = Folder::new("applications-ipfix");
    let file = folder.0.join("flows.ipfix");
    let run = decoded(&format!("ipfix:{}", file.display()));
    let mut command = Command::new("ipfixDump");
    command.arg("--in").arg(&file).args(["--data", "--rfc5610"]);
    let text = stdout(&mut command);
    for (element, member) in [
        ("ja3", "ja3"),
        ("ja4", "ja4"),
        ("dnsQueryName", "dns_name"),
        ("httpRequestHost", "http_host"),
        ("httpUserAgent", "http_agent"),
    ] {
        let expected = values(&run, member);
        assert!(!expected.is_empty(), "{member}");
        assert_eq!(dumped(&text, element), expected, "{element}");
    }
    let ids = run.flows.iter().map(|flow| flow["community_id"].as_str());
    let ids = count(ids.map(|id| id.expect("an id").to_owned()));
    assert_eq!(dumped(&text, "communityIdentifier"), ids);
    // The source of a one-way record is the sender, not the initiator: compare both endpoints
    // together.
    let macs = run.flows.iter();
    let macs = macs.flat_map(|flow| [&flow["src_mac"], &flow["dst_mac"]]);
    let macs = count(macs.filter_map(|mac| mac.as_str().map(str::to_owned)));
    let mut ends = dumped(&text, "sourceMacAddress");
    for (mac, times) in dumped(&text, "destinationMacAddress") {
        *ends.entry(mac).or_insert(0) += times;
    }
    assert_eq!(ends, macs);
}

#[test]
fn tshark_reads_every_record() {
    require!(skip::program("tshark", "tshark"));
    let folder = Folder::new("applications-tshark");
    for options in ["", "?uniflow", "?fields=payloadOctetDeltaCount"] {
        let file = folder.0.join("flows.ipfix");
        let run = decoded(&format!("ipfix:{}{options}", file.display()));
        let mut command = Command::new("tshark");
        command.args(["-n", "-r"]).arg(&file).args([
            "-T",
            "fields",
            "-E",
            "aggregator=;",
            "-e",
            "cflow.packets",
            "-e",
            "cflow.octets",
            "-e",
            "_ws.malformed",
        ]);
        let (mut packets, mut bytes) = (0, 0);
        for line in stdout(&mut command).lines() {
            let mut columns = line.split('\t');
            let mut sum = || {
                let words = columns.next().unwrap_or_default().split(';');
                let numbers = words.filter(|word| !word.is_empty());
                numbers
                    .map(|word| word.parse::<u64>().unwrap())
                    .sum::<u64>()
            };
            packets += sum();
            bytes += sum();
            assert_eq!(columns.next().unwrap_or_default(), "", "{options}");
        }
        let totals = run.totals(|_| true);
        assert_eq!(
            (packets, bytes),
            (totals.packets, totals.bytes),
            "{options}"
        );
        let records = run.export()["data_records"].as_u64().unwrap();
        let expected = match options {
            "?uniflow" => totals.directions,
            _ => run.flows.len() as u64,
        };
        assert_eq!(records, expected, "{options}");
    }
}

#[test]
fn csv_has_a_column_for_each_field() {
    require!(skip::program("python3", "python3"));
    let folder = Folder::new("applications-csv");
    let file = folder.0.join("flows.csv");
    let run = decoded(&format!("csv:{}", file.display()));
    let read = "import csv, json, sys\n\
                for row in csv.DictReader(open(sys.argv[1], newline='')):\n    \
                assert None not in row and None not in row.values(), row\n    \
                print(json.dumps(row))";
    let text = stdout(Command::new("python3").args(["-c", read]).arg(&file));
    let rows: Vec<Value> = text
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(rows.len(), run.flows.len());
    let column = |name: &str| count(rows.iter().map(|row| row[name].as_str().unwrap().into()));
    for name in [
        "tls_sni",
        "ja3",
        "ja4",
        "dns_name",
        "http_host",
        "http_agent",
    ] {
        assert_eq!(column(name), values(&run, name), "{name}");
    }
    assert_eq!(column("application"), values(&run, "protocol"));
    assert_eq!(column("application_by"), values(&run, "by"));
    let ids = run
        .flows
        .iter()
        .map(|f| f["community_id"].as_str().unwrap().into());
    assert_eq!(column("community_id"), count(ids));
}

#[test]
fn eve_uses_suricatas_names() {
    let folder = Folder::new("applications-eve");
    let file = folder.0.join("eve.json");
    let run = decoded(&format!("eve:{}", file.display()));
    let text = std::fs::read_to_string(&file).unwrap();
    let events: Vec<Value> = text
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(events.len(), run.flows.len());
    let at = |path: &[&str]| {
        let values = events.iter().filter_map(|event| {
            let value = path.iter().fold(event, |value, name| &value[*name]);
            value.as_str().map(str::to_owned)
        });
        count(values)
    };
    assert_eq!(at(&["dns", "rrname"]), values(&run, "dns_name"));
    assert_eq!(at(&["http", "hostname"]), values(&run, "http_host"));
    assert_eq!(at(&["tls", "ja3", "hash"]), values(&run, "ja3"));
    assert_eq!(at(&["tls", "sni"]), values(&run, "tls_sni"));
    let seen = run
        .flows
        .iter()
        .filter(|f| f["application"]["by"] == "content");
    let seen = seen.map(|f| f["application"]["protocol"].as_str().unwrap().to_owned());
    assert_eq!(at(&["app_proto"]), count(seen));
    let ids = run
        .flows
        .iter()
        .map(|f| f["community_id"].as_str().unwrap().into());
    assert_eq!(at(&["community_id"]), count(ids));
    assert!(
        events
            .iter()
            .any(|event| event["ether"]["src_macs"][0].is_string())
    );
}

/// Without decoders the Community ID is exported on request, with its seed.
#[test]
fn the_community_id_has_a_seed() {
    let id = |args: &[&str]| {
        let run = run(&mixture(), args);
        let ids = run.flows.iter().map(|flow| flow["community_id"].clone());
        ids.collect::<Vec<_>>()
    };
    assert!(id(&[]).iter().all(Value::is_null));
    let (zero, one) = (id(&["--community-id"]), id(&["--community-id=1"]));
    assert!(
        zero.iter()
            .zip(&one)
            .all(|(a, b)| a.is_string() && b.is_string() && a != b)
    );
}

/// The new templates and options do not confuse a collector that counts.
#[test]
fn nfdump_counts_are_unchanged_by_applications() {
    require!(skip::program("nfcapd", "nfdump"));
    for format in ["ipfix", "netflow9"] {
        let (folder, port) = (
            Folder::new(&format!("applications-{format}")),
            export::udp_port(),
        );
        let mut command = Command::new("nfcapd");
        command.args(["-b", "127.0.0.1", "-p", &port.to_string(), "-t", "3600"]);
        command.args(["-B", "8000000", "-w", folder.path()]);
        let mut process = Process::spawn(&mut command).unwrap();
        export::wait_bound("udp", port);
        let run = decoded(&format!("{format}:udp://127.0.0.1:{port}?rate=20000"));
        std::thread::sleep(std::time::Duration::from_millis(500));
        let ended = process.stop(lab::process::Signal::SIGTERM, LIMIT).unwrap();
        let reported = [ended.stdout, ended.stderr].concat();
        assert!(!reported.contains("size error"), "{reported}");
        let mut command = Command::new("nfdump");
        command.args(["-R", folder.path(), "-q", "-N"]);
        let text = stdout(command.args(["-o", "fmt:%ipkt %ibyt %opkt %obyt"]));
        let mut sums = [0; 2];
        for line in text.lines() {
            let words = line
                .split_whitespace()
                .filter_map(|w| w.parse::<u64>().ok());
            for (at, number) in words.enumerate() {
                sums[at % 2] += number;
            }
        }
        let totals = run.totals(|_| true);
        assert_eq!(sums, [totals.packets, totals.bytes], "{format}");
    }
}
