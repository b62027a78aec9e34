//! Flows compared with those that the authors of other probes expect for their captures: ipfixprobe
//! (records with TCP details, lists of packets, histograms, VLAN), Arkime (sessions), nDPI (flows).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flow::{
    Extra, HashKey, Input, Level, Meter, MeterConfig, Octets, OwnedExtra, Record, RecordSink,
};
use lab::{corpus, require};
use port::{PortOptions, Ready};
use serde_json::Value;
use wire::{LinkType, Timestamp};

/// Ended flows with their extra fields.
#[derive(Default)]
struct Flows(Vec<(Record, OwnedExtra)>);

impl RecordSink for Flows {
    fn ended(&mut self, record: &Record, _: flow::EndReason) {
        self.0.push((*record, OwnedExtra::default()));
    }

    fn ended_with(&mut self, record: &Record, extra: &Extra<'_>, _: flow::EndReason) {
        let mut owned = OwnedExtra::default();
        owned.set(extra);
        self.0.push((*record, owned));
    }
}

fn metered(path: &Path, config: &MeterConfig) -> Vec<(Record, OwnedExtra)> {
    let mut port =
        port::open(&format!("file:{}", path.display()), &PortOptions::default()).unwrap();
    let mut meter = Meter::new(config).unwrap();
    let mut flows = Flows::default();
    loop {
        let Ok(batch) = port.rx[0].receive() else {
            break;
        };
        let empty = batch.is_empty();
        let interfaces = port.control.describe().interfaces;
        let inputs: Vec<Input<'_>> = batch
            .iter()
            .map(|packet| Input {
                link: LinkType(interfaces[usize::from(packet.interface_index())].0),
                bytes: packet.bytes(),
                wire_len: packet.wire_len(),
                time_ns: packet.time_ns().unwrap_or(0),
                vlan: None,
                interface: packet.interface_index(),
            })
            .collect();
        meter.observe_all(&inputs, &mut flows);
        drop(inputs);
        drop(batch);
        if empty && !matches!(port.rx[0].wait(Duration::ZERO), Ok(Ready::Packets)) {
            break;
        }
    }
    meter.finish(&mut flows);
    assert_eq!(meter.stats().imbalance(), 0);
    flows.0
}

fn config() -> MeterConfig {
    let mut config = MeterConfig::new(HashKey::from_seed(1));
    config.table.flow_count_max = 1 << 12;
    config
}

fn capture(name: &str) -> PathBuf {
    corpus::large().unwrap().join("pcap").join(name)
}

fn expected(name: &str) -> String {
    std::fs::read_to_string(corpus::large().unwrap().join("expected").join(name)).unwrap()
}

/// ipfixprobe's records: maps from field to text.
fn ipfixprobe(plugin: &str) -> Vec<BTreeMap<String, String>> {
    let text = expected(&format!("ipfixprobe__{plugin}.txt"));
    let head = text
        .lines()
        .find(|line| line.starts_with("ipaddr "))
        .unwrap();
    let names: Vec<&str> = head
        .split(',')
        .map(|field| field.rsplit(' ').next().unwrap())
        .collect();
    text.lines()
        .filter(|line| *line != head)
        .map(|line| {
            let values = line.split(',').map(str::to_owned);
            names.iter().map(|n| (*n).to_owned()).zip(values).collect()
        })
        .collect()
}

/// Protocol, source and destination as in ipfixprobe: without ICMP ports.
type Ends = (u8, (IpAddr, u16), (IpAddr, u16));

fn ends_of(row: &BTreeMap<String, String>) -> Ends {
    let end = |side: &str| {
        (
            row[&format!("{side}_IP")].parse().unwrap(),
            row[&format!("{side}_PORT")].parse().unwrap(),
        )
    };
    (row["PROTOCOL"].parse().unwrap(), end("SRC"), end("DST"))
}

