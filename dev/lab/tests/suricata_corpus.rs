//! Suricata, unmodified, on captures of other projects: behind a cluster that cleans up its traffic
//! it has the alerts of one that reads the captures themselves, apart from what clean-up documents.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lab::dropin::Dropin;
use lab::oracle::TempFile;
use lab::process::{Process, Signal, barewire};
use lab::{corpus, skip};
use serde_json::Value;

use crate::cluster_live::unique;
use crate::suricata_queues::{Folder, Source, suricata};

const LIMIT: Duration = Duration::from_secs(60);

/// Rules on single packets (3 to 5), and on what streams and datagrams contain.
const RULES: &str = "\
alert http any any -> any any (msg:\"http\"; http.method; content:\"GET\"; sid:1;)
alert dns any any -> any any (msg:\"dns\"; dns.query; content:\".\"; sid:2;)
alert tcp any any -> any any (msg:\"syn\"; flags:S; sid:3;)
alert udp any any -> any any (msg:\"udp\"; dsize:>0; sid:4;)
alert icmp any any -> any any (msg:\"icmp\"; itype:8; sid:5;)
alert tls any any -> any any (msg:\"name\"; tls.sni; content:\".\"; sid:6;)
alert tls any any -> any any (msg:\"certificate\"; tls.cert_subject; content:\"=\"; sid:7;)
alert ssh any any -> any any (msg:\"ssh\"; ssh.proto; content:\"2.0\"; sid:8;)
alert smtp any any -> any any (msg:\"mail\"; content:\"MAIL FROM\"; nocase; sid:9;)
alert ftp any any -> any any (msg:\"user\"; content:\"USER\"; sid:10;)
alert http any any -> any any (msg:\"response\"; http.stat_code; content:\"200\"; sid:11;)
alert quic any any -> any any (msg:\"quic\"; quic.sni; content:\".\"; sid:12;)
";

const UDP: u64 = 4;
const PACKET_RULES: std::ops::RangeInclusive<u64> = 3..=5;
const RULE_COUNT: u64 = 12;

/// Limit of `--shunt 64k`.
const START_LEN: u64 = 64 << 10;

/// Destination ports of tunnels over UDP: GTP-U, Teredo, VXLAN, GENEVE.
const TUNNELS: [u64; 4] = [2152, 3544, 4789, 6081];

/// Captures whose names begin so, of at most 300 kB each.
const CAPTURES: [&str; 14] = [
    "suricata-verify__",
    "zeek__http",
    "zeek__smtp",
    "zeek__tls",
    "zeek__ssh",
    "zeek__ftp",
    "zeek__dns",
    "zeek__tunnels",
    "PcapPlusPlus__",
    "nDPI__ssh",
    "nDPI__quic",
    "retina__quic",
    "arkime__http",
    "arkime__gre",
];

/// The Ethernet captures of the large corpus with these names.
pub(crate) fn files(corpus: &Path) -> Vec<PathBuf> {
    let table = std::fs::read_to_string(corpus.join("MANIFEST.tsv")).unwrap();
    let mut lines = table
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>());
    let head = lines.next().unwrap();
    let column = |name: &str| head.iter().position(|it| *it == name).unwrap();
    let [file, len, link_type] = ["file", "bytes", "link_type"].map(column);
    let is_used = |row: &Vec<&str>| {
        let name = row[file].trim_start_matches("pcap/");
        let len: u64 = row[len].parse().unwrap_or(0);
        let is_listed = CAPTURES.iter().any(|start| name.starts_with(start));
        is_listed && row[link_type] == "ether" && (300..300_000).contains(&len)
    };
    let rows = lines.filter(is_used);
    rows.map(|row| corpus.join(row[file])).collect()
}

/// The captures one after another, from now on: no packet comes more than a second after the one
/// before it, and none before it. (Live, Suricata closes flows that are old.)
pub(crate) fn joined(files: &[PathBuf]) -> TempFile {
    const SECOND: u64 = 1_000_000;
    let all = TempFile::new(".pcap");
    let mut command = Command::new("mergecap");
    command.args(["-a", "-F", "pcap", "-w"]).arg(all.path());
    command.args(files);
    let merged = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    merged.checked().unwrap();
    let mut bytes = std::fs::read(all.path()).unwrap();
    assert_eq!(bytes[..4], 0xa1b2_c3d4_u32.to_le_bytes(), "microseconds");
    let word = |bytes: &[u8], at: usize| {
        let word = bytes[at..].first_chunk().unwrap();
        u64::from(u32::from_le_bytes(*word))
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let mut now = now.unwrap().as_micros() as u64;
    let (mut at, mut before) = (24, None);
    while at < bytes.len() {
        let time = word(&bytes, at) * SECOND + word(&bytes, at + 4);
        let passed = before.and_then(|before| time.checked_sub(before));
        now += passed.unwrap_or(SECOND).min(SECOND);
        before = Some(time);
        let new = [now / SECOND, now % SECOND].map(|it| (it as u32).to_le_bytes());
        bytes[at..at + 8].copy_from_slice(&new.concat());
        at += 16 + word(&bytes, at + 8) as usize;
    }
    std::fs::write(all.path(), bytes).unwrap();
    all
}

/// A rule and the direction of a flow: addresses, ports, protocol.
type Key = (u64, [String; 5]);

/// What Suricata wrote.
struct Found {
    /// How often each rule matched in each direction of each flow.
    alerts: BTreeMap<Key, u64>,
    /// Bytes of each flow, under both directions.
    lens: BTreeMap<[String; 5], u64>,
}

fn found(folder: &Folder) -> Found {
    let text = std::fs::read_to_string(folder.0.join("eve.json")).unwrap();
    let (mut alerts, mut lens) = (BTreeMap::new(), BTreeMap::new());
    for line in text.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        let ends = ["src_ip", "src_port", "dest_ip", "dest_port", "proto"];
        let ends = ends.map(|field| event[field].to_string());
        match event["event_type"].as_str() {
            Some("alert") => {
                let rule = event["alert"]["signature_id"].as_u64().unwrap();
                *alerts.entry((rule, ends)).or_default() += 1;
            }
            Some("flow") => {
                let [from, from_port, to, to_port, protocol] = ends.clone();
                let flow = &event["flow"];
                let sides = [&flow["bytes_toserver"], &flow["bytes_toclient"]];
                let len: u64 = sides.into_iter().filter_map(Value::as_u64).sum();
                *lens.entry(ends).or_default() += len;
                *lens
                    .entry([to, to_port, from, from_port, protocol])
                    .or_default() += len;
            }
            _ => {}
        }
    }
    Found { alerts, lens }
}

fn folder() -> Folder {
    let folder = Folder::new();
    std::fs::write(folder.0.join("test.rules"), RULES).unwrap();
    folder
}

/// Suricata alone.
fn alone(file: &Path) -> Found {
    let folder = folder();
    let mut command = folder.suricata(None, None, &Source::File(file));
    let mut process = Process::spawn(&mut command).unwrap();
    process.wait(LIMIT).unwrap().checked().unwrap();
    found(&folder)
}

/// Suricata behind a cluster with these options, and the application's counts.
fn behind(file: &Path, options: &[&str]) -> (Found, Value) {
    let name = unique();
    let library = Dropin::new().unwrap();
    let mut command = Command::new(barewire().unwrap());
    command.args(["cluster", "run", "--json", "--name", &name]);
    command.arg(file).args(options);
    let mut cluster = Process::spawn(&mut command).unwrap();
    cluster.wait_stderr("open ring:", LIMIT).unwrap();
    let folder = folder();
    let queue = Source::Device(format!("--pcap=ring:{name}"));
    let mut command = folder.suricata(None, Some(&library), &queue);
    let mut reader = Process::spawn(&mut command).unwrap();
    // It ends when Suricata has returned the last packet.
    let totals = cluster.wait(LIMIT).unwrap().checked().unwrap();
    let totals: Value = serde_json::from_str(totals.stdout.lines().last().unwrap()).unwrap();
    let queue = &totals["queues"][0];
    assert_eq!(
        (&totals["imbalance"], &queue["lost"]),
        (&0.into(), &0.into())
    );
    assert_eq!(queue["delivered"], queue["handed"], "{totals}");
    let stopped = reader.stop(Signal::SIGINT, LIMIT);
    stopped.unwrap().checked().unwrap();
    (found(&folder), totals["applications"][0].clone())
}

/// Differences between alerts: key, how often alone, how often behind the cluster.
fn differences(alone: &Found, behind: &Found) -> Vec<(Key, u64, u64)> {
    let keys: std::collections::BTreeSet<&Key> =
        alone.alerts.keys().chain(behind.alerts.keys()).collect();
    let count = |found: &Found, key: &Key| found.alerts.get(key).copied().unwrap_or(0);
    let both = keys
        .into_iter()
        .map(|key| (key.clone(), count(alone, key), count(behind, key)));
    both.filter(|(_, one, other)| one != other).collect()
}

/// On some 140 captures, shunting and deduplication remove only alerts on packets that they left
/// out: no rule loses all alerts of a flow, and rules on contents lose them only behind the limit.
/// Detunnelling removes alerts on the tunnels' own datagrams, and adds some: of tunnels that
/// Suricata does not look into.
#[test]
fn suricata_has_its_alerts_on_captures_of_other_projects_behind_clean_up() {
    let large = corpus::large();
    lab::require!(
        skip::root(),
        skip::program("mergecap", "wireshark-common"),
        suricata().map(drop),
        large.as_ref().map(drop).map_err(Clone::clone)
    );
    let files = files(&large.unwrap());
    assert!(files.len() >= 130, "{} captures", files.len());
    let capture = joined(&files);
    let alone = alone(capture.path());
    for rule in 1..=RULE_COUNT {
        let has = alone.alerts.keys().any(|key| key.0 == rule);
        assert!(has, "no alert of rule {rule}");
    }
    let shunted = ["--shunt", "64k,encrypted", "--deduplicate"];
    let (cleaned, application) = behind(capture.path(), &shunted);
    let left_out = ["shunted", "duplicates"].map(|name| application[name].as_u64().unwrap());
    assert!(left_out.iter().all(|count| *count > 100), "{application}");
    let mut missing = 0;
    for (key, before, after) in differences(&alone, &cleaned) {
        let text = format!("{key:?}: {before} alone, {after} behind the cluster");
        assert!((1..before).contains(&after), "{text}");
        let len = alone.lens.get(&key.1).copied().unwrap_or(0);
        assert!(
            PACKET_RULES.contains(&key.0) || len > START_LEN,
            "{text}, {len} bytes"
        );
        missing += before - after;
    }
    assert!(missing > 0 && missing <= left_out.iter().sum(), "{missing}");

    let (inside, application) = behind(capture.path(), &["--detunnel"]);
    assert!(
        application["detunnelled"].as_u64() > Some(1_000),
        "{application}"
    );
    let mut added = 0;
    for (key, before, after) in differences(&alone, &inside) {
        let [_, from, _, to, _] = &key.1;
        let is_tunnel = [from, to].iter().any(|port| {
            let port = port.parse().unwrap_or(0);
            TUNNELS.contains(&port)
        });
        let text = format!("{key:?}: {before} alone, {after} behind the cluster");
        assert!(after > before || (key.0 == UDP && is_tunnel), "{text}");
        added += after.saturating_sub(before);
    }
    assert!(added > 0);
}
