//! Rewrites captured packets for another network: addresses, ports, tags, TTL, checksums.
//!
//! Checksums are updated incrementally (RFC 1624), so one that was wrong in the capture stays wrong
//! by as much, unless all are to be recomputed. The outermost IP header and its transport header
//! are changed, addresses in ARP, and the packet quoted by an ICMP error, so that the error still
//! belongs to its flow. The contents of tunnels are left unchanged.

use wire::{Dissection, LayerKind, LinkType, Mac, checksum, dissect, dissect_inner};

use crate::map::{AddrMap, PortMap};
use crate::vlan::Tag;
use crate::{Error, PACKET_LEN_MIN, Result};

/// Why a packet cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Empty, or shorter than a link header.
    TooShort,
    /// From a capture without Ethernet headers, and not an IP packet: no Ethernet header can be
    /// built.
    NotIp,
}

/// Changes to make; the default changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewriter {
    /// New source MAC address.
    pub src_mac: Option<Mac>,
    /// New destination MAC address.
    pub dst_mac: Option<Mac>,
    /// Remove all VLAN tags first.
    pub strip_tags: bool,
    /// Tags to add, outermost first.
    pub push_tags: Vec<Tag>,
    /// Maps for source and destination addresses; the first match is used.
    pub addr_maps: Vec<AddrMap>,
    /// Maps for source and destination ports of TCP and UDP; the first match is used.
    pub port_maps: Vec<PortMap>,
    /// New time to live or hop limit.
    pub ttl: Option<u8>,
    /// Recompute the checksums of IPv4, TCP, UDP, ICMP and ICMPv6 where the whole datagram is
    /// present. For captures made on the sender, where the card fills them in later.
    pub fix_checksums: bool,
}

impl Rewriter {
    /// Maximum growth of a packet in bytes.
    pub const GROWTH_MAX: usize = 14 + 4 * crate::vlan::TAG_COUNT_MAX + PACKET_LEN_MIN;

    /// Whether packets of this link type are left unchanged.
    pub fn is_identity(&self, link: LinkType) -> bool {
        link == LinkType::ETHERNET && *self == Self::default()
    }

    /// Checks that packets of this link type can be sent on Ethernet.
    ///
    /// # Errors
    /// For a link type without Ethernet headers if no MAC addresses are given, or one whose IP
    /// packets cannot be located.
    pub fn check(&self, link: LinkType) -> Result<()> {
        if link == LinkType::ETHERNET {
            return Ok(());
        }
        if !link.may_carry_ip() {
            let why = format!("its packets are {link}, which cannot be put on Ethernet");
            return Err(Error::new(why).with_hint("Ethernet and link types of IP can be sent"));
        }
        if self.src_mac.is_none() || self.dst_mac.is_none() {
            let why = format!("its packets are {link}: they have no Ethernet header");
            let hint = "give --src-mac and --dst-mac to put their IP packets behind one";
            return Err(Error::new(why).with_hint(hint));
        }
        Ok(())
    }

    /// Appends the changed packet to `out`. `wire_len` is its length on the wire, more than
    /// `packet.len()` if the capture truncated it.
    ///
    /// # Errors
    /// Why the packet cannot be sent; `out` is then unchanged.
    pub fn apply(
        &self,
        packet: &[u8],
        wire_len: u32,
        link: LinkType,
        out: &mut Vec<u8>,
    ) -> std::result::Result<(), Refused> {
        let start = out.len();
        self.put_link(packet, wire_len, link, out)?;
        let new = &mut out[start..];
        if let (Some(mac), Some(to)) = (self.dst_mac, new.get_mut(..6)) {
            to.copy_from_slice(&mac.0);
        }
        if let (Some(mac), Some(to)) = (self.src_mac, new.get_mut(6..12)) {
            to.copy_from_slice(&mac.0);
        }
        let changes = !self.addr_maps.is_empty()
            || !self.port_maps.is_empty()
            || self.ttl.is_some()
            || self.fix_checksums;
        if changes {
            let cut = wire_len.saturating_sub(packet.len() as u32);
            self.change(new, cut);
        }
        Ok(())
    }

    /// Appends the packet with its new link header.
    fn put_link(
        &self,
        packet: &[u8],
        wire_len: u32,
        link: LinkType,
        out: &mut Vec<u8>,
    ) -> std::result::Result<(), Refused> {
        if link != LinkType::ETHERNET {
            return self.put_ethernet(packet, wire_len, link, out);
        }
        if packet.len() < 14 {
            return Err(Refused::TooShort);
        }
        let mut rest = &packet[12..];
        while self.strip_tags
            && rest.len() >= 6
            && matches!(
                u16::from_be_bytes([rest[0], rest[1]]),
                0x8100 | 0x88a8 | 0x9100
            )
        {
            rest = &rest[4..];
        }
        out.extend_from_slice(&packet[..12]);
        self.put_tags(out);
        out.extend_from_slice(rest);
        Ok(())
    }

