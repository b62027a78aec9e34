//! Generated packets with headers that occur in few captures or none.
//!
//! Each ends with the same UDP datagram over IPv4 or IPv6.

#[path = "../../../../pure/wire/tests/laws/wrap.rs"]
mod wrap;

use wire::{LinkType, ipv4, ipv6, udp};
use wrap::{in_ethernet as ethernet, in_ipv4 as ip, in_ipv6 as ip6, in_udp_from};

/// The source port of the datagram inside.
pub const SRC_PORT: u16 = 40_001;

/// A generated packet.
pub struct Made {
    pub name: &'static str,
    pub link: LinkType,
    pub bytes: Vec<u8>,
    /// Fields that differ from tshark's, correctly.
    pub differs: &'static [&'static str],
}

impl Made {
    /// The packet in a form that tshark reads. Versions before 4.2 read InfiniBand only after the
    /// header of Endace's cards (ERF): time u64, type u8, flags u8, record length, losses and wire
    /// length.
    pub fn for_tshark(&self) -> (LinkType, Vec<u8>) {
        if self.link != LinkType::INFINIBAND {
            return (self.link, self.bytes.clone());
        }
        let len = self.bytes.len() as u16;
        let mut erf = vec![0, 0, 0, 0, 0, 0, 0, 1, 21, 4];
        erf.extend((len + 16).to_be_bytes());
        erf.extend([0, 0]);
        erf.extend(len.to_be_bytes());
        erf.extend(&self.bytes);
        (LinkType(197), erf)
    }
}

/// tshark has separate fields for the addresses in an aggregate, and uses those as the frame's.
const AGGREGATE: &[&str] = &["eth.src", "eth.dst", "wlan.da", "wlan.sa"];

/// A frame check sequence, which is not checked.
const FCS: [u8; 4] = [0xa, 0xb, 0xc, 0xd];

/// tshark prints the padding as a protocol number, too.
const PADDED: &[&str] = &["fr.nlpid"];

fn datagram(port: u16, payload: &[u8]) -> Vec<u8> {
    in_udp_from(SRC_PORT, port, payload)
}

fn snap(ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let head = [0xaa, 0xaa, 3, 0, 0, 0];
    [&head[..], &ether_type.to_be_bytes(), payload].concat()
}

/// A data frame: frame control, and the fields its bits require, before LLC.
fn wlan(control: [u8; 2], qos: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![control[0], control[1], 0, 0];
    for last in 1..=3 {
        bytes.extend([2, 0, 0, 0, 0, last]);
    }
    bytes.extend([0x20, 1]);
    if control[1] & 3 == 3 {
        bytes.extend([2, 0, 0, 0, 0, 4]);
    }
    if control[0] & 0x80 != 0 {
        bytes.extend([qos, 0]);
    }
    if control[1] & 0x80 != 0 {
        bytes.extend([0; 4]);
    }
    bytes.extend(body);
    bytes
}

/// Radiotap with a time and flags.
fn radiotap(flags: u8, frame: &[u8]) -> Vec<u8> {
    let mut head = vec![0, 0, 17, 0, 3, 0, 0, 0];
    head.extend([9, 0, 0, 0, 0, 0, 0, 0, flags]);
    [&head[..], frame].concat()
}

fn pktap(dlt: u32, packet: &[u8]) -> Vec<u8> {
    let mut head = [0; 108];
    (head[0], head[4]) = (108, 1);
    head[8..12].copy_from_slice(&dlt.to_le_bytes());
    head[12..15].copy_from_slice(b"en0");
    (head[40], head[52]) = (2, 77);
    head[56..60].copy_from_slice(b"curl");
    [&head[..], packet].concat()
}

