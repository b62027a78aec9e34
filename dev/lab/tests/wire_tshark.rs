//! The dissector compared with tshark: all available captures, field by field.
//!
//! All packets are written to a few pcapng files (by barewire's encoder), tshark prints its fields
//! for each packet, and barewire's must be the same, in the same order, for every header on every
//! level: tunnels inside tunnels, and packets quoted by ICMP errors. tshark runs with the protocols
//! of barewire's table and those of [`ORACLE_ONLY`] alone: no heuristics, no reassembly. Where the
//! two differ, `wire_tshark/known.rs` lists packets, fields and reasons; an entry that no longer
//! differs fails the test, and so does a difference without an entry.

mod fields;
mod known;
pub(crate) mod made;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::Command;

use self::fields::{FIELDS, Level, Value};
use anyhow::{Context, Result, ensure};
use lab::oracle::{TempFile, tshark};
use wire::file::{Event, Reader, pcapng};
use wire::{Dissection, LayerKind, LinkType, dissect, dissect_inner};

/// tshark's names of the protocols in barewire's table.
const ENABLED: &str = "\
    frame eth ethertype vlan ieee8021ad arp ip ipv6 ipv6.hopopts ipv6.routing ipv6.fraghdr \
    ipv6.dstopts mipv6 hip shim6 ah esp tcp udp udplite icmp icmpv6 igmp sctp gre erspan \
    etherip vxlan vxlan_gpe geneve gtp mpls pwethheuristic pwethcw pppoe pppoes pppoed ppp \
    ppp_hdlc chdlc llc sll null loop raw ieee8021cb etag vntag cmd ieee8021ah cfp nsh teredo \
    l2tp udpencap macsec pim wlan wlan_radio radiotap prism \
    wlancap pktap nflog ppi ipoib infiniband dccp avsp fr gtpprime arcnet juniper \
    pcap_pktdata";

/// Link types that tshark 4.0 does not read; tcpdump is the oracle for them (`wire_tcpdump`).
const UNREAD: &[LinkType] = &[
    LinkType::SLIP,
    LinkType::SLIP_BSDOS,
    LinkType::DSA_TAG_BRCM,
    LinkType::DSA_TAG_BRCM_PREPEND,
    LinkType::DSA_TAG_DSA,
    LinkType::DSA_TAG_EDSA,
];

/// Protocols that only tshark supports, so that what barewire misses is visible.
const ORACLE_ONLY: &str = "\
    ayiya capwap capwap.data erf wlan_aggregate ipcomp wccp";

/// Preferences with which tshark examines each packet separately.
const PREFERENCES: &[&str] = &[
    "ip.defragment:FALSE",
    "ipv6.defragment:FALSE",
    "ip.check_checksum:FALSE",
    "tcp.desegment_tcp_streams:FALSE",
    "tcp.analyze_sequence_numbers:FALSE",
    "tcp.relative_sequence_numbers:FALSE",
    "udp.process_info:FALSE",
];

/// A packet of the corpus.
struct Packet {
    file: usize,
    /// Counted from 1 in its file, as in tshark.
    number: usize,
    link: LinkType,
    bytes: Vec<u8>,
    wire_len: u32,
}

/// All packets of a file up to its end or the first damage.
fn read(file: usize, path: &Path, into: &mut Vec<Packet>) -> Result<()> {
    let bytes = if path.extension().is_some_and(|e| e == "gz") {
        Command::new("gzip")
            .args(["-dc"])
            .arg(path)
            .output()?
            .stdout
    } else {
        std::fs::read(path)?
    };
    let (mut reader, mut at, mut number) = (Reader::new(), 0, 0);
    loop {
        let rest = bytes.get(at..).unwrap_or(&[]);
        match reader.next(rest) {
            Ok(Event::Need(_)) | Err(_) => return Ok(()),
            Ok(event) => {
                at += event.used();
                if let Event::Packet(p) = event {
                    number += 1;
                    let bytes = rest[p.data].to_vec();
                    into.push(Packet {
                        file,
                        number,
                        link: p.link,
                        bytes,
                        wire_len: p.wire_len,
                    });
                }
            }
        }
    }
}

