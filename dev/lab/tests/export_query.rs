//! `barewire flows query`: directions against tshark's endpoints, many files, other schemas, and
//! nothing but the result on standard output.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::export::{Folder, LIMIT, run};
use lab::oracle::python::python;
use lab::process::{Process, barewire};
use lab::{corpus, require, skip};
use serde_json::Value;

/// Captures without tunnels, whose inner addresses tshark counts too, and without fragments of
/// IPv6, which it counts once reassembled.
const CAPTURES: [&str; 11] = [
    "lab-mix.pcapng",
    "lab-vlan.pcap",
    "ICS-Security-Tools__EthernetIP__cip-multiple-1.pcap",
    "arkime__quic34.pcap",
    "libpcap__gateway_or_not.pcap",
    "nDPI__dos_win98_smb_netbeui.pcap",
    "peafowl__L3__truncated_tcp.pcap",
    "suricata-verify__eve-overlap-payload-01__tcp-overlap.pcap",
    "tcpdump__bgp-4byte-asn.pcap",
    "wireshark__retrans-tls.pcap",
    "zeek__quic__interop__quic-go_quic-go__handshake.pcap",
];

/// Runs a query with Python's DuckDB; returns standard output.
fn query(arguments: &[&str]) -> String {
    let mut command = Command::new(barewire().unwrap());
    command.args(["flows", "query", "--engine"]);
    command.arg(python(&["duckdb"]).unwrap()).args(arguments);
    let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    finished.checked().unwrap().stdout
}

fn rows(arguments: &[&str]) -> Vec<Value> {
    let text = query(&[arguments, &["--json"]].concat());
    let lines = text.lines().map(serde_json::from_str);
    lines
        .map(|line| line.unwrap_or_else(|e| panic!("{e}: {text}")))
        .collect()
}

/// Packets and bytes sent, packets and bytes received.
type Endpoints = BTreeMap<String, [u64; 4]>;

fn endpoints_by_tshark(file: &Path) -> Endpoints {
    let mut found = Endpoints::new();
    for kind in ["endpoints,ip", "endpoints,ipv6"] {
        let mut command = Command::new("tshark");
        command.args(["-n", "-q", "-z", kind, "-r"]).arg(file);
        // A truncated file is an error, after the table.
        let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
        for line in finished.stdout.lines() {
            let mut words = line.split_whitespace();
            let address = words.next().unwrap_or_default();
            let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
            if let [_, _, sent_packets, sent, got_packets, got] = numbers[..] {
                let counts = [sent_packets, sent, got_packets, got];
                found.insert(address.to_owned(), counts);
            }
        }
    }
    found
}

fn endpoints_by_query(folder: &str) -> Endpoints {
    let sql = "SELECT address, sum(sent[1])::BIGINT AS sp, sum(sent[2])::BIGINT AS sb,
               sum(got[1])::BIGINT AS gp, sum(got[2])::BIGINT AS gb FROM (
               SELECT address, [packets, bytes] AS sent, [0, 0] AS got FROM directions UNION ALL
               SELECT peer, [0, 0], [packets, bytes] FROM directions) GROUP BY address";
    let rows = rows(&[sql, folder]);
    let row = |row: &Value| {
        let counts = ["sp", "sb", "gp", "gb"].map(|name| row[name].as_u64().unwrap());
        (row["address"].as_str().unwrap().to_owned(), counts)
    };
    rows.iter().map(row).collect()
}

#[test]
fn directions_equal_tsharks_endpoints() {
    require!(skip::program("tshark", "tshark"), python(&["duckdb"]));
    let all = corpus::captures();
    let named = |file: &&PathBuf| CAPTURES.iter().any(|name| file.ends_with(name));
    let files: Vec<&PathBuf> = all.files.iter().filter(named).collect();
    assert_eq!(files.len(), all.at_least(CAPTURES.len(), 2));
    for file in files {
        let folder = Folder::new("query-endpoints");
        let url = format!("parquet:{}", folder.path());
        run(file, &["--octets", "packet", "--export", &url]);
        let expected = endpoints_by_tshark(file);
        assert!(expected.len() > 1, "{}", file.display());
        assert_eq!(
            endpoints_by_query(folder.path()),
            expected,
            "{}",
            file.display()
        );
        // The example of the help names the largest sender, who is often not an initiator.
        let sql = "SELECT address, sum(bytes) AS sent FROM directions GROUP BY address
                   ORDER BY sent DESC LIMIT 10";
        let first = &rows(&[sql, folder.path()])[0];
        let most = expected.values().map(|counts| counts[1]).max();
        assert_eq!(first["sent"].as_u64(), most, "{}", file.display());
    }
}

