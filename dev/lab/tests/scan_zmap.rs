//! `barewire scan` compared with zmap on a prefix of which some addresses answer.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::time::Duration;

use lab::process::barewire;
use lab::{Pair, Veth, require, skip};
use serde_json::Value;

use crate::scan_live::{probes, silent, watched};

/// Time limit of a program; not a measurement.
const LIMIT: Duration = Duration::from_secs(120);
/// The targets, and those that have a host.
const TARGETS: &str = "198.18.4.0/22";
const HOSTS: [(&str, usize); 3] = [
    ("198.18.4.0/26", 64),
    ("198.18.5.16/28", 16),
    ("198.18.7.255/32", 1),
];
const TARGET_COUNT: usize = 1024;

fn network() -> Pair {
    let pair = Veth::new().offloads().create().unwrap();
    let route = |prefix| ["route", "add", "local", prefix, "dev", "lo"];
    for (prefix, _) in HOSTS {
        pair.right.ns.ip(route(prefix)).unwrap();
    }
    let router = pair.right.ipv4.to_string();
    let to_targets = ["route", "add", TARGETS, "via", &router];
    pair.left.ns.ip(to_targets).unwrap();
    pair
}

fn parsed<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<IpAddr> {
    let parse = |line: &str| line.parse().unwrap_or_else(|e| panic!("{e}: {line}"));
    lines.map(parse).collect()
}

fn zmap(pair: &Pair) -> Vec<IpAddr> {
    let mac = pair.right.mac.map(|byte| format!("{byte:02x}")).join(":");
    let addr = pair.left.ipv4.to_string();
    // Without its configuration file, and without its list of reserved addresses.
    let args = [
        "-C",
        "/dev/null",
        "-b",
        "/dev/null",
        "-i",
        &pair.left.ifname,
    ];
    let args = [
        &args[..],
        &["-S", &addr, "-G", &mac, "-r", "2000", "-c", "2"],
    ]
    .concat();
    let args = [
        &args[..],
        &["-T", "1", "-p", "80", "--disable-syslog", "-q"],
    ]
    .concat();
    let args = [&args[..], &["-o", "-", TARGETS]].concat();
    let mut process = pair.left.ns.spawn("zmap", args).unwrap();
    let stdout = process.wait(LIMIT).unwrap().checked().unwrap().stdout;
    parsed(stdout.lines().map(str::trim))
}

fn scan(pair: &Pair) -> Vec<IpAddr> {
    let args = [
        "scan", TARGETS, "-p", "80", "--json", "--open", "--wait", "2",
    ];
    let args = [&args[..], &["--rate", "2000"]].concat();
    let mut process = pair.left.ns.spawn(barewire().unwrap(), args).unwrap();
    let stdout = process.wait(LIMIT).unwrap().checked().unwrap().stdout;
    let lines = stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let lines: Vec<Value> = lines.collect();
    let answers = lines.iter().filter(|line| line["type"] == "answer");
    parsed(answers.map(|line| line["address"].as_str().unwrap()))
}

#[test]
fn the_addresses_that_answer_are_those_that_zmap_finds() {
    require!(skip::lab(), skip::program("zmap", "zmap"));
    let pair = network();
    let listen = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, 80));
    let _listener = pair.right.ns.run(listen).unwrap().unwrap();
    let (ours, seen) = watched(&pair, silent, || scan(&pair));
    let counts = probes(&seen);
    assert_eq!(counts.len(), TARGET_COUNT, "addresses that were probed");
    assert!(counts.values().all(|count| *count == 1), "{counts:?}");
    let theirs = zmap(&pair);
    let set = |addrs: &[IpAddr]| addrs.iter().copied().collect::<BTreeSet<_>>();
    assert_eq!(set(&ours), set(&theirs));
    let host_count: usize = HOSTS.iter().map(|(_, count)| count).sum();
    assert_eq!(ours.len(), host_count, "each of them once");
}
