//! The table: an index of cache lines over a slab of records, updated in batches.
//!
//! *Layout.* A line of 64 bytes has eight ways, each a 16-bit tag, a 16-bit deadline and the number
//! of a record. There is a line for every four records, so half of the ways are free when the table
//! is full. A flow lives in its home line (from the upper bits of its hash) or, where that is full,
//! in one of the three behind it; the tag says how many lines it was moved. Lookups go on to the
//! next line only while a line is full. A record is 176 bytes, so a flow costs 192, and a packet of
//! a known flow touches the line, the head of the record and one of its sides.
//!
//! *Batches.* Passes over up to [`BATCH_MAX`] packets each do one thing for all: load the home
//! lines, match the tags, update, with the records loaded some packets ahead. The loads of one pass
//! do not depend on each other, so the processor overlaps them. Where the caller has a prefetch
//! ([`TableConfig::prefetch`]), they do not even wait in the processor's window.
//!
//! *Full.* When no record is free, or the four lines are full (in a full table some seven flows of
//! a million find them so, or whoever has the secret), the flow that is nearest to its timeout
//! among those of the home line and the next one (or of the four) ends with
//! [`EndReason::Resources`]. Closed connections and short timeouts go first.
//!
//! *Expiry* walks the index, never the records, a few lines with each batch: once round in about
//! two seconds.

use crate::expire::{self, EndReason, Limits, Timeouts};

use crate::record::{self, Amount, Record};

mod config;
mod observed;
mod watch;

pub use config::{OutOfMemory, Profile, TableConfig, TableStats};
pub use observed::{Headers, Observed};
pub use watch::Sink;
pub(crate) use watch::{Alone, Watch};

/// Packets that one pass handles together. More do not hide more latency.
pub const BATCH_MAX: usize = 32;

/// So many packets before its own a record is loaded: what a packet costs otherwise, so often,
/// takes about as long as the memory does.
const AHEAD: usize = 16;

const WAYS: usize = 8;
/// Lines that a flow may live in.
const REACH: usize = 4;
/// The tag proper; the two bits above say how many lines from home.
const TAG_MASK: u16 = 0x3fff;
const AWAY_SHIFT: u32 = 14;
const NONE: u32 = u32::MAX;

/// Time in which expiry walks the whole index: two seconds, a small part of any timeout.
const ROUND_NS: u64 = 1 << ROUND_SHIFT;
const ROUND_SHIFT: u32 = 31;

/// So many bytes ahead of the record that ends records are loaded at the end of input.
const FINISH_AHEAD: usize = 2048;

/// Lines that are loaded for the next piece of the walk.
const WALK_AHEAD: usize = 16;

/// So far behind the clock packets are not just out of order, and so many in a row.
const JUMP_NS: u64 = 60_000_000_000;
const JUMP_COUNT: usize = 1024;

/// Eight ways of the index. A tag of 0 is a free way.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line {
    tags: [u16; WAYS],
    deadlines: [u16; WAYS],
    records: [u32; WAYS],
}

const _: () = assert!(size_of::<Line>() == 64);

/// A set of ways, of which the first is exact: way n is bit 16 n + 14, or 16 (n - 4) + 15 from
/// way 4 on. Behind the first there may be ways that are not in the set.
#[derive(Clone, Copy)]
struct Ways(u64);

impl Ways {
    #[inline(always)]
    fn first(self) -> Option<usize> {
        let bit = self.0.trailing_zeros() as usize;
        (self.0 != 0).then_some((bit >> 4) & 3 | (bit & 1) << 2)
    }

    /// Without the first of its members.
    #[inline(always)]
    fn rest(self) -> Ways {
        Ways(self.0 & self.0.wrapping_sub(1))
    }
}

impl Line {
    const EMPTY: Line = Line {
        tags: [0; WAYS],
        deadlines: [0; WAYS],
        records: [NONE; WAYS],
    };

