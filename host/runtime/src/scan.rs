//! A stateless scan over one port: one thread sends probes when they are due, one a queue
//! recognizes answers, and the caller's reports each answer once.

mod probes;
mod route;
mod run;
mod state;
mod sweep;

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use ::scan::grab::{Banner, BannerGrabber, GrabCounts, GrabOptions};
use ::scan::{
    AddrRange, Answer, Cookies, FrameOptions, Frames, NextHops, Options, Order, Plan, Ports, Probe,
    RESERVED, Shard, Targets,
};
use port::{Direction, FilterSource, Port, PortName, PortOptions};
use sys::{Error, ErrorKind, Result};
use traffic::Rate;
use wire::Mac;

use route::Local;
pub use run::run;
pub use state::{Saved, StateFile};

/// What to scan, and how.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Addresses to scan.
    pub include: Vec<AddrRange>,
    /// Addresses to leave out.
    pub exclude: Vec<AddrRange>,
    /// Ports to scan, each with its probe.
    pub ports: Ports,
    /// The port to send and receive on; the interface of the route to the first target if `None`.
    pub port: Option<String>,
    /// Source addresses, one of each family at the most; the kernel's choice where there is none.
    pub source_addrs: Vec<IpAddr>,
    /// The first source port, and how many.
    pub source_ports: (u16, u16),
    /// The router's MAC address; all probes go to it.
    pub router_mac: Option<Mac>,
    /// Probes or bits a second.
    pub rate: Rate,
    /// Probes to each target, at least one.
    pub attempts: u32,
    /// The part of the scan that this run does.
    pub shard: Shard,
    /// Seed of the order.
    pub seed: u64,
    /// Pairs between two attempts at a target; a second's worth if `None`.
    pub block: Option<u64>,
    /// The probe to begin with.
    pub from: u128,
    /// How long answers to the last probes may take.
    pub wait: Duration,
    /// TCP options of probes.
    pub options: Options,
    /// TTL or hop limit of probes.
    pub ttl: u8,
    /// How banners are read, if they are.
    pub grab: Option<GrabOptions>,
}

/// A scan whose targets and routes are known, and of which nothing was sent.
pub struct Scan {
    setup: Setup,
    local: Local,
    plan: Plan,
    /// Targets on the link, whose MAC addresses are still to be resolved.
    on_link: Targets,
    /// Reserved addresses that larger ranges covered, left out.
    pub reserved: u128,
}

/// Maximum number of targets on the link: the MAC address of each is resolved before the scan.
pub const ON_LINK_MAX: u128 = 1 << 16;

/// Finds the interface, its addresses and the next hops.
///
/// # Errors
/// If no target is given, no route, no source address, or no interface to scan from.
pub fn prepare(setup: Setup) -> Result<Scan> {
    let given = Targets::new(setup.include.clone(), setup.exclude.clone()).ok_or_else(too_many)?;
    let targets = without_reserved(&setup).ok_or_else(too_many)?;
    if targets.count() == 0 {
        let why = match given.count() {
            0 => "no target is left after the exclusions",
            _ => "no target is left: to scan reserved addresses, name a range within them",
        };
        return Err(Error::new(ErrorKind::InvalidInput, "scan", why));
    }
    let local = Local::find(&setup, &targets)?;
    let on_link = match setup.router_mac {
        Some(_) => Targets::default(),
        None => local.on_link(&targets),
    };
    if on_link.count() > ON_LINK_MAX {
        let why = format!(
            "{} targets are on the link of {}, and at most {ON_LINK_MAX} MAC addresses can be \
             resolved",
            on_link.count(),
            local.link.name
        );
        return Err(Error::new(ErrorKind::InvalidInput, "scan", why).with_hint(
            "scan fewer at a time, or send all probes to one router: --router-mac MAC",
        ));
    }
    let order = Order {
        seed: setup.seed,
        shard: setup.shard,
        attempts: setup.attempts,
        block: setup.block.unwrap_or_else(|| block_len(&setup.rate)),
    };
    let reserved = given.count() - targets.count();
    let plan = Plan::new(targets, setup.ports.clone(), local.source, order);
    Ok(Scan {
        plan: plan.ok_or_else(too_many)?,
        setup,
        local,
        on_link,
        reserved,
    })
}

