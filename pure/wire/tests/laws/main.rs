//! The laws of `wire::laws` on every row of the protocol table: complete, truncated at each byte,
//! with each bit flipped, stacked at random; and on the fuzz corpora, which are generated here.
//!
//! `BAREWIRE_BLESS=1 cargo test -p barewire-wire --test laws` rewrites the corpora.

mod corpora;
mod files;
mod wrap;

use barewire_wire::file::{Direction, Statistics, pcap, pcapng};
use barewire_wire::table::{PROTOCOLS, Protocol};
use barewire_wire::{
    Dissection, LayerKind, LinkType, Timestamp, dissect, dissect_inner, ipv4, ipv6, laws, udp,
};
use std::fs;
use std::path::{Path, PathBuf};
use wrap::{in_ethernet, in_ipv4, in_ipv6, in_udp_from};

/// xorshift64*: sufficient for choices and damage.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound
    }
}

fn in_udp(port: u16, payload: &[u8]) -> Vec<u8> {
    in_udp_from(40_000, port, payload)
}

/// A packet for each number that selects a protocol.
fn ways_to(kind: LayerKind, row: &Protocol, payload: &[u8]) -> Vec<(LinkType, Vec<u8>)> {
    let mut ways = Vec::new();
    ways.extend(row.links.iter().map(|link| (*link, payload.to_vec())));
    for ether_type in row.ether_types {
        ways.push((LinkType::ETHERNET, in_ethernet(*ether_type, payload)));
    }
    for number in row.ip_protocols.iter().chain(row.tunnelled_by_ip) {
        ways.push((LinkType::RAW, in_ipv4(*number, payload)));
    }
    for number in row
        .ip_protocols
        .iter()
        .chain(row.ipv6_next_headers)
        .chain(row.tunnelled_by_ip)
    {
        ways.push((LinkType::RAW, in_ipv6(*number, payload)));
    }
    for number in row.ppp_protocols {
        let [high, low] = number.to_be_bytes();
        ways.push((LinkType::PPP, [&[0xff, 3, high, low][..], payload].concat()));
    }
    for port in row.udp_ports {
        ways.push((LinkType::IPV4, in_ipv4(17, &in_udp(*port, payload))));
        ways.push((LinkType::IPV6, in_ipv6(17, &in_udp(*port, payload))));
    }
    match kind {
        LayerKind::Llc => {
            ways.push((
                LinkType::ETHERNET,
                in_ethernet(payload.len() as u16, payload),
            ));
        }
        LayerKind::Erspan => {
            let gre = [&[0x10, 0, 0x88, 0xbe, 0, 0, 0, 1][..], payload].concat();
            ways.push((LinkType::RAW, in_ipv4(47, &gre)));
        }
        _ => {}
    }
    ways
}

fn rows() -> impl Iterator<Item = (LayerKind, &'static Protocol)> {
    LayerKind::ALL.iter().copied().zip(PROTOCOLS)
}

fn all_samples() -> Vec<(LayerKind, LinkType, Vec<u8>)> {
    rows()
        .flat_map(|(kind, row)| {
            let ways = ways_to(kind, row, row.sample);
            assert!(!ways.is_empty(), "nothing leads to {}", row.name);
            ways.into_iter()
                .map(move |(link, packet)| (kind, link, packet))
        })
        .collect()
}

#[test]
fn rows_are_complete() {
    for (index, (kind, row)) in rows().enumerate() {
        assert_eq!(kind as usize, index + 1);
        assert!(!row.name.is_empty() && !row.spec.is_empty() && !row.sample.is_empty());
        let same_name = PROTOCOLS.iter().filter(|other| other.name == row.name);
        assert_eq!(same_name.count(), 1, "{}", row.name);
        for link in row.links {
            assert!(LinkType::SUPPORTED.contains(link), "{link}");
        }
    }
    for link in LinkType::SUPPORTED {
        let mut d = Dissection::EMPTY;
        dissect(*link, &[0x45; 64], 64, &mut d);
        assert_ne!(d.reason, barewire_wire::Reason::UnsupportedLink, "{link}");
    }
}

