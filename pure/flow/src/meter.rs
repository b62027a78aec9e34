//! Converts packets to observations (dissection, key, fragments), and passes them to the table in
//! batches.

use wire::tcp::flag;
use wire::{Dissection, Fragment, LayerKind, LinkType, Reason, dissect};

use crate::assembly::SLOT_LEN;
use crate::extra::{ExtraConfig, Extras, Inspect, Watching};
use crate::fragment::Fragments;
use crate::hash::HashKey;
use crate::key::{self, FlowKey, KeyExtra};
use crate::record::{REASSEMBLED, Record, UNTIMED};
use crate::sampling::{Sampler, Sampling};
use crate::shortcut;
use crate::table::{
    Alone, BATCH_MAX, Headers, Observed, OutOfMemory, Profile, RecordSink, Table, Watch,
};

mod config;
mod levels;
mod stats;
mod tunnelled;

pub use config::{Input, KeyParts, Level, MeterConfig, Octets};
use levels::{LEVEL_COUNT, Named, announced_mss};
pub use stats::MeterStats;
use tunnelled::{Counted, NESTED_MAX, Place, Source};

/// Maximum packet time: records without packets have the number after it.
pub const TIME_MAX_NS: u64 = u64::MAX - 1;

/// In [`Input::time_ns`]: the packet has no time.
pub const NO_TIME_NS: u64 = u64::MAX;

/// Runs code with the extra data kept alongside the table, of which there are three variants, each
/// compiled separately.
macro_rules! watched {
    ($meter:ident, $watch:ident => $body:expr) => {
        if let Some(mut extras) = $meter.extras.take() {
            let $watch = &mut Watching {
                extras: &mut extras,
                inputs: &[],
            };
            $body;
            $meter.extras = Some(extras);
        } else if $meter.profile == Profile::Counters {
            let $watch = &mut Alone::<false>;
            $body
        } else {
            let $watch = &mut Alone::<true>;
            $body
        }
    };
}

/// Maximum number of packets waiting for the table: two batches, one being prepared while the other
/// is processed.
const WAITING_MAX: usize = 2 * BATCH_MAX;

/// Their slots, and one more, so that no index can be out of bounds.
type Waiting = [Observed; WAITING_MAX + 1];

/// The metering process of one thread.
pub struct Meter {
    level: Level,
    uniflow: bool,
    is_layer2: bool,
    /// Whether all options are supported by the shortcut.
    has_shortcut: bool,
    key_vlan: bool,
    key_interface: bool,
    key_extra: Option<KeyParts>,
    /// Whether all packets are metered.
    is_all: bool,
    sampler: Sampler,
    hash_key: HashKey,
    memory_len: usize,
    profile: Profile,
    table: Table,
    fragments: Fragments,
    /// The first `batch_len` slots are in use.
    batch: Box<Waiting>,
    batch_len: usize,
    /// Marks of the current packet.
    marks: u8,
    extras: Option<Box<Extras>>,
    levels: [Dissection; LEVEL_COUNT],
    /// Space for datagrams put together.
    #[expect(
        clippy::vec_box,
        reason = "a slot is taken out and put back without a copy"
    )]
    scratch: Vec<Box<[u8; SLOT_LEN]>>,
    packets: u64,
    unsampled: u64,
    twice: u64,
    refused: [u64; Reason::COUNT],
    without_ports: [u64; Reason::COUNT],
}

