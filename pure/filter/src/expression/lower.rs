//! Lowers primitives to tests: offsets by link type, shifted by VLAN, MPLS and PPPoE headers.
//!
//! The tests and their order are those of pcap-filter(7) as compiled by libpcap 1.10.

use std::ops::Range;

use bpf::cbpf::{Insn, MEMORY_WORDS};

use super::arith::{ADD_X, AND, LDX_MEM, LSH, TAX};
use super::block::{Cond, JEQ, JGE, JGT, JSET, LDX_MSH, Test, WITH_X};
use super::extended::{CELLS, LD_MEM, LDB_IND, insn, step};
use super::links::{self, Layout};
use super::wlan::Radio;

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
    /// The first byte of all.
    Start,
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
    /// 802.11, behind a radio header.
    Wlan(Radio),
    /// Link types whose payload begins with an LLC header: FDDI, Token Ring, ATM (RFC 1483), IP
    /// over Fibre Channel.
    Fddi,
    TokenRing,
    Atm,
    FibreChannel,
    Arcnet,
    /// SLIP behind the header of BSD.
    Slip,
    /// PPP of BSD/OS.
    PppBsdos,
    /// A header with an EtherType that is never a length: Symantec firewalls, IP over IEEE 1394.
    EtherType,
    /// The log of OpenBSD's and FreeBSD's pf(4): the header begins with its length.
    PfLog,
    FrameRelay,
    /// Raw ATM of Solaris, with an LLC header if no `lane` came before.
    SunAtm,
    /// MTP2 of SS7; `link_type` is the offset of its length indicator.
    Mtp2,
    /// Observability packets of Solaris (ipnet).
    IpNet,
    /// Link types of which only bytes, length and metadata can be tested.
    Other,
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
    /// Whether Juniper's header is in front of the packet.
    pub(super) is_juniper: bool,
    bases: Bases,
    /// Number of scratch words in use for bases, from [`CELLS`] down, and the most so far.
    words: u32,
    words_most: u32,
    /// Whether it is the inner packet of a tunnel, which has an Ethernet header or none.
    is_inner: bool,
    /// Whether the word of the type field holds its value and not its offset.
    has_type: bool,
    /// Whether it is a packet of ATM LANE, unless it is one of LE Control.
    pub(super) is_lane: bool,
    header: u32,
    link_type: u32,
    payload: u32,
    network: u32,
    network_no_snap: u32,
    pub(super) labels: u32,
}

/// The LE header of an LE Control packet of ATM LANE.
const LE_CONTROL: u32 = 0xff00;

pub(super) const IP: u32 = 0x800;
pub(super) const IPV6: u32 = 0x86dd;
pub(super) const ARP: u32 = 0x806;
pub(super) const RARP: u32 = 0x8035;
pub(super) const DECNET: u32 = 0x6003;
pub(super) const SAP_ISO: u32 = 0xfe;
pub(super) const SAP_IPX: u32 = 0xe0;

