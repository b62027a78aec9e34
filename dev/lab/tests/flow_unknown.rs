//! What a capture file does not say, or says beyond what can be represented: times, ICMP types,
//! frame check sequences.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::export::Folder;
use lab::corpus;
use lab::oracle::TempFile;
use lab::process::{Process, barewire};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

/// Runs a command on a file and returns the lines of its output, and standard error.
fn run(command: &str, file: &Path, args: &[&str]) -> (Vec<Value>, String) {
    let (text, errors) = run_text(command, file, args);
    let lines = text.lines();
    let lines = lines.filter_map(|line| serde_json::from_str(line).ok());
    (lines.collect(), errors)
}

/// A block of pcapng in little-endian order.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let mut body = body.to_vec();
    body.resize(body.len().next_multiple_of(4), 0);
    let len = (body.len() as u32 + 12).to_le_bytes();
    [&kind.to_le_bytes()[..], &len, &body, &len].concat()
}

fn option(code: u16, value: &[u8]) -> Vec<u8> {
    let len = (value.len() as u16).to_le_bytes();
    let mut option = [&code.to_le_bytes()[..], &len, value].concat();
    option.resize(option.len().next_multiple_of(4), 0);
    option
}

/// A section and an Ethernet interface with these options.
fn section(options: &[u8]) -> Vec<u8> {
    let section = [
        &0x1a2b_3c4d_u32.to_le_bytes()[..],
        &[1, 0, 0, 0],
        &[0xff; 8],
    ]
    .concat();
    let interface = [&[1, 0, 0, 0, 0, 0, 0, 0], options].concat();
    [block(0x0a0d_0d0a, &section), block(1, &interface)].concat()
}

/// An Enhanced Packet Block.
fn packet(units: u64, bytes: &[u8], options: &[u8]) -> Vec<u8> {
    let len = (bytes.len() as u32).to_le_bytes();
    let mut body = 0_u32.to_le_bytes().to_vec();
    body.extend(((units >> 32) as u32).to_le_bytes());
    body.extend((units as u32).to_le_bytes());
    body.extend([len, len].concat());
    body.extend(bytes);
    body.resize(body.len().next_multiple_of(4), 0);
    body.extend(options);
    block(6, &body)
}

/// A Simple Packet Block.
fn simple(bytes: &[u8]) -> Vec<u8> {
    let len = (bytes.len() as u32).to_le_bytes();
    block(3, &[&len[..], bytes].concat())
}

/// UDP from port 1000 in Ethernet, padded to 60 bytes, and a check sequence of `fcs_len` bytes.
fn frame(port: u8, fcs_len: usize) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    bytes.extend([0x45, 0, 0, 31, 0, 1, 0, 0, 64, 17, 0, 0]);
    bytes.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([3, 232, 0, port, 0, 11, 0, 0, 1, 2, 3]);
    bytes.resize(60, 0);
    bytes.resize(60 + fcs_len, 0xee);
    bytes
}

fn file(name: &str, parts: &[Vec<u8>]) -> TempFile {
    let file = TempFile::new(name);
    std::fs::write(file.path(), parts.concat()).unwrap();
    file
}

/// The bytes of each flow, by destination port.
fn bytes_of(lines: &[Value]) -> Vec<(u64, u64)> {
    let flows = lines.iter().filter(|line| line["type"] == "flow");
    let mut found: Vec<_> = flows
        .map(|flow| {
            let number = |name: &str| flow[name].as_u64().unwrap();
            (number("dst_port"), number("bytes"))
        })
        .collect();
    found.sort_unstable();
    found
}

#[test]
fn a_check_sequence_that_the_file_states_is_not_counted() {
    let bits = section(&option(13, &[32]));
    let bytes = section(&option(13, &[4]));
    let none = section(&[]);
    let stated = option(2, &(2_u32 << 5).to_le_bytes());
    let ng = file(
        "fcs.pcapng",
        &[
            [bits, packet(5, &frame(1, 4), &[])].concat(),
            [bytes, packet(5, &frame(2, 4), &[])].concat(),
            // The flags of a packet override the interface, where there is one.
            [none.clone(), packet(5, &frame(3, 2), &stated)].concat(),
            [none, packet(5, &frame(4, 4), &[])].concat(),
        ],
    );
    let (lines, _) = run("flows", ng.path(), &["--json", "--octets", "packet"]);
    assert_eq!(bytes_of(&lines), [(1, 60), (2, 60), (3, 60), (4, 64)]);
    let (lines, _) = run("flows", ng.path(), &["--json"]);
    assert_eq!(bytes_of(&lines), [(1, 31), (2, 31), (3, 31), (4, 31)]);
    // pcap: bit 26, and the length in units of 16 bits above it.
    for (field, expected) in [(0x2400_0001_u32, 60), (1, 64)] {
        let mut pcap = 0xa1b2_c3d4_u32.to_le_bytes().to_vec();
        pcap.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0]);
        pcap.extend(field.to_le_bytes());
        pcap.extend([1, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0, 64, 0, 0, 0]);
        pcap.extend(frame(1, 4));
        let pcap = file("fcs.pcap", &[pcap]);
        let (lines, _) = run("flows", pcap.path(), &["--json", "--octets", "packet"]);
        assert_eq!(bytes_of(&lines), [(1, expected)]);
    }
}

