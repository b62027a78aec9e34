//! Exports read by tshark: every message is well formed, sequence numbers are as expected, sums are
//! equal; and sequence numbers show messages lost in transit.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::export::{Folder, LIMIT, Totals, captures, flood, run};
use lab::oracle::{TempFile, write_pcap};
use lab::packet::{Addresses, Udp};
use lab::process::Process;
use lab::random::Random;
use lab::{require, skip};
use serde_json::Value;

/// The port for which tshark decodes exports by default.
const PORT: u16 = 4739;

/// A socket that stores what it receives.
struct Collector {
    port: u16,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Vec<u8>>>,
}

impl Collector {
    fn start() -> Collector {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        socket
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let thread = std::thread::spawn(move || {
            let (mut messages, mut buffer) = (Vec::new(), vec![0; 65536]);
            loop {
                match socket.recv(&mut buffer) {
                    Ok(len) => messages.push(buffer[..len].to_vec()),
                    Err(e) if e.kind() != ErrorKind::WouldBlock => panic!("{e}"),
                    Err(_) if over.load(Ordering::Relaxed) => return messages,
                    Err(_) => {}
                }
            }
        });
        Collector {
            port,
            is_over,
            thread,
        }
    }

    fn end(self) -> Vec<Vec<u8>> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// A capture of these messages.
fn capture(messages: &[Vec<u8>]) -> TempFile {
    let udp = Udp {
        source_mac: [2, 0, 0, 0, 0, 1],
        destination_mac: [2, 0, 0, 0, 0, 2],
        addresses: Addresses::V4([192, 0, 2, 1].into(), [192, 0, 2, 2].into()),
        source_port: 40_000,
        destination_port: PORT,
        flow_count: 1,
        vlan: None,
    };
    let packets = messages.iter().map(|message| {
        // Ethernet, IPv4 and UDP headers: 42 bytes. The checksum of UDP may be left out.
        let mut packet = udp.build(0, 42 + message.len());
        packet[42..].copy_from_slice(message);
        packet[40..42].fill(0);
        packet
    });
    write_pcap(&packets.collect::<Vec<_>>()).unwrap()
}

fn tshark(file: &Path, args: &[&str]) -> String {
    let mut command = Command::new("tshark");
    command.args(["-n", "-d", &format!("udp.port=={PORT},cflow"), "-r"]);
    command.arg(file).args(args);
    let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    finished.checked().unwrap().stdout
}

/// Sums of packets and bytes that tshark finds.
fn sums(file: &Path) -> (u64, u64) {
    let fields = [
        "-T",
        "fields",
        "-E",
        "aggregator=,",
        "-e",
        "cflow.packets",
        "-e",
        "cflow.octets",
    ];
    let (mut packets, mut bytes) = (0, 0);
    for line in tshark(file, &fields).lines() {
        let mut columns = line.split('\t').map(|column| {
            let numbers = column.split(',').filter(|word| !word.is_empty());
            numbers
                .map(|word| word.parse::<u64>().unwrap())
                .sum::<u64>()
        });
        packets += columns.next().unwrap_or(0);
        bytes += columns.next().unwrap_or(0);
    }
    (packets, bytes)
}

fn export_all(format: &str, options: &str, files: &[PathBuf]) -> (Vec<Vec<u8>>, Totals) {
    let collector = Collector::start();
    let mut expected = Totals::default();
    for (at, file) in files.iter().enumerate() {
        let domain = at + 1;
        let url = format!(
            "{format}:udp://127.0.0.1:{}?rate=20000&domain={domain}{options}",
            collector.port
        );
        let run = run(file, &["--key", "vlan", "--export", &url]);
        let only_four = format == "netflow5";
        expected.add(run.totals(|flow: &Value| !only_four || flow["ip_version"] == 4));
    }
    (collector.end(), expected)
}

#[test]
fn every_message_is_well_formed() {
    require!(skip::program("tshark", "tshark"));
    for (format, options, len_max, every) in [
        (
            "ipfix",
            "&fields=payloadOctetDeltaCount,reversePayloadOctetDeltaCount",
            1400,
            20,
        ),
        ("ipfix", "&uniflow&mtu=512", 512, 60),
        ("netflow9", "", 1400, 60),
        ("netflow5", "", 1464, 60),
    ] {
        let (messages, expected) = export_all(format, options, &captures(every));
        assert!(expected.packets > 200, "{expected:?}");
        assert!(messages.iter().all(|message| message.len() <= len_max));
        let file = capture(&messages);
        let malformed = tshark(
            file.path(),
            &["-Y", "_ws.malformed || _ws.expert.severity >= 6291456"],
        );
        assert_eq!(malformed, "", "{format}{options}");
        // tshark does not know that domains have separate sequence numbers in version 5.
        let unexpected = tshark(file.path(), &["-Y", "cflow.unexpected_sequence_number"]);
        if format != "netflow5" {
            assert_eq!(unexpected, "", "{format}{options}");
        }
        assert_eq!(
            sums(file.path()),
            (expected.packets, expected.bytes),
            "{format}{options}"
        );
    }
}

/// The loss by tshark's arithmetic. Of IPFIX and NetFlow 9 it reports each sequence number that it
/// did not expect, with the one that it did; of NetFlow 5 it shows numbers and counts.
fn loss(file: &Path, format: &str) -> u64 {
    let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("{text:?}"));
    if format == "netflow5" {
        let rows = fields(file, &["cflow.sequence", "cflow.count"]);
        let pairs = rows.windows(2).map(|pair| {
            let next = number(&pair[0][0]) + number(&pair[0][1]);
            number(&pair[1][0]).checked_sub(next).unwrap()
        });
        return pairs.sum();
    }
    let rows = fields(file, &["_ws.expert.message"]);
    let reported = rows.iter().filter_map(|row| {
        let (_, numbers) = row[0].split_once("(expected ")?;
        let (expected, got) = numbers.trim_end_matches(')').split_once(", got ")?;
        Some(number(got).checked_sub(number(expected)).unwrap())
    });
    reported.sum()
}