#[test]
fn every_number_leads_to_its_protocol() {
    for (kind, link, packet) in all_samples() {
        let mut level = Dissection::EMPTY;
        dissect(link, &packet, packet.len() as u32, &mut level);
        let mut inner = Dissection::EMPTY;
        let mut found = level.has(kind);
        while dissect_inner(&packet, &level, &mut inner) {
            found |= inner.has(kind);
            level = inner;
        }
        assert!(
            found,
            "{} not found in {packet:02x?} of {link}",
            kind.name()
        );
        let damaged =
            level.reason.is_malformed() || level.reason == barewire_wire::Reason::Truncated;
        assert!(
            !damaged,
            "the sample of {} is {}",
            kind.name(),
            level.reason
        );
    }
}

#[test]
fn samples_cut_at_each_byte() {
    for (_, link, packet) in all_samples() {
        for cut in 0..=packet.len() {
            laws::packet(link, &packet[..cut], packet.len() as u32);
            laws::packet(link, &packet[..cut], cut as u32);
        }
    }
}

#[test]
fn samples_with_each_bit_flipped() {
    for (_, link, mut packet) in all_samples() {
        let len = packet.len() as u32;
        for bit in 0..packet.len() * 8 {
            packet[bit / 8] ^= 1 << (bit % 8);
            laws::packet(link, &packet, len);
            packet[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn samples_with_each_byte_at_its_extremes() {
    for (_, link, mut packet) in all_samples() {
        let len = packet.len() as u32;
        for index in 0..packet.len() {
            let kept = packet[index];
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                packet[index] = value;
                laws::packet(link, &packet, len);
            }
            packet[index] = kept;
        }
    }
}

/// A packet built by nesting samples, outermost last.
fn random_stack(rng: &mut Rng) -> (LinkType, Vec<u8>) {
    let samples = all_rows();
    let mut packet = samples[rng.below(samples.len())].1.sample.to_vec();
    for _ in 0..rng.below(12) {
        packet = match rng.below(12) {
            0 => in_ethernet([0x8100, 0x88a8, 0x0800, 0x86dd][rng.below(4)], &packet),
            1 => [&[0, 5, 0x08, 0x00][..], &packet].concat(),
            2 => [&[0, 5, 0x81, 0x00][..], &packet].concat(),
            3 => in_ipv4([4, 6, 17, 41, 47, 51, 1, 2][rng.below(8)], &packet),
            4 => in_ipv6(
                [0, 4, 6, 17, 41, 43, 44, 47, 58, 60][rng.below(10)],
                &packet,
            ),
            5 => in_udp([4789, 4790, 6081, 2152, 53][rng.below(5)], &packet),
            6 => [&[0x20, 0, 0x65, 0x58, 0, 0, 0, 1][..], &packet].concat(),
            7 => [&[8, 0, 0, 0, 0, 0, 1, 0][..], &packet].concat(),
            8 => [&[0, 0, 0x10, 64][..], &packet].concat(),
            9 => [&[0, 0, 0x11, 64][..], &packet].concat(),
            10 => [&[17, 0, 1, 4, 0, 0, 0, 0][..], &packet].concat(),
            _ => [&[3, 3, 0, 0, 0, 0, 0, 0][..], &packet].concat(),
        };
    }
    (
        LinkType::SUPPORTED[rng.below(LinkType::SUPPORTED.len())],
        packet,
    )
}

fn all_rows() -> Vec<(LayerKind, &'static Protocol)> {
    rows().collect()
}

#[test]
fn random_stacks_with_damage() {
    let seed = 0x5eed_0001;
    println!("seed {seed:#x}");
    let mut rng = Rng(seed);
    for _ in 0..20_000 {
        let (link, mut packet) = random_stack(&mut rng);
        for _ in 0..rng.below(4) {
            let at = rng.below(packet.len());
            packet[at] = rng.next() as u8;
        }
        let wire_len = packet.len() + [0, 0, 7, 1500][rng.below(4)];
        laws::packet(link, &packet, wire_len as u32);
    }
}

#[test]
fn chains_are_bounded() {
    // VLAN tags without end, IPv6 extension headers without end, IP in IP without end.
    let tags = in_ethernet(0x8100, &[0, 1, 0x81, 0].repeat(100));
    let mut d = Dissection::EMPTY;
    dissect(LinkType::ETHERNET, &tags, tags.len() as u32, &mut d);
    assert_eq!(
        (d.reason, d.vlan_count as usize),
        (
            barewire_wire::Reason::TooDeep,
            barewire_wire::MAX_LAYERS - 1
        )
    );
    let extensions = in_ipv6(60, &[60, 0, 1, 4, 0, 0, 0, 0].repeat(100));
    dissect(LinkType::RAW, &extensions, extensions.len() as u32, &mut d);
    assert_eq!(d.reason, barewire_wire::Reason::TooDeep);
    let nested = (0..50).fold(vec![], |inner, _| in_ipv4(4, &inner));
    dissect(LinkType::RAW, &nested, nested.len() as u32, &mut d);
    let (mut levels, mut inner) = (1, Dissection::EMPTY);
    while dissect_inner(&nested, &d, &mut inner) {
        (d, levels) = (inner, levels + 1);
    }
    assert_eq!(d.reason, barewire_wire::Reason::TooDeep);
    assert_eq!(levels, barewire_wire::MAX_TUNNEL_DEPTH as usize + 2);
    for packet in [tags, extensions, nested] {
        laws::packet(LinkType::ETHERNET, &packet, packet.len() as u32);
        laws::packet(LinkType::RAW, &packet, packet.len() as u32);
    }
}

#[test]
fn callers_select_the_level() {
    let inner = in_ipv6(17, &in_udp(53, &[1, 2, 3]));
    let vxlan = [&[8, 0, 0, 0, 0, 0, 7, 0][..], &in_ethernet(0x86dd, &inner)].concat();
    let packet = in_ethernet(0x0800, &in_ipv4(17, &in_udp(4789, &vxlan)));
    let len = packet.len() as u32;
    let all: Vec<Dissection> = barewire_wire::levels(LinkType::ETHERNET, &packet, len).collect();
    assert_eq!(all.iter().map(|d| d.ip_version).collect::<Vec<_>>(), [4, 6]);
    assert_eq!(
        (all[0].tunnel_id, all[0].dst_port, all[1].dst_port),
        (7, 4789, 53)
    );
    let mut d = Dissection::EMPTY;
    barewire_wire::dissect_innermost(LinkType::ETHERNET, &packet, len, &mut d);
    assert_eq!(d, all[1]);
    assert_eq!(d.payload(&packet), [1, 2, 3]);
    // A tunnel that carries no IP leaves the outer level; a quoted packet is none.
    let arp = [
        &[8, 0, 0, 0, 0, 0, 7, 0][..],
        &in_ethernet(0x0806, &[0; 28]),
    ]
    .concat();
    let error = [
        &[3, 3, 0, 0, 0, 0, 0, 0][..],
        &in_ipv4(17, &in_udp(53, &[])),
    ]
    .concat();
    for payload in [in_ipv4(17, &in_udp(4789, &arp)), in_ipv4(1, &error)] {
        let packet = in_ethernet(0x0800, &payload);
        barewire_wire::dissect_innermost(LinkType::ETHERNET, &packet, packet.len() as u32, &mut d);
        assert_eq!((d.tunnel_depth, d.ip_version), (0, 4));
    }
}

/// The header of a tunnel is payload of the UDP header before it.
#[test]
fn all_bytes_after_udp_are_payload() {
    let mut count = 0;
    for (kind, row) in rows() {
        for port in row.udp_ports {
            let packet = in_ipv4(17, &in_udp(*port, row.sample));
            let mut d = Dissection::EMPTY;
            dissect(LinkType::IPV4, &packet, packet.len() as u32, &mut d);
            let expected = Some((28, row.sample.len() as u32));
            assert_eq!(d.transport_payload(), expected, "{}", kind.name());
            count += 1;
        }
    }
    assert!(count >= 6, "{count}");
}

/// Padding after the IP datagram changes only the lengths of the whole packet.
#[test]
fn link_padding_is_not_payload() {
    for (_, link, packet) in all_samples() {
        if link != LinkType::ETHERNET {
            continue;
        }
        let padded = [&packet[..], &[0; 30]].concat();
        let (mut plain, mut with) = (Dissection::EMPTY, Dissection::EMPTY);
        dissect(link, &packet, packet.len() as u32, &mut plain);
        dissect(link, &padded, padded.len() as u32, &mut with);
        if plain.ip_version != 0 {
            (with.cap_len, with.wire_len) = (plain.cap_len, plain.wire_len);
            assert_eq!(plain, with);
        }
    }
}
