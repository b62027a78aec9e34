//! Source and destination of a packet.

use std::net::{IpAddr, SocketAddr};

/// Source and destination of a TCP packet that starts with its IP header and has no IPv6 extension
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
