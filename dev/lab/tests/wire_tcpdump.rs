//! The summary lines of TCP and DCCP packets, and of 802.11 frames without packets, compared with
//! tcpdump's over all captures: with `-nn -S` a tcpdump line must start with barewire's. It may
//! continue with the decoded payload; radio measurements, which come first, are not printed by
//! barewire.
//!
//! Not compared: packets in tunnels (tcpdump breaks the line there) and in ICMP errors, and files
//! whose interfaces differ, which libpcap does not read. VLAN tags, which tcpdump shows with `-e`
//! only, are removed from barewire's line.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use lab::oracle::TempFile;
use wire::file::{Event, Reader, pcap};
use wire::{Dissection, LayerKind, LinkType, Reason, Summary, Timestamp, dissect, tcp};

use crate::wire_tshark::made;

const NO_TAG: &str = "tcpdump 4.99.3 does not know this tag";
const SLL2: &str = "tcpdump puts the interface and direction of a cooked packet in front";
const FRAGMENT: &str = "we say that it is a fragment, tcpdump only with -v";
const EXTENSION: &str = "tcpdump puts extension headers where the ports are";
const MD5: &str = "tcpdump prints the signature of the MD5 option and that it cannot check it";
const NO_LENGTH: &str = "IP length 0: the packet left before it was segmented";
const WRONG_LENGTH: &str =
    "the IP length exceeds the packet: tcpdump counts missing bytes as payload";

/// Files whose lines differ: how many lines, and why.
const KNOWN: &[(&str, usize, &str)] = &[
    ("PcapPlusPlus__frag_http_req.pcap", 1, FRAGMENT),
    ("PcapPlusPlus__sll2.pcap", 3, SLL2),
    ("arkime__cloudshark-bgp-md5.pcap", 16, MD5),
    ("arkime__socks5-http-302-frag.pcap", 4, FRAGMENT),
    ("mercury__sll2_tls.pcap", 1, SLL2),
    ("mercury__tls_sgt.pcap", 1290, NO_TAG),
    ("mercury__tlsv1_3.pcap", 1, NO_LENGTH),
    (
        "nDPI__BGP_Cisco_hdlc_slarp.pcap",
        14,
        "Cisco HDLC under the link type of PPP: tcpdump looks for PPP alone",
    ),
    ("nDPI__anydesk.pcapng", 1, NO_LENGTH),
    ("nDPI__fuzz-2006-06-26-2594.pcap", 4, WRONG_LENGTH),
    ("nDPI__telnet.pcap", 5, WRONG_LENGTH),
    (
        "peafowl__tcp_resegment__http_seq_num_wrapping.pcap",
        2,
        "malformed options: other words for it",
    ),
    ("snabb__tcp-ipv4-3frags-bound.pcap", 1, FRAGMENT),
    ("suricata-verify__decode-etag-01__input.pcap", 1, NO_TAG),
    ("suricata-verify__decode-sll2-01__input.pcap", 5, SLL2),
    (
        "suricata-verify__defrag__bug-6887-defrag-ipv6-tcp__frag-ip-tcp.pcap",
        1,
        EXTENSION,
    ),
    ("tcpdump__bgp_pmsi_tunnel-oobr.pcap", 1, FRAGMENT),
    ("tcpdump__bigtcp-ipv4.pcap", 1, NO_LENGTH),
    (
        "tcpdump__mptcp-v0.pcap",
        264,
        "tcpdump prints what is in the option of multipath TCP, we only its kind",
    ),
    (
        "tcpdump__timestamp_invalid_nano.pcap",
        2,
        "a second's fraction above one second: we carry it over",
    ),
    ("zeek__ipv4__fragmented-3.pcap", 1, FRAGMENT),
    ("zeek__ipv6-http-atomic-frag.pcap", 18, EXTENSION),
    ("zeek__pppoe-over-qinq.pcap", 6, WRONG_LENGTH),
    ("zeek__tcp__reassembly.pcap", 5, WRONG_LENGTH),
    (
        "zeek__tcp__rst-inject-rae.pcap",
        1,
        "the accurate ECN bit, which tcpdump 4.99.3 does not print",
    ),
    (
        "zeek__tcp__truncated-header.pcap",
        1,
        "time stamps of the wrong length, which tcpdump takes for cut and we print as bytes",
    ),
];

/// Generated packets whose lines differ, by the start of their names, and why.
const MADE_KNOWN: &[(&str, &str)] = &[
    ("QoS, HT control", "tcpdump does not know HT control"),
    ("Arista, VLAN", "tcpdump shows VLAN tags with -e only"),
    (
        "aggregate",
        "tcpdump takes the first header of an aggregate for LLC",
    ),
    ("InfiniBand", "tcpdump does not know it"),
    (
        "Frame Relay, 3 bytes",
        "tcpdump says that there is no padding",
    ),
    ("Frame Relay, SNAP", "tcpdump says that there is padding"),
    ("Frame Relay, bridged", "tcpdump says that there is padding"),
    ("GRE in UDP", "tcpdump does not look into UDP port 4754"),
    (
        "Ethernet in GRE in UDP",
        "tcpdump does not look into UDP port 4754",
    ),
    ("GTPv0", "tcpdump does not look into UDP port 3386"),
];

