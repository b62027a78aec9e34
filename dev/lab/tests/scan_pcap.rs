//! `barewire scan --pcap`: a capture of all that a scan sends and receives, read by tshark, and
//! what it shows of the times between retries.

use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;
use std::time::Duration;

use lab::oracle::TempFile;
use lab::process::barewire;
use lab::{Finished, Pair, Veth, require, skip, watch};
use serde_json::Value;

use crate::afxdp::receiver;

/// Time limit of a program; not a measurement.
const LIMIT: Duration = Duration::from_secs(120);
/// 256 addresses of the right end.
const HOSTS: &str = "198.18.4.0/24";

fn network() -> Pair {
    let pair = Veth::new().offloads().create().unwrap();
    pair.add_hosts(HOSTS).unwrap();
    pair
}

fn scan(pair: &Pair, args: &[&str]) -> Finished {
    let args = [&["scan", "--json", "--wait", "1"], args].concat();
    let mut process = pair.left.ns.spawn(barewire().unwrap(), args).unwrap();
    process.wait(LIMIT).unwrap()
}

fn totals(finished: &Finished) -> Value {
    serde_json::from_str(finished.stdout.lines().last().unwrap()).unwrap()
}

/// These fields of the packets of a file, one line each.
fn fields(file: &str, filter: &str, names: &[&str]) -> Vec<Vec<String>> {
    let mut command = Command::new("tshark");
    command.args(["-n", "-r", file, "-Y", filter, "-T", "fields"]);
    command.args(names.iter().flat_map(|name| ["-e", name]));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text
        .lines()
        .map(|line| line.split('\t').map(str::to_owned).collect());
    lines.collect()
}

/// Nanoseconds of `frame.time_epoch`.
fn nanoseconds(text: &str) -> u64 {
    let (seconds, fraction) = text.split_once('.').unwrap();
    seconds.parse::<u64>().unwrap() * 1_000_000_000 + fraction.parse::<u64>().unwrap()
}

/// By the scan's own record, whose times are from before the packets are handed to the device: they
/// do not depend on how busy the machine is.
#[test]
fn retries_are_a_second_apart_in_sets_of_any_size() {
    require!(skip::lab(), skip::program("tshark", "tshark"));
    let pair = Veth::new().queues(4).offloads().create().unwrap();
    pair.add_hosts(HOSTS).unwrap();
    let queues = format!("afxdp:{}", pair.left.ifname);
    for (targets, ports, rate, more) in [
        ("198.18.4.1", "81", "100", &[][..]),
        ("198.18.4.0/28", "81", "100", &[]),
        ("198.18.4.1", "1-1000", "10000", &[]),
        (
            "198.18.4.0/24",
            "81,82",
            "20000",
            &["--queues", "3", "-e", &queues],
        ),
        // Several blocks, and a shorter one at the end.
        ("198.18.4.0/24", "81", "100", &[]),
        // Segments of connections in between.
        ("198.18.4.0/28", "80,81", "200", &["--banners"]),
    ] {
        let file = TempFile::new("pcap");
        let path = file.path().to_str().unwrap();
        let args = [targets, "-p", ports, "--rate", rate, "--retries", "2"];
        let args = [&args[..], &["--pcap", path], more].concat();
        let totals = totals(&scan(&pair, &args).checked().unwrap());
        let names = ["frame.time_epoch", "ip.dst", "tcp.dstport"];
        let mut times: HashMap<String, Vec<u64>> = HashMap::new();
        for line in fields(path, "tcp.flags == 2", &names) {
            let target = format!("{}:{}", line[1], line[2]);
            times.entry(target).or_default().push(nanoseconds(&line[0]));
        }
        let sent: usize = times.values().map(Vec::len).sum();
        assert_eq!(totals["sent"], sent, "{args:?}");
        for (target, times) in &times {
            assert_eq!(times.len(), 3, "{target}: {args:?}");
            let is_apart = |pair: &[u64]| pair[1] - pair[0] >= 1_000_000_000;
            assert!(
                times.windows(2).all(is_apart),
                "{target} {times:?}: {args:?}"
            );
        }
    }
}

