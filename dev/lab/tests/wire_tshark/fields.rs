//! The fields compared: tshark's name, and barewire's values for one level of a packet.

use std::fmt;
use std::net::IpAddr;

use wire::arista::Arista;
use wire::dccp::Dccp;
use wire::frame_relay::FrameRelay;
use wire::gtp0::Gtp0;
use wire::ieee80211::Ieee80211;
use wire::infiniband::{Infiniband, Ipoib};
use wire::ipv6_ext::FragmentHeader as Frag;
use wire::nflog::Nflog;
use wire::pktap::Pktap;
use wire::ppi::Ppi;
use wire::radiotap::Radiotap;
use wire::{Dissection, Fragment, LayerKind, Mac, Reason};
use wire::{ah, arp, erspan, ethernet, gre, mpls, pppoe, tcp, udp, vlan};

/// One level of a packet.
pub struct Level<'a> {
    pub dissection: Dissection,
    pub packet: &'a [u8],
    /// Whether it is quoted by an ICMP error, or inside a quoted packet.
    pub quoted: bool,
    /// Whether it is itself the packet quoted by an ICMP error of IPv4.
    pub in_icmpv4: bool,
}

/// A value of a field in any notation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Number(u64),
    Address(IpAddr),
    Mac(Mac),
    Text(String),
}

impl Value {
    /// Parses tshark's output.
    pub fn parse(text: &str) -> Value {
        let number = match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        };
        match (number, text.parse(), text.parse()) {
            (Some(number), ..) => Value::Number(number),
            (None, Ok(address), _) => Value::Address(address),
            (None, _, Ok(mac)) => Value::Mac(mac),
            _ if text == "True" => Value::Number(1),
            _ if text == "False" => Value::Number(0),
            _ => Value::Text(text.to_owned()),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Number(number) => number.fmt(f),
            Value::Address(address) => address.fmt(f),
            Value::Mac(mac) => mac.fmt(f),
            Value::Text(text) => text.fmt(f),
        }
    }
}

/// A field: tshark's name and barewire's values, in order.
pub struct Field {
    pub name: &'static str,
    /// tshark prints bytes in hexadecimal: only their number is compared.
    pub is_bytes: bool,
    pub ours: fn(&Level<'_>) -> Vec<Value>,
}

fn number(value: impl Into<u64>) -> Value {
    Value::Number(value.into())
}

impl Level<'_> {
    /// One value from the dissection if this level has IP of that version.
    fn ip(&self, version: u8, value: impl Fn(&Dissection) -> Value) -> Vec<Value> {
        let d = &self.dissection;
        if d.ip_version == version {
            vec![value(d)]
        } else {
            Vec::new()
        }
    }

    /// One byte of the IP header of that version.
    fn ip_bytes(&self, version: u8, at: usize) -> Vec<Value> {
        let byte = self.packet.get(usize::from(self.dissection.ip_offset) + at);
        self.ip(version, |_| number(byte.copied().unwrap_or_default()))
    }

    /// One value from the dissection if this level has that layer with this many bytes of its
    /// header.
    fn layer(
        &self,
        kind: LayerKind,
        len: usize,
        value: impl Fn(&Dissection) -> Value,
    ) -> Vec<Value> {
        if self.has_bytes(kind, len) {
            vec![value(&self.dissection)]
        } else {
            Vec::new()
        }
    }

    /// Whether the first `len` bytes of that layer's header are present.
    fn has_bytes(&self, kind: LayerKind, len: usize) -> bool {
        self.headers(kind)
            .next()
            .is_some_and(|bytes| bytes.len() >= len)
    }

    /// The bytes from each header of that kind on.
    fn headers(&self, kind: LayerKind) -> impl Iterator<Item = &[u8]> {
        let offsets: Vec<usize> = self
            .dissection
            .layers()
            .filter(|(k, _)| *k == kind)
            .map(|(_, o)| o)
            .collect();
        // What the enclosing headers leave of the packet.
        let d = &self.dissection;
        let end = (d.payload_offset as usize + d.payload_len as usize).min(self.packet.len());
        offsets
            .into_iter()
            .filter_map(move |offset| self.packet.get(offset..end))
    }

