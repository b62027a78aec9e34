//! Every field that a person sees in a collector: times, flags, ICMP, type of service, TTL, VLAN
//! and counters of each direction, in each protocol's default mode and as uniflows, by nfcapd,
//! nfacctd, goflow2 and tshark.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::export::sides::{Side, capture, time_ms};
use crate::export::{Folder, LIMIT, run, udp_port, wait_bound, wait_read};
use lab::oracle::goflow2::goflow2;
use lab::process::{Process, Signal};
use lab::{require, skip};
use serde_json::Value;

/// Formats with their options, and whether a record has both directions.
const MODES: [(&str, &str, bool); 4] = [
    ("ipfix", "", true),
    ("ipfix", "&uniflow", false),
    ("netflow9", "", false),
    ("netflow5", "", false),
];

/// Flows in the capture.
const FLOW_COUNT: usize = 8;

/// The capture, and the directions in it.
fn truth(folder: &Folder) -> (PathBuf, Vec<Side>) {
    let file = folder.0.join("sides.pcap");
    std::fs::write(&file, capture()).unwrap();
    let run = run(&file, &["--uniflow", "--key", "vlan"]);
    let mut sides: Vec<Side> = run.flows.iter().map(Side::of).collect();
    sides.sort();
    // As the capture was made.
    let tcp = sides
        .iter()
        .find(|side| side.flags == 0x1b && side.vlan == 77);
    let tcp = tcp.unwrap_or_else(|| panic!("{sides:#?}"));
    assert_eq!((tcp.end_ms - tcp.start_ms, tcp.packets), (3000, 4));
    assert_eq!((tcp.tos, tcp.ttl, tcp.ports), (0x10, 64, [40_000, 80]));
    assert!(sides.iter().any(|side| side.icmp == [3, 3]));
    assert!(sides.iter().any(|side| side.icmp == [129, 0]));
    (file, sides)
}

/// What the format can say of a side.
fn in_format(format: &str, sides: &[Side]) -> Vec<Side> {
    let is_five = format == "netflow5";
    let held = sides
        .iter()
        .filter(|side| !is_five || !side.source.contains(':'));
    held.map(|side| match is_five {
        true => Side {
            ttl: 0,
            vlan: 0,
            ..side.clone()
        },
        false => side.clone(),
    })
    .collect()
}

/// Compares what a collector has found, after `blind` has removed what it does not show. Of each
/// biflow it must have found the initiator's direction.
fn compare(found: Vec<Side>, expected: &[Side], is_biflow: bool, blind: impl Fn(&mut Side)) {
    let hide = |mut sides: Vec<Side>| {
        sides.iter_mut().for_each(&blind);
        sides.sort();
        sides
    };
    let (found, expected) = (hide(found), hide(expected.to_vec()));
    if !is_biflow {
        assert_eq!(found, expected);
        return;
    }
    for side in &found {
        assert!(expected.contains(side), "{side:#?} in {expected:#?}");
    }
    assert_eq!(found.len(), FLOW_COUNT, "{found:#?}");
    assert!(found.windows(2).all(|pair| pair[0] != pair[1]));
    assert!(found.iter().all(|side| side.ports[0] >= side.ports[1]));
}

/// The bits of nfdump's `...AP.SF`.
fn flags(text: &str) -> u8 {
    let letters = "CEUAPRSF".chars().rev().enumerate();
    letters
        .filter(|(_, letter)| text.contains(*letter))
        .map(|(bit, _)| 1 << bit)
        .sum()
}

