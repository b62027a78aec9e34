//! Decoders compared with independent programs: tshark and nDPI over the large corpus, and
//! Community IDs compared with the values of their specification.
//!
//! `BAREWIRE_ONLY=name` selects the files with this in their names, and prints all differences.

#[path = "inspect/fields.rs"]
mod fields;
#[path = "inspect/flows.rs"]
mod flows;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use self::fields::{FIELDS, LEAST, NAMES, as_ours};
pub use self::flows::decode;
use self::flows::{AND, ENDS, Found, Pair, ends, pair};
use inspect::{Field, Kind, Protocol, community_id};
use lab::oracle::tshark;
use lab::{corpus, require, skip};

/// One program's values of one field for a pair of endpoints.
pub type Values = BTreeMap<(Pair, Field), BTreeSet<String>>;

fn captures() -> Vec<PathBuf> {
    let only = std::env::var("BAREWIRE_ONLY").unwrap_or_default();
    let mut files = corpus::captures().files;
    files.retain(|file| file.to_string_lossy().contains(&only));
    files
}

fn name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// tshark's names for the packets of a pair of endpoints.
pub type Names = BTreeMap<Pair, BTreeSet<String>>;

/// Files with flows that tshark does not identify, how many, and why.
const NAME_EXCEPTIONS: &[(&str, usize, &str)] = &[(
    "nDPI__rtp.pcapng",
    2,
    "RTP, which tshark knows by session descriptions alone",
)];

/// Flows that barewire identifies and tshark does not.
fn only_ours(found: &[Found], named: &Names) -> Vec<(Pair, Protocol)> {
    let none = BTreeSet::new();
    let wrong = found.iter().filter(|flow| {
        let row = NAMES
            .iter()
            .find(|row| row.0 == flow.application.protocol());
        let theirs = named.get(&flow.pair).unwrap_or(&none);
        row.is_some_and(|(_, names)| !names.iter().any(|name| theirs.contains(*name)))
    });
    wrong
        .map(|flow| (flow.pair, flow.application.protocol()))
        .collect()
}

/// tshark's results: the first value of each field of each stream. `more` are options for tshark.
pub fn theirs(path: &Path, known: &BTreeSet<Pair>, more: &[&str]) -> Option<(Values, Names)> {
    let mut names = ENDS.to_vec();
    names.extend(["tcp.stream", "udp.stream", "frame.protocols"]);
    let own = names.len();
    names.extend(FIELDS.iter().map(|(_, name)| *name));
    let aggregator = format!("aggregator={AND}");
    // Only fields of TLS, HTTP and DNS count; bodies and their formats do not.
    let mut options = vec!["-E", &aggregator, "-o", "http.decompress_body:FALSE"];
    // Fragments are not reassembled here.
    options.extend(["-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE"]);
    options.extend(more);
    let rows = tshark::fields(path, &names, &options).ok()?;
    let (mut vals, mut named) = (Values::new(), Names::new());
    let mut seen = BTreeMap::new();
    for row in rows {
        let last = |at: usize| row[at].rsplit(AND).next().filter(|text| !text.is_empty());
        let is_udp = last(4).is_none();
        let Some(ends_of) = ends(&row, known) else {
            continue;
        };
        let protocols = row[own - 1].split(':').map(str::to_owned);
        named.entry(ends_of).or_default().extend(protocols);
        let stream = (is_udp, last(8).or(last(9)).unwrap_or_default().to_owned());
        for (at, (field, _)) in FIELDS.iter().enumerate() {
            let field = match (is_udp, *field) {
                (true, Field::HttpMethod) => Field::SsdpMethod,
                (_, field) => field,
            };
            // HTTP over UDP is SSDP.
            let of_http = field.name().starts_with("http");
            let of_ssdp = field.name().starts_with("ssdp");
            if is_udp && of_http || !is_udp && of_ssdp {
                continue;
            }
            for value in row[own + at].split(AND).filter(|text| !text.is_empty()) {
                let Some(value) = as_ours(field, value, &row[own - 1]) else {
                    continue;
                };
                // The first of each stream; for SSH the first two, one from each side.
                let count = seen.entry((stream.clone(), field)).or_insert(0);
                *count += 1;
                if *count <= if field == Field::SshClient { 2 } else { 1 } {
                    let values = vals.entry((ends_of, field)).or_default();
                    // Indices of WireGuard.
                    let is_hex = field.row().kind == Kind::Hex;
                    let number = value.strip_prefix("0x").filter(|_| is_hex);
                    let number = number.and_then(|digits| u64::from_str_radix(digits, 16).ok());
                    values.insert(number.map_or(value.to_owned(), |number| number.to_string()));
                }
            }
        }
    }
    Some((vals, named))
}

