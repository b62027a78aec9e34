//! Exact counts, shards, attempts, and starting at any probe.

use std::collections::{HashMap, HashSet};

use super::*;
use crate::payload::Payloads;
use crate::target::{parse_pair, parse_range};

fn plan(range: &str, ports: &str, order: Order) -> Plan {
    let targets = Targets::new(vec![parse_range(range).unwrap()], Vec::new()).unwrap();
    let source = Source {
        ipv4: Some([192, 0, 2, 1].into()),
        ipv6: None,
        ports: (40_000, 1),
    };
    Plan::new(targets, Ports::tcp(ports).unwrap(), source, order).unwrap()
}

const PLAIN: Order = Order {
    seed: 5,
    shard: Shard::WHOLE,
    attempts: 1,
    block: 100,
};

#[test]
fn each_target_is_probed_once_per_attempt() {
    for attempts in 1..=4 {
        for block in [1, 7, 100, 511, 512, 513, 100_000] {
            let order = Order {
                attempts,
                block,
                ..PLAIN
            };
            let plan = plan("198.18.4.0/24", "80,443", order);
            let mut counts: HashMap<ProbeTarget, u32> = HashMap::new();
            for (target, _) in plan.probes(0) {
                *counts.entry(target).or_default() += 1;
            }
            assert_eq!(counts.len(), 512);
            assert!(counts.values().all(|count| *count == attempts));
            assert_eq!(plan.probe_count(), 512 * u128::from(attempts));
        }
    }
}

#[test]
fn pairs_are_probed_once_with_all_others_in_every_shard() {
    let source = Source {
        ipv4: Some([192, 0, 2, 1].into()),
        ipv6: None,
        ports: (40_000, 1),
    };
    let pairs = [
        // Twice, one that is among all ports of all targets, and one with two payloads.
        "198.18.9.1:443",
        "198.18.9.1:443",
        "198.18.4.7:80",
        "198.18.4.7:81",
        "[2001:db8::1]:161/udp",
    ];
    let pairs: Vec<_> = pairs
        .iter()
        .map(|word| parse_pair(word).unwrap().unwrap())
        .collect();
    let payloads = Payloads::built_in();
    let pairs = Ports::of_pairs(&pairs, &[], &payloads).unwrap();
    for (range, ports) in [("198.18.4.0/24", "80,443"), ("", "")] {
        let make = |shard| {
            let ranges = if range.is_empty() {
                vec![]
            } else {
                vec![parse_range(range).unwrap()]
            };
            let targets = Targets::new(ranges, Vec::new()).unwrap();
            let ports = match ports {
                "" => Ports::none(payloads.clone()),
                _ => Ports::tcp(ports).unwrap(),
            };
            let order = Order { shard, ..PLAIN };
            Plan::with_pairs(targets, ports, pairs.clone(), source, order).unwrap()
        };
        let further = if range.is_empty() { 5 } else { 4 };
        let product = if range.is_empty() { 0 } else { 512 };
        let mut seen = HashSet::new();
        for index in 0..3 {
            let plan = make(Shard { index, count: 3 });
            let all: Vec<_> = plan.probes(0).collect();
            assert_eq!(all.len() as u128, plan.probe_count());
            for from in [1, all.len() / 2, all.len()] {
                assert!(plan.probes(from as u128).eq(all[from..].iter().copied()));
            }
            for probe in all {
                assert!(plan.contains(&probe.0));
                assert!(seen.insert(probe), "{probe:?}");
            }
        }
        assert_eq!(seen.len(), product + further);
        let plan = make(Shard::WHOLE);
        assert_eq!(plan.addr_count(), if range.is_empty() { 3 } else { 258 });
        let mut target = pairs[0].0;
        target.port = 9;
        assert!(!plan.contains(&target));
        let kinds = [Probe::Syn, Probe::Udp];
        assert_eq!(plan.kinds(), kinds);
    }
}

#[test]
fn attempts_at_a_target_are_a_block_apart() {
    let order = Order {
        attempts: 3,
        block: 64,
        ..PLAIN
    };
    let plan = plan("198.18.4.0/24", "80", order);
    let targets: Vec<_> = plan.probes(0).collect();
    for (at, target) in targets.iter().enumerate() {
        let next = targets[at + 1..].iter().position(|other| other == target);
        assert!(next.is_none_or(|gap| gap == 63), "{at}");
    }
}

