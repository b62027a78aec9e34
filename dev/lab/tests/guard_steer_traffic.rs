//! `barewire guard --steer` with all kinds of packets: VLAN tags, IPv6, jumbo packets. They return
//! as they arrive without the guard.

use std::net::SocketAddr;
use std::time::Duration;

use lab::oracle::tcpdump::Capture;
use lab::oracle::{TempFile, read_pcap};
use lab::packet::{Addresses, Raw, Udp};
use lab::{Pair, Veth, require, skip};

use super::guard_steer::{WAYS, guard, number, random_bytes, stop, transfer, transfer_to};

const LIMIT: Duration = Duration::from_secs(60);

/// Puts a tag before the EtherType.
fn tagged(packet: &[u8], tag: [u8; 4]) -> Vec<u8> {
    [&packet[..12], &tag, &packet[12..]].concat()
}

/// Packets without a tag, with one, with two (IEEE 802.1Q, 802.1ad), a priority tag, and IPv6.
fn kinds(pair: &Pair) -> Vec<Vec<u8>> {
    let v4 = Udp::between(&pair.left, &pair.right);
    let v6 = Udp {
        addresses: Addresses::V6(pair.left.ipv6, pair.right.ipv6),
        ..v4.clone()
    };
    let mut packets = Vec::new();
    for (at, udp) in [v4, v6].iter().enumerate() {
        let plain = udp.build(at as u64, 100);
        let inner = tagged(&plain, [0x81, 0, 0x60, 7]);
        packets.push(tagged(&plain, [0x81, 0, 0xe0, 0]));
        packets.push(tagged(&inner, [0x88, 0xa8, 0x20, 200]));
        packets.push(tagged(&inner, [0x81, 0, 0, 9]));
        packets.push(inner);
        packets.push(udp.build(at as u64, 1_514));
        packets.push(plain);
    }
    packets
}

