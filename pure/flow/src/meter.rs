//! From packets to observations: dissection, key, fragments; batches to the table.

use wire::{Dissection, LinkType, Reason, dissect, dissect_inner};

use crate::fragment::{Datagram, FragmentStats, Fragments, Later};
use crate::hash::HashKey;
use crate::key::{self, FlowKey};
use crate::table::{BATCH_MAX, Observed, OutOfMemory, Sink, Table, TableConfig, TableStats};

/// Which IP header of a packet names its flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// The outermost.
    #[default]
    Outer,
    /// The innermost, inside all tunnels. What an ICMP error quotes is no tunnel.
    Inner,
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
            datagram_count_max: 4096,
            hash_key,
        }
    }

    /// Bytes that a meter made like this takes.
    pub fn memory_len(&self) -> usize {
        Table::memory_len_for(self.table.flow_count_max)
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
        let known = self.refused_total() + self.waiting + self.fragments.held + self.table.packets;
        self.packets.wrapping_sub(known) as i64
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
        self.waiting += other.waiting;
        self.fragments.add(&other.fragments);
        self.table.add(&other.table);
    }
}

/// The metering process of one thread.
pub struct Meter {
    level: Level,
    octets: Octets,
    key_vlan: bool,
    key_interface: bool,
    hash_key: HashKey,
    memory_len: usize,
    table: Table,
    fragments: Fragments,
    batch: Vec<Observed>,
    levels: [Dissection; 3],
    packets: u64,
    refused: [u64; Reason::COUNT],
    without_ports: [u64; Reason::COUNT],
}

impl Meter {
    /// A meter with all its memory.
    ///
    /// # Errors
    /// If there is not so much memory.
    pub fn new(config: &MeterConfig) -> Result<Meter, OutOfMemory> {
        Ok(Meter {
            level: config.level,
            octets: config.octets,
            key_vlan: config.key_vlan,
            key_interface: config.key_interface,
            hash_key: config.hash_key.clone(),
            memory_len: config.memory_len(),
            table: Table::new(&config.table)?,
            fragments: Fragments::new(config.datagram_count_max),
            batch: Vec::with_capacity(BATCH_MAX),
            levels: [Dissection::EMPTY; 3],
            packets: 0,
            refused: [0; Reason::COUNT],
            without_ports: [0; Reason::COUNT],
        })
    }

