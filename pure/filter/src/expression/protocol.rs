//! The protocol of a packet, by the type field of its link header, or its LLC and SNAP headers.

use super::block::{Cond, JGT, JSET};
use super::lower::{ARP, DECNET, From, IP, IPV6, Kind, Link, RARP, SAP_IPX, SAP_ISO, Size};

const SAP_IP: u32 = 0x06;
const SAP_NETBEUI: u32 = 0xf0;
const ATALK: u32 = 0x809b;
const AARP: u32 = 0x80f3;
const LENGTH_MAX: u32 = 1500;
/// PPP protocols: IP with a header compressed by Van Jacobson's scheme, or one that could be.
const VJ_COMPRESSED: u32 = 0x2d;
const VJ_UNCOMPRESSED: u32 = 0x2f;

impl Link {
    fn is_length(&self) -> Cond {
        self.test(From::LinkType, 0, Size::H, JGT, LENGTH_MAX)
            .negate()
    }

    fn snap(&self, organization: u32, ethertype: u32) -> Cond {
        let [_, a, b, c] = organization.to_be_bytes();
        let [.., d, e] = ethertype.to_be_bytes();
        self.bytes(From::Llc, 0, &[0xaa, 0xaa, 3, a, b, c, d, e])
    }

    /// Tests the protocol after the link header: an EtherType or LLC SAP.
    pub(super) fn protocol(&self, protocol: u32) -> Cond {
        if self.labels > 0 {
            let version = match protocol {
                IP => 0x40,
                _ => 0x60,
            };
            let last = self.masked(From::LastLabel, 2, Size::B, 1, 1);
            return last.and(self.masked(From::Network, 0, Size::B, version, 0xf0));
        }
        match self.kind {
            Kind::Ethernet if self.is_lane => self.with_header(self.ethernet(protocol)),
            Kind::Ethernet => self.ethernet(protocol),
            Kind::Sll | Kind::Sll2 => self.cooked(protocol),
            Kind::PppBsdos if protocol == IP => {
                let is = |number| self.eq(From::LinkType, 0, Size::H, number);
                is(0x21).or(is(VJ_COMPRESSED)).or(is(VJ_UNCOMPRESSED))
            }
            Kind::Ppp | Kind::PppSerial | Kind::PppBsdos => {
                self.eq(From::LinkType, 0, Size::H, ppp(protocol))
            }
            Kind::Hdlc => {
                let number = if protocol == SAP_ISO {
                    0xfefe
                } else {
                    protocol
                };
                self.eq(From::LinkType, 0, Size::H, number)
            }
            Kind::Raw => match protocol {
                IP => self.masked(From::Network, 0, Size::B, 0x40, 0xf0),
                IPV6 => self.masked(From::Network, 0, Size::B, 0x60, 0xf0),
                _ => Cond::Const(false),
            },
            Kind::Null | Kind::Loop => self.loopback(protocol),
            Kind::Wlan(_) => self.data_frame().and(self.llc_protocol(protocol)),
            Kind::Fddi | Kind::TokenRing | Kind::Atm | Kind::FibreChannel => {
                self.llc_protocol(protocol)
            }
            Kind::Arcnet => self.arcnet(protocol),
            Kind::Slip => match protocol {
                IP => self.masked(From::Network, 0, Size::B, 0x40, 0xf0),
                IPV6 => self.masked(From::Network, 0, Size::B, 0x60, 0xf0),
                _ => Cond::Const(false),
            },
            Kind::EtherType => self.eq(From::LinkType, 0, Size::H, protocol),
            Kind::SunAtm => self.atm_llc().and(self.llc_protocol(protocol)),
            Kind::PfLog | Kind::FrameRelay | Kind::IpNet => self.by_number(protocol),
            Kind::Mtp2 | Kind::Other => Cond::Const(false),
            Kind::Raw4 => Cond::Const(protocol == IP),
            Kind::Raw6 => Cond::Const(protocol == IPV6),
        }
    }

