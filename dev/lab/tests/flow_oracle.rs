//! Flows compared with tshark's conversations, over every capture of the large corpus: packets,
//! bytes and times of each TCP and UDP address and port pair, in both directions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use flow::{HashKey, Input, Level, Meter, MeterConfig, MeterStats, Octets, Record};
use lab::{corpus, require};
use port::{PortOptions, Ready};
use wire::LinkType;

/// Files, the number of pairs that differ in spite of the rules, and why.
const EXCEPTIONS: [(&str, usize, &str); 17] = [
    (
        "PcapPlusPlus__null_loopback.pcap",
        1,
        "a Cisco HDLC header where BSD loopback has a family; tshark guesses, we refuse it",
    ),
    (
        "PcapPlusPlus__tcp-reassembly.pcap",
        3,
        "tshark follows the samples inside an sFlow packet; to us it is the collector's UDP",
    ),
    ("libpcap__AH-IPcomp-IPv6.pcap", 1, "tshark unpacks IPComp"),
    (
        "libpcap__brcm-tag.pcap",
        3,
        "tshark 4.0 does not read the link type",
    ),
    (
        "libpcap__ipv6_ext_headers.pcap",
        1,
        "more extension headers than are followed; in a flow with ports 0",
    ),
    (
        "libpcap__pcap-invalid-version-2.pcap",
        1,
        "version 2.5 is refused, as by libpcap",
    ),
    ("nDPI__capwap.pcap", 2, "tshark follows CAPWAP"),
    (
        "nDPI__fuzz-2006-06-26-2594.pcap",
        4,
        "tshark counts damaged addresses into a call that SIP announced, and drops segments with \
         a bad header",
    ),
    (
        "suricata-verify__bug-7414-decoder-event-01__ip_secopt.pcap",
        1,
        "tshark stops at a malformed IP option; the ports behind it are there",
    ),
    (
        "suricata-verify__decode-too-small__test.pcap",
        2,
        "UDP headers of 4 bytes: tshark shows the ports, but makes no stream",
    ),
    (
        "suricata-verify__udp-5379__udp-len-invalid__input.pcap",
        1,
        "a UDP length below 8: tshark makes no stream",
    ),
    (
        "tcpdump__bigtcp-ipv6-vxlan-ipv6.pcap",
        1,
        "a VXLAN packet without a length in its IPv6 header: tshark 4.0 does not follow",
    ),
    (
        "tcpdump__timestamp_invalid_nano.pcap",
        1,
        "more nanoseconds than a second has: tshark shows a negative fraction",
    ),
    (
        "tcpreplay__test.rewrite_dltuser",
        1,
        "IPv6 under the type of IPv4; we refuse a wrong version",
    ),
    (
        "zeek__cisco-fabric-path.pcap",
        16,
        "every packet is there twice; tshark gives the one under FabricPath no stream",
    ),
    (
        "zeek__ipv4__fragmented-3.pcap",
        1,
        "a datagram that is never complete: tshark makes no stream",
    ),
    ("zeek__tunnels__ayiya3.pcap", 1, "tshark follows AYIYA"),
];

/// Protocol and both endpoints, the lesser one first.
type Pair = (u8, (IpAddr, u16), (IpAddr, u16));

/// Sums of a pair; the first of two values is what the lesser endpoint sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Sums {
    packets: [u64; 2],
    bytes: [u64; 2],
    first_ns: u64,
    last_ns: u64,
}

impl Sums {
    fn add(&mut self, packets: [u64; 2], bytes: [u64; 2], first_ns: u64, last_ns: u64) {
        let empty = self.packets == [0, 0];
        for at in 0..2 {
            self.packets[at] += packets[at];
            self.bytes[at] += bytes[at];
        }
        self.first_ns = if empty {
            first_ns
        } else {
            self.first_ns.min(first_ns)
        };
        self.last_ns = self.last_ns.max(last_ns);
    }
}