/// Both ends are compared: each packet that the scan sent is in its file, and so is each response.
#[test]
fn all_packets_of_a_scan_are_in_its_capture_file() {
    require!(skip::lab(), skip::program("tshark", "tshark"));
    let pair = network();
    let listen = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, 22));
    let listener = pair.right.ns.run(listen).unwrap().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = std::io::Write::write_all(&mut stream, b"SSH-2.0-test\r\n");
            std::thread::spawn(move || {
                let _ = std::io::Read::read_to_end(&mut stream, &mut Vec::new());
            });
        }
    });
    for extension in ["pcap", "pcapng", "pcapng.zst"] {
        let file = TempFile::new(extension);
        let path = file.path().to_str().unwrap();
        let far = receiver(&pair.right);
        let args = [
            "198.18.4.0/26",
            "-p",
            "22,23",
            "--rate",
            "2000",
            "--banners",
            "--pcap",
            path,
        ];
        let mut arrived: BTreeMap<Vec<u8>, i64> = BTreeMap::new();
        let each = |packet: &[u8]| {
            // TCP alone: the kernels exchange ARP and Neighbor Discovery of their own.
            if packet.get(12..14) == Some(&[8, 0]) && packet.get(23) == Some(&6) {
                *arrived.entry(packet[14..].to_vec()).or_default() += 1;
            }
        };
        let finished = watch::packets(&far, each, || scan(&pair, &args));
        let finished = finished.checked().unwrap();
        assert_eq!(totals(&finished)["banners"], 64, "{}", finished.stdout);
        let names = ["ip.src", "tcp.flags", "tcp.srcport", "tcp.dstport"];
        let rows = fields(path, "tcp", &names);
        let own = pair.left.ipv4.to_string();
        let (sent, received): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row[0] == own);
        assert_eq!(
            sent.len() as i64,
            arrived.values().sum::<i64>(),
            "{extension}"
        );
        let count = |rows: &[&Vec<String>], flags: &str| {
            rows.iter().filter(|row| row[1].ends_with(flags)).count()
        };
        assert_eq!((count(&sent, "002"), count(&received, "012")), (128, 64));
        assert_eq!(count(&received, "014"), 64, "resets of port 23");
        assert_eq!(totals(&finished)["received"], received.len(), "{extension}");
        // The requests for MAC addresses, with their answers.
        let asked = fields(path, "arp.opcode == 1", &["arp.dst.proto_ipv4"]);
        let answered = fields(path, "arp.opcode == 2", &["arp.src.proto_ipv4"]);
        assert_eq!((asked.len(), answered.len()), (0, 0), "behind a router");
        let times = fields(path, "frame", &["frame.time_epoch"]);
        let times: Vec<u64> = times.iter().map(|row| nanoseconds(&row[0])).collect();
        assert!(times.is_sorted(), "{extension}");
    }
}

#[test]
fn the_capture_file_is_no_input_and_no_output_of_the_scan() {
    require!(skip::lab(), skip::program("tshark", "tshark"));
    let pair = network();
    let list = TempFile::new("txt");
    std::fs::write(list.path(), "198.18.4.1\n").unwrap();
    let path = list.path().to_str().unwrap();
    let finished = scan(&pair, &["-iL", path, "-p", "80", "--pcap", path]);
    assert_eq!(finished.code(), Some(1), "{}", finished.stderr);
    assert_eq!(std::fs::read_to_string(path).unwrap(), "198.18.4.1\n");
    let file = TempFile::new("pcap");
    let path = file.path().to_str().unwrap();
    let finished = scan(
        &pair,
        &["198.18.4.1", "-p", "80", "--pcap", path, "-oX", path],
    );
    assert_eq!(finished.code(), Some(1), "{}", finished.stderr);
    let pipe = lab::oracle::TempFile::new("fifo");
    let pipe = pipe.path().to_str().unwrap();
    let made = Command::new("mkfifo").arg(pipe).status().unwrap();
    assert!(made.success());
    let _reader = std::fs::File::options()
        .read(true)
        .write(true)
        .open(pipe)
        .unwrap();
    for name in ["-", pipe] {
        let finished = scan(&pair, &["198.18.4.1", "-p", "80", "--pcap", name]);
        assert_eq!(finished.code(), Some(1), "{name}: {}", finished.stderr);
    }
    // Neighbors on the link are asked by the scan itself.
    let neighbour = pair.right.ipv4.to_string();
    scan(&pair, &[&neighbour, "-p", "80", "--pcap", path])
        .checked()
        .unwrap();
    assert_eq!(fields(path, "arp", &["arp.opcode"]), [["1"], ["2"]]);
}
