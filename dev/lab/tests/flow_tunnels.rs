//! A law of metering over a sample of all captures: a tunnel around the packets does not change the
//! flows inside.

use flow::{Level, Record};
use wire::{Dissection, LinkType, MAX_LAYERS, MAX_TUNNEL_DEPTH, dissect, dissect_inner};

use crate::flow_laws::{as_text, config, records, sample};
use lab::corpus::Packet;

/// Bytes of the two addresses of an Ethernet header, and of the header.
const MACS_LEN: usize = 12;
const ETHERNET_LEN: usize = 14;

fn ethernet(kind: u16) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    bytes.extend(kind.to_be_bytes());
    bytes
}

/// Ethernet, IPv4 from 192.0.2.77 to 192.0.2.78 and the headers after it, around `wire_len` bytes.
fn four(protocol: u8, between: &[u8], wire_len: u32) -> Vec<u8> {
    let len = 20 + between.len() as u32 + wire_len;
    let mut bytes = ethernet(0x0800);
    bytes.extend([0x45, 0]);
    bytes.extend((len as u16).to_be_bytes());
    bytes.extend([
        0, 0, 0x40, 0, 64, protocol, 0, 0, 192, 0, 2, 77, 192, 0, 2, 78,
    ]);
    bytes.extend(between);
    bytes
}

