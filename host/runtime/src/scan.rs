//! A stateless scan over one port: one thread sends probes on schedule, one per queue recognizes
//! answers, and the caller's thread reports each answer once.

mod ahead;
mod bare;
mod card;
mod control;
mod firewall;
mod link;
mod list;
mod output;
mod own;
mod probes;
mod record;
mod respond;
mod route;
mod run;
mod select;
mod services;
mod spacing;
mod state;
mod sweep;
mod talk;
mod transmit;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::scan::grab::{Banner, BannerGrabber, GrabOptions};
use ::scan::{
    ATTEMPT_SECONDS, AdaptiveRate, AddrRange, AskedRate, Cookies, FrameOptions, Frames, LinkChange,
    NextHops, Options, Order, Plan, PlannedProbe, Ports, Probe, RangeList, RateChange, Shard,
    Targets,
};
use port::{Direction, FilterSource, Port, PortName, PortOptions, TimestampSource};
use sys::nftables::OwnedTable;
use sys::{Error, ErrorKind, Result};
use traffic::Rate;
use wire::{Mac, Timestamp};

use crate::origin_table::Vendors;
pub use ::scan::{Found, Totals};
use bare::ETHERNET_LEN;
use card::{OwnCard, is_card};
pub use control::RateControl;
pub use list::TargetList;
pub use output::{OutputFormat, OutputName, OutputOptions, Outputs, Rotation, close};
pub use record::Recording;
use record::Taps;
use route::Local;
pub use route::SourceAddr;
pub use run::run;
use select::{
    check_families, check_link, check_on_link, opt_out, random_addrs, too_many, without_reserved,
};
pub use services::Services;
pub use state::{Saved, StateFile};

/// What to scan, and how.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Addresses to scan.
    pub include: RangeList,
    /// Number of public IPv4 addresses that are chosen at random by the seed, in addition.
    pub random_count: u64,
    /// Further probes, of single addresses.
    pub pairs: Vec<PlannedProbe>,
    /// Addresses to exclude.
    pub exclude: RangeList,
    /// Addresses whose owners do not want to be scanned, excluded in addition.
    pub opt_out: RangeList,
    /// Ports to scan, each with its probe.
    pub ports: Ports,
    /// The port to send and receive on; `None`: the interface of the route to the first target.
    pub port: Option<String>,
    /// Source addresses, at most one per family; the kernel's choice if none is given.
    pub source_addrs: Vec<SourceAddr>,
    /// The first source port, and the number of source ports.
    pub source_ports: (u16, u16),
    /// Addresses of routers, at most one per family; those of the routing table if none is given.
    pub routers: Vec<IpAddr>,
    /// The router's MAC address, to which all probes are sent.
    pub router_mac: Option<Mac>,
    /// Rate in probes or bits per second.
    pub rate: Rate,
    /// The lowest rate, in the same unit; `None`: the rate is constant. Otherwise it starts there
    /// and follows the answers.
    pub rate_min: Option<f64>,
    /// Changes the rate while the scan runs, in the same unit; `None`: nothing does, except the
    /// answers. The first rate is `rate`.
    pub control: Option<RateControl>,
    /// Probes per target, at least one.
    pub attempts: u32,
    /// The shard that this run scans.
    pub shard: Shard,
    /// Seed of the probe order.
    pub seed: u64,
    /// Pairs between two attempts at a target; `None`: as many as are sent in a second.
    pub block: Option<u64>,
    /// The first probe to send.
    pub from: u128,
    /// How long to wait for answers to the last probes.
    pub wait: Duration,
    /// TCP options of probes.
    pub options: Options,
    /// TTL or hop limit of probes.
    pub ttl: u8,
    /// How banners are read; `None`: they are not.
    pub grab: Option<GrabOptions>,
    /// Number of queues that send, at most those of the port; `None`: as many as the rate needs.
    pub queues: Option<u32>,
    /// Vendors of MAC addresses.
    pub vendors: Arc<Vendors>,
    /// Whether a firewall rule keeps the kernel from resetting connections, on ports whose packets
    /// it receives, too.
    pub firewall: bool,
}

impl Setup {
    /// How a number becomes a rate in the unit of the highest rate.
    fn unit(&self) -> fn(f64) -> Rate {
        match self.rate {
            Rate::Packets(_) => Rate::Packets,
            Rate::Bits(_) => Rate::Bits,
        }
    }

    /// The rate as asked for.
    pub fn asked_rate(&self) -> AskedRate {
        let (max, unit) = match self.rate {
            Rate::Packets(pps) => (pps, "pps"),
            Rate::Bits(bps) => (bps, "bps"),
        };
        let min = self.rate_min;
        AskedRate { max, min, unit }
    }