/// Sides as nfdump prints them, and of biflows the counters of the other direction.
fn nfdump(folder: &str) -> Vec<(Side, [u64; 2])> {
    let mut command = Command::new("nfdump");
    command
        .env("TZ", "UTC")
        .args(["-R", folder, "-q", "-N", "-6", "-o"]);
    let fields = [
        "ts", "te", "pr", "sa", "da", "sp", "dp", "it", "ic", "flg", "tos", "svln",
    ];
    let counters = ["ipkt", "ibyt", "opkt", "obyt"];
    let names: Vec<String> = fields
        .iter()
        .chain(&counters)
        .map(|f| format!("%{f}"))
        .collect();
    command.arg(format!("fmt:{}", names.join("|")));
    let text = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
    let text = text.checked().unwrap().stdout;
    let lines = text.lines().filter(|line| line.contains('|'));
    lines
        .map(|line| {
            let words: Vec<&str> = line.split('|').map(str::trim).collect();
            let number = |at: usize| -> u64 {
                words[at]
                    .parse()
                    .unwrap_or_else(|_| panic!("{at} of {line:?}"))
            };
            let protocol = number(2) as u8;
            let is_icmp = matches!(protocol, 1 | 58);
            let ports = |at: usize| if is_icmp { 0 } else { number(at) as u16 };
            let icmp = |at: usize| if is_icmp { number(at) as u8 } else { 0 };
            let side = Side {
                source: words[3].to_owned(),
                destination: words[4].to_owned(),
                ports: [ports(5), ports(6)],
                icmp: [icmp(7), icmp(8)],
                protocol,
                start_ms: time_ms(words[0]),
                end_ms: time_ms(words[1]),
                packets: number(12),
                bytes: number(13),
                flags: flags(words[9]),
                tos: number(10) as u8,
                ttl: 0,
                vlan: number(11) as u16,
            };
            (side, [number(14), number(15)])
        })
        .collect()
}

/// Runs the export into a collector at a port, and lets it finish reading.
fn export(file: &std::path::Path, (format, options): (&str, &str), port: u16) {
    let url = format!("{format}:udp://127.0.0.1:{port}?rate=5000{options}");
    run(file, &["--key", "vlan", "--export", &url]);
    wait_read(port);
}

#[test]
fn nfdump_shows_every_field() {
    require!(skip::program("nfcapd", "nfdump"));
    let folder = Folder::new("fields-nfdump");
    let (file, sides) = truth(&folder);
    for (format, options, is_biflow) in MODES {
        let (out, port) = (Folder::new("fields-nfcapd"), udp_port());
        let mut command = Command::new("nfcapd");
        command.args(["-b", "127.0.0.1", "-p", &port.to_string(), "-t", "600"]);
        let mut process = Process::spawn(command.args(["-w", out.path()])).unwrap();
        wait_bound("udp", port);
        export(&file, (format, options), port);
        // It drops its current datagram if the signal arrives before that is written.
        std::thread::sleep(Duration::from_millis(500));
        process.stop(Signal::SIGTERM, LIMIT).unwrap();
        let found = nfdump(out.path());
        let expected = in_format(format, &sides);
        // The counters of the other direction are those of a side, too.
        for (side, [packets, bytes]) in &found {
            let is_other = |other: &&Side| {
                other.source == side.destination
                    && other.destination == side.source
                    && other.ports == [side.ports[1], side.ports[0]]
                    && other.protocol == side.protocol
                    && [other.packets, other.bytes] == [*packets, *bytes]
            };
            assert!(
                *packets == 0 || expected.iter().any(|other| is_other(&other)),
                "{side:?}"
            );
        }
        let total: u64 = found
            .iter()
            .map(|(side, other)| side.packets + other[0])
            .sum();
        assert_eq!(total, expected.iter().map(|side| side.packets).sum::<u64>());
        let found = found.into_iter().map(|(side, _)| side).collect();
        // Version 1.7.1 does not store the TTL.
        compare(found, &expected, is_biflow, |side| side.ttl = 0);
    }
}