fn nflog(family: u8, packet: &[u8]) -> Vec<u8> {
    let mut bytes = vec![family, 0, 0, 5];
    bytes.extend([8, 0, 1, 0, 8, 0, 1, 0]);
    bytes.extend([9, 0, 10, 0, b'd', b'r', b'o', b'p', 0, 0, 0, 0]);
    let len = packet.len() as u16 + 4;
    bytes.extend(len.to_le_bytes());
    bytes.extend([9, 0]);
    bytes.extend(packet);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// PPI with 802.11-Common, whose flags are given.
fn ppi(dlt: u8, flags: u8, packet: &[u8]) -> Vec<u8> {
    let mut head = vec![0, 0, 32, 0, dlt, 0, 0, 0, 2, 0, 20, 0];
    head.extend([0; 8]);
    head.extend([flags, 0, 2, 0, 0x6c, 0x09, 0xa0, 0, 0, 0, 0xc4, 0xa6]);
    [&head[..], packet].concat()
}

fn ipoib(ether_type: u16, packet: &[u8]) -> Vec<u8> {
    let [high, low] = ether_type.to_be_bytes();
    [&[0; 40][..], &[high, low, 0, 0], packet].concat()
}

/// An unreliable InfiniBand datagram, padded to whole words.
fn infiniband(has_global: bool, ether_type: u16, packet: &[u8]) -> Vec<u8> {
    let padding = packet.len().next_multiple_of(4) - packet.len();
    let global = ip6(0x1b, &[]);
    let global = if has_global { &global[..] } else { &[] };
    let words = 8 + global.len() + 12 + 8 + 4 + packet.len() + padding + 4;
    let [high, low] = ((words / 4) as u16).to_be_bytes();
    let mut bytes = vec![0, 2 + u8::from(has_global), 0, 7, high, low, 0, 9];
    bytes.extend(global);
    bytes.extend([
        0x64,
        (padding as u8) << 4,
        0xff,
        0xff,
        0,
        0,
        0,
        0x48,
        0,
        0,
        0,
        1,
    ]);
    bytes.extend([0, 0, 0, 1, 0, 0, 0, 0x49]);
    bytes.extend(ether_type.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(packet);
    bytes.resize(bytes.len() + padding + 6, 0);
    bytes
}

/// A request with a service code and an option, or an acknowledgment.
fn dccp(is_request: bool) -> Vec<u8> {
    let [high, low] = SRC_PORT.to_be_bytes();
    let mut bytes = vec![high, low, 0x13, 0x89, 6, 0, 0, 0];
    match is_request {
        true => bytes.extend([1, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 42, 0, 0, 0, 0]),
        false => bytes.extend([7, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 1, 2]),
    }
    bytes
}

fn arista(version: u16, ether_type: u16, packet: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 1];
    bytes.extend(version.to_be_bytes());
    if version & 0xf0 == 0x10 {
        bytes.extend([0x65, 0]);
    }
    bytes.extend([0x12, 0x34, 0x3b, 0x9a, 0xc9, 0xfe]);
    bytes.extend(ether_type.to_be_bytes());
    bytes.extend(packet);
    ethernet(0xd28b, &bytes)
}

fn gtp0(packet: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x1e, 255];
    bytes.extend((packet.len() as u16).to_be_bytes());
    bytes.extend([
        0, 9, 0, 5, 0xff, 0xff, 0xff, 0xff, 0x42, 1, 0, 0, 0, 0, 0, 0x50,
    ]);
    bytes.extend(packet);
    bytes
}

/// The list being built.
struct List(Vec<Made>);

impl List {
    fn add(&mut self, name: &'static str, link: LinkType, bytes: Vec<u8>) {
        self.0.push(Made {
            name,
            link,
            bytes,
            differs: &[],
        });
    }

    /// Marks the packet added last as different.
    fn which_differs(&mut self, fields: &'static [&'static str]) {
        if let Some(last) = self.0.last_mut() {
            last.differs = fields;
        }
    }
}

/// All packets.
pub fn packets() -> Vec<Made> {
    let mut list = List(Vec::new());
    let four = ip(17, &datagram(9, b"1234"));
    let six = ip6(17, &datagram(9, b"12345"));
    add_wlan(&mut list, &four, &six);
    add_links(&mut list, &four, &six);
    add_frame_relay(&mut list, &four, &six);
    add_others(&mut list, &four, &six);
    list.0
}

fn add_wlan(list: &mut List, four: &[u8], six: &[u8]) {
    let (llc, llc6) = (snap(0x0800, four), snap(0x86dd, six));
    let bare = LinkType::IEEE802_11;
    list.add("to the network", bare, wlan([0x08, 1], 0, &llc));
    list.add("from the network", bare, wlan([0x08, 2], 0, &llc6));
    list.add("between two", bare, wlan([0x08, 0], 0, &llc));
    list.add("four addresses", bare, wlan([0x08, 3], 0, &llc));
    list.add("QoS", bare, wlan([0x88, 1], 5, &llc));
    list.add("QoS, HT control", bare, wlan([0x88, 0x83], 5, &llc));
    let radio = LinkType::IEEE802_11_RADIO;
    list.add("radiotap", radio, radiotap(0, &wlan([0x88, 1], 0, &llc)));
    let checked = [&wlan([0x08, 1], 0, &llc)[..], &FCS].concat();
    list.add("radiotap, check sequence", radio, radiotap(0x10, &checked));
    let padded = [&wlan([0x88, 2], 0, &[0, 0])[..], &llc, &FCS].concat();
    list.add("radiotap, padding", radio, radiotap(0x30, &padded));
    let mut prism = vec![0x44, 0, 0, 0, 144, 0, 0, 0];
    prism.resize(144, 0);
    prism.extend(wlan([8, 1], 0, &llc));
    list.add("Prism", LinkType::PRISM_HEADER, prism);
    let mut avs = vec![0x80, 0x21, 0x10, 1, 0, 0, 0, 64];
    avs.resize(64, 0);
    avs.extend(wlan([8, 1], 0, &llc));
    list.add("AVS", LinkType::IEEE802_11_RADIO_AVS, avs.clone());
    list.add("AVS as Prism", LinkType::PRISM_HEADER, avs);
    let subframe = [
        &[2, 0, 0, 0, 0, 8, 2, 0, 0, 0, 0, 9, 0, llc.len() as u8][..],
        &llc,
    ];
    let aggregate = wlan([0x88, 1], 0x80, &subframe.concat());
    list.add("aggregate", bare, aggregate);
    list.which_differs(AGGREGATE);
    let (frame, link) = (wlan([8, 1], 0, &llc), LinkType::PPI);
    list.add("PPI, 802.11", link, ppi(105, 0, &frame));
    list.add("PPI, check sequence", link, ppi(105, 1, &checked));
    list.add("PPI, Ethernet", link, ppi(1, 0, &ethernet(0x86dd, six)));
}