/// Writes packets to one pcapng file, with an interface per link type.
fn write(packets: &[Packet]) -> Result<TempFile> {
    let temp = TempFile::new(".pcapng");
    let mut file = BufWriter::new(std::fs::File::create_new(temp.path())?);
    let mut buffer = vec![0; 1 << 20];
    let section = pcapng::SectionInfo::default();
    let len = pcapng::emit_section(&mut buffer, &section).context("section")?;
    file.write_all(&buffer[..len])?;
    let mut interfaces: BTreeMap<LinkType, u32> = BTreeMap::new();
    for packet in packets {
        let next = interfaces.len() as u32;
        let interface = *interfaces.entry(packet.link).or_insert(next);
        if interface == next {
            let info = pcapng::InterfaceInfo::new(packet.link, 0, "");
            let len = pcapng::emit_interface(&mut buffer, &info).context("interface")?;
            file.write_all(&buffer[..len])?;
        }
        let info = pcapng::PacketInfo {
            interface,
            wire_len: packet.wire_len,
            ..Default::default()
        };
        let len = pcapng::emit_packet(&mut buffer, &info, &packet.bytes, "").context("packet")?;
        file.write_all(&buffer[..len])?;
    }
    file.into_inner()?.sync_all()?;
    Ok(temp)
}

/// Options that enable only these protocols.
fn options() -> Result<Vec<String>> {
    let list = Command::new("tshark")
        .args(["-G", "protocols"])
        .output()?
        .stdout;
    let list = String::from_utf8_lossy(&list).into_owned();
    let all: BTreeSet<&str> = list.lines().filter_map(|l| l.split('\t').nth(2)).collect();
    let wanted: BTreeSet<&str> = ENABLED.split(' ').chain(ORACLE_ONLY.split(' ')).collect();
    ensure!(
        all.len() > 100,
        "tshark -G protocols prints something else now"
    );
    let mut options = Vec::new();
    for unwanted in all.difference(&wanted) {
        options.extend(["--disable-protocol".into(), (*unwanted).to_owned()]);
    }
    for preference in PREFERENCES {
        options.extend(["-o".into(), (*preference).to_owned()]);
    }
    Ok(options)
}

/// All levels of a packet, quoted ones included.
fn levels(packet: &Packet) -> Vec<Level<'_>> {
    let mut dissection = Dissection::EMPTY;
    dissect(packet.link, &packet.bytes, packet.wire_len, &mut dissection);
    let (packet, mut quoted) = (&packet.bytes[..], false);
    let mut all = vec![Level {
        dissection,
        packet,
        quoted,
        in_icmpv4: false,
    }];
    let mut inner = Dissection::EMPTY;
    while dissect_inner(packet, &dissection, &mut inner) {
        quoted |= dissection.inner_is_quote;
        let in_icmpv4 = dissection.has(LayerKind::Icmpv4);
        dissection = inner;
        all.push(Level {
            dissection,
            packet,
            quoted,
            in_icmpv4,
        });
    }
    all
}

/// The fields of a packet that differ: name, barewire's value, tshark's.
fn differences(packet: &Packet, row: &[String]) -> Vec<(&'static str, String, String)> {
    let levels = levels(packet);
    let mut found = Vec::new();
    for (field, theirs) in FIELDS.iter().zip(row) {
        let ours: Vec<Value> = levels
            .iter()
            .flat_map(|level| (field.ours)(level))
            .collect();
        let parsed: Vec<Value> = theirs
            .split(',')
            .filter(|t| !t.is_empty())
            .map(|text| match field.is_bytes {
                true => Value::Number(text.len() as u64 / 2),
                false => Value::parse(text),
            })
            .collect();
        if ours != parsed {
            let ours = ours
                .iter()
                .map(|v| v.to_string())
                .collect::<Vec<_>>()
                .join(",");
            found.push((field.name, ours, theirs.clone()));
        }
    }
    found
}

