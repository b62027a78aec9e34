//! Route of probes: interface, source addresses, routers.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use ::scan::{AddrRange, NextHops, Probe, Source, Targets};
use port::PortName;
use sys::address::InterfaceAddress;
use sys::link::Link;
use sys::{Error, ErrorKind, Result, neighbour};
use wire::Mac;

use super::{Setup, is_card, own};
use crate::send::next_hop_mac;

/// How long a router may take to answer the kernel's requests.
const ANSWER_LIMIT: Duration = Duration::from_millis(3_500);

/// A source address, and the prefix of the link if it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceAddr {
    /// The address.
    pub addr: IpAddr,
    /// Length of the prefix in bits.
    pub prefix_len: Option<u8>,
}

impl FromStr for SourceAddr {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong = || "expected an address, or one with a prefix such as 192.0.2.7/24".to_owned();
        let (addr, prefix) = match text.split_once('/') {
            Some((addr, prefix)) => (addr, Some(prefix)),
            None => (text, None),
        };
        let addr: IpAddr = addr.parse().map_err(|_| wrong())?;
        let prefix_len = match prefix {
            Some(text) => Some(text.parse::<u8>().map_err(|_| wrong())?),
            None => None,
        };
        let bits = if addr.is_ipv4() { 32 } else { 128 };
        if prefix_len.is_some_and(|len| len > bits) {
            return Err(format!("a prefix has at most {bits} bits"));
        }
        if addr.is_unspecified() || addr.is_multicast() {
            return Err("this is not the address of a host".to_owned());
        }
        Ok(Self { addr, prefix_len })
    }
}

impl fmt::Display for SourceAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix_len {
            Some(len) => write!(f, "{}/{len}", self.addr),
            None => self.addr.fmt(f),
        }
    }
}

/// The local end of the scan.
pub(super) struct Local {
    /// Name of the interface, or of the card.
    pub name: String,
    /// The interface; `None` for a card that the kernel does not drive.
    link: Option<Link>,
    /// Its MAC address, which a card has once it is open; zeros if it has none.
    mac: OnceLock<Mac>,
    /// Whether its packets have no Ethernet header: tun, PPP, IP tunnels. There are no neighbours
    /// to resolve on it.
    pub is_bare: bool,
    /// Source addresses and ports.
    pub source: Source,
    /// Addresses with the prefixes of the link.
    addresses: Vec<InterfaceAddress>,
    /// Routers that were given.
    routers: Vec<IpAddr>,
}

impl Local {
    /// Its MAC address; zeros before a card is open, and where there are none.
    pub fn mac(&self) -> Mac {
        self.mac.get().copied().unwrap_or(NO_MAC)
    }

    /// Sets the MAC address of a card.
    pub fn set_mac(&self, mac: Mac) {
        let _ = self.mac.set(mac);
    }

    /// Whether it is a card that the kernel does not drive.
    pub fn is_card(&self) -> bool {
        self.link.is_none()
    }

    /// Whether an XDP program is on the interface.
    pub fn has_xdp(&self) -> bool {
        self.link.as_ref().is_some_and(|link| !link.xdp.is_empty())
    }

    /// Whether packets can pass on the interface now; the link of a card is known to its port.
    pub fn is_running(&self) -> bool {
        let Some(link) = &self.link else {
            return true;
        };
        // One that has disappeared is reported when it is used.
        Link::by_index(link.index).map_or(true, |now| now.is_running())
    }

    /// A card: nothing but what was given is known of its link.
    fn card(name: &str, setup: &Setup, targets: &Targets) -> Result<Self> {
        let mut local = Self {
            name: name.to_owned(),
            link: None,
            mac: OnceLock::new(),
            is_bare: false,
            source: no_source(setup),
            addresses: given_addresses(setup),
            routers: setup.routers.clone(),
        };
        local.choose_source(setup, targets)?;
        Ok(local)
    }