/// As [`four`] with IPv6, from 2001:db8::77 to 2001:db8::78.
fn six(next: u8, between: &[u8], wire_len: u32) -> Vec<u8> {
    let mut bytes = ethernet(0x86dd);
    bytes.extend([0x60, 0, 0, 0]);
    bytes.extend((between.len() as u16 + wire_len as u16).to_be_bytes());
    bytes.extend([next, 64]);
    for last in [0x77, 0x78] {
        bytes.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    bytes.extend(between);
    bytes
}

/// UDP to a port and the headers after it, in IPv4.
fn udp(port: u16, between: &[u8], wire_len: u32) -> Vec<u8> {
    let len = 8 + between.len() as u32 + wire_len;
    let mut head = vec![0xc0, 0];
    head.extend(port.to_be_bytes());
    head.extend((len as u16).to_be_bytes());
    head.extend([0, 0]);
    head.extend(between);
    four(17, &head, wire_len)
}

/// GTP-U (3GPP TS 29.281, section 5.1): a G-PDU for tunnel 7.
fn gtp(wire_len: u32) -> Vec<u8> {
    let mut head = vec![0x30, 0xff];
    head.extend((wire_len as u16).to_be_bytes());
    head.extend([0, 0, 0, 7]);
    udp(2152, &head, wire_len)
}

/// The protocol number of an IP version in PPP (RFC 1332, RFC 5072).
fn ppp(version: u8) -> [u8; 2] {
    [0, if version == 6 { 0x57 } else { 0x21 }]
}

/// L2TP (RFC 2661, section 3.1): a data message with neither length nor sequence, around PPP.
fn l2tp(version: u8, wire_len: u32) -> Vec<u8> {
    let head = [&[0, 2, 0, 7, 0, 9, 0xff, 3][..], &ppp(version)].concat();
    udp(1701, &head, wire_len)
}

/// PPPoE (RFC 2516, section 4): a session.
fn pppoe(version: u8, wire_len: u32) -> Vec<u8> {
    let mut bytes = ethernet(0x8864);
    bytes.extend([0x11, 0, 0, 7]);
    bytes.extend((wire_len as u16 + 2).to_be_bytes());
    bytes.extend(ppp(version));
    bytes
}

/// The protocol number of an IP version in IP (RFC 2003, RFC 4213).
fn ip_in_ip(version: u8) -> u8 {
    if version == 6 { 41 } else { 4 }
}

/// A GRE header around an IP version (RFC 2784).
fn gre(version: u8) -> [u8; 4] {
    match version {
        6 => [0, 0, 0x86, 0xdd],
        _ => [0, 0, 8, 0],
    }
}

/// A kind of encapsulation, with the bytes it prepends.
#[derive(Clone, Copy)]
enum Wrap {
    /// Around whole Ethernet frames of this length.
    Frame(fn(u32) -> Vec<u8>),
    /// Around IP packets of this version and length, in place of their Ethernet header.
    Ip(fn(u8, u32) -> Vec<u8>),
    /// Tags after the addresses of an Ethernet frame.
    Tags(&'static [u8]),
}

const TUNNELS: [(&str, Wrap); 16] = [
    (
        "VXLAN",
        Wrap::Frame(|len| udp(4789, &[8, 0, 0, 0, 0, 0, 7, 0], len)),
    ),
    (
        "GENEVE",
        Wrap::Frame(|len| udp(6081, &[0, 0, 0x65, 0x58, 0, 0, 7, 0], len)),
    ),
    ("GRE", Wrap::Frame(|len| four(47, &[0, 0, 0x65, 0x58], len))),
    (
        "NVGRE",
        Wrap::Frame(|len| four(47, &[0x20, 0, 0x65, 0x58, 0, 0, 7, 1], len)),
    ),
    ("GTP-U", Wrap::Ip(|_, len| gtp(len))),
    ("L2TP", Wrap::Ip(l2tp)),
    ("PPPoE", Wrap::Ip(pppoe)),
    (
        "GRE of IP",
        Wrap::Ip(|version, len| four(47, &gre(version), len)),
    ),
    (
        "GRE of IP in IPv6",
        Wrap::Ip(|version, len| six(47, &gre(version), len)),
    ),
    (
        "IP in IPv4",
        Wrap::Ip(|version, len| four(ip_in_ip(version), &[], len)),
    ),
    (
        "IP in IPv6",
        Wrap::Ip(|version, len| six(ip_in_ip(version), &[], len)),
    ),
    (
        "MPLS",
        Wrap::Ip(|_, _| [&ethernet(0x8847)[..], &[0, 1, 1, 64]].concat()),
    ),
    (
        "two labels of MPLS",
        Wrap::Ip(|_, _| [&ethernet(0x8847)[..], &[0, 2, 0, 64, 0, 1, 1, 64]].concat()),
    ),
    ("a VLAN", Wrap::Tags(&[0x81, 0, 0, 5])),
    ("QinQ", Wrap::Tags(&[0x88, 0xa8, 0, 9, 0x81, 0, 0, 5])),
    ("QinQ of 9100", Wrap::Tags(&[0x91, 0, 0, 9, 0x81, 0, 0, 5])),
];

/// The version of the IP packet in an Ethernet frame without tags.
fn ip_version(frame: &[u8]) -> Option<u8> {
    let version = frame.get(ETHERNET_LEN)? >> 4;
    match (frame.get(MACS_LEN..ETHERNET_LEN)?, version) {
        ([8, 0], 4) | ([0x86, 0xdd], 6) => Some(version),
        _ => None,
    }
}

impl Wrap {
    /// The encapsulated frame; `None` if the tunnel cannot carry it.
    fn wrap(self, (frame, wire_len, time_ns): &Packet) -> Option<Packet> {
        let wire_len = (*wire_len).max(frame.len() as u32);
        let (head, from) = match self {
            Wrap::Frame(head) => (head(wire_len), 0),
            Wrap::Ip(head) => {
                let version = ip_version(frame)?;
                let len = wire_len - ETHERNET_LEN as u32;
                (head(version, len), ETHERNET_LEN)
            }
            Wrap::Tags(tags) => {
                let macs = frame.get(..MACS_LEN)?;
                ([macs, tags].concat(), MACS_LEN)
            }
        };
        let wire_len = head.len() as u32 + wire_len - from as u32;
        let all = [&head, &frame[from..]].concat();
        Some((all, wire_len, *time_ns))
    }
}

/// Whether the headers of a tunnel fit around a frame: there are at most [`MAX_LAYERS`] per level
/// and [`MAX_TUNNEL_DEPTH`] levels.
fn is_shallow((frame, wire_len, _): &Packet) -> bool {
    let mut level = Dissection::EMPTY;
    dissect(LinkType::ETHERNET, frame, *wire_len, &mut level);
    let mut layers = usize::from(level.layer_count);
    let mut depth = 0;
    loop {
        let around = level;
        if !dissect_inner(frame, &around, &mut level) {
            break;
        }
        layers = layers.max(level.layer_count.into());
        depth += 1;
    }
    layers + 6 <= MAX_LAYERS && depth + 1 < MAX_TUNNEL_DEPTH
}

/// Whether a record is of the tunnel itself, in which packets without IP inside are counted.
fn is_outer(record: &Record) -> bool {
    let text = format!("{:?}", record.key());
    let is_between = |one, two| text.contains(one) && text.contains(two);
    is_between("192.0.2.77", "192.0.2.78") || is_between("2001:db8::77", "2001:db8::78")
}

#[test]
fn a_tunnel_around_packets_changes_nothing_of_the_flows_inside() {
    let mut inner = config(0);
    inner.level = Level::Inner;
    let mut tried = [0; TUNNELS.len()];
    for (name, link, packets) in &sample() {
        let is_long = packets.iter().any(|(_, wire_len, _)| *wire_len > 60_000);
        if *link != LinkType::ETHERNET || is_long {
            continue;
        }
        for (at, (tunnel, wrap)) in TUNNELS.into_iter().enumerate() {
            let pairs = packets.iter().filter(|packet| is_shallow(packet));
            let pairs = pairs.map(|packet| (packet, wrap.wrap(packet)));
            let (as_is, wrapped): (Vec<Packet>, Vec<Packet>) = pairs
                .filter_map(|(packet, wrapped)| Some((packet.clone(), wrapped?)))
                .unzip();
            let expected = as_text(&records(&inner, *link, &as_is, 64));
            let mut found = records(&inner, *link, &wrapped, 64);
            found.retain(|(record, _)| !is_outer(record));
            let found = as_text(&found);
            let different = expected.iter().zip(&found).find(|(one, two)| one != two);
            assert!(
                found == expected,
                "{name} in {tunnel}, {} records for {}: {different:#?}",
                found.len(),
                expected.len()
            );
            tried[at] += found.len();
        }
    }
    for ((tunnel, _), count) in TUNNELS.iter().zip(tried) {
        assert!(count > 0, "nothing was tried in {tunnel}");
    }
}
