//! Chooses the queues of a packet: at most one of each application.

use bpf::vm_cbpf::PacketInfo;
use port::{FilterTarget, Matcher};
use ring::slot::Slot;
use ring::{Frame, Pool};
use sys::Result;
use wire::{Decapsulated, LinkType};

use super::application::{Application, ApplicationCounts, WhenGone};
use super::balance::{Balance, Hasher, Kind, Seen, again, pick};
use super::cleanup::{Cleaner, Detunnel, Left};
use crate::filter::Expression;

/// The queues of one application.
struct Target {
    first: u32,
    count: u32,
    filter: Option<Matcher>,
    by: By,
    is_rehashed: bool,
    cleaner: Option<Cleaner>,
    detunnel: Option<Detunnel>,
    /// Packets that were left out, by [`Left`].
    left: [u64; 3],
    /// Whether readers of another application send its packets.
    has_source: bool,
}

/// How the queue of a packet is found.
enum By {
    /// There is only one.
    Only,
    Hash(Kind),
    RoundRobin(Turns),
    /// `None` selects all packets.
    Filters(Vec<Option<Matcher>>),
    Table(std::sync::Arc<super::table::Table>),
}

/// The turns of queues.
#[derive(Default)]
struct Turns {
    next: u32,
    /// Number of packets so far.
    packets: u64,
}

impl Turns {
    /// The next of `count` queues.
    #[inline(always)]
    fn queue(&mut self, count: u32) -> u32 {
        let queue = self.next;
        self.next = if queue + 1 < count { queue + 1 } else { 0 };
        self.packets += 1;
        queue
    }
}

/// The queues of a usual topology: one application, whose packets are neither filtered nor cleaned
/// up, and stay in their queues when readers exit.
pub(super) enum Usual<'s> {
    Only(u64),
    RoundRobin(InTurn<'s>),
    Hash(ByHash<'s>),
}

pub(super) struct InTurn<'s> {
    first: u32,
    count: u32,
    turns: &'s mut Turns,
}

impl InTurn<'_> {
    /// The queue of the next packet, as a bit.
    #[inline(always)]
    pub fn select(&mut self) -> u64 {
        1 << (self.first + self.turns.queue(self.count))
    }
}

pub(super) struct ByHash<'s> {
    first: u32,
    count: u32,
    kind: Kind,
    hasher: &'s mut Hasher,
}

impl ByHash<'_> {
    /// The queue of a packet, as a bit.
    #[inline(always)]
    pub fn select(&mut self, pool: &Pool, frame: &Frame) -> u64 {
        let seen = Seen::of(pool, frame);
        let hash = match self.hasher.plain(self.kind, &seen) {
            Some(hash) => hash,
            None => self.hash(&seen),
        };
        1 << (self.first + pick(hash, self.count))
    }

    #[cold]
    fn hash(&mut self, seen: &Seen<'_>) -> u64 {
        self.hasher.next();
        self.hasher.hash(self.kind, seen)
    }
}

/// Chooses queues.
pub(super) struct Selector {
    targets: Vec<Target>,
    hasher: Hasher,
    /// The queues whose packets are handed over without tunnel headers, by [`Detunnel`].
    detunnelled: [u64; 2],
    now_ns: u64,
}

/// Compiles a filter for packets of a link type; `None` if it is blank.
fn compile(filter: &Expression, link_type: LinkType) -> Result<Option<Matcher>> {
    let target = FilterTarget {
        link_type: link_type.0,
        // As from a tap: the tag may be beside the packet. No interface has the index 0.
        tap: Some(0),
    };
    Ok(filter.compile(target)?.map(Matcher::new))
}

fn selects(filter: &Matcher, seen: &Seen<'_>) -> bool {
    /// `PACKET_OUTGOING` of `if_packet.h`.
    const OUTGOING: u8 = 4;
    if !seen.has(Slot::VLAN) && !seen.has(Slot::OUTGOING) {
        return filter.selects(seen.bytes, seen.wire_len);
    }
    let info = PacketInfo {
        packet_type: if seen.has(Slot::OUTGOING) {
            OUTGOING
        } else {
            0
        },
        vlan: seen.tag(),
        ..PacketInfo::UNKNOWN
    };
    filter.run(seen.bytes, seen.wire_len, &info) != 0
}

