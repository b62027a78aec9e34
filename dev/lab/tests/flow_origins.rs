//! Enrichment of addresses and MAC addresses: files written by other programs, results compared
//! with those of libmaxminddb and Wireshark, and read back from every export.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::export::{Folder, LIMIT, Run, captures, run, udp_port, wait_bound};
use lab::corpus;
use lab::oracle::python::python;
use lab::oracle::{TempFile, write_pcap};
use lab::packet::{Addresses, Udp};
use lab::process::{Process, Signal};
use lab::{require, skip};
use serde_json::Value;

/// The capture: IPv4 and IPv6, many hosts.
fn mix() -> std::path::PathBuf {
    corpus::own().join("lab-mix.pcapng")
}

/// Networks of all addresses of a capture, each with its own AS, every other one with a number of
/// more than 16 bits; every fifth network is left out.
fn networks(run: &Run) -> Vec<(String, u32, &'static str, String)> {
    let mut all = BTreeSet::new();
    for flow in &run.flows {
        for end in ["src", "dst"] {
            all.insert(match flow[end].as_str().unwrap().parse().unwrap() {
                IpAddr::V4(v4) => {
                    let [a, b, c, _] = v4.octets();
                    format!("{a}.{b}.{c}.0/24")
                }
                IpAddr::V6(v6) => {
                    let [a, b, c, ..] = v6.segments();
                    format!("{a:x}:{b:x}:{c:x}::/48")
                }
            });
        }
    }
    let countries = ["DE", "FR", "US", "JP"];
    // Below ::/96 a database has the IPv4 addresses.
    all.remove("0:0:0::/48");
    let rows = all.into_iter().enumerate().filter(|(at, _)| at % 5 != 4);
    rows.map(|(at, network)| {
        let asn = if at % 2 == 0 { 64_500 } else { 4_200_000_000 } + at as u32;
        (
            network,
            asn,
            countries[at % 4],
            format!("Net \"{at}\", Inc."),
        )
    })
    .collect()
}

/// The list as text, and as a MaxMind DB file from an independent writer.
fn files(folder: &Folder, rows: &[(String, u32, &str, String)]) -> [String; 2] {
    let (list, database) = (folder.0.join("list.tsv"), folder.0.join("list.mmdb"));
    let lines = rows.iter();
    let lines = lines.map(|(net, asn, country, name)| format!("{net}\t{asn}\t{country}\t{name}\n"));
    std::fs::write(&list, lines.collect::<String>()).unwrap();
    let script = "
import sys
from netaddr import IPSet
from mmdb_writer import MMDBWriter
writer = MMDBWriter(6, 'Test', ipv4_compatible=True, int_type='u32')
for line in open(sys.argv[1]):
    net, asn, country, name = line.rstrip('\\n').split('\\t')
    writer.insert_network(IPSet([net]), {
        'autonomous_system_number': int(asn), 'autonomous_system_organization': name,
        'country': {'iso_code': country}, 'city': {'names': {'en': 'City of ' + country}}})
writer.to_db_file(sys.argv[2])";
    let mut command = Command::new(python(&["mmdb_writer"]).unwrap());
    command.args(["-c", script]).arg(&list).arg(&database);
    let made = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    made.checked().unwrap();
    [list, database].map(|path| path.to_str().unwrap().to_owned())
}

/// libmaxminddb's results for addresses, by Wireshark's program: number, name, country, city.
fn resolve(database: &str, addrs: &BTreeSet<String>) -> BTreeMap<String, [String; 4]> {
    let mut command = Command::new("mmdbresolve");
    command.args(["-f", database]).stdin(Stdio::piped());
    let mut process = Process::spawn_with_stdin(&mut command).unwrap();
    let mut stdin = process.take_stdin().unwrap();
    for addr in addrs {
        writeln!(stdin, "{addr}").unwrap();
    }
    drop(stdin);
    let text = process.wait(LIMIT).unwrap().stdout;
    let mut found = BTreeMap::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(addr) = line.strip_prefix('[') {
            current = addr.trim_end_matches(']').to_owned();
            if current == "init" {
                continue;
            }
            found.insert(current.clone(), <[String; 4]>::default());
        }
        let keys = [
            "autonomous_system_number: ",
            "autonomous_system_organization: ",
            "country.iso_code: ",
            "city.names.en: ",
        ];
        for (at, key) in keys.iter().enumerate() {
            if let Some(value) = line.strip_prefix(key) {
                found.get_mut(&current).unwrap()[at] = value.to_owned();
            }
        }
    }
    found
}