    /// The law of a rate that follows the answers.
    fn adaptive(&self) -> Option<AdaptiveRate> {
        let min = self.rate_min?;
        Some(AdaptiveRate::new(min, self.asked_rate().max))
    }

    /// The name of the port that is opened on an interface. Banners need a port that takes answers
    /// before the kernel does, or a firewall rule: the kernel does not know the connections and
    /// would reset them.
    fn port_name(&self, interface: &str, is_bare: bool) -> String {
        let name = self.port.clone();
        name.unwrap_or_else(|| match self.grab {
            Some(_) if !self.firewall && !is_bare => format!("afxdp:{interface}"),
            _ => interface.to_owned(),
        })
    }
}

/// A scan with resolved targets and routes, before anything is sent.
pub struct Scan {
    setup: Setup,
    local: Local,
    plan: Plan,
    /// The addresses of all probes, without those of this host.
    addresses: Arc<Targets>,
    /// Targets that are addresses of this host. They are in the plan, which is the same on all
    /// hosts that scan a shard of it, and skipped.
    own: Targets,
    /// On-link targets, whose MAC addresses are still to be resolved.
    on_link: Targets,
    /// Number of reserved addresses left out of larger ranges.
    pub reserved: u128,
    /// Number of target addresses removed by the opt-out list.
    pub opted_out: u128,
}

/// Number of probes among which a sample is chosen.
const SAMPLED_MAX: usize = 1 << 16;

/// Maximum number of on-link targets: 8 bytes are kept for each.
pub const ON_LINK_MAX: u128 = 1 << 24;

/// Resolves the interface, its addresses and the next hops.
///
/// # Errors
/// If there is no target, no route, no source address, or no interface to scan from.
pub fn prepare(mut setup: Setup) -> Result<Scan> {
    setup.exclude.merge();
    let opted_out = opt_out(&mut setup).ok_or_else(too_many)?;
    if !setup.pairs.is_empty() {
        let excluded = Targets::new(setup.exclude.clone(), Vec::new()).ok_or_else(too_many)?;
        setup
            .pairs
            .retain(|(pair, _)| !excluded.contains(pair.addr));
    }
    if setup.random_count != 0 {
        let random = random_addrs(&setup).ok_or_else(too_many)?;
        setup.include.extend(random);
    }
    let given = Targets::without(setup.include.clone(), &setup.exclude);
    let given_count = given.ok_or_else(too_many)?.count();
    let targets = Arc::new(without_reserved(&setup).ok_or_else(too_many)?);
    // Lists may be long, and are not needed any more.
    (setup.include, setup.exclude) = Default::default();
    let addresses = match setup.pairs.as_slice() {
        [] => targets.clone(),
        pairs => {
            let pairs = pairs.iter().map(|(pair, _)| AddrRange::single(pair.addr));
            let all: RangeList = targets.ranges().chain(pairs).collect();
            Arc::new(Targets::new(all, Vec::new()).ok_or_else(too_many)?)
        }
    };
    if addresses.count() == 0 {
        let why = match given_count {
            0 => "no target is left after the exclusions",
            _ => "no target is left: to scan reserved addresses, name a range within them",
        };
        return Err(Error::new(ErrorKind::InvalidInput, "scan", why));
    }
    check_families(&setup, &targets)?;
    let own = own::among(&setup, &addresses)?;
    let addresses = own::others(addresses, &own)?;
    let local = Local::find(&setup, &addresses)?;
    check_link(&setup, &local, &addresses)?;
    let has_others = setup.ports.probes() != [Probe::Arp] || !setup.pairs.is_empty();
    let on_link = match setup.router_mac {
        None if has_others => local.on_link(&addresses),
        _ => Targets::default(),
    };
    check_on_link(&local, &on_link)?;
    local.check_routers(&setup, &addresses, &on_link)?;
    let order = order(&setup);
    let reserved = given_count - targets.count();
    let (ports, pairs) = (setup.ports.clone(), setup.pairs.clone());
    let plan = Plan::with_pairs(targets, ports, pairs, local.source, order);
    Ok(Scan {
        addresses,
        plan: plan.ok_or_else(too_many)?,
        setup,
        local,
        own,
        on_link,
        reserved,
        opted_out,
    })
}

fn order(setup: &Setup) -> Order {
    Order {
        seed: setup.seed,
        shard: setup.shard,
        attempts: setup.attempts,
        block: setup.block.unwrap_or_else(|| block_len(setup)),
    }
}

