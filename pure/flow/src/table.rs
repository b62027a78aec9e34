//! The table: an index of cache lines over a slab of records, updated in batches.
//!
//! *Layout.* A line of 64 bytes has eight ways, each a 16-bit tag, a 16-bit deadline and the number
//! of a record. There is a line for every four records, so half of the ways are free when the table
//! is full. A flow is in its home line (from the upper bits of its hash) or, if that is full, in
//! one of the three after it; the tag includes the distance in lines. Look-ups continue to the next
//! line only while a line is full. A record is 176 bytes, so a flow takes 192, and a packet of a
//! known flow accesses the line, the head of the record and one of its sides.
//!
//! *Batches.* Passes over up to [`BATCH_MAX`] packets each do one thing for all: load the home
//! lines, match the tags, update, with the records loaded some packets ahead. The loads of one pass
//! do not depend on each other, so the processor overlaps them. If the caller provides a prefetch
//! ([`TableConfig::prefetch`]), they do not even occupy the processor's window.
//!
//! *Full table.* If no record is free, or the four lines are full (some seven flows in a million in
//! a full table, or an attacker who has the secret), the flow closest to its timeout in the home
//! line and the next one (or in the four) ends with [`EndReason::Resources`]. Closed connections
//! and short timeouts are evicted first.
//!
//! *Expiry* walks the index, never the records, a few lines after every [`BATCH_MAX`] packets: once
//! around in about two seconds. Packets are counted across calls, so the same packets give the same
//! records however they are batched, also in a full table and after a clock was set back.

use crate::expire::{self, EndReason, Limits, Timeouts};

use crate::record::{self, Amount, Record};

mod config;
mod line;
mod load;
mod observed;
mod room;
mod slow;
mod walk;
mod watch;

pub use config::{OutOfMemory, Profile, TableConfig, TableStats};
use line::{Line, NONE, WAYS};
pub use observed::{Headers, Observed};
use walk::{JUMP_NS, WALK_COUNT};
pub use watch::RecordSink;
pub(crate) use watch::{Alone, Watch};

/// Maximum number of packets that one pass handles. More would not hide more latency.
pub const BATCH_MAX: usize = 32;

/// A record is loaded this many packets ahead: the processing time of that many packets is about
/// the memory latency.
const AHEAD: usize = 16;

/// Number of lines that a flow may be in.
const REACH: usize = 4;
/// Mask of the tag itself; the two bits above it are the distance in lines from the home line.
const TAG_MASK: u16 = 0x3fff;
const AWAY_SHIFT: u32 = 14;

/// A way of a line.
#[derive(Clone, Copy, Debug)]
struct Place {
    line: usize,
    way: usize,
}

/// Result of a packet's first passes.
#[derive(Clone, Copy)]
struct Guess {
    line: u32,
    record: u32,
    way: u32,
}

/// Flow table of one thread.
pub struct Table {
    lines: Vec<Line>,
    records: Vec<Record>,
    record_count_max: usize,
    /// First record of the free list.
    free: u32,
    timeouts: Timeouts,
    limits: Limits,
    prefetch: Option<fn(&[usize])>,
    profile: Profile,
    uniflow: bool,
    clock_ns: u64,
    /// Next line that expiry checks.
    hand: usize,
    /// Number of packets until expiry checks the next lines.
    until_walk: usize,
    /// The clock up to which expiry has been computed.
    walked_ns: u64,
    /// Lag of expiry, in nanoseconds of a round.
    owed_ns: u64,
    /// Number of packets far before the clock, since it had this value.
    far_behind_count: u64,
    far_behind_ns: u64,
    /// Whether the index is left over from the end of input, and must be cleared before use.
    is_stale: bool,
    stats: TableStats,
}

