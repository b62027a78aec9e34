//! Every available capture is read, and has as many packets as other programs count.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::capture::{self, Row, captures, read_with_tcpdump};
use lab::corpus;
use port::{PortOptions, Ready};

/// Files with packets longer than their own snapshot length, or than their wire length. libpcap
/// truncates the former to that length; tshark and barewire keep all bytes. barewire never reports
/// fewer bytes on the wire than are present.
const LONGER_THAN_SAID: [&str; 10] = [
    "zeek__trunc__trunc-hdr.pcap",
    "tcpdump__extract_read2_asan.pcap",
    "tcpdump__icmp-icmp_print-oobr-2.pcap",
    "tcpdump__lmp-lmp_print_data_link_subobjs-oobr.pcap",
    "tcpdump__mobility_opt_asan.pcap",
    "tcpdump__mobility_opt_asan_2.pcap",
    "tcpdump__pim-packet-assortment.pcap",
    "tcpdump__rpl-dao-oobr.pcap",
    "tcpdump__rsvp-rsvp_obj_print-oobr.pcap",
    "libpcap__slip-sliplink_print-oobr.pcap",
];

/// Reads a file: its packets, and how it ended.
fn read(path: &Path) -> (Vec<Row>, Result<(), String>) {
    let name = format!("file:{}", path.display());
    let mut rows = Vec::new();
    let mut port = match port::open(&name, &PortOptions::default()) {
        Ok(port) => port,
        Err(error) => return (rows, Err(error.to_string())),
    };
    let result = loop {
        let batch = match port.rx[0].receive() {
            Ok(batch) => batch,
            Err(error) => break Err(error.to_string()),
        };
        let row = |packet: port::Packet<'_>| {
            let time = packet.time_ns().unwrap_or(0);
            (time, packet.bytes().to_vec(), packet.wire_len())
        };
        rows.extend(batch.iter().map(row));
        let idle = batch.is_empty();
        drop(batch);
        if idle && port.rx[0].wait(Duration::ZERO).unwrap() == Ready::End {
            break Ok(());
        }
    };
    let account = port.control.account().unwrap().rx_total();
    assert_eq!(account.delivered, rows.len() as u64);
    assert_eq!(account.imbalance(), 0);
    (rows, result)
}

#[test]
fn every_capture_has_as_many_packets_as_other_programs_count() {
    lab::require!(corpus::large());
    let captures = captures(&corpus::large().unwrap());
    assert_eq!(captures.len(), corpus::LARGE_COUNT);
    let mut wrong = Vec::new();
    for (path, count) in captures {
        let name = path.file_name().unwrap().to_str().unwrap();
        let exception = corpus::DAMAGED.iter().find(|row| row.0 == name);
        let (count, part) = exception.map_or((count, ""), |row| (row.1, row.2));
        let (rows, result) = read(&path);
        let ended_as_expected = match &result {
            Ok(()) => part.is_empty(),
            Err(error) => !part.is_empty() && error.contains(part),
        };
        if rows.len() as u64 != count || !ended_as_expected {
            wrong.push(format!("{name}: {} of {count}, {result:?}", rows.len()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_packet_equals_that_of_libpcap() {
    lab::require!(lab::skip::program("tcpdump", "tcpdump"));
    let corpus = corpus::captures();
    let (mut compared, mut wrong) = (0, Vec::new());
    for path in &corpus.files {
        let Some(theirs) = read_with_tcpdump(path) else {
            continue;
        };
        compared += 1;
        let (ours, _) = read(path);
        let name = path.file_name().unwrap().to_str().unwrap();
        let is_longer = LONGER_THAN_SAID.contains(&name);
        let is_same = |(ours, theirs): (&Row, &Row)| {
            let wire_len = theirs.2.max(ours.1.len() as u32);
            let cut = (ours.0, ours.1.starts_with(&theirs.1), ours.2);
            ours == theirs || is_longer && cut == (theirs.0, true, wire_len)
        };
        let at = ours.iter().zip(&theirs).position(|pair| !is_same(pair));
        if at.is_some() || ours.len() != theirs.len() {
            let at = at.map(|at| {
                let (a, b) = (&ours[at], &theirs[at]);
                (at, a.0, b.0, a.1.len(), b.1.len(), a.2, b.2, a.1 == b.1)
            });
            wrong.push(format!(
                "{name}: {} and {}, {at:?}",
                ours.len(),
                theirs.len()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(
        compared >= corpus.at_least(600, 4),
        "tcpdump read only {compared}"
    );
}

#[test]
fn hexadecimal_dumps_equal_those_of_tcpdump() {
    lab::require!(lab::skip::program("tcpdump", "tcpdump"));
    let corpus = corpus::captures();
    let (mut compared, mut different) = (0, BTreeSet::new());
    let mut known = BTreeSet::new();
    for path in corpus.files.iter().step_by(corpus.at_least(5, 1)) {
        let name = path.file_name().unwrap().to_str().unwrap();
        // libpcap truncates packets longer than the file's own limit.
        known.extend(
            LONGER_THAN_SAID
                .into_iter()
                .filter(|longer| *longer == name),
        );
        for flag in ["-xx", "-XX"] {
            let mut command = Command::new("tcpdump");
            command
                .args(["-Z", "root", "-n", "-t", flag, "-r"])
                .arg(path);
            let theirs = lab::oracle::cache::output(&mut command, path).unwrap();
            let ours = capture::capture(["-n", "-t", flag, "-r", path.to_str().unwrap()]);
            assert!(
                ours.success() || corpus::is_damaged(path),
                "{name}: {ours:?}"
            );
            if !theirs.status.success() {
                continue;
            }
            let dumps = |text: &str| {
                let rows = text.lines().filter(|line| line.starts_with("\t0x"));
                rows.map(str::to_owned).collect::<Vec<_>>()
            };
            let theirs = dumps(&String::from_utf8_lossy(&theirs.stdout));
            if theirs.is_empty() {
                continue;
            }
            compared += 1;
            if dumps(&ours.stdout) != theirs {
                different.insert(name);
            }
        }
    }
    assert!(compared >= corpus.at_least(200, 8), "only {compared}");
    assert_eq!(different, known, "files that differ, and those known to");
}