fn too_many() -> Error {
    let why = "there are too many targets";
    Error::new(ErrorKind::InvalidInput, "scan", why)
        .with_hint("scan smaller ranges: for IPv6, addresses or prefixes of /21 or longer")
}

/// The targets; of reserved blocks only what was named within them.
fn without_reserved(setup: &Setup) -> Option<Targets> {
    let is_named = |range: &AddrRange| RESERVED.iter().any(|block| block.covers(range));
    let (named, others): (Vec<_>, Vec<_>) = setup.include.iter().copied().partition(is_named);
    let others = Targets::new(others, RESERVED.to_vec())?;
    let include = others.ranges().iter().copied().chain(named).collect();
    Targets::new(include, setup.exclude.clone())
}

/// Attempts at a target are a second apart, as far as the number of targets allows.
fn block_len(rate: &Rate) -> u64 {
    match rate {
        Rate::Packets(pps) => (*pps as u64).clamp(1, 1 << 24),
        // As if all were of the shortest kind.
        Rate::Bits(bps) => ((*bps / 480.0) as u64).clamp(1, 1 << 24),
    }
}

impl Scan {
    /// Probes and their order.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// A 64-bit fingerprint of the scan, to distinguish it from others.
    pub fn fingerprint(&self) -> u64 {
        let order = self.plan.order();
        state::fingerprint(
            self.plan.targets(),
            self.plan.ports(),
            order.shard,
            order.attempts,
        )
    }

    /// How it is set up.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// The interface that probes leave by.
    pub fn interface(&self) -> &str {
        &self.local.link.name
    }

    /// How many targets are on the link.
    pub fn on_link_count(&self) -> u128 {
        self.on_link.count()
    }

    /// The name of the port that [`run()`] opens. Banners need one that takes the answers before
    /// the kernel, which knows nothing of the connections and would reset them.
    pub fn port_name(&self) -> String {
        let link = &self.local.link.name;
        let name = self.setup.port.clone();
        name.unwrap_or_else(|| match self.setup.grab {
            Some(_) => format!("afxdp:{link}"),
            None => link.clone(),
        })
    }

