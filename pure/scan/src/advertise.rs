//! Replies to requests for the scanner's own MAC address (ARP, RFC 826; Neighbor Discovery, RFC
//! 4861), on a card for whose addresses no kernel answers.

use std::net::Ipv6Addr;

use wire::Mac;
use wire::arp::{self, Arp, EthernetIpv4};
use wire::checksum::Sum;

use crate::source::Source;

const ETHERNET_LEN: usize = 14;
const IPV6_LEN: usize = 40;
/// Length of a Neighbor Advertisement with the target link-layer address option (RFC 4861 section
/// 4.4), in bytes.
const ADVERTISEMENT_LEN: usize = 24 + 8;
/// Minimum length of a Neighbor Solicitation.
const SOLICITATION_MIN: usize = 24;
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Flags of an advertisement: it is solicited; it overrides what is cached.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// Options: link-layer address of the sender, and of the target.
const SOURCE_LINK: u8 = 1;
const TARGET_LINK: u8 = 2;
/// All nodes of the link (RFC 4291 section 2.7.1), and their MAC address.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: Mac = Mac([0x33, 0x33, 0, 0, 0, 1]);

/// Length of the longest reply in bytes.
pub const REPLY_MAX: usize = ETHERNET_LEN + IPV6_LEN + ADVERTISEMENT_LEN;

/// Answers requests for the MAC address of the scanner's addresses.
#[derive(Clone, Copy, Debug)]
pub struct Advertiser {
    /// The addresses; requests for others are not answered.
    pub source: Source,
    /// Their MAC address.
    pub mac: Mac,
}

impl Advertiser {
    /// Whether an Ethernet packet is an ARP request or a Neighbor Solicitation, for any address.
    pub fn is_request(packet: &[u8]) -> bool {
        match packet.get(12..14) {
            Some([0x08, 0x06]) => packet.get(20..22) == Some(&[0, 1]),
            Some([0x86, 0xdd]) => {
                packet.get(20) == Some(&ICMPV6) && packet.get(54) == Some(&SOLICITATION)
            }
            _ => false,
        }
    }

    /// Writes the reply to an Ethernet packet to the start of `out` and returns its length. `None`
    /// if the packet is no valid request for one of the addresses.
    pub fn reply(&self, packet: &[u8], out: &mut [u8; REPLY_MAX]) -> Option<usize> {
        let sender = Mac(*packet.get(6..12)?.first_chunk()?);
        let rest = packet.get(ETHERNET_LEN..)?;
        match packet.get(12..14)? {
            [0x08, 0x06] => self.arp(rest, out),
            [0x86, 0xdd] => self.advertise(rest, sender, out),
            _ => None,
        }
    }

    fn ethernet(&self, to: Mac, ethertype: u16, out: &mut [u8; REPLY_MAX]) {
        out[..6].copy_from_slice(&to.0);
        out[6..12].copy_from_slice(&self.mac.0);
        out[12..14].copy_from_slice(&ethertype.to_be_bytes());
    }

    /// A request without a sender's address is a probe for a duplicate (RFC 5227), which is
    /// answered, too.
    fn arp(&self, packet: &[u8], out: &mut [u8; REPLY_MAX]) -> Option<usize> {
        let request = Arp::parse(packet).ok().filter(|arp| arp.operation() == 1)?;
        let asked = request.ethernet_ipv4()?;
        if self.source.ipv4 != Some(asked.target) || !is_host(asked.sender_mac) {
            return None;
        }
        let reply = EthernetIpv4 {
            sender_mac: self.mac,
            sender: asked.target,
            target_mac: asked.sender_mac,
            target: asked.sender,
        };
        self.ethernet(asked.sender_mac, 0x0806, out);
        arp::emit(out[ETHERNET_LEN..].first_chunk_mut()?, 2, &reply);
        Some(ETHERNET_LEN + arp::ETHERNET_IPV4_LEN)
    }

