//! Both formats, read and written, complete and in pieces.

mod copies;

use super::*;
use crate::LinkType;
use std::string::ToString;
use std::vec::Vec;

/// Everything that a reader reports about a file, up to its end or an error.
#[derive(Debug, Default, PartialEq, Eq)]
#[allow(clippy::type_complexity)] // a log to compare, not an interface
struct Read {
    packets: Vec<(Timestamp, u32, LinkType, u32, Direction, u64, Vec<u8>)>,
    interfaces: Vec<(u32, u32, Interface, Vec<u8>)>,
    statistics: Vec<Statistics>,
    end: Option<FileError>,
}

/// Reads a file, never passing more than `step` bytes beyond those needed.
fn read(file: &[u8], step: usize) -> Read {
    let mut reader = Reader::new();
    let mut found = Read::default();
    let (mut position, mut shown) = (0usize, 0);
    loop {
        let rest = file.get(position..).unwrap_or(&[]);
        let window = &rest[..rest.len().min(shown)];
        assert_eq!(reader.offset(), position as u64);
        let event = match reader.next(window) {
            Ok(event) => event,
            Err(error) => {
                found.end = Some(error);
                return found;
            }
        };
        match &event {
            Event::Need(len) => {
                assert!(*len > window.len() && *len <= MAX_NEED);
                if window.len() == rest.len() {
                    found.end = reader.finish(rest.len()).err();
                    return found;
                }
                shown = len + step;
            }
            Event::Skip(len) => assert!(*len > 0),
            Event::Packet(p) => found.packets.push((
                p.time,
                p.wire_len,
                p.link,
                p.interface,
                p.direction,
                p.dropped,
                window[p.data.clone()].to_vec(),
            )),
            Event::Interface(i) => {
                let name = window[i.name.clone()].to_vec();
                found
                    .interfaces
                    .push((i.section, i.index, i.interface, name));
            }
            Event::Statistics(s) => found.statistics.push(Statistics { used: 0, ..*s }),
        }
        position += event.used();
    }
}

/// Reads with several step sizes, and checks that all agree.
fn read_all_ways(file: &[u8]) -> Read {
    let whole = read(file, file.len());
    for step in [0, 1, 7, 64] {
        assert_eq!(read(file, step), whole, "step {step}");
    }
    whole
}

fn pcap_file(precision: pcap::Precision) -> Vec<u8> {
    let mut file = Vec::new();
    let mut head = [0; pcap::HEADER_LEN];
    pcap::emit_header(&mut head, LinkType::LINUX_SLL2, 65535, precision);
    file.extend(head);
    for (i, len) in [0usize, 1, 60, 1514].into_iter().enumerate() {
        let mut record = [0; pcap::RECORD_LEN];
        let time = Timestamp::from_parts(1_700_000_000 + i as u64, 123_456_789);
        pcap::emit_record(&mut record, time, len as u32, len as u32 + 4, precision);
        file.extend(record);
        file.extend((0..len).map(|b| b as u8));
    }
    file
}

#[test]
fn pcap_round_trip() {
    for (precision, ns) in [
        (pcap::Precision::Nanoseconds, 123_456_789),
        (pcap::Precision::Microseconds, 123_456_000),
    ] {
        let found = read_all_ways(&pcap_file(precision));
        assert_eq!(found.end, None);
        assert_eq!(found.interfaces.len(), 1);
        assert_eq!(found.packets.len(), 4);
        for (i, (time, wire_len, link, ..)) in found.packets.iter().enumerate() {
            assert_eq!(*time, Timestamp::from_parts(1_700_000_000 + i as u64, ns));
            assert_eq!(*link, LinkType::LINUX_SLL2);
            assert_eq!(*wire_len as usize, found.packets[i].6.len() + 4);
        }
    }
}

/// The same file with every number in the other byte order.
fn swapped_pcap(file: &[u8]) -> Vec<u8> {
    let mut out = file.to_vec();
    for word in [0usize, 8, 12, 16, 20] {
        out[word..word + 4].reverse();
    }
    out[4..6].reverse();
    out[6..8].reverse();
    let mut position = pcap::HEADER_LEN;
    while position < out.len() {
        let len = u32::from_le_bytes(at(file, position + 8)) as usize;
        for word in 0..4 {
            out[position + 4 * word..][..4].reverse();
        }
        position += pcap::RECORD_LEN + len;
    }
    out
}