    /// The ways that have this tag. 0 finds the free ones.
    #[inline(always)]
    fn find(&self, tag: u16) -> Ways {
        // Four comparisons in a word: taking one from each lane borrows from above only where a
        // lane was 0, which is what is looked for; so the lowest find is a find.
        const ONES: u64 = 0x0001_0001_0001_0001;
        const TOPS: u64 = ONES << 15;
        let wanted = u64::from(tag) * ONES;
        let equal = |tags: u64| {
            let different = tags ^ wanted;
            different.wrapping_sub(ONES) & !different & TOPS
        };
        // Four tags next to each other: one load.
        let word = |at: usize| {
            u64::from(self.tags[at])
                | u64::from(self.tags[at + 1]) << 16
                | u64::from(self.tags[at + 2]) << 32
                | u64::from(self.tags[at + 3]) << 48
        };
        Ways(equal(word(0)) >> 1 | equal(word(4)))
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.find(0).first().is_none()
    }
}

/// A way of a line.
#[derive(Clone, Copy, Debug)]
struct Place {
    line: usize,
    way: usize,
}

/// The result of a search.
enum Search {
    /// There it is.
    Found(Place, u32),
    /// It is not there; it would go here, `away` lines from home.
    Free(Place, u16),
    /// It is not there, and there is no room for it.
    Crowded,
}

/// What the first passes found out about a packet.
#[derive(Clone, Copy)]
struct Guess {
    line: u32,
    record: u32,
    way: u32,
}

/// The flow table of one thread.
pub struct Table {
    lines: Vec<Line>,
    records: Vec<Record>,
    record_count_max: usize,
    /// First of the freed records.
    free: u32,
    timeouts: Timeouts,
    limits: Limits,
    prefetch: Option<fn(&[usize])>,
    profile: Profile,
    uniflow: bool,
    clock_ns: u64,
    /// Next line that expiry looks at.
    hand: usize,
    /// Lines that expiry is behind, in nanoseconds of a round.
    owed_ns: u64,
    /// Packets in a row whose time is far before the clock.
    far_behind_count: usize,
    /// The index is as the end of input left it, and to be emptied before it is looked at.
    is_stale: bool,
    stats: TableStats,
}

impl Table {
    /// A table with all its memory.
    ///
    /// # Errors
    /// If there is not so much memory.
    pub fn new(config: &TableConfig) -> Result<Table, OutOfMemory> {
        let record_count_max = (config.flow_count_max as usize).clamp(1, 1 << 28);
        let line_count = Self::line_count(record_count_max);
        let failed = |_| OutOfMemory {
            len: Self::memory_len_for(config.flow_count_max),
        };
        let (mut lines, mut records) = (Vec::new(), Vec::new());
        lines.try_reserve_exact(line_count).map_err(failed)?;
        (config.reserved)(lines.as_ptr() as usize, line_count * size_of::<Line>());
        lines.resize(line_count, Line::EMPTY);
        records
            .try_reserve_exact(record_count_max)
            .map_err(failed)?;
        (config.reserved)(
            records.as_ptr() as usize,
            record_count_max * size_of::<Record>(),
        );
        Ok(Table {
            lines,
            records,
            record_count_max,
            free: NONE,
            timeouts: config.timeouts.clamped(),
            limits: Limits::of(&config.timeouts.clamped()),
            prefetch: config.prefetch,
            profile: config.profile,
            uniflow: config.uniflow,
            clock_ns: 0,
            hand: 0,
            owed_ns: 0,
            far_behind_count: 0,
            is_stale: false,
            stats: TableStats::default(),
        })
    }

    /// Half of the ways stay free. At least [`REACH`].
    fn line_count(record_count_max: usize) -> usize {
        record_count_max.div_ceil(WAYS / 2).max(REACH)
    }

    /// Bytes that a table of this many flows takes.
    pub fn memory_len_for(flow_count_max: u32) -> usize {
        let records = (flow_count_max as usize).clamp(1, 1 << 28);
        records * size_of::<Record>() + Self::line_count(records) * size_of::<Line>()
    }

    /// Bytes that this table takes, from its beginning to its end.
    pub fn memory_len(&self) -> usize {
        self.record_count_max * size_of::<Record>() + self.lines.len() * size_of::<Line>()
    }

    /// Flows that fit.
    pub fn capacity(&self) -> usize {
        self.record_count_max
    }

    /// Flows in it.
    #[inline]
    pub fn len(&self) -> usize {
        self.stats.live as usize
    }