    /// Bytes of memory that it takes and will ever take.
    pub fn memory_len(&self) -> usize {
        self.memory_len
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
            waiting: self.batch.len() as u64,
            fragments: *self.fragments.stats(),
            table: *self.table.stats(),
        }
    }

    /// Takes a packet. It may wait for others until its batch is full: call [`Meter::flush`] after
    /// the last one at hand.
    #[inline]
    pub fn observe(&mut self, input: &Input<'_>, sink: &mut dyn Sink) {
        self.packets += 1;
        dissect(input.link, input.bytes, input.wire_len, &mut self.levels[0]);
        let first = &self.levels[0];
        let descend = first.ip_version == 0
            || (self.level == Level::Inner && first.inner != wire::LayerKind::None);
        let best = if descend {
            match self.descend(input.bytes) {
                Ok(best) => best,
                Err(reason) => {
                    self.refused[reason as usize] += 1;
                    return;
                }
            }
        } else {
            0
        };
        let level = &self.levels[best];
        let ports = key::ports(level);
        let (mut key, side) = FlowKey::new(
            &level.src,
            &level.dst,
            ports,
            level.ip_protocol,
            level.ip_version,
        );
        if self.key_vlan || self.key_interface {
            self.extend_key(&mut key, input);
        }
        let bytes = match self.octets {
            Octets::Ip => level.ip_total_len.min(
                self.levels[0]
                    .wire_len
                    .saturating_sub(level.ip_offset.into()),
            ),
            Octets::Packet => self.levels[0].wire_len,
        };
        let observed = Observed {
            key,
            side,
            is_answer: ports.is_answer,
            tcp_flags: level.tcp_flags,
            hash: self.hash_key.hash(&key.words()),
            time_ns: input.time_ns,
            bytes,
            payload_bytes: level.payload_len,
            ttl: level.ttl,
        };
        if level.reason != Reason::Complete {
            self.without_ports[level.reason as usize] += 1;
        }
        let fragmented = level.fragment as u8 | self.levels[0].fragment as u8;
        if fragmented != 0 && !self.fragment(best, observed, sink) {
            return;
        }
        self.push(observed, sink);
    }

    #[inline]
    fn push(&mut self, observed: Observed, sink: &mut dyn Sink) {
        self.batch.push(observed);
        if self.batch.len() == BATCH_MAX {
            self.flush(sink);
        }
    }

    /// Hands what waits to the table.
    pub fn flush(&mut self, sink: &mut dyn Sink) {
        self.table.observe(&self.batch, sink);
        self.batch.clear();
        if self.fragments.stats().held != 0 {
            let clock_ns = self.table.clock_ns();
            let table = &mut self.table;
            self.fragments
                .sweep(clock_ns, BATCH_MAX, &mut |(like, held)| {
                    table.observe_held(&like, &held, sink);
                });
        }
    }

    /// Looks for the level that names the flow, and returns where it is in `levels`; `levels[0]`
    /// stays the outermost one. Without an IP header it returns why the last level ended.
    #[inline(never)]
    fn descend(&mut self, packet: &[u8]) -> Result<usize, Reason> {
        let mut best = (self.levels[0].ip_version != 0).then_some(0);
        let mut at = 0;
        loop {
            if let Some(best) = best
                && self.level == Level::Outer
            {
                return Ok(best);
            }
            let outer = self.levels[at];
            // Neither the outermost nor the best so far may be overwritten.
            let next = if best == Some(1) { 2 } else { 1 };
            if outer.inner_is_quote || !dissect_inner(packet, &outer, &mut self.levels[next]) {
                return best.ok_or(outer.reason);
            }
            at = next;
            if self.levels[at].ip_version != 0 {
                best = Some(at);
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

    /// A fragment. Says whether it is to go on as it is; `level` is the one that names the flow.
    #[inline(never)]
    fn fragment(&mut self, level: usize, observed: Observed, sink: &mut dyn Sink) -> bool {
        // Of a fragmented datagram within a tunnel within a fragmented datagram the outer one is
        // followed.
        let outermost = &self.levels[0];
        let level = if outermost.fragment == wire::Fragment::Whole {
            &self.levels[level]
        } else {
            outermost
        };
        let datagram = Datagram::of(level);
        let is_later = level.fragment.is_later();
        let clock_ns = self.table.clock_ns().max(observed.time_ns);
        let (table, batch) = (&mut self.table, &mut self.batch);
        let mut release = |(like, held): (Observed, _)| {
            // What came before must be in the table.
            table.observe(batch, sink);
            batch.clear();
            table.observe_held(&like, &held, sink);
        };
        if !is_later {
            self.fragments
                .first(&datagram, &observed, clock_ns, &self.hash_key, &mut release);
            return true;
        }
        let later =
            self.fragments
                .later(&datagram, &observed, clock_ns, &self.hash_key, &mut release);
        if let Later::Follow(observed) = later {
            self.push(observed, sink);
        }
        false
    }

    /// Tells the time when no packets come, some ten times a second at most. Give a time that no
    /// packet to come will be before: the clock less what the device may hold back.
    pub fn tick(&mut self, clock_ns: u64, sink: &mut dyn Sink) {
        self.flush(sink);
        self.table.tick(clock_ns, sink);
        let clock_ns = self.table.clock_ns();
        let table = &mut self.table;
        self.fragments
            .sweep(clock_ns, usize::MAX, &mut |(like, held)| {
                table.observe_held(&like, &held, sink);
            });
    }

    /// The end of input: every flow ends. The meter may be used on.
    pub fn finish(&mut self, sink: &mut dyn Sink) {
        self.flush(sink);
        let table = &mut self.table;
        self.fragments.finish(&mut |(like, held)| {
            table.observe_held(&like, &held, sink);
        });
        self.table.finish(sink);
    }
}

impl Observed {
    pub(crate) const NONE: Observed = Observed {
        key: FlowKey::NONE,
        side: key::Side::A,
        is_answer: false,
        tcp_flags: 0,
        hash: 0,
        time_ns: 0,
        bytes: 0,
        payload_bytes: 0,
        ttl: 0,
    };
}

#[cfg(test)]
mod tests;
