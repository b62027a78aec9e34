//! Flow keys: the fields that packets of one flow have in common.
//!
//! A key has two *sides*, A and B, in an order that does not depend on the sender, so that both
//! directions of a biflow (RFC 5103) have the same key. The initiator is kept in the record.
//!
//! ICMP has no ports. Requests and replies (echo, timestamp, router solicitation, …) use the
//! sender's type and the type of the counterpart instead, all other messages type and code, as in
//! the Community ID specification; so a ping and its replies are one biflow.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::{Dissection, LayerKind};

use crate::HashKey;

/// One of the two ends of a key, also used as the direction of the packets that it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Side {
    /// The lower end.
    A = 0,
    /// The higher end.
    B = 1,
}

impl Side {
    /// The other end.
    #[inline]
    pub const fn other(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }
}

/// Key of a biflow: 44 bytes without padding, in an order from which six words are formed without a
/// shift.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FlowKey {
    /// Addresses of A and B; IPv4 uses the first four bytes, the rest is zero.
    addr: [[u8; 16]; 2],
    /// Ports of A and B, or the numbers used instead.
    port: [u16; 2],
    protocol: u8,
    /// IP version, 4 or 6, and [`NO_TYPE`] and [`NO_CODE`]; 0 for no key.
    version: u8,
    /// Interface of the capture; 0 if it is not part of the key.
    interface: u16,
    /// Outer and inner VLAN id; 0 if there is none, or if VLANs are not part of the key.
    vlan: [u16; 2],
}

/// The bits of the IP version.
const VERSION: u8 = 0x0f;
/// The type of an ICMP message is unknown: it was not captured, or is in a fragment that did not
/// arrive.
const NO_TYPE: u8 = 1 << 4;
/// The code is unknown.
const NO_CODE: u8 = 1 << 5;

impl PartialEq for FlowKey {
    #[inline(always)]
    fn eq(&self, other: &FlowKey) -> bool {
        // All six words at once, with one branch.
        let ([a, b, c, d, e, f], [u, v, w, x, y, z]) = (self.words(), other.words());
        (a ^ u) | (b ^ v) | (c ^ w) | (d ^ x) | (e ^ y) | (f ^ z) == 0
    }
}

impl Eq for FlowKey {}

impl std::hash::Hash for FlowKey {
    #[inline]
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        for word in self.words() {
            state.write_u64(word);
        }
    }
}

const _: () = assert!(size_of::<FlowKey>() == 44);

/// The two numbers used as ports, and whether the packet identifies its receiver as the initiator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ports {
    pub(crate) src: u16,
    pub(crate) dst: u16,
    pub(crate) is_answer: bool,
}

impl FlowKey {
    /// No key; differs from the key of every packet.
    pub(crate) const NONE: FlowKey = FlowKey {
        addr: [[0; 16]; 2],
        port: [0; 2],
        protocol: 0,
        version: 0,
        interface: 0,
        vlan: [0; 2],
    };

    /// The key of a packet from `src` to `dst`, and the sender's side, which is always A in a
    /// uniflow.
    #[inline]
    pub(crate) fn new(
        src: &[u8; 16],
        dst: &[u8; 16],
        ports: Ports,
        protocol: u8,
        version: u8,
        uniflow: bool,
    ) -> (FlowKey, Side) {
        let number = |addr: &[u8; 16]| {
            let (halves, _) = addr.as_chunks::<8>();
            rank(u64::from_ne_bytes(halves[0]), u64::from_ne_bytes(halves[1]))
        };
        let (s, d) = (number(src), number(dst));
        // Any total order works. Equal addresses are ordered by port.
        let swap = (s > d || (s == d && ports.src > ports.dst)) && !uniflow;
        let (a, b) = if swap { (d, s) } else { (s, d) };
        let port = if swap {
            [ports.dst, ports.src]
        } else {
            [ports.src, ports.dst]
        };
        let key = FlowKey {
            addr: [a.to_ne_bytes(), b.to_ne_bytes()],
            port,
            protocol,
            version,
            interface: 0,
            vlan: [0; 2],
        };
        (key, if swap { Side::B } else { Side::A })
    }

