//! Hashes by which packets are distributed: equal for both directions, because source and
//! destination are added.

/// UDP port of GTP-U (3GPP TS 29.281 section 4.4.2).
const GTPU: u16 = 2152;

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk::<2>()?;
    Some(u16::from_be_bytes(*bytes))
}

/// The IP packet in an Ethernet packet, behind its VLAN tags.
fn ip(packet: &[u8]) -> Option<&[u8]> {
    const TAGS: [u16; 3] = [0x8100, 0x88a8, 0x9100];
    let mut at = 12;
    // As many tags as networks nest.
    for _ in 0..4 {
        match be16(packet, at)? {
            tag if TAGS.contains(&tag) => at += 4,
            0x0800 | 0x86dd => return packet.get(at + 2..),
            _ => return None,
        }
    }
    None
}

/// The sum of both addresses, the protocol, and the offset of what follows the header.
fn addresses(ip: &[u8]) -> Option<(u32, u8, usize)> {
    let (start, len, protocol, end) = match ip.first()? >> 4 {
        4 => (12, 8, *ip.get(9)?, usize::from(ip[0] & 0xf) * 4),
        6 => (8, 32, *ip.get(6)?, 40),
        _ => return None,
    };
    let (words, _) = ip.get(start..start + len)?.as_chunks::<4>();
    let words = words.iter().map(|word| u32::from_be_bytes(*word));
    Some((words.fold(0, u32::wrapping_add), protocol, end))
}

/// By addresses; 0 for packets without.
pub fn by_addresses(packet: &[u8]) -> u32 {
    ip(packet).and_then(addresses).map_or(0, |(sum, ..)| sum)
}

fn ports(ip: &[u8]) -> Option<u32> {
    let (sum, protocol, end) = addresses(ip)?;
    let both = match protocol {
        6 | 17 => u32::from(be16(ip, end)?) + u32::from(be16(ip, end + 2)?),
        _ => 0,
    };
    Some(sum.wrapping_add(both))
}

/// By addresses and ports of the packet in a GTP-U tunnel, otherwise of the packet itself.
pub fn by_gtp(packet: &[u8]) -> u32 {
    let Some(ip) = ip(packet) else { return 0 };
    let inside = || {
        let (_, protocol, end) = addresses(ip)?;
        let is_gtp = protocol == 17 && [be16(ip, end)?, be16(ip, end + 2)?].contains(&GTPU);
        let gtp = ip.get(end + 8..).filter(|_| is_gtp)?;
        // Version 1, and a packet of the user (section 5.1); with any option, four bytes more. With
        // extension headers, the tunnel is hashed.
        let (flags, kind) = (gtp.first()?, gtp.get(1)?);
        let len = if flags & 7 == 0 { 8 } else { 12 };
        let is_plain = flags >> 5 == 1 && flags & 4 == 0 && *kind == 255;
        ports(gtp.get(len..).filter(|_| is_plain)?)
    };
    inside().or_else(|| ports(ip)).unwrap_or(0)
}

/// By addresses, ports and protocol.
pub fn by_flow(packet: &[u8]) -> u32 {
    let sum = |ip: &[u8]| Some(ports(ip)?.wrapping_add(addresses(ip)?.1.into()));
    ip(packet).and_then(sum).unwrap_or(0)
}

/// By the addresses of the IP packet in a GRE tunnel (RFC 2784, RFC 2890), otherwise by addresses
/// and ports.
pub fn by_gre(packet: &[u8]) -> u32 {
    const GRE: u8 = 47;
    let Some(ip) = ip(packet) else { return 0 };
    let inside = || {
        let (_, protocol, end) = addresses(ip)?;
        let flags = be16(ip, end).filter(|_| protocol == GRE)?;
        // Without routing, and of version 0; checksum, key and sequence number are optional.
        let is_plain = flags & 0x4007 == 0 && [0x0800, 0x86dd].contains(&be16(ip, end + 2)?);
        let options = [0x8000, 0x2000, 0x1000]
            .iter()
            .filter(|&bit| flags & bit != 0);
        let start = end + 4 + 4 * options.count();
        let (sum, ..) = addresses(ip.get(start..).filter(|_| is_plain)?)?;
        Some(sum)
    };
    inside().or_else(|| ports(ip)).unwrap_or(0)
}
