//! Sets of capture files: names, limits, sizes, and what the summary says about them.

use std::path::PathBuf;

use crate::capture::{Folder, capture, parse_pcap};
use lab::random::Random;
use serde_json::Value;

/// Packets of 1,000 hardly compressible bytes, one every 100 ms.
fn sample(count: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65535, 1] {
        bytes.extend(word.to_le_bytes());
    }
    let mut random = Random::seeded("packets");
    for n in 0..count {
        let head = [1_700_000_000 + n / 10, n % 10 * 100_000, 1000, 1000];
        bytes.extend(head.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(n.to_be_bytes());
        bytes.extend((4..1000).map(|_| random.number() as u8));
    }
    bytes
}

struct Set {
    folder: Folder,
    summary: String,
}

/// Captures the sample to a set of files.
fn set(count: u32, name: &str, more: &[&str]) -> Set {
    let (folder, input) = (Folder::new(), Folder::new());
    let path = input.at("input.pcap");
    std::fs::write(&path, sample(count)).unwrap();
    let output = folder.at(name);
    let args = ["-r", path.to_str().unwrap(), "-w", output.to_str().unwrap()];
    let done = capture(args.iter().chain(more)).checked().unwrap();
    let summary = done.stderr + &done.stdout;
    Set { folder, summary }
}

impl Set {
    /// The number at the start of each packet of a file.
    fn packets(&self, name: &str) -> Vec<u32> {
        let copy = Folder::new();
        let plain = copy.at("plain.pcap");
        let read = self.folder.at(name);
        let args = ["-r", read.to_str().unwrap(), "-w", plain.to_str().unwrap()];
        capture(args).checked().unwrap();
        let packets = parse_pcap(&std::fs::read(plain).unwrap());
        let number = |bytes: &Vec<u8>| u32::from_be_bytes(bytes[..4].try_into().unwrap());
        packets.iter().map(|packet| number(&packet.1)).collect()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.at(name)
    }
}

#[test]
fn by_size_and_time_the_last_files_are_kept() {
    for (name, kept) in [
        // 100 packets in 10 s: 30 of them in 3 s, 20 of which fill a file.
        ("x.pcap", ["x0.pcap", "x1.pcap"]),
        (
            "x-%s.pcapng",
            ["x-17000000061.pcapng", "x-17000000090.pcapng"],
        ),
        (
            "x-%s.pcapng.zst",
            ["x-17000000061.pcapng.zst", "x-17000000090.pcapng.zst"],
        ),
    ] {
        let set = set(100, name, &["-C", "20k", "-G", "3", "-W", "2"]);
        assert_eq!(set.folder.names(), kept, "{name}");
        let mut packets: Vec<u32> = kept.iter().flat_map(|name| set.packets(name)).collect();
        packets.sort_unstable();
        let last = *packets.last().unwrap();
        assert_eq!(last, 99, "{name}");
        // They are the last ones, without a gap.
        let expected: Vec<u32> = (100 - packets.len() as u32..100).collect();
        assert_eq!(packets, expected, "{name}");
        let words = "files (";
        assert!(set.summary.contains(words), "{}", set.summary);
        for file in kept {
            let path = set.path(file);
            assert!(
                set.summary.contains(path.to_str().unwrap()),
                "{}",
                set.summary
            );
        }
        assert!(
            set.summary.contains("the last 2 are kept"),
            "{}",
            set.summary
        );
    }
}

#[test]
fn the_summary_names_the_files_on_disk() {
    for (name, more, files) in [
        ("x.pcap", &[][..], &["x.pcap"][..]),
        ("x-%s.pcap", &["-G", "100"], &["x-1700000000.pcap"]),
        (
            "x-%s.pcap",
            &["-G", "5"],
            &["x-1700000000.pcap", "x-1700000005.pcap"],
        ),
        (
            "c.pcapng.zst",
            &["-C", "60k"],
            &["c.pcapng.zst", "c1.pcapng.zst"],
        ),
        (
            "c.pcapng.gz",
            &["-C", "60k", "-W", "5"],
            &["c0.pcapng.gz", "c1.pcapng.gz"],
        ),
    ] {
        let set = set(100, name, more);
        assert_eq!(set.folder.names(), files, "{name} {more:?}");
        for file in files {
            let path = set.path(file);
            assert!(
                set.summary.contains(path.to_str().unwrap()),
                "{}",
                set.summary
            );
        }
        assert!(!set.summary.contains('%'), "{}", set.summary);
    }
    let json = set(100, "x-%s.pcap", &["-G", "5", "--json"]).summary;
    let totals: Value = json
        .lines()
        .find_map(|line| serde_json::from_str(line).ok())
        .unwrap();
    for (key, file) in [
        ("first_file", "x-1700000000.pcap"),
        ("last_file", "x-1700000005.pcap"),
    ] {
        assert!(
            totals["written"][key].as_str().unwrap().ends_with(file),
            "{totals}"
        );
    }
}

#[test]
fn compressed_files_are_as_large_as_requested() {
    for name in ["x.pcapng.zst", "x.pcap.gz"] {
        let set = set(1000, name, &["-C", "100k"]);
        let names = set.folder.names();
        let lens = names
            .iter()
            .map(|name| set.path(name).metadata().unwrap().len());
        let mut lens: Vec<u64> = lens.collect();
        lens.sort_unstable();
        // All but the last one.
        let full = &lens[1..];
        assert!(lens.len() >= 9, "{lens:?}");
        // One packet more than the limit, and the end of the file. The fastest level of gzip makes
        // random bytes longer by 4 %.
        let is_full = |len: &u64| (95_000..108_500).contains(len);
        assert!(full.iter().all(is_full), "{name}: {lens:?}");
        let mut packets: Vec<u32> = names.iter().flat_map(|name| set.packets(name)).collect();
        packets.sort_unstable();
        assert_eq!(packets, (0..1000).collect::<Vec<u32>>());
    }
}
