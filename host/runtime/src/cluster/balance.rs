//! Distributes packets over the queues of an application: by a hash that is the same for both
//! directions of a flow, by filters, or by a table.

use std::sync::Arc;

use ring::slot::Slot;
use ring::{Frame, Pool};
use wire::{Dissection, Fragment, LayerKind, LinkType};

use super::table::Table;
use crate::filter::Expression;

/// How packets are distributed.
#[derive(Clone, Debug, Default)]
pub enum Balance {
    /// By addresses, ports and protocol: all packets of a connection are in one queue, also the
    /// ICMP errors that quote them. Fragments are distributed by addresses and protocol, because
    /// only the first one has the ports.
    #[default]
    Flow,
    /// Like `Flow`, by the innermost IP header of tunnelled packets.
    Inner,
    /// By addresses: all packets between two hosts are in one queue.
    Addresses,
    /// By the outer VLAN id.
    Vlan,
    /// One after the other: equal load, flows are split.
    RoundRobin,
    /// By filters, one for each queue: a packet goes to the first queue whose filter selects it.
    /// A blank filter selects all packets.
    Filters(Vec<Expression>),
    /// By a table of prefixes.
    Table(Arc<Table>),
}

/// A hash by which packets are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Flow,
    Inner,
    Addresses,
    InnerAddresses,
    Vlan,
}

impl Balance {
    /// The name in output and on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Flow => "flow",
            Self::Inner => "inner",
            Self::Addresses => "addresses",
            Self::Vlan => "vlan",
            Self::RoundRobin => "round-robin",
            Self::Filters(_) => "filters",
            Self::Table(_) => "table",
        }
    }

    /// Parses the name of a distribution that needs nothing else.
    ///
    /// # Errors
    /// What was expected.
    pub fn parse(name: &str) -> std::result::Result<Self, String> {
        Ok(match name {
            "flow" => Self::Flow,
            "inner" => Self::Inner,
            "addresses" => Self::Addresses,
            "vlan" => Self::Vlan,
            "round-robin" => Self::RoundRobin,
            _ => return Err("use flow, inner, addresses, vlan or round-robin".into()),
        })
    }

    /// The hash, if packets are distributed by one; of the packet inside its tunnels if these are
    /// removed.
    pub(super) fn kind(&self, is_detunnelled: bool) -> Option<Kind> {
        match self {
            Self::Flow if is_detunnelled => Some(Kind::Inner),
            Self::Addresses if is_detunnelled => Some(Kind::InnerAddresses),
            Self::Flow => Some(Kind::Flow),
            Self::Inner => Some(Kind::Inner),
            Self::Addresses => Some(Kind::Addresses),
            Self::Vlan => Some(Kind::Vlan),
            Self::RoundRobin | Self::Filters(_) | Self::Table(_) => None,
        }
    }
}

/// What is known of a packet: its first frame, and its metadata.
#[derive(Clone, Copy)]
pub(super) struct Seen<'a> {
    pub bytes: &'a [u8],
    pub wire_len: u32,
    /// Valid with [`Slot::TIME`].
    pub time_ns: u64,
    /// As in [`Slot::info`].
    pub info: u64,
}

impl<'a> Seen<'a> {
    #[inline(always)]
    pub fn of(pool: &'a Pool, frame: &'a Frame) -> Self {
        let descriptor = pool.descriptor(frame);
        Self {
            bytes: pool.bytes(frame),
            wire_len: descriptor.wire_len,
            time_ns: descriptor.time_ns,
            info: descriptor.info,
        }
    }

    pub fn has(&self, flag: u16) -> bool {
        self.info & u64::from(flag) != 0
    }

    /// The tag that is not among the bytes: its protocol and its control information.
    pub fn tag(&self) -> Option<(u16, u16)> {
        self.has(Slot::VLAN)
            .then_some(((self.info >> 32) as u16, (self.info >> 48) as u16))
    }
}

/// Mixes the bits of a word (the finalizer of MurmurHash3, public domain).
#[inline]
fn mix(mut word: u64) -> u64 {
    word ^= word >> 33;
    word = word.wrapping_mul(0xff51_afd7_ed55_8ccd);
    word ^= word >> 33;
    word = word.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ (word >> 33)
}

/// One end as a number: an address, of IPv4 in the first four bytes, and a port.
#[inline]
fn end(ip_version: u8, address: [u8; 16], port: u16) -> u64 {
    if ip_version == 4 {
        let [a, b, c, d, ..] = address;
        return end_v4([a, b, c, d], port);
    }
    end_v6(address, port)
}