fn ends(record: &Record) -> Ends {
    let key = record.key();
    let end = |side| {
        let port = if key.is_icmp() { 0 } else { key.port(side) };
        (key.addr(side), port)
    };
    let side = record.initiator();
    (key.protocol(), end(side), end(side.other()))
}

/// Microseconds since 1970 as formatted by ipfixprobe.
fn time_text(ns: u64) -> String {
    let text = Timestamp(ns);
    let (year, month, day) = text.date();
    let second = text.seconds() % 86_400;
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:06}",
        second / 3600,
        second / 60 % 60,
        second % 60,
        text.subsec_ns() / 1000
    )
}

fn list(text: &str) -> Vec<&str> {
    let inner = text.trim_matches(['[', ']']);
    inner.split('|').filter(|item| !item.is_empty()).collect()
}

/// Whole records: endpoints, counters in both directions, times, TCP flags. ICMP is excluded:
/// ipfixprobe makes a single flow of all of it between two hosts.
#[test]
fn records_equal_those_of_ipfixprobe() {
    require!(corpus::large());
    let mut config = config();
    config.octets = Octets::Ip;
    config.level = Level::Inner;
    let flows = metered(&capture("ipfixprobe__mixed.pcap"), &config);
    let ours: BTreeSet<_> = flows
        .iter()
        .map(|(record, _)| {
            let (forward, reverse) = (record.forward(), record.reverse());
            (
                ends(record),
                [forward.packets, reverse.packets],
                [forward.bytes, reverse.bytes],
                [forward.tcp_flags, reverse.tcp_flags],
                [time_text(record.start_ns()), time_text(record.end_ns())],
            )
        })
        .collect();
    let (mut same, mut others) = (0, Vec::new());
    for row in ipfixprobe("basic") {
        let ends = ends_of(&row);
        if matches!(ends.0, 1 | 58) {
            continue;
        }
        let two = |name: &str| {
            let number = |name: String| row[&name].parse::<u64>().unwrap();
            [number(name.to_owned()), number(format!("{name}_REV"))]
        };
        let theirs = (
            ends,
            two("PACKETS"),
            two("BYTES"),
            two("TCP_FLAGS").map(|flags| flags as u16),
            [row["TIME_FIRST"].clone(), row["TIME_LAST"].clone()],
        );
        if ours.contains(&theirs) {
            same += 1;
        } else {
            let near: Vec<_> = ours.iter().filter(|flow| flow.0 == theirs.0).collect();
            println!("theirs {theirs:?}\n  ours {near:?}");
            others.push(theirs.0);
        }
    }
    println!("{same} records are the same");
    assert_eq!(others, [], "records of theirs that we have not");
    assert!(same >= 20);
}

/// ipfixprobe numbers options from the most significant bit of each byte down.
fn their_options(set: u64) -> u64 {
    (0..64)
        .filter(|kind| set >> kind & 1 != 0)
        .fold(0, |bits, kind| bits | 1 << (kind / 8 * 8 + 7 - kind % 8))
}

#[test]
fn tcp_details_equal_those_of_ipfixprobe() {
    require!(corpus::large());
    let flows = metered(&capture("ipfixprobe__http.pcap"), &config());
    let ours: BTreeMap<Ends, Record> = flows.iter().map(|(r, _)| (ends(r), *r)).collect();
    let rows = ipfixprobe("basicplus");
    assert!(rows.len() >= 9);
    for row in rows {
        let number = |name: &str| row[name].parse::<u64>().unwrap();
        let Some(record) = ours.get(&ends_of(&row)) else {
            panic!("none of ours is {row:?}");
        };
        for (side, sent) in [("", record.forward()), ("_REV", record.reverse())] {
            let field = |name: &str| number(&format!("{name}{side}"));
            assert_eq!(field("TCP_OPT"), their_options(sent.tcp_options), "{row:?}");
            assert_eq!(field("TCP_WIN"), u64::from(sent.tcp_window), "{row:?}");
            assert_eq!(field("TCP_MSS"), u64::from(sent.tcp_mss), "{row:?}");
            assert_eq!(field("IP_TTL"), u64::from(sent.ttl_min), "{row:?}");
            assert_eq!(field("IP_FLG"), u64::from(sent.ip_flags), "{row:?}");
        }
    }
}

