//! From packets to observations: dissection, key, fragments; batches to the table.

use wire::tcp::{Tcp, TcpOption, flag};
use wire::{Dissection, LayerKind, LinkType, Reason, dissect, dissect_inner};

use crate::extra::{ExtraConfig, Extras, Inspect, Watching};
use crate::fragment::{Datagram, FragmentStats, Fragments, Later, Piece};
use crate::hash::HashKey;
use crate::key::{self, FlowKey, KeyExtra, Side};
use crate::record::{FRAGMENT, IP_FLAGS_SHIFT, LATER};
use crate::sampling::{Sampler, Sampling};
use crate::table::{
    Alone, BATCH_MAX, Observed, OutOfMemory, Profile, Sink, Table, TableConfig, TableStats, Watch,
};

/// Which IP header of a packet names its flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// The outermost.
    #[default]
    Outer,
    /// The innermost, inside all tunnels. What an ICMP error quotes is no tunnel.
    Inner,
    /// Both: a packet in a tunnel counts in the flow of the tunnel and in the one inside.
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
            + Fragments::memory_len_for(self.datagram_count_max)
            + size_of::<Meter>()
            + BATCH_MAX * size_of::<Observed>()
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

/// The metering process of one thread.
pub struct Meter {
    level: Level,
    octets: Octets,
    key_vlan: bool,
    key_interface: bool,
    key_extra: Option<KeyParts>,
    uniflow: bool,
    /// All packets are metered.
    is_all: bool,
    sampler: Sampler,
    hash_key: HashKey,
    memory_len: usize,
    profile: Profile,
    table: Table,
    fragments: Fragments,
    batch: Vec<Observed>,
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
            octets: config.octets,
            key_vlan: config.key_vlan,
            key_interface: config.key_interface,
            key_extra: with_key.then_some(config.key_extra),
            uniflow: config.table.uniflow,
            is_all: config.sampling == Sampling::All,
            sampler: Sampler::new(config.sampling, &config.hash_key),
            hash_key: config.hash_key.clone(),
            memory_len: config.memory_len(),
            profile: config.table.profile,
            table,
            fragments: Fragments::new(config.datagram_count_max),
            // A packet in a tunnel may count twice.
            batch: Vec::with_capacity(BATCH_MAX + 1),
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

