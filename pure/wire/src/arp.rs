//! ARP (RFC 826) and RARP (RFC 903).
//!
//! ```text
//!  0       2       4   5   6           8
//! +-------+-------+---+---+-----------+---------------------------------
//! | hw    | proto |hl |pl | operation | sender hw, sender proto, target …
//! +-------+-------+---+---+-----------+---------------------------------
//! ```

use crate::table::{self, Protocol};
use crate::walk::{Next, Walk};
use crate::{LayerKind, Mac, Reason, be16};
use core::fmt;
use core::net::Ipv4Addr;

/// Bytes of the fixed part.
pub const HEADER_LEN: usize = 8;

/// Bytes of an ARP packet for Ethernet and IPv4.
pub const ETHERNET_IPV4_LEN: usize = 28;

/// An ARP packet.
#[derive(Clone, Copy)]
pub struct Arp<'a> {
    head: &'a [u8; HEADER_LEN],
    addresses: &'a [u8],
}

/// The addresses of an ARP packet for Ethernet and IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthernetIpv4 {
    /// MAC address of the sender.
    pub sender_mac: Mac,
    /// IPv4 address of the sender.
    pub sender: Ipv4Addr,
    /// MAC address of the target: the address being resolved, or the requester in a reply.
    pub target_mac: Mac,
    /// IPv4 address of the target: the address being resolved, or the requester in a reply.
    pub target: Ipv4Addr,
}

impl<'a> Arp<'a> {
    /// Checks that all four addresses are present.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (head, rest) = bytes
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Reason::Truncated)?;
        let len = 2 * (usize::from(head[4]) + usize::from(head[5]));
        let addresses = rest.get(..len).ok_or(Reason::Truncated)?;
        Ok(Arp { head, addresses })
    }

    /// Hardware type; 1 is Ethernet.
    pub fn hardware_type(&self) -> u16 {
        be16(self.head[0], self.head[1])
    }

    /// Protocol type, an Ethernet type; 0x0800 is IPv4.
    pub fn protocol_type(&self) -> u16 {
        be16(self.head[2], self.head[3])
    }

    /// Operation: 1 request, 2 reply, 3 and 4 the same for RARP.
    pub fn operation(&self) -> u16 {
        be16(self.head[6], self.head[7])
    }

    /// Sender and target if the protocol is IPv4, for any hardware type.
    pub fn ipv4(&self) -> Option<(Ipv4Addr, Ipv4Addr)> {
        if self.head[5] != 4 || self.protocol_type() != 0x0800 {
            return None;
        }
        let hardware_len = usize::from(self.head[4]);
        let at = |offset: usize| -> Option<Ipv4Addr> {
            self.addresses
                .get(offset..)?
                .first_chunk::<4>()
                .map(|a| Ipv4Addr::from(*a))
        };
        Some((at(hardware_len)?, at(2 * hardware_len + 4)?))
    }

    /// The addresses, if the packet is for Ethernet and IPv4.
    pub fn ethernet_ipv4(&self) -> Option<EthernetIpv4> {
        if self.head[4] != 6 || self.head[5] != 4 || self.protocol_type() != 0x0800 {
            return None;
        }
        let a: &[u8; 20] = self.addresses.first_chunk()?;
        Some(EthernetIpv4 {
            sender_mac: Mac([a[0], a[1], a[2], a[3], a[4], a[5]]),
            sender: Ipv4Addr::new(a[6], a[7], a[8], a[9]),
            target_mac: Mac([a[10], a[11], a[12], a[13], a[14], a[15]]),
            target: Ipv4Addr::new(a[16], a[17], a[18], a[19]),
        })
    }
}

impl fmt::Display for Arp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(a) = self.ethernet_ipv4() else {
            return write!(
                f,
                "ARP, hardware {}, protocol 0x{:04x}, operation {}",
                self.hardware_type(),
                self.protocol_type(),
                self.operation()
            );
        };
        // After a link header that names the protocol.
        let name = if f.alternate() { "" } else { "ARP, " };
        match self.operation() {
            1 => write!(f, "{name}Request who-has {} tell {}", a.target, a.sender),
            2 => write!(f, "{name}Reply {} is-at {}", a.sender, a.sender_mac),
            3 => write!(
                f,
                "RARP, Request who-is {} tell {}",
                a.target_mac, a.sender_mac
            ),
            4 => write!(f, "RARP, Reply {} at {}", a.target_mac, a.target),
            other => write!(f, "ARP, operation {other}, {} > {}", a.sender, a.target),
        }
    }
}

/// Writes an ARP packet for Ethernet and IPv4.
pub fn emit(out: &mut [u8; ETHERNET_IPV4_LEN], operation: u16, addresses: &EthernetIpv4) {
    out[..6].copy_from_slice(&[0, 1, 8, 0, 6, 4]);
    out[6..8].copy_from_slice(&operation.to_be_bytes());
    out[8..14].copy_from_slice(&addresses.sender_mac.0);
    out[14..18].copy_from_slice(&addresses.sender.octets());
    out[18..24].copy_from_slice(&addresses.target_mac.0);
    out[24..].copy_from_slice(&addresses.target.octets());
}

pub(crate) fn step(walk: &mut Walk<'_, '_>) -> Next {
    let head = walk.peek::<HEADER_LEN>()?;
    let len = HEADER_LEN + 2 * (usize::from(head[4]) + usize::from(head[5]));
    walk.limit(len.max(HEADER_LEN));
    walk.advance(len)?;
    Ok(LayerKind::None)
}

pub(crate) const PROTOCOL: Protocol = Protocol {
    name: "arp",
    spec: "RFC 826",
    ether_types: &[0x0806, 0x8035],
    sample: &[
        0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2,
    ],
    step,
    show: |bytes, f| table::show(Arp::parse(bytes), f),
    ..Protocol::BASE
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn emit_then_parse() {
        let mut bytes = [0; ETHERNET_IPV4_LEN];
        let addresses = EthernetIpv4 {
            sender_mac: Mac([2, 0, 0, 0, 0, 1]),
            sender: Ipv4Addr::new(10, 0, 0, 1),
            target_mac: Mac([0; 6]),
            target: Ipv4Addr::new(10, 0, 0, 2),
        };
        emit(&mut bytes, 1, &addresses);
        assert_eq!(bytes, PROTOCOL.sample);
        let view = Arp::parse(&bytes).unwrap();
        assert_eq!(view.ethernet_ipv4(), Some(addresses));
        assert_eq!(view.ipv4(), Some((addresses.sender, addresses.target)));
        assert_eq!(
            format!("{view}"),
            "ARP, Request who-has 10.0.0.2 tell 10.0.0.1"
        );
        assert!(Arp::parse(&bytes[..27]).is_err());
    }
}
