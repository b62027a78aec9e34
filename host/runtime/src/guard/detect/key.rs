//! What the packets of a flood have in common.

use std::fmt;
use std::net::IpAddr;

use ::filter::p0f::{Handshake, raw_signature};

/// Prefix lengths of a network of destinations, in IPv4 and IPv6: what is announced and delegated
/// as a whole, and what one flood is spread over ("carpet bombing").
const IPV4_LEN: u32 = 24;
const IPV6_LEN: u32 = 64;

/// Destinations of packets, from the narrowest to the widest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// An address.
    Host(IpAddr),
    /// A network, by its first address: a /24 in IPv4, a /64 in IPv6.
    Network(IpAddr),
    /// All addresses.
    Interface,
}

impl Place {
    /// The places that an address belongs to, from the narrowest to the widest.
    pub(super) fn all_of(address: IpAddr) -> [Place; 3] {
        [
            Place::Host(address),
            Place::Network(first_of(address)),
            Place::Interface,
        ]
    }

    /// Whether an address belongs to it.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        match self {
            Self::Host(host) => *host == address,
            Self::Network(first) => *first == first_of(address),
            Self::Interface => true,
        }
    }

    /// Whether all addresses of another place belong to it.
    pub(super) fn covers(&self, other: &Place) -> bool {
        match other {
            Self::Host(address) => self.has(*address),
            Self::Network(first) => !matches!(self, Self::Host(_)) && self.has(*first),
            Self::Interface => *self == Self::Interface,
        }
    }

    /// A filter expression for packets to it.
    pub(super) fn expression(&self) -> String {
        match self {
            Self::Host(address) => format!("dst host {address}"),
            Self::Network(_) => format!("dst net {self}"),
            Self::Interface => "ip or ip6".to_owned(),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(address) => write!(f, "{address}"),
            Self::Network(first @ IpAddr::V4(_)) => write!(f, "{first}/{IPV4_LEN}"),
            Self::Network(first @ IpAddr::V6(_)) => write!(f, "{first}/{IPV6_LEN}"),
            Self::Interface => f.write_str("all addresses"),
        }
    }
}

/// The first address of the network of an address.
fn first_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) => IpAddr::V4((v4.to_bits() & (u32::MAX << (32 - IPV4_LEN))).into()),
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() & (u128::MAX << (128 - IPV6_LEN))).into()),
    }
}

/// What the packets of a flood have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// Packets to a destination.
    Destination(Place),
    /// SYNs with this p0f signature, its TTL rounded up to the initial TTL.
    Signature(String),
    /// SYNs to a destination that no ACK follows.
    HalfOpen(Place),
    /// TCP segments to a destination with flags that no TCP sends.
    Impossible(Place),
}

impl Key {
    /// The destination, for packets that cannot be normal, at whatever time.
    pub(super) fn abnormal(&self) -> Option<Place> {
        match self {
            Self::HalfOpen(place) | Self::Impossible(place) => Some(*place),
            Self::Destination(_) | Self::Signature(_) => None,
        }
    }

    /// The destination.
    pub(super) fn place(&self) -> Option<Place> {
        match self {
            Self::Destination(place) => Some(*place),
            Self::Signature(_) => None,
            _ => self.abnormal(),
        }
    }

    /// The same for another destination.
    pub(super) fn at(&self, place: Place) -> Key {
        match self {
            Self::HalfOpen(_) => Self::HalfOpen(place),
            Self::Impossible(_) => Self::Impossible(place),
            Self::Destination(_) | Self::Signature(_) => Self::Destination(place),
        }
    }

    /// Whether all packets of another key, of the same kind, are also of this wider one.
    pub(super) fn is_wider(&self, other: &Key) -> bool {
        let places = (self.place(), other.place());
        let (Some(ours), Some(theirs)) = places else {
            return false;
        };
        ours != theirs && ours.covers(&theirs) && self.at(theirs) == *other
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Destination(place) => write!(f, "packets to {place}"),
            Self::Signature(signature) => write!(f, "SYNs {signature}"),
            Self::HalfOpen(place) => write!(f, "half-open connections to {place}"),
            Self::Impossible(place) => write!(f, "impossible TCP flags to {place}"),
        }
    }
}

/// The destination of an IP packet.
pub(super) fn destination(ip: &[u8]) -> Option<IpAddr> {
    match ip.first()? >> 4 {
        4 => Some(IpAddr::from(*ip.get(16..)?.first_chunk::<4>()?)),
        6 => Some(IpAddr::from(*ip.get(24..)?.first_chunk::<16>()?)),
        _ => None,
    }
}

/// The key of a SYN by its signature.
pub(super) fn signature(ip: &[u8]) -> Option<Key> {
    let mut raw = raw_signature(ip).filter(|raw| raw.handshake == Handshake::Syn)?;
    raw.ttl = raw.initial_ttl();
    Some(Key::Signature(raw.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_its_network_and_the_interface() {
        for (address, network, other) in [
            ("192.0.2.77", "192.0.2.0/24", "192.0.3.77"),
            (
                "2001:db8:1:2:3::4",
                "2001:db8:1:2::/64",
                "2001:db8:1:3:3::4",
            ),
        ] {
            let (address, other): (IpAddr, IpAddr) =
                (address.parse().unwrap(), other.parse().unwrap());
            let [host, net, all] = Place::all_of(address);
            assert_eq!(net.to_string(), network);
            assert!(host < net && net < all);
            for place in [host, net, all] {
                assert!(place.has(address) && place.covers(&host) && all.covers(&place));
                assert_eq!(place.has(other), place == all);
                assert!(
                    crate::filter::compile(&place.expression(), 1).is_ok(),
                    "{place}"
                );
            }
            assert!(!host.covers(&net) && !net.covers(&all));
            let key = Key::HalfOpen(net);
            assert!(key.is_wider(&Key::HalfOpen(host)) && !key.is_wider(&key));
            assert!(!key.is_wider(&Key::Destination(host)) && !key.is_wider(&Key::HalfOpen(all)));
        }
    }
}