#[test]
fn packets_without_a_time_have_none() {
    let packets = [
        section(&[]),
        simple(&frame(1, 0)),
        packet(1_700_000_000_000_000, &frame(2, 0), &[]),
        simple(&frame(3, 0)),
    ];
    let file = file("spb.pcapng", &packets);
    let (lines, _) = run("flows", file.path(), &["--json"]);
    let flows = lines.iter().filter(|line| line["type"] == "flow");
    for flow in flows.clone() {
        let is_timed = flow["dst_port"] == 2;
        for name in ["start", "end", "duration_ns"] {
            assert_eq!(flow.get(name).is_some(), is_timed, "{flow}");
        }
    }
    assert_eq!(flows.count(), 3);
    let summary = lines.last().unwrap();
    assert_eq!(summary["account"]["total"]["time_missing"], 2);
    let out = TempFile::new(".csv");
    let export = format!("csv:{}", out.path().display());
    run("flows", file.path(), &["--json", "--export", &export]);
    let csv = std::fs::read_to_string(out.path()).unwrap();
    assert_eq!(
        csv.lines().filter(|line| line.starts_with(",,,")).count(),
        2
    );
    let (lines, _) = run("capture", file.path(), &["--json"]);
    let times: Vec<bool> = lines
        .iter()
        .filter(|line| line["type"] == "packet")
        .map(|line| line.get("time").is_some() && line.get("time_ns").is_some())
        .collect();
    assert_eq!(times, [false, true, false]);
    let (text, errors) = run_text("capture", file.path(), &[]);
    assert_eq!(
        text.lines()
            .filter(|line| line.starts_with("- IP "))
            .count(),
        2
    );
    assert!(errors.contains("2 packets without a time"), "{errors}");
    let args = ["--fields", "frame.time_epoch", "--fields", "udp.dstport"];
    let (text, _) = run_text("capture", file.path(), &args);
    assert_eq!(text, "\t1\n1700000000.000000000\t2\n\t3\n");
}

fn run_text(command: &str, file: &Path, args: &[&str]) -> (String, String) {
    let mut process = Command::new(barewire().unwrap());
    process.arg(command);
    if command == "capture" {
        process.arg("-r");
    }
    process.arg(file).args(args);
    let finished = Process::spawn(&mut process).unwrap().wait(LIMIT).unwrap();
    (finished.stdout, finished.stderr)
}

#[test]
fn times_out_of_range_are_counted_and_reported() {
    let before = [
        section(&option(14, &(-1_700_000_001_i64).to_le_bytes())),
        packet(1_700_000_000_000_000, &frame(1, 0), &[]),
        packet(1_700_000_002_000_000, &frame(2, 0), &[]),
        section(&option(9, &[0])),
        packet(u64::MAX / 1_000_000_000 + 1, &frame(3, 0), &[]),
    ];
    let file = file("range.pcapng", &before);
    for command in ["flows", "capture"] {
        let (lines, _) = run(command, file.path(), &["--json"]);
        let total = &lines.last().unwrap()["account"]["total"];
        assert_eq!(
            (&total["time_clamped"], &total["time_missing"]),
            (&2.into(), &0.into())
        );
        let (_, errors) = run_text(command, file.path(), &[]);
        assert!(
            errors.contains("2 packets from before 1970 or after 2554"),
            "{errors}"
        );
    }
    // Nanoseconds of Parquet end in 2262.
    let folder = Folder::new("range");
    let export = format!("parquet:{}?times=ns", folder.0.display());
    let (lines, _) = run("flows", file.path(), &["--json", "--export", &export]);
    let exports = &lines.last().unwrap()["exports"][0];
    assert_eq!(
        (&exports["time_clamped"], &exports["exported"]["flows"]),
        (&1.into(), &3.into())
    );
    let export = format!("parquet:{}", folder.0.display());
    let (lines, _) = run("flows", file.path(), &["--json", "--export", &export]);
    assert_eq!(lines.last().unwrap()["exports"][0]["time_clamped"], 0);
}

/// Inputs that were answered wrongly once, and what is right by their README.
#[test]
fn fragmented_tunnels_of_the_corpus_have_the_packets_inside() {
    lab::require!(corpus::large());
    let folder = corpus::large().unwrap().join("failing/flows");
    for name in ["frag_outer_gtpu.pcap", "frag_outer_gre.pcap"] {
        for (level, tunnel_packets, twice) in [("inner", 3, 0), ("both", 6, 3)] {
            let (mut lines, _) = run("flows", &folder.join(name), &["--json", "--level", level]);
            let summary = lines.pop().unwrap();
            assert_eq!(summary["counted_twice"], twice, "{name} {level}");
            assert_eq!(summary["fragments"]["reassembled"], 3);
            assert_eq!(summary["imbalance"], 0);
            let is_inside = |flow: &&Value| flow["ttl_min"] == 128;
            let inside: Vec<&Value> = lines.iter().filter(is_inside).collect();
            let [inside] = inside[..] else {
                panic!("{name} {level}: {lines:?}");
            };
            let counts = ["packets", "bytes", "ttl_max"].map(|name| inside[name].as_u64());
            assert_eq!(counts, [3, 4440, 128].map(Some), "{name} {level}");
            let tunnel = lines.iter().filter(|flow| !is_inside(flow));
            let packets = tunnel.map(|flow| flow["packets"].as_u64().unwrap());
            assert_eq!(packets.sum::<u64>(), tunnel_packets, "{name} {level}");
        }
    }
}