    /// Finds the interface: the named one, or that of the route to the first target.
    pub fn find(setup: &Setup, targets: &Targets) -> Result<Self> {
        let link = match &setup.port {
            Some(name) if is_card(name) => return Self::card(name, setup, targets),
            Some(name) => Link::by_name(&PortName::parse(name)?.target)?,
            None => {
                let first = targets.addr(0);
                let route = neighbour::route(None, first).map_err(|error| {
                    error.with_hint(format!(
                        "there is no route to {first}: choose an interface with -e"
                    ))
                })?;
                Link::by_index(route.interface)?
            }
        };
        if link.hardware == LOOPBACK {
            return Err(own::routed(&link.name));
        }
        let what = || format!("scan from {}", link.name);
        if !link.is_up() {
            let hint = format!("ip link set {} up", link.name);
            return Err(Error::new(ErrorKind::InvalidInput, what(), "it is down").with_hint(hint));
        }
        let is_bare = is_bare(link.hardware);
        let mac = match is_bare {
            true => Some(NO_MAC),
            false => link.address.first_chunk::<6>().copied().map(Mac),
        };
        let Some(mac) = mac else {
            let why = "its packets have neither an Ethernet header nor an IP header at the start";
            return Err(Error::new(ErrorKind::Unsupported, what(), why));
        };
        let name = setup.port_name(&link.name, is_bare);
        if is_bare && !is_bare_port(&name, &link.name) {
            let why = format!("{name} needs an Ethernet header, which its packets do not have");
            let hint = format!("scan on {}", link.name);
            return Err(Error::new(ErrorKind::Unsupported, what(), why).with_hint(hint));
        }
        let is_filtered = setup.firewall && setup.grab.is_some();
        check_source_ports(&name, setup.source_ports, own_ports(), is_filtered)?;
        let mut addresses = sys::address::of(link.index)?;
        addresses.extend(given_addresses(setup));
        let mut local = Self {
            name: link.name.clone(),
            link: Some(link),
            mac: OnceLock::from(mac),
            is_bare,
            source: no_source(setup),
            addresses,
            routers: setup.routers.clone(),
        };
        local.choose_source(setup, targets)?;
        Ok(local)
    }

    fn choose_source(&mut self, setup: &Setup, targets: &Targets) -> Result<()> {
        for addr in &setup.source_addrs {
            match addr.addr {
                IpAddr::V4(addr) => self.source.ipv4 = Some(addr),
                IpAddr::V6(addr) => self.source.ipv6 = Some(addr),
            }
        }
        for is_ipv6 in [false, true] {
            let Some(target) = first_of(targets, is_ipv6) else {
                continue;
            };
            let is_known = match is_ipv6 {
                true => self.source.ipv6.is_some(),
                false => self.source.ipv4.is_some(),
            };
            if is_known {
                continue;
            }
            match self.source_to(target) {
                Some(IpAddr::V4(addr)) => self.source.ipv4 = Some(addr),
                Some(IpAddr::V6(addr)) => self.source.ipv6 = Some(addr),
                None => return Err(self.no_address(is_ipv6)),
            }
        }
        Ok(())
    }

    fn no_address(&self, is_ipv6: bool) -> Error {
        let (family, example) = match is_ipv6 {
            true => ("IPv6", "2001:db8::7/64"),
            false => ("IPv4", "192.0.2.7/24"),
        };
        let what = format!("scan from {}", self.name);
        if !self.is_card() {
            let why = format!("it has no {family} address to send from");
            return Error::new(ErrorKind::InvalidInput, what, why)
                .with_hint("--source-ip ADDRESS sets one");
        }
        let why = format!("no {family} address to send from is given, and a card has none itself");
        Error::new(ErrorKind::InvalidInput, what, why).with_hint(format!(
            "--source-ip ADDRESS/PREFIX sets one that nobody else on the link has, for example \
             {example}; --router-ip ADDRESS the router for targets beyond the prefix"
        ))
    }

