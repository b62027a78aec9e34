//! `barewire filter`: its output, compared with that of libpcap and p0f.

use std::process::Command;
use std::time::Duration;

use lab::oracle::TempFile;
use lab::process::{Process, barewire};
use lab::{Finished, skip};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
/// The SYN signature of Linux for many years.
const LINUX: &str = "*:64:0:*:mss*10,6:mss,sok,ts,nop,ws:df,id+:0";

fn run(args: &[&str]) -> Finished {
    let mut command = Command::new(barewire().unwrap());
    let mut process = Process::spawn(command.arg("filter").args(args)).unwrap();
    process.wait(LIMIT).unwrap()
}

fn stdout(args: &[&str]) -> String {
    run(args).checked().unwrap().stdout
}

#[test]
fn programs_are_printed_in_every_form() {
    let text = stdout(&["compile", "tcp", "port", "80"]);
    assert!(text.starts_with("(000) ldh      [12]\n"), "{text}");
    let text = stdout(&["compile", "--to", "dd", "--link", "raw", "icmp"]);
    assert!(text.starts_with("{ 0x30, 0, 0, 0x00000000 },\n"), "{text}");
    let text = stdout(&["compile", "--to", "xdp", "--p0f", LINUX]);
    assert!(text.ends_with(": exit\n"), "{text}");
    // A line for iptables and one for ip6tables, each with the stated number of instructions.
    let text = stdout(&["compile", "--to", "iptables", "--p0f", LINUX]);
    let mut lines = text.lines();
    for command in ["# iptables", "# ip6tables"] {
        assert_eq!(lines.next(), Some(command));
        let line = lines.next().unwrap();
        let mut parts = line.split(',');
        let count: usize = parts.next().unwrap().parse().unwrap();
        assert!(count <= 64, "{count}");
        assert_eq!(
            parts.filter(|part| part.split(' ').count() == 4).count(),
            count
        );
    }
    let object: Value = serde_json::from_str(&stdout(&["compile", "--json", "udp"])).unwrap();
    let program = &object["programs"][0];
    assert_eq!(program["count"], program["cbpf"].as_array().unwrap().len());
}

#[test]
fn errors_show_the_position_and_what_was_expected() {
    let ports: Vec<_> = (1..20).map(|port| format!("port {}", 2 * port)).collect();
    let many = ports.join(" or ");
    for (args, part) in [
        (&["compile", "tcp porz 80"][..], "      ^^^^"),
        (&["compile", "--p0f", "4:64:0:*:*,*:mss,msss::0"], "^^^^"),
        (
            &["compile", "--p0f", "4:64:0:*:*,*:mss,ts::0"],
            "words of 4 bytes",
        ),
        (&["compile", "--to", "iptables", &many], "-m bpf accepts 64"),
    ] {
        let finished = run(args);
        assert_eq!(finished.code(), Some(1), "{args:?}: {}", finished.stderr);
        assert!(
            finished.stderr.contains(part),
            "{args:?}: {}",
            finished.stderr
        );
    }
}

