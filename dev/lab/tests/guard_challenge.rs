//! `barewire guard --challenge`: connections of the kernel through a flood of identical SYNs.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lab::packet::{Raw, checksum};
use lab::process::{Process, Signal, barewire};
use lab::watch::Ending;
use lab::{Pair, Veth, require, skip};

use crate::guard_flood::{guard, route_back, serve, stop, syn};

const LIMIT: Duration = Duration::from_secs(60);
const PORT: u16 = 8080;
const EXPRESSION: &str = "tcp dst port 8080";

/// A SYN from a spoofed source with the header length and options of the left end's kernel.
fn forged(pair: &Pair, number: u32) -> Vec<u8> {
    let mut packet = syn(pair, number);
    packet.extend([
        2, 4, 5, 180, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 10,
    ]);
    packet[17] = 60;
    packet[20] = 0x40;
    packet[46] = 0xa0;
    packet[48..50].copy_from_slice(&64_240_u16.to_be_bytes());
    for (range, at) in [(14..34, 24), (26..74, 50)] {
        packet[at..at + 2].fill(0);
        let mut bytes = packet[range].to_vec();
        if at == 50 {
            bytes.extend([0, 6, 0, 40]);
        }
        let sum = checksum(&bytes).to_be_bytes();
        packet[at..at + 2].copy_from_slice(&sum);
    }
    packet
}

/// Opens connections to an address from four threads at once; returns how many complete.
fn connect_all(pair: &Pair, address: SocketAddr, count: u64) -> u64 {
    let (left, completed) = (AtomicU64::new(count), AtomicU64::new(0));
    let one = || -> std::io::Result<()> {
        let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.write_all(&[7])?;
        stream.read_exact(&mut [0])
    };
    let take = || {
        let next = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        next.is_ok()
    };
    let run = || {
        while take() {
            match one() {
                Ok(()) => drop(completed.fetch_add(1, Ordering::Relaxed)),
                Err(error) => eprintln!("a connection failed: {error}"),
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| pair.left.ns.run(run).unwrap());
        }
    });
    completed.into_inner()
}

/// Floods the service with spoofed SYNs while `body` runs; returns how many were sent.
pub fn flooded(pair: &Pair, body: impl FnOnce()) -> u64 {
    let sender = pair.left.ns.run(|| Raw::sender(&pair.left.ifname));
    let sender = sender.unwrap().unwrap();
    let (is_over, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                sender.send(&forged(pair, number)).unwrap();
                sent.fetch_add(1, Ordering::Relaxed);
                if number % 16 == 15 {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        });
        let _ending = Ending(&is_over);
        // The flood is running before the first connection is tried.
        while sent.load(Ordering::Relaxed) < 500 {
            std::thread::sleep(Duration::from_millis(1));
        }
        body();
    });
    sent.into_inner()
}

/// A pair, and a guard at its left end that passes everything: veth wakes the peer of a
/// transmitting XDP program only if the peer has a program, too (`veth_xdp_flush`,
/// drivers/net/veth.c).
fn pair() -> (Pair, Process) {
    let pair = Veth::new().ipv6().create().unwrap();
    route_back(&pair);
    let args = [
        "guard",
        &pair.left.ifname,
        "--mode",
        "native",
        "--count",
        "tcp",
    ];
    let process = pair.left.ns.spawn(barewire().unwrap(), args).unwrap();
    process.wait_stderr("guarding", LIMIT).unwrap();
    (pair, process)
}

/// A TCP counter of the right end, from `TcpExt` in `/proc/net/netstat`.
fn counter(pair: &Pair, name: &str) -> u64 {
    let read = || std::fs::read_to_string("/proc/thread-self/net/netstat");
    let text = pair.right.ns.run(read).unwrap().unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let mut next = || lines.next().unwrap_or_default().split_whitespace();
    let (names, values) = (next(), next());
    let found = names.zip(values).find(|(other, _)| *other == name);
    found
        .unwrap_or_else(|| panic!("{name}: {text}"))
        .1
        .parse()
        .unwrap()
}

/// Tries `count` connections under a flood, and returns the guard's account.
fn under_flood(pair: &Pair, mode: &str, ip: IpAddr, count: u64) -> (u64, serde_json::Value) {
    let process = guard(pair, &["--mode", mode, "--challenge", EXPRESSION]);
    let address = SocketAddr::from((ip, PORT));
    let listener = pair.right.ns.run(|| TcpListener::bind(address)).unwrap();
    let listener = listener.unwrap();
    let is_over = AtomicBool::new(false);
    let mut completed = 0;
    let mut sent = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&listener, &is_over));
        let _ending = Ending(&is_over);
        sent = flooded(pair, || completed = connect_all(pair, address, count));
    });
    assert_eq!(completed, count, "of {count} connections");
    (sent, stop(process))
}

#[test]
fn every_connection_completes_under_a_flood_of_the_same_signature() {
    require!(skip::lab());
    for mode in ["native", "generic"] {
        let (pair, _left) = pair();
        pair.right
            .ns
            .sysctl("net/ipv4/tcp_syncookies", "2")
            .unwrap();
        let ip = IpAddr::from(pair.right.ipv4);
        let (_, totals) = under_flood(&pair, mode, ip, 1_000);
        let answered = totals["answered"].as_u64().unwrap();
        // The SYNs of the connections, and those of the flood that fit veth's ring.
        assert!(answered > 1_000, "{totals}");
        assert_eq!(totals["rules"][0]["answered"], answered, "{totals}");
        // The host got the connections' cookies, some twice (an ACK, and data that overtakes it),
        // and no SYN of the flood.
        assert!(counter(&pair, "SyncookiesRecv") >= 1_000, "{totals}");
        assert_eq!(counter(&pair, "SyncookiesSent"), 0, "{totals}");
    }
}

