//! Packets of netfilter's rules: `nflog:` and `nfqueue:` receive what tcpdump receives with the
//! original libpcap, queued packets continue on their way, and what is left out is counted.

use std::time::{Duration, Instant};

use lab::dropin::{Dropin, original};
use lab::oracle::TempFile;
use lab::packet::{Raw, Udp};
use lab::process::{Process, Signal, barewire};
use lab::{End, Pair, Veth, skip};
use port::{DropReason, PortOptions, Ready};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

const COUNT: u64 = 400;

/// What all tests need.
fn ready() -> Result<(), skip::Missing> {
    skip::lab()?;
    skip::program("iptables", "iptables")?;
    skip::program("tcpdump", "tcpdump")
}

/// Adds a rule for the packets of these tests, on their way into the host.
fn rule(end: &End, target: &[&str]) -> Result<(), skip::Missing> {
    let matches = ["-w", "-A", "INPUT", "-p", "udp", "--dport", "9", "-j"];
    let added = end.ns.exec("iptables", [&matches[..], target].concat());
    let missing = |error| {
        let name = target[0];
        skip::Missing::Machine(format!("{name} of iptables ({error:#})"))
    };
    added.map(drop).map_err(missing)
}

/// Sends numbered packets of all lengths to the right end; returns them.
fn send(pair: &Pair, count: u64) -> Vec<Vec<u8>> {
    let plan = Udp::between(&pair.left, &pair.right).flows(16);
    let out = pair.left.ns.run(|| Raw::sender(&pair.left.ifname));
    let out = out.unwrap().unwrap();
    let packets = (0..count).map(|number| {
        let packet = plan.build(number, 60 + (number * 37 % 1_400) as usize);
        out.send(&packet).unwrap();
        if number % 32 == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        packet
    });
    packets.collect()
}

/// Link type of a capture file, and the bytes of its packets.
fn read(file: &TempFile) -> (u32, Vec<Vec<u8>>) {
    let bytes = std::fs::read(file.path()).unwrap();
    let word = |at: usize| {
        let word = bytes.get(at..at + 4)?;
        Some(u32::from_le_bytes(word.try_into().unwrap()))
    };
    let mut packets = Vec::new();
    let mut at = 24;
    while let Some(len) = word(at + 8) {
        packets.push(bytes[at + 16..at + 16 + len as usize].to_vec());
        at += 16 + len as usize;
    }
    (word(20).unwrap(), packets)
}

