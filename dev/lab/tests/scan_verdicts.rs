//! One verdict for each port: what ends or disturbs a connection does not close the port.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use lab::packet::{Raw, checksum};
use lab::process::barewire;
use lab::{Pair, Veth, require, skip, watch};
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::Value;
use wire::{Dissection, LinkType, dissect};

use crate::afxdp::receiver;

/// Time limit of a program; not a measurement.
const LIMIT: Duration = Duration::from_secs(120);
/// 32 addresses of the right end.
const HOSTS: &str = "198.18.4.0/27";
const PORTS: &str = "22,25,80,443,7070";

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;

/// Runs a scan; returns the lines of its answers and banners, and the totals.
fn scan(pair: &Pair, args: &[&str]) -> (Vec<Value>, Value) {
    let args = [&["scan", "--json", "--wait", "1"], args].concat();
    let mut process = pair.left.ns.spawn(barewire().unwrap(), args).unwrap();
    let finished = process.wait(LIMIT).unwrap().checked().unwrap();
    let lines = finished.stdout.lines();
    let mut lines: Vec<Value> = lines.map(|l| serde_json::from_str(l).unwrap()).collect();
    let totals = lines.pop().unwrap();
    lines.retain(|line| line["type"] != "status");
    (lines, totals)
}

/// Closes a connection with a reset.
fn reset(stream: TcpStream) {
    let linger = nix::libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    setsockopt(&stream, sockopt::Linger, &linger).unwrap();
}

#[test]
fn a_port_whose_server_resets_every_connection_is_open_in_every_format() {
    require!(skip::lab());
    let pair = Veth::new().offloads().create().unwrap();
    pair.add_hosts(HOSTS).unwrap();
    for port in PORTS.split(',') {
        let port: u16 = port.parse().unwrap();
        let listen = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
        let listener = pair.right.ns.run(listen).unwrap().unwrap();
        // Runs until the test process ends.
        std::thread::spawn(move || listener.incoming().flatten().for_each(reset));
    }
    let folder = std::env::temp_dir().join(format!("bw-verdicts-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let prefix = folder.join("all").to_string_lossy().into_owned();
    let args = [HOSTS, "-p", PORTS, "--rate", "2000", "--banners"];
    let args = [&args[..], &["--retries", "1", "-oA", &prefix]].concat();
    let (rows, totals) = scan(&pair, &args);
    assert_eq!(
        (&totals["open"], &totals["closed"], &totals["filtered"]),
        (&160.into(), &0.into(), &0.into()),
        "{totals}"
    );
    assert!(rows.iter().all(|row| row["state"] == "open"), "{rows:?}");
    // The resets ended the connections, and are segments of these.
    assert_eq!(
        (&totals["connections"], &totals["unrelated"]),
        (&totals["silent"], &0.into()),
        "{totals}"
    );
    for extension in ["xml", "gnmap", "list", "json", "ndjson", "csv", "sql"] {
        let text = std::fs::read_to_string(format!("{prefix}.{extension}")).unwrap();
        let rows = text.lines().filter(|line| line.contains("198.18.4.7"));
        let closed = rows.filter(|row| row.contains("closed")).count();
        assert_eq!(closed, 0, "{extension}: {text}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// A segment in reply to one of the scan: with these numbers and flags, and these data.
fn reply(to: &[u8], (seq, ack): (u32, u32), flags: u8, data: &[u8]) -> Vec<u8> {
    let mut out = [&to[6..12], &to[..6], &[8, 0]].concat();
    let len = (40 + data.len()) as u16;
    let mut ip = [
        &[0x45, 0][..],
        &len.to_be_bytes(),
        &[0, 0, 0x40, 0, 64, 6, 0, 0],
    ]
    .concat();
    ip.extend([&to[30..34], &to[26..30]].concat());
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut tcp = [&to[36..38], &to[34..36]].concat();
    tcp.extend([seq.to_be_bytes(), ack.to_be_bytes()].concat());
    tcp.extend([0x50, flags, 0x20, 0, 0, 0, 0, 0]);
    tcp.extend(data);
    let mut pseudo = [&ip[12..20], &[0, 6], &(len - 20).to_be_bytes()].concat();
    pseudo.extend(&tcp);
    let sum = checksum(&pseudo);
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    out.extend(ip);
    out.extend(tcp);
    out
}

/// Plays a server that greets each client, in a network where somebody resets all connections
/// without knowing their sequence numbers.
fn serve(raw: &Raw, packet: &[u8]) {
    const FIRST: u32 = 7_000_000;
    let mut found = Dissection::EMPTY;
    dissect(LinkType::ETHERNET, packet, packet.len() as u32, &mut found);
    if found.ip_protocol != 6 {
        return;
    }
    let (seq, flags) = (found.tcp_seq, found.tcp_flags as u8);
    let send = |numbers, flags, data: &[u8]| {
        raw.send(&reply(packet, numbers, flags, data)).unwrap();
    };
    let next = seq.wrapping_add(1);
    let greeting = b"220 mail.example ESMTP\r\n";
    let after = FIRST + 1 + greeting.len() as u32;
    match flags {
        SYN => {
            send((FIRST, next), SYN | ACK, b"");
            for wrong in [0, FIRST, FIRST + 2, FIRST + 4_096, u32::MAX] {
                send((wrong, next), RST | ACK, b"");
            }
        }
        // The acknowledgment of the SYN and ACK, and those that answer the resets.
        ACK if found.tcp_ack == FIRST + 1 => send((FIRST + 1, seq), PSH | ACK, greeting),
        _ if flags & FIN != 0 => send((after, next), FIN | ACK, b""),
        _ => {}
    }
}

#[test]
fn a_blind_reset_neither_closes_a_port_nor_ends_its_connection() {
    require!(skip::lab());
    let pair = Veth::new().create().unwrap();
    let mac = wire::Mac(pair.right.mac).to_string();
    // Addresses that the right end's kernel does not have: the test answers for them.
    let args = [
        "192.0.2.0/28",
        "-p",
        "25",
        "--rate",
        "100",
        "--router-mac",
        &mac,
    ];
    let port = format!("afxdp:{}", pair.left.ifname);
    for more in [&["--banners"][..], &[], &["--retries", "1"]] {
        let args = [&args[..], &["-e", &port], more].concat();
        let raw = receiver(&pair.right);
        let run = || scan(&pair, &args);
        let (rows, totals) = watch::packets(&raw, |packet| serve(&raw, packet), run);
        assert_eq!(
            (&totals["open"], &totals["closed"]),
            (&16.into(), &0.into()),
            "{more:?}: {totals}"
        );
        let banners: Vec<_> = rows.iter().filter(|row| row["type"] == "banner").collect();
        let expected = if more == ["--banners"] { 16 } else { 0 };
        assert_eq!(banners.len(), expected, "{totals}");
        for banner in banners {
            let start = banner["start"].as_str().unwrap();
            assert_eq!(start, "220 mail.example ESMTP\r\n", "{banner}");
        }
    }
}