    /// Sets the addresses of an IPv4 packet, source first, before [turning](FlowKey::turn).
    #[inline(always)]
    pub(crate) fn set_raw_ipv4(&mut self, src: [u8; 4], dst: [u8; 4], protocol: u8) {
        let widen =
            |[a, b, c, d]: [u8; 4]| address(u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]), 0);
        self.addr = [widen(src), widen(dst)];
        self.set_raw_kind(protocol, 4);
    }

    /// The same for IPv6.
    #[inline(always)]
    pub(crate) fn set_raw_ipv6(&mut self, src: [u8; 16], dst: [u8; 16], protocol: u8) {
        self.addr = [src, dst];
        self.set_raw_kind(protocol, 6);
    }

    #[inline(always)]
    fn set_raw_kind(&mut self, protocol: u8, version: u8) {
        self.protocol = protocol;
        self.version = version;
        self.interface = 0;
        self.vlan = [0; 2];
    }

    /// Sets the ports as they are in a header.
    #[inline(always)]
    pub(crate) fn set_raw_ports(&mut self, [a, b, c, d]: [u8; 4]) {
        self.port = [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])];
    }

    /// Sorts the ends without a branch, because their order is as good as random. Returns the side
    /// that was first, and the words of the key.
    #[inline(always)]
    pub(crate) fn turn(&mut self, uniflow: bool) -> (Side, [u64; 6]) {
        let [s_low, s_high, d_low, d_high, rest, last] = self.words();
        let (s, d) = (rank(s_low, s_high), rank(d_low, d_high));
        // As in `new`.
        let swap = ((s > d) | ((s == d) & (self.port[0] > self.port[1]))) & !uniflow;
        let mask = 0_u64.wrapping_sub(swap.into());
        let low = (s_low ^ d_low) & mask;
        let high = (s_high ^ d_high) & mask;
        let ports = rest as u32;
        let turned = (ports ^ ports.rotate_left(16)) & mask as u32;
        let words = [
            s_low ^ low,
            s_high ^ high,
            d_low ^ low,
            d_high ^ high,
            rest ^ u64::from(turned),
            last,
        ];
        self.addr = [address(words[0], words[1]), address(words[2], words[3])];
        self.port = [words[4] as u16, (words[4] >> 16) as u16];
        (if swap { Side::B } else { Side::A }, words)
    }

    /// Separates ICMP messages whose type or code is not in the packet from those that have a 0
    /// there.
    #[inline]
    pub(crate) fn set_unread(&mut self, level: &Dissection) {
        if !self.is_icmp() || level.icmp_code_read {
            return;
        }
        let [one, other] = self.port;
        if !level.icmp_type_read {
            self.version |= NO_TYPE | NO_CODE;
        } else if !is_pair(self.ip_version(), one, other) {
            self.version |= NO_CODE;
        }
    }

    /// Makes the VLAN ids part of the key.
    #[inline]
    pub(crate) fn set_vlan(&mut self, outer: u16, inner: u16) {
        self.vlan = [outer, inner];
    }

    /// Makes the interface part of the key.
    #[inline]
    pub(crate) fn set_interface(&mut self, index: u16) {
        self.interface = index;
    }

    /// Keyed hash of the key: equal for both directions of a flow, and with the same secret equal
    /// in every run and version, on machines of the same byte order.
    pub fn hash_with(&self, secret: &HashKey) -> u64 {
        secret.hash(&self.words())
    }

    /// The key as words, for hashing and comparing.
    #[inline(always)]
    pub(crate) fn words(&self) -> [u64; 6] {
        let half = |side: usize, at: usize| {
            let (halves, _) = self.addr[side].as_chunks::<8>();
            u64::from_ne_bytes(halves[at])
        };
        let word = |low: [u16; 4]| {
            u64::from(low[0])
                | u64::from(low[1]) << 16
                | u64::from(low[2]) << 32
                | u64::from(low[3]) << 48
        };
        let kind = u16::from(self.protocol) | u16::from(self.version) << 8;
        [
            half(0, 0),
            half(0, 1),
            half(1, 0),
            half(1, 1),
            word([self.port[0], self.port[1], kind, self.interface]),
            word([self.vlan[0], self.vlan[1], 0, 0]),
        ]
    }

    /// Loads its first bytes into the cache.
    #[inline(always)]
    pub(crate) fn touch(&self) -> u64 {
        u64::from(self.addr[0][0])
    }

    /// Whether it is a valid key.
    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        self.version != 0
    }

    /// The address of a side.
    pub fn addr(&self, side: Side) -> IpAddr {
        let bytes = self.addr[side as usize];
        if self.ip_version() == 4 {
            IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]))
        } else {
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
    }

    /// The address of a side as bytes: IPv4 uses the first four, the others are zero.
    #[inline]
    pub fn addr_bytes(&self, side: Side) -> &[u8; 16] {
        &self.addr[side as usize]
    }

    /// The port of a side. Protocols without ports have 0; ICMP has its type on the side that sent
    /// it, and on the other the code, or the type of the reply (see the module documentation); both
    /// are 0 if they are unknown.
    #[inline]
    pub fn port(&self, side: Side) -> u16 {
        self.port[side as usize]
    }

    /// The port of a side; 0 for an ICMP message whose type or code is unknown.
    #[inline(always)]
    pub(crate) fn transport_port(&self, side: Side) -> u16 {
        match self.version & (NO_TYPE | NO_CODE) {
            0 => self.port[side as usize],
            _ => 0,
        }
    }

    /// The type of an ICMP message sent by `sender`; `None` for other protocols, and if it is
    /// unknown, because the packet was truncated before it.
    pub fn icmp_type(&self, sender: Side) -> Option<u8> {
        (self.is_icmp() && self.version & NO_TYPE == 0).then(|| self.port(sender) as u8)
    }

    /// The code of an ICMP message sent by `sender`: the number on the other side, unless that is
    /// the type of a reply (all of those have code 0); `None` as for the type.
    pub fn icmp_code(&self, sender: Side) -> Option<u8> {
        self.icmp_type(sender)?;
        if is_pair(
            self.ip_version(),
            self.port(sender),
            self.port(sender.other()),
        ) {
            return Some(0);
        }
        (self.version & NO_CODE == 0).then(|| self.port(sender.other()) as u8)
    }

    /// Type and code of an ICMP message sent by `sender`, if both are known.
    pub fn icmp_type_code(&self, sender: Side) -> Option<[u8; 2]> {
        Some([self.icmp_type(sender)?, self.icmp_code(sender)?])
    }

    /// Whether it is ICMP of which type and code are known.
    #[inline]
    pub(crate) fn has_icmp_type(&self) -> bool {
        let is_known = self.version & (NO_TYPE | NO_CODE) == 0;
        self.is_icmp() && (is_known || self.icmp_type_code(Side::A).is_some())
    }

    /// The IP protocol after all extension headers.
    #[inline]
    pub fn protocol(&self) -> u8 {
        self.protocol
    }

    /// IP version, 4 or 6.
    #[inline]
    pub fn ip_version(&self) -> u8 {
        self.version & VERSION
    }

    /// Outer and inner VLAN id; 0 if there is none, or if VLANs are not part of the key.
    #[inline]
    pub fn vlan(&self) -> [u16; 2] {
        self.vlan
    }

    /// The interface of the capture if it is part of the key, otherwise 0.
    #[inline]
    pub fn interface(&self) -> u16 {
        self.interface
    }

    /// Whether the protocol is ICMP for this IP version.
    #[inline]
    pub fn is_icmp(&self) -> bool {
        matches!((self.ip_version(), self.protocol), (4, 1) | (6, 58))
    }
}