    /// Answers a valid Neighbor Solicitation (RFC 4861 section 7.1.1) as section 7.2.4 demands.
    fn advertise(&self, packet: &[u8], sender: Mac, out: &mut [u8; REPLY_MAX]) -> Option<usize> {
        let asked = Solicitation::parse(packet)?;
        if self.source.ipv6 != Some(asked.target) {
            return None;
        }
        // Whoever looks for a duplicate has no address yet.
        let (to, mac, flags) = match asked.from.is_unspecified() {
            true => (ALL_NODES, ALL_NODES_MAC, OVERRIDE),
            false => (
                asked.from,
                asked.link.unwrap_or(sender),
                SOLICITED | OVERRIDE,
            ),
        };
        if !asked.from.is_unspecified() && !is_host(mac) {
            return None;
        }
        self.ethernet(mac, 0x86dd, out);
        let (ip, icmp) = out[ETHERNET_LEN..].split_at_mut(IPV6_LEN);
        ip[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, ADVERTISEMENT_LEN as u8, ICMPV6, 255]);
        ip[8..24].copy_from_slice(&asked.target.octets());
        ip[24..].copy_from_slice(&to.octets());
        icmp.fill(0);
        (icmp[0], icmp[4]) = (ADVERTISEMENT, flags);
        icmp[8..24].copy_from_slice(&asked.target.octets());
        icmp[24..26].copy_from_slice(&[TARGET_LINK, 1]);
        icmp[26..].copy_from_slice(&self.mac.0);
        let sum = Sum::new()
            .add_pseudo_ipv6(asked.target, to, ICMPV6, ADVERTISEMENT_LEN as u32)
            .add_bytes(icmp);
        icmp[2..4].copy_from_slice(&sum.finish().to_be_bytes());
        Some(REPLY_MAX)
    }
}

/// Whether a MAC address is that of one station.
fn is_host(mac: Mac) -> bool {
    mac.0[0] & 1 == 0 && mac.0 != [0; 6]
}

/// A valid Neighbor Solicitation.
struct Solicitation {
    from: Ipv6Addr,
    target: Ipv6Addr,
    /// The sender's MAC address as it states it.
    link: Option<Mac>,
}

impl Solicitation {
    fn parse(packet: &[u8]) -> Option<Self> {
        let (ip, rest) = packet.split_at_checked(IPV6_LEN)?;
        let len = usize::from(u16::from_be_bytes([ip[4], ip[5]]));
        let icmp = rest.get(..len)?;
        let addr = |at: usize| Some(Ipv6Addr::from(*ip.get(at..)?.first_chunk::<16>()?));
        let (from, to) = (addr(8)?, addr(24)?);
        let is_solicitation = ip[0] >> 4 == 6 && ip[6] == ICMPV6 && ip[7] == 255;
        if !is_solicitation || len < SOLICITATION_MIN || icmp.get(..2)? != [SOLICITATION, 0] {
            return None;
        }
        let sum = Sum::new().add_pseudo_ipv6(from, to, ICMPV6, len as u32);
        if sum.add_bytes(icmp).finish() != 0 {
            return None;
        }
        let target = Ipv6Addr::from(*icmp.get(8..24)?.first_chunk::<16>()?);
        let link = source_link(icmp.get(SOLICITATION_MIN..)?).ok()?;
        // Sent to the solicited-node address, and without an address to answer to.
        let is_search = is_solicited_node(to, target) && link.is_none();
        if target.is_multicast() || from.is_unspecified() && !is_search {
            return None;
        }
        Some(Self { from, target, link })
    }
}

/// Whether an address is the solicited-node address of another (RFC 4291 section 2.7.1).
fn is_solicited_node(addr: Ipv6Addr, of: Ipv6Addr) -> bool {
    let prefix = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff];
    addr.octets()[..13] == prefix && addr.octets()[13..] == of.octets()[13..]
}