impl Meter {
    /// Creates a meter and reserves all its memory.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn new(config: &MeterConfig) -> Result<Meter, OutOfMemory> {
        let table = Table::new(&config.table)?;
        let with_key = config.key_extra.any();
        let reassembles = config.level != Level::Outer;
        let extras = if with_key || config.extra != ExtraConfig::default() {
            let extras = Extras::new(&config.extra, with_key, table.capacity(), &config.hash_key)?;
            Some(Box::new(extras))
        } else {
            None
        };
        Ok(Meter {
            level: config.level,
            uniflow: config.table.uniflow,
            is_layer2: config.octets == Octets::Packet,
            has_shortcut: config.sampling == Sampling::All
                && !(config.key_vlan || config.key_interface || with_key),
            key_vlan: config.key_vlan,
            key_interface: config.key_interface,
            key_extra: with_key.then_some(config.key_extra),
            is_all: config.sampling == Sampling::All,
            sampler: Sampler::new(config.sampling, &config.hash_key),
            hash_key: config.hash_key.clone(),
            memory_len: config.memory_len(),
            profile: config.table.profile,
            table,
            fragments: Fragments::new(config.datagram_count_max, reassembles),
            batch: Box::new([Observed::NONE; WAITING_MAX + 1]),
            batch_len: 0,
            marks: 0,
            extras,
            levels: [Dissection::EMPTY; LEVEL_COUNT],
            scratch: match reassembles {
                true => vec![Box::new([0; SLOT_LEN]); NESTED_MAX],
                false => Vec::new(),
            },
            packets: 0,
            unsampled: 0,
            twice: 0,
            refused: [0; Reason::COUNT],
            without_ports: [0; Reason::COUNT],
        })
    }

    /// Maximum memory it uses in bytes, without that of an inspector.
    pub fn memory_len(&self) -> usize {
        self.memory_len
    }

    /// Whether extra fields are enabled, so that packets should be passed with
    /// [`Meter::observe_all`].
    pub fn has_extras(&self) -> bool {
        self.extras.is_some()
    }

    /// Disables the shortcut, which must not change the results (see the conservation law).
    #[doc(hidden)]
    pub fn without_shortcut(&mut self) {
        self.has_shortcut = false;
    }

    /// Changes the sampling from the next packet on; flows in the table continue. Call it only when
    /// no packets are waiting for [`Meter::flush`].
    pub fn set_sampling(&mut self, sampling: Sampling) {
        self.is_all = sampling == Sampling::All;
        let parts = self.key_vlan || self.key_interface || self.key_extra.is_some();
        self.has_shortcut = self.is_all && !parts;
        self.sampler = Sampler::new(sampling, &self.hash_key);
    }

    /// Sets the inspector for the first [`ExtraConfig::inspect_count`] packets of flows. Without
    /// one nothing is inspected.
    pub fn set_inspector(&mut self, inspector: Box<dyn Inspect>) {
        if let Some(extras) = &mut self.extras {
            extras.set_inspector(inspector);
        }
    }

    /// Writes the inspector's result for an active flow, in its own format, into `found`, replacing
    /// its content. The place is one returned by [`TopScan::take`](crate::top::TopScan::take); the
    /// result is empty if another flow occupies it by now.
    pub fn application(&self, place: u32, record: &Record, found: &mut Vec<u8>) {
        found.clear();
        let is_same = |other: &Record| other.key() == record.key();
        if let Some(extras) = &self.extras
            && self.table.at(place).is_some_and(is_same)
        {
            extras.known(place, found);
        }
    }

    /// The meter's table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The counters so far.
    pub fn stats(&self) -> MeterStats {
        MeterStats {
            packets: self.packets,
            refused: self.refused,
            without_ports: self.without_ports,
            unsampled: self.unsampled,
            twice: self.twice,
            waiting: self.batch_len as u64,
            fragments: *self.fragments.stats(),
            table: *self.table.stats(),
        }
    }

    /// Meters a packet. It may wait for others until its batch is full: call [`Meter::flush`] after
    /// the last one available. With extra fields, [`Meter::observe_all`] is faster.
    #[inline]
    pub fn observe(&mut self, input: &Input<'_>, sink: &mut dyn RecordSink) {
        if self.extras.is_some() {
            self.observe_all(std::slice::from_ref(input), sink);
        } else if self.profile == Profile::Counters {
            self.take(input, 0, &mut Alone::<false>, sink);
        } else {
            self.take(input, 0, &mut Alone::<true>, sink);
        }
    }

    /// Meters any number of packets, and leaves none waiting.
    pub fn observe_all(&mut self, inputs: &[Input<'_>], sink: &mut dyn RecordSink) {
        let Some(mut extras) = self.extras.take() else {
            for input in inputs {
                self.observe(input, sink);
            }
            return self.flush(sink);
        };
        for chunk in inputs.chunks(BATCH_MAX) {
            let mut watch = Watching {
                extras: &mut extras,
                inputs: chunk,
            };
            for (at, input) in chunk.iter().enumerate() {
                self.take(input, at as u8, &mut watch, sink);
            }
            self.empty_batch(&mut watch, sink);
        }
        self.extras = Some(extras);
    }

    /// Of the packets last passed together, at most [`BATCH_MAX`], a bit set of those that are at
    /// the start of their records, or whose application is selected ([`ExtraConfig::shunt`]).
    /// Packets in no flow are not included.
    pub fn chosen(&mut self) -> u32 {
        self.extras
            .as_mut()
            .map_or(0, |extras| extras.take_chosen())
    }

    #[inline(always)]
    fn take<W: Watch>(
        &mut self,
        input: &Input<'_>,
        input_index: u8,
        watch: &mut W,
        sink: &mut dyn RecordSink,
    ) {
        if input.time_ns == NO_TIME_NS {
            return self.take_untimed(input, input_index, watch, sink);
        }
        if self.fragments.is_due(input.time_ns) {
            self.release_fragments(input.time_ns, watch, sink);
        }
        let place = self.batch_len.min(WAITING_MAX);
        let observed = &mut self.batch[place];
        if self.has_shortcut
            && input.link == LinkType::ETHERNET
            && shortcut::read(input.bytes, input.wire_len, self.is_layer2, observed)
        {
            self.packets += 1;
            observed.time_ns = input.time_ns;
            if W::HAS_EXTRAS {
                // Rarely used parts of the key disable the shortcut.
                observed.input_index = input_index;
            }
            self.batch_len = place + 1;
            if self.batch_len.is_multiple_of(BATCH_MAX) {
                self.batch_filled(watch, sink);
            }
            return;
        }
        self.take_dissected(input, input_index, watch, sink);
    }

    /// Handles a packet without a time: it gets that of the latest packet, for the timeouts.
    #[cold]
    fn take_untimed<W: Watch>(
        &mut self,
        input: &Input<'_>,
        input_index: u8,
        watch: &mut W,
        sink: &mut dyn RecordSink,
    ) {
        self.empty_batch(watch, sink);
        self.marks = UNTIMED;
        let timed = Input {
            time_ns: self.table.clock_ns(),
            ..*input
        };
        self.take_dissected(&timed, input_index, watch, sink);
        self.marks = 0;
    }

    /// Handles a packet that needs full dissection, or whose meter's options require it.
    #[inline(never)]
    fn take_dissected<W: Watch>(
        &mut self,
        input: &Input<'_>,
        input_index: u8,
        watch: &mut W,
        sink: &mut dyn RecordSink,
    ) {
        self.packets += 1;
        if !self.is_all && !self.sampler.takes_packet(input.time_ns) {
            self.unsampled += 1;
            return;
        }
        let first = &mut self.levels[0];
        dissect(input.link, input.bytes, input.wire_len, first);
        let descend =
            first.ip_version == 0 || (self.level != Level::Outer && first.inner != LayerKind::None);
        if descend {
            self.take_inner((input, input_index), watch, sink);
        } else {
            let source = Source::of(input, input_index, first.wire_len);
            let place = Place {
                at: 0,
                tunnel_id: None,
                is_outermost: true,
            };
            self.count(&source, place, watch, sink);
        }
    }

    /// Handles a packet whose first level does not define its flow.
    #[inline(never)]
    fn take_inner<W: Watch>(
        &mut self,
        source: (&Input<'_>, u8),
        watch: &mut W,
        sink: &mut dyn RecordSink,
    ) {
        let (input, input_index) = source;
        let found = (self.levels[0].ip_version != 0).then_some(Named::first());
        let named = match self.descend(input.bytes, 0, found) {
            Ok(named) => named,
            Err(reason) => {
                self.refused[reason as usize] += 1;
                return;
            }
        };
        let source = Source::of(input, input_index, self.levels[0].wire_len);
        let is_single = named.inner == named.outer;
        if !is_single && self.level == Level::Both {
            self.twice += 1;
            let place = Place {
                at: named.outer,
                tunnel_id: None,
                is_outermost: true,
            };
            self.count(&source, place, watch, sink);
        }
        let place = Place {
            at: named.inner,
            tunnel_id: named.tunnel_id,
            is_outermost: is_single,
        };
        self.count(&source, place, watch, sink);
    }

    /// Counts a packet in the flow of the level at an index in `levels`.
    fn count<W: Watch>(
        &mut self,
        source: &Source<'_>,
        place: Place,
        watch: &mut W,
        sink: &mut dyn RecordSink,
    ) {
        let (input, level) = (source.input, &self.levels[place.at]);
        let mut ports = key::ports(level);
        ports.is_answer &= !self.uniflow;
        let (mut key, side) = FlowKey::new(
            &level.src,
            &level.dst,
            ports,
            level.ip_protocol,
            level.ip_version,
            self.uniflow,
        );
        key.set_unread(level);
        if self.key_vlan || self.key_interface {
            self.extend_key(&mut key, input);
        }
        let mut hash = self.hash_key.hash(&key.words());
        let mut key_extra = KeyExtra::NONE;
        // Without extra data there is no slot for it.
        if W::HAS_EXTRAS
            && let Some(parts) = self.key_extra
        {
            key_extra = self.extra_key(parts, (place.at, place.tunnel_id), input, side);
            let [a, b, c] = key_extra.words();
            hash = self.hash_key.hash(&[a, b, c, hash, 0, 0]);
        }
        let is_selected = self.is_all || self.takes_flow(&key);
        let is_whole = level.fragment == Fragment::Whole;
        if !is_selected && (is_whole || self.level == Level::Outer) {
            self.unsampled += 1;
            return;
        }
        let tcp_mss = if W::DETAIL && level.tcp_flags & flag::SYN != 0 {
            announced_mss(level, source.bytes)
        } else {
            0
        };
        if level.reason != Reason::Complete && !(level.has_ports() || level.icmp_type_read) {
            self.without_ports[level.reason as usize] += 1;
        }
        let observed = Observed {
            key,
            side,
            is_answer: ports.is_answer,
            marks: self.marks,
            input_index: source.input_index,
            hash,
            time_ns: input.time_ns,
            level: Headers::of(level),
            bytes: source.counted_len(level, self.is_layer2),
            tcp_mss,
            key_extra,
        };
        if is_whole {
            return self.push(&observed, watch, sink);
        }
        let counted = Counted {
            observed,
            source,
            place,
            is_selected,
        };
        self.fragment(counted, watch, sink);
    }

    fn push<W: Watch>(&mut self, observed: &Observed, watch: &mut W, sink: &mut dyn RecordSink) {
        if observed.marks & (UNTIMED | REASSEMBLED) != 0 {
            // The batch is empty.
            return self.table.observe_alone(observed, watch, sink);
        }
        let place = self.batch_len.min(WAITING_MAX);
        self.batch[place] = *observed;
        self.batch_len = place + 1;
        if self.batch_len.is_multiple_of(BATCH_MAX) {
            self.batch_filled(watch, sink);
        }
    }

    /// Handles a full batch.
    #[inline(never)]
    fn batch_filled<W: Watch>(&mut self, watch: &mut W, sink: &mut dyn RecordSink) {
        match self.batch_len {
            // The table's loads for it complete while the second one is read.
            BATCH_MAX => self.turn(0),
            _ => self.empty_batch(watch, sink),
        }
    }

    /// Prepares the batch that begins at `from`.
    fn turn(&mut self, from: usize) {
        let waiting = self.batch.get_mut(from..self.batch_len).unwrap_or_default();
        shortcut::turn(waiting, &self.hash_key, self.uniflow, &self.table);
    }

    /// Passes the waiting packets to the table.
    #[inline(never)]
    fn empty_batch<W: Watch>(&mut self, watch: &mut W, sink: &mut dyn RecordSink) {
        // The first batch was prepared when it was full.
        self.turn(if self.batch_len < BATCH_MAX {
            0
        } else {
            BATCH_MAX
        });
        let waiting = self.batch.get(..self.batch_len).unwrap_or_default();
        for batch in waiting.chunks(BATCH_MAX) {
            self.table.observe_loaded(batch, watch, sink);
        }
        self.batch_len = 0;
    }

    /// Passes the waiting packets to the table.
    pub fn flush(&mut self, sink: &mut dyn RecordSink) {
        watched!(self, watch => self.empty_batch(watch, sink));
    }

    /// Releases fragments that were held too long at this time.
    #[cold]
    fn release_fragments<W: Watch>(
        &mut self,
        time_ns: u64,
        watch: &mut W,
        sink: &mut dyn RecordSink,
    ) {
        // Earlier packets must be in the table first.
        self.empty_batch(watch, sink);
        let table = &mut self.table;
        self.fragments.release(time_ns, &mut |(like, held)| {
            table.observe_held((&like, &held), watch, sink);
        });
    }

    /// Whether sampling selects packets between these addresses. Ports and protocol are ignored:
    /// later fragments lack them, and must be treated like the first.
    #[inline(never)]
    fn takes_flow(&self, key: &FlowKey) -> bool {
        let [a, b, c, d, ..] = key.words();
        self.sampler
            .takes_flow(self.hash_key.hash(&[a, b, c, d, 0, 0]))
    }

    /// Advances the clock when no packets arrive, at most some ten times per second. Pass a time
    /// before which no further packets can have been captured: the clock less the delay of the
    /// device.
    pub fn tick(&mut self, clock_ns: u64, sink: &mut dyn RecordSink) {
        watched!(self, watch => {
            self.empty_batch(watch, sink);
            self.table.tick_with(clock_ns, watch, sink);
            // A clock that lags behind the packets has no effect.
            if self.fragments.is_due(clock_ns) && clock_ns >= self.table.clock_ns() {
                self.release_fragments(clock_ns, watch, sink);
            }
        });
    }

    /// Handles the end of input: every flow ends. The meter can be used again.
    pub fn finish(&mut self, sink: &mut dyn RecordSink) {
        watched!(self, watch => {
            self.empty_batch(watch, sink);
            let table = &mut self.table;
            self.fragments.finish(&mut |(like, held)| {
                table.observe_held((&like, &held), watch, sink);
            });
            self.table.finish_with(watch, sink);
        });
        if let Some(extras) = &mut self.extras {
            extras.finish();
        }
    }
}

#[cfg(test)]
mod tests;
