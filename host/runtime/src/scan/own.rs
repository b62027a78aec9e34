//! Targets that are addresses of this host. The kernel delivers what it sends to itself before it
//! reaches an interface, and drops packets with its own source address that come in from one, so
//! they cannot be probed as others are.

use std::net::IpAddr;
use std::sync::Arc;

use ::scan::{AddrRange, RangeList, Targets, parse_range};
use sys::{Error, ErrorKind, Result};

use super::route::overlaps;
use super::select::too_many;
use super::{Setup, is_card};

/// What to do instead.
const HINT: &str = "`ss -tuln` lists the ports that are open here; to see them as others do, scan \
                    from another host or network namespace";
/// Addresses that every host has, or that stand for the host itself.
const ALWAYS: [&str; 4] = ["127.0.0.0/8", "0.0.0.0", "::1", "::"];

/// The targets that are addresses of this host; of a card that the kernel does not drive, those
/// that were given for it.
///
/// # Errors
/// If the kernel does not list its addresses.
pub(super) fn among(setup: &Setup, targets: &Targets) -> Result<Targets> {
    let mut own: Vec<IpAddr> = setup.source_addrs.iter().map(|given| given.addr).collect();
    let mut always = RangeList::default();
    if !setup.port.as_deref().is_some_and(is_card) {
        own.extend(sys::address::all()?.iter().map(|address| address.addr));
        always.extend(ALWAYS.iter().filter_map(|text| parse_range(text).ok()));
    }
    let own = own.into_iter().map(AddrRange::single);
    let own = own.chain(always.iter());
    let found: RangeList = own.flat_map(|range| overlaps(targets, range)).collect();
    Ok(Targets::new(found, Vec::new()).unwrap_or_default())
}

/// The targets that are no addresses of this host.
///
/// # Errors
/// If there is none.
pub(super) fn others(targets: Arc<Targets>, own: &Targets) -> Result<Arc<Targets>> {
    if own.count() == 0 {
        return Ok(targets);
    }
    if own.count() == targets.count() {
        return Err(alone(own));
    }
    let (all, own) = (targets.ranges(), own.ranges());
    let others = Targets::new(all.collect::<RangeList>(), own.collect::<RangeList>());
    others.map(Arc::new).ok_or_else(too_many)
}

/// The error of a scan that has no other targets.
fn alone(own: &Targets) -> Error {
    let first = own.addr(0);
    let what = match own.count() {
        1 => format!("scan {first}"),
        count => format!("scan {first} and {} other addresses", count - 1),
    };
    let why = "it is this host itself, whose packets to itself never reach an interface";
    Error::new(ErrorKind::InvalidInput, what, why).with_hint(HINT)
}

/// The error of a scan whose targets are routed to the loopback interface.
pub(super) fn routed(name: &str) -> Error {
    let why = "packets that a scan sends there are not delivered, as they bypass the kernel's IP \
               output";
    Error::new(ErrorKind::InvalidInput, format!("scan on {name}"), why).with_hint(HINT)
}
