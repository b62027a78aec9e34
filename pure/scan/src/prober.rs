//! Writes probes as frames, one after another; cookies are computed in batches.

use std::net::{IpAddr, Ipv4Addr};

use wire::Mac;

use crate::cookie::{BATCH, Block, Cookie, Cookies, ProbeTarget};
use crate::frame::Frames;
use crate::hops::NextHops;
use crate::plan::{Plan, PlannedProbe, Probes};
use crate::probe::Probe;

const NOWHERE: PlannedProbe = (
    ProbeTarget {
        addr: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        probe: Probe::Syn,
        port: 0,
    },
    0,
);

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
    probes: Probes<'p>,
    /// Index of the next probe of `probes`.
    next: u128,
    cookies: &'p Cookies,
    frames: &'p Frames,
    hops: &'p NextHops,
    batch: [PlannedProbe; BATCH],
    cookie_blocks: [Block; BATCH],
    sendings: [Sending; BATCH],
    clock_us: u32,
    at: usize,
    len: usize,
    taken: u128,
    unreachable: u128,
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
            probes: plan.probes(next),
            next,
            cookies,
            frames,
            hops,
            batch: [NOWHERE; BATCH],
            cookie_blocks: [Block::default(); BATCH],
            sendings: [Sending {
                len: 0,
                mac: Mac([0; 6]),
            }; BATCH],
            clock_us: 0,
            at: 0,
            len: 0,
            taken: next,
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
            let len = self.sendings[self.at].len;
            if len != 0 {
                return Some(len as usize);
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
        let Sending { len, mac } = self.sendings[self.at];
        let (target, payload) = &self.batch[self.at];
        if len == 0 {
            return None;
        }
        let cookie = Cookie::of_block(&self.cookie_blocks[self.at]);
        let numbers = (&cookie, self.clock_us);
        let len = self.frames.write((target, *payload), numbers, mac, out)?;
        self.at += 1;
        self.taken += 1;
        Some(len)
    }

    /// The length of a probe, and the MAC address that it is sent to; ARP requests contain it.
    #[inline(always)]
    fn sending(&self, (target, payload): &PlannedProbe) -> Sending {
        let mac = match target.probe {
            Probe::Arp => Some(Mac([0xff; 6])),
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
        self.taken
    }

    /// Index of this lane's next probe; the number of probes at the end.
    pub fn next_index(&self) -> u128 {
        self.lane.next(self.taken).min(self.plan.probe_count())
    }

    /// Its lane.
    pub fn lane(&self) -> &Lane {
        &self.lane
    }

    /// Ends before a probe, at which it has not arrived yet.
    pub fn stop_at(&mut self, index: u128) {
        self.until = self.until.min(index);
        // Begins again with what is not written yet.
        self.taken = self.next_index();
        (self.next, self.at, self.len) = (self.taken, 0, 0);
        self.probes = self.plan.probes(self.next);
    }

    /// Probes skipped because their targets' MAC addresses could not be resolved.
    pub fn unreachable(&self) -> u128 {
        self.unreachable
    }

    /// Skips the blocks of other lanes; returns how many of its own probes follow, at most a batch.
    fn skip(&mut self) -> u128 {
        let own = self.lane.next(self.next);
        if own != self.next && own < self.until {
            self.probes = self.plan.probes(own);
        }
        (self.next, self.taken) = (own, own);
        self.lane.left(own).min(BATCH as u128)
    }

    #[inline]
    fn refill(&mut self) -> bool {
        self.len = 0;
        self.at = 0;
        let room = match self.lane.count {
            1 => BATCH as u128,
            _ => self.skip(),
        };
        let left = self.until.saturating_sub(self.next).min(room) as usize;
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
mod tests {
    use super::*;

    #[test]
    fn lanes_share_all_indices_and_stop_at_a_boundary() {
        for (count, block_len) in [(1, 16), (2, 16), (3, 1), (4, 64), (7, 5)] {
            let lane = |index| Lane {
                index,
                count,
                block_len,
            };
            let owners: Vec<u32> = (0..1_000)
                .map(|n| {
                    let mut own = (0..count).filter(|index| lane(*index).next(n) == n);
                    let owner = own.next().expect("an owner");
                    assert_eq!(own.next(), None, "{n}");
                    owner
                })
                .collect();
            for index in 0..count {
                for n in 0..500_usize {
                    let next = owners[n..].iter().position(|owner| *owner == index);
                    let expected = (n + next.unwrap()) as u128;
                    assert_eq!(lane(index).next(n as u128), expected);
                }
            }
            // Wherever they are, the lane that is furthest on has not passed the boundary.
            let at = [3, 77, 210];
            let boundary = lane(0).boundary(&at);
            assert!(boundary >= 210 && boundary < 210 + lane(0).round_len());
            let next = (0..count).map(|index| lane(index).next(boundary));
            assert_eq!(next.min(), Some(boundary));
        }
    }
}
