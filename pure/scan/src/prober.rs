//! Writes probes as frames, one after another; cookies are computed in batches.

use std::net::{IpAddr, Ipv4Addr};

use wire::Mac;

use crate::cookie::{BATCH, Cookie, Cookies, ProbeTarget};
use crate::frame::Frames;
use crate::hops::NextHops;
use crate::plan::{Plan, Probes};
use crate::probe::Probe;

const NOWHERE: ProbeTarget = ProbeTarget {
    addr: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    probe: Probe::Syn,
    port: 0,
};

/// Writes the probes of a plan into buffers.
pub struct Prober<'p> {
    probes: Probes<'p>,
    cookies: &'p Cookies,
    frames: &'p Frames,
    hops: &'p NextHops,
    targets: [ProbeTarget; BATCH],
    payloads: [u16; BATCH],
    made: [Cookie; BATCH],
    clock_us: u32,
    at: usize,
    len: usize,
    taken: u128,
    unreachable: u128,
}

impl<'p> Prober<'p> {
    /// Starts at a given probe of a plan.
    pub fn new(
        plan: &'p Plan,
        from: u128,
        cookies: &'p Cookies,
        frames: &'p Frames,
        hops: &'p NextHops,
    ) -> Self {
        Self {
            probes: plan.probes(from),
            cookies,
            frames,
            hops,
            targets: [NOWHERE; BATCH],
            payloads: [0; BATCH],
            made: [Cookie::default(); BATCH],
            clock_us: 0,
            at: 0,
            len: 0,
            taken: from,
            unreachable: 0,
        }
    }

    /// Length of the next probe in bytes; `None` at the end. Probes without a next hop are skipped
    /// and counted.
    #[inline]
    pub fn next_len(&mut self) -> Option<usize> {
        loop {
            if self.at == self.len && !self.refill() {
                return None;
            }
            let target = &self.targets[self.at];
            let len = self.frames.len(target, self.payloads[self.at]);
            if len != 0 && self.mac(target).is_some() {
                return Some(len);
            }
            self.at += 1;
            self.taken += 1;
            self.unreachable += 1;
        }
    }

    /// Writes the probe of [`next_len`](Self::next_len), and advances to the next. `None` if it
    /// does not fit, and at the end.
    #[inline]
    pub fn write(&mut self, out: &mut [u8]) -> Option<usize> {
        if self.at == self.len {
            return None;
        }
        let (target, cookie) = (&self.targets[self.at], &self.made[self.at]);
        let mac = self.mac(target)?;
        let probe = (target, self.payloads[self.at]);
        let len = self
            .frames
            .write(probe, (cookie, self.clock_us), mac, out)?;
        self.at += 1;
        self.taken += 1;
        Some(len)
    }

    /// The MAC address that a probe is sent to; ARP requests contain it.
    #[inline]
    fn mac(&self, target: &ProbeTarget) -> Option<Mac> {
        match target.probe {
            Probe::Arp => Some(Mac([0xff; 6])),
            _ => self.hops.mac(target.addr),
        }
    }

    /// Sets the time in microseconds that subsequent probes contain.
    pub fn set_clock(&mut self, clock_us: u32) {
        self.clock_us = clock_us;
    }

    /// Index of the next probe in the plan.
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
        let slots = self.targets.iter_mut().zip(&mut self.payloads);
        for ((target, payload), next) in slots.zip(&mut self.probes) {
            (*target, *payload) = next;
            self.len += 1;
        }
        let len = self.len;
        self.cookies
            .of_all(&self.targets[..len], &mut self.made[..len]);
        len != 0
    }
}
