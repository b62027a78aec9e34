//! Several queues share the packets of an interface.

use std::collections::BTreeMap;
use std::net::IpAddr as Host;

use lab::packet::{Addresses, Udp, number_of};
use lab::{Veth, skip};

use super::common::*;

const FLOWS: u16 = 64;

/// Every packet goes to one queue, and all packets of a flow to the same one, in both directions.
#[test]
fn flows_stay_on_one_queue_and_no_packet_is_counted_twice() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let mut port = open(&pair.right, "queues=4");
    assert_eq!(port.rx.len(), 4);
    let (forth, (left, right)) = (
        plan(&pair).flows(FLOWS),
        (sender(&pair.left), sender(&pair.right)),
    );
    let mut seen = vec![0; 2000];
    let mut queue_of = BTreeMap::new();
    let mut delivered = [0; 4];
    for part in 0..4 {
        for number in part * 500..(part + 1) * 500 {
            let packet = forth.build(number, 90);
            if number % 2 == 0 {
                left.send(&packet).unwrap();
            } else {
                right.send(&turned(&packet)).unwrap();
            }
        }
        receive(&mut port, 500, |queue, packet| {
            let number = number_of(packet.bytes()).unwrap();
            assert_eq!(packet.is_outgoing(), number % 2 == 1);
            seen[number as usize] += 1;
            delivered[queue] += 1;
            // Even numbers are sent and odd ones answered, so a flow's number in half its range
            // identifies both.
            let flow = number % u64::from(FLOWS);
            assert_eq!(*queue_of.entry(flow).or_insert(queue), queue, "flow {flow}");
        });
    }
    assert_eq!(seen, vec![1; 2000]);
    let mut per_queue = [0; 4];
    queue_of.values().for_each(|queue| per_queue[*queue] += 1);
    assert!(
        per_queue.iter().all(|count| *count > 0),
        "flows per queue: {per_queue:?}"
    );
    let account = port.control.account().unwrap();
    assert_eq!(account.rx.len(), 4);
    for (at, queue) in account.rx.iter().enumerate() {
        assert_eq!((queue.imbalance(), queue.lost()), (0, 0), "{queue:?}");
        assert_eq!(queue.queue_index, at as u32, "{queue:?}");
        assert_eq!(queue.queue_index, port.rx[at].queue_index());
        assert_eq!(queue.delivered, delivered[at], "{queue:?}");
    }
    assert_eq!(account.rx_total().seen, 2000);
}

/// Both directions of a flow arrive on one queue.
#[test]
fn both_directions_of_a_flow_share_a_queue() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let mut port = open(&pair.right, "queues=4");
    let (forth, (left, right)) = (
        plan(&pair).flows(FLOWS),
        (sender(&pair.left), sender(&pair.right)),
    );
    for number in 0..u64::from(FLOWS) {
        let packet = forth.build(number, 90);
        left.send(&packet).unwrap();
        right.send(&turned(&packet)).unwrap();
    }
    let mut queues = BTreeMap::<_, Vec<usize>>::new();
    let got = receive(&mut port, 2 * usize::from(FLOWS), |queue, packet| {
        queues
            .entry(number_of(packet.bytes()).unwrap())
            .or_default()
            .push(queue);
    });
    assert_eq!(got, 2 * usize::from(FLOWS));
    for (flow, queues) in queues {
        assert!(
            queues.len() == 2 && queues[0] == queues[1],
            "flow {flow} in {queues:?}"
        );
    }
}

/// Swaps IP addresses and ports, as in a response; the destination is still an absent station.
fn turned(packet: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    for (a, b, len) in [(26, 30, 4), (34, 36, 2)] {
        for at in 0..len {
            packet.swap(a + at, b + at);
        }
    }
    packet
}

#[test]
fn each_mode_delivers_everything_once() {
    lab::require!(skip::lab());
    let pair = Veth::new().queues(2).create().unwrap();
    let (plan, sender) = (plan(&pair).flows(FLOWS), sender(&pair.left));
    for &mode in port::Fanout::WORDS {
        // Only the kernel's own ring reports its fill level.
        let tap = if mode == "rollover" { "tap=auto&" } else { "" };
        let mut port = open(
            &pair.right,
            &format!("{tap}queues=3&outgoing=no&fanout={mode}"),
        );
        for number in 0..600 {
            sender.send(&plan.build(number, 70)).unwrap();
        }
        let (mut seen, mut per_queue) = (vec![0; 600], [0; 3]);
        receive(&mut port, 600, |queue, packet| {
            seen[number_of(packet.bytes()).unwrap() as usize] += 1;
            per_queue[queue] += 1;
        });
        assert_eq!(seen, vec![1; 600], "{mode}: {per_queue:?}");
        match mode {
            "lb" => assert_eq!(per_queue, [200; 3]),
            "rollover" => assert_eq!(per_queue, [600, 0, 0]),
            _ => {}
        }
        let fact = ("fanout", mode.to_owned());
        assert!(port.control.describe().facts.contains(&fact), "{mode}");
    }
}

