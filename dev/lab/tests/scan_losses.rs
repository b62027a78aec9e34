//! Answers that a scan loses: it reports how many. The scan is stopped while all of them arrive, so
//! that they exceed its ring by a number known beforehand.

use std::time::{Duration, Instant};

use lab::packet::Raw;
use lab::process::{Signal, barewire};
use lab::{Pair, Veth, require, skip};
use serde_json::Value;

use crate::afxdp::receiver;
use crate::scan_live::syn_ack;

/// Time limit of everything that is waited for.
const LIMIT: Duration = Duration::from_secs(60);
/// Addresses that the test answers for.
const TARGETS: &str = "192.0.2.0/24";
const TARGET_COUNT: u64 = 256;
/// Answers that the ring holds.
const RING_LEN: u64 = 64;

/// Waits for all SYNs.
fn syns(raw: &Raw) -> Vec<Vec<u8>> {
    let end = Instant::now() + LIMIT;
    let mut syns = Vec::new();
    while (syns.len() as u64) < TARGET_COUNT {
        assert!(Instant::now() < end, "{} SYNs arrived", syns.len());
        let packet = raw.receive(Duration::from_millis(100)).unwrap();
        // IPv4, TCP, to port 7.
        let is_syn = |packet: &Vec<u8>| {
            packet.get(12..14) == Some(&[8, 0])
                && packet.get(23) == Some(&6)
                && packet.get(36..38) == Some(&[0, 7])
        };
        syns.extend(packet.filter(is_syn));
    }
    syns
}

/// Sends answers, a few at a time: no more than the driver's own ring holds.
fn answer(pair: &Pair, raw: &Raw, syns: &[Vec<u8>]) {
    let end = Instant::now() + LIMIT;
    let received = || pair.left.counters().unwrap().rx_packets;
    let mut before = received();
    for part in syns.chunks(16) {
        for syn in part {
            raw.send(&syn_ack(syn, 0)).unwrap();
        }
        while received() < before + part.len() as u64 {
            assert!(Instant::now() < end, "an answer did not arrive");
            std::thread::sleep(Duration::from_millis(1));
        }
        before += part.len() as u64;
    }
}

#[test]
fn answers_that_exceed_the_ring_are_reported_as_lost() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let right = &pair.right;
    let raw = receiver(right);
    let port = format!("afxdp:{}?ring={RING_LEN}", pair.left.ifname);
    let mac = wire::Mac(right.mac).to_string();
    let args = [
        "scan",
        TARGETS,
        "-p",
        "7",
        "-e",
        &port,
        "--router-mac",
        &mac,
        "--rate",
        "5000",
        "--wait",
        "5s",
        "--json",
    ];
    let mut process = pair.left.ns.spawn(barewire().unwrap(), args).unwrap();
    let syns = syns(&raw);
    process.suspend().unwrap();
    answer(&pair, &raw, &syns);
    process.signal(Signal::SIGCONT).unwrap();
    let finished = process.wait(LIMIT).unwrap();
    // Packets were lost.
    assert_eq!(finished.code(), Some(5), "{}", finished.stderr);
    let lines: Vec<Value> = finished
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let answers = lines.iter().filter(|line| line["type"] == "answer").count() as u64;
    let totals = lines.last().unwrap();
    assert_eq!(totals["type"], "totals");
    assert_eq!(answers, RING_LEN, "{totals}");
    assert_eq!(totals["lost"], TARGET_COUNT - RING_LEN, "{totals}");
    assert_eq!(totals["received"], RING_LEN, "{totals}");
}
