//! Tests that the pair is as requested, and has no unsolicited packets.

use super::*;
use crate::packet;
use crate::skip;

#[test]
fn counters_of_ethtool_are_read() {
    let text = "NIC statistics:\n     peer_ifindex: 2\n     rx_queue_0_drops: 17\n";
    let counters = parse_driver_counters(text).unwrap();
    assert_eq!(counters["rx_queue_0_drops"], 17);
    assert_eq!(counters.len(), 2);
}

#[test]
fn the_pair_is_as_requested() {
    crate::require!(skip::lab());
    let pair = Veth::new().queues(3).mtu(9000).create().unwrap();
    for end in [&pair.left, &pair.right] {
        let link = end.link().unwrap();
        assert_eq!(link["mtu"], 9000);
        assert_eq!(link["num_rx_queues"], 3);
        assert_eq!(link["num_tx_queues"], 3);
        assert_eq!(link["address"], mac_text(end.mac));
        assert_eq!(link["ifindex"], end.ifindex);
        assert_eq!(end.xdp().unwrap(), None);
        let features = end.ns.exec("ethtool", ["-k", &end.ifname]).unwrap();
        let off = [
            "rx-checksumming",
            "tx-checksumming",
            "scatter-gather",
            "tcp-segmentation-offload",
            "generic-segmentation-offload",
            "generic-receive-offload",
            "rx-vlan-offload",
            "tx-vlan-offload",
        ];
        for feature in off {
            assert!(
                features.contains(&format!("{feature}: off")),
                "{feature}\n{features}"
            );
        }
    }
}

#[test]
fn queues_can_be_taken_out_of_use() {
    crate::require!(skip::lab());
    let pair = Veth::new().queues(2).create().unwrap();
    pair.right.set_queues(1).unwrap();
    let channels = pair
        .right
        .ns
        .exec("ethtool", ["-l", &pair.right.ifname])
        .unwrap();
    let current = channels.split_once("Current").unwrap().1;
    assert!(
        current.contains("RX:\t\t1") && current.contains("TX:\t\t1"),
        "{channels}"
    );
}

#[test]
fn nothing_crosses_a_pair_at_rest() {
    crate::require!(skip::lab());
    let pair = Veth::new().queues(2).create().unwrap();
    // Longer than the kernel waits before it sends packets on a new link (MLD, RS, ARP).
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(pair.left.counters().unwrap(), Counters::default());
    assert_eq!(pair.right.counters().unwrap(), Counters::default());
}

#[test]
fn both_address_families_reach_the_peer_and_are_counted_exactly() {
    crate::require!(skip::lab(), skip::program("ping", "iputils-ping"));
    let pair = Veth::new().create().unwrap();
    let address = pair.right.ipv4.to_string();
    pair.left
        .ns
        .exec("ping", ["-c3", "-i0.01", "-W5", &address])
        .unwrap();
    let counters = pair.left.counters().unwrap();
    assert_eq!((counters.tx_packets, counters.rx_packets), (3, 3));
    assert_eq!(counters.tx_bytes, 3 * (14 + 20 + 8 + 56));

    let pair = Veth::new().ipv6().create().unwrap();
    let address = pair.right.ipv6.to_string();
    pair.left.ns.exec("ping", ["-c1", "-W5", &address]).unwrap();
}

#[test]
fn the_link_can_go_down_and_up() {
    crate::require!(skip::lab(), skip::program("ping", "iputils-ping"));
    let pair = Veth::new().create().unwrap();
    let address = pair.left.ipv4.to_string();
    pair.left.set_down().unwrap();
    assert!(
        pair.right
            .ns
            .exec("ping", ["-c1", "-W1", &address])
            .is_err()
    );
    pair.left.set_up().unwrap();
    // Static neighbours of an end are lost when it goes down, so the other end resolves.
    pair.right
        .ns
        .exec("ping", ["-c1", "-W5", &address])
        .unwrap();
    pair.left.delete().unwrap();
    assert!(
        pair.right.link().is_err(),
        "a deleted end takes its peer along"
    );
}

#[test]
fn raw_packets_arrive_as_sent() {
    crate::require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let (left, right) = (&pair.left, &pair.right);
    let receiver = right
        .ns
        .run(|| packet::Raw::open(&right.ifname))
        .unwrap()
        .unwrap();
    let sender = left
        .ns
        .run(|| packet::Raw::open(&left.ifname))
        .unwrap()
        .unwrap();
    let plan = packet::Udp::between(left, right);
    for (number, len) in [60, 61, 1000, 1514].into_iter().enumerate() {
        sender.send(&plan.build(number as u64, len)).unwrap();
    }
    for (number, len) in [60, 61, 1000, 1514].into_iter().enumerate() {
        let bytes = receiver
            .receive(Duration::from_secs(5))
            .unwrap()
            .expect("a packet");
        assert_eq!(bytes.len(), len);
        assert_eq!(packet::number_of(&bytes), Ok(number as u64));
    }
    assert_eq!(receiver.receive(Duration::from_millis(20)).unwrap(), None);
    assert_eq!(right.counters().unwrap().rx_packets, 4);
}
