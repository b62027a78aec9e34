//! Fragments: assigns fragments without ports to their flows.
//!
//! Only the first fragment of a datagram has the transport header. A bounded table remembers, for
//! each datagram (source, destination, protocol, identification: RFC 791 §3.2, RFC 8200 §4.5), the
//! flow of its first fragment. Later fragments are counted in that flow. Fragments that arrive
//! before the first are held back: their counts, not their bytes. If the first arrives within
//! [`HOLD_NS`], they join its flow; otherwise, or when their entry is needed, they are orphans and
//! are counted in a flow with ports 0 that is marked. All of this depends on the order and the
//! times of packets alone: a datagram is removed before the first packet that is too far from it in
//! time, and a full table evicts the least recently used one, regardless of its hash. Each fragment
//! is one packet with its own bytes; overlaps (RFC 5722, RFC 3128) are counted and change nothing.
//! Only to find the packet inside a tunnel's is a datagram put together ([`crate::assembly`]).

use wire::{Dissection, LayerKind};

use crate::assembly::Assemblies;
use crate::hash::HashKey;
use crate::record::{Amount, IP_FLAGS_SHIFT, ORPHAN, capped};
use crate::table::Observed;

mod pieces;
mod tunnel;

pub(crate) use pieces::{Piece, Pieces};

/// How long a datagram is remembered after its latest fragment: as long as Linux waits for missing
/// fragments.
pub(crate) const HOLD_NS: u64 = 30_000_000_000;

/// Minimum table size.
const ENTRIES_MIN: usize = 4;

/// No entry.
const NONE: u32 = u32::MAX;

/// Counters of fragments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FragmentStats {
    /// First fragments.
    pub first: u64,
    /// Later fragments counted at once in the flow of their first one.
    pub followed: u64,
    /// Later fragments that arrived before the first and joined its flow.
    pub joined: u64,
    /// Later fragments whose first did not arrive in time: counted in a flow with ports 0.
    pub orphans: u64,
    /// Fragments currently held back.
    pub held: u64,
    /// Datagrams evicted.
    pub evicted: u64,
    /// Fragments that overlap an earlier one of their datagram.
    pub overlaps: u64,
    /// Packets of tunnels that were put together from their fragments.
    pub reassembled: u64,
}

impl FragmentStats {
    /// Adds the counters of another meter.
    pub fn add(&mut self, other: &FragmentStats) {
        self.first += other.first;
        self.followed += other.followed;
        self.joined += other.joined;
        self.orphans += other.orphans;
        self.held += other.held;
        self.evicted += other.evicted;
        self.overlaps += other.overlaps;
        self.reassembled += other.reassembled;
    }
}

/// Identifies the datagram of a fragment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Datagram {
    src: [u8; 16],
    dst: [u8; 16],
    id: u32,
    protocol: u8,
    version: u8,
    vlan: u16,
}

impl Datagram {
    pub(crate) fn of(level: &Dissection) -> Datagram {
        Datagram {
            src: level.src,
            dst: level.dst,
            id: level.fragment_id,
            protocol: match level.ip_version {
                // Later fragments lack the headers that follow in the first one.
                6 => 0,
                _ if level.layer_mask & LayerKind::Ah.bit() != 0 => 51,
                _ => level.ip_protocol,
            },
            version: level.ip_version,
            vlan: level.vlan_outer,
        }
    }

    fn hash(&self, key: &HashKey) -> u64 {
        let half = |bytes: &[u8; 16], at: usize| {
            let (halves, _) = bytes.as_chunks::<8>();
            u64::from_ne_bytes(halves[at])
        };
        let rest = u64::from(self.id)
            | u64::from(self.protocol) << 32
            | u64::from(self.version) << 40
            | u64::from(self.vlan) << 48;
        key.hash(&[
            half(&self.src, 0),
            half(&self.src, 1),
            half(&self.dst, 0),
            half(&self.dst, 1),
            rest,
            0,
        ])
    }
}