/// The line after its VLAN tags, "vlan 5, p 0, " or "vlan 5, p 0, DEI, " each.
fn without_tags(mut line: &str) -> &str {
    while line.starts_with("vlan ") {
        let Some(priority) = line.find(", p ") else {
            break;
        };
        let rest = line.get(priority + 5..).unwrap_or_default();
        line = rest
            .strip_prefix(", DEI")
            .unwrap_or(rest)
            .trim_start_matches(", ");
    }
    line
}

/// Timestamp and text of barewire's line.
struct Line {
    clock: String,
    text: String,
    /// Whether tcpdump prints radio measurements between them.
    has_radio: bool,
}

impl Line {
    fn begins(&self, theirs: &str) -> bool {
        match theirs.strip_prefix(&self.clock) {
            Some(rest) if self.has_radio => rest.contains(&format!(" {}", self.text)),
            Some(rest) => rest[1..].starts_with(&self.text),
            None => false,
        }
    }
}

/// barewire's line for each packet; `None` for those that are not compared.
fn ours(bytes: &[u8]) -> Vec<Option<Line>> {
    let (mut reader, mut at, mut lines) = (Reader::new(), 0, Vec::new());
    loop {
        let rest = bytes.get(at..).unwrap_or(&[]);
        match reader.next(rest) {
            Ok(Event::Need(_)) | Err(_) => return lines,
            Ok(event) => {
                at += event.used();
                if let Event::Packet(p) = event {
                    let bytes = &rest[p.data];
                    let mut d = Dissection::EMPTY;
                    dissect(p.link, bytes, p.wire_len, &mut d);
                    let is_tcp = match d.reason {
                        Reason::Complete => d.has(LayerKind::Tcp) || d.has(LayerKind::Dccp),
                        Reason::Truncated => d.has(LayerKind::Tcp),
                        _ => false,
                    };
                    let is_radio = match d.layers().last() {
                        Some((LayerKind::Ieee80211, _)) => !d.reason.is_malformed(),
                        _ => false,
                    };
                    let line = Summary {
                        dissection: &d,
                        bytes,
                    }
                    .to_string();
                    // tcpdump prints nothing for these.
                    let is_empty = line == "Data without a body";
                    lines.push((is_tcp || is_radio && !is_empty).then(|| {
                        let line = without_tags(&line);
                        Line {
                            clock: p.time.clock(6, 0).to_string(),
                            text: line.replace("PPPoE [", "PPPoE  ["),
                            has_radio: d.has(LayerKind::Radiotap),
                        }
                    }));
                }
            }
        }
    }
}

/// tcpdump's first line for each packet.
fn theirs(path: &Path) -> Result<Vec<String>> {
    let mut command = Command::new("tcpdump");
    command.args(["-nn", "-S", "-r"]).arg(path).env("TZ", "UTC");
    let output = lab::oracle::cache::output(&mut command, path)?;
    let text = String::from_utf8_lossy(&output.stdout);
    // Continuation lines are indented.
    let is_first = |line: &&str| line.as_bytes().get(2) == Some(&b':') && line.len() > 8;
    Ok(text.lines().filter(is_first).map(str::to_owned).collect())
}

#[test]
fn tcp_lines_start_as_in_tcpdump() -> Result<()> {
    lab::require!(lab::skip::program("tcpdump", "tcpdump"));
    let corpus = lab::corpus::captures();
    let mut differing: BTreeMap<String, usize> = BTreeMap::new();
    let (mut compared, mut uncompared, mut report) = (0, Vec::new(), String::new());
    for path in &corpus.files {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let ours = ours(&std::fs::read(path)?);
        let theirs = theirs(path)?;
        if ours.len() != theirs.len() {
            uncompared.push(name);
            continue;
        }
        for (index, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            let Some(ours) = ours else { continue };
            compared += 1;
            if !ours.begins(theirs) {
                let count = differing.entry(name.clone()).or_default();
                *count += 1;
                if *count == 1 && !KNOWN.iter().any(|(known, ..)| *known == name) {
                    let Line { clock, text, .. } = ours;
                    writeln!(report, "{name} #{}:", index + 1)?;
                    writeln!(report, "  {clock} {text}\n  {theirs}")?;
                }
            }
        }
    }
    println!(
        "{compared} lines, of which {} differ",
        differing.values().sum::<usize>()
    );
    println!(
        "tcpdump stops in, or refuses, {}: {uncompared:?}",
        uncompared.len()
    );
    ensure!(
        uncompared.len() <= corpus.at_least(20, 0),
        "too many files that tcpdump does not read to their end"
    );
    for (name, count, why) in KNOWN {
        let found = differing.remove(*name).unwrap_or(0);
        if found != *count && corpus.has(name) {
            writeln!(
                report,
                "{name}: {count} lines are known to differ ({why}), {found} do"
            )?;
        }
    }
    for (name, count) in differing {
        writeln!(report, "{name}: {count} lines differ")?;
    }
    ensure!(
        compared > corpus.at_least(30_000, 300),
        "only {compared} lines were compared"
    );
    ensure!(report.is_empty(), "ours, then tcpdump's:\n{report}");
    Ok(())
}

