//! Where packets are sent: the kind of interface, the maximum packet length, and whether this host
//! depends on it.

use std::net::IpAddr;
use std::time::Duration;

use sys::link::{Link, XdpFeatures};

use sys::{Error, ErrorKind, Result};
use wire::Mac;

/// ARP hardware types with Ethernet headers (Linux `include/uapi/linux/if_arp.h`).
const ARPHRD_ETHER: u16 = 1;
const ARPHRD_LOOPBACK: u16 = 772;

/// An interface to send on.
#[derive(Clone, Debug)]
pub struct Target {
    /// The interface.
    pub link: Link,
    /// Maximum packet length in bytes, without a VLAN tag.
    pub packet_len_max: usize,
    /// XDP features that its driver currently supports. `None` before Linux 6.3, which introduced
    /// the report.
    pub xdp: XdpFeatures,
    /// Why the host may depend on it, as a sentence: see [`nic::host_dependency`].
    pub host_dependency: Option<String>,
}

impl Target {
    /// Backends in the order in which full speed is tried; the last works on every interface.
    ///
    /// On veth `xdplive` needs 0.4 of the processor time of the best socket (sendmmsg), `afxdp` in
    /// copy mode 0.6, `afpacket` about as much. Where `afxdp` would be zero-copy it attaches a
    /// program, which resets some cards: that must be requested by name.
    pub fn fastest(&self) -> &'static [&'static str] {
        if self.xdp.has(XdpFeatures::NDO_XMIT) {
            &["xdplive", "afpacket"]
        } else if self.xdp.has(XdpFeatures::BASIC) && !self.xdp.has(XdpFeatures::ZERO_COPY) {
            &["afxdp", "afpacket"]
        } else {
            &["afpacket"]
        }
    }

    /// Whether packets return to this host.
    pub fn is_loopback(&self) -> bool {
        self.link.hardware == ARPHRD_LOOPBACK
    }
}

/// How long a neighbour may take to answer: the kernel gives up after three requests, a second
/// apart.
const ANSWER_LIMIT: Duration = Duration::from_millis(3_500);

/// The MAC address of a neighbour, if the kernel knows it and it is an Ethernet address.
///
/// # Errors
/// If netlink does not answer.
pub fn neighbour_mac(link: &Link, address: IpAddr) -> Result<Option<Mac>> {
    let found = sys::neighbour::find(link.index, address)?;
    Ok(found.and_then(|bytes| Some(Mac(bytes.try_into().ok()?))))
}

/// The MAC address to which packets for `destination` must be sent on this interface: that of the
/// next hop. If the kernel does not know it and `ask` is set, the kernel sends ARP or Neighbor
/// Discovery requests. `None`: no answer, or not an Ethernet address.
///
/// # Errors
/// If there is no route, or the requests are not permitted.
pub fn next_hop_mac(link: &Link, destination: IpAddr, ask: bool) -> Result<Option<Mac>> {
    let address = sys::neighbour::next_hop(link.index, destination)?;
    let found = match ask {
        true => sys::neighbour::resolve(link.index, address, ANSWER_LIMIT)?,
        false => sys::neighbour::find(link.index, address)?,
    };
    Ok(found.and_then(|bytes| Some(Mac(bytes.try_into().ok()?))))
}

/// Looks up an interface by name.
///
/// # Errors
/// It does not exist, is down, or its packets have no Ethernet headers.
pub fn target(name: &str) -> Result<Target> {
    let link = Link::by_name(name)?;
    let what = || format!("send on {name}");
    if !link.is_up() {
        let hint = format!("ip link set {name} up");
        return Err(Error::new(ErrorKind::InvalidInput, what(), "it is down").with_hint(hint));
    }
    if ![ARPHRD_ETHER, ARPHRD_LOOPBACK].contains(&link.hardware) {
        let why = format!(
            "its packets have no Ethernet header (hardware type {})",
            link.hardware
        );
        return Err(Error::new(ErrorKind::Unsupported, what(), why));
    }
    Ok(Target {
        packet_len_max: link.mtu as usize + 14,
        xdp: XdpFeatures::of(link.index).unwrap_or_default(),
        host_dependency: nic::host_dependency(name),
        link,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_can_be_sent_on_without_force() {
        let lo = target("lo").unwrap();
        assert!(lo.is_loopback() && lo.host_dependency.is_none());
        assert!(target("no-such-if").is_err());
    }
}
