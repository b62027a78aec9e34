//! `barewire scan --banners --firewall`: connections on a port whose packets the kernel receives,
//! too.

use std::io::{Read as _, Write as _};
use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use lab::process::{Process, barewire};
use lab::{Finished, Pair, Veth, require, skip};
use serde_json::Value;

/// Time limit of a program; not a measurement.
const LIMIT: Duration = Duration::from_secs(60);
/// 64 addresses of the right end.
const HOSTS: &str = "198.18.4.0/26";

fn network() -> Pair {
    let pair = Veth::new().ipv6().offloads().create().unwrap();
    pair.add_hosts(HOSTS).unwrap();
    pair
}

/// Starts a server on all addresses of the right end, IPv6 included.
fn serve(pair: &Pair, port: u16, serve: fn(TcpStream)) {
    let listen = || TcpListener::bind((Ipv6Addr::UNSPECIFIED, port));
    let listener = pair.right.ns.run(listen).unwrap().unwrap();
    std::thread::spawn(move || {
        // Runs until the test process ends, as all connections do.
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
}

/// Greets after a pause, in which a kernel that resets the connection would have done so.
fn ssh(mut stream: TcpStream) {
    std::thread::sleep(Duration::from_millis(200));
    let _ = stream.write_all(b"SSH-2.0-lab\r\n");
    let _ = stream.read_to_end(&mut Vec::new());
}

fn silent(mut stream: TcpStream) {
    let _ = stream.read_to_end(&mut Vec::new());
}

fn scan(pair: &Pair, args: &[&str]) -> Process {
    let port = format!("afpacket:{}", pair.left.ifname);
    let common = [
        "scan",
        "--json",
        "--wait",
        "2",
        "--banners",
        "--rate",
        "2000",
    ];
    let args = [&common, &["-e", &port][..], args].concat();
    pair.left.ns.spawn(barewire().unwrap(), args).unwrap()
}

/// The number of banners, and the totals.
fn counted(finished: &Finished) -> (usize, Value) {
    let lines = finished.stdout.lines();
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    let lines: Vec<Value> = lines.map(parse).collect();
    let banners = lines.iter().filter(|line| line["type"] == "banner");
    (banners.count(), lines.last().expect("totals").clone())
}

fn ruleset(pair: &Pair) -> String {
    pair.left.ns.exec("nft", ["list", "ruleset"]).unwrap()
}

#[test]
fn banners_are_complete_on_a_plain_port_and_the_rule_is_removed() {
    require!(skip::lab(), skip::program("nft", "nftables"));
    let pair = network();
    serve(&pair, 22, ssh);
    let right = pair.right.ipv6.to_string();
    let args = [HOSTS, &right, "-p", "22"];

    let finished = scan(&pair, &args).wait(LIMIT).unwrap();
    let (banners, totals) = counted(&finished);
    assert_eq!(banners, 0, "the kernel resets them: {totals}");
    assert!(
        finished.stderr.contains("nft add rule"),
        "{}",
        finished.stderr
    );
    assert_eq!(ruleset(&pair).trim(), "");

    let args = [&args[..], &["--firewall"]].concat();
    let mut process = scan(&pair, &args);
    process.wait_stderr("nftables table", LIMIT).unwrap();
    let during = ruleset(&pair);
    let finished = process.wait(LIMIT).unwrap().checked().unwrap();
    let (banners, totals) = counted(&finished);
    assert_eq!(banners, 65, "{totals}");
    assert!(
        !finished.stderr.contains("nft add rule"),
        "{}",
        finished.stderr
    );
    for part in ["barewire-scan-", "61000", "65095", "rst", "drop"] {
        assert!(during.contains(part), "{part}: {during}");
    }
    assert_eq!(ruleset(&pair).trim(), "");
}

#[test]
fn a_killed_scan_leaves_no_rule_and_the_next_one_is_complete() {
    require!(skip::lab(), skip::program("nft", "nftables"));
    let pair = network();
    serve(&pair, 22, ssh);
    serve(&pair, 25, silent);
    let args = [HOSTS, "-p", "25", "--firewall", "--banner-timeout", "50"];
    let mut process = scan(&pair, &args);
    process.wait_stderr("waiting", LIMIT).unwrap();
    assert!(ruleset(&pair).contains("barewire-scan-"));
    process.kill().unwrap();
    // The kernel closes the socket, and deletes the table, after the process has ended.
    let since = Instant::now();
    while !ruleset(&pair).trim().is_empty() {
        assert!(since.elapsed() < LIMIT, "{}", ruleset(&pair));
        std::thread::sleep(Duration::from_millis(20));
    }
    let finished = scan(&pair, &[HOSTS, "-p", "22", "--firewall"])
        .wait(LIMIT)
        .unwrap();
    let (banners, totals) = counted(&finished.checked().unwrap());
    assert_eq!(banners, 64, "{totals}");
    assert_eq!(ruleset(&pair).trim(), "");
}
