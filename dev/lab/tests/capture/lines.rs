//! Link headers and addresses in the output of `barewire capture`, and the filters it accepts,
//! compared with tcpdump on the same files and expressions.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use super::{Folder, LIMIT, capture, command};
use lab::process::Process;
use lab::{corpus, process, skip};

/// IPv4 and UDP from 192.0.2.1 port 1000 to 192.0.2.2 port 2000, four bytes of payload.
const DATAGRAM: [u8; 32] = [
    0x45, 0, 0, 32, 0, 1, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2, 0x03, 0xe8, 0x07, 0xd0,
    0, 12, 0, 0, 1, 2, 3, 4,
];

/// Writes a capture with a link type and a snapshot length.
fn write(folder: &Folder, name: &str, link: u32, snaplen: u32, packets: &[&[u8]]) -> String {
    let path = folder.at(name);
    let mut out = Vec::new();
    let header = [0xa1b2_c3d4, 0x0004_0002, 0, 0, snaplen, link];
    out.extend(header.iter().flat_map(|word: &u32| word.to_le_bytes()));
    for packet in packets {
        let len = packet.len() as u32;
        let words = [1_700_000_000, 0, len, len];
        out.extend(words.iter().flat_map(|word: &u32| word.to_le_bytes()));
        out.extend(*packet);
    }
    let mut file = std::fs::File::create_new(&path).unwrap();
    file.write_all(&out).unwrap();
    path.into_os_string().into_string().unwrap()
}

fn behind(header: &[u8], payload: &[u8]) -> Vec<u8> {
    [header, payload].concat()
}

fn tcpdump<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> String {
    let result = Command::new("tcpdump")
        .arg("-n")
        .args(args)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&result.stderr);
    assert!(result.status.success(), "{printed}");
    String::from_utf8(result.stdout).unwrap()
}

#[test]
fn link_headers_equal_those_of_tcpdump() {
    lab::require!(skip::program("tcpdump", "tcpdump"));
    let folder = Folder::new();
    let sll = [0, 4, 0, 1, 0, 6, 2, 0, 0, 0, 0, 9, 0, 0, 8, 0];
    let nameless = [0, 0, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0];
    let sll2 = [8, 0, 0, 0, 0, 0, 0, 7, 0, 1, 0, 6, 2, 0, 0, 0, 0, 9, 0, 0];
    let cases: [(u32, &[u8]); 14] = [
        (113, &sll),
        (113, &nameless),
        (276, &sll2),
        (0, &[2, 0, 0, 0]),
        (108, &[0, 0, 0, 2]),
        (104, &[0x0f, 0, 8, 0]),
        (1, &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]),
        (101, &[]),
        (228, &[]),
        (9, &[0xff, 3, 0, 0x21]),
        (9, &[0x21]),
        (9, &[0xff, 3, 2, 0x81, 0, 1, 1, 64]),
        (50, &[0xff, 3, 0, 0x21]),
        (50, &[0x0f, 0, 8, 0]),
    ];
    for (at, (link, header)) in cases.into_iter().enumerate() {
        let packet = behind(header, &DATAGRAM);
        let file = write(&folder, &at.to_string(), link, 65_535, &[&packet]);
        let theirs = tcpdump(["-e", "-t", "-r", &file]);
        let ours = capture(["-e", "-t", "-r", &file]).checked().unwrap().stdout;
        assert_eq!(ours, theirs, "link type {link}");
    }
}

#[test]
fn the_snapshot_length_is_that_of_the_file() {
    lab::require!(skip::program("tcpdump", "tcpdump"));
    let folder = Folder::new();
    let packet = behind(&[2, 0, 0, 0], &DATAGRAM);
    for (snaplen, flags, expected) in [
        (96, &[][..], "96"),
        (0, &[], "262144"),
        (65_535, &["-s", "60"], "60"),
        (60, &["-s", "96"], "60"),
    ] {
        let file = write(&folder, &format!("{snaplen}"), 0, snaplen, &[&packet]);
        let result = capture([flags, &["-r", &file]].concat());
        let expected = format!(", snapshot length {expected} bytes");
        let line = result.stderr.lines().next().unwrap().to_owned();
        assert!(line.contains(&expected), "{line}");
    }
}

