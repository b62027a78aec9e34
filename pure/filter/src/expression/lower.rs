//! Lowers primitives to tests: offsets by link type, shifted by VLAN, MPLS and PPPoE headers.
//!
//! The tests and their order are those of pcap-filter(7) as compiled by libpcap 1.10.

use std::ops::Range;

use bpf::cbpf::{Insn, MEMORY_WORDS};

use super::arith::{ADD_X, AND, LDX_MEM, LSH, TAX};
use super::block::{Cond, JEQ, JGE, JGT, JSET, LDX_MSH, Test, WITH_X};
use super::extended::{CELLS, LD_MEM, LDB_IND, insn, step};

/// Size of a load.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    B = 0x10,
    H = 0x08,
    W = 0x00,
}

/// Base of an offset.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    Header,
    LinkType,
    /// The payload of the link header: an LLC header or the network header.
    Llc,
    Network,
    /// The network header without SNAP.
    NetworkNoSnap,
    LastLabel,
    /// The end of an IPv4 header of any length.
    Transport4,
    /// The end of an IPv6 header without extensions.
    Transport6,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Ethernet,
    Raw,
    Raw4,
    Raw6,
    Sll,
    Sll2,
    Ppp,
    /// PPP in HDLC-like framing or over Ethernet; libpcap supports no MPLS in it.
    PppSerial,
    /// Cisco HDLC.
    Hdlc,
    /// BSD loopback: the address family, in the byte order of the capturing machine or (LOOP) in
    /// network order.
    Null,
    Loop,
}

/// The scratch words that earlier steps stored the variable parts of offsets in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bases {
    pub(super) header: Option<u32>,
    pub(super) link_type: Option<u32>,
    pub(super) payload: Option<u32>,
}

/// Offsets that apply at one point of an expression.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) kind: Kind,
    bases: Bases,
    /// Number of scratch words in use for bases, from [`CELLS`] down.
    words: u32,
    /// Whether it is the inner packet of Geneve, which has an Ethernet header or none.
    is_inner: bool,
    header: u32,
    link_type: u32,
    payload: u32,
    network: u32,
    network_no_snap: u32,
    pub(super) labels: u32,
}

pub(super) const IP: u32 = 0x800;
pub(super) const IPV6: u32 = 0x86dd;
pub(super) const ARP: u32 = 0x806;
pub(super) const RARP: u32 = 0x8035;
pub(super) const DECNET: u32 = 0x6003;
pub(super) const SAP_ISO: u32 = 0xfe;
pub(super) const SAP_IPX: u32 = 0xe0;
const SAP_IP: u32 = 0x06;
const SAP_NETBEUI: u32 = 0xf0;
const ATALK: u32 = 0x809b;
const AARP: u32 = 0x80f3;
const LENGTH_MAX: u32 = 1500;

impl Link {
    /// The offsets of a link type, given its LINKTYPE number.
    pub(super) fn new(link_type: u16) -> Option<Link> {
        let (kind, at, payload, no_snap) = match link_type {
            1 => (Kind::Ethernet, 12, 14, 3),
            101 => (Kind::Raw, 0, 0, 0),
            228 => (Kind::Raw4, 0, 0, 0),
            229 => (Kind::Raw6, 0, 0, 0),
            113 => (Kind::Sll, 14, 16, 0),
            276 => (Kind::Sll2, 0, 20, 0),
            9 => (Kind::Ppp, 2, 4, 0),
            50 => (Kind::PppSerial, 2, 4, 0),
            51 => (Kind::PppSerial, 6, 8, 0),
            104 => (Kind::Hdlc, 2, 4, 0),
            0 => (Kind::Null, 0, 4, 0),
            108 => (Kind::Loop, 0, 4, 0),
            _ => return None,
        };
        Some(Link {
            kind,
            bases: Bases::default(),
            words: 0,
            is_inner: false,
            header: 0,
            link_type: at,
            payload,
            network: 0,
            network_no_snap: no_snap,
            labels: 0,
        })
    }

    pub(super) fn push_vlan(&mut self) {
        self.link_type += 4;
        self.payload += 4;
    }

    pub(super) fn push_label(&mut self) {
        self.network += 4;
        self.network_no_snap += 4;
        self.labels += 1;
    }

    pub(super) fn push_pppoe(&mut self) {
        self.header = self.payload + self.network + 6;
        self.kind = Kind::Ppp;
        self.is_inner = false;
        (self.bases.header, self.bases.link_type) = (self.bases.payload, self.bases.payload);
        self.link_type = self.header;
        self.payload = self.header + 2;
        (self.network, self.network_no_snap) = (0, 0);
    }

    /// Reserves three scratch words for the bases of another packet; `None` if too few are left.
    pub(super) fn reserve(&mut self) -> Option<Bases> {
        self.words += 3;
        let first = CELLS.checked_sub(self.words).filter(|&first| first > 0)?;
        Some(Bases {
            header: Some(first),
            link_type: Some(first + 1),
            payload: Some(first + 2),
        })
    }

