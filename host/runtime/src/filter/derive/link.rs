//! Finds the IP packet in a captured packet.

use wire::link::LinkType;

/// Maximum number of VLAN tags skipped.
const TAGS_MAX: u8 = 2;

const IPV4: [u8; 2] = [8, 0];
const IPV6: [u8; 2] = [0x86, 0xdd];

/// The IP packet in a packet of a link type, and the number of VLAN tags before it. `None` if it is
/// not IP or the link type is unsupported.
pub fn ip_packet(link_type: u16, bytes: &[u8]) -> Option<(u8, &[u8])> {
    let two = |at: usize| bytes.get(at..)?.first_chunk::<2>().copied();
    let of_type = |at: usize, header_len: usize| match two(at)? {
        IPV4 | IPV6 => bytes.get(header_len..).map(|ip| (0, ip)),
        _ => None,
    };
    match LinkType(link_type) {
        LinkType::RAW | LinkType::IPV4 | LinkType::IPV6 => with_version(bytes),
        LinkType::NULL | LinkType::LOOP => with_version(bytes.get(4..)?),
        LinkType::C_HDLC => of_type(2, 4),
        LinkType::LINUX_SLL => of_type(14, 16),
        LinkType::LINUX_SLL2 => of_type(0, 20),
        LinkType::ETHERNET => {
            let mut at = 12;
            for tags in 0..=TAGS_MAX {
                match two(at)? {
                    [0x81, 0] | [0x88, 0xa8] => at += 4,
                    IPV4 | IPV6 => return Some((tags, bytes.get(at + 2..)?)),
                    _ => return None,
                }
            }
            None
        }
        _ => None,
    }
}

/// Links without a type field: the version field distinguishes IPv4 and IPv6.
fn with_version(bytes: &[u8]) -> Option<(u8, &[u8])> {
    matches!(bytes.first()? >> 4, 4 | 6).then_some((0, bytes))
}