    /// Whether no flow is in it.
    pub fn is_empty(&self) -> bool {
        self.stats.live == 0
    }

    /// What was counted so far.
    pub fn stats(&self) -> &TableStats {
        &self.stats
    }

    /// The greatest time it was told.
    #[inline]
    pub fn clock_ns(&self) -> u64 {
        self.clock_ns
    }

    /// The flows in places `from` to `to` of the slab (below [`Table::place_count`]), in no order
    /// that means anything. For views that look at all flows piece by piece.
    pub fn live(&self, from: usize, to: usize) -> impl Iterator<Item = &Record> {
        self.live_places(from, to).map(|(_, record)| record)
    }

    /// The same with their places.
    pub(crate) fn live_places(
        &self,
        from: usize,
        to: usize,
    ) -> impl Iterator<Item = (u32, &Record)> {
        let to = to.min(self.records.len());
        let from = from.min(to);
        let places = self.records.get(from..to).unwrap_or(&[]);
        let numbered = (from as u32..).zip(places);
        numbered.filter(|(_, record)| record.is_live())
    }

    /// The live flow in a place.
    pub(crate) fn at(&self, place: u32) -> Option<&Record> {
        let record = self.records.get(place as usize)?;
        record.is_live().then_some(record)
    }

    /// Places of the slab that were ever used.
    pub fn place_count(&self) -> usize {
        self.records.len()
    }

    /// Takes packets, in their order. Any number; they are handled [`BATCH_MAX`] at a time.
    pub fn observe(&mut self, packets: &[Observed], sink: &mut dyn Sink) {
        match self.profile {
            Profile::Counters => self.observe_with(packets, &mut Alone::<false>, sink),
            Profile::Standard => self.observe_with(packets, &mut Alone::<true>, sink),
        }
    }

    /// The same, watched.
    pub(crate) fn observe_with<W: Watch>(
        &mut self,
        packets: &[Observed],
        watch: &mut W,
        sink: &mut dyn Sink,
    ) {
        for batch in packets.chunks(BATCH_MAX) {
            self.load_homes(batch);
            self.batch(batch, watch, sink);
        }
    }

    /// The same for [`BATCH_MAX`] at most, whose home lines the caller had
    /// [loaded](Table::load_homes).
    pub(crate) fn observe_loaded<W: Watch>(
        &mut self,
        packets: &[Observed],
        watch: &mut W,
        sink: &mut dyn Sink,
    ) {
        let (batch, rest) = packets.split_at(packets.len().min(BATCH_MAX));
        self.batch(batch, watch, sink);
        self.observe_with(rest, watch, sink);
    }

    fn batch<W: Watch>(&mut self, packets: &[Observed], watch: &mut W, sink: &mut dyn Sink) {
        if self.is_stale {
            self.empty_index();
        }
        let before_ns = self.clock_ns;
        let mut guesses = [Guess {
            line: 0,
            record: NONE,
            way: 0,
        }; BATCH_MAX];
        // Match the tags.
        let is_full = self.stats.live as usize == self.record_count_max;
        let mut new_count = 0;
        for (packet, guess) in packets.iter().zip(&mut guesses) {
            let home = self.home(packet.hash);
            guess.line = home as u32;
            let Some(line) = self.lines.get(home) else {
                continue;
            };
            let way = match line.find(tag_of(packet.hash)).first() {
                Some(way) => way,
                // It will take somebody's place: have that record at hand.
                None if is_full => match line.nearest(expire::deadline_now(self.clock_ns)) {
                    Some((_, way)) => way,
                    None => continue,
                },
                None => {
                    self.load_new(new_count);
                    new_count += 1;
                    continue;
                }
            };
            guess.way = way as u32;
            guess.record = line.records[way % WAYS];
        }
        // Update, in order, each while the records of those behind it are loaded.
        for (packet, guess) in packets.iter().zip(&guesses).take(AHEAD) {
            self.load_record(packet, *guess);
        }
        for (at, (packet, guess)) in packets.iter().zip(&guesses).enumerate() {
            if let (Some(packet), Some(guess)) = (packets.get(at + AHEAD), guesses.get(at + AHEAD))
            {
                self.load_record(packet, *guess);
            }
            self.one(packet, *guess, watch, sink);
        }
        self.stats.packets += packets.len() as u64;
        // The first time of all is no passing of time.
        if self.clock_ns != before_ns {
            self.far_behind_count = 0;
        }
        if before_ns != 0 {
            self.owe(self.clock_ns.saturating_sub(before_ns));
        }
        self.walk(packets.len() * 2 + 8, watch, sink);
    }