/// Compares the packets with tshark's output.
fn compare(packets: &[Packet], options: &[String]) -> Result<Vec<known::Difference>> {
    compare_with(packets, packets, options)
}

/// As [`compare`], if tshark gets other packets: the same headers in a frame that it supports.
fn compare_with(
    packets: &[Packet],
    shown: &[Packet],
    options: &[String],
) -> Result<Vec<known::Difference>> {
    let file = write(shown)?;
    let names: Vec<&str> = FIELDS.iter().map(|f| f.name).collect();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let rows = tshark::fields(file.path(), &names, &options)?;
    ensure!(
        rows.len() == packets.len(),
        "{} rows for {} packets",
        rows.len(),
        packets.len()
    );
    let mut all = Vec::new();
    for (packet, row) in packets.iter().zip(&rows) {
        ensure!(row.len() == names.len(), "a row of {} fields", row.len());
        for (field, ours, theirs) in differences(packet, row) {
            all.push(known::Difference {
                file: packet.file,
                number: packet.number,
                field,
                ours,
                theirs,
            });
        }
    }
    Ok(all)
}

#[test]
fn every_capture_is_dissected_as_by_tshark() -> Result<()> {
    lab::require!(
        lab::skip::program("tshark", "tshark"),
        lab::skip::program("gzip", "gzip")
    );
    let corpus = lab::corpus::captures();
    let files = &corpus.files;
    let mut packets = Vec::new();
    for (index, path) in files.iter().enumerate() {
        read(index, path, &mut packets).with_context(|| path.display().to_string())?;
    }
    let total = packets.len();
    packets.retain(|p| LinkType::SUPPORTED.contains(&p.link) && !UNREAD.contains(&p.link));
    let options = options()?;
    let (left, right) = packets.split_at(packets.len() / 2);
    let (left, right) = std::thread::scope(|scope| {
        let left = scope.spawn(|| compare(left, &options));
        (
            compare(right, &options),
            left.join().expect("the other half"),
        )
    });
    let mut differences = left?;
    differences.extend(right?);
    println!(
        "{} files, {total} packets, {} of a supported link type, {} fields each, {} differences",
        files.len(),
        packets.len(),
        FIELDS.len(),
        differences.len()
    );
    ensure!(
        total >= corpus.at_least(50_000, 700),
        "only {total} packets"
    );
    known::judge(&corpus, &differences)
}

#[test]
fn generated_headers_are_dissected_as_by_tshark() -> Result<()> {
    lab::require!(lab::skip::program("tshark", "tshark"));
    let made = made::packets();
    let packet = |number, (link, bytes): (LinkType, Vec<u8>)| Packet {
        file: 0,
        number,
        link,
        wire_len: bytes.len() as u32,
        bytes,
    };
    let (mut packets, mut shown) = (Vec::new(), Vec::new());
    for (index, made) in made.iter().enumerate() {
        packets.push(packet(index, (made.link, made.bytes.clone())));
        shown.push(packet(index, made.for_tshark()));
        let has_inner = levels(&packets[index])
            .iter()
            .any(|level| level.dissection.src_port == made::SRC_PORT);
        ensure!(has_inner, "{}: the packet inside was not found", made.name);
    }
    let differences = compare_with(&packets, &shown, &options()?)?;
    let mut report = String::new();
    for d in &differences {
        let made = &made[d.number];
        if !made.differs.contains(&d.field) {
            report += &format!("{}: {}: {} | {}\n", made.name, d.field, d.ours, d.theirs);
        }
    }
    for (index, made) in made.iter().enumerate() {
        let differs = |field: &str| {
            differences
                .iter()
                .any(|d| d.number == index && d.field == field)
        };
        for field in made.differs.iter().filter(|field| !differs(field)) {
            report += &format!("{}: {field} is known to differ and does not\n", made.name);
        }
    }
    ensure!(report.is_empty(), "ours | tshark's:\n{report}");
    Ok(())
}