/// barewire's results.
pub fn ours(found: &[Found]) -> Values {
    let mut vals = Values::new();
    for flow in found {
        let fields = FIELDS.iter().map(|(field, _)| *field);
        for field in fields.chain([Field::SsdpMethod]) {
            let Some(mut value) = flow.text(field) else {
                continue;
            };
            if field == Field::DnsName && value == "." {
                value = "<Root>".into();
            }
            vals.entry((flow.pair, field)).or_default().insert(value);
        }
        // tshark does not distinguish the two sides.
        if let Some(server) = flow.text(Field::SshServer) {
            vals.entry((flow.pair, Field::SshClient))
                .or_default()
                .insert(server);
        }
    }
    vals
}

/// Whether the values are equal, or prefixes where barewire's are truncated.
pub fn are_same(ours: &BTreeSet<String>, theirs: &BTreeSet<String>) -> bool {
    let is_in = |ours: &String| match ours.strip_suffix("...") {
        Some(start) => theirs.iter().any(|theirs| theirs.starts_with(start)),
        None => theirs.contains(ours),
    };
    ours.len() == theirs.len() && ours.iter().all(is_in)
}

/// Number of captures in the large corpus that tshark does not read to their end.
const UNREAD_MAX: usize = 20;

/// Files in which something is missing or differs from tshark, how much of it, and why.
const EXCEPTIONS: &[(&str, usize, &str)] = &[
    (
        "PcapPlusPlus__frag_http_req.pcap",
        1,
        "an agent cut off in a fragment: no whole line",
    ),
    ("nDPI__capwap.pcap", 3, "tshark follows CAPWAP"),
    (
        "nDPI__fuzz-2006-06-26-2594.pcap",
        61,
        "damaged DNS, SIP, NetBIOS and RTP, of which tshark shows what it can",
    ),
    ("nDPI__openvpn.pcap", 4, "TLS within OpenVPN"),
    (
        "nDPI__stun.pcap",
        5,
        "DTLS and RTP behind STUN in one flow, which is given up before",
    ),
    (
        "open5gs__volte.pcapng",
        1,
        "each direction is a stream of its own to tshark, by its tunnel",
    ),
    (
        "scapy__http_chunk.pcap",
        4,
        "begins with a keep-alive, whose byte is no request",
    ),
    (
        "suricata-verify__dns__dns-forward-pointer__input.pcap",
        2,
        "a compressed name that points forward: refused",
    ),
    (
        "tcpdump__quic_handshake_truncated.pcap",
        1,
        "the client's packet is cut: nothing proves the keys",
    ),
    (
        "tcpreplay__test.rewrite_dltuser",
        5,
        "IPv6 under the type of IPv4; we refuse a wrong version",
    ),
    (
        "wireshark__challenge01_ooo_stream.pcapng",
        5,
        "decrypted by tshark with keys in the file",
    ),
    (
        "wireshark__communityid.pcap",
        2,
        "a datagram quoted in an ICMP error",
    ),
    (
        "wireshark__http-ooo.pcap",
        1,
        "out of order: tshark's first request in time is not the first of the stream",
    ),
    (
        "wireshark__tls12-dsb.pcapng",
        10,
        "decrypted by tshark with keys in the file",
    ),
    (
        "zeek__http__methods.pcap",
        2,
        "a method without a target is no request",
    ),
    ("zeek__tunnels__ayiya3.pcap", 5, "tshark follows AYIYA"),
];

/// A file, the results of barewire and tshark, and flows that only barewire identifies.
type Both = (PathBuf, Values, Values, Vec<(Pair, Protocol)>);

