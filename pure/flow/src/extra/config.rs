//! Selection of extra fields, and their cost.

use super::carried::Carried;
use super::{ByteCounts, Inspected, PacketNote, Timing};
use crate::key::KeyExtra;

/// Extra fields to record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtraConfig {
    /// Number of packets to remember from the start of a flow; 0 for none.
    pub packet_count: u8,
    /// Whether to record sums and histograms of gaps and lengths.
    pub timing: bool,
    /// Whether to record a histogram of the payload's byte values.
    pub bytes: bool,
    /// Number of packets with payload to pass to an [`Inspect`](super::Inspect) per flow; 0 none,
    /// 255 until it is done.
    pub inspect_count: u8,
    /// Report for each packet whether it is among the first of its record
    /// ([`crate::Meter::chosen`]).
    pub shunt: Option<Shunt>,
}

/// Limits of the start of a record, which is passed on for deeper inspection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shunt {
    /// Number of packets in both directions.
    pub packets: u64,
    /// Number of bytes in them; the packet that reaches it is the last.
    pub bytes: u64,
}

impl ExtraConfig {
    /// Memory per flow in bytes; `with_key` if parts of the key are kept here.
    pub fn flow_len(&self, with_key: bool) -> usize {
        let mut len = if with_key { size_of::<KeyExtra>() } else { 0 };
        if self.packet_count != 0 {
            len += 1 + usize::from(self.packet_count) * size_of::<PacketNote>();
        }
        len += if self.timing {
            size_of::<[Timing; 2]>()
        } else {
            0
        };
        len += if self.bytes {
            size_of::<ByteCounts>()
        } else {
            0
        };
        len += if self.inspect_count != 0 {
            size_of::<Inspected>()
        } else {
            0
        };
        len
    }
}

impl ExtraConfig {
    /// Additional fixed memory for a table of this many flows, in bytes.
    pub(crate) fn fixed_len(&self, flow_count: usize) -> usize {
        match self.inspect_count {
            0 => 0,
            _ => Carried::memory_len(flow_count),
        }
    }
}
