//! The samples that the decoders are tested with, compared with tshark: it must find the same in
//! them. This covers protocols of which the corpus has few captures or none.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::inspect_oracle::{are_same, decode, ours, theirs};
use inspect::{Direction, Field, laws};
use lab::oracle::{TempFile, write_pcap};
use lab::packet::checksum;
use lab::{require, skip};

/// A sample: its directory and name in the fuzz corpora, whether it is UDP, the server's port, and
/// options for tshark.
type Sample = (&'static str, bool, u16, &'static [&'static str]);

const SAMPLES: &[Sample] = &[
    ("stream/ldap", false, 389, &[]),
    ("stream/ldap-sasl", false, 389, &[]),
    ("stream/ldap-starttls", false, 389, &[]),
    ("dns/cldap", true, 389, &[]),
    ("stream/rdp", false, 3389, &[]),
    ("stream/rdp-refused", false, 3389, &[]),
    ("stream/rdp-plain", false, 3389, &[]),
    ("stream/smb", false, 445, &[]),
    ("stream/smb-1", false, 139, &[]),
    ("stream/smb-encrypted", false, 445, &[]),
    ("stream/rtsp", false, 554, &[]),
    ("dns/rtp", true, 9998, &["-d", "udp.port==9998,rtp"]),
    ("dns/nbns", true, 137, &[]),
    ("dns/nbdgm", true, 138, &[]),
    ("stream/mysql", false, 3306, &[]),
    ("stream/mysql-denied", false, 3306, &[]),
    ("stream/mysql-tls", false, 3306, &[]),
    ("stream/mysql-old", false, 3306, &[]),
    ("stream/mysql-blocked", false, 3306, &[]),
    // PostgreSQL and Redis are not included: in tshark, parameters and parts of commands and
    // answers are all values of one field.
];

/// Where a sample differs, and why.
const EXCEPTIONS: &[(&str, Field, &str)] = &[
    (
        "stream/ldap",
        Field::LdapMechanism,
        "tshark has names of SASL alone",
    ),
    (
        "stream/rdp",
        Field::TlsSni,
        "tshark does not look for TLS behind RDP",
    ),
    ("stream/rdp", Field::Ja3, "likewise"),
    ("stream/rdp", Field::Ja3s, "likewise"),
    (
        "stream/smb-1",
        Field::SmbDialect,
        "tshark has its place in the list alone",
    ),
    (
        "stream/mysql-denied",
        Field::MysqlDatabase,
        "tshark reads one byte of a secret's length, of three",
    ),
];

/// An IPv4 packet in Ethernet with these ports; TCP if there are sequence numbers.
fn packet(from: Direction, port: u16, numbers: Option<[u32; 2]>, payload: &[u8]) -> Vec<u8> {
    let (client, server) = ([192, 0, 2, 1], [192, 0, 2, 2]);
    let (src, dst, ports) = match from {
        Direction::Forward => (client, server, [40_000, port]),
        Direction::Reverse => (server, client, [port, 40_000]),
    };
    let mut segment: Vec<u8> = ports.iter().flat_map(|port| port.to_be_bytes()).collect();
    match numbers {
        Some([sequence, acknowledged]) => {
            segment.extend(sequence.to_be_bytes());
            segment.extend(acknowledged.to_be_bytes());
            // ACK and PSH, a large window.
            segment.extend([0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
        }
        // A checksum of zero means none.
        None => segment.extend([(payload.len() as u16 + 8).to_be_bytes(), [0, 0]].concat()),
    }
    segment.extend(payload);
    let len = (segment.len() as u16 + 20).to_be_bytes();
    let protocol = if numbers.is_some() { 6 } else { 17 };
    let mut header = vec![0x45, 0, len[0], len[1], 0, 0, 0x40, 0, 64, protocol, 0, 0];
    header.extend([src, dst].concat());
    let sum = checksum(&header).to_be_bytes();
    header[10..12].copy_from_slice(&sum);
    let ethernet = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    [&ethernet[..], &header, &segment].concat()
}

/// The sample as a capture.
fn capture(&(name, is_udp, port, _): &Sample) -> TempFile {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let input = std::fs::read(folder.join(name)).expect("a sample in the corpora");
    let mut next = [1000_u32, 2000];
    let mut packets = Vec::new();
    // The first byte selects ports for the fuzz target.
    for (from, bytes) in laws::pieces(&input[1..]) {
        if is_udp {
            packets.push(packet(from, port, None, bytes));
            continue;
        }
        for part in bytes.chunks(1400) {
            let (own, other) = (next[from as usize], next[from.other() as usize]);
            packets.push(packet(from, port, Some([own, other]), part));
            next[from as usize] = own + part.len() as u32;
        }
    }
    write_pcap(&packets).expect("a capture")
}

/// tshark finds every field of a sample, too.
#[test]
fn fields_of_samples_equal_those_of_tshark() {
    require!(skip::program("tshark", "tshark"));
    let (mut same, mut wrong) = (BTreeMap::new(), Vec::new());
    for sample in SAMPLES {
        let file = capture(sample);
        let (found, _) = decode(file.path()).expect("a capture that opens");
        let pairs: BTreeSet<_> = found.iter().map(|flow| flow.pair).collect();
        let (theirs, _) = theirs(file.path(), &pairs, sample.3).expect("an answer");
        let ours = ours(&found);
        let keys: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
        for key in keys {
            let (ours, theirs) = (ours.get(key), theirs.get(key));
            match (ours, theirs) {
                (Some(ours), Some(theirs)) if are_same(ours, theirs) => {
                    *same.entry(key.1).or_insert(0) += 1;
                }
                _ if EXCEPTIONS
                    .iter()
                    .any(|(name, field, _)| (*name, *field) == (sample.0, key.1)) => {}
                _ => wrong.push(format!(
                    "{} {:?}: {ours:?}, tshark {theirs:?}",
                    sample.0, key.1
                )),
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    use Field::*;
    let all = [
        LdapBindDn,
        LdapMechanism,
        LdapBase,
        LdapResult,
        RdpUser,
        RdpRequested,
        RdpSelected,
        RdpFailure,
        SmbDialect,
        SmbTree,
        SmbUser,
        SmbDomain,
        SmbWorkstation,
        RtpPayloadType,
        RtpSsrc,
        RtspMethod,
        RtspUrl,
        RtspStatus,
        NetbiosName,
        NetbiosOpcode,
        NetbiosRcode,
        NetbiosSource,
        NetbiosDestination,
        MysqlProtocol,
        MysqlVersion,
        MysqlAuth,
        MysqlUser,
        MysqlDatabase,
        MysqlResult,
        TlsSni,
    ];
    for field in all {
        assert!(
            same.contains_key(&field),
            "{field:?} is in no sample: {same:?}"
        );
    }
}
