//! Packets as JSON objects: the summary is the line, and what the line shows is in the fields.

use std::fmt::Write as _;
use std::path::Path;

use lab::corpus;
use runtime::capture::{Columns, Context, Held, Printer, Style, TimeStyle};
use serde_json::Value;
use wire::file::{Event, Reader};

/// The text of each packet of a file: one line each.
fn print(bytes: &[u8], mut printer: Printer) -> Vec<String> {
    let (mut reader, mut at) = (Reader::new(), 0);
    loop {
        let rest = bytes.get(at..).unwrap_or(&[]);
        let event = match reader.next(rest) {
            Ok(Event::Need(_)) | Err(_) => break,
            Ok(event) => event,
        };
        at += event.used();
        let Event::Packet(packet) = event else {
            continue;
        };
        let held = Held {
            time_ns: packet.time.0,
            cap_len: packet.data.len() as u32,
            wire_len: packet.wire_len,
            interface: 0,
            outgoing: None,
            vlan: None,
            bytes: &rest[packet.data],
        };
        let context = Context {
            link_type: packet.link.0,
            interface: "",
            has_way: false,
        };
        printer.packet(&held, &context);
    }
    let mut out = Vec::new();
    printer.flush(&mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    text.lines().map(str::to_owned).collect()
}

fn style(json: bool) -> Style {
    Style {
        time: TimeStyle::None,
        json,
        ..Style::default()
    }
}

fn objects(bytes: &[u8], style: Style) -> Vec<Value> {
    let lines = print(bytes, Printer::new(style));
    let parse = |line: &String| serde_json::from_str(line).unwrap();
    lines.iter().map(parse).collect()
}

fn columns(bytes: &[u8], name: &str) -> Vec<String> {
    let columns = Columns::parse(&[name.to_owned()], '\t').unwrap();
    print(
        bytes,
        Printer::new(style(false)).with_columns(columns, false),
    )
}

/// What differs between the objects of a file and its lines.
fn compare(path: &Path, bytes: &[u8], report: &mut String) -> usize {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (found, lines) = (
        objects(bytes, style(true)),
        print(bytes, Printer::new(style(false))),
    );
    assert_eq!(found.len(), lines.len(), "{name}");
    let (tags, apps) = (columns(bytes, "vlan.id"), columns(bytes, "app"));
    let seqs = columns(bytes, "tcp.seq_raw");
    for (index, (object, line)) in found.iter().zip(&lines).enumerate() {
        let summary = object["summary"].as_str().unwrap();
        let protocol = object["application"]["protocol"]
            .as_str()
            .unwrap_or_default();
        let tag = object["vlan"].to_string();
        let first = tags[index].split(',').next().unwrap_or_default();
        // Inside IP in UDP there may be a tag that is none of the packet.
        let is_tag = tag == first || tag == "null";
        let first = seqs[index].split(',').next().unwrap_or_default();
        let seq = object["tcp_seq"].to_string();
        // Columns list packets quoted by ICMP, too.
        let is_other = first.is_empty() || line.contains("[|tcp]") || line.contains("ICMP");
        let is_seq = seq == first || seq == "null" && is_other;
        let same = [summary == line, protocol == apps[index], is_tag, is_seq];
        if same != [true; 4] {
            let _ = writeln!(
                report,
                "{name} #{}: {same:?}\n  {line}\n  {object}",
                index + 1
            );
        }
        assert!(object.get("interface").is_none(), "{object}");
    }
    found.len()
}

#[test]
fn the_summary_is_the_line_and_the_fields_are_those_of_columns() {
    let corpus = corpus::captures();
    let (mut report, mut count) = (String::new(), 0);
    // Files of more than a few megabytes repeat what the others have.
    for path in &corpus.files {
        let bytes = std::fs::read(path).unwrap();
        if bytes.len() < 4 << 20 && !bytes.starts_with(&[0x1f, 0x8b]) {
            count += compare(path, &bytes, &mut report);
        }
    }
    assert!(report.is_empty(), "{report}");
    assert!(count > corpus.at_least(50_000, 100), "{count}");
}

const MACS: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];