#[test]
fn pcap_of_the_other_byte_order_reads_the_same() {
    let file = pcap_file(pcap::Precision::Nanoseconds);
    assert_eq!(read_all_ways(&swapped_pcap(&file)), read_all_ways(&file));
}

#[test]
fn pcap_modified_format_has_longer_headers() {
    let plain = pcap_file(pcap::Precision::Microseconds);
    let mut file = plain[..24].to_vec();
    file[..4].copy_from_slice(&0xa1b2cd34u32.to_le_bytes());
    let mut position = 24;
    while position < plain.len() {
        let len = u32::from_le_bytes(at(&plain, position + 8)) as usize;
        file.extend(&plain[position..position + 16]);
        file.extend([1, 0, 0, 0, 8, 0, 0, 0]);
        file.extend(&plain[position + 16..position + 16 + len]);
        position += 16 + len;
    }
    assert_eq!(read_all_ways(&file).packets, read_all_ways(&plain).packets);
}

#[test]
fn pcap_errors_have_an_offset() {
    let file = pcap_file(pcap::Precision::Nanoseconds);
    let clean_ends = [24, 24 + 16, 24 + 16 + 17, 24 + 16 + 17 + 76, file.len()];
    for cut in 0..file.len() {
        let found = read(&file[..cut], 0);
        if clean_ends.contains(&cut) {
            assert_eq!(found.end, None, "cut at {cut}");
        } else {
            let error = found.end.expect("an end inside something is an error");
            let start = clean_ends
                .iter()
                .rev()
                .find(|e| **e < cut)
                .copied()
                .unwrap_or(0);
            assert_eq!(error.offset, start as u64, "cut at {cut}: {error}");
        }
    }
    let mut long = file.clone();
    long[24 + 8..24 + 12].copy_from_slice(&300_000u32.to_le_bytes());
    let error = read_all_ways(&long).end.unwrap();
    assert_eq!(
        error.kind,
        FileErrorKind::PacketTooLong(300_000, MAX_PACKET_LEN)
    );
    assert_eq!(
        error.to_string(),
        "a packet of 300000 bytes, more than the limit of 262144 (at byte 24)"
    );
    let mut old = file.clone();
    old[4] = 3;
    assert_eq!(
        read(&old, 0).end.unwrap().kind,
        FileErrorKind::Version(3, 4)
    );
    assert_eq!(read(b"", 0).end.unwrap().kind, FileErrorKind::Empty);
    assert_eq!(
        read(b"GIF89a", 0).end.unwrap().kind,
        FileErrorKind::NotACapture([b'G', b'I', b'F', b'8'])
    );
}

/// The wire length of a file's only packet, and whether it is the stated one.
fn wire_len_of(file: &[u8]) -> (u32, bool) {
    let (mut reader, mut position) = (Reader::new(), 0);
    loop {
        match reader.next(&file[position..]).expect("a file to read") {
            Event::Packet(packet) => return (packet.wire_len, packet.has_wire_len),
            Event::Need(_) => panic!("no packet"),
            event => position += event.used(),
        }
    }
}

#[test]
fn impossible_wire_lengths_are_not_trusted() {
    const CASES: [(u32, (u32, bool)); 4] = [
        (538_000_000, (4, false)),
        (MAX_WIRE_LEN + 1, (4, false)),
        (MAX_WIRE_LEN, (MAX_WIRE_LEN, true)),
        (0, (4, true)),
    ];
    for (stated, expected) in CASES {
        let mut file = [0; pcap::HEADER_LEN + pcap::RECORD_LEN + 4];
        let (head, rest) = file.split_first_chunk_mut().unwrap();
        pcap::emit_header(head, LinkType::RAW, 65_535, pcap::Precision::Microseconds);
        let record = rest.first_chunk_mut().unwrap();
        pcap::emit_record(
            record,
            Timestamp(0),
            4,
            stated,
            pcap::Precision::Microseconds,
        );
        assert_eq!(wire_len_of(&file), expected, "pcap, {stated}");

        let mut reader = pcap::Reader::new(MAX_PACKET_LEN);
        reader.next(&file).unwrap();
        let mut short = None;
        let rest = &file[pcap::HEADER_LEN..];
        reader.each_plain(rest, 1, |_, _, wire_len, _| short = Some((wire_len, true)));
        let (_, is_stated) = expected;
        assert_eq!(
            short,
            is_stated.then_some(expected),
            "the short way, {stated}"
        );

        let start = || {
            let mut file = NgFile(Vec::new());
            file.put(|out| pcapng::emit_section(out, &pcapng::SectionInfo::default()));
            let info = pcapng::InterfaceInfo::new(LinkType::RAW, 65_535, "");
            file.put(|out| pcapng::emit_interface(out, &info));
            file
        };
        let words = [0, 0, 0, 4, stated, 0].map(u32::to_le_bytes).concat();
        for kind in [2, 6] {
            let mut file = start();
            file.block(kind, &words);
            assert_eq!(
                wire_len_of(&file.0),
                expected,
                "block type {kind}, {stated}"
            );
        }
        if stated != 0 {
            let mut file = start();
            file.block(3, &[&stated.to_le_bytes()[..], &[0; 4]].concat());
            assert_eq!(wire_len_of(&file.0), expected, "block type 3, {stated}");
        }
    }
}

