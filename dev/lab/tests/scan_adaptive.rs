//! `barewire scan --min-rate` through a limiter that drops what exceeds its rate.

use std::time::Duration;

use lab::process::barewire;
use lab::{Pair, Veth, require, skip};
use serde_json::Value;

/// Time limit of a program; not a measurement.
const LIMIT: Duration = Duration::from_secs(120);
/// 32,768 addresses that the right end's kernel answers for.
const HOSTS: &str = "198.19.0.0/17";

fn network() -> Pair {
    let pair = Veth::new().create().unwrap();
    pair.add_hosts(HOSTS).unwrap();
    pair
}

fn scan(pair: &Pair, args: &[&str]) -> Vec<Value> {
    let args = [&["scan", "--json", "--wait", "1", HOSTS, "-p", "81"], args].concat();
    let mut process = pair.left.ns.spawn(barewire().unwrap(), args).unwrap();
    let finished = process.wait(LIMIT).unwrap().checked().unwrap();
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    finished.stdout.lines().map(parse).collect()
}

fn changes(lines: &[Value]) -> Vec<&Value> {
    lines.iter().filter(|line| line["type"] == "rate").collect()
}

/// Answers that the machine delivers 50 ms late count as missing at the end of a window, and then
/// the rate may not reach its maximum before the end of the scan: one of four scans must.
#[test]
fn the_rate_rises_to_its_maximum_where_nothing_is_lost() {
    require!(skip::lab());
    let pair = network();
    let reached = |_| rises_to_maximum(&pair);
    assert!((0..4).any(reached), "no scan reached the maximum rate");
}

/// Whether the last change of the rate in a scan is the one to the maximum.
fn rises_to_maximum(pair: &Pair) -> bool {
    let lines = scan(pair, &["--min-rate", "500", "--rate", "4000"]);
    let totals = lines.last().unwrap();
    // Nothing sends probes again that a busy machine has dropped.
    let closed = totals["closed"].as_u64().unwrap();
    assert!(closed >= 32_768 * 99 / 100, "{totals}");
    assert_eq!(
        (&totals["rate_asked_pps"], &totals["rate_min_pps"]),
        (&4000.into(), &500.into())
    );
    let changes = changes(&lines);
    assert_eq!(totals["rate_changes"], changes.len());
    let rate = |change: &Value, name: &str| change[name].as_f64().unwrap();
    let is_rise = |change: &&Value| rate(change, "to_pps") > rate(change, "from_pps");
    assert!(changes.iter().any(is_rise), "{changes:?}");
    println!("{changes:?}");
    changes
        .last()
        .is_some_and(|last| rate(last, "to_pps") == 4000.0)
}

#[test]
fn the_rate_falls_when_a_limiter_drops_probes() {
    require!(skip::lab(), skip::program("nft", "nftables"));
    let pair = network();
    // More than the sender catches up with after a pause: 5 ms at the maximum rate.
    for rule in [
        "add table inet lab",
        "add chain inet lab in { type filter hook prerouting priority -300; }",
        "add rule inet lab in tcp flags syn limit rate over 1500/second burst 500 packets drop",
    ] {
        pair.right.ns.exec("nft", [rule]).unwrap();
    }
    let lines = scan(&pair, &["--min-rate", "250", "--rate", "20000"]);
    let totals = lines.last().unwrap();
    let changes = changes(&lines);
    let falls = changes.iter().filter(|change| !change["share"].is_null());
    assert!(falls.count() > 0, "{changes:?}");
    let reached = totals["rate_reached_pps"].as_f64().unwrap();
    assert!(reached < 5_000.0, "{totals}");
    // At 20,000 pps more than nine tenths would be lost.
    let closed = totals["closed"].as_u64().unwrap();
    assert!(closed > 32_768 * 8 / 10, "{totals}");
}
