//! `barewire scan` with UDP and ICMP echo probes, against sockets and servers at the far end.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lab::process::barewire;
use lab::{Pair, Veth, require, skip};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);
/// 16 addresses that the right end's kernel answers for.
const HOSTS: &str = "198.18.4.0/28";

fn network() -> Pair {
    let pair = Veth::new().ipv6().create().unwrap();
    pair.add_hosts(HOSTS).unwrap();
    // The kernel limits the rate of errors to one peer.
    pair.right
        .ns
        .sysctl("net/ipv4/icmp_ratelimit", "0")
        .unwrap();
    pair.right
        .ns
        .sysctl("net/ipv6/icmp/ratelimit", "0")
        .unwrap();
    pair
}

fn scan(pair: &Pair, args: &[&str]) -> (Vec<Value>, Value) {
    let args = [&["scan", "--json", "--wait", "1", "--rate", "500"], args].concat();
    let mut process = pair.left.ns.spawn(barewire().unwrap(), args).unwrap();
    let stdout = process.wait(LIMIT).unwrap().checked().unwrap().stdout;
    let mut lines: Vec<Value> = stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    lines.retain(|line| line["type"] != "status");
    let totals = lines.pop().expect("totals");
    assert_eq!(totals["type"], "totals");
    (lines, totals)
}

/// Number of rows of each protocol, port and state.
fn counted(rows: &[Value]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for row in rows {
        let word = |key: &str| row[key].as_str().unwrap().to_owned();
        let of = format!("{} {} {}", word("protocol"), row["port"], word("state"));
        *counts.entry(of).or_default() += 1;
    }
    counts
}

/// Serves a socket until `over`: answers each datagram `times` times; returns the number received.
fn serve(socket: &UdpSocket, times: usize, over: &AtomicBool) -> usize {
    let timeout = Some(Duration::from_millis(50));
    socket.set_read_timeout(timeout).unwrap();
    let mut buffer = [0; 2048];
    let mut count = 0;
    loop {
        let is_over = over.load(Ordering::Acquire);
        match socket.recv_from(&mut buffer) {
            Ok((_, from)) => {
                count += 1;
                for _ in 0..times {
                    socket.send_to(b"here", from).unwrap();
                }
            }
            Err(_) if is_over => return count,
            Err(_) => {}
        }
    }
}

#[test]
fn answering_udp_ports_are_reported_once() {
    require!(skip::lab());
    for scheme in ["", "afxdp:"] {
        let pair = network();
        let right = &pair.right;
        // One host: a socket bound to its address answers from it.
        let host = "198.18.4.5";
        let bind = |port: u16| {
            let open = || UdpSocket::bind((host, port));
            right.ns.run(open).unwrap().unwrap()
        };
        let sockets = [(bind(4001), 1), (bind(4002), 3), (bind(4003), 0)];
        let over = AtomicBool::new(false);
        let port = format!("{scheme}{}", pair.left.ifname);
        let args = [host, "-p", "U:4001-4006,T:80", "-e", &port];
        let ((rows, totals), served) = std::thread::scope(|scope| {
            let over = &over;
            let serving = |(socket, times): &'_ (UdpSocket, usize)| {
                let (socket, times) = (socket.try_clone().unwrap(), *times);
                scope.spawn(move || serve(&socket, times, over))
            };
            let servers: Vec<_> = sockets.iter().map(serving).collect();
            let result = scan(&pair, &args);
            over.store(true, Ordering::Release);
            let served: Vec<usize> = servers.into_iter().map(|s| s.join().unwrap()).collect();
            (result, served)
        });
        assert_eq!(served, [1, 1, 1], "{totals}");
        let expected = [
            ("tcp 80 closed", 1),
            ("udp 4001 open", 1),
            ("udp 4002 open", 1),
            ("udp 4004 closed", 1),
            ("udp 4005 closed", 1),
            ("udp 4006 closed", 1),
        ];
        let expected = expected.map(|(of, count)| (of.to_owned(), count));
        assert_eq!(counted(&rows), expected.into(), "{scheme} {totals}");
        assert_eq!(
            (&totals["sent"], &totals["repeated"]),
            (&7.into(), &2.into())
        );
        assert_eq!(totals["lost"], 0);
    }
}

#[test]
fn a_name_server_answers_the_probe_for_its_port() {
    require!(skip::lab());
    require!(skip::program("dnsmasq", "dnsmasq-base"));
    let pair = network();
    let args = [
        "--no-daemon",
        "--no-resolv",
        "--no-hosts",
        "--conf-file=/dev/null",
    ];
    let args = [&args[..], &["--user=root", "--pid-file="]].concat();
    let mut server = pair.right.ns.spawn("dnsmasq", args).unwrap();
    server.wait_stderr("started", LIMIT).unwrap();
    let target = pair.right.ipv4.to_string();
    let (rows, totals) = scan(&pair, &[&target, "-p", "U:53,54"]);
    let expected = [
        ("udp 53 open".to_owned(), 1),
        ("udp 54 closed".to_owned(), 1),
    ];
    assert_eq!(counted(&rows), expected.into(), "{totals}");
    server.kill().unwrap();
}

#[test]
fn hosts_answer_echo_requests_with_a_round_trip_time() {
    require!(skip::lab());
    for scheme in ["", "afxdp:"] {
        let pair = network();
        let port = format!("{scheme}{}", pair.left.ifname);
        let (rows, totals) = scan(&pair, &[HOSTS, "--probe", "echo", "-e", &port]);
        assert_eq!(
            counted(&rows),
            [("icmp 0 up".to_owned(), 16)].into(),
            "{totals}"
        );
        assert_eq!((&totals["sent"], &totals["up"]), (&16.into(), &16.into()));
        for row in &rows {
            assert_eq!(row["reason"], "echo-reply");
            let rtt = row["rtt_ms"].as_f64().expect("a round-trip time");
            assert!((0.0..120_000.0).contains(&rtt), "{row}");
        }
    }
    let pair = network();
    let target = pair.right.ipv6.to_string();
    let (rows, totals) = scan(&pair, &[&target, "--probe", "echo,udp", "-p", "4004"]);
    let expected = [
        ("icmp 0 up".to_owned(), 1),
        ("udp 4004 closed".to_owned(), 1),
    ];
    assert_eq!(counted(&rows), expected.into(), "{totals}");
}
