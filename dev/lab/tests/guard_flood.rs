//! `barewire guard` against floods from spoofed sources, during connections of the kernel.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lab::packet::{Raw, checksum};
use lab::process::{Process, Signal, barewire};
use lab::{Pair, Veth, require, skip};
use serde_json::Value;

/// Time limit of a program; not a measurement.
const LIMIT: Duration = Duration::from_secs(60);
pub const PORT: u16 = 8080;
/// The signature of SYNs from [`syn`]: no options, window 1024. The kernel's own have options.
const SIGNATURE: &str = "p0f:4:64:0:0:1024,0:::0";
const SOURCE_COUNT: u32 = 16_384;

/// Starts a guard at the right end, and waits until the program is attached.
pub fn guard(pair: &Pair, args: &[&str]) -> Process {
    let args = [&["guard", &pair.right.ifname, "--json"], args].concat();
    let process = pair.right.ns.spawn(barewire().unwrap(), args).unwrap();
    process.wait_stderr("guarding", LIMIT).unwrap();
    // After a program is attached, the carrier takes a moment (veth turns NAPI on).
    pair.left.wait_up(LIMIT).unwrap();
    pair.right.wait_up(LIMIT).unwrap();
    process
}

/// Stops it as Ctrl-C does, and checks that every packet is accounted for.
pub fn stop(mut process: Process) -> Value {
    let finished = process.stop(Signal::SIGINT, LIMIT).unwrap();
    let stdout = finished.checked().unwrap().stdout;
    let totals: Value = serde_json::from_str(stdout.lines().last().unwrap_or_default()).unwrap();
    assert_eq!(totals["type"], "totals", "{totals}");
    assert_eq!(totals["imbalance"], 0, "{totals}");
    totals
}

/// A SYN without options from one of [`SOURCE_COUNT`] sources in 198.18.0.0/15 (RFC 2544).
pub fn syn(pair: &Pair, number: u32) -> Vec<u8> {
    let source = Ipv4Addr::from_bits(0xc612_0000 + number % SOURCE_COUNT);
    let mut packet = Vec::with_capacity(54);
    packet.extend(pair.right.mac);
    packet.extend(pair.left.mac);
    packet.extend([0x08, 0, 0x45, 0, 0, 40, 0x12, 0x34, 0, 0, 64, 6, 0, 0]);
    packet.extend(source.octets());
    packet.extend(pair.right.ipv4.octets());
    let sum = checksum(&packet[14..34]).to_be_bytes();
    packet[24..26].copy_from_slice(&sum);
    let source_port = 1024 + (number / SOURCE_COUNT % 60_000) as u16;
    packet.extend(source_port.to_be_bytes());
    packet.extend(PORT.to_be_bytes());
    packet.extend((number | 1).to_be_bytes());
    packet.extend([0, 0, 0, 0, 0x50, 0x02, 0x04, 0, 0, 0, 0, 0]);
    let mut pseudo = packet[26..].to_vec();
    pseudo.extend([0, 6, 0, 20]);
    let sum = checksum(&pseudo).to_be_bytes();
    packet[50..52].copy_from_slice(&sum);
    packet
}

