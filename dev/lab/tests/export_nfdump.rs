//! Exports read by nfcapd and nfdump: every format over UDP, totals equal packet for packet, no
//! sequence failures, and loss detected where there was some.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

use crate::export::{
    Folder, LIMIT, Run, Totals, capture, captures, run, udp_port, wait_bound, wait_read,
};
use lab::process::{Process, Signal};
use lab::{require, skip};
use serde_json::Value;

/// A collector with its directory.
struct Nfcapd {
    process: Process,
    folder: Folder,
    port: u16,
}

impl Nfcapd {
    fn start(name: &str) -> Nfcapd {
        let (folder, port) = (Folder::new(name), udp_port());
        let mut command = Command::new("nfcapd");
        command.args(["-b", "127.0.0.1", "-p", &port.to_string(), "-t", "600"]);
        command.args(["-B", "8000000", "-w", folder.path()]);
        let process = Process::spawn(&mut command).unwrap();
        wait_bound("udp", port);
        Nfcapd {
            process,
            folder,
            port,
        }
    }

    /// Stops it, once it has read everything.
    fn stop(&mut self) {
        wait_read(self.port);
        // It drops its current datagram if the signal arrives before that is written.
        std::thread::sleep(Duration::from_millis(500));
        self.process.stop(Signal::SIGTERM, LIMIT).unwrap();
    }

    /// Packets and bytes by source address, by `nfdump -s srcip/bytes`.
    fn senders(mut self) -> BTreeMap<String, [u64; 2]> {
        self.stop();
        let mut command = Command::new("nfdump");
        command.args(["-R", self.folder.path(), "-q", "-N", "-6"]);
        command.args(["-s", "srcip/bytes", "-n", "0", "-o", "csv"]);
        let listed = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
        let rows = listed
            .stdout
            .lines()
            .skip(1)
            .filter(|row| row.contains(','));
        rows.map(|row| {
            let words: Vec<&str> = row.split(',').collect();
            let number = |at: usize| words[at].parse().unwrap_or_else(|_| panic!("{row:?}"));
            // An address of zeros is printed as IPv4.
            let address = words[4].replace("0.0.0.0", "::");
            (address, [number(7), number(9)])
        })
        .collect()
    }

    /// Stops it; returns packets and bytes of all records, and its sequence failures.
    fn end(mut self) -> (Totals, u64) {
        self.stop();
        let mut command = Command::new("nfdump");
        command.args(["-R", self.folder.path(), "-q", "-N"]);
        command.args(["-o", "fmt:%ipkt %ibyt %opkt %obyt"]);
        let listed = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
        let mut totals = Totals::default();
        for line in listed.stdout.lines() {
            let numbers: Vec<u64> = line
                .split_whitespace()
                .map(|word| word.parse().unwrap_or_else(|_| panic!("{line:?}")))
                .collect();
            let [ipkt, ibyt, opkt, obyt] = numbers[..] else {
                continue;
            };
            totals.directions += u64::from(ipkt != 0) + u64::from(opkt != 0);
            totals.packets += ipkt + opkt;
            totals.bytes += ibyt + obyt;
        }
        let mut command = Command::new("nfdump");
        command.args(["-R", self.folder.path(), "-I"]);
        let info = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
        let failures = info
            .stdout
            .lines()
            .find_map(|line| line.strip_prefix("Sequence failures:"))
            .unwrap_or_else(|| panic!("{}", info.stdout));
        (totals, failures.trim().parse().unwrap())
    }
}

fn any(_: &Value) -> bool {
    true
}

/// All captures through one collector, each from a separate exporter.
fn all_captures(format: &str, options: &str, every: usize, select: fn(&Value) -> bool) {
    let collector = Nfcapd::start(&format!("nfdump-{format}-{}", options.len()));
    let mut expected = Totals::default();
    for (at, file) in captures(every).iter().enumerate() {
        // Domains: each run is a new exporter. Version 5 has 16 bits for it.
        let url = format!(
            "{format}:udp://127.0.0.1:{}?domain={}&rate=40000{options}",
            collector.port,
            at + 1
        );
        let run = run(file, &["--export", &url]);
        let totals = run.totals(select);
        let exported = run.export()["exported"]["packets"].as_u64().unwrap();
        assert_eq!(exported, totals.packets, "{}", file.display());
        expected.add(totals);
    }
    assert!(expected.packets > 200, "{expected:?}");
    let (found, failures) = collector.end();
    assert_eq!(found, expected, "{format}{options}");
    assert_eq!(failures, 0, "{format}{options}");
}

#[test]
fn nfdump_reads_ipfix_biflows() {
    require!(skip::program("nfcapd", "nfdump"));
    all_captures("ipfix", "", 12, any);
}

#[test]
fn nfdump_reads_ipfix_uniflows() {
    require!(skip::program("nfcapd", "nfdump"));
    all_captures("ipfix", "&uniflow", 40, any);
}

