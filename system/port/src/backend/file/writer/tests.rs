//! Written files are read back by barewire's own reader; other programs read them in the lab.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ring::slot::Vlan;

use super::super::rotation::Rotation;
use super::*;
use crate::open::open;
use crate::options::{Direction, PortOptions};
use crate::port::Port;
use crate::rx::Ready;

/// A temporary directory, deleted on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("bw-write-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Names of the files in it, sorted.
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let name = |entry: io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
        let mut names: Vec<String> = entries
            .map(|entry| name(entry).into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A packet as read: time, bytes, wire length, interface, whether the host sent it.
type Row = (u64, Vec<u8>, u32, u16, bool);

fn read(path: &Path) -> (Vec<Row>, Port) {
    let name = format!("file:{}", path.display());
    let mut port = open(&name, &PortOptions::default()).unwrap();
    let mut rows = Vec::new();
    loop {
        let batch = port.rx[0].receive().unwrap();
        let row = |p: Packet<'_>| {
            let time_ns = p.time_ns().unwrap();
            (
                time_ns,
                p.bytes().to_vec(),
                p.wire_len(),
                p.interface_index(),
                p.is_outgoing(),
            )
        };
        rows.extend(batch.iter().map(row));
        let idle = batch.is_empty();
        drop(batch);
        if idle && port.rx[0].wait(Duration::ZERO).unwrap() == Ready::End {
            return (rows, port);
        }
    }
}

fn bytes(number: u32) -> Vec<u8> {
    let len = 60 + number * 61 % 1455;
    (0..len).map(|i| (i * 3 + number) as u8).collect()
}

/// Writes `count` packets, one per second.
fn fill(writer: &mut FileWriter, interface: u32, count: u32) -> Vec<Row> {
    let mut rows = Vec::new();
    for number in 0..count {
        let bytes = bytes(number);
        let record = Record {
            time_ns: 1_700_000_000_123_456_789 + u64::from(number) * 1_000_000_000,
            wire_len: bytes.len() as u32 + number % 5,
            interface,
            outgoing: Some(number % 2 == 1),
            vlan: None,
        };
        let (one, two) = bytes.split_at(bytes.len() / 3);
        let wrote = writer.write(&record, [one, two].into_iter()).unwrap();
        assert_eq!(wrote, WriteFormat::Packet);
        rows.push((
            record.time_ns,
            bytes,
            record.wire_len,
            interface as u16,
            number % 2 == 1,
        ));
    }
    rows
}

fn ethernet(name: &str) -> FileInterface {
    FileInterface {
        link_type: 1,
        name: name.into(),
        filter: "udp or tcp".into(),
    }
}

#[test]
fn every_kind_is_read_back() {
    let folder = Folder::new();
    for (name, compressed) in [
        ("x.pcap", None),
        ("x.pcapng", None),
        ("x", None),
        ("x.pcap.gz", Some([0x1f, 0x8b])),
        ("x.pcapng.zst", Some([0x28, 0xb5])),
    ] {
        let path = folder.at(name);
        let mut writer = FileWriter::create(WriterOptions::new(&path)).unwrap();
        let interface = writer.interface(ethernet("one")).unwrap();
        let mut wanted = fill(&mut writer, interface, 3000);
        if name.contains(".pcap.") || name.ends_with(".pcap") {
            wanted.iter_mut().for_each(|row| row.4 = false);
        }
        let written = writer.finish().unwrap();
        let len = path.metadata().unwrap().len();
        assert_eq!(
            (written.packets, written.bytes, written.files),
            (3000, len, 1)
        );
        let start = std::fs::read(&path).unwrap();
        if let Some(magic) = compressed {
            assert_eq!(start[..2], magic);
            assert!(len < 2_000_000, "{name}: {len}");
        }
        let (rows, _) = read(&path);
        assert!(rows == wanted, "{name}");
    }
}