/// Sends SYNs until `is_over`, given the number of the next one, in batches that fit a veth's ring.
pub fn flood(pair: &Pair, is_over: impl Fn(u32) -> bool) -> u32 {
    let sender = pair.left.ns.run(|| Raw::sender(&pair.left.ifname));
    let sender = sender.unwrap().unwrap();
    let mut number = 0;
    while !is_over(number) {
        sender.send(&syn(pair, number)).unwrap();
        number += 1;
        if number.is_multiple_of(64) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    number
}

/// Routes the right end's answers to spoofed sources back over the pair, where they are ignored.
pub fn route_back(pair: &Pair) {
    let via = pair.left.ipv4.to_string();
    let route = ["route", "add", "198.18.0.0/15", "via", &via];
    pair.right.ns.ip(route).unwrap();
}

/// A server at the right end that echoes one byte per connection, until `is_over`.
pub fn serve(listener: &TcpListener, is_over: &AtomicBool) {
    listener.set_nonblocking(true).unwrap();
    while !is_over.load(Ordering::Relaxed) {
        let Ok((mut stream, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        // One thread per connection: late data on one must not hold up the others.
        std::thread::spawn(move || {
            let mut byte = [0];
            stream.set_nonblocking(false)?;
            stream.set_read_timeout(Some(LIMIT))?;
            stream.read_exact(&mut byte)?;
            stream.write_all(&byte)?;
            // The client closes first. Otherwise the server's port stays in TIME_WAIT, and the SYN
            // of the next connection from the same port does not reach the listener.
            stream.read(&mut byte)
        });
    }
}

/// A connection through the kernel that carries a byte both ways.
pub fn connect(address: SocketAddr) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(&[7])?;
    stream.read_exact(&mut [0])
}

/// Counts the flood's SYNs that reach the host; returns also the time of the last one.
fn count_passed(socket: &Raw, is_over: &AtomicBool) -> (u64, Instant) {
    let (mut count, mut last) = (0, Instant::now());
    loop {
        let was_over = is_over.load(Ordering::Relaxed);
        match socket.receive(Duration::from_millis(200)).unwrap() {
            Some(packet) if packet.get(26..28) == Some(&[0xc6, 0x12]) => {
                count += 1;
                last = Instant::now();
            }
            Some(_) => {}
            None if was_over => return (count, last),
            None => {}
        }
    }
}

/// The limit applies to all sources together, and to nothing else.
#[test]
fn a_forged_flood_passes_at_its_limit_and_every_connection_completes() {
    require!(skip::lab());
    // A burst long enough that no pause of the sender refills the bucket.
    const RATE: f64 = 1_000.0;
    const BURST: f64 = 5_000.0;
    let pair = Veth::new().create().unwrap();
    route_back(&pair);
    let file = lab::oracle::TempFile::new(".toml");
    let rule = format!(
        "[[rule]]\nmatch = \"{SIGNATURE}\"\nverdict = \"limit\"\nrate = \"{RATE}/s\"\n\
         burst = {BURST}\n"
    );
    std::fs::write(file.path(), rule).unwrap();
    let process = guard(&pair, &["--rules", file.path().to_str().unwrap()]);
    let address = SocketAddr::from((pair.right.ipv4, PORT));
    let listener = pair.right.ns.run(|| TcpListener::bind(address)).unwrap();
    let listener = listener.unwrap();
    let socket = pair.right.ns.run(|| Raw::open(&pair.right.ifname)).unwrap();
    let socket = socket.unwrap();
    let (flood_over, all_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let (mut completed, mut passed, mut sent, mut inner) = (0, (0, Instant::now()), 0, 0.0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let count = scope.spawn(|| count_passed(&socket, &flood_over));
        scope.spawn(|| serve(&listener, &all_over));
        let clients = scope.spawn(|| {
            let run = || {
                let mut count = 0;
                while !flood_over.load(Ordering::Relaxed) {
                    connect(address).expect("a connection of another signature");
                    count += 1;
                    std::thread::sleep(Duration::from_millis(2));
                }
                count
            };
            pair.left.ns.run(run).unwrap()
        });
        sent = flood(&pair, |_| began.elapsed() >= Duration::from_secs(4));
        inner = began.elapsed().as_secs_f64();
        // Empties the bucket, whatever a pause has added.
        sent += flood(&pair, |number| number == 6_500);
        flood_over.store(true, Ordering::Relaxed);
        passed = count.join().unwrap();
        completed = clients.join().unwrap();
        all_over.store(true, Ordering::Relaxed);
    });
    let outer = passed.1.duration_since(began).as_secs_f64();
    let totals = stop(process);
    let rule = &totals["rules"][0];
    let within = rule["packets"].as_u64().unwrap() - rule["dropped"].as_u64().unwrap();
    assert_eq!(passed.0, within, "of {sent}: {totals}");
    let rate_min = (passed.0 as f64 - BURST) / outer;
    let rate_max = (passed.0 as f64 - BURST) / inner;
    assert!(
        rate_min <= RATE * 1.05 && rate_max >= RATE * 0.95,
        "{} of {sent} passed, between {rate_min:.0}/s and {rate_max:.0}/s: {totals}",
        passed.0
    );
    assert!(rule["dropped"].as_u64().unwrap() > 1_000, "{totals}");
    assert!(completed > 0, "no connection was tried");
}

/// Runs hping3 from the left end, and waits until it has sent its packets.
pub fn hping3(pair: &Pair, args: &[&str]) {
    let target = pair.right.ipv4.to_string();
    let args = [&["-q", "-c", "10", "-i", "u1000"], args, &[&target]].concat();
    let mut process = pair.left.ns.spawn("hping3", args).unwrap();
    // It exits with 1 if there was no answer.
    let finished = process.wait(LIMIT).unwrap();
    assert!(
        finished.stderr.contains("10 packets"),
        "{}",
        finished.stderr
    );
}

/// A signature of hping3's SYNs, options of hping3, and how many of its ten packets match.
pub const HPING3: &str = "4:64:0:0:*,0::ack+:0";
const HPING3_RUNS: &[(&[&str], u64)] = &[
    (&["-S", "-p", "8080"], 10),
    (&["-S", "-p", "8080", "-t", "29"], 10),
    (&["-S", "-p", "8080", "-t", "28"], 0),
    (&["-S", "-p", "8080", "-t", "65"], 0),
    (&["-S", "-L", "0", "-p", "8080"], 0),
    (&["-S", "-y", "-p", "8080"], 0),
    (&["-S", "-F", "-p", "8080"], 0),
    (&["-R", "-M", "1", "-L", "99", "-p", "8080"], 0),
    (&["-A", "-p", "8080"], 0),
];

/// Makes ten connections through the kernel; all complete.
pub fn ten_connections(pair: &Pair) {
    let address = SocketAddr::from((pair.right.ipv4, PORT));
    let listener = pair.right.ns.run(|| TcpListener::bind(address)).unwrap();
    let listener = listener.unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&listener, &is_over));
        let run = || (0..10).all(|_| connect(address).is_ok());
        let all = pair.left.ns.run(run);
        is_over.store(true, Ordering::Relaxed);
        assert!(all.unwrap(), "a connection of the kernel is lost");
    });
}