impl Target {
    fn new(application: &Application, first: u32, link_type: LinkType) -> Result<Self> {
        let count = application.queue_count;
        let by = match &application.balance {
            Balance::Filters(filters) => {
                let filters = filters.iter().map(|filter| compile(filter, link_type));
                By::Filters(filters.collect::<Result<_>>()?)
            }
            Balance::Table(table) => By::Table(table.clone()),
            _ if count == 1 => By::Only,
            balance => {
                let is_detunnelled = application.cleanup.detunnel.is_some();
                balance
                    .kind(is_detunnelled)
                    .map_or(By::RoundRobin(Turns::default()), By::Hash)
            }
        };
        Ok(Self {
            first,
            count,
            filter: compile(&application.filter, link_type)?,
            by,
            is_rehashed: application.when_gone == WhenGone::Rehash,
            cleaner: Cleaner::new(&application.cleanup),
            detunnel: application.cleanup.detunnel,
            left: [0; 3],
            has_source: application.source.is_some(),
        })
    }

    /// The queue of a packet, which has these frames, counted from the first of the application.
    #[inline]
    fn queue(
        &mut self,
        pool: &Pool,
        frames: &[Frame],
        hasher: &mut Hasher,
        readers: &[u32],
        now_ns: u64,
    ) -> std::result::Result<u32, Left> {
        let [frame, rest @ ..] = frames else {
            return Err(Left::Filtered);
        };
        if let Some(filter) = &self.filter
            && !selects(filter, &Seen::of(pool, frame))
        {
            return Err(Left::Filtered);
        }
        if let Some(cleaner) = &mut self.cleaner
            && let rest = rest.iter().map(|frame| pool.bytes(frame))
            && let Some(left) = cleaner.leaves_out(&Seen::of(pool, frame), rest, hasher, now_ns)
        {
            return Err(left);
        }
        let (queue, hash) = match &mut self.by {
            By::Only => return Ok(0),
            By::Hash(kind) => {
                let hash = hasher.hash(*kind, &Seen::of(pool, frame));
                (pick(hash, self.count), hash)
            }
            By::RoundRobin(turns) => (turns.queue(self.count), turns.packets),
            By::Filters(filters) => {
                let seen = Seen::of(pool, frame);
                let is_it =
                    |filter: &Option<Matcher>| filter.as_ref().is_none_or(|f| selects(f, &seen));
                let queue = filters.iter().position(is_it);
                return queue.map(|queue| queue as u32).ok_or(Left::Filtered);
            }
            By::Table(table) => {
                let seen = Seen::of(pool, frame);
                let level = match self.detunnel {
                    Some(_) => hasher.carried(&seen),
                    None => hasher.outer(&seen),
                };
                let is_ip = level.ip_version != 0;
                let found = table.queue(level.ip_version == 6, [level.src, level.dst]);
                return found.filter(|_| is_ip).ok_or(Left::Filtered);
            }
        };
        let is_gone = self.is_rehashed && readers.get((self.first + queue) as usize) == Some(&0);
        Ok(match is_gone {
            true => self.rehash(queue, hash, readers),
            false => queue,
        })
    }

    /// Another queue of the application that has a reader; the same one if none has.
    #[cold]
    fn rehash(&self, queue: u32, hash: u64, readers: &[u32]) -> u32 {
        let has_reader = |queue: &u32| {
            let reader = readers.get((self.first + queue) as usize);
            reader.is_some_and(|&process| process != 0)
        };
        let others = (0..self.count).filter(has_reader).count() as u32;
        let chosen = pick(again(hash), others.max(1)) as usize;
        (0..self.count)
            .filter(has_reader)
            .nth(chosen)
            .unwrap_or(queue)
    }
}