    /// Gives it somebody who looks at the first packets of flows; there are
    /// [`ExtraConfig::inspect_count`] of them. Without that nothing happens.
    pub fn set_inspector(&mut self, inspector: Box<dyn Inspect>) {
        if let Some(extras) = &mut self.extras {
            extras.set_inspector(inspector);
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
            waiting: self.batch.len() as u64,
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

    #[inline(always)]
    fn take<W: Watch>(
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
        dissect(input.link, input.bytes, input.wire_len, &mut self.levels[0]);
        let first = &self.levels[0];
        let descend =
            first.ip_version == 0 || (self.level != Level::Outer && first.inner != LayerKind::None);
        let source = (input, input_index);
        let named = if descend {
            match self.descend(input.bytes) {
                Ok(named) => named,
                Err(reason) => {
                    self.refused[reason as usize] += 1;
                    return;
                }
            }
        } else {
            Named::first()
        };
        if named.inner != named.outer && self.level == Level::Both {
            self.twice += 1;
            self.count_outer(source, named.outer, watch, sink);
        }
        self.count(source, (named.inner, named.tunnel_id), watch, sink);
    }

    #[inline(never)]
    fn count_outer<W: Watch>(
        &mut self,
        source: (&Input<'_>, u8),
        at: usize,
        watch: &mut W,
        sink: &mut dyn Sink,
    ) {
        self.count(source, (at, None), watch, sink);
    }

    /// Counts a packet in the flow of one of its levels.
    #[inline(always)]
    fn count<W: Watch>(
        &mut self,
        (input, input_index): (&Input<'_>, u8),
        (at, tunnel_id): (usize, Option<u32>),
        watch: &mut W,
        sink: &mut dyn Sink,
    ) {
        let level = &self.levels[at];
        let mut ports = key::ports(level);
        let ends = (&level.src, &level.dst);
        let (protocol, version) = (level.ip_protocol, level.ip_version);
        let (mut key, side) = if self.uniflow {
            ports.is_answer = false;
            let key = FlowKey::one_way(ends.0, ends.1, ports, protocol, version);
            (key, Side::A)
        } else {
            FlowKey::new(ends.0, ends.1, ports, protocol, version)
        };
        if self.key_vlan || self.key_interface {
            self.extend_key(&mut key, input);
        }
        let mut hash = self.hash_key.hash(&key.words());
        let key_extra = match self.key_extra {
            None => KeyExtra::NONE,
            Some(parts) => {
                let extra = self.extra_key(parts, (at, tunnel_id), input, side);
                let [a, b, c] = extra.words();
                hash = self.hash_key.hash(&[a, b, c, hash, 0, 0]);
                extra
            }
        };
        if !self.is_all && !self.sampler.takes_flow(hash) {
            self.unsampled += 1;
            return;
        }
        let bytes = match self.octets {
            Octets::Ip => level.ip_total_len.min(
                self.levels[0]
                    .wire_len
                    .saturating_sub(level.ip_offset.into()),
            ),
            Octets::Packet => self.levels[0].wire_len,
        };
        let flags = level.tcp_flags;
        let fragmented = level.fragment as u8 | self.levels[0].fragment as u8;
        // Of other protocols the fields of TCP are zero.
        let is_tcp = level.layer_mask & LayerKind::Tcp.bit() != 0;
        let moves = level.payload_len + u32::from(flags & flag::FIN) + u32::from(flags >> 1 & 1);
        let options = level.tcp_options;
        let observed = Observed {
            key,
            side,
            is_answer: ports.is_answer,
            tcp_flags: flags,
            hash,
            time_ns: input.time_ns,
            bytes,
            payload_bytes: level.payload_len,
            ttl: level.ttl,
            traffic_class: level.traffic_class,
            marks: 0,
            ip_flags: u16::from(level.ip_flags) << IP_FLAGS_SHIFT,
            len: bytes.min(u32::from(u16::MAX)) as u16,
            tcp_window: level.tcp_window,
            tcp_mss: if W::DETAIL && flags & flag::SYN != 0 {
                announced_mss(level, input.bytes)
            } else {
                0
            },
            tcp_seq: level.tcp_seq,
            tcp_seq_len: if is_tcp { moves } else { 0 },
            tcp_options: options as u32 & 0x7fff_ffff | ((options >> 34) as u32) << 31,
            ip_options: level.ip_options,
            payload_offset: level.payload_offset,
            input_index,
            key_extra,
        };
        if level.reason != Reason::Complete {
            self.without_ports[level.reason as usize] += 1;
        }
        if fragmented != 0 {
            self.fragment(at, observed, watch, sink);
        } else {
            self.push(observed, watch, sink);
        }
    }

    #[inline(always)]
    fn push<W: Watch>(&mut self, observed: Observed, watch: &mut W, sink: &mut dyn Sink) {
        self.batch.push(observed);
        if self.batch.len() >= BATCH_MAX {
            self.flush_with(watch, sink);
        }
    }

    /// Hands what waits to the table.
    pub fn flush(&mut self, sink: &mut dyn Sink) {
        watched!(self, watch => self.flush_with(watch, sink));
    }

    /// Hands what waits to the table, and looks for fragments that were held too long.
    #[inline(never)]
    fn flush_with<W: Watch>(&mut self, watch: &mut W, sink: &mut dyn Sink) {
        self.table.observe_with(&self.batch, watch, sink);
        self.batch.clear();
        if self.fragments.stats().held != 0 {
            let clock_ns = self.table.clock_ns();
            let table = &mut self.table;
            self.fragments
                .sweep(clock_ns, BATCH_MAX, &mut |(like, held)| {
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

    /// A fragment, counted or held back. `level` is the one that names the flow.
    #[inline(never)]
    fn fragment<W: Watch>(
        &mut self,
        level: usize,
        mut observed: Observed,
        watch: &mut W,
        sink: &mut dyn Sink,
    ) {
        // Of a fragmented datagram within a tunnel within a fragmented datagram the outer one is
        // followed.
        let outermost = &self.levels[0];
        let level = if outermost.fragment == wire::Fragment::Whole {
            &self.levels[level]
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
            self.table.observe_with(&self.batch, watch, sink);
            self.batch.clear();
            self.table.observe_held((&like, &held), watch, sink);
        }
        match (is_later, follows) {
            (false, _) => self.push(observed, watch, sink),
            (true, Some(like)) => self.push(like, watch, sink),
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