/// Results of barewire and tshark for each file, and the files that tshark does not read to their
/// end; two at a time, because starting tshark takes long.
fn both() -> (Vec<Both>, Vec<String>) {
    let files = captures();
    let next = AtomicUsize::new(0);
    let work = || {
        let (mut all, mut unread) = (Vec::new(), Vec::new());
        while let Some(path) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Some((found, _)) = decode(path) else {
                continue;
            };
            // If neither the bytes nor the ports match any protocol, tshark need not be run.
            if found.is_empty() && !has_traces(path) {
                continue;
            }
            let pairs = found.iter().map(|flow| flow.pair).collect();
            let Some((theirs, named)) = theirs(path, &pairs, &[]) else {
                unread.push(name(path));
                continue;
            };
            let alone = only_ours(&found, &named);
            all.push((path.clone(), ours(&found), theirs, alone));
        }
        (all, unread)
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(work);
        let (mut all, mut unread) = work();
        let other = other.join().expect("a thread that ends well");
        all.extend(other.0);
        unread.extend(other.1);
        all.sort_by(|one, other| one.0.cmp(&other.0));
        (all, unread)
    })
}

#[test]
fn decoded_fields_equal_those_of_tshark() {
    require!(skip::program("tshark", "tshark"));
    let (mut same, mut more) = (BTreeMap::new(), BTreeMap::new());
    let (mut differ, mut alone) = (BTreeMap::new(), BTreeMap::new());
    let (both, unread) = both();
    for (path, ours, theirs, only_ours) in both {
        for (pair, protocol) in only_ours {
            println!("{} {pair:?} {} to us alone", name(&path), protocol.name());
            *alone.entry(name(&path)).or_insert(0) += 1;
        }
        let keys: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
        for key in keys {
            let (ours, theirs) = (ours.get(key), theirs.get(key));
            let known = match (ours, theirs) {
                (Some(ours), Some(theirs)) => are_same(ours, theirs),
                (_, None) => {
                    *more.entry(key.1.name()).or_insert(0) += 1;
                    continue;
                }
                (None, Some(_)) => false,
            };
            if known {
                *same.entry(key.1.name()).or_insert(0) += 1;
            } else {
                println!(
                    "{} {:?} {}\n   ours {ours:?}\n   them {theirs:?}",
                    name(&path),
                    key.0,
                    key.1.name()
                );
                *differ.entry(name(&path)).or_insert(0) += 1;
            }
        }
    }
    println!("same {same:?}; only ours {more:?}");
    if std::env::var_os("BAREWIRE_ONLY").is_some() {
        return;
    }
    let is_large = corpus::large().is_ok();
    let unread_max = if is_large { UNREAD_MAX } else { 0 };
    assert!(unread.len() <= unread_max, "not read by tshark: {unread:?}");
    let count: usize = same.values().sum();
    assert!(count >= if is_large { 2_000 } else { 5 }, "{same:?}");
    let listed = |list: &[(&str, usize, &str)]| -> BTreeMap<String, usize> {
        let rows = list.iter().filter(|_| is_large);
        rows.map(|(name, count, _)| ((*name).to_owned(), *count))
            .collect()
    };
    let known = listed(EXCEPTIONS);
    assert_eq!(differ, known, "files that differ, and those known to");
    let known = listed(NAME_EXCEPTIONS);
    assert_eq!(alone, known, "flows named by us alone, and those known");
    if is_large {
        for (field, least) in LEAST {
            assert!(
                same.get(field).is_some_and(|count| count >= least),
                "{field}: {same:?}"
            );
        }
    }
}

/// Whether a decoder may find something in a file.
fn has_traces(path: &Path) -> bool {
    let bytes = std::fs::read(path).unwrap_or_default();
    let is = |pattern: &[u8]| bytes.windows(pattern.len()).any(|window| window == pattern);
    #[rustfmt::skip] // CACACACA is a name of NetBIOS that is padded.
    let patterns: [&[u8]; 16] = [
        b"HTTP/1.", b"\x16\x03\x01", b"\x16\x03\x03", b"\x16\xfe\xff", b"\x16\xfe\xfd", b"SSH-",
        b"\xffSMB", b"\xfeSMB", b"RTSP/1.0", b"objectClass", b"mstshash",
        b"RFB 00", b"public", b"\xff\xfd\x18", b"CACACACA",
        b"\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00",
    ];
    patterns.into_iter().any(is)
}

/// The endpoints as printed by nDPI, `192.0.2.1:80` or `[2001:db8::1]:80`.
fn end(text: &str) -> Option<(IpAddr, u16)> {
    let (addr, port) = text.rsplit_once(':')?;
    let addr = addr.trim_start_matches('[').trim_end_matches(']');
    Some((addr.parse().ok()?, port.parse().ok()?))
}

