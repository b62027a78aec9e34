//! The table of protocols: one file and one row each.
//!
//! A row contains the numbers that select the protocol and the function that steps over its header.
//! The look-up tables below, the tests and the fuzz targets are built from the rows.

use crate::walk::{Next, Walk};
use crate::{LinkType, Reason};
use core::fmt;

/// A row of the table, defined in the protocol's file.
pub struct Protocol {
    /// Short name, as in tcpdump and tshark.
    pub name: &'static str,
    /// Specification.
    pub spec: &'static str,
    /// Link types whose packets start with this header.
    pub links: &'static [LinkType],
    /// EtherTypes of the protocol.
    pub ether_types: &'static [u16],
    /// IP protocol numbers of the protocol, after both IPv4 and IPv6.
    pub ip_protocols: &'static [u8],
    /// Next header values of the protocol after IPv6 only.
    pub ipv6_next_headers: &'static [u8],
    /// PPP protocol numbers of the protocol.
    pub ppp_protocols: &'static [u16],
    /// IP protocol numbers that denote it as the inner packet of a tunnel.
    pub tunnelled_by_ip: &'static [u8],
    /// UDP destination ports of the protocol.
    pub udp_ports: &'static [u16],
    /// UDP source ports of the protocol, if replies are sent from them to any port.
    pub udp_replies: &'static [u16],
    /// One valid header with some payload, for tests and fuzz corpora.
    pub sample: &'static [u8],
    /// Steps over the header at the cursor.
    pub(crate) step: fn(&mut Walk<'_, '_>) -> Next,
    /// Prints the header at the start of the bytes.
    pub(crate) show: fn(&[u8], &mut fmt::Formatter<'_>) -> fmt::Result,
}

impl Protocol {
    /// A row to be completed with `..Protocol::BASE`.
    pub(crate) const BASE: Protocol = Protocol {
        name: "",
        spec: "",
        links: &[],
        ether_types: &[],
        ip_protocols: &[],
        ipv6_next_headers: &[],
        ppp_protocols: &[],
        tunnelled_by_ip: &[],
        udp_ports: &[],
        udp_replies: &[],
        sample: &[],
        step: |_| Ok(LayerKind::None),
        show: |_, _| Ok(()),
    };
}

/// Prints a view, or the reason why there is none.
pub(crate) fn show<V: fmt::Display>(
    view: Result<V, Reason>,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    match view {
        Ok(view) => view.fmt(f),
        Err(reason) => write!(f, "[{reason}]"),
    }
}

/// A header at the start of a slice, for printing.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    /// Its kind.
    pub kind: LayerKind,
    /// The bytes from its first one on.
    pub bytes: &'a [u8],
}

impl fmt::Display for Header<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind
            .protocol()
            .map_or(Ok(()), |row| (row.show)(self.bytes, f))
    }
}

macro_rules! protocols {
    ($($kind:ident $module:ident $row:ident $doc:literal),* $(,)?) => {
        /// The kind of a layer.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum LayerKind {
            /// No layer: fills unused entries.
            #[default]
            None = 0,
            $(#[doc = $doc] $kind,)*
        }

        impl LayerKind {
            /// All kinds but [`LayerKind::None`], in the order of [`PROTOCOLS`].
            pub const ALL: &'static [LayerKind] = &[$(LayerKind::$kind),*];
        }

        /// One row per protocol. Row `i` describes the kind with value `i + 1`.
        pub const PROTOCOLS: &[Protocol] = &[$(crate::$module::$row),*];
    };
}

