//! From packets to observations: dissection, key, fragments; batches to the table.

use wire::tcp::{Tcp, TcpOption, flag};
use wire::{Dissection, LayerKind, LinkType, Reason, dissect, dissect_inner};

use crate::extra::{ExtraConfig, Extras, Inspect, Watching};
use crate::fragment::{Datagram, FragmentStats, Fragments, Later, Piece};
use crate::hash::HashKey;
use crate::key::{self, FlowKey, KeyExtra, Side};
use crate::record::{FRAGMENT, LATER, Record};
use crate::sampling::{Sampler, Sampling};
use crate::shortcut;
use crate::table::{
    Alone, BATCH_MAX, Headers, Observed, OutOfMemory, Profile, Sink, Table, TableConfig,
    TableStats, Watch,
};

/// Which IP header of a packet names its flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// The outermost.
    #[default]
    Outer,
    /// The innermost, inside all tunnels. What an ICMP error quotes is no tunnel.
    Inner,
    /// Both: a packet in a tunnel counts in the flow of the tunnel and in the one inside; a
    /// fragment of one only in the flow of the tunnel.
    Both,
}

/// What is counted as bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Octets {
    /// The IP datagram: header and all behind it, no padding (IPFIX octetDeltaCount).
    #[default]
    Ip,
    /// The whole packet from the link header on (IPFIX layer2OctetDeltaCount).
    Packet,
}

/// Rarer parts of the key. They are kept beside the records and cost 24 bytes a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyParts {
    /// The MAC addresses of an Ethernet header.
    pub mac: bool,
    /// The label on top of the MPLS stack.
    pub mpls: bool,
    /// The number of the tunnel ([`KeyExtra::tunnel_id`]).
    pub tunnel: bool,
    /// Type of service or traffic class, so that the two directions of a flow are apart where
    /// theirs differ.
    pub traffic_class: bool,
}

impl KeyParts {
    /// Whether there is any.
    pub fn any(&self) -> bool {
        self.mac || self.mpls || self.tunnel || self.traffic_class
    }
}

/// How a meter is made.
#[derive(Clone, Debug)]
pub struct MeterConfig {
    /// Size and timeouts.
    pub table: TableConfig,
    /// Which IP header counts.
    pub level: Level,
    /// Which bytes count.
    pub octets: Octets,
    /// Whether the VLAN ids (the outer two) are part of the key.
    pub key_vlan: bool,
    /// Whether the interface of the capture is part of the key.
    pub key_interface: bool,
    /// Which rarer parts the key has.
    pub key_extra: KeyParts,
    /// What is recorded beyond the record.
    pub extra: ExtraConfig,
    /// Which packets are metered.
    pub sampling: Sampling,
    /// Fragmented datagrams remembered at one time.
    pub datagram_count_max: u32,
    /// The secret of the hash.
    pub hash_key: HashKey,
}

impl MeterConfig {
    /// Defaults, with this secret.
    pub fn new(hash_key: HashKey) -> MeterConfig {
        MeterConfig {
            table: TableConfig::default(),
            level: Level::Outer,
            octets: Octets::Ip,
            key_vlan: false,
            key_interface: false,
            key_extra: KeyParts::default(),
            extra: ExtraConfig::default(),
            sampling: Sampling::All,
            datagram_count_max: 4096,
            hash_key,
        }
    }

    /// Bytes that a flow takes: its record, its share of the index, and what was asked for beyond.
    pub fn flow_len(&self) -> usize {
        const INDEX: usize = 16;
        size_of::<crate::Record>() + INDEX + self.extra.flow_len(self.key_extra.any())
    }

    /// Bytes that a meter made like this takes.
    pub fn memory_len(&self) -> usize {
        let flows = self.table.flow_count_max.clamp(1, 1 << 28) as usize;
        Table::memory_len_for(self.table.flow_count_max)
            + flows * self.extra.flow_len(self.key_extra.any())
            + self.extra.fixed_len(flows)
            + Fragments::memory_len_for(self.datagram_count_max)
            + size_of::<Meter>()
            + size_of::<Waiting>()
    }
}

