//! `barewire guard --detect install` against a flood that changes, and one over a whole network.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use lab::packet::{Raw, checksum};
use lab::process::Process;
use lab::random::Random;
use lab::watch::Ending;
use lab::{Pair, Veth, require, skip};
use serde_json::Value;

use crate::guard_detect::{event, line};
use crate::guard_flood::{PORT, connect, guard, serve, stop};

/// Short times, and a rate that a busy machine reaches. The end takes longer: between two shapes
/// the flood pauses, on a busy machine for seconds.
const SETTINGS: &[&str] = &[
    "--detect",
    "install",
    "--sample",
    "1/2",
    "--detect-settings",
    "least=400/s,warm-up=2s,begin=1s,end=15s",
];
/// Packets that decide whether a shape is covered. Their Ethernet source is their mark: derived
/// rules begin with the IP header.
const LAST: u64 = 2_000;
const MARK: [u8; 6] = [2, 0, 0, 0, 0, 0xee];

/// A UDP packet with this IP identification.
fn udp(
    pair: &Pair,
    (source, destination): (Ipv4Addr, Ipv4Addr),
    (id, port): (u16, u16),
    payload: &[u8],
) -> Vec<u8> {
    let mut packet = [&pair.right.mac[..], &pair.left.mac, &[8, 0, 0x45, 0]].concat();
    packet.extend((28 + payload.len() as u16).to_be_bytes());
    packet.extend(id.to_be_bytes());
    packet.extend([0x40, 0, 60, 17, 0, 0]);
    packet.extend(source.octets());
    packet.extend(destination.octets());
    let sum = checksum(&packet[14..34]).to_be_bytes();
    packet[24..26].copy_from_slice(&sum);
    packet.extend(port.to_be_bytes());
    packet.extend([0, 9]);
    packet.extend((8 + payload.len() as u16).to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(payload);
    packet
}

/// A packet of the flood's shape with this number: its sources, its port or its payload is another
/// one than before, and everything else random.
fn shaped(pair: &Pair, shape: u32, is_last: bool, random: &mut Random) -> Vec<u8> {
    let any = random.number();
    let source = match shape % 3 {
        0 => 0xc612_0000 + shape * 0x0001_0000 + (any as u32 & 0x0fff),
        _ => 0x0b00_0000 + (any as u32 % 0x7000_0000),
    };
    let port = match shape % 3 {
        1 => 2_000 + shape as u16 * 111,
        _ => 1_024 + (any >> 40) as u16 % 60_000,
    };
    let mut payload: Vec<u8> = (0..40).map(|_| random.below(256) as u8).collect();
    if shape % 3 == 2 {
        payload[..8].copy_from_slice(format!("shape{shape:03}").as_bytes());
    }
    let addresses = (Ipv4Addr::from_bits(source), pair.right.ipv4);
    let mut packet = udp(pair, addresses, (random.number() as u16, port), &payload);
    if is_last {
        packet[6..12].copy_from_slice(&MARK);
    }
    packet
}

/// Sends what `next` builds until it builds nothing, a few thousand packets a second.
fn send(pair: &Pair, mut next: impl FnMut(u64) -> Option<Vec<u8>>) {
    let sender = pair.left.ns.run(|| Raw::sender(&pair.left.ifname));
    let sender = sender.unwrap().unwrap();
    for number in 0.. {
        let Some(packet) = next(number) else { return };
        sender.send(&packet).unwrap();
        if number % 32 == 31 {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Each shape is there until it is reported as covered; then, of some last packets with a mark of
/// their own, hardly any passes. Connections complete all the time.
#[test]
fn a_flood_that_changes_is_covered_again_each_time() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let process = guard(&pair, SETTINGS);
    let address = SocketAddr::from((pair.right.ipv4, PORT));
    let listener = pair.right.ns.run(|| TcpListener::bind(address)).unwrap();
    let listener = listener.unwrap();
    let raw = pair.right.ns.run(|| Raw::open(&pair.right.ifname)).unwrap();
    let raw = raw.unwrap();
    event(&process, "learned");
    // The server goes last: it must answer connections that have begun.
    let (is_over, is_served) = (AtomicBool::new(false), AtomicBool::new(false));
    let client = || {
        while !is_over.load(Ordering::Relaxed) {
            connect(address).unwrap();
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&listener, &is_served));
        let _endings = (Ending(&is_served), Ending(&is_over));
        let client = scope.spawn(|| pair.left.ns.run(client).unwrap());
        let mut random = Random::seeded("guard, a flood that changes");
        for shape in 0..6 {
            is_covered(&pair, &process, &raw, shape, &mut random);
        }
        is_over.store(true, Ordering::Relaxed);
        client.join().unwrap();
    });
    let stdout = process.stdout();
    assert_eq!(
        stdout.matches("\"event\":\"begins\"").count(),
        1,
        "{stdout}"
    );
    event(&process, "over");
    let totals = stop(process);
    let floods = totals["floods"].as_array();
    assert!(floods.is_none_or(Vec::is_empty), "{totals}");
    assert_eq!(totals["removed"]["dropped"], totals["dropped"], "{totals}");
}

/// How long it has run, by its last line.
fn seconds(process: &Process) -> f64 {
    let stdout = process.stdout();
    let values = stdout.lines().filter_map(|l| serde_json::from_str(l).ok());
    let mut seconds = values.filter_map(|value: Value| value["seconds"].as_f64());
    seconds.next_back().unwrap_or_default()
}

fn is_covered(pair: &Pair, process: &Process, raw: &Raw, shape: u32, random: &mut Random) {
    let (is_covered, passed) = (AtomicBool::new(false), AtomicU32::new(0));
    let before = seconds(process);
    let count = |packet: &[u8]| {
        if packet.get(6..12) == Some(&MARK) {
            passed.fetch_add(1, Ordering::Relaxed);
        }
    };
    lab::watch::packets(raw, count, || {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ending = Ending(&is_covered);
                // A line about a second of this shape alone.
                line(process, |value| {
                    let is_covered = |f: &Value| f["covered_percent"].as_u64() >= Some(95);
                    let floods = value["floods"].as_array();
                    floods.is_some_and(|floods| floods.iter().any(is_covered))
                        && value["seconds"].as_f64() > Some(before + 2.0)
                });
            });
            let mut left = LAST;
            send(pair, |_| {
                let is_last = is_covered.load(Ordering::Relaxed);
                left -= u64::from(is_last);
                (left > 0).then(|| shaped(pair, shape, is_last, random))
            });
        });
    });
    let passed = passed.into_inner();
    assert!(
        u64::from(passed) < LAST / 10,
        "{passed} of {LAST} of shape {shape} passed: {}",
        process.stderr()
    );
}

/// Over 254 addresses, of which none gets as many as are a flood.
#[test]
fn a_flood_over_a_whole_network_gets_a_rule() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let process = guard(&pair, SETTINGS);
    event(&process, "learned");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::seeded("guard, a flood over a network");
            send(&pair, |number| {
                let source =
                    Ipv4Addr::from_bits(0x0b00_0000 + random.number() as u32 % 0x7000_0000);
                let destination = Ipv4Addr::new(203, 0, 113, 1 + (number % 254) as u8);
                let ids = (random.number() as u16, 1_024 + random.below(60_000) as u16);
                let packet = udp(&pair, (source, destination), ids, &[b'x'; 40]);
                (!is_over.load(Ordering::Relaxed)).then_some(packet)
            });
        });
        let _ending = Ending(&is_over);
        let begins = event(&process, "begins");
        assert_eq!(begins["of"], "packets to 203.0.113.0/24", "{begins}");
        let rule = event(&process, "rule");
        assert_eq!(rule["verdict"], "drop", "{rule}");
        line(&process, |value| value["dropped"].as_u64() > Some(2_000));
    });
    event(&process, "over");
    let totals = stop(process);
    assert!(totals["dropped"].as_u64() > Some(2_000), "{totals}");
}