#[derive(Clone, Copy)]
struct Entry {
    datagram: Datagram,
    /// The first fragment, or until it arrives, the orphan's flow with ports 0.
    like: Observed,
    /// Counters held back; `None` once the first fragment has arrived.
    held: Amount,
    pieces: Pieces<6>,
    /// Time of its latest fragment.
    seen_ns: u64,
    first_came: bool,
    /// Known not to be a tunnel's packet.
    is_plain: bool,
    bucket: u32,
    /// Next entry of the bucket, or of the free list.
    chain: u32,
    /// Neighbours in the order of last use.
    older: u32,
    newer: u32,
}

/// Released fragments: their description, and their counters.
pub(crate) type Released = (Observed, Amount);

/// What to do with a later fragment.
pub(crate) enum Later {
    /// Count it in the flow of this packet.
    Follow(Observed),
    /// It was held back; another entry may have been evicted.
    Held(Option<Released>),
}

/// The table of datagrams: buckets of chained entries, and all entries in the order of last use.
pub(crate) struct Fragments {
    entries: Vec<Entry>,
    /// First entry of each bucket.
    buckets: Vec<u32>,
    entry_count: usize,
    free: u32,
    oldest: u32,
    newest: u32,
    /// While fragments are held back, the start of the time span in which nothing needs to be
    /// released, and its length.
    quiet_from_ns: u64,
    quiet_ns: u64,
    stats: FragmentStats,
    /// The datagrams being put together, by the index of their entry; `None` if that is not needed.
    assemblies: Option<Assemblies>,
}

impl Fragments {
    /// Creates a table for about this many concurrent datagrams.
    pub(crate) fn new(count_max: u32, reassembles: bool) -> Fragments {
        let entry_count = Self::entry_count(count_max);
        Fragments {
            entries: Vec::with_capacity(entry_count),
            buckets: Vec::with_capacity(entry_count),
            entry_count,
            free: NONE,
            oldest: NONE,
            newest: NONE,
            quiet_from_ns: 0,
            quiet_ns: u64::MAX,
            stats: FragmentStats::default(),
            assemblies: reassembles.then(|| Assemblies::new(entry_count)),
        }
    }

    fn entry_count(count_max: u32) -> usize {
        (count_max.min(1 << 24) as usize)
            .next_power_of_two()
            .max(ENTRIES_MIN)
    }

    /// Memory of a table of this size in bytes.
    pub(crate) fn memory_len_for(count_max: u32, reassembles: bool) -> usize {
        let count = Self::entry_count(count_max);
        let assemblies = match reassembles {
            true => Assemblies::memory_len_for(count),
            false => 0,
        };
        count * (size_of::<Entry>() + size_of::<u32>()) + assemblies
    }

    pub(crate) fn stats(&self) -> &FragmentStats {
        &self.stats
    }

    /// Bucket of a datagram.
    fn bucket(&mut self, datagram: &Datagram, key: &HashKey) -> usize {
        if self.buckets.is_empty() {
            // Most inputs have no fragments, so the memory is not even touched before the first
            // one.
            self.buckets.resize(self.entry_count, NONE);
        }
        (datagram.hash(key) >> 32) as usize & (self.entry_count - 1)
    }

    fn find(&self, datagram: &Datagram, bucket: usize) -> Option<usize> {
        let mut at = self.buckets[bucket];
        while let Some(entry) = self.entries.get(at as usize) {
            if entry.datagram == *datagram {
                return Some(at as usize);
            }
            at = entry.chain;
        }
        None
    }

