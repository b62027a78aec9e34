//! Neighbour resolution: requests for MAC addresses and their answers (ARP, RFC 826; Neighbor
//! Discovery, RFC 4861).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::Mac;
use wire::arp::{self, Arp, EthernetIpv4};
use wire::checksum::Sum;

use crate::source::Source;

/// Bytes of an Ethernet header.
const ETHERNET_LEN: usize = 14;
/// Offset of the sender's MAC address in an ARP packet.
const ARP_SENDER_AT: usize = 8;
/// Bytes of an ARP request with its Ethernet header.
const ARP_LEN: usize = ETHERNET_LEN + arp::ETHERNET_IPV4_LEN;
const IPV6_LEN: usize = 40;
/// Length of a Neighbor Solicitation with the source link-layer address option (RFC 4861 section
/// 4.3), in bytes.
const SOLICITATION_LEN: usize = 24 + 8;
/// Length of the same with its headers.
const ND_LEN: usize = ETHERNET_LEN + IPV6_LEN + SOLICITATION_LEN;
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Neighbor Discovery options: link-layer address of the sender, and of the target.
const SOURCE_LINK: u8 = 1;
const TARGET_LINK: u8 = 2;

/// Builds requests for neighbours' MAC addresses.
#[derive(Clone, Copy, Debug)]
pub struct Solicitor {
    /// Addresses of the requester.
    pub source: Source,
    /// MAC address of the requester.
    pub mac: Mac,
}

impl Solicitor {
    /// Length of a request for this address in bytes.
    pub fn len(addr: IpAddr) -> usize {
        match addr {
            IpAddr::V4(_) => ARP_LEN,
            IpAddr::V6(_) => ND_LEN,
        }
    }

    /// Writes a request to the start of `out` and returns its length, or `None` if it does not fit
    /// or there is no source address of that family.
    pub fn write(&self, addr: IpAddr, out: &mut [u8]) -> Option<usize> {
        let out = out.get_mut(..Self::len(addr))?;
        out[6..12].copy_from_slice(&self.mac.0);
        match addr {
            IpAddr::V4(target) => {
                out[..6].fill(0xff);
                out[12..14].copy_from_slice(&[0x08, 0x06]);
                let addresses = EthernetIpv4 {
                    sender_mac: self.mac,
                    sender: self.source.ipv4?,
                    target_mac: Mac([0; 6]),
                    target,
                };
                let packet = out[ETHERNET_LEN..].first_chunk_mut()?;
                arp::emit(packet, 1, &addresses);
            }
            IpAddr::V6(target) => self.solicit(self.source.ipv6?, target, out),
        }
        Some(out.len())
    }

    fn solicit(&self, source: Ipv6Addr, target: Ipv6Addr, out: &mut [u8]) {
        // The solicited-node address (RFC 4291 section 2.7.1), and its MAC address (RFC 2464
        // section 7).
        let [.., a, b, c] = target.octets();
        let mut group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0).octets();
        group[13..].copy_from_slice(&[a, b, c]);
        out[..6].copy_from_slice(&[0x33, 0x33, 0xff, a, b, c]);
        out[12..14].copy_from_slice(&[0x86, 0xdd]);
        let (ip, icmp) = out[ETHERNET_LEN..].split_at_mut(IPV6_LEN);
        ip[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, SOLICITATION_LEN as u8, ICMPV6, 255]);
        ip[8..24].copy_from_slice(&source.octets());
        ip[24..].copy_from_slice(&group);
        icmp.fill(0);
        icmp[0] = SOLICITATION;
        icmp[8..24].copy_from_slice(&target.octets());
        icmp[24..26].copy_from_slice(&[SOURCE_LINK, 1]);
        icmp[26..].copy_from_slice(&self.mac.0);
        let sum = Sum::new()
            .add_pseudo_ipv6(source, group.into(), ICMPV6, SOLICITATION_LEN as u32)
            .add_bytes(icmp);
        icmp[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    }
}

/// The address and MAC address in a reply to a request; `None` for other Ethernet packets.
pub fn neighbour(packet: &[u8]) -> Option<(IpAddr, Mac)> {
    let (addr, at) = neighbour_at(packet)?;
    Some((addr, Mac(*packet.get(at..)?.first_chunk()?)))
}

