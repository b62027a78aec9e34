//! The source of probes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::cookie::Cookie;

/// The scanner's own addresses and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Source of IPv4 probes.
    pub ipv4: Option<Ipv4Addr>,
    /// Source of IPv6 probes.
    pub ipv6: Option<Ipv6Addr>,
    /// The first source port, and the number of ports: at least one, and none above 65535.
    pub ports: (u16, u16),
}

impl Source {
    /// The source port of a probe.
    #[inline]
    pub fn port(&self, cookie: &Cookie) -> u16 {
        let (first, count) = self.ports;
        first + ((u64::from(cookie.source_port) * u64::from(count)) >> 32) as u16
    }

    /// The source port of a further connection to the same service.
    pub fn port_after(&self, port: u16) -> u16 {
        let (first, count) = self.ports;
        match port.wrapping_sub(first) >= count - 1 {
            true => first,
            false => port + 1,
        }
    }

    /// Whether an address is the scanner's.
    pub fn is_own(&self, addr: IpAddr) -> bool {
        match addr {
            IpAddr::V4(addr) => self.ipv4 == Some(addr),
            IpAddr::V6(addr) => self.ipv6 == Some(addr),
        }
    }
}