#[test]
fn a_damaged_wire_length_is_not_added_up() {
    lab::require!(skip::program("tcpdump", "tcpdump"));
    let folder = Folder::new();
    let file = write(&folder, "damaged", 101, 65_535, &[&DATAGRAM, &DATAGRAM]);
    // The wire length of the first packet.
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[36..40].copy_from_slice(&538_000_000_u32.to_le_bytes());
    std::fs::write(&file, bytes).unwrap();

    let theirs = tcpdump(["-t", "-r", &file]);
    assert!(theirs.starts_with("[Invalid header: len(538000000) > 262144]"));

    let result = capture(["--json", "-r", &file]).checked().unwrap();
    let lengths = result.stdout.matches("\"wire_len\":32").count();
    assert_eq!(lengths, 2, "{}", result.stdout);
    let expected = "1 packet has a damaged wire length (above 1 MiB)";
    assert!(result.stderr.contains(expected), "{}", result.stderr);

    let result = barewire(["flows", &file, "--json"]).checked().unwrap();
    assert_eq!(
        value(&result.stdout, "wire_bytes"),
        Some("64"),
        "{}",
        result.stdout
    );
    let counts = result.stdout.matches("\"wire_len_damaged\":1").count();
    assert_eq!(counts, 2, "in the total and the queue: {}", result.stdout);
    let result = barewire(["flows", &file]).checked().unwrap();
    let printed = format!("{}{}", result.stdout, result.stderr);
    assert!(printed.contains(expected), "{printed}");
}

/// A value in a JSON line.
fn value<'j>(line: &'j str, key: &str) -> Option<&'j str> {
    let (_, rest) = line.split_once(&format!("\"{key}\":"))?;
    let end = rest.find([',', '}']).unwrap_or(rest.len());
    Some(rest[..end].trim_matches('"'))
}

#[test]
fn json_has_the_addresses_inside_ethernet_in_mpls_and_fabric_path() {
    let folder = Folder::new();
    let ethernet = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    let inner = behind(&behind(&ethernet, &[8, 0]), &DATAGRAM);
    // A label at the bottom of the stack, then the control word of a pseudowire.
    let mpls = [0x88, 0x47, 0, 1, 1, 64, 0, 0, 0, 0];
    let fabric_path = [0x89, 0x03, 0x00, 0x40];
    for (name, header) in [("mpls", &mpls[..]), ("fabric", &fabric_path)] {
        let packet = behind(&behind(&ethernet, header), &inner);
        let file = write(&folder, name, 1, 65_535, &[&packet]);
        let line = capture(["--json", "-r", &file]).checked().unwrap().stdout;
        let found = ["src", "dst", "ip_protocol", "src_port", "dst_port"].map(|k| value(&line, k));
        let expected = ["192.0.2.1", "192.0.2.2", "17", "1000", "2000"].map(Some);
        assert_eq!(found, expected, "{name}: {line}");
    }
}

/// How many packets of a file `barewire capture` and tcpdump select.
fn selected(file: &str, expression: &str) -> (usize, usize) {
    selected_by("barewire", file, expression)
}

fn selected_by(compiler: &str, file: &str, expression: &str) -> (usize, usize) {
    let lines = |text: String| text.lines().filter(|line| !line.starts_with('\t')).count();
    let theirs = lines(tcpdump(["-t", "-r", file, expression]));
    let compiler = format!("--filter-compiler={compiler}");
    let ours = capture(["-t", "-r", file, &compiler, expression]);
    let ours = ours.checked().unwrap();
    (lines(ours.stdout), theirs)
}

/// IPv6 with `count` destination options headers before TCP.
fn chain(count: u8) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 8 * count + 20, 60, 64];
    packet.extend([0x20; 32]);
    for left in (0..count).rev() {
        packet.extend([if left == 0 { 6 } else { 60 }, 0, 1, 4, 0, 0, 0, 0]);
    }
    packet.extend([
        0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 2, 0, 0, 0, 0, 0, 0,
    ]);
    let ethernet = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
    behind(&ethernet, &packet)
}