fn add_links(list: &mut List, four: &[u8], six: &[u8]) {
    let link = LinkType::PKTAP;
    list.add("PKTAP, Ethernet", link, pktap(1, &ethernet(0x0800, four)));
    list.add("PKTAP, raw", link, pktap(12, six));
    let null = [&[2, 0, 0, 0][..], four].concat();
    list.add("PKTAP, loopback", link, pktap(0, &null));
    list.add("NFLOG, IPv4", LinkType::NFLOG, nflog(2, four));
    list.add("NFLOG, IPv6", LinkType::NFLOG, nflog(10, six));
    list.add("IPoIB, IPv4", LinkType::IPOIB, ipoib(0x0800, four));
    list.add("IPoIB, IPv6", LinkType::IPOIB, ipoib(0x86dd, six));
    let link = LinkType::INFINIBAND;
    list.add("InfiniBand", link, infiniband(false, 0x0800, four));
    list.add("InfiniBand, global", link, infiniband(true, 0x86dd, six));
}

fn add_frame_relay(list: &mut List, four: &[u8], six: &[u8]) {
    let mut add = |name, head: &[u8], packet: &[u8]| {
        list.add(name, LinkType::FRELAY, [head, packet].concat());
    };
    add("Frame Relay, IPv4", &[0x18, 0x41, 3, 0xcc], four);
    add("Frame Relay, IPv6", &[0x18, 0x41, 3, 0x8e], six);
    add("Frame Relay, Cisco", &[0x18, 0x41, 8, 0], four);
    add("Frame Relay, 3 bytes", &[0x18, 0x40, 9, 3, 0xcc], four);
    add("Frame Relay, 4 bytes", &[0x18, 0x40, 2, 9, 3, 0xcc], four);
    let head = [0x18, 0x41, 3, 0, 0x80, 0, 0, 0, 0x86, 0xdd];
    add("Frame Relay, SNAP", &head, six);
    list.which_differs(PADDED);
    let head = [0x18, 0x41, 3, 0, 0x80, 0, 0x80, 0xc2, 0, 7];
    let bridged = [&head[..], &ethernet(0x0800, four)].concat();
    list.add("Frame Relay, bridged", LinkType::FRELAY, bridged);
    list.which_differs(PADDED);
}

fn add_others(list: &mut List, four: &[u8], six: &[u8]) {
    let link = LinkType::RAW;
    list.add("DCCP request", link, ip(33, &dccp(true)));
    list.add("DCCP acknowledgment", link, ip6(33, &dccp(false)));
    let gre = [&[0x20, 0, 8, 0, 0, 0, 0, 7][..], four].concat();
    list.add("GRE in UDP", link, ip(17, &datagram(4754, &gre)));
    let bridged = [&[0, 0, 0x65, 0x58][..], &ethernet(0x86dd, six)].concat();
    let bridged = ip6(17, &datagram(4754, &bridged));
    list.add("Ethernet in GRE in UDP", link, bridged);
    list.add("GTPv0, IPv4", link, ip(17, &datagram(3386, &gtp0(four))));
    list.add("GTPv0, IPv6", link, ip(17, &datagram(3386, &gtp0(six))));
    let link = LinkType::ETHERNET;
    for version in [0x0010, 0x0110, 0x0020, 0x0120] {
        list.add("Arista", link, arista(version, 0x0800, four));
    }
    let tagged = [&[0, 7, 0x86, 0xdd][..], six].concat();
    list.add("Arista, VLAN", link, arista(0x0010, 0x8100, &tagged));
}