#[test]
fn lines_of_generated_packets_start_as_in_tcpdump() -> Result<()> {
    lab::require!(lab::skip::program("tcpdump", "tcpdump"));
    let (mut report, mut compared) = (String::new(), 0);
    for made in made::packets() {
        let len = made.bytes.len() as u32;
        let file = TempFile::new(".pcap");
        let mut head = [0; pcap::HEADER_LEN];
        pcap::emit_header(&mut head, made.link, 65_535, pcap::Precision::Microseconds);
        let mut record = [0; pcap::RECORD_LEN];
        let unit = pcap::Precision::Microseconds;
        pcap::emit_record(&mut record, Timestamp(0), len, len, unit);
        std::fs::write(file.path(), [&head[..], &record, &made.bytes].concat())?;
        let theirs = theirs(file.path())?.concat();
        let mut d = Dissection::EMPTY;
        dissect(made.link, &made.bytes, len, &mut d);
        let line = Summary {
            dissection: &d,
            bytes: &made.bytes,
        }
        .to_string();
        let ours = Line {
            clock: Timestamp(0).clock(6, 0).to_string(),
            text: without_tags(&line).to_owned(),
            has_radio: d.has(LayerKind::Radiotap),
        };
        compared += 1;
        let known = MADE_KNOWN
            .iter()
            .find(|(name, _)| made.name.starts_with(name));
        match (known, ours.begins(&theirs)) {
            (None, false) => writeln!(report, "{}:\n  {line}\n  {theirs}", made.name)?,
            (Some((name, why)), true) => {
                writeln!(report, "{name} is known to differ ({why}) and does not")?;
            }
            _ => {}
        }
    }
    ensure!(compared > 30, "only {compared} packets");
    ensure!(report.is_empty(), "ours, then tcpdump's:\n{report}");
    Ok(())
}

/// TCP options, a few of each kind, in complete headers.
const OPTIONS: &[&[u8]] = &[
    &[],
    &[
        2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 3, 3, 7,
    ],
    &[1, 1, 5, 18, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4],
    &[34, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1],
    &[254, 12, 0xf9, 0x89, 1, 2, 3, 4, 5, 6, 7, 8],
    &[253, 6, 1, 2, 3, 4, 1, 1],
    &[77, 2, 1, 0],
    &[1; 40],
    &[0; 4],
];

#[test]
fn lines_of_truncated_tcp_headers_start_as_in_tcpdump() -> Result<()> {
    lab::require!(lab::skip::program("tcpdump", "tcpdump"));
    let unit = pcap::Precision::Microseconds;
    let mut head = [0; pcap::HEADER_LEN];
    pcap::emit_header(&mut head, LinkType::RAW, 65_535, unit);
    let mut file = head.to_vec();
    for (options, flags) in OPTIONS.iter().flat_map(|o| [(o, 0x02), (o, 0x38)]) {
        let mut segment = [0; tcp::HEADER_LEN];
        let header = tcp::Header {
            src_port: 443,
            dst_port: 5555,
            seq: 1,
            ack: 2,
            flags,
            window: 9,
        };
        header.emit(&mut segment);
        segment[12] += (options.len() as u8 / 4) << 4;
        segment[19] = 7;
        let segment = [&segment[..], options, b"hello"].concat();
        let mut packet = vec![
            0x45,
            0,
            0,
            20 + segment.len() as u8,
            0,
            1,
            0,
            0,
            64,
            6,
            0,
            0,
        ];
        packet.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        packet.extend(segment);
        let wire_len = packet.len() as u32;
        for cap_len in 20..=packet.len() {
            let mut record = [0; pcap::RECORD_LEN];
            pcap::emit_record(&mut record, Timestamp(0), cap_len as u32, wire_len, unit);
            file.extend(record);
            file.extend(&packet[..cap_len]);
        }
    }
    let path = TempFile::new(".pcap");
    std::fs::write(path.path(), &file)?;
    let (ours, theirs) = (ours(&file), theirs(path.path())?);
    ensure!(
        ours.len() == theirs.len() && ours.len() > 650,
        "{} lines",
        ours.len()
    );
    for (ours, theirs) in ours.iter().zip(&theirs) {
        let Some(ours) = ours else {
            anyhow::bail!("not compared: {theirs}");
        };
        ensure!(
            ours.begins(theirs),
            "{} {}\n{theirs}",
            ours.clock,
            ours.text
        );
    }
    Ok(())
}
