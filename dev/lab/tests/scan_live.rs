//! `barewire scan` on a veth pair, counted at the far end.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::Duration;

use lab::packet::{Raw, checksum};
use lab::process::{Process, Signal, barewire};
use lab::{Finished, Pair, Veth, require, skip, watch};
use serde_json::Value;
use wire::{Dissection, LinkType, dissect};

use crate::afxdp::receiver;

/// Time limit of a program; not a measurement.
const LIMIT: Duration = Duration::from_secs(120);

const SYN: u16 = 0x02;
const RST: u16 = 0x04;

/// 1,024 addresses that the right end's kernel answers for.
const HOSTS: &str = "198.18.4.0/22";

/// A pair with these hosts, to which the left end has a route.
fn network() -> Pair {
    let pair = Veth::new().ipv6().create().unwrap();
    pair.add_hosts(HOSTS).unwrap();
    pair
}

fn scan(pair: &Pair, args: &[&str]) -> Finished {
    let args = [&["scan", "--json", "--wait", "1"], args].concat();
    let mut process = pair.left.ns.spawn(barewire().unwrap(), args).unwrap();
    process.wait(LIMIT).unwrap()
}

/// Parses answers and totals; every line is a JSON object, and the last one is the totals.
fn parsed(finished: Finished) -> (Vec<Value>, Value) {
    parsed_rows(&finished.checked().unwrap().stdout)
}

fn parsed_rows(stdout: &str) -> (Vec<Value>, Value) {
    let mut lines: Vec<Value> = stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    let totals = lines.pop().expect("totals");
    assert_eq!(totals["type"], "totals");
    lines.retain(|line| line["type"] != "status");
    assert!(lines.iter().all(|line| line["type"] == "answer"));
    (lines, totals)
}

/// A TCP segment that arrived at the far end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Segment {
    to: (IpAddr, u16),
    from_port: u16,
    flags: u16,
    seq: u32,
}

fn segment(packet: &[u8]) -> Option<Segment> {
    let mut found = Dissection::EMPTY;
    dissect(LinkType::ETHERNET, packet, packet.len() as u32, &mut found);
    (found.ip_protocol == 6).then_some(Segment {
        to: (found.dst_addr()?, found.dst_port),
        from_port: found.src_port,
        flags: found.tcp_flags,
        seq: found.tcp_seq,
    })
}

/// Runs `body`, and returns all segments that arrived at the right end meanwhile; `answer` sees
/// each and may reply.
pub(crate) fn watched<T>(
    pair: &Pair,
    answer: impl Fn(&Raw, &[u8]) + Sync,
    body: impl FnOnce() -> T,
) -> (T, Vec<Segment>) {
    let raw = receiver(&pair.right);
    let mut seen = Vec::new();
    let each = |packet: &[u8]| {
        answer(&raw, packet);
        seen.extend(segment(packet));
    };
    let result = watch::packets(&raw, each, body);
    (result, seen)
}

pub(crate) fn silent(_: &Raw, _: &[u8]) {}

/// Number of probes to each target.
pub(crate) fn probes(seen: &[Segment]) -> HashMap<(IpAddr, u16), u32> {
    let mut counts = HashMap::new();
    for segment in seen.iter().filter(|segment| segment.flags == SYN) {
        *counts.entry(segment.to).or_default() += 1;
    }
    counts
}

#[test]
fn every_target_is_probed_once_and_every_answer_reported_once() {
    require!(skip::lab());
    for scheme in ["", "afxdp:"] {
        let pair = network();
        let listen = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, 80));
        let _listener = pair.right.ns.run(listen).unwrap().unwrap();
        let port = format!("{scheme}{}", pair.left.ifname);
        let args = [HOSTS, "-p", "80,443", "--rate", "20kpps", "-e", &port];
        let (finished, seen) = watched(&pair, silent, || scan(&pair, &args));
        let (answers, totals) = parsed(finished);
        let counts = probes(&seen);
        assert_eq!(counts.len(), 2_048, "{scheme} {totals}");
        assert!(counts.values().all(|count| *count == 1));
        assert_eq!(totals["sent"], 2_048);
        assert_eq!(
            (&totals["open"], &totals["closed"]),
            (&1_024.into(), &1_024.into())
        );
        assert_eq!(
            (&totals["lost"], &totals["complete"]),
            (&0.into(), &true.into())
        );
        assert_eq!(answers.len(), 2_048);
        for answer in &answers {
            let state = if answer["port"] == 80 {
                "open"
            } else {
                "closed"
            };
            assert_eq!(answer["state"], state, "{answer}");
        }
        // With a tap the kernel sees the answers too, and resets connections it did not open.
        // Answers taken by XDP never reach it.
        let resets = seen.iter().filter(|segment| segment.flags & RST != 0);
        assert_eq!(resets.count() == 0, scheme == "afxdp:", "{scheme}");
        assert_eq!(pair.left.xdp().unwrap(), None);
    }
}

