//! `barewire capture -r X -w Y`: what a copy keeps, and that everything written is read again.

use std::io::Read;
use std::path::Path;

use crate::capture::{Folder, capture, count_with_capinfos};
use lab::{corpus, skip};
use wire::LinkType;
use wire::Timestamp;
use wire::file::pcapng::{self, InterfaceInfo, PacketInfo, SectionInfo};
use wire::file::{Direction, MAX_PACKET_LEN, Statistics};

const SECOND_NS: u64 = 1_000_000_000;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A pcapng file that is put together block by block.
#[derive(Default)]
struct Blocks(Vec<u8>);

impl Blocks {
    /// Adds what an emitter writes into a buffer with room for `room` bytes.
    fn add(&mut self, room: usize, emit: impl FnOnce(&mut [u8]) -> Option<usize>) -> &mut Self {
        let mut block = vec![0; room + 1024];
        let len = emit(&mut block).unwrap();
        self.0.extend_from_slice(&block[..len]);
        self
    }

    fn section(&mut self) -> &mut Self {
        let info = SectionInfo {
            hardware: "PDP-11",
            os: "Unix V6",
            application: "by hand",
            comment: "of another machine",
        };
        self.add(0, |out| pcapng::emit_section(out, &info))
    }

    fn interface(&mut self, link: u16, name: &str) -> &mut Self {
        let info = InterfaceInfo::new(LinkType(link), 0, name);
        self.add(0, |out| pcapng::emit_interface(out, &info))
    }

    fn packet(&mut self, info: PacketInfo, last: u8, comment: &str) -> &mut Self {
        let mut packet = [0; 60];
        packet[12..15].copy_from_slice(&[8, 0, 0x45]);
        packet[17] = 46;
        packet[22..24].copy_from_slice(&[64, if last.is_multiple_of(2) { 17 } else { 6 }]);
        packet[59] = last;
        let info = PacketInfo {
            wire_len: 60,
            ..info
        };
        self.add(comment.len(), |out| {
            pcapng::emit_packet(out, &info, &packet, comment)
        })
    }

    /// A block of any type.
    fn raw(&mut self, kind: u32, body: &[u8]) -> &mut Self {
        let len = (12 + body.len().next_multiple_of(4)) as u32;
        self.0.extend(kind.to_le_bytes());
        self.0.extend(len.to_le_bytes());
        self.0.extend(body);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self.0.extend(len.to_le_bytes());
        self
    }

    fn statistics(&mut self, dropped: u64, os_dropped: u64) -> &mut Self {
        let statistics = Statistics {
            interface: 0,
            received: Some(100),
            dropped: Some(dropped),
            os_dropped: Some(os_dropped),
            ..Statistics::default()
        };
        self.add(0, |out| {
            pcapng::emit_statistics(out, &statistics, Timestamp(5), "at the end")
        })
    }
}

fn at_second(second: u64) -> PacketInfo {
    PacketInfo {
        time: Timestamp(second * SECOND_NS),
        ..PacketInfo::default()
    }
}

/// A file with something of everything: names, secrets, a journal entry, custom and unknown blocks
/// before, between and after packets, options, counters, an interface that nothing uses.
fn rich() -> Vec<u8> {
    let mut file = Blocks::default();
    let incoming = PacketInfo {
        direction: Direction::In,
        dropped: 7,
        ..at_second(1)
    };
    file.section()
        .interface(1, "eth0")
        .interface(249, "usb0")
        .raw(10, b"TLSK\x08\0\0\0CLIENT_R")
        .packet(incoming, 0, "the first")
        .raw(4, &[0; 4])
        .raw(0xbad, &[1, 2, 3, 4, 5])
        .packet(at_second(2), 1, &"long ".repeat(12_000))
        .raw(9, b"__REALTIME_TIMESTAMP=1\n")
        .raw(0xbad, &vec![9; 700_000])
        .packet(at_second(3), 2, "")
        .statistics(3, 6)
        .raw(0x4000_0bad, &[0; 16]);
    file.0
}