#[test]
fn the_attempt_before_a_probe_has_the_same_target() {
    for (attempts, block) in [(1, 100), (3, 100), (2, 512), (4, 7), (3, 100_000)] {
        let order = Order {
            attempts,
            block,
            ..PLAIN
        };
        let plan = plan("198.18.4.0/24", "80,443", order);
        let all: Vec<_> = plan.probes(0).collect();
        let (mut last, mut first_count) = (HashMap::new(), 0);
        for (number, probe) in all.iter().enumerate() {
            let attempt = plan.attempt(number as u128);
            assert_eq!(attempt.before, last.insert(*probe, number as u128));
            first_count += usize::from(attempt.before.is_none());
            let others = number as u128..attempt.end;
            let is_first = |number| plan.attempt(number).before.is_none();
            assert!(
                others
                    .clone()
                    .all(|other| is_first(other) == is_first(number as u128))
            );
            assert!(attempt.end <= plan.probe_count() && !others.is_empty());
        }
        assert_eq!(first_count, 512);
    }
}

#[test]
fn a_scan_can_begin_at_any_probe() {
    for (attempts, block) in [(1, 100), (3, 100), (2, 1), (4, 1_000)] {
        let order = Order {
            attempts,
            block,
            shard: Shard { index: 1, count: 3 },
            ..PLAIN
        };
        let plan = plan("198.18.4.0/24", "80,443,8080", order);
        let all: Vec<_> = plan.probes(0).collect();
        assert_eq!(all.len() as u128, plan.probe_count());
        for from in [
            0,
            1,
            99,
            100,
            101,
            299,
            300,
            301,
            555,
            all.len() - 1,
            all.len(),
            all.len() + 9,
        ] {
            let rest: Vec<_> = plan.probes(from as u128).collect();
            assert_eq!(
                rest,
                all[from.min(all.len())..],
                "{from} of {attempts}×{block}"
            );
        }
    }
}

#[test]
fn shards_are_disjoint_and_complete_at_any_block() {
    let mut counts: HashMap<ProbeTarget, u32> = HashMap::new();
    for (index, block) in (0..3).zip([10, 1_000, 77]) {
        let shard = Shard { index, count: 3 };
        let order = Order {
            shard,
            block,
            ..PLAIN
        };
        for (target, _) in plan("198.18.4.0/22", "81-83", order).probes(0) {
            *counts.entry(target).or_default() += 1;
        }
    }
    assert_eq!(counts.len(), 3_072);
    assert!(counts.values().all(|count| *count == 1));
}

#[test]
fn more_shards_than_targets_leave_some_empty() {
    let order = |index| Order {
        shard: Shard { index, count: 9 },
        ..PLAIN
    };
    let count = |index| plan("192.0.2.0/30", "80", order(index)).probes(0).count();
    assert_eq!((0..9).map(count).sum::<usize>(), 4);
}

#[test]
fn pairs_are_right_for_every_number_of_ports() {
    for ports in ["1", "1-2", "1-3", "1-7", "1-1000", "0-65535"] {
        let plan = plan("0.0.0.0/0", ports, PLAIN);
        let count = plan.ports().as_slice().len() as u128;
        let last = (1u128 << 32) * count - 1;
        for number in [
            0,
            1,
            count - 1,
            count,
            count + 1,
            last / 3,
            last - count,
            last,
        ] {
            let (target, _) = plan.target(number);
            let addr = (number / count) as u32;
            assert_eq!(
                target.addr,
                std::net::Ipv4Addr::from_bits(addr),
                "{number} {ports}"
            );
            assert_eq!(
                target.port,
                plan.ports().as_slice()[(number % count) as usize].port
            );
        }
    }
}

#[test]
fn shards_from_text() {
    assert_eq!(Shard::parse("1/1"), Ok(Shard::WHOLE));
    assert_eq!(Shard::parse("3/4"), Ok(Shard { index: 2, count: 4 }));
    for text in ["", "0/4", "5/4", "1/0", "1", "a/b", "-1/4"] {
        assert!(Shard::parse(text).is_err(), "{text}");
    }
}
