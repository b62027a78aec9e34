//! The laws of `wire::laws` over every row of the protocol table: as it is, cut at each byte, with
//! each bit flipped, stacked at random; and over the fuzz corpora, which are made here.
//!
//! `BAREWIRE_BLESS=1 cargo test -p barewire-wire --test laws` writes the corpora anew.

use barewire_wire::file::{Direction, Statistics, pcap, pcapng};
use barewire_wire::table::{PROTOCOLS, Protocol};
use barewire_wire::{
    Dissection, LayerKind, LinkType, Timestamp, dissect, dissect_inner, ipv4, ipv6, laws,
};
use std::fs;
use std::path::{Path, PathBuf};

/// xorshift64*: enough to choose and to damage.
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

fn in_ethernet(value: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    packet.extend(value.to_be_bytes());
    packet.extend(payload);
    packet
}

fn in_ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut head = [0; ipv4::HEADER_LEN];
    ipv4::Header {
        src: [192, 0, 2, 1].into(),
        dst: [198, 51, 100, 2].into(),
        protocol,
        ttl: 64,
        traffic_class: 0,
        id: 1,
        payload_len: payload.len(),
    }
    .emit(&mut head);
    [&head[..], payload].concat()
}

fn in_ipv6(next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut head = [0; ipv6::HEADER_LEN];
    ipv6::Header {
        src: "2001:db8::1".parse().unwrap(),
        dst: "2001:db8::2".parse().unwrap(),
        next_header,
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 1,
        payload_len: payload.len(),
    }
    .emit(&mut head);
    [&head[..], payload].concat()
}

fn in_udp(port: u16, payload: &[u8]) -> Vec<u8> {
    let mut head = [0; 8];
    barewire_wire::udp::emit(&mut head, 40000, port, payload.len());
    [&head[..], payload].concat()
}

/// A packet for each number that leads to a protocol.
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
        dissect(link, &[0x45; 64], 64, &mut d);
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