/// What the right end receives on an interface if these packets are sent, with all tags.
fn received(pair: &Pair, on: &str, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let file = TempFile::new(".pcap");
    let capture = Capture::start(&pair.right.ns, on, file.path(), "").unwrap();
    let sender = pair.left.ns.run(|| Raw::sender(&pair.left.ifname));
    let sender = sender.unwrap().unwrap();
    for packet in packets {
        sender.send(packet).unwrap();
    }
    let mut found = Vec::new();
    for _ in 0..3_000 {
        found = read_pcap(file.path()).unwrap();
        // Not what the kernels send: ICMP errors, which quote the packets, and MLD reports.
        let is_sent = |packet: &[u8]| packet.windows(4).any(|bytes| bytes == b"bwlb");
        found.retain(|packet| packet[6..12] == pair.left.mac && is_sent(packet));
        if found.len() >= packets.len() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    capture.stop().unwrap();
    found
}

#[test]
fn tags_and_ipv6_return_as_they_arrive_without_the_guard() {
    require!(skip::lab(), skip::program("tcpdump", "tcpdump"));
    for (mode, way) in WAYS {
        let pair = Veth::new().ipv6().create().unwrap();
        let packets = kinds(&pair);
        let without = received(&pair, &pair.right.ifname, &packets);
        assert!(without == packets, "{without:02x?}");
        let class = "udp dst port 9 or vlan or (vlan and vlan) or ether proto 0x88a8";
        let args = ["--mode", mode, "--give-back", way, "--steer", class];
        let rules = ["--user-count", "vlan 9 and vlan 7 and udp dst port 9"];
        let process = guard(&pair, &[&args[..], &rules].concat());
        let on = match way {
            "tap" => "bw-right0",
            _ => &pair.right.ifname,
        };
        let with = received(&pair, on, &packets);
        assert!(with == packets, "{mode} {way}: {with:02x?}");
        let totals = stop(process);
        let count = packets.len() as u64;
        assert!(number(&totals["steered"]) >= count, "{totals}");
        assert_eq!(
            (&totals["steer"]["lost"], &totals["steer"]["failed"]),
            (&0.into(), &0.into()),
            "{totals}"
        );
        // A worker sees the tags: the stacked ones of IPv4 and IPv6.
        assert_eq!(totals["steer"]["rules"][0]["packets"], 2, "{totals}");
    }
}

/// A tag that is not in the packet cannot be returned.
#[test]
fn a_line_at_the_start_says_that_tags_are_removed() {
    require!(skip::lab());
    for (veth, removes) in [(Veth::new().vlan_offload(), true), (Veth::new(), false)] {
        let pair = veth.create().unwrap();
        let process = guard(&pair, &["--steer", "udp dst port 9"]);
        let text = process.stderr();
        assert_eq!(text.contains("removes VLAN tags"), removes, "{text}");
        stop(process);
    }
}

#[test]
fn steered_connections_over_ipv6_complete() {
    require!(skip::lab());
    let data = random_bytes(1 << 20);
    for (mode, way) in WAYS {
        for offloads in [true, false] {
            let veth = match offloads {
                true => Veth::new().offloads().gro(),
                false => Veth::new(),
            };
            let pair = veth.ipv6().create().unwrap();
            let class = "ip6 and tcp";
            let args = ["--mode", mode, "--give-back", way, "--steer", class];
            let process = guard(&pair, &args);
            let address = SocketAddr::from((pair.right.ipv6, 8080));
            transfer_to(&pair, address, &data);
            let totals = stop(process);
            let steer = &totals["steer"];
            assert_eq!(
                (&steer["lost"], &steer["failed"]),
                (&0.into(), &0.into()),
                "{mode} {way} {offloads}: {totals}"
            );
            assert!(number(&steer["given_back"]) > 10, "{totals}");
        }
    }
}

/// Up to the longest packet of live frames, and beyond it.
#[test]
fn jumbo_packets_return_whole_and_in_order() {
    require!(skip::lab());
    const COUNT: u64 = 300;
    let data = random_bytes(1 << 20);
    for (mtu, give_back) in [(3_278, "live"), (3_400, "tap"), (9_000, "tap")] {
        for mode in ["native", "generic"] {
            for offloads in [true, false] {
                let veth = match offloads {
                    true => Veth::new().offloads().gro(),
                    false => Veth::new(),
                };
                let pair = veth.mtu(mtu).create().unwrap();
                let process = guard(&pair, &["--mode", mode, "--steer", "udp or tcp"]);
                let on = match give_back {
                    "tap" => "bw-right0",
                    _ => &pair.right.ifname,
                };
                let receiver = pair.right.ns.run(|| Raw::open(on)).unwrap().unwrap();
                let sender = pair.left.ns.run(|| Raw::sender(&pair.left.ifname));
                let sender = sender.unwrap().unwrap();
                let udp = Udp::between(&pair.left, &pair.right);
                for at in 0..COUNT {
                    // From short ones to the longest, which is one in four.
                    let len = match at % 4 {
                        0 => mtu as usize + 14,
                        _ => 60 + (at as usize * 97) % (mtu as usize - 60),
                    };
                    let packet = udp.build(at, len);
                    sender.send(&packet).unwrap();
                    let what = || format!("{mtu} {mode} {offloads}: {at}");
                    let arrived = receiver.receive(LIMIT).unwrap();
                    let arrived = arrived.unwrap_or_else(|| panic!("{} is missing", what()));
                    assert!(arrived == packet, "{} is not what was sent", what());
                }
                drop(receiver);
                transfer(&pair, &data);
                let totals = stop(process);
                let steer = &totals["steer"];
                let name = if give_back == "tap" { on } else { "live" };
                assert_eq!(steer["give_back"], name, "{totals}");
                assert_eq!(
                    (&steer["lost"], &steer["failed"]),
                    (&0.into(), &0.into()),
                    "{mtu} {mode} {offloads}: {totals}"
                );
            }
        }
    }
}
