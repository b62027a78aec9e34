//! The MAC address that a probe is sent to.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use wire::Mac;

use crate::target::Targets;

/// Set in the number of a known MAC address, which is never 0 then.
const KNOWN: u64 = 1 << 48;

/// Next hops: neighbours on the link, and routers for all other targets.
#[derive(Debug, Default)]
pub struct NextHops {
    /// Router for IPv4 targets that are not on the link.
    pub router_v4: Option<Mac>,
    /// Router for IPv6 targets that are not on the link.
    pub router_v6: Option<Mac>,
    /// Targets that are addresses of this host, which are not sent to: the probes would have to
    /// come back in.
    pub own: Targets,
    /// Targets on the link, which are sent to directly or, without a known MAC address, not at all.
    on_link: Targets,
    /// The MAC address of each, or 0. They may become known while probes are sent.
    macs: Vec<AtomicU64>,
}

impl NextHops {
    /// No next hops, of a host with these addresses.
    pub fn beyond(own: Targets) -> Self {
        Self {
            own,
            ..Self::default()
        }
    }

    /// Routers for all targets.
    pub fn routers(router_v4: Option<Mac>, router_v6: Option<Mac>) -> Self {
        Self {
            router_v4,
            router_v6,
            ..Self::default()
        }
    }

    /// Whether a target is an address of this host.
    #[inline]
    pub fn is_own(&self, addr: IpAddr) -> bool {
        self.own.count() != 0 && self.own.contains(addr)
    }

    /// Sets the targets on the link, of which no MAC address is known yet. Each takes 8 bytes.
    pub fn set_on_link(&mut self, targets: Targets) {
        self.macs.clear();
        self.macs
            .resize_with(targets.count() as usize, AtomicU64::default);
        self.on_link = targets;
    }

    /// The targets on the link.
    pub fn on_link(&self) -> &Targets {
        &self.on_link
    }

    /// Records the MAC address of a target on the link.
    pub fn learn(&self, addr: IpAddr, mac: Mac) {
        if let Some(place) = self.place(addr) {
            let [a, b, c, d, e, f] = mac.0;
            let number = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
            place.store(KNOWN | number, Ordering::Release);
        }
    }

    /// Records the MAC addresses of targets on the link.
    pub fn learn_all(&self, found: impl IntoIterator<Item = (IpAddr, Mac)>) {
        for (addr, mac) in found {
            self.learn(addr, mac);
        }
    }

    /// Number of targets on the link whose MAC address is known.
    pub fn known_count(&self) -> u64 {
        let known = |place: &&AtomicU64| place.load(Ordering::Relaxed) != 0;
        self.macs.iter().filter(known).count() as u64
    }

    fn place(&self, addr: IpAddr) -> Option<&AtomicU64> {
        let number = self.on_link.number(addr)?;
        self.macs.get(usize::try_from(number).ok()?)
    }

    /// The MAC address of a target's next hop; `None` if it could not be resolved.
    #[inline]
    pub fn mac(&self, addr: IpAddr) -> Option<Mac> {
        if self.is_own(addr) {
            return None;
        }
        if !self.macs.is_empty()
            && let Some(place) = self.place(addr)
        {
            let number = place.load(Ordering::Acquire);
            let [.., a, b, c, d, e, f] = number.to_be_bytes();
            return (number & KNOWN != 0).then_some(Mac([a, b, c, d, e, f]));
        }
        match addr {
            IpAddr::V4(_) => self.router_v4,
            IpAddr::V6(_) => self.router_v6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_range;

    #[test]
    fn neighbours_are_learned_and_all_others_are_behind_the_router() {
        let set = |texts: &[&str]| {
            let ranges = texts.iter().map(|text| parse_range(text).unwrap());
            Targets::new(ranges.collect::<Vec<_>>(), Vec::new()).unwrap()
        };
        let router = Mac([4, 5, 6, 7, 8, 9]);
        let mut hops = NextHops {
            router_v4: Some(router),
            own: set(&["192.0.2.7"]),
            ..NextHops::default()
        };
        hops.set_on_link(set(&["192.0.2.0/28", "192.0.2.64/28", "2001:db8::/124"]));
        let addr = |text: &str| text.parse::<IpAddr>().unwrap();
        let known = [
            ("192.0.2.0", Mac([0; 6])),
            ("192.0.2.79", Mac([0xff; 6])),
            ("2001:db8::f", Mac([1, 2, 3, 4, 5, 6])),
        ];
        for (text, mac) in known {
            assert_eq!(hops.mac(addr(text)), None, "{text}");
            hops.learn(addr(text), mac);
            assert_eq!(hops.mac(addr(text)), Some(mac), "{text}");
        }
        hops.learn(addr("192.0.2.16"), router);
        for (text, mac) in [
            ("192.0.2.1", None),
            ("192.0.2.7", None),
            ("192.0.2.16", Some(router)),
            ("198.51.100.1", Some(router)),
            ("2001:db8::e", None),
            ("2001:db8::10", None),
        ] {
            assert_eq!(hops.mac(addr(text)), mac, "{text}");
        }
    }
}
