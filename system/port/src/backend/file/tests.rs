//! Readers of every kind on generated files: complete, truncated, modified and hostile. Files made
//! by other programs are read in the lab.

mod damage;

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use ring::FrameCache;
use wire::file::pcap::Precision;
use wire::file::{Direction as Way, pcap, pcapng};
use wire::{LinkType, Timestamp};

use super::*;
use crate::account::DropReason;
use crate::open::open;
use crate::rx::Ready;

/// A packet as read: time, bytes, wire length, interface, outgoing.
type Row = (Option<u64>, Vec<u8>, u32, u16, bool);

/// A temporary file, deleted on drop.
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

/// A pcap file, and the offset after each of its packets.
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

/// One pcapng section with two interfaces, and the offset after each of its packets.
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

/// A pipe with a name, whose writing end a thread feeds in pieces of `piece` bytes.
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
fn all_read_methods_give_the_same_packets() {
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

#[test]
fn plain_files_are_mapped_and_described_as_such() {
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

/// A hostile file: the maximum number of interfaces, in many sections, each with another link type
/// and a name of tens of thousands of bytes.
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
    // A reader that has some gets only the others.
    assert_eq!(port.control.interfaces(598), all[598..]);
    assert_eq!(port.control.interfaces(600), []);
    assert_eq!(port.control.interfaces(usize::MAX), []);
}

#[test]
fn interfaces_are_described_as_they_are_read() {
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
                kept.push((number, batch.detach(index).unwrap().frame));
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
fn a_name_may_contain_a_question_mark() {
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
fn each_link_type_has_its_own_filter() {
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
    let mut rows = Vec::new();
    drain(&mut port, &mut rows).unwrap();
    assert_eq!(rows.len(), 50);
    let account = port.control.account().unwrap().rx_total();
    assert_eq!((account.filter_unsuitable, account.imbalance()), (50, 0));
    let facts = port.control.describe().facts;
    assert!(facts.contains(&("filter unsuitable for", "RAW".to_owned())));

    // An expression that suits no link type is wrong.
    let wrong = crate::FilterSource::new(|_| {
        let why = "no such field";
        Err(Error::new(ErrorKind::InvalidInput, "compile", why))
    });
    let options = PortOptions {
        filter_source: Some(wrong),
        ..PortOptions::default()
    };
    let error = open(&temp.name(), &options).err().unwrap();
    assert_eq!(error.to_string(), "cannot compile: no such field");
}
