//! Damaged capture files: the packets before the damage are read, the error has the offset, and the
//! exit code is 3.
//!
//! The files are written here, block by block, so that what is before each byte is known without a
//! reader of ours; libpcap reads them, too.

use std::path::Path;
use std::process::Command;

use crate::capture::{self, Folder, Row, parse_pcap, read_with_tcpdump};
use lab::skip;

/// A part of a file that is read at once: a header, a record or a block.
struct Part {
    start: usize,
    end: usize,
    packet: Option<Row>,
}

/// A capture file, and where its parts are.
struct Made {
    name: &'static str,
    bytes: Vec<u8>,
    parts: Vec<Part>,
    is_big_endian: bool,
}

const PACKET_COUNT: u32 = 6;

/// A packet that differs from the others in time, length and content.
fn packet(number: u32) -> Row {
    let time_ns = 1_700_000_000_000_000_000 + u64::from(number) * 1_000_000_007;
    let len = 60 + (number as usize * 37) % 90;
    let mut bytes = vec![number as u8; len];
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    // One is cut off by a snapshot length.
    let wire_len = len as u32 + if number == 3 { 1000 } else { 0 };
    (time_ns, bytes, wire_len)
}

impl Made {
    fn new(name: &'static str, is_big_endian: bool) -> Made {
        Made {
            name,
            bytes: Vec::new(),
            parts: Vec::new(),
            is_big_endian,
        }
    }

    fn words(&self, words: &[u32]) -> Vec<u8> {
        let order = match self.is_big_endian {
            true => u32::to_be_bytes,
            false => u32::to_le_bytes,
        };
        words.iter().flat_map(|word| order(*word)).collect()
    }

    fn halves(&self, halves: &[u16]) -> Vec<u8> {
        let order = match self.is_big_endian {
            true => u16::to_be_bytes,
            false => u16::to_le_bytes,
        };
        halves.iter().flat_map(|half| order(*half)).collect()
    }

    fn part(&mut self, bytes: &[u8], packet: Option<Row>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        let end = self.bytes.len();
        self.parts.push(Part { start, end, packet });
    }

    /// A file of tcpdump with nanoseconds.
    fn pcap(is_big_endian: bool) -> Made {
        let mut made = Made::new("pcap", is_big_endian);
        let versions = made.halves(&[2, 4]);
        let head = [
            made.words(&[0xa1b2_3c4d]),
            versions,
            made.words(&[0, 0, 65535, 1]),
        ];
        made.part(&head.concat(), None);
        for number in 0..PACKET_COUNT {
            let row = packet(number);
            let (time_ns, bytes, wire_len) = row.clone();
            let (seconds, rest) = (time_ns / 1_000_000_000, time_ns % 1_000_000_000);
            let head = [seconds as u32, rest as u32, bytes.len() as u32, wire_len];
            let record = [made.words(&head), bytes].concat();
            made.part(&record, Some(row));
        }
        made
    }

    /// A block of pcapng with this body, which is padded.
    fn block(&mut self, kind: u32, body: &[u8], packet: Option<Row>) {
        let padded = body.len().next_multiple_of(4);
        let len = self.words(&[padded as u32 + 12]);
        let mut block = [self.words(&[kind]), len.clone(), body.to_vec()].concat();
        block.resize(8 + padded, 0);
        block.extend(len);
        self.part(&block, packet);
    }

    fn section(&mut self) {
        let versions = self.halves(&[1, 0]);
        let body = [
            self.words(&[0x1a2b_3c4d]),
            versions,
            self.words(&[u32::MAX, u32::MAX]),
        ];
        self.block(0x0a0d_0d0a, &body.concat(), None);
        // Ethernet, and nanoseconds (if_tsresol, option 9).
        let head = self.halves(&[1, 0]);
        let resolution = [self.halves(&[9, 1]), vec![9, 0, 0, 0]].concat();
        let body = [head, self.words(&[65535]), resolution, self.words(&[0])];
        self.block(1, &body.concat(), None);
    }

    /// A file of two sections, with blocks that are no packets among the packets.
    fn pcapng(is_big_endian: bool) -> Made {
        let mut made = Made::new("pcapng", is_big_endian);
        for numbers in [0..PACKET_COUNT / 2, PACKET_COUNT / 2..PACKET_COUNT] {
            made.section();
            for number in numbers {
                let row = packet(number);
                let (time_ns, bytes, wire_len) = row.clone();
                let times = [(time_ns >> 32) as u32, time_ns as u32];
                let head = [0, times[0], times[1], bytes.len() as u32, wire_len];
                let padding = vec![0; bytes.len().next_multiple_of(4) - bytes.len()];
                let comment = [made.halves(&[1, 5]), b"hello\0\0\0".to_vec()].concat();
                let end = made.words(&[0]);
                let body = [made.words(&head), bytes, padding, comment, end].concat();
                made.block(6, &body, Some(row));
                // Interface statistics, and a block of a type for local use.
                let statistics = made.words(&[0, times[0], times[1]]);
                made.block(5, &statistics, None);
                made.block(0x8000_0bad, b"of another program", None);
            }
        }
        made
    }

    /// The packets in parts that end at this byte or before.
    fn before(&self, at: usize) -> Vec<Row> {
        let whole = self.parts.iter().filter(|part| part.end <= at);
        whole.filter_map(|part| part.packet.clone()).collect()
    }

