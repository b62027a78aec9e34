//! Packets that are delivered at once: from the kernel's ring TPACKET_V2, or from a program's.

use lab::packet::number_of;
use lab::{Veth, skip};
use port::{DropReason, Ready, Vlan};

use super::common::*;

/// A minute, in which blocks of ten seconds hold back all but a few of the packets.
const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn a_packet_is_delivered_before_the_next_one_is_sent() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let (plan, sender) = (plan(&pair), sender(&pair.left));
    for query in [
        "tap=tpacket",
        "tap=bpf",
        "tap=tpacket&queues=3",
        "tap=tpacket&snaplen=0",
    ] {
        let query = format!("{query}&outgoing=no&block_timeout_ms=10000");
        let mut port = open(&pair.right, &query);
        let until = Instant::now() + MINUTE;
        for number in 0..100 {
            sender.send(&plan.build(number, 60)).unwrap();
            let mut got = Vec::new();
            while got.is_empty() {
                assert!(Instant::now() < until, "{query}: {number} packets");
                // The flow may be on another queue than the first.
                let several = port.rx.len() > 1;
                let wait = if several { CHECK_INTERVAL } else { MINUTE };
                let ready = port.rx[0].wait(wait).unwrap();
                assert!(several || ready == Ready::Packets, "{query}: {ready:?}");
                for rx in &mut port.rx {
                    let batch = rx.receive().unwrap();
                    got.extend(batch.iter().map(|p| number_of(p.bytes()).unwrap()));
                }
            }
            assert_eq!(got, [number], "{query}");
        }
        let account = port.control.account().unwrap().rx_total();
        assert_eq!((account.delivered, account.imbalance()), (100, 0));
    }
}

#[test]
fn the_ring_is_described() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    for (query, ring, frames) in [
        ("", "TPACKET_V2 (requested), 33554432", "15872 of 2112"),
        (
            "snaplen=0",
            "TPACKET_V2 (requested), 33554432",
            "480 of 65728",
        ),
        (
            "snaplen=0&ring_bytes=524288",
            "TPACKET_V2 (requested), 524288",
            "7 of 65728",
        ),
        ("immediate=no", "TPACKET_V3", ""),
        ("tap=auto&snaplen=0", "of a BPF program", ""),
    ] {
        let port = open(&pair.right, query);
        let facts = port.control.describe().facts;
        let fact = |name: &str| {
            let fact = facts.iter().find(|fact| fact.0 == name);
            fact.map_or("", |fact| fact.1.as_str())
        };
        assert!(fact("ring").starts_with(ring), "{query}: {facts:?}");
        assert!(fact("frames").starts_with(frames), "{query}: {facts:?}");
        let blocks = fact("block_timeout").is_empty();
        assert_eq!(blocks, query != "immediate=no", "{query}: {facts:?}");
    }
}

/// Everything that a ring reports of a packet but its time.
type Received = (Vec<u8>, u32, Option<Vlan>, bool);

fn received(port: &mut Port, count: usize) -> Vec<Received> {
    let mut packets = Vec::new();
    receive(port, count, |_, packet| {
        let vlan = packet.vlan().or(packet.tag_beside());
        let bytes = packet.bytes().to_vec();
        assert!(packet.time_ns().is_some());
        packets.push((bytes, packet.wire_len(), vlan, packet.is_outgoing()));
    });
    packets
}

/// Packets of all lengths with and without tags, received and sent, at several snapshot lengths, as
/// they are and with cooked headers.
#[test]
fn each_ring_receives_the_same_packets() {
    lab::require!(skip::lab());
    let pair = Veth::new().mtu(9000).vlan_offload().create().unwrap();
    let (left, right) = (sender(&pair.left), sender(&pair.right));
    let mut packets = Vec::new();
    for (number, len) in (0..).zip([60, 61, 64, 65, 127, 300, 1514, 1515, 4096, 8000, 9014]) {
        for tag in [None, Some(7), Some(0xe123)] {
            let mut plan = plan(&pair);
            plan.vlan = tag;
            packets.push(plan.build(number, len));
        }
    }
    // 802.1ad outside, 802.1Q inside.
    let mut double = packets[1].clone();
    double.splice(12..12, [0x88, 0xa8, 0x0f, 0xff]);
    packets.push(double);
    for device in [pair.right.ifname.as_str(), "any"] {
        for snaplen in [0, 1, 20, 64, 65, 1500, 9000, 262_144] {
            if device == "any" && snaplen == 1 {
                // Less than a header is no packet.
                continue;
            }
            let query = |more: &str| format!("afpacket:{device}?snaplen={snaplen}&{more}");
            let open = |more: &str| {
                let open = || port::open(&query(more), &PortOptions::default());
                pair.right.ns.run(open).unwrap().unwrap()
            };
            let mut blocks = open("tap=tpacket");
            let mut frames = open("tap=tpacket&immediate=yes");
            let mut records = open("tap=auto&immediate=yes");
            for (number, packet) in packets.iter().enumerate() {
                let from = if number % 3 == 2 { &right } else { &left };
                from.send(packet).unwrap();
            }
            // Each direction may be sent from a processor of its own: their packets may alternate
            // in another way.
            let sorted = |port: &mut Port| {
                let mut packets = received(port, packets.len());
                packets.sort_by_key(|(.., is_outgoing)| *is_outgoing);
                packets
            };
            let expected = sorted(&mut blocks);
            assert_eq!(expected.len(), packets.len(), "{device} {snaplen}");
            for port in [&mut frames, &mut records] {
                let got = sorted(port);
                assert!(got == expected, "{device} {snaplen}: {got:?} {expected:?}");
                let account = port.control.account().unwrap().rx_total();
                assert_eq!((account.imbalance(), account.lost()), (0, 0));
            }
        }
    }
}

/// A full ring keeps its packets, and the kernel counts those that come after them.
#[test]
fn packets_beyond_a_full_ring_are_counted() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let (plan, sender) = (plan(&pair), sender(&pair.left));
    // A number of frames that does not divide that of the packets.
    let mut port = open(
        &pair.right,
        "outgoing=no&snaplen=0&ring_bytes=524288&batch=4",
    );
    let mut number = 0;
    for round in 1..=20 {
        for _ in 0..20 {
            sender.send(&plan.build(number, 60)).unwrap();
            number += 1;
        }
        let until = Instant::now() + MINUTE;
        let mut account = port.control.account().unwrap().rx_total();
        while account.seen < number {
            assert!(Instant::now() < until, "{account:?}");
            account = port.control.account().unwrap().rx_total();
        }
        assert_eq!((account.in_flight, account.imbalance()), (7, 0));
        let first = number - 20;
        let mut got = Vec::new();
        receive(&mut port, 7, |_, packet| {
            got.push(number_of(packet.bytes()).unwrap());
        });
        assert_eq!(got, (first..first + 7).collect::<Vec<u64>>());
        let account = port.control.account().unwrap().rx_total();
        let lost = account.dropped[DropReason::RingFull as usize];
        assert_eq!((account.seen, lost), (20 * round, 13 * round));
        assert_eq!((account.imbalance(), account.in_flight), (0, 0));
    }
}