/// Pairs between two attempts at a target: a little more than are sent until the next attempt is
/// due, so that a scan of many blocks never waits for it.
fn block_len(setup: &Setup) -> u64 {
    let pps = match setup.rate {
        Rate::Packets(pps) => pps,
        // As if all packets were of minimum length.
        Rate::Bits(bps) => bps / 480.0,
    };
    // A rate that may change can rise by this factor until attempts wait.
    let more = if setup.control.is_some() { 16.0 } else { 1.02 };
    ((pps * ATTEMPT_SECONDS * more).ceil() as u64).clamp(1, 1 << 24)
}

impl Scan {
    /// Probes and their order.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// A 64-bit fingerprint that distinguishes this scan from others.
    pub fn fingerprint(&self) -> u64 {
        let order = self.plan.order();
        state::fingerprint(
            (self.plan.targets(), self.plan.pairs()),
            self.plan.ports(),
            order.shard,
            order.attempts,
        )
    }

    /// The setup.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// The highest rate in packets per second: with a rate in bits, that of the shortest probes.
    pub fn pps_max(&self) -> f64 {
        transmit::pps_max(self.setup.rate)
    }

    /// The interface that probes are sent on.
    pub fn interface(&self) -> &str {
        &self.local.name
    }

    /// The number of on-link targets.
    pub fn on_link_count(&self) -> u128 {
        self.on_link.count()
    }

    /// The number of targets that are addresses of this host.
    pub fn own_count(&self) -> u128 {
        self.own.count()
    }

    /// The name of the port that [`run()`] opens.
    pub fn port_name(&self) -> String {
        self.setup.port_name(&self.local.name, self.local.is_bare)
    }

    /// Whether banners are read on a port whose packets the kernel also receives: it resets the
    /// connections unless a firewall rule drops its resets.
    pub fn is_reset_by_kernel(&self) -> bool {
        let name = self.port_name();
        let takes_answers = name.starts_with("afxdp:") || name.starts_with("vfio:");
        let has_tcp = self.plan.kinds().contains(&Probe::Syn);
        self.setup.grab.is_some() && has_tcp && !takes_answers
    }

    /// Sets the firewall rule, if one is wanted and needed.
    fn firewall(&self) -> Result<Option<OwnedTable>> {
        let is_set = self.setup.firewall && self.is_reset_by_kernel();
        is_set
            .then(|| firewall::open(&self.local.source))
            .transpose()
    }

    /// The vendor of a neighbour's card.
    fn vendor(&self, found: &Found) -> Option<Box<str>> {
        let mac = found.mac()?;
        let vendor = self.setup.vendors.find(mac.0);
        vendor.map(|name| name.as_ref().into())
    }