fn ethernet(ether_type: u16, payload: &[u8]) -> Vec<u8> {
    [&MACS[..], &ether_type.to_be_bytes(), payload].concat()
}

fn tagged(id: u8, ether_type: u16, payload: &[u8]) -> Vec<u8> {
    [&[0, id][..], &ether_type.to_be_bytes(), payload].concat()
}

fn udp() -> Vec<u8> {
    let mut ip = vec![
        0x45, 0, 0, 30, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ];
    ip.extend([0x9c, 0x40, 0x9c, 0x41, 0, 10, 0, 0, 1, 2]);
    ip
}

/// Frames whose VLAN tags come before the first IP header, each with its tags and its line.
fn carried() -> Vec<(Vec<u8>, Vec<u64>, &'static str)> {
    let inner = ethernet(0x8100, &tagged(7, 0x0800, &udp()));
    let control = [&[0, 1, 1, 64, 0, 0, 0, 0][..], &inner].concat();
    let two = [&[0, 1, 0, 64, 0, 2, 1, 64, 0, 0, 0, 0][..], &inner].concat();
    let untagged = [&[0, 1, 1, 64, 0, 0, 0, 0][..], &ethernet(0x0800, &udp())].concat();
    let service = ethernet(0x88a8, &tagged(9, 0x8100, &tagged(7, 0x0800, &udp())));
    let doubled = [&[0, 1, 1, 64, 0, 0, 0, 0][..], &service].concat();
    vec![
        (
            ethernet(0x8847, &control),
            vec![7],
            "MPLS (label 16, tc 0, [S], ttl 64): vlan 7, p 0, IP ",
        ),
        (
            ethernet(0x8847, &two),
            vec![7],
            "MPLS (label 16, tc 0, ttl 64) (label 32, tc 0, [S], ttl 64): vlan 7, p 0, IP ",
        ),
        (
            ethernet(0x8847, &untagged),
            vec![],
            "MPLS (label 16, tc 0, [S], ttl 64): IP ",
        ),
        (
            ethernet(0x8847, &doubled),
            vec![9, 7],
            "MPLS (label 16, tc 0, [S], ttl 64): vlan 9, p 0, vlan 7, p 0, IP ",
        ),
        (
            ethernet(0x8100, &tagged(3, 0x8847, &control)),
            vec![3, 7],
            "vlan 3, p 0, MPLS (label 16, tc 0, [S], ttl 64): vlan 7, p 0, IP ",
        ),
        (
            ethernet(0x8903, &[&[0, 0x60][..], &inner].concat()),
            vec![7],
            "FabricPath, tree 1, ttl 32: vlan 7, p 0, IP ",
        ),
        (
            ethernet(
                0x88a8,
                &tagged(4, 0x88e7, &[&[0, 0, 0, 9][..], &inner].concat()),
            ),
            vec![4, 7],
            "vlan 4, p 0, ",
        ),
    ]
}

/// The VLAN of a flow is that of the packet's object and of the columns.
#[test]
fn tags_behind_other_headers_are_those_of_the_packet() {
    use flow::{EndReason, HashKey, Input, Meter, MeterConfig, Record};
    for (bytes, tags, start) in carried() {
        let file = lab::oracle::write_pcap(std::slice::from_ref(&bytes)).unwrap();
        let file = std::fs::read(file.path()).unwrap();
        let object = &objects(&file, style(true))[0];
        let found: Vec<u64> = ["vlan", "vlan_inner"]
            .iter()
            .filter_map(|name| object[name].as_u64())
            .collect();
        assert_eq!(found, tags, "{object}");
        let line = object["summary"].as_str().unwrap();
        assert!(line.starts_with(start), "{line}");
        let listed: Vec<String> = tags.iter().map(u64::to_string).collect();
        assert_eq!(columns(&file, "vlan.id")[0], listed.join(","));
        let mut config = MeterConfig::new(HashKey::from_bytes(&[1; 64]));
        config.table.flow_count_max = 16;
        config.key_vlan = true;
        let (mut meter, mut keys) = (Meter::new(&config).unwrap(), Vec::new());
        let mut records = |record: &Record, _: EndReason| keys.push(*record.key());
        let input = Input {
            link: wire::LinkType::ETHERNET,
            bytes: &bytes,
            wire_len: bytes.len() as u32,
            time_ns: 1,
            vlan: None,
            interface: 0,
        };
        meter.observe(&input, &mut records);
        meter.flush(&mut records);
        meter.finish(&mut records);
        let tag = |at: usize| tags.get(at).map_or(0, |tag| *tag as u16);
        assert_eq!(keys[0].vlan(), [tag(0), tag(1)], "{object}");
    }
}

