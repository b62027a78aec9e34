//! Captures cut at many snapshot lengths: every value of a flow that does not depend on missing
//! bytes equals that of the whole capture, and that of tshark.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use flow::{Counters, EndReason, HashKey, Input, Meter, MeterConfig, Record, Side};
use lab::corpus::{self, Packet};
use lab::oracle::{TempFile, tshark};
use lab::{require, skip};
use wire::{Dissection, LayerKind, LinkType, levels};

/// Maximum number of packets examined per capture.
const PACKETS_MAX: usize = 2000;

/// Two addresses, the lesser one first, and a protocol.
type Pair = (IpAddr, IpAddr, u8);

fn pair(one: IpAddr, other: IpAddr, protocol: u8) -> Pair {
    (one.min(other), one.max(other), protocol)
}

/// How many bytes of a packet are needed, from its start.
struct Needs {
    pair: Pair,
    /// For everything except TCP options.
    all: usize,
    /// Including TCP options.
    options: usize,
}

impl Needs {
    fn of(level: &Dissection) -> Option<Needs> {
        let (src, dst) = (level.src_addr()?, level.dst_addr()?);
        let transport = usize::from(level.transport_offset);
        let has = |kind| level.has(kind);
        let header = match () {
            // Up to the window; the header length precedes it.
            () if has(LayerKind::Tcp) => 16,
            // Up to the length.
            () if has(LayerKind::Udp) => 6,
            () if has(LayerKind::Sctp) || has(LayerKind::UdpLite) => 4,
            // Type and code.
            () if has(LayerKind::Icmpv4) || has(LayerKind::Icmpv6) => 2,
            () => 16,
        };
        let behind = level.payload_offset as usize;
        // Without a transport header everything that was read was needed.
        let all = match transport {
            0 => behind,
            transport => transport + header,
        };
        Some(Needs {
            pair: pair(src, dst, level.ip_protocol),
            all,
            options: match level.reason.is_malformed() {
                // As long as the longest header: it does not end where it should.
                true => all.max(transport + 60),
                false => all.max(behind),
            },
        })
    }
}

/// What each packet needs; `None` without an IP header.
fn needs(link: LinkType, packets: &[Packet]) -> Vec<Option<Needs>> {
    let level = |(bytes, wire_len, _): &Packet| {
        let found = levels(link, bytes, *wire_len).find(|level| level.ip_version != 0);
        found.and_then(|level| Needs::of(&level))
    };
    packets.iter().map(level).collect()
}

/// Identifies a record by addresses, protocol, ports, start time and index among those that share
/// them.
type Name = (Pair, [u16; 2], u64, usize);

/// The records of a capture truncated to this many bytes per packet.
fn records(link: LinkType, packets: &[Packet], snaplen: usize) -> BTreeMap<Name, Record> {
    let mut config = MeterConfig::new(HashKey::from_seed(5));
    config.table.flow_count_max = 1 << 13;
    let mut meter = Meter::new(&config).unwrap();
    let mut all: BTreeMap<Name, Record> = BTreeMap::new();
    let mut sink = |record: &Record, _: EndReason| {
        let key = record.key();
        let ends = pair(key.addr(Side::A), key.addr(Side::B), key.protocol());
        let ports = [key.port(Side::A), key.port(Side::B)];
        let mut name = (ends, ports, record.start_ns(), 0);
        while all.contains_key(&name) {
            name.3 += 1;
        }
        all.insert(name, *record);
    };
    for (bytes, wire_len, time_ns) in packets {
        let input = Input {
            link,
            bytes: &bytes[..snaplen.min(bytes.len())],
            wire_len: *wire_len,
            time_ns: *time_ns,
            vlan: None,
            interface: 0,
        };
        meter.observe(&input, &mut sink);
    }
    meter.finish(&mut sink);
    assert_eq!(meter.stats().imbalance(), 0);
    all
}

/// The values of a record that need no TCP options.
fn figures(record: &Record) -> (Side, bool, [Counters; 2]) {
    let of = |side| Counters {
        tcp_options: 0,
        tcp_mss: 0,
        ..record.sent_by(side)
    };
    let counters = [of(Side::A), of(Side::B)];
    (record.initiator(), record.is_closed(), counters)
}

/// Compares the records of a truncated capture; returns how many were compared.
fn compare(
    name: &str,
    whole: &BTreeMap<Name, Record>,
    (link, packets): (LinkType, &[Packet]),
    needs: &[Option<Needs>],
    snaplen: usize,
) -> usize {
    let (mut unknown, mut without_options) = (BTreeSet::new(), BTreeSet::new());
    for ((bytes, ..), needs) in packets.iter().zip(needs) {
        let Some(needs) = needs else {
            continue;
        };
        // A capture may already be truncated: what is missing there is not needed.
        let is_there = |need: usize| need <= snaplen || bytes.len() <= snaplen;
        if !is_there(needs.all) {
            unknown.insert(needs.pair);
        }
        if !is_there(needs.options) {
            without_options.insert(needs.pair);
        }
    }
    let cut = records(link, packets, snaplen);
    let mut compared = 0;
    for (flow, record) in whole {
        if unknown.contains(&flow.0) {
            continue;
        }
        let what = format!("{name} cut at {snaplen}: {flow:?}");
        let found = cut.get(flow);
        let found = found.unwrap_or_else(|| panic!("{what} is missing"));
        assert_eq!(figures(found), figures(record), "{what}");
        for side in [Side::A, Side::B] {
            let (less, more) = (found.sent_by(side), record.sent_by(side));
            assert_eq!(less.tcp_options & !more.tcp_options, 0, "{what}");
            assert!([0, more.tcp_mss].contains(&less.tcp_mss), "{what}");
            if !without_options.contains(&flow.0) {
                assert_eq!(less, more, "{what}");
            }
        }
        compared += 1;
    }
    compared
}