/// Waits until a file has this many packets.
fn wait_for(file: &TempFile, count: usize) {
    let until = Instant::now() + LIMIT;
    while std::fs::metadata(file.path()).map_or(0, |it| it.len()) < 24 || read_len(file) < count {
        assert!(Instant::now() < until, "{} packets", read_len(file));
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn read_len(file: &TempFile) -> usize {
    let file = std::fs::read(file.path()).unwrap_or_default();
    let (mut count, mut at) = (0, 24);
    while let Some(len) = file.get(at + 8..at + 12) {
        at += 16 + u32::from_le_bytes(len.try_into().unwrap()) as usize;
        count += usize::from(at <= file.len());
    }
    count
}

fn capture(end: &End, port: &str, file: &TempFile) -> Process {
    let path = file.path().to_str().unwrap();
    let args = ["capture", port, "--json", "-w", path, "-U"];
    let process = end.ns.spawn(barewire().unwrap(), args).unwrap();
    process.wait_stderr("listening on", LIMIT).unwrap();
    process
}

/// tcpdump of a device to a file, with the original library or with this build's.
fn tcpdump(end: &End, library: Option<&Dropin>, device: &str, file: &TempFile) -> Process {
    let program = match library {
        Some(_) => end.ns.command("tcpdump"),
        None => {
            let plain = original("tcpdump");
            end.ns.command(plain.get_program())
        }
    };
    let mut command = match library {
        Some(library) => library.with(program),
        None => program,
    };
    command
        .args(["-Z", "root", "-U", "-i", device, "-w"])
        .arg(file.path());
    let process = Process::spawn(&mut command).unwrap();
    process.wait_stderr("listening on", LIMIT).unwrap();
    process
}

/// Without the number of the group, and the time, which the kernel reads for each group.
fn comparable(mut packets: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    const TIME: u16 = 3;
    for packet in &mut packets {
        packet[2..4].fill(0);
        let mut at = 4;
        while let Some(&[a, b, c, d]) = packet.get(at..at + 4) {
            let len = usize::from(u16::from_ne_bytes([a, b]));
            assert!(len >= 4, "{packet:?}");
            if u16::from_ne_bytes([c, d]) == TIME {
                packet[at + 4..at + len].fill(0);
            }
            at += len.next_multiple_of(4);
        }
    }
    packets
}

/// A rule logs each packet to three groups: barewire, tcpdump and tcpdump with this build's library
/// write the same bytes.
#[test]
fn logged_packets_are_those_that_tcpdump_writes() {
    lab::require!(ready());
    let pair = Veth::new().create().unwrap();
    let right = &pair.right;
    for group in ["5", "6", "7"] {
        let target = [
            "NFLOG",
            "--nflog-group",
            group,
            "--nflog-prefix",
            "of the lab",
        ];
        lab::require!(rule(right, &target));
    }
    let dropin = Dropin::new().unwrap();
    let files = [
        TempFile::new(".pcap"),
        TempFile::new(".pcap"),
        TempFile::new(".pcap"),
    ];
    let mut ours = capture(right, "nflog:5", &files[0]);
    let mut theirs = tcpdump(right, None, "nflog:6", &files[1]);
    let mut dropped_in = tcpdump(right, Some(&dropin), "nflog:7", &files[2]);
    let sent = send(&pair, COUNT);
    for file in &files {
        wait_for(file, COUNT as usize);
    }
    let finished = ours.stop(Signal::SIGINT, LIMIT).unwrap().checked().unwrap();
    theirs.stop(Signal::SIGINT, LIMIT).unwrap();
    dropped_in.stop(Signal::SIGINT, LIMIT).unwrap();
    let [ours, theirs, dropped_in] = files.each_ref().map(read);
    assert_eq!([ours.0, dropped_in.0], [theirs.0; 2], "link types");
    assert_eq!(theirs.0, 239);
    let theirs = comparable(theirs.1);
    assert!(comparable(ours.1) == theirs, "other bytes");
    assert!(
        comparable(dropped_in.1) == theirs,
        "other bytes with libpcap.so"
    );
    for (packet, sent) in theirs.iter().zip(&sent) {
        assert!(packet.windows(sent.len() - 14).any(|it| it == &sent[14..]));
    }
    let totals: Value = serde_json::from_str(finished.stdout.lines().last().unwrap()).unwrap();
    assert!(totals.to_string().contains("\"imbalance\":0"), "{totals}");
}

/// Datagrams that arrived for a port without a listener (RFC 4113 `udpNoPorts`).
fn without_listener(end: &End) -> u64 {
    let text = end.ns.exec("cat", ["/proc/net/snmp"]).unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("Udp:"));
    let [names, values] = [(); 2].map(|()| lines.next().unwrap().split_whitespace());
    let mut pairs = names.zip(values);
    pairs
        .find(|(name, _)| *name == "NoPorts")
        .unwrap()
        .1
        .parse()
        .unwrap()
}

/// Waits until the host has received this many packets.
fn wait_arrived(end: &End, count: u64) {
    let until = Instant::now() + LIMIT;
    while without_listener(end) != count {
        assert!(Instant::now() < until, "{} arrived", without_listener(end));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Queued packets are received from their IP header on, and reach the host.
#[test]
fn queued_packets_are_received_and_accepted() {
    lab::require!(ready());
    let pair = Veth::new().create().unwrap();
    let right = &pair.right;
    lab::require!(rule(right, &["NFQUEUE", "--queue-num", "3"]));
    let dropin = Dropin::new().unwrap();
    for (round, library) in (1..).zip([None, Some(&dropin)]) {
        let file = TempFile::new(".pcap");
        let mut process = match library {
            None => capture(right, "nfqueue:3", &file),
            Some(_) => tcpdump(right, library, "nfqueue:3", &file),
        };
        let sent = send(&pair, COUNT);
        // Nobody listens: the host counts each packet that has passed.
        wait_arrived(right, round * COUNT);
        wait_for(&file, COUNT as usize);
        process.stop(Signal::SIGINT, LIMIT).unwrap();
        let (link_type, packets) = read(&file);
        assert_eq!(link_type, 101);
        let sent: Vec<_> = sent.iter().map(|packet| ip(packet)).collect();
        assert!(packets == sent, "other bytes");
    }
    // A second reader of the queue is refused.
    let file = TempFile::new(".pcap");
    let mut first = capture(right, "nfqueue:3", &file);
    let args = ["capture", "nfqueue:3", "-c", "1"];
    let mut second = right.ns.spawn(barewire().unwrap(), args).unwrap();
    let refused = second.wait(LIMIT).unwrap();
    assert!(refused.stderr.contains("another process"), "{refused:?}");
    assert_ne!(refused.code(), Some(0));
    first.stop(Signal::SIGINT, LIMIT).unwrap();
}

/// A packet from its IP header on, without padding.
fn ip(packet: &[u8]) -> Vec<u8> {
    let len = u16::from_be_bytes([packet[16], packet[17]]);
    packet[14..14 + usize::from(len)].to_vec()
}

/// A reader that does nothing: what the kernel leaves out is counted exactly, by its own count of
/// packets, and queued packets pass.
#[test]
fn what_is_left_out_is_counted_and_passes() {
    lab::require!(ready());
    const SENT: u64 = 3_000;
    let pair = Veth::new().create().unwrap();
    let right = &pair.right;
    for target in [
        &["NFLOG", "--nflog-group", "8"][..],
        &["NFQUEUE", "--queue-num", "8"],
    ] {
        lab::require!(rule(right, target));
    }
    let options = PortOptions {
        ring_bytes: 128 << 10,
        immediate: true,
        ..PortOptions::default()
    };
    let open = |name: &str| right.ns.run(|| port::open(name, &options)).unwrap();
    let mut ports = ["nflog:8", "nfqueue:8"].map(|name| open(name).unwrap());
    let sent = send(&pair, SENT);
    for port in &mut ports {
        let name = port.name.clone();
        let mut delivered = 0;
        let mut empty = 0;
        while empty < 3 {
            let batch = port.rx[0].receive().unwrap();
            for packet in batch.iter() {
                assert!(packet.time_ns().is_some());
            }
            delivered += batch.len() as u64;
            let is_empty = batch.is_empty();
            drop(batch);
            if is_empty && port.rx[0].wait(Duration::from_millis(100)).unwrap() != Ready::Packets {
                empty += 1;
            }
        }
        // The number of the last one shows how many were left out before it.
        send_one(&pair, &sent[0]);
        let until = Instant::now() + LIMIT;
        loop {
            let count = port.rx[0].receive().unwrap().len() as u64;
            delivered += count;
            if count != 0 {
                break;
            }
            assert!(
                Instant::now() < until,
                "{name}: the last packet does not come"
            );
            port.rx[0].wait(Duration::from_millis(100)).unwrap();
        }
        let queue = port.control.account().unwrap().rx_total();
        let lost = queue.dropped[DropReason::RingFull as usize];
        assert!(lost > SENT / 4 && delivered > 10, "{name}: {queue:?}");
        assert_eq!(
            (queue.delivered, queue.imbalance()),
            (delivered, 0),
            "{name}: {queue:?}"
        );
        let logged = if name == "nflog:8" {
            SENT + 1
        } else {
            SENT + 2
        };
        assert_eq!(queue.seen, logged, "{name}: {queue:?}");
    }
    wait_arrived(right, SENT + 2);
}

fn send_one(pair: &Pair, packet: &[u8]) {
    let out = pair.left.ns.run(|| Raw::sender(&pair.left.ifname));
    out.unwrap().unwrap().send(packet).unwrap();
}

/// Errors say what is missing.
#[test]
fn a_missing_capability_is_reported() {
    lab::require!(ready(), skip::program("setpriv", "util-linux"));
    let pair = Veth::new().create().unwrap();
    for port in ["nflog:5", "nfqueue:5"] {
        let mut command = pair.right.ns.command("setpriv");
        command.args(["--bounding-set=-net_admin", "--inh-caps=-net_admin"]);
        command
            .arg(barewire().unwrap())
            .args(["capture", port, "-c", "1"]);
        let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
        assert_eq!(finished.code(), Some(1), "{finished:?}");
        assert!(finished.stderr.contains("CAP_NET_ADMIN"), "{finished:?}");
    }
}