impl Table {
    /// Creates a table and reserves all its memory.
    ///
    /// # Errors
    /// If there is not enough memory.
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
            until_walk: BATCH_MAX,
            walked_ns: 0,
            owed_ns: 0,
            far_behind_count: 0,
            far_behind_ns: 0,
            is_stale: false,
            stats: TableStats::default(),
        })
    }

    /// Number of lines: half of the ways stay free. At least [`REACH`].
    fn line_count(record_count_max: usize) -> usize {
        record_count_max.div_ceil(WAYS / 2).max(REACH)
    }

    /// Memory of a table for this many flows in bytes.
    pub fn memory_len_for(flow_count_max: u32) -> usize {
        let records = (flow_count_max as usize).clamp(1, 1 << 28);
        records * size_of::<Record>() + Self::line_count(records) * size_of::<Line>()
    }

    /// Memory of this table in bytes, which is constant.
    pub fn memory_len(&self) -> usize {
        self.record_count_max * size_of::<Record>() + self.lines.len() * size_of::<Line>()
    }

    /// Maximum number of flows.
    pub fn capacity(&self) -> usize {
        self.record_count_max
    }

    /// Number of active flows.
    #[inline]
    pub fn len(&self) -> usize {
        self.stats.live as usize
    }

    /// Whether there are no active flows.
    pub fn is_empty(&self) -> bool {
        self.stats.live == 0
    }

    /// The counters so far.
    pub fn stats(&self) -> &TableStats {
        &self.stats
    }

    /// The latest time passed to it.
    #[inline]
    pub fn clock_ns(&self) -> u64 {
        self.clock_ns
    }

    /// Active flows in places `from` to `to` of the slab (below [`Table::place_count`]), in no
    /// particular order. For views that read all flows piece by piece.
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

    /// The active flow in a place.
    pub(crate) fn at(&self, place: u32) -> Option<&Record> {
        let record = self.records.get(place as usize)?;
        record.is_live().then_some(record)
    }

    /// Number of places in the slab that were ever used.
    pub fn place_count(&self) -> usize {
        self.records.len()
    }

    /// Counts packets in order. Any number; they are processed [`BATCH_MAX`] at a time.
    pub fn observe(&mut self, packets: &[Observed], sink: &mut dyn RecordSink) {
        match self.profile {
            Profile::Counters => self.observe_with(packets, &mut Alone::<false>, sink),
            Profile::Standard => self.observe_with(packets, &mut Alone::<true>, sink),
        }
    }

    /// The same, with a [`Watch`].
    pub(crate) fn observe_with<W: Watch>(
        &mut self,
        packets: &[Observed],
        watch: &mut W,
        sink: &mut dyn RecordSink,
    ) {
        for batch in packets.chunks(BATCH_MAX) {
            self.load_homes(batch);
            self.batch(batch, watch, sink);
        }
    }

    /// The same for at most [`BATCH_MAX`] packets, whose home lines the caller had
    /// [loaded](Table::load_homes).
    pub(crate) fn observe_loaded<W: Watch>(
        &mut self,
        packets: &[Observed],
        watch: &mut W,
        sink: &mut dyn RecordSink,
    ) {
        let (batch, rest) = packets.split_at(packets.len().min(BATCH_MAX));
        self.batch(batch, watch, sink);
        self.observe_with(rest, watch, sink);
    }

    fn batch<W: Watch>(&mut self, packets: &[Observed], watch: &mut W, sink: &mut dyn RecordSink) {
        if self.is_stale {
            self.empty_index();
        }
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
                // It will evict a flow: prefetch that record.
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
        // Update in order, while the records of later packets are loaded.
        for (packet, guess) in packets.iter().zip(&guesses).take(AHEAD) {
            self.load_record(packet, *guess);
        }
        let mut from = 0;
        while from < packets.len() {
            let to = packets.len().min(from + self.until_walk);
            for (at, (packet, guess)) in
                packets.iter().zip(&guesses).enumerate().take(to).skip(from)
            {
                let ahead = at + AHEAD;
                if let (Some(packet), Some(guess)) = (packets.get(ahead), guesses.get(ahead)) {
                    self.load_record(packet, *guess);
                }
                self.one(packet, *guess, watch, sink);
            }
            self.until_walk -= to - from;
            if self.until_walk == 0 {
                self.until_walk = BATCH_MAX;
                self.walk(WALK_COUNT, watch, sink);
                watch.walked(self.clock_ns);
            }
            from = to;
        }
        self.stats.packets += packets.len() as u64;
    }

    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        // The upper half of the hash as a fraction of the lines: always below their number, which
        // is less than 2^27.
        (((hash >> 32) * self.lines.len() as u64) >> 32) as usize
    }

    /// The line `by` after this one.
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
        sink: &mut dyn RecordSink,
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
            // Two steps before its deadline a flow cannot have ended. Anything unusual takes the
            // slow path.
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
                // The time of a packet that is not late is the flow's end.
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

    /// Counts a packet that needs more than the common path: one without a time, or one that was in
    /// fragments.
    #[cold]
    pub(crate) fn observe_alone<W: Watch>(
        &mut self,
        packet: &Observed,
        watch: &mut W,
        sink: &mut dyn RecordSink,
    ) {
        if self.is_stale {
            self.empty_index();
        }
        self.stats.packets += 1;
        self.advance(packet.time_ns);
        self.slow(packet, None, watch, sink);
    }

    /// Adds packets that were held back (fragments whose first arrived late or never), as if they
    /// arrived now.
    pub(crate) fn observe_held<W: Watch>(
        &mut self,
        (like, amount): (&Observed, &Amount),
        watch: &mut W,
        sink: &mut dyn RecordSink,
    ) {
        if self.is_stale {
            self.empty_index();
        }
        self.stats.packets += u64::from(amount.packets);
        self.advance(amount.last_ns);
        self.slow(like, Some(amount), watch, sink);
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
            // Within the capacity reserved at startup: no allocation.
            None => self.records.push(new),
        }
        watch.began(record, packet, self.clock_ns);
        self.stats.flows += 1;
        self.stats.live += 1;
    }

    /// The number of a record for a flow that begins immediately.
    fn take_record(&mut self) -> Option<u32> {
        if self.free != NONE {
            let record = self.free;
            self.free = self.records[record as usize].seen();
            return Some(record);
        }
        // The record after the last used one is written when the flow begins.
        (self.records.len() < self.record_count_max).then_some(self.records.len() as u32)
    }

    /// Passes a flow to the sink. The caller handles its record and place.
    fn report<W: Watch>(
        &mut self,
        index: u32,
        reason: EndReason,
        watch: &mut W,
        sink: &mut dyn RecordSink,
    ) {
        let mut record = &self.records[index as usize];
        let without_times;
        if record.is_untimed() {
            without_times = record.without_times();
            record = &without_times;
        }
        self.stats.live -= 1;
        self.stats.packets_ended += record.packets();
        self.stats.ended[reason as usize] += 1;
        watch.ended(index, (record, reason), self.clock_ns, sink);
    }

    /// Ends a flow and frees its record and place.
    fn end<W: Watch>(
        &mut self,
        place: Place,
        reason: EndReason,
        watch: &mut W,
        sink: &mut dyn RecordSink,
    ) {
        let record = self.lines[place.line].records[place.way];
        self.report(record, reason, watch, sink);
        self.records[record as usize].free(self.free);
        self.free = record;
        self.remove(place);
    }
}

/// The tag of a hash: the low 14 bits, never 0.
#[inline(always)]
fn tag_of(hash: u64) -> u16 {
    let tag = hash as u16 & TAG_MASK;
    tag | u16::from(tag == 0)
}

#[cfg(test)]
mod tests;