/// A packet made by wrapping samples into each other, outermost last.
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
fn chains_have_bounds() {
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
fn callers_choose_the_level() {
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

/// A tunnel's header is payload of the UDP header that it follows.
#[test]
fn all_bytes_behind_udp_are_payload() {
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

/// Padding behind the IP datagram changes nothing but the lengths of the whole packet.
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

fn pcap_seed() -> Vec<u8> {
    let mut file = Vec::new();
    let mut head = [0; pcap::HEADER_LEN];
    pcap::emit_header(
        &mut head,
        LinkType::ETHERNET,
        65535,
        pcap::Precision::Nanoseconds,
    );
    file.extend(head);
    for (i, row) in PROTOCOLS
        .iter()
        .filter(|row| !row.ether_types.is_empty())
        .enumerate()
    {
        let packet = in_ethernet(row.ether_types[0], row.sample);
        let mut record = [0; pcap::RECORD_LEN];
        let (time, len) = (Timestamp(i as u64 * 1_000_000_007), packet.len() as u32);
        pcap::emit_record(
            &mut record,
            time,
            len,
            len + 4,
            pcap::Precision::Nanoseconds,
        );
        file.extend(record);
        file.extend(packet);
    }
    file
}

fn pcapng_seed() -> Vec<u8> {
    let mut file = Vec::new();
    let mut buffer = [0; 1024];
    let section = pcapng::SectionInfo {
        application: "barewire",
        ..Default::default()
    };
    let len = pcapng::emit_section(&mut buffer, &section).unwrap();
    file.extend(&buffer[..len]);
    for (link, name) in [(LinkType::ETHERNET, "eth0"), (LinkType::RAW, "tun0")] {
        let info = pcapng::InterfaceInfo::new(link, 65535, name);
        let len = pcapng::emit_interface(&mut buffer, &info).unwrap();
        file.extend(&buffer[..len]);
    }
    for (i, row) in PROTOCOLS
        .iter()
        .filter(|row| !row.ip_protocols.is_empty())
        .enumerate()
    {
        let raw = in_ipv4(row.ip_protocols[0], row.sample);
        let packet = if i % 2 == 0 {
            in_ethernet(0x0800, &raw)
        } else {
            raw
        };
        let info = pcapng::PacketInfo {
            interface: i as u32 % 2,
            time: Timestamp(i as u64 * 1_000_000_007),
            wire_len: packet.len() as u32,
            direction: [Direction::Unknown, Direction::In, Direction::Out][i % 3],
            dropped: i as u64 % 2,
        };
        let len = pcapng::emit_packet(&mut buffer, &info, &packet, "").unwrap();
        file.extend(&buffer[..len]);
    }
    let statistics = Statistics {
        received: Some(9),
        dropped: Some(1),
        ..Default::default()
    };
    let len = pcapng::emit_statistics(&mut buffer, &statistics, Timestamp(1), "end").unwrap();
    file.extend(&buffer[..len]);
    // A block that nobody knows, and an empty big-endian section.
    file.extend([0xad, 0x0b, 0, 0, 16, 0, 0, 0, 1, 2, 3, 4, 16, 0, 0, 0]);
    file.extend([
        10, 13, 13, 10, 0, 0, 0, 28, 0x1a, 0x2b, 0x3c, 0x4d, 0, 1, 0, 0,
    ]);
    file.extend([0xff; 8]);
    file.extend([0, 0, 0, 28]);
    file
}

/// The seeds of a fuzz target: name, bytes.
fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    match target {
        "dissect" => {
            let mut all = Vec::new();
            for (kind, row) in rows() {
                for (i, (link, packet)) in ways_to(kind, row, row.sample).into_iter().enumerate() {
                    let index = LinkType::SUPPORTED.iter().position(|l| *l == link).unwrap();
                    let input = [&[index as u8, 0][..], &packet].concat();
                    all.push((format!("{}-{i}", row.name), input));
                }
            }
            all
        }
        "pcap" => named(pcap_seeds()),
        _ => named(pcapng_seeds()),
    }
}

fn named(seeds: Vec<(&str, Vec<u8>)>) -> Vec<(String, Vec<u8>)> {
    seeds
        .into_iter()
        .map(|(n, bytes)| (n.into(), bytes))
        .collect()
}

/// pcap files, sound and hostile: `all-types` and what a mutator finds only slowly from there.
fn pcap_seeds() -> Vec<(&'static str, Vec<u8>)> {
    /// Words in one byte order or the other.
    fn words(big_endian: bool, words: &[u32]) -> Vec<u8> {
        let bytes = |word: &u32| match big_endian {
            true => word.to_be_bytes(),
            false => word.to_le_bytes(),
        };
        words.iter().flat_map(bytes).collect()
    }
    // Magic number, version 2.4 (two halves of a word), zone, accuracy, snapshot length, link type.
    let head = |big_endian, magic, snaplen, link| {
        let version = if big_endian { 0x0002_0004 } else { 0x0004_0002 };
        words(big_endian, &[magic, version, 0, 0, snaplen, link])
    };
    let micro = 0xa1b2_c3d4;
    let record = |cap_len, wire_len| words(false, &[1_700_000_000, 999_999, cap_len, wire_len]);
    let packet = in_ethernet(0x0800, &in_ipv4(17, &[0, 53, 0, 53, 0, 8, 0, 0]));
    let len = packet.len() as u32;
    let file = |parts: &[&[u8]]| parts.concat();
    vec![
        ("all-types", pcap_seed()),
        ("head-only", head(false, micro, 65535, 1)),
        (
            "big-endian-micro",
            file(&[
                &head(true, micro, 65535, 101),
                &words(true, &[1, 2, 28, 28]),
                &packet[14..],
            ]),
        ),
        (
            // The variant with 8 more bytes a record.
            "modified",
            file(&[
                &head(false, 0xa1b2_cd34, 65535, 1),
                &record(len, len),
                &[0; 8],
                &packet,
            ]),
        ),
        (
            "old-minor-swapped-lengths",
            file(&[
                &words(false, &[micro, 0x0003_0002, 0, 0, 65535, 1]),
                &record(len + 4, len),
                &packet,
            ]),
        ),
        (
            "cut-in-a-packet",
            file(&[
                &head(false, micro, 65535, 1),
                &record(len, len),
                &packet[..9],
            ]),
        ),
        (
            "length-of-all-ones",
            file(&[
                &head(false, micro, u32::MAX, 1),
                &record(len, len),
                &packet,
                &record(u32::MAX, u32::MAX),
                &packet,
            ]),
        ),
        (
            "longer-than-on-the-wire",
            file(&[
                &head(false, micro, 16, 1),
                &record(len, 0),
                &packet,
                &record(0, 0),
                &record(0, u32::MAX),
            ]),
        ),
        (
            "time-out-of-range",
            file(&[
                &head(false, 0xa1b2_3c4d, 0, 0xf000_0113),
                &words(false, &[u32::MAX, u32::MAX, 0, 0]),
            ]),
        ),
    ]
}

/// pcapng files, as above.
fn pcapng_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut buffer = [0; 4096];
    let len = pcapng::emit_section(&mut buffer, &pcapng::SectionInfo::default()).unwrap();
    let section = buffer[..len].to_vec();
    let mut interface = |link: u16, name: &str| {
        let info = pcapng::InterfaceInfo::new(LinkType(link), 65535, name);
        let len = pcapng::emit_interface(&mut buffer, &info).unwrap();
        buffer[..len].to_vec()
    };
    let one = interface(1, "eth0");
    let long_name = interface(1, &"n".repeat(3000));
    let cut_character = interface(1, &"\u{e9}".repeat(89));
    let many: Vec<u8> = (0..100).flat_map(|n| interface(n, "")).collect();
    let packet = in_ethernet(0x0800, &in_ipv4(17, &[0, 53, 0, 53, 0, 8, 0, 0]));
    let len = packet.len() as u32;
    /// A block whose two lengths are right, around a body of whole words.
    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let len = (body.len() as u32 + 12).to_le_bytes();
        [&kind.to_le_bytes()[..], &len, body, &len].concat()
    }
    let words = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
    let padded = [&packet[..], &[0; 2]].concat();
    let enhanced = |interface: u32, cap_len: u32| {
        let head = words(&[interface, 0, 1, cap_len, len]);
        block(6, &[&head[..], &padded].concat())
    };
    let file = |parts: &[&[u8]]| parts.concat();
    // An interface whose times count in 2^-127 seconds from before the epoch.
    let odd_times = block(
        1,
        &[
            &words(&[1, 65535])[..],
            &[9, 0, 1, 0, 0xff, 0, 0, 0, 14, 0, 8, 0],
            &[0xff; 8],
            &[0; 4],
        ]
        .concat(),
    );
    // An option that reaches beyond its block.
    let option_too_long = block(1, &[&words(&[1, 65535])[..], &[2, 0, 0xff, 0xff]].concat());
    let mut lengths_differ = enhanced(0, len);
    let last = lengths_differ.len() - 4;
    lengths_differ[last] ^= 4;
    let simple = block(3, &[&words(&[len])[..], &padded].concat());
    let old = block(2, &[&words(&[0, 0, 1, len, len])[..], &padded].concat());
    vec![
        ("all-protocols", pcapng_seed()),
        (
            "long-name",
            file(&[&section, &long_name, &enhanced(0, len)]),
        ),
        ("cut-character", file(&[&section, &cut_character])),
        (
            "many-interfaces",
            file(&[&section, &many, &enhanced(99, len)]),
        ),
        (
            "sections-again",
            file(&[&section, &one, &section, &one, &enhanced(0, len), &section]),
        ),
        ("no-interface", file(&[&section, &enhanced(0, len)])),
        (
            "length-lies",
            file(&[&section, &one, &enhanced(0, len), &enhanced(0, u32::MAX)]),
        ),
        ("lengths-differ", file(&[&section, &one, &lengths_differ])),
        ("option-too-long", file(&[&section, &option_too_long])),
        (
            "odd-times",
            file(&[&section, &odd_times, &enhanced(0, len)]),
        ),
        ("simple-and-old", file(&[&section, &one, &simple, &old])),
        (
            "cut-in-a-block",
            file(&[&section, &one, &enhanced(0, len)[..30]]),
        ),
        (
            "block-of-no-length",
            file(&[&section, &words(&[0x0bad, 0, 0])]),
        ),
    ]
}

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target)
}

