//! One interface: driver, link, queues, RSS, offloads, XDP.
//!
//! Queried in the network namespace of the calling thread, by netlink and through the driver;
//! `/sys`, which may show another namespace, is read only for properties of the card itself.

use std::fs;

use sys::Result;
use sys::ethtool::{Channels, DriverInfo, Ethtool, Offloads, RingSizes, Rss};
use sys::link::{Link, XdpFeatures};

use crate::holder::{XdpHolder, holder};
use crate::host_dependency::has_default_route;

/// The properties of an interface. `None`: the driver does not report it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Name, index, hardware type and address, flags, MTU, kind, queue counts.
    pub link: Link,
    /// Speed in megabits per second.
    pub speed_mbps: Option<u32>,
    /// NUMA node of the card.
    pub numa_node: Option<u32>,
    /// Driver, firmware and bus address.
    pub driver: Option<DriverInfo>,
    /// Queues: present and maximum number.
    pub channels: Option<Channels>,
    /// Ring sizes: present and maximum.
    pub rings: Option<RingSizes>,
    /// Receive-side scaling.
    pub rss: Option<Rss>,
    /// Offloads.
    pub offloads: Option<Offloads>,
    /// Whether the card can timestamp every packet.
    pub stamps_all_packets: Option<bool>,
    /// What its driver supports for XDP. `None` before Linux 6.3.
    pub xdp_features: Option<XdpFeatures>,
    /// The attached XDP programs.
    pub xdp: Vec<XdpHolder>,
    /// Whether it has a default route: taking its traffic would cut the machine off.
    pub has_default_route: bool,
}

impl Interface {
    /// Number of queues that receive now.
    pub fn rx_queue_count(&self) -> u32 {
        self.channels
            .map_or(self.link.rx_queue_max, |c| c.rx + c.combined)
            .max(1)
    }

    /// The AF_XDP modes that the driver reports, best first, by the kernel's names. Zero-copy may
    /// still fail when a queue is bound, if the device itself does not allow it (for example virtio
    /// without `VIRTIO_F_ACCESS_PLATFORM`); trying it would reset the card.
    pub fn attach_modes(&self) -> Vec<&'static str> {
        let features = self.xdp_features.unwrap_or_default();
        let mut modes = Vec::new();
        if features.has(XdpFeatures::BASIC | XdpFeatures::REDIRECT | XdpFeatures::ZERO_COPY) {
            modes.push("native zero-copy");
        }
        if features.has(XdpFeatures::BASIC | XdpFeatures::REDIRECT) {
            modes.push("native copy");
        }
        modes.push("generic copy");
        modes
    }
}

/// All interfaces of this network namespace, by index.
///
/// # Errors
/// If netlink does not answer.
pub fn interfaces() -> Result<Vec<Interface>> {
    let ethtool = Ethtool::open()?;
    // An interface may disappear while it is being read: then it is skipped.
    Ok(Link::all()?
        .into_iter()
        .filter_map(|link| describe(link, &ethtool).ok())
        .collect())
}

/// One interface by name.
///
/// # Errors
/// `NotFound` if there is none.
pub fn interface(name: &str) -> Result<Interface> {
    describe(Link::by_name(name)?, &Ethtool::open()?)
}

fn describe(link: Link, ethtool: &Ethtool) -> Result<Interface> {
    let name = link.name.as_str();
    let numa = fs::read_to_string(format!("/sys/class/net/{name}/device/numa_node"));
    Ok(Interface {
        speed_mbps: ethtool.speed_mbps(name)?,
        numa_node: numa.ok().and_then(|text| text.trim().parse().ok()),
        driver: ethtool.driver_info(name)?,
        channels: ethtool.channels(name)?,
        rings: ethtool.ring_sizes(name)?,
        rss: ethtool.rss(name)?,
        offloads: ethtool.offloads(name)?,
        stamps_all_packets: ethtool.stamps_all_packets(name)?,
        xdp_features: XdpFeatures::of(link.index).ok(),
        xdp: link
            .xdp
            .iter()
            .map(|&attached| holder(attached, link.index))
            .collect(),
        has_default_route: has_default_route(name),
        link,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_there() {
        let all = interfaces().unwrap();
        let lo = all.iter().find(|i| i.link.name == "lo").unwrap();
        assert_eq!(lo.link.hardware, 772);
        assert!(!lo.has_default_route);
        assert_eq!(lo.attach_modes().last(), Some(&"generic copy"));
    }

    #[test]
    fn missing_interfaces_are_not_found() {
        for name in ["", "..", "no-such-if"] {
            let error = interface(name).unwrap_err();
            assert_eq!(error.kind(), sys::ErrorKind::NotFound, "{name:?}");
        }
    }
}