    /// A value from each header of that kind.
    fn each(&self, kind: LayerKind, value: impl Fn(&[u8]) -> Option<Value>) -> Vec<Value> {
        self.headers(kind).filter_map(value).collect()
    }
}

/// The IDs of the VLAN tags with the 802.1ad type, or of all others.
fn vlan_ids(level: &Level<'_>, is_service: bool) -> Vec<Value> {
    let tags = level
        .dissection
        .layers()
        .filter(|(kind, _)| *kind == LayerKind::Vlan);
    tags.filter_map(|(_, offset)| {
        let announced = offset
            .checked_sub(2)
            .and_then(|at| level.packet.get(at..offset))?;
        let tag = vlan::Vlan::parse(level.packet.get(offset..)?).ok()?;
        ((announced == [0x88, 0xa8]) == is_service).then(|| number(tag.id()))
    })
    .collect()
}

/// Two bytes of each header of that kind.
fn two_bytes(level: &Level<'_>, kind: LayerKind, at: usize) -> Vec<Value> {
    level.each(kind, |bytes| {
        let bytes = bytes.get(at..)?.first_chunk::<2>()?;
        Some(number(u16::from_be_bytes(*bytes)))
    })
}

/// The next header byte of each extension header.
fn next_headers(level: &Level<'_>, kind: LayerKind) -> Vec<Value> {
    level.each(kind, |bytes| bytes.first().map(|b| number(*b)))
}

fn ports(level: &Level<'_>, kinds: &[LayerKind], value: fn(&Dissection) -> u16) -> Vec<Value> {
    let d = &level.dissection;
    if d.has_ports() && kinds.iter().any(|k| d.has(*k)) {
        vec![number(value(d))]
    } else {
        vec![]
    }
}

const UDP: &[LayerKind] = &[LayerKind::Udp, LayerKind::UdpLite];

/// tshark prints a length only if the segment is complete: not truncated, not a fragment, not
/// quoted.
fn tcp_len(level: &Level<'_>) -> Vec<Value> {
    let d = &level.dissection;
    let is_whole = d.reason == Reason::Complete && d.fragment == Fragment::Whole && !level.quoted;
    if is_whole && d.has(LayerKind::Tcp) {
        vec![number(d.payload_len)]
    } else {
        vec![]
    }
}

/// Number of payload bytes present, if any. tshark calls the payload of an RST its cause.
fn tcp_payload(level: &Level<'_>) -> Vec<Value> {
    let d = &level.dissection;
    let is_rst = d.tcp_flags & tcp::flag::RST != 0;
    if d.reason != Reason::Complete || !d.has(LayerKind::Tcp) || is_rst {
        return vec![];
    }
    some_bytes(d.payload(level.packet).len())
}

/// Number of UDP payload bytes. tshark prints it before it dissects further, so a tunnel's header
/// is part of it.
fn udp_payload(level: &Level<'_>) -> Vec<Value> {
    let d = &level.dissection;
    if !UDP.iter().any(|k| d.has(*k)) || d.reason == Reason::BadLength {
        return vec![];
    }
    let start = usize::from(d.transport_offset);
    let end = usize::from(d.ip_offset) + d.ip_total_len as usize;
    let bytes = level
        .packet
        .get(start..end.min(level.packet.len()))
        .unwrap_or(&[]);
    match d.has(LayerKind::Udp) {
        true => some_bytes(udp::Udp::parse(bytes).map_or(0, |view| view.payload.len())),
        false => some_bytes(bytes.len().saturating_sub(8)),
    }
}

fn some_bytes(len: usize) -> Vec<Value> {
    if len > 0 {
        vec![number(len as u64)]
    } else {
        vec![]
    }
}

const fn is_bytes(name: &str) -> bool {
    matches!(
        name.as_bytes(),
        [.., b'.', b'p', b'a', b'y', b'l', b'o', b'a', b'd']
    )
}

/// A value from the view of each header of a kind.
macro_rules! view {
    ($level:expr, $kind:ident, $view:path, $value:expr) => {
        $level.each(LayerKind::$kind, |bytes| {
            <$view>::parse(bytes).ok().and_then($value)
        })
    };
}

