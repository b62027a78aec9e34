//! `barewire flows --decode`: applications in the records of a capture.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lab::oracle::{TempFile, write_pcap};
use lab::process::{Process, barewire};
use lab::{require, skip};
use serde_json::Value;

/// Flows and summary of the repository's capture, with these arguments.
fn flows(args: &[&str]) -> (Vec<Value>, Value) {
    let folder: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/captures");
    let mut command = Command::new(barewire().unwrap());
    command.args(["flows", "--json"]).args(args);
    command.arg(folder.join("lab-mix.pcapng"));
    let finished = Process::spawn(&mut command)
        .unwrap()
        .wait(Duration::from_secs(120))
        .unwrap();
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    let lines = finished.stdout.lines();
    let mut lines: Vec<Value> = lines.map(|l| serde_json::from_str(l).unwrap()).collect();
    let summary = lines.pop().expect("a summary");
    (lines, summary)
}

/// Number of records per identified application.
fn seen(flows: &[Value]) -> BTreeMap<&str, usize> {
    let mut seen = BTreeMap::new();
    for flow in flows {
        let application = &flow["application"];
        if application["by"] == "content" {
            let name = application["protocol"].as_str().expect("a name");
            *seen.entry(name).or_insert(0) += 1;
        }
    }
    seen
}

#[test]
fn applications_are_listed_next_to_their_flows() {
    let (flows_with, summary) = flows(&["--decode", "all"]);
    let counts = seen(&flows_with);
    for protocol in ["tls", "http", "dns"] {
        assert!(counts.get(protocol).is_some_and(|n| *n >= 1), "{counts:?}");
    }
    for flow in &flows_with {
        let application = &flow["application"];
        match application["protocol"].as_str() {
            Some("tls") if application["by"] == "content" => {
                let ja4 = application["ja4"].as_str().expect("a fingerprint");
                assert!(ja4.len() == 36 && ja4.starts_with("t1"), "{application}");
                assert!(application["tls_version"].is_string(), "{application}");
            }
            Some("http") if application["by"] == "content" => {
                assert!(application["http_host"].is_string(), "{application}");
                assert!(application["http_status"].is_u64(), "{application}");
            }
            Some("dns") if application["by"] == "content" => {
                assert!(application["dns_name"].is_string(), "{application}");
            }
            _ => {}
        }
    }
    let applications = &summary["applications"];
    let count = |name: &str| applications[name].as_u64().expect("a number");
    let rejected = applications["rejected"].as_object().expect("reasons");
    let rejected: u64 = rejected.values().filter_map(Value::as_u64).sum();
    let known = count("done") + count("unfinished") + rejected;
    assert_eq!(count("flows"), known, "{applications}");
    assert!(count("done") >= 3, "{applications}");

    // Only what was requested, and nothing by default.
    let (only, _) = flows(&["--decode", "dns"]);
    let others = ["tls", "http", "ssh"];
    assert!(seen(&only).contains_key("dns"));
    assert!(others.iter().all(|name| !seen(&only).contains_key(name)));
    let (without, summary) = flows(&[]);
    assert!(without.iter().all(|flow| flow["application"].is_null()));
    assert!(summary["applications"].is_null());
    assert_eq!(without.len(), flows_with.len());
}

#[test]
fn each_record_of_a_long_flow_has_its_application() {
    let (flows_once, _) = flows(&["--decode", "http"]);
    let (flows_often, summary) = flows(&["--decode", "http", "--active-timeout", "1ms"]);
    assert!(flows_often.len() > flows_once.len());
    let count = |flows: &[Value]| seen(flows).get("http").copied().unwrap_or(0);
    assert!(count(&flows_often) > count(&flows_once));
    assert_eq!(summary["imbalance"], 0);
}

