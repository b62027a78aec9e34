//! A veth pair across two namespaces, without packets of its own.
//!
//! Tests of accounting compare counters exactly, so only the test's own packets may cross the pair:
//! neighbours are static, addresses are set without duplicate detection, IPv6 is off unless
//! requested, and offloads are off so that one packet sent is one packet on the wire (with
//! segmentation offload a "packet" of 64 KiB would cross). veth supports XDP in native and in
//! generic mode, and AF_XDP in copy mode in both, but not zero-copy.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::netns::{Netns, ip};

/// Options of a pair: start with [`Veth::new`], end with [`Veth::create`].
#[derive(Clone, Debug)]
pub struct Veth {
    queues: u32,
    mtu: u32,
    ipv6: bool,
    gro: bool,
    offloads: bool,
    vlan_offload: bool,
}

impl Default for Veth {
    fn default() -> Veth {
        Veth {
            queues: 1,
            mtu: 1500,
            ipv6: false,
            gro: false,
            offloads: false,
            vlan_offload: false,
        }
    }
}

impl Veth {
    /// The defaults: one queue, MTU 1500, IPv4 only, no offloads, no GRO.
    pub fn new() -> Veth {
        Veth::default()
    }

    /// Sets the number of RX and TX queues of both ends.
    pub fn queues(mut self, count: u32) -> Veth {
        self.queues = count;
        self
    }

    /// Sets the MTU of both ends, in bytes of the IP packet: 14 less than the longest Ethernet
    /// packet.
    pub fn mtu(mut self, bytes: u32) -> Veth {
        self.mtu = bytes;
        self
    }

    /// Adds IPv6 addresses. The kernel then sends some packets (MLD reports when the link comes
    /// up), so this is not for exact counting.
    pub fn ipv6(mut self) -> Veth {
        self.ipv6 = true;
        self
    }

    /// Enables GRO, with which veth receives through NAPI and merges TCP segments.
    pub fn gro(mut self) -> Veth {
        self.gro = true;
        self
    }

    /// Keeps checksum, scatter-gather and segmentation offloads as the kernel sets them.
    pub fn offloads(mut self) -> Veth {
        self.offloads = true;
        self
    }

    /// Keeps VLAN tag offload on: tags are then passed as metadata, as on real cards.
    pub fn vlan_offload(mut self) -> Veth {
        self.vlan_offload = true;
        self
    }

    /// Creates both namespaces and the pair, and waits until both ends are up.
    ///
    /// # Errors
    /// If a step fails; the namespaces are deleted again.
    pub fn create(&self) -> Result<Pair> {
        let (left, right) = (Netns::new()?, Netns::new()?);
        let queues = self.queues.to_string();
        let mtu = self.mtu.to_string();
        let (left_mac, right_mac) = (mac_of(1), mac_of(2));
        let end = |name, mac| {
            [
                "name",
                name,
                "mtu",
                &mtu,
                "address",
                mac,
                "numrxqueues",
                &queues,
                "numtxqueues",
            ]
            .map(str::to_owned)
        };
        // ip link add [left end] type veth peer [right end]
        let (left_mac_text, right_mac_text) = (mac_text(left_mac), mac_text(right_mac));
        let mut args = vec!["link".to_owned(), "add".to_owned()];
        args.extend(end(LEFT, &left_mac_text));
        args.extend([&queues, "netns", left.name(), "type", "veth", "peer"].map(str::to_owned));
        args.extend(end(RIGHT, &right_mac_text));
        args.extend([&queues, "netns", right.name()].map(str::to_owned));
        ip(args)?;
        let mut pair = Pair {
            left: End::new(left, LEFT, left_mac, 1),
            right: End::new(right, RIGHT, right_mac, 2),
        };
        for (end, peer) in [
            (&pair.left, Peer::of(&pair.right)),
            (&pair.right, Peer::of(&pair.left)),
        ] {
            self.configure(end, &peer)
                .with_context(|| format!("setting up {}", end.ifname))?;
        }
        for end in [&mut pair.left, &mut pair.right] {
            end.wait_up(Duration::from_secs(5))?;
            end.ifindex = end.link()?["ifindex"].as_u64().context("ifindex")? as u32;
        }
        Ok(pair)
    }

