//! Readers of every kind over files made here, whole, cut, changed and hostile. Files made by other
//! programs are read in the lab.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use wire::file::pcap::Precision;
use wire::file::{Direction as Way, pcap, pcapng};
use wire::{LinkType, Timestamp};

use super::*;
use crate::open::open;

/// A packet as read: time, bytes, wire length, interface, outgoing.
type Row = (Option<u64>, Vec<u8>, u32, u16, bool);

/// A file in the temporary folder, deleted on drop.
struct Temp(PathBuf);

impl Temp {
    fn new(bytes: &[u8]) -> Self {
        use std::sync::atomic::AtomicU32;
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("bw-file-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }

    fn name(&self) -> String {
        format!("file:{}", self.0.display())
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Packet `number`: its length and bytes differ from its neighbours'.
fn packet(number: u32) -> Vec<u8> {
    let len = 1 + number * 37 % 200;
    (0..len).map(|i| (i * 7 + number) as u8).collect()
}

/// A pcap file, and the offset behind each of its packets.
fn pcap_file(count: u32) -> (Vec<u8>, Vec<usize>) {
    let mut head = [0; pcap::HEADER_LEN];
    pcap::emit_header(
        &mut head,
        LinkType::ETHERNET,
        65_535,
        Precision::Nanoseconds,
    );
    let (mut out, mut ends) = (head.to_vec(), Vec::new());
    for number in 0..count {
        let bytes = packet(number);
        let mut record = [0; pcap::RECORD_LEN];
        let (time, len) = (
            Timestamp(u64::from(number) * 1_000_000_007),
            bytes.len() as u32,
        );
        pcap::emit_record(&mut record, time, len, len + number, Precision::Nanoseconds);
        out.extend(record);
        out.extend(bytes);
        ends.push(out.len());
    }
    (out, ends)
}

/// One pcapng section with two interfaces, and the offset behind each of its packets.
fn pcapng_file(count: u32) -> (Vec<u8>, Vec<usize>) {
    let mut buffer = [0; 1024];
    let mut out = Vec::new();
    let len = pcapng::emit_section(&mut buffer, &pcapng::SectionInfo::default()).unwrap();
    out.extend(&buffer[..len]);
    for (link, name) in [(LinkType::ETHERNET, "left"), (LinkType::RAW, "right")] {
        let info = pcapng::InterfaceInfo::new(link, 0, name);
        let len = pcapng::emit_interface(&mut buffer, &info).unwrap();
        out.extend(&buffer[..len]);
    }
    let mut ends = Vec::new();
    for number in 0..count {
        let bytes = packet(number);
        let info = pcapng::PacketInfo {
            interface: number % 2,
            time: Timestamp(u64::from(number) * 1_000_000_007),
            wire_len: bytes.len() as u32 + number,
            direction: if number % 3 == 0 { Way::Out } else { Way::In },
            dropped: 0,
        };
        let len = pcapng::emit_packet(&mut buffer, &info, &bytes, "").unwrap();
        out.extend(&buffer[..len]);
        ends.push(out.len());
    }
    (out, ends)
}

fn expected(count: u32, is_pcapng: bool) -> Vec<Row> {
    let row = |number: u32| {
        let bytes = packet(number);
        let (time, wire_len) = (
            u64::from(number) * 1_000_000_007,
            bytes.len() as u32 + number,
        );
        let interface = if is_pcapng { number as u16 % 2 } else { 0 };
        (
            Some(time),
            bytes,
            wire_len,
            interface,
            is_pcapng && number.is_multiple_of(3),
        )
    };
    (0..count).map(row).collect()
}

fn row(packet: crate::Packet<'_>) -> Row {
    let bytes = packet.bytes().to_vec();
    let (time, interface) = (packet.time_ns(), packet.interface_index());
    (
        time,
        bytes,
        packet.wire_len(),
        interface,
        packet.is_outgoing(),
    )
}

/// Reads a port to its end.
fn drain(port: &mut Port, rows: &mut Vec<Row>) -> Result<()> {
    loop {
        let batch = port.rx[0].receive()?;
        rows.extend(batch.iter().map(row));
        let idle = batch.is_empty();
        drop(batch);
        if idle && port.rx[0].wait(Duration::from_millis(20))? == Ready::End {
            return Ok(());
        }
    }
}

fn read_all(name: &str) -> (Vec<Row>, Result<()>) {
    let mut rows = Vec::new();
    let result = open(name, &PortOptions::default()).and_then(|mut port| {
        let result = drain(&mut port, &mut rows);
        let account = port.control.account()?.rx_total();
        assert_eq!(
            (account.delivered, account.imbalance()),
            (rows.len() as u64, 0)
        );
        result
    });
    (rows, result)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(bytes, 1).unwrap()
}

/// A pipe as a name, its writing end fed by a thread in pieces of `piece` bytes.
fn read_pipe(bytes: Vec<u8>, piece: usize) -> (Vec<Row>, Result<()>) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let feeder = std::thread::spawn(move || {
        for piece in bytes.chunks(piece) {
            // A reader that met damage has gone.
            if writer.write_all(piece).is_err() {
                return;
            }
        }
    });
    let result = read_all(&format!("file:/proc/self/fd/{}", reader.as_raw_fd()));
    drop(reader);
    feeder.join().unwrap();
    result
}

#[test]
fn every_way_of_reading_gives_the_same_packets() {
    let count = 3000;
    for (is_pcapng, (file, _)) in [(false, pcap_file(count)), (true, pcapng_file(count))] {
        let expected = expected(count, is_pcapng);
        let half = file.len() / 2;
        let members = [gzip(&file[..half]), gzip(&file[half..])].concat();
        let skippable = [
            &[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 9, 9, 9][..],
            &zstd(&file),
        ]
        .concat();
        let frames = [zstd(&file[..half]), zstd(&file[half..])].concat();
        for (how, bytes) in [
            ("plain", &file),
            ("gzip", &gzip(&file)),
            ("gzip of two members", &members),
            ("zstd", &zstd(&file)),
            ("zstd of two frames", &frames),
            ("zstd behind a skippable frame", &skippable),
        ] {
            let temp = Temp::new(bytes);
            let (rows, result) = read_all(&temp.name());
            result.unwrap();
            assert!(rows == expected, "{how}, {is_pcapng}");
            let (rows, result) = read_pipe(bytes.clone(), 61);
            result.unwrap();
            assert!(rows == expected, "{how} through a pipe, {is_pcapng}");
        }
    }
}

/// Bytes behind the last member of a gzip file are named as what they are, and all packets come.
#[test]
fn trailing_garbage_behind_gzip_is_told_and_nothing_is_lost() {
    let (file, _) = pcap_file(100);
    let expected = expected(100, false);
    let half = file.len() / 2;
    let members = [gzip(&file[..half]), gzip(&file[half..])].concat();
    for packed in [gzip(&file), members] {
        for garbage in [
            &b"garbage"[..],
            &[0, 0, 7],
            &[0x1f, 0x8c, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ] {
            let bytes = [&packed[..], garbage].concat();
            let temp = Temp::new(&bytes);
            for (rows, result) in [read_all(&temp.name()), read_pipe(bytes, 61)] {
                let error = result.unwrap_err();
                assert!(rows == expected, "{garbage:?}: {} packets", rows.len());
                assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
                let text = error.to_string();
                assert!(text.contains("trailing garbage"), "{garbage:?}: {text}");
                assert!(text.contains("after 100 packets"), "{text}");
            }
        }
        // Zeros are padding, as for gzip(1).
        let (rows, result) = read_pipe([&packed[..], &[0; 700]].concat(), 61);
        result.unwrap();
        assert!(rows == expected);
        // A member that is cut is cut, the first or a later one.
        let (_, result) = read_pipe(packed[..packed.len() - 9].to_vec(), 61);
        let text = result.unwrap_err().to_string();
        assert!(!text.contains("garbage"), "{text}");
    }
}

#[test]
fn plain_files_are_mapped_and_said_to_be() {
    let temp = Temp::new(&pcapng_file(5).0);
    let port = open(&temp.name(), &PortOptions::default()).unwrap();
    let text = port.control.describe();
    assert_eq!(text.link_type, LinkType::ETHERNET.0);
    assert!(
        text.facts.contains(&("access", "mapped".into())),
        "{text:?}"
    );
    assert!(
        text.facts.contains(&("format", "pcapng".into())),
        "{text:?}"
    );
    let temp = Temp::new(&gzip(&pcap_file(5).0));
    let port = open(&temp.name(), &PortOptions::default()).unwrap();
    let text = port.control.describe();
    assert!(
        text.facts.contains(&("access", "buffered".into())),
        "{text:?}"
    );
    assert!(
        text.facts.contains(&("compression", "gzip".into())),
        "{text:?}"
    );
    assert!(text.memory_len > 0);
}

/// A hostile file: as many interfaces as there may be, in many sections, each with another link
/// type and a name of tens of thousands of bytes.
#[test]
fn many_interfaces_with_long_names_stay_small() {
    let mut buffer = vec![0; 70_000];
    let mut file = Vec::new();
    let (mut count, long) = (0_u16, "\u{e9}".repeat(30_000));
    for _ in 0..3 {
        let section = pcapng::SectionInfo::default();
        let len = pcapng::emit_section(&mut buffer, &section).unwrap();
        file.extend(&buffer[..len]);
        for number in 0..200 {
            // A few that are really long: the file need not be.
            let name = if number % 50 == 0 { &long[..] } else { "x" };
            let info = pcapng::InterfaceInfo::new(LinkType(1000 + count), 0, name);
            let len = pcapng::emit_interface(&mut buffer, &info).unwrap();
            file.extend(&buffer[..len]);
            count += 1;
        }
        let info = pcapng::PacketInfo {
            interface: 199,
            wire_len: 1,
            ..Default::default()
        };
        let len = pcapng::emit_packet(&mut buffer, &info, &[1], "").unwrap();
        file.extend(&buffer[..len]);
    }
    let temp = Temp::new(&file);
    let mut port = open(&temp.name(), &PortOptions::default()).unwrap();
    let mut rows = Vec::new();
    drain(&mut port, &mut rows).unwrap();
    let interfaces: Vec<u16> = rows.iter().map(|row| row.3).collect();
    assert_eq!(interfaces, [199, 399, 599]);
    let all = port.control.describe().interfaces;
    assert_eq!(all.len(), 600);
    assert!(all.iter().all(|(_, name)| name.len() <= 128));
    assert_eq!(all[0], (1000, "\u{e9}".repeat(64)));
    // Who knows some is told of the others only.
    assert_eq!(port.control.interfaces(598), all[598..]);
    assert_eq!(port.control.interfaces(600), []);
    assert_eq!(port.control.interfaces(usize::MAX), []);
}

#[test]
fn interfaces_are_described_as_they_are_met() {
    // The same section twice: the same interfaces. Then one with others.
    let (file, _) = pcapng_file(4);
    let mut buffer = [0; 256];
    let len = pcapng::emit_section(&mut buffer, &pcapng::SectionInfo::default()).unwrap();
    let mut third = buffer[..len].to_vec();
    let info = pcapng::InterfaceInfo::new(LinkType::LINUX_SLL, 0, "left");
    let len = pcapng::emit_interface(&mut buffer, &info).unwrap();
    third.extend(&buffer[..len]);
    let info = pcapng::PacketInfo {
        wire_len: 1,
        ..Default::default()
    };
    let len = pcapng::emit_packet(&mut buffer, &info, &[1], "").unwrap();
    third.extend(&buffer[..len]);
    let temp = Temp::new(&[&file[..], &file, &third].concat());
    let mut port = open(&temp.name(), &PortOptions::default()).unwrap();
    assert_eq!(port.control.describe().interfaces, [(1, "left".to_owned())]);
    let mut rows = Vec::new();
    drain(&mut port, &mut rows).unwrap();
    let interfaces: Vec<u16> = rows.iter().map(|row| row.3).collect();
    assert_eq!(interfaces, [0, 1, 0, 1, 0, 1, 0, 1, 2]);
    let names = [
        (1, "left".to_owned()),
        (101, "right".to_owned()),
        (113, "left".to_owned()),
    ];
    assert_eq!(port.control.describe().interfaces, names);
}

#[test]
fn a_file_cut_anywhere_gives_its_whole_packets_and_then_the_place() {
    for (is_pcapng, (file, ends)) in [(false, pcap_file(12)), (true, pcapng_file(12))] {
        let expected = expected(12, is_pcapng);
        let first = ends[0] - if is_pcapng { 28 + 12 + 4 } else { 16 } - 1;
        for cut in 0..file.len() {
            let temp = Temp::new(&file[..cut]);
            let (rows, result) = read_all(&temp.name());
            let whole = ends.iter().filter(|&&end| end <= cut).count();
            assert!(
                rows == expected[..whole],
                "cut at {cut}: {} of {whole}",
                rows.len()
            );
            let (piped, piped_result) = read_pipe(file[..cut].to_vec(), 4096);
            assert!(piped == rows, "cut at {cut}, through a pipe");
            let text = result.as_ref().map_err(ToString::to_string);
            let piped_text = piped_result.as_ref().map_err(ToString::to_string);
            assert_eq!(text.is_ok(), piped_text.is_ok(), "cut at {cut}");
            match result {
                Ok(()) => assert!(cut <= first || ends.contains(&cut), "cut at {cut}"),
                Err(error) => {
                    assert!(!ends.contains(&cut), "cut at {cut}: {error}");
                    let start = ends.iter().rev().find(|&&end| end <= cut);
                    if let Some(start) = start {
                        let place = format!("byte {start}, after {whole} packets");
                        assert!(error.to_string().contains(&place), "{error}");
                        assert_eq!(error.kind(), ErrorKind::Damaged);
                    }
                }
            }
        }
    }
}

#[test]
fn a_compressed_file_cut_anywhere_gives_what_can_be_unpacked() {
    let (file, ends) = pcap_file(12);
    let expected = expected(12, false);
    for packed in [gzip(&file), zstd(&file)] {
        for cut in 0..packed.len() {
            let temp = Temp::new(&packed[..cut]);
            let (rows, result) = read_all(&temp.name());
            assert!(rows == expected[..rows.len()]);
            let error = result.unwrap_err();
            let is_damage = matches!(error.kind(), ErrorKind::Damaged | ErrorKind::InvalidInput);
            assert!(is_damage, "cut at {cut}: {error}");
            if let Some(last) = rows.len().checked_sub(1) {
                let place = format!("byte {} of the uncompressed file", ends[last]);
                assert!(error.to_string().contains(&place), "{error}");
            }
        }
    }
}

#[test]
fn a_damaged_checksum_is_told_after_the_packets() {
    let (file, _) = pcap_file(50);
    let mut packed = gzip(&file);
    let crc = packed.len() - 8;
    packed[crc] ^= 1;
    let (rows, result) = read_all(&Temp::new(&packed).name());
    assert_eq!(rows.len(), 50);
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Damaged);
}

#[test]
fn what_is_no_capture_is_refused_with_a_reason() {
    for (bytes, part) in [
        (&b""[..], "empty"),
        (
            b"\x7fELF and more of it, for a header's length",
            "7f 45 4c 46",
        ),
        (b"\xfd7zXZ\0", "compressed with xz"),
        (b"BZh91AY", "compressed with bzip2"),
        (b"\xd4\xc3\xb2", "ends after 3"),
    ] {
        let temp = Temp::new(bytes);
        let error = open(&temp.name(), &PortOptions::default()).err().unwrap();
        assert!(error.to_string().contains(part), "{error}");
    }
    let error = open("file:/no/such/file", &PortOptions::default())
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let error = open("file:/tmp", &PortOptions::default()).err().unwrap();
    assert!(
        error.to_string().contains("folder") && error.hint().is_some(),
        "{error}"
    );
}

#[test]
fn hostile_lengths_are_refused_without_memory() {
    let (mut file, ends) = pcap_file(3);
    // The captured length of the third packet.
    let at = ends[1] + 8;
    for len in [262_145u32, 0x7fff_ffff, u32::MAX] {
        file[at..at + 4].copy_from_slice(&len.to_le_bytes());
        for bytes in [file.clone(), gzip(&file)] {
            let (rows, result) = read_all(&Temp::new(&bytes).name());
            assert_eq!(rows.len(), 2);
            let text = result.unwrap_err().to_string();
            assert!(
                text.contains(&len.to_string()) && text.contains("262144"),
                "{text}"
            );
        }
    }
}

#[test]
fn the_longest_packet_fits_the_buffer() {
    let mut file = pcap_file(1).0;
    let mut big = [0; pcap::RECORD_LEN];
    pcap::emit_record(
        &mut big,
        Timestamp(5),
        262_144,
        300_000,
        Precision::Nanoseconds,
    );
    for _ in 0..5 {
        file.extend(big);
        file.extend(std::iter::repeat_n(3, 262_144));
    }
    for bytes in [file.clone(), zstd(&file)] {
        let (rows, result) = read_all(&Temp::new(&bytes).name());
        result.unwrap();
        assert_eq!(rows.len(), 6);
        assert!(
            rows[1..]
                .iter()
                .all(|row| row.1 == vec![3; 262_144] && row.2 == 300_000)
        );
    }
    let (rows, result) = read_pipe(file, 100_000);
    result.unwrap();
    assert_eq!(rows.len(), 6);
}

#[test]
fn packets_may_be_changed_in_place_and_kept() {
    let (file, _) = pcap_file(100);
    for bytes in [file.clone(), zstd(&file)] {
        let temp = Temp::new(&bytes);
        let options = PortOptions {
            batch_max: 7,
            ..PortOptions::default()
        };
        let mut port = open(&temp.name(), &options).unwrap();
        let mut kept = Vec::new();
        let mut number = 0;
        loop {
            let mut batch = port.rx[0].receive().unwrap();
            if batch.is_empty() {
                break;
            }
            for mut packet in batch.iter_mut() {
                for byte in packet.bytes_mut() {
                    *byte ^= 0xff;
                }
            }
            for index in 0..batch.len() {
                kept.push((number, batch.detach(index).unwrap()));
                number += 1;
            }
        }
        let pool = port.rx[0].pool().unwrap().clone();
        assert_eq!(kept.len(), 100);
        let mut cache = FrameCache::new(pool.clone());
        for (number, frame) in kept {
            let changed: Vec<u8> = packet(number).iter().map(|byte| byte ^ 0xff).collect();
            assert_eq!(pool.bytes(&frame), changed);
            cache.give(frame).unwrap();
        }
        assert_eq!(port.rx[0].counters().detach_copies.get(), 100);
        assert_eq!(pool.counts().user, 0);
        assert_eq!(
            std::fs::read(&temp.0).unwrap(),
            bytes,
            "the file stays as it was"
        );
    }
}

#[test]
fn snaplen_and_filter_apply() {
    let (file, _) = pcap_file(40);
    let temp = Temp::new(&file);
    // ld len; jgt 100, keep, reject.
    let insns = [
        (0x80, 0, 0, 0),
        (0x25, 0, 1, 100),
        (0x06, 0, 0, 1),
        (0x06, 0, 0, 0),
    ];
    let insns = insns.map(|(code, jt, jf, k)| bpf::cbpf::Insn::new(code, jt, jf, k));
    let program = bpf::cbpf::Program::new(insns.to_vec()).unwrap();
    let options = PortOptions {
        snaplen: 60,
        filter: Some(program),
        ..PortOptions::default()
    };
    let mut port = open(&temp.name(), &options).unwrap();
    let mut rows = Vec::new();
    drain(&mut port, &mut rows).unwrap();
    let wanted: Vec<Row> = expected(40, false)
        .into_iter()
        .filter(|row| row.2 > 100)
        .collect();
    assert_eq!(rows.len(), wanted.len());
    for (row, wanted) in rows.iter().zip(&wanted) {
        assert_eq!(row.1, wanted.1[..wanted.1.len().min(60)]);
        assert_eq!(row.2, wanted.2);
    }
    let account = port.control.account().unwrap().rx_total();
    assert_eq!(account.seen, 40);
    assert_eq!(
        account.dropped[DropReason::Filter as usize],
        40 - rows.len() as u64
    );
    assert_eq!((account.imbalance(), account.lost()), (0, 0));
}

#[test]
fn a_file_cut_while_it_is_read_ends_and_does_not_kill() {
    let (file, ends) = pcap_file(5000);
    let temp = Temp::new(&file);
    let mut port = open(&temp.name(), &PortOptions::default()).unwrap();
    let first = port.rx[0].receive().unwrap().len();
    assert_eq!(first, 64);
    let cut = ends[1000] + 5;
    File::options()
        .write(true)
        .open(&temp.0)
        .unwrap()
        .set_len(cut as u64)
        .unwrap();
    let mut rows = Vec::new();
    let error = drain(&mut port, &mut rows).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert_eq!(first + rows.len(), 1001);
    assert!(rows == expected(1001, false)[64..]);

    // Cut while a batch is out: its packets read as zeros, and the next call says so.
    let temp = Temp::new(&file);
    let mut port = open(&temp.name(), &PortOptions::default()).unwrap();
    for _ in 0..20 {
        drop(port.rx[0].receive().unwrap());
    }
    let batch = port.rx[0].receive().unwrap();
    File::options()
        .write(true)
        .open(&temp.0)
        .unwrap()
        .set_len(0)
        .unwrap();
    let sum: u64 = batch
        .iter()
        .flat_map(|p| p.bytes().to_vec())
        .map(u64::from)
        .sum();
    assert_eq!(sum, 0);
    drop(batch);
    let error = port.rx[0].receive().err().unwrap();
    assert!(error.to_string().contains("may read as zeros"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Damaged);
}

#[test]
fn a_file_that_grows_is_read_on() {
    let (file, ends) = pcap_file(3000);
    let temp = Temp::new(&file[..ends[999]]);
    let mut port = open(&temp.name(), &PortOptions::default()).unwrap();
    let first = port.rx[0].receive().unwrap().len();
    let mut writer = File::options().append(true).open(&temp.0).unwrap();
    writer.write_all(&file[ends[999]..]).unwrap();
    let mut rows = Vec::new();
    drain(&mut port, &mut rows).unwrap();
    assert!(rows == expected(3000, false)[first..]);
}

/// The packet that is written while the file is opened begins before the last mebibyte's end and
/// before the place where the reader would look again.
#[test]
fn a_large_file_that_grows_within_a_packet_is_read_on() {
    const LOOK_LEN: usize = 1 << 20;
    const LEN: usize = 60_000;
    let (mut file, ends) = pcap_file(20_000);
    let count = ends.partition_point(|end| end + LEN / 2 <= LOOK_LEN);
    file.truncate(ends[count - 1]);
    let mut record = [0; pcap::RECORD_LEN];
    let (time, len) = (Timestamp(7), LEN as u32);
    pcap::emit_record(&mut record, time, len, len, Precision::Nanoseconds);
    file.extend(record);
    file.extend([9; LEN]);
    let there = LOOK_LEN + LEN / 4;
    let temp = Temp::new(&file[..there]);
    let mut port = open(&temp.name(), &PortOptions::default()).unwrap();
    let first = port.rx[0].receive().unwrap().len();
    let mut writer = File::options().append(true).open(&temp.0).unwrap();
    writer.write_all(&file[there..]).unwrap();
    let mut rows = Vec::new();
    drain(&mut port, &mut rows).unwrap();
    assert_eq!(first + rows.len(), count + 1);
    assert_eq!(rows.last().unwrap().1, [9; LEN]);
}

#[test]
fn stop_ends_a_file_early() {
    let temp = Temp::new(&pcap_file(3000).0);
    let mut port = open(&temp.name(), &PortOptions::default()).unwrap();
    assert_eq!(port.rx[0].receive().unwrap().len(), 64);
    port.control.stop().unwrap();
    assert!(port.rx[0].receive().unwrap().is_empty());
    assert_eq!(port.rx[0].wait(Duration::ZERO).unwrap(), Ready::End);
    assert_eq!(port.control.account().unwrap().rx_total().imbalance(), 0);
}

#[test]
fn a_question_mark_may_be_part_of_a_name() {
    let mut temp = Temp::new(&pcap_file(3).0);
    let odd = temp.0.with_extension("?batch=1");
    std::fs::rename(&temp.0, &odd).unwrap();
    temp.0 = odd;
    assert_eq!(read_all(&temp.name()).0.len(), 3);
    // Where there is no such file it is an option as ever.
    let error = open("file:/no/such?colour=red", &PortOptions::default())
        .err()
        .unwrap();
    assert!(error.to_string().contains("colour"), "{error}");
}

#[test]
fn standard_input_is_named_by_a_dash() {
    // The test's own standard input cannot be fed; the names must at least reach this backend.
    for name in ["-", "file:-"] {
        let parsed = crate::PortName::parse(name).unwrap();
        assert_eq!((parsed.scheme, parsed.target.as_str()), ("file", "-"));
    }
    assert!(Path::new("/proc/self/fd/0").exists());
}

#[test]
fn each_link_type_has_a_filter_of_its_own() {
    let (file, _) = pcapng_file(100);
    let temp = Temp::new(&file);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let notes = asked.clone();
    // Everything of Ethernet, nothing of raw IP.
    let source = crate::FilterSource::new(move |target| {
        notes.lock().unwrap().push(target.link_type);
        let insn = bpf::cbpf::Insn::new(0x06, 0, 0, u32::from(target.link_type == 1));
        Ok(Some(bpf::cbpf::Program::new(vec![insn]).unwrap()))
    });
    let options = PortOptions {
        filter_source: Some(source),
        ..PortOptions::default()
    };
    let mut port = open(&temp.name(), &options).unwrap();
    let mut rows = Vec::new();
    drain(&mut port, &mut rows).unwrap();
    assert_eq!(rows.len(), 50);
    assert!(rows.iter().all(|row| row.3 == 0));
    assert_eq!(*asked.lock().unwrap(), [1, 101]);
    let account = port.control.account().unwrap().rx_total();
    assert_eq!(account.dropped[DropReason::Filter as usize], 50);
    assert_eq!(account.imbalance(), 0);

    let refusing = crate::FilterSource::new(|target| match target.link_type {
        1 => Ok(None),
        _ => Err(Error::new(
            ErrorKind::InvalidInput,
            "compile",
            "no such field",
        )),
    });
    let options = PortOptions {
        filter_source: Some(refusing),
        ..PortOptions::default()
    };
    let mut port = open(&temp.name(), &options).unwrap();
    let error = port.rx[0].receive().err().unwrap();
    assert_eq!(error.to_string(), "cannot compile: no such field");
}
