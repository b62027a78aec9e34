//! Fragments: which flow a piece without ports belongs to.
//!
//! Only the first fragment of a datagram has the transport header. A bounded table remembers, for
//! each datagram (source, destination, protocol, identification: RFC 791 §3.2, RFC 8200 §4.5), the
//! flow of its first fragment. Later fragments are counted in that flow. Those that come before the
//! first are held back: their counts, not their bytes. If the first comes within [`HOLD_NS`], they
//! join its flow; if not, or when their place is needed, they are orphans and count in a flow with
//! ports 0 that is marked. Nothing is reassembled: each fragment is one packet with its own bytes,
//! and where pieces overlap (RFC 5722, RFC 3128), that is counted and changes nothing.

use wire::{Dissection, LayerKind};

use crate::expire;
use crate::hash::HashKey;
use crate::record::{Amount, IP_FLAGS_SHIFT, ORPHAN, capped};
use crate::table::Observed;

/// How long a datagram is remembered after its latest fragment: as long as Linux waits for the rest
/// of one.
pub(crate) const HOLD_NS: u64 = 30_000_000_000;

/// Entries that share a place; the one untouched for longest gives way.
const WAYS: usize = 4;

/// What was counted of fragments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FragmentStats {
    /// First fragments.
    pub first: u64,
    /// Later fragments counted at once in the flow of their first one.
    pub followed: u64,
    /// Later fragments that came before the first and joined its flow.
    pub joined: u64,
    /// Later fragments whose first never came, or not in time: counted in a flow with ports 0.
    pub orphans: u64,
    /// Fragments held back now.
    pub held: u64,
    /// Datagrams forgotten because their place was needed.
    pub evicted: u64,
    /// Fragments with bytes that an earlier one of their datagram had too.
    pub overlaps: u64,
}

impl FragmentStats {
    /// Adds another meter's counts.
    pub fn add(&mut self, other: &FragmentStats) {
        self.first += other.first;
        self.followed += other.followed;
        self.joined += other.joined;
        self.orphans += other.orphans;
        self.held += other.held;
        self.evicted += other.evicted;
        self.overlaps += other.overlaps;
    }
}

/// Which datagram a fragment is of.
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
                // What the first fragment says behind its other headers, later ones do not.
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
    /// The first fragment, or the orphan's flow with ports 0 until it comes.
    like: Observed,
    /// Counts held back; none once the first fragment has come.
    held: Amount,
    pieces: Pieces,
    seen: u32,
    used: bool,
    first_came: bool,
}

/// What part of a datagram a fragment is, in units of eight bytes: its first, and the one behind
/// its last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) from: u16,
    pub(crate) to: u16,
}

impl Piece {
    pub(crate) fn of(level: &Dissection) -> Piece {
        let from = level.fragment_offset >> 3;
        let len = if level.transport_offset != 0 {
            let end = u32::from(level.ip_offset) + level.ip_total_len;
            end.saturating_sub(level.transport_offset.into())
        } else {
            level.payload_len
        };
        let units = len.div_ceil(8).min(8192) as u16;
        Piece {
            from,
            to: from + units,
        }
    }
}

/// The parts of a datagram that have come, as long as they are few ranges; what does not fit is
/// not looked at.
#[derive(Clone, Copy, Default)]
struct Pieces {
    count: u8,
    ranges: [Piece; 6],
}

impl Pieces {
    /// Adds one, and says whether some of it was there.
    fn add(&mut self, piece: Piece) -> bool {
        let mut all = piece;
        let mut overlaps = false;
        let mut at = 0;
        while at < usize::from(self.count) {
            let range = self.ranges[at];
            overlaps |= piece.from < range.to && range.from < piece.to;
            if all.from <= range.to && range.from <= all.to {
                // They touch: one range.
                all.from = all.from.min(range.from);
                all.to = all.to.max(range.to);
                self.count -= 1;
                self.ranges[at] = self.ranges[usize::from(self.count)];
                at = 0;
            } else {
                at += 1;
            }
        }
        if let Some(free) = self.ranges.get_mut(usize::from(self.count)) {
            *free = all;
            self.count += 1;
        }
        overlaps
    }
}

/// Fragments on their way into a flow: what they look like, and how many.
pub(crate) type Released = (Observed, Amount);

/// What to do with a later fragment.
pub(crate) enum Later {
    /// Count it in the flow of this packet.
    Follow(Observed),
    /// It is held back; something else may have had to give way.
    Held(Option<Released>),
}

/// The table of datagrams.
pub(crate) struct Fragments {
    entries: Vec<Entry>,
    entry_count: usize,
    /// Next entry that the sweep looks at.
    hand: usize,
    stats: FragmentStats,
}

impl Fragments {
    /// A table for about that many datagrams at one time.
    pub(crate) fn new(count_max: u32) -> Fragments {
        let entry_count = Self::entry_count(count_max);
        Fragments {
            entries: Vec::with_capacity(entry_count),
            entry_count,
            hand: 0,
            stats: FragmentStats::default(),
        }
    }

    fn entry_count(count_max: u32) -> usize {
        (count_max.min(1 << 24) as usize)
            .next_power_of_two()
            .max(WAYS)
    }

    /// Bytes that a table of this size takes.
    pub(crate) fn memory_len_for(count_max: u32) -> usize {
        Self::entry_count(count_max) * size_of::<Entry>()
    }

    pub(crate) fn stats(&self) -> &FragmentStats {
        &self.stats
    }