    /// The source address the kernel would choose, or the interface's first address of that family.
    fn source_to(&self, target: IpAddr) -> Option<IpAddr> {
        let link = self.link.as_ref()?;
        let chosen = neighbour::route(Some(link.index), target).ok();
        let own = self.addresses.iter().filter(|own| !own.is_local);
        let first = own
            .map(|own| own.addr)
            .find(|own| own.is_ipv4() == target.is_ipv4());
        chosen.and_then(|route| route.source).or(first)
    }

    /// The targets reachable without a router.
    pub fn on_link(&self, targets: &Targets) -> Targets {
        if self.is_bare {
            return Targets::default();
        }
        let mut ranges = Vec::new();
        for own in &self.addresses {
            ranges.extend(overlaps(targets, prefix_of(own)));
        }
        Targets::new(ranges, Vec::new()).unwrap_or_default()
    }

    /// Resolves the routers of targets that are not on the link.
    pub fn routers(&self, targets: &Targets, on_link: &Targets, hops: &mut NextHops) -> Result<()> {
        if self.is_bare {
            (hops.router_v4, hops.router_v6) = (Some(NO_MAC), Some(NO_MAC));
            return Ok(());
        }
        let Some(link) = &self.link else {
            return Ok(());
        };
        for is_ipv6 in [false, true] {
            let Some(target) = first_off_link(targets, on_link, is_ipv6) else {
                continue;
            };
            let mac = match self.router(is_ipv6) {
                Some(router) => {
                    let found = neighbour::resolve(link.index, router, ANSWER_LIMIT)?;
                    found.and_then(|bytes| Some(Mac(bytes.try_into().ok()?)))
                }
                None => next_hop_mac(link, target, true)?,
            };
            let Some(mac) = mac else {
                let what = format!("find the router to {target}");
                let why = format!("no answer to ARP or Neighbor Discovery on {}", link.name);
                return Err(Error::new(ErrorKind::NotFound, what, why)
                    .with_hint("--router-mac MAC sets it; -e selects another interface"));
            };
            match is_ipv6 {
                true => hops.router_v6 = Some(mac),
                false => hops.router_v4 = Some(mac),
            }
        }
        Ok(())
    }
}

impl Local {
    /// The router of a family that was given.
    fn router(&self, is_ipv6: bool) -> Option<IpAddr> {
        let mut routers = self.routers.iter().copied();
        routers.find(|router| router.is_ipv6() == is_ipv6)
    }

    /// The routers of targets that are not on the link of a card.
    ///
    /// # Errors
    /// If one is not given.
    pub fn routers_needed(&self, targets: &Targets, on_link: &Targets) -> Result<Vec<IpAddr>> {
        let mut needed = Vec::new();
        for is_ipv6 in [false, true] {
            let Some(target) = first_off_link(targets, on_link, is_ipv6) else {
                continue;
            };
            let Some(router) = self.router(is_ipv6) else {
                let what = format!("scan from {}", self.name);
                let why =
                    format!("{target} is not known to be on its link, and no router is given");
                return Err(Error::new(ErrorKind::InvalidInput, what, why).with_hint(
                    "--source-ip ADDRESS/PREFIX says what is on the link; --router-ip ADDRESS or \
                     --router-mac MAC sets the router for all else",
                ));
            };
            needed.push(router);
        }
        Ok(needed)
    }

    /// Checks before a card is opened that all its routers are given.
    ///
    /// # Errors
    /// As [`Local::routers_needed`].
    pub fn check_routers(&self, setup: &Setup, targets: &Targets, on_link: &Targets) -> Result<()> {
        let is_resolved = setup.router_mac.is_none() && setup.ports.probes() != [Probe::Arp];
        match self.is_card() && is_resolved {
            true => self.routers_needed(targets, on_link).map(drop),
            false => Ok(()),
        }
    }
}

/// The addresses that were given with a prefix.
fn given_addresses(setup: &Setup) -> Vec<InterfaceAddress> {
    let given = setup.source_addrs.iter();
    let with_prefix = given.filter_map(|given| {
        Some(InterfaceAddress {
            addr: given.addr,
            prefix_len: given.prefix_len?,
            is_local: false,
        })
    });
    with_prefix.collect()
}

