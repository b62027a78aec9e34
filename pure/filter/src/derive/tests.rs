//! Derived filters match the flood and no good packet: checked by compiling them and running the
//! programs on the packets with Ethernet headers.

mod mixtures;
mod planted;

use std::collections::BTreeSet;

use bpf::vm_cbpf;

use super::*;
use crate::expression::{Options, compile};
use crate::p0f::tests::packet::{Random, packet_of};
use crate::p0f::{self, Handshake, Signature, Start, raw_signature};

fn framed(packet: &Packet<'_>) -> Vec<u8> {
    let mut frame = vec![2; 12];
    for _ in 0..packet.tags {
        frame.extend([0x81, 0, 0, 5]);
    }
    let is_v6 = packet.bytes.first().is_some_and(|byte| byte >> 4 == 6);
    frame.extend(if is_v6 { [0x86, 0xdd] } else { [8, 0] });
    frame.extend(packet.bytes);
    frame
}

/// Number of packets that an expression matches.
fn taken(expression: &str, packets: &[Packet<'_>]) -> usize {
    let program = compile(expression, &Options::default())
        .unwrap_or_else(|error| panic!("{error}\n{}", error.mark(expression)));
    let takes = |packet: &&Packet<'_>| {
        let frame = framed(packet);
        vm_cbpf::run(&program, &frame, frame.len() as u32) != 0
    };
    packets.iter().filter(takes).count()
}

/// Derives filters, and checks every property that they must have.
fn law(flood: &[Vec<u8>], good: &[Vec<u8>], tags: u8) -> Derived {
    let packets =
        |list| Vec::from_iter(<[Vec<u8>]>::iter(list).map(|bytes| Packet { tags, bytes }));
    let (flood, good) = (packets(flood), packets(good));
    let derived = derive(&flood, &good, &Limits::default());
    let covered = derived.covered_count();
    let missed: usize = derived.inseparable.iter().map(|i| i.packet_count).sum();
    let uncertain: usize = derived.uncertain.iter().map(|i| i.packet_count).sum();
    assert_eq!(
        covered + missed + uncertain + derived.other_count,
        flood.len()
    );
    for expression in [derived.expression(), derived.short_expression()] {
        let Some(expression) = expression else {
            assert_eq!(covered, 0);
            continue;
        };
        assert_eq!(taken(&expression, &good), 0, "{expression}");
        assert!(taken(&expression, &flood) >= covered, "{expression}");
    }
    for group in &derived.groups {
        let expression = group.expression();
        assert!(
            taken(&expression, &flood) >= group.packet_count,
            "{expression}"
        );
    }
    for group in &derived.inseparable {
        let expression = group.expression();
        assert_eq!(taken(&expression, &good), group.good_count, "{expression}");
    }
    for derived in &derived.signatures {
        let text = derived.signature.to_string();
        let signature = Signature::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(signature, derived.signature, "{text}");
        let has = |packet: &&Packet<'_>| {
            raw_signature(packet.bytes).is_some_and(|raw| p0f::matches(&signature, &raw))
        };
        assert!(flood.iter().filter(has).count() >= derived.packet_count);
        assert_eq!(good.iter().filter(has).count(), 0, "{text}");
        if derived.can_compile {
            let program = p0f::compile(&signature, Handshake::Syn, Start::Ip).unwrap();
            let takes = |p: &&Packet<'_>| vm_cbpf::run(&program, p.bytes, 1500) != 0;
            assert!(flood.iter().filter(takes).count() >= derived.packet_count);
            assert_eq!(good.iter().filter(takes).count(), 0, "{text}");
        }
    }
    derived
}

fn syns(signature: &str, count: usize, random: &mut Random) -> Vec<Vec<u8>> {
    let signature = Signature::parse(signature).unwrap();
    let one = |_| packet_of(&signature, Handshake::Syn, random);
    (0..count).map(one).collect()
}