/// The IPv4 address of the sender or the target of ARP.
fn arp_address(level: &Level<'_>, is_target: bool) -> Vec<Value> {
    level.each(LayerKind::Arp, |bytes| {
        let (sender, target) = arp::Arp::parse(bytes).ok()?.ipv4()?;
        Some(Value::Address(
            if is_target { target } else { sender }.into(),
        ))
    })
}

/// tshark omits the number in packets quoted by ICMP.
fn tcp_seq(level: &Level<'_>) -> Vec<Value> {
    if level.in_icmpv4 {
        return vec![];
    }
    level.layer(LayerKind::Tcp, 8, |d| number(d.tcp_seq))
}

/// The payload length as sent, which may be 0 if there is a payload.
fn ipv6_plen(level: &Level<'_>) -> Vec<Value> {
    if level.dissection.ip_version == 6 {
        two_bytes(level, LayerKind::Ipv6, 4)
    } else {
        vec![]
    }
}

/// Type and subtype of an 802.11 frame in one number.
fn wlan_kind(view: Ieee80211<'_>) -> Option<Value> {
    Some(number(view.frame_type() << 4 | view.subtype()))
}

/// tshark prints a network name in hexadecimal digits.
fn ssid(name: &[u8]) -> Value {
    let digits: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    match digits.is_empty() {
        true => Value::Text("<MISSING>".into()),
        false => Value::parse(&digits),
    }
}

fn text(bytes: &[u8]) -> Value {
    Value::Text(String::from_utf8_lossy(bytes).into_owned())
}

/// tshark omits an empty prefix.
fn prefix(view: Nflog<'_>) -> Option<Value> {
    view.prefix().filter(|name| !name.is_empty()).map(text)
}

/// A part of the time in an Arista tag of this many bits.
fn arista(level: &Level<'_>, bits: usize, part: fn(&Arista<'_>) -> u32) -> Vec<Value> {
    view!(level, Arista, Arista, |v| {
        (v.bits() == bits).then(|| number(part(&v)))
    })
}

/// VXLAN with and without its extension.
fn vxlan_vni(level: &Level<'_>) -> Vec<Value> {
    let of = |kind| level.layer(kind, 8, |d| number(d.tunnel_id));
    [of(LayerKind::Vxlan), of(LayerKind::VxlanGpe)].concat()
}

macro_rules! fields {
    ($($name:literal => $ours:expr;)*) => {
        /// All fields.
        pub const FIELDS: &[Field] = &[$(Field {
            name: $name,
            is_bytes: is_bytes($name),
            ours: $ours,
        }),*];
    };
}