impl Link {
    /// The offsets of a link type, given its LINKTYPE number.
    pub(super) fn new(link_type: u16) -> Option<Link> {
        let Layout {
            kind,
            is_juniper,
            header,
            link_type,
            payload,
            network,
            network_no_snap,
        } = links::layout(link_type)?;
        let words = match kind {
            Kind::Wlan(_) => 2,
            Kind::PfLog => 1,
            _ if is_juniper => 1,
            _ => 0,
        };
        Some(Link {
            kind,
            is_juniper,
            bases: outermost(kind, is_juniper),
            words,
            words_most: words,
            is_inner: false,
            has_type: false,
            is_lane: false,
            header,
            link_type,
            payload,
            network,
            network_no_snap,
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
        (self.is_inner, self.is_lane, self.has_type) = (false, false, false);
        (self.bases.header, self.bases.link_type) = (self.bases.payload, self.bases.payload);
        self.link_type = self.header;
        self.payload = self.header + 2;
        (self.network, self.network_no_snap) = (0, 0);
    }

    /// Reserves three scratch words for the bases of another packet; `None` if too few are left.
    pub(super) fn reserve(&mut self) -> Option<Bases> {
        self.words += 3;
        self.words_most = self.words_most.max(self.words);
        let first = CELLS.checked_sub(self.words).filter(|&first| first > 0)?;
        Some(Bases {
            header: Some(first),
            link_type: Some(first + 1),
            payload: Some(first + 2),
        })
    }

    /// The bases of the packet as a whole.
    pub(super) fn outermost(&self) -> Bases {
        outermost(self.kind, self.is_juniper)
    }

    /// The scratch words that were ever reserved.
    pub(super) fn words(&self) -> Range<u32> {
        CELLS.saturating_sub(self.words_most)..CELLS
    }

    /// The offsets that follow apply to the inner packet of Geneve. As in libpcap, MPLS labels
    /// before it still count.
    pub(super) fn push_geneve(&mut self, bases: Bases) {
        self.kind = Kind::Ethernet;
        self.bases = bases;
        (self.is_inner, self.is_lane, self.has_type) = (true, false, false);
        (self.header, self.link_type, self.payload, self.network) = (0, 0, 0, 0);
    }

    /// The offsets that follow apply to the packet in a tunnel, whose EtherType is in the word of
    /// the type field.
    pub(super) fn push_tunnel(&mut self, bases: Bases) {
        self.push_geneve(bases);
        self.has_type = true;
        (self.network_no_snap, self.labels, self.is_juniper) = (3, 0, false);
    }

    /// The offsets that follow apply to the packet around the tunnel again. Its scratch words are
    /// free: tests run from left to right.
    pub(super) fn pop_tunnel(&mut self, outer: Link) {
        let words_most = self.words_most;
        *self = Link {
            words_most,
            ..outer
        };
    }

    /// The offsets that follow apply to the Ethernet packet of ATM LANE, after the LE header.
    pub(super) fn push_lane(&mut self) {
        let at = self.payload + 2;
        self.kind = Kind::Ethernet;
        self.is_lane = true;
        (self.header, self.link_type, self.payload) = (at, at + 12, at + 14);
        (self.network, self.network_no_snap) = (0, 3);
    }

    /// Whether the packet is one of Ethernet without anything before its header.
    pub(super) fn is_plain_ethernet(&self) -> bool {
        let is_first = self.header == 0 && !self.is_juniper;
        self.kind == Kind::Ethernet && (is_first || self.is_lane)
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

    /// Tests for an Ethernet header, if it may be missing: in Geneve, the link header and its
    /// payload are then at the same offset; in ATM LANE, an LE Control packet has none.
    pub(super) fn with_header(&self, cond: Cond) -> Cond {
        if self.is_lane {
            let control = self.eq(From::Start, self.header - 2, Size::H, LE_CONTROL);
            return control.negate().and(cond);
        }
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
            From::Start => None,
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
            From::Start => 0,
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
        if let (From::LinkType, true, Some(word)) = (from, self.has_type, self.bases.link_type) {
            return match self.link_type {
                0 => vec![insn(LD_MEM, word)],
                // Behind a VLAN tag it is in front of the payload.
                _ => self.load(From::Llc, offset.wrapping_sub(2), size),
            };
        }
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

    pub(super) fn bytes(&self, from: From, offset: u32, bytes: &[u8]) -> Cond {
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
        let Some((source, destination)) = self.mac_offsets() else {
            return Cond::Const(false);
        };
        if self.is_wlan() {
            return self.wlan_mac(address, way);
        }
        let is = way.both(|is_src| {
            let at = if is_src { source } else { destination };
            self.bytes(From::Header, at, &address)
        });
        self.with_header(is)
    }
}

/// The scratch words of a packet whose link header has a variable length.
fn outermost(kind: Kind, is_juniper: bool) -> Bases {
    match kind {
        _ if is_juniper => Bases {
            header: Some(CELLS - 1),
            link_type: Some(CELLS - 1),
            payload: Some(CELLS - 1),
        },
        Kind::Wlan(radio) => Bases {
            header: (radio != Radio::None).then_some(CELLS - 2),
            payload: Some(CELLS - 1),
            link_type: None,
        },
        Kind::PfLog => Bases {
            payload: Some(CELLS - 1),
            ..Bases::default()
        },
        _ => Bases::default(),
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
    /// One of the four addresses of an 802.11 frame, from 0.
    Address(u8),
    /// The receiver or the transmitter of an 802.11 frame.
    Receiver,
    Transmitter,
}

impl Way {
    pub(super) fn both(self, end: impl Fn(bool) -> Cond) -> Cond {
        match self {
            Way::Src => end(true),
            Way::Dst => end(false),
            Way::Both => end(true).and(end(false)),
            // Addresses of 802.11 frames are refused elsewhere.
            _ => end(true).or(end(false)),
        }
    }
}
