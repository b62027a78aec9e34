//! Selects the targets: opt-out lists, reserved and random addresses, and what probes can reach.

use ::scan::{AddrRange, Probe, RESERVED, RangeList, Targets};
use sys::{Error, ErrorKind, Result};

use super::route::Local;
use super::{ON_LINK_MAX, Setup};

/// Adds the opt-out list to the exclusions; returns how many addresses it removes that are targets
/// otherwise. Random targets are chosen among the others.
pub(super) fn opt_out(setup: &mut Setup) -> Option<u128> {
    let mut list = std::mem::take(&mut setup.opt_out);
    if list.is_empty() {
        return Some(0);
    }
    let count = |setup: &Setup| {
        let targets = without_reserved(setup)?;
        let pairs = setup.pairs.iter().map(|(pair, _)| pair.addr);
        let all = targets.ranges().chain(pairs.map(AddrRange::single));
        let all: RangeList = all.collect();
        Some(Targets::without(all, &setup.exclude)?.count())
    };
    let before = count(setup)?;
    setup.exclude.append(&mut list);
    setup.exclude.merge();
    Some(before - count(setup)?)
}

/// ARP requests are answered on the link alone, and a port that takes the answers from the host
/// would also take those to the host itself.
pub(super) fn check_link(setup: &Setup, local: &Local, addresses: &Targets) -> Result<()> {
    if !setup.ports.probes().contains(&Probe::Arp) {
        return Ok(());
    }
    let name = setup.port_name(&local.name, local.is_bare);
    let far = addresses.count() - local.on_link(addresses).count();
    let (why, hint) = if name.starts_with("afxdp:") {
        let why = format!("the host would miss replies to its own ARP requests on {name}");
        (why, format!("scan on {}", local.name))
    } else if far != 0 {
        let why = format!("{far} of the targets are not on the link of {}", local.name);
        let hint = match local.is_card() {
            true => "give the prefix of the link: --source-ip ADDRESS/PREFIX",
            false => "scan them by --probe echo, or choose an interface with -e",
        };
        (why, hint.to_owned())
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::InvalidInput, "scan by ARP", why).with_hint(hint))
}

/// The MAC address of each target on the link is kept.
pub(super) fn check_on_link(local: &Local, on_link: &Targets) -> Result<()> {
    if on_link.count() <= ON_LINK_MAX {
        return Ok(());
    }
    let why = format!(
        "{} targets are on the link of {}, and MAC addresses of at most {ON_LINK_MAX} can be \
         resolved",
        on_link.count(),
        local.name
    );
    Err(Error::new(ErrorKind::InvalidInput, "scan", why)
        .with_hint("scan fewer at a time, or send all probes to one router: --router-mac MAC"))
}

/// Some probes are of IPv4 only.
pub(super) fn check_families(setup: &Setup, targets: &Targets) -> Result<()> {
    let mut probes = setup.ports.probes().iter().copied();
    let ipv4_only = probes.find(|probe| probe.is_ipv4_only());
    let ipv4_only = ipv4_only.filter(|_| targets.has_family(true));
    let pairs = setup.pairs.iter().map(|(pair, _)| pair);
    let mut pairs = pairs.filter(|pair| pair.addr.is_ipv6() && pair.probe.is_ipv4_only());
    let Some(probe) = ipv4_only.or_else(|| Some(pairs.next()?.probe)) else {
        return Ok(());
    };
    let why = format!(
        "the probe {} is of IPv4 only, and IPv6 addresses are among the targets",
        probe.word()
    );
    Err(Error::new(ErrorKind::InvalidInput, "scan", why)
        .with_hint("scan the IPv6 addresses with other probes"))
}

pub(super) fn too_many() -> Error {
    let why = "there are too many targets";
    Error::new(ErrorKind::InvalidInput, "scan", why)
        .with_hint("scan smaller ranges: for IPv6, addresses or prefixes of /21 or longer")
}

/// Public IPv4 addresses that are not excluded.
pub(super) fn random_addrs(setup: &Setup) -> Option<Vec<AddrRange>> {
    let all = AddrRange {
        is_ipv6: false,
        first: 0,
        last: u32::MAX.into(),
    };
    let mut exclude = setup.exclude.clone();
    exclude.extend(RESERVED.iter().copied());
    let public = Targets::new(vec![all], exclude)?;
    let addrs = public.sample(setup.random_count, setup.seed);
    Some(addrs.into_iter().map(AddrRange::single).collect())
}

/// The targets; addresses of reserved blocks only if a target lies within the block.
pub(super) fn without_reserved(setup: &Setup) -> Option<Targets> {
    let is_named = |range: &AddrRange| RESERVED.iter().any(|block| block.covers(range));
    let (named, others): (RangeList, RangeList) = setup.include.iter().partition(is_named);
    let others = Targets::new(others, RESERVED.to_vec())?;
    let include: RangeList = others.ranges().chain(named.iter()).collect();
    Targets::without(include, &setup.exclude)
}