#[test]
fn figures_are_the_same_at_every_snap_length() {
    let corpus = corpus::captures();
    let mut compared = 0;
    for (at, path) in corpus.files.iter().enumerate() {
        let Some((link, mut packets)) = corpus::read(path, usize::MAX) else {
            continue;
        };
        packets.truncate(PACKETS_MAX);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let needs = needs(link, &packets);
        let whole = records(link, &packets, usize::MAX);
        // Every length; for the large corpus some of them in turn.
        let (from, step) = match path.starts_with(corpus::own()) {
            true => (54, 1),
            false => (54 + at % 5, 5),
        };
        for snaplen in (from..=128).step_by(step).chain([64, 68, 192, 256]) {
            compared += compare(&name, &whole, (link, &packets), &needs, snaplen);
        }
    }
    assert!(
        compared >= corpus.at_least(100_000, 1000),
        "{compared} records"
    );
    eprintln!("{compared} records compared");
}

/// A capture truncated to 64 bytes per packet.
fn write_cut(link: LinkType, packets: &[Packet]) -> TempFile {
    let temp = TempFile::new(".pcap");
    let mut out = Vec::new();
    let header: [u32; 6] = [0xa1b2_3c4d, 0x0004_0002, 0, 0, 64, link.0.into()];
    out.extend(header.iter().flat_map(|word| word.to_le_bytes()));
    for (bytes, wire_len, time_ns) in packets {
        let captured = &bytes[..bytes.len().min(64)];
        let (seconds, rest) = (time_ns / 1_000_000_000, time_ns % 1_000_000_000);
        let words = [
            seconds as u32,
            rest as u32,
            captured.len() as u32,
            *wire_len,
        ];
        out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        out.extend(captured);
    }
    let mut file = std::fs::File::create_new(temp.path()).unwrap();
    file.write_all(&out).unwrap();
    temp
}

/// Bytes of TCP payload and retransmissions according to tshark.
fn of_tshark(file: &TempFile) -> (u64, u64) {
    let columns = ["tcp.len", "tcp.analysis.retransmission"];
    let options = ["-o", "ip.defragment:FALSE", "-Y", "tcp"];
    let rows = tshark::fields(file.path(), &columns, &options).unwrap();
    let sum = rows.iter().map(|row| row[0].parse().unwrap_or(0)).sum();
    let repeated = rows.iter().filter(|row| !row[1].is_empty()).count();
    (sum, repeated as u64)
}

/// The captures of these names that are available: one of them is in the repository.
fn named(names: &[&str]) -> Vec<(String, PathBuf)> {
    let corpus = corpus::captures();
    let files = corpus.files.iter().cloned().map(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        (name.into_owned(), path)
    });
    let found: Vec<_> = files.filter(|(name, _)| names.contains(&&**name)).collect();
    let count = corpus.at_least(names.len(), 1);
    assert_eq!(found.len(), count, "{names:?}");
    found
}

#[test]
fn a_capture_cut_at_64_bytes_has_the_payload_that_tshark_sees() {
    require!(skip::program("tshark", "tshark"));
    let names = [
        "lab-mix.pcapng",
        "nDPI__443-curl.pcap",
        "nDPI__443-firefox.pcap",
        "nDPI__git.pcap",
        "nDPI__ssh.pcap",
    ];
    for (name, path) in named(&names) {
        let (link, packets) = corpus::read(&path, usize::MAX).unwrap();
        let expected = of_tshark(&write_cut(link, &packets));
        let tcp = records(link, &packets, 64);
        let tcp = tcp.values().filter(|record| record.key().protocol() == 6);
        let (mut payload, mut repeated) = (0, 0);
        for record in tcp {
            for sent in [record.forward(), record.reverse()] {
                payload += sent.payload_bytes;
                repeated += u64::from(sent.retransmissions);
            }
        }
        assert_eq!((payload, repeated), expected, "{name}");
    }
}

/// Bytes after the outermost UDP header according to tshark.
fn udp_payload_of_tshark(path: &Path) -> u64 {
    let options = ["-o", "ip.defragment:FALSE", "-E", "occurrence=f"];
    let options = [&options[..], &["-Y", "udp.length >= 8"]].concat();
    let columns = ["udp.length", "ip.proto", "ipv6.nxt"];
    let rows = tshark::fields(path, &columns, &options).unwrap();
    // An ICMP message may quote UDP.
    rows.iter()
        .filter(|row| row[1] == "17" || row[2] == "17")
        .map(|row| row[0].parse::<u64>().unwrap() - 8)
        .sum()
}

#[test]
fn the_payload_of_a_tunnel_is_what_tshark_counts_after_udp() {
    require!(skip::program("tshark", "tshark"));
    let names = [
        "lab-vxlan.pcapng",
        "nDPI__ipsec_isakmp_esp.pcap",
        "nDPI__ipv6_in_gtp.pcap",
        "nDPI__teredo.pcap",
        "nDPI__vxlan.pcap",
        "zeek__tunnels__geneve.pcap",
        "zeek__tunnels__gtp__gtp_ext_header.pcap",
    ];
    for (name, path) in named(&names) {
        let (link, packets) = corpus::read(&path, usize::MAX).unwrap();
        let all = records(link, &packets, usize::MAX);
        let udp = all.values().filter(|record| record.key().protocol() == 17);
        let payload: u64 = udp
            .flat_map(|record| [record.forward(), record.reverse()])
            .map(|sent| sent.payload_bytes)
            .sum();
        assert_eq!(payload, udp_payload_of_tshark(&path), "{name}");
    }
}
