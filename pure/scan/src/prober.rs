//! Probe after probe as frames: cookies are made for a batch of them at once.

use std::net::{IpAddr, Ipv4Addr};

use crate::cookie::{Aim, BATCH, Cookie, Cookies};
use crate::hops::NextHops;
use crate::plan::{Plan, Probes};
use crate::probe::Probe;
use crate::syn::Syns;

const NOWHERE: Aim = Aim {
    addr: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    probe: Probe::Syn,
    port: 0,
};

/// Writes the probes of a plan into buffers.
pub struct Prober<'p> {
    probes: Probes<'p>,
    cookies: &'p Cookies,
    syns: &'p Syns,
    hops: &'p NextHops,
    aims: [Aim; BATCH],
    made: [Cookie; BATCH],
    at: usize,
    len: usize,
    taken: u128,
    unreachable: u128,
}

impl<'p> Prober<'p> {
    /// The probes of a plan from a number on.
    pub fn new(
        plan: &'p Plan,
        from: u128,
        cookies: &'p Cookies,
        syns: &'p Syns,
        hops: &'p NextHops,
    ) -> Self {
        Self {
            probes: plan.probes(from),
            cookies,
            syns,
            hops,
            aims: [NOWHERE; BATCH],
            made: [Cookie::default(); BATCH],
            at: 0,
            len: 0,
            taken: from,
            unreachable: 0,
        }
    }

    /// Length of the next probe in bytes; `None` at the end. Probes without a next hop are passed
    /// over, and counted.
    #[inline]
    pub fn next_len(&mut self) -> Option<usize> {
        loop {
            if self.at == self.len && !self.refill() {
                return None;
            }
            let addr = self.aims[self.at].addr;
            let len = self.syns.len(addr);
            if len != 0 && self.hops.mac(addr).is_some() {
                return Some(len);
            }
            self.at += 1;
            self.taken += 1;
            self.unreachable += 1;
        }
    }

    /// Writes the probe of [`next_len`](Self::next_len), and continues after it. `None` if it does
    /// not fit, and at the end.
    #[inline]
    pub fn write(&mut self, out: &mut [u8]) -> Option<usize> {
        if self.at == self.len {
            return None;
        }
        let (aim, cookie) = (&self.aims[self.at], &self.made[self.at]);
        let mac = self.hops.mac(aim.addr)?;
        let len = self.syns.write(aim, cookie, mac, out)?;
        self.at += 1;
        self.taken += 1;
        Some(len)
    }

    /// The number of the next probe in the plan.
    pub fn taken(&self) -> u128 {
        self.taken
    }

    /// Probes skipped because their targets' MAC addresses could not be resolved.
    pub fn unreachable(&self) -> u128 {
        self.unreachable
    }

    #[inline]
    fn refill(&mut self) -> bool {
        self.len = 0;
        self.at = 0;
        for (aim, next) in self.aims.iter_mut().zip(&mut self.probes) {
            *aim = next;
            self.len += 1;
        }
        let len = self.len;
        self.cookies
            .of_all(&self.aims[..len], &mut self.made[..len]);
        len != 0
    }
}
