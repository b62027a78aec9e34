//! Configuration of a meter, and its input.

use wire::LinkType;

use super::{Meter, Waiting};
use crate::extra::ExtraConfig;
use crate::fragment::Fragments;
use crate::hash::HashKey;
use crate::sampling::Sampling;
use crate::table::{Table, TableConfig};

/// The IP header of a packet that defines its flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// The outermost.
    #[default]
    Outer,
    /// The innermost, inside all tunnels. The packet quoted by an ICMP error is not inside a
    /// tunnel. A tunnel's packet that arrives in fragments counts once all of them are there; the
    /// fragments without the header inside, and those of a datagram that stays incomplete, count in
    /// the flow of the tunnel.
    Inner,
    /// Both: a packet in a tunnel counts in the flow of the tunnel and in the one inside.
    Both,
}

/// Definition of the byte count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Octets {
    /// The IP datagram: header and everything after it, without padding (IPFIX octetDeltaCount).
    #[default]
    Ip,
    /// The whole packet from the link header on (IPFIX layer2OctetDeltaCount).
    Packet,
}

/// Rarely used parts of the key. They are kept alongside the records and take 24 bytes per flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyParts {
    /// Both MAC addresses of the Ethernet header.
    pub mac: bool,
    /// The top label of the MPLS stack.
    pub mpls: bool,
    /// The tunnel number ([`KeyExtra::tunnel_id`](crate::KeyExtra::tunnel_id)).
    pub tunnel: bool,
    /// Type of service or traffic class; the two directions of a flow are separate if theirs
    /// differ.
    pub traffic_class: bool,
}

impl KeyParts {
    /// Whether any part is selected.
    pub fn any(&self) -> bool {
        self.mac || self.mpls || self.tunnel || self.traffic_class
    }
}

/// Configuration of a meter.
#[derive(Clone, Debug)]
pub struct MeterConfig {
    /// Size and timeouts.
    pub table: TableConfig,
    /// The IP header that defines the flow.
    pub level: Level,
    /// Which bytes are counted.
    pub octets: Octets,
    /// Whether the two outer VLAN ids are part of the key.
    pub key_vlan: bool,
    /// Whether the interface of the capture is part of the key.
    pub key_interface: bool,
    /// Rarely used parts of the key.
    pub key_extra: KeyParts,
    /// The extra fields to record.
    pub extra: ExtraConfig,
    /// Selection of the packets to meter.
    pub sampling: Sampling,
    /// Maximum number of concurrent fragmented datagrams.
    pub datagram_count_max: u32,
    /// The secret of the hash.
    pub hash_key: HashKey,
}

impl MeterConfig {
    /// Default configuration with this secret.
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

    /// Memory per flow in bytes: its record, its share of the index, and its extra fields.
    pub fn flow_len(&self) -> usize {
        const INDEX: usize = 16;
        size_of::<crate::Record>() + INDEX + self.extra.flow_len(self.key_extra.any())
    }

    /// Memory of a meter with this configuration in bytes.
    pub fn memory_len(&self) -> usize {
        let flows = self.table.flow_count_max.clamp(1, 1 << 28) as usize;
        Table::memory_len_for(self.table.flow_count_max)
            + flows * self.extra.flow_len(self.key_extra.any())
            + self.extra.fixed_len(flows)
            + Fragments::memory_len_for(self.datagram_count_max, self.level != Level::Outer)
            + size_of::<Meter>()
            + size_of::<Waiting>()
    }
}

/// A packet as received from a port.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// Type of its first header.
    pub link: LinkType,
    /// Captured bytes.
    pub bytes: &'a [u8],
    /// Length on the wire.
    pub wire_len: u32,
    /// Time of arrival in nanoseconds since the Unix epoch, up to
    /// [`TIME_MAX_NS`](crate::TIME_MAX_NS) in the year 2554, or
    /// [`NO_TIME_NS`](crate::NO_TIME_NS) if it is unknown. For timeouts, a packet without a time
    /// arrives together with the latest one before it.
    pub time_ns: u64,
    /// Id of a VLAN tag that is not in the bytes any more.
    pub vlan: Option<u16>,
    /// Interface of the capture.
    pub interface: u16,
}