#[inline(always)]
fn end_v6(address: [u8; 16], port: u16) -> u64 {
    let both = u128::from_ne_bytes(address);
    let (high, low) = ((both >> 64) as u64, both as u64);
    let high = high ^ u64::from(port);
    high.wrapping_mul(0xd6e8_feb8_6659_fd93).wrapping_add(low)
}

#[inline(always)]
fn end_v4(address: [u8; 4], port: u16) -> u64 {
    u64::from(u32::from_be_bytes(address)) << 16 | u64::from(port)
}

/// The hash of both ends and a protocol.
#[inline(always)]
fn of_ends(one: u64, other: u64, protocol: u8) -> u64 {
    // Sum and XOR are the same in both directions. With one end fixed, each other end has
    // another XOR; pairs that differ in both ends may share both.
    let difference = (one ^ other).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mix(difference.wrapping_add(one.wrapping_add(other)) ^ u64::from(protocol))
}

/// The hash of most packets, without a dissection: TCP or UDP in an Ethernet packet with a whole
/// IPv4 datagram without options (RFC 791 §3.1), or an IPv6 packet without extension headers (RFC
/// 8200 §3). `None` for others; the hash is the one that a dissection leads to.
#[inline(always)]
fn plain(is_flow: bool, seen: &Seen<'_>) -> Option<u64> {
    let ether_type = seen.bytes.get(IP - 2..)?.first_chunk()?;
    match u16::from_be_bytes(*ether_type) {
        0x0800 => plain_v4(is_flow, seen),
        0x86dd => plain_v6(is_flow, seen),
        _ => None,
    }
}

/// Whether it is TCP or UDP. Without a branch, like what it is part of: which of them comes next
/// cannot be predicted.
#[inline(always)]
fn is_tcp_or_udp(protocol: u8) -> bool {
    const BOTH: u64 = 1 << 6 | 1 << 17;
    (protocol < 64) & (BOTH >> (protocol & 63) & 1 != 0)
}

/// Offset of the IP header in an Ethernet packet without tags.
const IP: usize = 14;

#[inline(always)]
fn plain_v4(is_flow: bool, seen: &Seen<'_>) -> Option<u64> {
    /// With the first 8 bytes of the transport header.
    const LEN: usize = IP + 28;
    let head = seen.bytes.first_chunk::<LEN>()?;
    let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let address = |at: usize| [head[at], head[at + 1], head[at + 2], head[at + 3]];
    let total = u32::from(word(IP + 2));
    let protocol = head[IP + 9];
    let is_plain = (head[IP] == 0x45)
        & (word(IP + 6) & 0x3fff == 0)
        & is_tcp_or_udp(protocol)
        & (total >= 28)
        & (total <= seen.wire_len.saturating_sub(IP as u32));
    if !is_plain {
        return None;
    }
    let [one, other] = [address(IP + 12), address(IP + 16)];
    Some(match is_flow {
        true => {
            let ports = [word(IP + 20), word(IP + 22)];
            of_ends(end_v4(one, ports[0]), end_v4(other, ports[1]), protocol)
        }
        false => of_ends(end_v4(one, 0), end_v4(other, 0), 0),
    })
}

#[inline(always)]
fn plain_v6(is_flow: bool, seen: &Seen<'_>) -> Option<u64> {
    /// With the first 8 bytes of the transport header.
    const LEN: usize = IP + 48;
    let head = seen.bytes.first_chunk::<LEN>()?;
    let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let address = |at: usize| head.get(at..)?.first_chunk().copied();
    let payload = u32::from(word(IP + 4));
    let protocol = head[IP + 6];
    let is_plain = (head[IP] >> 4 == 6)
        & is_tcp_or_udp(protocol)
        & (payload >= 8)
        & (payload <= seen.wire_len.saturating_sub(IP as u32 + 40));
    if !is_plain {
        return None;
    }
    let [one, other] = [address(IP + 8)?, address(IP + 24)?];
    Some(match is_flow {
        true => {
            let ports = [word(IP + 40), word(IP + 42)];
            of_ends(end_v6(one, ports[0]), end_v6(other, ports[1]), protocol)
        }
        false => of_ends(end_v6(one, 0), end_v6(other, 0), 0),
    })
}

