//! Templates of generated packets: headers with fixed and varying fields.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::generator::Generator;
use crate::range::{Order, Range};
use crate::size::Sizes;
use crate::vlan::Tag;
use crate::{Error, Result};

/// Source and destination addresses, of one IP version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// IPv4.
    V4 {
        /// Source.
        src: Range,
        /// Destination.
        dst: Range,
    },
    /// IPv6.
    V6 {
        /// Source.
        src: Range,
        /// Destination.
        dst: Range,
    },
}

impl Addresses {
    /// Parses two texts as in [`Range::addrs`].
    ///
    /// # Errors
    /// The error names the invalid text; both must have the same IP version.
    pub fn parse(src: &str, dst: &str) -> Result<Self> {
        let (version, src) = Range::addrs(src)?;
        let (dst_version, dst) = Range::addrs(dst)?;
        match (version, dst_version) {
            (4, 4) => Ok(Self::V4 { src, dst }),
            (6, 6) => Ok(Self::V6 { src, dst }),
            _ => {
                let why = format!("the source is IPv{version}, the destination IPv{dst_version}");
                Err(Error::new(why).with_hint("give both of one version"))
            }
        }
    }

    /// The only destination, if there is one.
    pub fn single_destination(&self) -> Option<IpAddr> {
        match self {
            Self::V4 { dst, .. } => dst
                .single()
                .map(|bits| Ipv4Addr::from_bits(bits as u32).into()),
            Self::V6 { dst, .. } => dst.single().map(|bits| Ipv6Addr::from_bits(bits).into()),
        }
    }
}

/// UDP (RFC 768).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Udp {
    /// Source port.
    pub src_port: Range,
    /// Destination port.
    pub dst_port: Range,
}

/// TCP (RFC 9293). Sequence numbers are random, a new one for each packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// Source port.
    pub src_port: Range,
    /// Destination port.
    pub dst_port: Range,
    /// The flags byte: FIN 1, SYN 2, RST 4, PSH 8, ACK 16, URG 32, ECE 64, CWR 128.
    pub flags: u8,
    /// Window field.
    pub window: u16,
}

/// ICMP (RFC 792) or ICMPv6 (RFC 4443) echo request, by the IP version. The sequence number counts
/// the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icmp {
    /// Identifier.
    pub id: u16,
}

/// The transport header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum L4 {
    /// UDP.
    Udp(Udp),
    /// TCP.
    Tcp(Tcp),
    /// ICMP or ICMPv6 echo request.
    Icmp(Icmp),
}

/// Template of generated packets.
///
/// Ranges with sequential order advance together: each packet takes the next value of every range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// Source MAC addresses (see [`Range::macs`]).
    pub src_mac: Range,
    /// Destination MAC addresses.
    pub dst_mac: Range,
    /// VLAN tags, outermost first.
    pub tags: Vec<Tag>,
    /// IP addresses.
    pub addresses: Addresses,
    /// Time to live or hop limit.
    pub ttl: u8,
    /// DSCP (upper six bits) and ECN.
    pub traffic_class: u8,
    /// The transport header.
    pub l4: L4,
    /// Payload. If sizes are given, it is repeated or truncated to fill them (zeros if empty);
    /// otherwise it occurs once.
    pub payload: Vec<u8>,
    /// Packet sizes.
    pub sizes: Sizes,
    /// Order of the values of ranges and of lists of sizes.
    pub order: Order,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Template {
    /// Builds the first packet and everything constant.
    ///
    /// # Errors
    /// For a size that is too short for the headers or too long for IP, or a port above 65535.
    pub fn build(&self) -> Result<Generator> {
        Generator::new(self)
    }
}

/// Parses TCP flags by name, separated by commas: `SYN`, `syn,ack`, or tcpdump's letters (`S`,
/// `S.`).
///
/// # Errors
/// The error names the unknown flag.
pub fn parse_tcp_flags(text: &str) -> Result<u8> {
    const NAMES: [(&str, char, u8); 8] = [
        ("FIN", 'F', 1),
        ("SYN", 'S', 2),
        ("RST", 'R', 4),
        ("PSH", 'P', 8),
        ("ACK", '.', 16),
        ("URG", 'U', 32),
        ("ECE", 'E', 64),
        ("CWR", 'W', 128),
    ];
    let letter = |c: char| NAMES.iter().find(|n| n.1 == c).map(|n| n.2);
    if !text.is_empty() && text.chars().all(|c| letter(c).is_some()) {
        return Ok(text.chars().filter_map(letter).fold(0, |a, b| a | b));
    }
    let mut flags = 0;
    for name in text.split(',') {
        let found = NAMES.iter().find(|n| n.0.eq_ignore_ascii_case(name.trim()));
        let Some((_, _, bit)) = found else {
            let known: Vec<&str> = NAMES.iter().map(|n| n.0).collect();
            let why = format!("there is no TCP flag {name:?}");
            return Err(Error::new(why).with_hint(format!("flags: {}", known.join(","))));
        };
        flags |= bit;
    }
    Ok(flags)
}

/// Parses a payload: `hex:00ff17`, or the text itself.
///
/// # Errors
/// For invalid hexadecimal digits, or an odd number of them.
pub fn parse_payload(text: &str) -> Result<Vec<u8>> {
    let Some(digits) = text.strip_prefix("hex:") else {
        return Ok(text.as_bytes().to_vec());
    };
    let bad = || Error::new(format!("{digits:?} is not a row of hexadecimal bytes"));
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return Err(bad());
    }
    let nibble = |c: u8| (c as char).to_digit(16).ok_or_else(bad);
    pairs
        .iter()
        .map(|[high, low]| Ok((nibble(*high)? << 4 | nibble(*low)?) as u8))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_by_name_and_letter() {
        assert_eq!(parse_tcp_flags("SYN"), Ok(2));
        assert_eq!(parse_tcp_flags("syn,ack"), Ok(18));
        assert_eq!(parse_tcp_flags("S."), Ok(18));
        assert_eq!(parse_tcp_flags("FIN,PSH,URG"), Ok(41));
        for bad in ["", "SIN", "SYN,", "SYN ACK"] {
            assert!(parse_tcp_flags(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn payloads() {
        assert_eq!(parse_payload("hex:00fF17").unwrap(), [0, 0xff, 0x17]);
        assert_eq!(parse_payload("hello").unwrap(), b"hello");
        for bad in ["hex:0", "hex:0g", "hex:é"] {
            assert!(parse_payload(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn versions_do_not_mix() {
        assert!(Addresses::parse("10.0.0.1", "::1").is_err());
        assert!(matches!(
            Addresses::parse("::1", "::2"),
            Ok(Addresses::V6 { .. })
        ));
    }
}