/// Sort key of an address, from its halves as words.
#[inline(always)]
fn rank(first: u64, second: u64) -> u128 {
    u128::from(first) | u128::from(second) << 64
}

/// The address with these halves.
#[inline(always)]
fn address(first: u64, second: u64) -> [u8; 16] {
    let [a, b, c, d, e, f, g, h] = first.to_ne_bytes();
    let [i, j, k, l, m, n, o, p] = second.to_ne_bytes();
    [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
}

/// Rarely used parts of a key, 24 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct KeyExtra {
    /// MAC addresses of the stations that forwarded the packets of A and B; zero without Ethernet.
    pub mac: [[u8; 6]; 2],
    /// Top label of the MPLS stack (20 bits).
    pub mpls_label: u32,
    /// Number of the tunnel around the IP header that defines the flow (VXLAN or GENEVE network,
    /// GTP-U endpoint, GRE key and so on), or, if that header is the outermost one, inside it.
    pub tunnel_id: u32,
    /// Type of service or traffic class: DSCP and ECN.
    pub traffic_class: u8,
    unused: [u8; 3],
}

impl KeyExtra {
    /// No extra parts.
    pub const NONE: KeyExtra = KeyExtra {
        mac: [[0; 6]; 2],
        mpls_label: 0,
        tunnel_id: 0,
        traffic_class: 0,
        unused: [0; 3],
    };