#[test]
fn retries_add_probes_and_do_not_multiply_them() {
    require!(skip::lab());
    let pair = network();
    for retries in 0u32..=3 {
        let text = retries.to_string();
        let args = [
            "198.18.4.0/26",
            "-p",
            "81,82",
            "--rate",
            "5000",
            "--retries",
            &text,
        ];
        let (finished, seen) = watched(&pair, silent, || scan(&pair, &args));
        let (answers, totals) = parsed(finished);
        let counts = probes(&seen);
        assert_eq!(counts.len(), 128);
        assert!(
            counts.values().all(|count| *count == retries + 1),
            "{retries}"
        );
        assert_eq!(answers.len(), 128);
        assert_eq!(totals["repeated"], 128 * retries, "{totals}");
    }
}

#[test]
fn shards_at_different_rates_are_disjoint_and_complete() {
    require!(skip::lab());
    let pair = network();
    let mut all: HashMap<(IpAddr, u16), u32> = HashMap::new();
    for (shard, rate) in [("1/3", "20000"), ("2/3", "3001"), ("3/3", "7777")] {
        let args = [
            HOSTS, "-p", "81", "--rate", rate, "--shard", shard, "--seed", "5",
        ];
        let (finished, seen) = watched(&pair, silent, || scan(&pair, &args));
        let (answers, _) = parsed(finished);
        let counts = probes(&seen);
        assert_eq!(answers.len(), counts.len());
        for (target, count) in counts {
            *all.entry(target).or_default() += count;
        }
    }
    assert_eq!(all.len(), 1_024);
    assert!(all.values().all(|count| *count == 1));
}

/// Starts a scan of 2,048 targets with a state file.
fn begun(pair: &Pair, state: &str, rate: &str) -> Process {
    let args = [
        "scan", HOSTS, "-p", "81,82", "--json", "--wait", "1", "--state", state, "--rate", rate,
    ];
    pair.left.ns.spawn(barewire().unwrap(), args).unwrap()
}

/// The index of the next probe in a state file.
fn next_of(path: &Path) -> u64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("next = \""));
    let number = line.and_then(|rest| rest.strip_suffix('"'));
    number.map_or(0, |number| number.parse().unwrap())
}

#[test]
fn a_killed_scan_resumes_without_skipping_probes() {
    require!(skip::lab());
    let pair = network();
    let file = lab::oracle::TempFile::new("state");
    let path = file.path().to_str().unwrap();
    let (_, seen) = watched(&pair, silent, || {
        let mut before = 0;
        for _ in 0..3 {
            let mut process = begun(&pair, path, "200");
            let since = std::time::Instant::now();
            while next_of(file.path()) <= before {
                assert!(process.running().unwrap() && since.elapsed() < LIMIT);
                std::thread::sleep(Duration::from_millis(20));
            }
            process.kill().unwrap();
            before = next_of(file.path());
        }
        let finished = begun(&pair, path, "20000").wait(LIMIT).unwrap();
        let (_, totals) = parsed(finished);
        assert_eq!(totals["before"], before);
        assert_eq!(totals["sent"], 2_048 - before, "{totals}");
    });
    assert_eq!(probes(&seen).len(), 2_048);
    // Again, with nothing left to scan.
    let (answers, totals) = parsed(begun(&pair, path, "200").wait(LIMIT).unwrap());
    assert_eq!((answers.len(), &totals["sent"]), (0, &0.into()), "{totals}");
}

#[test]
fn a_scan_that_was_interrupted_sends_no_probe_twice() {
    require!(skip::lab());
    let pair = network();
    let file = lab::oracle::TempFile::new("state");
    let path = file.path().to_str().unwrap();
    let (rows, seen) = watched(&pair, silent, || {
        let mut first = begun(&pair, path, "500");
        first.wait_stdout("closed", LIMIT).unwrap();
        let first = first.stop(Signal::SIGINT, LIMIT).unwrap();
        assert_eq!(first.code(), Some(6), "{}", first.stderr);
        let hint = format!("hint: the same command resumes it from {path}");
        assert!(first.stderr.contains(&hint), "{}", first.stderr);
        let (mut rows, totals) = parsed_rows(&first.stdout);
        assert_eq!(totals["complete"], false);
        let (others, totals) = parsed(begun(&pair, path, "7000").wait(LIMIT).unwrap());
        assert_eq!(totals["complete"], true);
        rows.extend(others);
        rows
    });
    let counts = probes(&seen);
    assert_eq!(counts.len(), 2_048);
    assert!(counts.values().all(|count| *count == 1));
    assert_eq!(rows.len(), 2_048);

    let args = [HOSTS, "-p", "81", "--state", path];
    let finished = scan(&pair, &args);
    assert!(!finished.success());
    assert!(
        finished.stderr.contains("other targets"),
        "{}",
        finished.stderr
    );
}