    /// The scratch words that are reserved.
    pub(super) fn words(&self) -> Range<u32> {
        CELLS.saturating_sub(self.words)..CELLS
    }

    /// The offsets that follow apply to the inner packet of Geneve. As in libpcap, MPLS labels
    /// before it still count.
    pub(super) fn push_geneve(&mut self, bases: Bases) {
        self.kind = Kind::Ethernet;
        self.bases = bases;
        self.is_inner = true;
        (self.header, self.link_type, self.payload, self.network) = (0, 0, 0, 0);
    }

    /// Number of scratch words that arithmetic may use.
    pub(super) fn free_words(&self) -> usize {
        match self.words {
            0 => MEMORY_WORDS,
            words => CELLS.saturating_sub(words) as usize,
        }
    }

    /// Whether offsets of the network header are variable.
    pub(super) fn is_variable(&self) -> bool {
        self.bases.payload.is_some()
    }

    /// Tests for an Ethernet header, if it may be missing: then the link header and its payload are
    /// at the same offset.
    pub(super) fn with_header(&self, cond: Cond) -> Cond {
        let (true, Some(header), Some(payload)) =
            (self.is_inner, self.bases.header, self.bases.payload)
        else {
            return cond;
        };
        let load = vec![insn(LD_MEM, header), insn(LDX_MEM, payload)];
        Cond::Test(step(load, JEQ + WITH_X, 0)).negate().and(cond)
    }

    /// The scratch word with the variable part of an offset.
    fn base(&self, from: From) -> Option<u32> {
        match from {
            From::Header => self.bases.header,
            From::LinkType => self.bases.link_type,
            _ => self.bases.payload,
        }
    }

    /// Loads the variable part of an offset into X; empty if it is constant. For `Transport4`, the
    /// length of the IPv4 header is included.
    pub(super) fn prefix(&self, from: From) -> Vec<Insn> {
        match (from, self.base(from)) {
            (From::Transport4, _) => self.header_length(),
            (_, Some(word)) => vec![insn(LDX_MEM, word)],
            (_, None) => Vec::new(),
        }
    }

    /// An offset as a constant; relative to X if it has a prefix.
    pub(super) fn offset(&self, from: From) -> u32 {
        match from {
            From::Header => self.header,
            From::LinkType => self.link_type,
            From::Llc => self.payload,
            From::Network | From::Transport4 => self.payload + self.network,
            From::NetworkNoSnap => self.payload + self.network_no_snap,
            From::LastLabel => (self.payload + self.network).wrapping_sub(4),
            From::Transport6 => self.payload + self.network + 40,
        }
    }

    /// Loads the length of the IPv4 header, and the variable part of its offset, into X.
    pub(super) fn header_length(&self) -> Vec<Insn> {
        let at = self.offset(From::Network);
        match self.bases.payload {
            None => vec![insn(LDX_MSH, at)],
            Some(word) => vec![
                insn(LDX_MEM, word),
                insn(LDB_IND, at),
                insn(AND, 0xf),
                insn(LSH, 2),
                insn(ADD_X, 0),
                insn(TAX, 0),
            ],
        }
    }

    pub(super) fn load(&self, from: From, offset: u32, size: Size) -> Vec<Insn> {
        let k = self.offset(from).wrapping_add(offset);
        let mut load = self.prefix(from);
        let mode = if load.is_empty() { 0x20 } else { 0x40 };
        load.push(insn(mode | size as u16, k));
        load
    }

    pub(super) fn test(&self, from: From, offset: u32, size: Size, jump: u16, k: u32) -> Cond {
        let load = self.load(from, offset, size);
        Cond::Test(Test::new(load, jump, k))
    }

    pub(super) fn eq(&self, from: From, offset: u32, size: Size, k: u32) -> Cond {
        self.test(from, offset, size, JEQ, k)
    }

    pub(super) fn masked(&self, from: From, offset: u32, size: Size, k: u32, mask: u32) -> Cond {
        let mut load = self.load(from, offset, size);
        if mask != u32::MAX {
            load.push(Insn::new(0x54, 0, 0, mask));
        }
        Cond::Test(Test::new(load, JEQ, k))
    }

