//! Writes probes as frames, one after another; cookies are computed in batches.

mod syn;

use std::net::{IpAddr, Ipv4Addr};

use wire::Mac;

use crate::cookie::{BATCH, Block, Cookie, Cookies, ProbeTarget};
use crate::frame::Frames;
use crate::hops::NextHops;
use crate::plan::{Plan, PlannedProbe, Probes};
use crate::probe::Probe;
use syn::SynBatch;

const NOWHERE: PlannedProbe = (
    ProbeTarget {
        addr: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        probe: Probe::Syn,
        port: 0,
    },
    0,
);

/// Probes that were not sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Because no next hop is known: the neighbour does not answer.
    pub unreachable: u128,
    /// Because the target is this host.
    pub own: u128,
}

impl std::ops::Add for Skipped {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            unreachable: self.unreachable + other.unreachable,
            own: self.own + other.own,
        }
    }
}

/// How a probe of the batch is sent.
#[derive(Clone, Copy)]
struct Sending {
    /// Its length; 0 if it is not sent, because there is no next hop or no source address.
    len: u32,
    mac: Mac,
}

/// A share of the probes of a plan: of blocks of consecutive indices, every `count`-th one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Number of this lane, below `count`.
    pub index: u32,
    /// Number of lanes, at least one.
    pub count: u32,
    /// Indices in a block, at least one.
    pub block_len: u32,
}

impl Lane {
    /// All probes.
    pub const WHOLE: Self = Self {
        index: 0,
        count: 1,
        block_len: BATCH as u32,
    };

    /// Indices after which it is the first lane's turn again.
    fn round_len(&self) -> u128 {
        u128::from(self.block_len) * u128::from(self.count)
    }

    /// The first index of this lane that is not below `index`.
    fn next(&self, index: u128) -> u128 {
        let start = index - index % self.round_len();
        let own = start + u128::from(self.index) * u128::from(self.block_len);
        match index {
            _ if index < own => own,
            _ if index < own + u128::from(self.block_len) => index,
            _ => own + self.round_len(),
        }
    }

    /// Indices of this lane from `index`, which is one of them, to the end of its block.
    fn left(&self, index: u128) -> u128 {
        let len = u128::from(self.block_len);
        len - index % len
    }

    /// The first index that is not below any of these at which all lanes can stop: each has sent
    /// its probes before it, and none after it.
    pub fn boundary(&self, indices: &[u128]) -> u128 {
        let last = indices.iter().copied().max().unwrap_or(0);
        last.div_ceil(self.round_len()) * self.round_len()
    }
}

/// Writes the probes of a plan into buffers.
pub struct Prober<'p> {
    plan: &'p Plan,
    lane: Lane,
    /// The first index that is not written.
    until: u128,
    /// The first index whose next hop may not be known yet.
    held_at: u128,
    probes: Probes<'p>,
    /// Index of the next probe of `probes`.
    next: u128,
    cookies: &'p Cookies,
    frames: &'p Frames,
    hops: &'p NextHops,
    /// All probes are in here, if they are SYNs through one next hop.
    syns: Option<SynBatch>,
    batch: [PlannedProbe; BATCH],
    cookie_blocks: [Block; BATCH],
    sendings: [Sending; BATCH],
    clock_us: u32,
    at: usize,
    len: usize,
    /// Index of the first probe of the batch.
    base: u128,
    skipped: Skipped,
}

impl<'p> Prober<'p> {
    /// Starts at a given probe of a plan; of those from there on, the lane's are written.
    pub fn new(
        plan: &'p Plan,
        (from, lane): (u128, Lane),
        cookies: &'p Cookies,
        frames: &'p Frames,
        hops: &'p NextHops,
    ) -> Self {
        let until = plan.probe_count();
        let next = lane.next(from).min(until);
        Self {
            plan,
            lane,
            until,
            held_at: u128::MAX,
            probes: plan.probes(next),
            next,
            cookies,
            frames,
            hops,
            syns: SynBatch::new(plan, frames, hops),
            batch: [NOWHERE; BATCH],
            cookie_blocks: [Block::default(); BATCH],
            sendings: [Sending {
                len: 0,
                mac: Mac([0; 6]),
            }; BATCH],
            clock_us: 0,
            at: 0,
            len: 0,
            base: next,
            skipped: Skipped::default(),
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
            if let Some(syns) = &self.syns {
                if self.hops.own.count() == 0 || !self.hops.is_own(syns.addr(self.at)) {
                    return Some(syns.probe_len());
                }
                self.at += 1;
                self.skipped.own += 1;
                continue;
            }
            let len = self.sendings[self.at].len;
            if len != 0 {
                return Some(len as usize);
            }
            let (target, _) = &self.batch[self.at];
            match self.hops.is_own(target.addr) {
                true => self.skipped.own += 1,
                false => self.skipped.unreachable += 1,
            }
            self.at += 1;
        }
    }