/// Lists of the first packets and histograms, of UDP: for ICMP ipfixprobe counts the header as
/// payload.
#[test]
fn packet_lists_and_histograms_equal_those_of_ipfixprobe() {
    require!(corpus::large());
    let mut config = config();
    config.extra.packet_count = 30;
    config.extra.timing = true;
    let flows = metered(&capture("ipfixprobe__mixed.pcap"), &config);
    let key = |record: &Record| (ends(record), time_text(record.start_ns()));
    let ours: BTreeMap<_, _> = flows.iter().map(|(r, x)| (key(r), (r, x))).collect();
    let mut same = [0; 2];
    for row in ipfixprobe("pstats") {
        let Some((record, extra)) = ours.get(&(ends_of(&row), row["TIME_FIRST"].clone())) else {
            continue;
        };
        if record.key().protocol() != 17 {
            continue;
        }
        let notes = extra.get().packets;
        let lengths: Vec<String> = notes.iter().map(|n| n.payload_len.to_string()).collect();
        assert_eq!(list(&row["PPI_PKT_LENGTHS"]), lengths, "{row:?}");
        let times: Vec<String> = notes
            .iter()
            .map(|n| time_text(record.start_ns() + u64::from(n.time_us) * 1000))
            .collect();
        assert_eq!(list(&row["PPI_PKT_TIMES"]), times, "{row:?}");
        let directions: Vec<&str> = notes
            .iter()
            .map(|n| {
                if n.side() == record.initiator() {
                    "1"
                } else {
                    "-1"
                }
            })
            .collect();
        assert_eq!(list(&row["PPI_PKT_DIRECTIONS"]), directions, "{row:?}");
        same[0] += 1;
    }
    for row in ipfixprobe("phists") {
        let Some((record, extra)) = ours.get(&(ends_of(&row), row["TIME_FIRST"].clone())) else {
            continue;
        };
        if record.key().protocol() != 17 {
            continue;
        }
        let timing = extra.get().timing.copied().unwrap();
        let side = record.initiator();
        for (name, side) in [("S", side), ("D", side.other())] {
            let bins = |bins: [u32; 8]| bins.map(|count| count.to_string()).to_vec();
            let timing = &timing[side as usize];
            let sizes = list(&row[&format!("{name}_PHISTS_SIZES")]);
            assert_eq!(sizes, bins(timing.len_bins), "{row:?}");
            let gaps = list(&row[&format!("{name}_PHISTS_IPT")]);
            assert_eq!(gaps, bins(timing.gap_bins), "{row:?}");
        }
        same[1] += 1;
    }
    println!("{same:?} lists and histograms are the same");
    assert!(same[0] >= 15 && same[1] >= 15);
}

#[test]
fn vlans_equal_those_of_ipfixprobe() {
    require!(corpus::large());
    let mut config = config();
    config.key_vlan = true;
    let flows = metered(&capture("ipfixprobe__vlan.pcap"), &config);
    let mut ours: Vec<(u16, u64, u64)> = flows
        .iter()
        .map(|(r, _)| (r.key().vlan()[0], r.forward().bytes, r.reverse().bytes))
        .collect();
    let mut theirs: Vec<(u16, u64, u64)> = ipfixprobe("vlan")
        .iter()
        .map(|row| {
            let number = |name: &str| row[name].parse::<u64>().unwrap();
            (
                number("VLAN_ID") as u16,
                number("BYTES"),
                number("BYTES_REV"),
            )
        })
        .collect();
    ours.sort_unstable();
    theirs.sort_unstable();
    assert_eq!(ours, theirs);
}

