//! What the packets of a flood have in common.

use std::fmt;
use std::net::IpAddr;

use ::filter::p0f::{Handshake, raw_signature};

/// What the packets of a flood have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// Packets to an address.
    Destination(IpAddr),
    /// SYNs with this p0f signature, its TTL rounded up to the initial TTL.
    Signature(String),
    /// SYNs to an address that no ACK follows.
    HalfOpen(IpAddr),
    /// TCP segments to an address with flags that no TCP sends.
    Impossible(IpAddr),
}

impl Key {
    /// The address, for packets that cannot be normal, at whatever time.
    pub(super) fn abnormal(&self) -> Option<IpAddr> {
        match self {
            Self::HalfOpen(address) | Self::Impossible(address) => Some(*address),
            Self::Destination(_) | Self::Signature(_) => None,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Destination(address) => write!(f, "packets to {address}"),
            Self::Signature(signature) => write!(f, "SYNs {signature}"),
            Self::HalfOpen(address) => write!(f, "half-open connections to {address}"),
            Self::Impossible(address) => write!(f, "impossible TCP flags to {address}"),
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

/// The keys under which a packet is counted, whether it is normal or not.
pub(super) fn keys(ip: &[u8]) -> [Option<Key>; 2] {
    [destination(ip).map(Key::Destination), signature(ip)]
}

/// The key of a SYN by its signature.
pub(super) fn signature(ip: &[u8]) -> Option<Key> {
    let mut raw = raw_signature(ip).filter(|raw| raw.handshake == Handshake::Syn)?;
    raw.ttl = raw.initial_ttl();
    Some(Key::Signature(raw.to_string()))
}