    /// The place of a datagram: its entry, or the one that gives way to it.
    fn place(&mut self, datagram: &Datagram, key: &HashKey) -> usize {
        if self.entries.is_empty() {
            // Most inputs have no fragments, so the memory is not even touched before the first
            // one.
            let empty = Entry::empty(datagram);
            self.entries.resize(self.entry_count, empty);
        }
        let set = (datagram.hash(key) >> 32) as usize & (self.entry_count - 1) & !(WAYS - 1);
        let newest = (0..WAYS)
            .filter_map(|way| self.entries.get(set + way))
            .filter(|entry| entry.used)
            .map(|entry| entry.seen)
            .max()
            .unwrap_or(0);
        let mut best = set;
        let mut best_age = 0;
        for (at, entry) in self.entries.iter().enumerate().skip(set).take(WAYS) {
            if !entry.used {
                if best_age != u32::MAX {
                    (best, best_age) = (at, u32::MAX);
                }
            } else if entry.datagram == *datagram {
                return at;
            } else {
                let age = newest.wrapping_sub(entry.seen);
                if age >= best_age && best_age != u32::MAX {
                    (best, best_age) = (at, age);
                }
            }
        }
        best
    }

    /// A first fragment, of the flow of `like`. What was held back for it joins that flow; what had
    /// to give way becomes orphans.
    pub(crate) fn first(
        &mut self,
        (datagram, piece): (&Datagram, Piece),
        like: &Observed,
        clock_ns: u64,
        key: &HashKey,
    ) -> Option<Released> {
        self.stats.first += 1;
        let mut released = None;
        let at = self.place(datagram, key);
        let entry = &mut self.entries[at];
        let same = entry.used && entry.datagram == *datagram;
        let known = same && !entry.is_old(clock_ns);
        let mut pieces = if known {
            entry.pieces
        } else {
            Pieces::default()
        };
        self.stats.overlaps += u64::from(pieces.add(piece));
        if known && entry.held.packets != 0 {
            let packets = u64::from(entry.held.packets);
            self.stats.held -= packets;
            self.stats.joined += packets;
            released = Some((*like, entry.held));
            entry.held = Amount::NONE;
        } else if entry.used {
            released = self.orphan(at, !same);
        }
        self.entries[at] = Entry {
            like: *like,
            pieces,
            seen: expire::tick(clock_ns),
            used: true,
            first_came: true,
            ..Entry::empty(datagram)
        };
        released
    }

    /// A later fragment. `orphan` is what it looks like as long as its flow is not known: with
    /// ports 0.
    pub(crate) fn later(
        &mut self,
        (datagram, piece): (&Datagram, Piece),
        orphan: &Observed,
        clock_ns: u64,
        key: &HashKey,
    ) -> Later {
        let at = self.place(datagram, key);
        let entry = &mut self.entries[at];
        let same = entry.used && entry.datagram == *datagram && !entry.is_old(clock_ns);
        if same {
            self.stats.overlaps += u64::from(entry.pieces.add(piece));
        }
        let entry = &self.entries[at];
        let mut released = None;
        if same && entry.first_came {
            // It has no transport header, so nothing of that is counted again.
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
            self.entries[at].seen = expire::tick(clock_ns);
            return Later::Follow(like);
        }
        if !same {
            let evicted = entry.used && entry.datagram != *datagram;
            released = self.orphan(at, evicted);
            let mut pieces = Pieces::default();
            pieces.add(piece);
            self.entries[at] = Entry {
                like: *orphan,
                pieces,
                used: true,
                ..Entry::empty(datagram)
            };
        }
        let entry = &mut self.entries[at];
        entry.seen = expire::tick(clock_ns);
        entry.held.add(orphan);
        self.stats.held += 1;
        Later::Held(released)
    }

    /// Lets go of what an entry holds back.
    fn orphan(&mut self, at: usize, evicted: bool) -> Option<Released> {
        let mut released = None;
        let entry = &mut self.entries[at];
        self.stats.evicted += u64::from(evicted && entry.used);
        if entry.held.packets != 0 {
            let packets = u64::from(entry.held.packets);
            self.stats.held -= packets;
            self.stats.orphans += packets;
            entry.like.marks |= ORPHAN;
            released = Some((entry.like, entry.held));
            entry.held = Amount::NONE;
        }
        entry.used = false;
        released
    }

    /// Looks at the next `count` entries and lets go of what was held back too long.
    pub(crate) fn sweep(
        &mut self,
        clock_ns: u64,
        count: usize,
        release: &mut impl FnMut(Released),
    ) {
        if self.stats.held == 0 {
            return;
        }
        for _ in 0..count.min(self.entries.len()) {
            let at = self.hand;
            self.hand = (at + 1) & (self.entry_count - 1);
            let entry = &self.entries[at];
            if entry.used
                && entry.is_old(clock_ns)
                && let Some(released) = self.orphan(at, false)
            {
                release(released);
            }
        }
    }

    /// The end of input: nothing is held back any longer.
    pub(crate) fn finish(&mut self, release: &mut impl FnMut(Released)) {
        for at in 0..self.entries.len() {
            if let Some(released) = self.orphan(at, false) {
                release(released);
            }
        }
    }
}

impl Entry {
    fn empty(datagram: &Datagram) -> Entry {
        Entry {
            datagram: *datagram,
            like: Observed::NONE,
            held: Amount::NONE,
            pieces: Pieces::default(),
            seen: 0,
            used: false,
            first_came: false,
        }
    }

    fn is_old(&self, clock_ns: u64) -> bool {
        expire::is_over(clock_ns, self.seen, HOLD_NS)
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
