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

use crate::export::{Folder, LIMIT, Totals, captures, run};
use flow::decode::ipfix::Decoder;
use lab::corpus;
use lab::oracle::{TempFile, write_pcap};
use lab::packet::{Addresses, Udp};
use lab::process::Process;
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

/// Messages lost in transit: tshark reports it, and the sequence numbers give the number of
/// records.
#[test]
fn loss_is_seen_by_the_collector() {
    require!(skip::program("tshark", "tshark"));
    let mix = corpus::own().join("lab-mix.pcapng");
    let (messages, _) = export_all("ipfix", "&mtu=512", &[mix]);
    let (mut lost, mut kept) = (Vec::new(), Vec::new());
    for (at, message) in messages.iter().enumerate() {
        let is_inside = at > 3 && at + 1 < messages.len();
        if is_inside && at % 7 == 0 {
            lost.push(message.clone());
        } else {
            kept.push(message.clone());
        }
    }
    assert!(!lost.is_empty(), "{} messages", messages.len());
    let mut decoder = Decoder::new();
    for message in &kept {
        decoder.message(message, &mut |_| {}).unwrap();
    }
    let mut whole = Decoder::new();
    let mut records_lost = 0;
    for message in &messages {
        let mut count = 0;
        whole.message(message, &mut |_| count += 1).unwrap();
        if lost.contains(message) {
            records_lost += count;
        }
    }
    assert_eq!((decoder.missed, whole.missed), (records_lost, 0));
    let file = capture(&kept);
    let reported = tshark(file.path(), &["-Y", "cflow.unexpected_sequence_number"]);
    assert!(reported.lines().count() > 0, "tshark saw no gap");
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
