//! `barewire scan` whose link goes down in the middle, counted at the far end.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::time::Duration;

use lab::process::{Process, Signal, barewire};
use lab::{Finished, Pair, Veth, require, skip, watch};
use serde_json::Value;

use crate::afxdp::receiver;

/// Time limit of a program; not a measurement.
const LIMIT: Duration = Duration::from_secs(120);
/// 1,024 addresses that the right end's kernel answers for.
const HOSTS: &str = "198.18.4.0/22";
/// Addresses and ports of a scan.
const TARGETS: u64 = 2048;

fn network() -> Pair {
    let pair = Veth::new().queues(2).create().unwrap();
    pair.add_hosts(HOSTS).unwrap();
    pair
}

fn begin(pair: &Pair, port: &str, more: &[&str]) -> Process {
    let args = ["scan", HOSTS, "-p", "80,81", "--json", "-e", port];
    let args = [&args, more].concat();
    pair.left.ns.spawn(barewire().unwrap(), args).unwrap()
}

fn lines(finished: &Finished) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    finished.stdout.lines().map(parse).collect()
}

/// Answers by address and port.
fn answers(lines: &[Value]) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for line in lines.iter().filter(|line| line["type"] == "answer") {
        let key = format!("{} {} {}", line["address"], line["port"], line["state"]);
        *counts.entry(key).or_default() += 1;
    }
    counts
}

/// The states of the link that were reported.
fn links(lines: &[Value]) -> Vec<&str> {
    let links = lines.iter().filter(|line| line["type"] == "link");
    links.map(|line| line["state"].as_str().unwrap()).collect()
}

/// Checks that the scan has found each target once, as it is.
fn check(lines: &[Value]) {
    let answers = answers(lines);
    let totals = lines.last().unwrap();
    assert_eq!(answers.len() as u64, TARGETS, "{totals}");
    assert!(answers.values().all(|count| *count == 1), "{totals}");
    let state = |state: &str| answers.keys().filter(|key| key.contains(state)).count() as u64;
    assert_eq!((state("open"), state("closed")), (TARGETS / 2, TARGETS / 2));
    let number = |name: &str| totals[name].as_u64().unwrap();
    assert_eq!((number("lost"), number("failed")), (0, 0), "{totals}");
    assert_eq!(totals["complete"], true, "{totals}");
}

/// SYNs that arrive at the right end while `body` runs.
fn probes<T>(pair: &Pair, body: impl FnOnce() -> T) -> (T, HashMap<(IpAddr, u16), usize>) {
    watch::syns(&receiver(&pair.right), body)
}

/// Scans while an end of the link goes down twice. Some probes are sent without a link: until the
/// scan knows that it is down, by a second.
fn interrupted(scheme: &str, far: bool, more: &[&str]) {
    let pair = network();
    let listen = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, 80));
    let _listener = pair.right.ns.run(listen).unwrap().unwrap();
    let port = format!("{scheme}{}", pair.left.ifname);
    let end = if far { &pair.right } else { &pair.left };
    let (finished, seen) = probes(&pair, || {
        let args = [&["--rate", "400", "--wait", "2"], more].concat();
        let mut process = begin(&pair, &port, &args);
        process.wait_stdout("closed", LIMIT).unwrap();
        for count in 1..=2 {
            end.set_down().unwrap();
            let is_down = |out: &str| out.matches("\"state\":\"down\"").count() == count;
            let since = std::time::Instant::now();
            while !is_down(&process.stdout()) {
                assert!(since.elapsed() < LIMIT, "{}", process.stderr());
                std::thread::sleep(Duration::from_millis(20));
            }
            process.wait_stderr("the link is down", LIMIT).unwrap();
            end.set_up().unwrap();
            let is_up = |out: &str| out.matches("\"state\":\"up\"").count() == count;
            while !is_up(&process.stdout()) {
                assert!(since.elapsed() < LIMIT, "{}", process.stderr());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        process.wait(LIMIT).unwrap().checked().unwrap()
    });
    let lines = lines(&finished);
    assert_eq!(links(&lines), ["down", "up", "down", "up"]);
    check(&lines);
    assert_eq!(seen.len() as u64, TARGETS);
    let totals = lines.last().unwrap();
    let number = |name: &str| totals[name].as_u64().unwrap();
    // Each probe once, and some again.
    assert!(number("resent") > 0, "{totals}");
    assert_eq!(number("sent") - number("resent"), TARGETS, "{totals}");
    assert!(
        finished.stderr.contains("sent again"),
        "{}",
        finished.stderr
    );
}

#[test]
fn a_scan_waits_for_its_link_and_loses_nothing() {
    require!(skip::lab());
    for scheme in ["afpacket:", "afxdp:"] {
        for far in [false, true] {
            interrupted(scheme, far, &[]);
        }
    }
}

#[test]
fn each_queue_of_a_scan_goes_back_when_the_link_is_up_again() {
    require!(skip::lab());
    interrupted("afxdp:", false, &["--queues", "2"]);
}

#[test]
fn a_scan_that_is_stopped_without_a_link_is_resumed_without_a_skipped_probe() {
    require!(skip::lab());
    let pair = network();
    let listen = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, 80));
    let _listener = pair.right.ns.run(listen).unwrap().unwrap();
    let file = lab::oracle::TempFile::new("state");
    let state = file.path().to_str().unwrap();
    let port = format!("afxdp:{}", pair.left.ifname);
    let args = ["--rate", "400", "--wait", "1", "--state", state];
    let mut found = Vec::new();
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let mut process = begin(&pair, &port, &args);
        process.wait_stdout("closed", LIMIT).unwrap();
        pair.right.set_down().unwrap();
        process.wait_stdout("\"down\"", LIMIT).unwrap();
        if signal == Signal::SIGKILL {
            // The state is written once a second.
            let before = process.stdout().matches("\"status\"").count();
            let since = std::time::Instant::now();
            while process.stdout().matches("\"status\"").count() < before + 3 {
                assert!(since.elapsed() < LIMIT, "{}", process.stderr());
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        let finished = process.stop(signal, LIMIT).unwrap();
        assert!(
            signal == Signal::SIGKILL || finished.code() == Some(6),
            "{finished:?}"
        );
        found.extend(lines(&finished));
        pair.right.set_up().unwrap();
        for end in [&pair.left, &pair.right] {
            end.wait_up(LIMIT).unwrap();
        }
    }
    let finished = begin(&pair, &port, &args)
        .wait(LIMIT)
        .unwrap()
        .checked()
        .unwrap();
    found.extend(lines(&finished));
    assert_eq!(answers(&found).len() as u64, TARGETS);
}