/// Fields of each message.
fn fields(file: &Path, names: &[&str]) -> Vec<Vec<String>> {
    let decode = format!("udp.port=={PORT},cflow");
    lab::oracle::tshark::fields(file, names, &["-d", &decode]).unwrap()
}

/// Messages lost in transit: the loss that tshark computes from the sequence numbers is that of the
/// records, or in NetFlow 9 of the messages, that tshark finds in what was lost.
#[test]
fn loss_is_seen_by_the_collector() {
    require!(skip::program("tshark", "tshark"));
    let folder = Folder::new("tshark-loss");
    let flows = folder.0.join("flows.pcap");
    std::fs::write(&flows, flood(900)).unwrap();
    let mut random = Random::seeded("lost messages");
    for (format, options) in [
        ("ipfix", "&uniflow&mtu=512"),
        ("ipfix", "&mtu=700"),
        ("netflow9", "&mtu=512"),
        ("netflow5", ""),
    ] {
        let (messages, expected) = export_all(format, options, std::slice::from_ref(&flows));
        assert!(
            expected.directions >= 900 && messages.len() > 20,
            "{format}"
        );
        // A flow in one direction has one counter of octets.
        let whole = capture(&messages);
        let counters = fields(whole.path(), &["cflow.octets"]).into_iter();
        let counts: Vec<u64> = counters
            .map(|row| row[0].split(',').filter(|word| !word.is_empty()).count() as u64)
            .collect();
        assert_eq!(counts.iter().sum::<u64>(), expected.directions, "{format}");
        assert_eq!(loss(whole.path(), format), 0, "{format}{options}");
        for round in 0..4 {
            // Neither the first messages, with the templates, nor the last one, which nothing
            // follows; single ones and runs.
            let is_lost = |at: &usize| {
                let is_inside = *at > 3 && at + 1 < messages.len();
                is_inside && (random.below(5) == 0 || (8..8 + 2 * round).contains(at))
            };
            let lost: Vec<usize> = (0..messages.len()).filter(is_lost).collect();
            assert!(!lost.is_empty());
            let kept = (0..messages.len()).filter(|at| !lost.contains(at));
            let kept: Vec<Vec<u8>> = kept.map(|at| messages[at].clone()).collect();
            let actual = match format {
                "netflow9" => lost.len() as u64,
                _ => lost.iter().map(|at| counts[*at]).sum(),
            };
            let computed = loss(capture(&kept).path(), format);
            assert_eq!(computed, actual, "{format}{options}: {lost:?}");
        }
    }
}

/// A file as in RFC 5655 is opened directly.
#[test]
fn tshark_opens_ipfix_files_directly() {
    require!(skip::program("tshark", "tshark"));
    let folder = Folder::new("tshark-file");
    let mut packets = 0;
    for (at, capture) in captures(100).iter().enumerate() {
        let file = folder.0.join(format!("{at}.ipfix"));
        let url = format!("ipfix:{}", file.display());
        let run = run(capture, &["--export", &url]);
        let expected = run.totals(|_| true);
        assert_eq!(
            sums(&file),
            (expected.packets, expected.bytes),
            "{}",
            capture.display()
        );
        assert_eq!(tshark(&file, &["-Y", "_ws.malformed"]), "");
        packets += expected.packets;
    }
    assert!(packets > 200, "{packets} packets");
}