/// Builds a UDP packet over IPv4.
fn udp(source: u32, ports: (u16, u16), ttl: u8, payload: &[u8]) -> Vec<u8> {
    let len = 28 + payload.len() as u16;
    let mut packet = vec![0x45, 0];
    packet.extend(len.to_be_bytes());
    packet.extend([0x12, source as u8, 0, 0, ttl, 17, 0, 0]);
    packet.extend(source.to_be_bytes());
    packet.extend([192, 0, 2, 1]);
    packet.extend(ports.0.to_be_bytes());
    packet.extend(ports.1.to_be_bytes());
    packet.extend((len - 20).to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(payload);
    packet
}

const HPING: &str = "4:64:0:0:512,0:::0";
const KERNEL: &str = "4:64:0:1460:mss*44,10:mss,sok,ts,nop,ws:df,id+:0";

#[test]
fn equal_alternatives_occur_once() {
    let mut random = Random(0x0dd);
    // Two kinds; none of the good packets is TCP.
    let mut flood = syns(HPING, 100, &mut random);
    flood.extend(syns("4:64:0:1460:1024,0:mss::0", 100, &mut random));
    for packet in &mut flood[100..] {
        packet[33] = 0x10;
    }
    let good = Vec::from_iter((0..100).map(|at| udp(at << 8, (53, 1024), 64, b"answer")));
    let derived = law(&flood, &good, 0);
    assert!(derived.groups.len() > 1);
    let short = derived.short_expression().unwrap();
    let all: Vec<&str> = short.split(" or ").collect();
    let once: BTreeSet<&&str> = all.iter().collect();
    assert_eq!(all.len(), once.len(), "{short}");
}

#[test]
fn a_syn_flood_among_connections() {
    let mut random = Random(0xf100d);
    for tags in 0..3 {
        let flood = syns(HPING, 200, &mut random);
        let good = syns(KERNEL, 200, &mut random);
        let derived = law(&flood, &good, tags);
        assert_eq!(derived.covered_count(), 200);
        assert_eq!(derived.signatures.len(), 1);
        assert_eq!(derived.signatures[0].packet_count, 200);
        assert_eq!(derived.signatures[0].signature.to_string(), HPING);
        assert_eq!(derived.groups[0].telling.len(), 1);
        // The other way round, and with versions of IP mixed.
        let derived = law(&good, &flood, tags);
        assert_eq!(derived.covered_count(), 200);
        let flood = syns("*:64:0:*:mss*10,*:mss,sok,ts,nop,ws::0", 300, &mut random);
        let derived = law(&flood, &[good, syns(HPING, 9, &mut random)].concat(), tags);
        assert_eq!(derived.covered_count(), 300);
        let parts: usize = derived.signatures.iter().map(|s| s.packet_count).sum();
        // By chance an identification of 0 makes a signature of its own.
        assert!(parts > 290, "{parts}");
    }
}

#[test]
fn packets_like_good_ones_are_reported_as_inseparable() {
    let mut random = Random(0x900d);
    let flood = syns(KERNEL, 400, &mut random);
    let derived = law(&flood, &flood[..100], 0);
    assert_eq!(derived.expression(), None);
    assert_eq!(derived.covered_count(), 0);
    assert_eq!(derived.inseparable[0].packet_count, 400);
    assert_eq!(derived.inseparable_signatures[0].good_count, 100);
    // A part of the flood is like good packets, another is not.
    let mixed = [flood.clone(), syns(HPING, 300, &mut random)].concat();
    let derived = law(&mixed, &flood[..100], 0);
    assert_eq!(derived.covered_count(), 300);
    assert_eq!(derived.signatures.len(), 1);
    // Too few of a kind are no flood.
    let mixed = [syns(HPING, 300, &mut random), syns(KERNEL, 2, &mut random)].concat();
    let derived = law(&mixed, &flood[..100], 0);
    assert_eq!((derived.covered_count(), derived.other_count), (300, 2));
    // Nothing at all.
    assert_eq!(law(&[], &flood, 0).expression(), None);
    let derived = law(&[vec![], vec![0x45; 10], vec![0x60; 39]], &[], 0);
    assert_eq!(derived.other_count, 3);
}

#[test]
fn payload_ports_and_prefixes_distinguish_udp_floods_from_queries() {
    let mut random = Random(0xdd05);
    let mut any = |below| random.below(below) as u32;
    let query = |id: u32| {
        let mut payload = (id as u16).to_be_bytes().to_vec();
        payload.extend(*b"\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03com\x00");
        payload.extend([0, 1, 0, 1]);
        payload
    };
    let good: Vec<_> = (0..100)
        .map(|_| {
            udp(
                0xc633_6400 + any(250),
                (1024 + any(60_000) as u16, 53),
                60,
                &query(any(65_536)),
            )
        })
        .collect();
    // The same names with the type ANY, from everywhere.
    let flood: Vec<_> = (0..100)
        .map(|_| {
            let mut payload = query(any(65_536));
            payload[26] = 255;
            udp(
                any(1 << 31) * 2,
                (1024 + any(60_000) as u16, 53),
                60,
                &payload,
            )
        })
        .collect();
    let derived = law(&flood, &good, 0);
    assert_eq!(derived.covered_count(), 100);
    let text = derived.short_expression().unwrap();
    assert_eq!(text, "ip and udp and udp[32:4] = 0xff00");
    let text = derived.expression().unwrap();
    assert!(
        text.contains("dst host 192.0.2.1 and dst port 53"),
        "{text}"
    );
    assert!(!text.contains("src"), "{text}");
    // The same packets from another network.
    let flood: Vec<_> = (0..100)
        .map(|_| {
            udp(
                0xcb00_7100 + any(200),
                (1024 + any(60_000) as u16, 53),
                60,
                &query(any(65_536)),
            )
        })
        .collect();
    let derived = law(&flood, &good, 0);
    let text = derived.short_expression().unwrap();
    assert_eq!(
        text,
        "ip and udp and ip[6:2] & 0x1fff = 0 and src net 203.0.113.0/24"
    );
}

#[test]
fn reflected_answers_share_their_source_ports() {
    let mut random = Random(0x53);
    let mut any = |below| random.below(below) as u32;
    let flood: Vec<_> = (0..200)
        .map(|at| {
            let port = [53, 123, 1900, 11_211][at % 4];
            udp(
                any(1 << 31) * 2,
                (port, 40_000),
                30 + any(90) as u8,
                &vec![7; 4 + any(400) as usize],
            )
        })
        .collect();
    let text = law(&flood, &[], 0).expression().unwrap();
    assert!(text.contains("(src port 53 or src port 123 or"), "{text}");
}

#[test]
fn a_list_of_networks_does_not_readmit_what_common_fields_exclude() {
    let mut random = Random(0x1e7);
    let mut of = |net: u32, bits: u32, count: usize, ttl: u8| {
        let one = |_| {
            let source = net | random.below(1 << bits) as u32;
            udp(source, (123, 53), ttl, b"12345678")
        };
        Vec::from_iter((0..count).map(one))
    };
    let flood = [
        of(0x0a00_0000, 16, 450, 64),
        of(0x0a03_0000, 16, 450, 64),
        of(0xac10_0000, 16, 100, 128),
    ];
    let good = [
        of(0x4000_0000, 29, 450, 64),
        of(0x4000_0000, 29, 450, 128),
        of(0x0a00_0000, 16, 20, 128),
        of(0x0a03_0000, 16, 20, 128),
        of(0x0a01_0000, 16, 10, 64),
        of(0xac10_0000, 16, 10, 64),
    ];
    law(&flood.concat(), &good.concat(), 0);
}

#[test]
fn a_group_is_split_or_values_are_excluded() {
    let mut random = Random(0x5111);
    let with = |window: u16, random: &mut Random| {
        let text = format!("4:64:0:0:{window},0:::0");
        syns(&text, 60, random)
    };
    // The flood has two windows, good SYNs are between them: values of a set.
    let flood = [with(512, &mut random), with(2048, &mut random)].concat();
    let derived = law(&flood, &with(1024, &mut random), 0);
    assert_eq!((derived.covered_count(), derived.groups.len()), (120, 1));
    assert_eq!(derived.signatures.len(), 2);
    // The flood has every window but that of the good SYNs.
    let mut flood = Vec::new();
    for _ in 0..200 {
        let window = 2000 + random.below(60_000) as u16;
        flood.push(with(window, &mut random).swap_remove(0));
    }
    let derived = law(&flood, &with(1024, &mut random), 0);
    assert_eq!(derived.covered_count(), 200);
    let text = derived.short_expression().unwrap();
    assert!(text.contains("tcp[14:2] != 1024"), "{text}");
    // Each window comes with its TTL, and good SYNs have them the other way round.
    let from = |window, ttl: u8, random: &mut Random| {
        let mut packets = with(window, random);
        packets.iter_mut().for_each(|packet| packet[8] = ttl);
        packets
    };
    let flood = [from(512, 60, &mut random), from(2048, 50, &mut random)].concat();
    let good = [from(512, 50, &mut random), from(2048, 60, &mut random)].concat();
    let derived = law(&flood, &good, 0);
    assert_eq!((derived.covered_count(), derived.groups.len()), (120, 2));
    assert_eq!(derived.inseparable_signatures.len(), 1);
    // Only the range of source ports is another.
    let ports = |start: u16| move |at: u16| udp(0x0a00_0001, (start + at * 7, 53), 64, b"same");
    let flood: Vec<_> = (0..50).map(ports(20_000)).collect();
    let derived = law(&flood, &(0..50).map(ports(40_000)).collect::<Vec<_>>(), 0);
    assert!(derived.groups[0].is_fragile);
    let text = derived.expression().unwrap();
    assert!(
        text.contains("src portrange 20000-20343") || text.contains("udp[0:2]"),
        "{text}"
    );
}

/// Packets with fields that are constant, of a few values, or random.
fn population(random: &mut Random) -> Vec<Vec<u8>> {
    let is_v6 = random.below(3) == 0;
    let protocol = [6, 17, 1, 58, 47, 6][random.below(6) as usize];
    let len = 40 + random.below(40) as usize + if is_v6 { 20 } else { 0 };
    let template: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
    let plan: Vec<u64> = (0..len).map(|_| random.below(6)).collect();
    let count = 1 + random.below(60) as usize;
    (0..count)
        .map(|_| {
            let mut packet = template.clone();
            for (byte, plan) in packet.iter_mut().zip(&plan) {
                match plan {
                    0 => *byte = random.next() as u8,
                    1 => *byte = byte.wrapping_add(random.below(3) as u8),
                    _ => {}
                }
            }
            if is_v6 {
                packet[0] = 0x60 | packet[0] & 0xf;
                packet[6] = protocol;
                let len = (packet.len() as u16 - 40).to_be_bytes();
                packet[4..6].copy_from_slice(&len);
            } else {
                packet[0] = 0x45 + (packet[0] & 1);
                packet[9] = protocol;
                packet[6] = [0, 0x40, 0x40, 0x1f][random.below(4) as usize];
                packet[7] = 0;
                let len = (packet.len() as u16).to_be_bytes();
                packet[2..4].copy_from_slice(&len);
            }
            if random.below(30) == 0 {
                packet.truncate(random.below(packet.len() as u64) as usize);
            }
            packet
        })
        .collect()
}

#[test]
fn the_law_holds_for_random_populations() {
    let mut random = Random(0x1a3_5eed);
    let mut covered = 0;
    for _ in 0..200 {
        let first = population(&mut random);
        let mut flood = first.clone();
        let mut good = Vec::new();
        for _ in 0..random.below(3) {
            flood.extend(population(&mut random));
        }
        for _ in 0..random.below(3) {
            good.extend(population(&mut random));
        }
        // Good packets that are like those of the flood, but for a few bytes.
        for packet in first.iter().take(random.below(20) as usize) {
            let mut packet = packet.clone();
            if !packet.is_empty() {
                let at = random.below(packet.len() as u64) as usize;
                packet[at] ^= 1 << random.below(8);
            }
            good.push(packet);
        }
        let derived = law(&flood, &good, random.below(2) as u8);
        covered += derived.covered_count();
    }
    assert!(covered > 2_500, "{covered}");
}
