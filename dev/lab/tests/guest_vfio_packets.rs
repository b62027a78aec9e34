//! In the guest: packet metadata, address filters and queue selection of cards driven in user
//! space.

use std::collections::{BTreeMap, BTreeSet};
use std::net::UdpSocket;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::vfio_card::ip;
use crate::vfio_card::segment::{Segment, number_of};
use crate::vfio_card::stand::{ASKING, Got, LIMIT, Stand};
use lab::guest;
use port::Checksum;

/// 802.1Q: priority 5, drop eligible, VLAN 0x123.
const TCI: u16 = 0xb123;

/// One packet of a flow.
fn segment(v6: bool, tcp: bool, number: u64) -> Segment {
    Segment {
        v6,
        tcp,
        hosts: [1, 2],
        ports: [4000 + number as u16, 9],
        number,
    }
}

/// Probe packets after those that may not arrive: the kernel's driver has several transmit queues,
/// which may reorder.
const ASKED: u32 = 5;

/// Sends packets and receives, until those of `expected` have arrived and no earlier one can arrive
/// any more.
fn exchange(stand: &mut Stand, packets: &[Vec<u8>], expected: &[u64]) -> BTreeMap<u64, Got> {
    for packet in packets {
        stand.out.send(packet).unwrap();
    }
    let until = Instant::now() + LIMIT;
    let mut all = BTreeMap::new();
    let (asking, mut answers) = (stand.there().build(ASKING, 60), 0);
    while answers < ASKED || expected.iter().any(|number| !all.contains_key(number)) {
        assert!(
            Instant::now() < until,
            "of {expected:?} came {:?}",
            all.keys()
        );
        stand.out.send(&asking).unwrap();
        for got in stand.look(Duration::from_millis(5)) {
            match number_of(&got.bytes) {
                Some(number) => assert!(all.insert(number, got).is_none(), "{number} twice"),
                None => answers += u32::from(got.bytes == asking),
            }
        }
    }
    all
}

/// The fault of a packet.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wrong {
    Nothing,
    /// The checksum of the IPv4 header.
    Header,
    /// The checksum of TCP or UDP.
    Transport,
    /// No checksum, as UDP over IPv4 allows (RFC 768).
    NoSum,
    /// Not IP at all.
    Protocol,
}

/// Every kind of packet with every fault that it can have.
fn cases(damage_headers: bool) -> Vec<(Segment, Wrong)> {
    let mut cases = Vec::new();
    for (v6, tcp) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut faults = vec![Wrong::Nothing, Wrong::Transport];
        if !v6 && damage_headers {
            faults.push(Wrong::Header);
        }
        if !v6 && !tcp {
            faults.extend([Wrong::NoSum, Wrong::Protocol]);
        }
        for wrong in faults {
            cases.push((segment(v6, tcp, cases.len() as u64), wrong));
        }
    }
    cases
}

/// A card's verdict on each packet, tagged and untagged, against `expected`, which returns the
/// expected verdict for a fault.
///
/// A bridge of the host connects the virtio-net cards; with a firewall on it (`br_netfilter`),
/// packets with damaged headers do not pass.
fn verdicts(stand: &mut Stand, expected: fn(Wrong) -> Checksum, takes_tags_out: bool) {
    let (card, peer) = (stand.card.mac, stand.peer.mac);
    for tci in [None, Some(TCI)] {
        let cases = cases(!stand.peer.ifname.starts_with("virtio"));
        let tag_len = if tci.is_some() { 4 } else { 0 };
        let packets: Vec<Vec<u8>> = cases
            .iter()
            .map(|(segment, wrong)| {
                let mut packet = segment.build(card, peer, tci);
                let ip = 14 + tag_len;
                let transport = ip + if segment.v6 { 40 } else { 20 };
                let sum = transport + if segment.tcp { 16 } else { 6 };
                match wrong {
                    Wrong::Nothing => {}
                    Wrong::Header => packet[ip + 10] ^= 0x10,
                    Wrong::Transport => packet[sum] ^= 0x10,
                    Wrong::NoSum => packet[sum..sum + 2].fill(0),
                    // Local experimental Ethertype 1 (IEEE 802).
                    Wrong::Protocol => packet[ip - 2..ip].copy_from_slice(&[0x88, 0xb5]),
                }
                packet
            })
            .collect();
        let numbers: Vec<u64> = cases.iter().map(|(segment, _)| segment.number).collect();
        let all = exchange(stand, &packets, &numbers);
        for ((segment, wrong), sent) in cases.iter().zip(&packets) {
            let got = &all[&segment.number];
            let mut bytes = sent.clone();
            let mut vlan = None;
            if let (Some(tci), true) = (tci, takes_tags_out) {
                bytes.drain(12..16);
                vlan = Some((0x8100, tci));
            }
            assert_eq!(got.bytes, bytes, "{segment:?}, {wrong:?}");
            assert_eq!(got.vlan, vlan, "{segment:?}, {wrong:?}");
            let right = expected(*wrong);
            assert_eq!(got.checksum, right, "{segment:?}, {wrong:?}, tag {tci:?}");
        }
    }
}