/// A flow's data for an endpoint.
fn reported(flow: &Value, end: &str) -> [String; 4] {
    ["asn", "as_name", "country", "city"].map(|name| match &flow[format!("{end}_{name}")] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    })
}

#[test]
fn databases_and_lists_match_libmaxminddb() {
    require!(
        skip::program("mmdbresolve", "wireshark-common"),
        python(&["mmdb_writer"])
    );
    let folder = Folder::new("origins");
    let plain = run(&mix(), &[]);
    let [list, database] = files(&folder, &networks(&plain));
    let by_list = run(&mix(), &["--asn", &list, "--geo", &list]);
    let by_database = run(&mix(), &["--asn", &database, "--geo", &database]);
    let ends = plain
        .flows
        .iter()
        .flat_map(|flow| [&flow["src"], &flow["dst"]]);
    let addrs = ends.map(|end| end.as_str().unwrap().to_owned()).collect();
    let expected = resolve(&database, &addrs);
    assert_eq!(expected.len(), addrs.len());
    let mut known = 0;
    for flow in &by_database.flows {
        for end in ["src", "dst"] {
            let expected = &expected[flow[end].as_str().unwrap()];
            assert_eq!(&reported(flow, end), expected, "{flow}");
            known += usize::from(!expected[0].is_empty());
        }
    }
    for flow in &by_list.flows {
        for end in ["src", "dst"] {
            let expected = &expected[flow[end].as_str().unwrap()];
            // Lists of networks have no cities.
            assert_eq!(reported(flow, end)[..3], expected[..3], "{flow}");
        }
    }
    assert!(known > 20 && known < 2 * plain.flows.len(), "{known}");
}

fn sorted(rows: impl Iterator<Item = String>) -> Vec<String> {
    let mut rows: Vec<String> = rows.collect();
    rows.sort();
    rows
}

/// Addresses and numbers of each direction with packets, as collectors have them.
fn directions(run: &Run, most: u64) -> Vec<String> {
    let ways = run.flows.iter().flat_map(|flow| {
        let number = |end: &str| {
            let asn = flow[format!("{end}_asn")].as_u64().unwrap_or(0);
            // AS_TRANS of RFC 6793 for numbers that do not fit.
            if asn > most { 23_456 } else { asn }
        };
        let ends = ["src", "dst"].map(|end| (flow[end].as_str().unwrap(), number(end)));
        let [(src, src_as), (dst, dst_as)] = ends;
        let forward = format!("{src} {dst} {src_as} {dst_as}");
        let back = format!("{dst} {src} {dst_as} {src_as}");
        let has = |way: &Value| way["packets"].as_u64() > Some(0);
        [
            has(flow).then_some(forward),
            has(&flow["reverse"]).then_some(back),
        ]
    });
    sorted(ways.flatten())
}

#[test]
fn nfdump_reads_as_numbers() {
    require!(skip::program("nfcapd", "nfdump"), python(&["mmdb_writer"]));
    let folder = Folder::new("origins-nfdump");
    let rows = networks(&run(&mix(), &[]));
    let [list, _] = files(&folder, &rows);
    for format in ["ipfix", "netflow9", "netflow5"] {
        let (store, port) = (Folder::new(&format!("origins-{format}")), udp_port());
        let mut command = Command::new("nfcapd");
        command.args(["-b", "127.0.0.1", "-p", &port.to_string(), "-t", "600"]);
        command.args(["-B", "8000000", "-w", store.path()]);
        let mut collector = Process::spawn(&mut command).unwrap();
        wait_bound("udp", port);
        let options = if format == "ipfix" { "&uniflow" } else { "" };
        let url = format!("{format}:udp://127.0.0.1:{port}?rate=20000{options}");
        let ours = run(&mix(), &["--asn", &list, "--export", &url]);
        std::thread::sleep(Duration::from_millis(500));
        collector.stop(Signal::SIGTERM, LIMIT).unwrap();
        let mut command = Command::new("nfdump");
        command.args(["-R", store.path(), "-q", "-N", "-6"]);
        command.args(["-o", "fmt:%sa %da %sas %das"]);
        let listed = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
        let lines = listed.stdout.lines().map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.join(" ")
        });
        let found = sorted(lines.filter(|line| !line.is_empty()));
        let is_five = format == "netflow5";
        let most = if is_five { 65_535 } else { u32::MAX.into() };
        let mut expected = directions(&ours, most);
        expected.retain(|line| !is_five || !line.contains(':'));
        assert!(expected.len() > 20);
        assert_eq!(found, expected, "{format}");
    }
}