/// With `fanout=addresses`, whatever two hosts exchange is on one queue: both directions, received
/// and sent, any ports, with or without a tag, and fragments.
#[test]
fn packets_of_two_hosts_share_a_queue() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let (left, right) = (sender(&pair.left), sender(&pair.right));
    for mode in ["addresses", "inner-addresses"] {
        let mut port = open(&pair.right, &format!("queues=4&fanout={mode}"));
        let mut sent = 0;
        for number in 0..u64::from(FLOWS) {
            let plan = plan(&pair);
            for packet in between_hosts(&plan, number) {
                left.send(&packet).unwrap();
                right.send(&packet).unwrap();
                sent += 2;
            }
        }
        let mut queues = BTreeMap::<_, Vec<usize>>::new();
        let got = receive(&mut port, sent, |queue, packet| {
            let number = number_of(packet.bytes()).unwrap();
            queues.entry(number).or_default().push(queue);
        });
        assert_eq!(got, sent);
        let mut used = std::collections::BTreeSet::<usize>::new();
        for (number, queues) in queues {
            used.extend(queues.iter());
            assert!(
                queues.iter().all(|queue| *queue == queues[0]),
                "{mode}: hosts {number} in {queues:?}"
            );
        }
        assert_eq!(used.len(), 4, "{mode}");
    }
}

/// Packets between two hosts, of IPv4 for an even number and otherwise of IPv6.
fn between_hosts(plan: &Udp, number: u64) -> Vec<Vec<u8>> {
    let host = |network: u8| match number % 2 {
        0 => Host::V4([198, 18, network, number as u8].into()),
        _ => Host::V6([0x2001, 0xdb8, 0, 0, 0, 0, network.into(), number as u16].into()),
    };
    let (one, other) = (host(1), host(2));
    let mut packets = Vec::new();
    for (at, (from, to)) in [(one, other), (other, one)].into_iter().enumerate() {
        let mut udp = plan.clone();
        udp.addresses = match (from, to) {
            (Host::V4(from), Host::V4(to)) => Addresses::V4(from, to),
            (Host::V6(from), Host::V6(to)) => Addresses::V6(from, to),
            _ => unreachable!("both are of one kind"),
        };
        udp.source_port += 77 * at as u16;
        packets.push(udp.build(number, 100));
        udp.vlan = Some(7);
        packets.push(udp.build(number, 100));
        if number.is_multiple_of(2) {
            let mut fragment = packets[packets.len() - 2].clone();
            // An offset of 40 bytes; nobody but the queues looks at it.
            fragment[20..22].copy_from_slice(&[0, 5]);
            packets.push(fragment);
        }
    }
    packets
}

/// Members of a group have one way of distributing packets: others are refused, and change nothing.
#[test]
fn a_group_refuses_members_with_another_fanout() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let query = |fanout: &str| format!("outgoing=no&fanout_group=7&fanout={fanout}");
    for fanout in ["addresses", "inner-addresses", "hash"] {
        let mut first = open(&pair.right, &query(fanout));
        for other in ["addresses", "inner-addresses", "hash", "lb"] {
            let opened = try_open(&pair.right, &query(other), &PortOptions::default());
            if other == fanout {
                drop(opened.unwrap());
                continue;
            }
            let error = opened.err().expect("a group with one fanout");
            assert_eq!(error.kind(), sys::ErrorKind::InvalidInput, "{error}");
            assert!(error.why().contains("group 7"), "{error}");
        }
        let (plan, sender) = (plan(&pair).flows(FLOWS), sender(&pair.left));
        for number in 0..100 {
            sender.send(&plan.build(number, 70)).unwrap();
        }
        assert_eq!(collect(&mut first).len(), 100, "{fanout}");
    }
}

/// A group also leaves out what the host sends.
#[test]
fn a_fanout_group_respects_the_direction() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let mut port = open(&pair.right, "queues=2&outgoing=no");
    let (plan, right) = (plan(&pair).flows(FLOWS), sender(&pair.right));
    for number in 0..100 {
        right.send(&plan.build(number, 70)).unwrap();
    }
    assert_eq!(collect(&mut port).len(), 0);
    assert_eq!(port.control.account().unwrap().rx_total().seen, 0);
}

/// Two ports on one interface are two groups: both receive everything.
#[test]
fn fanout_groups_are_independent() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let mut ports = [0; 3].map(|_| open(&pair.right, "queues=2&outgoing=no"));
    let (plan, sender) = (plan(&pair).flows(FLOWS), sender(&pair.left));
    for number in 0..300 {
        sender.send(&plan.build(number, 70)).unwrap();
    }
    for port in &mut ports {
        assert_eq!(collect(port).len(), 300);
    }
}

/// While a group is formed, no packet may be delivered to two of its queues.
#[test]
fn opening_under_traffic_duplicates_no_packet() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let (plan, sender) = (plan(&pair).flows(FLOWS), sender(&pair.left));
    std::thread::scope(|scope| {
        let _flood = Flood::begin(scope, &sender, &plan);
        for _ in 0..10 {
            let mut port = open(&pair.right, "queues=4&outgoing=no&ring_bytes=4194304");
            let mut seen = std::collections::HashSet::new();
            receive(&mut port, 2000, |_, packet| {
                let number = number_of(packet.bytes()).unwrap();
                assert!(seen.insert(number), "packet {number} came twice");
            });
            assert!(seen.len() >= 2000);
        }
    });
}

/// The link goes down and up under a group, which stays intact.
#[test]
fn a_fanout_group_survives_a_link_flap() {
    lab::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let mut port = open(&pair.right, "queues=4&outgoing=no");
    let (plan, sender) = (plan(&pair).flows(FLOWS), sender(&pair.left));
    for round in 0..3 {
        for number in 0..200 {
            sender.send(&plan.build(number, 70)).unwrap();
        }
        let mut seen = vec![0; 200];
        receive(&mut port, 200, |_, packet| {
            seen[number_of(packet.bytes()).unwrap() as usize] += 1;
        });
        assert_eq!(seen, vec![1; 200], "round {round}");
        pair.right.set_down().unwrap();
        for rx in &mut port.rx {
            rx.wait(Duration::from_millis(5)).unwrap();
        }
        pair.right.set_up().unwrap();
        pair.left.set_up().unwrap();
    }
}