/// The answer to a SYN as its target would send it, with `more` added to the acknowledgment number.
pub fn syn_ack(syn: &[u8], more: u32) -> Vec<u8> {
    let mut out = syn.to_vec();
    out[..6].copy_from_slice(&syn[6..12]);
    out[6..12].copy_from_slice(&syn[..6]);
    out[26..30].copy_from_slice(&syn[30..34]);
    out[30..34].copy_from_slice(&syn[26..30]);
    out[34..36].copy_from_slice(&syn[36..38]);
    out[36..38].copy_from_slice(&syn[34..36]);
    let seq = u32::from_be_bytes([syn[38], syn[39], syn[40], syn[41]]);
    let ack = seq.wrapping_add(1).wrapping_add(more);
    out[42..46].copy_from_slice(&ack.to_be_bytes());
    out[47] = 0x12;
    complete(&mut out);
    out
}

/// Sets the checksum of a TCP segment over IPv4.
fn complete(packet: &mut [u8]) {
    packet[50..52].fill(0);
    let len = u16::from_be_bytes([packet[16], packet[17]]) - 20;
    let mut pseudo = [&packet[26..34], &[0, 6], &len.to_be_bytes()].concat();
    pseudo.extend(&packet[34..][..len.into()]);
    packet[50..52].copy_from_slice(&checksum(&pseudo).to_be_bytes());
}

#[test]
fn forged_answers_are_ignored_and_repeated_ones_reported_once() {
    require!(skip::lab());
    let pair = network();
    // Addresses that the right end's kernel does not have: the test answers for them.
    let mac = wire::Mac(pair.right.mac).to_string();
    let left = &pair.left.ifname;
    let args = [
        "192.0.2.0/28",
        "-p",
        "7",
        "--rate",
        "50",
        "--router-mac",
        &mac,
        "-e",
        left,
    ];
    let answer = |raw: &Raw, packet: &[u8]| {
        if segment(packet).is_none_or(|segment| segment.flags != SYN) {
            return;
        }
        for number in 0..60u32 {
            raw.send(&syn_ack(packet, 0)).unwrap();
            raw.send(&syn_ack(packet, 1 + number * 71_582_788)).unwrap();
        }
        let mut other_host = syn_ack(packet, 0);
        other_host[28] ^= 1;
        complete(&mut other_host);
        raw.send(&other_host).unwrap();
    };
    let (finished, seen) = watched(&pair, answer, || scan(&pair, &args));
    let (answers, totals) = parsed(finished);
    assert_eq!(probes(&seen).len(), 16);
    assert_eq!(answers.len(), 16, "{totals}");
    assert_eq!(
        (&totals["open"], &totals["repeated"]),
        (&16.into(), &(16 * 59).into())
    );
    assert_eq!(totals["received"], 16 * 121);
    assert_eq!(totals["lost"], 0);
}

#[test]
fn runs_with_the_same_seed_differ_only_in_sequence_numbers() {
    require!(skip::lab());
    let pair = network();
    let run = || {
        let args = [
            "198.18.4.0/24",
            "-p",
            "81",
            "--rate",
            "5000",
            "--seed",
            "42",
        ];
        let (finished, seen) = watched(&pair, silent, || scan(&pair, &args));
        parsed(finished);
        let seen = seen.into_iter().filter(|segment| segment.flags == SYN);
        seen.map(|segment| (segment.to, segment.seq))
            .unzip::<_, _, Vec<_>, Vec<_>>()
    };
    let ((first, numbers), (second, others)) = (run(), run());
    assert_eq!(first.len(), 256);
    assert_eq!(first, second);
    let same = numbers.iter().zip(&others).filter(|(a, b)| a == b).count();
    assert_eq!(same, 0);
}