    /// Tests a type field with numbers of its own: address families, or the NLPID (RFC 2427).
    fn by_number(&self, protocol: u32) -> Cond {
        let (size, numbers): (_, &[u32]) = match (self.kind, protocol) {
            (Kind::PfLog, IP) => (Size::B, &[2]),
            // Of Linux, OpenBSD, FreeBSD and macOS.
            (Kind::PfLog, IPV6) => (Size::B, &[10, 24, 28, 30]),
            (Kind::IpNet, IP) => (Size::B, &[2]),
            (Kind::IpNet, IPV6) => (Size::B, &[26]),
            (Kind::FrameRelay, IP) => (Size::H, &[0x03cc]),
            (Kind::FrameRelay, IPV6) => (Size::H, &[0x038e]),
            (Kind::FrameRelay, SAP_ISO) => (Size::H, &[0x0381, 0x0382, 0x0383]),
            _ => return Cond::Const(false),
        };
        let (from, at) = match self.kind {
            Kind::PfLog => (From::Start, 1),
            _ => (From::LinkType, 0),
        };
        let is = |&number: &u32| self.eq(from, at, size, number);
        Cond::Any(numbers.iter().map(is).collect())
    }

    /// Tests for a PDU of an OSI network protocol.
    pub(super) fn iso(&self, pdu: u32) -> Cond {
        let at = match self.kind {
            Kind::FrameRelay => return self.eq(From::LinkType, 0, Size::H, 0x0300 | pdu),
            // A byte of padding (RFC 1547).
            Kind::Hdlc => 1,
            _ => 0,
        };
        let is = self.eq(From::NetworkNoSnap, at, Size::B, pdu);
        self.protocol(SAP_ISO).and(is)
    }

    /// Tests for an IS-IS PDU of one of these types.
    pub(super) fn isis(&self, types: &[u32]) -> Cond {
        let is = |&kind: &u32| self.eq(From::NetworkNoSnap, 4, Size::B, kind);
        self.iso(0x83)
            .and(Cond::Any(types.iter().map(is).collect()))
    }

    fn ethernet(&self, protocol: u32) -> Cond {
        let by_type = |p| self.eq(From::LinkType, 0, Size::H, p);
        match protocol {
            SAP_ISO | SAP_IP | SAP_NETBEUI => {
                let saps = protocol << 8 | protocol;
                self.is_length().and(self.eq(From::Llc, 0, Size::H, saps))
            }
            SAP_IPX => {
                let llc = self.eq(From::Llc, 0, Size::B, SAP_IPX);
                let raw = llc.or(self.eq(From::Llc, 0, Size::H, 0xffff));
                let any = self.snap(0, 0x8137).or(raw);
                by_type(0x8137).or(self.is_length().and(any))
            }
            ATALK => by_type(ATALK).or(self.is_length().and(self.snap(0x08_0007, ATALK))),
            AARP => by_type(AARP).or(self.is_length().and(self.snap(0, AARP))),
            0..=LENGTH_MAX => {
                let sap = self.eq(From::Llc, 0, Size::B, protocol);
                self.is_length().and(sap)
            }
            _ => by_type(protocol),
        }
    }

    /// Tests the protocol of an LLC header: its SAP, or the EtherType in a SNAP header.
    fn llc_protocol(&self, protocol: u32) -> Cond {
        match protocol {
            SAP_ISO | SAP_IP | SAP_NETBEUI => {
                self.eq(From::Llc, 0, Size::H, protocol << 8 | protocol)
            }
            ATALK => self.snap(0x08_0007, ATALK),
            0..=LENGTH_MAX => self.eq(From::Llc, 0, Size::B, protocol),
            _ => self.eq(From::Llc, 6, Size::H, protocol),
        }
    }

    /// Tests the protocol of ARCNET (RFC 1201, and RFC 1051 for the old numbers).
    fn arcnet(&self, protocol: u32) -> Cond {
        let is = |k| self.eq(From::LinkType, 0, Size::B, k);
        match protocol {
            IP => is(212).or(is(240)),
            IPV6 => is(196),
            ARP => is(213).or(is(241)),
            RARP => is(214),
            ATALK => is(221),
            _ => Cond::Const(false),
        }
    }