/// A packet as it comes from a port.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// What its first header is.
    pub link: LinkType,
    /// The bytes present.
    pub bytes: &'a [u8],
    /// How many there were on the wire.
    pub wire_len: u32,
    /// When it came, in nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// The id of a VLAN tag that is not in the bytes any more.
    pub vlan: Option<u16>,
    /// Interface of the capture.
    pub interface: u16,
}

/// What a meter has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeterStats {
    /// Packets given.
    pub packets: u64,
    /// Packets without an IP header, by the [`Reason`] why none was read. [`Reason::Complete`]
    /// means that the packet is whole and not IP (ARP, for example).
    pub refused: [u64; Reason::COUNT],
    /// Packets with an IP header whose transport header could not be read; they are in flows, with
    /// ports 0.
    pub without_ports: [u64; Reason::COUNT],
    /// Packets that sampling left out.
    pub unsampled: u64,
    /// Packets that count in two flows, that of a tunnel and that inside it.
    pub twice: u64,
    /// Packets waiting for their batch to fill.
    pub waiting: u64,
    /// Fragments.
    pub fragments: FragmentStats,
    /// The table.
    pub table: TableStats,
}

impl MeterStats {
    /// All packets refused.
    pub fn refused_total(&self) -> u64 {
        self.refused.iter().sum()
    }

    /// Packets in flows that have not ended.
    pub fn packets_live(&self) -> u64 {
        self.table.packets - self.table.packets_ended
    }

    /// What is missing (positive) or counted twice (negative) between the packets given and where
    /// they are: 0 when the account adds up.
    pub fn imbalance(&self) -> i64 {
        let known = self.refused_total()
            + self.unsampled
            + self.waiting
            + self.fragments.held
            + self.table.packets;
        (self.packets + self.twice).wrapping_sub(known) as i64
    }

    /// Adds another meter's counts.
    pub fn add(&mut self, other: &MeterStats) {
        self.packets += other.packets;
        for (sum, count) in self.refused.iter_mut().zip(other.refused) {
            *sum += count;
        }
        for (sum, count) in self.without_ports.iter_mut().zip(other.without_ports) {
            *sum += count;
        }
        self.unsampled += other.unsampled;
        self.twice += other.twice;
        self.waiting += other.waiting;
        self.fragments.add(&other.fragments);
        self.table.add(&other.table);
    }
}

/// Levels of a packet that are kept at one time.
const LEVEL_COUNT: usize = 5;

/// Which of a packet's levels name flows.
#[derive(Clone, Copy)]
struct Named {
    /// The outermost one with an IP header.
    outer: usize,
    /// The innermost one.
    inner: usize,
    /// Number of the tunnel around that, where it is in one.
    tunnel_id: Option<u32>,
}

impl Named {
    /// The packet's first level.
    fn first() -> Named {
        Named {
            outer: 0,
            inner: 0,
            tunnel_id: None,
        }
    }
}

/// Runs something with what goes on beside the table, which is one of three things, with code for
/// each.
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

/// Packets that wait for the table: two batches, of which one is readied while the other is read.
const WAITING_MAX: usize = 2 * BATCH_MAX;

/// Their places, and one more, so that no count can lead out of it.
type Waiting = [Observed; WAITING_MAX + 1];

/// The metering process of one thread.
pub struct Meter {
    level: Level,
    uniflow: bool,
    is_layer2: bool,
    /// Nothing is asked for that the short cut does not know.
    has_shortcut: bool,
    key_vlan: bool,
    key_interface: bool,
    key_extra: Option<KeyParts>,
    /// All packets are metered.
    is_all: bool,
    sampler: Sampler,
    hash_key: HashKey,
    memory_len: usize,
    profile: Profile,
    table: Table,
    fragments: Fragments,
    /// The first `batch_len` wait.
    batch: Box<Waiting>,
    batch_len: usize,
    extras: Option<Box<Extras>>,
    levels: [Dissection; LEVEL_COUNT],
    packets: u64,
    unsampled: u64,
    twice: u64,
    refused: [u64; Reason::COUNT],
    without_ports: [u64; Reason::COUNT],
}