struct NgFile(Vec<u8>);

impl NgFile {
    fn put(&mut self, emit: impl Fn(&mut [u8]) -> Option<usize>) {
        let mut buffer = [0; 4096];
        let len = emit(&mut buffer).expect("fits");
        for short in 0..len {
            assert_eq!(
                emit(&mut buffer[..short]),
                None,
                "{short} of {len} bytes are too few"
            );
        }
        self.0.extend(&buffer[..len]);
        assert_eq!(self.0.len() % 4, 0);
    }

    /// A block with this type and body, in little-endian order.
    fn block(&mut self, kind: u32, body: &[u8]) {
        let len = (12 + body.len().next_multiple_of(4)) as u32;
        self.0.extend(kind.to_le_bytes());
        self.0.extend(len.to_le_bytes());
        self.0.extend(body);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self.0.extend(len.to_le_bytes());
    }
}

fn ng_file() -> NgFile {
    use pcapng::*;
    let mut file = NgFile(Vec::new());
    let section = SectionInfo {
        os: "Linux",
        application: "barewire",
        comment: "c",
        ..Default::default()
    };
    file.put(|out| emit_section(out, &section));
    let first = InterfaceInfo::new(LinkType::ETHERNET, 0, "eth0");
    file.put(|out| emit_interface(out, &first));
    let second = InterfaceInfo {
        filter: "ip6",
        ..InterfaceInfo::new(LinkType::RAW, 96, "tun0")
    };
    file.put(|out| emit_interface(out, &second));
    for len in [0usize, 1, 2, 3, 4, 60] {
        let info = PacketInfo {
            interface: len as u32 % 2,
            time: Timestamp(1_700_000_000_123_456_789 + len as u64),
            wire_len: 60,
            direction: [Direction::Unknown, Direction::In, Direction::Out][len % 3],
            dropped: (len % 2) as u64,
        };
        let bytes: Vec<u8> = (0..len).map(|b| b as u8).collect();
        file.put(|out| emit_packet(out, &info, &bytes, if len == 60 { "last" } else { "" }));
        // The pieces for writing without a copy are the same block.
        if len != 60 {
            let mut pieces = packet_head(&info, len as u32).to_vec();
            pieces.extend(&bytes);
            let mut tail = [0xff; MAX_PACKET_TAIL_LEN];
            let tail_len = emit_packet_tail(&mut tail, &info, len as u32);
            pieces.extend(&tail[..tail_len]);
            assert!(file.0.ends_with(&pieces), "{len} bytes");
        }
    }
    file.block(4, &[1, 2, 3]);
    let statistics = Statistics {
        interface: 1,
        received: Some(7),
        dropped: Some(0),
        os_dropped: None,
        used: 0,
    };
    file.put(|out| emit_statistics(out, &statistics, Timestamp(5), "the end"));
    file
}

#[test]
fn pcapng_round_trip() {
    let found = read_all_ways(&ng_file().0);
    assert_eq!(found.end, None);
    let names: Vec<_> = found.interfaces.iter().map(|i| i.3.as_slice()).collect();
    assert_eq!(names, [b"eth0", b"tun0"]);
    assert_eq!(found.interfaces[1].2.snaplen, 96);
    assert_eq!(found.interfaces[0].2.resolution, Resolution::NANOSECONDS);
    for (packet, len) in found.packets.iter().zip([0usize, 1, 2, 3, 4, 60]) {
        let (time, wire_len, link, interface, direction, dropped, bytes) = packet;
        assert_eq!(*time, Timestamp(1_700_000_000_123_456_789 + len as u64));
        assert_eq!((*wire_len, *interface), (60, len as u32 % 2));
        assert_eq!(*link, [LinkType::ETHERNET, LinkType::RAW][len % 2]);
        assert_eq!(*direction as usize, len % 3);
        assert_eq!((*dropped, bytes.len()), (len as u64 % 2, len));
    }
    assert_eq!(found.statistics.len(), 1);
    assert_eq!(found.statistics[0].received, Some(7));
    assert_eq!(found.statistics[0].os_dropped, None);
}