/// Which packets are received, by destination address.
fn filter(stand: &mut Stand, everything: bool) {
    let peer = stand.peer.mac;
    let destinations = [
        ("another station", [0x02, 0, 0, 0, 0, 0x99], false),
        ("its neighbour", [0x52, 0x54, 0, 0xba, 0, 0], false),
        ("a group, IPv4", [0x01, 0, 0x5e, 1, 2, 3], true),
        ("a group, IPv6", [0x33, 0x33, 0, 0, 0, 0x77], true),
        ("everybody", [0xff; 6], true),
        ("ours", stand.card.mac, true),
    ];
    let packets: Vec<Vec<u8>> = destinations
        .iter()
        .zip(0..)
        .map(|((_, to, _), number)| segment(false, false, number).build(*to, peer, None))
        .collect();
    let ours = destinations.iter().zip(0..);
    let ours = ours.filter(|((_, _, is_ours), _)| everything || *is_ours);
    let ours: Vec<u64> = ours.map(|(_, number)| number).collect();
    let all = exchange(stand, &packets, &ours);
    for ((name, _, is_ours), number) in destinations.iter().zip(0..) {
        let came = all.contains_key(&number);
        assert_eq!(came, everything || *is_ours, "{name}: {came}");
    }
}

/// All tests of a card.
fn packets_of(names: [&str; 2], expected: fn(Wrong) -> Checksum, takes_tags_out: bool) {
    let mut stand = Stand::new(names, "");
    stand.wait_for_wire();
    verdicts(&mut stand, expected, takes_tags_out);
    filter(&mut stand, true);
    stand.check_account();
    let mut stand = stand.reopen("?promiscuous=no");
    stand.wait_for_wire();
    filter(&mut stand, false);
    stand.check_account();
}

#[test]
fn an_igb_verifies_checksums_and_strips_tags() {
    lab::require!(guest::inside());
    let expected = |wrong| match wrong {
        Wrong::Nothing => Checksum::Good,
        Wrong::Header | Wrong::Transport => Checksum::Bad,
        Wrong::NoSum | Wrong::Protocol => Checksum::Unknown,
    };
    packets_of(["igb0", "igb1"], expected, true);
}

#[test]
fn an_emulated_e1000_verifies_no_checksums_and_strips_tags() {
    lab::require!(guest::inside());
    // QEMU's sets IXSM in every descriptor: checksums were not verified.
    packets_of(["e1000-0", "e1000-1"], |_| Checksum::Unknown, true);
}

#[test]
fn a_virtio_net_has_no_verdict_on_packets_from_other_hosts() {
    lab::require!(guest::inside());
    packets_of(["virtio0", "virtio1"], |_| Checksum::Unknown, false);
}

/// An interface with an address and a neighbour, both removed on drop.
struct Neighbours<'a>(&'a str);

impl Neighbours<'_> {
    fn new<'a>(ifname: &'a str, own: &str, other: &str, mac: &str) -> Neighbours<'a> {
        let neighbours = Neighbours(ifname);
        ip(&["address", "add", own, "dev", ifname]);
        ip(&["neighbour", "add", other, "lladdr", mac, "dev", ifname]);
        neighbours
    }
}

impl Drop for Neighbours<'_> {
    fn drop(&mut self) {
        for args in [
            ["address", "flush", "dev", self.0].as_slice(),
            &["neighbour", "flush", "dev", self.0, "nud", "permanent"],
        ] {
            let _ = Command::new("ip").args(args).status();
        }
    }
}