/// The signatures of a capture are those that p0f prints.
/// A capture of one query for each name.
fn queries(names: &[&str]) -> TempFile {
    let mut capture = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    capture.extend([0, 0, 4, 0, 1, 0, 0, 0]);
    for name in names {
        let mut packet = vec![2; 12];
        packet.extend([8, 0, 0x45, 0, 0, 80, 0, 7, 0x40, 0, 64, 17, 0, 0]);
        packet.extend([10, 0, 0, 1, 10, 0, 0, 2, 0xc0, 0, 0, 53, 0, 60, 0, 0]);
        packet.extend([1, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        for label in name.split('.') {
            packet.push(label.len() as u8);
            packet.extend(label.bytes());
        }
        packet.extend([0, 0, 1, 0, 1]);
        capture.extend([0; 8]);
        capture.extend([packet.len() as u8, 0, 0, 0].repeat(2));
        capture.extend(packet);
    }
    let file = TempFile::new(".pcap");
    std::fs::write(file.path(), capture).unwrap();
    file
}

#[test]
fn lists_of_ten_thousand_names_are_tested_in_user_space() {
    let list = TempFile::new(".txt");
    let names: Vec<String> = (0..10_000)
        .map(|at| format!("host{at}.example.com"))
        .collect();
    std::fs::write(list.path(), names.join("\n") + "\n*.zone.test\n").unwrap();
    let names = [
        "host9999.Example.com",
        "host10000.example.com",
        "a.zone.test",
        "zone.test",
    ];
    let capture = queries(&names);
    let file = ["--dns-file", list.path().to_str().unwrap()];
    let capture = capture.path().to_str().unwrap();
    assert_eq!(
        stdout(&[&["test", capture, "--count"], &file[..]].concat()),
        "2\n"
    );
    let types = ["--qtype", "TXT"];
    assert_eq!(
        stdout(&[&["test", capture, "--count"], &file[..], &types].concat()),
        "0\n"
    );
    let refused = run(&[&["compile"], &file[..]].concat());
    assert!(!refused.success());
    assert!(refused.stderr.contains("10001 names"), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("guard --deny-names"),
        "{}",
        refused.stderr
    );
}

#[test]
fn printed_signatures_equal_those_of_p0f() {
    let p0f = skip::program("p0f", "p0f");
    lab::require!(p0f);
    let file = TempFile::new("syns.pcap");
    std::fs::write(file.path(), syns()).unwrap();
    let log = TempFile::new("p0f.log");
    let path = |file: &TempFile| file.path().to_str().unwrap().to_owned();
    let mut command = Command::new("p0f");
    command.args(["-r", &path(&file), "-o", &path(&log)]);
    let mut process = Process::spawn(&mut command).unwrap();
    process.wait(LIMIT).unwrap().checked().unwrap();
    let log = std::fs::read_to_string(log.path()).unwrap();
    let mut theirs: Vec<_> = log
        .lines()
        .filter_map(|line| line.split("raw_sig=").nth(1))
        .filter(|signature| signature.matches(':').count() == 7)
        .map(str::to_owned)
        .collect();
    let text = stdout(&["p0f", &path(&file)]);
    let ours = text.lines().filter_map(|line| line.split(' ').next_back());
    let mut ours: Vec<_> = ours.map(str::to_owned).collect();
    theirs.sort();
    ours.sort();
    assert_eq!(ours.len(), 4, "{text}");
    assert_eq!(ours, theirs, "{log}");
}

/// A capture of SYNs from different addresses: options, windows, quirks.
fn syns() -> Vec<u8> {
    let linux = [
        2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 1, 2, 3, 0, 0, 0, 0, 1, 3, 3, 6,
    ];
    let windows = [2, 4, 5, 0xb4, 1, 3, 3, 8, 1, 1, 4, 2];
    let mut file = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0];
    file.extend([0; 8]);
    file.extend(65_535u32.to_le_bytes());
    file.extend(101u32.to_le_bytes());
    for (index, ttl, df, window, options) in [
        (1u8, 64u8, true, 14_600u16, &linux[..]),
        (2, 128, true, 8_192, &windows),
        (3, 57, false, 1_024, &linux[..4]),
        (4, 255, true, 65_535, &[]),
    ] {
        let len = 40 + options.len();
        let mut packet = vec![0x45, 0, 0, len as u8, 1, index];
        packet.extend([
            if df { 0x40 } else { 0 },
            0,
            ttl,
            6,
            0,
            0,
            10,
            0,
            0,
            index,
            10,
            0,
            1,
            1,
        ]);
        packet.extend([0x9c, index, 0, 80, 1, 2, 3, 4, 0, 0, 0, 0]);
        packet.extend([((20 + options.len()) as u8 / 4) << 4, 2]);
        packet.extend(window.to_be_bytes());
        packet.extend([0; 4]);
        packet.extend(options);
        file.extend(u32::from(index).to_le_bytes());
        file.extend([0; 4]);
        file.extend([(len as u32).to_le_bytes(); 2].concat());
        file.extend(packet);
    }
    file
}

/// The packets of [`syns`] with another link header.
fn syns_behind(link_type: u32, header: &[u8]) -> TempFile {
    let raw = syns();
    let mut bytes = raw[..20].to_vec();
    bytes.extend(link_type.to_le_bytes());
    let mut rest = &raw[24..];
    while let [time, lengths] = rest[..16].as_chunks::<8>().0 {
        let len = u32::from_le_bytes(*lengths.first_chunk().unwrap()) as usize;
        bytes.extend(time);
        bytes.extend(((header.len() + len) as u32).to_le_bytes().repeat(2));
        bytes.extend(header);
        bytes.extend(&rest[16..16 + len]);
        rest = &rest[16 + len..];
        if rest.is_empty() {
            break;
        }
    }
    let file = TempFile::new(".pcap");
    std::fs::write(file.path(), bytes).unwrap();
    file
}

#[test]
fn signatures_are_tested_and_printed_on_every_link_type_with_ip() {
    let mut radio = vec![0, 0, 8, 0, 0, 0, 0, 0, 8, 1, 0, 0];
    radio.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 3, 0, 0]);
    radio.extend([0xaa, 0xaa, 3, 0, 0, 0, 8, 0]);
    let cooked = [0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 8, 0];
    let cooked2 = [8, 0, 0, 0, 0, 0, 0, 3, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0];
    let ethernet = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    let mut printed = Vec::new();
    for (link_type, header) in [
        (101, &[][..]),
        (1, &ethernet),
        (113, &cooked),
        (276, &cooked2),
        (0, &[2, 0, 0, 0]),
        (0, &[0, 0, 0, 2]),
        (108, &[0, 0, 0, 2]),
        (228, &[]),
        (9, &[0xff, 3, 0, 0x21]),
        (50, &[0xff, 3, 0, 0x21]),
        (104, &[0x0f, 0, 8, 0]),
        (107, &[0x18, 0x41, 3, 0xcc]),
        (127, &radio),
        (105, &radio[8..]),
    ] {
        let file = syns_behind(link_type, header);
        let path = file.path().to_str().unwrap();
        let args = [
            "test",
            path,
            "--count",
            "--p0f",
            "4:64:0:1460:*,6:mss,sok,ts,nop,ws:df,id+:0",
        ];
        assert_eq!(stdout(&args), "1\n", "link type {link_type}");
        // The third has a TTL and flags that only match fuzzily.
        let third = "4:128:0:1460:1024,0:mss:df,id+:0";
        assert_eq!(stdout(&["test", path, "--count", "--p0f", third]), "0\n");
        let fuzzy = ["test", path, "--count", "--fuzzy", "--p0f", third];
        assert_eq!(stdout(&fuzzy), "1\n", "link type {link_type}");
        printed.push(stdout(&["p0f", path]));
        assert_eq!(
            printed[0],
            printed[printed.len() - 1],
            "link type {link_type}"
        );
        assert_eq!(printed[0].lines().count(), 4);
    }
    let file = syns_behind(189, &[0; 64]);
    let refused = run(&[
        "test",
        file.path().to_str().unwrap(),
        "--p0f",
        "4:64:0:*:*,*:mss::0",
    ]);
    assert_eq!(refused.code(), Some(1));
    assert!(
        refused.stderr.contains("link type 189"),
        "{}",
        refused.stderr
    );
}