/// Hashes packets of one link type. Each hash of a packet is computed once.
pub(super) struct Hasher {
    link_type: LinkType,
    hashes: [u64; 5],
    /// One bit for each hash that was computed.
    known: u8,
    outer: Box<Dissection>,
    inner: Box<Dissection>,
    carried: Box<Dissection>,
    is_dissected: bool,
    is_carried: bool,
}

impl Hasher {
    pub fn new(link_type: LinkType) -> Self {
        Self {
            link_type,
            hashes: [0; 5],
            known: 0,
            outer: Box::new(Dissection::EMPTY),
            inner: Box::new(Dissection::EMPTY),
            carried: Box::new(Dissection::EMPTY),
            is_dissected: false,
            is_carried: false,
        }
    }

    /// Begins with the next packet.
    #[inline]
    pub fn next(&mut self) {
        self.known = 0;
        (self.is_dissected, self.is_carried) = (false, false);
    }

    /// The outermost level of the packet.
    #[inline]
    pub fn outer(&mut self, seen: &Seen<'_>) -> &Dissection {
        if !self.is_dissected {
            self.is_dissected = true;
            wire::dissect(self.link_type, seen.bytes, seen.wire_len, &mut self.outer);
        }
        &self.outer
    }

    /// The level of the packet inside all tunnels ([`wire::dissect_carried`]), or the outermost.
    #[inline]
    pub fn carried(&mut self, seen: &Seen<'_>) -> &Dissection {
        self.outer(seen);
        if self.outer.inner == LayerKind::None || self.outer.inner_is_quote {
            return &self.outer;
        }
        if !self.is_carried {
            self.is_carried = true;
            wire::dissect_carried(seen.bytes, &self.outer, &mut self.carried);
        }
        &self.carried
    }

    /// A hash of the packet.
    #[inline]
    pub fn hash(&mut self, kind: Kind, seen: &Seen<'_>) -> u64 {
        if self.known >> kind as u8 & 1 != 0 {
            return self.hashes[kind as usize];
        }
        let plain = self.plain(kind, seen);
        let hash = plain.unwrap_or_else(|| self.compute(kind, seen));
        self.hashes[kind as usize] = hash;
        self.known |= 1 << kind as u8;
        hash
    }

    /// The hash of a packet that needs no dissection for it.
    #[inline(always)]
    pub fn plain(&self, kind: Kind, seen: &Seen<'_>) -> Option<u64> {
        let is_outer = matches!(kind, Kind::Flow | Kind::Addresses);
        match is_outer && self.link_type == LinkType::ETHERNET {
            true => plain(kind == Kind::Flow, seen),
            false => None,
        }
    }

    #[inline(never)]
    fn compute(&mut self, kind: Kind, seen: &Seen<'_>) -> u64 {
        let packet = match kind {
            Kind::Inner | Kind::InnerAddresses => {
                let inner = &mut self.inner;
                wire::dissect_innermost(self.link_type, seen.bytes, seen.wire_len, inner);
                &self.inner
            }
            _ => {
                self.outer(seen);
                &self.outer
            }
        };
        if kind == Kind::Vlan {
            let outer = seen.tag().map(|(_, tci)| tci & 0xfff);
            return mix(outer.unwrap_or(packet.vlan_outer).into());
        }
        let quoted = quoted(seen.bytes, packet);
        let packet = quoted.as_ref().unwrap_or(packet);
        if packet.ip_version == 0 {
            return by_stations(self.link_type, seen.bytes);
        }
        let is_flow = !matches!(kind, Kind::Addresses | Kind::InnerAddresses);
        let has_ports = is_flow && packet.has_ports() && packet.fragment == Fragment::Whole;
        let ports = match has_ports {
            true => [packet.src_port, packet.dst_port],
            false => [0; 2],
        };
        let end = |address, port| end(packet.ip_version, address, port);
        let protocol = if is_flow { packet.ip_protocol } else { 0 };
        of_ends(
            end(packet.src, ports[0]),
            end(packet.dst, ports[1]),
            protocol,
        )
    }
}

/// The packet that an ICMP error quotes.
#[inline]
fn quoted(bytes: &[u8], packet: &Dissection) -> Option<Dissection> {
    if !packet.inner_is_quote {
        return None;
    }
    let mut inner = Dissection::EMPTY;
    let is_ip = wire::dissect_inner(bytes, packet, &mut inner) && inner.ip_version != 0;
    is_ip.then_some(inner)
}