    fn bytes(&self, from: From, offset: u32, bytes: &[u8]) -> Cond {
        let mut end = bytes.len();
        let mut list = Vec::new();
        while end > 0 {
            let (size, len) = match end {
                4.. => (Size::W, 4),
                2.. => (Size::H, 2),
                _ => (Size::B, 1),
            };
            end -= len;
            let value = bytes[end..end + len]
                .iter()
                .fold(0, |value, &b| value << 8 | u32::from(b));
            list.push(self.eq(from, offset + end as u32, size, value));
        }
        Cond::All(list)
    }

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
            Kind::Ethernet => self.ethernet(protocol),
            Kind::Sll | Kind::Sll2 => self.cooked(protocol),
            Kind::Ppp | Kind::PppSerial => self.eq(From::LinkType, 0, Size::H, ppp(protocol)),
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
            Kind::Raw4 => Cond::Const(protocol == IP),
            Kind::Raw6 => Cond::Const(protocol == IPV6),
        }
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

    /// Tests for an LLC header of IEEE 802.3, excluding NetWare packets that look like one.
    pub(super) fn llc(&self) -> Cond {
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

    /// Tests for an IPv4 packet of a protocol.
    pub(super) fn ip4(&self, protocol: u32) -> Cond {
        let is = self.eq(From::Network, 9, Size::B, protocol);
        self.protocol(IP).and(is)
    }

    /// Tests for an IPv6 packet of a protocol, directly or after a fragment header.
    pub(super) fn ip6(&self, protocol: u32) -> Cond {
        let fragment = self.eq(From::Network, 6, Size::B, 44);
        let behind = fragment.and(self.eq(From::Network, 40, Size::B, protocol));
        let direct = self.eq(From::Network, 6, Size::B, protocol);
        self.protocol(IPV6).and(direct.or(behind))
    }

    /// Tests for a packet that is not a fragment, or is the first one.
    pub(super) fn first_fragment(&self) -> Cond {
        self.test(From::Network, 6, Size::H, JSET, 0x1fff).negate()
    }

    /// Tests for ports in a range: IPv6, then IPv4, for each of the transports.
    pub(super) fn ports(&self, low: u32, high: u32, transports: &[u32], way: Way) -> Cond {
        let (low, high) = (low.min(high), low.max(high));
        let port = |from, offset| {
            if low == high {
                return self.eq(from, offset, Size::H, low);
            }
            let above = self.test(from, offset, Size::H, JGE, low);
            above.and(self.test(from, offset, Size::H, JGT, high).negate())
        };
        let any = |list: Vec<Cond>| Cond::Any(list);
        let six = transports.iter().map(|&t| {
            let next = self.eq(From::Network, 6, Size::B, t);
            next.and(way.both(|is_src| port(From::Transport6, if is_src { 0 } else { 2 })))
        });
        let six = self.protocol(IPV6).and(any(six.collect()));
        let four = transports.iter().map(|&t| {
            let next = self.eq(From::Network, 9, Size::B, t);
            let ports = way.both(|is_src| port(From::Transport4, if is_src { 0 } else { 2 }));
            next.and(self.first_fragment()).and(ports)
        });
        six.or(self.protocol(IP).and(any(four.collect())))
    }

    /// Tests IPv4 addresses at two offsets in a header of a protocol.
    pub(super) fn host4(&self, (address, mask): (u32, u32), protocol: u32, way: Way) -> Cond {
        let (src, dst) = if protocol == IP { (12, 16) } else { (14, 24) };
        self.protocol(protocol).and(way.both(|is_src| {
            let offset = if is_src { src } else { dst };
            self.masked(From::Network, offset, Size::W, address, mask)
        }))
    }

    pub(super) fn host6(&self, address: u128, mask: u128, way: Way) -> Cond {
        self.protocol(IPV6).and(way.both(|is_src| {
            let at = if is_src { 8 } else { 24 };
            let word = |value: u128, i: u32| (value >> (96 - 32 * i)) as u32;
            let word = |i| {
                let (value, mask) = (word(address, i), word(mask, i));
                self.masked(From::Network, at + 4 * i, Size::W, value, mask)
            };
            Cond::All((0..4).map(word).collect())
        }))
    }

    /// Tests DECnet addresses (area and node) in packets with a short or a long routing header,
    /// each with or without a preceding byte of padding.
    pub(super) fn decnet(&self, address: u32, way: Way) -> Cond {
        let value = u32::from((address as u16).swap_bytes());
        let network = From::Network;
        let any = |is_src| {
            let (short, long) = if is_src { (3, 15) } else { (1, 7) };
            let headers = [(0x02, short), (0x06, long)].map(|(flags, at)| {
                let plain = self.masked(network, 2, Size::B, flags, 0x07);
                let plain = plain.and(self.eq(network, 2 + at, Size::H, value));
                let padded = self.masked(network, 2, Size::H, 0x8100 | flags, 0xff07);
                plain.or(padded.and(self.eq(network, 3 + at, Size::H, value)))
            });
            let [short, long] = headers;
            self.protocol(DECNET).and(short.or(long))
        };
        way.both(any)
    }

    pub(super) fn mac(&self, address: [u8; 6], way: Way) -> Cond {
        let is = way.both(|is_src| self.bytes(From::Header, if is_src { 6 } else { 0 }, &address));
        self.with_header(is)
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

/// The end of a packet that a primitive tests: source, destination, or either.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    Default,
    Src,
    Dst,
    Either,
    Both,
}

impl Way {
    pub(super) fn both(self, end: impl Fn(bool) -> Cond) -> Cond {
        match self {
            Way::Src => end(true),
            Way::Dst => end(false),
            Way::Both => end(true).and(end(false)),
            Way::Default | Way::Either => end(true).or(end(false)),
        }
    }
}
