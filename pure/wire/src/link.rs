//! Link types: the first header of a captured packet.
//!
//! The numbers are those of the LINKTYPE_ registry (draft-ietf-opsawg-pcaplinktype) as used in pcap
//! and pcapng files. They equal the DLT_ numbers of Linux except for raw IP, where libpcap's Linux
//! DLT is 12 and files have 101; [`LinkType::from_dlt`] maps them.

use core::fmt;

/// The link type of a packet, as written in a pcap or pcapng file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkType(pub u16);

impl LinkType {
    /// BSD loopback: four bytes of address family in the byte order of the capturing host.
    pub const NULL: LinkType = LinkType(0);
    /// Ethernet, from the destination address on, without preamble.
    pub const ETHERNET: LinkType = LinkType(1);
    /// PPP, with or without the HDLC address and control bytes.
    pub const PPP: LinkType = LinkType(9);
    /// PPP in HDLC-like framing, address byte first (RFC 1662), or Cisco HDLC.
    pub const PPP_HDLC: LinkType = LinkType(50);
    /// PPPoE, from the PPPoE header on (RFC 2516).
    pub const PPP_ETHER: LinkType = LinkType(51);
    /// Raw IPv4 or IPv6, by the version nibble.
    pub const RAW: LinkType = LinkType(101);
    /// Cisco HDLC.
    pub const C_HDLC: LinkType = LinkType(104);
    /// OpenBSD loopback: four bytes of address family in network byte order.
    pub const LOOP: LinkType = LinkType(108);
    /// Frame Relay, from its address on.
    pub const FRELAY: LinkType = LinkType(107);
    /// 802.11 without a preceding header.
    pub const IEEE802_11: LinkType = LinkType(105);
    /// 802.11 after a Prism header.
    pub const PRISM_HEADER: LinkType = LinkType(119);
    /// 802.11 after a radiotap header.
    pub const IEEE802_11_RADIO: LinkType = LinkType(127);
    /// For private use; Apple's programs use it for PKTAP.
    pub const USER2: LinkType = LinkType(149);
    /// 802.11 after an AVS header.
    pub const IEEE802_11_RADIO_AVS: LinkType = LinkType(163);
    /// Any packet after per-packet information.
    pub const PPI: LinkType = LinkType(192);
    /// Linux cooked capture, version 1.
    pub const LINUX_SLL: LinkType = LinkType(113);
    /// Raw IPv4.
    pub const IPV4: LinkType = LinkType(228);
    /// Raw IPv6.
    pub const IPV6: LinkType = LinkType(229);
    /// Linux netfilter's log, NFLOG.
    pub const NFLOG: LinkType = LinkType(239);
    /// IP over InfiniBand, after a global routing header.
    pub const IPOIB: LinkType = LinkType(242);
    /// InfiniBand, from the local routing header on.
    pub const INFINIBAND: LinkType = LinkType(247);
    /// Darwin's packet tap.
    pub const PKTAP: LinkType = LinkType(258);
    /// Linux cooked capture, version 2.
    pub const LINUX_SLL2: LinkType = LinkType(276);

    /// The link types that [`dissect`](crate::dissect) supports.
    pub const SUPPORTED: [LinkType; 23] = [
        LinkType::NULL,
        LinkType::ETHERNET,
        LinkType::PPP,
        LinkType::PPP_HDLC,
        LinkType::PPP_ETHER,
        LinkType::RAW,
        LinkType::C_HDLC,
        LinkType::LOOP,
        LinkType::LINUX_SLL,
        LinkType::IPV4,
        LinkType::IPV6,
        LinkType::LINUX_SLL2,
        LinkType::IEEE802_11,
        LinkType::PRISM_HEADER,
        LinkType::IEEE802_11_RADIO,
        LinkType::IEEE802_11_RADIO_AVS,
        LinkType::PKTAP,
        LinkType::USER2,
        LinkType::NFLOG,
        LinkType::PPI,
        LinkType::IPOIB,
        LinkType::INFINIBAND,
        LinkType::FRELAY,
    ];

    /// Converts a DLT_ number as returned by libpcap's API on Linux.
    pub const fn from_dlt(dlt: u16) -> LinkType {
        match dlt {
            // DLT_RAW is 12 on Linux and 14 on OpenBSD; files use 101.
            12 | 14 => LinkType::RAW,
            other => LinkType(other),
        }
    }

    /// The name without its prefix, as libpcap prints it (`EN10MB` for Ethernet).
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            LinkType::NULL => "NULL",
            LinkType::ETHERNET => "EN10MB",
            LinkType::PPP => "PPP",
            LinkType::PPP_HDLC => "PPP_SERIAL",
            LinkType::PPP_ETHER => "PPP_ETHER",
            LinkType::RAW => "RAW",
            LinkType::C_HDLC => "C_HDLC",
            LinkType::LOOP => "LOOP",
            LinkType::LINUX_SLL => "LINUX_SLL",
            LinkType::IPV4 => "IPV4",
            LinkType::IPV6 => "IPV6",
            LinkType::LINUX_SLL2 => "LINUX_SLL2",
            LinkType::IEEE802_11 => "IEEE802_11",
            LinkType::PRISM_HEADER => "PRISM_HEADER",
            LinkType::IEEE802_11_RADIO => "IEEE802_11_RADIO",
            LinkType::IEEE802_11_RADIO_AVS => "IEEE802_11_RADIO_AVS",
            LinkType::PKTAP => "PKTAP",
            LinkType::USER2 => "USER2",
            LinkType::NFLOG => "NFLOG",
            LinkType::PPI => "PPI",
            LinkType::IPOIB => "IPOIB",
            LinkType::INFINIBAND => "INFINIBAND",
            LinkType::FRELAY => "FRELAY",
            _ => return None,
        })
    }
}

impl fmt::Display for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "link type {}", self.0),
        }
    }
}

impl fmt::Debug for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LinkType({self})")
    }
}
