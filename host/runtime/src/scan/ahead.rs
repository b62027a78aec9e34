//! Resolves the MAC addresses of many targets on the link while the scan runs: ahead of the probes,
//! in their order. Only targets that this run probes are asked for.

use std::collections::HashMap;
use std::net::IpAddr;

use ::scan::{AddrRange, NextHops, Probes, RangeList, Targets};
use port::Port;
use sys::Result;
use wire::Mac;

use super::record::Taps;
use super::transmit::Live;
use super::{Scan, sweep};
use crate::Stop;

/// Number of targets up to which all of them are asked before the first probe.
pub(super) const AT_ONCE_MAX: u128 = 1 << 16;
/// Seconds that the requests of a window take at the rate of the scan, and limits of their number.
const WINDOW_SECONDS: f64 = 4.0;
const WINDOW: std::ops::RangeInclusive<f64> = 1024.0..=65_536.0;
/// Maximum number of probes looked at for one window.
const LOOKED_MAX: usize = 1 << 22;

/// What is resolved, and how far.
pub(super) struct Ahead<'s> {
    scan: &'s Scan,
    hops: &'s NextHops,
    port: Port,
    taps: Option<Taps>,
    probes: Probes<'s>,
    /// Probes looked at, from the first of this run on.
    looked: u128,
    /// A bit for each target on the link: whether it was asked.
    asked: Vec<u64>,
    asked_count: u128,
    found_count: u64,
}

impl<'s> Ahead<'s> {
    /// Begins at the first probe of this run. The port is opened here, with the privileges of the
    /// start.
    ///
    /// # Errors
    /// When the port cannot be opened.
    pub fn open(scan: &'s Scan, hops: &'s NextHops, taps: Option<Taps>) -> Result<Self> {
        let count = hops.on_link().count() as usize;
        Ok(Self {
            scan,
            hops,
            port: sweep::open(&scan.local)?,
            taps,
            probes: scan.plan().probes(scan.setup().from),
            looked: 0,
            asked: vec![0; count.div_ceil(64)],
            asked_count: 0,
            found_count: 0,
        })
    }

    /// Resolves all targets, or until `stop` is set. Returns how many answered, of how many.
    ///
    /// # Errors
    /// The port's.
    pub fn run(mut self, live: &Live, stop: &Stop) -> Result<(u64, u128)> {
        let len = (self.scan.pps_max() * WINDOW_SECONDS).clamp(*WINDOW.start(), *WINDOW.end());
        loop {
            let (targets, is_last) = self.window(len as usize);
            if targets.count() != 0 {
                let found = self.ask(&targets, stop)?;
                self.found_count += found.len() as u64;
                self.hops.learn_all(found);
            }
            if stop.is_set() {
                break;
            }
            if is_last || self.asked_count == self.hops.on_link().count() {
                live.resolve(u64::MAX);
                break;
            }
            live.resolve(u64::try_from(self.looked).unwrap_or(u64::MAX));
        }
        Ok((self.found_count, self.asked_count))
    }

    fn ask(&mut self, targets: &Targets, stop: &Stop) -> Result<HashMap<IpAddr, Mac>> {
        let rate = &self.scan.setup().rate;
        let port = (&mut self.port, None, self.taps.as_ref());
        sweep::resolve(&self.scan.local, port, targets, rate, stop)
    }

    /// The next targets that were not asked yet, and whether there are no probes behind theirs.
    fn window(&mut self, len: usize) -> (Targets, bool) {
        let mut found = RangeList::default();
        for _ in 0..LOOKED_MAX {
            let Some((target, _)) = self.probes.next() else {
                return (targets(found), true);
            };
            self.looked += 1;
            let number = self.hops.on_link().number(target.addr);
            let Some(number) = number.and_then(|number| usize::try_from(number).ok()) else {
                continue;
            };
            let (word, bit) = (number / 64, 1 << (number % 64));
            if self.asked[word] & bit == 0 {
                self.asked[word] |= bit;
                self.asked_count += 1;
                found.push(AddrRange::single(target.addr));
                if found.len() == len {
                    break;
                }
            }
        }
        (targets(found), false)
    }
}

fn targets(found: RangeList) -> Targets {
    Targets::new(found, Vec::new()).unwrap_or_default()
}