impl Meter {
    /// A meter with all its memory.
    ///
    /// # Errors
    /// If there is not so much memory.
    pub fn new(config: &MeterConfig) -> Result<Meter, OutOfMemory> {
        let table = Table::new(&config.table)?;
        let with_key = config.key_extra.any();
        let extras = if with_key || config.extra != ExtraConfig::default() {
            let extras = Extras::new(&config.extra, with_key, table.capacity())?;
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
            fragments: Fragments::new(config.datagram_count_max),
            batch: Box::new([Observed::NONE; WAITING_MAX + 1]),
            batch_len: 0,
            extras,
            levels: [Dissection::EMPTY; LEVEL_COUNT],
            packets: 0,
            unsampled: 0,
            twice: 0,
            refused: [0; Reason::COUNT],
            without_ports: [0; Reason::COUNT],
        })
    }

    /// Bytes of memory that it takes and will ever take, an inspector's not included.
    pub fn memory_len(&self) -> usize {
        self.memory_len
    }

    /// Whether more than records was asked for, so that packets should be given by
    /// [`Meter::observe_all`].
    pub fn has_extras(&self) -> bool {
        self.extras.is_some()
    }

    /// Dissects every packet in full: what must come out the same (see the law of conservation).
    #[doc(hidden)]
    pub fn without_shortcut(&mut self) {
        self.has_shortcut = false;
    }

    /// From the next packet on this sampling; flows in the table go on. Not between packets that
    /// are given together and [`Meter::flush`].
    pub fn set_sampling(&mut self, sampling: Sampling) {
        self.is_all = sampling == Sampling::All;
        let parts = self.key_vlan || self.key_interface || self.key_extra.is_some();
        self.has_shortcut = self.is_all && !parts;
        self.sampler = Sampler::new(sampling, &self.hash_key);
    }

    /// Gives it somebody who looks at the first packets of flows; there are
    /// [`ExtraConfig::inspect_count`] of them. Without that nothing happens.
    pub fn set_inspector(&mut self, inspector: Box<dyn Inspect>) {
        if let Some(extras) = &mut self.extras {
            extras.set_inspector(inspector);
        }
    }

    /// What the inspector knows of a flow that goes on, in its own form, into `found`, whose former
    /// content is lost. The place is one that [`TopScan::take`](crate::top::TopScan::take) showed;
    /// nothing is found where another flow has it by now.
    pub fn application(&self, place: u32, record: &Record, found: &mut Vec<u8>) {
        found.clear();
        let is_same = |other: &Record| other.key() == record.key();
        if let Some(extras) = &self.extras
            && self.table.at(place).is_some_and(is_same)
        {
            extras.known(place, found);
        }
    }

    /// Its table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// What was counted so far.
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

    /// Takes a packet. It may wait for others until its batch is full: call [`Meter::flush`] after
    /// the last one at hand. Where more than the record was asked for, packets are handled faster
    /// by [`Meter::observe_all`].
    #[inline]
    pub fn observe(&mut self, input: &Input<'_>, sink: &mut dyn Sink) {
        if self.extras.is_some() {
            self.observe_all(std::slice::from_ref(input), sink);
        } else if self.profile == Profile::Counters {
            self.take(input, 0, &mut Alone::<false>, sink);
        } else {
            self.take(input, 0, &mut Alone::<true>, sink);
        }
    }

    /// Takes packets, any number, and lets none of them wait.
    pub fn observe_all(&mut self, inputs: &[Input<'_>], sink: &mut dyn Sink) {
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
            self.flush_with(&mut watch, sink);
        }
        self.extras = Some(extras);
    }

    /// Of the packets given together last, [`BATCH_MAX`] at most, those that are at the beginning
    /// of their records, or whose application is wanted: a bit each ([`ExtraConfig::shunt`]).
    /// Packets in no flow are not among them.
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
        sink: &mut dyn Sink,
    ) {
        let place = self.batch_len.min(WAITING_MAX);
        let observed = &mut self.batch[place];
        if self.has_shortcut
            && input.link == LinkType::ETHERNET
            && shortcut::read(input.bytes, input.wire_len, self.is_layer2, observed)
        {
            self.packets += 1;
            observed.time_ns = input.time_ns;
            if W::HAS_EXTRAS {
                observed.input_index = input_index;
                observed.key_extra = KeyExtra::NONE;
            }
            self.batch_len = place + 1;
            if self.batch_len.is_multiple_of(BATCH_MAX) {
                self.batch_filled(watch, sink);
            }
            return;
        }
        self.take_dissected(input, input_index, watch, sink);
    }

    /// A packet that needs the whole dissection, or a meter that asks for more of it.
    #[inline(never)]
    fn take_dissected<W: Watch>(
        &mut self,
        input: &Input<'_>,
        input_index: u8,
        watch: &mut W,
        sink: &mut dyn Sink,
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
            self.count((input, input_index), (0, None), watch, sink);
        }
    }

    /// A packet whose first level does not name its flow.
    #[inline(never)]
    fn take_inner<W: Watch>(
        &mut self,
        source: (&Input<'_>, u8),
        watch: &mut W,
        sink: &mut dyn Sink,
    ) {
        let mut named = match self.descend(source.0.bytes) {
            Ok(named) => named,
            Err(reason) => {
                self.refused[reason as usize] += 1;
                return;
            }
        };
        // A fragment of a tunnel's packet counts in the tunnel's flow alone: only the first one has
        // an inner header.
        let is_piece = self.levels[named.outer].fragment != wire::Fragment::Whole;
        if self.level == Level::Both && is_piece {
            (named.inner, named.tunnel_id) = (named.outer, None);
        }
        if named.inner != named.outer && self.level == Level::Both {
            self.twice += 1;
            self.count(source, (named.outer, None), watch, sink);
        }
        self.count(source, (named.inner, named.tunnel_id), watch, sink);
    }

    /// Counts a packet in the flow of one of its levels, by its place in `levels`.
    fn count<W: Watch>(
        &mut self,
        (input, input_index): (&Input<'_>, u8),
        (at, tunnel_id): (usize, Option<u32>),
        watch: &mut W,
        sink: &mut dyn Sink,
    ) {
        let (first, level) = (&self.levels[0], &self.levels[at]);
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
        if self.key_vlan || self.key_interface {
            self.extend_key(&mut key, input);
        }
        let mut hash = self.hash_key.hash(&key.words());
        let mut key_extra = KeyExtra::NONE;
        // Without anything beside the table there is no place for it.
        if W::HAS_EXTRAS
            && let Some(parts) = self.key_extra
        {
            key_extra = self.extra_key(parts, (at, tunnel_id), input, side);
            let [a, b, c] = key_extra.words();
            hash = self.hash_key.hash(&[a, b, c, hash, 0, 0]);
        }
        if !self.is_all && !self.takes_flow(&key) {
            self.unsampled += 1;
            return;
        }
        let bytes = if self.is_layer2 {
            first.wire_len
        } else {
            level
                .ip_total_len
                .min(first.wire_len.saturating_sub(level.ip_offset.into()))
        };
        let fragmented = level.fragment as u8 | first.fragment as u8;
        let tcp_mss = if W::DETAIL && level.tcp_flags & flag::SYN != 0 {
            announced_mss(level, input.bytes)
        } else {
            0
        };
        if level.reason != Reason::Complete {
            self.without_ports[level.reason as usize] += 1;
        }
        let observed = Observed {
            key,
            side,
            is_answer: ports.is_answer,
            marks: 0,
            input_index,
            hash,
            time_ns: input.time_ns,
            level: Headers::of(level),
            bytes,
            tcp_mss,
            key_extra,
        };
        if fragmented == 0 {
            self.push(&observed, watch, sink);
        } else {
            self.fragment(observed, at, watch, sink);
        }
    }

    fn push<W: Watch>(&mut self, observed: &Observed, watch: &mut W, sink: &mut dyn Sink) {
        let place = self.batch_len.min(WAITING_MAX);
        self.batch[place] = *observed;
        self.batch_len = place + 1;
        if self.batch_len.is_multiple_of(BATCH_MAX) {
            self.batch_filled(watch, sink);
        }
    }

    /// One of the two batches is full.
    #[inline(never)]
    fn batch_filled<W: Watch>(&mut self, watch: &mut W, sink: &mut dyn Sink) {
        match self.batch_len {
            // What the table loads for it comes while the second one is read.
            BATCH_MAX => self.turn(0),
            _ => self.flush_with(watch, sink),
        }
    }

    /// Readies the batch that begins there.
    fn turn(&mut self, from: usize) {
        let waiting = self.batch.get_mut(from..self.batch_len).unwrap_or_default();
        shortcut::turn(waiting, &self.hash_key, self.uniflow, &self.table);
    }

    /// Gives what waits to the table.
    fn empty_batch<W: Watch>(&mut self, watch: &mut W, sink: &mut dyn Sink) {
        // The first batch was readied when it was full.
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

    /// Hands what waits to the table.
    pub fn flush(&mut self, sink: &mut dyn Sink) {
        watched!(self, watch => self.flush_with(watch, sink));
    }

    /// Hands what waits to the table, and looks for fragments that were held too long.
    #[inline(never)]
    fn flush_with<W: Watch>(&mut self, watch: &mut W, sink: &mut dyn Sink) {
        self.empty_batch(watch, sink);
        if self.fragments.stats().held != 0 {
            let clock_ns = self.table.clock_ns();
            let table = &mut self.table;
            self.fragments
                .sweep(clock_ns, WAITING_MAX, &mut |(like, held)| {
                    table.observe_held((&like, &held), watch, sink);
                });
        }
    }

    /// Looks for the levels that name flows; `levels[0]` stays the packet's first. Without an IP
    /// header it returns why the last level ended.
    #[inline(never)]
    fn descend(&mut self, packet: &[u8]) -> Result<Named, Reason> {
        let mut found = (self.levels[0].ip_version != 0).then_some(Named::first());
        let mut at = 0;
        loop {
            if let Some(named) = found
                && self.level == Level::Outer
            {
                return Ok(named);
            }
            let around = self.levels[at];
            let kept = found.unwrap_or(Named::first());
            // There are two places more than may be in use.
            let is_free = |slot: &usize| ![0, at, kept.outer, kept.inner].contains(slot);
            let next = (1..LEVEL_COUNT).find(is_free).unwrap_or(at);
            if around.inner_is_quote || !dissect_inner(packet, &around, &mut self.levels[next]) {
                return found.ok_or(around.reason);
            }
            at = next;
            if self.levels[at].ip_version != 0 {
                found = Some(Named {
                    outer: found.map_or(at, |named| named.outer),
                    inner: at,
                    tunnel_id: Some(around.tunnel_id),
                });
            }
        }
    }

    /// Whether sampling takes packets between these addresses. Ports and protocol have no part in
    /// it: later fragments do not tell them, and are to share the fate of the first.
    #[inline(never)]
    fn takes_flow(&self, key: &FlowKey) -> bool {
        let [a, b, c, d, ..] = key.words();
        self.sampler
            .takes_flow(self.hash_key.hash(&[a, b, c, d, 0, 0]))
    }

    #[inline(never)]
    fn extend_key(&self, key: &mut FlowKey, input: &Input<'_>) {
        let outermost = &self.levels[0];
        if self.key_vlan {
            match input.vlan {
                Some(id) => key.set_vlan(id & 0xfff, outermost.vlan_outer),
                None => key.set_vlan(outermost.vlan_outer, outermost.vlan_inner),
            }
        }
        if self.key_interface {
            key.set_interface(input.interface);
        }
    }

    /// The rarer parts of the key.
    #[inline(never)]
    fn extra_key(
        &self,
        parts: KeyParts,
        (at, tunnel_id): (usize, Option<u32>),
        input: &Input<'_>,
        side: Side,
    ) -> KeyExtra {
        let (outermost, level) = (&self.levels[0], &self.levels[at]);
        let mut extra = KeyExtra::NONE;
        if parts.mac
            && outermost.layer_kinds[0] == LayerKind::Ethernet
            && let Some([to, from]) = input.bytes.as_chunks::<6>().0.first_chunk::<2>()
        {
            extra.mac[side as usize] = *from;
            extra.mac[side.other() as usize] = *to;
        }
        if parts.mpls {
            extra.mpls_label = outermost.mpls_label;
        }
        if parts.tunnel {
            extra.tunnel_id = tunnel_id.unwrap_or(level.tunnel_id);
        }
        if parts.traffic_class {
            extra.traffic_class = level.traffic_class;
        }
        extra
    }

    /// A fragment, of the level at a place in `levels`: counted or held back.
    #[inline(never)]
    fn fragment<W: Watch>(
        &mut self,
        mut observed: Observed,
        at: usize,
        watch: &mut W,
        sink: &mut dyn Sink,
    ) {
        // Of a fragmented datagram within a tunnel within a fragmented datagram the outer one is
        // followed.
        let outermost = &self.levels[0];
        let level = if outermost.fragment == wire::Fragment::Whole {
            &self.levels[at]
        } else {
            outermost
        };
        let (datagram, piece) = (Datagram::of(level), Piece::of(level));
        let part = (&datagram, piece);
        let is_later = level.fragment.is_later();
        observed.marks |= FRAGMENT | if is_later { LATER } else { 0 };
        let clock_ns = self.table.clock_ns().max(observed.time_ns);
        let (fragments, key) = (&mut self.fragments, &self.hash_key);
        let (follows, released) = if is_later {
            match fragments.later(part, &observed, clock_ns, key) {
                Later::Follow(like) => (Some(like), None),
                Later::Held(released) => (None, released),
            }
        } else {
            let released = fragments.first(part, &observed, clock_ns, key);
            (None, released)
        };
        if let Some((like, held)) = released {
            // What came before must be in the table.
            self.empty_batch(watch, sink);
            self.table.observe_held((&like, &held), watch, sink);
        }
        match (is_later, follows) {
            (false, _) => self.push(&observed, watch, sink),
            (true, Some(like)) => self.push(&like, watch, sink),
            (true, None) => {}
        }
    }

    /// Tells the time when no packets come, some ten times a second at most. Give a time that no
    /// packet to come will be before: the clock less what the device may hold back.
    pub fn tick(&mut self, clock_ns: u64, sink: &mut dyn Sink) {
        watched!(self, watch => {
            self.flush_with(watch, sink);
            self.table.tick_with(clock_ns, watch, sink);
            let clock_ns = self.table.clock_ns();
            let table = &mut self.table;
            self.fragments.sweep(clock_ns, usize::MAX, &mut |(like, held)| {
                table.observe_held((&like, &held), watch, sink);
            });
        });
    }

    /// The end of input: every flow ends. The meter may be used on.
    pub fn finish(&mut self, sink: &mut dyn Sink) {
        watched!(self, watch => {
            self.flush_with(watch, sink);
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

/// The maximum segment size that a SYN announces; 0 without one.
#[inline(never)]
fn announced_mss(level: &Dissection, packet: &[u8]) -> u16 {
    let segment = packet.get(usize::from(level.transport_offset)..);
    let Some(Ok(header)) = segment.map(Tcp::parse) else {
        return 0;
    };
    let found = header.options().find_map(|option| match option {
        TcpOption::MaxSegmentSize(size) => Some(size),
        _ => None,
    });
    found.unwrap_or(0)
}

#[cfg(test)]
mod tests;
