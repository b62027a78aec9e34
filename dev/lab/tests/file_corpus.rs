//! Every available capture is read, and has as many packets as other programs count.

use std::path::Path;
use std::time::Duration;

use crate::capture::{Row, captures, read_with_tcpdump};
use lab::corpus;
use port::{PortOptions, Ready};

/// Files with another count, with an error at the end, or of a type unknown to capinfos: the number
/// of packets, a part of the error (empty: none), and the reason.
const EXCEPTIONS: [(&str, u64, &str, &str); 4] = [
    (
        "nDPI__fuzz-2021-10-13.pcap",
        1,
        "ends after 2 of 16 bytes of a record; byte 237, after 1 packets",
        "two bytes follow the last packet; capinfos and tcpdump report the cut, as we do",
    ),
    (
        "libpcap__pcap-invalid-version-2.pcap",
        0,
        "version 2.5",
        "libpcap refuses 2.5 (that is what the file tests); capinfos reads on",
    ),
    (
        "libpcap__pcapng-invalid-vers-1.pcapng",
        0,
        "version 0.1",
        "refused by capinfos and libpcap too; the manifest counts the packet behind it",
    ),
    (
        "libpcap__pcapng-invalid-vers-2.pcapng",
        0,
        "version 1.1",
        "refused by capinfos and libpcap too; the manifest counts the packet behind it",
    ),
];

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
    assert_eq!(captures.len(), 696);
    let mut wrong = Vec::new();
    for (path, count) in captures {
        let name = path.file_name().unwrap().to_str().unwrap();
        let exception = EXCEPTIONS.iter().find(|row| row.0 == name);
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
