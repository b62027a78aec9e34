//! `barewire guard --detect install` beside good traffic that has a peak, and against SYNs that are
//! like those of clients.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lab::packet::Raw;
use lab::random::Random;
use lab::watch::Ending;
use lab::{Pair, Veth, require, skip};
use serde_json::Value;

use crate::guard_detect::{event, line};
use crate::guard_flood::{PORT, connect, guard, serve, stop, syn};

const SETTINGS: &[&str] = &[
    "--detect",
    "install",
    "--sample",
    "1/2",
    "--detect-settings",
    "least=100/s,warm-up=2s,begin=1s,end=5s",
];

/// All rules that were installed, by their events.
fn rules(stdout: &str) -> Vec<Value> {
    let values = stdout.lines().filter_map(|l| serde_json::from_str(l).ok());
    values.filter(|v: &Value| v["event"] == "rule").collect()
}

/// Runs a peak for some seconds after the first rule against it, and returns the rules and totals.
fn beside(pair: &Pair, peak: impl FnOnce(&AtomicBool) + Send) -> (Vec<Value>, Value) {
    let process = guard(pair, SETTINGS);
    event(&process, "learned");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ending = Ending(&is_over);
        let peak = scope.spawn(|| peak(&is_over));
        event(&process, "rule");
        let rule_at = line(&process, |value| {
            value["type"] == "counters" && value["rules"][0]["packets"].as_u64() > Some(0)
        });
        let until = rule_at["seconds"].as_f64().unwrap() + 5.0;
        line(&process, |value| value["seconds"].as_f64() > Some(until));
        is_over.store(true, Ordering::Relaxed);
        peak.join().unwrap();
    });
    let rules = rules(&process.stdout());
    (rules, stop(process))
}

fn assert_spared((rules, totals): &(Vec<Value>, Value), reason: &str) {
    for rule in rules {
        assert_eq!(rule["verdict"], "limit", "{rule}");
        assert_eq!(rule["reason"], reason, "{rule}");
    }
    let (dropped, seen) = (totals["dropped"].as_u64(), totals["seen"].as_u64());
    assert!(
        dropped.unwrap() * 100 <= seen.unwrap(),
        "more than one in a hundred lost: {totals}"
    );
}

/// One connection of the kernel, as a backup has.
#[test]
fn a_transfer_loses_nearly_nothing() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let address = SocketAddr::from((pair.right.ipv4, PORT));
    let listener = pair.right.ns.run(|| TcpListener::bind(address)).unwrap();
    let listener = listener.unwrap();
    let found = beside(&pair, |is_over| {
        std::thread::scope(|scope| {
            let received = scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                std::io::copy(&mut stream, &mut std::io::sink()).unwrap()
            });
            let mut stream = pair.left.ns.run(|| TcpStream::connect(address));
            let stream = stream.as_mut().unwrap().as_mut().unwrap();
            let mut sent = 0;
            while !is_over.load(Ordering::Relaxed) {
                stream.write_all(&[7; 20_000]).unwrap();
                sent += 20_000;
                std::thread::sleep(Duration::from_millis(5));
            }
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(received.join().unwrap(), sent);
        });
    });
    assert_spared(&found, "connections");
}

/// Many short connections of the kernel.
#[test]
fn a_busy_server_loses_nearly_nothing() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let address = SocketAddr::from((pair.right.ipv4, PORT));
    let listener = pair.right.ns.run(|| TcpListener::bind(address)).unwrap();
    let listener = listener.unwrap();
    let found = beside(&pair, |is_over| {
        let client = || {
            while !is_over.load(Ordering::Relaxed) {
                connect(address).unwrap();
            }
        };
        // The server goes last: it must answer connections that have begun.
        let is_served = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _ending = Ending(&is_served);
            scope.spawn(|| serve(&listener, &is_served));
            let clients = [0, 1].map(|_| scope.spawn(|| pair.left.ns.run(client).unwrap()));
            for client in clients {
                client.join().unwrap();
            }
        });
    });
    assert_spared(&found, "connections");
}

