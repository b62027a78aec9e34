//! Other contents of lines: relative numbers, headers with `-v` and routing protocols as in
//! tcpdump, and decoded fields as in tshark.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use super::{Folder, capture};
use lab::{corpus, skip};

/// After an IPv4 header.
fn ipv4(protocol: u8, ttl: u8, payload: &[u8]) -> Vec<u8> {
    let len = 20 + payload.len() as u8;
    let mut packet = vec![0x45, 0xc0, 0, len, 0, 7, 0, 0, ttl, protocol, 0, 0];
    packet.extend([10, 0, 0, 1, 224, 0, 0, 18]);
    packet.extend(payload);
    packet
}

/// After an IPv6 header with this class and flow label.
fn ipv6(next: u8, flow: u32, payload: &[u8]) -> Vec<u8> {
    let mut packet = (0x6000_0000 | flow).to_be_bytes().to_vec();
    packet.extend([0, payload.len() as u8, next, 255]);
    packet.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    packet.extend([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x12]);
    packet.extend(payload);
    packet
}

/// After an Ethernet header.
fn ethernet(kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![1, 0, 0x5e, 0, 0, 1, 2, 0, 0, 0, 0, 1];
    packet.extend(kind.to_be_bytes());
    packet.extend(payload);
    packet
}

/// Both programs' lines without timestamps, for generated packets.
fn both(packets: &[Vec<u8>], flags: &[&str]) -> (Vec<String>, Vec<String>) {
    let file = lab::oracle::write_pcap(packets).unwrap();
    let args = [&["-nn", "-t", "-r", file.path().to_str().unwrap()], flags].concat();
    let ours = capture(&args).checked().unwrap().stdout;
    let theirs = Command::new("tcpdump").args(&args).output().unwrap().stdout;
    let theirs = String::from_utf8(theirs).unwrap();
    let lines = |text: &str| text.lines().map(str::to_owned).collect();
    (lines(&ours), lines(&theirs))
}

fn vrrp() -> Vec<Vec<u8>> {
    let v2 = |auth: u8| {
        let head = [0x21, 1, 100, 1, auth, 3, 0, 0, 10, 0, 0, 9];
        [&head[..], &[0; 8]].concat()
    };
    let v3 = [0x31, 9, 200, 1, 0, 100, 0, 0, 10, 0, 0, 9];
    let mut all: Vec<Vec<u8>> = [0, 1, 2, 7].map(|auth| ipv4(112, 255, &v2(auth))).into();
    all.push(ipv4(112, 64, &v2(0)));
    all.push(ipv4(112, 255, &v3));
    all.push(ipv4(112, 255, &[0x32, 9, 200, 1]));
    all.push(ipv4(112, 255, &[0x41, 9, 200, 1]));
    all.into_iter()
        .map(|packet| ethernet(0x0800, &packet))
        .collect()
}