/// Sums over a pair of endpoints, the lesser one first: packets and bytes that each sent.
type Pairs = BTreeMap<Ends, [[u64; 2]; 2]>;

fn add_pair(pairs: &mut Pairs, ends: Ends, mut packets: [u64; 2], mut bytes: [u64; 2]) {
    let (protocol, mut a, mut b) = ends;
    if a > b {
        std::mem::swap(&mut a, &mut b);
        packets.reverse();
        bytes.reverse();
    }
    let sums = pairs.entry((protocol, a, b)).or_default();
    for at in 0..2 {
        sums[0][at] += packets[at];
        sums[1][at] += bytes[at];
    }
}

/// barewire's sums: bytes of whole packets, by innermost addresses.
fn our_pairs(path: &Path) -> Pairs {
    let mut config = config();
    config.octets = Octets::Packet;
    config.level = Level::Inner;
    let mut pairs = Pairs::new();
    for (record, _) in metered(path, &config) {
        let (forward, reverse) = (record.forward(), record.reverse());
        add_pair(
            &mut pairs,
            ends(&record),
            [forward.packets, reverse.packets],
            [forward.bytes, reverse.bytes],
        );
    }
    pairs
}

/// Number of their pairs that differ here, and number of pairs compared.
fn compare(name: &str, ours: &Pairs, theirs: &Pairs) -> (usize, usize) {
    let (mut same, mut others) = (0, 0);
    for (ends, sums) in theirs {
        if ours.get(ends) == Some(sums) {
            same += 1;
        } else {
            println!(
                "{name} {ends:?}\n   ours {:?}\n   them {sums:?}",
                ours.get(ends)
            );
            others += 1;
        }
    }
    (same, others)
}

/// Captures, the number of Arkime's pairs that differ, and why.
const ARKIME: &[(&str, usize, &str)] = &[
    (
        "arkime__ah-esp.pcap",
        1,
        "to Arkime a flow of AH, to us one of the protocol after AH",
    ),
    (
        "arkime__mpls-basic.pcap",
        1,
        "MPLS without IP in it: a session to Arkime, refused by us",
    ),
    (
        "arkime__socks5-http-302-frag.pcap",
        1,
        "Arkime counts a datagram once, we count each fragment",
    ),
];

#[test]
fn flows_equal_arkimes_sessions() {
    require!(corpus::large());
    let folder = corpus::large().unwrap();
    let (mut same, mut differing) = (0, BTreeMap::new());
    for path in files(&folder.join("expected"), "arkime__", ".test.json") {
        let name = path.file_name().unwrap().to_str().unwrap();
        let capture = name.replace(".test.json", ".pcap");
        let text = std::fs::read_to_string(&path).unwrap();
        let json: Value = serde_json::from_str(&text).unwrap();
        let mut theirs = Pairs::new();
        for session in json["sessions3"].as_array().unwrap() {
            let body = &session["body"];
            let end = |side: &str| {
                let addr = body[side]["ip"].as_str().unwrap_or("0.0.0.0");
                let port = body[side]["port"].as_u64().unwrap_or(0) as u16;
                (addr.parse::<IpAddr>().unwrap(), port)
            };
            let two = |what: &str| {
                ["source", "destination"].map(|side| body[side][what].as_u64().unwrap_or(0))
            };
            let protocol = body["ipProtocol"].as_u64().unwrap_or(0) as u8;
            let (mut a, mut b) = (end("source"), end("destination"));
            if matches!(protocol, 1 | 58) {
                (a.1, b.1) = (0, 0);
            }
            add_pair(&mut theirs, (protocol, a, b), two("packets"), two("bytes"));
        }
        let ours = our_pairs(&folder.join("pcap").join(&capture));
        let (equal, others) = compare(&capture, &ours, &theirs);
        same += equal;
        if others != 0 {
            differing.insert(capture, others);
        }
    }
    report(same, &differing, ARKIME, 60);
}