#[test]
fn a_copy_without_a_filter_is_equal_byte_by_byte() {
    let folder = Folder::new();
    let (mut copied, file) = (0, folder.at("rich.pcapng"));
    std::fs::write(&file, rich()).unwrap();
    let corpus = corpus::captures();
    // The first bytes tell: names do not.
    let is_pcapng = |path: &&std::path::PathBuf| {
        let (mut start, file) = ([0; 4], std::fs::File::open(path).unwrap());
        let is_short = file.metadata().unwrap().len() < 1 << 20;
        is_short && (&file).read_exact(&mut start).is_ok() && start == [10, 13, 13, 10]
    };
    let files = corpus.files.iter().filter(is_pcapng);
    let files = files.step_by(corpus.at_least(4, 1));
    for path in files.chain([&file]) {
        let copy = folder.at("copy.pcapng");
        let _ = std::fs::remove_file(&copy);
        let done = capture(["-r", text(path), "-w", text(&copy)]);
        // There is none of a file that is damaged from its start.
        let copy = std::fs::read(&copy).unwrap_or_default();
        let whole = std::fs::read(path).unwrap();
        // Of a damaged file everything before the damage is copied.
        match corpus::is_damaged(path) {
            true => assert!(whole.starts_with(&copy), "{}", path.display()),
            false => assert!(done.success() && whole == copy, "{}", path.display()),
        }
        copied += 1;
    }
    assert!(copied > corpus.at_least(20, 3), "only {copied}");
    for (name, more) in [("b.pcapng", &["--print"][..]), ("c.pcapng", &["-U"])] {
        let copy = folder.at(name);
        let args = ["-r", text(&file), "-w", text(&copy)];
        let done = capture(args.iter().chain(more)).checked().unwrap();
        assert!(std::fs::read(&copy).unwrap() == rich(), "{name}");
        assert_eq!(
            done.stdout.lines().count(),
            if name == "b.pcapng" { 3 } else { 0 }
        );
    }
}

#[test]
fn a_filtered_copy_keeps_everything_but_packets() {
    lab::require!(skip::program("tshark", "tshark"));
    let folder = Folder::new();
    let (file, copy) = (folder.at("rich.pcapng"), folder.at("copy.pcapng"));
    std::fs::write(&file, rich()).unwrap();
    capture(["-r", text(&file), "-w", text(&copy), "udp"])
        .checked()
        .unwrap();
    let (whole, copied) = (std::fs::read(&file).unwrap(), std::fs::read(&copy).unwrap());
    let mut rest = whole.as_slice();
    let (mut expected, mut packets) = (Vec::new(), 0);
    while let Some(block) = pcapng::Block::of(rest) {
        let (bytes, tail) = rest.split_at(block.len);
        let is_packet = block.kind == pcapng::BlockKind::Packet;
        packets += usize::from(is_packet);
        if !is_packet || packets != 2 {
            expected.extend_from_slice(bytes);
        }
        rest = tail;
    }
    assert!(copied == expected);
    let comments = std::process::Command::new("tshark")
        .args(["-r", text(&copy), "-T", "fields", "-e", "frame.comment"])
        .output()
        .unwrap();
    assert!(comments.stdout.starts_with(b"the first\n"));
    // Shortened, with a limit, and as a set: still readable, with the same interfaces.
    for (index, args) in [&["-s", "20"][..], &["-c", "1"], &["-C", "65536"]]
        .iter()
        .enumerate()
    {
        let pattern = folder.at(&format!("{index}.pcapng"));
        let first = ["-r", text(&file), "-w", text(&pattern)];
        capture(first.iter().chain(*args)).checked().unwrap();
        let expected = if args[0] == "-c" { 1 } else { 3 };
        let names = folder.names().into_iter();
        let written = names.filter(|name| name.starts_with(&format!("{index}.")));
        let counts = written.map(|name| count_with_capinfos(&folder.at(&name)));
        assert_eq!(counts.sum::<u64>(), expected, "{args:?}");
    }
}

#[test]
fn what_a_file_states_is_reported() {
    let folder = Folder::new();
    let file = folder.at("rich.pcapng");
    std::fs::write(&file, rich()).unwrap();
    let done = capture(["-r", text(&file), "--json"]).checked().unwrap();
    let lines: Vec<serde_json::Value> = done
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines[0]["outgoing"], false);
    assert!(lines[1].get("outgoing").is_none());
    // 7 before a packet and 9 by the counters are the same losses.
    assert_eq!(lines[3]["account"]["total"]["capture_lost"], 9);
    assert!(
        done.stderr
            .contains("9 packets lost when the file was captured")
    );
}