#[test]
fn truncated_pcapng_delivers_all_packets_before_the_cut() {
    let file = ng_file().0;
    let whole = read(&file, 0);
    let mut most = 0;
    for cut in 0..file.len() {
        let found = read(&file[..cut], 0);
        assert_eq!(found.packets, whole.packets[..found.packets.len()]);
        assert!(found.packets.len() >= most);
        most = found.packets.len();
        if let Some(error) = found.end {
            assert!(error.offset <= cut as u64);
            assert!(matches!(
                error.kind,
                FileErrorKind::EndsInside(..) | FileErrorKind::Empty
            ));
        }
    }
}

#[test]
fn pcapng_second_section_has_its_own_order_and_interfaces() {
    let mut file = ng_file();
    // A big-endian section with one interface in units of 2^-10 s, 100 s late, and a simple packet.
    let section: &[u8] = &[
        0x0a, 0x0d, 0x0d, 0x0a, 0, 0, 0, 28, 0x1a, 0x2b, 0x3c, 0x4d, 0, 1, 0, 0, 0xff, 0xff, 0xff,
        0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 28,
    ];
    let interface: &[u8] = &[
        0, 0, 0, 1, 0, 0, 0, 44, 0, 113, 0, 0, 0, 0, 0, 2, 0, 9, 0, 1, 0x8a, 0, 0, 0, 0, 14, 0, 8,
        0, 0, 0, 0, 0, 0, 0, 100, 0, 0, 0, 0, 0, 0, 0, 44,
    ];
    let simple: &[u8] = &[0, 0, 0, 3, 0, 0, 0, 20, 0, 0, 0, 3, 1, 2, 3, 0, 0, 0, 0, 20];
    let old: &[u8] = &[
        0, 0, 0, 2, 0, 0, 0, 36, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 1, 0, 0, 0, 9, 9, 0,
        0, 0, 0, 0, 0, 36,
    ];
    for block in [section, interface, simple, old] {
        file.0.extend(block);
    }
    let found = read_all_ways(&file.0);
    assert_eq!(found.end, None);
    assert_eq!((found.interfaces[2].0, found.interfaces[2].1), (1, 0));
    let [simple, old] = &found.packets[6..] else {
        panic!("two more packets")
    };
    assert_eq!(
        (simple.0, simple.1, simple.2),
        (Timestamp::ZERO, 3, LinkType::LINUX_SLL)
    );
    assert_eq!(simple.6, [1, 2], "cut at the snaplen");
    assert_eq!(
        (old.0, old.1, old.5),
        (Timestamp::from_parts(101, 500_000_000), 9, 5)
    );
}