/// Lines of JSON in the output, once there are as many as expected, or no more come.
fn lines(process: &Process, count: usize) -> Vec<Value> {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let text = process.stdout();
        let found = text.lines().filter(|line| line.starts_with('{'));
        let found: Vec<Value> = found.filter_map(|l| serde_json::from_str(l).ok()).collect();
        if found.len() >= count || Instant::now() > until {
            return found;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn goflow2_shows_every_field() {
    require!(goflow2());
    let program = goflow2().unwrap();
    let folder = Folder::new("fields-goflow2");
    let (file, sides) = truth(&folder);
    for (format, options, is_biflow) in MODES {
        let port = udp_port();
        let mut command = Command::new(&program);
        command.args([
            "-listen",
            &format!("netflow://127.0.0.1:{port}"),
            "-format",
            "json",
        ]);
        command.args(["-addr", &format!("127.0.0.1:{}", crate::export::tcp_port())]);
        let mut process = Process::spawn(&mut command).unwrap();
        wait_bound("udp", port);
        export(&file, (format, options), port);
        let expected = in_format(format, &sides);
        let least = if is_biflow {
            FLOW_COUNT
        } else {
            expected.len()
        };
        let found = lines(&process, least).iter().map(goflow2_side).collect();
        process.stop(Signal::SIGTERM, LIMIT).unwrap();
        // It has no ICMP type and code of NetFlow 5.
        let is_five = format == "netflow5";
        compare(found, &expected, is_biflow, |side| {
            if is_five {
                side.icmp = [0, 0];
            }
        });
    }
}

fn goflow2_side(line: &Value) -> Side {
    const DAY_MS: u64 = 86_400_000;
    let number = |name: &str| {
        line[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name}: {line}"))
    };
    let protocol = match line["proto"].as_str().unwrap() {
        "TCP" => 6,
        "UDP" => 17,
        "ICMP" => 1,
        "IPv6-ICMP" => 58,
        other => panic!("{other}"),
    };
    let is_icmp = matches!(protocol, 1 | 58);
    let port = |name: &str| if is_icmp { 0 } else { number(name) as u16 };
    Side {
        source: line["src_addr"].as_str().unwrap().to_owned(),
        destination: line["dst_addr"].as_str().unwrap().to_owned(),
        ports: ["src_port", "dst_port"].map(port),
        icmp: ["icmp_type", "icmp_code"].map(|name| number(name) as u8),
        protocol,
        start_ms: number("time_flow_start_ns") / 1_000_000 % DAY_MS,
        end_ms: number("time_flow_end_ns") / 1_000_000 % DAY_MS,
        packets: number("packets"),
        bytes: number("bytes"),
        flags: number("tcp_flags") as u8,
        tos: number("ip_tos") as u8,
        ttl: number("ip_ttl") as u8,
        vlan: number("vlan_id") as u16,
    }
}

#[test]
fn nfacctd_shows_every_field() {
    require!(skip::program("nfacctd", "pmacct"));
    let folder = Folder::new("fields-nfacctd");
    let (file, sides) = truth(&folder);
    for (format, options, is_biflow) in MODES {
        let port = udp_port();
        let config = folder.0.join("nfacctd.conf");
        let text = format!(
            "daemonize: false\nnfacctd_ip: 127.0.0.1\nnfacctd_port: {port}\nplugins: print\n\
             print_output: json\nprint_refresh_time: 1\nprint_history: 1m\naggregate: src_host,\
             dst_host,src_port,dst_port,proto,tcpflags,tos,vlan,timestamp_start,timestamp_end\n"
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new("nfacctd");
        command.env("TZ", "UTC").arg("-f").arg(&config);
        let mut process = Process::spawn(&mut command).unwrap();
        wait_bound("udp", port);
        // What arrives before its plugin runs is lost.
        process.wait_stderr("Purging cache - END", LIMIT).unwrap();
        export(&file, (format, options), port);
        let expected = in_format(format, &sides);
        let least = if is_biflow {
            FLOW_COUNT
        } else {
            expected.len()
        };
        let found = lines(&process, least).iter().map(nfacctd_side).collect();
        process.stop(Signal::SIGINT, LIMIT).unwrap();
        let has_seconds = format != "ipfix";
        compare(found, &expected, is_biflow, |side| {
            // It prints neither, and not the type of ICMP.
            (side.ttl, side.icmp) = (0, [0, 0]);
            // NetFlow's uptime is rounded to seconds.
            if has_seconds {
                (side.start_ms, side.end_ms) = (0, 0);
            }
            // Flags of 16 bits, which biflows have, are not read.
            if is_biflow {
                side.flags = 0;
            }
        });
    }
}

fn nfacctd_side(line: &Value) -> Side {
    let number = |name: &str| {
        line[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name}: {line}"))
    };
    let text = |name: &str| line[name].as_str().unwrap();
    let protocol = match text("ip_proto") {
        "tcp" => 6,
        "udp" => 17,
        "icmp" => 1,
        "ipv6-icmp" => 58,
        other => panic!("{other}"),
    };
    let is_icmp = matches!(protocol, 1 | 58);
    let port = |name: &str| if is_icmp { 0 } else { number(name) as u16 };
    Side {
        source: text("ip_src").to_owned(),
        destination: text("ip_dst").to_owned(),
        ports: ["port_src", "port_dst"].map(port),
        icmp: [0, 0],
        protocol,
        start_ms: time_ms(text("timestamp_start")),
        end_ms: time_ms(text("timestamp_end")),
        packets: number("packets"),
        bytes: number("bytes"),
        flags: text("tcp_flags").parse().unwrap(),
        tos: number("tos") as u8,
        ttl: 0,
        vlan: number("vlan") as u16,
    }
}

/// tshark names reverse elements; they come before the forward ones.
#[test]
fn tshark_shows_every_field() {
    require!(skip::program("tshark", "tshark"));
    let folder = Folder::new("fields-tshark");
    let (file, sides) = truth(&folder);
    for options in ["", "?uniflow"] {
        let out = folder.file("flows.ipfix");
        let url = format!("ipfix:{out}{options}");
        run(&file, &["--key", "vlan", "--export", &url]);
        let mut command = Command::new("tshark");
        command.env("TZ", "UTC").args(["-n", "-V", "-r", &out]);
        let text = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
        let text = text.checked().unwrap().stdout;
        let mut found = Vec::new();
        for record in text.split("\n        Flow ").skip(1) {
            let end = record.find("\n        Set ").unwrap_or(record.len());
            let Some((reverse, forward)) = record[..end].split_once("SrcAddr: ") else {
                continue;
            };
            let side = tshark_side(&format!("SrcAddr: {forward}"), None);
            if reverse.contains("Reverse Type 2 ") {
                found.push(tshark_side(reverse, Some(&side)));
            }
            found.push(side);
        }
        // The type of the reply is not in a biflow.
        let is_biflow = options.is_empty();
        compare(found, &sides, false, |side| {
            if is_biflow && side.icmp == [129, 0] {
                side.icmp = [0, 0];
            }
        });
        std::fs::remove_file(&out).unwrap();
    }
}

/// A direction in tshark's text; `other` is the one it answers.
fn tshark_side(text: &str, other: Option<&Side>) -> Side {
    let find = |name: &str| {
        let mut lines = text.lines().map(str::trim_start);
        lines.find_map(|line| line.strip_prefix(name))
    };
    let word = |name: &str| find(name).and_then(|rest| rest.split([' ', ',']).next());
    let number = |name: &str| word(name).map_or(0, |word| word.parse::<u64>().unwrap());
    let hex = |name: &str| {
        let word = word(name).unwrap_or("0x0");
        u16::from_str_radix(word.trim_start_matches("0x"), 16).unwrap() as u8
    };
    // `Nov 14, 2023 22:13:20.500000000 UTC`.
    let time = |name: &str| {
        let time = find(name).and_then(|rest| rest.split(' ').nth(3));
        time_ms(&format!("0000-00-00 {}", time.unwrap()))
    };
    let mut side = Side {
        start_ms: time("StartTime: "),
        end_ms: time("EndTime: "),
        packets: number("Packets: "),
        bytes: number("Octets: "),
        flags: hex("TCP Flags: "),
        tos: hex("IP ToS: "),
        ttl: number("MinTTL: ") as u8,
        ..Side::default()
    };
    if let Some(other) = other {
        side.source.clone_from(&other.destination);
        side.destination.clone_from(&other.source);
        side.ports = [other.ports[1], other.ports[0]];
        (side.protocol, side.vlan) = (other.protocol, other.vlan);
        return side;
    }
    let protocol = find("Protocol: ").unwrap();
    let protocol = protocol.split(['(', ')']).nth(1).unwrap();
    side.source = word("SrcAddr: ").unwrap().to_owned();
    side.destination = word("DstAddr: ").unwrap().to_owned();
    side.ports = ["SrcPort: ", "DstPort: "].map(|name| number(name) as u16);
    side.protocol = protocol.parse().unwrap();
    side.vlan = number("Vlan Id: ") as u16;
    // In one number for IPv4.
    side.icmp = match word("ICMP Type: ") {
        Some(both) => u16::from_str_radix(both.trim_start_matches("0x"), 16)
            .unwrap()
            .to_be_bytes(),
        None => ["IPv6 ICMP Type: ", "IPv6 ICMP Code: "].map(|name| number(name) as u8),
    };
    side
}
