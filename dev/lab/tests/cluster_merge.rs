//! A cluster with two inputs puts their packets in order of time.

use std::path::Path;
use std::time::Duration;

use lab::oracle::TempFile;
use lab::packet::{Raw, Udp, number_of};
use lab::{Veth, skip};

use crate::cluster_live::{Cluster, FILTER, LIMIT, capture, packets_of, unique};
use crate::several_inputs::second_pair;

/// The numbers of the packets in a capture file.
fn numbers_in(path: &Path) -> Vec<u64> {
    let packets = packets_of(path);
    packets.iter().map(|it| number_of(it).unwrap()).collect()
}

/// Packets leave by two interfaces in turn, of which a cluster reads the other ends a batch at a
/// time: with `--merge`, its reader has them in the order in which they were sent.
#[test]
fn packets_of_two_inputs_are_in_order_of_time() {
    lab::require!(skip::lab());
    const COUNT: u64 = 2_000;
    let pair = Veth::new().create().unwrap();
    let [left, right] = second_pair(&pair);
    let name = unique();
    let inputs =
        [pair.right.ifname.as_str(), right.as_str()].map(|ifname| format!("afpacket:{ifname}"));
    // Much longer than a loaded machine needs to read both.
    let [first, second] = inputs.each_ref().map(String::as_str);
    let args = ["--merge", "3000", first, second, FILTER];
    let cluster = Cluster::start(&pair, &name, &args);
    let file = TempFile::new(".pcap");
    let mut reader = capture(&format!("ring:{name}"), file.path());
    let plan = Udp::between(&pair.left, &pair.right).flows(16);
    let senders = [pair.left.ifname.as_str(), left.as_str()].map(|ifname| {
        let sender = pair.left.ns.run(|| Raw::sender(ifname));
        sender.unwrap().unwrap()
    });
    for number in 0..COUNT {
        let sender = &senders[number as usize % 2];
        sender.send(&plan.build(number, 100)).unwrap();
        if number % 100 == 99 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    cluster.wait_delivered(COUNT);
    let status = cluster.status();
    let input = &status["input"];
    assert_eq!(
        (&input["merge_ms"], &input["late"]),
        (&3000.into(), &0.into())
    );
    let totals = cluster.stop();
    assert_eq!(totals["late"], 0);
    reader.wait(LIMIT).unwrap().checked().unwrap();
    assert!(
        numbers_in(file.path()).into_iter().eq(0..COUNT),
        "not in order"
    );
}

/// The last packets requested still wait for earlier ones when the cluster ends: its reader
/// receives them, and the cluster ends by itself.
#[test]
fn a_cluster_that_blocks_hands_over_the_last_packets_of_a_merge_and_ends() {
    lab::require!(skip::lab());
    const COUNT: u64 = 100;
    let pair = Veth::new().create().unwrap();
    let [left, right] = second_pair(&pair);
    let name = unique();
    let inputs =
        [pair.right.ifname.as_str(), right.as_str()].map(|ifname| format!("afpacket:{ifname}"));
    let [first, second] = inputs.each_ref().map(String::as_str);
    let count = COUNT.to_string();
    let options = ["--merge", "3000", "--when-full", "block", "--count", &count];
    let args: Vec<&str> = options.into_iter().chain([first, second, FILTER]).collect();
    let cluster = Cluster::start(&pair, &name, &args);
    let file = TempFile::new(".pcap");
    let mut reader = capture(&format!("ring:{name}"), file.path());
    let plan = Udp::between(&pair.left, &pair.right).flows(16);
    let sender = pair.left.ns.run(|| Raw::sender(&left)).unwrap().unwrap();
    for number in 0..COUNT {
        sender.send(&plan.build(number, 100)).unwrap();
    }
    let totals = cluster.wait();
    assert_eq!(totals["late"], 0);
    reader.wait(LIMIT).unwrap().checked().unwrap();
    assert!(numbers_in(file.path()).into_iter().eq(0..COUNT), "not all");
}