    fn grabber<'s>(
        &'s self,
        cookies: &'s Cookies,
        hops: &'s NextHops,
    ) -> Option<BannerGrabber<'s>> {
        let local = (self.local.mac, self.setup.ttl);
        let grab = self.setup.grab?;
        Some(BannerGrabber::new(&self.plan, cookies, hops, local, grab))
    }

    /// The first probes, as frames; next hops that are not known yet have the address 0.
    pub fn sample(&self, count: usize) -> Vec<Vec<u8>> {
        let (frames, cookies) = (self.frames(), Cookies::new([0; 16], self.local.source));
        let probes = self.plan.probes(0).take(count);
        let frame = |(target, payload)| {
            let mut out = vec![0; 2048];
            let mac = self.setup.router_mac.unwrap_or(Mac([0; 6]));
            let numbers = (&cookies.of(&target), 0);
            let len = frames.write((&target, payload), numbers, mac, &mut out);
            out.truncate(len.unwrap_or(0));
            out
        };
        probes.map(frame).collect()
    }

    fn frames(&self) -> Frames {
        let look = FrameOptions {
            src_mac: self.local.mac,
            ttl: self.setup.ttl,
            options: self.setup.options,
        };
        Frames::new(self.local.source, look, self.plan.ports().payloads())
    }

    /// Opens the port for both ways, so that only answers to probes are received.
    fn open(&self) -> Result<Port> {
        let name = self.port_name();
        let parsed = PortName::parse(&name)?;
        let options = PortOptions {
            direction: Direction::Both,
            filter_source: Some(self.filter()),
            promiscuous: false,
            outgoing: false,
            ..PortOptions::default()
        };
        let port = port::open(&name, &options)?;
        if port.tx.is_empty() || port.rx.is_empty() {
            let why = "this port cannot both send and receive";
            return Err(
                Error::new(ErrorKind::InvalidInput, format!("scan on {name}"), why)
                    .with_hint(format!("afpacket:{} can", parsed.target)),
            );
        }
        Ok(port)
    }

    /// What is received: what can be an answer to a probe, and ICMP errors that quote one. All else
    /// is the host's.
    fn filter(&self) -> FilterSource {
        let parts = Probe::filters(self.plan.ports().probes(), &self.local.source);
        crate::filter::source(&parts.join(" or "))
    }

    /// The next hop of everything, once neighbours have answered.
    fn hops(&self, stop: &crate::Stop) -> Result<NextHops> {
        let mut hops = NextHops::default();
        if let Some(mac) = self.setup.router_mac {
            (hops.router_v4, hops.router_v6) = (Some(mac), Some(mac));
            return Ok(hops);
        }
        self.local.routers(&self.plan, &self.on_link, &mut hops)?;
        if self.on_link.count() != 0 {
            hops.neighbours =
                sweep::neighbours(&self.local, &self.on_link, &self.setup.rate, stop)?;
            hops.on_link = self.on_link.clone();
        }
        Ok(hops)
    }
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Probes of this scan, all attempts included.
    pub probes: u128,
    /// Of these, the ones that earlier runs have sent.
    pub before: u128,
    /// Probes handed to the device.
    pub sent: u64,
    /// Bytes of them.
    pub sent_bytes: u64,
    /// Probes that the device refused.
    pub failed: u64,
    /// Probes not sent, because no neighbour answered for their target.
    pub unreachable: u128,
    /// Packets received that could be answers.
    pub received: u64,
    /// Packets received that are answers, repeated ones included.
    pub answers: u64,
    /// Ports found open, closed and filtered.
    pub open: u64,
    /// As above.
    pub closed: u64,
    /// As above.
    pub filtered: u64,
    /// As above.
    pub unfiltered: u64,
    /// Hosts found by probes that have no port.
    pub up: u64,
    /// Answers that came before.
    pub repeated: u64,
    /// Answers reported, of which it is not known whether they came before: the table was full.
    pub maybe_repeated: u64,
    /// Packets lost on the way from the interface to here: answers may be missing.
    pub lost: u64,
    /// Connections that read banners.
    pub grabbed: GrabCounts,
}

/// An answer as it was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What it is an answer to, and its meaning.
    pub answer: Answer,
    /// When it was taken from the port.
    pub time: SystemTime,
    /// From the sending of the probe until then, if the time of sending is still known.
    pub rtt: Option<Duration>,
    /// The data of the answer: a UDP datagram, the MAC address that answered.
    pub payload: Box<[u8]>,
}

/// What happens meanwhile.
pub enum Notice<'a> {
    /// Neighbours on the link were asked: so many answered of so many.
    Neighbours(usize, u128),
    /// An answer.
    Found(&'a Found),
    /// What a service said, when reading ended.
    Banner(&'a Banner, SystemTime),
    /// About once a second.
    Progress(&'a Totals, Duration),
    /// All probes were sent; answers are waited for this long.
    Waiting(Duration),
}

/// How it ended.
#[derive(Debug)]
pub struct Outcome {
    /// What was counted.
    pub totals: Totals,
    /// From the first probe to the end.
    pub elapsed: Duration,
    /// From the first probe to the last, with the last one's share of time.
    pub sending: Duration,
    /// Whether all probes were sent.
    pub is_complete: bool,
    /// What ended it, if it was not asked to.
    pub error: Option<Error>,
}

#[cfg(test)]
mod tests;
