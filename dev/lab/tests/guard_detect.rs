//! `barewire guard --detect`: hping3 floods a service beside connections of the kernel.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lab::process::Process;
use lab::watch::Ending;
use lab::{Pair, Veth, require, skip};
use serde_json::Value;

use crate::guard_flood::{PORT, connect, guard, serve, stop};

/// Short times, and a rate that a busy machine reaches. The end takes longer: hping3 may pause.
const SETTINGS: &str = "least=400/s,warm-up=2s,begin=1s,end=5s";

/// Waits for a line of JSON; the bound allows for a machine that pauses for minutes.
pub fn line(process: &Process, is_it: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..12_000 {
        let stdout = process.stdout();
        let lines = stdout
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        let mut values = lines.filter_map(|line| serde_json::from_str(line).ok());
        if let Some(value) = values.find(&is_it) {
            return value;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{}{}", process.stdout(), process.stderr());
}

pub fn event(process: &Process, name: &str) -> Value {
    line(process, |value| {
        value["type"] == "flood" && value["event"] == name
    })
}

/// Starts a flood; it ends when the process is dropped.
fn flood(pair: &Pair) -> Process {
    let target = pair.right.ipv4.to_string();
    let args = [
        "-q", "-S", "-p", "8080", "-i", "u20", "-c", "10000000", &target,
    ];
    pair.left.ns.spawn("hping3", args).unwrap()
}

/// Detects a flood and its end while connections complete; returns the rule events and the totals.
fn run(pair: &Pair, action: &str) -> (Vec<Value>, Value) {
    let args = [
        "--detect",
        action,
        "--sample",
        "1/2",
        "--detect-settings",
        SETTINGS,
    ];
    // A rule file that is broken later: only a reload reads it.
    let file = lab::oracle::TempFile::new(".toml");
    std::fs::write(
        file.path(),
        "[[rule]]\nmatch = \"arp\"\nverdict = \"count\"\n",
    )
    .unwrap();
    let args = [&args[..], &["--rules", file.path().to_str().unwrap()]].concat();
    let process = guard(pair, &args);
    // The normal rate is known.
    line(&process, |value| value["seconds"].as_f64() > Some(4.0));
    std::fs::write(file.path(), "[[rule").unwrap();
    let mut flood = flood(pair);
    let begins = event(&process, "begins");
    assert!(begins["rate_pps"].as_f64() > Some(400.0), "{begins}");
    let rule = event(&process, "rule");
    if action == "install" {
        let dropped = |value: &Value| value["dropped"].as_u64() > Some(2_000);
        line(&process, dropped);
        let over = |value: &Value| value["event"] == "over";
        let stdout = process.stdout();
        let mut lines = stdout
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        assert!(!lines.any(|value| over(&value)), "{stdout}");
    }
    flood.kill().unwrap();
    event(&process, "over");
    if action == "install" {
        line(&process, |value| {
            value["event"] == "removed" && value["name"] == rule["name"]
        });
        // There may have been other rules, as the clients' packets are among those of the flood.
        line(&process, |value| {
            let rules = value["rules"].as_array();
            value["dropped"].as_u64() > Some(0) && rules.is_some_and(|rules| rules.len() == 1)
        });
    }
    let stdout = process.stdout();
    let events = stdout
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let rules = events.filter(|value: &Value| value["event"] == "rule");
    (rules.collect(), stop(process))
}

/// Like [`run`], while a client connects repeatedly: every connection completes.
fn beside_connections(pair: &Pair, action: &str) -> (Vec<Value>, Value) {
    let address = SocketAddr::from((pair.right.ipv4, PORT));
    let listener = pair.right.ns.run(|| TcpListener::bind(address)).unwrap();
    let listener = listener.unwrap();
    // The server goes last: it must answer connections that have begun.
    let (is_over, is_served) = (AtomicBool::new(false), AtomicBool::new(false));
    let client = || {
        let mut count = 0;
        while !is_over.load(Ordering::Relaxed) {
            connect(address).unwrap();
            count += 1;
            std::thread::sleep(Duration::from_millis(50));
        }
        count
    };
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&listener, &is_served));
        let _ending = Ending(&is_served);
        let client = scope.spawn(|| pair.left.ns.run(client).unwrap());
        // A panic must end the other threads, too.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(pair, action)));
        is_over.store(true, Ordering::Relaxed);
        let count = client.join().unwrap();
        let result = result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        assert!(count > 20, "{count} connections");
        result
    })
}

#[test]
fn a_flood_is_dropped_while_it_lasts_and_connections_complete() {
    require!(skip::lab());
    require!(skip::program("hping3", "hping3"));
    let pair = Veth::new().create().unwrap();
    let (rules, totals) = beside_connections(&pair, "install");
    assert_eq!(rules[0]["installed"], true, "{rules:?}");
    assert!(totals["dropped"].as_u64() > Some(2_000), "{totals}");
    // The rule is removed, its counts are kept.
    assert_eq!(totals["rules"].as_array().unwrap().len(), 1, "{totals}");
    assert_eq!(totals["removed"]["dropped"], totals["dropped"], "{totals}");
    assert!(
        totals["detection"]["sampled"].as_u64() > Some(100),
        "{totals}"
    );
}

#[test]
fn a_rule_is_proposed_and_nothing_dropped() {
    require!(skip::lab());
    require!(skip::program("hping3", "hping3"));
    let pair = Veth::new().create().unwrap();
    let (rules, totals) = beside_connections(&pair, "propose");
    let is_installed = |rule: &Value| rule["installed"] == true;
    assert!(!rules.iter().any(is_installed), "{rules:?}");
    assert_eq!(totals["dropped"], 0, "{totals}");
    // hping3's kernel resets what the server answers, which may be the larger part of the flood.
    // The proposed rules together drop exactly the packets of hping3.
    let dropped = rules.iter().filter(|rule| rule["verdict"] == "drop");
    let proposed = dropped.map(|rule| rule["match"].as_str().unwrap());
    let args: Vec<&str> = proposed.flat_map(|text| ["--drop", text]).collect();
    assert!(!args.is_empty(), "{rules:?}");
    let process = guard(&pair, &args);
    crate::guard_flood::hping3(&pair, &["-S", "-p", "8080"]);
    crate::guard_flood::ten_connections(&pair);
    assert_eq!(stop(process)["dropped"], 10, "{rules:?}");
}