    fn grabber<'s>(
        &'s self,
        cookies: &'s Cookies,
        hops: &'s NextHops,
    ) -> Option<BannerGrabber<'s>> {
        let local = (self.local.mac(), self.setup.ttl);
        let grab = self.setup.grab.clone()?;
        Some(BannerGrabber::new(&self.plan, cookies, hops, local, grab))
    }

    /// The first probes as they are sent; unresolved next hops have MAC address 0.
    pub fn sample(&self, count: usize) -> Vec<Vec<u8>> {
        let (frames, cookies) = (self.frames(), Cookies::new([0; 16], self.local.source));
        let probes = self.plan.probes(0).take(SAMPLED_MAX);
        let is_sent = |(target, _): &PlannedProbe| !self.own.contains(target.addr);
        let probes = probes.filter(is_sent).take(count);
        let frame = |(target, payload)| {
            let mut out = vec![0; 2048];
            let mac = self.setup.router_mac.unwrap_or(Mac([0; 6]));
            let numbers = (&cookies.of(&target), 0);
            let len = frames.write((&target, payload), numbers, mac, &mut out);
            out.truncate(len.unwrap_or(0));
            if self.is_bare() {
                out.drain(..out.len().min(ETHERNET_LEN));
            }
            out
        };
        probes.map(frame).collect()
    }

    fn frames(&self) -> Frames {
        let look = FrameOptions {
            src_mac: self.local.mac(),
            ttl: self.setup.ttl,
            options: self.setup.options,
        };
        Frames::new(self.local.source, look, self.plan.ports().payloads())
    }

    /// Whether packets have no Ethernet header on the interface.
    pub fn is_bare(&self) -> bool {
        self.local.is_bare
    }

    /// Opens the port to send and receive; the filter passes only answers to probes.
    fn open(&self) -> Result<Port> {
        let name = self.port_name();
        let parsed = PortName::parse(&name)?;
        let options = PortOptions {
            direction: Direction::Both,
            filter_source: Some(self.filter()),
            promiscuous: false,
            outgoing: false,
            // Answers are dated when they are recognized.
            timestamp: TimestampSource::None,
            rx_len_max: self.rx_len_max(),
            tx_len_max: transmit::TX_LEN,
            ..PortOptions::default()
        };
        let port = port::open(&name, &options).map_err(|error| self.explained(error))?;
        if port.tx.is_empty() || port.rx.is_empty() {
            let why = "this port cannot both send and receive";
            return Err(
                Error::new(ErrorKind::InvalidInput, format!("scan on {name}"), why)
                    .with_hint(format!("afpacket:{} can", parsed.target)),
            );
        }
        Ok(port)
    }

    /// Adds to the error of an interface that another program has taken how to scan beside it.
    fn explained(&self, error: Error) -> Error {
        let reads_banners = self.setup.grab.is_some() && self.port_name().starts_with("afxdp:");
        if error.kind() != ErrorKind::Busy || !reads_banners {
            return error;
        }
        let (first, last) = route::other_ports(self.setup.source_ports);
        error.with_hint(format!(
            "scan beside it, from other ports and without XDP: -e {} --firewall --source-port \
             {first}-{last}",
            self.local.name
        ))
    }

    /// Whether another program may take the answers: its XDP program is on the interface, and the
    /// port only copies what that passes on.
    pub fn is_behind_xdp(&self) -> bool {
        let name = self.port_name();
        let is_copy = !name.starts_with("afxdp:") && !self.local.is_card();
        is_copy && self.local.has_xdp()
    }

    /// The filter of received packets: possible answers to a probe, and ICMP errors that quote one.
    /// Everything else is left to the host.
    fn filter(&self) -> FilterSource {
        let mut parts = Probe::filters(self.plan.kinds(), &self.local.source);
        if self.local.is_card() {
            parts.push("arp".into());
            parts.push("(icmp6 and (ip6[40] = 135 or ip6[40] = 136))".into());
        }
        crate::filter::source(&parts.join(" or "))
    }

    /// The next hops of all targets, once neighbours have answered; unless they are too many.
    fn hops(
        &self,
        stop: &crate::Stop,
        own: Option<(&mut Port, &OwnCard)>,
        taps: Option<&Taps>,
    ) -> Result<NextHops> {
        let mut hops = NextHops::beyond(self.own.clone());
        if self.plan.kinds() == [Probe::Arp] {
            return Ok(hops);
        }
        if let Some(mac) = self.setup.router_mac {
            (hops.router_v4, hops.router_v6) = (Some(mac), Some(mac));
            return Ok(hops);
        }
        hops.set_on_link(self.on_link.clone());
        if let Some((port, own)) = own {
            self.hops_by((port, Some(own), taps), &mut hops, stop)?;
            return Ok(hops);
        }
        self.local
            .routers(&self.addresses, &self.on_link, &mut hops)?;
        if self.on_link.count() != 0 && !self.resolves_ahead() {
            let port = &mut sweep::open(&self.local)?;
            let rate = &self.setup.rate;
            let found = sweep::resolve(&self.local, (port, None, taps), &self.on_link, rate, stop)?;
            hops.learn_all(found);
        }
        Ok(hops)
    }

    /// Whether MAC addresses are resolved while the scan runs.
    fn resolves_ahead(&self) -> bool {
        self.on_link.count() > ahead::AT_ONCE_MAX && !self.local.is_card()
    }
}

/// The time by the system's clock.
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Timestamp(since.map_or(0, |since| since.as_nanos() as u64))
}

/// Events while the scan runs.
pub enum Notice<'a> {
    /// The nftables table of this name drops the kernel's resets until the scan ends.
    Firewall(&'a str),
    /// Neighbors on the link were resolved: how many answered, of how many.
    Neighbours(u64, u128),
    /// An answer.
    Found(&'a Found),
    /// A service's banner, once reading has ended.
    Banner(&'a Banner, Timestamp),
    /// About once a second.
    Progress(&'a Totals, Duration),
    /// The rate has changed.
    Rate(RateChange, Timestamp),
    /// The link has gone down, or is up again.
    Link(LinkChange, Timestamp),
    /// All probes were sent; how long answers are waited for.
    Waiting(Duration),
}

/// How the scan ended.
#[derive(Debug)]
pub struct Outcome {
    /// The counts.
    pub totals: Totals,
    /// Time from the first probe to the end.
    pub elapsed: Duration,
    /// Time from the first probe to the last, including the last one's interval.
    pub sending: Duration,
    /// Whether all probes were sent.
    pub is_complete: bool,
    /// The error that ended it, if any.
    pub error: Option<Error>,
}

#[cfg(test)]
mod tests;