/// Columns of the sender have no prefix, those of the other end `peer_`; both directions of a flow
/// are rows of their own.
#[test]
fn directions_have_the_columns_of_their_sender() {
    require!(python(&["duckdb"]));
    let folder = Folder::new("query-directions");
    let mix = &corpus::own().join("lab-mix.pcapng");
    let url = format!("parquet:{}", folder.path());
    let run = run(
        mix,
        &["--decode", "all", "--fields", "full", "--export", &url],
    );
    let count = run.totals(|_| true).directions;
    let sql = "SELECT count(*) AS n, count(DISTINCT is_initiator) AS ways FROM Directions";
    assert_eq!(rows(&[sql, folder.path()])[0]["n"], count);
    assert_eq!(rows(&[sql, folder.path()])[0]["ways"], 2);
    let sql = "SELECT port, peer_port, tcp_flags, ttl_min, application, date, hour, len_mean
               FROM directions WHERE protocol = 6 AND NOT is_initiator AND port = 80 LIMIT 1";
    let row = &rows(&[sql, folder.path()])[0];
    assert!(row["peer_port"].as_u64() > Some(1023) && row["tcp_flags"].as_u64() > Some(0));
    assert!(
        row["date"].is_string() && row["len_mean"].is_number(),
        "{row}"
    );
    let described = query(&["DESCRIBE directions", folder.path()]);
    for name in ["src", "dst", "reverse_", "packet_lengths"] {
        assert!(!described.contains(name), "{name}: {described}");
    }
}

/// Files with different columns, some in directories by hour, are one table.
#[test]
fn files_of_different_schemas_are_united() {
    require!(python(&["duckdb"]));
    let folder = Folder::new("query-schemas");
    let mix = &corpus::own().join("lab-mix.pcapng");
    let mut count = 0;
    for (at, args) in [&["--fields", "timing"][..], &[], &["--fields", "bytes"]]
        .iter()
        .enumerate()
    {
        let partition = ["hour", "none", "day"][at];
        let url = format!("parquet:{}/{at}?partition={partition}", folder.path());
        let run = run(mix, &[args, &["--export", &url][..]].concat());
        count += run.flows.len();
    }
    let sql = "SELECT count(*) AS n, count(len_mean) > 0 AS t, count(entropy) > 0 AS b,
               count(date) > count(hour) AS d, count(*) > count(date) AS some FROM flows";
    let row = &rows(&[sql, folder.path()])[0];
    assert_eq!(row["n"], count);
    assert!(
        ["t", "b", "d", "some"]
            .iter()
            .all(|name| row[*name] == true),
        "{row}"
    );
    let sql = "SELECT sum(bytes)::BIGINT AS sent FROM directions";
    let of_flows = "SELECT sum(bytes + reverse_bytes)::BIGINT AS sent FROM flows";
    assert_eq!(
        rows(&[sql, folder.path()]),
        rows(&[of_flows, folder.path()])
    );
}

/// More names than fit into an argument, given as arguments; and the memory for as many files is
/// that for few.
#[test]
fn many_files_are_read_by_name() {
    require!(python(&["duckdb"]));
    const COUNT: usize = 2500;
    let folder = Folder::new("query-many");
    let mix = &corpus::own().join("lab-vlan.pcap");
    let url = format!("parquet:{}/one?partition=none", folder.path());
    let run = run(mix, &["--export", &url]);
    let one = std::fs::read_dir(folder.file("one")).unwrap();
    let one = one.map(|entry| entry.unwrap().path()).next().unwrap();
    let links: Vec<String> = (0..COUNT)
        .map(|n| folder.file(&format!("a-file-of-flows-with-a-long-name-{n:05}.parquet")))
        .collect();
    for link in &links {
        std::fs::hard_link(&one, link).unwrap();
    }
    let sql = "SELECT count(*) AS n, sum(bytes)::BIGINT AS sent FROM flows";
    let names: Vec<&str> = links.iter().map(String::as_str).collect();
    let row = &rows(&[&[sql], &names[..]].concat())[0];
    assert_eq!(row["n"], run.flows.len() * COUNT);
    // A limit on the address space would be the kernel's; this one is what the engine itself took.
    let measured = |names: &[&str]| {
        let script = "import sys, subprocess, resource\n\
                      subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n\
                      print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)";
        let engine = python(&["duckdb"]).unwrap();
        let mut command = Command::new(&engine);
        command.args(["-c", script]).arg(barewire().unwrap());
        command
            .args(["flows", "query", "--engine"])
            .arg(&engine)
            .arg(sql)
            .args(names);
        let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
        let kib = finished.checked().unwrap().stdout;
        kib.trim().parse::<u64>().unwrap() >> 10
    };
    let (few, many) = (measured(&names[..10]), measured(&names));
    assert!(
        many < few + 150,
        "{few} MiB with 10 files, {many} with {COUNT}"
    );
}

/// A query that takes long: DuckDB draws a progress bar then, unless told otherwise.
#[test]
fn nothing_but_the_result_is_on_standard_output() {
    require!(python(&["duckdb"]));
    let folder = Folder::new("query-progress");
    let mix = &corpus::own().join("lab-vlan.pcap");
    let url = format!("parquet:{}", folder.path());
    run(mix, &["--export", &url]);
    // The bar is drawn on a terminal, and in some versions everywhere.
    let sql = "SELECT current_setting('enable_progress_bar') AS bar,
               (SELECT count(*) FROM range(400000000) t(n) WHERE n % 7 = 3) > 0 AS done FROM flows
               LIMIT 1";
    let json = query(&[sql, folder.path(), "--json"]);
    assert_eq!(json, "{\"bar\":false,\"done\":true}\n");
    let csv = query(&[sql, folder.path(), "--csv"]);
    assert_eq!(csv, "bar,done\nfalse,true\n");
}
