//! `barewire scan` of single ports, of neighbours on the link, and with payloads from files.

use std::collections::{BTreeMap, BTreeSet};
use std::net::UdpSocket;
use std::path::PathBuf;
use std::time::Duration;

use lab::process::{Process, barewire};
use lab::{Pair, Veth, require, skip, watch};
use serde_json::Value;

use crate::afxdp::receiver;

const LIMIT: Duration = Duration::from_secs(120);
/// 256 addresses that the right end's kernel answers for.
const HOSTS: &str = "198.18.4.0/24";

fn network() -> Pair {
    let pair = Veth::new().ipv6().create().unwrap();
    let (left, right) = (&pair.left, &pair.right);
    let hosts = ["route", "add", "local", HOSTS, "dev", "lo"];
    right.ns.ip(hosts).unwrap();
    let router = right.ipv4.to_string();
    left.ns.ip(["route", "add", HOSTS, "via", &router]).unwrap();
    pair
}

fn begin(pair: &Pair, args: &[&str]) -> Process {
    let args = [&["scan", "--json", "--wait", "1"], args].concat();
    pair.left.ns.spawn(barewire().unwrap(), args).unwrap()
}

/// Answers and totals.
fn scan(pair: &Pair, args: &[&str]) -> (Vec<Value>, Value) {
    let finished = begin(pair, args).wait(LIMIT).unwrap().checked().unwrap();
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    let mut lines: Vec<Value> = finished.stdout.lines().map(parse).collect();
    lines.retain(|line| line["type"] != "status");
    let totals = lines.pop().expect("totals");
    (lines, totals)
}