/// Captures, the number of nDPI's pairs that differ, and why.
const NDPI: &[(&str, usize, &str)] = &[
    ("nDPI__capwap.pcap", 2, "nDPI follows CAPWAP"),
    (
        "nDPI__dns_fragmented.pcap",
        7,
        "nDPI does not count later fragments",
    ),
    (
        "nDPI__fuzz-2006-06-26-2594.pcap",
        12,
        "nDPI leaves out datagrams whose lengths are damaged; their IP and UDP headers are there",
    ),
    ("nDPI__fuzz-2020-02-16-11740.pcap", 1, "the same"),
    (
        "nDPI__ip_fragmented_garbage.pcap",
        1,
        "first fragments that end within the TCP header: we read their ports, nDPI does not",
    ),
    (
        "nDPI__reasm_segv_anon.pcapng",
        1,
        "packets cut by four bytes: nDPI counts what was captured",
    ),
    (
        "nDPI__telnet.pcap",
        1,
        "nDPI leaves out five segments with a wrong checksum",
    ),
    ("nDPI__teredo.pcap", 5, "we follow Teredo, nDPI does not"),
];

#[test]
fn flows_equal_those_of_ndpi() {
    require!(corpus::large());
    let folder = corpus::large().unwrap();
    let (mut same, mut differing) = (0, BTreeMap::new());
    for path in files(&folder.join("expected"), "nDPI__", ".out") {
        let name = path.file_name().unwrap().to_str().unwrap();
        let capture = name.trim_end_matches(".out").to_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        let mut theirs = Pairs::new();
        for line in text.lines().filter(|line| line.contains(" pkts/")) {
            if let Some((ends, packets, bytes)) = ndpi_flow(line) {
                add_pair(&mut theirs, ends, packets, bytes);
            }
        }
        let ours = our_pairs(&folder.join("pcap").join(&capture));
        let (equal, others) = compare(&capture, &ours, &theirs);
        same += equal;
        if others != 0 {
            differing.insert(capture, others);
        }
    }
    report(same, &differing, NDPI, 250);
}

/// `1 TCP 192.168.1.1:5 <-> 8.8.8.8:853 [...][14 pkts/1480 bytes <-> 10 pkts/4389 bytes][...`; TCP
/// and UDP only.
fn ndpi_flow(line: &str) -> Option<(Ends, [u64; 2], [u64; 2])> {
    let mut words = line.split_whitespace().skip(1);
    let protocol = match words.next()? {
        "TCP" => 6,
        "UDP" => 17,
        _ => return None,
    };
    let end = |text: &str| {
        let (addr, port) = text.rsplit_once(':')?;
        let addr = addr.trim_matches(['[', ']']).parse::<IpAddr>().ok()?;
        Some((addr, port.parse::<u16>().ok()?))
    };
    let source = end(words.next()?)?;
    words.next()?;
    let destination = end(words.next()?)?;
    let counts = line.split('[').find(|part| part.contains(" pkts/"))?;
    let numbers: Vec<u64> = counts
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect();
    let [p, b, q, c, ..] = numbers[..] else {
        return None;
    };
    Some(((protocol, source, destination), [p, q], [b, c]))
}

fn files(folder: &Path, prefix: &str, suffix: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with(prefix) && name.ends_with(suffix)
        })
        .collect();
    files.sort();
    files
}

fn report(
    same: usize,
    differing: &BTreeMap<String, usize>,
    known: &[(&str, usize, &str)],
    at_least: usize,
) {
    println!("{same} pairs are the same; others: {differing:#?}");
    let known: BTreeMap<String, usize> = known
        .iter()
        .map(|(name, count, _)| ((*name).to_owned(), *count))
        .collect();
    assert_eq!(
        *differing, known,
        "captures and pairs that differ, and those known to"
    );
    assert!(same >= at_least);
}