    /// Offsets of the source and the destination address in the link header.
    pub(super) fn mac_offsets(&self) -> Option<(u32, u32)> {
        match self.kind {
            Kind::Ethernet => Some((6, 0)),
            Kind::Fddi => Some((7, 1)),
            Kind::TokenRing => Some((8, 2)),
            Kind::FibreChannel => Some((10, 2)),
            Kind::Wlan(_) => Some((10, 4)),
            _ => None,
        }
    }

    /// Tests for a multicast address as destination.
    pub(super) fn multicast(&self) -> Cond {
        let at = |offset| self.test(From::Header, offset, Size::B, JSET, 1);
        match self.mac_offsets() {
            _ if self.is_wlan() => self.wlan_destination(at),
            Some((_, destination)) => self.with_header(at(destination)),
            None => Cond::Const(false),
        }
    }

    /// Tests for an LLC header of IEEE 802.3, excluding NetWare packets that look like one.
    pub(super) fn llc(&self) -> Cond {
        match self.kind {
            Kind::Wlan(_) => return self.data_frame(),
            Kind::Fddi | Kind::TokenRing | Kind::Atm => return Cond::Const(true),
            Kind::SunAtm => return self.atm_llc(),
            _ => {}
        }
        let netware = self.eq(From::Llc, 0, Size::H, 0xffff);
        self.is_length().and(netware.negate())
    }

    /// Tests the control field of an LLC header.
    pub(super) fn llc_control(&self, value: u32, mask: u32) -> Cond {
        self.llc()
            .and(self.masked(From::Llc, 2, Size::B, value, mask))
    }

    /// Tests the address family of BSD loopback. Each BSD has its own number for IPv6. Files of
    /// either byte order are supported: no two numbers are equal when swapped.
    fn loopback(&self, protocol: u32) -> Cond {
        let families: &[u32] = match protocol {
            IP => &[2],
            IPV6 => &[24, 28, 30],
            _ => return Cond::Const(false),
        };
        let family = |k| self.eq(From::Header, 0, Size::W, k);
        let either = |&k: &u32| match self.kind {
            Kind::Loop => family(k),
            _ => family(k.swap_bytes()).or(family(k)),
        };
        Cond::Any(families.iter().map(either).collect())
    }

    fn cooked(&self, protocol: u32) -> Cond {
        let is_llc = self.eq(From::LinkType, 0, Size::H, 4);
        match protocol {
            SAP_ISO | SAP_IP | SAP_NETBEUI => {
                is_llc.and(self.eq(From::Llc, 0, Size::H, protocol << 8 | protocol))
            }
            SAP_IPX => is_llc
                .and(
                    self.eq(From::Llc, 0, Size::B, SAP_IPX)
                        .or(self.snap(0, 0x8137)),
                )
                .or(self.eq(From::LinkType, 0, Size::H, 1))
                .or(self.eq(From::LinkType, 0, Size::H, 0x8137)),
            ATALK => self
                .eq(From::LinkType, 0, Size::H, ATALK)
                .or(is_llc.and(self.snap(0x08_0007, ATALK))),
            AARP => self
                .eq(From::LinkType, 0, Size::H, AARP)
                .or(is_llc.and(self.snap(0, AARP))),
            0..=LENGTH_MAX => is_llc.and(self.eq(From::Llc, 0, Size::B, protocol)),
            _ => self.eq(From::LinkType, 0, Size::H, protocol),
        }
    }
}

/// The PPP protocol that corresponds to an EtherType; PPP numbers are unchanged.
fn ppp(protocol: u32) -> u32 {
    match protocol {
        IP => 0x21,
        IPV6 => 0x57,
        DECNET => 0x27,
        ATALK => 0x29,
        0x600 => 0x25,
        SAP_ISO => 0x23,
        0x42 => 0x31,
        SAP_IPX => 0x2b,
        other => other,
    }
}