#[test]
fn several_interfaces_names_and_link_types() {
    let folder = Folder::new();
    let path = folder.at("x.pcapng");
    let mut writer = FileWriter::create(WriterOptions::new(&path)).unwrap();
    let one = writer.interface(ethernet("one")).unwrap();
    let mut wanted = fill(&mut writer, one, 10);
    let raw = FileInterface {
        link_type: 101,
        name: "two".into(),
        filter: "".into(),
    };
    let two = writer.interface(raw.clone()).unwrap();
    wanted.extend(fill(&mut writer, two, 10));
    writer.statistics(two, 10, 1, 2);
    writer.finish().unwrap();
    let (rows, port) = read(&path);
    assert!(rows == wanted);
    let interfaces = port.control.describe().interfaces;
    assert_eq!(interfaces, [(1, "one".to_owned()), (101, "two".to_owned())]);

    let mut writer = FileWriter::create(WriterOptions::new(folder.at("x.pcap"))).unwrap();
    writer.interface(ethernet("one")).unwrap();
    writer.interface(ethernet("same link type")).unwrap();
    let error = writer.interface(raw).unwrap_err();
    assert!(error.to_string().contains("EN10MB and RAW"), "{error}");
    assert!(error.hint().unwrap().contains("pcapng"));
}

#[test]
fn tags_are_restored_and_snaplen_applies() {
    let folder = Folder::new();
    let packet = bytes(3);
    for (snaplen, is_cut) in [(0, false), (50, true)] {
        let path = folder.at("x.pcapng");
        let mut options = WriterOptions::new(&path);
        options.snaplen = snaplen;
        let mut writer = FileWriter::create(options).unwrap();
        let interface = writer.interface(ethernet("one")).unwrap();
        let tag = Some(Vlan {
            tpid: 0x88a8,
            tci: 0x6123,
        });
        for vlan in [tag, None] {
            let wire_len = packet.len() as u32;
            let record = Record {
                wire_len,
                interface,
                vlan,
                ..Record::default()
            };
            let _ = writer.write(&record, std::iter::once(&packet[..])).unwrap();
        }
        // Too short for addresses: there is no place to put a tag back.
        let record = Record {
            wire_len: 4,
            interface,
            vlan: tag,
            ..Record::default()
        };
        let _ = writer
            .write(&record, std::iter::once(&packet[..4]))
            .unwrap();
        writer.finish().unwrap();
        let (rows, _) = read(&path);
        let len = if is_cut { 50 } else { packet.len() };
        let tagged = [&packet[..12], &[0x88, 0xa8, 0x61, 0x23], &packet[12..]].concat();
        let tagged_len = if is_cut { 50 } else { tagged.len() };
        assert_eq!(rows[0].1, tagged[..tagged_len]);
        assert_eq!(rows[0].2 as usize, tagged.len());
        assert_eq!(rows[1].1, packet[..len]);
        assert_eq!(rows[1].2 as usize, packet.len());
        assert_eq!((&rows[2].1[..], rows[2].2), (&packet[..4], 4));
    }
}

/// The file is the same for any producer of the records, and any number of them at a time.
#[test]
fn records_encoded_elsewhere_are_those_of_the_writer() {
    let folder = Folder::new();
    let vlan = Some(Vlan {
        tpid: 0x8100,
        tci: 0x123,
    });
    for (name, snaplen) in [("x.pcap", 0), ("x.pcapng", 0), ("x.pcapng", 50)] {
        let files = [0, 1, 2].map(|way| {
            let path = folder.at(name);
            let mut options = WriterOptions::new(&path);
            options.snaplen = snaplen;
            let mut writer = FileWriter::create(options).unwrap();
            let interface = writer.interface(ethernet("one")).unwrap();
            assert!(writer.takes_records());
            let (mut all, mut kept) = (Vec::new(), 0);
            for number in 0..1000 {
                let bytes = bytes(number);
                let record = Record {
                    time_ns: 1_700_000_000_123_456_789 + u64::from(number),
                    wire_len: bytes.len() as u32,
                    interface,
                    outgoing: [None, Some(false), Some(true)][number as usize % 3],
                    vlan: vlan.filter(|_| number % 2 == 1),
                };
                let once = std::iter::once(&bytes[..]);
                let mut room = vec![0xff; bytes.len() + Encoder::EXTRA_MAX];
                let encoder = writer.encoder();
                let made = encoder.encode(&mut room, &record, bytes.len(), once.clone());
                let wrote = match way {
                    0 => writer.write(&record, once).unwrap(),
                    1 => writer.record(record.time_ns, &room[..made.len]).unwrap(),
                    _ => {
                        all.extend_from_slice(&room[..made.len]);
                        WriteFormat::Packet
                    }
                };
                assert_eq!(wrote, WriteFormat::Packet);
                assert_eq!(encoder.kept_len(&room[..made.len]), made.kept_len);
                kept += u64::from(made.kept_len);
            }
            if way == 2 {
                writer.records(&all, 1000, kept, 1_700_000_000).unwrap();
                assert_eq!((writer.written().packets, writer.waiting()), (1000, 0));
            }
            let handed = writer.handed();
            assert_eq!(writer.finish().unwrap().packets, 1000);
            assert_eq!((handed.packets(), handed.captured_bytes()), (1000, kept));
            std::fs::read(path).unwrap()
        });
        assert!(files[0] == files[1] && files[1] == files[2], "{name}");
    }
    // What is lost with the head of the file is counted.
    let mut writer = FileWriter::create(WriterOptions::new("/dev/full")).unwrap();
    writer.interface(ethernet("one")).unwrap();
    let error = writer.records(&[0; 104], 1, 60, 0).unwrap_err();
    assert!(error.to_string().contains("1 more are lost"), "{error}");
    assert_eq!(writer.waiting(), 1);
}