protocols! {
    Ethernet ethernet PROTOCOL "Ethernet II or IEEE 802.3.",
    Vlan vlan PROTOCOL "802.1Q or 802.1ad tag.",
    Arp arp PROTOCOL "ARP or RARP.",
    Ipv4 ipv4 PROTOCOL "IPv4.",
    Ipv6 ipv6 PROTOCOL "IPv6.",
    Tcp tcp PROTOCOL "TCP.",
    Udp udp PROTOCOL "UDP.",
    Icmpv4 icmpv4 PROTOCOL "ICMP.",
    Icmpv6 icmpv6 PROTOCOL "ICMPv6.",
    Igmp igmp PROTOCOL "IGMP.",
    Sctp sctp PROTOCOL "SCTP.",
    Pim pim PROTOCOL "PIM.",
    UdpLite udp_lite PROTOCOL "UDP-Lite.",
    HopByHop ipv6_ext HOP_BY_HOP "IPv6 hop-by-hop options.",
    Routing ipv6_ext ROUTING "IPv6 routing header.",
    Fragment ipv6_ext FRAGMENT "IPv6 fragment header.",
    DestinationOptions ipv6_ext DESTINATION_OPTIONS "IPv6 destination options.",
    Mobility ipv6_ext MOBILITY "IPv6 mobility header.",
    Hip ipv6_ext HIP "Host identity protocol.",
    Shim6 ipv6_ext SHIM6 "Shim6.",
    Ah ah PROTOCOL "IP authentication header.",
    Esp esp PROTOCOL "Encapsulating security payload.",
    Gre gre PROTOCOL "GRE, PPTP's version included.",
    Erspan erspan PROTOCOL "ERSPAN type II or III.",
    Etherip etherip PROTOCOL "Ethernet in IP.",
    Vxlan vxlan PROTOCOL "VXLAN.",
    VxlanGpe vxlan PROTOCOL_GPE "VXLAN generic protocol extension.",
    Geneve geneve PROTOCOL "GENEVE.",
    Gtpu gtpu PROTOCOL "GTP-U.",
    Teredo teredo PROTOCOL "Teredo.",
    L2tp l2tp PROTOCOL "L2TP.",
    UdpEncap udp_encap PROTOCOL "ESP or IKE in UDP.",
    Mpls mpls PROTOCOL "An MPLS label.",
    Pppoe pppoe PROTOCOL "PPP over Ethernet.",
    Ppp ppp PROTOCOL "PPP.",
    Chdlc chdlc PROTOCOL "Cisco HDLC.",
    Llc llc PROTOCOL "802.2 LLC, with SNAP if there is one.",
    Sll sll PROTOCOL "Linux cooked capture.",
    Sll2 sll PROTOCOL_V2 "Linux cooked capture, version 2.",
    Null null PROTOCOL "BSD loopback.",
    Macsec macsec PROTOCOL "MACsec tag.",
    Etag tag ETAG "802.1BR tag.",
    Vntag tag VNTAG "Cisco VN-tag.",
    CiscoMetadata tag CISCO_METADATA "Cisco metadata.",
    Pbb mac_in_mac PBB "802.1ah service tag.",
    FabricPath mac_in_mac FABRIC_PATH "Cisco FabricPath.",
    Nsh nsh PROTOCOL "Network service header.",
    Ieee80211 ieee80211 PROTOCOL "IEEE 802.11.",
    Radiotap radiotap PROTOCOL "Radiotap.",
    Prism prism PROTOCOL "Prism or AVS header in front of 802.11.",
    Pktap pktap PROTOCOL "Darwin's packet tap.",
    Nflog nflog PROTOCOL "Linux netfilter's log.",
    Ppi ppi PROTOCOL "Per-packet information.",
    Ipoib infiniband IPOIB "IP over InfiniBand.",
    Infiniband infiniband INFINIBAND "InfiniBand.",
    Dccp dccp PROTOCOL "DCCP.",
    Arista arista PROTOCOL "Arista's time tag.",
    Gtp0 gtp0 PROTOCOL "GTP, version 0.",
    FrameRelay frame_relay PROTOCOL "Frame Relay.",
    Pflog pflog PFLOG "Header of pf's log.",
    Enc pflog ENC "Header of enc(4).",
    Ipnet ipnet PROTOCOL "Header of Solaris' observability devices.",
    NetAnalyzer lan NETANALYZER "Header of Hilscher netANALYZER.",
    NetAnalyzerTransparent lan NETANALYZER_TRANSPARENT "The same with Ethernet's preamble.",
    Fddi lan FDDI "FDDI.",
    TokenRing lan TOKEN_RING "Token Ring.",
    FibreChannel lan FIBRE_CHANNEL "IP over Fibre Channel.",
    SunAtm lan SUNATM "ATM of Sun's cards.",
    Ieee1394 lan IEEE1394 "IP over IEEE 1394.",
    Symantec lan SYMANTEC "Header of Symantec's firewall.",
    Arcnet arcnet BSD "ARCNET.",
    ArcnetLinux arcnet LINUX "ARCNET with Linux' offset field.",
    Slip slip SLIP "SLIP.",
    SlipBsdos slip SLIP_BSDOS "SLIP of BSD/OS.",
    PppBsdos slip PPP_BSDOS "PPP of BSD/OS.",
    PppDirected ppp DIRECTED "PPP with a direction in place of its address.",
    DsaBroadcom dsa BROADCOM "Ethernet with a tag of Broadcom's switches.",
    DsaBroadcomPrepended dsa BROADCOM_PREPENDED "A tag of Broadcom's switches.",
    Dsa dsa MARVELL "Ethernet with a tag of Marvell's switches.",
    Edsa dsa MARVELL_TYPED "The same after an EtherType.",
    Vsock vsock PROTOCOL "Linux' vsock.",
    Wpan wpan PROTOCOL "IEEE 802.15.4.",
    WpanTap wpan TAP "A header in front of IEEE 802.15.4.",
    Usb usb LINUX "USB, as Linux captures it.",
    UsbMmapped usb MMAPPED "The same with a longer header.",
    JuniperMlppp juniper MLPPP "Juniper's multilink PPP.",
    JuniperMlfr juniper MLFR "Juniper's multilink Frame Relay.",
    JuniperGgsn juniper GGSN "Juniper's GGSN.",
    JuniperMfr juniper MFR "Juniper's Frame Relay of FRF.16.",
    JuniperAtm2 juniper ATM2 "Juniper's second ATM card.",
    JuniperServices juniper SERVICES "Juniper's services card.",
    JuniperAtm1 juniper ATM1 "Juniper's first ATM card.",
    JuniperMonitor juniper MONITOR "Juniper's monitoring card.",
    JuniperPppoe juniper PPPOE "Juniper's header of PPPoE.",
    JuniperPppoeAtm juniper PPPOE_ATM "Juniper's header of PPPoE over ATM.",
    JuniperEther juniper ETHER "Juniper's header of Ethernet.",
    JuniperPpp juniper PPP "Juniper's header of PPP.",
    JuniperFrelay juniper FRELAY "Juniper's header of Frame Relay.",
    JuniperChdlc juniper CHDLC "Juniper's header of Cisco HDLC.",
}

