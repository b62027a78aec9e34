//! `barewire scan` on several queues: the lanes of the probes, counted at the far end.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use lab::process::{Process, Signal, barewire};
use lab::{Finished, Pair, Veth, require, skip, watch};
use serde_json::Value;

use crate::afxdp::receiver;

/// Time limit of a program; not a measurement.
const LIMIT: Duration = Duration::from_secs(120);
/// 1,024 addresses that the right end's kernel answers for.
const HOSTS: &str = "198.18.4.0/22";

fn network() -> Pair {
    let pair = Veth::new().queues(4).create().unwrap();
    let (left, right) = (&pair.left, &pair.right);
    let hosts = ["route", "add", "local", HOSTS, "dev", "lo"];
    right.ns.ip(hosts).unwrap();
    let router = right.ipv4.to_string();
    left.ns.ip(["route", "add", HOSTS, "via", &router]).unwrap();
    pair
}

fn begin(pair: &Pair, args: &[&str]) -> Process {
    let port = format!("afxdp:{}", pair.left.ifname);
    let args = [&["scan", HOSTS, "--json", "--wait", "2", "-e", &port], args].concat();
    pair.left.ns.spawn(barewire().unwrap(), args).unwrap()
}

/// The answers, and the totals.
fn parsed(finished: &Finished) -> (usize, Value) {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    let lines: Vec<Value> = finished.stdout.lines().map(parse).collect();
    let answers = lines.iter().filter(|line| line["type"] == "answer").count();
    (answers, lines.last().expect("totals").clone())
}

/// Runs `body`; returns the SYNs that arrived at the right end, by address and port.
fn probes(pair: &Pair, body: impl FnOnce()) -> HashMap<(IpAddr, u16), usize> {
    watch::syns(&receiver(&pair.right), body).1
}

/// A file that is removed.
struct TempFile(PathBuf);

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn lanes_on_several_queues_probe_every_target_once() {
    require!(skip::lab());
    let pair = network();
    for (queues, retries) in [("3", "0"), ("4", "1")] {
        let args = [
            "-p",
            "80,81",
            "--rate",
            "3000",
            "--queues",
            queues,
            "--retries",
            retries,
        ];
        let mut result = None;
        let seen = probes(&pair, || {
            let finished = begin(&pair, &args).wait(LIMIT).unwrap().checked().unwrap();
            result = Some(parsed(&finished));
        });
        let (answers, totals) = result.unwrap();
        let each = if retries == "0" { 1 } else { 2 };
        assert_eq!(seen.len(), 2048, "{totals}");
        assert!(
            seen.values().all(|count| *count == each),
            "{queues}: {totals}"
        );
        assert_eq!(answers, 2048, "{totals}");
        let counts = (&totals["sent"], &totals["lost"], &totals["complete"]);
        assert_eq!(counts, (&(2048 * each).into(), &0.into(), &true.into()));
    }
}

#[test]
fn a_scan_on_several_queues_is_resumed_on_another_number_without_a_repeated_probe() {
    require!(skip::lab());
    let pair = network();
    let name = format!("barewire-scan-queues-{}", std::process::id());
    let state = TempFile(std::env::temp_dir().join(name));
    let path = state.0.to_str().unwrap();
    let common = ["-p", "80-83", "--rate", "1500", "--state", path];
    let mut runs = 0;
    let seen = probes(&pair, || {
        for queues in ["4", "2", "3", "1"] {
            let args = [&common[..], &["--queues", queues]].concat();
            let mut process = begin(&pair, &args);
            if queues == "1" {
                process.wait(LIMIT).unwrap().checked().unwrap();
            } else {
                process.wait_stdout("closed", LIMIT).unwrap();
                process.stop(Signal::SIGINT, LIMIT).unwrap();
            }
            runs += 1;
        }
    });
    assert_eq!(runs, 4);
    assert_eq!(seen.len(), 4096);
    let repeated = seen.values().filter(|count| **count != 1).count();
    assert_eq!(repeated, 0, "of 4096");
}
