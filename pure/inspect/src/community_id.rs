//! Community ID, version 1: a hash of a flow's endpoints that many programs add to their records.
//!
//! SHA-1 over a seed, both addresses, the protocol, a zero byte and both ports, the lower endpoint
//! first; base64 after `1:`. Protocols without ports omit them. ICMP uses types and codes instead
//! of ports; a message that is not part of a request and reply keeps its direction.

use core::net::IpAddr;

use sha1::{Digest, Sha1};

/// `1:` and 28 characters.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CommunityId([u8; 30]);

impl CommunityId {
    /// The ID as text.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl core::fmt::Display for CommunityId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl core::fmt::Debug for CommunityId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Types of requests and of their replies.
const ICMPV4: &[(u16, u16)] = &[(8, 0), (10, 9), (13, 14), (15, 16), (17, 18)];
const ICMPV6: &[(u16, u16)] = &[
    (128, 129),
    (130, 131),
    (133, 134),
    (135, 136),
    (139, 140),
    (144, 145),
];

/// Computes the ID of a flow between two endpoints, each an address and a port. ICMP: `source` is
/// the sender, its number the type; the other number is the type of the reply (or of the request,
/// for a reply), or the code if there is no such pair. `protocol` is the IP protocol; ports are
/// ignored if it has none.
pub fn community_id(
    seed: u16,
    protocol: u8,
    source: (IpAddr, u16),
    destination: (IpAddr, u16),
) -> CommunityId {
    let pairs = match protocol {
        1 => ICMPV4,
        58 => ICMPV6,
        _ => &[],
    };
    let (one, other) = (source.1, destination.1);
    let is_pair = pairs.contains(&(one, other)) || pairs.contains(&(other, one));
    let is_one_way = matches!(protocol, 1 | 58) && !is_pair;
    // TCP, UDP, SCTP, ICMP and ICMPv6 have numbers.
    let has_ports = matches!(protocol, 1 | 6 | 17 | 58 | 132);
    let (a, b) = match is_one_way || source <= destination {
        true => (source, destination),
        false => (destination, source),
    };
    let mut sum = Sha1::new();
    sum.update(seed.to_be_bytes());
    for addr in [a.0, b.0] {
        match addr {
            IpAddr::V4(addr) => sum.update(addr.octets()),
            IpAddr::V6(addr) => sum.update(addr.octets()),
        }
    }
    sum.update([protocol, 0]);
    if has_ports {
        sum.update(a.1.to_be_bytes());
        sum.update(b.1.to_be_bytes());
    }
    let mut text = *b"1:                            ";
    base64(&sum.finalize().into(), &mut text[2..]);
    CommunityId(text)
}

/// Base64 (RFC 4648 §4).
fn base64(bytes: &[u8; 20], out: &mut [u8]) {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (three, four) in bytes.chunks(3).zip(out.chunks_exact_mut(4)) {
        let at = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let word = at(0) << 16 | at(1) << 8 | at(2);
        for (place, letter) in four.iter_mut().enumerate() {
            *letter = match place <= three.len() {
                true => LETTERS[(word >> (18 - 6 * place) & 63) as usize],
                false => b'=',
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(addr: &str, port: u16) -> (IpAddr, u16) {
        (addr.parse().unwrap(), port)
    }

    #[test]
    fn both_directions_have_one_id() {
        // The values of the specification's own baseline, also in the large corpus.
        let (a, b) = (end("128.232.110.120", 34855), end("66.35.250.204", 80));
        let id = community_id(0, 6, a, b);
        assert_eq!(id.as_str(), "1:LQU9qZlK+B5F3KDmev6m5PMibrg=");
        assert_eq!(community_id(0, 6, b, a), id);
        assert_ne!(community_id(1, 6, a, b), id);
        let ping = (end("192.168.0.89", 8), end("192.168.0.1", 0));
        let pong = (end("192.168.0.1", 0), end("192.168.0.89", 8));
        assert_eq!(
            community_id(0, 1, ping.0, ping.1),
            community_id(0, 1, pong.0, pong.1)
        );
        // Unreachable is not answered.
        let (x, y) = (end("192.168.0.89", 3), end("192.168.0.1", 3));
        assert_ne!(community_id(0, 1, x, y), community_id(0, 1, y, x));
    }
}