    /// Writes the probe of [`next_len`](Self::next_len), and advances to the next. `None` if it
    /// does not fit, and at the end.
    #[inline]
    pub fn write(&mut self, out: &mut [u8]) -> Option<usize> {
        if self.at == self.len {
            return None;
        }
        if let Some(syns) = &self.syns {
            let block = &self.cookie_blocks[self.at];
            let len = syns.write(self.at, block, self.clock_us, out)?;
            self.at += 1;
            return Some(len);
        }
        let Sending { len, mac } = self.sendings[self.at];
        let (target, payload) = &self.batch[self.at];
        if len == 0 {
            return None;
        }
        let cookie = Cookie::of_block(&self.cookie_blocks[self.at]);
        let numbers = (&cookie, self.clock_us);
        let len = self.frames.write((target, *payload), numbers, mac, out)?;
        self.at += 1;
        Some(len)
    }

    /// The length of a probe, and the MAC address that it is sent to; ARP requests contain it.
    #[inline(always)]
    fn sending(&self, (target, payload): &PlannedProbe) -> Sending {
        let mac = match target.probe {
            Probe::Arp if !self.hops.is_own(target.addr) => Some(Mac([0xff; 6])),
            _ => self.hops.mac(target.addr),
        };
        // No packet is longer than 2^32 bytes.
        let len = self.frames.len(target, *payload) as u32;
        Sending {
            len: mac.map_or(0, |_| len),
            mac: mac.unwrap_or(Mac([0; 6])),
        }
    }

    /// Sets the time in microseconds that subsequent probes contain.
    pub fn set_clock(&mut self, clock_us: u32) {
        self.clock_us = clock_us;
    }

    /// Index of the next probe in the plan: all before it were written or skipped, as far as they
    /// are of this lane.
    #[inline]
    pub fn taken(&self) -> u128 {
        self.base + self.at as u128
    }

    /// Index of this lane's next probe; the number of probes at the end.
    pub fn next_index(&self) -> u128 {
        self.lane.next(self.taken()).min(self.plan.probe_count())
    }

    /// Its plan.
    pub fn plan(&self) -> &'p Plan {
        self.plan
    }

    /// Its lane.
    pub fn lane(&self) -> &Lane {
        &self.lane
    }

    /// Looks up next hops of the probes before this one alone, until it is called again.
    pub fn hold_at(&mut self, index: u128) {
        self.held_at = index;
    }

    /// Whether [`next_len`](Self::next_len) has no probe because the next hops of those that follow
    /// are not known yet.
    pub fn is_held(&self) -> bool {
        self.at == self.len && self.next < self.until && self.held_at <= self.next
    }

    /// Ends before a probe, at which it has not arrived yet.
    pub fn stop_at(&mut self, index: u128) {
        self.until = self.until.min(index);
        // Begins again with what is not written yet.
        self.begin_at(self.next_index());
    }

    /// Goes back to a probe, before which these had been skipped: it is written again, and so are
    /// those after it.
    pub fn go_back(&mut self, index: u128, skipped: Skipped) {
        self.begin_at(self.lane.next(index).min(self.next_index()));
        self.skipped = skipped;
    }

    fn begin_at(&mut self, index: u128) {
        self.base = index;
        (self.next, self.at, self.len) = (index, 0, 0);
        self.probes = self.plan.probes(index);
    }

    /// Probes skipped so far.
    pub fn skipped(&self) -> Skipped {
        self.skipped
    }

    /// Skips the blocks of other lanes; returns how many of its own probes follow, at most a batch.
    fn skip(&mut self) -> u128 {
        let own = self.lane.next(self.next);
        if own != self.next && own < self.until {
            self.probes = self.plan.probes(own);
        }
        (self.next, self.base) = (own, own);
        self.lane.left(own).min(BATCH as u128)
    }

    #[inline]
    fn refill(&mut self) -> bool {
        self.base += self.at as u128;
        self.len = 0;
        self.at = 0;
        let room = match self.lane.count {
            1 => BATCH as u128,
            _ => self.skip(),
        };
        let until = self.until.min(self.held_at);
        let left = until.saturating_sub(self.next).min(room) as usize;
        if let Some(syns) = &mut self.syns {
            let blocks = &mut self.cookie_blocks;
            self.len = syns.fill(&mut self.probes, left, self.cookies, blocks);
            self.next += self.len as u128;
            return self.len != 0;
        }
        let len = self.probes.fill(&mut self.batch[..left]);
        self.len = len;
        self.next += len as u128;
        let batch = &self.batch[..len];
        self.cookies.of_all(batch, &mut self.cookie_blocks);
        for at in 0..len {
            self.sendings[at] = self.sending(&self.batch[at]);
        }
        len != 0
    }
}

#[cfg(test)]
mod tests;
