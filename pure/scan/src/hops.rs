//! The MAC address that a probe is sent to.

use std::collections::HashMap;
use std::net::IpAddr;

use wire::Mac;

use crate::target::Targets;

/// Next hops: neighbours on the link, and routers for all other targets.
#[derive(Clone, Debug, Default)]
pub struct NextHops {
    /// Router for IPv4 targets that are not on the link.
    pub router_v4: Option<Mac>,
    /// Router for IPv6 targets that are not on the link.
    pub router_v6: Option<Mac>,
    /// Targets on the link, which are sent to directly or, without a known MAC address, not at all.
    pub on_link: Targets,
    /// MAC addresses of the neighbours that answered.
    pub neighbours: HashMap<IpAddr, Mac>,
}

impl NextHops {
    /// The MAC address of a target's next hop; `None` if it could not be resolved.
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