impl LayerKind {
    /// The bit of this kind in [`Dissection::layer_mask`](crate::Dissection::layer_mask); 0 for
    /// those after the first 63, headers of rare link types.
    #[inline]
    pub const fn bit(self) -> u64 {
        match self as u8 {
            number @ 0..64 => 1 << number,
            _ => 0,
        }
    }

    /// Whether it is a header of one link type only, which no other header leads to.
    #[inline]
    pub const fn is_rare_link(self) -> bool {
        self as u8 >= LayerKind::Pflog as u8
    }

    /// The row of this kind; `None` for [`LayerKind::None`].
    #[inline]
    pub fn protocol(self) -> Option<&'static Protocol> {
        PROTOCOLS.get((self as usize).wrapping_sub(1))
    }

    /// Short name, as in tcpdump and tshark.
    pub fn name(self) -> &'static str {
        self.protocol().map_or("none", |p| p.name)
    }
}

const _: () = assert!(LayerKind::Pflog as u8 <= 64, "layer_mask has 64 bits");
const _: () = assert!(PROTOCOLS.len() < 256, "kinds are bytes");

/// Adds numbers of a layer to a table; a number must not be claimed twice.
const fn claim(mut table: [LayerKind; 256], numbers: &[u8], kind: LayerKind) -> [LayerKind; 256] {
    let mut i = 0;
    while i < numbers.len() {
        assert!(
            table[numbers[i] as usize] as u8 == 0,
            "two rows claim one number"
        );
        table[numbers[i] as usize] = kind;
        i += 1;
    }
    table
}

