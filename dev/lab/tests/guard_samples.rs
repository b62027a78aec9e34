//! `barewire guard --sample-drops`: the samples are the dropped packets, as tshark reads them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use lab::oracle::{TempFile, tshark};
use lab::packet::{Raw, Udp, pour};
use lab::process::Signal;
use lab::{Pair, Veth, require, skip};
use serde_json::Value;

use crate::guard_flood::{HPING3, guard, hping3, stop, ten_connections};
use crate::guard_live::reported;

const LIMIT: Duration = Duration::from_secs(60);
const FLOOD: &str = "udp dst port 9";

/// Sends UDP packets of this length to the right end.
fn send(pair: &Pair, count: u64, len: usize) {
    let udp = Udp::between(&pair.left, &pair.right);
    let sender = pair.left.ns.run(|| Raw::sender(&pair.left.ifname));
    let sender = sender.unwrap().unwrap();
    for number in 0..count {
        sender.send(&udp.build(number, len)).unwrap();
    }
}

/// How often each combination of these fields occurs in a file.
fn rows(file: &Path, fields: &[&str]) -> BTreeMap<Vec<String>, u64> {
    let mut rows = BTreeMap::new();
    for row in tshark::fields(file, fields, &[]).unwrap() {
        *rows.entry(row).or_default() += 1;
    }
    rows
}

fn row(fields: &[&str]) -> Vec<String> {
    fields.iter().map(|field| (*field).to_owned()).collect()
}

fn taken(totals: &Value) -> u64 {
    totals["samples"]["taken"].as_u64().unwrap()
}

fn lost(totals: &Value) -> u64 {
    totals["samples"]["lost"].as_u64().unwrap()
}

#[test]
fn samples_are_the_dropped_packets_with_their_rules() {
    require!(skip::lab());
    require!(skip::program("hping3", "hping3"));
    require!(skip::program("tshark", "tshark"));
    for hook in [
        ["--mode", "native"],
        ["--mode", "generic"],
        ["--hook", "tc"],
    ] {
        let pair = Veth::new().create().unwrap();
        let file = TempFile::new(".pcapng");
        let path = file.path().to_str().unwrap();
        let signature = format!("p0f:{HPING3}");
        let args = [
            hook[0],
            hook[1],
            "--drop",
            &signature,
            "--drop",
            FLOOD,
            "--sample-drops",
            path,
            "--sample",
            "1/1",
            "--user",
            "nobody",
        ];
        let process = guard(&pair, &args);
        hping3(&pair, &["-S", "-p", "8080"]);
        send(&pair, 20, 60);
        send(&pair, 30, 1_000);
        ten_connections(&pair);
        let totals = stop(process);
        assert_eq!(totals["dropped"], 60, "{totals}");
        // The bound of samples at once is higher, and the ring has room for all.
        assert_eq!((taken(&totals), lost(&totals)), (60, 0), "{totals}");
        let fields = ["frame.comment", "ip.proto", "frame.len", "frame.cap_len"];
        let mut expected = BTreeMap::new();
        expected.insert(row(&[&signature, "6", "54", "54"]), 10);
        expected.insert(row(&[FLOOD, "17", "60", "60"]), 20);
        expected.insert(row(&[FLOOD, "17", "1000", "256"]), 30);
        assert_eq!(rows(file.path(), &fields), expected, "{hook:?}");
        let times = tshark::fields(file.path(), &["frame.time_epoch"], &[]).unwrap();
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        for time in times.iter().flatten() {
            let age = now.as_secs_f64() - time.parse::<f64>().unwrap();
            assert!((-60.0..3_600.0).contains(&age), "{age} s old");
        }
    }
}

#[test]
fn a_flood_is_sampled_up_to_a_rate() {
    require!(skip::lab());
    require!(skip::program("tshark", "tshark"));
    for (sample, share) in [("1/1", 1), ("1/50", 50)] {
        let pair = Veth::new().create().unwrap();
        let file = TempFile::new(".pcapng");
        let path = file.path().to_str().unwrap();
        let args = ["--drop", FLOOD, "--sample-drops", path, "--sample", sample];
        let process = guard(&pair, &args);
        pour(&pair, 16, 20_000);
        let totals = stop(process);
        assert_eq!(totals["dropped"], 20_000, "{totals}");
        let sampled = taken(&totals) + lost(&totals);
        let seconds = totals["seconds"].as_f64().unwrap();
        assert!(sampled as f64 <= 101.0 + 1_000.0 * seconds, "{totals}");
        // Half and twice the expected number, of which random sampling stays clear.
        assert!(sampled <= 2 * 20_000 / share, "{totals}");
        assert!(sampled >= 100.min(20_000 / share / 2), "{totals}");
        let rows = rows(file.path(), &["frame.comment", "udp.dstport"]);
        let expected = BTreeMap::from([(row(&[FLOOD, "9"]), taken(&totals))]);
        assert_eq!(rows, expected, "{totals}");
    }
}

#[test]
fn samples_continue_with_the_names_of_reloaded_rules() {
    require!(skip::lab());
    require!(skip::program("tshark", "tshark"));
    let pair = Veth::new().create().unwrap();
    let (file, rules) = (TempFile::new(".pcapng"), TempFile::new(".toml"));
    let rule = |name| {
        let text =
            format!("[[rule]]\nname = \"{name}\"\nmatch = \"{FLOOD}\"\nverdict = \"drop\"\n");
        std::fs::write(rules.path(), text).unwrap();
    };
    rule("old");
    let args = [
        "--dry-run",
        "--rules",
        rules.path().to_str().unwrap(),
        "--sample-drops",
        file.path().to_str().unwrap(),
        "--sample",
        "1/1",
    ];
    let process = guard(&pair, &args);
    send(&pair, 10, 60);
    // Packets that the rules have not seen yet would be those of the new ones.
    reported(&process, "dropped", 10);
    rule("new");
    process.signal(Signal::SIGHUP).unwrap();
    process.wait_stderr("reloaded: 1 rule", LIMIT).unwrap();
    send(&pair, 20, 60);
    let totals = stop(process);
    let counts = (taken(&totals), lost(&totals), &totals["removed"]["dropped"]);
    assert_eq!(counts, (30, 0, &Value::from(10)), "{totals}");
    let expected = BTreeMap::from([(row(&["old"]), 10), (row(&["new"]), 20)]);
    assert_eq!(rows(file.path(), &["frame.comment"]), expected);
}

#[test]
fn a_full_disk_ends_sampling_and_not_the_guard() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let args = ["--drop", FLOOD, "--sample-drops", "/dev/full"];
    let process = guard(&pair, &args);
    pour(&pair, 1, 1_000);
    process.wait_stderr("sampling ended", LIMIT).unwrap();
    pour(&pair, 1, 1_000);
    assert_eq!(stop(process)["dropped"], 2_000);
}