impl Selector {
    /// Compiles the filters of the applications.
    ///
    /// # Errors
    /// Those of their expressions.
    pub fn new(applications: &[Application], link_type: LinkType) -> Result<Self> {
        let mut first = 0;
        let mut targets = Vec::new();
        let mut detunnelled = [0; 2];
        for application in applications {
            if let Some(kind) = application.cleanup.detunnel {
                let queues = first..first + application.queue_count;
                detunnelled[kind as usize] |= queues.map(|queue| 1 << queue).sum::<u64>();
            }
            targets.push(Target::new(application, first, link_type)?);
            first += application.queue_count;
        }
        Ok(Self {
            targets,
            hasher: Hasher::new(link_type),
            detunnelled,
            now_ns: 0,
        })
    }

    /// Whether decisions depend on the packets.
    pub fn reads_packets(&self) -> bool {
        let is_blind = |target: &Target| {
            let by_turn = matches!(target.by, By::Only | By::RoundRobin(_));
            by_turn && target.filter.is_none() && target.cleaner.is_none()
        };
        !self.targets.iter().all(is_blind) || self.detunnelled != [0; 2]
    }

    /// Whether decisions depend on the time.
    pub fn is_timed(&self) -> bool {
        self.targets.iter().any(|target| target.cleaner.is_some())
    }

    /// Sets the time of packets without one of their own.
    pub fn set_now(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// The queues whose packets are handed over without tunnel headers, as bits, by [`Detunnel`].
    #[inline]
    pub fn detunnelled(&self) -> [u64; 2] {
        self.detunnelled
    }

    /// The packet inside the tunnels of the packet that was selected last; `None` if there is
    /// nothing to remove.
    pub fn inside(&mut self, pool: &Pool, frame: &Frame, kind: Detunnel) -> Option<Decapsulated> {
        let seen = Seen::of(pool, frame);
        let level = self.hasher.carried(&seen);
        let found = wire::decapsulate(seen.bytes, level, kind == Detunnel::Tags);
        // A tag beside the bytes goes, too.
        let is_tagged = kind == Detunnel::Tags && seen.has(Slot::VLAN);
        found.or_else(|| {
            is_tagged.then_some(Decapsulated {
                offset: 0,
                cap_len: seen.bytes.len() as u32,
                wire_len: seen.wire_len,
                header: None,
            })
        })
    }

    /// What [`select`](Self::select) does, in fewer steps; `None` for a topology that is not usual.
    #[inline]
    pub fn usual(&mut self) -> Option<Usual<'_>> {
        let [target] = self.targets.as_mut_slice() else {
            return None;
        };
        let is_usual = target.filter.is_none()
            && target.cleaner.is_none()
            && target.detunnel.is_none()
            && !target.is_rehashed
            && !target.has_source;
        let (first, count) = (target.first, target.count);
        match &mut target.by {
            _ if !is_usual => None,
            By::Only => Some(Usual::Only(1 << first)),
            By::RoundRobin(turns) => Some(Usual::RoundRobin(InTurn {
                first,
                count,
                turns,
            })),
            By::Hash(kind) => Some(Usual::Hash(ByHash {
                first,
                count,
                kind: *kind,
                hasher: &mut self.hasher,
            })),
            By::Filters(_) | By::Table(_) => None,
        }
    }

    /// The queues of the packet in these frames, as bits. `readers` has the process that reads each
    /// queue, or 0. Of several frames, all are compared with those of other packets; else only the
    /// first one is looked at.
    #[inline]
    pub fn select(&mut self, pool: &Pool, frames: &[Frame], readers: &[u32]) -> u64 {
        self.hasher.next();
        let mut selected = 0;
        for target in &mut self.targets {
            if target.has_source {
                continue;
            }
            match target.queue(pool, frames, &mut self.hasher, readers, self.now_ns) {
                Ok(queue) => selected |= 1 << (target.first + queue),
                Err(left) => target.left[left as usize] += 1,
            }
        }
        selected
    }

