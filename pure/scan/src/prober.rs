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
            if let Some(syns) = &self.syns {
                return Some(syns.probe_len());
            }
            let len = self.sendings[self.at].len;
            if len != 0 {
                return Some(len as usize);
            }
            self.at += 1;
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
        self.base + self.at as u128
    }

    /// Index of this lane's next probe; the number of probes at the end.
    pub fn next_index(&self) -> u128 {
        self.lane.next(self.taken()).min(self.plan.probe_count())
    }

    /// Its lane.
    pub fn lane(&self) -> &Lane {
        &self.lane
    }

    /// Ends before a probe, at which it has not arrived yet.
    pub fn stop_at(&mut self, index: u128) {
        self.until = self.until.min(index);
        // Begins again with what is not written yet.
        self.begin_at(self.next_index());
    }

    /// Goes back to a probe, at which `unreachable` had been skipped: it is written again, and so
    /// are those after it.
    pub fn go_back(&mut self, index: u128, unreachable: u128) {
        self.begin_at(self.lane.next(index).min(self.next_index()));
        self.unreachable = unreachable;
    }

    fn begin_at(&mut self, index: u128) {
        self.base = index;
        (self.next, self.at, self.len) = (index, 0, 0);
        self.probes = self.plan.probes(index);
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
        let left = self.until.saturating_sub(self.next).min(room) as usize;
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
mod tests {
    use super::*;

    /// The frames of SYNs that a prober writes are those that are made one by one, whatever lies
    /// behind them in the buffer.
    #[test]
    fn batches_of_syns_are_the_probes_of_the_plan() {
        use crate::frame::{FrameOptions, Options};
        use crate::{Order, Payloads, Ports, Shard, Source, Targets, parse_range};
        let source = Source {
            ipv4: Some([198, 51, 100, 7].into()),
            ipv6: Some("2001:db8:1::7".parse().unwrap()),
            ports: (61_000, 4_000),
        };
        let (mac, router) = (Mac([2, 0, 0, 0, 0, 1]), Mac([4, 5, 6, 7, 8, 9]));
        let hops = NextHops {
            router_v4: Some(router),
            router_v6: Some(router),
            ..NextHops::default()
        };
        for (range, ports) in [
            ("192.0.2.0/26", "80"),
            ("10.0.0.0/29", "80-90,443"),
            ("2001:db8::/122", "80"),
            ("2001:db8::/122", "1-3"),
            ("2001:db8::/60", "65535"),
            ("2001:db8::/40", "80,443,8080"),
        ] {
            for options in [
                Options::Minimal,
                Options::Linux,
                Options::Windows,
                Options::Bsd,
            ] {
                let order = Order {
                    seed: 3,
                    shard: Shard { index: 1, count: 2 },
                    attempts: 2,
                    block: 21,
                };
                let targets = Targets::new(vec![parse_range(range).unwrap()], Vec::new());
                let ports = Ports::tcp(ports).unwrap();
                let plan = Plan::new(targets.unwrap(), ports, source, order).unwrap();
                let cookies = Cookies::new([9; 16], source);
                let look = FrameOptions {
                    src_mac: mac,
                    ttl: 64,
                    options,
                };
                let frames = Frames::new(source, look, &Payloads::built_in());
                let mut prober = Prober::new(&plan, (5, Lane::WHOLE), &cookies, &frames, &hops);
                assert!(prober.syns.is_some(), "{range}");
                prober.set_clock(77);
                let mut count = 5;
                for (target, payload) in plan.probes(5).take(500) {
                    let mut expected = [0xaa; 2048];
                    let numbers = (&cookies.of(&target), 77);
                    let len = frames.write((&target, payload), numbers, router, &mut expected);
                    assert_eq!((prober.next_len(), prober.taken()), (len, count));
                    let len = len.unwrap();
                    let mut room = vec![0x55; if count % 2 == 0 { 2048 } else { len }];
                    assert_eq!(prober.write(&mut room[..len - 1]), None);
                    assert_eq!(prober.write(&mut room), Some(len));
                    assert_eq!(room[..len], expected[..len], "{target:?}");
                    count += 1;
                }
                assert!(count == 505 || prober.next_len().is_none());
            }
        }
    }

    #[test]
    fn a_prober_that_goes_back_writes_the_same_probes_again() {
        use crate::frame::{FrameOptions, Options};
        use crate::{Order, Payloads, Ports, Shard, Source, Targets, parse_range};
        let source = Source {
            ipv4: Some([198, 51, 100, 7].into()),
            ipv6: None,
            ports: (61_000, 4_000),
        };
        let targets = Targets::new(vec![parse_range("192.0.2.0/24").unwrap()], Vec::new());
        let order = Order {
            seed: 3,
            shard: Shard::WHOLE,
            attempts: 1,
            block: 21,
        };
        let ports = Ports::tcp("80").unwrap();
        let plan = Plan::new(targets.unwrap(), ports, source, order).unwrap();
        let cookies = Cookies::new([9; 16], source);
        let look = FrameOptions {
            src_mac: Mac([2; 6]),
            ttl: 64,
            options: Options::Minimal,
        };
        let frames = Frames::new(source, look, &Payloads::built_in());
        let router = NextHops {
            router_v4: Some(Mac([4; 6])),
            ..NextHops::default()
        };
        let lane = Lane {
            index: 1,
            count: 3,
            block_len: 8,
        };
        // With a batch of SYNs, and without: no target has a next hop.
        for (hops, written) in [(router, 88), (NextHops::default(), 0)] {
            let mut prober = Prober::new(&plan, (0, lane), &cookies, &frames, &hops);
            let all = |prober: &mut Prober<'_>| {
                let mut probes = Vec::new();
                let mut room = [0; 256];
                while prober.next_len().is_some() {
                    let len = prober.write(&mut room).unwrap();
                    probes.push((prober.taken(), room[..len].to_vec()));
                }
                (probes, prober.unreachable(), prober.next_index())
            };
            let first = all(&mut prober);
            assert_eq!(first.0.len(), written);
            assert_eq!((first.1, first.2), (88 - written as u128, 256));
            prober.go_back(0, 0);
            assert_eq!(all(&mut prober), first);
            prober.go_back(100, 0);
            let (again, ..) = all(&mut prober);
            assert!(first.0.ends_with(&again), "{again:?}");
            assert!(written == 0 || again.first().is_some_and(|(taken, _)| *taken > 100));
            // Never forward.
            prober.go_back(0, 0);
            prober.go_back(200, 0);
            assert_eq!(prober.next_index(), 8);
        }
    }

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