fn add_pair(
    map: &mut BTreeMap<Pair, Sums>,
    protocol: u8,
    ends: [(IpAddr, u16); 2],
    packets: [u64; 2],
    bytes: [u64; 2],
    times: [u64; 2],
) {
    let [a, b] = ends;
    let turn = |two: [u64; 2]| if a <= b { two } else { [two[1], two[0]] };
    let pair = if a <= b {
        (protocol, a, b)
    } else {
        (protocol, b, a)
    };
    let sums = map.entry(pair).or_default();
    sums.add(turn(packets), turn(bytes), times[0], times[1]);
}

/// Seconds with nine digits, in nanoseconds. Packets of pcapng's simple blocks have no time, which
/// is 0 here.
fn time(text: &str) -> u64 {
    let Some((seconds, fraction)) = text.split_once('.') else {
        return 0;
    };
    // Times before 1970 exist in fuzzed captures.
    seconds.parse::<u64>().unwrap_or(0) * 1_000_000_000 + fraction.parse::<u64>().unwrap()
}

/// tshark's table by file.
fn expected(data: &Path) -> BTreeMap<String, BTreeMap<Pair, Sums>> {
    let path = data.join("expected/tshark-4.0.17__conversations.tsv");
    let text = std::fs::read_to_string(path).unwrap();
    let mut files: BTreeMap<String, BTreeMap<Pair, Sums>> = BTreeMap::new();
    for line in text.lines().skip(1) {
        let c: Vec<&str> = line.split('\t').collect();
        let number = |at: usize| c[at].parse::<u64>().unwrap();
        let protocol = if c[1] == "tcp" { 6 } else { 17 };
        let end = |at: usize| (c[at].parse::<IpAddr>().unwrap(), number(at + 1) as u16);
        add_pair(
            files.entry(c[0].to_owned()).or_default(),
            protocol,
            [end(3), end(5)],
            [number(7), number(9)],
            [number(8), number(10)],
            [time(c[11]), time(c[12])],
        );
    }
    files
}

/// The result of barewire's meter for a file.
fn metered(path: &Path) -> (BTreeMap<Pair, Sums>, MeterStats) {
    let mut pairs = BTreeMap::new();
    let Ok(mut port) = port::open(&format!("file:{}", path.display()), &PortOptions::default())
    else {
        return (pairs, MeterStats::default());
    };
    let mut config = MeterConfig::new(HashKey::from_seed(1));
    config.level = Level::Inner;
    config.octets = Octets::Packet;
    config.table.flow_count_max = 1 << 14;
    let mut meter = Meter::new(&config).unwrap();
    let mut in_records = 0;
    let mut sink = |record: &Record, _| {
        in_records += record.packets();
        let key = record.key();
        if !matches!(key.protocol(), 6 | 17) {
            return;
        }
        let side = record.initiator();
        let end = |side| (key.addr(side), key.port(side));
        let (forward, reverse) = (record.forward(), record.reverse());
        add_pair(
            &mut pairs,
            key.protocol(),
            [end(side), end(side.other())],
            [forward.packets, reverse.packets],
            [forward.bytes, reverse.bytes],
            [record.start_ns(), record.end_ns()],
        );
    };
    loop {
        let Ok(batch) = port.rx[0].receive() else {
            break;
        };
        let empty = batch.is_empty();
        for packet in batch.iter() {
            let interface = packet.interface_index();
            let description = port.control.describe();
            let link = description.interfaces[usize::from(interface)].0;
            let input = Input {
                link: LinkType(link),
                bytes: packet.bytes(),
                wire_len: packet.wire_len(),
                time_ns: packet.time_ns().unwrap_or(0),
                vlan: None,
                interface,
            };
            meter.observe(&input, &mut sink);
        }
        drop(batch);
        if empty && !matches!(port.rx[0].wait(Duration::ZERO), Ok(Ready::Packets)) {
            break;
        }
    }
    meter.finish(&mut sink);
    let stats = meter.stats();
    assert_eq!(
        stats.packets,
        in_records + stats.refused_total(),
        "{}",
        path.display()
    );
    (pairs, stats)
}

