//! Generated capture files, valid and hostile.

use super::*;

pub fn pcap_seed() -> Vec<u8> {
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

pub fn pcapng_seed() -> Vec<u8> {
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
    // A block of unknown type, and an empty big-endian section.
    file.extend([0xad, 0x0b, 0, 0, 16, 0, 0, 0, 1, 2, 3, 4, 16, 0, 0, 0]);
    file.extend([
        10, 13, 13, 10, 0, 0, 0, 28, 0x1a, 0x2b, 0x3c, 0x4d, 0, 1, 0, 0,
    ]);
    file.extend([0xff; 8]);
    file.extend([0, 0, 0, 28]);
    file
}

/// Words in either byte order.
fn words(big_endian: bool, words: &[u32]) -> Vec<u8> {
    let bytes = |word: &u32| match big_endian {
        true => word.to_be_bytes(),
        false => word.to_le_bytes(),
    };
    words.iter().flat_map(bytes).collect()
}

/// Magic number, version 2.4 (two halves of a word), zone, accuracy, snapshot length, link type.
fn head(big_endian: bool, magic: u32, snaplen: u32, link: u32) -> Vec<u8> {
    let version = if big_endian { 0x0002_0004 } else { 0x0004_0002 };
    words(big_endian, &[magic, version, 0, 0, snaplen, link])
}

fn record(cap_len: u32, wire_len: u32) -> Vec<u8> {
    words(false, &[1_700_000_000, 999_999, cap_len, wire_len])
}

/// pcap files, valid and hostile: `all-types`, and variants that a mutator finds only slowly from
/// it.
pub fn pcap_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let micro = 0xa1b2_c3d4;
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

/// A block with two matching lengths around a body of whole words.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let len = (body.len() as u32 + 12).to_le_bytes();
    [&kind.to_le_bytes()[..], &len, body, &len].concat()
}

/// An interface whose times have units of 2^-127 seconds and begin before the epoch.
fn odd_times() -> Vec<u8> {
    let body = [
        &words(false, &[1, 65535])[..],
        &[9, 0, 1, 0, 0xff, 0, 0, 0, 14, 0, 8, 0],
        &[0xff; 8],
        &[0; 4],
    ];
    block(1, &body.concat())
}

/// pcapng files, as above.
pub fn pcapng_seeds() -> Vec<(&'static str, Vec<u8>)> {
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
    let words = |list: &[u32]| words(false, list);
    let padded = [&packet[..], &[0; 2]].concat();
    let enhanced = |interface: u32, cap_len: u32| {
        let head = words(&[interface, 0, 1, cap_len, len]);
        block(6, &[&head[..], &padded].concat())
    };
    let file = |parts: &[&[u8]]| parts.concat();
    let odd_times = odd_times();
    // An option that reaches past the end of its block.
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