#[test]
fn challenged_connections_over_ipv6_complete() {
    require!(skip::lab());
    let (pair, _left) = pair();
    pair.right
        .ns
        .sysctl("net/ipv4/tcp_syncookies", "2")
        .unwrap();
    let (_, totals) = under_flood(&pair, "native", IpAddr::from(pair.right.ipv6), 50);
    // The flood is IPv4, to an address without a listener.
    assert!(totals["answered"].as_u64().unwrap() >= 50, "{totals}");
    assert!(counter(&pair, "SyncookiesRecv") >= 50, "{totals}");
}

/// With the kernel's default setting, the host receives SYNs until its queue is full.
#[test]
fn cookies_start_when_the_listeners_queue_is_full() {
    require!(skip::lab());
    let (pair, _left) = pair();
    pair.right.ns.sysctl("net/core/somaxconn", "64").unwrap();
    pair.right
        .ns
        .sysctl("net/ipv4/tcp_syncookies", "1")
        .unwrap();
    let ip = IpAddr::from(pair.right.ipv4);
    let (_, totals) = under_flood(&pair, "native", ip, 100);
    assert!(totals["answered"].as_u64().unwrap() >= 100, "{totals}");
}

#[test]
fn forged_acks_are_dropped_if_there_is_a_listener() {
    require!(skip::lab());
    let (pair, _left) = pair();
    pair.right
        .ns
        .sysctl("net/ipv4/tcp_syncookies", "2")
        .unwrap();
    let address = SocketAddr::from((pair.right.ipv4, PORT));
    let send = |flags: u8| {
        let sender = pair.left.ns.run(|| Raw::sender(&pair.left.ifname));
        let sender = sender.unwrap().unwrap();
        for number in 0..10 {
            let mut packet = syn(&pair, number);
            packet[47] = flags;
            sender.send(&packet).unwrap();
        }
    };
    // Without a listener both pass.
    let process = guard(&pair, &["--challenge", EXPRESSION]);
    send(0x02);
    send(0x10);
    let totals = stop(process);
    assert_eq!(totals["passed"], totals["seen"], "{totals}");
    let listener = pair.right.ns.run(|| TcpListener::bind(address)).unwrap();
    let _listener = listener.unwrap();
    let process = guard(&pair, &["--challenge", EXPRESSION]);
    send(0x02);
    send(0x10);
    let totals = stop(process);
    assert_eq!(totals["answered"], 10, "{totals}");
    assert_eq!(totals["dropped"], 10, "{totals}");
    let process = guard(&pair, &["--dry-run", "--challenge", EXPRESSION]);
    send(0x02);
    let totals = stop(process);
    assert_eq!(totals["answered"], 10, "{totals}");
    assert_eq!(totals["imbalance"], 0, "{totals}");
}

#[test]
fn challenge_needs_the_kernels_syn_cookies() {
    require!(skip::lab());
    let (pair, _left) = pair();
    pair.right
        .ns
        .sysctl("net/ipv4/tcp_syncookies", "0")
        .unwrap();
    let args = ["guard", &pair.right.ifname, "--challenge", EXPRESSION];
    let mut process = pair.right.ns.spawn(barewire().unwrap(), args).unwrap();
    let finished = process.wait(LIMIT).unwrap();
    assert!(!finished.success());
    let output = finished.stderr;
    assert!(output.contains("tcp_syncookies is 0"), "{output}");
    assert_eq!(pair.right.xdp().unwrap(), None);
}

/// Nothing but the guard at the right end has a program.
#[test]
fn auto_mode_on_a_veth_is_one_in_which_clients_get_answers() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    route_back(&pair);
    pair.right
        .ns
        .sysctl("net/ipv4/tcp_syncookies", "2")
        .unwrap();
    let ip = IpAddr::from(pair.right.ipv4);
    let (_, totals) = under_flood(&pair, "auto", ip, 50);
    assert_eq!(totals["mode"], "generic", "{totals}");
    assert!(totals["answered"].as_u64() >= Some(50), "{totals}");
    // Without answers native mode stays the first choice; with them it is used on request, and
    // the start says what it depends on.
    let process = guard(&pair, &["--drop", EXPRESSION]);
    assert_eq!(stop(process)["mode"], "native");
    let process = guard(&pair, &["--mode", "native", "--challenge", EXPRESSION]);
    let stderr = process.stderr();
    assert!(stderr.contains("has an XDP program, too"), "{stderr}");
    assert!(stderr.contains("--mode generic"), "{stderr}");
    assert_eq!(stop(process)["mode"], "native");
}

#[test]
fn a_reload_cannot_add_answers_that_nobody_would_get() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let file = lab::oracle::TempFile::new(".toml");
    let write = |verdict: &str| {
        let rule = format!("[[rule]]\nmatch = \"{EXPRESSION}\"\nverdict = \"{verdict}\"\n");
        std::fs::write(file.path(), rule).unwrap();
    };
    write("drop");
    let process = guard(&pair, &["--rules", file.path().to_str().unwrap()]);
    write("challenge");
    process.signal(Signal::SIGHUP).unwrap();
    process.wait_stderr("old rules stay", LIMIT).unwrap();
    process.wait_stderr("hint: ", LIMIT).unwrap();
    let stderr = process.stderr();
    assert!(stderr.contains("is a veth"), "{stderr}");
    let totals = stop(process);
    assert_eq!(totals["rules"][0]["verdict"], "drop", "{totals}");
}