fn replay(target: &str, law: fn(&[u8])) {
    let folder = corpus(target);
    if std::env::var_os("BAREWIRE_BLESS").is_some() {
        fs::create_dir_all(&folder).unwrap();
        for (name, bytes) in seeds(target) {
            fs::write(folder.join(name), bytes).unwrap();
        }
    }
    for (name, bytes) in seeds(target) {
        let there = fs::read(folder.join(&name)).unwrap_or_default();
        assert!(
            there == bytes,
            "{target}/{name} is not what the builder makes: see the head of laws.rs"
        );
    }
    let mut count = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        assert!(
            bytes.len() <= 4096,
            "{} is too large to commit",
            path.display()
        );
        println!("{}", path.display());
        law(&bytes);
        count += 1;
    }
    assert!(count >= seeds(target).len());
}

#[test]
fn corpus_of_the_dissector() {
    replay("dissect", laws::packet_input);
}

#[test]
fn corpus_of_the_pcap_reader() {
    replay("pcap", laws::file);
}

#[test]
fn corpus_of_the_pcapng_reader() {
    replay("pcapng", laws::pcapng_input);
}

/// Files with damage: no byte of a seed may lead to anything but packets and an error.
#[test]
fn files_with_each_byte_damaged() {
    for mut file in [pcap_seed(), pcapng_seed()] {
        laws::file(&file);
        for cut in (0..file.len()).step_by(3) {
            laws::file(&file[..cut]);
        }
        for index in 0..file.len() {
            let kept = file[index];
            for value in [0, 0xff, kept ^ 0x40, kept.wrapping_add(1)] {
                file[index] = value;
                laws::file(&file);
            }
            file[index] = kept;
        }
    }
}