#[test]
fn pcapng_errors_have_an_offset_and_a_reason() {
    let good = ng_file();
    let start = good.0.len() as u64;
    let after = |kind: u32, body: &[u8]| {
        let mut file = NgFile(good.0.clone());
        file.block(kind, body);
        let error = read_all_ways(&file.0).end.expect("an error");
        assert_eq!(error.offset, start, "{error}");
        error.kind
    };
    let packet = |interface: u32, len: u32| {
        let words = [interface, 0, 0, len, len, 0];
        words
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    assert_eq!(
        after(6, &packet(2, 4)),
        FileErrorKind::UnknownInterface(2, 2)
    );
    assert_eq!(
        after(6, &packet(0, 5)),
        FileErrorKind::PacketExceedsBlock(5, 36)
    );
    assert_eq!(after(6, &[0; 16]), FileErrorKind::BlockTooShort(6, 28));
    assert_eq!(
        after(5, &[9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        FileErrorKind::UnknownInterface(9, 2)
    );
    assert_eq!(
        after(1, &[1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 1, 0, 20, 0, 0, 0]),
        FileErrorKind::TimeResolution(20)
    );
    assert!(matches!(
        after(6, &std::vec![0; MAX_NEED]),
        FileErrorKind::BlockTooLong(_, MAX_BLOCK_LEN)
    ));
    let mut file = NgFile(good.0.clone());
    file.block(0x7777, &[0; 8]);
    let end = file.0.len() - 4;
    file.0[end] = 24;
    let error = read_all_ways(&file.0).end.unwrap();
    assert_eq!(error.kind, FileErrorKind::BlockLengthsDiffer(20, 24));
    assert_eq!(error.offset, start);
    let mut file = good.0.clone();
    file[8] = 0;
    assert!(matches!(
        read(&file, 0).end.unwrap().kind,
        FileErrorKind::ByteOrderMark(_)
    ));
}

#[test]
fn pcapng_table_of_interfaces_is_bounded() {
    let mut file = NgFile(Vec::new());
    file.put(|out| pcapng::emit_section(out, &pcapng::SectionInfo::default()));
    let info = pcapng::InterfaceInfo::new(LinkType::ETHERNET, 0, "");
    for _ in 0..3 {
        file.put(|out| pcapng::emit_interface(out, &info));
    }
    let mut reader = Reader::with([Interface::default(); 2], MAX_PACKET_LEN);
    let mut position = 0;
    let error = loop {
        match reader.next(&file.0[position..]) {
            Ok(event) => position += event.used(),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind, FileErrorKind::TooManyInterfaces(2));
    // With a longer table, reading continues where it stopped.
    let mut reader = Reader::with(std::vec![Interface::default(); 2], MAX_PACKET_LEN);
    let mut position = 0;
    while position < file.0.len() {
        match reader.next(&file.0[position..]) {
            Ok(event) => position += event.used(),
            Err(_) => reader.table_mut().resize(3, Interface::default()),
        }
    }
    assert_eq!(reader.table_mut().len(), 3);
}

#[test]
fn a_skipped_block_may_be_longer_than_the_buffer() {
    let mut file = ng_file();
    file.block(0xbad, &[7; 3_000_000]);
    let found = read(&file.0, 0);
    assert_eq!((found.packets.len(), found.end), (6, None));
    let cut = read(&file.0[..file.0.len() - 5], 0).end.unwrap();
    assert_eq!(cut.kind, FileErrorKind::EndsInside(3_000_008, 3_000_012));
}

#[test]
fn resolutions() {
    let table = [
        (Resolution::Decimal(0), 3, 3_000_000_000),
        (Resolution::Decimal(3), 3, 3_000_000),
        (Resolution::Decimal(6), 3, 3_000),
        (Resolution::Decimal(9), 3, 3),
        (Resolution::Decimal(12), 3_999, 3),
        (Resolution::Decimal(19), 30_000_000_000, 3),
        (Resolution::Binary(0), 3, 3_000_000_000),
        (Resolution::Binary(32), 1 << 31, 500_000_000),
        (Resolution::Binary(63), 1 << 62, 500_000_000),
    ];
    for (resolution, units, ns) in table {
        assert_eq!(
            resolution.timestamp(units, 0),
            Ok(Timestamp(ns)),
            "{resolution:?}"
        );
        assert_eq!(
            resolution.timestamp(units, 1),
            Ok(Timestamp(ns + 1_000_000_000))
        );
        assert_eq!(
            Resolution::from_option(resolution.to_option()),
            Some(resolution)
        );
    }
    assert_eq!(
        Resolution::Decimal(0).timestamp(u64::MAX, i64::MAX),
        Err(Timestamp::MAX)
    );
    assert_eq!(
        Resolution::Decimal(9).timestamp(5, i64::MIN),
        Err(Timestamp::ZERO)
    );
    let last = u64::MAX / 1_000_000_000;
    assert!(Resolution::Decimal(0).timestamp(last, 0).is_ok());
    assert!(Resolution::Decimal(0).timestamp(last + 1, 0).is_err());
    assert!(Resolution::Decimal(9).timestamp(0, -1).is_err());
    assert_eq!(Resolution::from_option(20), None);
    assert_eq!(Resolution::from_option(0xc0), None);
}

#[test]
fn formats_are_recognised() {
    assert_eq!(Format::sniff(&[0x1f, 0x8b, 8, 0]), Some(Format::Gzip));
    assert_eq!(Format::sniff(&[0x28, 0xb5, 0x2f, 0xfd]), Some(Format::Zstd));
    assert_eq!(Format::sniff(&ng_file().0), Some(Format::Pcapng));
    assert_eq!(
        Format::sniff(&pcap_file(pcap::Precision::Microseconds)),
        Some(Format::Pcap)
    );
    assert_eq!(Format::sniff(b"\x7fELF"), None);
    assert_eq!(Format::sniff(b""), None);
}