/// Why a pair may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rule {
    /// Only barewire has it, with both ports 0: the transport header could not be read (truncated,
    /// malformed, a later fragment without its first). tshark lists only packets with ports.
    NoPorts,
    /// Only tshark has it: the UDP stream of a tunnel, listed with the tunnel's ports and the
    /// innermost addresses.
    TunnelStream,
    /// The file has fragments. tshark counts the packet that completes a datagram, barewire counts
    /// each fragment.
    Fragments,
    /// The file is not in timestamp order. tshark gives the times of the first and the last packet
    /// in the file, barewire the earliest and the latest.
    Order,
}

/// UDP ports of tunnels that are followed.
const TUNNEL_PORTS: [u16; 5] = [2152, 3544, 4789, 4790, 6081];

fn rule(
    pair: &Pair,
    ours: Option<&Sums>,
    theirs: Option<&Sums>,
    stats: &MeterStats,
) -> Option<Rule> {
    let ports = [pair.1.1, pair.2.1];
    let fragments = stats.fragments.first + stats.fragments.followed + stats.fragments.orphans;
    match (ours, theirs) {
        (Some(_), None) if ports == [0, 0] => Some(Rule::NoPorts),
        // Fragments of a tunnel's packets, but for the packet inside: they are in its flow.
        (Some(_), None)
            if pair.0 == 17
                && fragments != 0
                && ports.iter().any(|port| TUNNEL_PORTS.contains(port)) =>
        {
            Some(Rule::Fragments)
        }
        (None, Some(_)) if pair.0 == 17 && ports.iter().any(|p| TUNNEL_PORTS.contains(p)) => {
            Some(Rule::TunnelStream)
        }
        (Some(ours), Some(theirs)) => {
            let same = ours.packets == theirs.packets && ours.bytes == theirs.bytes;
            let more = (0..2).all(|at| {
                ours.packets[at] >= theirs.packets[at] && ours.bytes[at] >= theirs.bytes[at]
            });
            if same && stats.table.late != 0 {
                Some(Rule::Order)
            } else if fragments != 0 && more && ours.last_ns == theirs.last_ns {
                Some(Rule::Fragments)
            } else {
                None
            }
        }
        _ => None,
    }
}

#[test]
fn flows_equal_conversations_of_tshark() {
    require!(corpus::large());
    let data = corpus::large().unwrap();
    let expected = expected(&data);
    let mut files: Vec<_> = std::fs::read_dir(data.join("pcap"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let none = BTreeMap::new();
    let (mut same, mut ruled) = (0, BTreeMap::new());
    let mut unexplained = BTreeMap::new();
    for path in &files {
        let name = path.file_name().unwrap().to_str().unwrap();
        let theirs = expected.get(name).unwrap_or(&none);
        let (ours, stats) = metered(path);
        let keys: BTreeSet<&Pair> = ours.keys().chain(theirs.keys()).collect();
        for key in keys {
            let (ours, theirs) = (ours.get(key), theirs.get(key));
            if ours == theirs {
                same += 1;
            } else if let Some(rule) = rule(key, ours, theirs, &stats) {
                *ruled.entry(rule).or_insert(0) += 1;
            } else {
                println!("{name} {key:?}\n   ours {ours:?}\n   them {theirs:?}");
                *unexplained.entry(name.to_owned()).or_insert(0) += 1;
            }
        }
    }
    println!("{same} pairs are the same; differences by rule: {ruled:?}; others: {unexplained:?}");
    let listed: BTreeMap<String, usize> = EXCEPTIONS
        .iter()
        .map(|(name, pairs, _)| ((*name).to_owned(), *pairs))
        .collect();
    assert_eq!(
        unexplained, listed,
        "files and pairs that differ, and those known to"
    );
    assert!(same > 6000);
}