/// Of packets without an IP header: by the addresses of the stations.
fn by_stations(link_type: LinkType, bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<12>() {
        Some([a, b, c, d, e, f, g, h, i, j, k, l]) if link_type == LinkType::ETHERNET => {
            let station = |m: [&u8; 6]| {
                let [a, b, c, d, e, f] = m.map(|byte| u64::from(*byte));
                mix(a << 40 | b << 32 | c << 24 | d << 16 | e << 8 | f)
            };
            mix(station([a, b, c, d, e, f]).wrapping_add(station([g, h, i, j, k, l])))
        }
        _ => 0,
    }
}

/// Another hash of the same packet.
#[inline]
pub(super) fn again(hash: u64) -> u64 {
    mix(hash ^ 0x9e37_79b9_7f4a_7c15)
}

/// The queue of a hash, from 0 up to `count`.
#[inline]
pub(super) fn pick(hash: u64, count: u32) -> u32 {
    (((hash >> 32) * u64::from(count)) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An Ethernet packet with IPv4 and UDP between these ends; `fragment` is the IP field.
    fn packet(from: (u32, u16), to: (u32, u16), fragment: u16) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0, 0, from.0 as u8, 2, 0, 0, 0, 0, to.0 as u8, 8, 0];
        bytes.extend([0x45, 0, 0, 28, 0, 1]);
        bytes.extend(fragment.to_be_bytes());
        bytes.extend([64, 17, 0, 0]);
        bytes.extend((0x0a00_0000 + from.0).to_be_bytes());
        bytes.extend((0x0a00_0000 + to.0).to_be_bytes());
        bytes.extend(from.1.to_be_bytes());
        bytes.extend(to.1.to_be_bytes());
        bytes.extend([0, 8, 0, 0]);
        bytes
    }

    /// An Ethernet packet with IPv6, from port 1000.
    fn packet_v6(protocol: u8, port: u16) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
        bytes.extend([0x60, 0, 0, 0, 0, 8, protocol, 64]);
        bytes.extend((1..=32).map(|byte: u8| byte.wrapping_mul(37)));
        bytes.extend(1000_u16.to_be_bytes());
        bytes.extend(port.to_be_bytes());
        bytes.extend([0, 8, 0, 0]);
        bytes
    }

    fn hash_with(kind: Kind, bytes: &[u8], info: u64) -> u64 {
        let seen = Seen {
            bytes,
            wire_len: bytes.len() as u32,
            time_ns: 0,
            info,
        };
        Hasher::new(LinkType::ETHERNET).hash(kind, &seen)
    }

    fn hash(kind: Kind, bytes: &[u8]) -> u64 {
        hash_with(kind, bytes, 0)
    }

    #[test]
    fn both_directions_and_all_fragments_have_one_hash() {
        let (a, b) = ((1, 1000), (2, 53));
        for balance in [Kind::Flow, Kind::Inner, Kind::Addresses] {
            let there = hash(balance, &packet(a, b, 0));
            assert_eq!(there, hash(balance, &packet(b, a, 0)));
            let other = hash(balance, &packet((1, 1001), b, 0));
            assert_eq!(there == other, balance == Kind::Addresses);
        }
        // The first fragment has ports, the last has not.
        let first = hash(Kind::Flow, &packet(a, b, 0x2000));
        assert_eq!(first, hash(Kind::Flow, &packet((1, 7), (2, 9), 0x0001)));
        let arp = [packet(a, b, 0), packet(b, a, 0)].map(|mut bytes| {
            bytes[12..14].copy_from_slice(&[8, 6]);
            hash(Kind::Flow, &bytes)
        });
        assert_eq!(arp[0], arp[1]);
        assert_eq!(hash(Kind::Flow, &[]), hash(Kind::Flow, &[1]));
    }

    /// Packets that differ from a plain one in any byte, and plain ones of every length.
    #[test]
    fn the_hash_without_a_dissection_is_that_of_the_dissection() {
        let mut plain_count = 0;
        let mut check = |bytes: &[u8], wire_len: usize| {
            let seen = Seen {
                bytes,
                wire_len: wire_len as u32,
                time_ns: 0,
                info: 0,
            };
            for kind in [Kind::Flow, Kind::Addresses] {
                let Some(hash) = plain(kind == Kind::Flow, &seen) else {
                    continue;
                };
                let mut hasher = Hasher::new(LinkType::ETHERNET);
                assert_eq!(hash, hasher.compute(kind, &seen), "{kind:?} {bytes:02x?}");
                plain_count += 1;
            }
        };
        for protocol in [6, 17] {
            for port in [53, 4789, 2152] {
                let mut packet = packet((1, 1000), (2, port), 0);
                packet.resize(74, 0);
                (packet[17], packet[23], packet[39]) = (60, protocol, 40);
                packet[46] = 0x50;
                for at in 0..packet.len() {
                    for value in [0, 1, 4, 5, 8, 0x45, 0x46, 0x60, 0x80, 0xff] {
                        let mut changed = packet.clone();
                        changed[at] = value;
                        check(&changed, 74);
                    }
                }
                for len in 0..packet.len() {
                    check(&packet[..len], len);
                    check(&packet[..len], packet.len());
                }
                let mut packet = packet_v6(protocol, port);
                packet.resize(94, 0);
                packet[19] = 40;
                for at in 0..packet.len() {
                    for value in [0, 1, 4, 6, 8, 17, 0x45, 0x60, 0x6f, 0x80, 0xff] {
                        let mut changed = packet.clone();
                        changed[at] = value;
                        check(&changed, 94);
                    }
                }
                for len in 0..packet.len() {
                    check(&packet[..len], len);
                    check(&packet[..len], packet.len());
                }
            }
        }
        assert!(plain_count > 5000, "{plain_count}");
    }

    #[test]
    fn flows_are_spread_evenly() {
        for count in [1, 2, 3, 4, 7] {
            let mut queues = vec![0; count as usize];
            for flow in 0..4000_u32 {
                let bytes = packet((flow / 100, (flow % 100) as u16), (777, 80), 0);
                queues[pick(hash(Kind::Flow, &bytes), count) as usize] += 1;
            }
            let mean = 4000 / count;
            let is_even = queues.iter().all(|&flows| flows > mean * 8 / 10);
            assert!(is_even, "{queues:?}");
        }
        assert_eq!((pick(0, 4), pick(u64::MAX, 4)), (0, 3));
    }
    /// In IP in IP (protocol 4) between fixed ends.
    fn in_tunnel(inner: &[u8]) -> Vec<u8> {
        let mut bytes = packet((7, 0), (8, 0), 0)[..34].to_vec();
        let len = 20 + inner.len() as u16 - 14;
        bytes[16..18].copy_from_slice(&len.to_be_bytes());
        bytes[23] = 4;
        bytes.extend(&inner[14..]);
        bytes
    }

    #[test]
    fn tunnels_and_tags_have_hashes_of_their_own() {
        let flows = [1, 2].map(|port| packet((1, port), (2, 53), 0));
        let tunnelled = flows.each_ref().map(|flow| in_tunnel(flow));
        let [a, b] = tunnelled.each_ref().map(|bytes| hash(Kind::Flow, bytes));
        assert_eq!(a, b, "one tunnel");
        for (inside, alone) in tunnelled.iter().zip(&flows) {
            assert_eq!(hash(Kind::Inner, inside), hash(Kind::Flow, alone));
        }
        assert_ne!(hash(Kind::Inner, &flows[0]), hash(Kind::Inner, &flows[1]));
        let tagged = |tci: u16| {
            let mut bytes = flows[0].clone();
            let [high, low] = tci.to_be_bytes();
            bytes.splice(12..12, [0x81, 0, high, low]);
            bytes
        };
        let by_vlan = |bytes: &[u8]| hash(Kind::Vlan, bytes);
        assert_eq!(by_vlan(&tagged(0x6005)), by_vlan(&tagged(5)), "priority");
        assert_ne!(by_vlan(&tagged(6)), by_vlan(&tagged(5)));
        let removed = u64::from(Slot::VLAN) | 0x8100 << 32 | 0x6005 << 48;
        assert_eq!(
            hash_with(Kind::Vlan, &flows[1], removed),
            by_vlan(&tagged(5))
        );
        assert_eq!(by_vlan(&flows[0]), by_vlan(&flows[1]));
    }
    #[test]
    fn icmp_errors_have_the_hash_of_the_flow_that_they_quote() {
        let flow = packet((1, 1000), (2, 53), 0);
        // Port unreachable, from the destination or from a router.
        for from in [2, 9] {
            let mut error = packet((from, 0), (1, 0), 0)[..34].to_vec();
            error[23] = 1;
            error[17] = 20 + 8 + 28;
            error.extend([3, 3, 0, 0, 0, 0, 0, 0]);
            error.extend(&flow[14..]);
            for kind in [Kind::Flow, Kind::Inner, Kind::Addresses] {
                assert_eq!(hash(kind, &error), hash(kind, &flow), "{from} {kind:?}");
            }
        }
    }
}