    /// Inserts an entry for a datagram. Evicted fragments become orphans.
    fn insert(
        &mut self,
        datagram: &Datagram,
        bucket: usize,
        like: &Observed,
    ) -> (usize, Option<Released>) {
        let mut released = None;
        if self.free == NONE && self.entries.len() == self.entry_count {
            self.stats.evicted += 1;
            released = self.forget(self.oldest as usize);
        }
        let entry = Entry {
            datagram: *datagram,
            like: *like,
            held: Amount::NONE,
            pieces: Pieces::EMPTY,
            seen_ns: like.time_ns,
            first_came: false,
            is_plain: false,
            bucket: bucket as u32,
            chain: self.buckets[bucket],
            older: NONE,
            newer: NONE,
        };
        let at = match self.entries.get_mut(self.free as usize) {
            Some(place) => {
                let at = self.free;
                self.free = place.chain;
                *place = entry;
                at
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        self.buckets[bucket] = at;
        self.append(at);
        self.clear_assembly(at as usize);
        (at as usize, released)
    }

    /// Makes an entry the most recently used.
    fn append(&mut self, at: u32) {
        let older = std::mem::replace(&mut self.newest, at);
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.newer = at,
            None => self.oldest = at,
        }
        let entry = &mut self.entries[at as usize];
        (entry.older, entry.newer) = (older, NONE);
    }

    /// Removes an entry from the order.
    fn detach(&mut self, at: usize) {
        let (older, newer) = (self.entries[at].older, self.entries[at].newer);
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
        match self.entries.get_mut(newer as usize) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
    }

    /// Records a fragment of an entry.
    fn touch(&mut self, at: usize, time_ns: u64) {
        self.entries[at].seen_ns = time_ns;
        self.detach(at);
        self.append(at as u32);
    }

    /// Frees an entry. Fragments it held back become orphans.
    fn forget(&mut self, at: usize) -> Option<Released> {
        let released = self.orphan(at);
        self.detach(at);
        let (bucket, next) = (self.entries[at].bucket as usize, self.entries[at].chain);
        let mut before = self.buckets[bucket] as usize;
        if before == at {
            self.buckets[bucket] = next;
        } else {
            while let Some(entry) = self.entries.get_mut(before) {
                if entry.chain as usize == at {
                    entry.chain = next;
                    break;
                }
                before = entry.chain as usize;
            }
        }
        self.entries[at].chain = std::mem::replace(&mut self.free, at as u32);
        released
    }

    /// Releases the fragments that an entry holds back.
    fn orphan(&mut self, at: usize) -> Option<Released> {
        let entry = &mut self.entries[at];
        if entry.held.packets == 0 {
            return None;
        }
        let packets = u64::from(entry.held.packets);
        self.stats.held -= packets;
        // Otherwise it is the first fragment of a tunnel's packet that has stayed incomplete.
        if !entry.first_came {
            self.stats.orphans += packets;
            entry.like.marks |= ORPHAN;
        }
        Some((entry.like, std::mem::replace(&mut entry.held, Amount::NONE)))
    }

    /// Handles a first fragment of the flow of `like`. Fragments held back for it join that flow;
    /// evicted ones become orphans.
    pub(crate) fn first(
        &mut self,
        (datagram, piece): (&Datagram, Piece),
        like: &Observed,
        key: &HashKey,
    ) -> Option<Released> {
        self.stats.first += 1;
        let bucket = self.bucket(datagram, key);
        let (at, mut released) = match self.find(datagram, bucket) {
            Some(at) => (at, None),
            None => self.insert(datagram, bucket, like),
        };
        let mut pieces = Pieces::EMPTY;
        if !self.entries[at].is_far(like.time_ns) {
            pieces = self.entries[at].pieces;
            let held = std::mem::replace(&mut self.entries[at].held, Amount::NONE);
            if held.packets != 0 {
                let entry = &self.entries[at];
                let is_first = entry.first_came;
                let like = if is_first { &entry.like } else { like };
                self.stats.held -= u64::from(held.packets);
                self.stats.joined += u64::from(held.packets) * u64::from(!is_first);
                released = Some((*like, held));
            }
        } else {
            self.clear_assembly(at);
            if let Some(orphans) = self.orphan(at) {
                released = Some(orphans);
            }
        }
        self.stats.overlaps += u64::from(pieces.add(piece));
        self.touch(at, like.time_ns);
        let entry = &mut self.entries[at];
        (entry.like, entry.pieces, entry.first_came) = (*like, pieces, true);
        self.plan();
        released
    }

    /// Handles a later fragment. `orphan` describes it with ports 0, while its flow is unknown.
    pub(crate) fn later(
        &mut self,
        (datagram, piece): (&Datagram, Piece),
        orphan: &Observed,
        key: &HashKey,
    ) -> Later {
        let bucket = self.bucket(datagram, key);
        let mut released = None;
        let at = match self.find(datagram, bucket) {
            Some(at) if !self.entries[at].is_far(orphan.time_ns) => at,
            found => {
                if let Some(at) = found {
                    released = self.forget(at);
                }
                // After an eviction there is room.
                let (at, evicted) = self.insert(datagram, bucket, orphan);
                released = released.or(evicted);
                at
            }
        };
        self.touch(at, orphan.time_ns);
        let entry = &mut self.entries[at];
        self.stats.overlaps += u64::from(entry.pieces.add(piece));
        if entry.first_came {
            // It has no transport header, so nothing in that is counted again.
            let like = Observed {
                time_ns: orphan.time_ns,
                bytes: orphan.bytes,
                marks: orphan.marks,
                tcp_mss: 0,
                input_index: orphan.input_index,
                level: orphan.level,
                ..entry.like
            };
            self.stats.followed += 1;
            self.plan();
            return Later::Follow(like);
        }
        entry.held.add(orphan);
        self.stats.held += 1;
        self.plan();
        Later::Held(released)
    }

    /// Computes when the next entry is due for release.
    fn plan(&mut self) {
        (self.quiet_from_ns, self.quiet_ns) = match self.entries.get(self.oldest as usize) {
            Some(entry) if self.stats.held != 0 => {
                let from_ns = entry.seen_ns.saturating_sub(HOLD_NS);
                let to_ns = entry.seen_ns.saturating_add(HOLD_NS);
                (from_ns, to_ns - from_ns)
            }
            _ => (0, u64::MAX),
        };
    }

    /// Whether anything must be [released](Fragments::release) before a packet with this time.
    #[inline(always)]
    pub(crate) fn is_due(&self, time_ns: u64) -> bool {
        time_ns.wrapping_sub(self.quiet_from_ns) > self.quiet_ns
    }

    /// Releases fragments that are too far from a packet with this time.
    pub(crate) fn release(&mut self, time_ns: u64, release: &mut impl FnMut(Released)) {
        while self.is_due(time_ns) {
            if let Some(released) = self.forget(self.oldest as usize) {
                release(released);
            }
            self.plan();
        }
    }

    /// Handles the end of input: releases all fragments.
    pub(crate) fn finish(&mut self, release: &mut impl FnMut(Released)) {
        while self.oldest != NONE {
            if let Some(released) = self.forget(self.oldest as usize) {
                release(released);
            }
        }
        self.plan();
    }
}

impl Entry {
    /// Whether a fragment with this time is unlikely to belong to the same datagram.
    fn is_far(&self, time_ns: u64) -> bool {
        time_ns.abs_diff(self.seen_ns) > HOLD_NS
    }
}

impl Amount {
    const NONE: Amount = Amount {
        packets: 0,
        bytes: 0,
        payload_bytes: 0,
        first_ns: u64::MAX,
        last_ns: 0,
        ttl_min: u8::MAX,
        ttl_max: 0,
        ip_flags: 0,
        len_min: u16::MAX,
        len_max: 0,
        ip_options: 0,
    };

    fn add(&mut self, packet: &Observed) {
        self.packets = self.packets.saturating_add(1);
        self.bytes += u64::from(packet.bytes);
        self.payload_bytes += u64::from(packet.level.payload_len);
        self.first_ns = self.first_ns.min(packet.time_ns);
        self.last_ns = self.last_ns.max(packet.time_ns);
        self.ttl_min = self.ttl_min.min(packet.level.ttl);
        self.ttl_max = self.ttl_max.max(packet.level.ttl);
        self.ip_flags |= u16::from(packet.level.ip_flags) << IP_FLAGS_SHIFT;
        self.len_min = self.len_min.min(capped(packet.bytes));
        self.len_max = self.len_max.max(capped(packet.bytes));
        self.ip_options |= packet.level.ip_options;
    }
}