/// Layers by IP protocol number: after IPv4, after IPv6, and tunnelled by either.
const IP_TABLES: [[LayerKind; 256]; 3] = {
    let none = [LayerKind::None; 256];
    let (mut ipv4, mut ipv6, mut tunnelled) = (none, none, none);
    let mut row = 0;
    while row < PROTOCOLS.len() {
        let kind = LayerKind::ALL[row];
        ipv4 = claim(ipv4, PROTOCOLS[row].ip_protocols, kind);
        ipv6 = claim(ipv6, PROTOCOLS[row].ip_protocols, kind);
        ipv6 = claim(ipv6, PROTOCOLS[row].ipv6_next_headers, kind);
        tunnelled = claim(tunnelled, PROTOCOLS[row].tunnelled_by_ip, kind);
        row += 1;
    }
    [ipv4, ipv6, tunnelled]
};

static IPV4_PROTOCOL: [LayerKind; 256] = IP_TABLES[0];
static IPV6_NEXT_HEADER: [LayerKind; 256] = IP_TABLES[1];
static TUNNELLED_BY_IP: [LayerKind; 256] = IP_TABLES[2];

/// The layer selected by an IPv4 protocol number.
#[inline]
pub(crate) fn of_ipv4_protocol(number: u8) -> LayerKind {
    IPV4_PROTOCOL[usize::from(number)]
}

/// The layer selected by an IPv6 next header value.
#[inline]
pub(crate) fn of_ipv6_next_header(number: u8) -> LayerKind {
    IPV6_NEXT_HEADER[usize::from(number)]
}

/// The inner packet of a tunnel selected by an IP protocol number.
#[inline]
pub(crate) fn tunnelled_by_ip(number: u8) -> LayerKind {
    TUNNELLED_BY_IP[usize::from(number)]
}

/// The layer selected by a PPP protocol number.
#[inline]
pub(crate) fn of_ppp_protocol(number: u16) -> LayerKind {
    find(&PPP_PROTOCOLS, number)
}

/// The layer selected by an EtherType.
#[inline]
pub(crate) fn of_ether_type(number: u16) -> LayerKind {
    match number {
        0x0800 => LayerKind::Ipv4,
        0x86dd => LayerKind::Ipv6,
        _ => find(&ETHER_TYPES, number),
    }
}

/// Hashes a port to one of 64 bits.
const fn port_bit(port: u16) -> u64 {
    1 << ((port ^ port >> 6) & 63)
}

const fn port_bits(mut filter: u64, ports: &[u16]) -> u64 {
    let mut i = 0;
    while i < ports.len() {
        filter |= port_bit(ports[i]);
        i += 1;
    }
    filter
}

/// Bit sets of all UDP destination and source ports in the table: most packets need no search.
const UDP_PORT_FILTERS: [u64; 2] = {
    let mut filters = [0; 2];
    let mut row = 0;
    while row < PROTOCOLS.len() {
        filters[0] = port_bits(filters[0], PROTOCOLS[row].udp_ports);
        filters[1] = port_bits(filters[1], PROTOCOLS[row].udp_replies);
        row += 1;
    }
    filters
};

// DNS, QUIC, mDNS and NTP must not be slowed down by the tunnels.
const _: () = assert!(
    (UDP_PORT_FILTERS[0] | UDP_PORT_FILTERS[1]) & port_bits(0, &[53, 443, 5353, 123]) == 0,
    "choose another port_bit"
);