/// The address in a reply to a request, and the offset of its MAC address in the packet.
pub(crate) fn neighbour_at(packet: &[u8]) -> Option<(IpAddr, usize)> {
    let kind: [u8; 2] = packet.get(12..14)?.try_into().ok()?;
    let rest = &packet[ETHERNET_LEN..];
    match kind {
        [0x08, 0x06] => {
            let arp = Arp::parse(rest).ok().filter(|arp| arp.operation() == 2)?;
            let found = arp.ethernet_ipv4()?;
            let is_known = found.sender != Ipv4Addr::UNSPECIFIED;
            is_known.then_some((found.sender.into(), ETHERNET_LEN + ARP_SENDER_AT))
        }
        [0x86, 0xdd] => {
            let (addr, at) = advertised(rest)?;
            Some((addr, ETHERNET_LEN + at))
        }
        _ => None,
    }
}

/// Reads a Neighbor Advertisement (RFC 4861 section 4.4). A hop limit of 255 proves that no router
/// has forwarded it.
fn advertised(packet: &[u8]) -> Option<(IpAddr, usize)> {
    let (ip, icmp) = packet.split_at_checked(IPV6_LEN)?;
    if ip[6] != ICMPV6 || ip[7] != 255 || icmp.get(..2)? != [ADVERTISEMENT, 0] {
        return None;
    }
    let target = Ipv6Addr::from(*icmp.get(8..24)?.first_chunk::<16>()?);
    let mut options = icmp.get(24..)?;
    while let [kind, len, ..] = options {
        let len = usize::from(*len) * 8;
        if len == 0 {
            return None;
        }
        if *kind == TARGET_LINK {
            options.get(2..8)?;
            return Some((target.into(), packet.len() - options.len() + 2));
        }
        options = options.get(len..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const OTHER: Mac = Mac([2, 0, 0, 0, 0, 9]);

    fn solicitor() -> Solicitor {
        Solicitor {
            source: Source {
                ipv4: Some([192, 0, 2, 1].into()),
                ipv6: Some("2001:db8::1".parse().unwrap()),
                ports: (1, 1),
            },
            mac: OWN,
        }
    }

    #[test]
    fn an_arp_reply_to_the_request_is_recognized() {
        let target: IpAddr = [192, 0, 2, 9].into();
        let mut packet = [0; 64];
        let len = solicitor().write(target, &mut packet).unwrap();
        assert_eq!(len, 42);
        assert_eq!(packet[..6], [0xff; 6]);
        let text = Arp::parse(&packet[14..len]).unwrap().to_string();
        assert_eq!(text, "ARP, Request who-has 192.0.2.9 tell 192.0.2.1");
        assert_eq!(neighbour(&packet[..len]), None, "a request is no reply");
        let reply = EthernetIpv4 {
            sender_mac: OTHER,
            sender: [192, 0, 2, 9].into(),
            target_mac: OWN,
            target: [192, 0, 2, 1].into(),
        };
        arp::emit(packet[14..].first_chunk_mut().unwrap(), 2, &reply);
        assert_eq!(neighbour(&packet[..len]), Some((target, OTHER)));
        for cut in 0..len {
            assert_eq!(neighbour(&packet[..cut]), None);
        }
    }

    #[test]
    fn an_advertisement_for_the_solicitation_is_recognized() {
        let target: IpAddr = "2001:db8::12:3456".parse().unwrap();
        let mut packet = [0; 128];
        let len = solicitor().write(target, &mut packet).unwrap();
        assert_eq!(packet[..6], [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]);
        let icmp = &packet[54..len];
        let (src, dst) = (&packet[22..38], &packet[38..54]);
        let sum = Sum::new().add_bytes(src).add_bytes(dst).add_u16(58);
        assert_eq!(sum.add_u16(icmp.len() as u16).add_bytes(icmp).finish(), 0);
        assert_eq!(neighbour(&packet[..len]), None);
        packet[54] = ADVERTISEMENT;
        packet[78] = TARGET_LINK;
        packet[80..86].copy_from_slice(&OTHER.0);
        assert_eq!(neighbour(&packet[..len]), Some((target, OTHER)));
        for cut in 0..len {
            assert_eq!(neighbour(&packet[..cut]), None);
        }
        packet[79] = 0;
        packet[78] = 7;
        assert_eq!(neighbour(&packet[..len]), None, "an option without length");
        packet[21] = 254;
        assert_eq!(neighbour(&packet[..len]), None, "through a router");
    }
}
