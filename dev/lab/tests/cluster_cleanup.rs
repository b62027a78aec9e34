//! Clusters that clean up the traffic of an application: tunnels are compared with tshark, copies
//! with the capture file before it was doubled.

use std::path::Path;
use std::process::Command;

use lab::corpus;
use lab::oracle::{TempFile, read_pcap, tshark, write_pcap};
use lab::process::{Process, barewire};
use lab::skip;
use serde_json::Value;

use crate::cluster_live::{LIMIT, capture, packets_of, unique};

/// What a reader receives of a capture file, and the totals. The only application is cleaned up.
fn cleaned(file: &Path, options: &[&str]) -> (TempFile, Value) {
    let name = unique();
    let mut command = Command::new(barewire().unwrap());
    command.args(["cluster", "run", "--json", "--name", &name]);
    command.arg(file).args(options);
    let mut cluster = Process::spawn(&mut command).unwrap();
    cluster.wait_stderr("open ring:", LIMIT).unwrap();
    let out = TempFile::new(".pcap");
    let mut reader = capture(&format!("ring:{name}"), out.path());
    let totals = cluster.wait(LIMIT).unwrap().checked().unwrap();
    reader.wait(LIMIT).unwrap().checked().unwrap();
    let totals: Value = serde_json::from_str(totals.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(totals["imbalance"], 0, "{totals}");
    (out, totals)
}

/// How tshark's list of packets shows each: addresses, protocol and summary, of what is inside.
fn summaries(file: &Path) -> Vec<Vec<String>> {
    let fields = ["def_src", "def_dst", "protocol", "info"].map(|it| format!("_ws.col.{it}"));
    let options = [
        "-o",
        "ip.defragment:FALSE",
        "-o",
        "tcp.desegment_tcp_streams:FALSE",
    ];
    tshark::fields(file, &fields.each_ref().map(String::as_str), &options).unwrap()
}

/// Captures of tunnels; all but the first are of the large corpus.
const TUNNELS: [&str; 8] = [
    "lab-vxlan.pcapng",
    "arkime__gre-erspan-vxlan.pcap",
    "arkime__gtp-u.pcap",
    "nDPI__6in4tunnel.pcap",
    "zeek__tunnels__geneve.pcap",
    "zeek__tunnels__gre-sample.pcap",
    "zeek__tunnels__gre-within-gre.pcap",
    "zeek__mpls-in-vlan.pcap",
];

#[test]
fn packets_without_tunnels_are_those_that_tshark_finds_inside() {
    lab::require!(skip::program("tshark", "tshark"));
    let captures = corpus::captures();
    let is_listed = |file: &&std::path::PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        TUNNELS.contains(&&*name)
    };
    let files: Vec<_> = captures.files.iter().filter(is_listed).collect();
    assert_eq!(files.len(), captures.at_least(TUNNELS.len(), 1));
    for file in files {
        let (out, totals) = cleaned(file, &["--detunnel"]);
        let application = &totals["applications"][0];
        assert_ne!(application["detunnelled"], 0, "{}", file.display());
        assert_eq!(application["copied"], 0);
        let protocols = tshark::fields(out.path(), &["frame.protocols"], &[]).unwrap();
        for tunnel in ["vxlan", "gre", "gtp", "geneve", "erspan", "mpls"] {
            let is_tunnel = |row: &&Vec<String>| row[0].split(':').any(|it| it == tunnel);
            // An ICMP error that quotes one is none.
            let left = protocols.iter().filter(is_tunnel);
            let left: Vec<_> = left.filter(|row| !row[0].contains("icmp")).collect();
            assert!(left.is_empty(), "{}: {left:?}", file.display());
        }
        let (found, expected) = (summaries(out.path()), summaries(file));
        assert_eq!(found.len(), expected.len(), "{}", file.display());
        for (number, pair) in found.iter().zip(&expected).enumerate() {
            assert_eq!(pair.0, pair.1, "{}, packet {}", file.display(), number + 1);
        }
    }
}

/// Each packet of a capture twice: as received, and as a router's other port sends it.
#[test]
fn packets_that_were_mirrored_twice_are_handed_over_once() {
    lab::require!(skip::root());
    let ip = ["ip", "or", "ip6"];
    let once = corpus::own().join("lab-mix.pcapng");
    let (once, totals) = cleaned(&once, &ip);
    assert_eq!(totals["applications"][0]["duplicates"], 0);
    let packets = packets_of(once.path());
    let mut doubled = Vec::new();
    for packet in &packets {
        let mut copy = packet.clone();
        copy[..12].copy_from_slice(&[6; 12]);
        match copy[12..14] {
            // The time to live and the checksum, or the hop limit.
            [8, 0] => (copy[22], copy[24], copy[25]) = (7, 7, 7),
            _ => copy[21] = 7,
        }
        copy.splice(12..12, [0x81, 0, 0, 5]);
        doubled.extend([packet.clone(), copy]);
    }
    let doubled = write_pcap(&doubled).unwrap();
    let options = ["--deduplicate", "--shunt", "1M"];
    let (out, totals) = cleaned(doubled.path(), &options);
    let application = &totals["applications"][0];
    assert_eq!(
        (&application["shunt"], &application["deduplicate_ms"]),
        (&"1M".into(), &10.into())
    );
    // Packets are 1 ms apart. Those of the capture that are equal within the window are copies.
    let mut times = std::collections::BTreeMap::new();
    let mut at_ms = 0;
    let mut expected = packets.clone();
    expected.retain(|packet| {
        let mut key = packet[14..].to_vec();
        match packet[12..14] {
            [8, 0] => (key[8], key[10], key[11]) = (0, 0, 0),
            _ => key[7] = 0,
        }
        at_ms += 2;
        let first_ms = times.entry(key).or_insert(at_ms);
        let is_first = at_ms - *first_ms > 10 || at_ms == *first_ms;
        *first_ms = if is_first { at_ms } else { *first_ms };
        is_first
    });
    assert_eq!(read_pcap(out.path()).unwrap(), expected);
    let duplicates = 2 * packets.len() - expected.len();
    assert_eq!(application["duplicates"], duplicates);
    assert!(
        expected.len() * 10 > packets.len() * 9,
        "{} of {}",
        expected.len(),
        packets.len()
    );
}

#[test]
fn wrong_clean_up_is_refused_before_the_start() {
    let file = corpus::own().join("lab-mix.pcapng");
    for (options, expected) in [
        (
            ["--app", "ids", "--shunt", "flows=64k"],
            "there is no application flows",
        ),
        (
            ["--shunt", "64x", "-c", "1"],
            "expected bytes (64k, 1M), packets",
        ),
        (
            ["--deduplicate=2000", "-c", "1", "ip"],
            "expected milliseconds, 1 to 1000",
        ),
        (
            ["--detunnel=gre=x", "-c", "1", "ip"],
            "use tunnels, or tags",
        ),
    ] {
        let mut command = Command::new(barewire().unwrap());
        command
            .args(["cluster", "run", "--name", "never"])
            .arg(&file)
            .args(options);
        let finished = Process::spawn(&mut command).unwrap().wait(LIMIT).unwrap();
        assert!(
            !finished.status.success() && finished.stderr.contains(expected),
            "{finished:?}"
        );
    }
}
