//! A capture rich in applications: real connections of the large corpus, merged.
//!
//! The captures for decoder tests are merged into one capture, many times over: they start shortly
//! after one another, and every repetition starts a second after the previous one with different
//! addresses, so that all are active at once and no flow occurs twice. Longer pauses than a second
//! are shortened to that.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use wire::LinkType;
use wire::file::{Event, Reader};

use crate::workload::Capture;

/// The sources of captures, as named in the corpus.
const SOURCES: [&str; 6] = [
    "nDPI",
    "mercury",
    "zeek",
    "ipfixprobe",
    "arkime",
    "suricata-verify",
];

/// Time between the starts of two captures.
const STAGGER_NS: u64 = 10_000_000;
/// Time between the starts of two repetitions, and the longest pause.
const SECOND_NS: u64 = 1_000_000_000;

/// A packet, and its time from the start.
struct Packet {
    at_ns: u64,
    bytes: Vec<u8>,
    wire_len: u32,
}

/// Writes the capture with this many repetitions, and returns the number of files merged.
///
/// # Errors
/// If the corpus cannot be read or has none of these, or the file cannot be written.
pub fn join(corpus: &Path, path: &Path, repetitions: u32) -> Result<usize> {
    let folder = corpus.join("pcap");
    let mut files: Vec<_> = folder
        .read_dir()
        .with_context(|| format!("read {}", folder.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            let source = name.and_then(|name| Some(name.split_once("__")?.0));
            source.is_some_and(|source| SOURCES.contains(&source))
        })
        .collect();
    files.sort();
    let (mut packets, mut used) = (Vec::new(), 0);
    for file in &files {
        let before = packets.len();
        let bytes = std::fs::read(file).with_context(|| format!("read {}", file.display()))?;
        read(&bytes, used * STAGGER_NS, &mut packets);
        used += u64::from(packets.len() != before);
    }
    ensure!(used != 0, "no capture of {SOURCES:?} in the corpus");

    let mut order: Vec<(u64, u32, u32)> = Vec::new();
    for repetition in 0..repetitions {
        let start_ns = u64::from(repetition) * SECOND_NS;
        let times = packets.iter().map(|packet| packet.at_ns + start_ns);
        order.extend(
            times
                .zip(0..)
                .map(|(at_ns, index)| (at_ns, repetition, index)),
        );
    }
    order.sort_unstable();
    let mut capture = Capture::create(path)?;
    let mut bytes = Vec::new();
    for (at_ns, repetition, index) in order {
        let packet = &packets[index as usize];
        bytes.clone_from(&packet.bytes);
        renumber(&mut bytes, repetition as u16 * 37);
        capture.put_at(&bytes, packet.wire_len, at_ns)?;
    }
    capture.end()?;
    Ok(used as usize)
}

/// The packets of an Ethernet capture, as far as it can be read: some are damaged on purpose.
fn read(file: &[u8], start_ns: u64, packets: &mut Vec<Packet>) {
    let (mut reader, mut at) = (Reader::new(), 0);
    let (mut at_ns, mut last_ns) = (start_ns, None);
    while let Ok(event) = reader.next(file.get(at..).unwrap_or(&[])) {
        match &event {
            Event::Need(_) => return,
            Event::Packet(packet) if packet.link == LinkType::ETHERNET => {
                let time_ns = packet.time.ns();
                let pause_ns = time_ns.saturating_sub(last_ns.unwrap_or(time_ns));
                at_ns += pause_ns.min(SECOND_NS);
                last_ns = Some(time_ns);
                packets.push(Packet {
                    at_ns,
                    bytes: file[at..][packet.data.clone()].to_vec(),
                    wire_len: packet.wire_len,
                });
            }
            _ => {}
        }
        at += event.used();
    }
}

/// Changes the addresses in the outermost IP header: what is added to one half of an address is
/// subtracted from the other, in ones' complement, so that all checksums stay correct.
fn renumber(packet: &mut [u8], by: u16) {
    let mut at = 12;
    while let Some([0x81 | 0x88, 0x00 | 0xa8]) = packet.get(at..at + 2) {
        at += 4;
    }
    let fields: [usize; 2] = match packet.get(at..at + 2) {
        Some([0x08, 0x00]) if packet.len() >= at + 22 => [at + 14, at + 18],
        Some([0x86, 0xdd]) if packet.len() >= at + 42 => [at + 22, at + 38],
        _ => return,
    };
    for field in fields {
        for (place, add) in [(field, by), (field + 2, u16::MAX - by)] {
            let word = u16::from_be_bytes([packet[place], packet[place + 1]]);
            let sum = (u32::from(word) + u32::from(add)) % u32::from(u16::MAX);
            packet[place..place + 2].copy_from_slice(&(sum as u16).to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ones' complement sum of 16-bit words.
    fn sum(bytes: &[u8]) -> u64 {
        let words = bytes
            .chunks(2)
            .map(|w| u64::from(w[0]) << 8 | u64::from(w[1]));
        words.sum::<u64>() % 0xffff
    }

    #[test]
    fn renumbering_keeps_the_checksum() {
        for (kind, len, field) in [([8, 0], 34, 26), ([0x86, 0xdd], 54, 34)] {
            let mut packet: Vec<u8> = (0..len).map(|at| at as u8 ^ 0x5a).collect();
            packet[12..14].copy_from_slice(&kind);
            for by in [1, 37, 0x8000] {
                let mut other = packet.clone();
                renumber(&mut other, by);
                assert_ne!(other[field..], packet[field..]);
                assert_eq!(sum(&other), sum(&packet));
                assert_eq!(other[..field - 12], packet[..field - 12]);
            }
            let mut same = packet.clone();
            renumber(&mut same, 0);
            assert_eq!(same, packet);
        }
    }
}