fn no_source(setup: &Setup) -> Source {
    Source {
        ipv4: None,
        ipv6: None,
        ports: setup.source_ports,
    }
}

/// In place of MAC addresses where there are none.
const NO_MAC: Mac = Mac([0; 6]);

/// Hardware of the loopback interface (`ARPHRD_LOOPBACK`).
const LOOPBACK: u16 = 772;

/// Whether packets of this hardware (`ARPHRD_`) begin with an IP header: PPP, tunnels of IP in IP
/// (also SIT and GRE), and devices without a header, such as tun and WireGuard.
pub(super) fn is_bare(hardware: u16) -> bool {
    const PPP: u16 = 512;
    const TUNNEL: u16 = 768;
    const TUNNEL6: u16 = 769;
    const SIT: u16 = 776;
    const GRE: u16 = 778;
    const NONE: u16 = 0xfffe;
    matches!(hardware, PPP | TUNNEL | TUNNEL6 | SIT | GRE | NONE)
}

/// Whether a port is one that packets without an Ethernet header are sent on.
fn is_bare_port(name: &str, link: &str) -> bool {
    name == link || name.starts_with("afpacket:")
}

/// The port range of this host's own connections (ip-sysctl, `ip_local_port_range`).
fn own_ports() -> Option<(u16, u16)> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let mut numbers = text.split_whitespace().map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// As many source ports as the default has, which overlap neither these nor the host's own.
pub(super) fn other_ports((first, count): (u16, u16)) -> (u16, u16) {
    const COUNT: u16 = 4096;
    let taken = [Some((first, first + (count - 1))), own_ports()];
    let is_free = |from: &u16| {
        let overlaps = |(first, last): (u16, u16)| first <= from + (COUNT - 1) && *from <= last;
        !taken.into_iter().flatten().any(overlaps)
    };
    let from = [20_000, 28_000, 10_000, 2_000, 61_000]
        .into_iter()
        .find(is_free);
    let from = from.unwrap_or(20_000);
    (from, from + (COUNT - 1))
}

/// Refuses source ports within the host's own range on a port that takes packets from the host, and
/// with a firewall rule: they would also affect the host's own connections.
fn check_source_ports(
    name: &str,
    ports: (u16, u16),
    own: Option<(u16, u16)>,
    is_filtered: bool,
) -> Result<()> {
    let (first, last) = (ports.0, ports.0 + (ports.1 - 1));
    let takes_traffic = name.starts_with("afxdp:") || is_filtered;
    let Some((own_first, own_last)) = own.filter(|_| takes_traffic) else {
        return Ok(());
    };
    if last < own_first || own_last < first {
        return Ok(());
    }
    let why = format!(
        "this host uses ports {own_first}-{own_last} for its own connections, and the scan would \
         interfere with them on ports {first}-{last}"
    );
    let hint = match is_filtered {
        true => "use a --source-port outside of that range",
        false => "use a --source-port outside of that range, or afpacket:, which copies packets",
    };
    Err(Error::new(ErrorKind::InvalidInput, format!("scan on {name}"), why).with_hint(hint))
}

fn first_of(targets: &Targets, is_ipv6: bool) -> Option<IpAddr> {
    let first = targets.ranges().find(|range| range.is_ipv6 == is_ipv6)?;
    Some(first.first_addr())
}

/// The first target of a family that is not on the link.
fn first_off_link(targets: &Targets, on_link: &Targets, is_ipv6: bool) -> Option<IpAddr> {
    let ranges = targets.ranges().filter(|range| range.is_ipv6 == is_ipv6);
    for mut rest in ranges {
        loop {
            match on_link.range_of(rest.first_addr()) {
                None => return Some(rest.first_addr()),
                Some(range) if range.last >= rest.last => break,
                Some(range) => rest.first = range.last + 1,
            }
        }
    }
    None
}