/// A query, and a TCP handshake with data.
fn connection() -> Vec<u8> {
    let dns = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x07example\x03org\0\0\x01\0\x01";
    let ip = |protocol: u8, from: u8, payload: &[u8]| {
        let len = 20 + payload.len() as u8;
        let mut head = vec![0x45, 0, 0, len, 0, 1, 0, 0, 64, protocol, 0, 0];
        head.extend([10, 0, 0, from, 10, 0, 0, 3 - from]);
        ethernet(0x0800, &[&head[..], payload].concat())
    };
    let tcp = |from: u8, seq: u32, ack: u32, flags: u8, data: &[u8]| {
        let ports = [[0x9c, 0x40, 0, 80], [0, 80, 0x9c, 0x40]][usize::from(from - 1)];
        let mut out = ports.to_vec();
        out.extend(seq.to_be_bytes().iter().chain(&ack.to_be_bytes()));
        out.extend([0x50, flags, 1, 0, 0, 0, 0, 0]);
        out.extend(data);
        ip(6, from, &out)
    };
    let query = [&[0x9c, 0x40, 0, 53, 0, 8 + dns.len() as u8, 0, 0][..], dns].concat();
    let get = b"GET /a HTTP/1.1\r\nHost: h.example\r\n\r\n";
    let packets = [
        ip(17, 1, &query),
        tcp(1, 1000, 0, 2, b""),
        tcp(2, 5000, 1001, 0x12, b""),
        tcp(1, 1001, 5001, 0x18, get),
    ];
    let file = lab::oracle::write_pcap(&packets).unwrap();
    std::fs::read(file.path()).unwrap()
}

#[test]
fn objects_have_decoded_fields_and_both_kinds_of_sequence_numbers() {
    let file = connection();
    let found = objects(&file, style(true));
    let [query, syn, answer, get] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(query["application"]["protocol"], "dns", "{query}");
    assert_eq!(query["application"]["dns_name"], "example.org");
    assert_eq!(
        (&syn["tcp_seq"], &syn["tcp_flags"]),
        (&1000.into(), &2.into())
    );
    assert_eq!(syn["tcp_seq_relative"], Value::Null);
    assert_eq!(
        (&answer["tcp_seq"], &answer["tcp_ack"]),
        (&5000.into(), &1001.into())
    );
    assert_eq!(get["application"]["http_path"], "/a", "{get}");
    assert_eq!(
        (&get["tcp_seq"], &get["tcp_ack"]),
        (&1001.into(), &5001.into())
    );
    let relative = (&get["tcp_seq_relative"], &get["tcp_ack_relative"]);
    assert_eq!(relative, (&1.into(), &1.into()));
    assert!(
        get["summary"]
            .as_str()
            .unwrap()
            .contains("seq 1:37, ack 1,"),
        "{get}"
    );
    // With -S the line has the numbers of the header, and there are no others.
    let absolute = Style {
        absolute: true,
        ..style(true)
    };
    let get = &objects(&file, absolute)[3];
    assert!(
        get["summary"]
            .as_str()
            .unwrap()
            .contains("seq 1001:1037, ack 5001,"),
        "{get}"
    );
    assert_eq!(get["tcp_seq_relative"], Value::Null);
    // With -q nothing is decoded, in the line neither.
    let quick = Style {
        quick: true,
        ..style(true)
    };
    let query = &objects(&file, quick)[0];
    assert_eq!(query["application"], Value::Null);
    assert_eq!(
        query["summary"],
        "IP 10.0.0.1.40000 > 10.0.0.2.53: UDP, length 29"
    );
}