/// Whether a row may match a UDP packet with these ports; false is certain, true is not.
#[inline(always)]
pub(crate) fn may_be_tunnel(src_port: u16, dst_port: u16) -> bool {
    let has = |filter: u64, port: u16| filter >> ((port ^ port >> 6) & 63) & 1 != 0;
    has(UDP_PORT_FILTERS[0], dst_port) || has(UDP_PORT_FILTERS[1], src_port)
}

/// The layer selected by the ports of a UDP packet: a tunnel, or [`LayerKind::None`].
#[inline(always)]
pub fn of_udp_ports(src_port: u16, dst_port: u16) -> LayerKind {
    if !may_be_tunnel(src_port, dst_port) {
        return LayerKind::None;
    }
    of_tunnel_ports(src_port, dst_port)
}

#[inline(never)]
fn of_tunnel_ports(src_port: u16, dst_port: u16) -> LayerKind {
    match find(&UDP_PORTS, dst_port) {
        LayerKind::None => find(&UDP_REPLIES, src_port),
        kind => kind,
    }
}

/// The total number of entries in one column of the table.
macro_rules! count {
    ($column:ident) => {{
        let (mut row, mut count) = (0, 0);
        while row < PROTOCOLS.len() {
            count += PROTOCOLS[row].$column.len();
            row += 1;
        }
        count
    }};
}

/// All entries in one column of the table, each with its layer.
macro_rules! numbers {
    ($name:ident, $column:ident) => {
        static $name: [(u16, LayerKind); count!($column)] = {
            let mut all = [(0, LayerKind::None); count!($column)];
            let (mut row, mut next) = (0, 0);
            while row < PROTOCOLS.len() {
                let mut i = 0;
                while i < PROTOCOLS[row].$column.len() {
                    all[next] = (PROTOCOLS[row].$column[i], LayerKind::ALL[row]);
                    next += 1;
                    i += 1;
                }
                row += 1;
            }
            all
        };
    };
}

numbers!(UDP_PORTS, udp_ports);
numbers!(UDP_REPLIES, udp_replies);
numbers!(ETHER_TYPES, ether_types);
numbers!(PPP_PROTOCOLS, ppp_protocols);

/// The layer selected by a number.
#[inline]
fn find(numbers: &[(u16, LayerKind)], number: u16) -> LayerKind {
    numbers
        .iter()
        .find(|(n, _)| *n == number)
        .map_or(LayerKind::None, |(_, kind)| *kind)
}

/// Link types with their first layers.
static LINKS: [(LinkType, LayerKind); count!(links)] = {
    let mut all = [(LinkType::NULL, LayerKind::None); count!(links)];
    let (mut row, mut next) = (0, 0);
    while row < PROTOCOLS.len() {
        let mut i = 0;
        while i < PROTOCOLS[row].links.len() {
            all[next] = (PROTOCOLS[row].links[i], LayerKind::ALL[row]);
            next += 1;
            i += 1;
        }
        row += 1;
    }
    all
};

/// The first layer of a packet with this link type.
#[inline(never)]
pub(crate) fn of_link(link: LinkType, bytes: &[u8]) -> LayerKind {
    match link {
        // Raw IP: the version nibble decides.
        LinkType::RAW => match bytes.first().map(|b| b >> 4) {
            Some(6) => LayerKind::Ipv6,
            _ => LayerKind::Ipv4,
        },
        // RFC 1662 has address 0xff there, Cisco HDLC one of these.
        LinkType::PPP | LinkType::PPP_HDLC if matches!(bytes.first(), Some(0x0f | 0x8f)) => {
            LayerKind::Chdlc
        }
        _ => LINKS
            .iter()
            .find(|(l, _)| *l == link)
            .map_or(LayerKind::None, |(_, kind)| *kind),
    }
}

/// Steps over a header by its row.
#[inline(never)]
pub(crate) fn step(kind: LayerKind, walk: &mut Walk<'_, '_>) -> Next {
    match kind.protocol() {
        Some(protocol) => (protocol.step)(walk),
        None => Ok(LayerKind::None),
    }
}