    /// The bytes as words, for hashing.
    pub(crate) fn words(&self) -> [u64; 3] {
        let mac = |side: usize| {
            let [a, b, c, d, e, f] = self.mac[side];
            u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
        };
        [
            mac(0) | u64::from(self.traffic_class) << 48,
            mac(1),
            u64::from(self.mpls_label) | u64::from(self.tunnel_id) << 32,
        ]
    }
}

impl std::fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} {} <-> {} {} protocol {} vlan {:?} interface {}",
            self.addr(Side::A),
            self.port[0],
            self.addr(Side::B),
            self.port[1],
            self.protocol,
            self.vlan,
            self.interface
        )
    }
}

/// The numbers used as ports, from a dissected packet.
#[inline]
pub(crate) fn ports(level: &Dissection) -> Ports {
    const ICMP: u64 = LayerKind::Icmpv4.bit() | LayerKind::Icmpv6.bit();
    if level.layer_mask & ICMP == 0 {
        return Ports {
            src: level.src_port,
            dst: level.dst_port,
            is_answer: false,
        };
    }
    icmp_ports(level)
}

#[inline(never)]
fn icmp_ports(level: &Dissection) -> Ports {
    // The type may be missing in a truncated header: see `FlowKey::set_unread`.
    if !level.icmp_type_read {
        return Ports::default();
    }
    let pairs = if level.ip_version == 4 {
        ICMPV4_PAIRS
    } else {
        ICMPV6_PAIRS
    };
    let kind = level.icmp_type;
    for &(asked, answered) in pairs {
        if kind == asked || kind == answered {
            let counterpart = if kind == asked { answered } else { asked };
            return Ports {
                src: kind.into(),
                dst: counterpart.into(),
                is_answer: kind == answered,
            };
        }
    }
    Ports {
        src: kind.into(),
        dst: level.icmp_code.into(),
        is_answer: false,
    }
}

/// Whether the two numbers are the types of a request and its reply.
fn is_pair(version: u8, one: u16, other: u16) -> bool {
    let pairs = if version == 4 {
        ICMPV4_PAIRS
    } else {
        ICMPV6_PAIRS
    };
    pairs.iter().any(|&(asked, answered)| {
        let (asked, answered) = (u16::from(asked), u16::from(answered));
        (one, other) == (asked, answered) || (one, other) == (answered, asked)
    })
}

/// Types of requests and replies: echo, router, timestamp, information, address mask (RFC 792, RFC
/// 1256, RFC 950).
const ICMPV4_PAIRS: &[(u8, u8)] = &[(8, 0), (10, 9), (13, 14), (15, 16), (17, 18)];