    /// Has the home lines of some packets loaded.
    #[inline]
    pub(crate) fn load_homes(&self, packets: &[Observed]) {
        let mut addresses = [0; BATCH_MAX];
        // A load whose value is not used would be removed.
        let mut touched = 0;
        for (packet, address) in packets.iter().zip(&mut addresses) {
            if let Some(line) = self.lines.get(self.home(packet.hash)) {
                match self.prefetch {
                    Some(_) => *address = std::ptr::from_ref(line).addr(),
                    None => touched |= line.tags[0],
                }
            }
        }
        std::hint::black_box(touched);
        if let Some(prefetch) = self.prefetch {
            prefetch(&addresses[..packets.len().min(BATCH_MAX)]);
        }
    }

    /// Has a packet's record loaded.
    #[inline(always)]
    fn load_record(&self, packet: &Observed, guess: Guess) {
        let Some(record) = self.records.get(guess.record as usize) else {
            return;
        };
        match self.prefetch {
            Some(prefetch) => prefetch(&record.places(packet.side)),
            None => {
                std::hint::black_box(record.touch(packet.side));
            }
        }
    }

    /// Has the place loaded where the record of the n-th new flow of a batch will be written, if
    /// that is one never used before.
    #[inline(always)]
    fn load_new(&self, at: usize) {
        if let Some(prefetch) = self.prefetch
            && self.free == NONE
        {
            let place = (self.records.len() + at) * size_of::<Record>();
            let start = self.records.as_ptr().addr() + place;
            prefetch(&[
                start,
                start + 64,
                start + 128,
                start + size_of::<Record>() - 1,
            ]);
        }
    }

    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        // The upper half of the hash as a fraction of the lines: always below their number, which
        // is less than 2^27.
        (((hash >> 32) * self.lines.len() as u64) >> 32) as usize
    }

    /// The line so many behind this one.
    #[inline(always)]
    fn behind(&self, line: usize, by: usize) -> usize {
        let at = line + by;
        if at >= self.lines.len() {
            at - self.lines.len()
        } else {
            at
        }
    }

    #[inline(always)]
    fn one<W: Watch>(
        &mut self,
        packet: &Observed,
        guess: Guess,
        watch: &mut W,
        sink: &mut dyn Sink,
    ) {
        if packet.time_ns >= self.clock_ns {
            self.clock_ns = packet.time_ns;
        } else {
            self.stats.late += 1;
            if self.clock_ns - packet.time_ns > JUMP_NS {
                self.far_behind(packet.time_ns);
            }
        }
        let way = guess.way as usize % WAYS;
        // The guess may have become stale earlier in this batch: a freed record has no key, and a
        // moved one is in another way.
        if let Some(record) = self.records.get_mut(guess.record as usize)
            && let Some(line) = self.lines.get_mut(guess.line as usize)
            && line.records[way] == guess.record
            && record.key() == &packet.key
            && watch.is_same(guess.record, packet)
        {
            // Two steps before its deadline a flow cannot be over. Whatever is not plain is looked
            // at closely.
            let (now, tick) = (
                expire::deadline_now(self.clock_ns),
                expire::tick(self.clock_ns),
            );
            let start_ns = record.start_ns();
            let plain = expire::until(line.deadlines[way], now) >= 2
                && expire::is_recent(tick, record.seen())
                && packet.level.tcp_flags & record::SYN == 0
                && record.is_plain(packet)
                && self.limits.is_within(start_ns, packet.time_ns);
            if plain {
                watch.packet(guess.record, record, packet);
                if W::DETAIL {
                    record.add_one::<true>(packet, tick);
                } else {
                    record.add_one::<false>(packet, tick);
                }
                // Of a packet that is not late the time is the flow's end.
                line.deadlines[way] = if packet.time_ns == self.clock_ns {
                    self.limits
                        .deadline(record.class(), start_ns, packet.time_ns)
                } else {
                    expire::deadline(self.clock_ns, self.timeouts.left(record).0)
                };
                return;
            }
        }
        self.slow(packet, None, watch, sink);
    }

    /// A packet's time is far before the clock. When as many of them have come in a row as there
    /// are flows, it is the clock that is wrong (one packet with a time in the future is enough):
    /// it is set back, and every flow is as old as its last packet.
    #[inline(never)]
    fn far_behind(&mut self, time_ns: u64) {
        self.far_behind_count += 1;
        if self.far_behind_count < JUMP_COUNT.max(self.records.len()) {
            return;
        }
        self.far_behind_count = 0;
        self.stats.set_back += 1;
        self.clock_ns = time_ns;
        let tick = expire::tick(time_ns);
        for line in &mut self.lines {
            for way in 0..WAYS {
                if line.tags[way] == 0 {
                    continue;
                }
                let record = &mut self.records[line.records[way] as usize];
                record.set_seen(tick);
                let (left_ns, _) = self.timeouts.left(record);
                line.deadlines[way] = expire::deadline(time_ns, left_ns);
            }
        }
    }

    /// Adds packets that were held back (fragments whose first came late or never), as if they came
    /// now.
    pub(crate) fn observe_held<W: Watch>(
        &mut self,
        (like, amount): (&Observed, &Amount),
        watch: &mut W,
        sink: &mut dyn Sink,
    ) {
        if self.is_stale {
            self.empty_index();
        }
        self.stats.packets += u64::from(amount.packets);
        self.slow(like, Some(amount), watch, sink);
    }

    /// Everything but the plain case: new flows, flows past their end, flows away from home.
    #[inline(never)]
    fn slow<W: Watch>(
        &mut self,
        packet: &Observed,
        held: Option<&Amount>,
        watch: &mut W,
        sink: &mut dyn Sink,
    ) {
        let (packets, first_ns, last_ns) = match held {
            Some(held) => (held.packets, held.first_ns, held.last_ns),
            None => (1, packet.time_ns, packet.time_ns),
        };
        let hash = packet.hash;
        let (place, record) = loop {
            match self.search(packet, watch) {
                Search::Found(place, record) => break (place, record),
                Search::Free(place, away) => {
                    if let Some(record) = self.take_record() {
                        let line = &mut self.lines[place.line];
                        line.tags[place.way] = tag_of(hash) | away << AWAY_SHIFT;
                        line.records[place.way] = record;
                        self.begin(record, packet, watch);
                        break (place, record);
                    }
                    let Some(victim) = self.victim(hash, 2) else {
                        return;
                    };
                    if victim.line == self.home(hash) {
                        // It leaves its place and its record to the new flow.
                        let reason = self.reason_to_go(victim);
                        let line = &mut self.lines[victim.line];
                        line.tags[victim.way] = tag_of(hash);
                        let record = line.records[victim.way];
                        self.tell(record, reason, watch, sink);
                        self.begin(record, packet, watch);
                        break (victim, record);
                    }
                    self.evict(victim, watch, sink);
                }
                Search::Crowded => {
                    // Again if the room made goes to a flow that was moved past these lines.
                    self.stats.crowded += u64::from(self.len() < self.record_count_max);
                    match self.victim(hash, REACH) {
                        Some(victim) => self.evict(victim, watch, sink),
                        None => return,
                    }
                }
            }
        };
        let old = &self.records[record as usize];
        let ended = if old.packets() == 0 {
            None
        } else if let Some(reason) = self.timeouts.ended_before(old, first_ns, self.clock_ns) {
            Some(reason)
        } else if old.is_closed() && held.is_none() && is_opening(packet.level.tcp_flags) {
            Some(EndReason::EndOfFlow)
        } else if !old.has_room(packet.side, packets, first_ns, last_ns) {
            Some(EndReason::Active)
        } else {
            None
        };
        if let Some(reason) = ended {
            // The next record takes the same place.
            self.tell(record, reason, watch, sink);
            self.begin(record, packet, watch);
        }
        let index = record;
        let record = &mut self.records[index as usize];
        let tick = expire::tick(self.clock_ns);
        match held {
            Some(held) if W::DETAIL => record.add_held::<true>(packet, held, tick),
            Some(held) => record.add_held::<false>(packet, held, tick),
            None => {
                watch.packet(index, record, packet);
                if W::DETAIL {
                    record.add_any::<true>(packet, tick);
                } else {
                    record.add_any::<false>(packet, tick);
                }
            }
        }
        let (left_ns, _) = self.timeouts.left(record);
        self.lines[place.line].deadlines[place.way] = expire::deadline(self.clock_ns, left_ns);
    }

    fn search<W: Watch>(&self, packet: &Observed, watch: &W) -> Search {
        let home = self.home(packet.hash);
        let tag = tag_of(packet.hash);
        for away in 0..REACH {
            let at = self.behind(home, away);
            let line = &self.lines[at];
            let mut ways = line.find(tag | (away as u16) << AWAY_SHIFT);
            while let Some(way) = ways.first() {
                let record = line.records[way % WAYS];
                let found = self.records.get(record as usize);
                if found.is_some_and(|found| found.key() == &packet.key)
                    && watch.is_same(record, packet)
                {
                    return Search::Found(Place { line: at, way }, record);
                }
                ways = ways.rest();
            }
            if let Some(way) = line.find(0).first() {
                return Search::Free(Place { line: at, way }, away as u16);
            }
        }
        Search::Crowded
    }

    fn begin<W: Watch>(&mut self, record: u32, packet: &Observed, watch: &mut W) {
        let other_began = !self.uniflow && (packet.is_answer || packet.is_of_server());
        let initiator = if other_began {
            packet.side.other()
        } else {
            packet.side
        };
        let known = packet.is_answer && !self.uniflow;
        let new = Record::new(packet.key, initiator, known, self.uniflow);
        match self.records.get_mut(record as usize) {
            Some(place) => *place = new,
            // Within the capacity reserved at the start: no allocation.
            None => self.records.push(new),
        }
        watch.began(record, packet);
        self.stats.flows += 1;
        self.stats.live += 1;
    }

    /// The number of a record for a flow that begins at once.
    fn take_record(&mut self) -> Option<u32> {
        if self.free != NONE {
            let record = self.free;
            self.free = self.records[record as usize].seen();
            return Some(record);
        }
        // The one behind those that were ever used is written when the flow begins.
        (self.records.len() < self.record_count_max).then_some(self.records.len() as u32)
    }

    /// Hands a flow to the sink. Its record and place are the caller's.
    fn tell<W: Watch>(
        &mut self,
        index: u32,
        reason: EndReason,
        watch: &mut W,
        sink: &mut dyn Sink,
    ) {
        let record = &self.records[index as usize];
        self.stats.live -= 1;
        self.stats.packets_ended += record.packets();
        self.stats.ended[reason as usize] += 1;
        watch.ended(index, record, reason, sink);
    }

    /// Ends a flow and frees its record and place.
    fn end<W: Watch>(
        &mut self,
        place: Place,
        reason: EndReason,
        watch: &mut W,
        sink: &mut dyn Sink,
    ) {
        let record = self.lines[place.line].records[place.way];
        self.tell(record, reason, watch, sink);
        self.records[record as usize].free(self.free);
        self.free = record;
        self.remove(place);
    }

    /// The flow nearest to its timeout in the first `reach` lines from home, or, if they are empty,
    /// in the next line that is not. None only in an empty table, which nobody asks.
    fn victim(&self, hash: u64, reach: usize) -> Option<Place> {
        let now = expire::deadline_now(self.clock_ns);
        let home = self.home(hash);
        let mut best: Option<(i16, Place)> = None;
        for away in 0..self.lines.len() {
            if away >= reach && best.is_some() {
                break;
            }
            let at = self.behind(home, away);
            if let Some((until, way)) = self.lines[at].nearest(now)
                && best.is_none_or(|(least, _)| until < least)
            {
                best = Some((until, Place { line: at, way }));
            }
        }
        best.map(|(_, place)| place)
    }

    /// Why a flow that gives way ends: it may be past its timeout anyhow.
    fn reason_to_go(&self, place: Place) -> EndReason {
        let record = &self.records[self.lines[place.line].records[place.way] as usize];
        let (left_ns, reason) = self.timeouts.left(record);
        if expire::is_over(self.clock_ns, record.seen(), left_ns) {
            reason
        } else {
            EndReason::Resources
        }
    }

    fn evict<W: Watch>(&mut self, place: Place, watch: &mut W, sink: &mut dyn Sink) {
        let reason = self.reason_to_go(place);
        self.end(place, reason, watch, sink);
    }

    /// Frees a way. Flows that were moved on because this line was full come back, so that a search
    /// may stop at the first line with a free way.
    fn remove(&mut self, place: Place) {
        let mut hole = place;
        loop {
            let was_full = self.lines[hole.line].is_full();
            self.lines[hole.line].tags[hole.way] = 0;
            self.lines[hole.line].records[hole.way] = NONE;
            if !was_full {
                return;
            }
            let Some((from, by)) = self.moved_past(hole.line) else {
                return;
            };
            let source = self.lines[from.line];
            let line = &mut self.lines[hole.line];
            line.tags[hole.way] = source.tags[from.way] - (by << AWAY_SHIFT);
            line.deadlines[hole.way] = source.deadlines[from.way];
            line.records[hole.way] = source.records[from.way];
            hole = from;
        }
    }

    /// A flow behind this line that would live in it if it could, and how far behind.
    fn moved_past(&self, line: usize) -> Option<(Place, u16)> {
        for by in 1..REACH as u16 {
            let at = self.behind(line, usize::from(by));
            let line = &self.lines[at];
            if let Some(way) = (0..WAYS).find(|&way| line.tags[way] >> AWAY_SHIFT >= by) {
                return Some((Place { line: at, way }, by));
            }
            if line.is_full() {
                continue;
            }
            break;
        }
        None
    }

    /// Tells the time when no packets come, and ends flows that are over. Looks at the whole index
    /// if it is long enough since the last time, so call it some ten times a second at most.
    pub fn tick(&mut self, clock_ns: u64, sink: &mut dyn Sink) {
        self.tick_with(clock_ns, &mut Alone::<true>, sink);
    }

    /// The same, watched.
    pub(crate) fn tick_with<W: Watch>(
        &mut self,
        clock_ns: u64,
        watch: &mut W,
        sink: &mut dyn Sink,
    ) {
        if self.is_stale {
            self.empty_index();
        }
        if self.clock_ns != 0 && clock_ns > self.clock_ns {
            self.owe(clock_ns - self.clock_ns);
        }
        self.clock_ns = self.clock_ns.max(clock_ns);
        self.walk(self.lines.len(), watch, sink);
    }

    fn owe(&mut self, passed_ns: u64) {
        self.owed_ns = self.owed_ns.saturating_add(passed_ns).min(ROUND_NS);
    }

    /// Looks for ended flows in as many lines as the time that passed asks for, at most
    /// `line_count_max`.
    fn walk<W: Watch>(&mut self, line_count_max: usize, watch: &mut W, sink: &mut dyn Sink) {
        let line_count = self.lines.len() as u64;
        let owed = (self.owed_ns * line_count) >> ROUND_SHIFT;
        let count = owed.min(line_count_max as u64);
        if count == 0 {
            return;
        }
        self.owed_ns = self
            .owed_ns
            .saturating_sub((count << ROUND_SHIFT).div_ceil(line_count));
        let now = expire::deadline_now(self.clock_ns);
        for _ in 0..count {
            let at = self.hand;
            self.hand = self.behind(at, 1);
            if self.lines[at].has_passed(now) {
                self.end_passed(at, watch, sink);
            }
        }
        // As many will be looked at next time.
        if let Some(prefetch) = self.prefetch {
            let start = self.lines.as_ptr().addr() + self.hand * size_of::<Line>();
            let next: [usize; WALK_AHEAD] =
                std::array::from_fn(|at| start + at * size_of::<Line>());
            prefetch(&next[..WALK_AHEAD.min(count as usize)]);
        }
    }

    #[inline(never)]
    fn end_passed<W: Watch>(&mut self, at: usize, watch: &mut W, sink: &mut dyn Sink) {
        let now = expire::deadline_now(self.clock_ns);
        let mut way = 0;
        while way < WAYS {
            let line = &self.lines[at];
            let record = line.records[way];
            if line.tags[way] == 0 || expire::until(line.deadlines[way], now) >= 0 {
                way += 1;
                continue;
            }
            let (left_ns, reason) = self.timeouts.left(&self.records[record as usize]);
            if expire::is_over(self.clock_ns, self.records[record as usize].seen(), left_ns) {
                // Another flow may come back into this way: look again.
                self.end(Place { line: at, way }, reason, watch, sink);
            } else {
                // Only the wrap of the deadline can say so.
                self.lines[at].deadlines[way] = expire::deadline(self.clock_ns, left_ns);
                way += 1;
            }
        }
    }

    /// After the end of input: most tables are not used on, and theirs stays as it is.
    #[cold]
    fn empty_index(&mut self) {
        self.lines.fill(Line::EMPTY);
        self.is_stale = false;
    }

    /// The end of input: every flow ends, those past their timeout by it, the others forced. The
    /// table is then empty and may be used on.
    pub fn finish(&mut self, sink: &mut dyn Sink) {
        self.finish_with(&mut Alone::<true>, sink);
    }

    /// The same, watched.
    pub(crate) fn finish_with<W: Watch>(&mut self, watch: &mut W, sink: &mut dyn Sink) {
        for index in 0..self.records.len() {
            let record = &self.records[index];
            if let Some(prefetch) = self.prefetch {
                let ahead = std::ptr::from_ref(record).addr() + FINISH_AHEAD;
                prefetch(&[ahead, ahead + 64, ahead + 128]);
            }
            if !record.is_live() {
                continue;
            }
            let (left_ns, reason) = self.timeouts.left(record);
            let over = expire::is_over(self.clock_ns, record.seen(), left_ns);
            let reason = if over { reason } else { EndReason::Forced };
            self.tell(index as u32, reason, watch, sink);
        }
        self.records.clear();
        self.free = NONE;
        self.is_stale = true;
        self.owed_ns = 0;
    }
}