#[test]
fn ports_refused_by_a_router_are_filtered() {
    require!(skip::lab());
    let pair = network();
    let right = &pair.right;
    right.ns.sysctl("net/ipv4/ip_forward", "1").unwrap();
    right.ns.sysctl("net/ipv4/icmp_ratelimit", "0").unwrap();
    // Four addresses: the kernel sends five routing errors to a host, and then one per second.
    for (prefix, kind) in [
        ("198.51.100.0/31", "prohibit"),
        ("203.0.113.0/31", "unreachable"),
    ] {
        right.ns.ip(["route", "add", kind, prefix]).unwrap();
        let router = right.ipv4.to_string();
        pair.left
            .ns
            .ip(["route", "add", prefix, "via", &router])
            .unwrap();
    }
    let args = [
        "198.51.100.0/31",
        "203.0.113.0/31",
        "-p",
        "80",
        "--rate",
        "500",
    ];
    let (answers, totals) = parsed(scan(&pair, &args));
    assert_eq!(totals["filtered"], 4, "{totals}");
    for answer in &answers {
        let prohibited = answer["address"]
            .as_str()
            .unwrap()
            .starts_with("198.51.100.");
        let reason = if prohibited {
            "admin-prohibited"
        } else {
            "host-unreach"
        };
        assert_eq!(
            (&answer["reason"], &answer["state"]),
            (&reason.into(), &"filtered".into())
        );
        assert_eq!(answer["from"], right.ipv4.to_string());
    }
}

#[test]
fn ipv6_is_scanned_like_ipv4() {
    require!(skip::lab());
    let pair = network();
    let (left, right) = (&pair.left, &pair.right);
    let prefix = "2001:db8:2::/120";
    right
        .ns
        .ip(["-6", "route", "add", "local", prefix, "dev", "lo"])
        .unwrap();
    let mac = wire::Mac(right.mac).to_string();
    let port = left.ifname.clone();
    let args = [
        prefix,
        "-p",
        "80,81",
        "--rate",
        "5000",
        "--router-mac",
        &mac,
        "-e",
        &port,
    ];
    let (finished, seen) = watched(&pair, silent, || scan(&pair, &args));
    let (answers, totals) = parsed(finished);
    assert_eq!(probes(&seen).len(), 512);
    assert_eq!(
        (answers.len(), &totals["closed"]),
        (512, &512.into()),
        "{totals}"
    );
}

#[test]
fn mac_addresses_of_on_link_targets_are_resolved() {
    require!(skip::lab());
    let pair = network();
    let (left, right) = (&pair.left, &pair.right);
    // Eight addresses on the link, of which four are in use.
    let address = "198.51.100.1/28";
    left.ns
        .ip(["address", "add", address, "dev", &left.ifname])
        .unwrap();
    for last in 4..8 {
        let address = format!("198.51.100.{last}/32");
        right
            .ns
            .ip(["address", "add", &address, "dev", &right.ifname])
            .unwrap();
    }
    right
        .ns
        .ip(["route", "add", "198.51.100.1/32", "dev", &right.ifname])
        .unwrap();
    let args = ["198.51.100.2-198.51.100.9", "-p", "80", "--rate", "500"];
    let (answers, totals) = parsed(scan(&pair, &args));
    assert_eq!(answers.len(), 4, "{totals}");
    assert_eq!(
        (&totals["sent"], &totals["unreachable"]),
        (&4.into(), &4.into()),
        "{totals}"
    );
}

#[test]
fn a_dry_run_sends_nothing_and_errors_give_the_line() {
    require!(skip::lab());
    let pair = network();
    let args = [HOSTS, "-p", "80", "--dry-run"];
    let (finished, seen) = watched(&pair, silent, || scan(&pair, &args));
    let plan: Value = serde_json::from_str(&finished.checked().unwrap().stdout).unwrap();
    assert_eq!(
        (&plan["type"], &plan["probes"]),
        (&"plan".into(), &1_024.into())
    );
    assert_eq!(seen, []);

    let file = lab::oracle::TempFile::new("txt");
    std::fs::write(
        file.path(),
        "192.0.2.0/24\n\n192.0.2.9-192.0.2.1 # inverted\n",
    )
    .unwrap();
    let path = file.path().to_str().unwrap();
    for (args, expected) in [
        (
            ["198.18.4.0/24", "-p", "80", "--exclude-file", path],
            "line 3",
        ),
        (
            ["198.18.4.0/24", "-p", "80", "--exclude", "198.18.0.0/15"],
            "after the exclusions",
        ),
        (["10.0.0.0/33", "-p", "80", "--wait", "1"], "prefix length"),
    ] {
        let mut args: Vec<&str> = args.to_vec();
        if args[3] == "--wait" {
            args.truncate(3);
        }
        let finished = scan(&pair, &args);
        assert!(!finished.success());
        assert!(finished.stderr.contains(expected), "{}", finished.stderr);
    }
}