fields! {
    "eth.src" => |l| view!(l, Ethernet, ethernet::Ethernet, |v| Some(Value::Mac(v.src())));
    "eth.dst" => |l| view!(l, Ethernet, ethernet::Ethernet, |v| Some(Value::Mac(v.dst())));
    "vlan.id" => |l| vlan_ids(l, false);
    "ieee8021ad.id" => |l| vlan_ids(l, true);
    "mpls.label" => |l| view!(l, Mpls, mpls::Mpls, |v| Some(number(v.label())));
    "pppoe.session_id" => |l| view!(l, Pppoe, pppoe::Pppoe, |v| Some(number(v.session_id())));
    "arp.opcode" => |l| two_bytes(l, LayerKind::Arp, 6);
    "arp.src.proto_ipv4" => |l| arp_address(l, false);
    "arp.dst.proto_ipv4" => |l| arp_address(l, true);
    "ip.src" => |l| l.ip(4, |d| Value::Address(d.src_addr().expect("an address")));
    "ip.dst" => |l| l.ip(4, |d| Value::Address(d.dst_addr().expect("an address")));
    "ip.proto" => |l| l.ip_bytes(4, 9);
    "ip.ttl" => |l| l.ip(4, |d| number(d.ttl));
    "ip.len" => |l| l.ip(4, |d| number(d.ip_total_len));
    "ip.id" => |l| l.ip(4, |d| number(d.fragment_id));
    "ip.dsfield" => |l| l.ip(4, |d| number(d.traffic_class));
    "ip.frag_offset" => |l| l.ip(4, |d| number(d.fragment_offset / 8));
    "ipv6.src" => |l| l.ip(6, |d| Value::Address(d.src_addr().expect("an address")));
    "ipv6.dst" => |l| l.ip(6, |d| Value::Address(d.dst_addr().expect("an address")));
    "ipv6.nxt" => |l| l.ip_bytes(6, 6);
    "ipv6.hlim" => |l| l.ip(6, |d| number(d.ttl));
    "ipv6.plen" => ipv6_plen;
    "ipv6.tclass" => |l| l.ip(6, |d| number(d.traffic_class));
    "ipv6.flow" => |l| l.ip(6, |d| number(d.flow_label));
    "ipv6.hopopts.nxt" => |l| next_headers(l, LayerKind::HopByHop);
    "ipv6.routing.nxt" => |l| next_headers(l, LayerKind::Routing);
    "ipv6.dstopts.nxt" => |l| next_headers(l, LayerKind::DestinationOptions);
    "ipv6.fraghdr.nxt" => |l| next_headers(l, LayerKind::Fragment);
    "ipv6.fraghdr.offset" => |l| view!(l, Fragment, Frag, |v| Some(number(v.offset() / 8)));
    "ipv6.fraghdr.ident" => |l| view!(l, Fragment, Frag, |v| Some(number(v.id())));
    "mip6.proto" => |l| next_headers(l, LayerKind::Mobility);
    "shim6.nxt" => |l| next_headers(l, LayerKind::Shim6);
    "ah.next_header" => |l| next_headers(l, LayerKind::Ah);
    "ah.spi" => |l| view!(l, Ah, ah::Ah, |v| Some(number(v.spi())));
    "esp.spi" => |l| l.layer(LayerKind::Esp, 8, |d| number(d.tunnel_id));
    "tcp.srcport" => |l| ports(l, &[LayerKind::Tcp], |d| d.src_port);
    "tcp.dstport" => |l| ports(l, &[LayerKind::Tcp], |d| d.dst_port);
    "tcp.seq_raw" => tcp_seq;
    "tcp.ack_raw" => |l| l.layer(LayerKind::Tcp, 12, |d| number(d.tcp_ack));
    "tcp.flags" => |l| l.layer(LayerKind::Tcp, 14, |d| number(d.tcp_flags));
    "tcp.window_size_value" => |l| l.layer(LayerKind::Tcp, 16, |d| number(d.tcp_window));
    "tcp.len" => tcp_len;
    "tcp.payload" => tcp_payload;
    "udp.srcport" => |l| ports(l, UDP, |d| d.src_port);
    "udp.dstport" => |l| ports(l, UDP, |d| d.dst_port);
    "udp.length" => |l| two_bytes(l, LayerKind::Udp, 4);
    "udp.payload" => udp_payload;
    "sctp.srcport" => |l| ports(l, &[LayerKind::Sctp], |d| d.src_port);
    "sctp.dstport" => |l| ports(l, &[LayerKind::Sctp], |d| d.dst_port);
    "icmp.type" => |l| l.layer(LayerKind::Icmpv4, 2, |d| number(d.icmp_type));
    "icmp.code" => |l| l.layer(LayerKind::Icmpv4, 2, |d| number(d.icmp_code));
    "icmpv6.type" => |l| l.layer(LayerKind::Icmpv6, 2, |d| number(d.icmp_type));
    "icmpv6.code" => |l| l.layer(LayerKind::Icmpv6, 2, |d| number(d.icmp_code));
    "igmp.type" => |l| l.layer(LayerKind::Igmp, 1, |d| number(d.icmp_type));
    "gre.proto" => |l| view!(l, Gre, gre::Gre, |v| Some(number(v.protocol())));
    "gre.key" => |l| view!(l, Gre, gre::Gre, |v| v.key().filter(|_| v.version() == 0).map(number));
    "gre.key.call_id" => |l| view!(l, Gre, gre::Gre, |v| v.pptp().map(|key| number(key.1)));
    "erspan.spanid" => |l| view!(l, Erspan, erspan::Erspan, |v| Some(number(v.session_id)));
    "vxlan.vni" => vxlan_vni;
    "geneve.vni" => |l| l.layer(LayerKind::Geneve, 8, |d| number(d.tunnel_id));
    "gtp.teid" => |l| l.layer(LayerKind::Gtpu, 8, |d| number(d.tunnel_id));
    "nsh.spi" => |l| l.layer(LayerKind::Nsh, 8, |d| number(d.tunnel_id));
    "radiotap.length" => |l| view!(l, Radiotap, Radiotap, |v| Some(number(v.header_len() as u64)));
    "wlan.fc.type_subtype" => |l| view!(l, Ieee80211, Ieee80211, wlan_kind);
    "wlan.ra" => |l| view!(l, Ieee80211, Ieee80211, |v| Some(Value::Mac(v.receiver())));
    "wlan.ta" => |l| view!(l, Ieee80211, Ieee80211, |v| v.transmitter().map(Value::Mac));
    "wlan.da" => |l| view!(l, Ieee80211, Ieee80211, |v| v.dst().map(Value::Mac));
    "wlan.sa" => |l| view!(l, Ieee80211, Ieee80211, |v| v.src().map(Value::Mac));
    "wlan.seq" => |l| view!(l, Ieee80211, Ieee80211, |v| v.sequence().map(|s| number(s.1)));
    "wlan.frag" => |l| view!(l, Ieee80211, Ieee80211, |v| v.sequence().map(|s| number(s.0)));
    "wlan.qos" => |l| view!(l, Ieee80211, Ieee80211, |v| v.qos().map(number));
    "wlan.ssid" => |l| view!(l, Ieee80211, Ieee80211, |v| v.ssid().map(ssid));
    "pktap.hdrlen" => |l| view!(l, Pktap, Pktap, |v| Some(number(v.header_len() as u64)));
    "pktap.dlt" => |l| view!(l, Pktap, Pktap, |v| Some(number(v.dlt())));
    "pktap.ifname" => |l| view!(l, Pktap, Pktap, |v| Some(text(v.interface())));
    "pktap.pid" => |l| view!(l, Pktap, Pktap, |v| Some(number(v.process_id())));
    "pktap.cmdname" => |l| view!(l, Pktap, Pktap, |v| Some(text(v.command())));
    "nflog.family" => |l| view!(l, Nflog, Nflog, |v| Some(number(v.family())));
    "nflog.res_id" => |l| view!(l, Nflog, Nflog, |v| Some(number(v.resource())));
    "nflog.prefix" => |l| view!(l, Nflog, Nflog, prefix);
    "ppi.length" => |l| view!(l, Ppi, Ppi, |v| Some(number(v.header_len() as u64)));
    "ppi.dlt" => |l| view!(l, Ppi, Ppi, |v| Some(number(v.dlt())));
    "ipoib.type" => |l| view!(l, Ipoib, Ipoib, |v| Some(number(v.ether_type())));
    "infiniband.lrh.slid" => |l| view!(l, Infiniband, Infiniband, |v| Some(number(v.src())));
    "infiniband.lrh.dlid" => |l| view!(l, Infiniband, Infiniband, |v| Some(number(v.dst())));
    "dccp.srcport" => |l| ports(l, &[LayerKind::Dccp], |d| d.src_port);
    "dccp.dstport" => |l| ports(l, &[LayerKind::Dccp], |d| d.dst_port);
    "dccp.type" => |l| view!(l, Dccp, Dccp, |v| Some(number(v.packet_type())));
    "dccp.seq_raw" => |l| view!(l, Dccp, Dccp, |v| Some(number(v.seq())));
    "dccp.ack_raw" => |l| view!(l, Dccp, Dccp, |v| v.ack().map(number));
    "avsp.64sec" => |l| arista(l, 64, |v| v.time().0);
    "avsp.64ns" => |l| arista(l, 64, |v| v.time().1);
    "avsp.48sec" => |l| arista(l, 48, |v| v.time().0);
    "avsp.48ns" => |l| arista(l, 48, |v| v.time().1);
    "gtp.flow_label" => |l| view!(l, Gtp0, Gtp0, |v| Some(number(v.flow_label())));
    "fr.dlci" => |l| view!(l, FrameRelay, FrameRelay, |v| Some(number(v.dlci())));
    "fr.nlpid" => |l| view!(l, FrameRelay, FrameRelay, |v| v.nlpid().map(number));
    "l2tp.tunnel" => |l| l.layer(LayerKind::L2tp, 8, |d| number(d.tunnel_id >> 16));
}