#[test]
fn a_file_without_packets_is_a_capture() {
    let folder = Folder::new();
    for name in ["x.pcap", "x.pcapng", "x.pcap.zst", "x-%s.pcapng"] {
        let mut options = WriterOptions::new(folder.at(name));
        options.rotation.period_s = u64::from(name.contains('%')) * 5;
        let mut writer = FileWriter::create(options).unwrap();
        writer.interface(ethernet("one")).unwrap();
        assert_eq!(writer.finish().unwrap().files, 1);
    }
    let names = folder.names();
    assert_eq!(names.len(), 4, "{names:?}");
    for name in names {
        assert!(read(&folder.at(&name)).0.is_empty());
    }
}

#[test]
fn sets_of_files_hold_every_packet_once() {
    for (name, period_s) in [
        ("x.pcap", 0),
        ("x.pcapng", 0),
        ("x.pcapng.zst", 0),
        ("%s.pcap", 7),
    ] {
        let folder = Folder::new();
        let mut options = WriterOptions::new(folder.at(name));
        options.rotation = Rotation {
            size_max: 20_000,
            period_s,
            count_max: 0,
        };
        let mut writer = FileWriter::create(options).unwrap();
        let interface = writer.interface(ethernet("one")).unwrap();
        let wanted = fill(&mut writer, interface, 300);
        let written = writer.finish().unwrap();
        assert_eq!(written.packets, 300);
        let names = folder.names();
        assert_eq!(names.len(), written.files as usize);
        // The size is that of the compressed file.
        let is_packed = name.ends_with("zst");
        assert!(written.files > 3 || is_packed, "{name}: {names:?}");
        let mut rows = Vec::new();
        let mut len = 0;
        for name in names {
            rows.extend(read(&folder.at(&name)).0);
            let file_len = folder.at(&name).metadata().unwrap().len();
            // One packet more than the limit, and what ends a file.
            assert!(
                file_len < 20_000 + 1700 || name.ends_with("zst"),
                "{name}: {file_len}"
            );
            len += file_len;
        }
        assert_eq!(len, written.bytes);
        rows.sort_by_key(|row| row.0);
        assert_eq!(rows.len(), wanted.len());
        assert!(
            rows.iter()
                .zip(&wanted)
                .all(|(a, b)| a.1 == b.1 && a.0 == b.0)
        );
    }
}

#[test]
fn a_limited_set_of_files_ends_or_wraps_around() {
    let folder = Folder::new();
    let mut options = WriterOptions::new(folder.at("x.pcap"));
    options.rotation = Rotation {
        size_max: 20_000,
        period_s: 0,
        count_max: 3,
    };
    let mut writer = FileWriter::create(options).unwrap();
    let interface = writer.interface(ethernet("one")).unwrap();
    let wanted = fill(&mut writer, interface, 300);
    writer.finish().unwrap();
    assert_eq!(folder.names(), ["x0.pcap", "x1.pcap", "x2.pcap"]);
    let mut rows: Vec<Row> = folder
        .names()
        .iter()
        .flat_map(|name| read(&folder.at(name)).0)
        .collect();
    rows.sort_by_key(|row| row.0);
    let last = &wanted[wanted.len() - rows.len()..];
    assert!(rows.len() > 30 && rows.iter().zip(last).all(|(a, b)| a.1 == b.1));

    let folder = Folder::new();
    let mut options = WriterOptions::new(folder.at("%s.pcap"));
    options.rotation = Rotation {
        size_max: 0,
        period_s: 10,
        count_max: 2,
    };
    let mut writer = FileWriter::create(options).unwrap();
    let interface = writer.interface(ethernet("one")).unwrap();
    fill(&mut writer, interface, 20);
    let record = Record {
        time_ns: 1_700_000_020_123_456_789,
        ..Record::default()
    };
    for _ in 0..3 {
        assert_eq!(
            writer
                .write(&record, std::iter::once(&[0; 60][..]))
                .unwrap(),
            WriteFormat::Full
        );
    }
    writer.flush().unwrap();
    assert_eq!(writer.finish().unwrap().packets, 20);
    assert_eq!(folder.names(), ["1700000000.pcap", "1700000010.pcap"]);
}