/// The sender's MAC address among the options; an option without a length makes the packet
/// invalid.
fn source_link(mut options: &[u8]) -> Result<Option<Mac>, ()> {
    let mut found = None;
    while let [kind, len, ..] = options {
        let len = usize::from(*len) * 8;
        let (option, rest) = options.split_at_checked(len.max(1)).ok_or(())?;
        if len == 0 {
            return Err(());
        }
        if *kind == SOURCE_LINK && found.is_none() {
            found = option.get(2..8).and_then(|mac| mac.first_chunk()).copied();
        }
        options = rest;
    }
    Ok(found.map(Mac))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::neighbour::{Solicitor, neighbour};

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const PEER: Mac = Mac([2, 0, 0, 0, 0, 9]);

    fn source(v4: [u8; 4], v6: &str) -> Source {
        Source {
            ipv4: Some(v4.into()),
            ipv6: Some(v6.parse().unwrap()),
            ports: (1, 1),
        }
    }

    fn own() -> Advertiser {
        Advertiser {
            source: source([192, 0, 2, 1], "2001:db8::1"),
            mac: OWN,
        }
    }

    /// A request of the peer.
    fn request(addr: IpAddr) -> Vec<u8> {
        let peer = Solicitor {
            source: source([192, 0, 2, 9], "2001:db8::9"),
            mac: PEER,
        };
        let mut packet = vec![0; 128];
        let len = peer.write(addr, &mut packet).unwrap();
        packet.truncate(len);
        packet
    }

    fn reply(packet: &[u8]) -> Option<Vec<u8>> {
        let mut out = [0xaa; REPLY_MAX];
        let len = own().reply(packet, &mut out)?;
        Some(out[..len].to_vec())
    }

    #[test]
    fn requests_for_own_addresses_alone_are_answered() {
        for own in ["192.0.2.1", "2001:db8::1"] {
            let own: IpAddr = own.parse().unwrap();
            let packet = request(own);
            assert!(Advertiser::is_request(&packet));
            let answer = reply(&packet).expect("a reply");
            assert_eq!(answer[..6], PEER.0);
            assert_eq!(neighbour(&answer), Some((own, OWN)));
            assert!(!Advertiser::is_request(&answer));
            assert_eq!(reply(&answer), None, "a reply is not answered");
            for cut in 0..packet.len() {
                assert_eq!(reply(&packet[..cut]), None, "{cut} bytes");
            }
        }
        for other in ["192.0.2.2", "2001:db8::2", "2001:db8::1:0:1"] {
            let packet = request(other.parse().unwrap());
            assert_eq!(reply(&packet), None, "{other}");
        }
    }

    /// Sets the checksum of the ICMPv6 message of a packet.
    fn fix_sum(packet: &mut [u8]) {
        packet[56..58].fill(0);
        let addr = |at: usize| Ipv6Addr::from(*packet[at..].first_chunk::<16>().unwrap());
        let icmp = &packet[54..];
        let sum = Sum::new()
            .add_pseudo_ipv6(addr(22), addr(38), ICMPV6, icmp.len() as u32)
            .add_bytes(icmp)
            .finish();
        packet[56..58].copy_from_slice(&sum.to_be_bytes());
    }

    #[test]
    fn advertisements_have_valid_checksums_and_flags() {
        let mut packet = request("2001:db8::1".parse().unwrap());
        let answer = reply(&packet).unwrap();
        let mut again = answer.clone();
        fix_sum(&mut again);
        assert_eq!(answer, again);
        assert_eq!((answer[21], answer[58]), (255, SOLICITED | OVERRIDE));
        // A search for duplicates has no sender, and no option with one.
        packet[22..38].fill(0);
        fix_sum(&mut packet);
        assert_eq!(reply(&packet), None, "with an option");
        packet.truncate(78);
        packet[19] = 24;
        fix_sum(&mut packet);
        let answer = reply(&packet).expect("to all nodes");
        assert_eq!((answer[58], &answer[..6]), (OVERRIDE, &ALL_NODES_MAC.0[..]));
        let mut again = answer.clone();
        fix_sum(&mut again);
        assert_eq!(answer, again);
    }

    #[test]
    fn invalid_solicitations_are_not_answered() {
        let good = request("2001:db8::1".parse().unwrap());
        for (at, byte, why) in [
            (21, 254, "through a router"),
            (55, 1, "a code"),
            (54, ADVERTISEMENT, "another type"),
            (79, 0, "an option without length"),
            (79, 9, "an option longer than the packet"),
            (80, 3, "to a group"),
        ] {
            let mut packet = good.clone();
            packet[at] = byte;
            fix_sum(&mut packet);
            assert_eq!(reply(&packet), None, "{why}");
        }
        let mut packet = good;
        packet[57] ^= 1;
        assert_eq!(reply(&packet), None, "a wrong checksum");
    }
}