fn ospf() -> Vec<Vec<u8>> {
    let message = |version: u8, kind: u8| {
        let head = [version, kind, 0, 44, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        [&head[..], &[0; 28]].concat()
    };
    let v2 = (0..8).map(|kind| ethernet(0x0800, &ipv4(89, 1, &message(2, kind))));
    let v3 = (1..6).map(|kind| ethernet(0x86dd, &ipv6(89, 0, &message(3, kind))));
    v2.chain(v3).collect()
}

fn igmp() -> Vec<Vec<u8>> {
    let messages: [&[u8]; 13] = [
        &[0x11, 0, 0, 0, 0, 0, 0, 0],
        &[0x11, 100, 0, 0, 0, 0, 0, 0],
        &[0x11, 10, 0, 0, 224, 0, 0, 9],
        &[0x11, 100, 0, 0, 0, 0, 0, 0, 2, 125, 0, 0],
        &[0x11, 10, 0, 0, 224, 1, 1, 1, 2, 125, 0, 0],
        &[0x11, 100, 0, 0, 224, 1, 1, 1, 2, 125, 0, 1, 10, 0, 0, 7],
        &[0x11, 0x85, 0, 0, 0, 0, 0, 0, 2, 125, 0, 0],
        &[0x12, 0, 0, 0, 224, 0, 0, 9],
        &[0x16, 0, 0, 0, 224, 0, 0, 9],
        &[0x17, 0, 0, 0, 224, 0, 0, 9],
        &[0x22, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0, 224, 0, 0, 9],
        &[0x15, 0, 0, 0, 1, 2, 3, 4],
        &[0x33, 0, 0, 0, 0, 0, 0, 0],
    ];
    messages
        .map(|message| ethernet(0x0800, &ipv4(2, 1, message)))
        .into()
}

fn lldp() -> Vec<Vec<u8>> {
    let start: &[u8] = &[
        2, 7, 4, 2, 0, 0, 0, 0, 1, 4, 5, 5, b'e', b't', b'h', b'0', 6, 2, 0, 120,
    ];
    let name: &[u8] = &[10, 3, b's', b'w', b'1'];
    [
        [start, name, &[0, 0]].concat(),
        [start, &[0, 0]].concat(),
        [start, &[12, 2, b'a', b'b'], name, &[0, 0], &[0; 20]].concat(),
        [start, &[10, 255]].concat(),
    ]
    .map(|message| ethernet(0x88cc, &message))
    .into()
}

#[test]
fn routing_protocols_are_printed_as_by_tcpdump() {
    lab::require!(skip::program("tcpdump", "tcpdump"));
    for packets in [vrrp(), ospf(), igmp(), lldp()] {
        let (ours, theirs) = both(&packets, &[]);
        assert_eq!(ours.len(), packets.len());
        assert_eq!(ours, theirs);
    }
}

#[test]
fn verbose_headers_equal_those_of_tcpdump() {
    lab::require!(skip::program("tcpdump", "tcpdump"));
    let datagram = [0, 9, 0, 10, 0, 8, 0, 0];
    let flows = [0, 5, 0x12345, 0x10_0000, 0xc0_0000, 0x6c1_2345];
    let packets: Vec<_> = flows
        .map(|flow| ethernet(0x86dd, &ipv6(59, flow, &datagram)))
        .into();
    let (ours, theirs) = both(&packets, &["-v"]);
    assert_eq!(ours.len(), packets.len());
    assert_eq!(ours, theirs);
    // With IPv4, tcpdump breaks the line and complains about the checksum.
    let flags = [0, 0x20, 0x40, 0x60, 0x80, 0xe0];
    let packets: Vec<_> = flags
        .map(|flags| {
            let mut packet = ipv4(17, 64, &[0, 9, 0, 10, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
            packet[6] = flags;
            ethernet(0x0800, &packet)
        })
        .into();
    let (ours, theirs) = both(&packets, &["-v"]);
    let theirs: Vec<_> = theirs
        .iter()
        .filter(|line| line.starts_with("IP ("))
        .collect();
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in ours.iter().zip(theirs) {
        let (head, _) = theirs.split_once(", bad cksum").unwrap();
        assert!(ours.starts_with(&format!("{head}) ")), "{ours}\n{theirs}");
    }
}

/// The numbers of each TCP segment: between its flags and its window.
fn numbers(text: &str) -> Vec<&str> {
    text.lines()
        .filter_map(|line| {
            let start = line.rfind("Flags [")?;
            let rest = &line[start..];
            let end = rest.find(", win ").unwrap_or(rest.len());
            Some(&rest[..end])
        })
        .collect()
}

/// Files in which numbers differ: how many, and why.
const KNOWN: &[(&str, usize, &str)] = &[
    ("nDPI__fuzz-2006-06-26-2594.pcap", 3, WRONG_LENGTH),
    ("nDPI__telnet.pcap", 5, WRONG_LENGTH),
    (
        "zeek__erspan.pcap",
        16,
        "the inner IP length exceeds the tunnel's",
    ),
    ("zeek__pppoe-over-qinq.pcap", 6, WRONG_LENGTH),
    ("zeek__tcp__reassembly.pcap", 5, WRONG_LENGTH),
    (
        "zeek__tcp__rst-inject-rae.pcap",
        1,
        "the accurate ECN bit, which tcpdump 4.99.3 does not print",
    ),
];

const WRONG_LENGTH: &str =
    "the IP length exceeds the packet: tcpdump counts missing bytes as payload";

#[test]
fn relative_sequence_numbers_equal_those_of_tcpdump() {
    lab::require!(skip::program("tcpdump", "tcpdump"));
    let corpus = corpus::captures();
    let (mut compared, mut uncompared, mut report) = (0, 0, String::new());
    let mut differing: BTreeMap<String, usize> = BTreeMap::new();
    for path in &corpus.files {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let mut command = Command::new("tcpdump");
        command.args(["-nn", "-t", "-r"]).arg(path);
        let theirs = lab::oracle::cache::output(&mut command, path)
            .unwrap()
            .stdout;
        let theirs = String::from_utf8_lossy(&theirs).into_owned();
        let ours = capture(["-t".as_ref(), "-r".as_ref(), path.as_os_str()]);
        assert!(
            ours.success() || corpus::is_damaged(path),
            "{name}: {ours:?}"
        );
        let (ours, theirs) = (numbers(&ours.stdout), numbers(&theirs));
        if ours.len() != theirs.len() {
            uncompared += 1;
            continue;
        }
        compared += ours.len();
        let pairs = ours.iter().zip(&theirs);
        let wrong: Vec<_> = pairs.filter(|(ours, theirs)| ours != theirs).collect();
        if let Some((ours, theirs)) = wrong.first() {
            report += &format!("{name}: {} differ\n  {ours}\n  {theirs}\n", wrong.len());
            differing.insert(name, wrong.len());
        }
    }
    println!("{compared} segments compared; {uncompared} files not");
    let known = KNOWN.iter().filter(|(name, ..)| corpus.has(name));
    let known: BTreeMap<String, usize> = known
        .map(|(name, count, _)| ((*name).to_owned(), *count))
        .collect();
    assert!(compared > corpus.at_least(30_000, 300), "only {compared}");
    assert!(uncompared <= corpus.at_least(45, 0), "{uncompared} files");
    assert_eq!(differing, known, "ours, then tcpdump's:\n{report}");
}

#[test]
fn sequence_numbers_are_absolute_on_request() {
    lab::require!(skip::program("tcpdump", "tcpdump"));
    let file = corpus::own().join("lab-mix.pcapng");
    let file = file.to_str().unwrap();
    let ours = capture(["-S", "-t", "-r", file]).checked().unwrap().stdout;
    let relative = capture(["-t", "-r", file]).checked().unwrap().stdout;
    let args = ["-nn", "-S", "-t", "-r", file];
    let theirs = Command::new("tcpdump").args(args).output().unwrap().stdout;
    let theirs = String::from_utf8_lossy(&theirs).into_owned();
    assert_eq!(numbers(&ours), numbers(&theirs));
    assert_ne!(numbers(&ours), numbers(&relative));
}

/// Captures with each protocol, and the end of a line.
const DECODED: &[(&str, &str)] = &[
    ("dnscap__dns.pcap", ": DNS "),
    ("ipfixprobe__tls.pcap", ": TLS sni "),
    ("ipfixprobe__http.pcap", ": HTTP GET "),
    ("retina__quic.pcap", ": QUIC version 0x0001, sni "),
    ("retina__quic_kyber.pcapng", ": QUIC sni "),
    ("libpcap__dhcp-rfc3004.pcap", ", type Discover, "),
    ("ipfixprobe__ntp.pcap", ": NTP version 4, mode client"),
    ("nDPI__sip.pcap", ": SIP REGISTER sip:"),
    ("nDPI__ssh.pcap", ": SSH SSH-2.0-"),
    ("nDPI__mqtt.pcap", ": MQTT "),
];

#[test]
fn lines_end_with_decoded_fields() {
    let own = corpus::own().join("lab-mix.pcapng");
    let text = capture(["-t", "-r", own.to_str().unwrap()])
        .checked()
        .unwrap()
        .stdout;
    for words in [": DNS ", ": HTTP GET /", ": HTTP 200", ": TLS alpn h2"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let quick = ["-q", "-t", "-r", own.to_str().unwrap()];
    assert!(!capture(quick).checked().unwrap().stdout.contains(": DNS "));
    lab::require!(corpus::large());
    let corpus = corpus::captures();
    for (name, words) in DECODED {
        let path = corpus
            .files
            .iter()
            .find(|path| path.ends_with(name))
            .unwrap();
        let text = capture(["-t", "-r", path.to_str().unwrap()]).stdout;
        assert!(text.contains(words), "{name}: {words}");
    }
}

/// Fields that both programs have, and that need no state.
const FIELDS: &str = "frame.number,frame.time_epoch,frame.len,frame.cap_len,eth.src,eth.dst,\
                      eth.type,vlan.id,ip.src,ip.dst,ip.proto,ip.ttl,ip.id,ip.len,ip.dsfield,\
                      ipv6.src,ipv6.dst,ipv6.hlim,ipv6.plen,tcp.srcport,tcp.dstport,tcp.seq_raw,\
                      tcp.ack_raw,tcp.flags,tcp.window_size_value,tcp.len,udp.srcport,udp.dstport,\
                      udp.length,icmp.type,icmp.code,icmpv6.type,icmpv6.code";

/// Fields of decoders.
const FOUND: &str = "frame.number,dns.qry.name,dns.qry.type,tls.handshake.extensions_server_name,\
                     http.host,http.request.method,http.request.uri";

fn tshark(path: &Path, fields: &str) -> String {
    let mut command = Command::new("tshark");
    command.args(["-n", "-T", "fields", "-r"]).arg(path);
    command.args(fields.split(',').flat_map(|field| ["-e", field]));
    let output = lab::oracle::cache::output(&mut command, path).unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn columns_equal_those_of_tshark() {
    lab::require!(skip::program("tshark", "tshark"));
    for name in ["lab-mix.pcapng", "lab-vlan.pcap", "lab-vxlan.pcapng"] {
        let path = corpus::own().join(name);
        for fields in [FIELDS, FOUND] {
            let args = ["--fields", fields, "-r", path.to_str().unwrap()];
            let ours = capture(args).checked().unwrap().stdout;
            let theirs = tshark(&path, fields);
            for (ours, theirs) in ours.lines().zip(theirs.lines()) {
                assert_eq!(ours, theirs, "{name}");
            }
            assert_eq!(ours.lines().count(), theirs.lines().count(), "{name}");
        }
    }
}

#[test]
fn columns_have_a_header_a_separator_and_suggestions() {
    let path = corpus::own().join("lab-mix.pcapng");
    let path = path.to_str().unwrap();
    let args = [
        "--fields",
        "ip.src,tls.sni",
        "--header",
        "--separator",
        ";",
        "-r",
        path,
    ];
    let text = capture(args).checked().unwrap().stdout;
    assert!(text.starts_with("ip.src;tls.sni\n"), "{text}");
    assert!(
        text.lines()
            .skip(1)
            .all(|line| line.matches(';').count() == 1)
    );
    let empty = capture(args.iter().chain(&["port", "9"]))
        .checked()
        .unwrap();
    assert_eq!(empty.stdout, "ip.src;tls.sni\n");
    let wrong = capture(["--fields", "tcp.dsport", "-r", path]);
    assert!(
        wrong.stderr.contains("did you mean tcp.dstport?"),
        "{}",
        wrong.stderr
    );
    let names = capture(["--fields", "help"]).checked().unwrap().stdout;
    assert!(names.lines().any(|name| name == "dns.qry.name"), "{names}");
    let folder = Folder::new();
    let copy = folder.at("copy.pcap");
    let args = [
        "-w",
        copy.to_str().unwrap(),
        "--print",
        "--fields",
        "ip.src",
        "-r",
        path,
    ];
    assert!(capture(args).checked().unwrap().stdout.lines().count() > 100);
}