/// The kernel at the far end leaves the UDP checksum to its card, which leaves it to the host,
/// which leaves it to the driver: the packet was never on a wire.
#[test]
fn a_virtio_net_completes_an_incomplete_checksum() {
    // The host's bridge is between the cards; a hub of QEMU's would not pass the header on.
    lab::require!(guest::inside(), guest::two_queues());
    let mut stand = Stand::new(["virtio0", "virtio1"], "");
    stand.wait_for_wire();
    let name = stand.peer.ifname.clone();
    let mac = stand.card.mac.map(|byte| format!("{byte:02x}")).join(":");
    let output = Command::new("ethtool")
        .args(["-K", &name, "tx", "on"])
        .output();
    assert!(output.unwrap().status.success());
    let neighbours = Neighbours::new(&name, "10.99.0.1/24", "10.99.0.2", &mac);
    let socket = UdpSocket::bind("10.99.0.1:5000").unwrap();
    let mut all = Vec::new();
    for number in 0..20_u64 {
        // An odd length, sometimes.
        let payload = vec![0x5a; number as usize];
        let payload = [&payload[..], b"segment!", &number.to_be_bytes()].concat();
        socket.send_to(&payload, "10.99.0.2:9").unwrap();
        let until = Instant::now() + LIMIT;
        loop {
            assert!(Instant::now() < until, "{number} never came");
            let got = stand.look(Duration::from_millis(5));
            let ours = |got: &Got| number_of(&got.bytes) == Some(number);
            if let Some(got) = got.into_iter().find(ours) {
                all.push(got);
                break;
            }
        }
    }
    drop(neighbours);
    for got in &all {
        // The checksum over everything including the checksum field is zero (RFC 1071).
        let datagram = &got.bytes[34..];
        let len = (datagram.len() as u16).to_be_bytes();
        let summed = [&got.bytes[26..34], &[0, 17], &len, datagram].concat();
        assert_eq!(lab::packet::checksum(&summed), 0, "{got:02x?}");
        assert_eq!(got.checksum, Checksum::Good, "{got:02x?}");
    }
    stand.check_account();
}

#[test]
fn both_directions_of_every_kind_of_flow_share_a_queue() {
    lab::require!(guest::inside());
    let mut stand = Stand::new(["igb0", "igb1"], "?queues=2");
    stand.wait_for_wire();
    let (card, peer) = (stand.card.mac, stand.peer.mac);
    for (v6, tcp) in [(false, false), (false, true), (true, false), (true, true)] {
        let flows = (0..32_u64).map(|flow| Segment {
            v6,
            tcp,
            hosts: [1 + flow as u8 % 5, 10 + flow as u8 % 3],
            ports: [1024 + 97 * flow as u16, 443],
            number: 2 * flow,
        });
        let flows: Vec<Segment> = flows.collect();
        let mut packets = Vec::new();
        for flow in &flows {
            packets.push(flow.build(card, peer, None));
            packets.push(flow.answer(flow.number + 1).build(card, peer, None));
        }
        let numbers: Vec<u64> = (0..packets.len() as u64).collect();
        let all = exchange(&mut stand, &packets, &numbers);
        let (mut used, mut hashes) = (BTreeSet::new(), BTreeSet::new());
        for flow in &flows {
            let (there, back) = (&all[&flow.number], &all[&(flow.number + 1)]);
            assert_eq!(there.queue, back.queue, "{flow:?}");
            assert!(there.hash.is_some(), "{flow:?} has no hash");
            assert_eq!(there.hash, back.hash, "{flow:?}");
            used.insert(there.queue);
            hashes.insert(there.hash);
        }
        println!(
            "IPv6 {v6}, TCP {tcp}: {} hashes, queues {used:?}",
            hashes.len()
        );
        assert_eq!(used.len(), 2, "32 flows, IPv6 {v6}, TCP {tcp}");
        // For TCP over IPv6 QEMU's igb hashes only the addresses.
        let ports_count = !(v6 && tcp);
        assert!(!ports_count || hashes.len() > 20, "IPv6 {v6}, TCP {tcp}");
    }
    stand.check_account();
}
