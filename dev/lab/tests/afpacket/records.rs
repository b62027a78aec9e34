//! Tests specific to a program's ring.

use std::sync::atomic::{AtomicU64, Ordering};

use lab::packet::number_of;
use lab::{Veth, skip};
use port::Ready;
use sys::ErrorKind;
use sys::privileges::{Capability, drop_privileges};

use super::common::*;

/// Unsupported options are refused if this ring is requested explicitly; otherwise the other ring
/// is used.
#[test]
fn unsupported_options_are_reported() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    for query in [
        "rss_hash=yes",
        "queues=2&fanout=rollover",
        "ring_bytes=536870912",
    ] {
        let error = try_open(&pair.right, query, &PortOptions::default())
            .err()
            .unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{query}: {error}");
        assert!(error.hint().unwrap().contains("tap=auto"), "{query}");
    }
    let ring = |query: &str| {
        let port = open(&pair.right, query);
        let facts = port.control.describe().facts;
        facts.into_iter().find(|fact| fact.0 == "ring").unwrap().1
    };
    assert!(ring("tap=auto").contains("BPF"));
    assert!(
        ring("tap=auto&rss_hash=yes")
            .contains("TPACKET_V3 (a filter program cannot compute hashes)")
    );
    assert!(ring("tap=tpacket").contains("TPACKET_V3 (requested)"));
}

#[test]
fn without_cap_bpf_the_record_ring_is_refused_or_replaced() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let open = |query: &str| {
        let name = name(&pair.right, query);
        let body = || {
            drop_privileges(None, &[Capability::NetRaw]).unwrap();
            port::open(&name, &PortOptions::default())
        };
        pair.right.ns.run(body).unwrap()
    };
    let error = open("").err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
    assert!(error.hint().is_some());
    let facts = open("tap=auto").unwrap().control.describe().facts;
    let ring = &facts.iter().find(|fact| fact.0 == "ring").unwrap().1;
    assert!(ring.contains("TPACKET_V3"), "{ring}");
}