/// A TCP segment between two hosts: sender (0: client), sequence number, flags, payload.
fn tcp(from: usize, sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let ends = [[192, 0, 2, 1], [192, 0, 2, 2]];
    let ports = [40_000_u16, 80];
    let len = 40 + payload.len() as u16;
    let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    packet.extend(len.to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
    packet.extend([ends[from], ends[1 - from]].concat());
    packet.extend(ports[from].to_be_bytes());
    packet.extend(ports[1 - from].to_be_bytes());
    packet.extend(sequence.to_be_bytes());
    packet.extend([0, 0, 0, 1, 0x50, flags, 0x40, 0, 0, 0, 0, 0]);
    packet.extend(payload);
    packet
}

const SYN: u8 = 2;
const ACK: u8 = 16;

/// The flows of packets, one per millisecond.
fn flows_of(packets: &[Vec<u8>], args: &[&str]) -> (Vec<Value>, TempFile) {
    let file = write_pcap(packets).unwrap();
    let mut command = Command::new(barewire().unwrap());
    command.args(["flows", "--json", "--decode", "all"]);
    command.args(args).arg(file.path());
    let limit = Duration::from_secs(120);
    let finished = Process::spawn(&mut command).unwrap().wait(limit).unwrap();
    assert_eq!(finished.code(), Some(0), "{}", finished.stderr);
    let lines = finished.stdout.lines();
    let mut lines: Vec<Value> = lines.map(|l| serde_json::from_str(l).unwrap()).collect();
    let summary = lines.pop().expect("a summary");
    assert_eq!(summary["imbalance"], 0);
    (lines, file)
}

const REQUEST: &[u8] = b"GET /path HTTP/1.1\r\nHost: www.example.org\r\nUser-Agent: x\r\n\r\n";

/// With the first segments in any order, the request is decoded as in tshark.
#[test]
fn out_of_order_first_segments_are_decoded() {
    require!(skip::program("tshark", "tshark"));
    let pieces: Vec<(u32, &[u8])> = [(0, 14), (14, 31), (31, REQUEST.len())]
        .map(|(from, to)| (1001 + from as u32, &REQUEST[from..to]))
        .to_vec();
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let mut packets = vec![
            tcp(0, 1000, SYN, b""),
            tcp(1, 5000, SYN | ACK, b""),
            tcp(0, 1001, ACK, b""),
        ];
        packets.extend(order.map(|at| tcp(0, pieces[at].0, ACK, pieces[at].1)));
        packets.push(tcp(1, 5001, ACK, b"HTTP/1.1 204 No Content\r\n\r\n"));
        let (flows, file) = flows_of(&packets, &[]);
        let mut command = Command::new("tshark");
        command.args(["-o", "tcp.reassemble_out_of_order:TRUE", "-r"]);
        command.arg(file.path()).args(["-Y", "http.request"]);
        command.args(["-T", "fields", "-e", "http.host", "-e", "http.request.uri"]);
        let limit = Duration::from_secs(60);
        let read = Process::spawn(&mut command).unwrap().wait(limit).unwrap();
        assert_eq!(read.stdout.trim(), "www.example.org\t/path", "{order:?}");
        let application = &flows[0]["application"];
        let reported = ["http_host", "http_path"].map(|name| application[name].as_str());
        assert_eq!(
            reported,
            [Some("www.example.org"), Some("/path")],
            "{order:?} {application}"
        );
        assert_eq!(application["http_status"], 204, "{order:?} {application}");
    }
}

/// The response comes after more packets than are inspected: those of the body do not count.
#[test]
fn the_answer_to_a_long_upload_is_reported() {
    let request = b"PUT /a HTTP/1.1\r\nHost: h\r\n\r\n";
    let mut packets = vec![
        tcp(0, 1000, SYN, b""),
        tcp(1, 5000, SYN | ACK, b""),
        tcp(0, 1001, ACK, request),
    ];
    let body = 1001 + request.len() as u32;
    packets.extend((0..300).map(|piece| tcp(0, body + piece * 1000, ACK, &[0; 1000])));
    packets.push(tcp(1, 5001, ACK, b"HTTP/1.1 201 Created\r\n\r\n"));
    let (flows, _) = flows_of(&packets, &[]);
    assert_eq!(flows.len(), 1, "{flows:#?}");
    let application = &flows[0]["application"];
    assert_eq!(application["http_method"], "PUT", "{application}");
    assert_eq!(application["http_status"], 201, "{application}");
}

/// A flow that is silent while its active timeout passes is reported, and keeps its application
/// afterwards; a new connection between the same endpoints starts over.
#[test]
fn a_pause_at_the_active_timeout_keeps_the_application() {
    let begin = |sequence: u32| {
        vec![
            tcp(0, sequence - 1, SYN, b""),
            tcp(1, 4999, SYN | ACK, b""),
            tcp(0, sequence, ACK, REQUEST),
        ]
    };
    let other = || {
        // Another flow advances the time.
        let mut packet = tcp(0, 1, ACK, b"");
        packet[26..30].copy_from_slice(&[198, 51, 100, 1]);
        packet
    };
    for (later, names) in [
        (tcp(0, 1001 + REQUEST.len() as u32, ACK, b"more"), 2),
        (tcp(0, 90_000, SYN, b""), 1),
    ] {
        let mut packets = begin(1001);
        packets.extend((0..4000).map(|_| other()));
        packets.push(later);
        let (flows, _) = flows_of(&packets, &["--active-timeout", "1s"]);
        let is_ours = |flow: &&Value| flow["src"] == "192.0.2.1" && flow["dst"] == "192.0.2.2";
        let ours: Vec<&Value> = flows.iter().filter(is_ours).collect();
        assert_eq!(ours.len(), 2, "{ours:#?}");
        assert_eq!(ours[0]["end_reason"], "active");
        let named = ours
            .iter()
            .filter(|flow| flow["application"]["http_host"] == "www.example.org");
        assert_eq!(named.count(), names, "{ours:#?}");
    }
}