#[test]
fn an_unused_or_unsuitable_interface_does_not_end_a_filtered_read() {
    let folder = Folder::new();
    let file = folder.at("mixed.pcapng");
    for (link_first, rejected) in [(1, 0), (249, 0), (1, 2), (249, 2)] {
        let mut blocks = Blocks::default();
        let ethernet = u32::from(link_first != 1);
        blocks.section().interface(link_first, "a");
        blocks.interface(250 - link_first, "b");
        for second in 0..4 {
            let interface = if second < rejected {
                1 - ethernet
            } else {
                ethernet
            };
            let info = PacketInfo {
                interface,
                ..at_second(second)
            };
            blocks.packet(info, 0, "");
        }
        std::fs::write(&file, &blocks.0).unwrap();
        let done = capture(["-r", text(&file), "--count", "udp"])
            .checked()
            .unwrap();
        assert_eq!(done.stdout, format!("{} packets\n", 4 - rejected));
        assert_eq!(
            done.stderr.contains("USBPCAP"),
            rejected != 0 || link_first == 249
        );
        let wrong = capture(["-r", text(&file), "--count", "udpp"]);
        assert!(
            !wrong.success() && wrong.stderr.contains("udpp"),
            "{}",
            wrong.stderr
        );
    }
}

#[test]
fn what_is_merged_is_read_again() {
    let folder = Folder::new();
    let count = 700;
    let names: Vec<String> = (0..count)
        .map(|number| {
            let path = folder.at(&format!("{number:03}.pcapng"));
            let mut blocks = Blocks::default();
            blocks.section().interface(1, &format!("veth{number}"));
            // A sorted set, except that each fourth file overlaps its neighbours.
            let start = number * 10;
            let step = if number % 4 == 0 { 9 } else { 1 };
            for packet in 0..3 {
                blocks.packet(at_second(start + packet * step), packet as u8, "");
            }
            std::fs::write(&path, &blocks.0).unwrap();
            text(&path).to_owned()
        })
        .collect();
    let list = folder.at("list");
    std::fs::write(&list, names.join("\n")).unwrap();
    let merged = folder.at("merged.pcapng");
    capture(["-V", text(&list), "-w", text(&merged)])
        .checked()
        .unwrap();
    let done = capture(["-r", text(&merged), "-tt"]).checked().unwrap();
    let times: Vec<&str> = done
        .stdout
        .lines()
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    assert_eq!(times.len() as u64, 3 * count);
    let seconds: Vec<f64> = times.iter().map(|time| time.parse().unwrap()).collect();
    assert!(seconds.is_sorted());
    let selected = capture(["-V", text(&list), "--count", "tcp"])
        .checked()
        .unwrap();
    assert_eq!(selected.stdout, format!("{count} packets\n"));
}

#[test]
fn long_blocks_and_late_times_are_handled() {
    let folder = Folder::new();
    let file = folder.at("long.pcapng");
    let mut blocks = Blocks::default();
    blocks
        .section()
        .interface(1, "eth0")
        .packet(at_second(1), 0, "");
    // A packet with 1.2 MB of comments.
    let start = blocks.0.len();
    blocks.packet(at_second(5_000_000_000), 0, "x");
    let mut block = blocks.0.split_off(start);
    let comment: Vec<u8> = [1u16.to_le_bytes(), 60_000u16.to_le_bytes()].concat();
    let options: Vec<u8> = comment.into_iter().chain(vec![b'y'; 60_000]).collect();
    let at = pcapng::PACKET_HEAD_LEN + 60;
    block.splice(at..at, options.repeat(20));
    let len = (block.len() as u32).to_le_bytes();
    let end = block.len() - 4;
    block[4..8].copy_from_slice(&len);
    block[end..].copy_from_slice(&len);
    blocks.0.extend(block);
    blocks.packet(at_second(2), 0, "");
    std::fs::write(&file, &blocks.0).unwrap();
    assert!(blocks.0.len() > 3 * MAX_PACKET_LEN as usize);
    for name in ["copy.pcapng", "copy.pcapng.zst"] {
        let copy = folder.at(name);
        capture(["-r", text(&file), "-w", text(&copy)])
            .checked()
            .unwrap();
        // The compressed one is read through a buffer.
        let again = folder.at("again.pcapng");
        capture(["-r", text(&copy), "-w", text(&again)])
            .checked()
            .unwrap();
        assert!(std::fs::read(&again).unwrap() == blocks.0, "{name}");
    }
    let pcap = folder.at("x.pcap");
    let done = capture(["-r", text(&file), "-w", text(&pcap)])
        .checked()
        .unwrap();
    assert!(
        done.stderr.contains("1 packet written with a wrong time"),
        "{}",
        done.stderr
    );
}