    fn put_tags(&self, out: &mut Vec<u8>) {
        for tag in &self.push_tags {
            out.extend_from_slice(&tag.tpid.to_be_bytes());
            out.extend_from_slice(&tag.tci.to_be_bytes());
        }
    }

    /// Writes an Ethernet header for the IP packet of another link type.
    fn put_ethernet(
        &self,
        packet: &[u8],
        wire_len: u32,
        link: LinkType,
        out: &mut Vec<u8>,
    ) -> std::result::Result<(), Refused> {
        let mut d = Dissection::EMPTY;
        dissect(link, packet, wire_len, &mut d);
        let ethertype: u16 = match d.ip_version {
            4 => 0x0800,
            6 => 0x86dd,
            _ => return Err(Refused::NotIp),
        };
        let start = out.len();
        out.extend_from_slice(&[0; 12]);
        self.put_tags(out);
        out.extend_from_slice(&ethertype.to_be_bytes());
        out.extend_from_slice(&packet[usize::from(d.ip_offset)..]);
        let len = (out.len() - start).max(PACKET_LEN_MIN);
        out.resize(start + len, 0);
        Ok(())
    }

    fn change(&self, packet: &mut [u8], cut: u32) {
        let mut d = Dissection::EMPTY;
        dissect(
            LinkType::ETHERNET,
            packet,
            packet.len() as u32 + cut,
            &mut d,
        );
        if d.has(LayerKind::Arp) {
            self.change_arp(packet, &d);
        }
        if d.ip_version == 0 {
            return;
        }
        let quote = d.inner_is_quote.then(|| Piece::of_quote(packet, &d));
        self.change_level(packet, &d, true);
        if let Some(old) = quote {
            self.change_quote(packet, &d, &old);
        }
        if self.fix_checksums {
            fix(packet, &d);
        }
    }

    /// Changes one IP header and its transport header.
    fn change_level(&self, packet: &mut [u8], d: &Dissection, outermost: bool) {
        let (ip, is_v4) = (usize::from(d.ip_offset), d.ip_version == 4);
        let (len, at) = if is_v4 { (4, [12, 16]) } else { (16, [8, 24]) };
        let transport = transport_checksum_at(d);
        for offset in at {
            let Some(field) = packet.get_mut(ip + offset..ip + offset + len) else {
                return;
            };
            let mut old = [0; 16];
            old[..len].copy_from_slice(field);
            let bits = u128::from_be_bytes(old) >> (128 - 8 * len);
            let Some(new) = self.map_addr(bits, d.ip_version) else {
                continue;
            };
            let new = (new << (128 - 8 * len)).to_be_bytes();
            field.copy_from_slice(&new[..len]);
            if is_v4 {
                update(packet, Some(ip + 10), &old[..len], &new[..len], false);
            }
            // ICMP has no pseudo header.
            if d.ip_protocol != 1 {
                update(
                    packet,
                    transport,
                    &old[..len],
                    &new[..len],
                    d.ip_protocol == 17,
                );
            }
        }
        if let Some(ttl) = self.ttl.filter(|_| outermost) {
            self.change_ttl(packet, ip, is_v4, ttl);
        }
        if d.has_ports() {
            self.change_ports(packet, d, transport);
        }
    }

    fn change_ttl(&self, packet: &mut [u8], ip: usize, is_v4: bool, ttl: u8) {
        let at = if is_v4 { ip + 8 } else { ip + 7 };
        let old = packet[at];
        packet[at] = ttl;
        if is_v4 {
            // TTL and protocol form one 16-bit word of the checksum.
            let protocol = packet[at + 1];
            update(
                packet,
                Some(ip + 10),
                &[old, protocol],
                &[ttl, protocol],
                false,
            );
        }
    }

    fn change_ports(&self, packet: &mut [u8], d: &Dissection, transport: Option<usize>) {
        let start = usize::from(d.transport_offset);
        for at in [start, start + 2] {
            let Some(field) = packet.get_mut(at..at + 2) else {
                return;
            };
            let old = [field[0], field[1]];
            let port = u16::from_be_bytes(old);
            let Some(new) = self.port_maps.iter().find_map(|map| map.apply(port)) else {
                continue;
            };
            field.copy_from_slice(&new.to_be_bytes());
            update(
                packet,
                transport,
                &old,
                &new.to_be_bytes(),
                d.ip_protocol == 17,
            );
        }
    }

    /// Changes sender and target address of ARP for IPv4 on Ethernet (RFC 826).
    fn change_arp(&self, packet: &mut [u8], d: &Dissection) {
        let Some(arp) = d.offset_of(LayerKind::Arp) else {
            return;
        };
        let Some(arp) = packet.get_mut(arp..arp + 28) else {
            return;
        };
        if arp[..6] != [0, 1, 8, 0, 6, 4] {
            return;
        }
        for at in [14, 24] {
            let old = u32::from_be_bytes([arp[at], arp[at + 1], arp[at + 2], arp[at + 3]]);
            if let Some(new) = self.map_addr(old.into(), 4) {
                arp[at..at + 4].copy_from_slice(&(new as u32).to_be_bytes());
            }
        }
    }