/// The targets within a range.
pub(super) fn overlaps(targets: &Targets, within: AddrRange) -> impl Iterator<Item = AddrRange> {
    let ranges = targets
        .ranges()
        .filter(move |range| range.is_ipv6 == within.is_ipv6);
    ranges.filter_map(move |range| {
        let (first, last) = (range.first.max(within.first), range.last.min(within.last));
        (first <= last).then_some(AddrRange {
            first,
            last,
            ..range
        })
    })
}

/// The on-link prefix of a local address.
fn prefix_of(own: &InterfaceAddress) -> AddrRange {
    let range = AddrRange::single(own.addr);
    let width = if range.is_ipv6 { 128u32 } else { 32 };
    let host_bits = width.saturating_sub(own.prefix_len.into());
    let host = !u128::MAX.unbounded_shl(host_bits);
    AddrRange {
        first: range.first & !host,
        last: range.first | host,
        ..range
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_target_off_the_link_is_found() {
        let set = |texts: &[&str]| {
            let ranges = texts.iter().map(|text| ::scan::parse_range(text).unwrap());
            Targets::new(ranges.collect::<Vec<_>>(), Vec::new()).unwrap()
        };
        let targets = set(&["192.0.2.0/24", "198.51.100.7", "2001:db8::/126"]);
        for (on_link, v4, v6) in [
            (&[][..], Some("192.0.2.0"), Some("2001:db8::")),
            (
                &["192.0.2.0/25", "192.0.2.130"],
                Some("192.0.2.128"),
                Some("2001:db8::"),
            ),
            (
                &["192.0.2.0/24", "2001:db8::-2001:db8::2"],
                Some("198.51.100.7"),
                Some("2001:db8::3"),
            ),
            (
                &["192.0.0.0/8", "198.51.100.0/24", "2001:db8::/64"],
                None,
                None,
            ),
        ] {
            let on_link = set(on_link);
            for (is_ipv6, expected) in [(false, v4), (true, v6)] {
                let found = first_off_link(&targets, &on_link, is_ipv6);
                assert_eq!(found.map(|addr| addr.to_string()).as_deref(), expected);
            }
        }
    }

    #[test]
    fn source_addresses_are_parsed_with_and_without_a_prefix() {
        for text in [
            "192.0.2.7",
            "192.0.2.7/24",
            "2001:db8::7/64",
            "2001:db8::7/128",
        ] {
            let parsed: SourceAddr = text.parse().unwrap();
            assert_eq!(parsed.to_string(), text);
        }
        for text in [
            "",
            "/24",
            "192.0.2.7/33",
            "192.0.2.7/",
            "::/64",
            "0.0.0.0",
            "224.0.0.1",
            "x",
        ] {
            assert!(text.parse::<SourceAddr>().is_err(), "{text}");
        }
    }

    #[test]
    fn other_source_ports_are_neither_these_nor_those_of_the_host() {
        for ports in [(61_000, 4_096), (20_000, 4_096), (1, 30_000), (1, 65_535)] {
            let (first, last) = other_ports(ports);
            assert_eq!(last - first, 4_095);
            let is_other = last < ports.0 || first > ports.0 + (ports.1 - 1);
            assert!(is_other || ports.1 == 65_535, "{ports:?}: {first}");
        }
    }

    #[test]
    fn source_ports_of_the_host_are_refused() {
        let own = Some((32_768, 60_999));
        for (name, ports, is_ok) in [
            ("afxdp:eth0", (61_000, 4_096), true),
            ("afxdp:eth0", (60_999, 1), false),
            ("afxdp:eth0", (1, 65_535), false),
            ("afxdp:eth0", (30_000, 2_768), true),
            ("afxdp:eth0", (30_000, 2_769), false),
            ("eth0", (40_000, 10), true),
        ] {
            let result = check_source_ports(name, ports, own, false);
            assert_eq!(result.is_ok(), is_ok, "{name} {ports:?}");
        }
        assert!(check_source_ports("afxdp:eth0", (40_000, 1), None, false).is_ok());
        assert!(check_source_ports("eth0", (40_000, 1), own, true).is_err());
    }
}