/// Statistics by address count the sources of records, so each direction needs its own: `uniflow`,
/// or NetFlow.
#[test]
fn top_senders_are_all_who_sent() {
    require!(skip::program("nfcapd", "nfdump"));
    for (format, options) in [("ipfix", "&uniflow"), ("netflow9", "")] {
        let collector = Nfcapd::start(&format!("nfdump-senders-{format}"));
        let mut expected: BTreeMap<String, [u64; 2]> = BTreeMap::new();
        for (at, file) in captures(300).iter().enumerate() {
            let url = format!(
                "{format}:udp://127.0.0.1:{}?domain={}&rate=20000{options}",
                collector.port,
                at + 1
            );
            let run = run(file, &["--export", &url]);
            for flow in &run.flows {
                for (way, end) in [(flow, "src"), (&flow["reverse"], "dst")] {
                    let counts = ["packets", "bytes"].map(|name| way[name].as_u64().unwrap());
                    if counts[0] != 0 {
                        let address = flow[end].as_str().unwrap().replace("0.0.0.0", "::");
                        let sum = expected.entry(address).or_default();
                        *sum = [sum[0] + counts[0], sum[1] + counts[1]];
                    }
                }
            }
        }
        assert!(expected.len() > 20, "{expected:?}");
        assert_eq!(collector.senders(), expected, "{format}{options}");
    }
}

#[test]
fn netflow9() {
    require!(skip::program("nfcapd", "nfdump"));
    all_captures("netflow9", "", 40, any);
}

#[test]
fn netflow5() {
    require!(skip::program("nfcapd", "nfdump"));
    all_captures("netflow5", "", 40, |flow| flow["ip_version"] == 4);
}

/// The library's example, which is fifteen lines.
#[test]
fn a_program_with_a_probe_exports_what_the_command_does() {
    require!(skip::program("nfcapd", "nfdump"));
    let mix = capture();
    let collector = Nfcapd::start("nfdump-example");
    let url = format!("ipfix:udp://127.0.0.1:{}?rate=40000", collector.port);
    let mut command = Command::new(lab::process::example("flow_export").unwrap());
    command.arg(&mix).arg(&url);
    let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    let expected = run(&mix, &[]).totals(any);
    assert!(expected.packets > 50, "{expected:?}");
    assert_eq!(collector.end(), (expected, 0));
}

/// Relays messages from an exporter to a collector that starts late. Without it the exporter would
/// learn of the closed port by ICMP, and send the templates with its next session, not by refresh.
struct Relay {
    socket: UdpSocket,
}

impl Relay {
    fn new() -> Relay {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        Relay { socket }
    }

    fn port(&self) -> u16 {
        self.socket.local_addr().unwrap().port()
    }

    /// Waits for the next message.
    fn receive(&self) -> Vec<u8> {
        let mut message = vec![0; 1 << 16];
        let len = self.socket.recv(&mut message).expect("no message came");
        message.truncate(len);
        message
    }

    fn forward(&self, message: &[u8], port: u16) {
        self.socket.send_to(message, ("127.0.0.1", port)).unwrap();
    }

    /// Forwards the messages that wait. The exporter has ended.
    fn drain(&self, port: u16) {
        self.socket.set_nonblocking(true).unwrap();
        let mut message = vec![0; 1 << 16];
        while let Ok(len) = self.socket.recv(&mut message) {
            self.forward(&message[..len], port);
        }
    }
}

/// Whether an IPFIX message has a template set (RFC 7011, section 3.3.2: set ID 2).
fn has_templates(message: &[u8]) -> bool {
    let mut rest = message.get(16..).unwrap_or_default();
    while let Some(head) = rest.first_chunk::<4>() {
        if head[..2] == [0, 2] {
            return true;
        }
        let len = usize::from(u16::from_be_bytes([head[2], head[3]]));
        rest = rest.get(len.max(4)..).unwrap_or_default();
    }
    false
}

/// Bytes of a little-endian pcapng file before its first Enhanced Packet Block (type 6).
fn head_len(bytes: &[u8]) -> usize {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let mut at = 0;
    while word(at) != 6 {
        at += word(at + 4) as usize;
    }
    at
}

/// The templates are sent again, so a collector that starts late can read the records.
#[test]
fn a_late_collector_learns_the_templates() {
    require!(skip::program("nfcapd", "nfdump"));
    let relay = Relay::new();
    let mix = capture();
    let bytes = std::fs::read(&mix).unwrap();
    let mut command = Command::new(lab::process::barewire().unwrap());
    let url = format!("ipfix:udp://127.0.0.1:{}?refresh=1", relay.port());
    command.args([
        "flows",
        "--json",
        "--export",
        &url,
        "--idle-timeout",
        "1s",
        "-",
    ]);
    command.stdin(std::process::Stdio::piped());
    let mut process = Process::spawn_with_stdin(&mut command).unwrap();
    let mut stdin = process.take_stdin().unwrap();
    // The exporter starts once the header of the capture has been read.
    let (head, packets) = bytes.split_at(head_len(&bytes));
    std::io::Write::write_all(&mut stdin, head).unwrap();
    // The first templates are lost.
    while !has_templates(&relay.receive()) {}
    let collector = Nfcapd::start("nfdump-late");
    // The exporter sends them again after `refresh` seconds, with no packet in between.
    let again = loop {
        let message = relay.receive();
        if has_templates(&message) {
            break message;
        }
    };
    relay.forward(&again, collector.port);
    std::io::Write::write_all(&mut stdin, packets).unwrap();
    drop(stdin);
    let finished = process.wait(LIMIT).unwrap();
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    relay.drain(collector.port);
    let mut flows: Vec<Value> = finished
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let run = Run {
        summary: flows.pop().unwrap(),
        flows,
    };
    assert_eq!(run.export()["sessions"], 1, "{}", run.summary);
    let (found, _) = collector.end();
    assert_eq!(found, run.totals(any));
}