    fn configure(&self, end: &End, peer: &Peer) -> Result<()> {
        let End { ns, ifname, .. } = end;
        let conf6 = format!("net/ipv6/conf/{ifname}");
        ns.sysctl(
            &format!("{conf6}/disable_ipv6"),
            if self.ipv6 { "0" } else { "1" },
        )?;
        if self.ipv6 {
            // No link-local address, no router solicitation: fewer unsolicited packets.
            ns.ip(["link", "set", ifname, "addrgenmode", "none"])?;
            ns.sysctl(&format!("{conf6}/accept_ra"), "0")?;
            ns.sysctl(&format!("{conf6}/router_solicitations"), "0")?;
        }
        let switch = |on: bool| if on { "on" } else { "off" };
        let mut features = vec!["-K", ifname, "gro", switch(self.gro)];
        if !self.offloads {
            for feature in ["rx", "tx", "sg", "tso", "gso"] {
                features.extend([feature, "off"]);
            }
        }
        if !self.vlan_offload {
            for feature in [
                "rxvlan",
                "txvlan",
                "rx-vlan-stag-hw-parse",
                "tx-vlan-stag-hw-insert",
            ] {
                features.extend([feature, "off"]);
            }
        }
        ns.exec("ethtool", features)?;
        ns.ip(["address", "add", &format!("{}/24", end.ipv4), "dev", ifname])?;
        if self.ipv6 {
            ns.ip([
                "address",
                "add",
                &format!("{}/64", end.ipv6),
                "dev",
                ifname,
                "nodad",
            ])?;
        }
        ns.ip(["link", "set", ifname, "up"])?;
        if self.gro {
            // Before the link was up, the other end was not informed that XDP frames may arrive
            // (`veth_set_features`, Linux 6.18).
            ns.exec("ethtool", ["-K", ifname, "gro", "off"])?;
            ns.exec("ethtool", ["-K", ifname, "gro", "on"])?;
        }
        let mut neighbours = vec![peer.ipv4.to_string()];
        neighbours.extend(self.ipv6.then(|| peer.ipv6.to_string()));
        for address in &neighbours {
            let args = [
                "neighbor", "replace", address, "lladdr", &peer.mac, "dev", ifname,
            ];
            ns.ip(args.into_iter().chain(["nud", "permanent"]))?;
        }
        Ok(())
    }
}

/// Settings of an end for its peer.
struct Peer {
    mac: String,
    ipv4: Ipv4Addr,
    ipv6: Ipv6Addr,
}

impl Peer {
    fn of(end: &End) -> Peer {
        Peer {
            mac: mac_text(end.mac),
            ipv4: end.ipv4,
            ipv6: end.ipv6,
        }
    }
}

/// Name of the interface in the left namespace.
pub const LEFT: &str = "left0";

/// Name of the interface in the right namespace.
pub const RIGHT: &str = "right0";

/// Two connected ends; on drop both namespaces and the pair are deleted.
#[derive(Debug)]
pub struct Pair {
    /// 10.77.0.1, fd77::1.
    pub left: End,
    /// 10.77.0.2, fd77::2.
    pub right: End,
}

impl Pair {
    /// Lets the right end's kernel answer for the addresses of an IPv4 prefix, to which the left
    /// end gets a route through it.
    ///
    /// # Errors
    /// If `ip` fails.
    pub fn add_hosts(&self, prefix: &str) -> Result<()> {
        let (left, right) = (&self.left, &self.right);
        right
            .ns
            .ip(["route", "add", "local", prefix, "dev", "lo"])?;
        let router = right.ipv4.to_string();
        left.ns.ip(["route", "add", prefix, "via", &router])?;
        Ok(())
    }

    /// Two cards connected by a wire, each moved to its own namespace and set up without
    /// unsolicited packets like a veth pair, with this many queues if supported. They are returned
    /// on drop.
    ///
    /// # Errors
    /// If one is missing, or does not come up.
    pub fn of_cards(left: &str, right: &str, mtu: u32, queues: u32) -> Result<Pair> {
        let end = |name: &str, host| -> Result<End> {
            // The cards of an earlier pair may still be on their way back.
            let there = Path::new("/sys/class/net").join(name).join("address");
            let until = Instant::now() + Duration::from_secs(10);
            while !there.exists() {
                ensure!(Instant::now() < until, "there is no interface {name}");
                thread::sleep(Duration::from_millis(20));
            }
            let text = std::fs::read_to_string(&there)?;
            let mut mac = [0; 6];
            for (byte, digits) in mac.iter_mut().zip(text.trim().split(':')) {
                *byte = u8::from_str_radix(digits, 16).with_context(|| text.clone())?;
            }
            let end = End::new(Netns::new()?, name, mac, host);
            ip(["link", "set", name, "down"])?;
            ip(["link", "set", name, "mtu", &mtu.to_string()])?;
            ip(["link", "set", name, "netns", end.ns.name()])?;
            Ok(end)
        };
        let mut pair = Pair {
            left: end(left, 1)?,
            right: end(right, 2)?,
        };
        for (end, peer) in [
            (&pair.left, Peer::of(&pair.right)),
            (&pair.right, Peer::of(&pair.left)),
        ] {
            let End { ns, ifname, .. } = end;
            ns.sysctl(&format!("net/ipv6/conf/{ifname}/disable_ipv6"), "1")?;
            // A burst of a case is longer than the 256 entries that cards start with. Not every
            // card can have more.
            let _ = ns.exec("ethtool", ["-G", ifname, "rx", "4096"]);
            // Not every card has several.
            let _ = ns.exec("ethtool", ["-L", ifname, "combined", &queues.to_string()]);
            // igb hashes UDP by addresses alone unless configured to include ports.
            let _ = ns.exec("ethtool", ["-N", ifname, "rx-flow-hash", "udp4", "sdfn"]);
            // One by one: no card has all of these.
            for feature in ["gro", "lro", "tso", "gso", "rxvlan", "txvlan", "rx", "tx"] {
                let _ = ns.exec("ethtool", ["-K", ifname, feature, "off"]);
            }
            let address = format!("{}/24", end.ipv4);
            ns.ip(["address", "add", &address, "dev", ifname])?;
            ns.ip(["link", "set", ifname, "up"])?;
            let peer_ip = peer.ipv4.to_string();
            let neighbour = ["neighbor", "replace", &peer_ip, "lladdr", &peer.mac];
            ns.ip(neighbour
                .into_iter()
                .chain(["dev", ifname, "nud", "permanent"]))?;
        }
        for end in [&mut pair.left, &mut pair.right] {
            end.wait_up(LINK_LIMIT)?;
            end.ifindex = end.link()?["ifindex"].as_u64().context("ifindex")? as u32;
        }
        Ok(pair)
    }
}