/// One socket that sends datagrams, which nothing answers.
#[test]
fn a_stream_of_datagrams_loses_nearly_nothing() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let to = SocketAddr::from((pair.right.ipv4, 5_001));
    let sink = pair.right.ns.run(|| UdpSocket::bind(to)).unwrap();
    let _sink = sink.unwrap();
    let found = beside(&pair, |is_over| {
        let from = SocketAddr::from((pair.left.ipv4, 0));
        let socket = pair.left.ns.run(|| UdpSocket::bind(from)).unwrap();
        let socket = socket.unwrap();
        while !is_over.load(Ordering::Relaxed) {
            socket.send_to(&[7; 400], to).unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    assert_spared(&found, "streams");
}

/// A SYN with the options of Linux, from anywhere.
fn like_a_client(pair: &Pair, random: &mut Random) -> Vec<u8> {
    let mut packet = syn(pair, random.number() as u32);
    packet.extend([2, 4, 5, 180, 4, 2, 8, 10]);
    packet.extend((random.number() as u32).to_be_bytes());
    packet.extend([0, 0, 0, 0, 1, 3, 3, 7]);
    packet[17] = 60;
    packet[18..20].copy_from_slice(&(random.number() as u16 | 1).to_be_bytes());
    packet[20] = 0x40;
    packet[22] = 64 - random.below(20) as u8;
    let source = 0x0b00_0000 + random.number() as u32 % 0x7000_0000;
    packet[26..30].copy_from_slice(&Ipv4Addr::from_bits(source).octets());
    packet[34..36].copy_from_slice(&(32_768 + random.below(28_000) as u16).to_be_bytes());
    packet[38..42].copy_from_slice(&(random.number() as u32).to_be_bytes());
    packet[46] = 0xa0;
    packet[48..50].copy_from_slice(&64_240_u16.to_be_bytes());
    packet
}

/// Floods a service, and returns the rule against the flood and the totals; connections complete.
fn flooded(pair: &Pair, mode: &str, has_listener: bool) -> (Value, Value) {
    let via = pair.left.ipv4.to_string();
    pair.right
        .ns
        .ip(["route", "add", "default", "via", &via])
        .unwrap();
    pair.right
        .ns
        .sysctl("net/ipv4/tcp_syncookies", "2")
        .unwrap();
    let address = SocketAddr::from((pair.right.ipv4, PORT));
    let listen = || has_listener.then(|| TcpListener::bind(address));
    let listener = pair.right.ns.run(listen).unwrap().transpose().unwrap();
    let process = guard(pair, &[&["--mode", mode][..], SETTINGS].concat());
    let is_over = AtomicBool::new(false);
    let rule = std::thread::scope(|scope| {
        let _ending = Ending(&is_over);
        scope.spawn(|| {
            let sender = pair.left.ns.run(|| Raw::sender(&pair.left.ifname));
            let sender = sender.unwrap().unwrap();
            let mut random = Random::seeded("guard, SYNs like a client's");
            while !is_over.load(Ordering::Relaxed) {
                for _ in 0..16 {
                    sender.send(&like_a_client(pair, &mut random)).unwrap();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let rule = event(&process, "rule");
        if let Some(listener) = listener.as_ref().filter(|_| mode == "generic") {
            scope.spawn(|| serve(listener, &is_over));
            let all = || (0..20).all(|_| connect(address).is_ok());
            assert!(pair.left.ns.run(all).unwrap(), "{rule}");
        }
        let stopped = |value: &Value| {
            value["dropped"].as_u64() > Some(500) || value["answered"].as_u64() > Some(500)
        };
        line(&process, stopped);
        rule
    });
    (rule, stop(process))
}

#[test]
fn syns_like_those_of_clients_are_challenged_where_the_host_can() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let (rule, totals) = flooded(&pair, "generic", true);
    assert_eq!(rule["verdict"], "challenge", "{rule}");
    assert!(totals["answered"].as_u64() > Some(500), "{totals}");
}

/// Nothing listens here, or answers would not arrive (veth, native mode).
#[test]
fn syns_like_those_of_clients_are_limited_where_the_host_cannot_answer() {
    require!(skip::lab());
    for (mode, has_listener) in [("generic", false), ("native", true)] {
        let pair = Veth::new().create().unwrap();
        let (rule, totals) = flooded(&pair, mode, has_listener);
        assert_eq!(rule["verdict"], "limit", "{mode}: {rule}");
        assert_eq!(rule["rate_pps"], 100, "{mode}: {rule}");
        assert_eq!(totals["answered"], 0, "{mode}: {totals}");
    }
}
