//! Where the IP packet is in a captured packet, and between whom it goes.

use std::net::{IpAddr, SocketAddr};

use wire::link::LinkType;

/// Most VLAN tags that are skipped.
const TAGS_MAX: usize = 2;

/// The IP packet in a packet of a link type; VLAN tags are skipped. `None` for what is no IP, and
/// for link types that are not known.
pub(super) fn ip_packet(link_type: u16, bytes: &[u8]) -> Option<&[u8]> {
    match LinkType(link_type) {
        LinkType::RAW | LinkType::IPV4 | LinkType::IPV6 => Some(bytes),
        LinkType::NULL | LinkType::LOOP | LinkType::C_HDLC => bytes.get(4..),
        LinkType::LINUX_SLL => bytes.get(16..),
        LinkType::LINUX_SLL2 => bytes.get(20..),
        LinkType::ETHERNET => {
            let mut at = 12;
            for _ in 0..=TAGS_MAX {
                match bytes.get(at..at + 2)? {
                    [0x81, 0] | [0x88, 0xa8] => at += 4,
                    [8, 0] | [0x86, 0xdd] => return bytes.get(at + 2..),
                    _ => return None,
                }
            }
            None
        }
        _ => None,
    }
}

/// Source and destination of a TCP packet that begins with its IP header, without IPv6 extension
/// headers.
pub(super) fn tcp_ends(ip: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let (source, destination, header_len): (IpAddr, IpAddr, usize) = match ip.first()? >> 4 {
        4 => {
            let address = |at: usize| ip.get(at..)?.first_chunk::<4>().copied();
            let len = usize::from(ip[0] & 0xf) * 4;
            (address(12)?.into(), address(16)?.into(), len)
        }
        6 => {
            let address = |at: usize| ip.get(at..)?.first_chunk::<16>().copied();
            (address(8)?.into(), address(24)?.into(), 40)
        }
        _ => return None,
    };
    let port = |at: usize| ip.get(at..)?.first_chunk().copied().map(u16::from_be_bytes);
    Some((
        SocketAddr::new(source, port(header_len)?),
        SocketAddr::new(destination, port(header_len + 2)?),
    ))
}