/// Echo, listener query, router, neighbor, node information, home agent discovery (RFC 4443, RFC
/// 2710, RFC 4861, RFC 4620, RFC 6275).
const ICMPV6_PAIRS: &[(u8, u8)] = &[
    (128, 129),
    (130, 131),
    (133, 134),
    (135, 136),
    (139, 140),
    (144, 145),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(src: u16, dst: u16) -> Ports {
        Ports {
            src,
            dst,
            is_answer: false,
        }
    }

    #[test]
    fn both_directions_have_one_key() {
        let (x, y) = ([1; 16], [2; 16]);
        for (src, dst, s, d) in [(x, y, 5, 9), (x, y, 9, 5), (x, x, 5, 9), (x, x, 5, 5)] {
            let (there, from) = FlowKey::new(&src, &dst, ports(s, d), 6, 6, false);
            let (back, to) = FlowKey::new(&dst, &src, ports(d, s), 6, 6, false);
            assert_eq!(there, back);
            assert_eq!(there.words(), back.words());
            assert_eq!((there.port(from), there.port(from.other())), (s, d));
            if (src, s) != (dst, d) {
                assert_eq!(from, to.other());
            }
        }
    }

    /// Collectors that share a probe's flows keep their assignment when it is updated.
    #[cfg(target_endian = "little")]
    #[test]
    fn the_hash_of_a_key_never_changes() {
        let secret = HashKey::from_seed(0);
        let hash = |last: u8, port: u16| {
            let (a, b) = ([1; 16], [last; 16]);
            let key = FlowKey::new(&a, &b, ports(port, 443), 6, 6, false).0;
            key.hash_with(&secret)
        };
        let hashes = [hash(2, 40_000), hash(2, 40_001), hash(3, 40_000)];
        let always = [
            13_754_796_508_652_531_420,
            14_526_721_341_279_293_661,
            16_958_202_908_424_638_092,
        ];
        assert_eq!(hashes, always);
    }

    #[test]
    fn every_part_of_the_key_separates_flows() {
        let base = FlowKey::new(&[1; 16], &[2; 16], ports(1, 2), 6, 4, false).0;
        let mut others = vec![
            FlowKey::new(&[3; 16], &[2; 16], ports(1, 2), 6, 4, false).0,
            FlowKey::new(&[1; 16], &[3; 16], ports(1, 2), 6, 4, false).0,
            FlowKey::new(&[1; 16], &[2; 16], ports(3, 2), 6, 4, false).0,
            FlowKey::new(&[1; 16], &[2; 16], ports(1, 3), 6, 4, false).0,
            FlowKey::new(&[1; 16], &[2; 16], ports(2, 1), 6, 4, false).0,
            FlowKey::new(&[1; 16], &[2; 16], ports(1, 2), 17, 4, false).0,
            FlowKey::new(&[1; 16], &[2; 16], ports(1, 2), 6, 6, false).0,
        ];
        for (outer, inner, interface) in [(1, 0, 0), (0, 1, 0), (0, 0, 1)] {
            let mut other = base;
            other.set_vlan(outer, inner);
            other.set_interface(interface);
            others.push(other);
        }
        for (at, other) in others.iter().enumerate() {
            assert_ne!(base, *other);
            assert_ne!(base.words(), other.words());
            assert!(others[..at].iter().all(|o| o.words() != other.words()));
        }
    }

    #[test]
    fn a_ping_and_its_reply_are_one_biflow() {
        let level = |icmp_type, icmp_code| Dissection {
            ip_version: 4,
            ip_protocol: 1,
            icmp_type,
            icmp_code,
            icmp_type_read: true,
            icmp_code_read: true,
            layer_mask: LayerKind::Icmpv4.bit(),
            ..Dissection::EMPTY
        };
        let request = super::ports(&level(8, 0));
        let reply = super::ports(&level(0, 0));
        assert_eq!((request.src, request.dst), (reply.dst, reply.src));
        assert!(reply.is_answer && !request.is_answer);
        // Port unreachable: type and code.
        assert_eq!(super::ports(&level(3, 3)), ports(3, 3));
    }
}