#[test]
fn exactly_the_hping3_packets_of_the_signature_are_dropped() {
    require!(skip::lab());
    require!(skip::program("hping3", "hping3"));
    let pair = Veth::new().create().unwrap();
    let rule = format!("p0f:{HPING3}");
    let file = lab::oracle::TempFile::new(".toml");
    let text = format!("[[rule]]\nmatch = \"{rule}\"\nverdict = \"drop\"\n");
    std::fs::write(file.path(), text).unwrap();
    for (options, count) in HPING3_RUNS {
        let process = guard(&pair, &["--rules", file.path().to_str().unwrap()]);
        hping3(&pair, options);
        ten_connections(&pair);
        let totals = stop(process);
        assert_eq!(totals["dropped"], *count, "{options:?}: {totals}");
    }
}

/// Packets dropped by the first rule of PREROUTING in the table `raw`.
fn iptables_count(pair: &Pair) -> u64 {
    let list = ["-t", "raw", "-L", "PREROUTING", "-v", "-x", "-n", "-Z"];
    let text = pair.right.ns.exec("iptables", list).unwrap();
    let rule = text.lines().nth(2).unwrap_or_default();
    let count = rule.split_whitespace().next().unwrap_or_default();
    count.parse().unwrap_or_else(|_| panic!("{text}"))
}

/// The bytecode in a stock iptables.
#[test]
fn iptables_drops_what_the_bytecode_matches_and_no_connection() {
    require!(skip::lab());
    require!(skip::program("hping3", "hping3"));
    require!(skip::program("iptables", "iptables"));
    let pair = Veth::new().create().unwrap();
    let args = ["filter", "compile", "--to", "iptables", "--p0f", HPING3];
    let text = pair.left.ns.exec(barewire().unwrap(), args).unwrap();
    let code = text.lines().find(|line| !line.starts_with('#')).unwrap();
    let rule = [
        "-t",
        "raw",
        "-A",
        "PREROUTING",
        "-m",
        "bpf",
        "--bytecode",
        code,
        "-j",
        "DROP",
    ];
    pair.right.ns.exec("iptables", rule).unwrap();
    for (options, count) in HPING3_RUNS {
        hping3(&pair, options);
        ten_connections(&pair);
        assert_eq!(iptables_count(&pair), *count, "{options:?}");
    }
}