    /// Bytes at and beside the limits of every part and of its head.
    fn cuts(&self) -> Vec<usize> {
        let mut cuts = Vec::new();
        for Part { start, end, .. } in &self.parts {
            let (first, last) = (*start, *end);
            cuts.extend([first + 1, first + 8, first + 16, last - 1, last]);
        }
        cuts.retain(|cut| *cut <= self.bytes.len());
        cuts.sort_unstable();
        cuts.dedup();
        cuts
    }
}

fn all() -> Vec<Made> {
    let orders = [false, true];
    let both = orders.map(|order| [Made::pcap(order), Made::pcapng(order)]);
    both.into_iter().flatten().collect()
}

/// The packets that libpcap reads before an error.
fn by_libpcap(path: &Path) -> Vec<Row> {
    let mut command = Command::new("tcpdump");
    command.args(["-Z", "root", "--time-stamp-precision=nano", "-w", "-", "-r"]);
    let output = command.arg(path).output().unwrap();
    match output.stdout.is_empty() {
        // It refuses files in which no interface is described.
        true => Vec::new(),
        false => parse_pcap(&output.stdout),
    }
}

/// Reads a file up to its damage; the offset of the error must be `offset`, without damage `None`.
fn check(what: &str, bytes: &[u8], expected: &[Row], offset: Option<usize>) {
    let folder = Folder::new();
    let (file, copy) = (folder.at("damaged"), folder.at("copy.pcap"));
    std::fs::write(&file, bytes).unwrap();
    assert_eq!(by_libpcap(&file), expected, "libpcap, {what}");
    let paths = [&file, &copy].map(|path| path.to_str().unwrap());
    let result = capture::capture(["-r", paths[0], "-w", paths[1]]);
    let error = &result.stderr;
    // It is not created for a file in which no interface is described.
    let rows = match copy.exists() {
        true => read_with_tcpdump(&copy).unwrap_or_else(|| panic!("{what}: {error}")),
        false => Vec::new(),
    };
    assert_eq!(rows, expected, "{what}: {error}");
    let count = expected.len();
    match offset {
        None => {
            assert_eq!(result.code(), Some(0), "{what}: {error}");
            assert!(!error.contains("; byte "), "{what}: {error}");
        }
        Some(offset) => {
            assert_eq!(result.code(), Some(3), "{what}: {error}");
            let place = format!("; byte {offset}, after {count} packets");
            assert!(error.contains(&place), "{what}: {place}: {error}");
        }
    }
    if !bytes.len().is_multiple_of(4) {
        return;
    }
    // Lines are those of the same packets.
    let printed = capture::capture(["-r", paths[0], "-n", "-t"]);
    assert_eq!(printed.stdout.lines().count(), count, "{what}");
    assert_eq!(printed.code(), result.code(), "{what}");
}

#[test]
fn files_that_end_early_are_read_up_to_their_last_whole_packet() {
    lab::require!(skip::program("tcpdump", "tcpdump"));
    for made in all() {
        let head = made.parts[0].end;
        for cut in made.cuts().into_iter().filter(|cut| *cut >= head) {
            let what = format!(
                "{} ({} endian) cut to {cut} bytes",
                made.name,
                if made.is_big_endian { "big" } else { "little" }
            );
            let inside = made
                .parts
                .iter()
                .find(|part| part.start < cut && cut < part.end);
            let offset = inside.map(|part| part.start);
            check(&what, &made.bytes[..cut], &made.before(cut), offset);
        }
    }
}

/// A number of a part that is wrong: where in the part, and what is there instead.
type Damage = (&'static str, usize, u32);

/// In a record: lengths that no packet has.
const OF_PCAP: &[Damage] = &[
    ("captured length", 8, 0x7fff_ffff),
    ("captured length", 8, 262_145),
];

/// In a packet block: its length, the interface, and the captured length.
const OF_PCAPNG: &[Damage] = &[
    ("no block length", 4, 0),
    ("odd block length", 4, 33),
    ("huge block length", 4, 0xffff_fff0),
    ("unknown interface", 8, 7),
    ("captured length beyond the block", 20, 4000),
];

#[test]
fn files_with_wrong_numbers_are_read_up_to_the_wrong_number() {
    lab::require!(skip::program("tcpdump", "tcpdump"));
    for made in all() {
        let damages = match made.name {
            "pcap" => OF_PCAP,
            _ => OF_PCAPNG,
        };
        for part in made.parts.iter().filter(|part| part.packet.is_some()) {
            for (what, at, value) in damages {
                let mut bytes = made.bytes.clone();
                let place = part.start + at;
                bytes[place..place + 4].copy_from_slice(&made.words(&[*value]));
                let what = format!("{}: {what} {value:#x} at {place}", made.name);
                check(&what, &bytes, &made.before(part.start), Some(part.start));
            }
            if made.name == "pcapng" {
                // The length at the end differs from that at the start.
                let mut bytes = made.bytes.clone();
                bytes[part.end - 4..part.end].copy_from_slice(&made.words(&[12]));
                let what = format!("pcapng: other length at {}", part.end - 4);
                check(&what, &bytes, &made.before(part.start), Some(part.start));
            }
        }
    }
}