/// A registry in IEEE's format for the capture's cards.
fn registry_of_cards() -> String {
    let cards = run(&mix(), &["--key", "mac"]);
    let macs = cards
        .flows
        .iter()
        .filter_map(|flow| flow["src_mac"].as_str());
    let prefixes: BTreeSet<String> = macs.map(|mac| mac[..8].replace(':', "")).collect();
    let lines = prefixes.iter().map(|prefix| {
        let prefix = prefix.to_uppercase();
        format!("MA-L,{prefix},\"Maker, \"\"of\"\" {prefix}\",\"A street\nand a city\"\n")
    });
    let registry = "Registry,Assignment,Organization Name,Organization Address\n";
    registry.to_owned() + &lines.collect::<String>()
}

/// Columns of both endpoints.
fn columns_of_ends() -> Vec<String> {
    let names = ["asn", "as_name", "country", "city", "mac_vendor"];
    let ends = ["src", "dst"].iter();
    ends.flat_map(|end| names.map(|name| format!("{end}_{name}")))
        .collect()
}

/// The rows of a table that DuckDB reads, each in one line, sorted.
fn rows_by_duckdb(source: &str) -> Vec<String> {
    let texts = columns_of_ends();
    let texts = texts
        .iter()
        .map(|name| format!("coalesce({name}::VARCHAR, '')"));
    let line = texts.collect::<Vec<_>>().join(" || '|' || ");
    let rows = format!("duckdb.sql(\"SELECT {line} FROM {source}\").fetchall()");
    let script = format!("import duckdb\nfor row in {rows}:\n  print(row[0])");
    let mut command = Command::new(python(&["duckdb"]).unwrap());
    command.args(["-c", &script]);
    let read = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    let read = read.checked().unwrap();
    sorted(read.stdout.lines().map(str::to_owned))
}

/// The same values in every record, in any format.
#[test]
fn exported_files_have_the_fields_of_json_lines() {
    require!(python(&["mmdb_writer", "duckdb"]));
    let folder = Folder::new("origins-files");
    let rows = networks(&run(&mix(), &[]));
    let [list, database] = files(&folder, &rows);
    let path = |name: &str| folder.0.join(name).to_str().unwrap().to_owned();
    let (csv, parquet, eve) = (path("flows.csv"), path("flows"), path("flows.eve"));
    let makers = path("oui.csv");
    std::fs::write(&makers, registry_of_cards()).unwrap();
    let urls = [
        format!("csv:{csv}"),
        format!("parquet:{parquet}"),
        format!("eve:{eve}"),
    ];
    let mut args = vec!["--asn", &list, "--geo", &database, "--key", "mac"];
    args.extend(["--mac-vendors", &makers]);
    for url in &urls {
        args.extend(["--export", url]);
    }
    let ours = run(&mix(), &args);
    let columns = columns_of_ends();
    let words = |flow: &Value| {
        let values = columns.iter().map(|name| match &flow[name] {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        });
        values.collect::<Vec<_>>().join("|")
    };
    let expected = sorted(ours.flows.iter().map(words));
    assert!(
        expected.iter().any(|line| !line.contains("||")),
        "{expected:#?}"
    );
    let lines = std::fs::read_to_string(&eve).unwrap();
    let lines = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert_eq!(sorted(lines.map(|flow| words(&flow))), expected);
    for source in [
        format!("read_csv('{csv}', all_varchar = true)"),
        format!("read_parquet('{parquet}/**/*.parquet')"),
    ] {
        assert_eq!(rows_by_duckdb(&source), expected, "{source}");
    }
}

/// Wireshark's list of vendors.
const MANUF: &str = "/usr/share/wireshark/manuf";

fn manuf() -> Result<(), skip::Missing> {
    match Path::new(MANUF).is_file() {
        true => Ok(()),
        false => Err(skip::Missing::Machine(format!(
            "{MANUF} (wireshark-common)"
        ))),
    }
}