/// A card that was reset has to bring its link up again.
const LINK_LIMIT: Duration = Duration::from_secs(20);

/// One end of a pair, and its namespace.
#[derive(Debug)]
pub struct End {
    /// Its namespace, which otherwise contains only loopback.
    pub ns: Netns,
    /// [`LEFT`] or [`RIGHT`].
    pub ifname: String,
    /// The interface index, unique in its namespace only.
    pub ifindex: u32,
    /// MAC address.
    pub mac: [u8; 6],
    /// Address in 10.77.0.0/24.
    pub ipv4: Ipv4Addr,
    /// Address in fd77::/64; set on the interface only if requested.
    pub ipv6: Ipv6Addr,
}

impl End {
    fn new(ns: Netns, ifname: &str, mac: [u8; 6], host: u8) -> End {
        End {
            ns,
            ifname: ifname.into(),
            ifindex: 0,
            mac,
            ipv4: Ipv4Addr::new(10, 77, 0, host),
            ipv6: Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, host.into()),
        }
    }

    /// The interface as `ip -s -s -j link show` prints it.
    ///
    /// # Errors
    /// If the interface no longer exists.
    pub fn link(&self) -> Result<Value> {
        let text = self
            .ns
            .ip(["-s", "-s", "-j", "-d", "link", "show", "dev", &self.ifname])?;
        let mut value: Value = serde_json::from_str(&text).context("JSON of ip link")?;
        Ok(value[0].take())
    }

    /// The interface's own counters.
    ///
    /// # Errors
    /// If the interface no longer exists.
    pub fn counters(&self) -> Result<Counters> {
        Counters::from_link(&self.link()?)
    }

    /// The driver's counters by name (`ethtool -S`), for example `rx_queue_0_drops`.
    ///
    /// # Errors
    /// If the interface no longer exists.
    pub fn driver_counters(&self) -> Result<BTreeMap<String, u64>> {
        parse_driver_counters(&self.ns.exec("ethtool", ["-S", &self.ifname])?)
    }

    /// A driver counter summed over all queues: `driver_sum("rx", "drops")` adds
    /// `rx_queue_0_drops`, `rx_queue_1_drops` and so on.
    ///
    /// # Errors
    /// If the interface no longer exists or no queue has such a counter.
    pub fn driver_sum(&self, direction: &str, name: &str) -> Result<u64> {
        let counters = self.driver_counters()?;
        let mut found = counters
            .iter()
            .filter_map(|(key, value)| {
                let rest = key.strip_prefix(direction)?.strip_prefix("_queue_")?;
                (rest.split_once('_')?.1 == name).then_some(*value)
            })
            .peekable();
        ensure!(
            found.peek().is_some(),
            "no counter {direction}_queue_N_{name}: {counters:?}"
        );
        Ok(found.sum())
    }

    /// Sets the link up, and waits until it is.
    ///
    /// # Errors
    /// If it is refused or takes more than twenty seconds.
    pub fn set_up(&self) -> Result<()> {
        self.ns.ip(["link", "set", &self.ifname, "up"])?;
        self.wait_up(LINK_LIMIT)
    }

    /// Sets the link down.
    ///
    /// # Errors
    /// If it is refused.
    pub fn set_down(&self) -> Result<()> {
        self.ns.ip(["link", "set", &self.ifname, "down"]).map(drop)
    }

    /// Sets the MTU, in bytes of the IP packet.
    ///
    /// # Errors
    /// If it is refused, as with an XDP program that does not support packets of that size.
    pub fn set_mtu(&self, bytes: u32) -> Result<()> {
        self.ns
            .ip(["link", "set", &self.ifname, "mtu", &bytes.to_string()])
            .map(drop)
    }

    /// Sets the number of RX and TX queues in use (`ethtool -L`).
    ///
    /// # Errors
    /// If it is refused: more than the pair was created with, or fewer than the peer needs.
    pub fn set_queues(&self, count: u32) -> Result<()> {
        let count = count.to_string();
        self.ns
            .exec("ethtool", ["-L", &self.ifname, "rx", &count, "tx", &count])
            .map(drop)
    }

    /// Enables or disables GRO.
    ///
    /// # Errors
    /// If it is refused.
    pub fn set_gro(&self, on: bool) -> Result<()> {
        let switch = if on { "on" } else { "off" };
        self.ns
            .exec("ethtool", ["-K", &self.ifname, "gro", switch])
            .map(drop)
    }

    /// Deletes the interface and thereby its peer, as when a card is removed.
    ///
    /// # Errors
    /// If it no longer exists.
    pub fn delete(&self) -> Result<()> {
        self.ns.ip(["link", "delete", &self.ifname]).map(drop)
    }

    /// The ID of the attached XDP program, with iproute2's name of the mode (`xdp`, `xdpgeneric`,
    /// `xdpoffload`); `None` if there is none.
    ///
    /// # Errors
    /// If the interface no longer exists.
    pub fn xdp(&self) -> Result<Option<(u64, String)>> {
        let link = self.link()?;
        let Some(id) = link["xdp"]["prog"]["id"].as_u64() else {
            return Ok(None);
        };
        // IFLA_XDP_ATTACHED of the kernel's if_link.h.
        let mode = match link["xdp"]["mode"].as_u64() {
            Some(1) => "xdp",
            Some(2) => "xdpgeneric",
            Some(3) => "xdpoffload",
            other => bail!("XDP mode {other:?}"),
        };
        Ok(Some((id, mode.into())))
    }

    /// Waits for the link, which a card loses for seconds when a program is attached.
    ///
    /// # Errors
    /// If it takes longer than `limit`.
    pub fn wait_up(&self, limit: Duration) -> Result<()> {
        let until = Instant::now() + limit;
        while self.link()?["operstate"] != "UP" {
            ensure!(
                Instant::now() < until,
                "{} is not up after {limit:?}",
                self.ifname
            );
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

/// Counters of an interface (`struct rtnl_link_stats64`); packets and bytes without the FCS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets received and dropped for lack of room.
    pub rx_dropped: u64,
    /// Packets refused as faulty.
    pub rx_errors: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets dropped before they were sent. On veth: because the peer could not accept them.
    pub tx_dropped: u64,
    /// Packets that could not be sent.
    pub tx_errors: u64,
}

impl Counters {
    fn from_link(link: &Value) -> Result<Counters> {
        let get = |direction: &str, name: &str| {
            let value = &link["stats64"][direction][name];
            value
                .as_u64()
                .with_context(|| format!("no counter {direction} {name} in {link}"))
        };
        Ok(Counters {
            rx_packets: get("rx", "packets")?,
            rx_bytes: get("rx", "bytes")?,
            rx_dropped: get("rx", "dropped")?,
            rx_errors: get("rx", "errors")?,
            tx_packets: get("tx", "packets")?,
            tx_bytes: get("tx", "bytes")?,
            tx_dropped: get("tx", "dropped")?,
            tx_errors: get("tx", "errors")?,
        })
    }

    /// The difference to `before`.
    pub fn since(&self, before: &Counters) -> Counters {
        Counters {
            rx_packets: self.rx_packets - before.rx_packets,
            rx_bytes: self.rx_bytes - before.rx_bytes,
            rx_dropped: self.rx_dropped - before.rx_dropped,
            rx_errors: self.rx_errors - before.rx_errors,
            tx_packets: self.tx_packets - before.tx_packets,
            tx_bytes: self.tx_bytes - before.tx_bytes,
            tx_dropped: self.tx_dropped - before.tx_dropped,
            tx_errors: self.tx_errors - before.tx_errors,
        }
    }
}

fn parse_driver_counters(text: &str) -> Result<BTreeMap<String, u64>> {
    let lines = text
        .lines()
        .filter_map(|line| line.trim().rsplit_once(": "));
    lines
        .map(|(name, value)| {
            let value = value
                .parse()
                .with_context(|| format!("counter {name}: {value}"))?;
            Ok((name.to_owned(), value))
        })
        .collect()
}

/// Locally administered, so that no real card has it.
fn mac_of(host: u8) -> [u8; 6] {
    [0x02, 0xba, 0x4e, 0, 0, host]
}

fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests;