/// nDPI's JA4 differs in two letters: `d` or `i` depends on the presence of a server name, not of
/// the extension; the letters of the protocol (`h1`) are others in this version (`ht`, `h0`).
fn is_alike(ours: &str, theirs: &str) -> bool {
    let rest = |text: &str| -> Option<[String; 3]> {
        let parts = [text.get(..3)?, text.get(4..8)?, text.get(10..)?];
        Some(parts.map(str::to_owned))
    };
    ours != theirs && rest(ours) == rest(theirs)
}

/// Files in which nDPI differs, in how many fields, and why.
const NDPI_EXCEPTIONS: &[(&str, usize, &str)] = &[
    (
        "nDPI__dtls.pcap",
        1,
        "a hello that offers DTLS 1.3, of which nDPI takes the legacy version",
    ),
    (
        "nDPI__stun.pcap",
        5,
        "DTLS behind STUN in one flow, which is given up before",
    ),
];

#[test]
fn fingerprints_equal_those_of_ndpi() {
    require!(corpus::large());
    let expected = corpus::large().unwrap_or_default().join("expected");
    let mut same = BTreeMap::new();
    let mut differ = BTreeMap::new();
    for path in captures() {
        let Ok(text) = std::fs::read_to_string(expected.join(format!("{}.out", name(&path))))
        else {
            continue;
        };
        let Some((found, _)) = decode(&path) else {
            continue;
        };
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let is_udp = match words.nth(1) {
                Some("TCP") => false,
                Some("UDP") => true,
                _ => continue,
            };
            let one = words.next().and_then(end);
            let other = words.nth(1).and_then(end);
            let (Some(one), Some(other)) = (one, other) else {
                continue;
            };
            let ends = pair(is_udp, one, other);
            let flows: Vec<&Found> = found.iter().filter(|flow| flow.pair == ends).collect();
            for (field, start) in [
                (Field::Ja3, "[JA3C: "),
                (Field::Ja3s, "[JA3S: "),
                (Field::Ja4, "[JA4: "),
            ] {
                let Some((_, rest)) = line.split_once(start) else {
                    continue;
                };
                let value = rest.split(']').next().unwrap_or_default();
                // Its rating of the cipher.
                let value = value.split(" (").next().unwrap_or_default();
                let ours: BTreeSet<String> =
                    flows.iter().filter_map(|flow| flow.text(field)).collect();
                if field == Field::Ja4 && ours.iter().any(|ours| is_alike(ours, value)) {
                    *same.entry("ja4 by rule").or_insert(0) += 1;
                } else if ours.contains(value) {
                    *same.entry(field.name()).or_insert(0) += 1;
                } else {
                    println!(
                        "{} {ends:?} {}\n   ours {ours:?}\n   them {value}",
                        name(&path),
                        field.name()
                    );
                    *differ.entry(name(&path)).or_insert(0) += 1;
                }
            }
        }
    }
    println!("same {same:?}");
    if std::env::var_os("BAREWIRE_ONLY").is_some() {
        return;
    }
    let listed: BTreeMap<String, usize> = NDPI_EXCEPTIONS
        .iter()
        .map(|(name, count, _)| ((*name).to_owned(), *count))
        .collect();
    assert_eq!(differ, listed, "files that differ, and those known to");
    assert!(
        same.get("ja4").is_some_and(|count| *count > 100),
        "{same:?}"
    );
}

#[test]
fn community_ids_equal_those_of_the_specification() {
    require!(corpus::large());
    let expected = corpus::large().unwrap_or_default().join("expected");
    for (file, seed) in [("deflt", 0), ("seed1", 1)] {
        let path = expected.join(format!("community-id-spec__baseline_{file}.json"));
        let text = std::fs::read_to_string(path).expect("the baseline");
        let rows: Vec<serde_json::Value> = serde_json::from_str(&text).expect("JSON");
        assert!(rows.len() >= 15);
        for row in rows {
            let addr = |name: &str| {
                row[name]
                    .as_str()
                    .and_then(|text| text.parse::<IpAddr>().ok())
            };
            let port = |name: &str| row[name].as_u64().unwrap_or(0) as u16;
            let (Some(src), Some(dst)) = (addr("saddr"), addr("daddr")) else {
                panic!("{row}");
            };
            let protocol = row["proto"].as_u64().unwrap_or(0) as u8;
            let id = community_id(seed, protocol, (src, port("sport")), (dst, port("dport")));
            assert_eq!(Some(id.as_str()), row["communityid"].as_str(), "{row}");
        }
    }
}
