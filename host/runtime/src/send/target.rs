//! Where packets go: what kind of interface, how long they may be, and whether the machine lives on
//! it.

use std::fs;
use std::net::Ipv4Addr;

use sys::link::{Link, XdpFeatures};

use sys::{Error, ErrorKind, Result};
use wire::Mac;

/// Hardware types with Ethernet headers (Linux `include/uapi/linux/if_arp.h`).
const ARPHRD_ETHER: u16 = 1;
const ARPHRD_LOOPBACK: u16 = 772;

/// An interface to send on.
#[derive(Clone, Debug)]
pub struct Target {
    /// The interface.
    pub link: Link,
    /// Longest packet in bytes, one VLAN tag not counted.
    pub packet_len_max: usize,
    /// What its driver can do for XDP now. Nothing before Linux 6.3, which is when kernels began
    /// to tell.
    pub xdp: XdpFeatures,
    /// Why the machine may live on it, as a sentence: see [`nic::lifeline`].
    pub lifeline: Option<String>,
}

impl Target {
    /// Backends in the order in which full speed is looked for; the last is there on every
    /// interface.
    ///
    /// On veth `xdplive` needs 0.4 of the processor time of the best socket (sendmmsg), `afxdp` in
    /// copy mode 0.6, `afpacket` about as much. Where `afxdp` would be zero-copy it attaches a
    /// program, which resets some cards: that is left to those who ask for it by name.
    pub fn fastest(&self) -> &'static [&'static str] {
        if self.xdp.has(XdpFeatures::NDO_XMIT) {
            &["xdplive", "afpacket"]
        } else if self.xdp.has(XdpFeatures::BASIC) && !self.xdp.has(XdpFeatures::ZERO_COPY) {
            &["afxdp", "afpacket"]
        } else {
            &["afpacket"]
        }
    }

    /// Whether packets come back to this machine.
    pub fn is_loopback(&self) -> bool {
        self.link.hardware == ARPHRD_LOOPBACK
    }
}

/// The MAC address of a neighbour on this interface, if the kernel knows it (proc(5),
/// `/proc/net/arp`).
pub fn neighbour(interface: &str, addr: Ipv4Addr) -> Option<Mac> {
    // The calling thread's namespace; `/proc/net` is the first thread's.
    let table = fs::read_to_string("/proc/thread-self/net/arp").ok()?;
    find_neighbour(&table, interface, addr)
}

/// Columns: address, hardware type, flags, hardware address, mask, device.
fn find_neighbour(table: &str, interface: &str, addr: Ipv4Addr) -> Option<Mac> {
    let addr = addr.to_string();
    table.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [found, _, flags, mac, _, device] = words[..] else {
            return None;
        };
        // ATF_COM: the entry is complete.
        let complete = u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok()? & 2 != 0;
        (found == addr && device == interface && complete).then(|| mac.parse().ok())?
    })
}

/// Looks at an interface by name.
///
/// # Errors
/// There is none, it is down, or its packets have no Ethernet headers.
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
        lifeline: nic::lifeline(name),
        link,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_found_when_complete() {
        let table = "IP address  HW type  Flags  HW address         Mask  Device\n\
            192.0.2.1   0x1      0x2    02:00:00:00:00:07  *     eth0\n\
            192.0.2.2   0x1      0x0    00:00:00:00:00:00  *     eth0\n";
        let find = |device, last| find_neighbour(table, device, Ipv4Addr::new(192, 0, 2, last));
        assert_eq!(find("eth0", 1), "02:00:00:00:00:07".parse().ok());
        assert_eq!(find("eth1", 1), None);
        assert_eq!(find("eth0", 2), None);
    }

    #[test]
    fn loopback_can_be_sent_on_and_nothing_else_lives_there() {
        let lo = target("lo").unwrap();
        assert!(lo.is_loopback() && lo.lifeline.is_none());
        assert!(target("no-such-if").is_err());
    }
}