    /// Changes the packet quoted by an ICMP error as its original was, then the checksum of the
    /// error, which covers it.
    fn change_quote(&self, packet: &mut [u8], outer: &Dissection, old: &Piece) {
        let mut d = Dissection::EMPTY;
        if !dissect_inner(packet, outer, &mut d) || d.ip_version == 0 {
            return;
        }
        self.change_level(packet, &d, false);
        let at = old.at;
        let new = Piece::new(packet, at);
        let checksum_at = transport_checksum_at(outer);
        update(
            packet,
            checksum_at,
            &old.bytes[..old.len],
            &new.bytes[..old.len],
            false,
        );
    }

    #[inline]
    fn map_addr(&self, bits: u128, version: u8) -> Option<u128> {
        let maps = self.addr_maps.iter().filter(|map| map.version() == version);
        maps.map(|map| map.apply(bits)).find_map(|new| new)
    }
}

/// The start of an ICMP error's quote: enough for every header that is changed in it.
struct Piece {
    at: usize,
    len: usize,
    bytes: [u8; 256],
}

impl Piece {
    fn of_quote(packet: &[u8], d: &Dissection) -> Self {
        Self::new(packet, d.inner_offset as usize)
    }

    fn new(packet: &[u8], at: usize) -> Self {
        let mut bytes = [0; 256];
        let rest = packet.get(at..).unwrap_or(&[]);
        let len = rest.len().min(bytes.len());
        bytes[..len].copy_from_slice(&rest[..len]);
        Self { at, len, bytes }
    }
}

/// Offset of the transport checksum, if this packet has that header.
fn transport_checksum_at(d: &Dissection) -> Option<usize> {
    if d.fragment.is_later() || d.transport_offset == 0 {
        return None;
    }
    let offset = match d.ip_protocol {
        6 => 16,
        17 | 136 => 6,
        1 | 58 => 2,
        _ => return None,
    };
    Some(usize::from(d.transport_offset) + offset)
}

/// Updates the checksum at `at`, if it is present. A UDP checksum of 0 means none, and stays.
fn update(packet: &mut [u8], at: Option<usize>, old: &[u8], new: &[u8], is_udp: bool) {
    let Some(field) = at.and_then(|at| packet.get_mut(at..at + 2)) else {
        return;
    };
    let value = u16::from_be_bytes([field[0], field[1]]);
    if is_udp && value == 0 {
        return;
    }
    let mut value = checksum::update(value, old, new);
    if is_udp {
        value = checksum::udp(value);
    }
    field.copy_from_slice(&value.to_be_bytes());
}

/// Recomputes the checksums of one level if everything they cover is present.
fn fix(packet: &mut [u8], d: &Dissection) {
    let ip = usize::from(d.ip_offset);
    let end = ip + d.ip_total_len as usize;
    let transport = usize::from(d.transport_offset);
    if d.ip_version == 4 {
        let header_len = usize::from(packet[ip] & 15) * 4;
        let header = packet.get_mut(ip..ip + header_len);
        // Hostile input: a header length below the minimum.
        let Some(header) = header.filter(|h| h.len() >= 20) else {
            return;
        };
        header[10..12].fill(0);
        let value = checksum::checksum(header);
        header[10..12].copy_from_slice(&value.to_be_bytes());
    }
    let Some(at) = transport_checksum_at(d) else {
        return;
    };
    let whole = d.fragment == wire::Fragment::Whole && end <= packet.len() && at + 2 <= end;
    // UDP-Lite has its own coverage field (RFC 3828): left unchanged.
    if !whole || d.ip_protocol == 136 {
        return;
    }
    let is_udp = d.ip_protocol == 17;
    if is_udp && d.ip_version == 4 && packet[at..at + 2] == [0, 0] {
        return;
    }
    packet[at..at + 2].fill(0);
    let len = (end - transport) as u32;
    let sum = match (d.src_addr(), d.dst_addr()) {
        _ if d.ip_protocol == 1 => checksum::Sum::new(),
        (Some(std::net::IpAddr::V4(src)), Some(std::net::IpAddr::V4(dst))) => {
            // The addresses may have been changed since the dissection.
            let (src, dst) = addrs_v4(packet, ip).unwrap_or((src, dst));
            checksum::Sum::new().add_pseudo_ipv4(src, dst, d.ip_protocol, len as u16)
        }
        (Some(std::net::IpAddr::V6(_)), _) => checksum::Sum::new()
            .add_bytes(&packet[ip + 8..ip + 40])
            .add_u32(len)
            .add_u32(d.ip_protocol.into()),
        _ => return,
    };
    let mut value = sum.add_bytes(&packet[transport..end]).finish();
    if is_udp {
        value = checksum::udp(value);
    }
    packet[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn addrs_v4(packet: &[u8], ip: usize) -> Option<(std::net::Ipv4Addr, std::net::Ipv4Addr)> {
    let (src, rest) = packet.get(ip + 12..ip + 20)?.split_first_chunk::<4>()?;
    let dst = rest.first_chunk::<4>()?;
    Some(((*src).into(), (*dst).into()))
}

#[cfg(test)]
mod tests;
