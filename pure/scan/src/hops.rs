//! To which MAC address a probe goes.

use std::collections::HashMap;
use std::net::IpAddr;

use wire::Mac;

use crate::target::Targets;

/// Next hops: neighbours on the link, and the routers for all else.
#[derive(Clone, Debug, Default)]
pub struct NextHops {
    /// Router for IPv4 targets that are not on the link.
    pub router_v4: Option<Mac>,
    /// Router for IPv6 targets that are not on the link.
    pub router_v6: Option<Mac>,
    /// Targets on the link: each has a MAC address of its own, or none at all.
    pub on_link: Targets,
    /// Those that answered.
    pub neighbours: HashMap<IpAddr, Mac>,
}

impl NextHops {
    /// The MAC address of a target's next hop; `None` if its MAC address could not be resolved.
    #[inline]
    pub fn mac(&self, addr: IpAddr) -> Option<Mac> {
        if self.on_link.count() != 0 && self.on_link.contains(addr) {
            return self.neighbours.get(&addr).copied();
        }
        match addr {
            IpAddr::V4(_) => self.router_v4,
            IpAddr::V6(_) => self.router_v6,
        }
    }
}