/// Several processors write to one ring at once, in both directions: each packet is received once,
/// each sender's in order.
#[test]
fn many_writers_share_a_ring() {
    const EACH: u64 = 20_000;
    lab::require!(skip::lab());
    let pair = Veth::new().queues(2).create().unwrap();
    let mut port = open(&pair.right, "ring_bytes=4194304");
    let plan = plan(&pair);
    let senders: Vec<_> = (0..4_u64)
        .map(|n| (n, sender(if n % 2 == 0 { &pair.left } else { &pair.right })))
        .collect();
    let sent = AtomicU64::new(0);
    let mut seen = [0; 4];
    std::thread::scope(|scope| {
        for (n, sender) in &senders {
            let (plan, sent) = (&plan, &sent);
            scope.spawn(move || {
                for number in 0..EACH {
                    let len = 60 + (number as usize * 7) % 200;
                    sender.send(&plan.build(n * EACH + number, len)).unwrap();
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        receive(&mut port, 4 * EACH as usize, |_, packet| {
            let number = number_of(packet.bytes()).unwrap();
            let from = (number / EACH) as usize;
            assert_eq!(number % EACH, seen[from], "sender {from}");
            assert_eq!(packet.is_outgoing(), from % 2 == 1);
            seen[from] += 1;
        });
    });
    assert_eq!(seen, [EACH; 4]);
    let account = port.control.account().unwrap().rx_total();
    assert_eq!(
        (account.seen, account.imbalance(), account.lost()),
        (4 * EACH, 0, 0)
    );
}

/// A reader that has read everything sends the writers back to the ring's start. Whether rounds end
/// before the position where that begins, after it, or in a full ring: each packet is received
/// once, in order, or counted as lost, and only if there was no room.
#[test]
fn the_ring_starts_over() {
    const RING: u64 = 1 << 20;
    const LEN: u64 = 1000;
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let (plan, sender) = (plan(&pair), sender(&pair.left));
    let mut port = open(&pair.right, &format!("outgoing=no&ring_bytes={RING}"));
    let (mut sent, mut got, mut last) = (0, 0, None);
    for count in [1_u64, 100, 300, 900, 1, 2500, 300, 2500, 600, 600, 600, 1] {
        let lost = port.control.account().unwrap().rx_total().lost();
        for _ in 0..count {
            sender.send(&plan.build(sent, LEN as usize)).unwrap();
            sent += 1;
        }
        got += receive(&mut port, usize::MAX, |_, packet| {
            let number = number_of(packet.bytes()).unwrap();
            assert!(last < Some(number), "{number} behind {last:?}");
            last = Some(number);
        }) as u64;
        let account = port.control.account().unwrap().rx_total();
        assert_eq!((account.imbalance(), account.in_flight), (0, 0));
        assert_eq!(account.seen, sent);
        assert_eq!(account.delivered, got);
        let fit = RING / (LEN + 32);
        assert_eq!(account.lost() - lost, count.saturating_sub(fit), "{count}");
    }
    assert!(got < sent);
}

/// A reader that sleeps without a limit is woken by the first packet, and by a full ring before
/// anything is lost.
#[test]
fn sleeping_readers_are_woken() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let (plan, sender) = (plan(&pair), sender(&pair.left));
    // Blocks of ten seconds: only a full ring wakes earlier.
    let mut port = open(
        &pair.right,
        "outgoing=no&ring_bytes=65536&block_timeout_ms=10000",
    );
    let mut got = 0;
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut sleeps = 0;
            while got < 2000 {
                assert_eq!(port.rx[0].wait(LIMIT).unwrap(), Ready::Packets);
                sleeps += 1;
                loop {
                    let batch = port.rx[0].receive().unwrap();
                    if batch.is_empty() {
                        break;
                    }
                    got += batch.len();
                }
            }
            sleeps
        });
        let mut number = 0;
        while !reader.is_finished() {
            sender.send(&plan.build(number, 100)).unwrap();
            number += 1;
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
        let sleeps = reader.join().unwrap();
        assert!(
            sleeps > 5 && sleeps < 1000,
            "{sleeps} sleeps for {number} packets"
        );
    });
    let account = port.control.account().unwrap().rx_total();
    assert_eq!((account.lost(), account.imbalance()), (0, 0), "{account:?}");
}

/// A user's filter, of any form that the translator accepts, becomes part of the program.
#[test]
fn filters_of_every_kind_are_part_of_the_program() {
    lab::require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    let pair = Veth::new().create().unwrap();
    let (mut plan, sender) = (plan(&pair), sender(&pair.left));
    for (expression, passes) in [
        ("udp", [true, true]),
        ("tcp", [false, false]),
        ("udp port 9", [true, true]),
        ("vlan 7", [false, true]),
        ("vlan 8", [false, false]),
        ("not vlan", [true, false]),
        ("ip[2:2] > 80 or vlan", [true, true]),
        ("inbound", [true, true]),
        ("outbound", [false, false]),
        ("len <= 104", [true, true]),
        ("len <= 95", [false, false]),
        ("src net 10.77.0.0/24 and dst host 10.77.0.2", [true, true]),
    ] {
        let options = PortOptions {
            filter_source: Some(runtime::filter::source(expression)),
            ..PortOptions::default()
        };
        let mut port = try_open(&pair.right, "", &options).unwrap();
        let mut expected = Vec::new();
        for (number, tag) in [None, Some(7)].into_iter().enumerate() {
            plan.vlan = tag;
            let packet = plan.build(number as u64, 100);
            sender.send(&packet).unwrap();
            if passes[number] {
                expected.push(number as u64);
            }
        }
        let got: Vec<u64> = collect(&mut port)
            .iter()
            .map(|p| number_of(p).unwrap())
            .collect();
        assert_eq!(got, expected, "{expression}");
        let account = port.control.account().unwrap().rx_total();
        assert_eq!(
            (account.seen, account.imbalance()),
            (2, 0),
            "{expression}: {account:?}"
        );
    }
}
