//! The IP packet in packets of any link type.

use wire::Dissection;
use wire::link::LinkType;

use super::derive;

/// The outermost IP packet in a packet of a link type; on Ethernet behind up to two VLAN tags.
/// `None` if there is none.
pub fn ip_packet(link_type: u16, bytes: &[u8]) -> Option<&[u8]> {
    let link = LinkType(link_type);
    if let Some((_, ip)) = derive::ip_packet(link_type, bytes) {
        return Some(ip);
    }
    if link == LinkType::ETHERNET {
        return None;
    }
    let mut found = Dissection::EMPTY;
    wire::dissect(link, bytes, bytes.len() as u32, &mut found);
    match found.ip_version {
        0 => None,
        _ => bytes.get(usize::from(found.ip_offset)..),
    }
}
