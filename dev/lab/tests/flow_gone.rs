//! `barewire flows` with several queues whose interface is deleted while packets arrive: the flows
//! of every queue are in the records.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lab::packet::{Raw, Udp};
use lab::process::{Process, barewire};
use lab::{Pair, Veth, require, skip};
use serde_json::Value;

/// Time limit of a test that might hang.
const LIMIT: Duration = Duration::from_secs(60);
const QUEUES: u32 = 4;
const FLOWS: u16 = 64;
/// Minimum number of packets received before the interface is deleted.
const PACKETS_MIN: u64 = 2000;
/// Number of runs of each of the two; the environment variable can raise it.
const ROUNDS: &str = "BW_ROUNDS";

fn rounds() -> u32 {
    let reported = std::env::var(ROUNDS).ok();
    reported.map_or(3, |rounds| rounds.parse().expect("a number of rounds"))
}

fn start(pair: &Pair, port: &str) -> Process {
    let end = &pair.right;
    let port = port.replace("{}", &end.ifname);
    let args = [
        "flows", "--json", "--queues", "4", &port, "udp", "port", "9",
    ];
    let process = end.ns.spawn(barewire().unwrap(), args).unwrap();
    process.wait_stderr("of memory", LIMIT).unwrap();
    process
}

/// Sends until the interface is deleted, and deletes it after this many packets.
fn delete_under_load(pair: &Pair) {
    let udp = Udp::between(&pair.left, &pair.right).flows(FLOWS);
    let out = pair.left.ns.run(|| Raw::sender(&pair.left.ifname));
    let out = out.unwrap().unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                // It fails when the other end is deleted.
                if over.load(Ordering::Relaxed) || out.send(&udp.build(number, 60)).is_err() {
                    return;
                }
                if number % 32 == 31 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        let until = Instant::now() + LIMIT;
        while pair.right.counters().unwrap().rx_packets < PACKETS_MIN {
            assert!(Instant::now() < until, "no packets come");
        }
        pair.right.delete().unwrap();
        over.store(true, Ordering::Relaxed);
    });
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

fn every_queue_is_in_the_records(port: &str) {
    let pair = Veth::new().queues(QUEUES).create().unwrap();
    let mut process = start(&pair, port);
    delete_under_load(&pair);
    let finished = process.wait(LIMIT).unwrap();
    assert_eq!(finished.code(), Some(4), "{port}: {}", finished.stderr);
    let mut lines: Vec<Value> = finished
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    let summary = lines.pop().expect("a summary");
    let packets: u64 = lines.iter().map(|flow| number(&flow["packets"])).sum();
    assert_eq!(packets, number(&summary["packets"]), "{port}: {summary}");
    assert_eq!(summary["imbalance"], 0, "{port}: {summary}");
    assert_eq!(summary["records_dropped"], 0, "{port}: {summary}");
    let queues = summary["account"]["queues"].as_array().unwrap();
    assert_eq!(queues.len(), QUEUES as usize, "{port}: {summary}");
    let of = |name: &str| -> u64 { queues.iter().map(|queue| number(&queue[name])).sum() };
    assert_eq!(of("delivered"), packets, "{port}: {summary}");
    let busy = queues.iter().filter(|queue| queue["delivered"] != 0);
    assert!(busy.count() > 1, "{port}: one queue has all: {summary}");
    // What the kernel gave to a queue and did not drop was received by its reader.
    for queue in queues {
        assert_eq!(queue["imbalance"], 0, "{port}: {summary}");
        assert_eq!(queue["in_flight"], 0, "{port}: {summary}");
    }
}

#[test]
fn an_interface_deleted_under_load_loses_no_queues_flows() {
    require!(skip::lab());
    for _ in 0..rounds() {
        every_queue_is_in_the_records("{}");
        every_queue_is_in_the_records("afxdp:{}");
    }
}
