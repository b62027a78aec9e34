//! The summary lines of TCP packets against tcpdump's, over all captures: with `-nn -S` a line
//! of tcpdump must begin with ours. It may go on with what the payload means.
//!
//! Not compared: packets in tunnels (tcpdump breaks the line there) and in ICMP errors, and files
//! whose interfaces differ, which libpcap does not read. VLAN tags, which tcpdump shows with `-e`
//! only, are taken off our line.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use wire::file::{Event, Reader};
use wire::{Dissection, LayerKind, Reason, Summary, dissect};

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
];

/// The line behind its VLAN tags, "vlan 5, p 0, " or "vlan 5, p 0, DEI, " each.
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

/// Our line for each packet; nothing for those that are not compared.
fn ours(bytes: &[u8]) -> Vec<Option<String>> {
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
                    let is_tcp = d.reason == Reason::Complete && d.has(LayerKind::Tcp);
                    lines.push(is_tcp.then(|| {
                        let line = Summary {
                            dissection: &d,
                            bytes,
                        }
                        .to_string();
                        let line = without_tags(&line);
                        format!(
                            "{} {}",
                            p.time.clock(6, 0),
                            line.replace("PPPoE [", "PPPoE  [")
                        )
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
    let output = command.output()?.stdout;
    let text = String::from_utf8_lossy(&output);
    // What follows a first line is indented.
    let is_first = |line: &&str| line.as_bytes().get(2) == Some(&b':') && line.len() > 8;
    Ok(text.lines().filter(is_first).map(str::to_owned).collect())
}

#[test]
fn tcp_lines_begin_alike() -> Result<()> {
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
            if !theirs.starts_with(ours.as_str()) {
                let count = differing.entry(name.clone()).or_default();
                *count += 1;
                if *count == 1 && !KNOWN.iter().any(|(known, ..)| *known == name) {
                    writeln!(report, "{name} #{}:\n  {ours}\n  {theirs}", index + 1)?;
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
        uncompared.len() <= 20,
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