#[test]
fn mac_vendors_equal_those_of_tshark() {
    require!(skip::program("tshark", "tshark"), manuf());
    let (mut known, mut unknown) = (0, 0);
    // Virtual interfaces in captures have no vendor: a capture with cards of many vendors comes
    // first.
    let cards = cards_of_many_makers();
    let files = std::iter::once(cards.path().to_owned()).chain(captures(80));
    for file in files {
        let ours = run(&file, &["--key", "mac", "--mac-vendors", MANUF]);
        let mut command = Command::new("tshark");
        command
            .args(["-N", "m", "-r"])
            .arg(&file)
            .args(["-T", "fields"]);
        for field in [
            "eth.src",
            "eth.src.oui_resolved",
            "eth.dst",
            "eth.dst.oui_resolved",
        ] {
            command.args(["-e", field]);
        }
        command.args(["-E", "aggregator=;"]);
        let read = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
        let mut makers: BTreeMap<String, String> = BTreeMap::new();
        for line in read.checked().unwrap().stdout.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            // Of a tunnel only one endpoint's vendor may be known: which one is not reported.
            if fields[0].contains(';') {
                continue;
            }
            for pair in fields.chunks_exact(2) {
                makers.insert(pair[0].to_owned(), pair[1].to_owned());
            }
        }
        for flow in &ours.flows {
            for end in ["src", "dst"] {
                let Some(mac) = flow[format!("{end}_mac")].as_str() else {
                    continue;
                };
                let Some(theirs) = makers.get(mac) else {
                    continue;
                };
                let ours = flow[format!("{end}_mac_vendor")]
                    .as_str()
                    .unwrap_or_default();
                if theirs.is_empty() {
                    unknown += 1;
                    // They look only at 24 bits here.
                    assert!(
                        ours.is_empty() || !ours.is_empty() && is_longer(mac),
                        "{mac} {ours}"
                    );
                } else {
                    known += 1;
                    assert!(
                        ours == theirs || is_longer(mac),
                        "{mac}: {ours:?}, {theirs:?}"
                    );
                }
            }
        }
    }
    assert!(known > 20 && unknown > 0, "{known} {unknown}");
}

/// Packets between cards of vendors from all parts of the list, and of none.
fn cards_of_many_makers() -> TempFile {
    let text = std::fs::read_to_string(MANUF).unwrap();
    let prefixes = text.lines().filter_map(|line| {
        let prefix = line.split_whitespace().next()?;
        let mut bytes = prefix.split(':').map(|byte| u8::from_str_radix(byte, 16));
        let three = [bytes.next()?, bytes.next()?, bytes.next()?];
        let [Ok(a), Ok(b), Ok(c)] = three else {
            return None;
        };
        // Prefixes of 24 bits, not multicast.
        (bytes.next().is_none() && a & 1 == 0).then_some([a, b, c])
    });
    let addresses: Vec<[u8; 6]> = prefixes
        .step_by(300)
        .chain([[0x02, 0xba, 0x5e], [0x06, 0x12, 0x34]])
        .map(|[a, b, c]| [a, b, c, 0x12, 0x34, 0x56])
        .collect();
    let (from, to) = ([192, 0, 2, 1], [192, 0, 2, 2]);
    let mut packets = Vec::new();
    for (number, pair) in addresses.windows(2).enumerate() {
        let plan = Udp {
            source_mac: pair[0],
            destination_mac: pair[1],
            addresses: Addresses::V4(from.into(), to.into()),
            source_port: 4000,
            destination_port: 9,
            flow_count: 1,
            vlan: None,
        };
        packets.push(plan.build(number as u64, 60));
    }
    write_pcap(&packets).unwrap()
}

/// Whether the list has a prefix of more than 24 bits for an address.
fn is_longer(mac: &str) -> bool {
    let text = std::fs::read_to_string(MANUF).unwrap();
    let mut lines = text.lines();
    lines.any(|line| {
        line.len() > 9 && line.as_bytes()[8] == b':' && line[..8].eq_ignore_ascii_case(&mac[..8])
    })
}

#[test]
fn invalid_files_and_missing_keys_are_reported() {
    let folder = Folder::new("origins-wrong");
    let file = folder.0.join("wrong");
    std::fs::write(&file, "192.0.2.0/24,64500,x\nnonsense\n").unwrap();
    for (args, words) in [
        (["--asn", file.to_str().unwrap()], "line 2"),
        (["--geo", "/nonexistent/file"], "/nonexistent/file"),
        (["--mac-vendors", file.to_str().unwrap()], "--key mac"),
    ] {
        // Nothing is started before they are read.
        let begun = folder.0.join("begun.csv");
        std::fs::write(&begun, "of before").unwrap();
        let mut command = Command::new(lab::process::barewire().unwrap());
        command.arg("flows").args(args).arg(mix());
        command.args(["--export", &format!("csv:{}", begun.display())]);
        let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
        assert_eq!(finished.code(), Some(1), "{}", finished.stderr);
        assert!(finished.stderr.contains(words), "{}", finished.stderr);
        assert_eq!(std::fs::read_to_string(&begun).unwrap(), "of before");
    }
}
