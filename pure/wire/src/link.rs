//! Link types: the first header of a captured packet.
//!
//! The numbers are those of the LINKTYPE_ registry (draft-ietf-opsawg-pcaplinktype) as used in pcap
//! and pcapng files. They equal the DLT_ numbers of Linux except for raw IP, where libpcap's Linux
//! DLT is 12 and files have 101; [`LinkType::from_dlt`] maps them.

mod names;

use core::fmt;

/// The link type of a packet, as written in a pcap or pcapng file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkType(pub u16);

/// The link types that are dissected, one row each: constant, number, libpcap's name.
macro_rules! links {
    ($($constant:ident $number:literal $name:literal $doc:literal),* $(,)?) => {
        impl LinkType {
            $(#[doc = $doc] pub const $constant: LinkType = LinkType($number);)*

            /// The link types that [`dissect`](crate::dissect) supports.
            pub const SUPPORTED: &'static [LinkType] = &[$(LinkType::$constant),*];

            /// The name without its prefix, as libpcap prints it (`EN10MB` for Ethernet).
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($name),)*
                    number => names::of(number),
                }
            }

            /// Whether packets of this link type are dissected.
            pub const fn is_supported(self) -> bool {
                matches!(self.0, $($number)|*)
            }
        }
    };
}

// Inputs of the fuzzer choose a row by its number: new ones are added at the end.
links! {
    NULL 0 "NULL" "BSD loopback: four bytes of address family in the capturing host's order.",
    ETHERNET 1 "EN10MB" "Ethernet, from the destination address on, without preamble.",
    PPP 9 "PPP" "PPP, with or without the HDLC address and control bytes.",
    PPP_HDLC 50 "PPP_SERIAL" "PPP in HDLC-like framing (RFC 1662), or Cisco HDLC.",
    PPP_ETHER 51 "PPP_ETHER" "PPPoE, from the PPPoE header on (RFC 2516).",
    RAW 101 "RAW" "Raw IPv4 or IPv6, by the version nibble.",
    C_HDLC 104 "C_HDLC" "Cisco HDLC.",
    LOOP 108 "LOOP" "OpenBSD loopback: four bytes of address family in network byte order.",
    LINUX_SLL 113 "LINUX_SLL" "Linux cooked capture, version 1.",
    IPV4 228 "IPV4" "Raw IPv4.",
    IPV6 229 "IPV6" "Raw IPv6.",
    LINUX_SLL2 276 "LINUX_SLL2" "Linux cooked capture, version 2.",
    IEEE802_11 105 "IEEE802_11" "802.11 without a preceding header.",
    PRISM_HEADER 119 "PRISM_HEADER" "802.11 after a Prism header.",
    IEEE802_11_RADIO 127 "IEEE802_11_RADIO" "802.11 after a radiotap header.",
    IEEE802_11_RADIO_AVS 163 "IEEE802_11_RADIO_AVS" "802.11 after an AVS header.",
    PKTAP 258 "PKTAP" "Darwin's packet tap.",
    USER2 149 "USER2" "For private use; Apple's programs use it for PKTAP.",
    NFLOG 239 "NFLOG" "Linux netfilter's log, NFLOG.",
    PPI 192 "PPI" "Any packet after per-packet information.",
    IPOIB 242 "IPOIB" "IP over InfiniBand, after a global routing header.",
    INFINIBAND 247 "INFINIBAND" "InfiniBand, from the local routing header on.",
    FRELAY 107 "FRELAY" "Frame Relay, from its address on.",
    PFLOG 117 "PFLOG" "The log of pf(4).",
    ENC 109 "ENC" "Packets before or after IPsec, of enc(4).",
    IPNET 226 "IPNET" "Solaris' IP observability devices.",
    NETANALYZER 240 "NETANALYZER" "Ethernet behind the header of Hilscher netANALYZER.",
    NETANALYZER_TRANSPARENT 241 "NETANALYZER_TRANSPARENT" "The same with preamble.",
    FDDI 10 "FDDI" "FDDI, from its frame control on.",
    IEEE802 6 "IEEE802" "Token Ring, from its access control on.",
    ARCNET 7 "ARCNET" "ARCNET as the BSDs capture it.",
    ARCNET_LINUX 129 "ARCNET_LINUX" "ARCNET as Linux captures it.",
    SLIP 8 "SLIP" "SLIP behind BPF's header.",
    SLIP_BSDOS 102 "SLIP_BSDOS" "SLIP of BSD/OS.",
    PPP_BSDOS 103 "PPP_BSDOS" "PPP of BSD/OS.",
    PPP_PPPD 166 "PPP_PPPD" "PPP with a direction in place of the address.",
    ATM_RFC1483 100 "ATM_RFC1483" "LLC over ATM (RFC 2684).",
    ATM_CLIP 106 "ATM_CLIP" "Classical IP over ATM, of Linux.",
    SUNATM 123 "SUNATM" "ATM of Sun's cards.",
    IP_OVER_FC 122 "IP_OVER_FC" "IP over Fibre Channel.",
    SYMANTEC_FIREWALL 99 "SYMANTEC_FIREWALL" "Symantec's firewall.",
    APPLE_IP_OVER_IEEE1394 138 "APPLE_IP_OVER_IEEE1394" "IP over IEEE 1394, of Apple.",
    DSA_TAG_BRCM 281 "DSA_TAG_BRCM" "Ethernet with the tag of Broadcom's switches.",
    DSA_TAG_BRCM_PREPEND 282 "DSA_TAG_BRCM_PREPEND" "Ethernet after such a tag.",
    DSA_TAG_DSA 284 "DSA_TAG_DSA" "Ethernet with the tag of Marvell's switches.",
    DSA_TAG_EDSA 285 "DSA_TAG_EDSA" "Ethernet with such a tag after an EtherType.",
    VSOCK 271 "VSOCK" "Linux' vsock.",
    IEEE802_15_4 195 "IEEE802_15_4" "802.15.4 with its check sequence.",
    IEEE802_15_4_NOFCS 230 "IEEE802_15_4_NOFCS" "802.15.4 without check sequence.",
    IEEE802_15_4_TAP 283 "IEEE802_15_4_TAP" "802.15.4 behind a header of its own.",
    USB_LINUX 189 "USB_LINUX" "Events of Linux' usbmon.",
    USB_LINUX_MMAPPED 220 "USB_LINUX_MMAPPED" "The same with a longer header.",
    JUNIPER_MLPPP 130 "JUNIPER_MLPPP" "Juniper's multilink PPP.",
    JUNIPER_MLFR 131 "JUNIPER_MLFR" "Juniper's multilink Frame Relay.",
    JUNIPER_GGSN 133 "JUNIPER_GGSN" "Juniper's GGSN.",
    JUNIPER_MFR 134 "JUNIPER_MFR" "Juniper's Frame Relay of FRF.16.",
    JUNIPER_ATM2 135 "JUNIPER_ATM2" "Juniper's second ATM card.",
    JUNIPER_SERVICES 136 "JUNIPER_SERVICES" "Juniper's services card.",
    JUNIPER_ATM1 137 "JUNIPER_ATM1" "Juniper's first ATM card.",
    JUNIPER_MONITOR 164 "JUNIPER_MONITOR" "Juniper's monitoring card.",
    JUNIPER_PPPOE 167 "JUNIPER_PPPOE" "Ethernet of Juniper's PPPoE.",
    JUNIPER_PPPOE_ATM 168 "JUNIPER_PPPOE_ATM" "Juniper's PPPoE over ATM.",
    JUNIPER_ETHER 178 "JUNIPER_ETHER" "Ethernet behind Juniper's header.",
    JUNIPER_PPP 179 "JUNIPER_PPP" "PPP behind Juniper's header.",
    JUNIPER_FRELAY 180 "JUNIPER_FRELAY" "Frame Relay behind Juniper's header.",
    JUNIPER_CHDLC 181 "JUNIPER_CHDLC" "Cisco HDLC behind Juniper's header.",
}

impl LinkType {
    /// Whether packets of this link type may contain IP.
    pub const fn may_carry_ip(self) -> bool {
        !matches!(
            self,
            LinkType::VSOCK
                | LinkType::IEEE802_15_4
                | LinkType::IEEE802_15_4_NOFCS
                | LinkType::IEEE802_15_4_TAP
                | LinkType::USB_LINUX
                | LinkType::USB_LINUX_MMAPPED
        ) && self.is_supported()
    }

    /// Converts a DLT_ number as returned by libpcap's API on Linux.
    pub const fn from_dlt(dlt: u16) -> LinkType {
        match dlt {
            // DLT_RAW is 12 on Linux and 14 on OpenBSD; files use 101.
            12 | 14 => LinkType::RAW,
            11 => LinkType::ATM_RFC1483,
            15 => LinkType::SLIP_BSDOS,
            16 => LinkType::PPP_BSDOS,
            19 => LinkType::ATM_CLIP,
            other => LinkType(other),
        }
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