impl Line {
    /// How near each way is to its timeout; free ones are as far as can be.
    #[inline(always)]
    fn untils(&self, now: u16) -> [i16; WAYS] {
        // In steps that become one comparison of eight each.
        let mut untils = [i16::MAX; WAYS];
        for ((until, deadline), tag) in untils.iter_mut().zip(&self.deadlines).zip(&self.tags) {
            let way_until = expire::until(*deadline, now);
            *until = if *tag == 0 { i16::MAX } else { way_until };
        }
        untils
    }

    /// Whether any way in use has passed its deadline.
    #[inline(always)]
    fn has_passed(&self, now: u16) -> bool {
        let mut any = 0_i16;
        for (deadline, tag) in self.deadlines.iter().zip(&self.tags) {
            let in_use = if *tag == 0 { 0 } else { -1 };
            any |= expire::until(*deadline, now) & in_use;
        }
        any < 0
    }

    /// The least of them.
    #[inline(always)]
    fn least_until(&self, now: u16) -> i16 {
        let untils = self.untils(now);
        untils
            .iter()
            .fold(i16::MAX, |least, until| least.min(*until))
    }

    /// The way whose flow is nearest to its timeout, and how near; none if no way is in use.
    #[inline]
    fn nearest(&self, now: u16) -> Option<(i16, usize)> {
        let untils = self.untils(now);
        let least = self.least_until(now);
        let way = untils.iter().position(|until| *until == least)?;
        (least != i16::MAX).then_some((least, way))
    }
}

/// The tag of a hash: the lower 14 bits, never 0.
#[inline(always)]
fn tag_of(hash: u64) -> u16 {
    let tag = hash as u16 & TAG_MASK;
    tag | u16::from(tag == 0)
}

/// Whether these are the flags of a packet that opens a connection.
#[inline]
fn is_opening(tcp_flags: u16) -> bool {
    tcp_flags & (record::SYN | record::ACK) == record::SYN
}

#[cfg(test)]
mod tests;