#[test]
fn filters_that_tcpdump_accepts_are_accepted() {
    lab::require!(skip::program("tcpdump", "tcpdump"));
    let folder = Folder::new();
    let ethernet = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    let mut broadcast = behind(&ethernet, &DATAGRAM);
    broadcast[30..34].fill(255);
    let file = write(
        &folder,
        "ethernet",
        1,
        65_535,
        &[
            &broadcast,
            &behind(&ethernet, &DATAGRAM),
            &chain(1),
            &chain(5),
        ],
    );
    assert_eq!(selected(&file, "ip broadcast"), (1, 1));
    for (expression, count) in [
        ("ip broadcast", 1),
        ("ip6 protochain 6", 2),
        ("ip6 protochain 17", 0),
        ("ip protochain 17", 2),
    ] {
        for compiler in ["libpcap", "barewire"] {
            let found = selected_by(compiler, &file, expression);
            assert_eq!(found, (count, count), "{expression} by {compiler}");
        }
    }
    // BACnet MS/TP, whose program loads at a negative offset.
    let frame = behind(&[0x55, 0xff, 0, 1, 2, 0, 8, 0], &DATAGRAM);
    let file = write(&folder, "bacnet", 165, 65_535, &[&frame]);
    let (ours, theirs) = selected_by("libpcap", &file, "ip[0] & 0xf != 5");
    assert_eq!(ours, theirs);
    // What barewire's own compiler does not support is refused with an alternative.
    let refused = capture(["-r", &file, "ip"]);
    assert!(!refused.status.success());
    let hint = "--filter-compiler libpcap";
    assert!(refused.stderr.contains(hint), "{}", refused.stderr);
}

#[test]
fn expressions_select_in_the_corpus_what_tcpdump_selects() {
    lab::require!(skip::program("tcpdump", "tcpdump"));
    let names = [
        "lab-mix.pcapng",
        "wireshark__dhcp.pcapng",
        "libpcap__ipv6_ext_headers.pcap",
    ];
    let corpus = corpus::captures();
    let mut compared = 0;
    for path in &corpus.files {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !names.contains(&&*name) {
            continue;
        }
        for (compiler, expression) in [
            ("barewire", "ip broadcast"),
            ("libpcap", "ip6 protochain 17"),
            ("barewire", "ip6 protochain 17"),
            ("libpcap", "ip protochain 6"),
            ("barewire", "ip protochain 6"),
        ] {
            let (ours, theirs) = selected_by(compiler, path.to_str().unwrap(), expression);
            // A packet of this file has about 100 extension headers; barewire skips at most 16.
            let is_too_long = name.contains("ext_headers") && expression == "ip6 protochain 17";
            let missed = usize::from(is_too_long && compiler == "barewire");
            assert_eq!(ours + missed, theirs, "{name}: {expression}");
        }
        compared += 1;
    }
    assert_eq!(compared, corpus.at_least(names.len(), 1));
}

fn barewire<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> lab::Finished {
    let mut command = Command::new(process::barewire().unwrap());
    command.args(args);
    Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap()
}

#[test]
fn flags_may_follow_the_expression() {
    let folder = Folder::new();
    let ethernet = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    let packet = behind(&ethernet, &DATAGRAM);
    let file = write(&folder, "ethernet", 1, 65_535, &[&packet]);
    let record = |args: &[&str]| {
        let all = [&["flows", &file], args].concat();
        let result = barewire(&all).checked().unwrap();
        assert!(
            result.stdout.starts_with('{'),
            "{args:?}: {}",
            result.stdout
        );
        result.stdout.matches("\"src_port\":1000").count()
    };
    assert_eq!(record(&["udp", "--json"]), 1);
    assert_eq!(record(&["udp", "port", "1000", "--json", "--uniflow"]), 1);
    assert_eq!(record(&["--json", "udp[4:2]", "-", "4", "=", "8"]), 1);
    assert_eq!(record(&["--json", "udp[4:2] + -4 = 8"]), 1);
    assert_eq!(record(&["--json", "udp[4:2]", "+", "-4", "=", "8"]), 1);
    let lines = |args: &[&str]| {
        let mut command = command([&["-r", &file], args].concat());
        let result = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
        result.checked().unwrap().stdout.lines().count()
    };
    assert_eq!(lines(&["udp", "-t", "-n"]), 1);
    assert_eq!(lines(&["udp[4:2]", "+", "-4", "=", "8", "-t"]), 1);
    let copy = format!("file:{}", folder.at("copy.pcap").display());
    let args = ["forward", &file, &copy, "udp", "--json"];
    barewire(args).checked().unwrap();
    assert!(Path::new(&folder.at("copy.pcap")).exists());
}
