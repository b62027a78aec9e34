//! The configuration of a meter, and its input.

use wire::LinkType;

use super::{Meter, Waiting};
use crate::extra::ExtraConfig;
use crate::fragment::Fragments;
use crate::hash::HashKey;
use crate::sampling::Sampling;
use crate::table::{Table, TableConfig};

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
    /// The IP datagram: header and all after it, no padding (IPFIX octetDeltaCount).
    #[default]
    Ip,
    /// The whole packet from the link header on (IPFIX layer2OctetDeltaCount).
    Packet,
}

/// Rarer parts of the key. They are kept alongside the records and cost 24 bytes per flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyParts {
    /// The MAC addresses of an Ethernet header.
    pub mac: bool,
    /// The label on top of the MPLS stack.
    pub mpls: bool,
    /// The number of the tunnel ([`KeyExtra::tunnel_id`](crate::KeyExtra::tunnel_id)).
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
    /// The extra fields to record.
    pub extra: ExtraConfig,
    /// Which packets are metered.
    pub sampling: Sampling,
    /// Fragmented datagrams remembered at once.
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

    /// Bytes that a flow takes: its record, its share of the index, and its extra fields.
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
    /// When it came, in nanoseconds since the Unix epoch. The greatest number stands for the one
    /// before it, in the year 2554.
    pub time_ns: u64,
    /// The id of a VLAN tag that is not in the bytes any more.
    pub vlan: Option<u16>,
    /// Interface of the capture.
    pub interface: u16,
}