    /// Like [`select`](Self::select), for a packet that readers of another application have sent to
    /// these ones.
    pub fn select_of(
        &mut self,
        applications: &[usize],
        pool: &Pool,
        frames: &[Frame],
        readers: &[u32],
    ) -> u64 {
        self.hasher.next();
        let mut selected = 0;
        for &number in applications {
            let Some(target) = self.targets.get_mut(number) else {
                continue;
            };
            match target.queue(pool, frames, &mut self.hasher, readers, self.now_ns) {
                Ok(queue) => selected |= 1 << (target.first + queue),
                Err(left) => target.left[left as usize] += 1,
            }
        }
        selected
    }

    /// The counts of each application: packets left out, and those that the cleaner did not track.
    pub fn counts(&self) -> impl Iterator<Item = ApplicationCounts> {
        self.targets.iter().map(|target| {
            let [filtered, duplicates, shunted] = target.left;
            ApplicationCounts {
                filtered,
                duplicates,
                shunted,
                untracked: target.cleaner.as_ref().map_or(0, Cleaner::untracked),
                ..ApplicationCounts::default()
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::{FrameCache, PoolConfig};

    /// The queue of each of `count` flows, with these readers.
    fn queues(selector: &mut Selector, readers: &[u32], count: u8) -> Vec<u32> {
        let pool = Pool::new(PoolConfig {
            frame_count: 64,
            frame_len: 2048,
            ..PoolConfig::default()
        });
        let pool = pool.unwrap();
        let mut cache = FrameCache::new(pool.clone());
        let queue = |flow: u8| {
            let mut bytes = vec![0; 42];
            bytes[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
            bytes[17] = 28;
            bytes[22..24].copy_from_slice(&[64, 17]);
            bytes[29] = flow;
            let mut frame = cache.take().unwrap();
            pool.set_range(&mut frame, 0, bytes.len() as u32);
            pool.bytes_mut(&mut frame).copy_from_slice(&bytes);
            let selected = selector.select(&pool, std::slice::from_ref(&frame), readers);
            cache.give(frame).unwrap();
            assert_eq!(selected.count_ones(), 1);
            selected.trailing_zeros()
        };
        (0..count).map(queue).collect()
    }

    #[test]
    fn packets_are_not_read_when_queues_take_turns() {
        let reads = |balance: &str, count, filter: &str| {
            let application = Application {
                balance: Balance::parse(balance).unwrap(),
                filter: Expression::new(filter),
                ..Application::new("a", count)
            };
            let selector = Selector::new(&[application], LinkType::ETHERNET).unwrap();
            selector.reads_packets()
        };
        assert!(!reads("round-robin", 4, ""));
        assert!(!reads("flow", 1, ""));
        assert!(reads("flow", 4, ""));
        assert!(reads("round-robin", 4, "udp"));
    }

    #[test]
    fn only_the_flows_of_a_queue_without_a_reader_move() {
        let application = |when_gone| Application {
            when_gone,
            ..Application::new("a", 4)
        };
        let selector =
            |when_gone| Selector::new(&[application(when_gone)], LinkType::ETHERNET).unwrap();
        let mut rehash = selector(WhenGone::Rehash);
        let all = queues(&mut rehash, &[1, 2, 3, 4], 200);
        let gone = queues(&mut rehash, &[1, 2, 0, 4], 200);
        let mut moved = [0; 4];
        for (before, after) in all.iter().zip(&gone) {
            assert_ne!(*after, 2);
            match before {
                2 => moved[*after as usize] += 1,
                _ => assert_eq!(before, after),
            }
        }
        assert!(moved[0] > 0 && moved[1] > 0 && moved[3] > 0, "{moved:?}");
        assert_eq!(queues(&mut rehash, &[0; 4], 200), all);
        assert!(
            queues(&mut rehash, &[0, 0, 0, 4], 200)
                .iter()
                .all(|it| *it == 3)
        );
        let mut wait = selector(WhenGone::Wait);
        assert_eq!(queues(&mut wait, &[1, 2, 0, 4], 200), all);
    }
}