/// A file that is removed.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let name = format!("barewire-scan-targets-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }

    fn name(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Runs `body`; returns the number of SYNs to each address and port that arrived at the right end.
fn probes(pair: &Pair, body: impl FnOnce()) -> BTreeMap<String, usize> {
    let (_, counts) = watch::syns(&receiver(&pair.right), body);
    let named = counts.into_iter();
    named
        .map(|((addr, port), count)| (format!("{addr} {port}"), count))
        .collect()
}

#[test]
fn single_ports_are_probed_once_in_all_shards_and_after_a_kill() {
    require!(skip::lab());
    let pair = network();
    let v6 = pair.right.ipv6.to_string();
    let mut lines = String::new();
    let mut expected = BTreeMap::new();
    for number in 0..200u16 {
        let (addr, port) = (format!("198.18.4.{number}"), 1000 + number);
        lines += &format!("{addr}:{port}\n{addr} {}\n", port + 1000);
        expected.insert(format!("{addr} {port}"), 1);
        expected.insert(format!("{addr} {}", port + 1000), 1);
    }
    lines += &format!("[{v6}]:443\n");
    expected.insert(format!("{v6} 443"), 1);
    // All ports of some of the addresses, and a pair that is among them.
    let args = ["198.18.4.0/28", "-p", "80,81", "198.18.4.3:80"];
    for number in 0..16 {
        for port in [80, 81] {
            expected.insert(format!("198.18.4.{number} {port}"), 1);
        }
    }
    let list = TempFile::new("pairs", lines.as_bytes());
    let args = [
        &args[..],
        &[
            "-iL",
            list.name(),
            "--seed",
            "5",
            "--exclude",
            "198.18.4.199",
        ],
    ];
    let args = args.concat();
    for port in [1199, 2199] {
        expected.remove(&format!("198.18.4.199 {port}"));
    }
    let shards = probes(&pair, || {
        for (shard, rate) in [("1/3", "2000"), ("2/3", "5000"), ("3/3", "900")] {
            let (rows, totals) = scan(
                &pair,
                &[&args[..], &["--shard", shard, "--rate", rate]].concat(),
            );
            assert_eq!(totals["complete"], true, "{totals}");
            assert_eq!(totals["closed"], rows.len());
        }
    });
    assert_eq!(shards, expected);

    // Probes of the last two seconds before a kill may be sent again.
    let state = TempFile::new("state", b"");
    let args = [&args[..], &["--state", state.name()]].concat();
    let killed = probes(&pair, || {
        let mut process = begin(&pair, &[&args[..], &["--rate", "100"]].concat());
        process.wait_stdout("\n", LIMIT).unwrap();
        std::thread::sleep(Duration::from_millis(2500));
        process.kill().unwrap();
        let (_, totals) = scan(&pair, &[&args[..], &["--rate", "2000"]].concat());
        assert_eq!(totals["complete"], true, "{totals}");
    });
    assert!(killed.keys().eq(expected.keys()));
}

#[test]
fn random_targets_are_of_the_number_asked_for() {
    require!(skip::lab());
    let pair = network();
    let gateway = pair.right.ipv4.to_string();
    pair.left
        .ns
        .ip(["route", "add", "default", "via", &gateway])
        .unwrap();
    let args = ["-iR", "1000", "-p", "80", "--dry-run", "--seed", "3"];
    let finished = begin(&pair, &args).wait(LIMIT).unwrap().checked().unwrap();
    let plan: Value = serde_json::from_str(finished.stdout.trim()).unwrap();
    assert_eq!(
        (&plan["addresses"], &plan["probes"]),
        (&1000.into(), &1000.into())
    );
    let again = begin(&pair, &args).wait(LIMIT).unwrap().checked().unwrap();
    assert_eq!(again.stdout, finished.stdout, "the seed decides");
}

/// Adds hosts all over the network of the right end, beside the two ends, and some of IPv6; returns
/// them, and an address of IPv6 that nobody has.
fn more_hosts(pair: &Pair) -> (BTreeSet<String>, String) {
    let (left, right) = (&pair.left, &pair.right);
    let [a, b, c, own] = right.ipv4.octets();
    let taken = [own, left.ipv4.octets()[3]];
    let others = (3..253).step_by(7).filter(|last| !taken.contains(last));
    let mut hosts: BTreeSet<String> = others.map(|last| format!("{a}.{b}.{c}.{last}")).collect();
    for host in &hosts {
        let host = format!("{host}/24");
        let add = ["addr", "add", &host, "dev", &right.ifname];
        right.ns.ip(add).unwrap();
    }
    let beside = |last: u16| {
        let mut words = right.ipv6.segments();
        words[7] = last;
        std::net::Ipv6Addr::from(words).to_string()
    };
    for host in [0x77, 0x78, 0xfff0].map(beside) {
        let address = format!("{host}/64");
        let add = ["addr", "add", &address, "dev", &right.ifname, "nodad"];
        right.ns.ip(add).unwrap();
        hosts.insert(host);
    }
    (hosts, beside(0x79))
}

#[test]
fn neighbours_are_found_by_arp_and_neighbor_discovery() {
    require!(skip::lab());
    let pair = network();
    let (left, right) = (&pair.left, &pair.right);
    let (v4, v6) = (right.ipv4.to_string(), right.ipv6.to_string());
    let mac = right.mac.map(|byte| format!("{byte:02x}")).join(":");
    let [a, b, c, _] = right.ipv4.octets();
    let network = format!("{a}.{b}.{c}.0/24");
    let (mut hosts, absent) = more_hosts(&pair);
    let six: Vec<String> = hosts.iter().filter(|h| h.contains(':')).cloned().collect();
    hosts.extend([v4.clone(), v6.clone()]);
    let manuf = TempFile::new("manuf", format!("{}\tLab\n", &mac[..8]).as_bytes());
    let args = [
        &network,
        &v6,
        &six[0],
        &six[1],
        &six[2],
        &absent,
        "--probe",
        "arp",
        "--rate",
        "2000",
        "--mac-vendors",
        manuf.name(),
    ];
    let (rows, totals) = scan(&pair, &args);
    let found = rows
        .iter()
        .map(|row| row["address"].as_str().unwrap().to_owned());
    assert_eq!(found.collect::<BTreeSet<_>>(), hosts, "{totals}");
    assert_eq!(
        (&totals["up"], &totals["lost"]),
        (&hosts.len().into(), &0.into()),
        "{rows:?} {totals}"
    );
    assert_eq!(rows.len(), hosts.len(), "one row for each");
    for (addr, reason) in [(&v4, "arp-response"), (&v6, "nd-response")] {
        let row = rows.iter().find(|row| row["address"] == addr.as_str());
        let row = row.unwrap_or_else(|| panic!("{addr}: {rows:?}"));
        assert_eq!(
            (&row["mac"], &row["vendor"]),
            (&mac.as_str().into(), &"Lab".into())
        );
        assert_eq!(
            (&row["reason"], &row["state"]),
            (&reason.into(), &"up".into())
        );
    }
    // Not on the link, and a port that would take the host's own replies.
    for args in [
        vec!["198.18.4.1", "--probe", "arp"],
        vec![&v4, "--probe", "arp", "-e", "afxdp"],
    ] {
        let port = format!("afxdp:{}", left.ifname);
        let args: Vec<&str> = args
            .into_iter()
            .map(|w| if w == "afxdp" { &port } else { w })
            .collect();
        let finished = begin(&pair, &args).wait(LIMIT).unwrap();
        assert!(
            finished.stderr.contains("cannot scan by ARP"),
            "{}",
            finished.stderr
        );
    }
}

#[test]
fn payloads_of_files_are_sent() {
    require!(skip::lab());
    let pair = network();
    let host = "198.18.4.5";
    let bind = || [4001, 4002].map(|port| UdpSocket::bind((host, port)).unwrap());
    let sockets = pair.right.ns.run(bind).unwrap();
    let raw = TempFile::new("raw", b"from a file");
    let text = TempFile::new(
        "nmap",
        b"# text\nudp 4002 \"\\x00\\x01\" \"two\"\nudp 4002 \"three\"\n",
    );
    let payload = format!("4001={}", raw.name());
    let args = [
        host,
        "-p",
        "U:4001,4002",
        "--payload",
        &payload,
        "--payload-file",
        text.name(),
    ];
    let (_, totals) = scan(&pair, &args);
    assert_eq!(totals["sent"], 3, "{totals}");
    let mut received = Vec::new();
    for socket in &sockets {
        socket.set_nonblocking(true).unwrap();
        let mut buffer = [0; 2048];
        while let Ok(len) = socket.recv(&mut buffer) {
            received.push(buffer[..len].to_vec());
        }
    }
    received.sort_unstable();
    let expected: [&[u8]; 3] = [b"\0\x01two", b"from a file", b"three"];
    assert_eq!(received, expected);
}

#[test]
fn the_opt_out_list_is_never_probed() {
    require!(skip::lab(), skip::program("unshare", "util-linux"));
    let pair = network();
    let given = TempFile::new(
        "opt-out",
        b"# by mail\n198.18.4.0/25\n198.18.4.200 198.18.4.201\n",
    );
    let barewire = barewire().unwrap();
    // This host's list, in a mount namespace of its own.
    let script = format!(
        "mount -t tmpfs none /etc && mkdir /etc/barewire && \
         echo 198.18.4.192/27 > /etc/barewire/opt-out.txt && \
         exec {} scan {HOSTS} 198.18.4.7:80 -p 80 --rate 2000 --wait 1 --json --opt-out {} $*",
        barewire.display(),
        given.name()
    );
    let run = |more: &[&str]| {
        let args = [&["-m", "sh", "-c", &script, "sh"], more].concat();
        let mut process = pair.left.ns.spawn("unshare", args).unwrap();
        process.wait(LIMIT).unwrap().checked().unwrap()
    };
    let mut said = String::new();
    let seen = probes(&pair, || said = run(&[]).stderr);
    // 256 without 128, 32 (of which two are in both lists), and none of the single target.
    assert_eq!(seen.len(), 96, "{seen:?}");
    assert!(seen.values().all(|count| *count == 1));
    for addr in [
        "198.18.4.7 80",
        "198.18.4.127 80",
        "198.18.4.193 80",
        "198.18.4.200 80",
    ] {
        assert!(!seen.contains_key(addr), "{addr}");
    }
    assert!(
        said.contains("160 addresses are skipped: they are in the opt-out list"),
        "{said}"
    );
    let plan: Value = serde_json::from_str(run(&["--dry-run"]).stdout.trim()).unwrap();
    assert_eq!(
        (&plan["opted_out"], &plan["probes"]),
        (&160.into(), &96.into())
    );
}