#[test]
fn whole_records_are_found() {
    let folder = Folder::new();
    for (name, has_head) in [("x.pcap", true), ("x.pcapng", false)] {
        let path = folder.at(name);
        let options = WriterOptions::new(&path);
        let format = options.format;
        let mut writer = FileWriter::create(options).unwrap();
        let interface = writer.interface(ethernet("one")).unwrap();
        fill(&mut writer, interface, 20);
        writer.finish().unwrap();
        let file = std::fs::read(&path).unwrap();
        let mut last = (0, 0);
        for cut in 0..=file.len() {
            let whole = whole_records(format, has_head, &file[..cut], usize::MAX);
            let (len, packets) = (whole.len, whole.packets);
            assert!(len <= cut && len >= last.0 && packets >= last.1);
            if len != last.0 {
                assert_eq!(len, cut, "a record ends where it ends");
            }
            last = (len, packets);
        }
        assert_eq!(last, (file.len(), 20));
    }
}

#[test]
fn write_errors_are_reported() {
    let folder = Folder::new();
    for (path, part) in [
        (folder.at("no/such/x.pcap"), "mkdir -p"),
        (folder.0.clone(), "give a file"),
        (PathBuf::from("/proc/x.pcap"), ""),
    ] {
        let error = FileWriter::create(WriterOptions::new(path)).err().unwrap();
        assert!(error.hint().unwrap_or("").contains(part), "{error}");
    }
    let mut writer = FileWriter::create(WriterOptions::new("/dev/full")).unwrap();
    let interface = writer.interface(ethernet("one")).unwrap();
    fill(&mut writer, interface, 5);
    let error = writer.flush().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    let text = "0 packets (0 bytes) were written and are readable, 5 more are lost";
    assert!(error.to_string().contains(text), "{error}");
    let record = Record::default();
    assert!(writer.write(&record, std::iter::empty()).is_err());
    assert!(writer.flush().is_err());
    assert_eq!(writer.finish().unwrap().packets, 0);
}

#[test]
fn a_port_writes_sent_packets() {
    let folder = Folder::new();
    let path = folder.at("x.pcapng");
    let options = PortOptions {
        direction: Direction::Tx,
        label: Some("out".into()),
        ..PortOptions::default()
    };
    let mut port = open(&format!("file:{}", path.display()), &options).unwrap();
    let mut wanted = Vec::new();
    for number in 0..500 {
        // Longer than a frame of the pool now and then.
        let bytes = if number % 50 == 7 {
            vec![number as u8; 9000]
        } else {
            bytes(number)
        };
        let mut batch = port.tx[0].reserve(8).unwrap();
        assert!(batch.write(&bytes));
        batch.submit().unwrap();
        port.tx[0].flush().unwrap();
        wanted.push(bytes);
    }
    assert!(port.tx[0].wait(true, Duration::ZERO).unwrap());
    let account = port.control.account().unwrap().tx_total();
    let len: usize = wanted.iter().map(Vec::len).sum();
    assert_eq!(
        (account.sent, account.sent_bytes, account.failed),
        (500, len as u64, 0)
    );
    drop(port);
    let (rows, port) = read(&path);
    assert!(rows.iter().map(|row| &row.1).eq(&wanted));
    assert!(rows.is_sorted_by_key(|row| row.0) && rows[0].0 > 1_700_000_000_000_000_000);
    assert_eq!(port.control.describe().interfaces, [(1, "out".to_owned())]);

    let mut port = open("file:/dev/full", &options).unwrap();
    let mut batch = port.tx[0].reserve(8).unwrap();
    assert!(batch.write(&bytes(1)) && batch.write(&bytes(2)));
    batch.submit().unwrap();
    assert!(port.tx[0].wait(true, Duration::ZERO).is_err());
    let account = port.control.account().unwrap().tx_total();
    assert_eq!((account.sent, account.failed), (0, 2));
}
